//! What a store must do to carry leases: the [`Backend`] trait and its contract.
//!
//! A store never waits for another client. It answers, and it tells. Who waits is kept by the engine: it asks again for every lease
//! that waits, at least every third of its TTL, and hears [events](Backend::events) of those that are served before that.
//!
//! A [`Resource`] is a key and the rules under which it is held ([`Kind`]); a request says what it [claims](Claim)
//! of it. A mutex and a reentrant lock of one key are the same lock, with one queue of waiters.
//!
//! A store that can change one record at a time need not do any of this itself: see [`LedgerStore`].
//!
//! # The contract
//!
//! Every point is a function in `conformance` (feature of that name), run against every backend. Those that only some stores can
//! give in full are asked of a store as its [`Capabilities`] say.
//!
//! 1. Every acquisition has its own [`LeaseId`], made before anything is sent. Every verb is idempotent per
//!    lease id, so it can be sent again when a reply is lost: a request that is granted is answered by its grant, one that waits
//!    keeps its place.
//! 2. `release` of a lease id forgets it everywhere: held, queued or never seen. What one client asks for one lease is carried out
//!    in the order in which it was asked for, also if it did not wait for the answers: a request whose future was dropped, and
//!    then its release.
//! 3. A grant carries a fencing token, issued in the same atomic step and strictly greater than every earlier
//!    token for that key, also after the key was idle, expired, or its store restarted. It takes up as many of the tokens that
//!    follow as its request says, for holders to whom the lease is passed on within a client.
//! 4. Every place in the queue has a [`Ticket`] that is never used again. The answer [`Queued`](Answer::Queued) names it, and so does
//!    the event of its grant: a client believes that event only for the ticket by which its last request was answered. Such a grant
//!    ends when the place would have ended, a TTL after its last request, so that what a client believes never outlives what
//!    the store knows.
//! 5. Release and renew act on their lease id only; another holder's lease is never touched.
//! 6. Renewal answers renewed, lost, or (as an error) unknown. Unknown neither extends nor ends the lease. Of leases that are
//!    renewed together each has an answer of its own, and none suffers for another.
//! 7. A place that is not asked for any more is gone within one TTL; the places of a client that died are gone within one TTL in
//!    all, and never block those behind for longer.
//! 8. Requests are served in order of arrival at the store. With a counting semaphore, that is the order among those
//!    that fit: a smaller request may pass a larger one, so that permits never idle while somebody fits.
//! 9. Work per hand-over does not grow with the number of waiters, if the store says so. (For a counting semaphore it grows with the
//!    number of different sizes among them.)
//! 10. The store's time, or the store's own leases, decide expiry; client clocks decide nothing.
//! 11. A lock's owner is let in again at once, past everybody who waits, under the token it has; each hold is a
//!     lease of its own, and the lock is free when the last of them has ended.
//! 12. Permits held never exceed the limit in force when they were granted. A release hands them to exactly those
//!     waiters that now fit, and may give back a part of a lease's permits.
//! 13. The limit in force is the one stated by the first to come; a request that states another is refused, with both
//!     limits. It stays in force while anybody holds or waits, and for one to two TTLs after. `set_limit` changes it
//!     for everybody at once, those who have met its version before included, and takes nothing away.

use std::fmt;

use futures::future::BoxFuture;
use futures::stream::BoxStream;

#[cfg(feature = "conformance")]
pub mod conformance;
mod lease_id;
mod ledger;
mod ledger_backend;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod types;

pub use crate::error::{BackendError, BoxError};
pub use lease_id::{LeaseId, LeaseIds};
pub use ledger::{Ledger, Stamp};
pub use ledger_backend::{LedgerBackend, LedgerStore};
pub use memory::{MemoryBackend, MemoryStore};
#[cfg(feature = "redis")]
pub use redis::{RedisBackend, RedisBuilder, fred};
pub use types::*;

/// A store that carries leases. See the [module documentation](self) for the contract.
///
/// Every future may be dropped at any point: what was asked for is then unknown, and the caller asks again, or releases.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Names a new acquisition. Ids are unguessable and never repeat.
    fn lease_id(&self) -> LeaseId;

    /// Asks for a resource, or asks again. Answers at once.
    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>>;

    /// Extends held leases by a full TTL, counted by the store from now: one or a hundred, of any kinds and TTLs. Every request is
    /// answered once, with its index, in any order; what one of them meets is no other's concern.
    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered>;

    /// Ends one lease, wherever it stands, and hands what is free to the waiters next in the queue.
    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Ends all of a lease but `keep` permits. Never gives a lease more than it has.
    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Ends whatever holds a lock, and tells all its holders at once if the store can push. Tells whether anything did. A
    /// semaphore refuses this. Not idempotent: it is never sent again.
    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>>;

    /// Changes the limit of a semaphore to `permits` for everybody. Permits that become free are handed out at once;
    /// nothing is taken away. It stays in force for one to two `ttl` if nobody uses the semaphore.
    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: std::time::Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>>;

    /// Tells who holds a resource and who waits for it, as far as `detail` says. Changes nothing.
    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>>;

    /// What is told to this client from now on. A later stream takes the place of an earlier one. Never ends for a store that has
    /// nothing to tell.
    fn events(&self) -> BoxStream<'static, Event>;

    /// What this store is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// Closes connections and ends background work. Later calls answer [`BackendError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}
