//! What is asked of a store, what it answers, and what it tells.
//!
//! A store makes the answers and the events, and so they can be made from outside this crate: those that may gain a field have
//! a constructor, and enums that a store has to tell apart are exhaustive on purpose.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{BackendError, LeaseId};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// Something that is held: a key, and the rules for holding it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Resource {
    /// Prefix and name.
    pub key: Arc<str>,
    /// The rules.
    pub kind: Kind,
}

impl Resource {
    /// What is held under `key` by the rules of `kind`.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>, kind: Kind) -> Self {
        Self { key: key.into(), kind }
    }
}

/// The rules under which a key is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "a store has to tell all of them apart")]
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
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Mutex, Self::Reentrant, Self::Counting, Self::Fair];

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
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Whether it has permits and a limit.
    #[must_use]
    pub const fn is_semaphore(self) -> bool {
        matches!(self, Self::Counting | Self::Fair)
    }
}

/// A lease and what it is on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct LeaseRef {
    /// The lease.
    pub id: LeaseId,
    /// What it holds, or waits for.
    pub resource: Resource,
}

impl LeaseRef {
    /// The lease `id` on `resource`.
    #[must_use]
    pub const fn new(id: LeaseId, resource: Resource) -> Self {
        Self { id, resource }
    }
}

/// What a request wants to have of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a store has to tell all of them apart")]
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
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        match self {
            Self::Permits(_, limit) => Some(*limit),
            Self::Sole | Self::Owner(_) => None,
        }
    }
}

/// The limit of a semaphore.
///
/// A limit is in force from when somebody first states it, for a time that has a number, its version. Whoever has met that
/// version follows its changes; whoever comes new must state the limit as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limit {
    /// How many permits there are.
    pub permits: u32,
    /// The version in which this was in force, 0 if it never was.
    pub version: u64,
}

impl Limit {
    /// A limit that is in force in this version.
    #[must_use]
    pub const fn new(permits: u32, version: u64) -> Self {
        Self { permits, version }
    }

    /// A limit that no store has confirmed.
    #[must_use]
    pub const fn stated(permits: u32) -> Self {
        Self { permits, version: 0 }
    }

    /// Whether a request may state this while `in_force` is: it is the same limit, or one of the same version, before a change.
    #[must_use]
    pub const fn agrees_with(self, in_force: Self) -> bool {
        self.version == in_force.version || self.permits == in_force.permits
    }
}

/// A request for a resource. It is sent again, as it is, for as long as its lease waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// This acquisition, and what is asked for.
    pub lease: LeaseRef,
    /// How much of it.
    pub claim: Claim,
    /// How long the lease lasts without renewal, and how long its place in the queue without being asked for again.
    pub ttl: Duration,
    /// Whether it joins the queue if it cannot be granted at once.
    pub waits: bool,
    /// How many tokens its grant takes up: one, or as many as the lease can be passed on within the client.
    pub tokens: u32,
}

impl Request {
    /// A request that does not wait, for a grant that takes up one token.
    #[must_use]
    pub const fn new(lease: LeaseRef, claim: Claim, ttl: Duration) -> Self {
        Self { lease, claim, ttl, waits: false, tokens: 1 }
    }

    /// The same request, which waits in the queue.
    #[must_use]
    pub const fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }
}

/// A place in the queue. Its number is never used again, for any place of that key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket of this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "whoever asks has to tell all of them apart")]
pub enum Answer {
    /// The lease holds what was claimed. To ask again does not prolong it: a client that asks and hears no answer keeps nothing.
    Granted(Grant),
    /// It has a place in the queue, which counts as living for a full TTL from now.
    Queued(Queued),
    /// Somebody else holds it, and the request does not wait. The store knows nothing of this lease.
    Busy {
        /// The limit in force, of a semaphore.
        limit: Option<Limit>,
    },
}

impl Answer {
    /// The limit in force, of a semaphore.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        match self {
            Self::Granted(Grant { limit, .. })
            | Self::Queued(Queued { limit, .. })
            | Self::Busy { limit } => *limit,
        }
    }
}

/// A lease that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Greater than every earlier token for this key; an owner that comes in again gets the one it has.
    pub token: FencingToken,
    /// The limit in force, of a semaphore.
    pub limit: Option<Limit>,
    /// For how long the lease still lasts if it was granted by an earlier request; `None` for a full TTL from now.
    pub remaining: Option<Duration>,
}

