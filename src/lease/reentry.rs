//! Re-entering: the leases under which owners hold reentrant locks in this client.
//!
//! An owner that holds a lock re-enters by sharing its lease, without a request to the store. Only if it has no lease
//! in this client does it send a request, which the store grants at once, as a separate lease, if the owner holds the
//! lock elsewhere. Two requests of one owner that are in flight at once may get a lease each; later guards may share
//! either of them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::lease::{Hold, Lease};
use crate::hash::HashMap;

/// Lock key and owner.
type Identity = (Arc<str>, Arc<str>);

/// The leases of each owner, by lock.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    leases: Mutex<HashMap<Identity, Vec<Arc<Lease>>>>,
}

impl Owners {
    /// Adds a guard to the lease under which `owner` holds the lock `key`, if there is one.
    pub(crate) fn enter(&self, key: &Arc<str>, owner: &Arc<str>) -> Option<Hold> {
        let now = Instant::now();
        let leases = self.leases.lock();
        let held = leases.get(&(Arc::clone(key), Arc::clone(owner)))?;
        held.iter().find_map(|lease| lease.enter(now))
    }

    /// From now on the owner of this lease, if it has one, re-enters by it.
    pub(crate) fn remember(&self, lease: &Arc<Lease>) {
        if let Some(identity) = identity(lease) {
            self.leases.lock().entry(identity).or_default().push(Arc::clone(lease));
        }
    }

    /// The lease is no longer held.
    pub(crate) fn forget(&self, lease: &Lease) {
        let Some(identity) = identity(lease) else { return };
        let mut leases = self.leases.lock();
        if let Some(held) = leases.get_mut(&identity) {
            held.retain(|other| other.id() != lease.id());
            if held.is_empty() {
                leases.remove(&identity);
            }
        }
    }
}

fn identity(lease: &Lease) -> Option<Identity> {
    lease.owner().map(|owner| (Arc::clone(&lease.resource().key), Arc::clone(owner)))
}
