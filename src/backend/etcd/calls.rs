//! The calls that are made to change one resource, and the etcd leases that they need.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};

use super::connection::Connection;
use super::keys::KeysOf;
use super::leases::{EtcdLease, Taken};
use super::plan::Plan;
use super::proto::{TxnRequest, TxnResponse};
use super::shared::Shared;
use super::value::Value;
use super::view::View;
use super::write::{Step, Transaction};
use crate::backend::records::{Failure, Remedy};
use crate::backend::{BackendError, Event, LeaseId};

/// Why a piece of work was not finished.
pub(super) enum Stop {
    /// What is stored cannot be read.
    Unreadable(BackendError),
    /// It failed before anything was stored, or when only idempotent writes had been stored.
    Reading(Failure),
    /// It failed while something was being stored.
    Writing(Failure),
}

/// Calls about one resource, on one connection.
pub(super) struct Calls<'a> {
    pub(super) shared: &'a Shared,
    pub(super) connection: &'a Arc<Connection>,
    pub(super) keys: KeysOf,
    key: Arc<str>,
}

impl<'a> Calls<'a> {
    pub(super) fn new(shared: &'a Shared, connection: &'a Arc<Connection>, key: &Arc<str>) -> Self {
        Self { shared, connection, keys: shared.keys.of(key), key: Arc::clone(key) }
    }

    /// Reads everything.
    pub(super) async fn look(&self) -> Result<View, Stop> {
        let answer = self.connection.range(self.keys.read()).await.map_err(Stop::Reading)?;
        let revision = answer.header.map_or(0, |header| header.revision);
        View::read(&self.keys, answer.kvs, revision).map_err(Stop::Unreadable)
    }

    /// A transaction that stores these steps of a plan.
    pub(super) const fn transaction<'t>(
        &'t self,
        view: &'t View,
        plan: &'t Plan,
        steps: &'t [Step],
        events: &'t [Event],
        limit: Option<EtcdLease>,
    ) -> Transaction<'t> {
        Transaction { all: &self.shared.keys, keys: &self.keys, view, plan, steps, events, limit }
    }

    /// What a transaction has read that ended with looking.
    pub(super) fn seen(&self, answer: TxnResponse) -> Result<View, Stop> {
        self.keys.seen(answer).map_err(Stop::Writing)?.map_err(Stop::Unreadable)
    }

    /// An etcd lease for each of these holds or places.
    pub(super) async fn take(&self, new: &[(LeaseId, Value)]) -> Result<Vec<Taken>, Stop> {
        let key = &self.key;
        let wanted = new.iter().map(|(lease, value)| (self.shared.attached(key, *lease), value.ttl));
        let taken = self.shared.leases.take(self.connection, wanted).await.map_err(Stop::Reading)?;
        for ((lease, _), taken) in new.iter().zip(&taken) {
            self.shared.attach(key, *lease, taken.lease);
        }
        Ok(taken)
    }

    /// Marks these holds or places as uncertain: they may have been created, or may yet be.
    pub(super) fn mark_uncertain(&self, new: &[(LeaseId, Value)]) {
        new.iter().for_each(|(lease, _)| self.shared.mark_uncertain(&self.key, *lease));
    }

    /// One of these etcd leases has ended, so none of these holds or places can be made under it any more.
    pub(super) fn forget(&self, new: &[(LeaseId, Value)], taken: &[Taken]) {
        self.shared.leases.forget_all(taken);
        let is_new = |lease| new.iter().any(|(new, _)| *new == lease);
        // Nothing can be on its way any more either.
        drop(self.shared.detach(&self.key, |lease| !is_new(lease)));
    }

    /// Sends a transaction, and at the same time keeps reused etcd leases alive. Also returns whether all of these were
    /// still alive: if not, the transaction may have failed for that reason.
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
    pub(super) async fn renew(&self, renewed: &[EtcdLease]) -> Result<bool, Stop> {
        let alive = self.shared.leases.keep_alive(self.connection, renewed).await.map_err(Stop::Reading)?;
        Ok(alive.iter().all(|is_alive| *is_alive))
    }

    /// Abandons the etcd leases of holds that were ended by force.
    pub(super) fn abandon_revoked(&self, now: &View) {
        for (lease, stored) in now.entries.iter().filter(|(_, stored)| stored.is_revoked()) {
            self.shared.abandon(&self.key, *lease, stored.etcd_lease);
        }
    }

    /// Keeps the limit in force for so many seconds at least. Returns an etcd lease if it is to be attached to another
    /// one.
    pub(super) async fn keep_limit(
        &self,
        now: &View,
        seconds: Option<u32>,
    ) -> Result<Option<EtcdLease>, Stop> {
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

    /// Gives back the etcd leases of what is not there any more, and revokes those under which it may still be made.
    pub(super) async fn give_back(&self, is_there: impl Fn(LeaseId) -> bool) {
        // Then a request still in flight for it fails. If revoking fails as well, the etcd lease expires on its own.
        let revoked = self.shared.detach(&self.key, is_there).into_iter().map(async |etcd_lease| {
            if let Err(failure) = self.connection.revoke(etcd_lease.id).await {
                tracing::debug!(key = &*self.key, %failure, "an etcd lease was not revoked");
            }
        });
        join_all(revoked).await;
    }
}

pub(super) const fn is_lease_missing(failure: &Failure) -> bool {
    failure.is_certain && matches!(failure.remedy, Remedy::Repeat)
}
