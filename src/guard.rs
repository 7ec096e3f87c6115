//! What every primitive returns: a guard that holds a lease, and the futures that report its end.

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
use crate::lease::{Engine, HandedOver, Hold};

/// A held lock or permit. It is renewed in the background for as long as this guard is alive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let guard = client.mutex("machine:42")?.lock().await?; // renewed in the background from here on
/// guard.protect(async { /* read, merge, write */ }).await?; // stops early if the lease is lost
/// guard.release().await?; // or drop it, and go on
/// # Ok(()) }
/// ```
///
/// # Dropping
///
/// Dropping the last guard of a lease ends it for this holder. The lease is passed on to the next waiting task of the
/// client, if that is allowed; otherwise it is no longer renewed, and its release is queued for a background task of
/// the client to send. Dropping never panics and needs no runtime. It does not block, with one exception: outside any
/// tokio runtime, it waits for the store, for up to 100 ms (all guards of a client together for up to 1 s, and then for
/// a tenth of the time), because the process may be about to end. Dropping the future of a waiting call there waits in
/// the same way. Inside a runtime that is never dropped (in a `static`, or ended by `shutdown_background`), the last
/// guard that a program drops may not be released before the process ends; call [`release`](Self::release) instead. If
/// the release cannot reach the store, the lease expires there on its own. To know when the resource is free, or
/// whether the lease was held until the end, call [`release`](Self::release).
///
/// A guard that is leaked (`mem::forget`) stays held and renewed until its maximum hold time,
/// [`Client::shutdown`](crate::Client::shutdown), or the end of the process. Unlike in tokio, there is no `forget` that
/// removes permits from a semaphore permanently, because a permit can only be taken under a lease, which ends with its
/// holder. To reduce the number of permits, use `resize`.
///
/// # Several guards of one lease
///
/// Guards of a reentrant lock that the same owner acquired within one client, and guards that were
/// [split](Self::split) off, share one lease and its token. They can be dropped in any order. The lease ends with the
/// last of them, and all of them are notified of a loss.
///
/// # Losing the lease
///
/// A lease can be lost while its guard is alive: the store did not answer until the lease had expired, the store lost
/// its data, the process was paused for too long, the lease was released by force, or its maximum hold time was
/// reached. Then [`lost`](Self::lost) completes, [`protect`](Self::protect) stops, and [`is_held`](Self::is_held)
/// returns false.
///
/// If the store does not answer, or the maximum hold time is over, this happens before the store grants the resource to
/// another client, provided that the clocks of this machine and of the store run at the same speed within 0.1%. A
/// process that is not running cannot be notified; to cover that case, let the resource check the
/// [`token`](Self::token). Code that only blocks its thread does not lose a lease, except on the memory store, because
/// leases are renewed from the crate's own thread; but `lost` and `protect` notice nothing until they are polled again.
#[doc(alias = "lease")]
#[doc(alias = "MutexGuard")]
#[doc(alias = "watchdog")]
#[doc(alias = "OwnedSemaphorePermit")]
#[must_use = "dropping the guard releases it at once"]
pub struct Guard {
    hold: Hold,
    engine: Arc<Engine>,
    /// The permits that are returned with this guard; 0 once they have been.
    permits: u32,
}

impl Guard {
    pub(crate) const fn new(engine: Arc<Engine>, hold: Hold, permits: u32) -> Self {
        Self { hold, engine, permits }
    }

