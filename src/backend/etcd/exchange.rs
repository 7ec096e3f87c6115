//! Changing one resource: the change is computed from what is known, stored if that is still current, and otherwise
//! computed again.
//!
//! `docs/stores/etcd.md` has a picture of this.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;

use super::calls::{Calls, Stop, is_lease_missing};
use super::leases::EtcdLease;
use super::plan::Plan;
use super::proto::TxnRequest;
use super::transaction::{MOST, revision_of};
use super::value::{Value, What};
use super::view::{View, look_again_in};
use super::write::{events_with, steps};
use crate::backend::records::{Failure, KeyBatch, Remedy, running};
use crate::backend::{BackendError, LeaseId};

/// How often a change is computed again. Other clients may keep changing the resource first, but a request that waits
/// has its place by then.
const TRIES: usize = 32;

/// One batch, on one connection.
pub(super) struct Exchange<'a> {
    calls: Calls<'a>,
    batch: &'a mut KeyBatch<View>,
    /// The places that were made for this batch.
    joined: BTreeSet<LeaseId>,
    /// Whether others have changed the resource first. From then on, whoever waits gets a place before anything else:
    /// others who are faster might come first each time, and only a place is made whatever they do.
    has_lost: bool,
}

/// Which holds and places are certainly not there any more.
enum Gone {
    /// All that are not in the view, because everything was read.
    Absent,
    /// These, which have been ended. Others may have been created since the cached view was read.
    Ended(Vec<LeaseId>),
}

/// What became of an attempt to store a plan.
enum Written {
    /// It is stored, and this is what is there now.
    Stored(View),
    /// Stored as far as it has to be, but what is there now is not known.
    Enough,
    /// Others came first, and this is what is there now.
    Conflict(View),
    /// An etcd lease has ended that it needed.
    LeaseEnded,
}

/// What became of an attempt to join.
enum Joined {
    /// It was free.
    Took(View),
    /// There are places now, and this is what is there besides.
    Waits(View),
}

impl<'a> Exchange<'a> {
    pub(super) const fn new(calls: Calls<'a>, batch: &'a mut KeyBatch<View>) -> Self {
        Self { calls, batch, joined: BTreeSet::new(), has_lost: false }
    }

    pub(super) async fn carry_out(&mut self) -> Result<(), Stop> {
        let mut view = self.batch.written.take();
        for _ in 0..TRIES {
            let now = match view.take().filter(|view| view.is_fresh || self.may_use_cache()) {
                Some(view) => view,
                None => self.calls.look().await?,
            };
            let is_complete = now.is_fresh;
            self.calls.abandon_revoked(&now);
            let (now, plan) = self.plan(now).await?;
            if !plan.joins.is_empty() {
                match self.join(&now, plan.joins).await? {
                    Joined::Took(now) => return self.finish(Some(now), Gone::Ended(Vec::new())).await,
                    Joined::Waits(now) => view = Some(now),
                }
                continue;
            }
            let is_to_be_written = plan.is_to_be_written() || self.batch.must_write;
            if !now.is_fresh && (!is_to_be_written || plan.needs_fresh) {
                // "No change", for instance, must not be answered from a cached view.
                continue;
            }
            if !self.calls.renew(&plan.renewed).await? {
                continue;
            }
            let limit = self.calls.keep_limit(&now, plan.limit_for).await?;
            if !is_to_be_written && limit.is_none() {
                return self.finish(Some(now), Gone::Absent).await;
            }
            let gone = if is_complete { Gone::Absent } else { Gone::Ended(plan.ended.clone()) };
            match self.write(now, &plan, limit).await? {
                Written::Stored(now) => return self.finish(Some(now), gone).await,
                Written::Enough => return self.finish(None, gone).await,
                Written::Conflict(now) => (view, self.has_lost) = (Some(now), true),
                Written::LeaseEnded => {}
            }
        }
        let why = "other clients keep changing the record".to_owned();
        Err(Stop::Reading(Failure { why, remedy: Remedy::Repeat, is_broken: false, is_certain: true }))
    }

