//! A semaphore that keeps as many permits in use as it can.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::lease::Engine;
use crate::options::SemaphoreOptions;
use crate::permits::Permits;

/// Lets at most as many permits be held at a time as its limit says, among all processes that use the same store.
///
/// Cheap to clone; all clones, and all counting semaphores of the same prefix and name on the same store, share their
/// permits. Each permit is held under a lease that is kept renewed by its [`Guard`], so a crash leaks nothing.
///
/// # Order of service
///
/// Work-conserving: a permit never idles while somebody waits whom it would serve. Among the waiters that fit, the oldest
/// is served first; one that asks for many permits may be passed for ever by smaller ones. If that matters, use a
/// [`FairSemaphore`](crate::FairSemaphore). A release hands its permits to those waiters itself and wakes nobody else.
///
/// If many tasks of a process want single permits,
/// [`SemaphoreOptions::local_handover`](crate::SemaphoreOptions::local_handover) lets them pass permits on to each other
/// without asking the store, several times faster; then clients take turns.
///
/// # The limit
///
/// Each handle states the limit. The first to come puts it in force; a handle that states another one gets
/// [`Error::LimitDiffers`] with both. It stays in force while anybody holds or waits, and for one to two leases after.
/// [`resize`](Self::resize) changes it for everybody; handles that have used the semaphore since its limit came into force
/// follow it, those that come new must state the limit as it is by then. A handle and its clones follow together.
///
/// # What its tokens can do
///
/// Every grant has a token greater than all earlier ones, so tokens tell the order of the grants and name them in logs. (A hold
/// to which a permit was passed on within the client has the token that follows the one before it, and no other hold has.)
/// They cannot fence: several holders are valid at once, and a resource that refuses all but the newest token would refuse
/// the others. To keep late writers out, give each permit a record or lock of its own, and fence that.
///
/// # Whose clock
///
/// The store's alone. A client whose clock is wrong by hours neither takes a permit too many nor keeps one too long.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let calls = client.counting_semaphore("slow-service", 5)?;
/// let one = calls.acquire().await?;
/// let three = calls.acquire_many(3).await?;
/// assert_eq!(calls.available().await?, 1);
/// assert!(calls.try_acquire_many(2).await?.is_none());
/// drop((one, three));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct CountingSemaphore {
    permits: Permits,
}

impl CountingSemaphore {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: &str,
        limit: u32,
        options: &SemaphoreOptions,
    ) -> Result<Self, Error> {
        Ok(Self { permits: Permits::new(engine, name, limit, Kind::Counting, options)? })
    }

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.permits.name()
    }

    /// The limit that this handle goes by: the one it was made with, or the one it has followed since. Local, no I/O.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.permits.limit()
    }

    /// Takes one permit, waiting until one is free for it for as long as it takes.
    ///
    /// A store that stops answering meanwhile is waited for, since its clients usually come back to a queue
    /// that still stands; see the errors for how long.
    ///
    /// # Errors
    ///
    /// * [`Error::LimitDiffers`] if another limit is in force than this handle states.
    /// * [`Error::InvalidArgument`] if more permits are asked for than the limit in force, or none; also if a
    ///   [`resize`](Self::resize) makes the limit too small for a request that waits.
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
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.permits.acquire(1).await
    }

    /// Takes `permits` permits at once, under one guard, waiting for as long as it takes until all of them are free.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        self.permits.acquire(permits).await
    }

    /// Takes one permit if one is free.
    ///
    /// If this client has just dropped a guard of the same semaphore, its release is waited for first.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the store does not answer within a few seconds; otherwise as for
    /// [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.permits.try_acquire(1).await
    }

    /// Takes `permits` permits at once if so many are free.
    ///
    /// # Errors
    ///
    /// As for [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.permits.try_acquire(permits).await
    }

    /// Takes one permit, waiting for at most `patience`.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if there were not enough permits all that time, [`Error::StoreUnavailable`] if the store did
    /// not answer at the end of it; otherwise as for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_for(&self, patience: Duration) -> Result<Guard, Error> {
        self.permits.acquire_for(1, patience).await
    }

    /// Takes `permits` permits at once, waiting for at most `patience`.
    ///
    /// # Errors
    ///
    /// As for [`acquire_for`](Self::acquire_for).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_many_for(&self, permits: u32, patience: Duration) -> Result<Guard, Error> {
        self.permits.acquire_for(permits, patience).await
    }

    /// How many permits nobody holds: the limit less what is held, 0 while a shrunken limit drains. A snapshot: it may be
    /// out of date on arrival.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn available(&self) -> Result<u32, Error> {
        self.permits.available().await
    }

    /// Tells who holds permits, who waits for them, and the limit in force. A snapshot: it may be out of date on arrival.
    /// Its cost grows with the number of both; for a number alone, use [`available`](Self::available).
    ///
    /// # Errors
    ///
    /// As for [`available`](Self::available).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.permits.inspect().await
    }

    /// Changes the limit in force to `limit`, for everybody. If it grows, waiters are granted at once; if it shrinks,
    /// nothing is taken away: nobody new is let in until enough permits have come back.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `limit` is 0; [`Error::StoreUnavailable`], [`Error::StoreRefused`] and
    /// [`Error::Closed`], as for [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or fails with [`Error::StoreUnavailable`], the limit may or may not have been changed;
    /// calling again does no harm.
    pub async fn resize(&self, limit: u32) -> Result<(), Error> {
        self.permits.resize(limit).await
    }
}

impl fmt::Debug for CountingSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.permits.debug("CountingSemaphore", f)
    }
}
