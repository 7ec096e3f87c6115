//! What every primitive hands out: a guard that keeps a lease, and the futures that tell of its loss.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project::pin_project;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::lease::{Engine, Hold};

/// A held lock or permit. It is kept renewed in the background for as long as this guard lives.
///
/// # Dropping
///
/// Dropping the last guard of a lease stops renewal and queues the release; a background task of the client sends it. `drop`
/// never blocks, never panics, and needs no runtime. If the release cannot reach the store, for instance
/// because the runtime is going down, the store forgets the lease by itself when it runs out. To know when
/// the resource is free, or to be told that the lease did not last until the end, call
/// [`release`](Self::release).
///
/// A guard that is forgotten (`mem::forget`) stays held and renewed until its maximum hold time, until
/// [`Client::shutdown`](crate::Client::shutdown), or until the process ends. There is no `forget` that takes permits out of
/// a semaphore for good, as tokio's has: permits live as long as somebody answers for them. To have fewer of them, use
/// `resize`.
///
/// # Several guards of one lease
///
/// Guards of a reentrant lock that the same owner took within one client, and guards that were [split](Self::split) off,
/// share one lease and its token. They may be dropped in any order; the lease ends with the last of them, and a loss is
/// told to all.
///
/// # Losing the lease
///
/// A lease can be lost while its guard lives: the store did not answer for as long as the lease lasts, the
/// process was paused, somebody released it by force, or its maximum hold time is over. Then
/// [`lost`](Self::lost) fires, [`protect`](Self::protect) ends, and [`is_held`](Self::is_held) is false, all
/// before the store lets anybody else in, as long as both clocks run at the same speed within 0.1 %. A process
/// that does not run cannot be told: against that, let the resource check the [`token`](Self::token).
#[must_use = "dropping the guard releases what it holds at once"]
pub struct Guard {
    hold: Hold,
    engine: Arc<Engine>,
    /// What goes when this guard goes; 0 once it has gone.
    permits: u32,
}

impl Guard {
    pub(crate) const fn new(engine: Arc<Engine>, hold: Hold, permits: u32) -> Self {
        Self { hold, engine, permits }
    }

    /// The fencing token: greater than that of every earlier grant of this name. Hand it to the protected
    /// resource with every write. Local, no I/O.
    ///
    /// Under a lock, nested guards of one owner have the same token. Under a semaphore several holders are valid at once:
    /// there the token tells the order of the grants, and a resource that refuses older tokens would refuse holders that
    /// are in their right.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// The name that is locked, without prefix. Local, no I/O.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold.name().as_str()
    }

    /// How many permits this guard holds; 1 for a lock. Local, no I/O.
    #[must_use]
    pub const fn permits(&self) -> u32 {
        self.permits
    }

    /// Splits `permits` off into a guard of their own, which can be released apart from this one. `None` if not at least
    /// one permit would be left here, or if `permits` is 0. Local, no I/O.
    ///
    /// Both guards go on under the same lease: the same token, and one loss for both.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let semaphore = leasehold::Client::memory().fair_semaphore("printer", 5)?;
    /// let mut three = semaphore.acquire_many(3).await?;
    /// let one = three.split(1).expect("three are more than one");
    /// three.release().await?; // which are two by now
    /// assert_eq!(semaphore.available().await?, 4);
    /// # drop(one);
    /// # Ok(()) }
    /// ```
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        if permits == 0 || permits >= self.permits {
            return None;
        }
        self.hold.split();
        self.permits -= permits;
        Some(Self::new(Arc::clone(&self.engine), self.hold.clone(), permits))
    }

    /// Whether the lease may still be trusted, by this process's clock. Local, no I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// For how long the lease may be trusted if it is not renewed any more; zero once it is lost. Renewal
    /// makes it grow again. A little less than what the store counts. Local, no I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining(Instant::now())
    }

    /// Waits until the lease is lost, and tells why.
    ///
    /// The future does not borrow the guard, so that another task can wait for it. It stays pending for ever
    /// once the guard, or the last of those that share its lease, is released or dropped: a lease that was given back is
    /// not lost. (If `release` finds that it was
    /// lost before, the future completes.)
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is kept in the future that another call would not find again.
    pub fn lost(&self) -> Lost {
        Lost { told: self.hold.lost().clone().cancelled_owned(), timer: None, hold: self.hold.clone() }
    }

    /// Runs `work` for as long as the lease is held. If the lease is lost first, `work` is dropped at its
    /// current await point and the error tells why.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let guard = leasehold::Client::memory().mutex("machine:42")?.lock().await?;
    /// let sum = guard.protect(async { 20 + 22 }).await?;
    /// assert_eq!(sum, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost before `work` was done, also if it was lost during its last step: what
    /// `work` returned is dropped then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the guard stays as it was.
    pub fn protect<F: Future>(&self, work: F) -> Protected<'_, F> {
        Protected { lost: self.lost(), work: Some(work), guard: PhantomData }
    }

    /// Releases and waits until the store has confirmed it. When this returns `Ok`, the lease was held to the
    /// end, and whoever was next in line for what became free holds it now. While other guards share the lease of a lock,
    /// nothing becomes free and nothing is sent. If another task of this client waits for the same mutex, or for a permit that
    /// may be passed on, it gets the lease without asking the store: then `Ok` means that it was held to the end by this
    /// client's clock.
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] if the lease was lost before; there was nothing left to release.
    /// * [`Error::StoreUnavailable`] if the store did not confirm. The release is repeated in the background
    ///   until it does or the lease has run out.
    /// * [`Error::StoreRefused`] if the store says no. What this guard held is given back when its lease runs out.
    ///
    /// # Cancel safety
    ///
    /// Once polled, dropping the future does not keep the lease: the release goes on in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let permits = std::mem::take(&mut self.permits);
        self.engine.release(&self.hold, permits).await
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", &self.name())
            .field("token", &self.token().get())
            .field("permits", &self.permits)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.permits > 0 {
            self.engine.abandon(&self.hold, self.permits);
        }
    }
}

