//! What a store must do to carry leases: the [`Backend`] trait and its contract.
//!
//! Six verbs: acquire, renew (one lease or many), release, resize, inspect, capabilities. How to wait is the store's own business:
//! Redis pushes, memory wakes, a database would poll.
//!
//! A [`Resource`] is a key and the rules under which it is held ([`Kind`]); a request says what it [claims](Claim)
//! of it. A mutex and a reentrant lock of one key are the same lock, with one line of waiters.
//!
//! # The contract
//!
//! Every point is a function in `conformance` (feature of that name), run against every backend.
//!
//! 1. Every acquisition has its own [`LeaseId`], made before anything is sent. Every verb is idempotent per
//!    lease id, so it can be sent again when a reply is lost. A request for what the lease holds already does not extend it.
//! 2. `release` of a lease id forgets it everywhere: held, queued or never seen. Dropping an `acquire` future
//!    is followed by `release`, and that is the whole cancellation story.
//! 3. A grant carries a fencing token, issued in the same atomic step and strictly greater than every earlier
//!    token for that key, also after the key was idle, expired, or its store restarted. It reserves the tokens that
//!    follow, [`TOKENS_PER_GRANT`] in all, for holders to whom the lease is passed on within a client.
//! 4. A grant carries the local instant from which its lease may be counted, one that is certainly not later
//!    than the grant. What a client believes never outlives what the store knows. A store that tells of grants by another
//!    way than it answers must allow for either to be late: a grant that was held back belongs to a place in the queue that
//!    the request may have lost since, and stands in another now. So every place has a ticket that is never used again, the answer
//!    "queued" and the grant both name it, and a grant with another ticket than the last one answered is not believed.
//! 5. Release and renew act on their lease id only; another holder's lease is never touched.
//! 6. Renewal answers renewed, lost, or (as an error) unknown. Unknown neither extends nor ends the lease. Of leases that are
//!    renewed together each has an answer of its own, and none suffers for another.
//! 7. A waiting request that dies stops counting as a waiter within one lease; it never blocks those behind.
//! 8. Requests are served in order of arrival at the store. With a counting semaphore, that is the order among those
//!    that fit: a smaller request may pass a larger one, so that permits never idle while somebody fits.
//! 9. Work per hand-over does not grow with the number of waiters. (For a counting semaphore it grows with the number of
//!    different sizes among them.)
//! 10. The store's time decides expiry; client clocks decide nothing.
//! 11. A lock's owner is let in again at once, past everybody who waits, under the token it has; each hold is a
//!     lease of its own, and the lock is free when the last of them has ended.
//! 12. Permits held never exceed the limit in force when they were granted. A release hands them to exactly those
//!     waiters that now fit, and may give back a part of a lease's permits.
//! 13. The limit in force is the one stated by the first to come; a request that states another is refused, with both
//!     limits. It stays in force while anybody holds or waits, and for one to two leases after. `resize` changes it
//!     for everybody at once, those who have met it before included, and takes nothing away.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::LossReason;
use crate::fence::FencingToken;
use crate::sync::Mutex;

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

/// How many tokens a grant takes up: the next one is greater by at least this.
pub const TOKENS_PER_GRANT: u64 = 16;

/// A store that carries leases. See the [module documentation](self) for the contract.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Names a new acquisition. Ids are unguessable and never repeat.
    fn lease_id(&self) -> LeaseId;

    /// Asks for `request.resource`, and waits for it as `request.wait` says.
    ///
    /// The future may be dropped at any point; the caller then owes a [`release`](Backend::release), and so it does if the
    /// request failed or has waited in vain. Until then the request keeps its place in line, for whoever asks again under its
    /// lease id.
    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>>;

    /// Extends a held lease by a full term, counted by the store from now.
    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>>;

    /// Renews many leases, a hundred or so, of any kinds and terms. Every request is answered once, with its index, in any
    /// order, as [`renew`](Backend::renew) would answer it; what one of them meets is no other's concern.
    ///
    /// The stream may be dropped at any point: what it has not answered yet is then unknown.
    ///
    /// A store that can carry out many renewals in one step should do so: a client with many leases does little else.
    fn renew_all<'a>(&'a self, requests: &'a [RenewRequest]) -> BoxStream<'a, Answered> {
        let renewals = requests.iter().enumerate();
        let renewals = renewals.map(|(n, request)| self.renew(request).map(move |answer| (n, answer)));
        renewals.collect::<FuturesUnordered<_>>().boxed()
    }

    /// Ends one lease, or a part of it, or whatever holds the lock, and hands what is free to the waiters next in line.
    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>>;

    /// Changes the limit of a semaphore to `permits` for everybody. Permits that become free are handed out at once;
    /// nothing is taken away. It stays in force for `term` if nobody uses the semaphore. `limit` follows.
    fn resize<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        term: Duration,
        limit: &'a Limit,
    ) -> BoxFuture<'a, Result<(), BackendError>>;

    /// Tells who holds a resource and who waits for it, as far as `detail` says. Changes nothing.
    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>>;

    /// What this store is and can do.
    fn capabilities(&self) -> &Capabilities;

    /// Closes connections and ends background work. Later calls answer [`BackendError::Closed`].
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Something that is held: a key, and the rules for holding it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Resource {
    /// Prefix and name.
    pub key: Arc<str>,
    /// The rules.
    pub kind: Kind,
    /// How many bytes of the key are the prefix.
    prefix_len: usize,
}

