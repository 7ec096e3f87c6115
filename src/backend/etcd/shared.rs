//! What the tasks of a client share.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::keys::Keys;
use super::leases::{EtcdLease, Leases};
use super::link::Link;
use super::settings::Settings;
use super::view::View;
use crate::backend::LeaseId;
use crate::backend::records::{Health, Schedule};

pub(super) struct Shared {
    pub(super) settings: Arc<Settings>,
    pub(super) health: Health,
    pub(super) link: Link,
    pub(super) keys: Keys,
    pub(super) leases: Leases,
    pub(super) schedule: Schedule<View>,
    /// The etcd leases that holds and places are, or may be, attached to.
    attached: Mutex<HashMap<Arc<str>, Vec<Attached>>>,
}

/// What a hold or a place is attached to.
#[derive(Clone, Copy, Debug)]
struct Attached {
    lease: LeaseId,
    etcd_lease: EtcdLease,
    /// Whether an attempt to make it may still be on its way.
    is_doubtful: bool,
}

impl Shared {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let keys = Keys::new(settings.prefix.clone());
        Self {
            health: Health::new(settings.address.clone()),
            link: Link::new(Arc::clone(&settings), keys.nothing()),
            keys,
            settings,
            leases: Leases::default(),
            schedule: Schedule::default(),
            attached: Mutex::default(),
        }
    }

    /// The etcd lease under which this was tried to be made before, and may have been: it has to be the same again.
    pub(super) fn attached(&self, key: &str, lease: LeaseId) -> Option<EtcdLease> {
        let attached = self.attached.lock();
        let known = attached.get(key)?.iter().find(|known| known.lease == lease)?;
        Some(known.etcd_lease)
    }

    /// This is about to be made under an etcd lease.
    pub(super) fn attach(&self, key: &Arc<str>, lease: LeaseId, etcd_lease: EtcdLease) {
        let mut attached = self.attached.lock();
        let known = attached.entry(Arc::clone(key)).or_default();
        known.retain(|known| known.lease != lease || known.is_doubtful);
        if !known.iter().any(|known| known.lease == lease && known.etcd_lease == etcd_lease) {
            known.push(Attached { lease, etcd_lease, is_doubtful: false });
        }
    }

    /// Whether anything of this client is held, or waits.
    pub(super) fn is_in_use(&self) -> bool {
        !self.attached.lock().is_empty()
    }

    /// It is not certain whether this was made, or may still be.
    pub(super) fn mark_uncertain(&self, key: &str, lease: LeaseId) {
        let mut attached = self.attached.lock();
        let known = attached.get_mut(key).into_iter().flatten();
        known.filter(|known| known.lease == lease).for_each(|known| known.is_doubtful = true);
    }

    /// A hold was ended by force, and the memory of that expires with its etcd lease, which is not used again.
    pub(super) fn abandon(&self, key: &str, lease: LeaseId, etcd_lease: i64) {
        let mut attached = self.attached.lock();
        let Some(known) = attached.get_mut(key) else { return };
        known.retain(|known| known.lease != lease || known.etcd_lease.id != etcd_lease);
        if known.is_empty() {
            attached.remove(key);
        }
    }

    /// Those of a key that are not there any more may be used again. Returns the others: those that may still be made
    /// after all.
    pub(super) fn detach(&self, key: &str, is_there: impl Fn(LeaseId) -> bool) -> Vec<EtcdLease> {
        let mut attached = self.attached.lock();
        let Some(known) = attached.get_mut(key) else { return Vec::new() };
        let gone: Vec<_> = known.extract_if(.., |known| !is_there(known.lease)).collect();
        if known.is_empty() {
            attached.remove(key);
        }
        drop(attached);
        let (doubtful, gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(|gone| gone.is_doubtful);
        gone.into_iter().for_each(|gone| self.leases.give_back(gone.etcd_lease));
        doubtful.into_iter().map(|doubtful| doubtful.etcd_lease).collect()
    }
}
