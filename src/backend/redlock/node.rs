//! A node: a store of its own, connected as soon as it can be reached.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::{Answer, Backend, BackendError, LeaseRef, RedisBuilder, Request, Resource};
use crate::error::Error;
use crate::fence::FencingToken;
use crate::runtime::spawn_on;

/// The pause after the first failed attempt to connect, and after many.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// After how many calls without an answer a node is left alone, and for how long, in milliseconds.
const SUSPECT_AFTER: u32 = 3;
const PROBE: u64 = 100;

/// What is said about a node before its first attempt to connect is over.
const NOT_YET: &str = "not connected yet";

/// What a node must do beyond the contract of a store: nodes must agree on tokens.
pub(in crate::backend) trait Node: Backend {
    /// As [`request`](Backend::request), for a token that is not less than `proposed`. A node may ignore a proposal
    /// that is far ahead of its own tokens.
    fn request_from<'a>(
        &'a self,
        request: &'a Request,
        proposed: FencingToken,
    ) -> BoxFuture<'a, Result<Answer, BackendError>>;

    /// Gives a lease that is held this token; every later grant of that key has a greater one, by at least as many as a
    /// grant reserves. If the lock belongs to an owner, the token is that of all of the owner's holds, and a greater
    /// one stays. `false` if the lease is not held. Idempotent.
    fn settle<'a>(
        &'a self,
        lease: &'a LeaseRef,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>>;
}

/// Whether a node is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The first attempt is under way.
    Connecting,
    /// An attempt has failed, and others follow.
    Failed,
    /// It is, or was once: from then on it reconnects by itself.
    Connected,
}

/// The place of a node, which may not be connected yet.
pub(super) struct NodeHandle {
    /// The address, without credentials.
    pub(super) store: String,
    builder: Option<RedisBuilder>,
    node: OnceLock<Arc<dyn Node>>,
    status: watch::Sender<Status>,
    failure: Mutex<Option<Error>>,
    /// The task that connects.
    connecting: Mutex<Option<AbortOnDropHandle<()>>>,
    health: Health,
    /// Since when this exists.
    pub(super) since: std::time::Instant,
}

/// Whether a node answers. One that does not is left alone for a while: what would be sent to a server that hangs would
/// only pile up.
#[derive(Debug, Default)]
struct Health {
    /// How many calls in a row have not been answered.
    failures: AtomicU32,
    /// When it may be asked again, in milliseconds since the first call of this process.
    probe_at: AtomicU64,
}

impl NodeHandle {
    /// For a server that is not connected yet.
    pub(super) fn of(builder: RedisBuilder, store: String) -> Arc<Self> {
        Self::new(store, Some(builder), OnceLock::new(), Status::Connecting)
    }

    /// For a node that connects by itself.
    pub(super) fn with(node: Arc<dyn Node>) -> Arc<Self> {
        let store = node.capabilities().store.clone();
        Self::new(store, None, OnceLock::from(node), Status::Connected)
    }

