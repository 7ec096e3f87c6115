//! The nodes of one client, and code shared by its operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::FutureExt;
use futures::future::{join_all, ready};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::leases::Leases;
use super::node::{Node, NodeHandle};
use super::round::Round;
use super::votes::{majority, no_quorum};
use crate::backend::{BackendError, Capabilities, Event, EventSender, LeaseId, LeaseRef, Released};
use crate::background;
use crate::closing::Closing;
use crate::fence::FencingToken;
use crate::home::Home;

/// How far ahead of this client's time proposed tokens are at first: more than the clocks of nodes and clients usually
/// differ.
const AHEAD: u64 = 10_000;
/// How far ahead they may become. A node accepts 10 s.
const MAX_AHEAD: u64 = 5_000_000;
/// The most time that a node has for a renewal or a release, unless the timeout for nodes is longer.
const MOST: Duration = Duration::from_secs(2);
/// The pauses between releases that were not confirmed.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long nodes may take to confirm that their connections are closed.
const CLOSING: Duration = Duration::from_millis(500);

/// The nodes of one client.
#[derive(Debug)]
pub(super) struct Quorum {
    pub(super) client: Uuid,
    pub(super) home: Arc<Home>,
    pub(super) nodes: Vec<Arc<NodeHandle>>,
    pub(super) node_timeout: Duration,
    pub(super) capabilities: Capabilities,
    pub(super) leases: Leases,
    /// For events that originate in this client.
    pub(super) events: Mutex<EventSender>,
    /// Work that continues after a decision.
    pub(super) tasks: TaskTracker,
    pub(super) closing: Closing,
    /// The newest token of which this client knows.
    newest: AtomicU64,
    /// How far ahead of this client's time the next token is proposed, in microseconds.
    ahead: AtomicU64,
    /// How long a majority usually takes to answer, in microseconds.
    round_trip: AtomicU64,
}

