//! Requests to a store, its answers, and its events.
//!
//! Stores outside this crate create answers and events too: structs that may gain a field have a constructor, and enums
//! that a store must match on are deliberately exhaustive.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{BackendError, LeaseId};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// The shortest TTL: a shorter TTL could expire during one slow round trip.
///
/// ```
/// let options = leasehold::MutexOptions::new().ttl(leasehold::MIN_TTL / 2);
/// assert!(leasehold::Client::memory().mutex_with("machine:42", options).is_err());
/// ```
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// The longest TTL: a store remembers the last token of an idle name for a day, and must not forget it
/// during a lease.
///
/// ```
/// let options = leasehold::MutexOptions::new().ttl(leasehold::MAX_TTL);
/// assert!(leasehold::Client::memory().mutex_with("machine:42", options).is_ok());
/// ```
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Something that can be held: a key, and the rules for holding it.
///
/// ```
/// use leasehold::backend::{Kind, Resource};
///
/// let resource = Resource::named("shop:", "cart:7", Kind::Mutex);
/// assert_eq!((&*resource.key, resource.prefix(), resource.name()), ("shop:cart:7", "shop:", "cart:7"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Resource {
    /// Prefix and name.
    pub key: Arc<str>,
    /// The rules.
    pub kind: Kind,
    /// The length of the prefix in the key, in bytes.
    prefix_len: usize,
    /// Whether the key has a closing brace, so that part of it may be a hash tag.
    pub(crate) has_brace: bool,
}

impl Resource {
    /// The resource `key`, held by the rules of `kind`. Its prefix ends with the first colon; without a colon it is
    /// empty.
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>, kind: Kind) -> Self {
        let key = key.into();
        let prefix_len = key.find(':').map_or(0, |colon| colon + 1);
        Self::with_prefix_len(key, prefix_len, kind)
    }

    /// The resource `name` with this prefix. A store may issue tokens per prefix, so use the same prefix for a name
    /// everywhere.
    #[must_use]
    pub fn named(prefix: &str, name: &str, kind: Kind) -> Self {
        Self::with_prefix_len(format!("{prefix}{name}").into(), prefix.len(), kind)
    }

    fn with_prefix_len(key: Arc<str>, prefix_len: usize, kind: Kind) -> Self {
        let has_brace = key.contains('}');
        Self { key, kind, prefix_len, has_brace }
    }

    /// The resource `key`, whose first bytes are the prefix; `None` if the key cannot be split there.
    pub(crate) fn split_at(key: &str, prefix_len: usize, kind: Kind) -> Option<Self> {
        key.is_char_boundary(prefix_len).then(|| Self::with_prefix_len(key.into(), prefix_len, kind))
    }

    /// The part of the key before the name.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.key[..self.prefix_len]
    }

    /// Whether it is the lock of an election, whose holders others observe.
    #[cfg(feature = "_redis")]
    pub(crate) fn is_of_election(&self) -> bool {
        self.prefix().ends_with(crate::options::within::ELECTION)
    }

    /// The name, without the prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.key[self.prefix_len..]
    }
}

/// The rules under which a key is held.
///
/// ```
/// use leasehold::backend::Kind;
///
/// assert!(Kind::ALL.iter().all(|kind| Kind::parse(kind.as_str()) == Some(*kind)));
/// assert!(Kind::Fair.is_semaphore() && !Kind::Reentrant.is_semaphore());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(clippy::exhaustive_enums, reason = "a store has to tell all of them apart")]
pub enum Kind {
    /// One lease at a time.
    Mutex,
    /// One owner at a time, under any number of leases. It is the same lock as a mutex with the same key.
    Reentrant,
    /// As many permits as the limit says; a request that fits may overtake those that do not.
    Counting,
    /// As many permits as the limit says; no request overtakes another.
    Fair,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Mutex, Self::Reentrant, Self::Counting, Self::Fair];

    /// The name of the kind in messages and in the store.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Reentrant => "reentrant",
            Self::Counting => "counting",
            Self::Fair => "fair",
        }
    }

    /// Parses the result of [`as_str`](Self::as_str).
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

/// A lease and its resource.
///
/// ```
/// use leasehold::backend::{Kind, LeaseId, LeaseRef, Resource};
/// use uuid::Uuid;
///
/// let client = Uuid::new_v4();
/// let lease = LeaseRef::new(LeaseId::next(client), Resource::new("lock:cart:7", Kind::Mutex));
/// assert_eq!(lease.id.client(), client);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct LeaseRef {
    /// The lease.
    pub id: LeaseId,
    /// What it holds or waits for.
    pub resource: Resource,
}

