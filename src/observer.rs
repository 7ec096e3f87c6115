//! What a client tells those that watch it: metrics, audit logs, alarms.
//!
//! An [`Observer`] is told of every hold from its request to its end, of renewals, and of the store's state. It is set
//! with [`ClientBuilder::observer`](crate::ClientBuilder::observer) or
//! [`Client::with_observer`](crate::Client::with_observer):
//!
//! ```
//! use std::sync::Arc;
//! use leasehold::Client;
//! use leasehold::observer::Event;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold::Error> {
//! let alarm = |event: &Event<'_>| {
//!     if let Event::Lost { subject, reason, .. } = event {
//!         eprintln!("{} was lost: {reason}", subject.resource.name());
//!     }
//! };
//! let client = Client::builder("memory:").observer(Arc::new(alarm)).connect().await?;
//! # client.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! With the feature `metrics`, `MetricsObserver` feeds the metrics of a service, and `ClientBuilder::metrics` sets it.

use std::fmt;
use std::iter::successors;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::{Kind, Resource, Status, StoreState};
use crate::error::LossReason;
use crate::error_kind::ErrorKind;
use crate::fence::FencingToken;

/// Is told what happens in a client: see [the module](self).
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::observer::Event;
///
/// let client = Client::memory().with_observer(Arc::new(|event: &Event<'_>| {
///     if let Event::Lost { subject, reason, .. } = event {
///         eprintln!("{} of {} is lost: {reason}", subject.name(), subject.store);
///     }
/// }));
/// # drop(client);
/// ```
///
/// It is called by whichever thread notices the event, including the one on which leases are renewed, so it must return
/// soon and never block: send what takes longer to a task of your own. Nothing in the client is locked meanwhile; it
/// may use the client, its guards and its handles. If it panics, the panic is traced as an error, and the client goes
/// on as if it had returned. The client keeps its observers until it is gone, so one that owns a handle of that client
/// keeps it open until it is shut down.
///
/// A client without an observer reads no clock for it and makes no event; events contain only references and small
/// values.
#[doc(alias = "listener")]
#[doc(alias = "hook")]
#[doc(alias = "callback")]
#[doc(alias = "metrics")]
pub trait Observer: Send + Sync + 'static {
    /// Something has happened.
    fn observe(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn observe(&self, event: &Event<'_>) {
        self(event);
    }
}

/// What an event is about.
///
/// ```
/// use leasehold::observer::Event;
///
/// fn waits(event: &Event<'_>) {
///     if let Event::Waiting { subject, .. } = event {
///         println!("{} {} of {} is waited for", subject.kind().as_str(), subject.name(), subject.store);
///     }
/// }
/// # let _ = waits;
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Subject<'a> {
    /// The store's address, without password.
    pub store: &'a str,
    /// The lock or semaphore.
    pub resource: &'a Resource,
}

impl<'a> Subject<'a> {
    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.resource.name()
    }

    /// The kind of lock or semaphore.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.resource.kind
    }
}