/// Future of [`Guard::lost`]: completes when the lease is lost.
///
/// Poll it on one runtime: its timer belongs to the one on which it was first polled.
///
/// It has a timer of its own, so that it fires at the deadline whatever the store or any task of the client
/// does. Polled outside a tokio runtime it depends on the client's background task instead.
#[pin_project]
#[must_use = "futures do nothing unless awaited"]
pub struct Lost {
    hold: Hold,
    #[pin]
    told: WaitForCancellationFutureOwned,
    #[pin]
    timer: Option<Sleep>,
}

impl Future for Lost {
    type Output = LossReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LossReason> {
        let mut this = self.project();
        let told = this.told.poll(cx);
        loop {
            if let Some(reason) = this.hold.loss(Instant::now()) {
                return Poll::Ready(reason);
            }
            // Released, or passed on.
            let Some(ends) = this.hold.ends().filter(|_| !told.is_ready()) else { return Poll::Pending };
            match this.timer.as_mut().as_pin_mut() {
                Some(timer) if timer.deadline() == ends => ready!(timer.poll(cx)),
                Some(timer) => timer.reset(ends),
                None if Handle::try_current().is_ok() => this.timer.set(Some(sleep_until(ends))),
                None => return Poll::Pending,
            }
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").field("name", &self.hold.name().as_str()).finish_non_exhaustive()
    }
}

/// Future of [`Guard::protect`]: the protected work, or the loss of the lease.
#[pin_project]
#[must_use = "futures do nothing unless awaited"]
pub struct Protected<'guard, F> {
    #[pin]
    lost: Lost,
    #[pin]
    work: Option<F>,
    guard: PhantomData<&'guard Guard>,
}

impl<F: Future> Future for Protected<'_, F> {
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // The lease is asked first: no step of the work is taken without it.
        if let Poll::Ready(reason) = this.lost.as_mut().poll(cx) {
            this.work.set(None);
            return Poll::Ready(Err(this.lost.hold.loss_error(reason)));
        }
        let Some(work) = this.work.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let output = ready!(work.poll(cx));
        this.work.set(None);
        // The last step itself may have taken too long.
        Poll::Ready(match this.lost.hold.loss(Instant::now()) {
            None => Ok(output),
            Some(reason) => Err(this.lost.hold.loss_error(reason)),
        })
    }
}

impl<F> fmt::Debug for Protected<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protected").field("lost", &self.lost).finish_non_exhaustive()
    }
}