    pub(crate) const fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The fencing token: greater than that of every earlier grant of this name. Pass it to the protected
    /// resource with every write. No I/O.
    ///
    /// Nested guards of one owner of a lock have the same token. A semaphore has several valid holders at once, so
    /// its tokens only show the order of the grants: a resource that rejects older tokens would reject legitimate
    /// holders.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// let first = mutex.lock().await?.token();
    /// let second = mutex.lock().await?.token();
    /// assert!(second > first);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token
    }

    /// The name of the lock or semaphore, without prefix. No I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// assert_eq!(guard.name(), "machine:42");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold.name()
    }

    /// How many permits this guard holds; 1 for a lock. No I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let three = client.counting_semaphore("printer", 5)?.acquire_many(3).await?;
    /// assert_eq!(three.permits(), 3);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub const fn permits(&self) -> u32 {
        self.permits
    }

    /// Moves `permits` into a separate guard, which can be released independently of this one. Returns `None` if
    /// `permits` is 0 or if no permit would be left here. No I/O.
    ///
    /// Both guards keep sharing the same lease: they have the same token, and are lost together.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let semaphore = leasehold::Client::memory().fair_semaphore("printer", 5)?;
    /// let mut three = semaphore.acquire_many(3).await?;
    /// let one = three.split(1).expect("three are more than one");
    /// three.release().await?; // two by now
    /// assert_eq!(semaphore.available().await?, 4);
    /// # drop(one);
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping the new guard releases its permits at once"]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        if permits == 0 || permits >= self.permits {
            return None;
        }
        self.hold.split();
        self.permits -= permits;
        Some(Self::new(Arc::clone(&self.engine), self.hold.clone(), permits))
    }

    /// Enough of the id of the lease to tell it from others, as in logs: it is that of one of the
    /// [holders](crate::Holder::short_id) which `inspect` reports. The whole id is a secret of the holder, since anyone
    /// who knows it can end the lease. No I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let mutex = leasehold::Client::memory().mutex("machine:42")?;
    /// let guard = mutex.lock().await?;
    /// let holders = mutex.inspect().await?.holders;
    /// assert_eq!(holders[0].short_id(), Some(guard.lease_id()));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn lease_id(&self) -> String {
        self.hold().lease.id().short()
    }

    /// Whether the lease can still be trusted, according to this process's clock. No I/O. In a process that was forked
    /// from the one that holds it, false after 1 ms at most.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// let guard = mutex.lock().await?;
    /// assert!(guard.is_held());
    /// mutex.force_release().await?;
    /// guard.lost().await;
    /// assert!(!guard.is_held());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the lease can be trusted if it is not renewed again; zero once it is lost. Each renewal extends it. The
    /// value is slightly less than the time to live in the store. No I/O. In a process that was forked, as for
    /// [`is_held`](Self::is_held).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// assert!(guard.remaining() > Duration::from_secs(20)); // the TTL is 30 s
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = Instant::now();
        if self.engine.was_elsewhere(now) { Duration::ZERO } else { self.hold.remaining(now) }
    }

    /// Takes what this guard holds away from this client, without a release.
    pub(crate) fn hand_over(&mut self) -> Result<HandedOver, Error> {
        let handed = self.engine.hand_over(&self.hold, self.permits)?;
        self.permits = 0;
        Ok(handed)
    }

    /// The error for the loss of this lease for this reason.
    pub(crate) fn lost_error(&self, reason: LossReason) -> Error {
        self.hold.loss_error(reason)
    }

    /// Waits until the lease is lost, and says why. If it is released or dropped instead, the future never completes,
    /// so a task that treats a loss as fatal does nothing after an ordinary release; to be told of both, use
    /// [`ended`](Self::ended).
    ///
    /// The future does not borrow the guard, so another task can await it. It is `Unpin`, so a loop can await it
    /// together with other events:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let mut jobs = tokio::sync::mpsc::channel::<u32>(1).1;
    /// let guard = leasehold::Client::memory().mutex("machine:42")?.lock().await?;
    /// let mut lost = guard.lost();
    /// loop {
    ///     tokio::select! {
    ///         reason = &mut lost => panic!("another client may hold the lock: {reason}"),
    ///         job = jobs.recv() => match job {
    ///             Some(job) => println!("job {job}"),
    ///             None => break,
    ///         },
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// While [`release`](Self::release) waits for the store, a loss that it finds is still reported.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the future holds no state of its own; calling `lost` again gives an equivalent one.
    pub fn lost(&self) -> Lost {
        Lost { loss: Box::pin(self.loss()) }
    }

    /// Waits until the lease ends: because it is lost, or because its last guard is released or dropped. A task that
    /// accompanies a lease ends with it:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::LeaseEnd;
    ///
    /// let guard = leasehold::Client::memory().mutex("machine:42")?.lock().await?;
    /// let ended = guard.ended();
    /// let watcher = tokio::spawn(async move {
    ///     match ended.await {
    ///         LeaseEnd::Lost(reason) => eprintln!("lost: {reason}"),
    ///         LeaseEnd::Released => println!("released"),
    ///     }
    /// });
    /// guard.release().await?;
    /// watcher.await.expect("it does not panic");
    /// # Ok(()) }
    /// ```
    ///
    /// While [`release`](Self::release) waits for the store, the future stays pending. It then reports what the release
    /// found, which may be that the lease had already been lost. A dropped guard counts as released at once.
    ///
    /// # Cancel safety
    ///
    /// As for [`lost`](Self::lost).
    pub fn ended(&self) -> Ended {
        let released = self.hold.released().cancelled_owned();
        Ended { end: Box::pin(End { released, loss: self.loss() }) }
    }

    /// Fails if the lease is lost, or was acquired in another process.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.engine.check_process("check", Some(self.name()))?;
        match self.hold.loss(Instant::now()) {
            None => Ok(()),
            Some(reason) => Err(self.hold.loss_error(reason)),
        }
    }

    fn loss(&self) -> Loss {
        Loss { lost: self.hold.lost().clone().cancelled_owned(), timer: None, hold: self.hold.clone() }
    }

    /// Runs `work` for as long as the lease is held. If the lease is lost first, `work` is dropped at its
    /// current await point and the error contains the reason.
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
    /// [`Error::Lost`] if the lease was lost before `work` was done. If that happened during its last step, the output
    /// of `work` is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the guard is not affected.
    pub fn protect<F: Future>(&self, work: F) -> Protected<'_, F> {
        Protected { loss: self.loss(), work: Some(work), guard: PhantomData }
    }

    /// As [`protect`](Self::protect), for work that can fail itself: there is one `Result`, and one `?`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let guard = leasehold::Client::memory().mutex("machine:42")?.lock().await?;
    /// let work = async { Ok::<_, Box<dyn std::error::Error>>("42".parse::<u32>()?) };
    /// assert_eq!(guard.try_protect(work).await?, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `work`, or [`Error::Lost`] as its type of error, as for [`protect`](Self::protect).
    ///
    /// # Cancel safety
    ///
    /// As for [`protect`](Self::protect).
    pub async fn try_protect<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.protect(work).await?
    }

    /// Releases the guard and waits until the store has confirmed it. If its lease ends within 5 s, it is renewed until
    /// then (for a minute at most, or for its TTL if that is longer), so that it does not expire because its thread is
    /// blocked before the release is sent. `Ok` means that the lease was held until the end, and that the lock or the
    /// permits are free, or already granted to the next waiter. While other guards share the lease of a lock, nothing
    /// becomes free and nothing is sent. If another task of this client is waiting for the same mutex, or for a permit
    /// that can be passed on, it receives the lease without asking the store; `Ok` then means that the lease was held
    /// until the end according to this client's clock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// mutex.lock().await?.release().await?; // it was held until the end, and is free now
    /// assert!(mutex.inspect().await?.holders.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::Lost`] if the lease had already been lost; there was nothing left to release.
    /// * [`Error::StoreUnavailable`] if the store did not confirm the release although it was repeated: an attempt that
    ///   fails within 4 s is followed by another.
    /// * [`Error::StoreRefused`] if the store refuses the request.
    ///
    /// After either of the last two, the release is repeated in the background for a minute, or for the TTL if that is
    /// longer. If no attempt succeeds, the lock or the permits become free when the lease expires.
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers. The guard is then released as if it had
    /// been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after it was polled does not keep the lease: the release continues in the background.
    #[doc(alias = "unlock")]
    pub async fn release(mut self) -> Result<(), Error> {
        // Outside a runtime this panics. The guard still has its permits then, so dropping it releases them.
        self.engine.ensure_running();
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

/// How a lease ended, as reported by [`Guard::ended`].
///
/// ```
/// # use leasehold::LeaseEnd;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let guard = client.mutex("machine:42")?.lock().await?;
/// let ended = guard.ended();
/// guard.release().await?;
/// assert_eq!(ended.await, LeaseEnd::Released);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "a lease is lost or given back, and nothing else can end it")]
pub enum LeaseEnd {
    /// It was lost: another client may hold the resource by now.
    Lost(LossReason),
    /// Its last guard was released or dropped.
    Released,
}

impl LeaseEnd {
    /// Why the lease was lost, or `None` if it was released.
    ///
    /// ```
    /// use leasehold::{LeaseEnd, LossReason};
    ///
    /// assert_eq!(LeaseEnd::Lost(LossReason::Expired).loss(), Some(LossReason::Expired));
    /// assert_eq!(LeaseEnd::Released.loss(), None);
    /// ```
    #[must_use]
    pub const fn loss(self) -> Option<LossReason> {
        match self {
            Self::Lost(reason) => Some(reason),
            Self::Released => None,
        }
    }
}

impl fmt::Display for LeaseEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(reason) => reason.fmt(f),
            Self::Released => f.write_str("it was released"),
        }
    }
}

