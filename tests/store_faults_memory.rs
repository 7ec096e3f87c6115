//! What a client does when its store stalls, does not answer, or refuses: it reports errors that name the cause, and
//! keeps nobody waiting for longer than promised.

use std::future::{pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use futures::stream::{self, BoxStream, StreamExt};
use leasehold::backend::{Answer, Answered, Backend, Detail, LeaseId, LeaseRef, Released, Renew, Request};
use leasehold::{BackendError, Client, DistMutex, Error, Inspection, LossReason, MemoryBackend};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use leasehold_support::{begun, options, within};
use tokio::runtime::Builder;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

const NAME: &str = "machine:42";
const TTL: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Requests are not carried out until this is over.
    stalls: bool,
    /// Requests fail, and nobody knows whether they were carried out.
    is_silent: bool,
    /// Renewals are refused.
    refuses: bool,
    /// Renewals are never answered.
    swallows: bool,
}

/// A store in memory with the faults of the moment.
#[derive(Debug)]
struct FaultyStore(watch::Receiver<Faults>);

impl FaultyStore {
    fn on(store: &MemoryBackend) -> (Client, watch::Sender<Faults>) {
        let (set, faults) = watch::channel(Faults::default());
        (Client::with_backend(Intercepted::new(store, Self(faults))), set)
    }

    /// Waits until nothing stalls, and fails if the store is silent.
    async fn pass(&self) -> Result<(), BackendError> {
        let mut faults = self.0.clone();
        let faults = *faults.wait_for(|faults| !faults.stalls).await.expect("the test goes on");
        if faults.is_silent {
            return Err(BackendError::Unanswered { source: "as the test wants it".into() });
        }
        Ok(())
    }
}

impl Intercept for FaultyStore {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        async move {
            self.pass().await?;
            store.request(request).await
        }
        .boxed()
    }

    fn renew<'a>(&'a self, store: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        if self.0.borrow().swallows {
            return stream::pending().boxed();
        }
        if self.0.borrow().refuses {
            let refused =
                |n| (n, Err(BackendError::Refused { source: "NOPERM as the test wants it".into() }));
            return stream::iter((0..renewals.len()).map(refused)).boxed();
        }
        let renewed = async move {
            let _ = self.pass().await;
            store.renew(renewals)
        };
        StreamExt::boxed(renewed.flatten_stream())
    }

    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        async move {
            self.pass().await?;
            store.release(lease).await
        }
        .boxed()
    }

    fn release_permits<'a>(
        &'a self,
        store: &'a MemoryBackend,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> Reply<'a, Released> {
        async move {
            self.pass().await?;
            store.release_permits(lease, keep).await
        }
        .boxed()
    }
}

/// A store of which a part does not answer releases at the moment.
#[derive(Debug, Default)]
struct PartlySilent(AtomicBool);

const SILENT: &str = "silent";

impl Intercept for PartlySilent {
    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        async move {
            if lease.resource.key.contains(SILENT) && self.0.load(Ordering::Relaxed) {
                return Err(BackendError::Unanswered { source: "as the test wants it".into() });
            }
            store.release(lease).await
        }
        .boxed()
    }
}

fn mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, options().ttl(TTL)).expect("valid")
}

/// More than are sent at a time. None of the leases ends on its own while this test runs.
#[tokio::test(start_paused = true)]
async fn releases_that_are_not_answered_delay_others_for_a_few_seconds() {
    let store = MemoryBackend::new();
    let faults = Intercepted::new(&store, PartlySilent::default());
    let client = Client::with_backend(Arc::<Intercepted<PartlySilent>>::clone(&faults));
    let lock = async |client: &Client, name: &str| {
        let mutex = client.mutex_with(name, options().ttl(SECOND * 120)).expect("valid");
        within(SECOND * 30, mutex.lock()).await.expect("free")
    };
    let mut guards = Vec::new();
    for n in 0..600 {
        guards.push(lock(&client, &format!("{SILENT}:{n}")).await);
    }
    let last = lock(&client, NAME).await;
    faults.0.store(true, Ordering::Relaxed);
    drop(guards);
    drop(last);
    let other = Client::with_backend(Arc::new(store.peer()));
    let begin = Instant::now();
    drop(lock(&other, NAME).await);
    assert!(begin.elapsed() >= SECOND * 4, "all releases were sent at the same time");
    assert!(begin.elapsed() <= SECOND * 12, "after {:?}", begin.elapsed());
    faults.0.store(false, Ordering::Relaxed);
    for n in 0..600 {
        drop(lock(&other, &format!("{SILENT}:{n}")).await);
    }
    client.shutdown().await.expect("all releases were confirmed");
}

