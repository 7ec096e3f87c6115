//! What must be stored to carry out requested changes.

use std::collections::{BTreeMap, BTreeSet};

use super::leases::{EtcdLease, Leases};
use super::value::{Value, What};
use super::view::{Stored, View, seconds};
use crate::backend::ledger::{Effects, Entry, EntryKind, Ledger, Reads};
use crate::backend::records::KeyBatch;
use crate::backend::{BackendError, Event, LeaseId};

/// The differences between a resource before and after a batch of changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// New places. They are created first, and then the resource is read again, so that no new waiter is overlooked.
    pub(super) joins: Vec<(LeaseId, Value)>,
    /// Holds and places that end.
    pub(super) ended: Vec<LeaseId>,
    /// Those that stay under their etcd leases: places that are granted, holds that are reduced.
    pub(super) updated: Vec<(LeaseId, Value)>,
    /// Holds that begin, and holds that continue with another TTL.
    pub(super) begun: Vec<(LeaseId, Value)>,
    /// Holds and places that are renewed.
    pub(super) renewed: Vec<EtcdLease>,
    /// For how many seconds the limit stays in force at least.
    pub(super) limit_for: Option<u32>,
    pub(super) head: String,
    pub(super) is_head_new: bool,
    /// Whether a place that has joined since could be granted as well.
    pub(super) could_admit: bool,
    /// Whether a cached view is not enough: something on which an answer relies may have expired.
    pub(super) needs_fresh: bool,
    pub(super) events: Vec<Event>,
    /// Whether an answer depended on when holds or places end.
    pub(super) do_ends_matter: bool,
}

impl Changes {
    /// Runs the changes. `joined` are the places that were created for them.
    pub(super) fn of(
        view: &View,
        batch: &KeyBatch<View>,
        joined: &BTreeSet<LeaseId>,
        leases: &Leases,
    ) -> Result<Self, BackendError> {
        let before = view.ledger(leases, joined)?;
        let (after, effects) = run(batch, view, &before);
        if joined.is_empty() {
            return Ok(Self::between(view, &before, &after, effects));
        }
        // Having a place does not make a request valid: a request that would be refused without its place is still refused.
        let known: BTreeSet<_> = after.entries().map(|entry| entry.lease).collect();
        let refused = joined - &known;
        if refused.len() == joined.len() {
            return Ok(Self::between(view, &before, &after, effects));
        }
        let before = view.ledger(leases, &refused)?;
        let (after, effects) = run(batch, view, &before);
        Ok(Self::between(view, &before, &after, effects))
    }

    fn between(view: &View, before: &Ledger, after: &Ledger, effects: Effects) -> Self {
        let head = after.head();
        let mut changes = Self {
            is_head_new: head != before.head(),
            head,
            do_ends_matter: effects.reads > Reads::NoEnds,
            events: effects.events,
            ..Self::default()
        };
        let known: BTreeMap<_, _> = before.entries().map(|entry| (entry.lease, entry)).collect();
        let mut left: BTreeSet<_> = view.entries.keys().copied().collect();
        let mut is_owner_admitted = false;
        for entry in after.entries() {
            left.remove(&entry.lease);
            let known = known.get(&entry.lease);
            is_owner_admitted |= entry.owner.is_some() && known.is_none_or(|known| is_granted(known, &entry));
            changes.note(view, after, known, entry);
        }
        changes.ended = left.into_iter().collect();
        let is_held = known.values().any(|entry| matches!(entry.kind, EntryKind::Held(_)));
        let has_limit = view.limit.is_some() || !after.kind().is_semaphore();
        changes.needs_fresh = !changes.renewed.is_empty() || (is_owner_admitted && is_held) || !has_limit;
        if after.limit().is_some() && after.lapses() > before.lapses() {
            changes.limit_for = Some(seconds(after.lapses()));
        }
        let permits = |ledger: &Ledger| ledger.limit().map(|limit| limit.permits);
        // No earlier request is overtaken, and a request that joins after a hold begins here can see that hold.
        let is_any_begun = !changes.begun.is_empty();
        changes.could_admit =
            !after.is_full() || is_any_begun || is_owner_admitted || permits(before) != permits(after);
        changes
    }

    /// Notes how a hold or a place differs from what it was.
    fn note(&mut self, view: &View, ledger: &Ledger, before: Option<&Entry>, entry: Entry) {
        let is_new = |stored: &&Stored| !stored.is_revoked() || entry.kind == EntryKind::Revoked;
        let stored = view.entries.get(&entry.lease).filter(is_new);
        let is_renewed = before.is_none_or(|before| before.ends != entry.ends);
        let ttl = match stored {
            Some(stored) if !is_renewed => stored.value.ttl,
            _ => seconds(entry.ends),
        };
        let what = match entry.kind {
            EntryKind::Held(token) => What::Hold(token),
            EntryKind::Revoked => What::Revoked,
            EntryKind::Waiting { tokens, .. } => match stored.map(|stored| stored.value.what) {
                Some(What::Place { index, .. }) => What::Place { tokens, index },
                // The number is set when it is made.
                _ => What::Place { tokens, index: 0 },
            },
        };
        let is_place = matches!(what, What::Place { .. });
        let is_same =
            before.is_some_and(|before| before.permits == entry.permits && before.kind == entry.kind);
        let Entry { lease, permits, owner, .. } = entry;
        let value = Value { lease, kind: ledger.kind(), ttl, permits, what, owner };
        match stored {
            None if is_place => self.joins.push((lease, value)),
            None => self.begun.push((lease, value)),
            // A place has to stay where it is, so its TTL is the first one.
            Some(stored) if is_renewed && stored.value.ttl != ttl && !is_place => {
                self.begun.push((lease, value));
            }
            Some(stored) => {
                if is_renewed {
                    self.renewed.push(EtcdLease { id: stored.etcd_lease, ttl: stored.value.ttl });
                }
                if !is_same {
                    self.updated.push((lease, value));
                }
            }
        }
    }

    /// Whether a hold begins, and nothing else happens.
    pub(super) fn is_one_hold(&self) -> bool {
        let Self { joins, ended, updated, begun, renewed, limit_for, events, .. } = self;
        begun.len() == 1
            && joins.is_empty()
            && ended.is_empty()
            && updated.is_empty()
            && renewed.is_empty()
            && limit_for.is_none()
            && events.is_empty()
    }

    /// Whether holds and places change, and with them the record.
    pub(super) fn is_to_be_written(&self) -> bool {
        let Self { joins, ended, updated, begun, events, is_head_new, .. } = self;
        *is_head_new
            || !(joins.is_empty()
                && ended.is_empty()
                && updated.is_empty()
                && begun.is_empty()
                && events.is_empty())
    }
}

fn run(batch: &KeyBatch<View>, view: &View, before: &Ledger) -> (Ledger, Effects) {
    let (mut ledger, stamp) = (before.clone(), view.stamp());
    let effects = batch.tasks.iter().map(|task| task.run(&mut ledger, stamp)).collect();
    (ledger, effects)
}

fn is_granted(before: &Entry, after: &Entry) -> bool {
    matches!((before.kind, after.kind), (EntryKind::Waiting { .. }, EntryKind::Held(_)))
}
