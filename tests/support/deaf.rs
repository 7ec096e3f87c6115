//! A store in memory that can be made deaf to renewals.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use leasehold::backend::{
    Answer, Answered, BackendError, Capabilities, Detail, Event, LeaseId, LeaseRef, Limit, Released, Renew,
    Request, Resource,
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

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        let panics = self.panics.swap(false, Ordering::SeqCst);
        async move {
            if panics {
                yield_now().await;
                panic!("as the test wants it");
            }
            self.store.request(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let heard = |renew: &Renew| {
            !self.hangs.load(Ordering::SeqCst) && !renew.lease.resource.key.ends_with(UNHEARD)
        };
        let renewals = renewals.iter().enumerate().filter(|(_, renew)| heard(renew));
        let answers = renewals.map(|(n, renew)| {
            let renewed = self.store.renew(std::slice::from_ref(renew));
            renewed.map(move |(_, answer)| (n, answer)).boxed()
        });
        // Those that are not heard are never answered, so the stream never ends.
        stream::select_all(answers).chain(stream::pending()).boxed()
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.released.lock().expect("no panic").push((Arc::clone(&lease.resource.key), Instant::now()));
        self.store.release(lease)
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.store.release_permits(lease, keep)
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.store.force_release(resource)
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.store.set_limit(resource, permits, ttl)
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.store.inspect(resource, detail)
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.store.events()
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}
