//! A mutex shared by many processes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Claim, Detail, Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::label::with_note;
use crate::lease::{Engine, Wait};
use crate::name;
use crate::options::MutexOptions;
use crate::primitive::Primitive;

/// A lock with at most one holder at a time among all processes that use the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none(), "held");
/// guard.release().await?;
/// assert!(mutex.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
///
/// Cheap to clone. All clones, all mutexes with the same prefix and name on the same store, and any
/// [`ReentrantLock`](crate::ReentrantLock) with that prefix and name are the same lock. It is not reentrant: a task
/// that locks it twice deadlocks.
///
/// # Fairness
///
/// Requests are served in the order in which they arrive at the store. An unreachable waiter is
/// skipped and keeps its place; a dead one is removed within one TTL. `try_lock` does not overtake
/// waiters.
///
/// The waiting tasks of one client share one place in the store's queue. When the client is granted the lock, it is
/// passed on among them, in order of arrival, for up to 16 holds or 30 ms in a row, before other waiting clients get
/// their turn. If all tasks of all processes must be served strictly in order, turn that off with
/// [`MutexOptions::local_handover`](crate::MutexOptions::local_handover).
///
/// # On Redis
///
/// The lock key follows the canonical recipe: a string that is set if absent, with an expiry, and deleted by
/// compare-and-delete. Clients of other libraries that follow it on the same key exclude this one, and vice versa.
#[doc(alias = "lock")]
#[doc(alias = "advisory lock")]
#[doc(alias = "redlock")]
#[doc(alias = "flock")]
#[doc(alias = "Mutex")]
#[doc(alias = "distributed lock")]
#[derive(Clone)]
pub struct DistMutex {
    primitive: Primitive,
}

impl DistMutex {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, options: &MutexOptions) -> Result<Self, Error> {
        let resource = name::resource(options.key_prefix(), name, Kind::Mutex)?;
        Ok(Self { primitive: Primitive::new(engine, resource, options.validate()?)? })
    }

    with_note!(primitive);

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.primitive.name()
    }

    /// Locks the mutex, waiting as long as necessary.
    ///
    /// If the store stops answering in the meantime, the call keeps waiting, because the queue usually survives an
    /// outage; see the errors for how long.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// let guard = mutex.lock().await?; // waits as long as necessary
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::StoreUnavailable`] if the store has not answered for 30 s, or four TTLs if that is longer.
    /// * [`Error::StoreRefused`] if the store refuses the request, for instance because the key holds something else.
    /// * [`Error::Lost`] if several grants in a row arrived only after their lease had ended: the lease is too short
    ///   for this store or this machine.
    /// * [`Error::Closed`] if the client is shut down.
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: it gives up its place in the queue,
    /// and anything it was granted is passed on to another task or released in the background.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.primitive.acquire(&Claim::Sole, Wait::Forever).await
    }

    /// Locks the mutex if nobody holds it or waits for it.
    ///
    /// If this client has just dropped a guard of the same lock, the call first waits for its release, for up to 1 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// match mutex.try_lock().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else has it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::StoreUnavailable`] if the store has not answered for 4 s, plus the time that the last request takes
    ///   to fail.
    /// * [`Error::StoreRefused`], [`Error::Lost`] and [`Error::Closed`] as for [`lock`](Self::lock).
    ///
    /// # Panics
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.primitive.try_acquire(&Claim::Sole).await
    }

    /// Locks the mutex, waiting for at most `timeout`. However short the timeout, the call waits up to 100 ms for a
    /// first answer from the store.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock_timeout(Duration::from_secs(5)).await?; // or `Error::TimedOut`
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] if the lock did not become available within that time.
    /// * [`Error::StoreUnavailable`] if the store was not answering when the time was up.
    /// * [`Error::StoreRefused`], [`Error::Lost`] and [`Error::Closed`] as for [`lock`](Self::lock).
    ///
    /// # Panics
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        self.primitive.acquire(&Claim::Sole, Wait::timeout(timeout)).await
    }

    /// Returns who holds the lock and who waits for it. This is a snapshot and may already be out of date.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// let guard = mutex.lock().await?;
    /// println!("held by {:?}", mutex.inspect().await?.holder());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.primitive.inspect(Detail::Full).await
    }

    /// Takes the lock away from its holder, even if that is a client of another library, and gives it to the next
    /// waiter. Returns `false` if nobody held it.
    ///
    /// The holder's `lost` completes at once if the store can push, otherwise at its next renewal. Until then it may
    /// keep working alongside the new holder; only fencing tokens reject its late writes. The next token is greater
    /// than the one of the revoked lease.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let mutex = client.mutex("machine:42")?;
    /// let stuck = mutex.lock().await?;
    /// mutex.force_release().await?; // its holder is told, and the next waiter has the lock
    /// stuck.lost().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or fails with [`Error::StoreUnavailable`], the lock may or may not have been taken
    /// away. The request is never repeated, since that could take the lock away from the next holder as well.
    #[doc(alias = "break")]
    #[doc(alias = "steal")]
    #[doc(alias = "unlock")]
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.primitive.force_release().await
    }
}

impl fmt::Debug for DistMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primitive.debug("DistMutex", f).finish_non_exhaustive()
    }
}
