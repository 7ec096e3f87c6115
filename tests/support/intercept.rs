//! A store in memory on which a test answers some of the calls itself.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use leasehold::backend::{
    Answer, Answered, Backend, Capabilities, Detail, Event, LeaseId, LeaseRef, Limit, Released, Renew,
    Request, Resource,
};
use leasehold::{BackendError, Inspection, MemoryBackend, StoreState};

pub type Reply<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

/// What happens to the calls of a client on their way to the store: they are passed on, unless overridden.
pub trait Intercept: fmt::Debug + Send + Sync + 'static {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        store.request(request)
    }

    fn renew<'a>(&'a self, store: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        store.renew(renewals)
    }

    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        store.release(lease)
    }

    fn release_permits<'a>(
        &'a self,
        store: &'a MemoryBackend,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> Reply<'a, Released> {
        store.release_permits(lease, keep)
    }

    fn force_release<'a>(&'a self, store: &'a MemoryBackend, resource: &'a Resource) -> Reply<'a, bool> {
        store.force_release(resource)
    }

    /// `answer` asks the store when it is polled.
    fn inspect<'a>(&'a self, answer: Reply<'a, Inspection>, _: Detail) -> Reply<'a, Inspection> {
        answer
    }

    fn events(&self, store: &MemoryBackend) -> BoxStream<'static, Event> {
        store.events()
    }

    fn state_changes(&self, store: &MemoryBackend) -> BoxStream<'static, StoreState> {
        store.state_changes()
    }

    fn close<'a>(&'a self, store: &'a MemoryBackend) -> BoxFuture<'a, ()> {
        store.close()
    }

    fn handed_over(&self, _: LeaseId) {}
}

/// A peer of a store, with an interceptor in front of it.
#[derive(Debug)]
pub struct Intercepted<I> {
    store: MemoryBackend,
    interceptor: I,
}

impl<I: Intercept> Intercepted<I> {
    pub fn new(store: &MemoryBackend, interceptor: I) -> Arc<Self> {
        Arc::new(Self { store: store.peer(), interceptor })
    }
}

impl<I> Deref for Intercepted<I> {
    type Target = I;

    fn deref(&self) -> &I {
        &self.interceptor
    }
}

impl<I: Intercept> Backend for Intercepted<I> {
    fn request<'a>(&'a self, request: &'a Request) -> Reply<'a, Answer> {
        self.interceptor.request(&self.store, request)
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        self.interceptor.renew(&self.store, renewals)
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> Reply<'a, Released> {
        self.interceptor.release(&self.store, lease)
    }

    fn release_permits<'a>(&'a self, lease: &'a LeaseRef, keep: u32) -> Reply<'a, Released> {
        self.interceptor.release_permits(&self.store, lease, keep)
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> Reply<'a, bool> {
        self.interceptor.force_release(&self.store, resource)
    }

    // Always passed on.

    fn lease_id(&self) -> LeaseId {
        self.store.lease_id()
    }

    fn set_limit<'a>(&'a self, resource: &'a Resource, permits: u32, ttl: Duration) -> Reply<'a, Limit> {
        self.store.set_limit(resource, permits, ttl)
    }

    fn inspect<'a>(&'a self, resource: &'a Resource, detail: Detail) -> Reply<'a, Inspection> {
        self.interceptor.inspect(self.store.inspect(resource, detail), detail)
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.interceptor.events(&self.store)
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn state(&self) -> StoreState {
        self.store.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.interceptor.state_changes(&self.store)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.interceptor.close(&self.store)
    }

    fn handed_over(&self, lease: LeaseId) {
        self.interceptor.handed_over(lease);
    }
}
