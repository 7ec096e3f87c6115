//! A semaphore that serves strictly in order of arrival.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::lease::Engine;
use crate::options::SemaphoreOptions;
use crate::permits::Permits;

/// A [`CountingSemaphore`](crate::CountingSemaphore) in which nobody overtakes anybody.
///
/// Cheap to clone; all clones, and all fair semaphores of the same prefix and name on the same store, share their permits.
/// (A counting semaphore of the same name is another semaphore: its default prefix differs.)
///
/// # Order of service
///
/// Strictly the order in which requests arrive at the store. A request for many permits is not starved: those behind it
/// wait until it is served, also those that would fit before, and so does `try_acquire`. The price is that permits may
/// idle meanwhile. A waiter that cannot be reached is passed over and keeps its place; one that is dead is forgotten within
/// a lease, and what waited behind it is served.
///
/// # The limit, tokens, clocks
///
/// As for the [`CountingSemaphore`](crate::CountingSemaphore).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let gate = client.fair_semaphore("gate", 2)?;
/// let first = gate.acquire().await?;
/// let both = tokio::spawn({
///     let gate = gate.clone();
///     async move { gate.acquire_many(2).await }
/// });
/// while gate.inspect().await?.waiters.is_empty() {
///     tokio::task::yield_now().await;
/// }
/// assert!(gate.try_acquire().await?.is_none(), "one is free, but somebody waits for two");
/// first.release().await?;
/// assert_eq!(both.await.expect("no panic")?.permits(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct FairSemaphore {
    permits: Permits,
}

impl FairSemaphore {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: &str,
        limit: u32,
        options: &SemaphoreOptions,
    ) -> Result<Self, Error> {
        Ok(Self { permits: Permits::new(engine, name, limit, Kind::Fair, options)? })
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

    /// Takes one permit, waiting in line for as long as it takes.
    ///
    /// A store that stops answering meanwhile is waited for, since its clients usually come back to a queue
    /// that still stands; see the errors for how long.
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::acquire`](crate::CountingSemaphore::acquire).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: its place in the queue is lost,
    /// and whatever it was granted is released in the background.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.permits.acquire(1).await
    }

    /// Takes `permits` permits at once, under one guard, waiting for as long as it takes until its turn has come and all of them are free.
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

    /// Takes one permit if one is free and nobody waits.
    ///
    /// If this client has just dropped a guard of the same semaphore, its release is waited for first.
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::try_acquire`](crate::CountingSemaphore::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.permits.try_acquire(1).await
    }

    /// Takes `permits` permits at once if so many are free and nobody waits.
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
    /// As for [`CountingSemaphore::acquire_for`](crate::CountingSemaphore::acquire_for).
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
    /// out of date on arrival. They may be spoken for by those who wait.
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::available`](crate::CountingSemaphore::available).
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
    /// As for [`CountingSemaphore::resize`](crate::CountingSemaphore::resize).
    ///
    /// # Cancel safety
    ///
    /// As for [`CountingSemaphore::resize`](crate::CountingSemaphore::resize).
    pub async fn resize(&self, limit: u32) -> Result<(), Error> {
        self.permits.resize(limit).await
    }
}

impl fmt::Debug for FairSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.permits.debug("FairSemaphore", f)
    }
}
