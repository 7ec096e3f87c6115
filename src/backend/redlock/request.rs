//! Requests: asked of all nodes, granted by a majority that agrees on a token.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use scopeguard::{ScopeGuard, guard};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::TOKENS_PER_GRANT;
use super::leases::News;
use super::quorum::Quorum;
use super::round::Round;
use super::votes::{Decision, Votes};
use crate::backend::{Answer, BackendError, Event, Grant, LeaseId, LeaseRef, Queued, Request};
use crate::fence::FencingToken;

/// How often a request that does not wait is repeated because the votes were split.
const MAX_SPLITS: u32 = 3;

impl Quorum {
    /// Requests a lock, for the first time or again.
    pub(super) async fn request(self: &Arc<Self>, request: &Request) -> Result<Answer, BackendError> {
        self.open_or_closed()?;
        self.check(request)?;
        let mut splits = 0;
        loop {
            let (answer, split) = self.ask(request).await?;
            if !split || splits == MAX_SPLITS {
                if let Answer::Busy { .. } = answer {
                    self.forget(&request.lease);
                }
                return Ok(answer);
            }
            // Others that ask at the same moment have the other nodes. Nobody holds the lock, perhaps.
            let withdrawn = self.withdraw(request.lease.id, |_| true);
            let _ = timeout(self.time_limit(request.ttl), join_all(withdrawn)).await;
            sleep(self.pause(1, splits)).await;
            splits += 1;
        }
    }

    fn check(&self, request: &Request) -> Result<(), BackendError> {
        let reason = if request.claim.limit().is_some() {
            super::NO_SEMAPHORES.to_owned()
        } else if request.tokens > TOKENS_PER_GRANT {
            format!("{} tokens were requested, but a grant has {TOKENS_PER_GRANT}", request.tokens)
        } else {
            return Ok(());
        };
        Err(BackendError::Unsupported { reason })
    }

    /// Asks all nodes once. Also returns whether a minority has granted a request that does not wait.
    async fn ask(self: &Arc<Self>, request: &Request) -> Result<(Answer, bool), BackendError> {
        let id = request.lease.id;
        let asked = self.leases.begin(request, self.nodes.len(), || for_nodes(request));
        // However this ends: if the lease is released in the meantime, some of the requests may be sent after that.
        let asking = guard(self, |quorum| {
            if !quorum.leases.end(id) {
                quorum.release_everywhere(&asked.lease, asked.ttl);
            }
        });
        let (proposed, sent) = (self.propose(), Instant::now());
        let nodes = self.to_be_asked();
        let is_asked = |n: usize| nodes & (1 << n) != 0;
        let begun = self.leases.with(id, |entry| {
            let asked = self.all().filter(|n| is_asked(*n));
            let counts = asked.fold(0_u32, |counts, n| counts | u32::from(entry.sent(n)) << n);
            (counts, entry.tickets(), entry.token)
        });
        let Some((counts, tickets, held)) = begun else { return Err(given_up()) };
        let mut round =
            self.round(self.all().filter(|n| is_asked(*n)), self.time_limit(request.ttl), |_, node| {
                let request = Arc::clone(&asked);
                async move { node.request_from(&request, proposed).await }
            });
        let was_granted = |held: Option<FencingToken>| held.is_some() || request.claim.owner().is_some();
        let mut votes = Votes::new(self.nodes.len());
        for n in self.all().filter(|n| !is_asked(*n)) {
            votes.cast(n, Err(left_alone()));
        }
        let decision = loop {
            let Some((n, answer)) = round.next().await else { return Err(given_up()) };
            self.nodes[n].note(&answer);
            self.leases.with(id, |entry| entry.answered(n, &answer));
            // While a node is told to end an earlier grant, it may end this one as well.
            let counts = counts & (1 << n) != 0;
            let answer = match answer {
                Ok(Answer::Granted(_)) if !counts => Err(withdrawing()),
                answer => answer,
            };
            votes.cast(n, answer);
            match votes.decision() {
                // An earlier grant keeps its token. Some nodes may not have executed the earlier request, and grant this one anew.
                Some(Decision::Granted)
                    if was_granted(held) && !votes.has_token(held) && !round.is_over() => {}
                Some(decision) => break decision,
                None => {}
            }
        };
        self.note_round_trip(sent.elapsed());
        match decision {
            Decision::Granted => {
                let granted = self.grant(request, &asked, &votes, held, sent).await;
                match granted {
                    Ok((grant, token)) if self.leases.with(id, |entry| entry.hold(token)) == Some(true) => {
                        self.finish(round, asked.lease.clone());
                        Ok((Answer::Granted(grant), false))
                    }
                    failed => {
                        self.leases.with(id, |entry| entry.token = None);
                        self.finish(round, asked.lease.clone());
                        self.withdraw(id, |_| true);
                        Err(failed.err().unwrap_or_else(withdrawing))
                    }
                }
            }
            Decision::Queued => {
                let queued = self.leases.with(id, |entry| {
                    entry.token = None;
                    let ticket = entry.ticket(votes.places(), &tickets);
                    (Queued::new(ticket, votes.ask_again_in(), None), entry.next())
                });
                let Some((queued, news)) = queued else { return Err(given_up()) };
                self.finish(round, asked.lease.clone());
                drop(asking);
                self.follow(None, &request.lease, news);
                Ok((Answer::Queued(queued), false))
            }
            Decision::Busy => {
                // Nodes that have not answered yet must not grant it after this.
                self.finish(round, asked.lease.clone());
                let split = votes.grants().next().is_some();
                Ok((Answer::Busy { limit: None }, split))
            }
            Decision::Failed => {
                let error = votes.error(|node| self.store_of(node));
                self.leases.with(id, |entry| entry.token = None);
                self.finish(round, asked.lease.clone());
                // A request that waits keeps its places: it is repeated.
                let waits = request.waits;
                self.withdraw(id, move |granted| granted || !waits);
                Err(error)
            }
        }
    }

