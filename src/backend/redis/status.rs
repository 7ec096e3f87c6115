//! The state of the store, from that of all connections, and what operators read about it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;

use super::target::Server;
use crate::backend::{NodeState, Status, StoreState};
use crate::sync::Mutex;

/// The state of all connections of a client.
#[derive(Debug)]
pub(super) struct Statuses {
    /// The address of the store, for what is traced.
    store: String,
    state: watch::Sender<StoreState>,
    connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    last: u64,
    /// The server and the status of each, once something is known.
    by_number: BTreeMap<u64, (String, Status)>,
    /// Since when the store has been away, if that has been traced.
    away: Option<Instant>,
    closed: bool,
}

impl Statuses {
    pub(super) fn new(store: String) -> Arc<Self> {
        let state = watch::Sender::new(StoreState::of(Vec::new()));
        Arc::new(Self { store, state, connections: Mutex::default() })
    }

    pub(super) fn state(&self) -> StoreState {
        self.state.borrow().clone()
    }

    /// Every state from now on, and the end after the client has been closed. If several follow each other quickly, only the last.
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
        let mut nodes = BTreeMap::<&str, Status>::new();
        for (node, status) in connections.by_number.values() {
            let worst = nodes.entry(node).or_insert(Status::Connected);
            *worst = worst.or_worse(*status);
        }
        let nodes = nodes.into_iter().map(|(address, status)| NodeState::new(address, status));
        let mut state = StoreState::of(nodes.collect());
        if connections.closed {
            state.status = Status::Closed;
        }
        self.trace(&mut connections, state.status);
        self.state.send_if_modified(|known| {
            let is_new = *known != state;
            *known = state;
            is_new
        });
    }

    /// Traces once when the store goes, and once when it is back.
    fn trace(&self, connections: &mut Connections, status: Status) {
        let store = &self.store;
        match (status, connections.away) {
            (Status::Silent { since } | Status::Disconnected { since }, None) => {
                connections.away = Some(since);
                tracing::warn!(%store, "the store is {}", kind(status));
            }
            (Status::Connected, Some(since)) => {
                connections.away = None;
                tracing::info!(%store, away = ?since.elapsed(), "the store is connected again");
            }
            _ => {}
        }
    }
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
    pub(super) fn set(&self, server: &Server, status: Status) {
        self.statuses.update(|connections| {
            connections.by_number.insert(self.number, (server.to_string(), status));
        });
    }

    /// The same for the server that was named last.
    pub(super) fn change(&self, status: Status) {
        self.statuses.update(|connections| {
            if let Some((_, known)) = connections.by_number.get_mut(&self.number) {
                *known = status;
            }
        });
    }

    /// It has been lost, or cannot be made; `server` is where it leads to if none was named yet. An earlier "since" is kept.
    pub(super) fn disconnected(&self, server: &str) {
        self.statuses.update(|connections| {
            let since = Instant::now();
            let known = connections.by_number.entry(self.number);
            let (_, status) = known.or_insert((server.to_owned(), Status::Disconnected { since }));
            if !matches!(status, Status::Disconnected { .. }) {
                *status = Status::Disconnected { since };
            }
        });
    }

    /// It does not count any more.
    pub(super) fn remove(&self) {
        self.statuses.update(|connections| drop(connections.by_number.remove(&self.number)));
    }
}

impl Drop for ConnectionStatus {
    fn drop(&mut self) {
        self.remove();
    }
}
