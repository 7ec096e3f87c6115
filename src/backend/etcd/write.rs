//! Storing what was worked out, if nobody has changed the record in the meantime.

use std::collections::{BTreeMap, VecDeque};

use futures::future::join;
use uuid::Uuid;

use super::changes::Changes;
use super::exchange::{Exchange, Stop, is_lease_missing};
use super::leases::{EtcdLease, Taken};
use super::proto::{RequestOp, TxnRequest, TxnResponse};
use super::transaction::{MOST, delete, put, revision_of};
use super::value::{Value, What};
use super::view::{Record, Stored, View};
use crate::backend::records::Failure;
use crate::backend::{Event, LeaseId};

/// What became of it.
pub(super) enum Written {
    /// It is stored, and this is what is there now.
    Stored(View),
    /// Stored as far as it has to be, but what is there now is not known.
    Enough,
    /// Others came first, and this is what is there now.
    Beaten(View),
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

impl Exchange<'_> {
    /// Stores changes, in as many transactions as they take: all but the first are grants, unless there are very many.
    pub(super) async fn write(
        &self,
        now: View,
        changes: Changes,
        limit: Option<EtcdLease>,
    ) -> Result<Written, Stop> {
        let ttls = changes.begun.iter().map(|(_, value)| value.ttl);
        let taken = self.shared.leases.take(self.connection, ttls).await.map_err(Stop::Reading)?;
        let mut steps = steps(&changes, &taken);
        let mut told = changes.told.clone();
        let (mut view, mut limit, mut is_first) = (now, limit, true);
        loop {
            let part: Vec<_> = steps.drain(..steps.len().min(MOST)).collect();
            let (now, later) = told_with(&part, told, is_first);
            told = later;
            let transaction = Transaction { view: &view, changes: &changes, steps: &part, told: &now, limit };
            let request = self.request(&transaction);
            let taken = if is_first { taken.as_slice() } else { &[] };
            let (answer, kept) = join(self.connection.change(request), self.keep_old(taken)).await;
            let answer = match answer.and_then(|answer| kept.map(|()| answer)) {
                Ok(answer) => answer,
                Err(failure) => {
                    return if is_first && is_lease_missing(&failure) {
                        self.shared.leases.forget_all(taken);
                        Ok(Written::LeaseEnded)
                    } else {
                        Err(Stop::Writing(Failure { is_certain: is_first && failure.is_certain, ..failure }))
                    };
                }
            };
            if !answer.succeeded {
                taken.iter().for_each(|taken| self.shared.leases.give_back(taken.lease));
                let are_grants = || part.iter().chain(&steps).all(|step| step.is_grant());
                return if !is_first && are_grants() { Ok(Written::Enough) } else { self.beaten(answer) };
            }
            view = self.after(&transaction, &answer).map_err(Stop::Writing)?;
            if steps.is_empty() {
                return Ok(Written::Stored(view));
            }
            (is_first, limit) = (false, None);
        }
    }

    fn beaten(&self, answer: TxnResponse) -> Result<Written, Stop> {
        let view = self.keys.seen(answer).map_err(Stop::Writing)?;
        view.map(Written::Beaten).map_err(Stop::Unreadable)
    }

    fn request(&self, transaction: &Transaction<'_>) -> TxnRequest {
        let Transaction { view, changes, steps, told, limit } = transaction;
        let known = view.record.as_ref().map_or(0, |record| record.mod_revision);
        let mut compare = vec![self.keys.is_of(known)];
        if changes.could_admit {
            compare.push(self.keys.has_none_after(view.revision));
        }
        compare.extend(steps.iter().map(|step| {
            let lease = step.lease();
            self.keys.is_made_at(lease, view.entries.get(&lease).map_or(0, |stored| stored.created))
        }));
        let mut success = vec![put(self.keys.record(), changes.head.clone().into_bytes(), 0)];
        success.extend(steps.iter().map(|step| self.operation(view, step)));
        if let Some(limit) = limit {
            success.push(put(self.keys.limit(), limit.ttl.to_string().into_bytes(), limit.id));
        }
        success.extend(self.messages(view, told));
        TxnRequest { compare, success, failure: vec![self.keys.look()] }
    }