impl LeaseRef {
    /// The lease `id` on `resource`.
    #[must_use]
    pub const fn new(id: LeaseId, resource: Resource) -> Self {
        Self { id, resource }
    }
}

/// How much of a resource a request wants.
///
/// ```
/// use leasehold::backend::{Claim, Limit};
///
/// assert_eq!(Claim::Sole.permits(), 1);
/// assert_eq!(Claim::Permits(3, Limit::stated(5)).limit(), Some(Limit::stated(5)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a store has to tell all of them apart")]
pub enum Claim {
    /// All of a lock, for this lease alone.
    Sole,
    /// All of a lock, shared with the other leases of the same owner.
    Owner(Arc<str>),
    /// This many permits of a semaphore, and the limit that the client believes to be in force.
    Permits(u32, Limit),
}

impl Claim {
    /// How many permits are claimed; 1 for a lock.
    #[must_use]
    pub const fn permits(&self) -> u32 {
        match self {
            Self::Permits(permits, _) => *permits,
            Self::Sole | Self::Owner(_) => 1,
        }
    }

    /// The owner that claims the lock, if it is a reentrant one.
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
/// A limit comes into force when a request first states it, and gets a version, which stays the same when the limit is
/// changed. A new version begins after the limit has lapsed. Handles that know the version follow its changes; all
/// others must state the limit that is in force.
///
/// ```
/// use leasehold::backend::Limit;
///
/// let in_force = Limit::new(6, 41);
/// assert!(Limit::new(5, 41).agrees_with(in_force), "it follows the changes of its version");
/// assert!(!Limit::stated(5).agrees_with(in_force));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Limit {
    /// How many permits there are.
    pub permits: u32,
    /// The version under which it was in force, or 0 if no store has confirmed it.
    pub version: u64,
}

impl Limit {
    /// A limit in force, with its version.
    #[must_use]
    pub const fn new(permits: u32, version: u64) -> Self {
        Self { permits, version }
    }

    /// A limit that no store has confirmed.
    #[must_use]
    pub const fn stated(permits: u32) -> Self {
        Self { permits, version: 0 }
    }

    /// Whether a request may state this limit while `in_force` is in force: they are equal, or of the same version.
    #[must_use]
    pub const fn agrees_with(self, in_force: Self) -> bool {
        self.version == in_force.version || self.permits == in_force.permits
    }
}

/// A request for a resource. It is repeated as long as its lease waits; only the limit that it states may change.
///
/// ```
/// use std::time::Duration;
/// use leasehold::backend::{Claim, Kind, LeaseId, LeaseRef, Request, Resource};
/// use uuid::Uuid;
///
/// let lease = LeaseRef::new(LeaseId::next(Uuid::new_v4()), Resource::new("lock:cart:7", Kind::Mutex));
/// let request = Request::new(lease, Claim::Sole, Duration::from_secs(30)).waiting();
/// assert!(request.waits);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// This acquisition, and the resource.
    pub lease: LeaseRef,
    /// How much of it.
    pub claim: Claim,
    /// How long the lease lasts without a renewal, and its place in the queue without a repeated request.
    pub ttl: Duration,
    /// Whether it joins the queue if it cannot be granted at once.
    pub waits: bool,
    /// How many tokens its grant reserves: one for each hold that the lease may have within the client.
    pub tokens: u32,
    /// What the client is called, for people who look at the store: [`Holder::label`].
    pub label: Option<Arc<str>>,
    /// What this acquisition is for: [`Holder::note`].
    pub note: Option<Arc<str>>,
}

impl Request {
    /// A request that does not wait, for a grant that reserves one token.
    #[must_use]
    pub const fn new(lease: LeaseRef, claim: Claim, ttl: Duration) -> Self {
        Self { lease, claim, ttl, waits: false, tokens: 1, label: None, note: None }
    }

    /// The same request, which waits in the queue.
    #[must_use]
    pub const fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }
}

/// The number of a place in the queue. It is never used again for that key.
///
/// ```
/// assert!(leasehold::backend::Ticket::new(8) > leasehold::backend::Ticket::new(7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

