//! For stores that keep places in the queue apart from the record, and where a hold ends with something that is kept apart, too.
//!
//! They put the places into a record that was read without them, and look what has become of those after a change.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::{Ledger, Place, Stamp};
use crate::backend::types::{Detail, Event, Request, Resource, Ticket};
use crate::backend::{Claim, LeaseId, Limit};
use crate::fence::FencingToken;

/// When a place ends that has not been looked at: not yet, as far as is known.
pub(in crate::backend) const UNKNOWN: u64 = u64::MAX;

/// What is noted while a record is changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    /// Whether entries are noted: a record that stays in memory would note them for ever.
    is_noting: bool,
    asked: Vec<LeaseId>,
    entries: Vec<Request>,
    wants_ends: bool,
}

impl Ledger {
    /// From now on it is noted who asks and who enters.
    pub(in crate::backend) fn note_entries(&mut self) {
        self.noted.is_noting = true;
    }

    pub(super) fn note_request(&mut self, lease: LeaseId) {
        if self.noted.is_noting {
            self.noted.asked.push(lease);
        }
    }

    /// The leases that were asked for, whatever the answer was.
    pub(in crate::backend) fn asked(&self) -> &[LeaseId] {
        &self.noted.asked
    }

    pub(super) fn note(&mut self, request: &Request) {
        if self.noted.is_noting {
            self.noted.entries.push(request.clone());
        }
    }

    /// The requests that were admitted or joined the queue.
    pub(in crate::backend) fn entries(&self) -> &[Request] {
        &self.noted.entries
    }

    pub(in crate::backend) fn note_detail(&mut self, detail: Detail) {
        self.noted.wants_ends |= detail == Detail::Everybody;
    }

    /// Whether somebody has asked when the places end.
    pub(in crate::backend) const fn wants_ends(&self) -> bool {
        self.noted.wants_ends
    }

    /// Puts a place into the queue.
    pub(in crate::backend) fn put_place(&mut self, ticket: Ticket, request: &Request, ends: u64) {
        let Request { lease, claim, tokens, .. } = request;
        let (permits, owner) = (claim.permits(), claim.owner().cloned());
        self.next_end = self.next_end.min(ends);
        self.places.insert(lease.id, ticket);
        self.queue.insert(ticket, Place { lease: lease.id, permits, tokens: *tokens, ends, owner });
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

    /// The limit of a semaphore.
    pub(in crate::backend) const fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// Whether somebody holds permits of a semaphore.
    pub(in crate::backend) fn is_shared(&self) -> bool {
        self.kind.is_semaphore() && !self.holds.is_empty()
    }

    /// Whether somebody who joins could be served.
    pub(in crate::backend) fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// Grants what is free to the next places in the queue, as every request and every release does.
    pub(in crate::backend) fn serve_queue(&mut self, key: &Arc<str>, stamp: Stamp) -> Vec<Event> {
        let (resource, mut told) = (Resource::new(Arc::clone(key), self.kind), Vec::new());
        self.serve_all(&resource, stamp, &mut told);
        told
    }

    /// The same without the queue, and without what was noted.
    pub(in crate::backend) fn without_queue(&self) -> Self {
        let mut ledger = Self { noted: Noted::default(), queue: BTreeMap::new(), ..self.clone() };
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

/// The claim of a place that was put into the queue: a limit is agreed upon before.
pub(in crate::backend) fn claim(permits: u32, owner: Option<Arc<str>>, is_semaphore: bool) -> Claim {
    match owner {
        Some(owner) => Claim::Owner(owner),
        None if is_semaphore => Claim::Permits(permits, Limit::stated(permits)),
        None => Claim::Sole,
    }
}
