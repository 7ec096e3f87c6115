//! Changing one resource: the change is computed from what is known, stored if that is still current, and otherwise computed again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};

use super::changes::Changes;
use super::connection::Connection;
use super::keys::KeysOf;
use super::leases::{EtcdLease, Taken};
use super::proto::{TxnRequest, TxnResponse};
use super::shared::Shared;
use super::transaction::MOST;
use super::value::{Value, What};
use super::view::{View, look_again_in};
use super::write::Written;
use crate::backend::records::{Failure, KeyBatch, Remedy};
use crate::backend::{BackendError, LeaseId};

/// How often a change is computed again. Other clients may keep changing the resource first, but a request that waits has its place by
/// then.
const TRIES: usize = 32;

/// Why a work was not finished.
pub(super) enum Stop {
    /// What is stored cannot be read.
    Unreadable(BackendError),
    /// It failed before anything was stored, or when only idempotent writes had been stored.
    Reading(Failure),
    /// It failed while something was being stored.
    Writing(Failure),
}

/// One batch, on one connection.
pub(super) struct Exchange<'a> {
    pub(super) shared: &'a Shared,
    pub(super) connection: &'a Arc<Connection>,
    pub(super) keys: KeysOf,
    pub(super) batch: &'a mut KeyBatch<View>,
    /// The places that were made for this batch.
    pub(super) joined: BTreeSet<LeaseId>,
}

/// Which holds and places are certainly not there any more.
enum Gone {
    /// All that are not in the view, because everything was read.
    Absent,
    /// These, which have been ended. Others may have been created since the cached view was read.
    Ended(Vec<LeaseId>),
}

/// What became of an attempt to join.
enum Joined {
    /// It was free.
    Took(View),
    /// There are places now, and this is what is there besides.
    Waits(View),
}

