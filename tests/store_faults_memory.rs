//! What a client makes of a store that stalls, tells late, or refuses: believed is what is certain, and errors name the cause.

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use leasehold::backend::{
    Answer, Answered, BackendError, Capabilities, Detail, Event, LeaseId, LeaseRef, Limit, Released, Renew,
    Request, Resource,
};
use leasehold::{Backend, Client, DistMutex, Error, Inspection, LossReason, MemoryBackend};
use support::{begun, eventually, options, within};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const NAME: &str = "machine:42";
const TTL: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Requests are not carried out until this is over.
    stalls: bool,
    /// What is told is kept until this is over.
    tells_late: bool,
    /// Requests fail, and nobody knows whether they were carried out.
    is_silent: bool,
    /// Renewals are refused.
    refuses: bool,
    /// Renewals are never answered.
    swallows: bool,
}

/// A store in memory with faults.
#[derive(Debug)]
struct Faulty {
    store: MemoryBackend,
    faults: watch::Receiver<Faults>,
}

impl Faulty {
    fn on(store: &MemoryBackend) -> (Client, watch::Sender<Faults>) {
        let (set, faults) = watch::channel(Faults::default());
        (Client::with_backend(Arc::new(Self { store: store.peer(), faults })), set)
    }

    /// Waits until nothing stalls, and fails if the store is silent.
    async fn pass(&self) -> Result<(), BackendError> {
        let mut faults = self.faults.clone();
        let faults = *faults.wait_for(|faults| !faults.stalls).await.expect("the test goes on");
        if faults.is_silent {
            return Err(BackendError::Unanswered { source: "as the test wants it".into() });
        }
        Ok(())
    }
}

impl Backend for Faulty {
    fn lease_id(&self) -> LeaseId {
        self.store.lease_id()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            self.pass().await?;
            self.store.request(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        if self.faults.borrow().swallows {
            return stream::pending().boxed();
        }
        if self.faults.borrow().refuses {
            let refused =
                |n| (n, Err(BackendError::Refused { source: "NOPERM as the test wants it".into() }));
            return stream::iter((0..renewals.len()).map(refused)).boxed();
        }
        let renewed = async move {
            let _ = self.pass().await;
            self.store.renew(renewals)
        };
        StreamExt::boxed(renewed.flatten_stream())
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.pass().await?;
            self.store.release(lease).await
        }
        .boxed()
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
        let faults = self.faults.clone();
        let told = self.store.events().then(move |event| {
            let mut faults = faults.clone();
            async move {
                let _ = faults.wait_for(|faults| !faults.tells_late).await;
                event
            }
        });
        told.boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

fn mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, options().ttl(TTL)).expect("valid")
}