impl Resource {
    /// What is held under `key` by the rules of `kind`. Its prefix ends with the first colon; without one it is empty.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>, kind: Kind) -> Self {
        let key = key.into();
        let prefix_len = key.find(':').map_or(0, |colon| colon + 1);
        Self { key, kind, prefix_len }
    }

    /// What is held under `name` with this prefix. Tokens are issued per prefix: use the same one for a name everywhere.
    #[must_use]
    pub fn named(prefix: &str, name: &str, kind: Kind) -> Self {
        Self { key: format!("{prefix}{name}").into(), kind, prefix_len: prefix.len() }
    }

    /// What is held under `key`, whose first bytes are the prefix; `None` if it has no such part.
    #[cfg(feature = "redis")]
    pub(crate) fn split_at(key: &str, prefix_len: usize, kind: Kind) -> Option<Self> {
        key.is_char_boundary(prefix_len).then(|| Self { key: key.into(), kind, prefix_len })
    }

    /// What comes before the name in the key.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.key[..self.prefix_len]
    }

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key[self.prefix_len..]
    }
}

/// The rules under which a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// One lease at a time.
    Mutex,
    /// One owner at a time, under any number of leases. The same lock as a mutex of the same key.
    Reentrant,
    /// As many permits as the limit says; whoever fits may pass those who do not.
    Counting,
    /// As many permits as the limit says; nobody passes anybody.
    Fair,
}

impl Kind {
    /// How the kind is called in messages and in the store.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Reentrant => "reentrant",
            Self::Counting => "counting",
            Self::Fair => "fair",
        }
    }

    /// Reads what [`as_str`](Self::as_str) wrote.
    #[cfg(feature = "redis")]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Mutex, Self::Reentrant, Self::Counting, Self::Fair]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }

    /// Whether it has permits and a limit.
    #[must_use]
    pub const fn is_semaphore(self) -> bool {
        matches!(self, Self::Counting | Self::Fair)
    }
}

/// What a request wants to have of a resource.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Claim {
    /// All of a lock, for this lease alone.
    Sole,
    /// All of a lock, for everything that the same owner holds.
    Owner(Arc<str>),
    /// So many permits of a semaphore whose limit is believed to be this.
    Permits(u32, Limit),
}

impl Claim {
    /// How many permits are claimed; a lock counts as one.
    #[must_use]
    pub const fn permits(&self) -> u32 {
        match self {
            Self::Permits(permits, _) => *permits,
            Self::Sole | Self::Owner(_) => 1,
        }
    }

    /// The owner that claims the lock, if it is one that can come in again.
    #[must_use]
    pub const fn owner(&self) -> Option<&Arc<str>> {
        match self {
            Self::Owner(owner) => Some(owner),
            Self::Sole | Self::Permits(..) => None,
        }
    }

    /// The limit that a claim of permits states.
    pub(crate) const fn limit(&self) -> Option<&Limit> {
        match self {
            Self::Permits(_, limit) => Some(limit),
            Self::Sole | Self::Owner(_) => None,
        }
    }

    /// Another handle of the same semaphore has met its limit.
    pub(crate) fn learn(&self, met: Option<&Limit>) {
        if let (Some(own), Some(met)) = (self.limit(), met) {
            let Stated { permits, reign } = met.stated();
            own.follow(permits, reign);
        }
    }
}

/// The limit that the handles of a semaphore state. Clones are one: they follow together when it is changed.
///
/// A limit is in force from when somebody first states it, for a time that has a number, its *reign*. Whoever has met
/// that reign follows its changes; whoever comes new must state the limit as it is.
#[derive(Clone, Debug)]
pub struct Limit(Arc<Mutex<Stated>>);

/// What is believed of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stated {
    /// The limit.
    pub permits: u32,
    /// The reign in which it was in force, 0 if it never was.
    pub reign: u64,
}

impl Limit {
    /// A limit that nobody has confirmed.
    #[must_use]
    pub fn new(permits: u32) -> Self {
        Self(Arc::new(Mutex::new(Stated { permits, reign: 0 })))
    }

    /// What is believed of it now.
    #[must_use]
    pub fn stated(&self) -> Stated {
        *self.0.lock()
    }

    /// The store says that the limit is this. What it said of an earlier reign, and was read late, changes nothing.
    pub fn follow(&self, permits: u32, reign: u64) {
        let mut stated = self.0.lock();
        if reign >= stated.reign {
            *stated = Stated { permits, reign };
        }
    }
}