    fn operation(&self, view: &View, step: &Step) -> RequestOp {
        let key = self.keys.lease(step.lease());
        match step {
            Step::End { .. } => delete(key),
            Step::Update { lease, value } => {
                let etcd_lease = view.entries.get(lease).map_or(0, |stored| stored.etcd_lease);
                put(key, value.to_text(), etcd_lease)
            }
            Step::Begin { value, etcd_lease, .. } => put(key, value.to_text(), etcd_lease.id),
        }
    }

    /// A message for each client, attached to an etcd lease of that client, so that it goes when the client has gone.
    fn messages(&self, view: &View, told: &[Event]) -> impl Iterator<Item = RequestOp> {
        let mut messages = BTreeMap::<Uuid, (String, i64)>::new();
        for event in told {
            let Some(lease) = lease_of(event) else { continue };
            let Some(stored) = view.entries.get(&lease) else { continue };
            let (text, etcd_lease) = messages.entry(lease.client()).or_default();
            let event = event.to_string();
            text.push_str(&format!("{} {event}", event.len()));
            *etcd_lease = stored.etcd_lease;
        }
        let keys = &self.shared.keys;
        messages
            .into_iter()
            .map(|(client, (text, lease))| put(keys.mailbox(client), text.into_bytes(), lease))
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// What is there after a transaction.
    fn after(&self, transaction: &Transaction<'_>, answer: &TxnResponse) -> Result<View, Failure> {
        let Transaction { view, changes, steps, limit, .. } = transaction;
        let revision = revision_of(answer)?;
        let mut after = view.remembered();
        after.record = Some(Record { mod_revision: revision, text: changes.head.clone() });
        after.limit = limit.or(after.limit);
        if changes.could_admit {
            after.revision = revision;
        }
        for step in *steps {
            match step {
                Step::End { lease } => {
                    if let Some(ended) = after.entries.remove(lease) {
                        self.release(*lease, &ended);
                    }
                }
                Step::Update { lease, value } => {
                    if let Some(stored) = after.entries.get_mut(lease) {
                        stored.value = value.clone();
                    }
                }
                Step::Begin { lease, value, etcd_lease } => {
                    let before = after.entries.remove(lease);
                    if let Some(before) = &before {
                        self.release(*lease, before);
                    }
                    let created = before.map_or(revision, |before| before.created);
                    let stored =
                        Stored { etcd_lease: etcd_lease.id, created, value: value.clone(), left: None };
                    after.entries.insert(*lease, stored);
                }
            }
        }
        Ok(after)
    }

    /// No key is attached to the etcd lease of this hold or place any more.
    fn release(&self, lease: LeaseId, ended: &Stored) {
        // An attempt to attach one may still be on its way.
        if !self.shared.is_doubtful(&self.work.key, lease) {
            self.shared.leases.give_back(EtcdLease { id: ended.etcd_lease, ttl: ended.value.ttl });
        }
    }
}

/// One of the transactions of a change.
struct Transaction<'a> {
    view: &'a View,
    changes: &'a Changes,
    steps: &'a [Step],
    told: &'a [Event],
    limit: Option<EtcdLease>,
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
fn told_with(steps: &[Step], told: Vec<Event>, is_first: bool) -> (Vec<Event>, Vec<Event>) {
    let is_now = |event: &Event| match event {
        Event::Granted { lease, .. } => steps.iter().any(|step| step.lease() == lease.id),
        _ => is_first,
    };
    told.into_iter().partition(is_now)
}

fn lease_of(event: &Event) -> Option<LeaseId> {
    match event {
        Event::Granted { lease, .. } => Some(lease.id),
        Event::Revoked { lease, .. } | Event::AskAgain(lease) => Some(*lease),
        Event::Changed(_) | Event::Resync => None,
    }
}