async fn in_line(mutex: &DistMutex, n: usize) {
    eventually(TTL, || async { mutex.inspect().await.is_ok_and(|seen| seen.waiters.len() == n) }).await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_was_held_back_until_its_place_was_lost_is_not_believed() {
    let store = MemoryBackend::new();
    let ((late, faults), (one, _one), (two, _two)) =
        (Faulty::on(&store), Faulty::on(&store), Faulty::on(&store));
    let (late, one, two) = (mutex(&late), mutex(&one), mutex(&two));
    let holder = one.lock().await.expect("free");
    let mut waits = begun(async move { late.lock().await }).await;
    in_line(&one, 1).await;
    let next = begun({
        let two = two.clone();
        async move { two.lock().await }
    })
    .await;
    in_line(&one, 2).await;

    faults.send_replace(Faults { stalls: true, tells_late: true, ..Faults::default() });
    holder.release().await.expect("held to the end");
    // Granted to the one who is stalled; when that is over, to the next one.
    let next = within(TTL + SECOND, next).await.expect("no panic").expect("granted");
    // It asks, and is given another place; then it is told of the first one.
    faults.send_replace(Faults { tells_late: true, ..Faults::default() });
    in_line(&two, 1).await;
    faults.send_replace(Faults::default());
    assert!(timeout(TTL * 3, &mut waits).await.is_err(), "believed beside the next holder");
    assert!(next.is_held());
    let token = next.token();
    next.release().await.expect("held to the end");
    let guard = within(SECOND, waits).await.expect("no panic").expect("granted");
    assert!(guard.token() > token);
    guard.release().await.expect("held to the end");
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waits_hears_that_the_store_was_unavailable() {
    let store = MemoryBackend::new();
    let ((client, faults), (other, _other)) = (Faulty::on(&store), Faulty::on(&store));
    let guard = mutex(&other).lock().await.expect("free");
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let mutex = mutex(&client);
            tokio::spawn(async move { mutex.lock_timeout(SECOND * 5).await })
        })
        .collect();
    sleep(SECOND).await;
    faults.send_replace(Faults { is_silent: true, ..Faults::default() });
    for waiter in waiters {
        let outcome = within(SECOND * 10, waiter).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::StoreUnavailable { .. })), "{outcome:?}");
    }
    // When it answers again, it is time that runs out.
    faults.send_replace(Faults::default());
    let outcome = mutex(&client).lock_timeout(SECOND).await;
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn waiters_bear_a_silent_store_for_thirty_seconds_wherever_they_stand() {
    let store = MemoryBackend::new();
    let ((client, faults), (other, _other)) = (Faulty::on(&store), Faulty::on(&store));
    let _guard = mutex(&other).lock().await.expect("free");
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let mutex = mutex(&client);
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    sleep(SECOND).await;
    faults.send_replace(Faults { is_silent: true, ..Faults::default() });
    let silent = tokio::time::Instant::now();
    for waiter in waiters {
        let outcome = within(SECOND * 60, waiter).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::StoreUnavailable { .. })), "{outcome:?}");
        let after = silent.elapsed();
        assert!(after >= SECOND * 28 && after < SECOND * 32, "after {after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_renewal_is_told_with_what_the_store_said() {
    let store = MemoryBackend::new();
    let (client, faults) = Faulty::on(&store);
    let guard = mutex(&client).lock().await.expect("free");
    faults.send_replace(Faults { refuses: true, ..Faults::default() });
    assert_eq!(within(TTL * 2, guard.lost()).await, LossReason::StoreRefused);
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Lost { reason: LossReason::StoreRefused, .. })), "{outcome:?}");
    let text = outcome.expect_err("lost").to_string();
    assert!(text.contains("refused to renew") && text.contains("NOPERM"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn requests_given_up_during_a_stall_keep_nobody_out_afterwards() {
    let store = MemoryBackend::new();
    let (client, faults) = Faulty::on(&store);
    let mutexes: Vec<_> =
        (0..100).map(|n| client.mutex_with(&n.to_string(), options()).expect("valid")).collect();
    for _ in 0..5 {
        faults.send_replace(Faults { stalls: true, ..Faults::default() });
        let given_up = mutexes.iter().map(|mutex| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock_timeout(SECOND / 5).await })
        });
        for waiter in given_up.collect::<Vec<_>>() {
            let outcome = within(SECOND, waiter).await.expect("no panic");
            assert!(matches!(outcome, Err(Error::StoreUnavailable { .. })), "{outcome:?}");
        }
        faults.send_replace(Faults::default());
        for mutex in &mutexes {
            within(SECOND / 5, mutex.lock()).await.expect("free").release().await.expect("held to the end");
        }
    }
}

/// In real time: whoever holds may notice the end before the client does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_are_never_answered_keep_nobody_waiting_after_the_lease() {
    const TTL: Duration = Duration::from_millis(200);
    let store = MemoryBackend::new();
    let (client, faults) = Faulty::on(&store);
    faults.send_replace(Faults { swallows: true, ..Faults::default() });
    let mutex = client.mutex_with(NAME, options().ttl(TTL)).expect("valid");
    for _ in 0..8 {
        let guard = mutex.lock().await.expect("free");
        let lost = tokio::spawn(guard.lost());
        let next = begun({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        })
        .await;
        within(SECOND, lost).await.expect("no panic");
        let next = within(SECOND, next).await.expect("no panic").expect("granted");
        drop(guard);
        next.release().await.expect("held to the end");
    }
}
