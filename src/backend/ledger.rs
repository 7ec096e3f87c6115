//! The reference implementation: what is held under one key, who waits for it, and what each operation does to that.
//!
//! It does no I/O and reads no clock: the store's time is passed in as a [`Stamp`], and messages to other clients are
//! added as [`Event`]s to the [`Effects`]. So the same algorithm serves every store that can change one record
//! atomically ([`LedgerStore`](super::LedgerStore)), and other stores are compared with it.
//!
//! * A lock is a semaphore with one permit, except that its owner may be admitted again without taking another permit.
//! * Every change first removes holds and places that have ended. What is free is granted to the next places in the
//!   queue when a client sends a request, releases, or changes a limit; waiting requests are repeated, so this happens
//!   soon enough.
//! * Tokens, tickets and the versions of limits come from one increasing sequence, so none of them is ever used twice.
//! * A grant to a waiting place ends when the place would have ended, not a TTL later: its client measures the lease
//!   from the last request that it sent for that place. So all places of a client that has died are gone within one
//!   TTL, however many there are.
//! * Leases that were released by force are remembered until they would have ended, so that their clients are told so,
//!   whether or not the event reaches them.
//! * A place that has ended is gone; if its request is repeated after that, it joins the queue at the end, under
//!   another ticket. A grant that was reported for the old ticket can then be recognized as void.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::types::*;
use super::{BackendError, LeaseId};
use crate::error::LossReason;
use crate::fence::FencingToken;

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod diff;
mod effects;
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) mod fuzzing;
#[cfg(feature = "_apart")]
mod parts;
mod party;
#[cfg(any(all(test, any(feature = "etcd", feature = "zookeeper")), all(fuzzing, feature = "all-stores")))]
#[cfg_attr(fuzzing, allow(dead_code, reason = "only its numbers are used there"))]
pub(super) mod random;

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) use diff::Diff;
pub use effects::Effects;
pub(super) use effects::Reads;
#[cfg(feature = "_apart")]
#[cfg_attr(not(feature = "all-stores"), allow(unused_imports, reason = "not every store needs all"))]
pub(super) use parts::{Entry, EntryKind, UNKNOWN, claim};
#[cfg_attr(
    not(feature = "_apart"),
    allow(unused_imports, reason = "only for stores that keep parts of a record apart")
)]
pub(super) use party::Party;

/// How much later than the place before it each place is asked to repeat its request when the holder's lease ends: the
/// first one serves the queue, so the others need not all come at that moment. In microseconds.
const STAGGER: u64 = 2_000;
/// How many places are staggered; all behind them come together.
const STAGGERED: usize = 250;

/// Numbers fit into those of databases. No record reaches this one, not even in microseconds of time.
const MAX_NUMBER: u64 = i64::MAX as u64;

/// How many leases that were released by force are remembered: those that would have ended last.
const MAX_REVOKED: usize = 64;

/// The store's time, in microseconds since a fixed instant, and its token floor.
///
/// ```
/// use leasehold::backend::Stamp;
///
/// // A clock that is right within a millisecond, whose time is also the floor of the tokens.
/// let now = 1_700_000_000_000_000;
/// let stamp = Stamp::new(now, now + 1_000, now);
/// assert!(stamp.now <= stamp.late);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Stamp {
    /// A lower bound of the current time: leases that end at this time or before have ended.
    pub now: u64,
    /// An upper bound of the current time: new leases are measured from here.
    pub late: u64,
    /// No number below this is issued. If it only ever increases, tokens keep increasing even if the record is lost.
    /// The time of day in microseconds is one such number, the revision of a database another.
    pub floor: u64,
}

impl Stamp {
    /// A time that is known to be between `now` and `late`.
    #[must_use]
    pub const fn new(now: u64, late: u64, floor: u64) -> Self {
        Self { now, late, floor }
    }

    fn after(self, ttl: Duration) -> u64 {
        self.late.saturating_add(micros(ttl))
    }
}

/// What is held under one key, and who waits for it.
///
/// `Display` and `FromStr` convert it to a compact text and back, for stores that keep it as a record.
///
/// ```
/// use std::time::Duration;
/// use leasehold::backend::{Answer, Claim, Effects, Kind, LeaseId, LeaseRef, Ledger, Request, Resource, Stamp};
/// use uuid::Uuid;
///
/// let (mut ledger, mut effects) = (Ledger::default(), Effects::default());
/// let resource = Resource::new("lock:cart:7", Kind::Mutex);
/// let mut request = || {
///     let lease = LeaseRef::new(LeaseId::next(Uuid::new_v4()), resource.clone());
///     let request = Request::new(lease, Claim::Sole, Duration::from_secs(30));
///     ledger.request(&request, Stamp::new(1_000, 1_000, 1_000), &mut effects)
/// };
/// assert!(matches!(request()?, Answer::Granted(_)));
/// assert!(matches!(request()?, Answer::Busy { .. }));
/// // What a store keeps, and reads back with `parse`.
/// let record = ledger.to_string();
/// assert!(record.parse::<Ledger>().is_ok());
/// # Ok::<(), leasehold::BackendError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ledger {
    kind: Kind,
    /// The last number issued.
    last: u64,
    limit: Option<Limit>,
    /// Until when the limit stays in force if nobody holds or waits.
    lapses: u64,
    holds: BTreeMap<LeaseId, Hold>,
    queue: BTreeMap<Ticket, Place>,
    /// The leases that were released by force, and when each would have ended.
    revoked: BTreeMap<LeaseId, u64>,

    // The fields below are not stored: they are derived from those above.
    places: HashMap<LeaseId, Ticket>,
    permits_held: u64,
    /// No hold and no place ends before this, and no lease that was released by force would have.
    next_end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    permits: u32,
    token: FencingToken,
    ends: u64,
    /// When it was granted; 0 if that is not known.
    since: u64,
    /// Apart, so that a record with one hold is a small thing.
    party: Arc<Party>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    lease: LeaseId,
    permits: u32,
    tokens: u32,
    ends: u64,
    party: Arc<Party>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            kind: Kind::Mutex,
            last: 0,
            limit: None,
            lapses: 0,
            holds: BTreeMap::new(),
            queue: BTreeMap::new(),
            revoked: BTreeMap::new(),
            places: HashMap::new(),
            permits_held: 0,
            next_end: u64::MAX,
        }
    }
}

// The operations