    /// Whether a cached view may be used. Of several tasks, one may change nothing, and that must not be answered from
    /// the cache.
    fn may_use_cache(&self) -> bool {
        self.batch.tasks.len() == 1
    }

    /// Works out what is to be stored; again with when holds and places of others end, if an answer depends on that.
    async fn plan(&self, mut now: View) -> Result<(View, Plan), Stop> {
        let of = |now: &View| self.plan_for(now).map_err(Stop::Unreadable);
        let plan = of(&now)?;
        // A client that has just joined will read again soon.
        let is_asked = plan.do_ends_matter && self.joined.is_empty();
        if !is_asked || !now.is_fresh || plan.is_to_be_written() {
            return Ok((now, plan));
        }
        if !self.find_ends(&mut now, plan.renewed.is_empty()).await? {
            return Ok((now, plan));
        }
        let plan = of(&now)?;
        Ok((now, plan))
    }

    /// Asks how long the holds of other clients last, and the places if all are to be known. Returns whether there are
    /// any.
    async fn find_ends(&self, now: &mut View, are_all_asked: bool) -> Result<bool, Stop> {
        let leases = &self.calls.shared.leases;
        let ahead = now.places_ahead(leases);
        let unknown = now.entries.iter_mut().filter(|(_, stored)| {
            let is_hold = matches!(stored.value.what, What::Hold { .. });
            (are_all_asked || is_hold) && leases.remaining(stored.etcd_lease).is_none()
        });
        let asked = unknown.map(|(lease, stored)| async {
            let left = self.calls.connection.time_to_live(stored.etcd_lease).await?;
            // In whole seconds, rounded down.
            let seconds = Duration::from_secs(u64::try_from(left.ttl).unwrap_or(0));
            let ttl = Duration::from_secs(stored.value.ttl.into());
            stored.left = Some(if leases.is_own(*lease) {
                seconds
            } else if are_all_asked {
                (seconds + Duration::from_secs(1)).min(ttl)
            } else {
                look_again_in(seconds, ahead)
            });
            Ok(())
        });
        let asked = join_all(asked).await;
        let are_there = !asked.is_empty();
        asked.into_iter().collect::<Result<(), _>>().map_err(Stop::Reading)?;
        Ok(are_there)
    }

    /// What would have to be stored if the lock were free by now, if that is a single hold.
    fn if_free(&self, now: &View) -> Option<Plan> {
        // Whether a limit is still in force would have to be found out, too.
        let is_possible = !now.is_fresh && now.record.is_some() && self.joined.is_empty();
        if !is_possible || now.head().is_ok_and(|head| head.kind().is_semaphore()) {
            return None;
        }
        self.plan_for(&now.if_free()).ok().filter(Plan::is_one_hold)
    }

    fn plan_for(&self, now: &View) -> Result<Plan, BackendError> {
        let plan = Plan::of(now, &self.joined, &self.calls.shared.leases, running(&self.batch.tasks))?;
        let must_join = self.has_lost && self.joined.is_empty();
        Ok(if must_join { plan.joining_first(now) } else { plan })
    }

