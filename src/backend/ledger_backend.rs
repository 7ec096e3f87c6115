//! A store on any database that can change one record atomically.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use uuid::Uuid;

use super::ledger::{Ledger, Stamp};
use super::types::*;
use super::{Backend, BackendError, LeaseId, LeaseIds};
use crate::closing::Closing;
use crate::sync::Mutex;

/// What a database has to provide so that [`LedgerBackend`] can use it as a store: atomic changes of one record, and, if
/// possible, messages to other clients.
///
/// The record is a [`Ledger`], stored as its text or in any other form. For when it may be deleted, see [`Ledger::is_in_use`].
pub trait LedgerStore: fmt::Debug + Send + Sync + 'static {
    /// Runs `change` on the record of `key`, or on a new one if there is none, and stores the result, in one atomic step. If
    /// the record was changed by somebody else in the meantime, `change` is run again on the new record.
    ///
    /// Besides its result, `change` returns events. Once the record is stored, they are to be delivered to the clients that made
    /// the leases they name; a store that cannot push drops them, and its waiters poll. The changes of one client to one key take
    /// effect in the order in which they were called, even if a future is dropped.
    fn transact<T: Send + 'static>(
        &self,
        key: &Arc<str>,
        change: impl FnMut(&mut Ledger, Stamp) -> (T, Vec<Event>) + Send + 'static,
    ) -> impl Future<Output = Result<T, BackendError>> + Send;

    /// The events for `client`: those that resulted from other clients' changes, or [`Event::Changed`] for a key, or
    /// [`Event::Resync`] if events may have been lost. A store that cannot push has none.
    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let _ = client;
        stream::pending().boxed()
    }

    /// The store's address and what it supports.
    fn capabilities(&self) -> Capabilities;

    /// Closes connections and ends background work.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A full [`Backend`] on a [`LedgerStore`].
pub struct LedgerBackend<S> {
    store: S,
    ids: LeaseIds,
    capabilities: Capabilities,
    /// The channel for events that result from this client's own changes.
    own: Mutex<Option<UnboundedSender<Event>>>,
    closing: Closing,
}

impl<S: LedgerStore> LedgerBackend<S> {
    /// A client of `store`.
    #[must_use]
    pub fn on(store: S) -> Self {
        let (ids, capabilities) = (LeaseIds::new(), store.capabilities());
        Self { store, ids, capabilities, own: Mutex::default(), closing: Closing::default() }
    }

    /// The same, as one of several nodes: all of them have the same client.
    #[cfg(all(test, feature = "_redis"))]
    pub(super) fn for_client(store: S, client: Uuid) -> Self {
        Self { ids: LeaseIds::of(client), ..Self::on(store) }
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    async fn change<T: Send + 'static>(
        &self,
        key: &Arc<str>,
        mut change: impl FnMut(&mut Ledger, Stamp, &mut Vec<Event>) -> T + Send + 'static,
    ) -> Result<T, BackendError> {
        if self.closing.is_closed() {
            return Err(BackendError::Closed);
        }
        let client = self.ids.client();
        let transaction = self.store.transact(key, move |ledger, stamp| {
            let mut told = Vec::new();
            let outcome = change(ledger, stamp, &mut told);
            if told.is_empty() {
                return ((outcome, told), Vec::new());
            }
            let (own, others) = told.into_iter().partition(|event| is_for(event, client));
            ((outcome, own), others)
        });
        let (outcome, own) = transaction.await?;
        if !own.is_empty()
            && let Some(tell) = &*self.own.lock()
        {
            own.into_iter().for_each(|event| drop(tell.unbounded_send(event)));
        }
        Ok(outcome)
    }

    async fn renew_one(&self, renew: Renew) -> Result<Renewal, BackendError> {
        let key = Arc::clone(&renew.lease.resource.key);
        self.change(&key, move |ledger, stamp, _| ledger.renew(&renew, stamp)).await
    }

    async fn release_all_but(&self, lease: &LeaseRef, keep: u32) -> Result<Released, BackendError> {
        let asked = lease.clone();
        let release = move |ledger: &mut Ledger, stamp, told: &mut Vec<Event>| {
            ledger.release(&asked, keep, stamp, told)
        };
        self.change(&lease.resource.key, release).await?
    }
}

fn is_for(event: &Event, client: Uuid) -> bool {
    match event {
        Event::Granted { lease, .. } => lease.id.client() == client,
        Event::Revoked { lease, .. } | Event::AskAgain(lease) => lease.client() == client,
        Event::Changed(_) | Event::Resync => false,
    }
}

impl<S: LedgerStore> Backend for LedgerBackend<S> {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            let asked = request.clone();
            let key = &request.lease.resource.key;
            let mut answer =
                self.change(key, move |ledger, stamp, told| ledger.request(&asked, stamp, told)).await??;
            if let (Answer::Queued(queued), Wakes::Polled(interval)) = (&mut answer, self.capabilities.wakes)
            {
                queued.ask_again_in = Some(queued.ask_again_in.map_or(interval, |pause| pause.min(interval)));
            }
            Ok(answer)
        }
        .boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let renewals = renewals.iter().enumerate();
        let renewals =
            renewals.map(|(n, renew)| self.renew_one(renew.clone()).map(move |answer| (n, answer)));
        renewals.collect::<FuturesUnordered<_>>().boxed()
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.release_all_but(lease, 0).boxed()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.release_all_but(lease, keep).boxed()
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            let asked = resource.clone();
            self.change(&resource.key, move |ledger, stamp, told| ledger.force_release(&asked, stamp, told))
                .await?
        }
        .boxed()
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        async move {
            let asked = resource.clone();
            self.change(&resource.key, move |ledger, stamp, told| {
                ledger.set_limit(&asked, permits, ttl, stamp, told)
            })
            .await?
        }
        .boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            let asked = resource.clone();
            self.change(&resource.key, move |ledger, stamp, _| ledger.inspect(&asked, detail, stamp)).await?
        }
        .boxed()
    }

    fn events(&self) -> BoxStream<'static, Event> {
        let (tell, told) = unbounded();
        *self.own.lock() = Some(tell);
        stream::select(told, self.store.wakes(self.ids.client())).boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async {
            self.closing.close();
            self.store.close().await;
        }
        .boxed()
    }
}

#[cfg(all(test, feature = "_redis"))]
impl<S: LedgerStore> super::redlock::Node for LedgerBackend<S> {
    fn request_from<'a>(
        &'a self,
        request: &'a Request,
        proposed: crate::fence::FencingToken,
    ) -> BoxFuture<'a, Result<Answer, BackendError>> {
        let asked = request.clone();
        let key = &request.lease.resource.key;
        async move {
            self.change(key, move |ledger, stamp, told| {
                let floor = stamp.floor.max(proposed.get());
                ledger.request(&asked, Stamp { floor, ..stamp }, told)
            })
            .await?
        }
        .boxed()
    }

    fn settle<'a>(
        &'a self,
        lease: &'a LeaseRef,
        token: crate::fence::FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        let id = lease.id;
        self.change(&lease.resource.key, move |ledger, stamp, _| ledger.settle(id, token, stamp)).boxed()
    }
}

impl<S: fmt::Debug> fmt::Debug for LedgerBackend<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LedgerBackend").field("store", &self.store).finish_non_exhaustive()
    }
}
