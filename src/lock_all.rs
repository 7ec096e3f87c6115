//! Several mutexes under one guard: all of them or none.
//!
//! # How they are locked
//!
//! First all are tried at once, which a store that sends concurrent requests together does in one batch. If some are
//! not free, the guards of those that are smaller than all of these, in the order of the names, are kept, and the
//! others are released. Then the call waits for the smallest one that is missing, in the queue of that mutex, and tries
//! the others again when it has it.
//!
//! # Why that cannot deadlock
//!
//! A call that tries waits for nobody. A call that waits, waits for one mutex, and holds only mutexes with smaller
//! names. Follow the chain from a call that waits at place p in the queue of mutex m to the one that it waits for: this
//! is either a call at an earlier place of the same queue, or the holder of m. That holder works, and ends by itself;
//! or it is a call that waits for another mutex, whose name is greater than m, since all that it holds is smaller. So
//! with each step (name, place) changes to a greater name, or to the same name and an earlier place. Such a chain never
//! comes back to where it was, and is finite: at its end there is a holder that works. (The order is that of the keys,
//! so it is the same for all callers, whatever their prefixes. A holder that waits for something else, such as another
//! mutex that it locks by itself, is outside this proof.)
//!
//! # Why none starves
//!
//! Each wait is in the queue of a mutex, which is served in order of arrival and which nobody that tries overtakes, and
//! what was reached is kept. So a call for n mutexes waits n times at most, each time for those that were in that queue
//! before it.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{join_all, select_all};
use tokio::time::timeout_at;

use crate::backend::{Claim, Kind};
use crate::client::Client;
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::guard::{Guard, Lost};
use crate::lease::{Engine, Wait};
use crate::name;
use crate::options::MutexOptions;
use crate::primitive::Primitive;

/// How often a call begins again because a lease was lost while it waited for another one.
const MAX_LOST: u32 = 3;

/// Several mutexes that are locked together: all of them or none.
///
/// Cheap to clone. They are the mutexes of these names, and exclude whoever locks one of them alone.
///
/// # Order
///
/// Callers may name them in any order: they are locked in the order of their names where one has to be waited for, so
/// callers of this never deadlock with each other. (Do not lock another mutex while you hold these, except one whose
/// name is greater than all of theirs.) For each mutex, waiters are served in order of arrival, those for one of them
/// and those for several alike, so nobody starves. While a call waits for one, it holds those that it has so far: the
/// more names, the longer others may wait.
///
/// If all are free, they are locked at the same time, which on Redis is one batch of requests.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let accounts = client.lock_all(["account:7", "account:3"])?;
/// let guards = accounts.lock().await?;
/// for (name, token) in guards.tokens() {
///     println!("{name} under token {token}"); // account:7 first, as named
/// }
/// assert!(client.mutex("account:3")?.try_lock().await?.is_none());
/// guards.release().await?;
/// # Ok(()) }
/// ```
#[doc(alias = "MultiLock")]
#[doc(alias = "transfer")]
#[doc(alias = "deadlock")]
#[derive(Clone)]
pub struct LockAll {
    /// Each once, in the order in which the caller named them.
    names: Arc<[Primitive]>,
    /// Their indices, in the order of their keys.
    sorted: Arc<[usize]>,
}

impl Client {
    /// Returns the mutexes of these names, to be locked together, with default options. No I/O. A name that occurs more
    /// than once counts once, where it occurs first.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no name, or one is empty or longer than 512 bytes.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<LockAll, Error> {
        self.lock_all_with(names, self.mutex_options())
    }

    /// Returns the mutexes of these names, to be locked together, with the given options. No I/O.
    ///
    /// The maximum hold time of each is measured from its own grant, so the time counts for which it was held while the
    /// call waited for others.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if there is no name, or as for [`mutex_with`](Self::mutex_with).
    pub fn lock_all_with<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: MutexOptions,
    ) -> Result<LockAll, Error> {
        LockAll::new(self.engine(), names, &options)
    }
}

