//! The locks.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::calls;
use super::drive::drive;
use super::guard::Guard;
use crate::backend::Inspection;
use crate::error::Error;

/// A lock with at most one holder at a time among all processes that use the same store: [`crate::DistMutex`] without
/// async.
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

    /// The same, whose acquisitions carry this note: see [`crate::DistMutex::with_note`].
    #[must_use]
    pub fn with_note(&self, note: impl Into<String>) -> Self {
        Self(self.0.with_note(note))
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

    /// The same, whose acquisitions carry this note: see [`crate::ReentrantLock::with_note`].
    #[must_use]
    pub fn with_note(&self, note: impl Into<String>) -> Self {
        Self(self.0.with_note(note))
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

        /// Returns who holds the lock and who waits for it, with one holder per lease. This is a snapshot and may
        /// already be out of date.
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

/// A lock for many readers or one writer: [`crate::RwLock`] without async.
///
/// ```
/// use leasehold::blocking::Client;
///
/// let lock = Client::memory().rw_lock("prices")?;
/// let writing = lock.write()?;
/// assert!(lock.try_read()?.is_none(), "one is writing");
/// let reading = writing.downgrade()?;
/// assert!(lock.try_read()?.is_some());
/// # drop(reading);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct RwLock(pub(super) crate::RwLock);

impl RwLock {
    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The same, whose acquisitions carry this note: see [`crate::RwLock::with_note`].
    #[must_use]
    pub fn with_note(&self, note: impl Into<String>) -> Self {
        Self(self.0.with_note(note))
    }

    calls! { RwLock {
        /// Locks for reading, together with other readers, waiting as long as necessary.
        fn read() -> Guard;

        /// Locks for reading if no writer holds the lock and nobody waits for it.
        fn try_read() -> Option<Guard>;

        /// Locks for reading, waiting for at most `timeout`. However short the timeout, the call waits up to 100 ms for
        /// a first answer from the store.
        fn read_timeout(timeout: Duration) -> Guard;

        /// Locks for writing, alone, waiting as long as necessary.
        fn write() -> WriteGuard;

        /// Locks for writing if nobody holds the lock or waits for it.
        fn try_write() -> Option<WriteGuard>;

        /// Locks for writing, waiting for at most `timeout`. However short the timeout, the call waits up to 100 ms for
        /// a first answer from the store.
        fn write_timeout(timeout: Duration) -> WriteGuard;

        /// Returns who holds the lock and who waits for it. This is a snapshot and may already be out of date.
        fn inspect() -> Inspection;
    }}
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A [`RwLock`] held for writing: [`crate::WriteGuard`] without async.
///
/// ```
/// # let client = leasehold::blocking::Client::memory();
/// let prices = client.rw_lock("prices")?;
/// let reading = prices.write()?.downgrade()?;
/// assert!(prices.try_read()?.is_some());
/// # drop(reading);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "dropping the guard releases it at once"]
pub struct WriteGuard(pub(super) Guard);

impl WriteGuard {
    /// Turns this into a guard for reading, without letting another writer in: see [`crate::WriteGuard::downgrade`].
    ///
    /// # Errors
    ///
    /// As for [`crate::WriteGuard::downgrade`].
    pub fn downgrade(self) -> Result<Guard, Error> {
        drive("downgrade", crate::WriteGuard(self.0.0).downgrade()).map(Guard)
    }

    /// Releases the lock and waits until the store has confirmed it: see [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        self.0.release()
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
