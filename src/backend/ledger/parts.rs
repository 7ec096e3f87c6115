//! The parts of a record, for stores that keep holds or places apart from it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::{Effects, FORM, Hold, Ledger, Party, Place, Stamp};
use crate::backend::LeaseId;
use crate::backend::types::{Claim, Kind, Limit, Request, Resource, Ticket};
use crate::fence::FencingToken;

/// The end of a place whose end has not been read: later than now, as far as is known.
#[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "not every store needs it"))]
pub(in crate::backend) const UNKNOWN: u64 = u64::MAX;

/// A hold, a place, or a lease that was released by force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::backend) struct Entry {
    pub(in crate::backend) lease: LeaseId,
    pub(in crate::backend) permits: u32,
    pub(in crate::backend) party: Arc<Party>,
    pub(in crate::backend) ends: u64,
    pub(in crate::backend) kind: EntryKind,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum EntryKind {
    /// A hold under this token, since then; 0 if that is not known.
    Held { token: FencingToken, since: u64 },
    /// A place, whose grant will reserve this many tokens.
    Waiting { ticket: Ticket, tokens: u32 },
    /// A hold that was ended by force.
    Revoked,
}

impl Entry {
    pub(super) fn held(lease: LeaseId, hold: &Hold) -> Self {
        let Hold { permits, token, ends, since, party } = hold.clone();
        Self { lease, permits, party, ends, kind: EntryKind::Held { token, since } }
    }

    pub(super) fn waiting(ticket: Ticket, place: &Place) -> Self {
        let Place { lease, permits, tokens, ends, party } = place.clone();
        Self { lease, permits, party, ends, kind: EntryKind::Waiting { ticket, tokens } }
    }

    pub(super) fn revoked(lease: LeaseId, ends: u64) -> Self {
        Self { lease, permits: 1, party: Arc::default(), ends, kind: EntryKind::Revoked }
    }

    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(super) const fn token(&self) -> Option<FencingToken> {
        if let EntryKind::Held { token, .. } = self.kind { Some(token) } else { None }
    }
}

#[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]
impl Ledger {
    /// The text form without entries, and the time when the limit lapses.
    pub(in crate::backend) fn head(&self) -> String {
        let (permits, version) = self.limit.map_or((0, 0), |limit| (limit.permits, limit.version));
        format!("{FORM} {} {} {permits} {version} 0", self.kind.as_str(), self.last)
    }

    /// The same with these holds and places as well, and a limit that lapses then. `None` if that is nothing that can be.
    pub(in crate::backend) fn with(self, entries: impl Iterator<Item = Entry>, lapses: u64) -> Option<Self> {
        let mut ledger = Self { lapses, ..self };
        for Entry { lease, permits, party, ends, kind } in entries {
            match kind {
                EntryKind::Held { token, since } => {
                    ledger.holds.insert(lease, Hold { permits, token, ends, since, party });
                }
                EntryKind::Revoked => {
                    ledger.revoked.insert(lease, ends);
                }
                EntryKind::Waiting { ticket, tokens } => {
                    ledger.queue.insert(ticket, Place { lease, permits, tokens, ends, party });
                }
            }
        }
        ledger.derive();
        ledger.is_possible().then_some(ledger)
    }

    /// The holds, the places in order, and the leases that were released by force.
    pub(in crate::backend) fn entries(&self) -> impl Iterator<Item = Entry> {
        let holds = self.holds.iter().map(|(lease, hold)| Entry::held(*lease, hold));
        let places = self.queue.iter().map(|(ticket, place)| Entry::waiting(*ticket, place));
        let revoked = self.revoked.iter().map(|(lease, ends)| Entry::revoked(*lease, *ends));
        holds.chain(places).chain(revoked)
    }

    pub(in crate::backend) const fn kind(&self) -> Kind {
        self.kind
    }

    pub(in crate::backend) const fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// The limit is not in force any more.
    pub(in crate::backend) const fn lapse(&mut self) {
        self.limit = None;
    }

    /// When the limit lapses if nobody holds or waits.
    pub(in crate::backend) const fn lapses(&self) -> u64 {
        self.lapses
    }