impl Ticket {
    /// The ticket with this number.
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
///
/// ```
/// use leasehold::FencingToken;
/// use leasehold::backend::{Answer, Grant};
///
/// let answer = Answer::Granted(Grant::new(FencingToken::new(7), None));
/// assert_eq!(answer.limit(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "callers must tell all of them apart")]
pub enum Answer {
    /// The lease holds what was claimed. Repeating the request does not extend it: a client whose requests arrive, but
    /// which receives no answers, must not keep the lease alive.
    Granted(Grant),
    /// It has a place in the queue, which lasts for a full TTL from now.
    Queued(Queued),
    /// The resource is not available, and the request does not wait. The store keeps no record of this lease.
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

/// The grant of a lease.
///
/// ```
/// use std::time::Duration;
/// use leasehold::FencingToken;
/// use leasehold::backend::Grant;
///
/// let repeated = Grant::new(FencingToken::new(7), None).lasting(Duration::from_secs(12));
/// assert_eq!(repeated.remaining, Some(Duration::from_secs(12)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Greater than every earlier token for this key; an owner that is admitted again gets the same token.
    pub token: FencingToken,
    /// The limit in force, of a semaphore.
    pub limit: Option<Limit>,
    /// How much longer the lease lasts, if it was granted before this request; `None` for a full TTL from now.
    pub remaining: Option<Duration>,
}

impl Grant {
    /// A grant under `token`; for permits, with the limit in force.
    #[must_use]
    pub const fn new(token: FencingToken, limit: Option<Limit>) -> Self {
        Self { token, limit, remaining: None }
    }

    /// The same grant, made before this request: it lasts for `remaining`.
    #[must_use]
    pub const fn lasting(mut self, remaining: Duration) -> Self {
        self.remaining = Some(remaining);
        self
    }
}

/// A place in the queue.
///
/// ```
/// use std::time::Duration;
/// use leasehold::backend::{Queued, Ticket};
///
/// let place = Queued::new(Ticket::new(7), Some(Duration::from_millis(250)), None);
/// assert!(!place.holder_never_expires);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Queued {
    /// Which place. The ticket stays the same when the request is repeated, until the place has ended; then there is a
    /// new one.
    pub ticket: Ticket,
    /// How soon it is useful to repeat the request, if known: when the holder's lease ends, or when this store should
    /// be polled. The client repeats it after a third of the TTL at the latest.
    pub ask_again_in: Option<Duration>,
    /// The limit in force, of a semaphore.
    pub limit: Option<Limit>,
    /// Whether the holder's key has no expiry, so that no other client gets the lock unless the holder releases it.
    /// Only for reporting to users.
    pub holder_never_expires: bool,
}

impl Queued {
    /// The place with this ticket.
    #[must_use]
    pub const fn new(ticket: Ticket, ask_again_in: Option<Duration>, limit: Option<Limit>) -> Self {
        Self { ticket, ask_again_in, limit, holder_never_expires: false }
    }
}

/// A message from a store that is not an answer.
///
/// A client gets events for its own leases only. Correctness does not depend on their delivery, because every waiting
/// request is repeated; and because an event may be old, none is trusted on its own.
///
/// ```
/// use leasehold::backend::Event;
///
/// // As text, for stores that pass it on as a message.
/// let event = Event::Changed("lock:cart:7".into());
/// assert_eq!(event.to_string().parse::<Event>()?, event);
/// # Ok::<(), leasehold::BackendError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The lease was granted at the place `ticket`. The grant ends when the place would have ended.
    Granted {
        /// Which lease.
        lease: LeaseRef,
        /// Its place.
        ticket: Ticket,
        /// The grant.
        grant: Grant,
    },
    /// The grant of this lease under `token` was released by force.
    Revoked {
        /// Which lease.
        lease: LeaseId,
        /// Which grant; 0 if the store does not know.
        token: FencingToken,
    },
    /// The request of this lease should be repeated now; if it is held, it should be renewed, because the store may not
    /// have it any more.
    AskAgain(LeaseId),
    /// The requests of all waiting leases of this key should be repeated now.
    Changed(Arc<str>),
    /// Events may have been lost: the requests of all waiting leases should be repeated now.
    Resync,
}

impl Event {
    /// The lease that it names, if it names one.
    #[must_use]
    pub const fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Granted { lease, .. } => Some(lease.id),
            Self::Revoked { lease, .. } | Self::AskAgain(lease) => Some(*lease),
            Self::Changed(_) | Self::Resync => None,
        }
    }
}

