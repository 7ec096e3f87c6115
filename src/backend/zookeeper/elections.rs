//! The records of the elections that this client observes. A watch reports one change, so it is set again after each.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::mpsc::UnboundedReceiver;

use super::Shared;
use super::names;
use super::op::Op;
use super::session::Signal;
use crate::backend::observed::Due;

/// How many records are watched in one pipeline.
const TOGETHER: usize = 128;

impl Shared {
    /// Watches what is observed, until there are no signals any more.
    pub(super) async fn watch_elections(self: Arc<Self>, mut signals: UnboundedReceiver<Signal>) {
        let mut watched = BTreeSet::new();
        loop {
            tokio::select! {
                signal = signals.recv() => match signal {
                    // The watches of an earlier connection do not count any more.
                    Some(Signal::Connected) => self.watch_records(&watched.iter().cloned().collect::<Vec<_>>()).await,
                    Some(Signal::Changed(path) | Signal::Deleted(path)) => {
                        let is_there = |key: &&Arc<str>| self.record_of(key) == path;
                        let key: Vec<_> = watched.iter().filter(is_there).cloned().collect();
                        self.watch_records(&key).await;
                    }
                    None => return,
                },
                () = self.observed.altered() => {
                    let Due { added, removed } = self.observed.due(&watched);
                    watched.retain(|key| !removed.contains(key));
                    watched.extend(added.iter().cloned());
                    self.forget_records(&removed).await;
                    self.watch_records(&added).await;
                }
            }
        }
    }

    /// Watches records and their children, and tells those who observe them: what has changed before was not seen.
    async fn watch_records(&self, keys: &[Arc<str>]) {
        for some in keys.chunks(TOGETHER) {
            let paths = some.iter().map(|key| self.record_of(key));
            let ops = paths
                .flat_map(|path| [Op::Exists { path: path.clone() }, Op::Children { path, watch: true }]);
            // If the connection is lost, all of it is done again on the next one.
            if let Err(failure) = self.send_all(ops.collect()).await {
                tracing::debug!(store = %self.settings.address, %failure, "elections are not watched");
                return;
            }
            some.iter().for_each(|key| self.observed.tell(key));
        }
    }

    /// Nothing else watches these nodes in this session.
    async fn forget_records(&self, keys: &[Arc<str>]) {
        for some in keys.chunks(TOGETHER) {
            let ops = some.iter().map(|key| Op::RemoveWatches { path: self.record_of(key) });
            // The watches end with their connection.
            if let Err(failure) = self.send_all(ops.collect()).await {
                tracing::debug!(store = %self.settings.address, %failure, "watches of elections are left to their connection");
            }
        }
    }

    fn record_of(&self, key: &str) -> String {
        names::record(&self.settings.root, key)
    }
}