#[tokio::test(start_paused = true)]
async fn all_waiters_get_the_error_that_the_store_was_unavailable() {
    let store = MemoryBackend::new();
    let ((client, faults), (other, _other)) = (FaultyStore::on(&store), FaultyStore::on(&store));
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
async fn all_waiters_tolerate_a_silent_store_for_thirty_seconds() {
    let store = MemoryBackend::new();
    let ((client, faults), (other, _other)) = (FaultyStore::on(&store), FaultyStore::on(&store));
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
async fn a_refused_renewal_is_reported_with_the_stores_message() {
    let store = MemoryBackend::new();
    let (client, faults) = FaultyStore::on(&store);
    let guard = mutex(&client).lock().await.expect("free");
    faults.send_replace(Faults { refuses: true, ..Faults::default() });
    assert_eq!(within(TTL * 2, guard.lost()).await, LossReason::StoreRefused);
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Lost { reason: LossReason::StoreRefused, .. })), "{outcome:?}");
    let text = outcome.expect_err("lost").to_string();
    assert!(text.contains("refused to renew") && text.contains("NOPERM"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_during_a_downgrade_is_reported_when_it_ends() {
    let store = MemoryBackend::new();
    let (client, faults) = FaultyStore::on(&store);
    let lock = client.rw_lock_with(NAME, options().ttl(TTL)).expect("valid");
    let writer = lock.write().await.expect("free");
    faults.send_replace(Faults { stalls: true, ..Faults::default() });
    let remaining = writer.remaining();
    let outcome = within(remaining, writer.downgrade()).await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    faults.send_replace(Faults::default());
    drop(within(SECOND, lock.write()).await.expect("nothing is left"));
}

#[tokio::test(start_paused = true)]
async fn requests_given_up_during_a_stall_block_no_request_afterwards() {
    let store = MemoryBackend::new();
    let (client, faults) = FaultyStore::on(&store);
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
    let (client, faults) = FaultyStore::on(&store);
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

/// Its first release is carried out, and not answered.
#[derive(Debug, Default)]
struct ForgetfulStore {
    released: Notify,
    has_forgotten: AtomicBool,
}

impl Intercept for ForgetfulStore {
    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        async move {
            let released = store.release(lease).await;
            if lease.resource.name() == NAME && !self.has_forgotten.swap(true, Ordering::SeqCst) {
                self.released.notify_one();
                pending::<()>().await;
            }
            released
        }
        .boxed()
    }
}

/// The lease is the next waiter's by the time the release is sent again.
#[test]
fn a_release_whose_answer_is_lost_with_its_runtime_is_no_loss() {
    for ends in [true, false] {
        let one_thread = || Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (first, second) = (one_thread(), one_thread());
        let store = Intercepted::new(&MemoryBackend::new(), ForgetfulStore::default());
        let client = Client::with_backend(Arc::clone(&store) as _);
        // The client works on the first runtime.
        first.block_on(async { drop(client.mutex("first").expect("valid").lock().await.expect("free")) });
        let (guard, waiter) = second.block_on(async {
            let guard = mutex(&client).lock().await.expect("free");
            let mutex = mutex(&client);
            let waiter = tokio::spawn(async move { mutex.lock().await?.release().await });
            // Too long for the lease to be passed on within the client.
            sleep(Duration::from_millis(50)).await;
            (guard, waiter)
        });
        let first = thread::spawn(move || {
            first.block_on(store.released.notified());
            (!ends).then_some(first)
        });
        second.block_on(async {
            within(SECOND * 5, guard.release()).await.expect("held to the end");
            within(SECOND * 5, waiter).await.expect("no panic").expect("granted, and held to the end");
        });
        drop(first.join().expect("no panic"));
    }
}

/// Requests are carried out, and never answered.
#[derive(Debug)]
struct Unanswered;

impl Intercept for Unanswered {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        async {
            store.request(request).await?;
            pending().await
        }
        .boxed()
    }
}

/// A task may keep the future of a request and not poll it any more.
#[tokio::test(start_paused = true)]
async fn what_is_requested_while_a_client_is_shut_down_is_released() {
    let store = MemoryBackend::new();
    let client = Client::with_backend(Intercepted::new(&store, Unanswered));
    let mutex = mutex(&client);
    let mut lock = Box::pin(mutex.lock());
    assert!(futures::poll!(&mut lock).is_pending());
    within(SECOND, client.shutdown()).await.expect("released");
    let holders = Client::with_backend(Arc::new(store)).mutex(NAME).expect("valid").inspect().await;
    assert_eq!(holders.expect("it answers").holders, []);
}

/// The first request is still on its way, and not answered. A release is carried out when the test says so.
#[derive(Debug, Default)]
struct OnItsWay {
    request: parking_lot::Mutex<Option<Request>>,
    release: Notify,
}

#[derive(Debug)]
struct Delaying(Arc<OnItsWay>);

impl Intercept for Delaying {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        let mut first = self.0.request.lock();
        if first.is_none() {
            *first = Some(request.clone());
            return ready(Err(BackendError::Unanswered { source: "as the test wants it".into() })).boxed();
        }
        store.request(request)
    }

    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        async {
            self.0.release.notified().await;
            store.release(lease).await
        }
        .boxed()
    }
}

