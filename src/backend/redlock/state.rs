//! Whether the nodes can be reached.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::{join, join_all, ready};
use futures::stream::{self, BoxStream, FuturesUnordered};
use tokio::time::Instant;

use super::node::{Node, NodeHandle};
use super::quorum::Quorum;
use crate::backend::{BackendError, Finding, NodeState, Severity, Status, StoreState};

impl Quorum {
    /// A majority of connected nodes is enough; otherwise the state of the store is that of the best of the missing
    /// nodes.
    pub(super) fn state(&self) -> StoreState {
        let nodes: Vec<_> = self.nodes.iter().map(|handle| handle.state(self.closing.is_closed())).collect();
        let mut statuses: Vec<_> = nodes.iter().map(|node| node.status).collect();
        statuses.sort_by_key(|status| status.rank());
        let status = statuses.get(self.majority() - 1).copied().unwrap_or(Status::Connected);
        StoreState { status, nodes }
    }

    pub(super) fn state_changes(self: &Arc<Self>) -> BoxStream<'static, StoreState> {
        let of_nodes = self.nodes.iter().map(|handle| handle.changes(self.closing.token()));
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

    /// The findings for each node, and which nodes cannot be reached, or are too slow to count. Nodes that hang take no
    /// longer together than one does.
    pub(super) async fn check_all(&self) -> Result<Vec<Finding>, BackendError> {
        let checks = self.nodes.iter().map(|handle| async {
            match handle.connected() {
                Ok(node) => {
                    let (found, slow) = join(node.check(), self.is_slow(&**node)).await;
                    found.map(|found| found.into_iter().chain(slow).collect::<Vec<_>>())
                }
                Err(error) => Err(error),
            }
        });
        let (mut findings, mut failures) = (Vec::new(), Vec::new());
        for (n, (found, handle)) in join_all(checks).await.into_iter().zip(&self.nodes).enumerate() {
            let of_node = |severity, text: &dyn fmt::Display| {
                Finding::new(severity, format!("{}: {text}", handle.store))
            };
            match found {
                Ok(found) => {
                    findings.extend(found.into_iter().map(|finding| of_node(finding.severity, &finding)));
                }
                Err(error) => {
                    findings.push(of_node(Severity::Warning, &error));
                    failures.push((n, error));
                }
            }
        }
        if failures.len() == self.nodes.len() { Err(self.no_quorum(failures)) } else { Ok(findings) }
    }

    /// A finding if the node takes longer to answer than requests wait for it.
    async fn is_slow(&self, node: &dyn Node) -> Option<Finding> {
        let asked = Instant::now();
        node.ping().await.ok()?;
        let (took, limit) = (asked.elapsed(), self.node_timeout);
        let text =
            || format!("it took {took:.0?} to answer: after {limit:?} (`node_timeout`) it counts as failed");
        (took > limit).then(|| Finding::new(Severity::Warning, text()))
    }
}

impl NodeHandle {
    fn state(&self, is_closed: bool) -> NodeState {
        let (status, reason) = match self.node() {
            Some(node) => {
                let StoreState { status, nodes } = node.state();
                (status, nodes.into_iter().find_map(|node| node.reason))
            }
            None if is_closed => (Status::Closed, None),
            None => (Status::Disconnected { since: self.since }, Some(self.reason())),
        };
        let reason = reason.filter(|_| !status.is_connected());
        NodeState { reason, ..NodeState::new(self.store.clone(), status) }
    }
}