    /// The nodes that are asked, as bits: all, but of those that did not answer lately each only now and then, as long as the others are a
    /// majority.
    fn to_be_asked(&self) -> u32 {
        let all = (1 << self.nodes.len()) - 1;
        let suspect = |n: &usize| self.nodes[*n].is_suspect();
        let suspects = self.all().filter(suspect).count();
        if suspects == 0 || self.nodes.len() - suspects < self.majority() {
            return all;
        }
        self.all().filter(|n| !suspect(n) || self.nodes[*n].may_probe()).fold(0, |nodes, n| nodes | 1 << n)
    }

    /// A majority has granted the request: sees to it that a majority has the same token. Returns the grant.
    async fn grant(
        self: &Arc<Self>,
        request: &Request,
        asked: &Arc<Request>,
        votes: &Votes,
        held: Option<FencingToken>,
        sent: Instant,
    ) -> Result<(Grant, FencingToken), BackendError> {
        let token = votes.token(held).ok_or_else(given_up)?;
        let agreeing = votes.grants().filter(|(_, grant)| grant.token == token).count();
        if agreeing < self.majority() {
            if votes.grants().all(|(_, grant)| grant.remaining.is_none()) {
                self.note_disagreement(token);
            }
            self.settle(asked, votes, token, agreeing).await?;
        }
        self.note_token(token);
        let remaining = votes.remaining(spare(request.ttl));
        if sent.elapsed() >= remaining.unwrap_or(request.ttl) {
            let source = "it was granted too late".into();
            return Err(BackendError::Unanswered { source });
        }
        let grant = Grant::new(token, None);
        Ok((remaining.map_or(grant, |left| grant.lasting(left.min(request.ttl))), token))
    }

    /// Gives the lease this token on the nodes that have granted it under another one, until a majority has it.
    async fn settle(
        self: &Arc<Self>,
        asked: &Arc<Request>,
        votes: &Votes,
        token: FencingToken,
        agreeing: usize,
    ) -> Result<(), BackendError> {
        let others = votes.grants().filter(|(_, grant)| grant.token != token).map(|(n, _)| n);
        let mut round = self.round(others, self.time_limit(asked.ttl), |_, node| {
            let asked = Arc::clone(asked);
            async move { node.settle(&asked.lease, token).await }
        });
        let (mut settled, mut failures) = (agreeing, Vec::new());
        while settled < self.majority() {
            match round.next().await {
                Some((_, Ok(true))) => settled += 1,
                Some((n, Ok(false))) => failures.push((n, gone())),
                Some((n, Err(error))) => failures.push((n, error)),
                None => return Err(self.no_quorum(failures)),
            }
        }
        if !round.is_over() {
            self.spawn(async move { while round.next().await.is_some() {} });
        }
        Ok(())
    }

