//! Storing what was worked out, if nobody has changed the record in the meantime.

use std::collections::{BTreeMap, VecDeque};

use prost::Message;
use uuid::Uuid;

use super::calls::{Calls, Stop, is_lease_missing};
use super::changes::Changes;
use super::leases::{EtcdLease, Taken};
use super::mail::Mail;
use super::proto::{RangeResponse, RequestOp, TxnRequest, TxnResponse};
use super::transaction::{MOST, delete, put, revision_of};
use super::value::{Value, What};
use super::view::{Record, Stored, View};
use crate::backend::records::Failure;
use crate::backend::{Event, LeaseId};

/// The maximum number of holds and places that are sent along with a grant.
const MAX_SENT: usize = 8;

/// What became of it.
pub(super) enum Written {
    /// It is stored, and this is what is there now.
    Stored(View),
    /// Stored as far as it has to be, but what is there now is not known.
    Enough,
    /// Others came first, and this is what is there now.
    Conflict(View),
    /// An etcd lease has ended that it needed.
    LeaseEnded,
}

/// How one hold or place changes.
#[derive(Clone, Debug)]
enum Step {
    End { lease: LeaseId },
    Update { lease: LeaseId, value: Value },
    Begin { lease: LeaseId, value: Value, etcd_lease: EtcdLease },
}

impl Step {
    const fn lease(&self) -> LeaseId {
        match self {
            Self::End { lease } | Self::Update { lease, .. } | Self::Begin { lease, .. } => *lease,
        }
    }

    /// Whether it need not be stored if others have changed the record since: they grant what is free to the same places.
    const fn is_grant(&self) -> bool {
        matches!(self, Self::Update { value: Value { what: What::Hold(_), .. }, .. })
    }
}

impl Calls<'_> {
    /// Stores changes, in as many transactions as they take: all but the first are grants, unless there are very many.
    pub(super) async fn write(
        &self,
        now: View,
        changes: Changes,
        limit: Option<EtcdLease>,
    ) -> Result<Written, Stop> {
        let taken = self.take(&changes.begun).await?;
        let mut steps = steps(&changes, &taken);
        let mut events = changes.events.clone();
        let (mut view, mut limit, mut is_first) = (now, limit, true);
        loop {
            let part: Vec<_> = steps.drain(..steps.len().min(MOST)).collect();
            let (now, later) = events_with(&part, events, is_first);
            events = later;
            let transaction =
                Transaction { view: &view, changes: &changes, steps: &part, events: &now, limit };
            let request = self.request(&transaction);
            let taken = if is_first { taken.as_slice() } else { &[] };
            let (answer, are_alive) = match self.send(request, taken).await {
                Ok(answer) => answer,
                Err(failure) if is_first && is_lease_missing(&failure) => {
                    self.forget(&changes.begun, taken);
                    return Ok(Written::LeaseEnded);
                }
                Err(failure) => {
                    let is_certain = is_first && failure.is_certain;
                    if !is_certain {
                        self.mark_uncertain(&changes.begun);
                    }
                    return Err(Stop::Writing(Failure { is_certain, ..failure }));
                }
            };
            if !are_alive {
                self.forget(&changes.begun, taken);
            }
            if !answer.succeeded {
                let are_grants = || part.iter().chain(&steps).all(|step| step.is_grant());
                return if !is_first && are_grants() { Ok(Written::Enough) } else { self.conflict(answer) };
            }
            let revision = revision_of(&answer).map_err(Stop::Writing)?;
            view = apply(&transaction, revision);
            if steps.is_empty() {
                return Ok(Written::Stored(view));
            }
            (is_first, limit) = (false, None);
        }
    }

    fn conflict(&self, answer: TxnResponse) -> Result<Written, Stop> {
        let view = self.keys.seen(answer).map_err(Stop::Writing)?;
        view.map(Written::Conflict).map_err(Stop::Unreadable)
    }

    fn request(&self, transaction: &Transaction<'_>) -> TxnRequest {
        let Transaction { view, changes, steps, limit, .. } = transaction;
        let known = view.record.as_ref().map_or(0, |record| record.mod_revision);
        let mut compare = vec![self.keys.is_of(known)];
        if changes.could_admit {
            compare.push(self.keys.has_none_after(view.revision));
        }
        if !view.is_fresh && view.limit.is_some() {
            compare.push(self.keys.has_limit());
        }
        compare.extend(steps.iter().map(|step| {
            let stored = view.entries.get(&step.lease());
            match (step, stored) {
                (Step::Begin { etcd_lease, .. }, None) => self.keys.is_made_at(etcd_lease.id, 0),
                (_, stored) => {
                    let (id, created) = stored.map_or((0, 0), |stored| (stored.etcd_lease, stored.created));
                    self.keys.is_made_at(id, created)
                }
            }
        }));
        let mut success = vec![put(self.keys.record(), changes.head.clone().into_bytes(), 0)];
        success.extend(steps.iter().flat_map(|step| self.operations(view, step)));
        if let Some(limit) = limit {
            success.push(put(self.keys.limit(), limit.ttl.to_string().into_bytes(), limit.id));
        }
        success.extend(self.messages(transaction));
        TxnRequest { compare, success, failure: vec![self.keys.look()] }
    }

    fn operations(&self, view: &View, step: &Step) -> Vec<RequestOp> {
        let stored = view.entries.get(&step.lease()).map(|stored| stored.etcd_lease);
        let end = || stored.map(|etcd_lease| delete(self.keys.lease(etcd_lease)));
        match step {
            Step::End { .. } => end().into_iter().collect(),
            Step::Update { value, .. } => {
                let etcd_lease = stored.unwrap_or(0);
                vec![put(self.keys.lease(etcd_lease), value.to_text(), etcd_lease)]
            }
            Step::Begin { value, etcd_lease, .. } => {
                let begin = put(self.keys.lease(etcd_lease.id), value.to_text(), etcd_lease.id);
                end().into_iter().chain([begin]).collect()
            }
        }
    }

    /// A message for each client, attached to an etcd lease of that client, so that it is deleted when the client dies.
    fn messages(&self, transaction: &Transaction<'_>) -> Vec<RequestOp> {
        let Transaction { view, events, .. } = transaction;
        let mut messages = BTreeMap::<Uuid, (Mail, i64)>::new();
        for event in *events {
            let Some(lease) = event.lease() else { continue };
            let Some(stored) = view.entries.get(&lease) else { continue };
            let (mail, etcd_lease) = messages.entry(lease.client()).or_default();
            mail.events.push(event.to_string());
            if matches!(event, Event::Granted { .. }) && mail.seen.is_none() {
                mail.seen = self.seen_after(transaction);
            }
            *etcd_lease = stored.etcd_lease;
        }
        let keys = &self.shared.keys;
        let put = |(client, (mail, lease)): (Uuid, (Mail, i64))| {
            put(keys.mailbox(client), mail.encode_to_vec(), lease)
        };
        messages.into_iter().map(put).collect()
    }

    /// What the receiver of a grant would read now, unless that is too much. Revisions of this transaction are 0.
    fn seen_after(&self, transaction: &Transaction<'_>) -> Option<RangeResponse> {
        let after = apply(transaction, 0);
        (after.entries.len() <= MAX_SENT).then(|| after.to_kvs(&self.keys))
    }

    /// Takes a lock if nobody holds or waits and the record is as it is remembered, and does something else if not.
    pub(super) fn take_or(
        &self,
        now: &View,
        changes: &Changes,
        taken: &[Taken],
        failure: Vec<RequestOp>,
    ) -> TxnRequest {
        let text = now.record.as_ref().map_or("", |record| &record.text);
        let compare = vec![self.keys.is_text(text), self.keys.has_none_after(0)];
        let mut success = vec![put(self.keys.record(), changes.head.clone().into_bytes(), 0)];
        let free = now.if_free();
        success.extend(steps(changes, taken).iter().flat_map(|step| self.operations(&free, step)));
        TxnRequest { compare, success, failure }
    }

    /// What is there after that.
    pub(super) fn taken(
        &self,
        now: &View,
        changes: &Changes,
        taken: &[Taken],
        answer: &TxnResponse,
    ) -> Result<View, Failure> {
        let free = now.if_free();
        let steps: Vec<_> = steps(changes, taken).into();
        let transaction = Transaction { view: &free, changes, steps: &steps, events: &[], limit: None };
        revision_of(answer).map(|revision| apply(&transaction, revision))
    }
}

