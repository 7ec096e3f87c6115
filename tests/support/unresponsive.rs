//! A store in memory that leaves renewals unanswered.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use leasehold::MemoryBackend;
use leasehold::backend::{Answer, Answered, Backend, LeaseRef, Released, Renew, Request};
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::intercept::{Intercept, Intercepted, Reply};

/// Renewals of keys with this suffix are never answered.
pub const UNANSWERED: &str = "unanswered";

/// Leaves some renewals unanswered or all of them, and records when each lease is released.
#[derive(Debug, Default)]
pub struct Unresponsive {
    /// No renewal is answered; otherwise, those whose key ends with [`UNANSWERED`] are not.
    hangs: AtomicBool,
    panics: AtomicBool,
    released: Mutex<Vec<(Arc<str>, Instant)>>,
}

impl Unresponsive {
    pub fn on(store: &MemoryBackend) -> Arc<Intercepted<Self>> {
        Intercepted::new(store, Self::default())
    }

    /// From now on, no renewal is answered.
    pub fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// The next request panics after it has yielded once.
    pub fn panic_once(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// When the lease of this key was first released.
    pub fn released_at(&self, key: &str) -> Option<Instant> {
        let released = self.released.lock().expect("no panic");
        released.iter().find(|(released, _)| **released == *key).map(|(_, at)| *at)
    }
}

impl Intercept for Unresponsive {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        let panics = self.panics.swap(false, Ordering::SeqCst);
        async move {
            if panics {
                yield_now().await;
                panic!("as the test wants it");
            }
            store.request(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, store: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let is_answered = |renew: &Renew| {
            !self.hangs.load(Ordering::SeqCst) && !renew.lease.resource.key.ends_with(UNANSWERED)
        };
        let renewals = renewals.iter().enumerate().filter(|(_, renew)| is_answered(renew));
        let answers = renewals.map(|(n, renew)| {
            let renewed = store.renew(std::slice::from_ref(renew));
            renewed.map(move |(_, answer)| (n, answer)).boxed()
        });
        // The others are never answered, so the stream never ends.
        stream::select_all(answers).chain(stream::pending()).boxed()
    }

    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        self.released.lock().expect("no panic").push((Arc::clone(&lease.resource.key), Instant::now()));
        store.release(lease)
    }
}