/// A request to renew a lease.
///
/// ```
/// use std::time::Duration;
/// use leasehold::backend::{Kind, LeaseId, LeaseRef, Renew, Resource};
/// use uuid::Uuid;
///
/// let lease = LeaseRef::new(LeaseId::next(Uuid::new_v4()), Resource::new("lock:cart:7", Kind::Mutex));
/// let renew = Renew::new(lease, Duration::from_secs(30));
/// assert_eq!(renew.ttl, Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renew {
    /// The lease.
    pub lease: LeaseRef,
    /// How long it should last from now.
    pub ttl: Duration,
}

impl Renew {
    /// A request to renew `lease` for `ttl` from now.
    #[must_use]
    pub const fn new(lease: LeaseRef, ttl: Duration) -> Self {
        Self { lease, ttl }
    }
}

/// The answer to a renewal.
///
/// ```
/// use leasehold::LossReason;
/// use leasehold::backend::Renewal;
///
/// assert_ne!(Renewal::Renewed, Renewal::Lost(LossReason::Revoked));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a lease is held or it is not")]
pub enum Renewal {
    /// The lease lasts a full TTL from now.
    Renewed,
    /// The lease no longer holds the key.
    Lost(LossReason),
}

/// The answer to one of many renewals, with the index of its request.
pub type Answered = (usize, Result<Renewal, BackendError>);

/// What a release found.
///
/// ```
/// use leasehold::backend::Released;
///
/// /// Whether the lease was held until its release.
/// fn held(found: Released) -> Option<bool> {
///     match found {
///         Released::Held => Some(true),
///         Released::Unknown => None,
///         Released::Queued | Released::Revoked | Released::Taken | Released::Absent => Some(false),
///     }
/// }
/// assert_eq!(held(Released::Held), Some(true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "callers must tell all of them apart")]
pub enum Released {
    /// A hold, which has ended or has been reduced as requested.
    Held,
    /// Nothing, but an earlier attempt at the same call, whose answer was lost, may have ended a hold.
    Unknown,
    /// A place in the queue, which has been removed.
    Queued,
    /// Nothing: the hold was ended by `force_release` before.
    Revoked,
    /// No trace of this lease; another one holds the key.
    Taken,
    /// No trace of this lease. If the key is a lock, nobody holds it.
    Absent,
}

impl Released {
    /// What this means for a release that may have been executed before.
    pub(crate) const fn by_repetition(self) -> Self {
        match self {
            Self::Taken | Self::Absent => Self::Unknown,
            found => found,
        }
    }
}

/// How much an inspection returns.
///
/// ```
/// # use leasehold::{BackendError, MemoryBackend};
/// # use leasehold::backend::{Backend, Detail, Kind, Resource};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BackendError> {
/// let key = Resource::new("lock:cart:7", Kind::Mutex);
/// let now = MemoryBackend::new().inspect(&key, Detail::Counts).await?;
/// assert_eq!(now.in_use, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a store has to tell all of them apart")]
pub enum Detail {
    /// All holders and all waiters.
    Full,
    /// The holders, but not more than [`SUMMARY_HOLDERS`], and how many wait, of whom none is named. If there are
    /// hundreds, a store may count waiters that have ended without giving up their places.
    Summary,
    /// How much is in use, and the limit, at a cost that does not depend on how many holders and waiters there are.
    Counts,
}

/// How many holders an inspection with [`Detail::Summary`] returns at most: those whose leases end first.
pub const SUMMARY_HOLDERS: usize = 16;

/// Who holds a lock or permits, and who waits, at one moment.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock().await?;
/// let now = mutex.inspect().await?;
/// assert_eq!(now.holder().and_then(|holder| holder.token), Some(guard.token()));
/// assert!(now.waiters.is_empty());
/// # Ok(()) }
/// ```
#[doc(alias = "who holds")]
#[doc(alias = "pg_locks")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The holders. A mutex has one at most; a reentrant lock has one per lease, in no guaranteed order; those of a
    /// semaphore are sorted by the time their leases end.
    pub holders: Vec<Holder>,
    /// The waiters whose places have not ended, in order of arrival.
    pub waiters: Vec<Waiter>,
    /// How many they are, if they were counted; they need not be in the list (see [`Detail`]).
    pub waiting: usize,
    /// The limit of a semaphore, while one is in force.
    pub limit: Option<u32>,
    /// How many permits are held; 1 for a lock that is held.
    pub in_use: u32,
    /// What each node of a store on several servers says, in the order of their addresses; empty for a store on one
    /// server.
    pub nodes: Vec<NodeInspection>,
}