/// What has happened.
///
/// A request that is not answered at once is first [`Waiting`](Self::Waiting). Every request then ends once, as
/// [`Acquired`](Self::Acquired) or [`NotAcquired`](Self::NotAcquired), and everything that was acquired ends once, as
/// [`Lost`](Self::Lost) or [`Released`](Self::Released), in this order. So at any time,
///
/// * acquired − lost − released is the number of holds, and
/// * waiting − those that have ended after they waited (`had_to_wait`) is the number of requests that wait.
///
/// An observer that is added to a client that is in use is told of the requests that begin from then on, and of what
/// becomes of those: it hears no end of which it did not hear the beginning.
///
/// An owner that re-enters, and a guard that is split off, share a hold, which ends with its last guard. A semaphore's
/// handle that [follows another limit](crate::OnOtherLimit::Follow) makes several requests, of which all but the last
/// fail.
///
/// ```
/// use leasehold::observer::Event;
///
/// /// What an event adds to the number of holds.
/// fn change(event: &Event<'_>) -> i64 {
///     match event {
///         Event::Acquired { .. } => 1,
///         Event::Lost { .. } | Event::Released { .. } => -1,
///         _ => 0, // events may be added
///     }
/// }
/// # let _ = change;
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A request was not granted at once: it waits for the store's first answer, or for its turn.
    #[non_exhaustive]
    Waiting {
        /// What was requested.
        subject: Subject<'a>,
    },
    /// A request has succeeded.
    #[non_exhaustive]
    Acquired {
        /// What is held.
        subject: Subject<'a>,
        /// The token of the hold.
        token: FencingToken,
        /// How many permits are held; 1 for a lock.
        permits: u32,
        /// How long the request waited; zero if it did not have to.
        waited: Duration,
        /// Whether [`Waiting`](Self::Waiting) came first.
        had_to_wait: bool,
        /// Who has granted it.
        source: Source,
    },
    /// A request has ended otherwise.
    #[non_exhaustive]
    NotAcquired {
        /// What was requested.
        subject: Subject<'a>,
        /// How long the request waited; zero if it did not have to.
        waited: Duration,
        /// Whether [`Waiting`](Self::Waiting) came first.
        had_to_wait: bool,
        /// How it has ended.
        outcome: RequestOutcome,
    },
    /// A renewal is about to be sent.
    #[non_exhaustive]
    RenewalSent {
        /// What is held.
        subject: Subject<'a>,
        /// How long after its renewal period was over. After a renewal that failed, this includes the time since then.
        late: Duration,
    },
    /// A renewal was answered, or given up.
    #[non_exhaustive]
    RenewalAnswered {
        /// What is held.
        subject: Subject<'a>,
        /// How long the answer took.
        took: Duration,
        /// What it was.
        outcome: RenewalOutcome,
    },
    /// A hold was lost: another client may have the resource by now.
    #[non_exhaustive]
    Lost {
        /// What was held.
        subject: Subject<'a>,
        /// The token of the hold.
        token: FencingToken,
        /// How long it was held until that was noticed.
        held: Duration,
        /// Why it was lost.
        reason: LossReason,
    },
    /// The last guard of a hold has been released or dropped.
    #[non_exhaustive]
    Released {
        /// What was held.
        subject: Subject<'a>,
        /// The token of the hold.
        token: FencingToken,
        /// How long it was held until then. How long the store took to confirm the release is not included.
        held: Duration,
        /// What has become of it.
        outcome: ReleaseOutcome,
    },
    /// The state of the store has changed, or is reported for the first time, right after the observer was set. As with
    /// [`Client::state_changes`](crate::Client::state_changes), only the last of several quick changes is reported. The
    /// last state is closed: the client was shut down, or the last handle to it is gone.
    #[non_exhaustive]
    StoreState {
        /// The store's address, without password.
        store: &'a str,
        /// The new state.
        state: &'a StoreState,
        /// What this client has reported to this observer before; `None` if this is the first time.
        previous: Option<Status>,
    },
}

/// Who has granted a request.
///
/// ```
/// assert_eq!(leasehold::observer::Source::Store.as_str(), "store"); // the value of a label of metrics
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// Another task of the same client has passed it on.
    Client,
}

impl Source {
    /// A stable name, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Client => "client",
        }
    }
}

/// How a request has ended that did not succeed.
///
/// ```
/// assert_eq!(leasehold::observer::RequestOutcome::Busy.as_str(), "busy"); // the value of a label of metrics
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOutcome {
    /// It was not to wait, and would have had to: `try_lock`, `try_acquire`.
    Busy,
    /// Its future was dropped.
    Cancelled,
    /// It has failed with an error of this kind, such as [`TimedOut`](ErrorKind::TimedOut).
    Failed(ErrorKind),
}

impl RequestOutcome {
    /// A stable name, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Cancelled => "cancelled",
            Self::Failed(kind) => kind.as_str(),
        }
    }
}

/// What the answer to a renewal was.
///
/// ```
/// assert_eq!(leasehold::observer::RenewalOutcome::Renewed.as_str(), "renewed"); // the value of a label of metrics
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RenewalOutcome {
    /// The lease was renewed.
    Renewed,
    /// The store no longer has the lease.
    Gone,
    /// It was not answered, or refused. It is sent again until the lease ends.
    Failed,
}

impl RenewalOutcome {
    /// A stable name, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Renewed => "renewed",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

/// What has become of a hold whose last guard is gone.
///
/// ```
/// assert_eq!(leasehold::observer::ReleaseOutcome::Confirmed.as_str(), "confirmed"); // the value of a label of metrics
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReleaseOutcome {
    /// The store has confirmed the release.
    Confirmed,
    /// It was passed on to another task of the same client.
    PassedOn,
    /// It was made a ticket, for another process: [`Guard::into_ticket`](crate::Guard::into_ticket).
    HandedOver,
    /// Nobody waits for the answer, because the guard or its `release` future was dropped: it is released in the
    /// background.
    InBackground,
    /// `release` has failed with an error of this kind. It is repeated in the background for a while.
    Failed(ErrorKind),
}

impl ReleaseOutcome {
    /// A stable name, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::PassedOn => "passed_on",
            Self::HandedOver => "handed_over",
            Self::InBackground => "in_background",
            Self::Failed(kind) => kind.as_str(),
        }
    }
}

