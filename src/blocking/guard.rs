//! The guard, and how a thread is told of the end of its lease.

use std::fmt;
use std::time::{Duration, Instant};

use super::drive::{crates_thread, drive, wait, wait_until};
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::guard::LeaseEnd;
use crate::runtime::spawn_on;
use crate::ticket::LeaseTicket;

/// A held lock or permit: [`crate::Guard`] without async. It is renewed on the crate's own thread for as long as this
/// guard is alive.
///
/// ```
/// # let client = leasehold::blocking::Client::memory();
/// let guard = client.mutex("machine:42")?.lock()?;
/// for step in ["read", "merge", "write"] {
///     guard.check()?; // fails if the lease is lost
///     println!("{step} under token {}", guard.token());
/// }
/// guard.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// # Dropping
///
/// Dropping the last guard of a lease releases it. The drop waits for the store, because the process may be about to
/// end: for up to 100 ms, all guards of a client together for up to 1 s, and then for a tenth of the time. Inside a
/// tokio runtime it does not wait. A guard that is not dropped (the process ends by [`std::process::exit`], or is
/// killed) stays held until its TTL has passed. To know that the lease was held until the end, call
/// [`release`](Self::release).
///
/// # Losing the lease
///
/// As for [`crate::Guard`], a lease can be lost while its guard is alive. A thread cannot be stopped from outside, so
/// the work itself has to [`check`](Self::check) before each step that must not be done twice. A check cannot say what
/// happens after it: if a late step would do harm, let the protected resource compare [tokens](Self::token).
#[must_use = "dropping the guard releases it at once"]
pub struct Guard(pub(super) crate::Guard);

impl Guard {
    /// The fencing token: see [`crate::Guard::token`]. No I/O.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// The name of the lock or semaphore, without prefix. No I/O.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// How many permits this guard holds; 1 for a lock. No I/O.
    #[must_use]
    pub const fn permits(&self) -> u32 {
        self.0.permits()
    }

    /// Moves `permits` into a separate guard: see [`crate::Guard::split`]. No I/O.
    #[must_use = "dropping the new guard releases its permits at once"]
    pub fn split(&mut self, permits: u32) -> Option<Self> {
        self.0.split(permits).map(Self)
    }

    /// Whether the lease can still be trusted, according to this process's clock. No I/O.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// How long the lease can be trusted if it is not renewed again; zero once it is lost. No I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Fails if the lease is lost, with the reason. No I/O: cheap enough to be called before each step.
    ///
    /// ```
    /// # use leasehold::blocking::Client;
    /// # let rows = [1, 2, 3];
    /// let guard = Client::memory().mutex("machine:42")?.lock()?;
    /// for row in rows {
    ///     guard.check()?;
    ///     println!("{row}");
    /// }
    /// guard.release()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease is lost. [`Error::Forked`] in a process that was forked from the one that holds it.
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// The end of the lease, for a thread that accompanies it. It does not borrow the guard.
    ///
    /// ```
    /// # use leasehold::LeaseEnd;
    /// # use leasehold::blocking::Client;
    /// let guard = Client::memory().mutex("machine:42")?.lock()?;
    /// let ended = guard.ended();
    /// let watcher = std::thread::spawn(move || ended.wait());
    /// guard.release()?;
    /// assert_eq!(watcher.join().expect("it does not panic"), LeaseEnd::Released);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn ended(&self) -> Ended {
        Ended(self.0.ended())
    }

    /// Calls `callback` if the lease is lost, on a thread that is started for it. If the guard is released or dropped
    /// instead, `callback` is dropped.
    ///
    /// ```
    /// # use leasehold::blocking::Client;
    /// let guard = Client::memory().mutex("machine:42")?.lock()?;
    /// guard.on_lost(|reason| {
    ///     eprintln!("another process may hold the lock: {reason}");
    ///     std::process::abort();
    /// })?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the crate's own thread cannot be started.
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) -> Result<(), Error> {
        let (ended, thread) = (self.0.ended(), crates_thread("on_lost")?);
        spawn_on(&thread, async move {
            if let LeaseEnd::Lost(reason) = ended.await {
                // It may block.
                tokio::task::spawn_blocking(move || callback(reason));
            }
        });
        Ok(())
    }

    /// Enough of the id of the lease to tell it from others: see [`crate::Guard::lease_id`]. No I/O.
    #[must_use]
    pub fn lease_id(&self) -> String {
        self.0.lease_id()
    }

    /// Hands the lease over to another process: see [`crate::Guard::into_ticket`]. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Guard::into_ticket`].
    pub fn into_ticket(self) -> Result<LeaseTicket, Error> {
        self.0.into_ticket()
    }

    /// Releases the guard and waits until the store has confirmed it. `Ok` means that the lease was held until the end.
    ///
    /// # Errors
    ///
    /// As for [`crate::Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        drive("release", self.0.release())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The end of a lease: see [`Guard::ended`].
///
/// ```
/// # use std::time::Duration;
/// # let client = leasehold::blocking::Client::memory();
/// let guard = client.mutex("machine:42")?.lock()?;
/// let mut ended = guard.ended();
/// assert_eq!(ended.wait_timeout(Duration::from_millis(10)), None); // still held
/// # drop(guard);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[must_use = "it does nothing unless a thread waits for it"]
pub struct Ended(crate::Ended);

impl Ended {
    /// Waits until the lease is lost, or its last guard is released or dropped.
    pub fn wait(self) -> LeaseEnd {
        wait(self.0)
    }

    /// The same for at most `timeout`. `None` if the lease is still held then; waiting can go on after that.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<LeaseEnd> {
        wait_until(Instant::now().checked_add(timeout), &mut self.0)
    }
}

impl fmt::Debug for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