/// What one node of a store on several servers says about a resource.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let now = client.mutex("machine:42")?.inspect().await?;
/// for node in &now.nodes {
///     println!("{}: {:?}", node.store, node.view.as_ref().map(|view| view.in_use)); // with Redlock
/// }
/// assert!(now.nodes.is_empty(), "one server has no nodes");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeInspection {
    /// Its address, without password.
    pub store: String,
    /// Its view, or why there is none.
    pub view: Result<Inspection, String>,
}

impl NodeInspection {
    /// The view of the node at the address `store`.
    #[must_use]
    pub fn new(store: impl Into<String>, view: Result<Inspection, String>) -> Self {
        Self { store: store.into(), view }
    }
}

impl Inspection {
    /// An inspection with these values.
    #[must_use]
    pub fn new(holders: Vec<Holder>, waiters: Vec<Waiter>, limit: Option<u32>, in_use: u32) -> Self {
        let waiting = waiters.len();
        Self { holders, waiters, waiting, limit, in_use, nodes: Vec::new() }
    }

    /// The holder of a lock, if there is one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

/// A holder of a lock or of permits.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?.with_note("merge");
/// let guard = mutex.lock().await?;
/// let holder = mutex.inspect().await?.holders.remove(0);
/// assert_eq!(holder.note.as_deref(), Some("merge"));
/// assert_eq!(holder.short_id(), Some(guard.lease_id())); // what logs print
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The lease id, or the value that a client of another library has stored.
    pub id: String,
    /// The fencing token of the grant; `None` for a client of another library. If the lease was passed on within its
    /// client, the token of the current guard is greater by up to 15.
    pub token: Option<FencingToken>,
    /// How long the hold lasts unless it is renewed; `None` if it has no expiry.
    pub remaining: Option<Duration>,
    /// How many permits are held; 1 for a lock.
    pub permits: u32,
    /// The owner for which a reentrant lock is held.
    pub owner: Option<String>,
    /// What its client is called; `None` if the store does not record labels, or the holder has none.
    pub label: Option<String>,
    /// The note that was given with the acquisition.
    pub note: Option<String>,
    /// For how long it has been held, if the store knows.
    pub held_for: Option<Duration>,
}

impl Holder {
    /// A holder with this id, token and remaining time, of one permit and no owner.
    #[must_use]
    pub fn new(id: impl Into<String>, token: Option<FencingToken>, remaining: Option<Duration>) -> Self {
        Self {
            id: id.into(),
            token,
            remaining,
            permits: 1,
            owner: None,
            label: None,
            note: None,
            held_for: None,
        }
    }
}

impl Holder {
    /// Enough of the id to tell it from others, as [`Guard::lease_id`](crate::Guard::lease_id) returns it. `None` for
    /// the value of another library, which is a secret.
    #[must_use]
    pub fn short_id(&self) -> Option<String> {
        LeaseId::parse(&self.id).map(|id| id.short())
    }
}

impl fmt::Debug for Holder {
    /// Prints the id as [`LeaseId`] does, and hides the value of another library, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = LeaseId::parse(&self.id);
        f.debug_struct("Holder")
            .field("id", &id.as_ref().map_or(&"another library's" as &dyn fmt::Debug, |id| id))
            .field("token", &self.token)
            .field("remaining", &self.remaining)
            .field("permits", &self.permits)
            .field("owner", &self.owner)
            .field("label", &self.label)
            .field("note", &self.note)
            .field("held_for", &self.held_for)
            .finish()
    }
}

/// A waiter whose place has not ended.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let mutex = client.mutex("machine:42")?;
/// for waiter in mutex.inspect().await?.waiters {
///     println!("{} waits", waiter.label.as_deref().unwrap_or("somebody"));
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The waiting acquisition.
    pub id: LeaseId,
    /// How long its place lasts unless the request is repeated.
    pub remaining: Duration,
    /// How many permits it waits for; 1 for a lock.
    pub permits: u32,
    /// What its client is called; `None` if the store does not record labels, or the waiter has none.
    pub label: Option<String>,
    /// The note that was given with the request.
    pub note: Option<String>,
}

impl Waiter {
    /// A waiter with this id for one permit, whose place lasts for `remaining`.
    #[must_use]
    pub const fn new(id: LeaseId, remaining: Duration) -> Self {
        Self { id, remaining, permits: 1, label: None, note: None }
    }
}

