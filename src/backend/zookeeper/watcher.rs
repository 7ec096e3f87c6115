//! Watching the nodes of this client's leases.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::sleep;

use super::Shared;
use super::failure::Code;
use super::names;
use super::op::{Op, Reply};
use super::session::Signal;
use super::view::{Known, View, reads};
use crate::backend::{Event, LeaseId};
use crate::runtime::spawn_on;

/// How long after its grant a hold is watched. Most holds end before that and need no watch.
const WATCH_AFTER: Duration = Duration::from_millis(20);
/// How many nodes are read in one pipeline.
const TOGETHER: usize = 256;

impl Shared {
    /// A key is as this view says: what is not watched yet will be.
    pub(super) fn note(
        self: &Arc<Self>,
        key: &Arc<str>,
        path: &str,
        view: &View,
        knows: impl Fn(LeaseId) -> bool,
    ) {
        let (waiting, are_holds) = self.places.note(key, path, view, knows);
        if !waiting.is_empty() {
            let shared = Arc::clone(self);
            spawn_on(&self.runtime, async move { shared.watch(&waiting).await });
        }
        if are_holds && !self.is_settling.swap(true, std::sync::atomic::Ordering::AcqRel) {
            let shared = Arc::clone(self);
            spawn_on(&self.runtime, async move {
                sleep(WATCH_AFTER).await;
                shared.is_settling.store(false, std::sync::atomic::Ordering::Release);
                shared.watch(&shared.places.to_watch(false)).await;
            });
        }
    }

    pub(super) fn send(&self, events: impl Iterator<Item = Event>) {
        self.places.send(events);
    }

    /// Handles signals until the session has ended.
    pub(super) async fn handle_signals(
        self: Arc<Self>,
        mut signals: UnboundedReceiver<Signal>,
        of_elections: UnboundedSender<Signal>,
    ) {
        while let Some(signal) = signals.recv().await {
            if !self.observed.is_empty() {
                // An error means that the session is about to end.
                let _ = of_elections.send(signal.clone());
            }
            let shared = Arc::clone(&self);
            match signal {
                // What happened in between is found in the nodes.
                Signal::Connected => {
                    spawn_on(&self.runtime, async move { shared.watch(&shared.places.to_watch(true)).await });
                }
                Signal::Changed(path) => {
                    if let Some(key) = self.places.key_of(&path) {
                        spawn_on(&self.runtime, async move { shared.hear(&key, path).await });
                    }
                }
                Signal::Deleted(path) => self.places.gone(&path),
            }
        }
    }

    /// Reads the nodes at these paths, and watches them.
    async fn watch(self: &Arc<Self>, paths: &[String]) {
        for some in paths.chunks(TOGETHER) {
            let ops = some.iter().map(|path| Op::Get { path: path.clone(), watch: true }).collect();
            // If the connection is lost, all of it is done again on the next one.
            let Ok(replies) = self.send_all(ops).await else { return };
            for (path, reply) in some.iter().zip(replies.replies) {
                self.found(path, reply);
            }
        }
    }

    /// Reads a node that was written, and what its owner will need if it is granted: the key.
    async fn hear(self: &Arc<Self>, key: &Arc<str>, path: String) {
        let record = names::record(&self.settings.root, key);
        let [first, second] = reads(&record);
        let own = Op::Get { path: path.clone(), watch: true };
        // If the connection is lost, it is read on the next one.
        let Ok(replies) = self.send_all(vec![own, first, second]).await else { return };
        let mut replies = replies.replies.into_iter();
        let Some(reply) = replies.next() else { return };
        let view = View::read(key, &record, &mut replies);
        if let Ok(view) = view
            && view.is_current
        {
            // A client that has just handed the lock over will soon wait for it again.
            let view = View { child_version: None, ..view };
            self.schedule.cache_read(key, Known::new(view));
        }
        self.found(&path, reply);
    }

    fn found(&self, path: &str, reply: Result<Reply, Code>) {
        match reply {
            Ok(Reply::Data(data, stat)) => self.places.found(path, &data, stat),
            Err(Code::NO_NODE) => self.places.gone(path),
            _ => tracing::debug!(store = %self.settings.address, path, "the node of a lease cannot be read"),
        }
    }
}
