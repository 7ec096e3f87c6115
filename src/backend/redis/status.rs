//! The state of the store, from that of all connections, and what operators read about it.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::target::Server;
use crate::backend::{NodeState, Status, StoreState};
use crate::hash::HashMap;

/// The state of all connections of a client.
#[derive(Debug)]
pub(super) struct Statuses {
    /// The address of the store, for tracing.
    store: String,
    state: watch::Sender<StoreState>,
    connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    last: u64,
    /// The server of each and its state, once something is known.
    by_number: HashMap<u64, NodeState>,
    /// Since when the store has been unreachable, if that has been logged.
    unreachable_since: Option<Instant>,
    closed: bool,
}

impl Statuses {
    pub(super) fn new(store: String) -> Arc<Self> {
        let state = watch::Sender::new(unknown(Instant::now()));
        Arc::new(Self { store, state, connections: Mutex::default() })
    }

    pub(super) fn state(&self) -> StoreState {
        self.state.borrow().clone()
    }

    /// The states from now on. If several follow each other quickly, only the last is reported.
    pub(super) fn changes(&self) -> BoxStream<'static, StoreState> {
        let changes = stream::unfold(self.state.subscribe(), |mut changes| async {
            changes.changed().await.ok()?;
            let state = changes.borrow_and_update().clone();
            Some((state, changes))
        });
        changes.boxed()
    }

    /// For another connection.
    pub(super) fn connection(self: &Arc<Self>) -> ConnectionStatus {
        let mut connections = self.connections.lock();
        connections.last += 1;
        ConnectionStatus { number: connections.last, statuses: Arc::clone(self) }
    }

    pub(super) fn close(&self) {
        self.update(|connections| connections.closed = true);
    }

    fn update(&self, change: impl FnOnce(&mut Connections)) {
        let mut connections = self.connections.lock();
        change(&mut connections);
        let known = self.state.borrow().status;
        let mut state = connections.state().unwrap_or_else(|| match known {
            // Nothing is connected, as before.
            Status::Disconnected { since } => unknown(since),
            _ => unknown(Instant::now()),
        });
        if connections.closed {
            state.status = Status::Closed;
        }
        if !state.nodes.is_empty() {
            self.trace(&mut connections, &state);
        }
        self.state.send_if_modified(|known| {
            let is_new = *known != state;
            *known = state;
            is_new
        });
    }

    /// Logs once when the store becomes unreachable, and once when it is back.
    fn trace(&self, connections: &mut Connections, state: &StoreState) {
        let store = &self.store;
        match (state.status, connections.unreachable_since) {
            (status @ (Status::Silent { since } | Status::Disconnected { since }), None) => {
                connections.unreachable_since = Some(since);
                let node = state.nodes.iter().find(|node| node.status == status);
                let reason = node.and_then(|node| node.reason.as_deref());
                tracing::warn!(target: "leasehold::store", %store, reason, "the store is {}", kind(status));
            }
            (Status::Connected, Some(since)) => {
                connections.unreachable_since = None;
                tracing::info!(target: "leasehold::store", %store, down_for = ?since.elapsed(), "the store is connected again");
            }
            _ => {}
        }
    }
}

impl Connections {
    /// The state of the servers, each as the worst of its connections. `None` if there are none.
    fn state(&self) -> Option<StoreState> {
        let mut known: Vec<_> = self.by_number.iter().collect();
        known.sort_unstable_by_key(|(number, node)| (&node.address, Reverse(node.status.rank()), *number));
        known.dedup_by_key(|(_, node)| &node.address);
        (!known.is_empty()).then(|| StoreState::of(known.into_iter().map(|(_, node)| node.clone()).collect()))
    }
}

/// The state of a store of which no server is known yet.
const fn unknown(since: Instant) -> StoreState {
    StoreState { status: Status::Disconnected { since }, nodes: Vec::new() }
}

const fn kind(status: Status) -> &'static str {
    match status {
        Status::Connected => "connected",
        Status::Silent { .. } => "silent",
        Status::Disconnected { .. } => "disconnected",
        Status::Closed => "closed",
    }
}

/// The place of one connection. It is not counted before something is known, nor after this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionStatus {
    number: u64,
    statuses: Arc<Statuses>,
}

impl ConnectionStatus {
    pub(super) fn connected(&self, server: &Server) {
        self.statuses.update(|connections| {
            let state = NodeState::new(server.to_string(), Status::Connected);
            connections.by_number.insert(self.number, state);
        });
    }

    /// The same for the server that was named last.
    pub(super) fn change(&self, status: Status) {
        self.statuses.update(|connections| {
            if let Some(known) = connections.by_number.get_mut(&self.number) {
                known.status = status;
                known.reason = matches!(status, Status::Silent { .. })
                    .then(|| "it has not answered within the reply timeout".to_owned());
            }
        });
    }

    /// It has been lost, or cannot be made; `server` is where it leads to if none was named yet. An earlier "since" is
    /// kept.
    pub(super) fn disconnected(&self, server: &str, reason: String) {
        self.statuses.update(|connections| {
            let now = Status::Disconnected { since: Instant::now() };
            let known = connections.by_number.entry(self.number);
            let state = known.or_insert_with(|| NodeState::new(server, now));
            if !matches!(state.status, Status::Disconnected { .. }) {
                state.status = now;
            }
            state.reason = Some(reason);
        });
    }

    /// It no longer counts.
    pub(super) fn remove(&self) {
        self.statuses.update(|connections| drop(connections.by_number.remove(&self.number)));
    }
}

impl Drop for ConnectionStatus {
    fn drop(&mut self) {
        self.remove();
    }
}