impl LockAll {
    fn new<N: AsRef<str>>(
        engine: &Arc<Engine>,
        names: impl IntoIterator<Item = N>,
        options: &MutexOptions,
    ) -> Result<Self, Error> {
        let (mut known, mut primitives) = (HashSet::new(), Vec::new());
        for name in names {
            let resource = name::resource(options.key_prefix(), name.as_ref(), Kind::Mutex)?;
            if known.insert(Arc::clone(&resource.key)) {
                primitives.push(Primitive::new(Arc::clone(engine), resource, options.validate()?)?);
            }
        }
        if primitives.is_empty() {
            return Err(Error::invalid("names", "there are none"));
        }
        let mut sorted: Vec<_> = (0..primitives.len()).collect();
        sorted.sort_unstable_by(|a, b| primitives[*a].resource.key.cmp(&primitives[*b].resource.key));
        Ok(Self { names: primitives.into(), sorted: sorted.into() })
    }

    /// The names, without prefix, each once, in the order in which they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(Primitive::name)
    }

    /// Locks all of them, waiting as long as necessary.
    ///
    /// If the store stops answering in the meantime, the call keeps waiting; see the errors for how long. If it loses
    /// one of those that it holds while it waits for another one, it locks that one again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let both = client.lock_all(["a", "b"])?.lock().await?;
    /// assert!(both.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock`](crate::DistMutex::lock), with the name of the mutex that was not locked; also
    /// [`Error::Lost`] if leases were lost several times while the call waited for others, such as with a maximum hold
    /// time that is shorter than the wait. None of the mutexes is held then.
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: whatever it was granted is passed on to
    /// another task or released in the background, and it gives up its place in the queue.
    pub async fn lock(&self) -> Result<Locks, Error> {
        self.acquire(Wait::Forever).await
    }

    /// Locks all of them if nobody holds any of them or waits for one. If one is not free, those that were are released
    /// in the background; another call may have found them held meanwhile.
    ///
    /// If this client has just dropped a guard of one of them, the call first waits for its release, for up to 1 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let both = client.lock_all(["a", "b"])?.try_lock().await?;
    /// assert!(both.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::try_lock`](crate::DistMutex::try_lock).
    ///
    /// # Panics
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Locks>, Error> {
        let guards: Result<Vec<_>, _> = self.try_from(0).await.into_iter().collect();
        let guards: Option<Vec<_>> = guards?.into_iter().collect();
        Ok(guards.map(|guards| self.locked(guards)))
    }

    /// Locks all of them, waiting for at most `timeout` altogether, however many there are. However short the timeout,
    /// the call waits up to 100 ms for the first answers from the store; so if the store is slow, it returns up to 100
    /// ms after the timeout. It does not wait for the release of those that it had locked by then, which is sent in the
    /// background.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let both = client.lock_all(["a", "b"])?.lock_timeout(Duration::from_secs(5)).await?;
    /// # drop(both);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock_timeout`](crate::DistMutex::lock_timeout), with the name of the mutex that was not
    /// locked in time, and as for [`lock`](Self::lock). None of the mutexes is held then.
    ///
    /// # Panics
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Locks, Error> {
        self.acquire(Wait::timeout(timeout)).await
    }

    async fn acquire(&self, wait: Wait) -> Result<Locks, Error> {
        let (mut held, mut lost) = (Vec::with_capacity(self.sorted.len()), 0);
        // There is no use in trying a single one first.
        let mut has_asked = self.sorted.len() > 1;
        if has_asked {
            self.try_missing(&mut held, wait).await?;
        }
        loop {
            if let Some((first, error)) = first_lost(&held) {
                lost += 1;
                if lost > MAX_LOST {
                    return Err(error);
                }
                held.truncate(first);
            }
            let Some(next) = self.sorted.get(held.len()).map(|n| &self.names[*n]) else {
                return Ok(self.locked(held));
            };
            if has_asked && wait.is_over() {
                return Err(next.timed_out(wait));
            }
            has_asked = true;
            let Some(guard) = unless_lost(&held, next.acquire(&Claim::Sole, wait)).await else { continue };
            held.push(guard?);
            if held.len() < self.sorted.len() && !wait.is_over() {
                self.try_missing(&mut held, wait).await?;
            }
        }
    }

    /// Tries those that are not held yet, and adds the guards of those that come before the first that is not free. The
    /// others are released. A store that does not answer is left to the call that waits, which knows how long to be
    /// patient, unless there is no time for that.
    async fn try_missing(&self, held: &mut Vec<Guard>, wait: Wait) -> Result<(), Error> {
        let tries = self.try_from(held.len());
        let tried = match wait.latest_answer() {
            Some(latest) => {
                let first = &self.names[self.sorted[held.len()]];
                timeout_at(latest, tries).await.map_err(|_| first.unanswered())?
            }
            None => tries.await,
        };
        let mut is_missing = false;
        for guard in tried {
            match guard {
                Ok(Some(guard)) if !is_missing => held.push(guard),
                Ok(_) | Err(Error::StoreUnavailable { .. }) => is_missing = true,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Tries all of them except the first few, in their order, at once.
    async fn try_from(&self, first: usize) -> Vec<Result<Option<Guard>, Error>> {
        join_all(self.sorted[first..].iter().map(|n| self.names[*n].try_acquire(&Claim::Sole))).await
    }

    /// In the order of the caller.
    fn locked(&self, guards: Vec<Guard>) -> Locks {
        let mut guards: Vec<_> = self.sorted.iter().zip(guards).collect();
        guards.sort_unstable_by_key(|(n, _)| **n);
        Locks { guards: guards.into_iter().map(|(_, guard)| guard).collect() }
    }
}

/// Which of these is the first that was lost, and why.
fn first_lost(held: &[Guard]) -> Option<(usize, Error)> {
    held.iter().enumerate().find_map(|(n, guard)| Some((n, guard.check().err()?)))
}

/// `None` if one of these is lost before `next` is done.
async fn unless_lost<T>(held: &[Guard], next: impl Future<Output = T>) -> Option<T> {
    if held.is_empty() {
        return Some(next.await);
    }
    tokio::select! {
        biased;
        _ = select_all(held.iter().map(Guard::lost)) => None,
        done = next => Some(done),
    }
}

impl fmt::Debug for LockAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockAll").field("names", &self.names().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

/// Several mutexes that are held: see [`LockAll`]. All that is said about the dropping and the loss of a [`Guard`]
/// applies to each of them; dropping this releases all.
///
/// Each has a lease and a token of its own. They are renewed together, but one can be lost alone: then
/// [`lost`](Self::lost) completes, and the others stay held until this is released or dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let both = client.lock_all(["a", "b"])?.lock().await?;
/// assert!(both.token("a").is_some() && both.is_held());
/// both.release().await?;
/// # Ok(()) }
/// ```
#[doc(alias = "MultiLock")]
#[must_use = "dropping the guard releases them at once"]
pub struct Locks {
    /// In the order of the caller.
    guards: Vec<Guard>,
}

impl Locks {
    /// The name of each mutex and its fencing token, in the order in which the caller named them. No I/O.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The fencing token of the mutex called `name`; `None` if it is not one of these. No I/O.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<FencingToken> {
        self.tokens().find(|(other, _)| *other == name).map(|(_, token)| token)
    }

    /// Whether all leases can still be trusted: see [`Guard::is_held`]. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// How long all leases can be trusted if none is renewed again; zero once one is lost: see [`Guard::remaining`]. No
    /// I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guards.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Waits until one of the leases is lost, and says which one and why. If they are released or dropped instead, the
    /// future never completes: see [`Guard::lost`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the future holds no state of its own; calling `lost` again gives an equivalent one.
    pub fn lost(&self) -> AnyLost {
        let lost = self.guards.iter().map(|guard| (guard.name().to_owned(), guard.lost()));
        AnyLost { lost: lost.collect() }
    }

    /// Runs `work` for as long as all leases are held. If one is lost first, `work` is dropped at its current await
    /// point.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let guards = leasehold::Client::memory().lock_all(["a", "b"])?.lock().await?;
    /// assert_eq!(guards.protect(async { 20 + 22 }).await?, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], with the name, if a lease was lost before `work` was done. If that happened during its last
    /// step, the output of `work` is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`; the guard is not affected.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.check()?;
        tokio::select! {
            biased;
            (reason, n, _) = select_all(self.guards.iter().map(Guard::lost)) => Err(self.guards[n].lost_error(reason)),
            // The last step itself may have taken too long.
            output = work => self.check().map(|()| output),
        }
    }

    /// As [`protect`](Self::protect), for work that can fail itself: there is one `Result`, and one `?`.
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

    /// Releases all of them at the same time, and waits until the store has confirmed it. `Ok` means that all leases
    /// were held until the end.
    ///
    /// # Errors
    ///
    /// [`NotReleased`], with the errors of those whose release has failed, for the reasons for which [`Guard::release`]
    /// fails. The others are released.
    ///
    /// # Panics
    ///
    /// As for [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not keep the leases: the releases continue in the background.
    pub async fn release(self) -> Result<(), NotReleased> {
        let released = join_all(self.guards.into_iter().map(Guard::release)).await;
        let errors: Vec<_> = released.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() { Ok(()) } else { Err(NotReleased { errors }) }
    }

    /// The guards of the single mutexes, in the order in which the caller named them, to be released one by one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let both = client.lock_all(["a", "b"])?.lock().await?;
    /// let [a, b] = both.into_guards().try_into().expect("there are two");
    /// a.release().await?; // and `b` is still held
    /// # drop(b);
    /// # Ok(()) }
    /// ```
    #[must_use = "dropping the guards releases them at once"]
    pub fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    fn check(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(Guard::check)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("guards", &self.guards).finish()
    }
}

