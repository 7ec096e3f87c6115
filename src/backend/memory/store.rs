//! What is held, who waits, and what each verb does to that.
//!
//! A lock is a semaphore of one permit, but for its owner, who may come in again without taking another one. Every verb
//! first settles the slot it touches: holds whose time is over end, and what is free goes to the waiters next in line.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backend::{
    AcquireRequest, BackendError, Claim, Detail, Grant, Holder, Inspection, Kind, LeaseId, Limit, Released,
    RenewRequest, Renewal, Resource, Revocation, TOKENS_PER_GRANT, Wait, Waiter, Whose,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// All keys in use, and the newest token of any of them: one that is newer than all is newer than its key's.
#[derive(Debug, Default)]
pub(super) struct Store {
    slots: HashMap<Arc<str>, Slot>,
    tokens: Tokens,
    waiters_visited: u64,
    /// How many slots there may be before those that nobody uses any more are looked for.
    sweep_at: usize,
}

/// One key in use: it is held, or waited for, or has a limit in force.
#[derive(Debug)]
struct Slot {
    kind: Kind,
    holds: HashMap<LeaseId, Hold>,
    /// The same holds by the time they end.
    ends: BTreeSet<(Instant, LeaseId)>,
    in_use: u32,
    queue: VecDeque<Waiting>,
    limit: u32,
    /// When the limit came into force.
    reign: u64,
    /// Until when it stays in force if nobody holds or waits.
    lapses: Instant,
}

#[derive(Debug)]
struct Hold {
    permits: u32,
    token: FencingToken,
    /// When it was granted or last renewed.
    began: Instant,
    ends: Instant,
    owner: Option<Arc<str>>,
    revocation: Revocation,
}

#[derive(Debug)]
struct Waiting {
    lease: LeaseId,
    claim: Claim,
    term: Duration,
    revocation: Revocation,
    granted: oneshot::Sender<Grant>,
}

pub(super) enum Requested {
    Granted(Grant),
    Busy,
    Queued(oneshot::Receiver<Grant>),
}

impl Store {
    /// Forgets all but the newest token.
    pub(super) fn forget(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        *self = Self { tokens, ..Self::default() };
    }

    pub(super) fn request(&mut self, request: &AcquireRequest) -> Result<Requested, BackendError> {
        let now = Instant::now();
        // A request that is sent again keeps its place, and is alive again.
        let place = self.slots.get_mut(&request.resource.key).and_then(|slot| slot.place(request));
        self.settle(&request.resource);
        let token = self.tokens.next();
        let slot = self.slot(&request.resource, now)?;
        // Point 1: it also finds what it was granted.
        if let Some(hold) = slot.holds.get(&request.lease) {
            let grant = Grant::new(hold.token, hold.began);
            if let Claim::Permits(_, limit) = &request.claim {
                limit.follow(slot.limit, slot.reign);
            }
            return Ok(Requested::Granted(grant));
        }
        slot.agree(request, token.get(), now)?;
        // One whose owner is in is let in under the token there is.
        if let Some(token) = slot.hold_of_owner(request).map(|hold| hold.token) {
            slot.withdraw(request.lease);
            let hold = Hold::of(&request.claim, request.term, token, &request.revocation, now);
            slot.admit(request.lease, hold, now);
            return Ok(Requested::Granted(Grant::new(token, now)));
        }
        if slot.has_room_for(request) {
            let hold = Hold::of(&request.claim, request.term, token, &request.revocation, now);
            slot.admit(request.lease, hold, now);
            self.tokens.issued(token);
            return Ok(Requested::Granted(Grant::new(token, now)));
        }
        match place {
            _ if request.wait == Wait::No => {
                self.tidy(&request.resource);
                Ok(Requested::Busy)
            }
            Some(granted) => Ok(Requested::Queued(granted)),
            None => Ok(Requested::Queued(slot.enqueue(request))),
        }
    }

    pub(super) fn renew(&mut self, request: &RenewRequest) -> Renewal {
        self.settle(&request.resource);
        let now = Instant::now();
        let Some(slot) = self.slots.get_mut(&request.resource.key) else {
            return Renewal::Lost(LossReason::Expired);
        };
        if slot.extend(request.lease, request.term, now) {
            Renewal::Renewed { counted_from: now }
        } else if slot.holds.is_empty() || slot.kind.is_semaphore() {
            Renewal::Lost(LossReason::Expired)
        } else {
            Renewal::Lost(LossReason::Taken)
        }
    }

