//! A semaphore that keeps as many permits in use as it can.

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

/// Limits how many permits are held at a time among all processes that use the same store.
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
///
/// Cheap to clone. All clones, and all counting semaphores with the same prefix and name on the same store, share their
/// permits. Each permit is held under a lease that is renewed while its [`Guard`] is alive, so a crash leaks nothing.
///
/// # Order
///
/// Work-conserving: a permit is never idle while a waiter could use it. Among the waiters that fit, the oldest is
/// served first; smaller requests may overtake a request for many permits indefinitely. If that matters, use a
/// [`FairSemaphore`](crate::FairSemaphore). A release hands its permits directly to those waiters and wakes no others.
///
/// If many tasks of a process want single permits,
/// [`SemaphoreOptions::local_handover`](crate::SemaphoreOptions::local_handover) lets them pass permits on to each
/// other without asking the store, which is several times faster; clients then take turns.
///
/// # The limit
///
/// Each handle is created with a limit. The first request puts its limit in force; a handle with a different one gets
/// [`Error::LimitDiffers`], which names both, or follows or replaces the limit in force if
/// [`SemaphoreOptions::on_other_limit`](crate::SemaphoreOptions::on_other_limit) says so. The limit stays in force
/// while there are holders or waiters, and for one to two TTLs afterwards. [`resize`](Self::resize) changes it for all
/// clients. Handles that have used the semaphore since its limit came into force follow the change; new handles must be
/// created with the current limit. A handle and its clones share one limit.
///
/// # Tokens
///
/// Every grant has a token greater than all earlier ones, so tokens show the order of the grants and identify them in
/// logs. (A hold that received its permit from another task of the client has the next token after that of the
/// previous hold; no other hold has it.) They cannot be used for fencing: several holders are valid at once, and a
/// resource that rejects all but the newest token would reject the others. To keep late writers out, give each permit
/// a record or lock of its own, and fence that.
///
/// # Clocks
///
/// Only the store's clock matters. A client whose clock is wrong by hours neither takes one permit too many nor keeps
/// one too long.
#[doc(alias = "semaphore")]
#[doc(alias = "rate limit")]
#[doc(alias = "rate limiter")]
#[doc(alias = "concurrency limit")]
#[doc(alias = "throttle")]
#[doc(alias = "worker pool")]
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
    /// let permit = client.counting_semaphore("printer", 5)?.acquire().await?; // waits as long as necessary
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::LimitDiffers`] if the limit in force is not the limit of this handle, unless the handle follows or
    ///   replaces the limit in force.
    /// * [`Error::InvalidArgument`] if no permits are requested, or more than the limit in force; also if a
    ///   [`resize`](Self::resize) makes the limit too small for a waiting request.
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
    pub async fn acquire(&self) -> Result<Guard, Error> {
        self.permits.acquire(1).await
    }

    /// Acquires `permits` permits together, under one guard, waiting as long as necessary until all of them are free.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let three = client.counting_semaphore("printer", 5)?.acquire_many(3).await?; // all or nothing
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

    /// Acquires one permit if one is free.
    ///
    /// If this client has just dropped a guard of the same semaphore, the call first waits for its release, for up to 1
    /// s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// match client.counting_semaphore("printer", 5)?.try_acquire().await? {
    ///     Some(permit) => permit.release().await?,
    ///     None => println!("all are taken"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the store has not answered for 4 s, plus the time that the last request takes to
    /// fail; otherwise as for [`acquire`](Self::acquire).
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

    /// Acquires `permits` permits together if that many are free.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let three = client.counting_semaphore("printer", 5)?.try_acquire_many(3).await?;
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
    /// let permit = client.counting_semaphore("printer", 5)?.acquire_timeout(Duration::from_secs(5)).await?;
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] if not enough permits became free within that time, [`Error::StoreUnavailable`] if the store
    /// was not answering when the time was up; otherwise as for [`acquire`](Self::acquire).
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
    /// let three = client.counting_semaphore("printer", 5)?.acquire_many_timeout(3, Duration::from_secs(5)).await?;
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
    /// allows. This is a snapshot and may already be out of date.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// assert_eq!(client.counting_semaphore("printer", 5)?.available().await?, 5);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for
    /// [`try_acquire`](Self::try_acquire).
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
    /// let printer = client.counting_semaphore("printer", 5)?;
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
    /// let printer = client.counting_semaphore("printer", 5)?;
    /// printer.resize(8).await?; // for all clients at once
    /// assert_eq!(printer.available().await?, 8);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `limit` is 0; [`Error::StoreUnavailable`], [`Error::StoreRefused`] and
    /// [`Error::Closed`], as for [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or fails with [`Error::StoreUnavailable`], the limit may or may not have been changed;
    /// it is safe to repeat the call.
    pub async fn resize(&self, limit: u32) -> Result<(), Error> {
        self.permits.resize(limit).await
    }
}

impl fmt::Debug for CountingSemaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.permits.debug("CountingSemaphore", f)
    }
}
