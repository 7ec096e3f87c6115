//! A client that learns of its grant late.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use super::Harness;
use super::site::Site;
use crate::backend::{
    Answer, Answered, Backend, BackendError, Capabilities, Detail, Event, Inspection, Kind, LeaseId,
    LeaseRef, Limit, Released, Renew, Request, Resource,
};
use crate::{Client, Error, Guard, MutexOptions, SemaphoreOptions};

/// 4. A client that learns of a grant only after it has ended, when the request has another place in the queue, does
///    not accept it.
pub async fn point_4_a_grant_reported_late_is_not_accepted(store: &dyn Harness, kind: Kind) {
    let name = format!("conformance:late:{}", Uuid::new_v4());
    let prefix = match kind {
        Kind::Mutex | Kind::Reentrant => "lock",
        Kind::Counting => "semaphore",
        Kind::Fair => "fair-semaphore",
    };
    let resource = Resource::new(format!("{prefix}:{name}"), kind);
    let (one, other) = (Site::of(store, resource.clone()).await, Site::of(store, resource).await);
    let (hold_back, held_back) = watch::channel(HeldBack::Nothing);
    let (answered, mut answers) = watch::channel(());
    let late = Client::with_backend(Arc::new(Delayed { store: store.client().await, held_back, answered }));

    let (holder, next) = (one.request(), other.request_waiting());
    one.grant(&holder).await;
    let mut waiting = tokio::spawn(acquire(late.clone(), kind, name, one.ttl));
    one.keeping(holder.lease.id, one.until_waiting(1)).await;
    let waiting_next = other.wait(next.clone());
    one.keeping(holder.lease.id, one.until_waiting(2)).await;

    hold_back.send_replace(HeldBack::Everything);
    one.release(holder.lease.id).await;
    // Granted to the client that receives nothing; when that grant has ended, to the next one.
    let (served, _) = one.within(one.ttl * 2 + one.slack, "the next one", waiting_next).await;
    let told_late = async {
        answers.mark_unchanged();
        hold_back.send_replace(HeldBack::Events);
        one.until_waiting(1).await;
        // The client must know its new place before it learns of the old one.
        answers.changed().await.expect("the client exists");
        hold_back.send_replace(HeldBack::Nothing);
        let believed = timeout(one.ttl, &mut waiting).await;
        assert!(
            believed.is_err(),
            "the grant of an old ticket was accepted while the next holder had the lock"
        );
    };
    other.keeping(next.lease.id, told_late).await;
    assert_eq!(other.release(next.lease.id).await, Released::Held);
    let guard = one.within(one.ttl + one.slack, "the late one", waiting).await.expect("it is granted");
    assert!(guard.token() > served.token, "an older token after a newer one");
    guard.release().await.expect("it is held to the end");
    late.shutdown().await.expect("nothing is left to release");
    one.assert_empty().await;
}

async fn acquire(client: Client, kind: Kind, name: String, ttl: Duration) -> Result<Guard, Error> {
    let (lock, permits) = (MutexOptions::new().ttl(ttl), SemaphoreOptions::new().ttl(ttl));
    match kind {
        Kind::Mutex => client.mutex_with(&name, lock)?.lock().await,
        Kind::Reentrant => client.reentrant_lock_with(&name, "me", lock)?.lock().await,
        Kind::Counting => client.counting_semaphore_with(&name, 1, permits)?.acquire().await,
        Kind::Fair => client.fair_semaphore_with(&name, 1, permits)?.acquire().await,
    }
}

/// What is currently held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldBack {
    Nothing,
    Events,
    Everything,
}

/// A store whose answers and events may be held back on the way to this client.
struct Delayed {
    store: Arc<dyn Backend>,
    held_back: watch::Receiver<HeldBack>,
    /// Changes with every answer to a request.
    answered: watch::Sender<()>,
}

impl Delayed {
    async fn pass(&self) {
        // If the sender is gone, nothing is held back.
        let _ = self.held_back.clone().wait_for(|held| *held != HeldBack::Everything).await;
    }
}

impl Backend for Delayed {
    fn lease_id(&self) -> LeaseId {
        self.store.lease_id()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        let answer = async move {
            self.pass().await;
            let answer = self.store.request(request).await;
            // It may have been on its way when everything was held back: the grant in its answer must not arrive.
            self.pass().await;
            self.answered.send_modify(|()| {});
            answer
        };
        answer.boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        self.store.renew(renewals)
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.pass().then(|()| self.store.release(lease)).boxed()
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
        let held_back = self.held_back.clone();
        let events = self.store.events().then(move |event| {
            let mut held_back = held_back.clone();
            async move {
                let _ = held_back.wait_for(|held| *held == HeldBack::Nothing).await;
                event
            }
        });
        events.boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

impl fmt::Debug for Delayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delayed").field("store", &self.store).finish_non_exhaustive()
    }
}
