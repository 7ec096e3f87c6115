//! What a record is for one client: which of its leases hold, which wait, and behind whom.

use uuid::Uuid;

use crate::backend::ledger::{Entry, EntryKind};
use crate::backend::{Grant, LeaseId, LeaseRef, Ledger, Ticket};

/// What a record is for a client.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) is_semaphore: bool,
    /// The client's leases that hold.
    pub(super) holds: Vec<(LeaseId, Grant)>,
    /// The client's places in the queue.
    pub(super) places: Vec<Place>,
    /// How many places of other clients there are before the client's first one.
    pub(super) before: usize,
    /// The lease of another client that must end before the first place is served: the one ahead of it in the queue, or
    /// otherwise the holder.
    pub(super) behind: Option<LeaseId>,
    /// Whether other clients wait.
    pub(super) others_wait: bool,
    /// Set if it is so after a change of this client.
    pub(super) own: Option<OwnChange>,
}

/// What a client knows from its own change of a record.
#[derive(Debug)]
pub(super) struct OwnChange {
    /// The leases that held before.
    pub(super) held_before: Vec<LeaseId>,
    /// The leases that were asked for: the answers say what has become of them.
    pub(super) asked: Vec<LeaseRef>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) lease: LeaseId,
    pub(super) ticket: Ticket,
    /// Whether its owner holds the lock already: it is admitted when it asks.
    pub(super) is_admitted: bool,
}

impl View {
    /// Empty if the client is not known yet.
    pub(super) fn of(ledger: &Ledger, client: Option<Uuid>) -> Self {
        let Some(client) = client else { return Self::default() };
        let mut view = Self { is_semaphore: ledger.kind().is_semaphore(), ..Self::default() };
        let (mut owner, mut holder, mut last) = (None, None, None);
        // The holds, and then the places in order.
        for Entry { lease, party, kind, .. } in ledger.entries() {
            let is_own = lease.client() == client;
            match kind {
                EntryKind::Held { token, .. } => {
                    if is_own {
                        view.holds.push((lease, Grant::new(token, ledger.limit())));
                    } else {
                        holder = holder.or(Some(lease));
                    }
                    owner = owner.or_else(|| party.owner.clone());
                }
                EntryKind::Waiting { ticket, .. } if is_own => {
                    let is_admitted = party.owner.is_some() && party.owner == owner;
                    view.places.push(Place { lease, ticket, is_admitted });
                }
                EntryKind::Revoked => {}
                EntryKind::Waiting { .. } => {
                    view.others_wait = true;
                    if view.places.is_empty() {
                        view.before += 1;
                        last = Some(lease);
                    }
                }
            }
        }
        let last = last.or(holder);
        view.behind = last.filter(|_| !view.places.is_empty());
        view
    }

    /// The client's leases, whether they hold or wait.
    pub(super) fn leases(&self) -> impl Iterator<Item = LeaseId> {
        let holds = self.holds.iter().map(|(lease, _)| *lease);
        holds.chain(self.places.iter().map(|place| place.lease))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.places.is_empty()
    }

    pub(super) fn grant(&self, lease: LeaseId) -> Option<Grant> {
        self.holds.iter().find(|(held, _)| *held == lease).map(|(_, grant)| *grant)
    }

    /// Whether a lease that holds was granted by another client, and this client does not know it yet.
    pub(super) fn is_found(&self, lease: LeaseId) -> bool {
        let known = |own: &OwnChange| !own.held_before.contains(&lease) || self.asked(lease).is_some();
        !self.own.as_ref().is_some_and(known)
    }

    /// A lease by its id, if it was asked for just now.
    pub(super) fn asked(&self, lease: LeaseId) -> Option<&LeaseRef> {
        self.own.iter().flat_map(|own| &own.asked).find(|asked| asked.id == lease)
    }

    pub(super) fn place(&self, lease: LeaseId) -> Option<Place> {
        self.places.iter().find(|place| place.lease == lease).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backend::{Answer, Claim, Effects, Kind, LeaseId, Request, Resource, Stamp};

    const TTL: Duration = Duration::from_secs(1);

    fn request(ledger: &mut Ledger, client: Uuid, claim: Claim, kind: Kind) -> (LeaseRef, Answer) {
        let lease = LeaseRef::new(LeaseId::next(client), Resource::new("key", kind));
        let request = Request::new(lease.clone(), claim, TTL).waiting();
        (lease, ledger.request(&request, Stamp::new(1, 1, 1), &mut Effects::default()).unwrap())
    }

    #[test]
    fn a_client_waits_for_the_place_ahead_of_it_or_else_for_the_holder() {
        let (ours, theirs, mut ledger) = (Uuid::new_v4(), Uuid::new_v4(), Ledger::default());
        let mut sole = |client| request(&mut ledger, client, Claim::Sole, Kind::Mutex).0;
        let (held, first) = (sole(theirs), sole(ours));
        let view = View::of(&ledger, Some(ours));
        assert_eq!((view.behind, view.before, view.others_wait), (Some(held.id), 0, false));
        assert_eq!(view.leases().collect::<Vec<_>>(), [first.id]);
        let view = View::of(&ledger, Some(theirs));
        assert_eq!((view.behind, view.others_wait), (None, true));
        assert_eq!(view.leases().collect::<Vec<_>>(), [held.id]);

        let third = Uuid::new_v4();
        request(&mut ledger, third, Claim::Sole, Kind::Mutex);
        let view = View::of(&ledger, Some(third));
        assert_eq!((view.behind, view.before), (Some(first.id), 1));
        assert!(View::of(&ledger, None).is_empty());
    }

    #[test]
    fn a_waiter_whose_owner_holds_is_admitted() {
        let (ours, theirs, mut ledger) = (Uuid::new_v4(), Uuid::new_v4(), Ledger::default());
        let owner: Arc<str> = "owner".into();
        request(&mut ledger, theirs, Claim::Sole, Kind::Mutex);
        request(&mut ledger, ours, Claim::Owner(Arc::clone(&owner)), Kind::Reentrant);
        let view = View::of(&ledger, Some(ours));
        assert!(!view.places[0].is_admitted);
    }
}
