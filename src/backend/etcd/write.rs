//! The transactions that store a plan if nobody has changed the record in the meantime, and what is there afterwards.

use std::collections::{BTreeMap, VecDeque};

use prost::Message;
use uuid::Uuid;

use super::keys::{Keys, KeysOf};
use super::leases::{EtcdLease, Taken};
use super::mail::Mail;
use super::plan::Plan;
use super::proto::{RangeResponse, RequestOp, TxnRequest};
use super::transaction::{delete, put};
use super::value::{Value, What};
use super::view::{Record, Stored, View};
use crate::backend::{Event, LeaseId};

/// The maximum number of holds and places that are sent along with a grant.
const MAX_SENT: usize = 8;

/// How one hold or place changes.
#[derive(Clone, Debug)]
pub(super) enum Step {
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

    /// Whether it need not be stored if others have changed the record since: they grant what is free to the same
    /// places.
    pub(super) const fn is_grant(&self) -> bool {
        matches!(self, Self::Update { value: Value { what: What::Hold { .. }, .. }, .. })
    }
}

/// One of the transactions of a plan.
pub(super) struct Transaction<'a> {
    /// Those of all resources, and those of this one.
    pub(super) all: &'a Keys,
    pub(super) keys: &'a KeysOf,
    pub(super) view: &'a View,
    pub(super) plan: &'a Plan,
    pub(super) steps: &'a [Step],
    pub(super) events: &'a [Event],
    pub(super) limit: Option<EtcdLease>,
}

impl Transaction<'_> {
    /// It fails, and reads everything, if what it relies on is not so any more.
    pub(super) fn request(&self) -> TxnRequest {
        let Self { keys, view, plan, steps, limit, .. } = self;
        let known = view.record.as_ref().map_or(0, |record| record.mod_revision);
        let mut compare = vec![keys.is_of(known)];
        if plan.could_admit {
            compare.push(keys.has_none_after(view.revision));
        }
        if !view.is_fresh && view.limit.is_some() {
            compare.push(keys.has_limit());
        }
        compare.extend(steps.iter().map(|step| {
            let stored = view.entries.get(&step.lease());
            match (step, stored) {
                (Step::Begin { etcd_lease, .. }, None) => keys.is_made_at(etcd_lease.id, 0),
                (_, stored) => {
                    let (id, created) = stored.map_or((0, 0), |stored| (stored.etcd_lease, stored.created));
                    keys.is_made_at(id, created)
                }
            }
        }));
        let mut success = self.operations();
        if let Some(limit) = limit {
            success.push(put(keys.limit(), limit.ttl.to_string().into_bytes(), limit.id));
        }
        success.extend(self.messages());
        TxnRequest { compare, success, failure: vec![keys.look()] }
    }

    /// The same, if nobody holds or waits and the record is as it is remembered. If not, does something else.
    pub(super) fn request_or(&self, failure: Vec<RequestOp>) -> TxnRequest {
        let text = self.view.record.as_ref().map_or("", |record| &record.text);
        let compare = vec![self.keys.is_text(text), self.keys.has_none_after(0)];
        TxnRequest { compare, success: self.operations(), failure }
    }

    fn operations(&self) -> Vec<RequestOp> {
        let record = put(self.keys.record(), self.plan.head.clone().into_bytes(), 0);
        std::iter::once(record).chain(self.steps.iter().flat_map(|step| self.operations_of(step))).collect()
    }

    fn operations_of(&self, step: &Step) -> Vec<RequestOp> {
        let stored = self.view.entries.get(&step.lease()).map(|stored| stored.etcd_lease);
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
    fn messages(&self) -> Vec<RequestOp> {
        let mut messages = BTreeMap::<Uuid, (Mail, i64)>::new();
        for event in self.events {
            let Some(lease) = event.lease() else { continue };
            let Some(stored) = self.view.entries.get(&lease) else { continue };
            let (mail, etcd_lease) = messages.entry(lease.client()).or_default();
            mail.events.push(event.to_string());
            if matches!(event, Event::Granted { .. }) && mail.seen.is_none() {
                mail.seen = self.seen_after();
            }
            *etcd_lease = stored.etcd_lease;
        }
        let put = |(client, (mail, lease)): (Uuid, (Mail, i64))| {
            put(self.all.mailbox(client), mail.encode_to_vec(), lease)
        };
        messages.into_iter().map(put).collect()
    }

    /// What the receiver of a grant would read now, unless that is too much. Revisions of this transaction are 0.
    fn seen_after(&self) -> Option<RangeResponse> {
        let after = self.view_after(0);
        (after.entries.len() <= MAX_SENT).then(|| after.to_kvs(self.keys))
    }

    /// What is there after it was stored at this revision.
    pub(super) fn view_after(&self, revision: i64) -> View {
        let mut after = self.view.remembered();
        after.record = Some(Record { mod_revision: revision, text: self.plan.head.clone() });
        after.limit = self.limit.or(after.limit);
        if self.plan.could_admit {
            after.revision = revision;
        }
        for step in self.steps {
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
}

/// Grants to places come last, in the order of the queue.
pub(super) fn steps(plan: &Plan, taken: &[Taken]) -> VecDeque<Step> {
    let ended = plan.ended.iter().map(|lease| Step::End { lease: *lease });
    let begun = plan.begun.iter().zip(taken).map(|((lease, value), taken)| Step::Begin {
        lease: *lease,
        value: value.clone(),
        etcd_lease: taken.lease,
    });
    let updated =
        plan.updated.iter().map(|(lease, value)| Step::Update { lease: *lease, value: value.clone() });
    ended.chain(begun).chain(updated).collect()
}

/// Takes the events that go with these steps out of those that are left to be sent.
pub(super) fn events_with(steps: &[Step], events: &mut Vec<Event>, is_first: bool) -> Vec<Event> {
    let is_now = |event: &mut Event| match event {
        Event::Granted { lease, .. } => steps.iter().any(|step| step.lease() == lease.id),
        _ => is_first,
    };
    events.extract_if(.., is_now).collect()
}
