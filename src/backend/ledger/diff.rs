//! How a record differs from what it was.

use super::parts::Entry;
use super::{Hold, Ledger, Place};
use crate::backend::LeaseId;
use crate::backend::types::Ticket;

/// How a record differs from what it was before some operations, for stores that keep holds and places apart from it. A
/// lease that was released by force counts as new if it holds or waits again.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]
pub(in crate::backend) struct Diff {
    /// Holds of leases that neither held nor waited.
    pub(in crate::backend) begun: Vec<Entry>,
    /// Places of leases that neither held nor waited.
    pub(in crate::backend) joined: Vec<Entry>,
    /// Holds of leases that waited, in the order in which they were granted.
    pub(in crate::backend) granted: Vec<Entry>,
    /// Holds with other permits or under another token, and places of leases that held.
    pub(in crate::backend) changed: Vec<Entry>,
    /// What is left of holds that were ended by force.
    pub(in crate::backend) revoked: Vec<Entry>,
    /// Holds and places that were there and end at another time, also if they are granted or changed.
    pub(in crate::backend) renewed: Vec<Entry>,
    /// Leases of which nothing is left.
    pub(in crate::backend) ended: Vec<LeaseId>,
    /// Whether the kind, the limit or the last number is another one.
    pub(in crate::backend) is_head_new: bool,
}

#[cfg_attr(not(feature = "all-stores"), allow(dead_code, reason = "each store uses a part of it"))]
impl Diff {
    pub(in crate::backend) fn between(before: &Ledger, after: &Ledger) -> Self {
        let mut diff = Self { is_head_new: before.head() != after.head(), ..Self::default() };
        for (lease, hold) in &after.holds {
            diff.note_hold(*lease, hold, before);
        }
        diff.granted.sort_by_key(Entry::token);
        for (ticket, place) in &after.queue {
            diff.note_place(*ticket, place, before);
        }
        let revoked = after.revoked.iter().filter(|(lease, _)| !before.revoked.contains_key(lease));
        diff.revoked = revoked.map(|(lease, ends)| Entry::revoked(*lease, *ends)).collect();
        let known = before.holds.keys().chain(before.places.keys()).chain(before.revoked.keys());
        diff.ended = known.filter(|lease| !after.knows(**lease)).copied().collect();
        diff
    }

    fn note_hold(&mut self, lease: LeaseId, hold: &Hold, before: &Ledger) {
        let entry = || Entry::held(lease, hold);
        let ends = match (before.holds.get(&lease), before.place_of(lease)) {
            (Some(was), _) => {
                if (was.permits, was.token) != (hold.permits, hold.token) {
                    self.changed.push(entry());
                }
                was.ends
            }
            (None, Some(ends)) => {
                self.granted.push(entry());
                ends
            }
            (None, None) => return self.begun.push(entry()),
        };
        if ends != hold.ends {
            self.renewed.push(entry());
        }
    }

    fn note_place(&mut self, ticket: Ticket, place: &Place, before: &Ledger) {
        let entry = || Entry::waiting(ticket, place);
        let ends = match (before.holds.get(&place.lease), before.place_of(place.lease)) {
            (Some(was), _) => {
                self.changed.push(entry());
                was.ends
            }
            (None, Some(ends)) => ends,
            (None, None) => return self.joined.push(entry()),
        };
        if ends != place.ends {
            self.renewed.push(entry());
        }
    }

    /// Whether an owner is admitted who can bring others along.
    pub(in crate::backend) fn is_owner_admitted(&self) -> bool {
        self.begun.iter().chain(&self.granted).any(|entry| entry.party.owner.is_some())
    }
}

impl Ledger {
    /// Whether a lease holds or waits, or was released by force.
    pub(in crate::backend) fn knows(&self, lease: LeaseId) -> bool {
        self.holds.contains_key(&lease)
            || self.places.contains_key(&lease)
            || self.revoked.contains_key(&lease)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::backend::{Claim, Effects, Kind, LeaseRef, Request, Resource, Stamp};

    #[test]
    fn a_place_that_is_extended_and_granted_at_once_is_both_granted_and_renewed() {
        let (resource, mut effects) = (Resource::new("key", Kind::Mutex), Effects::default());
        let mut request = |ledger: &mut Ledger, lease, now| {
            let lease = LeaseRef::new(lease, resource.clone());
            let request = Request::new(lease, Claim::Sole, Duration::from_secs(10)).waiting();
            ledger.request(&request, Stamp::new(now, now, 0), &mut effects).unwrap();
        };
        let (first, next) = (LeaseId::next(Uuid::nil()), LeaseId::next(Uuid::nil()));
        let mut before = Ledger::default();
        request(&mut before, first, 1);
        request(&mut before, next, 5_000_000);
        let mut after = before.clone();
        request(&mut after, next, 11_000_000);
        let diff = Diff::between(&before, &after);
        let leases = |entries: &[Entry]| entries.iter().map(|entry| entry.lease).collect::<Vec<_>>();
        assert_eq!((leases(&diff.granted), leases(&diff.renewed)), (vec![next], vec![next]));
        assert_eq!((diff.ended, diff.is_head_new), (vec![first], true));
        assert!(diff.begun.is_empty() && diff.joined.is_empty() && diff.changed.is_empty());
    }
}
