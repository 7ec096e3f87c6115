//! What a store must do to carry leases: the [`Backend`] trait and its contract.
//!
//! Five verbs: acquire, renew, release, inspect, capabilities. How to wait is the store's own business: Redis
//! pushes, memory wakes, a database would poll.
//!
//! # The contract
//!
//! Every point is a function in `conformance` (feature of that name), run against every backend.
//!
//! 1. Every acquisition has its own [`LeaseId`], made before anything is sent. Every verb is idempotent per
//!    lease id, so it can be sent again when a reply is lost.
//! 2. `release` of a lease id forgets it everywhere: held, queued or never seen. Dropping an `acquire` future
//!    is followed by `release`, and that is the whole cancellation story.
//! 3. A grant carries a fencing token, issued in the same atomic step and strictly greater than every earlier
//!    token for that key, also after the key was idle, expired, or its store restarted.
//! 4. A grant carries the local instant from which its lease may be counted, one that is certainly not later
//!    than the grant. What a client believes never outlives what the store knows.
//! 5. Release and renew act on their lease id only; another holder's lease is never touched.
//! 6. Renewal answers renewed, lost, or (as an error) unknown. Unknown neither extends nor ends the lease.
//! 7. A waiting request that dies stops counting as a waiter within one lease; it never blocks those behind.
//! 8. Requests for a mutex are served in order of arrival at the store.
//! 9. Work per hand-over does not grow with the number of waiters.
//! 10. The store's time decides expiry; client clocks decide nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::LossReason;
use crate::fence::FencingToken;

#[cfg(feature = "conformance")]
pub mod conformance;
mod lease_id;
mod memory;
#[cfg(feature = "redis")]
mod redis;

pub use crate::error::{BackendError, BoxError};
pub use lease_id::{LeaseId, LeaseIds};
pub use memory::MemoryBackend;
#[cfg(feature = "redis")]
pub use redis::{RedisBackend, RedisBuilder, fred};

/// A store that carries leases. See the [module documentation](self) for the contract.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Names a new acquisition. Ids are unguessable and never repeat.
    fn lease_id(&self) -> LeaseId;

    /// Asks for `request.key`, and waits for it as `request.wait` says.
    ///
    /// The future may be dropped at any point; the caller then owes a [`release`](Backend::release).
    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>>;

    /// Extends a held lease by a full term, counted by the store from now.
    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>>;

    /// Ends one lease, or whatever holds the key, and hands the resource to the oldest living waiter.
    fn release<'a>(
        &'a self,
        key: &'a Arc<str>,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Tells who holds `key` and who waits for it. Changes nothing.
    fn inspect<'a>(&'a self, key: &'a Arc<str>) -> BoxFuture<'a, Result<Inspection, BackendError>>;

    /// What this store is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// Closes connections and ends background work. Later calls answer [`BackendError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A request for a key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// This acquisition.
    pub lease: LeaseId,
    /// What is asked for: prefix and name.
    pub key: Arc<str>,
    /// How long the lease lasts without renewal.
    pub term: Duration,
    /// How long to wait.
    pub wait: Wait,
    /// Look again at least this often, for the sake of holders who tell nobody when they release.
    pub poll_interval: Option<Duration>,
    /// Give a key that somebody left without an expiry this one.
    pub repair: Option<Duration>,
    /// Where the backend tells that the lease was released by force.
    pub revocation: Revocation,
}

impl AcquireRequest {
    /// A request that does not wait, with no other options.
    #[must_use]
    pub fn new(lease: LeaseId, key: Arc<str>, term: Duration) -> Self {
        Self {
            lease,
            key,
            term,
            wait: Wait::No,
            poll_interval: None,
            repair: None,
            revocation: Revocation::default(),
        }
    }
}

/// How long an acquisition waits for a key that somebody else holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Not at all.
    No,
    /// Until this instant.
    Until(Instant),
    /// As long as it takes.
    Forever,
}

impl Wait {
    /// The instant at which waiting ends, if there is one.
    #[must_use]
    pub const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(instant) => Some(instant),
            Self::No | Self::Forever => None,
        }
    }
}

/// Tells the holder of a lease at once that the lease was released by force.
#[derive(Clone, Debug, Default)]
pub struct Revocation(CancellationToken);

impl Revocation {
    /// A revocation that ends `lost`.
    pub(crate) const fn of(lost: CancellationToken) -> Self {
        Self(lost)
    }

    /// Tells the holder.
    pub fn revoke(&self) {
        self.0.cancel();
    }