/// Future of [`Guard::lost`]: completes when the lease is lost.
///
/// Poll it on one runtime only: its timer belongs to the runtime on which it was first polled.
///
/// Because it has its own timer, it completes at the deadline regardless of what the store or any task of the client
/// is doing. Outside a tokio runtime it depends on the client's background work instead.
///
/// ```
/// # use leasehold::LossReason;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock().await?;
/// let lost = guard.lost(); // can be moved to another task
/// mutex.force_release().await?;
/// assert_eq!(lost.await, LossReason::Revoked);
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Lost {
    loss: Pin<Box<Loss>>,
}

impl Future for Lost {
    type Output = LossReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LossReason> {
        self.loss.as_mut().poll(cx)
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost").field("name", &self.loss.hold.name()).finish_non_exhaustive()
    }
}

/// Future of [`Guard::ended`]: completes when the lease ends. As for [`Lost`], poll it on one runtime only.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let guard = client.mutex("machine:42")?.lock().await?;
/// let watcher = tokio::spawn(guard.ended()); // ends when the lease does
/// drop(guard);
/// assert_eq!(watcher.await.expect("it does not panic").loss(), None);
/// # Ok(()) }
/// ```
#[must_use = "futures do nothing unless awaited"]
pub struct Ended {
    end: Pin<Box<End>>,
}