impl Ledger {
    /// Requests what is claimed, for the first time or again. A repeated request keeps its place, for a full TTL from
    /// now; if it has already been granted, the answer repeats that grant, and its end does not change. Adds the events
    /// for other waiters to `effects`, as all operations do.
    ///
    /// # Errors
    ///
    /// [`BackendError::WrongType`] if the key is in use as a semaphore and a lock is requested, or the other way round;
    /// [`BackendError::LimitDiffers`] if the limit stated is not the one in force; [`BackendError::AboveLimit`] if more
    /// permits are requested than the limit.
    pub fn request(
        &mut self,
        request: &Request,
        stamp: Stamp,
        effects: &mut Effects,
    ) -> Result<Answer, BackendError> {
        let (lease, ends) = (request.lease.id, stamp.after(request.ttl));
        self.open(&request.lease.resource, stamp)?;
        self.prune(stamp);
        // Extend its place before the queue is served.
        if let Some(place) = self.places.get(&lease).and_then(|ticket| self.queue.get_mut(ticket)) {
            place.ends = ends;
            // It ends earlier than before if the clock was set back.
            self.next_end = self.next_end.min(ends);
        }
        self.serve_all(&request.lease.resource, stamp, effects);
        if let Some(grant) = self.granted_before(lease, stamp, effects) {
            return Ok(Answer::Granted(grant));
        }
        let limit = self.limit;
        self.check_limit(request, stamp)?;
        if self.limit != limit {
            // Some stores make a place before they know whether a limit is in force.
            self.serve_all(&request.lease.resource, stamp, effects);
            if let Some(grant) = self.granted_before(lease, stamp, effects) {
                return Ok(Answer::Granted(grant));
            }
        }
        if let Some(token) = self.token_of_owner(&request.claim) {
            self.withdraw(lease);
            self.admit(lease, Hold::of(request, token, ends, stamp), request.ttl, stamp);
            return Ok(Answer::Granted(Grant::new(token, self.limit)));
        }
        if let Some(ticket) = self.places.get(&lease).copied().filter(|_| request.waits) {
            return Ok(self.queued(ticket, stamp, effects));
        }
        self.withdraw(lease);
        if self.has_room_for(&request.claim) {
            let token = FencingToken::new(self.issue(request.tokens, stamp));
            self.admit(lease, Hold::of(request, token, ends, stamp), request.ttl, stamp);
            return Ok(Answer::Granted(Grant::new(token, self.limit)));
        }
        if !request.waits {
            return Ok(Answer::Busy { limit: self.limit });
        }
        let ticket = self.join(request, stamp);
        Ok(self.queued(ticket, stamp, effects))
    }

    /// The grant of a lease that was granted before, perhaps just now: the answer says so, and the event is
    /// superfluous.
    fn granted_before(&self, id: LeaseId, stamp: Stamp, effects: &mut Effects) -> Option<Grant> {
        let hold = self.holds.get(&id)?;
        effects.events.retain(|event| !matches!(event, Event::Granted { lease, .. } if lease.id == id));
        let left = Duration::from_micros(hold.ends.saturating_sub(stamp.late));
        Some(Grant::new(hold.token, self.limit).lasting(left))
    }

    /// Renews a hold.
    pub fn renew(&mut self, renew: &Renew, stamp: Stamp) -> Renewal {
        self.prune(stamp);
        if self.extend(renew.lease.id, renew.ttl, stamp).is_some() {
            Renewal::Renewed
        } else if self.revoked.contains_key(&renew.lease.id) {
            Renewal::Lost(LossReason::Revoked)
        } else if self.holds.is_empty() || self.kind.is_semaphore() {
            Renewal::Lost(LossReason::Expired)
        } else {
            Renewal::Lost(LossReason::Taken)
        }
    }

    /// Gives a lease that is held another token, as a node of a Redlock: all holds of an owner, which have one token,
    /// unless theirs is greater. `false` if it is not held.
    #[cfg(all(test, feature = "_redis"))]
    pub(super) fn settle(&mut self, lease: LeaseId, token: FencingToken, stamp: Stamp) -> bool {
        self.prune(stamp);
        let Some(hold) = self.holds.get(&lease) else { return false };
        if hold.party.owner.is_some() && hold.token > token {
            return true;
        }
        self.holds.values_mut().for_each(|hold| hold.token = token);
        self.last = self.last.max(token.get() + 15);
        true
    }

    /// Ends a lease, whether it is held or queued, or all of it but `keep` permits.
    ///
    /// # Errors
    ///
    /// [`BackendError::WrongType`] if the key is in use as a semaphore and the lease is for a lock, or the other way
    /// round.
    pub fn release(
        &mut self,
        lease: &LeaseRef,
        keep: u32,
        stamp: Stamp,
        effects: &mut Effects,
    ) -> Result<Released, BackendError> {
        self.check(&lease.resource, stamp)?;
        self.prune(stamp);
        let released = if keep > 0 && self.shrink(lease.id, keep) || keep == 0 && self.end(lease.id) {
            Released::Held
        } else if keep == 0 && self.withdraw(lease.id) {
            Released::Queued
        } else if self.revoked.contains_key(&lease.id) {
            Released::Revoked
        } else if self.holds.is_empty() || self.kind.is_semaphore() {
            Released::Absent
        } else {
            Released::Taken
        };
        if matches!(released, Released::Held | Released::Queued) || self.kind.is_semaphore() {
            self.serve_all(&lease.resource, stamp, effects);
        }
        Ok(released)
    }

    /// Ends all holds of a lock. Returns whether there were any.
    ///
    /// # Errors
    ///
    /// [`BackendError::WrongType`] if the key is in use as a semaphore; [`BackendError::Unsupported`] if `resource` is
    /// one.
    pub fn force_release(
        &mut self,
        resource: &Resource,
        stamp: Stamp,
        effects: &mut Effects,
    ) -> Result<bool, BackendError> {
        self.check(resource, stamp)?;
        if resource.kind.is_semaphore() {
            return Err(BackendError::many_holders());
        }
        self.prune(stamp);
        let holds = std::mem::take(&mut self.holds);
        effects
            .events
            .extend(holds.iter().map(|(lease, hold)| Event::Revoked { lease: *lease, token: hold.token }));
        self.revoke(&holds);
        self.permits_held = 0;
        self.serve_all(resource, stamp, effects);
        Ok(!holds.is_empty())
    }

    /// Changes the limit for all clients. It stays in force for twice `ttl` if the semaphore is not used. Nothing is
    /// revoked.
    ///
    /// # Errors
    ///
    /// [`BackendError::WrongType`] if the key is in use as a lock.
    pub fn set_limit(
        &mut self,
        resource: &Resource,
        permits: u32,
        ttl: Duration,
        stamp: Stamp,
        effects: &mut Effects,
    ) -> Result<Limit, BackendError> {
        self.open(resource, stamp)?;
        self.prune(stamp);
        let version = self.limit.map_or_else(|| self.issue(1, stamp), |limit| limit.version);
        let limit = Limit::new(permits, version);
        self.limit = Some(limit);
        self.touch(ttl, stamp);
        // A waiter for more permits than the limit leaves the queue; it learns why when it repeats its request.
        let too_many: Vec<_> =
            self.queue.values().filter(|place| place.permits > permits).map(|place| place.lease).collect();
        for lease in too_many {
            self.withdraw(lease);
            effects.events.push(Event::AskAgain(lease));
        }
        self.serve_all(resource, stamp, effects);
        Ok(limit)
    }