    pub(super) fn release(&mut self, resource: &Resource, whose: Whose) -> Result<Released, BackendError> {
        self.settle(resource);
        let slot = self.slot(resource, Instant::now())?;
        let released = match whose {
            Whose::Anyone if slot.kind.is_semaphore() => return Err(BackendError::many_holders()),
            Whose::Anyone => slot.release_all(),
            Whose::Lease(lease) => slot.give_back(lease, 0),
            Whose::AllBut(lease, keep) => slot.give_back(lease, keep),
        };
        self.settle(resource);
        Ok(released)
    }

    pub(super) fn resize(
        &mut self,
        resource: &Resource,
        permits: u32,
        term: Duration,
        limit: &Limit,
    ) -> Result<(), BackendError> {
        let now = Instant::now();
        self.settle(resource);
        let reign = self.tokens.next().get();
        let slot = self.slot(resource, now)?;
        if !slot.limit_is_in_force(now) {
            slot.reign = reign;
        }
        slot.limit = permits;
        slot.touch(term, now);
        // Whoever waits for more is thrown out of the line, asks again, and is told.
        slot.queue.retain(|waiting| waiting.claim.permits() <= permits);
        limit.follow(permits, slot.reign);
        self.settle(resource);
        Ok(())
    }

    pub(super) fn inspect(
        &mut self,
        resource: &Resource,
        detail: Detail,
    ) -> Result<Inspection, BackendError> {
        self.settle(resource);
        let now = Instant::now();
        let Some(slot) = self.slots.get(&resource.key) else { return Ok(Inspection::default()) };
        slot.check(resource)?;
        let everybody = detail == Detail::Everybody;
        Ok(Inspection {
            holders: if everybody { slot.holders(now) } else { Vec::new() },
            waiters: if everybody { slot.waiters() } else { Vec::new() },
            limit: (slot.kind.is_semaphore() && slot.limit_is_in_force(now)).then_some(slot.limit),
            in_use: slot.in_use,
        })
    }

    /// When a waiting request should look again if nothing is pushed to it: when a hold ends, or its own patience does,
    /// or in a third of its lease, since a hold that it does not know of yet may end sooner.
    pub(super) fn next_change(&self, request: &AcquireRequest) -> Instant {
        let slot = self.slots.get(&request.resource.key);
        let hold_ends = slot.and_then(|slot| slot.ends.first()).map(|(ends, _)| *ends);
        let repeat = Instant::now() + request.term / 3;
        let look = hold_ends.map_or(repeat, |ends| ends.min(repeat));
        request.wait.deadline().map_or(look, |end| look.min(end))
    }

    /// Ends holds whose time is over, and gives what is free to those next in line. Amortised constant: every
    /// hold and every waiter is passed once.
    pub(super) fn settle(&mut self, resource: &Resource) {
        let now = Instant::now();
        let Some(slot) = self.slots.get_mut(&resource.key) else { return };
        slot.expire(now);
        self.waiters_visited += slot.serve(&mut self.tokens, now);
        self.tidy(resource);
    }

    #[cfg(feature = "conformance")]
    pub(super) const fn waiters_visited(&self) -> u64 {
        self.waiters_visited
    }

    fn slot(&mut self, resource: &Resource, now: Instant) -> Result<&mut Slot, BackendError> {
        if self.slots.len() > self.sweep_at {
            self.slots.retain(|_, slot| slot.is_in_use(now));
            self.sweep_at = self.slots.len() * 2 + 64;
        }
        let slot =
            self.slots.entry(Arc::clone(&resource.key)).or_insert_with(|| Slot::new(resource.kind, now));
        if !slot.is_in_use(now) {
            slot.kind = resource.kind;
        }
        slot.check(resource)?;
        Ok(slot)
    }

    /// Forgets a slot that nobody uses.
    fn tidy(&mut self, resource: &Resource) {
        if self.slots.get(&resource.key).is_some_and(|slot| !slot.is_in_use(Instant::now())) {
            self.slots.remove(&resource.key);
        }
    }
}

impl Slot {
    fn new(kind: Kind, now: Instant) -> Self {
        Self {
            kind,
            holds: HashMap::new(),
            ends: BTreeSet::new(),
            in_use: 0,
            queue: VecDeque::new(),
            limit: 1,
            reign: 0,
            lapses: now,
        }
    }

    /// A lock and a semaphore cannot share a key.
    fn check(&self, resource: &Resource) -> Result<(), BackendError> {
        if self.kind.is_semaphore() == resource.kind.is_semaphore() {
            return Ok(());
        }
        Err(BackendError::WrongType { source: format!("it is in use as {}", self.kind.as_str()).into() })
    }