/// It is repeated, and the repetition is told that somebody else holds the lock. Then the first one arrives.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_not_answered_and_is_carried_out_after_its_repetition_leaves_nothing() {
    let (store, on_its_way) = (MemoryBackend::new(), Arc::new(OnItsWay::default()));
    let client = Client::with_backend(Intercepted::new(&store, Delaying(Arc::clone(&on_its_way))));
    let other = mutex(&Client::with_backend(Arc::new(store.peer())));
    let guard = other.lock().await.expect("free");
    assert!(mutex(&client).try_lock().await.expect("answered").is_none(), "held by the other client");
    guard.release().await.expect("held");
    let late = on_its_way.request.lock().clone().expect("it was sent");
    assert!(matches!(store.request(&late).await, Ok(Answer::Granted(_))));
    on_its_way.release.notify_one();
    within(SECOND, client.shutdown()).await.expect("released");
    assert_eq!(other.inspect().await.expect("it answers").holders, []);
}

/// Releases panic at first.
#[derive(Debug)]
struct Panicking(AtomicUsize);

impl Intercept for Panicking {
    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        let earlier = self.0.fetch_add(1, Ordering::SeqCst);
        async move {
            assert!(earlier >= 2, "as the test wants it");
            store.release(lease).await
        }
        .boxed()
    }
}

/// The task of the client that sends releases ends each time, and is started again by the next call.
#[tokio::test]
async fn a_guard_is_released_although_its_store_has_panicked_twice() {
    let store = MemoryBackend::new();
    let client = Client::with_backend(Intercepted::new(&store, Panicking(AtomicUsize::new(0))));
    let other = mutex(&Client::with_backend(Arc::new(store.peer())));
    drop(mutex(&client).lock().await.expect("free"));
    leasehold_support::eventually(SECOND * 10, || async {
        drop(client.mutex("another").expect("valid").try_lock().await.expect("answered"));
        other.inspect().await.expect("it answers").holders.is_empty()
    })
    .await;
}

/// Everything is refused.
#[derive(Debug)]
struct Refusing;

impl Refusing {
    fn refused<T>() -> Result<T, BackendError> {
        Err(BackendError::Refused { source: "NOPERM as the test wants it".into() })
    }
}

impl Intercept for Refusing {
    fn request<'a>(&'a self, _: &'a MemoryBackend, _: &'a Request) -> Reply<'a, Answer> {
        async { Self::refused() }.boxed()
    }

    fn release<'a>(&'a self, _: &'a MemoryBackend, _: &'a LeaseRef) -> Reply<'a, Released> {
        async { Self::refused() }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_requests_were_all_refused_has_nothing_to_release() {
    let client = Client::with_backend(Intercepted::new(&MemoryBackend::new(), Refusing));
    let error = mutex(&client).try_lock().await.map(drop).expect_err("refused");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    within(SECOND, client.shutdown()).await.expect("nothing is left");
}

/// Two releases fail, and closing it hangs.
#[derive(Debug)]
struct Unreleased;

