//! A store that stops answering.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use leasehold::backend::{
    AcquireRequest, Acquired, BackendError, Capabilities, Detail, LeaseId, Limit, Released, RenewRequest,
    Renewal, Resource, Whose,
};
use leasehold::{Backend, Inspection, MemoryBackend};
use tokio::sync::watch;

/// A store in memory that answers nothing from some moment on, to this client.
#[derive(Debug)]
pub(crate) struct Silent {
    store: MemoryBackend,
    silence: watch::Receiver<bool>,
}

impl Silent {
    /// Falls silent when `silence` turns true.
    pub(crate) fn new(store: &Arc<MemoryBackend>, silence: watch::Receiver<bool>) -> Self {
        Self { store: store.peer(), silence }
    }

    /// What the store answers, if it does.
    fn perhaps<'a, T: Send + 'a>(&'a self, answer: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        if *self.silence.borrow() { Box::pin(pending()) } else { answer }
    }
}

impl Backend for Silent {
    fn lease_id(&self) -> LeaseId {
        self.store.lease_id()
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>> {
        self.perhaps(self.store.acquire(request))
    }

    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>> {
        self.perhaps(self.store.renew(request))
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.perhaps(self.store.release(resource, whose))
    }

    fn resize<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        term: Duration,
        limit: &'a Limit,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        self.perhaps(self.store.resize(resource, permits, term, limit))
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.perhaps(self.store.inspect(resource, detail))
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