    /// Returns who holds and who waits. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`BackendError::WrongType`] if the key is in use as a semaphore and `resource` is a lock, or the other way
    /// round.
    pub fn inspect(
        &self,
        resource: &Resource,
        detail: Detail,
        stamp: Stamp,
        effects: &mut Effects,
    ) -> Result<Inspection, BackendError> {
        self.check(resource, stamp)?;
        let holds = || self.holds.iter().filter(|(_, hold)| hold.ends > stamp.now);
        let permits = holds().map(|(_, hold)| hold.permits).fold(0, u32::saturating_add);
        let in_use = if self.kind.is_semaphore() { permits } else { holds().count().min(1) as u32 };
        let limit = self.limit.filter(|_| self.is_used(stamp)).map(|limit| limit.permits);
        if detail == Detail::Counts {
            return Ok(Inspection::new(Vec::new(), Vec::new(), limit, in_use));
        }
        effects.reads = Reads::EndsOfAll;
        let left = |ends: u64| Duration::from_micros(ends.saturating_sub(stamp.now));
        let mut holders: Vec<_> = holds()
            .map(|(lease, hold)| {
                let holder = Holder::new(lease.to_string(), Some(hold.token), Some(left(hold.ends)));
                let Party { owner, label, note } = &*hold.party;
                let [owner, label, note] =
                    [owner, label, note].map(|text| text.as_ref().map(ToString::to_string));
                let since = (hold.since > 0).then(|| stamp.now.saturating_sub(hold.since));
                let held_for = since.map(Duration::from_micros);
                Holder { permits: hold.permits, owner, label, note, held_for, ..holder }
            })
            .collect();
        holders.sort_by_key(|holder| holder.remaining);
        let places = self.queue.values().filter(|place| place.ends > stamp.now);
        if detail == Detail::Summary {
            holders.truncate(SUMMARY_HOLDERS);
            let waiting = places.count();
            return Ok(Inspection { waiting, ..Inspection::new(holders, Vec::new(), limit, in_use) });
        }
        let waiter = |place: &Place| {
            let [label, note] =
                [&place.party.label, &place.party.note].map(|text| text.as_ref().map(ToString::to_string));
            Waiter { permits: place.permits, label, note, ..Waiter::new(place.lease, left(place.ends)) }
        };
        Ok(Inspection::new(holders, places.map(waiter).collect(), limit, in_use))
    }

    /// Who holds and how many wait under this key, which is the record's. `None` if nobody does.
    pub(super) fn list(&self, key: &Arc<str>, stamp: Stamp, effects: &mut Effects) -> Option<Listed> {
        let resource = Resource::new(Arc::clone(key), self.kind);
        let now = self.inspect(&resource, Detail::Full, stamp, effects).ok()?;
        let is_idle = now.holders.is_empty() && now.waiters.is_empty();
        (!is_idle).then(|| Listed::new(resource, now.holders, now.waiters.len()))
    }

    /// Who holds, and under which tokens, including holds that have ended since the last change.
    #[cfg(feature = "postgres")]
    pub(in crate::backend) fn holders(&self) -> Vec<(LeaseId, FencingToken)> {
        self.holds.iter().map(|(lease, hold)| (*lease, hold.token)).collect()
    }

    /// Whether there are holders or waiters, a limit is in force, or a lease that was released by force is still
    /// remembered.
    ///
    /// A record that is not in use only remembers the last number issued. A store may delete it only if
    /// [`Stamp::floor`] is above that number from then on, and if no change based on an older state of the record can
    /// still be written. With optimistic concurrency control, "there is no record" must therefore not be a version that
    /// can occur twice (the ABA problem): otherwise a client that read it the first time could overwrite everything
    /// that has happened since.
    #[must_use]
    pub fn is_in_use(&self, stamp: Stamp) -> bool {
        self.is_used(stamp) || self.revoked.values().any(|ends| *ends > stamp.now)
    }

    fn is_used(&self, stamp: Stamp) -> bool {
        self.holds.values().any(|hold| hold.ends > stamp.now)
            || self.queue.values().any(|place| place.ends > stamp.now)
            || (self.limit.is_some() && stamp.now < self.lapses)
    }

    /// The leases that wait, in order. Some of their places may have ended.
    #[cfg(feature = "sqlite")]
    pub(super) fn waiting(&self) -> impl Iterator<Item = LeaseId> + use<'_> {
        self.queue.values().map(|place| place.lease)
    }

    /// The last number issued: every later token is greater.
    #[must_use]
    pub const fn last_number(&self) -> u64 {
        self.last
    }
}

// Common parts

impl Ledger {
    /// As `check`; a record that is not in use takes the kind of the resource.
    fn open(&mut self, resource: &Resource, stamp: Stamp) -> Result<(), BackendError> {
        self.check(resource, stamp)?;
        if self.kind.is_semaphore() != resource.kind.is_semaphore() || !self.is_used(stamp) {
            self.prune(stamp);
            (self.kind, self.limit) = (resource.kind, None);
        }
        Ok(())
    }

    /// A lock and a semaphore cannot share a key.
    fn check(&self, resource: &Resource, stamp: Stamp) -> Result<(), BackendError> {
        if self.kind.is_semaphore() == resource.kind.is_semaphore() || !self.is_used(stamp) {
            return Ok(());
        }
        Err(BackendError::WrongType { source: format!("it is in use as {}", self.kind.as_str()).into() })
    }

    /// Removes what has ended, and grants what is free to the next places in the queue.
    fn serve_all(&mut self, resource: &Resource, stamp: Stamp, effects: &mut Effects) {
        effects.served.get_or_insert(0);
        self.prune(stamp);
        while let Some(ticket) = self.next_served() {
            let Some(place) = self.take(ticket) else { return };
            let token = FencingToken::new(self.issue(place.tokens, stamp));
            self.touch(Duration::from_micros(place.ends.saturating_sub(stamp.late)), stamp);
            self.serve(ticket, place, token, resource, stamp, effects);
        }
    }

    /// Removes holds and places that have ended. Scans them only if one may have ended since the last scan.
    fn prune(&mut self, stamp: Stamp) {
        if stamp.now >= self.next_end {
            self.holds.retain(|_, hold| hold.ends > stamp.now);
            self.queue.retain(|_, place| place.ends > stamp.now);
            self.revoked.retain(|_, ends| *ends > stamp.now);
            self.derive();
        }
        if !self.is_used(stamp) {
            self.limit = None;
        }
    }

