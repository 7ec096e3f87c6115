//! What this client knows about each of its leases on each node. No I/O.
//!
//! Only hints follow from it: a lease is held if a majority says so in answer to a request. The exceptions are
//! withdrawals: while a node is asked to end its part of a grant that no majority has made, its answers about that
//! lease do not count, nor do those to requests that were sent before, whenever they arrive. And once the client has been
//! told that it holds the lease, nothing is withdrawn because another request was not granted. (The engine may have two
//! requests for a lease under way.)

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use scopeguard::guard;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::overtaken::Overtaken;
use super::votes::{USUAL, majority};
use crate::backend::{Answer, BackendError, LeaseId, Queued, Request, Ticket};
use crate::fence::FencingToken;
use crate::hash::{HashMap, HashSet};

/// The leases of a client, by the numbers in their ids, from before they are requested until they are released.
#[derive(Debug, Default)]
pub(super) struct Leases {
    entries: Mutex<HashMap<u64, Entry>>,
    /// Notified whenever a node has ended a grant that was given up.
    withdrawn: Notify,
    /// Those that the client is releasing.
    releasing: Mutex<HashSet<LeaseId>>,
    /// Notified whenever such a release is over.
    released: Notify,
    pub(super) overtaken: Overtaken,
}

/// One lease.
#[derive(Debug)]
pub(super) struct Entry {
    /// The request as the nodes get it.
    pub(super) request: Arc<Request>,
    /// The token, while a majority is known to hold the lease.
    pub(super) token: Option<FencingToken>,
    /// When what was granted under this token ends unless it is renewed. Until then other requests, which were under way
    /// when it was granted, change nothing: the client holds the lease.
    held_until: Instant,
    pub(super) nodes: SmallVec<[NodeEntry; USUAL]>,
    /// The ticket of its places, as reported to the client.
    ticket: Option<Ticket>,
    /// How many requests of the client are under way.
    asking: u32,
    /// When the last of them began.
    asked_at: Instant,
    /// Whether the client has been prompted to ask again since its last request.
    prompted: bool,
    /// The nodes, as bits, whose answers to a request that was decided without them are still awaited.
    pub(super) awaited: u32,
    /// Whether a task resolves a split of the votes.
    pub(super) resolving: bool,
    /// How often it has given up what a minority had granted.
    pub(super) splits: u32,
}

/// One lease on one node.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeEntry {
    /// Whether a request may have reached the node.
    pub(super) reached: bool,
    /// Whether an earlier request than the last one may have reached the node.
    reached_before: bool,
    pub(super) granted: bool,
    /// The ticket of its place.
    ticket: Option<Ticket>,
    /// The ticket of the place that it had when the client was last told about its places.
    reported: Option<Ticket>,
    /// The ticket of the last grant that was pushed.
    notified: Option<Ticket>,
    /// Until when the node may end its grant at any time, because it has been asked to: until it confirms that, or its
    /// lease has expired.
    withdrawing: Option<Instant>,
    /// How often it has been asked to. What it was asked for before that, it has ended, whenever it answers.
    withdrawals: u32,
    /// Whether it has released the lease by force.
    revoked: bool,
}

/// How often each node has been asked to end a grant of a lease.
pub(super) type Withdrawals = SmallVec<[u32; USUAL]>;

/// What follows from an answer or an event of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowUp {
    /// Nothing.
    Nothing,
    /// The lease is no longer known: release what the node has of it.
    Orphan,
    /// The client must ask all nodes again: a majority may have granted the lease.
    Ask,
    /// A minority has granted it, and a task must make sure that this does not last.
    Split,
    /// The lease is held under this token, and the node has another one, which must not stay.
    Settle(FencingToken),
}

