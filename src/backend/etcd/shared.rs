//! What the tasks of a client share.

use std::collections::HashMap;
use std::sync::Arc;

use super::builder::Settings;
use super::keys::Keys;
use super::leases::Leases;
use super::link::Link;
use super::view::View;
use crate::backend::LeaseId;
use crate::backend::records::{Health, Schedule};
use crate::sync::Mutex;

/// Places, each with the etcd lease that it was attached to.
type Attached = Vec<(LeaseId, i64)>;

pub(super) struct Shared {
    pub(super) settings: Arc<Settings>,
    pub(super) health: Health,
    pub(super) link: Link,
    pub(super) keys: Keys,
    pub(super) leases: Leases,
    pub(super) schedule: Schedule<View>,
    /// Places of which it is not certain whether they were made, or may still be, with the etcd leases that they were attached to.
    doubtful: Mutex<HashMap<Arc<str>, Attached>>,
}

impl Shared {
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        Self {
            health: Health::new(settings.address.clone()),
            link: Link::new(Arc::clone(&settings)),
            keys: Keys::new(settings.prefix.clone()),
            settings,
            leases: Leases::default(),
            schedule: Schedule::default(),
            doubtful: Mutex::default(),
        }
    }

    /// It is not certain whether these places were made, or may still be.
    pub(super) fn doubt(&self, key: &Arc<str>, places: impl Iterator<Item = (LeaseId, i64)>) {
        self.doubtful.lock().entry(Arc::clone(key)).or_default().extend(places);
    }

    pub(super) fn is_doubtful(&self, key: &str, lease: LeaseId) -> bool {
        let doubtful = self.doubtful.lock();
        doubtful.get(key).is_some_and(|places| places.iter().any(|(known, _)| *known == lease))
    }

    /// Those of a key that have to be kept from being made after all, as nobody wants them any more.
    pub(super) fn take_doubtful(
        &self,
        key: &str,
        is_there: impl Fn(&LeaseId) -> bool,
    ) -> Vec<(LeaseId, i64)> {
        let mut doubtful = self.doubtful.lock();
        let Some(places) = doubtful.get_mut(key) else { return Vec::new() };
        let gone: Vec<_> = places.extract_if(.., |(lease, _)| !is_there(lease)).collect();
        if places.is_empty() {
            doubtful.remove(key);
        }
        gone
    }
}