    pub(in crate::backend) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    /// Whether it is certain that no request of another owner can be granted.
    pub(in crate::backend) fn is_full(&self) -> bool {
        self.free() == 0 && !self.holds.is_empty()
    }

    /// Puts a place into the queue, unless the lease has one.
    pub(in crate::backend) fn put_place(&mut self, ticket: Ticket, request: &Request, ends: u64) {
        let Request { lease, claim, tokens, .. } = request;
        if self.places.contains_key(&lease.id) || self.queue.contains_key(&ticket) {
            return;
        }
        let (permits, party) = (claim.permits(), Arc::new(Party::of(request)));
        self.next_end = self.next_end.min(ends);
        self.places.insert(lease.id, ticket);
        self.queue.insert(ticket, Place { lease: lease.id, permits, tokens: *tokens, ends, party });
    }

    /// Ends all holds but those of these leases.
    pub(in crate::backend) fn retain_holds(&mut self, of: &HashSet<LeaseId>) {
        let before = self.holds.len();
        self.holds.retain(|lease, _| of.contains(lease));
        if self.holds.len() != before {
            self.derive();
        }
    }

    /// The token and the end of a hold.
    pub(in crate::backend) fn hold_of(&self, lease: LeaseId) -> Option<(FencingToken, u64)> {
        self.holds.get(&lease).map(|hold| (hold.token, hold.ends))
    }

    /// The end of a place.
    pub(in crate::backend) fn place_of(&self, lease: LeaseId) -> Option<u64> {
        self.places.get(&lease).and_then(|ticket| self.queue.get(ticket)).map(|place| place.ends)
    }

    /// The owner who holds a reentrant lock.
    #[cfg(feature = "zookeeper")]
    pub(in crate::backend) fn owner(&self) -> Option<&Arc<str>> {
        self.holds.values().find_map(|hold| hold.party.owner.as_ref())
    }

    /// The first waiter, if permits are free but too few for it, so that it blocks the queue.
    #[cfg(feature = "zookeeper")]
    pub(in crate::backend) fn first_that_does_not_fit(&self) -> Option<LeaseId> {
        let first = self.queue.values().next().filter(|_| self.free() > 0 && self.next_served().is_none())?;
        Some(first.lease)
    }

    /// Waiters whose owner holds: they are admitted when they ask again.
    #[cfg(feature = "zookeeper")]
    pub(in crate::backend) fn admissible(&self) -> impl Iterator<Item = LeaseId> {
        let owner = self.owner();
        let is_of_owner = move |place: &&Place| owner.is_some() && place.party.owner.as_ref() == owner;
        self.queue.values().filter(is_of_owner).map(|place| place.lease)
    }

    /// Whether a semaphore has holders.
    pub(in crate::backend) fn is_shared(&self) -> bool {
        self.kind.is_semaphore() && !self.holds.is_empty()
    }

    /// Whether a request that joins now could be granted.
    pub(in crate::backend) fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// Grants what is free to the next places in the queue, as every request and every release does.
    pub(in crate::backend) fn serve_queue(&mut self, key: &Arc<str>, stamp: Stamp) -> Effects {
        let (resource, mut effects) = (Resource::new(Arc::clone(key), self.kind), Effects::default());
        self.serve_all(&resource, stamp, &mut effects);
        effects
    }

    /// The same without the queue.
    pub(in crate::backend) fn without_queue(&self) -> Self {
        let mut ledger = Self { queue: BTreeMap::new(), ..self.clone() };
        ledger.derive();
        ledger
    }

    /// The text without the queue.
    pub(in crate::backend) fn text_of_holds(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_holds(&mut text);
        text
    }
}

/// The claim of a place in the queue. Its limit has already been checked.
#[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "not every store needs it"))]
pub(in crate::backend) fn claim(permits: u32, owner: Option<Arc<str>>, is_semaphore: bool) -> Claim {
    match owner {
        Some(owner) => Claim::Owner(owner),
        None if is_semaphore => Claim::Permits(permits, Limit::stated(permits)),
        None => Claim::Sole,
    }
}