    /// Waits in the background for the nodes that have not answered a request when it was decided.
    fn finish(self: &Arc<Self>, mut round: Round<Answer>, lease: LeaseRef) {
        // Those that have arrived in the meantime need no task.
        while let Some(Some((n, answer))) = round.next().now_or_never() {
            self.late_answer(n, &lease, &answer);
        }
        if round.is_over() {
            return;
        }
        let quorum = Arc::clone(self);
        self.spawn(async move {
            while let Some((n, answer)) = round.next().await {
                quorum.late_answer(n, &lease, &answer);
            }
        });
    }

    /// A node has answered a request after it was decided.
    fn late_answer(self: &Arc<Self>, n: usize, lease: &LeaseRef, answer: &Result<Answer, BackendError>) {
        self.nodes[n].note(answer);
        let news = self.leases.with(lease.id, |entry| {
            entry.answered(n, answer);
            match answer {
                Ok(Answer::Granted(grant)) => entry.after_grant(grant.token),
                _ => entry.next(),
            }
        });
        // If it is not known any more, its release was sent to this node after the request.
        self.follow(Some(n), lease, news.unwrap_or(News::Nothing));
    }

    /// Does what follows from news of a node.
    pub(super) fn follow(self: &Arc<Self>, node: Option<usize>, lease: &LeaseRef, news: News) {
        match (news, node) {
            (News::Nothing, _) | (News::Settle(_) | News::Orphan, None) => {}
            (News::Ask, _) => self.tell(Event::AskAgain(lease.id)),
            (News::Split, _) => self.resolve(lease.clone()),
            (News::Settle(token), Some(n)) => {
                let lease = lease.clone();
                let mut round = self.round([n].into_iter(), self.node_timeout, move |_, node| {
                    let lease = lease.clone();
                    async move { node.settle(&lease, token).await }
                });
                self.spawn(async move { while round.next().await.is_some() {} });
            }
            (News::Orphan, Some(n)) => self.release_later(n, lease.clone(), super::GIVE_UP_AFTER),
        }
    }

    /// A request that does not wait was refused: nothing of it may be left on any node.
    fn forget(self: &Arc<Self>, lease: &LeaseRef) {
        let Some(entry) = self.leases.remove(lease.id) else { return };
        for (n, _) in entry.nodes.iter().enumerate().filter(|(_, node)| node.reached) {
            self.release_later(n, lease.clone(), entry.request.ttl);
        }
    }

    fn release_everywhere(self: &Arc<Self>, lease: &LeaseRef, ttl: Duration) {
        for n in self.all() {
            self.release_later(n, lease.clone(), ttl);
        }
    }
}

// What a minority has granted

impl Quorum {
    /// Has the nodes end what they have granted for a lease, or may have, as `which` says for those that have granted it and those
    /// that have not, in the background. Until a node has confirmed that, its grants do not count.
    fn withdraw(self: &Arc<Self>, id: LeaseId, which: impl Fn(bool) -> bool) -> Vec<JoinHandle<()>> {
        let withdrawn = self.leases.with(id, |entry| {
            let nodes = entry.withdraw(|_, node| node.reached && which(node.granted));
            (nodes, Arc::clone(&entry.request))
        });
        let Some((nodes, request)) = withdrawn else { return Vec::new() };
        self.end_grants(nodes, &request, false)
    }

    #[cfg(test)]
    pub(super) fn withdraw_for_test(self: &Arc<Self>, request: &Request, nodes: &[usize]) {
        let withdrawn = self.leases.with(request.lease.id, |entry| {
            (entry.withdraw(|n, _| nodes.contains(&n)), Arc::clone(&entry.request))
        });
        let (nodes, request) = withdrawn.unwrap();
        drop(self.end_grants(nodes, &request, false));
    }

    /// Has each of these nodes end what it has granted, by itself: one that hangs holds up no other.
    fn end_grants(
        self: &Arc<Self>,
        nodes: impl IntoIterator<Item = usize>,
        request: &Arc<Request>,
        waits: bool,
    ) -> Vec<JoinHandle<()>> {
        let end = |n| {
            let (quorum, request) = (Arc::clone(self), Arc::clone(request));
            self.tasks.spawn(async move { quorum.end_grant(n, &request, waits).await })
        };
        nodes.into_iter().map(end).collect()
    }