/// A request for a resource.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// This acquisition.
    pub lease: LeaseId,
    /// What is asked for.
    pub resource: Resource,
    /// How much of it.
    pub claim: Claim,
    /// How long the lease lasts without renewal.
    pub term: Duration,
    /// How long to wait.
    pub wait: Wait,
    /// When this lease was first asked for, if that was earlier: the request continues one whose future was dropped, and
    /// there may be a grant as old as that.
    pub since: Option<Instant>,
    /// How many tokens the grant takes up: as many as the holds to which the lease may be passed on within the client, at most
    /// [`TOKENS_PER_GRANT`].
    pub reserve: u64,
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
    pub fn new(lease: LeaseId, resource: Resource, claim: Claim, term: Duration) -> Self {
        Self {
            lease,
            resource,
            claim,
            term,
            wait: Wait::No,
            since: None,
            reserve: TOKENS_PER_GRANT,
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
    /// What was claimed is held by the request's lease.
    Granted(Grant),
    /// Somebody else held it for as long as the request was ready to wait.
    Busy,
}

/// A lease that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Greater than every earlier token for this key; an owner that comes in again gets the one it has.
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
    pub resource: Resource,
    /// How long it shall last from now.
    pub term: Duration,
    /// When the store last confirmed the lease, if that is known. What a store keeps for long beside a lease, such as the last
    /// token, need not be seen to at every renewal.
    pub confirmed: Option<Instant>,
}

impl RenewRequest {
    /// A request to keep `lease` on `resource` for another `term`.
    #[must_use]
    pub const fn new(lease: LeaseId, resource: Resource, term: Duration) -> Self {
        Self { lease, resource, term, confirmed: None }
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

/// The answer to one of many renewals, with the index of its request.
pub type Answered = (usize, Result<Renewal, BackendError>);

/// Whose hold a release ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whose {
    /// This lease's, wherever it stands, and nobody else's.
    Lease(LeaseId),
    /// This lease's, but for so many permits that it keeps. Never gives a lease more than it has.
    AllBut(LeaseId, u32),
    /// Whoever holds the lock now. All its holders are told at once if the store can push. A semaphore refuses this.
    Anyone,
}

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Released {
    /// A hold, which has ended, or has given back what was asked for.
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

/// How much an inspection tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detail {
    /// Everybody who holds and everybody who waits.
    Everybody,
    /// The numbers only, at a cost that does not depend on how many hold or wait.
    Numbers,
}

/// Who holds a lock or permits, and who waits, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holders. A mutex has one at most, a reentrant lock one per lease, in no promised order; a semaphore lists its
    /// holders by the time their leases end.
    pub holders: Vec<Holder>,
    /// The living waiters, in order of arrival.
    pub waiters: Vec<Waiter>,
    /// The limit of a semaphore, while one is in force.
    pub limit: Option<u32>,
    /// How many permits are held; 1 for a lock that is held.
    pub in_use: u32,
}

impl Inspection {
    /// These holders, and these waiters in order of arrival.
    #[must_use]
    pub fn new(holders: Vec<Holder>, waiters: Vec<Waiter>, limit: Option<u32>, in_use: u32) -> Self {
        Self { holders, waiters, limit, in_use }
    }

    /// The holder of a lock, if there is one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

/// A holder of a lock or of permits.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lease id, or whatever value another library's holder has put there.
    pub id: String,
    /// The fencing token of the grant; `None` if the holder is not one of ours. A holder to which the lease was passed on within its
    /// client has one that is greater by up to 15.
    pub token: Option<FencingToken>,
    /// When the hold ends unless it is renewed; `None` if it has no expiry.
    pub remaining: Option<Duration>,
    /// How many permits are held; 1 for a lock.
    pub permits: u32,
    /// The owner for which a reentrant lock is held.
    pub owner: Option<String>,
}

impl Holder {
    /// A holder with this id, token and remaining time, of one permit and no owner.
    #[must_use]
    pub fn new(id: impl Into<String>, token: Option<FencingToken>, remaining: Option<Duration>) -> Self {
        Self { id: id.into(), token, remaining, permits: 1, owner: None }
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
            .field("permits", &self.permits)
            .field("owner", &self.owner)
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
    /// How many permits it waits for; 1 for a lock.
    pub permits: u32,
}

impl Waiter {
    /// A waiter with this id that counts as living for `remaining` and wants one permit.
    #[must_use]
    pub const fn new(id: LeaseId, remaining: Duration) -> Self {
        Self { id, remaining, permits: 1 }
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
        let holder = Holder::new(id.to_string(), None, None);
        assert!(!format!("{holder:?}").contains(tail));
        let foreign = Holder::new("secret", None, None);
        assert!(!format!("{foreign:?}").contains("secret"));
    }
}
