//! Requests: sent to all nodes, granted by a majority that agrees on a token.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use scopeguard::{ScopeGuard, guard};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::TOKENS_PER_GRANT;
use super::leases::{Entry, FollowUp, Withdrawals};
use super::quorum::Quorum;
use super::round::Round;
use super::votes::{Decision, Votes};
use crate::backend::{Answer, BackendError, Event, Grant, LeaseId, LeaseRef, Queued, Request};
use crate::fence::FencingToken;

/// How often a request that does not wait is repeated because the votes were split.
const MAX_SPLITS: u32 = 3;

/// A request that was sent to all nodes, and their answers so far.
struct Ballot {
    asked: Arc<Request>,
    sent: Instant,
    round: Round<Answer>,
    votes: Votes,
    /// The nodes whose grants count, as bits: while a node is asked to end an earlier grant, it may end this one as
    /// well.
    counting: u32,
    /// How often each node had been asked to do that when this was sent.
    withdrawals: Withdrawals,
    /// The token, if a majority was known to hold the lease before, and nobody but this lease can have changed it.
    held: Option<FencingToken>,
}

impl Ballot {
    /// `is_current` is false if the node has been asked since to end what it has granted.
    fn cast(&mut self, n: usize, answer: Result<Answer, BackendError>, is_current: bool) {
        let counts = is_current && self.counting & (1 << n) != 0;
        self.votes.cast(
            n,
            match answer {
                Ok(Answer::Granted(_)) if !counts => Err(withdrawing()),
                answer => answer,
            },
        );
    }

    /// The planted mistake: whoever has not answered, or has refused, counts as one that has granted what the others have.
    #[cfg(leasehold_planted)]
    fn counted(&self, answer: Result<Answer, BackendError>) -> Result<Answer, BackendError> {
        let granted = || self.votes.token(self.held).map(|token| Answer::Granted(Grant::new(token, None)));
        let is_planted = crate::planted::is(crate::planted::Mistake::CountsStaleNodes);
        answer.or_else(|error| granted().filter(|_| is_planted).ok_or(error))
    }

    /// Whether other answers may show that a majority had granted the lease before, under a token that is not known
    /// yet: some nodes may not have executed the earlier request, and grant this one anew.
    fn may_be_earlier(&self) -> bool {
        let may_be_known = self.held.is_some() || self.asked.claim.owner().is_some();
        may_be_known && !self.votes.has_token(self.held)
    }
}