impl Leases {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.entries.lock()
    }

    /// A request of the client begins, which ends with [`end`](Self::end). Returns what the nodes are asked.
    pub(super) fn begin(
        &self,
        request: &Request,
        nodes: usize,
        make: impl FnOnce() -> Request,
    ) -> Arc<Request> {
        let id = request.lease.id;
        let mut leases = self.lock();
        let entry = leases.entry(id.sequence()).or_insert_with(|| Entry {
            request: Arc::new(make()),
            token: None,
            held_until: Instant::now(),
            nodes: smallvec::smallvec![NodeEntry::default(); nodes],
            ticket: None,
            asking: 0,
            asked_at: Instant::now(),
            prompted: false,
            awaited: 0,
            resolving: false,
            splits: 0,
        });
        (entry.asking, entry.asked_at) = (entry.asking + 1, Instant::now());
        entry.prompted = false;
        Arc::clone(&entry.request)
    }

    /// A request of the client is over. `false` if the lease was released in the meantime.
    pub(super) fn end(&self, id: LeaseId) -> bool {
        self.with(id, |entry| entry.asking = entry.asking.saturating_sub(1)).is_some()
    }

    /// A node has confirmed that it has ended the grant of a lease that was given up. Returns the request to be sent to
    /// it again, for a place at the end of the queue, if there is any, and how often the node has been asked to.
    pub(super) fn withdrawn(&self, id: LeaseId, node: usize) -> Option<(Request, u32)> {
        let again = self.with(id, |entry| {
            entry.withdrawn(node);
            Some((entry.request_again()?, entry.nodes[node].withdrawals))
        });
        self.withdrawn.notify_waiters();
        again.flatten()
    }

    /// Returns when the answers of a majority count: of nodes that are not about to end a grant of this lease.
    pub(super) async fn until_majority_counts(&self, id: LeaseId) {
        loop {
            let mut withdrawn = pin!(self.withdrawn.notified());
            withdrawn.as_mut().enable();
            if self.with(id, |entry| entry.majority_counts()) != Some(false) {
                return;
            }
            withdrawn.await;
        }
    }

    /// The client releases a lease. Until what this returns is dropped, nothing else should release it: the client
    /// would be told that it was lost.
    pub(super) fn releasing(&self, id: LeaseId) -> impl Drop {
        self.releasing.lock().insert(id);
        guard((), move |()| {
            self.releasing.lock().remove(&id);
            self.released.notify_waiters();
        })
    }

    /// Returns when the client is not releasing this lease.
    pub(super) async fn until_released(&self, id: LeaseId) {
        loop {
            let mut released = pin!(self.released.notified());
            released.as_mut().enable();
            if !self.releasing.lock().contains(&id) {
                return;
            }
            released.await;
        }
    }

    /// Forgets a lease, which will be released.
    pub(super) fn remove(&self, id: LeaseId) -> Option<Entry> {
        let mut leases = self.lock();
        leases.get(&id.sequence()).filter(|entry| entry.request.lease.id == id)?;
        let entry = leases.remove(&id.sequence())?;
        // Before others see that it is no longer known.
        self.overtaken.add(id, entry.awaited);
        Some(entry)
    }

    /// Runs `look` on a lease, if it is known.
    pub(super) fn with<T>(&self, id: LeaseId, look: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut leases = self.lock();
        leases.get_mut(&id.sequence()).filter(|entry| entry.request.lease.id == id).map(look)
    }
}

impl NodeEntry {
    pub(super) fn is_withdrawing(&self) -> bool {
        self.withdrawing.is_some_and(|end| Instant::now() < end)
    }
}

impl Entry {
    /// A request is sent to this node. Returns whether its grant counts.
    pub(super) fn sent(&mut self, node: usize) -> bool {
        let node = &mut self.nodes[node];
        (node.reached_before, node.reached) = (node.reached, true);
        !node.is_withdrawing()
    }

    /// How often each node has been asked to end a grant.
    pub(super) fn withdrawals(&self) -> Withdrawals {
        self.nodes.iter().map(|node| node.withdrawals).collect()
    }

    /// Takes note of the answer of a node to a request, which was sent when it had been asked that often to end a grant.
    /// `false` if it has been asked again since: then it has ended what it has granted.
    pub(super) fn answered(
        &mut self,
        node: usize,
        answer: &Result<Answer, BackendError>,
        withdrawals: u32,
    ) -> bool {
        let node = &mut self.nodes[node];
        if node.withdrawals != withdrawals {
            return false;
        }
        match answer {
            Ok(Answer::Granted(_)) => (node.granted, node.ticket) = (true, None),
            // The grant of that place may have been pushed before this answer arrived.
            Ok(Answer::Queued(queued)) => {
                (node.granted, node.ticket) = (node.notified == Some(queued.ticket), Some(queued.ticket));
            }
            Ok(Answer::Busy { .. }) => (node.granted, node.ticket) = (false, None),
            Err(BackendError::NotSent { .. } | BackendError::RefusedForNow { .. }) => {
                node.reached = node.reached_before
            }
            Err(_) => {}
        }
        true
    }

    /// These nodes have granted it under this token, until then. `false` if so many of those grants are being ended, or
    /// have been, that the others are no majority.
    pub(super) fn hold(
        &mut self,
        token: FencingToken,
        until: Instant,
        granted_by: impl Iterator<Item = usize>,
        withdrawals: &Withdrawals,
    ) -> bool {
        let lasts = |n: &usize| {
            let node = &self.nodes[*n];
            node.withdrawals == withdrawals[*n] && !node.is_withdrawing()
        };
        let holds = granted_by.filter(lasts).count() >= majority(self.nodes.len());
        if holds {
            (self.token, self.held_until) = (Some(token), until);
        }
        holds
    }

    fn is_held(&self) -> bool {
        self.token.is_some() && Instant::now() < self.held_until
    }