    /// Point 13: the first to come states the limit, the others must agree or have met it before.
    fn agree(&mut self, request: &AcquireRequest, reign: u64, now: Instant) -> Result<(), BackendError> {
        let Claim::Permits(permits, limit) = &request.claim else { return Ok(()) };
        let stated = limit.stated();
        let in_force = self.limit_is_in_force(now);
        let waits = || self.queue.iter().any(|waiting| waiting.lease == request.lease);
        if in_force && stated.reign != self.reign && stated.permits != self.limit && !waits() {
            return Err(BackendError::LimitDiffers { stated: stated.permits, in_force: self.limit });
        }
        let effective = if in_force { self.limit } else { stated.permits };
        if *permits > effective {
            return Err(BackendError::AboveLimit { permits: *permits, limit: effective });
        }
        if !in_force {
            (self.limit, self.reign) = (effective, reign);
            self.touch(request.term, now);
        }
        limit.follow(self.limit, self.reign);
        Ok(())
    }

    fn limit_is_in_force(&self, now: Instant) -> bool {
        self.reign != 0 && (!self.holds.is_empty() || !self.queue.is_empty() || now < self.lapses)
    }

    fn is_in_use(&self, now: Instant) -> bool {
        !self.holds.is_empty() || !self.queue.is_empty() || self.limit_is_in_force(now)
    }

    fn free(&self) -> u32 {
        self.limit.saturating_sub(self.in_use)
    }

    /// A hold that lets a request in because it has the same owner.
    fn hold_of_owner(&self, request: &AcquireRequest) -> Option<&Hold> {
        let owner = request.claim.owner()?;
        self.holds.values().find(|hold| hold.owner.as_ref() == Some(owner))
    }

    /// Whether a request may be served now. Who stands in line goes first; for a counting semaphore nobody in line
    /// fits, or it would have been served.
    fn has_room_for(&self, request: &AcquireRequest) -> bool {
        let overtakes = request.resource.kind != Kind::Counting
            && self.queue.front().is_some_and(|first| first.lease != request.lease);
        request.claim.permits() <= self.free() && !overtakes
    }

    fn admit(&mut self, lease: LeaseId, hold: Hold, now: Instant) {
        self.touch(hold.ends - now, now);
        // An owner that comes in again takes no more than it has.
        if hold.owner.is_none() || self.holds.is_empty() {
            self.in_use += hold.permits;
        }
        self.ends.insert((hold.ends, lease));
        self.holds.insert(lease, hold);
    }

    /// Lets a hold begin anew. `false` if there is none.
    fn extend(&mut self, lease: LeaseId, term: Duration, now: Instant) -> bool {
        let Some(hold) = self.holds.get_mut(&lease) else { return false };
        self.ends.remove(&(hold.ends, lease));
        (hold.began, hold.ends) = (now, now + term);
        self.ends.insert((hold.ends, lease));
        self.touch(term, now);
        true
    }

    /// The limit stays in force for a lease after this one.
    fn touch(&mut self, term: Duration, now: Instant) {
        self.lapses = self.lapses.max(now + term * 2);
    }

    /// Ends a hold. `false` if there is none.
    fn forget(&mut self, lease: LeaseId) -> bool {
        let Some(hold) = self.holds.remove(&lease) else { return false };
        self.ends.remove(&(hold.ends, lease));
        if hold.owner.is_none() || self.holds.is_empty() {
            self.in_use -= hold.permits;
        }
        true
    }

    /// Ends all of `lease` but `keep` permits, or gives up its place in line.
    fn give_back(&mut self, lease: LeaseId, keep: u32) -> Released {
        if let Some(hold) = self.holds.get_mut(&lease).filter(|_| keep > 0) {
            let surplus = hold.permits.saturating_sub(keep);
            hold.permits -= surplus;
            self.in_use -= surplus;
            Released::Held
        } else if self.forget(lease) {
            Released::Held
        } else if keep == 0 && self.withdraw(lease) {
            Released::Queued
        } else if self.holds.is_empty() || self.kind.is_semaphore() {
            Released::Absent
        } else {
            Released::Taken
        }
    }

    fn release_all(&mut self) -> Released {
        let held = !self.holds.is_empty();
        self.holds.drain().for_each(|(_, hold)| hold.revocation.revoke());
        self.ends.clear();
        self.in_use = 0;
        if held { Released::Held } else { Released::Absent }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((ends, lease)) = self.ends.first().copied() {
            if ends > now {
                break;
            }
            self.forget(lease);
        }
    }

