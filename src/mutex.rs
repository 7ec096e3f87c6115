//! A mutex shared by many processes.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Claim, Detail, Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::lease::Engine;
use crate::name::Name;
use crate::options::MutexOptions;
use crate::primitive::Primitive;

/// A lock that at most one holder has at a time, among all processes that use the same store.
///
/// Cheap to clone; all clones, and all mutexes of the same prefix and name on the same store, are one lock, and so is
/// a [`ReentrantLock`](crate::ReentrantLock) of that prefix and name. It is not reentrant: a task that locks twice waits
/// for itself.
///
/// # Fairness
///
/// Requests are served in the order in which they arrive at the store. A waiter that cannot be reached is
/// passed over and keeps its place; one that is dead is forgotten within a lease. `try_lock` does not overtake
/// waiters.
///
/// Of the tasks of one client that wait, only the first stands in the store's line. It passes the lock on to those behind it, in
/// order, for up to 16 holds or 30 ms in a row; then clients that wait have their turn. Where all tasks of all processes must
/// be served strictly in order, switch that off:
/// [`MutexOptions::local_handover`](crate::MutexOptions::local_handover).
///
/// # On Redis
///
/// The lock key is the canonical recipe: a string set if absent with an expiry, deleted by compare-and-delete.
/// Clients of other libraries that follow it on the same key exclude this one and are excluded by it.
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
#[derive(Clone, Debug)]
pub struct DistMutex {
    primitive: Primitive,
}

impl DistMutex {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, options: &MutexOptions) -> Result<Self, Error> {
        let name = Name::new(options.key_prefix(), name, Kind::Mutex)?;
        Ok(Self { primitive: Primitive { engine, name, settings: options.validate()? } })
    }

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.primitive.name.as_str()
    }

    /// Locks, waiting in line for as long as it takes.
    ///
    /// A store that stops answering meanwhile is waited for, since its clients usually come back to a queue
    /// that still stands; see the errors for how long.
    ///
    /// # Errors
    ///
    /// * [`Error::StoreUnavailable`] if the store has not answered for 30 s, or four leases if that is longer.
    /// * [`Error::StoreRefused`] if the store says no, for instance because the key holds something else.
    /// * [`Error::Lost`] if several grants in a row arrived after their lease had ended: the lease is too short for
    ///   this store or this machine.
    /// * [`Error::Closed`] if the client is shut down.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: its place in the queue is lost,
    /// and whatever it was granted is released in the background.
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.primitive.acquire(&Claim::Sole, None).await
    }

    /// Locks if nobody holds the lock or waits for it.
    ///
    /// If this client has just dropped a guard of the same lock, its release is waited for first.
    ///
    /// # Errors
    ///
    /// * [`Error::StoreUnavailable`] if the store does not answer within a few seconds.
    /// * [`Error::StoreRefused`], [`Error::Lost`] and [`Error::Closed`] as for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        self.primitive.try_acquire(&Claim::Sole, None).await
    }

    /// Locks, waiting in line for at most `patience`.
    ///
    /// # Errors
    ///
    /// * [`Error::TimedOut`] if somebody else held the lock all that time.
    /// * [`Error::StoreUnavailable`] if the store did not answer at the end of it.
    /// * [`Error::StoreRefused`], [`Error::Lost`] and [`Error::Closed`] as for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_for(&self, patience: Duration) -> Result<Guard, Error> {
        self.primitive.acquire_for(&Claim::Sole, patience, None).await
    }

    /// Tells who holds the lock and who waits for it. A snapshot: it may be out of date on arrival.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.primitive.inspect(Detail::Everybody).await
    }

    /// Takes the lock away from whoever holds it, also from another library's client, and gives it to the next
    /// waiter. `false` if nobody held it.
    ///
    /// The holder's `lost` fires at once where the store can push, otherwise at its next renewal. It may go on
    /// for that long beside the new holder: only fencing tokens keep its late writes out. The next token is
    /// greater than the one taken away.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or fails with [`Error::StoreUnavailable`], the lock may or may not have been taken away;
    /// it is not tried twice, since that could take it from the next holder as well.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.primitive.force_release().await
    }
}
