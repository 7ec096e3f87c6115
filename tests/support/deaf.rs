//! A store in memory that can be made deaf to renewals.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use leasehold::backend::{
    AcquireRequest, Acquired, BackendError, Capabilities, Detail, LeaseId, Limit, Released, RenewRequest,
    Renewal, Resource, Whose,
};
use leasehold::{Backend, Inspection, MemoryBackend};
use tokio::task::yield_now;
use tokio::time::Instant;

/// How the keys end whose renewals are never answered.
pub(crate) const UNHEARD: &str = "unheard";

/// A peer of a store that does not answer renewals of some keys, and notes when each is released.
#[derive(Debug, Default)]
pub(crate) struct Deaf {
    store: MemoryBackend,
    /// None is answered; otherwise, those whose key ends with [`UNHEARD`] are not.
    hangs: AtomicBool,
    panics: AtomicBool,
    released: Mutex<Vec<(Arc<str>, Instant)>>,
}

impl Deaf {
    pub(crate) fn on(store: &MemoryBackend) -> Self {
        Self { store: store.peer(), ..Self::default() }
    }

    /// From now on, no renewal is answered.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// The next request meets a panic, once it has waited for a moment.
    pub(crate) fn panic_once(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// When the lease of this key was released first.
    pub(crate) fn released_at(&self, key: &str) -> Option<Instant> {
        let released = self.released.lock().expect("no panic");
        released.iter().find(|(released, _)| **released == *key).map(|(_, at)| *at)
    }
}

impl Backend for Deaf {
    fn lease_id(&self) -> LeaseId {
        self.store.lease_id()
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>> {
        let panics = self.panics.swap(false, Ordering::SeqCst);
        async move {
            if panics {
                yield_now().await;
                panic!("as the test wants it");
            }
            self.store.acquire(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>> {
        if self.hangs.load(Ordering::SeqCst) || request.resource.key.ends_with(UNHEARD) {
            return std::future::pending().boxed();
        }
        self.store.renew(request)
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.released.lock().expect("no panic").push((Arc::clone(&resource.key), Instant::now()));
        self.store.release(resource, whose)
    }

    fn resize<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        term: Duration,
        limit: &'a Limit,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        self.store.resize(resource, permits, term, limit)
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.store.inspect(resource, detail)
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