impl Grant {
    /// A grant of `token`, under `limit` if it is one of permits.
    #[must_use]
    pub const fn new(token: FencingToken, limit: Option<Limit>) -> Self {
        Self { token, limit, remaining: None }
    }

    /// The same grant, made by an earlier request: it lasts for `remaining`.
    #[must_use]
    pub const fn lasting(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queued {
    /// Which place. The same whenever the request is asked again, until the place is gone; then there is a new one.
    pub ticket: Ticket,
    /// When asking again is of use, if that is known: when the holder's lease ends, or how often this store is polled. A third
    /// of the TTL is never exceeded.
    pub ask_again_in: Option<Duration>,
    /// The limit in force, of a semaphore.
    pub limit: Option<Limit>,
}

impl Queued {
    /// The place `ticket`.
    #[must_use]
    pub const fn new(ticket: Ticket, ask_again_in: Option<Duration>, limit: Option<Limit>) -> Self {
        Self { ticket, ask_again_in, limit }
    }
}

/// What a store tells of its own accord.
///
/// A client hears of its own leases only. Nothing depends on an event being delivered, since every request is asked again now
/// and then; nothing is believed because of one alone, since it may be old.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The place `ticket` of this lease was served. The grant ends when the place would have ended.
    Granted {
        /// Which lease.
        lease: LeaseRef,
        /// Its place.
        ticket: Ticket,
        /// What it was granted.
        grant: Grant,
    },
    /// The grant of `token` to this lease was released by force.
    Revoked {
        /// Which lease.
        lease: LeaseId,
        /// Which grant, 0 if the store does not know.
        token: FencingToken,
    },
    /// It is of use to ask for this lease again now.
    AskAgain(LeaseId),
    /// It is of use to ask now for every waiting lease of this key.
    Changed(Arc<str>),
    /// Events may have been lost: it is of use to ask for every waiting lease again.
    Resync,
}

/// A request to keep a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renew {
    /// The lease.
    pub lease: LeaseRef,
    /// How long it shall last from now.
    pub ttl: Duration,
}

impl Renew {
    /// A request to keep `lease` for another `ttl`.
    #[must_use]
    pub const fn new(lease: LeaseRef, ttl: Duration) -> Self {
        Self { lease, ttl }
    }
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a lease is held or it is not")]
pub enum Renewal {
    /// The lease lasts a full TTL from now.
    Renewed,
    /// The store says that this lease no longer holds the key.
    Lost(LossReason),
}

/// The answer to one of many renewals, with the index of its request.
pub type Answered = (usize, Result<Renewal, BackendError>);

/// What a release found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "whoever releases has to tell all of them apart")]
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
#[allow(clippy::exhaustive_enums, reason = "a store has to tell all of them apart")]
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
    /// The kinds of resources that it carries. Others are refused before anything is sent.
    pub kinds: Vec<Kind>,
    /// How a waiting client hears that it is served.
    pub wakes: Wakes,
    /// Leases that are shorter are refused before anything is sent.
    pub min_ttl: Duration,
    /// TTLs are rounded up to a multiple of this.
    pub ttl_granularity: Duration,
    /// Whether tokens go on growing after the store has lost its memory.
    pub tokens_survive_memory_loss: bool,
    /// Whether the work of a hand-over is the same however many wait.
    pub constant_work: bool,
    /// Whether leases are renewed from a thread of the crate's own, so that a section that blocks its thread keeps its lease. Not
    /// for a store that lives by the clock of the caller's runtime.
    pub own_thread: bool,
}

/// How a waiting client hears that it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wakes {
    /// The store tells it.
    Pushed,
    /// It asks again this often.
    Polled(Duration),
}

impl Capabilities {
    /// A store at the address `store` that can do everything, with leases in milliseconds from 100 ms on.
    #[must_use]
    pub fn new(store: impl Into<String>) -> Self {
        Self {
            store: store.into(),
            kinds: Kind::ALL.to_vec(),
            wakes: Wakes::Pushed,
            min_ttl: Duration::from_millis(100),
            ttl_granularity: Duration::from_millis(1),
            tokens_survive_memory_loss: true,
            constant_work: true,
            own_thread: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::LeaseIds;

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
