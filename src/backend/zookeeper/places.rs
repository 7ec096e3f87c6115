//! The nodes of this client's own leases, which it watches: a client that serves or ends a lease notifies its client by
//! writing or deleting the node.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use uuid::Uuid;

use super::op::Stat;
use super::view::{Mark, Seen, View};
use crate::backend::{Event, EventSender, LeaseId, LeaseRef, Ticket};

#[derive(Default)]
pub(super) struct Places(Mutex<State>);

#[derive(Default)]
struct State {
    client: Option<Uuid>,
    events: EventSender,
    own: HashMap<Arc<str>, BTreeMap<LeaseId, Own>>,
    by_path: HashMap<String, (Arc<str>, LeaseId)>,
}

/// The node of one of this client's leases.
struct Own {
    path: String,
    lease: LeaseRef,
    ticket: Ticket,
    /// What this client has written last, unless another client may have written since.
    seen: Option<Seen>,
    /// Whether it holds, as far as its client has been told.
    is_hold: bool,
    is_watched: bool,
    /// Whether this client is about to delete it.
    is_leaving: bool,
}

impl Places {
    /// The events from now on, for the client of this name. A later stream replaces an earlier one.
    pub(super) fn open(&self, client: Uuid) -> BoxStream<'static, Event> {
        let mut state = self.0.lock();
        state.client = Some(client);
        state.events.open().chain(stream::pending()).boxed()
    }

    pub(super) fn client(&self) -> Option<Uuid> {
        self.0.lock().client
    }

    pub(super) fn send(&self, events: impl Iterator<Item = Event>) {
        let state = self.0.lock();
        events.for_each(|event| state.events.send(event));
    }

    /// Whether none of this client's leases holds or waits.
    pub(super) fn are_empty(&self) -> bool {
        self.0.lock().own.is_empty()
    }

    /// Adds what this client knows of its own leases, which is newer than what it may have read.
    pub(super) fn recall(&self, key: &Arc<str>, view: &mut View) {
        let state = self.0.lock();
        let Some(own) = state.own.get(key) else { return };
        for child in &mut view.children {
            let own = own.get(&child.name.lease()).filter(|own| own.path.ends_with(&child.node));
            let seen = own.and_then(|own| own.seen);
            if seen.is_some_and(|seen| child.seen.is_none_or(|read| read.version <= seen.version)) {
                child.seen = seen;
            }
        }
    }

    /// Another client has written the nodes of these leases.
    pub(super) fn mark_uncertain(&self, key: &Arc<str>, leases: &[LeaseId]) {
        let mut state = self.0.lock();
        let Some(own) = state.own.get_mut(key) else { return };
        for lease in leases {
            if let Some(own) = own.get_mut(lease) {
                own.seen = None;
            }
        }
    }

    /// This client is about to delete the nodes of these leases.
    pub(super) fn leave(&self, key: &Arc<str>, leases: impl Iterator<Item = LeaseId>) {
        let mut state = self.0.lock();
        let Some(own) = state.own.get_mut(key) else { return };
        for lease in leases {
            if let Some(own) = own.get_mut(&lease) {
                own.is_leaving = true;
            }
        }
    }

    /// Updates the places of a key from this view. A lease that waited and now holds is reported through its node,
    /// unless the client `knows` it from an answer. Returns the paths of the unwatched nodes of waiting leases, and
    /// whether there are unwatched nodes of holds.
    pub(super) fn note(
        &self,
        key: &Arc<str>,
        path: &str,
        view: &View,
        knows: impl Fn(LeaseId) -> bool,
    ) -> (Vec<String>, bool) {
        let mut state = self.0.lock();
        let Some(client) = state.client else { return (Vec::new(), false) };
        let mut before = state.own.remove(key).unwrap_or_default();
        let (mut own, mut to_watch, mut are_holds) = (BTreeMap::new(), Vec::new(), false);
        let Some(record) = &view.record else {
            before.into_values().for_each(|gone| state.end(gone));
            return (to_watch, are_holds);
        };
        for child in view.children.iter().filter(|child| child.name.lease().client() == client) {
            let (lease, path) = (&child.name.request.lease, format!("{path}/{}", child.node));
            let known = before.remove(&lease.id);
            let is_watched = known.as_ref().is_some_and(|known| known.path == path && known.is_watched);
            let waited = known.as_ref().is_some_and(|known| !known.is_hold);
            let is_hold = record.ledger.hold_of(lease.id).is_some() && (!waited || knows(lease.id));
            if !is_watched && !is_hold {
                to_watch.push(path.clone());
            }
            are_holds |= !is_watched && is_hold;
            state.by_path.insert(path.clone(), (Arc::clone(key), lease.id));
            let (ticket, seen) = (record.ticket(&child.name), child.seen);
            let is_watched = is_watched || !is_hold;
            let lease = lease.clone();
            own.insert(lease.id, Own { path, lease, ticket, seen, is_hold, is_watched, is_leaving: false });
        }
        before.into_values().for_each(|gone| state.end(gone));
        if !own.is_empty() {
            state.own.insert(Arc::clone(key), own);
        }
        (to_watch, are_holds)
    }

    /// The paths of the nodes that are to be watched: all of them, as there is a new connection, or those of holds that
    /// are not.
    pub(super) fn to_watch(&self, all: bool) -> Vec<String> {
        let mut state = self.0.lock();
        let own = state.own.values_mut().flat_map(BTreeMap::values_mut);
        let unwatched = own.filter(|own| (all || !own.is_watched) && !own.is_leaving);
        unwatched
            .map(|own| {
                own.is_watched = true;
                own.path.clone()
            })
            .collect()
    }

    /// The key of the node at this path, if it is one of this client's.
    pub(super) fn key_of(&self, path: &str) -> Option<Arc<str>> {
        self.0.lock().by_path.get(path).map(|(key, _)| Arc::clone(key))
    }

    /// What was found in the node at this path.
    pub(super) fn found(&self, path: &str, data: &[u8], stat: Stat) {
        let mut state = self.0.lock();
        let Some(own) = state.at(path) else { return };
        let is_news = own.seen.is_none_or(|seen| seen.version < stat.version);
        if !is_news || own.is_leaving {
            return;
        }
        own.seen = Some(Seen::of(data, stat));
        let (lease, ticket) = (own.lease.clone(), own.ticket);
        match Mark::read(data) {
            Some(Mark::Granted(grant)) if !own.is_hold => {
                own.is_hold = true;
                // When its place would have ended is known to the client.
                state.events.send(Event::Granted { lease, ticket, grant });
            }
            Some(Mark::AskAgain(_)) => state.events.send(Event::AskAgain(lease.id)),
            _ => {}
        }
    }

    /// The node at this path does not exist any more.
    pub(super) fn gone(&self, path: &str) {
        let mut state = self.0.lock();
        let Some((key, lease)) = state.by_path.get(path).cloned() else { return };
        let Some(of_key) = state.own.get_mut(&key) else { return };
        let gone = of_key.remove(&lease);
        if of_key.is_empty() {
            state.own.remove(&key);
        }
        if let Some(gone) = gone {
            state.end(gone);
        }
    }
}

impl State {
    fn at(&mut self, path: &str) -> Option<&mut Own> {
        let (key, lease) = self.by_path.get(path)?;
        self.own.get_mut(key)?.get_mut(lease)
    }

    /// A lease no longer has a hold or a place. Unless this client ended it, an event reports that: whether it was
    /// released by force, or its session has ended, is found when it is renewed.
    fn end(&mut self, own: Own) {
        self.by_path.remove(&own.path);
        if !own.is_leaving {
            self.events.send(Event::AskAgain(own.lease.id));
        }
    }
}