/// A store's address and what it supports.
///
/// ```
/// use std::time::Duration;
/// use leasehold::backend::{Capabilities, Wakes};
///
/// // A store that cannot push.
/// let mut capabilities = Capabilities::new("mystore://db.example");
/// capabilities.wakes = Wakes::Polled(Duration::from_millis(50));
/// capabilities.pushes_losses = false;
/// assert_eq!(capabilities.kinds.len(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's address as shown in errors: a URL without its password.
    pub store: String,
    /// The kinds of resources that it supports. Others are refused before anything is sent.
    pub kinds: Vec<Kind>,
    /// How a waiting client learns that its lease is granted.
    pub wakes: Wakes,
    /// Whether requests are served in order of arrival. If not, that order is only an aim.
    pub ordered: bool,
    /// Why other kinds are not supported, for the error.
    pub unsupported: Option<String>,
    /// Shorter TTLs are refused before anything is sent.
    pub min_ttl: Duration,
    /// TTLs are rounded up to a multiple of this.
    pub ttl_granularity: Duration,
    /// Whether tokens keep increasing after the store has lost its data.
    pub tokens_survive_data_loss: bool,
    /// Whether the work per hand-over is independent of the number of waiters.
    pub constant_work: bool,
    /// Whether held leases are renewed from this crate's own thread, so that code that blocks its thread does not lose
    /// its lease, and whether releases may be sent from it. Turn this off for a store that must be used from the
    /// caller's runtime, or that uses its clock.
    pub own_thread: bool,
    /// Whether `inspect` reports the labels and notes of requests, and for how long something has been held.
    pub labels: bool,
    /// Whether [`list`](super::Backend::list) is supported.
    pub lists: bool,
    /// Whether another client can renew and release a lease, and it outlives the client that has requested it:
    /// [`Guard::into_ticket`](crate::Guard::into_ticket).
    pub resumable: bool,
    /// Whether the holders are told at once when their holds are ended by [`force_release`](super::Backend::force_release),
    /// and not only by their next renewals. Turn this off for a store without events.
    pub pushes_losses: bool,
}

/// How a waiting client learns that its lease is granted.
///
/// ```
/// use leasehold::MemoryBackend;
/// use leasehold::backend::{Backend, Wakes};
///
/// assert_eq!(MemoryBackend::new().capabilities().wakes, Wakes::Pushed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wakes {
    /// The store sends an event.
    Pushed,
    /// The store sends an event that makes the client repeat its request.
    Prompted,
    /// The client repeats its request at this interval.
    Polled(Duration),
}

impl Capabilities {
    /// A store at the address `store` that supports everything: all kinds, pushed events, order of arrival, constant
    /// work per hand-over, tokens that survive a loss of data, and calls from the crate's own thread; with TTLs of 100
    /// ms or more in whole milliseconds. It records no labels and lists nothing, unless it is a
    /// [`LedgerStore`](super::LedgerStore).
    #[must_use]
    pub fn new(store: impl Into<String>) -> Self {
        Self {
            store: store.into(),
            kinds: Kind::ALL.to_vec(),
            wakes: Wakes::Pushed,
            ordered: true,
            unsupported: None,
            min_ttl: MIN_TTL,
            ttl_granularity: Duration::from_millis(1),
            tokens_survive_data_loss: true,
            constant_work: true,
            own_thread: true,
            labels: false,
            lists: false,
            resumable: true,
            pushes_losses: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    #[test]
    fn debug_output_does_not_contain_the_whole_id() {
        let id = LeaseId::next(Uuid::new_v4());
        let tail = &id.client().to_string()[9..];
        assert!(!format!("{id:?}").contains(tail));
        let holder = Holder::new(id.to_string(), None, None);
        assert!(!format!("{holder:?}").contains(tail));
        let foreign = Holder::new("secret", None, None);
        assert!(!format!("{foreign:?}").contains("secret"));
    }
}

/// Something that is held or awaited: see [`Backend::list`](super::Backend::list).
///
/// ```
/// use leasehold::Holder;
/// use leasehold::backend::{Kind, Listed, Resource};
///
/// let holder = Holder::new("another library's", None, None);
/// let listed = Listed::new(Resource::new("lock:cart:7", Kind::Mutex), vec![holder], 3);
/// assert_eq!(listed.waiters, 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// What it is. A store that does not tell the two kinds of locks apart reports [`Kind::Mutex`] for both.
    pub resource: Resource,
    /// The holders, with as much as the store knows without further requests.
    pub holders: Vec<Holder>,
    /// How many wait for it.
    pub waiters: usize,
}

impl Listed {
    /// Of these parts.
    #[must_use]
    pub const fn new(resource: Resource, holders: Vec<Holder>, waiters: usize) -> Self {
        Self { resource, holders, waiters }
    }
}