/// One of the transactions of a change.
struct Transaction<'a> {
    view: &'a View,
    changes: &'a Changes,
    steps: &'a [Step],
    events: &'a [Event],
    limit: Option<EtcdLease>,
}

/// What is there after a transaction at this revision.
fn apply(transaction: &Transaction<'_>, revision: i64) -> View {
    let Transaction { view, changes, steps, limit, .. } = transaction;
    let mut after = view.remembered();
    after.record = Some(Record { mod_revision: revision, text: changes.head.clone() });
    after.limit = limit.or(after.limit);
    if changes.could_admit {
        after.revision = revision;
    }
    for step in *steps {
        match step {
            Step::End { lease } => drop(after.entries.remove(lease)),
            Step::Update { lease, value } => {
                if let Some(stored) = after.entries.get_mut(lease) {
                    stored.value = value.clone();
                }
            }
            Step::Begin { lease, value, etcd_lease } => {
                let (etcd_lease, value) = (etcd_lease.id, value.clone());
                let stored = Stored { etcd_lease, created: revision, value, left: None };
                after.entries.insert(*lease, stored);
            }
        }
    }
    after
}

/// Grants to places come last, in the order of the queue.
fn steps(changes: &Changes, taken: &[Taken]) -> VecDeque<Step> {
    let ended = changes.ended.iter().map(|lease| Step::End { lease: *lease });
    let begun = changes.begun.iter().zip(taken).map(|((lease, value), taken)| Step::Begin {
        lease: *lease,
        value: value.clone(),
        etcd_lease: taken.lease,
    });
    let updated =
        changes.updated.iter().map(|(lease, value)| Step::Update { lease: *lease, value: value.clone() });
    ended.chain(begun).chain(updated).collect()
}

/// Events that go with these steps, and those that go with later ones.
fn events_with(steps: &[Step], events: Vec<Event>, is_first: bool) -> (Vec<Event>, Vec<Event>) {
    let is_now = |event: &Event| match event {
        Event::Granted { lease, .. } => steps.iter().any(|step| step.lease() == lease.id),
        _ => is_first,
    };
    events.into_iter().partition(is_now)
}