    /// Serves those next in line for as long as they fit. Tells how many it has met.
    fn serve(&mut self, tokens: &mut Tokens, now: Instant) -> u64 {
        let mut met = 0;
        while let Some(next) = self.next_in_line() {
            met += 1;
            let alive = !next.granted.is_closed() && next.claim.permits() <= self.limit;
            let token = tokens.next();
            // One that is thrown out here finds its channel closed, and asks again.
            if alive && next.granted.send(Grant::new(token, now)).is_ok() {
                tokens.issued(token);
                if let Claim::Permits(_, limit) = &next.claim {
                    limit.follow(self.limit, self.reign);
                }
                let hold = Hold::of(&next.claim, next.term, token, &next.revocation, now);
                self.admit(next.lease, hold, now);
                self.serve_owner(&next.claim, token, now);
            }
        }
        met
    }

    /// Takes the waiter out of the line that is to be served now; also one that is dead, if it is in the way.
    fn next_in_line(&mut self) -> Option<Waiting> {
        let free = self.free();
        let in_reach = |waiting: &Waiting| {
            waiting.granted.is_closed()
                || waiting.claim.permits() <= free
                || waiting.claim.permits() > self.limit
        };
        let place = match self.kind {
            Kind::Counting => self.queue.iter().position(in_reach),
            Kind::Mutex | Kind::Reentrant | Kind::Fair => {
                self.queue.front().is_some_and(in_reach).then_some(0)
            }
        };
        self.queue.remove(place.filter(|_| free > 0)?)
    }

    /// Whoever waits for the owner that has just come in comes in with it.
    fn serve_owner(&mut self, claim: &Claim, token: FencingToken, now: Instant) {
        let Some(owner) = claim.owner() else { return };
        let (same, others) = std::mem::take(&mut self.queue)
            .into_iter()
            .partition::<VecDeque<_>, _>(|waiting| waiting.claim.owner() == Some(owner));
        self.queue = others;
        for waiting in same {
            if waiting.granted.send(Grant::new(token, now)).is_ok() {
                let hold = Hold::of(&waiting.claim, waiting.term, token, &waiting.revocation, now);
                self.admit(waiting.lease, hold, now);
            }
        }
    }

    fn enqueue(&mut self, request: &AcquireRequest) -> oneshot::Receiver<Grant> {
        let (granted, grants) = oneshot::channel();
        self.queue.push_back(Waiting {
            lease: request.lease,
            claim: request.claim.clone(),
            term: request.term,
            revocation: request.revocation.clone(),
            granted,
        });
        grants
    }

    /// The place that a request has in line already, if it has one.
    fn place(&mut self, request: &AcquireRequest) -> Option<oneshot::Receiver<Grant>> {
        let waiting = self.queue.iter_mut().find(|waiting| waiting.lease == request.lease)?;
        let (granted, grants) = oneshot::channel();
        waiting.granted = granted;
        Some(grants)
    }

    fn withdraw(&mut self, lease: LeaseId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|waiting| waiting.lease != lease);
        self.queue.len() < before
    }

    fn holders(&self, now: Instant) -> Vec<Holder> {
        let holder = |(ends, lease): &(Instant, LeaseId)| {
            let hold = self.holds.get(lease)?;
            let owner = hold.owner.as_ref().map(ToString::to_string);
            let holder = Holder::new(lease.to_string(), Some(hold.token), Some(*ends - now));
            Some(Holder { permits: hold.permits, owner, ..holder })
        };
        self.ends.iter().filter_map(holder).collect()
    }

    fn waiters(&self) -> Vec<Waiter> {
        let living = self.queue.iter().filter(|waiting| !waiting.granted.is_closed());
        let waiter = |waiting: &Waiting| Waiter {
            permits: waiting.claim.permits(),
            ..Waiter::new(waiting.lease, waiting.term)
        };
        living.map(waiter).collect()
    }
}

impl Hold {
    fn of(claim: &Claim, term: Duration, token: FencingToken, revocation: &Revocation, now: Instant) -> Self {
        Self {
            permits: claim.permits(),
            token,
            began: now,
            ends: now + term,
            owner: claim.owner().cloned(),
            revocation: revocation.clone(),
        }
    }
}

/// The newest token.
#[derive(Debug, Default)]
struct Tokens {
    newest: u64,
}

impl Tokens {
    /// Above all tokens of the newest grant, or the time in microseconds since 1970, whichever is greater.
    fn next(&self) -> FencingToken {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(clock.as_micros()).unwrap_or(u64::MAX);
        FencingToken::new(micros.max(self.newest + TOKENS_PER_GRANT))
    }

    const fn issued(&mut self, token: FencingToken) {
        self.newest = token.get();
    }
}