    fn new(
        store: String,
        builder: Option<RedisBuilder>,
        node: OnceLock<Arc<dyn Node>>,
        status: Status,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            builder,
            node,
            status: watch::Sender::new(status),
            failure: Mutex::default(),
            connecting: Mutex::default(),
            health: Health::default(),
            since: std::time::Instant::now(),
        })
    }

    /// The node, if it is connected, or was once.
    pub(super) fn node(&self) -> Option<&Arc<dyn Node>> {
        self.node.get()
    }

    /// The node, or why it is not connected.
    pub(super) fn connected(&self) -> Result<&Arc<dyn Node>, BackendError> {
        self.node.get().ok_or_else(|| {
            let why =
                self.failure.lock().as_ref().map(|error| format!("not connected: {}", reason_of(error)));
            BackendError::NotSent { source: why.unwrap_or_else(|| NOT_YET.to_owned()).into() }
        })
    }

    /// Why it has never been connected.
    pub(super) fn reason(&self) -> String {
        self.failure.lock().as_ref().map_or_else(|| NOT_YET.to_owned(), reason_of)
    }

    /// Takes note of whether a call was answered.
    pub(super) fn record<T>(&self, answer: &Result<T, BackendError>) {
        let Health { failures, probe_at } = &self.health;
        match answer {
            Err(error) if error.is_transient() => {
                failures.fetch_add(1, Ordering::Relaxed);
                probe_at.store(millis() + PROBE, Ordering::Relaxed);
            }
            _ if failures.load(Ordering::Relaxed) > 0 => failures.store(0, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether the node has not answered several calls in a row.
    pub(super) fn is_suspect(&self) -> bool {
        self.health.failures.load(Ordering::Relaxed) >= SUSPECT_AFTER
    }

    /// Whether a request may be sent to a suspect node, to see whether it answers again: one at a time.
    pub(super) fn may_probe(&self) -> bool {
        let (now, probe_at) = (millis(), &self.health.probe_at);
        let at = probe_at.load(Ordering::Relaxed);
        now >= at && probe_at.compare_exchange(at, now + PROBE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Waits until the node is connected.
    pub(super) async fn ready(&self) -> Arc<dyn Node> {
        let mut status = self.status.subscribe();
        loop {
            if let Some(node) = self.node.get() {
                return Arc::clone(node);
            }
            // The sender is a field of this.
            let _ = status.wait_for(|status| *status == Status::Connected).await;
        }
    }

    /// Waits until the first attempt to connect is over. Returns its error.
    pub(super) async fn tried(&self) -> Result<(), ()> {
        let mut status = self.status.subscribe();
        match status.wait_for(|status| *status != Status::Connecting).await.map(|status| *status) {
            Ok(Status::Connected) => Ok(()),
            _ => Err(()),
        }
    }

    /// The error of the last attempt to connect.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    /// Connects in a task on the crate's own thread, unless the node is connected or that task runs: until it succeeds
    /// or `closed`.
    pub(super) fn connect(self: &Arc<Self>, own: &Handle, closed: CancellationToken) {
        let Some(builder) = self.builder.clone().filter(|_| self.node.get().is_none()) else { return };
        let mut connecting = self.connecting.lock();
        if connecting.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let handle = Arc::clone(self);
        let task = spawn_on(own, async move {
            let connected = handle.connect_with(builder);
            tokio::select! {
                biased;
                () = closed.cancelled() => return,
                () = connected => {}
            }
            // Whoever closes the nodes may not have seen this one.
            if let Some(node) = handle.node().filter(|_| closed.is_cancelled()) {
                node.close().await;
            }
        });
        *connecting = Some(AbortOnDropHandle::new(task));
    }

    async fn connect_with(&self, builder: RedisBuilder) {
        let mut pause = FIRST_PAUSE;
        loop {
            match builder.clone().connect().await {
                Ok(backend) => {
                    // There is one task that connects.
                    let _ = self.node.set(Arc::new(backend));
                    *self.failure.lock() = None;
                    self.status.send_replace(Status::Connected);
                    tracing::debug!(node = %self.store, "connected");
                    return;
                }
                Err(error) => {
                    tracing::debug!(node = %self.store, %error, "not connected");
                    self.failed(error);
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Takes note of why an attempt to connect has failed. Those who watch are told if it is the first one, or for
    /// another reason than the last one.
    fn failed(&self, error: Error) {
        let reason = reason_of(&error);
        let last = self.failure.lock().replace(error).as_ref().map(reason_of);
        self.status.send_if_modified(|status| {
            let was = std::mem::replace(status, Status::Failed);
            was == Status::Connecting || last.is_some_and(|last| last != reason)
        });
    }

    /// Yields whenever the state of the node has changed, until the node is closed, or, if it was never connected, the
    /// client is.
    pub(super) fn changes(self: &Arc<Self>, closed: CancellationToken) -> BoxStream<'static, ()> {
        // Before the look at the node: what happens in between is not missed.
        let attempts = self.status.subscribe();
        if let Some(node) = self.node.get() {
            return node.state_changes().map(drop).boxed();
        }
        let handle = Arc::clone(self);
        let attempts = stream::unfold((attempts, handle), |(mut attempts, handle)| async {
            attempts.changed().await.ok()?;
            let later = handle.node().map(|node| node.state_changes().map(drop).boxed());
            let now_and_later = stream::iter([()]).chain(later.unwrap_or_else(|| stream::empty().boxed()));
            Some((now_and_later, (attempts, handle)))
        });
        attempts.take_until(closed.cancelled_owned()).flatten().boxed()
    }
}

impl NodeHandle {
    /// What the node pushes about a resource, from now on or from when it is connected.
    pub(super) fn changes_of(self: &Arc<Self>, resource: &Resource) -> BoxStream<'static, ()> {
        if let Some(node) = self.node() {
            return node.changes(resource);
        }
        let (handle, resource) = (Arc::clone(self), resource.clone());
        let later = async move {
            let changes = handle.ready().await.changes(&resource);
            stream::iter([()]).chain(changes)
        };
        stream::once(later).flatten().boxed()
    }
}

/// Why an attempt to connect has failed, without what a state says anyway.
fn reason_of(error: &Error) -> String {
    match error {
        Error::StoreUnavailable { source: BackendError::NotSent { source }, .. } => source.to_string(),
        Error::StoreUnavailable { source, .. } | Error::StoreRefused { source, .. } => source.to_string(),
        error => error.to_string(),
    }
}

fn millis() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHandle")
            .field("store", &self.store)
            .field("status", &*self.status.borrow())
            .finish_non_exhaustive()
    }
}