impl Intercept for Unreleased {
    fn release<'a>(&'a self, _: &'a MemoryBackend, _: &'a LeaseRef) -> Reply<'a, Released> {
        async { Err(BackendError::NotSent { source: "Connection refused".into() }) }.boxed()
    }

    fn close<'a>(&'a self, _: &'a MemoryBackend) -> BoxFuture<'a, ()> {
        pending().boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_says_how_many_releases_are_left_and_why_and_does_not_wait_longer_for_connections() {
    let client = Client::with_backend(Intercepted::new(&MemoryBackend::new(), Unreleased));
    let mut guards = Vec::new();
    for name in ["a", "b"] {
        guards.push(client.mutex(name).expect("valid").lock().await.expect("free"));
    }
    let begun = Instant::now();
    let error = client.shutdown().await.expect_err("two are left");
    assert!(begun.elapsed() <= SECOND * 5, "{:?}", begun.elapsed());
    let said = error.to_string();
    assert!(
        said.contains("2 releases were not confirmed: the request was not sent: Connection refused"),
        "{said}"
    );
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
}

/// When a call is about to end, the store is asked whether it answers, and that fails for this reason.
#[derive(Debug)]
struct Unanswering(BackendError);

impl Intercept for Unanswering {
    fn inspect<'a>(&'a self, _: Reply<'a, Inspection>, _: Detail) -> Reply<'a, Inspection> {
        async { Err(self.0.clone()) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_while_the_store_does_not_answer_says_why_it_does_not() {
    let store = MemoryBackend::new();
    let _guard = mutex(&Client::with_backend(Arc::new(store.peer()))).lock().await.expect("free");
    for failure in [
        BackendError::NotSent { source: "Connection refused".into() },
        BackendError::RefusedForNow { source: "MISCONF".into() },
    ] {
        let said = failure.to_string();
        let client = Client::with_backend(Intercepted::new(&store, Unanswering(failure)));
        let error = mutex(&client).lock_timeout(SECOND * 2).await.map(drop).expect_err("it is held");
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(&said), "{error}");
    }
}

/// The second request of a client is carried out only when the test says so: it is on its way for a long time.
#[derive(Debug, Default)]
struct LateRequest {
    requests: AtomicUsize,
    sent: Notify,
    arrives: Notify,
    carried_out: Notify,
    handed_over: AtomicUsize,
}

impl Intercept for LateRequest {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        async move {
            let is_late = self.requests.fetch_add(1, Ordering::Relaxed) == 1;
            if !is_late {
                return store.request(request).await;
            }
            self.sent.notify_one();
            self.arrives.notified().await;
            let answer = store.request(request).await;
            self.carried_out.notify_one();
            answer
        }
        .boxed()
    }

    fn handed_over(&self, _: LeaseId) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
    }
}

/// The hold was handed over and is over, or is still there, when the request is carried out.
#[tokio::test(start_paused = true)]
async fn a_late_request_of_a_lease_that_was_handed_over_takes_nothing_for_longer_than_its_answer_needs() {
    for is_over in [true, false] {
        let store = MemoryBackend::new();
        let peer = || Client::with_backend(Arc::new(store.peer()));
        let (holder, second, late) = (peer(), peer(), Intercepted::new(&store, LateRequest::default()));
        let first = Client::with_backend(Arc::<Intercepted<LateRequest>>::clone(&late));
        let guard = mutex(&holder).lock().await.expect("free");
        let waiting = mutex(&first);
        let waiting = tokio::spawn(async move { waiting.lock().await });
        // It keeps its place by a second request, which does not arrive.
        within(TTL, late.sent.notified()).await;
        guard.release().await.expect("held");
        let guard = within(SECOND, waiting).await.expect("no panic").expect("granted by an event");
        let resumed = second.resume(&guard.into_ticket().expect("held")).await.expect("in time");
        assert_eq!(late.handed_over.load(Ordering::Relaxed), 1, "the store need not keep anything for it");
        let token = resumed.token();
        if is_over {
            resumed.release().await.expect("held");
            late.arrives.notify_one();
            within(SECOND, late.carried_out.notified()).await;
            let next = within(SECOND, mutex(&holder).lock()).await.expect("free");
            assert!(next.token() > token);
        } else {
            late.arrives.notify_one();
            within(SECOND, late.carried_out.notified()).await;
            // A release would have been sent by then, and a lease that is not renewed would be over.
            sleep(TTL * 2).await;
            assert!(resumed.is_held(), "it was not released by the first client");
            assert!(mutex(&holder).try_lock().await.expect("answered").is_none());
            resumed.release().await.expect("held");
        }
    }
}

/// The answers to its requests arrive when the leases that they grant have ended.
#[derive(Debug, Default)]
struct Late(AtomicUsize);

impl Intercept for Late {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        async move {
            self.0.fetch_add(1, Ordering::Relaxed);
            let answer = store.request(request).await;
            sleep(TTL + SECOND).await;
            answer
        }
        .boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_grants_all_arrive_too_late_is_given_up_after_the_fourth() {
    let store = MemoryBackend::new();
    let late = Intercepted::new(&store, Late::default());
    let client = Client::with_backend(Arc::<Intercepted<Late>>::clone(&late));
    let outcome = within(TTL * 20, mutex(&client).try_lock()).await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert_eq!(late.0.load(Ordering::Relaxed), 4);
    client.shutdown().await.expect("what was granted is released");
    let other = mutex(&Client::with_backend(Arc::new(store.peer())));
    assert_eq!(other.inspect().await.expect("it answers").holders, []);
}
