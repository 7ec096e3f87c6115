//! Releases: confirmed by a majority, and by the other nodes in the background.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::quorum::Quorum;
use super::round::Round;
use super::votes::Releases;
use crate::backend::{BackendError, LeaseRef, Released, Resource};

impl Quorum {
    /// Ends a lease on all nodes.
    pub(super) async fn release(self: &Arc<Self>, lease: &LeaseRef) -> Result<Released, BackendError> {
        self.check_open()?;
        // From before others see that it is no longer known.
        let _releasing = self.leases.releasing(lease.id);
        let entry = self.leases.remove(lease.id);
        let mut found = Releases::default();
        let mut asked = 0_u32;
        for n in self.all() {
            // A node that no request has reached has nothing to release.
            if entry.as_ref().is_none_or(|entry| entry.nodes[n].reached) {
                asked |= 1 << n;
            } else {
                found.cast(Some(Released::Absent));
            }
        }
        let shared = Arc::new(lease.clone());
        let nodes = self.all().filter(|n| asked & (1 << n) != 0);
        let ttl = entry.as_ref().map_or(super::GIVE_UP_AFTER, |entry| entry.request.ttl);
        let mut round = self.round(nodes, self.long_time_limit(ttl), |_, node| {
            let lease = Arc::clone(&shared);
            async move { node.release(&lease).await }
        });
        let mut failures = Vec::new();
        let released = loop {
            if let Some(released) = found.found(self.nodes.len()) {
                break released;
            }
            let Some((n, answer)) = round.next().await else { break Err(()) };
            self.nodes[n].record(&answer);
            self.look_for_overtaken(n, lease, &answer, ttl);
            match answer {
                Ok(released) => found.cast(Some(released)),
                Err(error) => {
                    found.cast(None);
                    failures.push((n, error));
                }
            }
        };
        match released {
            Ok(released) => {
                for (n, _) in failures {
                    self.release_later(n, lease.clone(), ttl);
                }
                self.finish_release(round, shared, Instant::now() + ttl);
                Ok(released)
            }
            // The client repeats the release until it is confirmed.
            Err(()) => Err(self.no_quorum(failures)),
        }
    }

    /// If the node has granted the lease after it had nothing to release, it releases it again.
    fn look_for_overtaken(
        self: &Arc<Self>,
        n: usize,
        lease: &LeaseRef,
        released: &Result<Released, BackendError>,
        ttl: Duration,
    ) {
        if let Ok(released) = released
            && self.leases.overtaken.released(lease.id, n, *released)
        {
            self.release_later(n, lease.clone(), ttl);
        }
    }

    /// Waits in the background for the nodes that have not confirmed a release when it was decided.
    fn finish_release(self: &Arc<Self>, mut round: Round<Released>, lease: Arc<LeaseRef>, end: Instant) {
        let look_at = move |quorum: &Arc<Self>, n: usize, released: Result<Released, BackendError>| {
            quorum.nodes[n].record(&released);
            let left = end.saturating_duration_since(Instant::now());
            quorum.look_for_overtaken(n, &lease, &released, left);
            if released.is_err() {
                quorum.release_later(n, (*lease).clone(), left);
            }
        };
        // Those that have arrived in the meantime need no task.
        while let Some(Some((n, released))) = round.next().now_or_never() {
            look_at(self, n, released);
        }
        if round.is_over() {
            return;
        }
        let quorum = Arc::clone(self);
        self.spawn(async move {
            while let Some((n, released)) = round.next().await {
                look_at(&quorum, n, released);
            }
        });
    }

    /// Ends all holds of a lock on all nodes.
    pub(super) async fn force_release(self: &Arc<Self>, resource: &Resource) -> Result<bool, BackendError> {
        self.check_open()?;
        if resource.kind.is_semaphore() {
            return Err(BackendError::many_holders());
        }
        let resource = Arc::new(resource.clone());
        let mut round = self.round(self.all(), self.node_timeout, |_, node| {
            let resource = Arc::clone(&resource);
            async move { node.force_release(&resource).await }
        });
        let (mut answered, mut held, mut failures) = (0, false, Vec::new());
        while let Some((n, released)) = round.next().await {
            match released {
                Ok(released) => (answered, held) = (answered + 1, held | released),
                Err(error) => failures.push((n, error)),
            }
        }
        if answered < self.majority() { Err(self.no_quorum(failures)) } else { Ok(held) }
    }
}
