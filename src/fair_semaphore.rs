//! A semaphore that serves strictly in order of arrival.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::label::with_note;
use crate::lease::Engine;
use crate::options::SemaphoreOptions;
use crate::permits::Permits;

/// A [`CountingSemaphore`](crate::CountingSemaphore) in which no request overtakes another.
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
/// assert!(gate.try_acquire().await?.is_none(), "one is free, but a request waits for two");
/// first.release().await?;
/// assert_eq!(both.await.expect("no panic")?.permits(), 2);
/// # Ok(()) }
/// ```
///
/// Cheap to clone. All clones, and all fair semaphores with the same prefix and name on the same store, share their
/// permits. (A counting semaphore of the same name is a different semaphore, because its default prefix differs.)
///
/// # Order
///
/// Requests are served strictly in the order in which they arrive at the store. A request for many permits is never
/// starved: everything behind it waits until it is served, including requests that would fit, and `try_acquire` fails.
/// The price is that permits may be idle meanwhile. An unreachable waiter is skipped and keeps its place; a dead one is
/// removed within one TTL, and the waiters behind it are served.
///
/// # The limit, tokens, clocks
///
/// See [`CountingSemaphore`](crate::CountingSemaphore).
#[doc(alias = "semaphore")]
#[doc(alias = "queue")]
#[doc(alias = "fifo")]
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

    with_note!(permits);

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.permits.name()
    }

    /// The limit that this handle uses: the one it was created with, or a later one that it has followed. No I/O.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.permits.limit()
    }

    /// Acquires one permit, waiting as long as necessary.
    ///
    /// If the store stops answering in the meantime, the call keeps waiting, because the queue usually survives an
    /// outage; see the errors for how long.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let permit = client.fair_semaphore("printer", 5)?.acquire().await?; // waits as long as necessary
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::acquire`](crate::CountingSemaphore::acquire).
    ///
    /// # Panics
    ///
    /// As for [`CountingSemaphore::acquire`](crate::CountingSemaphore::acquire).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: it gives up its place in the queue,
    /// and anything it was granted is released in the background.
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.permits.acquire(1).await
    }

    /// Acquires `permits` permits together, under one guard, waiting as long as necessary until it is their turn and
    /// all of them are free.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let three = client.fair_semaphore("printer", 5)?.acquire_many(3).await?; // all or nothing
    /// assert_eq!(three.permits(), 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Panics
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_many(&self, permits: u32) -> Result<Guard, Error> {
        self.permits.acquire(permits).await
    }

    /// Acquires one permit if one is free and nobody is waiting.
    ///
    /// If this client has just dropped a guard of the same semaphore, the call first waits for its release, for up to 1
    /// s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// match client.fair_semaphore("printer", 5)?.try_acquire().await? {
    ///     Some(permit) => permit.release().await?,
    ///     None => println!("all are taken"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::try_acquire`](crate::CountingSemaphore::try_acquire).
    ///
    /// # Panics
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>, Error> {
        self.permits.try_acquire(1).await
    }

    /// Acquires `permits` permits together if that many are free and nobody is waiting.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let three = client.fair_semaphore("printer", 5)?.try_acquire_many(3).await?;
    /// assert!(three.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`try_acquire`](Self::try_acquire).
    ///
    /// # Panics
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire_many(&self, permits: u32) -> Result<Option<Guard>, Error> {
        self.permits.try_acquire(permits).await
    }

    /// Acquires one permit, waiting for at most `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let permit = client.fair_semaphore("printer", 5)?.acquire_timeout(Duration::from_secs(5)).await?;
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::acquire_timeout`](crate::CountingSemaphore::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        self.permits.acquire_timeout(1, timeout).await
    }

    /// Acquires `permits` permits together, waiting for at most `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let three = client.fair_semaphore("printer", 5)?.acquire_many_timeout(3, Duration::from_secs(5)).await?;
    /// # drop(three);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`acquire_timeout`](Self::acquire_timeout).
    ///
    /// # Panics
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_many_timeout(&self, permits: u32, timeout: Duration) -> Result<Guard, Error> {
        self.permits.acquire_timeout(permits, timeout).await
    }

    /// How many permits are free: the limit minus the permits in use, or 0 while more are held than a reduced limit
    /// allows. This is a snapshot and may already be out of date. Waiting requests may be about to take them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// assert_eq!(client.fair_semaphore("printer", 5)?.available().await?, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`CountingSemaphore::available`](crate::CountingSemaphore::available).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn available(&self) -> Result<u32, Error> {
        self.permits.available().await
    }

    /// Returns who holds permits, who waits for them, and the limit in force. This is a snapshot and may already be out
    /// of date. The cost grows with the number of holders and waiters; if you only need a number, use
    /// [`available`](Self::available).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let printer = client.fair_semaphore("printer", 5)?;
    /// let permit = printer.acquire().await?;
    /// assert_eq!(printer.inspect().await?.in_use, 1);
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`available`](Self::available).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.permits.inspect().await
    }

    /// Changes the limit in force to `limit`, for all clients. Increasing it grants waiting requests at once.
    /// Decreasing it revokes nothing: no new requests are granted until enough permits have been returned.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let printer = client.fair_semaphore("printer", 5)?;
    /// printer.resize(8).await?; // for all clients at once
    /// assert_eq!(printer.available().await?, 8);
    /// # Ok(()) }
    /// ```
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
