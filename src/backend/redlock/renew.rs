//! Renewals: by a majority of those nodes that still hold the lease. Afterwards nodes that have nothing under the key
//! get the lease again, for instance after a restart without persistence, or because they could not be reached when it
//! was granted.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::stream::{self, BoxStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::leases::is_final;
use super::quorum::Quorum;
use super::request::spare;
use super::votes::Renewals;
use crate::backend::{Answer, Answered, BackendError, LeaseRef, Renew};

impl Quorum {
    /// Renews leases on all nodes.
    pub(super) fn renew(self: &Arc<Self>, renewals: &[Renew]) -> BoxStream<'static, Answered> {
        if renewals.is_empty() {
            return stream::empty().boxed();
        }
        if self.closing.is_closed() {
            return stream::iter((0..renewals.len()).map(|k| (k, Err(BackendError::Closed)))).boxed();
        }
        let longer = |renew: &Renew| Renew { ttl: renew.ttl + spare(renew.ttl), ..renew.clone() };
        let for_nodes: Vec<_> = renewals.iter().map(longer).collect();
        let shortest = renewals.iter().map(|renew| renew.ttl).min().unwrap_or_default();
        let (sender, answers) = unbounded();
        // A separate task: it continues after the decision.
        let time_limit = self.long_time_limit(shortest);
        self.spawn(Arc::clone(self).renew_on_all(for_nodes, time_limit, sender));
        answers.boxed()
    }

    async fn renew_on_all(
        self: Arc<Self>,
        renewals: Vec<Renew>,
        time_limit: Duration,
        sender: UnboundedSender<Answered>,
    ) {
        let nodes = self.nodes.len();
        let mut votes: Vec<_> = renewals.iter().map(|_| Renewals::new(nodes)).collect();
        let cast = |votes: &mut Vec<Renewals>, n: usize, (k, answer): Answered| {
            votes[k].cast(n, answer);
            if let Some(decision) = votes[k].decide(|node| self.store_of(node)) {
                // The receiver is gone if the renewal was given up.
                let _ = sender.unbounded_send((k, decision));
            }
        };
        let answers = self.all().filter_map(|n| match self.nodes[n].connected() {
            Ok(node) => Some(node.renew(&renewals).map(move |answered| (n, answered)).boxed()),
            Err(error) => {
                for k in 0..renewals.len() {
                    cast(&mut votes, n, (k, Err(error.clone())));
                }
                None
            }
        });
        let mut answers = stream::select_all(answers.collect::<Vec<_>>());
        let ends = Instant::now() + time_limit;
        let mut late = pin!(sleep_until(ends));
        loop {
            tokio::select! {
                biased;
                answer = answers.next() => match answer {
                    Some((n, answered)) => cast(&mut votes, n, answered),
                    None => break,
                },
                () = &mut late => break,
            }
        }
        drop(answers);
        for n in self.all() {
            for k in 0..renewals.len() {
                if !votes[k].has_answered(n) {
                    let source = format!("no answer within {time_limit:?}").into();
                    cast(&mut votes, n, (k, Err(BackendError::Unanswered { source })));
                }
            }
        }
        for (votes, renew) in votes.iter().zip(&renewals).filter(|(votes, _)| votes.is_renewed()) {
            for n in votes.without() {
                let (quorum, lease) = (Arc::clone(&self), renew.lease.clone());
                self.spawn(async move { quorum.restore(n, &lease, time_limit).await });
            }
        }
    }

    /// Gives a node the lease that a majority holds, if nothing else is stored there. This does not count towards the
    /// majority until the next renewal: another client may have held the lock in the meantime.
    async fn restore(self: &Arc<Self>, n: usize, lease: &LeaseRef, time_limit: Duration) {
        let known = self.leases.with(lease.id, |entry| {
            let node = &mut entry.nodes[n];
            let token = entry.token.filter(|_| !node.is_withdrawing())?;
            node.reached = true;
            let mut request = (*entry.request).clone();
            request.waits = false;
            Some((request, token))
        });
        let (Some(Some((request, token))), Ok(node)) = (known, self.nodes[n].connected()) else { return };
        // A node that has forgotten the holds of an owner may have been the one that knew of a later hold, under a
        // greater token.
        let proposed = if request.claim.owner().is_some() { token.max(self.propose()) } else { token };
        let taken_in = async {
            match node.request_from(&request, proposed).await? {
                Answer::Granted(grant) if !is_final(&request, grant.token, token) => {
                    node.settle(lease, token).await
                }
                Answer::Granted(_) => Ok(true),
                _ => Ok(false),
            }
        };
        let taken_in = timeout(time_limit, taken_in).await;
        tracing::debug!(node = %self.nodes[n].store, key = &*lease.resource.key, ?taken_in, "restored the lease on a node");
        if self.knows(lease.id) {
            if let Ok(Ok(held)) = taken_in {
                self.leases.with(lease.id, |entry| entry.nodes[n].granted = held);
            }
        } else {
            // It was released in the meantime, perhaps on another connection.
            self.release_later(n, lease.clone(), request.ttl);
        }
    }
}
