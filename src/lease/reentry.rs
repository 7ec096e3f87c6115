//! Coming in again: the leases under which owners hold reentrant locks in this client.
//!
//! An owner that holds a lock comes in again by sharing the lease it has, without a word to the store. Only if it holds
//! nothing here does it ask the store, which lets it in if it holds the lock elsewhere; that is a lease of its own. Two
//! requests of one owner that are under way at once may end up with a lease each; either will do for the next one.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::lease::{Hold, Lease};
use crate::name::Name;
use crate::sync::Mutex;

/// Lock key and owner.
type Identity = (Arc<str>, Arc<str>);

/// Who holds what.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    leases: Mutex<HashMap<Identity, Vec<Arc<Lease>>>>,
}

impl Owners {
    /// The lease under which `owner` holds `name`, shared with one guard more.
    pub(crate) fn enter(&self, name: &Name, owner: &Arc<str>) -> Option<Hold> {
        let now = Instant::now();
        let leases = self.leases.lock();
        let held = leases.get(&(Arc::clone(name.key()), Arc::clone(owner)))?;
        held.iter().find_map(|lease| lease.enter(now))
    }

    /// From now on the owner of this lease, if it has one, comes in by it.
    pub(crate) fn remember(&self, lease: &Arc<Lease>) {
        if let Some(identity) = identity(lease) {
            self.leases.lock().entry(identity).or_default().push(Arc::clone(lease));
        }
    }

    /// Nobody holds this lease any more.
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
    lease.owner().map(|owner| (Arc::clone(lease.name().key()), Arc::clone(owner)))
}