impl Quorum {
    /// Requests a lock, for the first time or again.
    pub(super) async fn request(self: &Arc<Self>, request: &Request) -> Result<Answer, BackendError> {
        self.check_open()?;
        self.check(request)?;
        let mut splits = 0;
        loop {
            // Answers of nodes that are ending an earlier grant do not count. Usually they are done in a moment.
            let counting = self.leases.until_majority_counts(request.lease.id);
            let _ = timeout(self.long_time_limit(request.ttl), counting).await;
            let (answer, split) = self.ask(request).await?;
            if !split || splits == MAX_SPLITS {
                if let Answer::Busy { .. } = answer {
                    self.forget(&request.lease);
                }
                return Ok(answer);
            }
            // Clients that request at the same moment have the other nodes. Perhaps none of them holds the lock.
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
        // However this ends: if the lease is released in the meantime, some of the requests may be sent after the
        // release.
        let asking = guard(self, |quorum| {
            if !quorum.leases.end(id) {
                quorum.release_everywhere(&asked.lease, asked.ttl);
            }
        });
        let mut ballot = self.send(&asked, self.time_limit(request.ttl)).ok_or_else(given_up)?;
        let decision = self.collect(&mut ballot).await.ok_or_else(given_up)?;
        self.record_round_trip(ballot.sent.elapsed());
        match decision {
            Decision::Granted => Ok((Answer::Granted(self.granted(ballot, request.ttl).await?), false)),
            Decision::Queued => {
                let (queued, follow_up) = self.queued(ballot).ok_or_else(given_up)?;
                drop(asking);
                self.follow(None, &request.lease, follow_up);
                Ok((Answer::Queued(queued), false))
            }
            Decision::Busy => {
                let split = ballot.votes.grants().next().is_some();
                self.finish(ballot);
                Ok((Answer::Busy { limit: None }, split))
            }
            Decision::Failed => Err(self.failed(ballot)),
        }
    }

    /// Sends a request to all nodes. `None` if its lease was released in the meantime.
    fn send(self: &Arc<Self>, asked: &Arc<Request>, time_limit: Duration) -> Option<Ballot> {
        let (proposed, sent, nodes) = (self.propose(), Instant::now(), self.to_be_asked());
        let is_asked = |n: &usize| nodes & (1 << n) != 0;
        let mut votes = Votes::new(self.nodes.len());
        for n in self.all().filter(|n| !is_asked(n)) {
            votes.cast(n, Err(left_alone()));
        }
        let (counting, withdrawals, held) = self.leases.with(asked.lease.id, |entry| {
            let counting =
                self.all().filter(is_asked).fold(0, |bits, n| bits | u32::from(entry.sent(n)) << n);
            // That of an owner may be greater by now, because of holds from other clients.
            let held = entry.token.filter(|_| asked.claim.owner().is_none());
            (counting, entry.withdrawals(), held)
        })?;
        let round = self.round(self.all().filter(is_asked), time_limit, |_, node| {
            let request = Arc::clone(asked);
            async move { node.request_from(&request, proposed).await }
        });
        Some(Ballot { asked: Arc::clone(asked), sent, round, votes, counting, withdrawals, held })
    }

    /// Waits for answers until they decide.
    async fn collect(&self, ballot: &mut Ballot) -> Option<Decision> {
        loop {
            let (n, answer) = ballot.round.next().await?;
            #[cfg(leasehold_planted)]
            let answer = ballot.counted(answer);
            self.nodes[n].record(&answer);
            let id = ballot.asked.lease.id;
            let is_current = self.leases.with(id, |entry| entry.answered(n, &answer, ballot.withdrawals[n]));
            ballot.cast(n, answer, is_current == Some(true));
            match ballot.votes.decision() {
                Some(Decision::Granted) if ballot.may_be_earlier() && !ballot.round.is_over() => {}
                Some(decision) => return Some(decision),
                None => {}
            }
        }
    }

    async fn granted(self: &Arc<Self>, mut ballot: Ballot, ttl: Duration) -> Result<Grant, BackendError> {
        let id = ballot.asked.lease.id;
        let granted = self.grant(&mut ballot, ttl).await.and_then(|grant| {
            let granted_by = ballot.votes.grants().map(|(n, _)| n);
            let until = grant.remaining.map_or(ballot.sent + ttl, |left| Instant::now() + left);
            let holds =
                self.leases.with(id, |entry| entry.hold(grant.token, until, granted_by, &ballot.withdrawals));
            if holds == Some(true) { Ok(grant) } else { Err(withdrawing()) }
        });
        if granted.is_err() {
            self.leases.with(id, Entry::not_granted);
        }
        self.finish(ballot);
        if granted.is_err() {
            self.withdraw(id, |_| true);
        }
        granted
    }

    /// The place of a request that waits. `None` if its lease was released in the meantime.
    fn queued(self: &Arc<Self>, ballot: Ballot) -> Option<(Queued, FollowUp)> {
        let queued = self.leases.with(ballot.asked.lease.id, |entry| {
            entry.not_granted();
            let ticket = entry.ticket(ballot.votes.places());
            (Queued::new(ticket, ballot.votes.ask_again_in(), None), entry.next())
        });
        self.finish(ballot);
        queued
    }

    fn failed(self: &Arc<Self>, mut ballot: Ballot) -> BackendError {
        let error = ballot.votes.error(|node| self.store_of(node));
        let (id, waits) = (ballot.asked.lease.id, ballot.asked.waits);
        self.leases.with(id, Entry::not_granted);
        self.finish(ballot);
        // A request that waits keeps its places: it is repeated.
        self.withdraw(id, |granted| granted || !waits);
        error
    }

    /// The nodes to ask, as bits: all, except that nodes that did not answer lately are asked only now and then, as
    /// long as the others are a majority.
    fn to_be_asked(&self) -> u32 {
        let all = (1 << self.nodes.len()) - 1;
        #[cfg(leasehold_planted)]
        if crate::planted::is(crate::planted::Mistake::CountsStaleNodes) {
            return all;
        }
        let suspect = |n: &usize| self.nodes[*n].is_suspect();
        let suspects = self.all().filter(suspect).count();
        if suspects == 0 || self.nodes.len() - suspects < self.majority() {
            return all;
        }
        self.all().filter(|n| !suspect(n) || self.nodes[*n].may_probe()).fold(0, |nodes, n| nodes | 1 << n)
    }

    /// A majority has granted the request: makes sure that a majority has the same token. Returns the grant.
    async fn grant(self: &Arc<Self>, ballot: &mut Ballot, ttl: Duration) -> Result<Grant, BackendError> {
        let votes = &ballot.votes;
        let token = votes.token(ballot.held).ok_or_else(given_up)?;
        let agreeing = votes.grants().filter(|(_, grant)| grant.token == token).count();
        if agreeing < self.majority() {
            if votes.grants().all(|(_, grant)| grant.remaining.is_none()) {
                self.record_disagreement(token);
            }
            self.settle(&ballot.asked, votes, token, agreeing).await?;
        }
        self.record_token(token);
        let remaining = votes.remaining(spare(ttl));
        if ballot.sent.elapsed() >= remaining.unwrap_or(ttl) {
            return Err(BackendError::Unanswered { source: "the lock was granted too late".into() });
        }
        let grant = Grant::new(token, None);
        Ok(remaining.map_or(grant, |left| grant.lasting(left.min(ttl))))
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
    fn finish(self: &Arc<Self>, ballot: Ballot) {
        let Ballot { mut round, asked, withdrawals, .. } = ballot;
        // Those that have arrived in the meantime need no task.
        while let Some(Some((n, answer))) = round.next().now_or_never() {
            self.late_answer(n, &asked.lease, &answer, withdrawals[n]);
        }
        if round.is_over() {
            return;
        }
        self.leases.with(asked.lease.id, |entry| entry.awaited |= round.open());
        // If the runtime ends, they will not be answered.
        let late = (Arc::clone(self), round, asked, withdrawals);
        let mut late = guard(late, |(quorum, mut round, asked, withdrawals)| {
            for (n, unanswered) in round.give_up() {
                quorum.late_answer(n, &asked.lease, &unanswered, withdrawals[n]);
            }
        });
        self.spawn(async move {
            let (quorum, round, asked, withdrawals) = &mut *late;
            while let Some((n, answer)) = round.next().await {
                quorum.late_answer(n, &asked.lease, &answer, withdrawals[n]);
            }
        });
    }

    /// A node has answered a request after it was decided, which was sent when the node had been asked that often to end
    /// a grant.
    fn late_answer(
        self: &Arc<Self>,
        n: usize,
        lease: &LeaseRef,
        answer: &Result<Answer, BackendError>,
        withdrawals: u32,
    ) {
        self.nodes[n].record(answer);
        let follow_up = self.leases.with(lease.id, |entry| {
            entry.awaited &= !(1 << n);
            let is_current = entry.answered(n, answer, withdrawals);
            match answer {
                Ok(Answer::Granted(grant)) if is_current => entry.after_grant(grant.token),
                _ => entry.next(),
            }
        });
        let follow_up = follow_up.unwrap_or_else(|| {
            let granted = matches!(answer, Ok(Answer::Granted(_) | Answer::Queued(_)));
            if self.leases.overtaken.answered(lease.id, n, granted) {
                FollowUp::Orphan
            } else {
                FollowUp::Nothing
            }
        });
        self.follow(Some(n), lease, follow_up);
    }

    /// Does what follows from an answer or an event of a node.
    pub(super) fn follow(self: &Arc<Self>, node: Option<usize>, lease: &LeaseRef, follow_up: FollowUp) {
        match (follow_up, node) {
            (FollowUp::Nothing, _) | (FollowUp::Settle(_) | FollowUp::Orphan, None) => {}
            (FollowUp::Ask, _) => self.send_event(Event::AskAgain(lease.id)),
            (FollowUp::Split, _) => self.resolve(lease.clone()),
            (FollowUp::Settle(token), Some(n)) => {
                let lease = lease.clone();
                let mut round = self.round([n].into_iter(), self.node_timeout, move |_, node| {
                    let lease = lease.clone();
                    async move { node.settle(&lease, token).await }
                });
                self.spawn(async move { while round.next().await.is_some() {} });
            }
            (FollowUp::Orphan, Some(n)) => self.release_later(n, lease.clone(), super::GIVE_UP_AFTER),
        }
    }

    /// A request that does not wait was refused: no trace of it may be left on any node.
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
    /// Makes the nodes end what they have granted for a lease, or may have, in the background; `which` selects those
    /// that have granted it and those that have not. Until a node has confirmed that, its grants do not count.
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
            entry.token = None;
            (entry.withdraw(|n, _| nodes.contains(&n)), Arc::clone(&entry.request))
        });
        let (nodes, request) = withdrawn.unwrap();
        drop(self.end_grants(nodes, &request, false));
    }

    /// Makes each of these nodes end what it has granted, separately: one that hangs holds up no other.
    fn end_grants(
        self: &Arc<Self>,
        nodes: impl IntoIterator<Item = usize>,
        request: &Arc<Request>,
        waits: bool,
    ) -> Vec<JoinHandle<()>> {
        let end = |n| {
            let (quorum, request) = (Arc::clone(self), Arc::clone(request));
            self.tasks.spawn(async move { quorum.end_grant(n, &request, waits).await }.boxed())
        };
        nodes.into_iter().map(end).collect()
    }

    /// Ends what a node has granted, until it confirms that. If the request waits, it goes to the end of the queue.
    async fn end_grant(self: &Arc<Self>, n: usize, request: &Request, waits: bool) {
        self.release_until(n, &request.lease, Instant::now() + request.ttl, |_| true).await;
        let again = self.leases.withdrawn(request.lease.id, n).filter(|_| waits);
        let (Some((request, withdrawals)), Ok(node)) = (again, self.nodes[n].connected()) else { return };
        let answer = node.request_from(&request, self.propose()).await;
        let follow_up = self.leases.with(request.lease.id, |entry| {
            let is_current = entry.answered(n, &answer, withdrawals);
            match &answer {
                Ok(Answer::Granted(grant)) if is_current => entry.after_grant(grant.token),
                _ => FollowUp::Nothing,
            }
        });
        match follow_up {
            Some(follow_up) => self.follow(Some(n), &request.lease, follow_up),
            // It was released in the meantime, perhaps before this request.
            None => self.release_later(n, request.lease.clone(), request.ttl),
        }
    }

    /// Resolves a split of the votes: if a minority has granted a lease that waits, and no majority does so within a
    /// short random time, gives that up, for the next in the queues of those nodes, and waits behind them. Otherwise
    /// clients of which none has a majority would wait for each other.
    pub(super) fn resolve(self: &Arc<Self>, lease: LeaseRef) {
        let (quorum, id) = (Arc::clone(self), lease.id);
        self.spawn(async move {
            // If the runtime ends, the next event of a node has another task do it.
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
            granted if granted == 0 || granted >= majority || entry.token.is_some() => {
                entry.resolving = false;
                if granted > 0 && entry.prompt() { Next::Ask } else { Next::Done }
            }
            _ if !entry.may_yield() => Next::Later,
            _ => {
                entry.splits += 1;
                // If this was not enough, the orders of the queues differ too much: a client that queues again on all
                // nodes at once is at the same place in all of them.
                let everywhere = entry.splits > 1;
                let nodes = entry.withdraw(|_, node| node.granted || (everywhere && node.reached));
                Next::Yield(nodes.to_vec(), Arc::clone(&entry.request))
            }
        });
        match next {
            None | Some(Next::Done) => false,
            Some(Next::Ask) => {
                self.send_event(Event::AskAgain(lease.id));
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

/// How much longer a lease lasts on the nodes than for the client: the drift of their clocks, 1% and 2 ms. The client
/// counts the TTL that its user has set, and the nodes keep the lease just long enough that this TTL is left after
/// drift.
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
    BackendError::NotSent {
        source: "the node has not answered recently; it will be tried again shortly".into(),
    }
}

fn withdrawing() -> BackendError {
    BackendError::Unanswered { source: "an earlier grant is still being released".into() }
}

fn gone() -> BackendError {
    BackendError::Unanswered { source: "the grant has ended in the meantime".into() }
}
