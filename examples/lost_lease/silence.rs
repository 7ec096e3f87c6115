//! A store that stops answering.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use leasehold::backend::{
    Answer, Answered, Backend, Capabilities, Detail, Event, LeaseId, LeaseRef, Limit, Released, Renew,
    Request, Resource,
};
use leasehold::{BackendError, Inspection, MemoryBackend};
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

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.perhaps(self.store.request(request))
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        if *self.silence.borrow() { Box::pin(stream::pending()) } else { self.store.renew(renewals) }
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.perhaps(self.store.release(lease))
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.perhaps(self.store.release_permits(lease, keep))
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.perhaps(self.store.force_release(resource))
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.perhaps(self.store.set_limit(resource, permits, ttl))
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.store.events()
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