impl Future for Ended {
    type Output = LeaseEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LeaseEnd> {
        self.end.as_mut().poll(cx)
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ended").field("name", &self.end.loss.hold.name()).finish_non_exhaustive()
    }
}

#[pin_project]
struct End {
    #[pin]
    loss: Loss,
    #[pin]
    released: WaitForCancellationFutureOwned,
}

impl Future for End {
    type Output = LeaseEnd;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LeaseEnd> {
        let this = self.project();
        // Polled first, so that a loss that the release has found by then is seen below.
        let released = this.released.poll(cx);
        match this.loss.poll(cx) {
            Poll::Ready(reason) => Poll::Ready(LeaseEnd::Lost(reason)),
            Poll::Pending => released.map(|()| LeaseEnd::Released),
        }
    }
}

/// Completes when the lease is lost, and never if it is released first.
#[pin_project]
struct Loss {
    hold: Hold,
    #[pin]
    lost: WaitForCancellationFutureOwned,
    #[pin]
    timer: Option<Sleep>,
}

impl Future for Loss {
    type Output = LossReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<LossReason> {
        let mut this = self.project();
        let lost = this.lost.poll(cx);
        loop {
            if let Some(reason) = this.hold.loss(Instant::now()) {
                return Poll::Ready(reason);
            }
            // Otherwise it was released or passed on.
            let Some(ends) = this.hold.ends().filter(|_| !lost.is_ready()) else { return Poll::Pending };
            match this.timer.as_mut().as_pin_mut() {
                Some(timer) if timer.deadline() == ends => ready!(timer.poll(cx)),
                Some(timer) => timer.reset(ends),
                None if Handle::try_current().is_ok() => this.timer.set(Some(sleep_until(ends))),
                None => return Poll::Pending,
            }
        }
    }
}

/// Future of [`Guard::protect`]: yields the output of the protected work, or an error if the lease is lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let guard = client.mutex("machine:42")?.lock().await?;
/// let work = guard.protect(async { 20 + 22 }); // nothing happens until it is awaited
/// assert_eq!(work.await?, 42);
/// # Ok(()) }
/// ```
#[pin_project]
#[must_use = "futures do nothing unless awaited"]
pub struct Protected<'guard, F> {
    #[pin]
    loss: Loss,
    #[pin]
    work: Option<F>,
    guard: PhantomData<&'guard Guard>,
}

impl<F: Future> Future for Protected<'_, F> {
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // The lease is checked first: the work is not polled without it.
        if let Poll::Ready(reason) = this.loss.as_mut().poll(cx) {
            this.work.set(None);
            return Poll::Ready(Err(this.loss.hold.loss_error(reason)));
        }
        let Some(work) = this.work.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let output = ready!(work.poll(cx));
        this.work.set(None);
        // The last step itself may have taken too long.
        Poll::Ready(match this.loss.hold.loss(Instant::now()) {
            None => Ok(output),
            Some(reason) => Err(this.loss.hold.loss_error(reason)),
        })
    }
}

impl<F> fmt::Debug for Protected<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protected").field("name", &self.loss.hold.name()).finish_non_exhaustive()
    }
}
