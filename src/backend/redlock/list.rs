//! Lists: what a majority of the nodes has.
//!
//! Each node is listed as a whole, one beside the other, and then the lists are merged: nodes find their keys in
//! different orders. A list of a hundred thousand locks takes some hundred bytes for each of them and each node.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use futures::future::join_all;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};

use super::inspect::held_by_majority;
use super::quorum::Quorum;
use crate::backend::{BackendError, Holder, Kind, Listed, Resource};
use crate::hash::HashMap;

/// A lock as the nodes have it that have anything of it.
type Views = Vec<Listed>;

impl Quorum {
    /// What a majority holds, or has places for.
    pub(super) fn list<'a>(
        self: &'a Arc<Self>,
        prefix: &'a str,
    ) -> BoxStream<'a, Result<Listed, BackendError>> {
        let merged = self.list_all(prefix).map(|merged| match merged {
            Ok(listed) => stream::iter(listed.into_iter().map(Ok)).boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        });
        merged.into_stream().flatten().boxed()
    }

    async fn list_all(&self, prefix: &str) -> Result<Vec<Listed>, BackendError> {
        self.check_open()?;
        let nodes = self.nodes.iter().map(|handle| async move {
            let listed: Vec<_> = handle.connected()?.list(prefix).try_collect().await?;
            Ok(listed)
        });
        let (mut by_key, mut failures) = (HashMap::<Arc<str>, Views>::default(), Vec::new());
        for (n, listed) in join_all(nodes).await.into_iter().enumerate() {
            match listed {
                Ok(listed) => listed.into_iter().for_each(|listed| {
                    match by_key.entry(Arc::clone(&listed.resource.key)) {
                        Entry::Occupied(mut views) => views.get_mut().push(listed),
                        Entry::Vacant(entry) => drop(entry.insert(vec![listed])),
                    }
                }),
                Err(error) => failures.push((n, error)),
            }
        }
        if self.nodes.len() - failures.len() < self.majority() {
            return Err(self.no_quorum(failures));
        }
        let merged = by_key.into_iter().filter_map(|(key, views)| merge(&key, &views, self.majority()));
        // Semaphores of single servers are not those of a quorum.
        Ok(merged.filter(|listed| !listed.resource.kind.is_semaphore()).collect())
    }
}

/// What a majority says about a lock: who holds it, and how many wait.
fn merge(key: &str, views: &[Listed], majority: usize) -> Option<Listed> {
    if views.len() < majority {
        return None;
    }
    let (holders, _) = held_by_majority(views.iter().map(|view| &*view.holders), majority);
    // One that a minority has granted the lock still waits for it.
    let is_waiting = |holder: &&Holder| !holders.iter().any(|held| held.id == holder.id);
    let granted = |view: &Listed| view.holders.iter().filter(is_waiting).count();
    let mut waiters: Vec<_> = views.iter().map(|view| view.waiters + granted(view)).collect();
    waiters.sort_unstable_by_key(|waiters| std::cmp::Reverse(*waiters));
    let waiters = waiters[majority - 1];
    if holders.is_empty() && waiters == 0 {
        return None;
    }
    let kind = views.iter().map(|view| view.resource.kind).max().unwrap_or(Kind::Mutex);
    Some(Listed::new(Resource::new(key, kind), holders, waiters))
}