    /// The place to be served next: the first one, or for a counting semaphore the first one that fits. `None` if it
    /// does not fit.
    fn next_served(&self) -> Option<Ticket> {
        let free = self.free();
        if free == 0 {
            return None;
        }
        let fits = |place: &Place| place.permits <= free;
        match self.kind {
            Kind::Counting => self.queue.iter().find(|(_, place)| fits(place)).map(|(ticket, _)| *ticket),
            _ => self.queue.first_key_value().filter(|(_, place)| fits(place)).map(|(ticket, _)| *ticket),
        }
    }

    /// Turns a place into a hold. Other waiters for the same owner can be admitted with it, and are asked to repeat
    /// their requests.
    fn serve(
        &mut self,
        ticket: Ticket,
        place: Place,
        token: FencingToken,
        resource: &Resource,
        stamp: Stamp,
        effects: &mut Effects,
    ) {
        *effects.served.get_or_insert(0) += 1;
        let Place { lease, permits, ends, party, .. } = place;
        let kind = match (&party.owner, resource.kind) {
            (Some(_), _) => Kind::Reentrant,
            (None, Kind::Reentrant) => Kind::Mutex,
            (None, kind) => kind,
        };
        if party.owner.is_some() {
            let same = self.queue.values().filter(|place| place.party.owner == party.owner);
            effects.events.extend(same.map(|place| Event::AskAgain(place.lease)));
        }
        let mut granted = LeaseRef::new(lease, resource.clone());
        granted.resource.kind = kind;
        effects.events.push(Event::Granted { lease: granted, ticket, grant: Grant::new(token, self.limit) });
        self.hold(lease, Hold { permits, token, ends, since: stamp.now.max(1), party });
    }

    /// Issues `count` new numbers and returns the first.
    fn issue(&mut self, count: u32, stamp: Stamp) -> u64 {
        let first = stamp.floor.max(self.last.saturating_add(1));
        self.last = first.saturating_add(u64::from(count.max(1)) - 1);
        first
    }

    /// Checks a request's limit: the first request states it, later ones must state the same or know its version.
    fn check_limit(&mut self, request: &Request, stamp: Stamp) -> Result<(), BackendError> {
        let Claim::Permits(permits, stated) = request.claim else { return Ok(()) };
        let waits = self.places.contains_key(&request.lease.id);
        if let Some(in_force) = self.limit.filter(|in_force| !stated.agrees_with(*in_force) && !waits) {
            return Err(BackendError::LimitDiffers { stated: stated.permits, in_force: in_force.permits });
        }
        let limit = self.limit.unwrap_or(stated).permits;
        if permits > limit {
            return Err(BackendError::AboveLimit { permits, limit });
        }
        if self.limit.is_none() {
            let version = self.issue(1, stamp);
            self.limit = Some(Limit::new(limit, version));
            self.touch(request.ttl, stamp);
        }
        Ok(())
    }

    /// Keeps the limit in force for two TTLs from now.
    fn touch(&mut self, ttl: Duration, stamp: Stamp) {
        self.lapses = self.lapses.max(stamp.late.saturating_add(micros(ttl).saturating_mul(2)));
    }

    fn free(&self) -> u32 {
        let limit = if self.kind.is_semaphore() { self.limit.map_or(0, |limit| limit.permits) } else { 1 };
        u32::try_from(u64::from(limit).saturating_sub(self.permits_held)).unwrap_or(limit)
    }

    /// Whether a request without a place in the queue may be granted now. In a counting semaphore it overtakes nobody
    /// who fits: such a place would have been served before.
    fn has_room_for(&self, claim: &Claim) -> bool {
        claim.permits() <= self.free() && (self.kind == Kind::Counting || self.queue.is_empty())
    }

    /// The token of the lock if the claiming owner holds it already.
    fn token_of_owner(&self, claim: &Claim) -> Option<FencingToken> {
        let owner = claim.owner()?;
        self.holds
            .values()
            .next()
            .filter(|hold| hold.party.owner.as_ref() == Some(owner))
            .map(|hold| hold.token)
    }

    fn queued(&self, ticket: Ticket, stamp: Stamp, effects: &mut Effects) -> Answer {
        effects.reads = effects.reads.max(Reads::EndsOfHolds);
        let ends = self.holds.values().map(|hold| hold.ends).min();
        let before = self.queue.range(..ticket).take(STAGGERED).count() as u64;
        let wait = |ends: u64| ends.saturating_sub(stamp.now).saturating_add(before * STAGGER);
        Answer::Queued(Queued::new(ticket, ends.map(|ends| Duration::from_micros(wait(ends))), self.limit))
    }

    fn join(&mut self, request: &Request, stamp: Stamp) -> Ticket {
        let ticket = Ticket::new(self.issue(1, stamp));
        let place = Place {
            lease: request.lease.id,
            permits: request.claim.permits(),
            tokens: request.tokens,
            ends: stamp.after(request.ttl),
            party: Arc::new(Party::of(request)),
        };
        self.next_end = self.next_end.min(place.ends);
        // A lease that was ended by force begins anew when it is requested again.
        self.revoked.remove(&place.lease);
        self.places.insert(place.lease, ticket);
        self.queue.insert(ticket, place);
        ticket
    }

    fn take(&mut self, ticket: Ticket) -> Option<Place> {
        let place = self.queue.remove(&ticket)?;
        self.places.remove(&place.lease);
        Some(place)
    }

    /// Removes a place. `false` if there is none.
    fn withdraw(&mut self, lease: LeaseId) -> bool {
        self.places.get(&lease).copied().and_then(|ticket| self.take(ticket)).is_some()
    }

    fn admit(&mut self, lease: LeaseId, hold: Hold, ttl: Duration, stamp: Stamp) {
        self.touch(ttl, stamp);
        self.hold(lease, hold);
    }

    fn hold(&mut self, lease: LeaseId, hold: Hold) {
        self.next_end = self.next_end.min(hold.ends);
        self.revoked.remove(&lease);
        let permits = u64::from(hold.permits);
        let before = self.holds.insert(lease, hold).map_or(0, |before| u64::from(before.permits));
        // All holds of a lock, which are those of one owner, share one permit.
        self.permits_held = if self.kind.is_semaphore() { self.permits_held + permits - before } else { 1 };
    }

    /// Remembers that these holds were ended by force.
    fn revoke(&mut self, holds: &BTreeMap<LeaseId, Hold>) {
        self.revoked.extend(holds.iter().map(|(lease, hold)| (*lease, hold.ends)));
        while self.revoked.len() > MAX_REVOKED {
            let first = self.revoked.iter().min_by_key(|(_, ends)| **ends).map(|(lease, _)| *lease);
            first.map(|first| self.revoked.remove(&first));
        }
    }

