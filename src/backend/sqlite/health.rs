//! Whether the file can currently be used, and what operators read about it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;

use crate::backend::{NodeState, Status, StoreState};

#[derive(Debug)]
pub(super) struct Health {
    address: String,
    state: watch::Sender<StoreState>,
    /// Whether the state is "connected": known without locking anything.
    is_connected: AtomicBool,
}

impl Health {
    /// Of a file that has not been opened yet.
    pub(super) fn new(address: String) -> Self {
        let status = Status::Disconnected { since: Instant::now() };
        let state = StoreState::of(vec![NodeState::new(address.as_str(), status)]);
        Self { address, state: watch::Sender::new(state), is_connected: AtomicBool::new(false) }
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
        changes.chain(stream::pending()).boxed()
    }

    /// Something was stored.
    pub(super) fn succeeded(&self) {
        if self.is_connected.swap(true, Ordering::AcqRel) {
            return;
        }
        // The first time, it has not been unreachable.
        if let Some((since, _)) = self.away() {
            tracing::info!(target: "leasehold::store", store = %self.address, down_for = ?since.elapsed(), "the store is connected again");
        }
        self.set(NodeState::new(self.address.as_str(), Status::Connected));
    }

    /// Nothing could be stored. An earlier "since" is kept.
    pub(super) fn failed(&self, reason: String) {
        let away = self.away();
        self.is_connected.store(false, Ordering::Release);
        if away.is_none() {
            tracing::warn!(target: "leasehold::store", store = %self.address, reason, "the store is disconnected");
        }
        let since = away.map_or_else(Instant::now, |(since, _)| since);
        self.set(NodeState::new(self.address.as_str(), Status::Disconnected { since }).because(Some(reason)));
    }

    pub(super) fn close(&self) {
        self.set(NodeState::new(self.address.as_str(), Status::Closed));
    }

    /// Since when it has been unreachable, and why, if known.
    fn away(&self) -> Option<(Instant, String)> {
        let state = self.state.borrow();
        let node = state.nodes.first()?;
        match node.status {
            Status::Disconnected { since } => Some((since, node.reason.clone()?)),
            _ => None,
        }
    }

    fn set(&self, node: NodeState) {
        let state = StoreState::of(vec![node]);
        self.state.send_if_modified(|known| {
            let is_new = *known != state;
            *known = state;
            is_new
        });
    }
}