    /// Whether the holder has been told.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// The answer to an acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The key is held by the request's lease.
    Granted(Grant),
    /// Somebody else held it for as long as the request was ready to wait.
    Busy,
}

/// A lease that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Greater than every earlier token for this key.
    pub token: FencingToken,
    /// The lease may be counted from here: certainly not later than the grant in the store.
    pub counted_from: Instant,
}

impl Grant {
    /// A grant of `token`, counted from `counted_from`.
    #[must_use]
    pub const fn new(token: FencingToken, counted_from: Instant) -> Self {
        Self { token, counted_from }
    }
}

/// A request to keep a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewRequest {
    /// The lease.
    pub lease: LeaseId,
    /// What it holds.
    pub key: Arc<str>,
    /// How long it shall last from now.
    pub term: Duration,
}

impl RenewRequest {
    /// A request to keep `lease` on `key` for another `term`.
    #[must_use]
    pub const fn new(lease: LeaseId, key: Arc<str>, term: Duration) -> Self {
        Self { lease, key, term }
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// The lease lasts a full term, counted from here.
    Renewed {
        /// Certainly not later than the renewal in the store.
        counted_from: Instant,
    },
    /// The store says that this lease no longer holds the key.
    Lost(LossReason),
}

/// Whose hold a release ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whose {
    /// This lease's, wherever it stands, and nobody else's.
    Lease(LeaseId),
    /// Whoever holds the key now. The holder is told at once if the store can push.
    Anyone,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// A hold, which has ended.
    Held,
    /// Nothing any more, but an earlier attempt of the same call, whose answer got lost, may have ended a hold.
    Unknown,
    /// A place in the queue, which has been given up.
    Queued,
    /// Nothing of this lease; another one holds the key.
    Taken,
    /// Nothing of this lease, and nobody holds the key.
    Absent,
}

/// Who holds a key, and who waits for it, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holder, if there is one.
    pub holder: Option<Holder>,
    /// The living waiters, the next to be served first.
    pub waiters: Vec<Waiter>,
}

impl Inspection {
    /// This holder, and these waiters in the order in which they will be served.
    #[must_use]
    pub const fn new(holder: Option<Holder>, waiters: Vec<Waiter>) -> Self {
        Self { holder, waiters }
    }
}

/// The holder of a key.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lease id, or whatever value another library's holder has put there.
    pub id: String,
    /// The fencing token; `None` if the holder is not one of ours.
    pub token: Option<FencingToken>,
    /// When the hold ends unless it is renewed; `None` if it has no expiry.
    pub remaining: Option<Duration>,
}

impl Holder {
    /// A holder with this id, token and remaining time.
    #[must_use]
    pub fn new(id: impl Into<String>, token: Option<FencingToken>, remaining: Option<Duration>) -> Self {
        Self { id: id.into(), token, remaining }
    }
}

impl fmt::Debug for Holder {
    /// Shows what [`LeaseId`]'s `Debug` shows, and nothing at all of another library's secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = LeaseId::parse(&self.id);
        f.debug_struct("Holder")
            .field("id", &id.as_ref().map_or(&"another library's" as &dyn fmt::Debug, |id| id))
            .field("token", &self.token)
            .field("remaining", &self.remaining)
            .finish()
    }
}

/// A living waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiting acquisition.
    pub id: LeaseId,
    /// For how long it counts as living unless it repeats its request.
    pub remaining: Duration,
}

impl Waiter {
    /// A waiter with this id that counts as living for `remaining`.
    #[must_use]
    pub const fn new(id: LeaseId, remaining: Duration) -> Self {
        Self { id, remaining }
    }
}

/// What a store is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's address as shown in errors: a URL without its password.
    pub store: String,
    /// Whether the holder is told at once when its lease is released by force; otherwise it finds out at its
    /// next renewal.
    pub pushes_revocation: bool,
}

impl Capabilities {
    /// The capabilities of the store at `store`.
    #[must_use]
    pub fn new(store: impl Into<String>, pushes_revocation: bool) -> Self {
        Self { store: store.into(), pushes_revocation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_tell_the_whole_id() {
        let id = LeaseIds::new().next();
        let tail = &id.client().to_string()[9..];
        assert!(!format!("{id:?}").contains(tail));
        let holder = Holder { id: id.to_string(), token: None, remaining: None };
        assert!(!format!("{holder:?}").contains(tail));
        let foreign = Holder { id: "secret".into(), token: None, remaining: None };
        assert!(!format!("{foreign:?}").contains("secret"));
    }
}