impl Exchange<'_> {
    pub(super) async fn carry_out(&mut self) -> Result<(), Stop> {
        let mut view = self.batch.written.take();
        for _ in 0..TRIES {
            let now = match view.take().filter(|view| view.is_fresh || self.may_use_cache()) {
                Some(view) => view,
                None => self.look().await?,
            };
            let is_complete = now.is_fresh;
            let (now, changes) = self.plan(now).await?;
            if !changes.joins.is_empty() {
                match self.join(&now, changes.joins).await? {
                    Joined::Took(now) => return self.finish(Some(now), Gone::Ended(Vec::new())).await,
                    Joined::Waits(now) => view = Some(now),
                }
                continue;
            }
            let is_to_be_written = changes.is_to_be_written() || self.batch.must_write;
            if !now.is_fresh && (!is_to_be_written || changes.needs_fresh) {
                // "No change", for instance, must not be answered from a cached view.
                continue;
            }
            if !self.renew(&changes.renewed).await? {
                continue;
            }
            let limit = self.keep_limit(&now, changes.limit_for).await?;
            if !is_to_be_written && limit.is_none() {
                return self.finish(Some(now), Gone::Absent).await;
            }
            let gone = if is_complete { Gone::Absent } else { Gone::Ended(changes.ended.clone()) };
            match self.write(now, changes, limit).await? {
                Written::Stored(now) => return self.finish(Some(now), gone).await,
                Written::Enough => return self.finish(None, gone).await,
                Written::Conflict(now) => view = Some(now),
                Written::LeaseEnded => {}
            }
        }
        let why = "other clients keep changing the record".to_owned();
        Err(Stop::Reading(Failure { why, remedy: Remedy::Repeat, is_broken: false, is_certain: true }))
    }

    /// Whether a cached view may be used. Of several tasks, one may change nothing, and that must not be answered from the cache.
    fn may_use_cache(&self) -> bool {
        self.batch.tasks.len() == 1
    }

    async fn look(&self) -> Result<View, Stop> {
        let answer = self.connection.range(self.keys.read()).await.map_err(Stop::Reading)?;
        let revision = answer.header.map_or(0, |header| header.revision);
        View::read(&self.keys, answer.kvs, revision).map_err(Stop::Unreadable)
    }

    /// Works out what is to be stored; again with when holds and places of others end, if an answer depends on that.
    async fn plan(&self, mut now: View) -> Result<(View, Changes), Stop> {
        let of = |now: &View| {
            Changes::of(now, self.batch, &self.joined, &self.shared.leases).map_err(Stop::Unreadable)
        };
        let changes = of(&now)?;
        // A client that has just joined will read again soon.
        let is_asked = changes.do_ends_matter && self.joined.is_empty();
        if !is_asked || !now.is_fresh || changes.is_to_be_written() {
            return Ok((now, changes));
        }
        if !self.find_ends(&mut now, changes.renewed.is_empty()).await? {
            return Ok((now, changes));
        }
        let changes = of(&now)?;
        Ok((now, changes))
    }

    /// Asks how long the holds of other clients last, and the places if all are to be known. Returns whether there are any.
    async fn find_ends(&self, now: &mut View, are_all_asked: bool) -> Result<bool, Stop> {
        let leases = &self.shared.leases;
        let ahead = now.places_ahead(leases);
        let unknown = now.entries.iter_mut().filter(|(_, stored)| {
            let is_hold = matches!(stored.value.what, What::Hold(_));
            (are_all_asked || is_hold) && leases.remaining(stored.etcd_lease).is_none()
        });
        let asked = unknown.map(|(lease, stored)| async {
            let left = self.connection.time_to_live(stored.etcd_lease).await?;
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
    fn if_free(&self, now: &View) -> Option<Changes> {
        // Whether a limit is still in force would have to be found out, too.
        let is_possible = !now.is_fresh && now.record.is_some() && self.joined.is_empty();
        if !is_possible || now.head().is_ok_and(|head| head.kind().is_semaphore()) {
            return None;
        }
        let free = now.if_free();
        let changes = Changes::of(&free, self.batch, &self.joined, &self.shared.leases).ok()?;
        changes.is_one_hold().then_some(changes)
    }

    /// Creates places, and reads the resource. If the view is cached, and its holds may all have ended, takes the lock instead if it is
    /// free by now.
    async fn join(&mut self, now: &View, joins: Vec<(LeaseId, Value)>) -> Result<Joined, Stop> {
        let joins = &joins[..joins.len().min(MOST)];
        let if_free = self.if_free(now).filter(|_| joins.len() == 1);
        let taken = self.take(joins).await?;
        let ops = (0..).zip(joins).zip(&taken).map(|((n, (_, value)), taken)| {
            let mut value = value.clone();
            if let What::Place { index, .. } = &mut value.what {
                *index = n;
            }
            self.keys.join(value.to_text(), taken.lease.id)
        });
        let join_and_look = ops.chain([self.keys.look()]).collect();
        let request = match &if_free {
            Some(changes) => self.take_or(now, changes, &taken, join_and_look),
            None => TxnRequest { success: join_and_look, ..TxnRequest::default() },
        };
        let answer = match self.send(request, &taken).await {
            Ok((answer, true)) => answer,
            Err(failure) if !is_lease_missing(&failure) => {
                if !failure.is_certain {
                    self.mark_uncertain(joins);
                }
                return Err(Stop::Writing(failure));
            }
            Ok((_, false)) | Err(_) => {
                self.forget(joins, &taken);
                return self.look().await.map(Joined::Waits);
            }
        };
        if let Some(changes) = if_free.filter(|_| answer.succeeded) {
            return self.taken(now, &changes, &taken, &answer).map(Joined::Took).map_err(Stop::Writing);
        }
        let view = self.keys.seen(answer).map_err(Stop::Writing)?.map_err(Stop::Unreadable)?;
        let is_there = |lease: &LeaseId| view.entries.contains_key(lease);
        self.joined.extend(joins.iter().map(|(lease, _)| *lease).filter(is_there));
        Ok(Joined::Waits(view))
    }

    /// An etcd lease for each of these holds or places.
    pub(super) async fn take(&self, new: &[(LeaseId, Value)]) -> Result<Vec<Taken>, Stop> {
        let key = &self.batch.key;
        let wanted = new.iter().map(|(lease, value)| (self.shared.attached(key, *lease), value.ttl));
        let taken = self.shared.leases.take(self.connection, wanted).await.map_err(Stop::Reading)?;
        for ((lease, _), taken) in new.iter().zip(&taken) {
            self.shared.attach(key, *lease, taken.lease);
        }
        Ok(taken)
    }

    /// Marks these holds or places as uncertain: they may have been created, or may yet be.
    pub(super) fn mark_uncertain(&self, new: &[(LeaseId, Value)]) {
        new.iter().for_each(|(lease, _)| self.shared.mark_uncertain(&self.batch.key, *lease));
    }

    /// One of these etcd leases has ended, so none of these holds or places can be made under it any more.
    pub(super) fn forget(&self, new: &[(LeaseId, Value)], taken: &[Taken]) {
        self.shared.leases.forget_all(taken);
        let is_new = |lease| new.iter().any(|(new, _)| *new == lease);
        // Nothing can be on its way any more either.
        drop(self.shared.detach(&self.batch.key, |lease| !is_new(lease)));
    }

    /// Sends a transaction, and at the same time keeps reused etcd leases alive. Also returns whether all of these were still alive: if
    /// not, the transaction may have failed for that reason.
    pub(super) async fn send(
        &self,
        request: TxnRequest,
        taken: &[Taken],
    ) -> Result<(TxnResponse, bool), Failure> {
        let old: Vec<_> = taken.iter().filter(|taken| taken.is_old).map(|taken| taken.lease).collect();
        let kept = self.shared.leases.keep_alive(self.connection, &old);
        let (answer, kept) = join(self.connection.change(request), kept).await;
        let answer = answer?;
        let are_alive = match kept {
            Ok(alive) => alive.iter().all(|is_alive| *is_alive),
            Err(_) if !answer.succeeded => true,
            // What they are for has been stored.
            Err(failure) => return Err(Failure { is_certain: false, ..failure }),
        };
        if answer.succeeded && !are_alive {
            let failure = Failure::unavailable("an etcd lease has ended early");
            return Err(Failure { is_broken: false, is_certain: false, ..failure });
        }
        Ok((answer, are_alive))
    }

    /// Renews holds and places. `false` if one has ended.
    async fn renew(&self, renewed: &[EtcdLease]) -> Result<bool, Stop> {
        let alive = self.shared.leases.keep_alive(self.connection, renewed).await.map_err(Stop::Reading)?;
        Ok(alive.iter().all(|is_alive| *is_alive))
    }

    /// Keeps the limit in force for so many seconds at least. Returns an etcd lease if it is to be attached to another one.
    async fn keep_limit(&self, now: &View, seconds: Option<u32>) -> Result<Option<EtcdLease>, Stop> {
        let Some(seconds) = seconds else { return Ok(None) };
        let leases = &self.shared.leases;
        if let Some(limit) = now.limit.filter(|limit| limit.ttl >= seconds) {
            // It is to last for one more TTL after the next renewal.
            let enough = Duration::from_secs(limit.ttl.into()) * 3 / 4;
            if leases.remaining(limit.id).is_some_and(|left| left > enough) {
                return Ok(None);
            }
            let alive = leases.keep_alive(self.connection, &[limit]).await.map_err(Stop::Reading)?;
            if alive == [true] {
                return Ok(None);
            }
        }
        leases.grant(self.connection, seconds).await.map(Some).map_err(Stop::Reading)
    }

    async fn finish(&mut self, now: Option<View>, gone: Gone) -> Result<(), Stop> {
        // Whether the others still exist is found out by the next read.
        let is_there = |lease| match &gone {
            Gone::Absent => now.as_ref().is_none_or(|now| now.entries.contains_key(&lease)),
            Gone::Ended(ended) => !ended.contains(&lease),
        };
        for etcd_lease in self.shared.detach(&self.batch.key, is_there) {
            // Then a request still in flight for it fails. If revoking fails as well, the etcd lease expires on its own.
            if let Err(failure) = self.connection.revoke(etcd_lease.id).await {
                tracing::debug!(key = &*self.batch.key, %failure, "an etcd lease was not revoked");
            }
        }
        // The absence of a record is not cached: other clients may create and remove one, and the comparison would not notice.
        self.batch.written = now.filter(|now| now.record.is_some()).map(|now| now.remembered());
        Ok(())
    }
}

pub(super) const fn is_lease_missing(failure: &Failure) -> bool {
    failure.is_certain && matches!(failure.remedy, Remedy::Repeat)
}
