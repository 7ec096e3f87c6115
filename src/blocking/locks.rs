//! The locks.

use std::fmt;
use std::time::Duration;

use super::calls;
use super::drive::drive;
use super::guard::Guard;
use crate::backend::Inspection;
use crate::error::Error;

/// A lock with at most one holder at a time among all processes that use the same store: [`crate::DistMutex`] without async.
///
/// ```
/// use leasehold::blocking::Client;
///
/// let client = Client::memory();
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock()?;
/// assert!(mutex.try_lock()?.is_none(), "held");
/// guard.release()?;
/// assert!(mutex.try_lock()?.is_some());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct DistMutex(pub(super) crate::DistMutex);

impl DistMutex {
    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    calls! { DistMutex {
        /// Locks the mutex, waiting as long as necessary.
        fn lock() -> Guard;

        /// Locks the mutex if nobody holds it or waits for it.
        fn try_lock() -> Option<Guard>;

        /// Locks the mutex, waiting for at most `timeout`. However short the timeout, the call waits up to 100 ms for a
        /// first answer from the store.
        fn lock_timeout(timeout: Duration) -> Guard;

        /// Returns who holds the lock and who waits for it. This is a snapshot and may already be out of date.
        fn inspect() -> Inspection;

        /// Takes the lock away from its holder, and gives it to the next waiter. Returns `false` if nobody held it.
        fn force_release() -> bool;
    }}
}

impl fmt::Debug for DistMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lock that its owner can acquire again: [`crate::ReentrantLock`] without async.
///
/// The owner is the name that it is given, never the thread: threads that name the same owner hold the lock together.
///
/// ```
/// use leasehold::blocking::Client;
///
/// let order = Client::memory().reentrant_lock("stock", "order-42")?;
/// let outer = order.lock()?;
/// let inner = order.lock()?; // does not deadlock
/// assert_eq!(outer.token(), inner.token());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct ReentrantLock(pub(super) crate::ReentrantLock);

impl ReentrantLock {
    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The owner's name.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.0.owner()
    }

    calls! { ReentrantLock {
        /// Acquires the lock: at once if this owner already holds it, otherwise waiting as long as necessary.
        fn lock() -> Guard;

        /// Acquires the lock if this owner already holds it, or if nobody holds it or waits for it.
        fn try_lock() -> Option<Guard>;

        /// Acquires the lock: at once if this owner already holds it, otherwise waiting for at most `timeout`.
        fn lock_timeout(timeout: Duration) -> Guard;

        /// Returns who holds the lock and who waits for it, with one holder per lease. This is a snapshot and may already
        /// be out of date.
        fn inspect() -> Inspection;

        /// Takes the lock, with all its holds, away from its owner, and gives it to the next waiter. Returns `false` if
        /// nobody held it.
        fn force_release() -> bool;
    }}
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
