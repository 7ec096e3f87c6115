//! What must be stored to carry out requested changes: the difference that they make, under which etcd leases.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::leases::{EtcdLease, Leases};
use super::value::{Value, What};
use super::view::{Stored, View, seconds, stored_since};
use crate::backend::ledger::{Diff, Effects, Entry, EntryKind, Ledger, Reads, Stamp};
use crate::backend::{BackendError, Event, LeaseId, Request};

/// What is to be stored, and what the answers to the changes rely on.
#[derive(Debug, Default)]
pub(super) struct Plan {
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
    is_head_new: bool,
    /// Whether a place that has joined since could be granted as well.
    pub(super) could_admit: bool,
    /// Whether a cached view is not enough: something on which an answer relies may have expired.
    pub(super) needs_fresh: bool,
    pub(super) events: Vec<Event>,
    requests: Vec<Arc<Request>>,
    /// Whether an answer depended on when holds or places end.
    pub(super) do_ends_matter: bool,
}

impl Plan {
    /// Runs the changes on what is there. `joined` are the places that were created for them.
    pub(super) fn of(
        view: &View,
        joined: &BTreeSet<LeaseId>,
        leases: &Leases,
        run: impl Fn(&mut Ledger, Stamp) -> Effects,
    ) -> Result<Self, BackendError> {
        let carry_out = |without: &BTreeSet<LeaseId>| {
            let before = view.ledger(leases, without)?;
            let mut after = before.clone();
            let effects = run(&mut after, view.stamp());
            Ok::<_, BackendError>((before, after, effects))
        };
        // Having a place does not make a request valid: a request that would be refused without its place is still
        // refused.
        let (mut before, mut after, mut effects) = carry_out(joined)?;
        let refused: BTreeSet<_> = joined.iter().filter(|lease| !after.knows(**lease)).copied().collect();
        if refused.len() != joined.len() {
            (before, after, effects) = carry_out(&refused)?;
        }
        Ok(Self::between(view, &before, &after, effects))
    }

    fn between(view: &View, before: &Ledger, after: &Ledger, effects: Effects) -> Self {
        let diff = Diff::between(before, after);
        let mut plan = Self {
            head: after.head(),
            is_head_new: diff.is_head_new,
            do_ends_matter: effects.reads > Reads::NoEnds,
            events: effects.events,
            requests: effects.requests,
            // Besides what has ended, the places of refused requests.
            ended: view.entries.keys().filter(|lease| !after.knows(**lease)).copied().collect(),
            ..Self::default()
        };
        let value = |entry: &Entry, ttl| (entry.lease, value(entry, ttl, after));
        plan.joins = diff.joined.iter().map(|entry| value(entry, seconds(entry.ends))).collect();
        plan.begun = diff.begun.iter().map(|entry| value(entry, seconds(entry.ends))).collect();
        let mut replaced = BTreeSet::new();
        for (entry, stored) in with_stored(view, &diff.renewed) {
            let (ttl, is_place) = (seconds(entry.ends), matches!(entry.kind, EntryKind::Waiting { .. }));
            // A place has to stay where it is, so its TTL is the first one.
            if stored.value.ttl == ttl || is_place {
                plan.renewed.push(EtcdLease { id: stored.etcd_lease, ttl: stored.value.ttl });
            } else {
                replaced.insert(entry.lease);
                plan.begun.push(value(entry, ttl));
            }
        }
        let updated = diff.changed.iter().chain(&diff.revoked).chain(&diff.granted);
        let updated = with_stored(view, updated).filter(|(entry, _)| !replaced.contains(&entry.lease));
        plan.updated = updated.map(|(entry, stored)| value(entry, stored.value.ttl)).collect();
        if after.limit().is_some() && after.lapses() > before.lapses() {
            plan.limit_for = Some(seconds(after.lapses()));
        }
        let has_limit = view.limit.is_some() || !after.kind().is_semaphore();
        let brings_others = diff.is_owner_admitted();
        plan.needs_fresh = !plan.renewed.is_empty() || (brings_others && before.is_held()) || !has_limit;
        let permits = |ledger: &Ledger| ledger.limit().map(|limit| limit.permits);
        // No earlier request is overtaken, and a request that joins after a hold begins here can see that hold.
        plan.could_admit =
            !after.is_full() || !plan.begun.is_empty() || brings_others || permits(before) != permits(after);
        plan
    }

    /// The same, if whoever waits is to have a place before it is granted, because others always come first.
    pub(super) fn joining_first(mut self, view: &View) -> Self {
        let mut joins = Vec::new();
        for Request { lease, tokens, .. } in self.requests.iter().map(AsRef::as_ref).filter(|one| one.waits) {
            let is_new = |(id, _): &(LeaseId, Value)| *id == lease.id && !view.entries.contains_key(id);
            if let Some(n) = self.begun.iter().position(is_new) {
                let (lease, value) = self.begun.remove(n);
                joins.push((lease, Value { what: What::Place { tokens: *tokens, index: 0 }, ..value }));
            }
        }
        joins.append(&mut self.joins);
        Self { joins, ..self }
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

/// These, and how they are stored now. What is left of a hold that was ended by force is not a part of a new one.
fn with_stored<'a>(
    view: &'a View,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> impl Iterator<Item = (&'a Entry, &'a Stored)> {
    entries.into_iter().filter_map(|entry| Some((entry, view.entries.get(&entry.lease)?)))
}

fn value(entry: &Entry, ttl: u32, of: &Ledger) -> Value {
    let Entry { lease, permits, party, kind, .. } = entry.clone();
    let what = match kind {
        EntryKind::Held { token, since } => What::Hold { token, since: stored_since(since) },
        EntryKind::Revoked => What::Revoked,
        // The number is set when it is made.
        EntryKind::Waiting { tokens, .. } => What::Place { tokens, index: 0 },
    };
    Value { lease, kind: of.kind(), ttl, permits, what, party }
}
