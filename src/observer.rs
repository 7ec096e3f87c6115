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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Kind, Resource, StoreState};
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
    /// [`Client::state_changes`](crate::Client::state_changes), only the last of several quick changes is reported, and
    /// the last state is closed, if the client was shut down.
    #[non_exhaustive]
    StoreState {
        /// The store's address, without password.
        store: &'a str,
        /// The new state.
        state: &'a StoreState,
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
    added: Notify,
}

struct Link {
    observer: Arc<dyn Observer>,
    next: OnceLock<Box<Self>>,
}

impl Observers {
    pub(crate) fn new(store: &str) -> Self {
        Self { store: store.to_owned(), first: OnceLock::new(), added: Notify::new() }
    }

    /// Adds an observer. Returns whether it is the first one.
    pub(crate) fn add(&self, observer: Arc<dyn Observer>) -> bool {
        let mut link = Box::new(Link { observer, next: OnceLock::new() });
        let (mut place, mut is_first) = (&self.first, true);
        while let Err(rejected) = place.set(link) {
            link = rejected;
            is_first = false;
            if let Some(taken) = place.get() {
                place = &taken.next;
            }
        }
        self.added.notify_waiters();
        is_first
    }

    pub(crate) fn is_any(&self) -> bool {
        self.first.get().is_some()
    }

    /// Waits for the first one.
    pub(crate) async fn any(&self) {
        loop {
            let added = self.added.notified();
            if self.is_any() {
                return;
            }
            added.await;
        }
    }

    pub(crate) fn subject<'a>(&'a self, resource: &'a Resource) -> Subject<'a> {
        Subject { store: &self.store, resource }
    }

    pub(crate) fn tell_state(&self, state: &StoreState) {
        self.tell(&Event::StoreState { store: &self.store, state });
    }

    /// Tells all of them. Nothing may be locked meanwhile: they may use the client.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        let links = successors(self.first.get(), |link| link.next.get());
        for link in links {
            self.tell_one(&*link.observer, event);
        }
    }

    /// The same for one of them, or for one that is about to be added.
    pub(crate) fn tell_one(&self, observer: &dyn Observer, event: &Event<'_>) {
        // What an observer leaves half done is its own; the engine has nothing in progress here.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.observe(event))) {
            let (store, message) = (self.store(), panic_message(&*panic));
            tracing::error!(target: "leasehold::observer", store, panic = message, "an observer has panicked");
        }
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers").field("is_any", &self.is_any()).finish_non_exhaustive()
    }
}