    /// Renews a hold and returns its token. `None` if there is none.
    fn extend(&mut self, lease: LeaseId, ttl: Duration, stamp: Stamp) -> Option<FencingToken> {
        let hold = self.holds.get_mut(&lease)?;
        hold.ends = stamp.after(ttl);
        let (token, ends) = (hold.token, hold.ends);
        self.next_end = self.next_end.min(ends);
        self.touch(ttl, stamp);
        Some(token)
    }

    /// Reduces a hold to at most `keep` permits. `false` if there is none. A lock is not divisible, so it stays as it
    /// is.
    fn shrink(&mut self, lease: LeaseId, keep: u32) -> bool {
        let Some(hold) = self.holds.get_mut(&lease) else { return false };
        if self.kind.is_semaphore() {
            let surplus = hold.permits.saturating_sub(keep);
            hold.permits -= surplus;
            self.permits_held -= u64::from(surplus);
        }
        true
    }

    /// Ends a hold. `false` if there is none.
    fn end(&mut self, lease: LeaseId) -> bool {
        let Some(hold) = self.holds.remove(&lease) else { return false };
        if self.kind.is_semaphore() {
            self.permits_held -= u64::from(hold.permits);
        } else if self.holds.is_empty() {
            self.permits_held = 0;
        }
        true
    }

    /// Whether it can be what operations have left. If not, another program has written it, and what follows from it
    /// could be anything: a number that is issued twice, or a second holder.
    fn is_possible(&self) -> bool {
        let is_once = self.places.len() == self.queue.len();
        let is_either = self.places.keys().all(|lease| !self.holds.contains_key(lease));
        let are_issued = self.holds.values().all(|hold| hold.token.get() <= self.last);
        let mut owners = self.holds.values().map(|hold| hold.party.owner.as_ref());
        let is_alone = self.kind.is_semaphore()
            || self.holds.len() <= 1
            || owners.next().flatten().is_some_and(|first| owners.all(|owner| owner == Some(first)));
        is_once && is_either && is_alone && are_issued && self.last <= MAX_NUMBER
    }

    /// Computes the derived fields.
    fn derive(&mut self) {
        self.places = self.queue.iter().map(|(ticket, place)| (place.lease, *ticket)).collect();
        let permits = self.holds.values().map(|hold| u64::from(hold.permits)).sum();
        self.permits_held =
            if self.kind.is_semaphore() { permits } else { u64::from(!self.holds.is_empty()) };
        let ends =
            self.holds.values().map(|hold| hold.ends).chain(self.queue.values().map(|place| place.ends));
        self.next_end = ends.chain(self.revoked.values().copied()).min().unwrap_or(u64::MAX);
    }
}

impl Hold {
    fn of(request: &Request, token: FencingToken, ends: u64, stamp: Stamp) -> Self {
        let (permits, party) = (request.claim.permits(), Arc::new(Party::of(request)));
        Self { permits, token, ends, since: stamp.now.max(1), party }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

// The text form: one line for the whole, one for each hold, one for each lease that was released by force, one for each
// place.

const FORM: &str = "leasehold/1";

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_holds(f)?;
        for (ticket, Place { lease, permits, tokens, ends, party }) in &self.queue {
            write!(f, "\nq {} {lease} {permits} {tokens} {ends}", ticket.get())?;
            party.write(f)?;
        }
        Ok(())
    }
}

impl Ledger {
    /// All except the queue.
    fn write_holds(&self, f: &mut impl Write) -> fmt::Result {
        let (permits, version) = self.limit.map_or((0, 0), |limit| (limit.permits, limit.version));
        let kind = self.kind.as_str();
        write!(f, "{FORM} {kind} {} {permits} {version} {}", self.last, self.lapses)?;
        for (lease, Hold { permits, token, ends, since, party }) in &self.holds {
            write!(f, "\nh {lease} {permits} {token} {ends} {since}")?;
            party.write(f)?;
        }
        for (lease, ends) in &self.revoked {
            write!(f, "\nr {lease} {ends}")?;
        }
        Ok(())
    }
}

impl FromStr for Ledger {
    type Err = BackendError;

    fn from_str(text: &str) -> Result<Self, BackendError> {
        read(text)
            .ok_or_else(|| BackendError::WrongType { source: "it is not a record of this crate".into() })
    }
}