    /// Ends what a node has granted, until it confirms that. If the request waits, it goes to the end of the queue.
    async fn end_grant(self: &Arc<Self>, n: usize, request: &Request, waits: bool) {
        let end = Instant::now() + request.ttl;
        let mut pause = Duration::from_millis(5);
        loop {
            let released = match self.nodes[n].connected() {
                Ok(node) => node.release(&request.lease).await.map(drop),
                Err(error) => Err(error),
            };
            match released {
                Ok(()) => break,
                // It has ended by itself.
                Err(_) if Instant::now() >= end || self.closing.is_closed() => break,
                Err(_) => sleep(pause).await,
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        if self.leases.with(request.lease.id, |entry| entry.withdrawn(n)).is_none() || !waits {
            return;
        }
        let proposed = self.propose();
        let Ok(node) = self.nodes[n].connected() else { return };
        let answer = node.request_from(request, proposed).await;
        let news = self.leases.with(request.lease.id, |entry| {
            entry.answered(n, &answer);
            match &answer {
                Ok(Answer::Granted(grant)) => entry.after_grant(grant.token),
                _ => News::Nothing,
            }
        });
        match news {
            Some(news) => self.follow(Some(n), &request.lease, news),
            // It was released in the meantime, perhaps before this request.
            None => self.release_later(n, request.lease.clone(), request.ttl),
        }
    }

    /// Resolves a split of the votes: if a minority has granted a lease that waits, and no majority does so within a short random
    /// time, gives that up, for the next in the queues of those nodes, and waits behind them. Otherwise clients of which none
    /// has a majority would wait for each other.
    pub(super) fn resolve(self: &Arc<Self>, lease: LeaseRef) {
        let (quorum, id) = (Arc::clone(self), lease.id);
        self.spawn(async move {
            // If the runtime ends, a task on the next one takes over.
            let resolving = guard(Arc::clone(&quorum), |quorum| {
                quorum.leases.with(id, |entry| entry.resolving = false);
            });
            quorum.resolve_split(&lease).await;
            drop(ScopeGuard::into_inner(resolving));
        });
    }

    async fn resolve_split(self: &Arc<Self>, lease: &LeaseRef) {
        while let Some((granted, splits)) =
            self.leases.with(lease.id, |entry| (entry.granted().max(1), entry.splits))
        {
            let mut pause = pin!(sleep(self.pause(granted, splits)));
            if self.closing.unless(pause.as_mut()).await.is_none() || !self.yield_minority(lease).await {
                return;
            }
        }
    }

    /// Gives up what a minority has granted. Returns whether to look again later.
    async fn yield_minority(self: &Arc<Self>, lease: &LeaseRef) -> bool {
        enum Next {
            Done,
            Ask,
            Later,
            Yield(Vec<usize>, Arc<Request>),
        }
        let majority = self.majority();
        let next = self.leases.with(lease.id, |entry| match entry.granted() {
            0 => {
                entry.resolving = false;
                Next::Done
            }
            _ if entry.token.is_some() => {
                entry.resolving = false;
                Next::Done
            }
            granted if granted >= majority => {
                entry.resolving = false;
                if entry.prompt() { Next::Ask } else { Next::Done }
            }
            _ if !entry.may_yield() => Next::Later,
            _ => {
                entry.splits += 1;
                Next::Yield(entry.withdraw(|_, node| node.granted).to_vec(), Arc::clone(&entry.request))
            }
        });
        match next {
            None | Some(Next::Done) => false,
            Some(Next::Ask) => {
                self.tell(Event::AskAgain(lease.id));
                false
            }
            Some(Next::Later) => true,
            Some(Next::Yield(nodes, request)) => {
                tracing::trace!(
                    key = &*lease.resource.key,
                    nodes = nodes.len(),
                    "granted by a minority, given up"
                );
                let ended = self.end_grants(nodes, &request, true);
                let _ = timeout(self.time_limit(request.ttl), join_all(ended)).await;
                true
            }
        }
    }
}

/// How much longer a lease lasts on the nodes than for the client: the drift of their clocks, 1 % and 2 ms. The client counts the TTL
/// that its user has set, and the nodes keep the lease for so much longer that this is what is left after drift.
pub(super) fn spare(ttl: Duration) -> Duration {
    let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis((millis + 2).div_ceil(99) + 2)
}

/// The request as the nodes get it.
fn for_nodes(request: &Request) -> Request {
    Request { ttl: request.ttl + spare(request.ttl), ..request.clone() }
}

fn given_up() -> BackendError {
    BackendError::Unanswered { source: "the request was given up in the meantime".into() }
}

fn left_alone() -> BackendError {
    BackendError::NotSent { source: "it has not answered lately, and is asked again in a moment".into() }
}

fn withdrawing() -> BackendError {
    BackendError::Unanswered { source: "an earlier grant is still being released".into() }
}

fn gone() -> BackendError {
    BackendError::Unanswered { source: "its grant has ended in the meantime".into() }
}