impl Quorum {
    pub(super) fn new(
        client: Uuid,
        home: Arc<Home>,
        nodes: Vec<Arc<NodeHandle>>,
        node_timeout: Duration,
        capabilities: Capabilities,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            home,
            nodes,
            node_timeout,
            capabilities,
            leases: Leases::default(),
            events: Mutex::default(),
            tasks: TaskTracker::new(),
            closing: Closing::default(),
            newest: AtomicU64::new(0),
            ahead: AtomicU64::new(AHEAD),
            round_trip: AtomicU64::new(500),
        })
    }

    pub(super) fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    pub(super) fn check_open(&self) -> Result<(), BackendError> {
        if self.closing.is_closed() { Err(BackendError::Closed) } else { Ok(()) }
    }

    /// How long a node may take to answer something about a lease with this TTL.
    pub(super) fn time_limit(&self, ttl: Duration) -> Duration {
        self.node_timeout.min(ttl / 5)
    }

    /// The same for a renewal or a release: nothing waits for a slow node unless a majority is slow, and then giving up
    /// earlier gains nothing.
    pub(super) fn long_time_limit(&self, ttl: Duration) -> Duration {
        (ttl / 5).min(MOST).max(self.node_timeout)
    }

    /// Calls these nodes, all at once.
    pub(super) fn round<T, F>(
        self: &Arc<Self>,
        nodes: impl Iterator<Item = usize>,
        time_limit: Duration,
        call: impl Fn(usize, Arc<dyn Node>) -> F,
    ) -> Round<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let mut round = Round::new(Instant::now(), time_limit);
        for n in nodes {
            let call = match self.nodes[n].connected() {
                Ok(node) => call(n, Arc::clone(node)).map(move |answer| (n, answer)).boxed(),
                Err(error) => ready((n, Err(error))).boxed(),
            };
            round.push(n, call);
        }
        round
    }

    pub(super) fn all(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// The address of a node.
    pub(super) fn store_of(&self, node: usize) -> String {
        self.nodes[node].store.clone()
    }

    pub(super) fn no_quorum(&self, failures: Vec<(usize, BackendError)>) -> BackendError {
        no_quorum(self.nodes.len(), failures, |node| self.store_of(node))
    }

    /// Sends an event to the client.
    pub(super) fn send_event(&self, event: Event) {
        self.events.lock().send(event);
    }

    /// Runs a task on the current runtime, or, if a future is dropped outside of any, on the crate's own thread. Boxed,
    /// as all tasks are (`runtime::spawn`).
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match Handle::try_current().or_else(|_| background::handle()) {
            Ok(runtime) => drop(self.tasks.spawn_on(task.boxed(), &runtime)),
            Err(error) => {
                tracing::warn!(target: "leasehold::store", %error, "no runtime: leases that were given up expire on their own")
            }
        }
    }

    /// Whether this lease is still wanted.
    pub(super) fn knows(&self, id: LeaseId) -> bool {
        self.leases.with(id, |_| ()).is_some()
    }

    /// Releases an unwanted lease on one node, in the background: until the node confirms it, or for `ttl`, after which
    /// the lease has expired on the node. If the client is releasing it, that comes first.
    pub(super) fn release_later(self: &Arc<Self>, node: usize, lease: LeaseRef, ttl: Duration) {
        let (quorum, end) = (Arc::clone(self), Instant::now() + ttl);
        self.spawn(async move {
            quorum.leases.until_released(lease.id).await;
            let is_done = |released| !quorum.leases.overtaken.released(lease.id, node, released);
            quorum.release_until(node, &lease, end, is_done).await;
        });
    }

    /// Releases a lease on one node, again and again until `is_done` accepts the answer, until `end`, by when it has
    /// expired on the node, or until this is closed.
    pub(super) async fn release_until(
        &self,
        node: usize,
        lease: &LeaseRef,
        end: Instant,
        is_done: impl Fn(Released) -> bool,
    ) {
        let mut pause = FIRST_PAUSE;
        while Instant::now() < end && !self.is_shut_down() {
            let released = match self.nodes[node].connected() {
                Ok(node) => node.release(lease).await,
                // It will not be connected any more.
                Err(_) if self.closing.is_closed() => return,
                Err(error) => Err(error),
            };
            match released {
                Ok(released) if !is_done(released) => {}
                Ok(_) | Err(BackendError::Closed) => return,
                Err(error) => tracing::debug!(node = %self.nodes[node].store, %error, "not released yet"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether [`close`](Self::close) no longer waits for releases. A client that is only dropped leaves nothing
    /// behind.
    pub(super) fn is_shut_down(&self) -> bool {
        self.tasks.is_closed() && self.closing.is_closed()
    }

    /// Ends background work and closes all nodes.
    pub(super) async fn close(&self) {
        // Releases that have been sent are confirmed before the connections are closed.
        self.tasks.close();
        if timeout(self.node_timeout * 2, self.tasks.wait()).await.is_err() {
            tracing::debug!(
                "closed before every node had confirmed all releases: these leases expire on their own"
            );
        }
        self.closing.close();
        // For all nodes, which share it: tasks on a runtime that is not driven do not end.
        self.home.move_if_stuck().await;
        // A node that hangs does not confirm the end of its connections, which are closed all the same, a little later.
        let closed = join_all(self.nodes.iter().filter_map(|handle| handle.node()).map(|node| node.close()));
        if timeout(CLOSING, closed).await.is_err() {
            tracing::debug!("a node has not confirmed that its connections are closed");
        }
    }
}

// Tokens

impl Quorum {
    /// The token to propose to all nodes: greater than their own, so that they agree on it without another round trip.
    pub(super) fn propose(&self) -> FencingToken {
        let now = now().saturating_add(self.ahead.load(Ordering::Relaxed));
        let next = self.newest.load(Ordering::Relaxed).saturating_add(u64::from(super::TOKENS_PER_GRANT));
        FencingToken::new(now.max(next))
    }

    /// Takes note of a token that nodes have issued.
    pub(super) fn record_token(&self, token: FencingToken) {
        self.newest.fetch_max(token.get(), Ordering::Relaxed);
    }

    /// The nodes did not agree on a proposed token: the clock of one of them is further ahead.
    pub(super) fn record_disagreement(&self, token: FencingToken) {
        let ahead = token.get().saturating_sub(now()).saturating_add(1000);
        if ahead <= MAX_AHEAD {
            self.ahead.fetch_max(ahead, Ordering::Relaxed);
        }
    }
}

/// The time of day in microseconds.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

// Pauses

impl Quorum {
    /// Takes note of how long a majority took to answer.
    pub(super) fn record_round_trip(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let usual = self.round_trip.load(Ordering::Relaxed);
        self.round_trip.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
    }

    /// A random pause for clients that block each other: four usual round trips on average, and longer each time it is
    /// needed.
    pub(super) fn pause(&self, weight: usize, times: u32) -> Duration {
        let usual = Duration::from_micros(self.round_trip.load(Ordering::Relaxed));
        let base = (usual * 4).clamp(Duration::from_millis(1), Duration::from_millis(50));
        let random = f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX);
        let longest = Duration::from_millis(500);
        (base * u32::try_from(weight).unwrap_or(u32::MAX) * (1 << times.min(2)))
            .min(longest)
            .mul_f64(0.5 + random)
    }
}