fn read(text: &str) -> Option<Ledger> {
    let mut lines = text.split('\n');
    let mut words = lines.next()?.split(' ');
    if words.next()? != FORM {
        return None;
    }
    let mut ledger = Ledger { kind: Kind::parse(words.next()?)?, ..Ledger::default() };
    ledger.last = words.next()?.parse().ok()?;
    let limit = Limit::new(words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    ledger.limit = (limit.version > 0).then_some(limit);
    ledger.lapses = words.next()?.parse().ok()?;
    for line in lines {
        if let Some(hold) = line.strip_prefix("h ") {
            let (numbers, party) = split(hold, 5)?;
            let mut words = numbers.split(' ');
            let lease = LeaseId::parse(words.next()?)?;
            let permits = words.next()?.parse().ok()?;
            let token = FencingToken::new(words.next()?.parse().ok()?);
            let ends = words.next()?.parse().ok()?;
            let since = words.next()?.parse().ok()?;
            let hold = Hold { permits, token, ends, since, party };
            ledger.holds.insert(lease, hold).is_none().then_some(())?;
        } else if let Some(revoked) = line.strip_prefix("r ") {
            let (lease, ends) = revoked.split_once(' ')?;
            ledger.revoked.insert(LeaseId::parse(lease)?, ends.parse().ok()?);
        } else {
            let (numbers, party) = split(line.strip_prefix("q ")?, 5)?;
            let mut words = numbers.split(' ');
            let ticket = Ticket::new(words.next()?.parse().ok()?);
            let lease = LeaseId::parse(words.next()?)?;
            let permits = words.next()?.parse().ok()?;
            let tokens = words.next()?.parse().ok()?;
            let ends = words.next()?.parse().ok()?;
            let place = Place { lease, permits, tokens, ends, party };
            ledger.queue.insert(ticket, place).is_none().then_some(())?;
        }
    }
    ledger.derive();
    let are_issued = ledger.queue.last_key_value().is_none_or(|(last, _)| last.get() <= ledger.last);
    (are_issued && ledger.is_possible()).then_some(ledger)
}

/// The first `count` words, and what follows them.
pub(in crate::backend) fn split(text: &str, count: usize) -> Option<(&str, Arc<Party>)> {
    let end = text.match_indices(' ').nth(count - 1).map_or(text.len(), |(end, _)| end);
    let (words, rest) = text.split_at(end);
    Some((words, Arc::new(Party::read(rest)?)))
}

#[cfg(test)]
mod tests {
    use std::iter::successors;

    use uuid::Uuid;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const SECOND: u64 = 1_000_000;

    /// A record, the leases of its clients, and the time.
    struct Site {
        ledger: Ledger,
        resource: Resource,
        limit: Limit,
        now: u64,
        effects: Effects,
    }

    impl Site {
        fn new(kind: Kind, limit: u32) -> Self {
            Self {
                ledger: Ledger::default(),
                resource: Resource::new("key", kind),
                limit: Limit::stated(limit),
                now: SECOND,
                effects: Effects::default(),
            }
        }

        fn stamp(&self) -> Stamp {
            Stamp::new(self.now, self.now, 0)
        }

        fn pass(&mut self, seconds: u64) {
            self.now += seconds * SECOND;
        }

        fn lease(&self) -> LeaseRef {
            LeaseRef::new(LeaseId::next(Uuid::nil()), self.resource.clone())
        }

        fn claim(&self, permits: u32) -> Claim {
            if self.resource.kind.is_semaphore() { Claim::Permits(permits, self.limit) } else { Claim::Sole }
        }

        fn request(&mut self, request: &Request) -> Answer {
            let stamp = self.stamp();
            self.ledger.request(request, stamp, &mut self.effects).unwrap()
        }

        fn ask(&mut self, permits: u32) -> (Request, Answer) {
            let request = Request::new(self.lease(), self.claim(permits), TTL).waiting();
            let answer = self.request(&request);
            (request, answer)
        }

        fn hold(&mut self, permits: u32) -> (Request, FencingToken) {
            let (request, answer) = self.ask(permits);
            (request, token(answer))
        }

        fn queue(&mut self, permits: u32) -> (Request, Ticket) {
            let (request, answer) = self.ask(permits);
            (request, ticket(answer))
        }

        fn release(&mut self, request: &Request) -> Released {
            self.give_back(request, 0)
        }

        fn give_back(&mut self, request: &Request, keep: u32) -> Released {
            let stamp = self.stamp();
            self.ledger.release(&request.lease, keep, stamp, &mut self.effects).unwrap()
        }

        fn renew(&mut self, request: &Request) -> Renewal {
            let stamp = self.stamp();
            self.ledger.renew(&Renew::new(request.lease.clone(), TTL), stamp)
        }

        fn set_limit(&mut self, permits: u32) -> Limit {
            let (stamp, resource) = (self.stamp(), self.resource.clone());
            self.ledger.set_limit(&resource, permits, TTL, stamp, &mut self.effects).unwrap()
        }

        fn inspect(&self) -> Inspection {
            self.ledger.inspect(&self.resource, Detail::Full, self.stamp(), &mut Effects::default()).unwrap()
        }

        /// The grants reported since the last call.
        fn granted(&mut self) -> Vec<(LeaseId, Ticket, FencingToken)> {
            let grant = |event| match event {
                Event::Granted { lease, ticket, grant } => (lease.id, ticket, grant.token),
                other => panic!("{other:?}"),
            };
            std::mem::take(&mut self.effects.events).into_iter().map(grant).collect()
        }
    }

    fn token(answer: Answer) -> FencingToken {
        match answer {
            Answer::Granted(grant) => grant.token,
            other => panic!("{other:?}"),
        }
    }

    fn ticket(answer: Answer) -> Ticket {
        match answer {
            Answer::Queued(queued) => queued.ticket,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_that_no_ledger_has_left_is_refused() {
        let [one, two] = [(); 2].map(|()| LeaseId::next(Uuid::nil()));
        for (kind, entries) in [
            ("mutex 5 0 0 0", format!("h {one} 1 6 9 1")),
            ("mutex 5 0 0 0", format!("q 6 {one} 1 1 9")),
            ("mutex 9223372036854775808 0 0 0", format!("h {one} 1 5 9 1")),
            ("mutex 5 0 0 0", format!("h {one} 1 4 9 1\nh {two} 1 5 9 1")),
            ("mutex 5 0 0 0", format!("h {one} 1 4 9 1 owner=\"a\"\nh {two} 1 4 9 1 owner=\"b\"")),
            ("counting 5 3 1 0", format!("h {one} 1 4 9 1\nh {one} 1 5 9 1")),
            ("counting 5 3 1 0", format!("h {one} 1 4 9 1\nq 5 {one} 1 1 9")),
            ("counting 5 3 1 0", format!("q 4 {one} 1 1 9\nq 5 {one} 1 1 9")),
            ("counting 5 3 1 0", format!("q 4 {one} 1 1 9\nq 4 {two} 1 1 9")),
        ] {
            let text = format!("{FORM} {kind}\n{entries}");
            let refusal = text.parse::<Ledger>().expect_err(&text);
            assert!(matches!(refusal, BackendError::WrongType { .. }), "{text}: {refusal:?}");
        }
    }

    #[test]
    fn nothing_is_free_while_more_permits_are_held_than_can_be_counted() {
        let mut site = Site::new(Kind::Counting, 2);
        let [one, two] = [(); 2].map(|()| LeaseId::next(Uuid::nil()));
        let holds = format!("h {one} 4294967295 4 9000000 1\nh {two} 2 5 9000000 1");
        site.ledger = format!("{FORM} counting 5 2 1 9000000\n{holds}").parse().unwrap();
        assert_eq!(site.inspect().in_use, u32::MAX);
        site.queue(1);
        let (lease, stamp) = (LeaseRef::new(one, site.resource.clone()), site.stamp());
        assert_eq!(site.ledger.release(&lease, 0, stamp, &mut site.effects).unwrap(), Released::Held);
        assert!(site.granted().is_empty(), "two are held still");
    }

    #[test]
    fn a_release_grants_to_the_first_place_and_says_which() {
        let mut site = Site::new(Kind::Mutex, 1);
        let (holder, first) = site.hold(1);
        let (next, place) = site.queue(1);
        let (last, _) = site.queue(1);
        assert_eq!(site.release(&holder), Released::Held);
        let granted = site.granted();
        assert_eq!(granted.len(), 1);
        assert_eq!((granted[0].0, granted[0].1), (next.lease.id, place));
        assert!(granted[0].2 > first);
        assert_eq!(token(site.request(&next)), granted[0].2, "and again, if it asks");
        assert_eq!(site.release(&last), Released::Queued);
        assert_eq!(site.release(&last), Released::Taken);
        assert_eq!(site.release(&next), Released::Held);
        assert_eq!(site.release(&next), Released::Absent);
    }

    #[test]
    fn asking_again_keeps_the_place_and_its_ticket() {
        let mut site = Site::new(Kind::Fair, 1);
        let (holder, _) = site.hold(1);
        let (one, place) = site.queue(1);
        site.queue(1);
        for _ in 0..5 {
            site.pass(6);
            assert_eq!(ticket(site.request(&one)), place);
            assert_eq!(site.renew(&holder), Renewal::Renewed);
        }
        assert_eq!(site.inspect().waiters.len(), 1, "the other one did not ask");
    }

    #[test]
    fn a_place_that_was_repeated_after_the_clock_was_set_back_ends_a_ttl_later() {
        let mut site = Site::new(Kind::Mutex, 1);
        site.pass(8);
        let (holder, _) = site.hold(1);
        let (waiter, _) = site.queue(1);
        site.now -= 5 * SECOND;
        site.request(&waiter);
        site.pass(10);
        site.release(&holder);
        assert!(site.granted().is_empty(), "nobody waits any more");
    }

    #[test]
    fn a_place_that_has_ended_rejoins_at_the_end_under_another_ticket() {
        let mut site = Site::new(Kind::Mutex, 1);
        let (holder, _) = site.hold(1);
        let (lapsed, old) = site.queue(1);
        site.pass(9);
        let (behind, _) = site.queue(1);
        site.renew(&holder);
        site.pass(2);
        let new = ticket(site.request(&lapsed));
        assert!(new > old);
        site.release(&holder);
        assert_eq!(site.granted()[0].0, behind.lease.id);
    }

    #[test]
    fn a_pushed_grant_ends_when_the_place_would_have() {
        let mut site = Site::new(Kind::Mutex, 1);
        let (holder, _) = site.hold(1);
        let (waiter, _) = site.queue(1);
        site.pass(7);
        site.release(&holder);
        assert_eq!(site.inspect().holder().unwrap().remaining, Some(Duration::from_secs(3)));
        site.pass(3);
        assert_eq!(site.renew(&waiter), Renewal::Lost(LossReason::Expired));
    }

    #[test]
    fn all_places_of_a_dead_client_are_gone_within_one_ttl() {
        let mut site = Site::new(Kind::Mutex, 1);
        let (holder, _) = site.hold(1);
        for _ in 0..5 {
            site.queue(1);
        }
        site.pass(1);
        let (alive, _) = site.queue(1);
        site.release(&holder);
        site.pass(9);
        site.request(&alive);
        assert_eq!(site.inspect().holder().unwrap().id, alive.lease.id.to_string());
    }

    #[test]
    fn no_ticket_and_no_token_is_used_twice() {
        let mut site = Site::new(Kind::Mutex, 1);
        let mut last = 0;
        for _ in 0..10 {
            let (holder, token) = site.hold(1);
            let (waiter, place) = site.queue(1);
            assert!(last < token.get() && token.get() < place.get());
            site.release(&waiter);
            site.release(&holder);
            last = place.get();
        }
    }

    #[test]
    fn a_grant_reserves_as_many_tokens_as_requested() {
        let mut site = Site::new(Kind::Mutex, 1);
        let many = Request { tokens: 16, ..Request::new(site.lease(), Claim::Sole, TTL) };
        let first = token(site.request(&many));
        site.release(&many);
        assert_eq!(site.hold(1).1.get(), first.get() + 16);
    }

    #[test]
    fn tokens_are_never_below_the_floor() {
        let mut site = Site::new(Kind::Mutex, 1);
        let request = Request::new(site.lease(), Claim::Sole, TTL);
        let stamp = Stamp { floor: 5000, ..site.stamp() };
        let answer = site.ledger.request(&request, stamp, &mut site.effects).unwrap();
        assert_eq!(token(answer).get(), 5000);
    }

    #[test]
    fn a_request_that_does_not_wait_overtakes_nobody_and_leaves_nothing() {
        for kind in [Kind::Mutex, Kind::Fair] {
            let mut site = Site::new(kind, 1);
            let (holder, _) = site.hold(1);
            let hasty = Request::new(site.lease(), site.claim(1), TTL);
            assert!(matches!(site.request(&hasty), Answer::Busy { .. }));
            assert_eq!(site.inspect().waiters.len(), 0);
            site.queue(1);
            site.release(&holder);
            assert!(matches!(site.request(&hasty), Answer::Busy { .. }));
        }
    }

    #[test]
    fn an_owner_re_enters_ahead_of_the_waiters() {
        let mut site = Site::new(Kind::Reentrant, 1);
        let owned =
            |site: &Site, owner: &str| Request::new(site.lease(), Claim::Owner(owner.into()), TTL).waiting();
        let (first, second, third) = (owned(&site, "a"), owned(&site, "a"), owned(&site, "b"));
        let outer = token(site.request(&first));
        let waits = ticket(site.request(&third));
        assert_eq!(token(site.request(&second)), outer);
        assert_eq!(site.inspect().in_use, 1);
        assert_eq!(site.release(&first), Released::Held);
        assert_eq!(site.renew(&first), Renewal::Lost(LossReason::Taken));
        assert!(site.granted().is_empty());
        assert_eq!(site.release(&second), Released::Held);
        let granted = site.granted();
        assert_eq!((granted[0].0, granted[0].1), (third.lease.id, waits));
        assert!(granted[0].2 > outer);
    }

    #[test]
    fn waiters_of_an_owner_are_admitted_with_it() {
        let mut site = Site::new(Kind::Reentrant, 1);
        let owned =
            |site: &Site, owner: &str| Request::new(site.lease(), Claim::Owner(owner.into()), TTL).waiting();
        let holder = owned(&site, "holder");
        site.request(&holder);
        let waiting = [owned(&site, "a"), owned(&site, "b"), owned(&site, "a")];
        for request in &waiting {
            site.request(request);
        }
        site.release(&holder);
        let events = std::mem::take(&mut site.effects.events);
        assert_eq!(events[0], Event::AskAgain(waiting[2].lease.id));
        let Event::Granted { lease, grant, .. } = &events[1] else { panic!("{events:?}") };
        assert_eq!((lease.id, events.len()), (waiting[0].lease.id, 2));
        assert_eq!(token(site.request(&waiting[2])), grant.token);
    }

    #[test]
    fn a_forced_release_ends_all_holds_and_names_their_grants() {
        let mut site = Site::new(Kind::Reentrant, 1);
        let (one, first) = site.hold(1);
        let (next, _) = site.queue(1);
        let (stamp, resource) = (site.stamp(), site.resource.clone());
        assert!(site.ledger.force_release(&resource, stamp, &mut site.effects).unwrap());
        assert_eq!(site.effects.events[0], Event::Revoked { lease: one.lease.id, token: first });
        assert!(matches!(&site.effects.events[1], Event::Granted { lease, .. } if lease.id == next.lease.id));
        let mut site = Site::new(Kind::Fair, 1);
        let resource = site.resource.clone();
        assert!(site.ledger.force_release(&resource, Stamp::new(0, 0, 0), &mut site.effects).is_err());
    }

    #[test]
    fn permits_go_to_those_that_fit_and_in_strict_order_to_nobody_behind() {
        for (kind, served) in [(Kind::Counting, 2), (Kind::Fair, 0)] {
            let mut site = Site::new(kind, 4);
            let (holder, _) = site.hold(4);
            let waiting = [site.queue(3).0, site.queue(2).0, site.queue(1).0];
            assert_eq!(site.give_back(&holder, 2), Released::Held);
            assert_eq!(site.inspect().in_use, 2 + served);
            assert_eq!(site.release(&holder), Released::Held);
            let now = site.inspect();
            let sum: u32 = now.holders.iter().map(|holder| holder.permits).sum();
            assert_eq!((now.in_use, sum), (3, 3));
            assert_eq!(now.waiters.len(), if kind == Kind::Counting { 1 } else { 2 });
            drop(waiting);
        }
    }

    #[test]
    fn the_first_request_sets_the_limit_and_clients_that_know_its_version_follow_a_change() {
        let mut site = Site::new(Kind::Counting, 1);
        let (holder, _) = site.hold(1);
        let other = Request::new(site.lease(), Claim::Permits(1, Limit::stated(2)), TTL);
        let stamp = site.stamp();
        let refused = site.ledger.request(&other, stamp, &mut site.effects);
        assert!(matches!(refused, Err(BackendError::LimitDiffers { stated: 2, in_force: 1 })));
        let met = site.request(&holder).limit().unwrap();
        site.queue(1);
        let changed = site.set_limit(3);
        assert_eq!((changed.permits, changed.version), (3, met.version));
        assert_eq!(site.granted().len(), 1, "the limit grew");
        site.limit = met;
        site.hold(1);
        site.set_limit(1);
        assert_eq!(site.inspect().in_use, 3, "nothing is taken away");
    }

    #[test]
    fn a_limit_lapses_when_nobody_uses_it_for_two_ttls() {
        let mut site = Site::new(Kind::Fair, 3);
        let (holder, _) = site.hold(1);
        site.release(&holder);
        site.pass(19);
        assert_eq!(site.inspect().limit, Some(3));
        site.pass(1);
        assert_eq!(site.inspect().limit, None);
        site.limit = Limit::stated(5);
        let version = site.ask(1).1.limit().unwrap();
        assert_eq!(version.permits, 5);
    }

    #[test]
    fn waiters_for_more_than_the_limit_are_prompted() {
        let mut site = Site::new(Kind::Fair, 3);
        let (_holder, _) = site.hold(3);
        let (big, _) = site.queue(3);
        site.set_limit(2);
        assert_eq!(std::mem::take(&mut site.effects.events), [Event::AskAgain(big.lease.id)]);
        let stamp = site.stamp();
        let refused = site.ledger.request(&big, stamp, &mut site.effects);
        assert!(matches!(refused, Err(BackendError::LimitDiffers { .. } | BackendError::AboveLimit { .. })));
    }

    #[test]
    fn a_lock_and_a_semaphore_do_not_share_a_key_while_one_is_in_use() {
        let mut site = Site::new(Kind::Mutex, 1);
        let (holder, _) = site.hold(1);
        site.resource.kind = Kind::Fair;
        let request = Request::new(site.lease(), site.claim(1), TTL);
        let stamp = site.stamp();
        assert!(site.ledger.request(&request, stamp, &mut site.effects).is_err());
        site.resource.kind = Kind::Mutex;
        site.release(&holder);
        site.resource.kind = Kind::Fair;
        site.hold(1);
    }

    #[test]
    fn an_uncertain_clock_ends_nothing_early() {
        let mut site = Site::new(Kind::Mutex, 1);
        let request = Request::new(site.lease(), Claim::Sole, TTL);
        let early = Stamp::new(SECOND, 3 * SECOND, 0);
        site.ledger.request(&request, early, &mut site.effects).unwrap();
        let late = Stamp::new(12 * SECOND, 20 * SECOND, 0);
        let renew = Renew::new(request.lease, TTL);
        assert_eq!(site.ledger.renew(&renew, late), Renewal::Renewed);
    }

    /// Always the same ones: the upper halves of a linear congruential generator (Knuth's MMIX).
    fn random_numbers() -> impl Iterator<Item = u64> {
        let next =
            |n: &u64| Some(n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        successors(Some(1), next).map(|n| n >> 32)
    }

    /// Whatever happens: no more permits than the limit, numbers increase, and a record and its text behave the same.
    #[test]
    fn a_ledger_and_its_text_behave_alike() {
        let mut random = random_numbers();
        let mut below = |end: u64| random.next().unwrap() % end;
        for sequence in 0..1000 {
            let kind = Kind::ALL[sequence % 4];
            let mut site = Site::new(kind, 3);
            let mut requests: Vec<Request> = Vec::new();
            let mut last = 0;
            for _ in 0..below(80) {
                let (verb, which, permits) = (below(7), below(12), below(3) as u32 + 1);
                site.pass(below(5));
                let picked = requests.get(which as usize % requests.len().max(1)).cloned();
                match (verb, picked) {
                    (0 | 1, _) => {
                        let owner = Claim::Owner(format!("o {}\n%n", which % 3).into());
                        let claim = if kind == Kind::Reentrant { owner } else { site.claim(permits) };
                        let mut request = Request::new(site.lease(), claim, TTL);
                        (request.waits, request.tokens) = (verb == 0, permits);
                        request.label = (which % 3 > 0).then(|| format!("label {which}\"\n").into());
                        request.note = (which % 2 > 0).then(|| format!("\\ note {permits}").into());
                        site.request(&request);
                        requests.push(request);
                    }
                    (2, Some(request)) => drop(site.request(&request)),
                    (3, Some(request)) => drop(site.release(&request)),
                    (4, Some(request)) => drop(site.renew(&request)),
                    (5, Some(request)) => drop(site.give_back(&request, 1)),
                    _ => assert_eq!(site.inspect(), site.inspect(), "to look changes nothing"),
                }
                let text = site.ledger.to_string();
                let again: Ledger = text.parse().unwrap();
                assert_eq!(again.to_string(), text);
                assert_eq!(again.permits_held, site.ledger.permits_held, "{text}");
                assert_eq!(again.places, site.ledger.places);
                assert!(again.next_end >= site.ledger.next_end);
                let now = site.inspect();
                assert!(now.in_use <= if kind.is_semaphore() { 3 } else { 1 });
                assert!(now.waiters.is_sorted_by_key(|waiter| again.places[&waiter.id]));
                assert!(site.ledger.last_number() >= last);
                last = site.ledger.last_number();
                site.ledger = again;
                site.effects = Effects::default();
            }
        }
    }

    #[test]
    fn a_text_that_is_not_a_record_is_rejected() {
        for text in ["", "x", "leasehold/1", "leasehold/1 mutex 1 0 0", "leasehold/1 mutex 1 0 0 0\nz 1"] {
            assert!(text.parse::<Ledger>().is_err(), "{text}");
        }
        assert!("leasehold/1 mutex 1 0 0 0".parse::<Ledger>().is_ok());
    }
}
