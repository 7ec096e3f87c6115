//! Whether the nodes can be reached.

use std::sync::Arc;

use futures::future::ready;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};

use super::node::NodeHandle;
use super::quorum::Quorum;
use crate::backend::{BackendError, Finding, NodeState, Severity, Status, StoreState};

impl Quorum {
    /// A majority of connected nodes is enough; otherwise the state of the store is that of the best of the missing
    /// nodes.
    pub(super) fn state(&self) -> StoreState {
        let nodes: Vec<_> = self.nodes.iter().map(|handle| handle.state()).collect();
        let mut statuses: Vec<_> = nodes.iter().map(|node| node.status).collect();
        statuses.sort_by_key(|status| status.rank());
        let status = statuses.get(self.majority() - 1).copied().unwrap_or(Status::Connected);
        StoreState { status, nodes }
    }

    pub(super) fn state_changes(self: &Arc<Self>) -> BoxStream<'static, StoreState> {
        let of_nodes = self.nodes.iter().map(|handle| match handle.node() {
            Some(node) => node.state_changes(),
            None => {
                let handle = Arc::clone(handle);
                async move { handle.ready().await.state_changes() }.flatten_stream().boxed()
            }
        });
        let quorum = Arc::downgrade(self);
        let states = stream::select_all(of_nodes).map(move |_| quorum.upgrade().map(|quorum| quorum.state()));
        states.take_while(|state| ready(state.is_some())).filter_map(ready).boxed()
    }

    /// Returns when a majority has answered.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        let mut answers: FuturesUnordered<_> = self
            .nodes
            .iter()
            .enumerate()
            .map(|(n, handle)| async move {
                let answer = match handle.connected() {
                    Ok(node) => node.ping().await,
                    Err(error) => Err(error),
                };
                (n, answer)
            })
            .collect();
        let (mut answered, mut failures) = (0, Vec::new());
        while let Some((n, answer)) = answers.next().await {
            match answer {
                Ok(()) => answered += 1,
                Err(error) => failures.push((n, error)),
            }
            if answered >= self.majority() {
                return Ok(());
            }
        }
        Err(self.no_quorum(failures))
    }

    /// The findings for each node, and which nodes cannot be reached.
    pub(super) async fn check_all(&self) -> Result<Vec<Finding>, BackendError> {
        let mut findings = Vec::new();
        for handle in &self.nodes {
            let found = match handle.connected() {
                Ok(node) => node.check().await,
                Err(error) => Err(error),
            };
            let node = &handle.store;
            match found {
                Ok(found) => findings.extend(
                    found
                        .into_iter()
                        .map(|finding| Finding::new(finding.severity, format!("{node}: {finding}"))),
                ),
                Err(error) => findings.push(Finding::new(Severity::Warning, format!("{node}: {error}"))),
            }
        }
        Ok(findings)
    }
}

impl NodeHandle {
    fn state(&self) -> NodeState {
        let (status, reason) = match self.node() {
            Some(node) => {
                let StoreState { status, nodes } = node.state();
                (status, nodes.into_iter().find_map(|node| node.reason))
            }
            None => (
                Status::Disconnected { since: self.since },
                self.connected().err().map(|why| why.to_string()),
            ),
        };
        let reason = reason.filter(|_| !status.is_connected());
        NodeState { reason, ..NodeState::new(self.store.clone(), status) }
    }
}
