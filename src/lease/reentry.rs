//! Re-entering: the leases under which owners hold reentrant locks in this client.
//!
//! An owner that holds a lock re-enters by sharing its lease, without a request to the store. Only if it has no lease
//! in this client does it send a request, which the store grants at once, as a separate lease, if the owner holds the
//! lock elsewhere. Two requests of one owner that are in flight at once may get a lease each. On Redlock, the later one
//! may have a greater token; later guards share that one, because a fence rejects whatever is smaller.

use std::sync::Arc;

use tokio::time::Instant;

use super::lease::{Hold, Lease};
use crate::fence::FencingToken;
use crate::hash::HashMap;
use crate::sync::Mutex;

/// Lock key and owner.
type Identity = (Arc<str>, Arc<str>);
/// A lease that is held, and the token of its hold.
type Entry = (FencingToken, Arc<Lease>);

/// The leases of each owner, by lock.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    /// Those with the greatest tokens first.
    leases: Mutex<HashMap<Identity, Vec<Entry>>>,
}

impl Owners {
    /// Adds a guard to the lease under which `owner` holds the lock `key`, if there is one.
    pub(crate) fn enter(&self, key: &Arc<str>, owner: &Arc<str>) -> Option<Hold> {
        let now = Instant::now();
        let leases = self.leases.lock();
        let held = leases.get(&(Arc::clone(key), Arc::clone(owner)))?;
        held.iter().find_map(|(_, lease)| lease.enter(now))
    }

    /// From now on the owner of this hold's lease, if it has one, re-enters by it.
    pub(crate) fn remember(&self, hold: &Hold) {
        let Some(identity) = identity(&hold.lease) else { return };
        let mut leases = self.leases.lock();
        let held = leases.entry(identity).or_default();
        let place = held.partition_point(|(token, _)| *token > hold.token);
        held.insert(place, (hold.token, Arc::clone(&hold.lease)));
    }

    /// The lease is no longer held.
    pub(crate) fn forget(&self, lease: &Lease) {
        let Some(identity) = identity(lease) else { return };
        let mut leases = self.leases.lock();
        if let Some(held) = leases.get_mut(&identity) {
            held.retain(|(_, other)| other.id() != lease.id());
            if held.is_empty() {
                leases.remove(&identity);
            }
        }
    }
}

fn identity(lease: &Lease) -> Option<Identity> {
    lease.owner().map(|owner| (Arc::clone(&lease.resource().key), Arc::clone(owner)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::MemoryBackend;
    use crate::backend::{Answer, Claim, Grant, Kind, LeaseId, LeaseRef, Request, Resource};
    use crate::lease::keeper::Keeper;
    use crate::options::Settings;

    const TTL: Duration = Duration::from_secs(10);

    fn hold(owner: &Arc<str>, token: u64) -> Hold {
        let asked = LeaseRef::new(LeaseId::next(Uuid::nil()), Resource::new("lock:a", Kind::Mutex));
        let request = Request::new(asked, Claim::Owner(Arc::clone(owner)), TTL).waiting();
        let lease = Lease::new(request, Arc::new(Settings::new(TTL, TTL / 3, None, false)), None);
        let (token, now) = (FencingToken::new(token), Instant::now());
        lease.answered(Ok(Answer::Granted(Grant::new(token, None))), now, now);
        let hold = lease.hand().expect("granted");
        hold.begin(now);
        hold
    }

    #[test]
    fn of_several_leases_an_owner_enters_the_one_with_the_greatest_token() {
        let (owners, key, owner) = (Owners::default(), Arc::from("lock:a"), Arc::from("order:7"));
        let [first, second, third] = [41, 43, 42].map(|token| hold(&owner, token));
        for hold in [&first, &second, &third] {
            owners.remember(hold);
        }
        let token = || owners.enter(&key, &owner).map(|hold| hold.token.get());
        assert_eq!(token(), Some(43));
        owners.forget(&second.lease);
        assert_eq!(token(), Some(42));
        owners.forget(&third.lease);
        assert_eq!(token(), Some(41));
        owners.forget(&first.lease);
        assert_eq!(token(), None);
    }
    #[tokio::test(start_paused = true)]
    async fn no_lease_is_remembered_that_has_ended() {
        let ends: [fn(&Keeper, &Hold); 3] = [
            |keeper, hold| assert!(keeper.pass_on(hold, Instant::now(), false, None).is_ok()),
            |keeper, hold| assert!(keeper.hand_over(hold, 1).is_ok()),
            |keeper, hold| keeper.release_lost(&hold.lease),
        ];
        for end in ends {
            let (keeper, owner) = (Keeper::new(Arc::new(MemoryBackend::new()), None), Arc::from("order:7"));
            let hold = hold(&owner, 41);
            keeper.owners.remember(&hold);
            assert_eq!(keeper.owners.leases.lock().len(), 1);
            end(&keeper, &hold);
            assert_eq!(keeper.owners.leases.lock().len(), 0);
        }
    }
}