/// The observers of a client. They can be added, and are not removed.
pub(crate) struct Observers {
    store: String,
    first: OnceLock<Box<Link>>,
    /// How many there are.
    count: AtomicUsize,
    added: Notify,
    /// The state of the store that is to be reported; `None` before it is watched.
    state: Mutex<Option<StoreState>>,
}

struct Link {
    observer: Arc<dyn Observer>,
    told: Mutex<Told>,
    next: OnceLock<Box<Self>>,
}

/// What an observer knows of the store.
#[derive(Default)]
struct Told {
    state: Option<StoreState>,
    /// Whether it is being told that state. Whoever does so goes on with the next one, so that it hears them in order.
    is_under_way: bool,
}

/// Those of a client's observers that are told of something: so many, who were there when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Audience(NonZeroUsize);

impl Observers {
    pub(crate) fn new(store: &str) -> Self {
        let (first, count, added, state) = Default::default();
        Self { store: store.to_owned(), first, count, added, state }
    }

    /// Adds an observer, and tells it the state of the store, which is this one unless it is watched already. Returns
    /// whether it is the first.
    pub(crate) fn add(&self, observer: Arc<dyn Observer>, state: StoreState) -> bool {
        let mut added = Box::new(Link { observer, told: Mutex::default(), next: OnceLock::new() });
        let (mut place, mut number) = (&self.first, 1);
        while let Err(rejected) = place.set(added) {
            added = rejected;
            if let Some(taken) = place.get() {
                (place, number) = (&taken.next, number + 1);
            }
        }
        self.state.lock().get_or_insert(state);
        if let Some(link) = place.get() {
            self.report(link);
        }
        self.count.fetch_max(number, Ordering::AcqRel);
        self.added.notify_waiters();
        number == 1
    }

    /// Those that are told of what begins now, if there are any.
    pub(crate) fn audience(&self) -> Option<Audience> {
        NonZeroUsize::new(self.count.load(Ordering::Acquire)).map(Audience)
    }

    /// Waits for the first one.
    pub(crate) async fn any(&self) {
        loop {
            let added = self.added.notified();
            if self.audience().is_some() {
                return;
            }
            added.await;
        }
    }

    pub(crate) fn subject<'a>(&'a self, resource: &'a Resource) -> Subject<'a> {
        Subject { store: &self.store, resource }
    }

    /// The state of the store has changed, unless it is closed, which is the last one.
    pub(crate) fn state_is(&self, new: StoreState) {
        let mut state = self.state.lock();
        if state.as_ref().is_none_or(|state| state.status != Status::Closed) {
            *state = Some(new);
        }
        drop(state);
        self.links().for_each(|link| self.report(link));
    }

    /// The client is closed.
    pub(crate) fn closed(&self) {
        let known = self.state.lock().clone();
        if let Some(known) = known {
            self.state_is(StoreState { status: Status::Closed, ..known });
        }
    }

    /// Tells an observer the state of the store, unless it knows.
    fn report(&self, link: &Link) {
        while let Some((state, previous)) = self.begin_to_report(link) {
            self.tell_one(link, &Event::StoreState { store: &self.store, state: &state, previous });
            link.told.lock().is_under_way = false;
        }
    }

    /// What to tell an observer, and what it was told before. `None` if it knows, or is being told.
    fn begin_to_report(&self, link: &Link) -> Option<(StoreState, Option<Status>)> {
        let mut told = link.told.lock();
        let state = self.state.lock().clone().filter(|state| told.state.as_ref() != Some(state))?;
        if told.is_under_way {
            return None;
        }
        told.is_under_way = true;
        let previous = told.state.replace(state.clone());
        Some((state, previous.map(|previous| previous.status)))
    }

    /// Tells some of them. Nothing may be locked meanwhile: they may use the client.
    pub(crate) fn tell(&self, audience: Audience, event: &Event<'_>) {
        self.links().take(audience.0.get()).for_each(|link| self.tell_one(link, event));
    }

    fn tell_one(&self, link: &Link, event: &Event<'_>) {
        // What an observer leaves half done is its own; the engine has nothing in progress here.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| link.observer.observe(event))) {
            let (store, message) = (&self.store, panic_message(&*panic));
            tracing::error!(target: "leasehold::observer", store, panic = message, "an observer has panicked");
        }
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        successors(self.first.get(), |link| link.next.get()).map(|link| &**link)
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("count", &self.count).finish_non_exhaustive()
    }
}
