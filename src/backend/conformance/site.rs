//! One client and one resource, and requests that wait as those of the lease engine do.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::Harness;
use crate::backend::{
    Answer, Backend, BackendError, Claim, Detail, Event, Grant, Inspection, Kind, LeaseId, LeaseRef, Limit,
    Queued, Released, Renew, Renewal, Request, Resource,
};

/// One client and one resource.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) resource: Resource,
    pub(super) limit: Limit,
    pub(super) ttl: Duration,
    pub(super) slack: Duration,
    pub(super) received: broadcast::Sender<Event>,
    pub(super) _listener: Arc<AbortOnDropHandle<()>>,
}

/// A grant, and the instant from which its lease is measured.
pub(super) type Held = (Grant, Instant);

impl Site {
    pub(super) async fn new(store: &dyn Harness, kind: Kind, what: &str) -> Self {
        let key = format!("lock:conformance:{what}:{}", Uuid::new_v4());
        Self::of(store, Resource::new(key, kind)).await
    }

    /// Two clients and one resource.
    pub(super) async fn pair(store: &dyn Harness, kind: Kind, what: &str) -> (Self, Self) {
        let one = Self::new(store, kind, what).await;
        let other = Self::of(store, one.resource.clone()).await;
        (one, other)
    }

    pub(super) async fn of(store: &dyn Harness, resource: Resource) -> Self {
        let backend = store.client().await;
        let (received, _) = broadcast::channel(4096);
        let (mut events, sender) = (backend.events(), received.clone());
        let listener = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                // There may be no listener.
                let _ = sender.send(event);
            }
        });
        let (ttl, slack) = (store.ttl(), store.slack());
        let listener = Arc::new(AbortOnDropHandle::new(listener));
        Self { backend, resource, limit: Limit::stated(1), ttl, slack, received, _listener: listener }
    }

    /// The same client, and another resource.
    pub(super) fn at(&self, resource: Resource) -> Self {
        Self { resource, ..self.clone() }
    }

    pub(super) fn request(&self) -> Request {
        self.request_for(1)
    }

    /// A request that does not wait: for a lock, under an owner of its own if it is reentrant, or for this many
    /// permits.
    pub(super) fn request_for(&self, permits: u32) -> Request {
        let lease = self.backend.lease_id();
        let claim = match self.resource.kind {
            Kind::Mutex => Claim::Sole,
            Kind::Reentrant => Claim::Owner(lease.to_string().into()),
            Kind::Counting | Kind::Fair => Claim::Permits(permits, self.limit),
        };
        Request::new(LeaseRef::new(lease, self.resource.clone()), claim, self.ttl)
    }

    pub(super) fn request_waiting(&self) -> Request {
        self.request().waiting()
    }

    /// The result of a release without effect while another client holds the resource.
    pub(super) const fn not_ours(&self) -> Released {
        if self.resource.kind.is_semaphore() { Released::Absent } else { Released::Taken }
    }

    pub(super) async fn ask(&self, request: &Request) -> Answer {
        self.backend.request(request).await.expect("the store answers")
    }

    pub(super) async fn grant(&self, request: &Request) -> Grant {
        match self.ask(request).await {
            Answer::Granted(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Sends a request that has to wait, and does not repeat it.
    pub(super) async fn queue(&self, request: &Request) -> Queued {
        match self.ask(request).await {
            Answer::Queued(queued) => queued,
            other => panic!("not queued: {other:?}"),
        }
    }

    pub(super) async fn refused(&self, request: &Request) -> BackendError {
        self.backend.request(request).await.expect_err("it is refused")
    }

    /// The events for this client from now on.
    pub(super) fn listen(&self) -> broadcast::Receiver<Event> {
        self.received.subscribe()
    }

    /// Waits in a task until the request is granted. It is repeated, and events are accepted, as by the lease engine.
    pub(super) fn wait(&self, request: Request) -> JoinHandle<Held> {
        let site = self.clone();
        let mut events = self.listen();
        tokio::spawn(async move {
            loop {
                let sent = Instant::now();
                let queued = match site.ask(&request).await {
                    Answer::Granted(grant) => return (grant, site.measured_from(grant, sent)),
                    Answer::Queued(queued) => queued,
                    Answer::Busy { .. } => panic!("a waiting request was answered as one that does not wait"),
                };
                let pause = queued.ask_again_in.map_or(site.ttl / 3, |pause| pause.min(site.ttl / 3));
                let heard = timeout(pause, async {
                    loop {
                        match events.recv().await {
                            Ok(Event::Granted { lease, ticket, grant })
                                if lease == request.lease && ticket == queued.ticket =>
                            {
                                return Some(grant);
                            }
                            Ok(Event::Granted { .. } | Event::Revoked { .. }) => {}
                            Ok(Event::AskAgain(lease)) if lease != request.lease.id => {}
                            _ => return None,
                        }
                    }
                });
                if let Ok(Some(grant)) = heard.await {
                    return (grant, sent);
                }
            }
        })
    }

    /// Waits for a grant and releases it at once.
    pub(super) fn wait_and_release(&self, request: Request) -> JoinHandle<Grant> {
        let (site, lease) = (self.clone(), request.lease.id);
        let granted = self.wait(request);
        tokio::spawn(async move {
            let (grant, _) = granted.await.expect("granted");
            site.release(lease).await;
            grant
        })
    }

    fn measured_from(&self, grant: Grant, sent: Instant) -> Instant {
        sent - grant.remaining.map_or(Duration::ZERO, |left| self.ttl.saturating_sub(left))
    }

    pub(super) fn lease(&self, id: LeaseId) -> LeaseRef {
        LeaseRef::new(id, self.resource.clone())
    }

    pub(super) async fn release(&self, lease: LeaseId) -> Released {
        self.backend.release(&self.lease(lease)).await.expect("the store answers")
    }

    pub(super) async fn keep(&self, lease: LeaseId, permits: u32) -> Released {
        self.backend.release_permits(&self.lease(lease), permits).await.expect("the store answers")
    }

    pub(super) async fn renew(&self, lease: LeaseId) -> Renewal {
        self.try_renew(lease).await.expect("the store answers")
    }

    pub(super) async fn try_renew(&self, lease: LeaseId) -> Result<Renewal, BackendError> {
        let renewals = [Renew::new(self.lease(lease), self.ttl)];
        let mut answers: Vec<_> = self.backend.renew(&renewals).collect().await;
        assert_eq!(answers.len(), 1);
        answers.remove(0).1
    }

    /// Renews a lease while `work` runs.
    pub(super) async fn keeping<T>(&self, lease: LeaseId, work: impl Future<Output = T>) -> T {
        let kept = async {
            loop {
                self.renew(lease).await;
                sleep(self.ttl / 6).await;
            }
        };
        tokio::select! {
            () = kept => unreachable!("it never ends"),
            output = work => output,
        }
    }

    pub(super) async fn inspect(&self) -> Inspection {
        self.backend.inspect(&self.resource, Detail::Full).await.expect("the store answers")
    }

    pub(super) async fn waiters(&self) -> usize {
        self.inspect().await.waiters.len()
    }

    /// Waits until exactly `count` requests are in the queue. Polls, because there is no event for this.
    pub(super) async fn until_waiting(&self, count: usize) {
        let arrived = async {
            while self.waiters().await != count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(timeout(self.slack * 10, arrived).await.is_ok(), "there were never {count} waiters");
    }

    pub(super) async fn assert_empty(&self) {
        let left = self.inspect().await;
        assert!(left.holders.is_empty() && left.waiters.is_empty(), "left behind: {left:?}");
    }

    /// Checks that a lease measured from `measured_from` ends for the client before it ends at the store. Passes if the
    /// store does not report when a lease ends.
    pub(super) async fn assert_not_trusted_beyond_the_store(&self, measured_from: Instant) {
        let now = self.inspect().await;
        let Some(remaining) = now.holder().expect("it is held").remaining else { return };
        // The store rounds to milliseconds.
        let store_ends = Instant::now() + remaining + Duration::from_millis(1);
        assert!(measured_from + self.ttl <= store_ends, "the client outlives the store");
    }

    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        what: &str,
        task: impl Future<Output = Result<T, tokio::task::JoinError>>,
    ) -> T {
        match timeout(limit, task).await {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => panic!("{what}: {error}"),
            Err(_) => panic!("{what} took longer than {limit:?}"),
        }
    }
}