/// Future of [`Locks::lost`]: completes when one of the leases is lost. As for [`Lost`], poll it on one runtime only.
///
/// ```
/// # use leasehold::LossReason;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let both = client.lock_all(["a", "b"])?.lock().await?;
/// let lost = both.lost();
/// client.mutex("b")?.force_release().await?;
/// assert_eq!(lost.await, ("b".to_owned(), LossReason::Revoked));
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct AnyLost {
    lost: Vec<(String, Lost)>,
}

impl Future for AnyLost {
    /// The name of the mutex, and why its lease was lost.
    type Output = (String, LossReason);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let lost = self.lost.iter_mut().find_map(|(name, lost)| match Pin::new(lost).poll(cx) {
            Poll::Ready(reason) => Some((std::mem::take(name), reason)),
            Poll::Pending => None,
        });
        lost.map_or(Poll::Pending, Poll::Ready)
    }
}

/// Why some of several mutexes could not be released: the error of [`Locks::release`].
///
/// With `?` it becomes the [`Error`] of the first of them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let both = client.lock_all(["a", "b"])?.lock().await?;
/// client.mutex("b")?.force_release().await?;
/// let not_released = both.release().await.expect_err("`b` is lost");
/// assert_eq!(not_released.errors().len(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct NotReleased {
    errors: Vec<Error>,
}

impl NotReleased {
    /// The error of each that could not be released, in the order in which the caller named them: one at least.
    #[must_use]
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }
}

impl From<NotReleased> for Error {
    fn from(mut not_released: NotReleased) -> Self {
        not_released.errors.swap_remove(0)
    }
}

impl std::error::Error for NotReleased {}

impl fmt::Display for NotReleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.errors.iter().enumerate() {
            write!(f, "{}{error}", if n == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}
