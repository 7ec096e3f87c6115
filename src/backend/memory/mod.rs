//! The store inside the process: the embedded default, and the contract in readable form.
//!
//! `store` is the specification: what is held, who waits, and what each verb does to that. This file puts it behind one
//! mutex that is never held across an await, and lets requests wait. Time is tokio's, so a paused clock drives it. A
//! waiter is a oneshot channel: a waiter whose future is gone has a closed channel, and the hand-over skips it.

mod store;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

use super::{
    AcquireRequest, Acquired, Backend, BackendError, Capabilities, Detail, Inspection, LeaseId, LeaseIds,
    Limit, Released, RenewRequest, Renewal, Resource, Whose,
};
use crate::closing::Closing;
use crate::sync::Mutex;
use store::{Requested, Store};

/// Locks and semaphores for the tasks of one process, and a stand-in for Redis in tests.
///
/// Everything is forgotten when the last client of the store is gone; tokens of a later store are greater all
/// the same, because they follow the clock.
#[derive(Debug)]
pub struct MemoryBackend {
    store: Arc<Mutex<Store>>,
    ids: LeaseIds,
    capabilities: Capabilities,
    closing: Closing,
}

impl MemoryBackend {
    /// A new, empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::default())
    }

    /// Another client of the same store, as another process would be to Redis.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store))
    }

    /// Forgets everything but the newest token, as a server restarted without its disk does: there the clock is ahead of all tokens,
    /// but a loop in one process may take up numbers faster than microseconds pass. Waiters find out by themselves.
    pub fn flush(&self) {
        self.store.lock().forget();
    }

    /// How many waiters all hand-overs so far have passed or served: what point 9 of the contract is about.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn waiters_visited(&self) -> u64 {
        self.store.lock().waiters_visited()
    }

    fn on(store: Arc<Mutex<Store>>) -> Self {
        Self {
            store,
            ids: LeaseIds::new(),
            capabilities: Capabilities::new("memory:", true),
            closing: Closing::default(),
        }
    }

    async fn wait(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        let mut grants = match self.store.lock().request(request)? {
            Requested::Granted(grant) => return Ok(Acquired::Granted(grant)),
            Requested::Busy => return Ok(Acquired::Busy),
            Requested::Queued(grants) => grants,
        };
        tracing::debug!(key = &*request.resource.key, "waiting");
        loop {
            let look_again = self.store.lock().next_change(request);
            tokio::select! {
                biased;
                grant = &mut grants => match grant {
                    Ok(grant) => return Ok(Acquired::Granted(grant)),
                    // It was thrown out of the line, or the store forgot everything: it asks once more.
                    Err(_) => match self.store.lock().request(request)? {
                        Requested::Granted(grant) => return Ok(Acquired::Granted(grant)),
                        Requested::Busy => return Ok(Acquired::Busy),
                        Requested::Queued(again) => grants = again,
                    },
                },
                () = self.closing.closed() => return Err(BackendError::Closed),
                () = sleep_until(look_again) => {
                    let mut store = self.store.lock();
                    store.settle(&request.resource);
                    let expired = request.wait.deadline().is_some_and(|end| end <= Instant::now());
                    if expired {
                        // It keeps its place, unless a hand-over meets it, until it is released or asked for again.
                        return Ok(grants.try_recv().map_or(Acquired::Busy, Acquired::Granted));
                    }
                }
            }
        }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for MemoryBackend {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>> {
        async move {
            self.open()?;
            self.wait(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>> {
        async move {
            self.open()?;
            Ok(self.store.lock().renew(request))
        }
        .boxed()
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.open()?;
            self.store.lock().release(resource, whose)
        }
        .boxed()
    }

    fn resize<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        term: Duration,
        limit: &'a Limit,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        async move {
            self.open()?;
            self.store.lock().resize(resource, permits, term, limit)
        }
        .boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            self.open()?;
            self.store.lock().inspect(resource, detail)
        }
        .boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.closing.close();
        std::future::ready(()).boxed()
    }
}

impl MemoryBackend {
    fn open(&self) -> Result<(), BackendError> {
        if self.closing.is_closed() { Err(BackendError::Closed) } else { Ok(()) }
    }
}