    /// A request was not granted.
    pub(super) fn not_granted(&mut self) {
        self.token = self.token.filter(|_| self.is_held());
    }

    /// Takes note of a grant that a node has pushed.
    pub(super) fn notified(&mut self, node: usize, ticket: Ticket) {
        let node = &mut self.nodes[node];
        node.notified = Some(ticket);
        node.granted |= node.ticket.is_none_or(|place| place <= ticket);
    }

    /// What follows now that a node has granted the lease under this token.
    pub(super) fn after_grant(&mut self, token: FencingToken) -> FollowUp {
        match self.token {
            Some(held) if is_final(&self.request, token, held) => FollowUp::Nothing,
            Some(held) => FollowUp::Settle(held),
            None => self.next(),
        }
    }

    /// What follows from the grants that the nodes have made so far.
    pub(super) fn next(&mut self) -> FollowUp {
        let granted = self.granted();
        if granted == 0 || self.token.is_some() || !self.request.waits {
            FollowUp::Nothing
        } else if granted >= majority(self.nodes.len()) {
            if std::mem::replace(&mut self.prompted, true) { FollowUp::Nothing } else { FollowUp::Ask }
        } else if std::mem::replace(&mut self.resolving, true) {
            FollowUp::Nothing
        } else {
            FollowUp::Split
        }
    }

    /// How many nodes have granted it.
    pub(super) fn granted(&self) -> usize {
        self.nodes.iter().filter(|node| node.granted && !node.is_withdrawing()).count()
    }

    /// Prompts the client to ask again, unless it has been prompted already.
    pub(super) fn prompt(&mut self) -> bool {
        self.token.is_none() && !std::mem::replace(&mut self.prompted, true)
    }

    /// Whether what a minority has granted may be given up: no request of the client counts on it.
    pub(super) const fn may_yield(&self) -> bool {
        self.asking == 0 && self.token.is_none()
    }

    /// The nodes whose grants are given up from here on; none if the client holds the lease.
    pub(super) fn withdraw(&mut self, which: impl Fn(usize, &NodeEntry) -> bool) -> SmallVec<[usize; USUAL]> {
        let mut nodes = SmallVec::new();
        if self.is_held() {
            return nodes;
        }
        let end = Instant::now() + self.request.ttl;
        for (n, node) in self.nodes.iter_mut().enumerate() {
            if !node.is_withdrawing() && which(n, node) {
                (node.granted, node.withdrawing) = (false, Some(end));
                node.withdrawals += 1;
                nodes.push(n);
            }
        }
        nodes
    }

    fn majority_counts(&self) -> bool {
        let counting = self.nodes.iter().filter(|node| !node.is_withdrawing()).count();
        counting >= majority(self.nodes.len())
    }

    /// A node has confirmed that it has ended its grant.
    fn withdrawn(&mut self, node: usize) {
        (self.nodes[node].withdrawing, self.nodes[node].granted) = (None, false);
    }

    /// The request for another place instead of the one that was given up: it lasts no longer than that, a TTL after
    /// the last request of the client. `None` if it would have ended.
    fn request_again(&self) -> Option<Request> {
        let ttl = self.request.ttl.checked_sub(self.asked_at.elapsed())?;
        // Nodes count in milliseconds.
        (ttl >= Duration::from_millis(1)).then(|| Request { ttl, ..(*self.request).clone() })
    }

    /// A node has released the lease by force. Returns its token, once, when a majority no longer holds it.
    pub(super) fn revoked(&mut self, node: usize) -> Option<FencingToken> {
        let quorum = majority(self.nodes.len());
        let count = |entry: &Self| entry.nodes.iter().filter(|node| node.revoked).count();
        let before = count(self);
        self.nodes[node].revoked = true;
        let is_over = |revoked: usize| revoked > self.nodes.len() - quorum;
        if is_over(before) || !is_over(count(self)) {
            return None;
        }
        Some(self.token.take().unwrap_or(FencingToken::new(0)))
    }

    /// The ticket reported to the client: it stays the same as long as one of the places does that it was reported for.
    pub(super) fn ticket(&mut self, places: impl Iterator<Item = (usize, Queued)>) -> Ticket {
        let (mut kept, mut newest) = (false, Ticket::new(0));
        for (node, Queued { ticket, .. }) in places {
            kept |= self.nodes[node].reported.replace(ticket) == Some(ticket);
            newest = newest.max(ticket);
        }
        match self.ticket {
            Some(ticket) if kept => ticket,
            _ => *self.ticket.insert(newest),
        }
    }
}

/// Whether a node that has granted a request under `token` keeps that, although the lease is held under `held`. All
/// holds of an owner have one token on a node, so a greater one may be that of a later hold, from another client.
pub(super) fn is_final(request: &Request, token: FencingToken, held: FencingToken) -> bool {
    token == held || (token > held && request.claim.owner().is_some())
}