    /// Creates places, and reads the resource. If the view is cached, and its holds may all have ended, takes the lock
    /// instead if it is free by now.
    async fn join(&mut self, now: &View, joins: Vec<(LeaseId, Value)>) -> Result<Joined, Stop> {
        let joins = &joins[..joins.len().min(MOST)];
        let if_free = self.if_free(now).filter(|_| joins.len() == 1);
        let taken = self.calls.take(joins).await?;
        let free = now.if_free();
        let if_free = if_free.as_ref().map(|plan| (plan, Vec::from(steps(plan, &taken))));
        let if_free =
            if_free.as_ref().map(|(plan, steps)| self.calls.transaction(&free, plan, steps, &[], None));
        let ops = (0..).zip(joins).zip(&taken).map(|((n, (lease, value)), taken)| {
            let mut value = value.clone();
            if let What::Place { index, .. } = &mut value.what {
                *index = n;
            }
            self.calls.keys.join(value.to_text(), taken.lease.id, now.revoked(*lease))
        });
        let join_and_look = ops.chain([self.calls.keys.look()]).collect();
        let request = match &if_free {
            Some(take) => take.request_or(join_and_look),
            None => TxnRequest { success: join_and_look, ..TxnRequest::default() },
        };
        let answer = match self.calls.send(request, &taken).await {
            Ok((answer, true)) => answer,
            Err(failure) if !is_lease_missing(&failure) => {
                if !failure.is_certain {
                    self.calls.mark_uncertain(joins);
                }
                return Err(Stop::Writing(failure));
            }
            Ok((_, false)) | Err(_) => {
                self.calls.forget(joins, &taken);
                return self.calls.look().await.map(Joined::Waits);
            }
        };
        if let Some(take) = if_free.filter(|_| answer.succeeded) {
            let revision = revision_of(&answer).map_err(Stop::Writing)?;
            return Ok(Joined::Took(take.view_after(revision)));
        }
        let view = self.calls.seen(answer)?;
        let is_there = |lease: &LeaseId| view.entries.contains_key(lease);
        self.joined.extend(joins.iter().map(|(lease, _)| *lease).filter(is_there));
        Ok(Joined::Waits(view))
    }

    /// Stores a plan, in as many transactions as it takes: all but the first are grants, unless there are very many.
    async fn write(&self, now: View, plan: &Plan, limit: Option<EtcdLease>) -> Result<Written, Stop> {
        let calls = &self.calls;
        let taken = calls.take(&plan.begun).await?;
        let (mut steps, mut events) = (steps(plan, &taken), plan.events.clone());
        let (mut view, mut limit, mut is_first) = (now, limit, true);
        loop {
            let part: Vec<_> = steps.drain(..steps.len().min(MOST)).collect();
            let with_part = events_with(&part, &mut events, is_first);
            let transaction = calls.transaction(&view, plan, &part, &with_part, limit);
            let taken = if is_first { taken.as_slice() } else { &[] };
            let (answer, are_alive) = match calls.send(transaction.request(), taken).await {
                Ok(answer) => answer,
                Err(failure) if is_first && is_lease_missing(&failure) => {
                    calls.forget(&plan.begun, taken);
                    return Ok(Written::LeaseEnded);
                }
                Err(failure) => {
                    let is_certain = is_first && failure.is_certain;
                    if !is_certain {
                        calls.mark_uncertain(&plan.begun);
                    }
                    return Err(Stop::Writing(Failure { is_certain, ..failure }));
                }
            };
            if !are_alive {
                calls.forget(&plan.begun, taken);
            }
            if !answer.succeeded {
                let are_grants = || part.iter().chain(&steps).all(|step| step.is_grant());
                if !is_first && are_grants() {
                    return Ok(Written::Enough);
                }
                return calls.seen(answer).map(Written::Conflict);
            }
            let revision = revision_of(&answer).map_err(Stop::Writing)?;
            view = transaction.view_after(revision);
            if steps.is_empty() {
                return Ok(Written::Stored(view));
            }
            (is_first, limit) = (false, None);
        }
    }

    async fn finish(&mut self, now: Option<View>, gone: Gone) -> Result<(), Stop> {
        now.iter().for_each(|now| self.calls.abandon_revoked(now));
        // Whether the others still exist is found out by the next read.
        let is_there = |lease| match &gone {
            Gone::Absent => now.as_ref().is_none_or(|now| now.entries.contains_key(&lease)),
            Gone::Ended(ended) => !ended.contains(&lease),
        };
        self.calls.give_back(is_there).await;
        // The absence of a record is not cached: other clients may create and remove one, and the comparison would not
        // notice.
        self.batch.written = now.filter(|now| now.record.is_some()).map(|now| now.remembered());
        Ok(())
    }
}
