//! The layers for tower: how many requests are served at a time, what is answered to the others, and that nothing is
//! left.
#![cfg(feature = "tower")]

use std::future::{pending, poll_fn};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, poll};
use leasehold::tower::{LockLayer, PermitLayer, Rejected, status};
use leasehold::{Client, FencingToken, Guard, Inspection, LossReason, MutexOptions};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};

const LIMIT: u32 = 5;
const REQUESTS: usize = 200;
const SOON: Duration = Duration::from_secs(10);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A service that counts the requests that it serves at a time, and how many there were at most, and were finished.
#[derive(Clone, Default)]
struct Counting(Arc<Counts>);

#[derive(Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

impl Counting {
    fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    fn done(&self) -> usize {
        self.0.done.load(Ordering::SeqCst)
    }

    async fn serve(self, takes: Duration) -> io::Result<()> {
        let now = self.0.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(now, Ordering::SeqCst);
        let _served = scopeguard(|| {
            self.0.now.fetch_sub(1, Ordering::SeqCst);
        });
        sleep(takes).await;
        self.0.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Runs `f` when dropped.
fn scopeguard(f: impl FnMut()) -> impl Drop {
    struct OnDrop<F: FnMut()>(F);
    impl<F: FnMut()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    OnDrop(f)
}

impl Service<Duration> for Counting {
    type Response = ();
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<()>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, takes: Duration) -> Self::Future {
        self.clone().serve(takes).boxed()
    }
}

/// A number that looks random and is the same in every run.
fn varied(n: usize, below: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    n.hash(&mut hasher);
    hasher.finish() % below
}

/// Requests that arrive at once, of which every other one is dropped at some time, before or while it is served.
/// Returns how many were served.
async fn requests<S>(service: &S, unit: Duration) -> usize
where
    S: Service<Duration, Response = (), Error = BoxError, Future: Send> + Clone + Send + Sync,
{
    let request = async |n: usize| {
        let unit = |below| unit * u32::try_from(varied(n, below)).expect("small");
        let answer = service.clone().oneshot(unit(10));
        if n.is_multiple_of(2) { timeout(unit(100), answer).await.ok() } else { Some(answer.await) }
    };
    let answers = join_all((0..REQUESTS).map(request)).await;
    answers.into_iter().flatten().map(|answer| answer.expect("served")).count()
}

#[expect(clippy::future_not_send, reason = "tests await it in place")]
async fn is_free(inspect: impl AsyncFn() -> Inspection) {
    leasehold_support::eventually(SOON, async || {
        let now = inspect().await;
        now.holders.is_empty() && now.waiters.is_empty()
    })
    .await;
}

/// On both semaphores, with requests that are canceled at any time.
async fn the_limit_is_kept(clients: &[Client], unit: Duration) {
    for fair in [true, false] {
        let inner = Counting::default();
        let layer = |client: &Client| match fair {
            true => PermitLayer::new(client.fair_semaphore("tower", LIMIT).expect("valid")),
            false => PermitLayer::new(client.counting_semaphore("tower", LIMIT).expect("valid")),
        };
        let services: Vec<_> = clients.iter().map(|client| layer(client).layer(inner.clone())).collect();
        let served: usize =
            join_all(services.iter().map(|service| requests(service, unit))).await.iter().sum();
        assert_eq!((inner.most(), inner.0.now.load(Ordering::SeqCst)), (LIMIT as usize, 0));
        // What is not dropped is served, and what is answered was served.
        assert!(
            served >= clients.len() * REQUESTS / 2 && served <= inner.done(),
            "{served}, {}",
            inner.done()
        );
        if fair {
            let gate = clients[0].fair_semaphore("tower", LIMIT).expect("valid");
            is_free(async || gate.inspect().await.expect("it answers")).await;
        } else {
            let calls = clients[0].counting_semaphore("tower", LIMIT).expect("valid");
            is_free(async || calls.inspect().await.expect("it answers")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_than_permits_are_served_at_a_time() {
    let connect = async || Client::connect("memory:tower-limit").await.expect("in memory");
    the_limit_is_kept(&[connect().await, connect().await], ms(10)).await;
}

#[tokio::test(start_paused = true)]
async fn requests_with_one_key_are_served_one_after_another_and_others_meanwhile() {
    let client = Client::memory();
    let inner = Counting::default();
    let key = |n: usize| if n < 100 { "shared".to_owned() } else { format!("own {n}") };
    let one_key = LockLayer::new(client.clone(), |_: &Duration| "shared".to_owned()).layer(inner.clone());
    let served = requests(&one_key, ms(10)).await;
    assert!(inner.most() == 1 && served >= REQUESTS / 2, "{served} served, {} at a time", inner.most());
    let mutex = client.mutex("shared").expect("valid");
    is_free(async || mutex.inspect().await.expect("it answers")).await;

    let inner = Counting::default();
    let keys = |n: &usize| key(*n);
    let begun = Instant::now();
    let several = join_all((0..REQUESTS).map(|n| {
        let inner = inner.clone();
        let serve = service_fn(move |_| inner.clone().serve(ms(10)));
        LockLayer::new(client.clone(), keys).layer(serve).oneshot(n)
    }));
    several.await.into_iter().for_each(|answer| answer.expect("served"));
    assert_eq!((inner.most(), inner.done()), (REQUESTS - 100 + 1, REQUESTS));
    assert!(begun.elapsed() >= ms(1_000), "the hundred with one key were served one after another");
}

#[tokio::test]
async fn a_request_without_a_key_needs_no_lock() {
    let client = Client::memory();
    let held = client.mutex("a").expect("valid").lock().await.expect("free");
    let key = |write: &bool| write.then(|| "a".to_owned());
    let layer = LockLayer::new(client.clone(), key).wait_limit(Duration::ZERO);
    let service = layer.layer(service_fn(async |write| Ok::<bool, io::Error>(write)));
    assert!(!service.clone().oneshot(false).await.expect("it needs none"));
    assert_eq!(status(&service.oneshot(true).await.expect_err("held")), Some(409));
    // Even after a shutdown.
    client.shutdown().await.expect("released");
    drop(held);
}

/// What is answered, and whether the inner service was called.
#[tokio::test(start_paused = true)]
async fn errors_say_what_to_answer() {
    let client = Client::memory();
    let inner = Counting::default();
    let gate = client.fair_semaphore("gate", 1).expect("valid");
    let permits = || PermitLayer::new(gate.clone());
    let locks = |name: &str| {
        let name = name.to_owned();
        LockLayer::new(client.clone(), move |_: &Duration| name.clone())
    };
    let permit = gate.acquire().await.expect("free");
    let guard = client.mutex("a").expect("valid").lock().await.expect("free");
    let rejected = async |answer: Result<(), BoxError>| {
        *answer.expect_err("taken").downcast::<Rejected>().expect("of a layer")
    };

    for limit in [Duration::ZERO, ms(50)] {
        let begun = Instant::now();
        let error = rejected(permits().wait_limit(limit).layer(inner.clone()).oneshot(ms(1)).await).await;
        assert_eq!((error.status(), error.name()), (429, "gate"), "{error}");
        assert_eq!(error.error().is_some(), !limit.is_zero(), "{error:?}");
        assert!(error.to_string().contains("`gate`"), "{error}");
        let error = rejected(locks("a").wait_limit(limit).layer(inner.clone()).oneshot(ms(1)).await).await;
        assert_eq!((error.status(), error.name()), (409, "a"), "{error}");
        assert!(begun.elapsed() >= limit * 2);
    }
    for key in [String::new(), "a".repeat(1000)] {
        let error = rejected(locks(&key).layer(inner.clone()).oneshot(ms(1)).await).await;
        assert_eq!(error.status(), 400, "{error}");
    }
    let other = client.fair_semaphore("gate", 2).expect("valid");
    let error = rejected(PermitLayer::new(other).layer(inner.clone()).oneshot(ms(1)).await).await;
    assert_eq!(error.status(), 500, "{error}");

    drop((permit, guard));
    client.shutdown().await.expect("released");
    for error in [
        rejected(permits().layer(inner.clone()).oneshot(ms(1)).await).await,
        rejected(locks("a").layer(inner.clone()).oneshot(ms(1)).await).await,
    ] {
        assert_eq!(error.status(), 503, "{error}");
    }
    assert_eq!(inner.most(), 0);
}

#[tokio::test]
async fn errors_of_the_inner_service_pass_through() {
    let client = Client::memory();
    let fails = service_fn(async |()| Err::<(), _>(io::Error::other("its own")));
    let permit = PermitLayer::new(client.fair_semaphore("gate", 1).expect("valid"));
    let service = ServiceBuilder::new()
        .layer(permit)
        .layer(LockLayer::new(client, |(): &()| "a".to_owned()))
        .service(fails);
    for _ in 0..3 {
        let error = service.clone().oneshot(()).await.expect_err("it fails");
        assert_eq!(status(&error), None);
        assert_eq!(error.downcast::<io::Error>().expect("unchanged").to_string(), "its own");
    }
}

/// Says when it is dropped.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_request_that_loses_its_lease_is_stopped() {
    let client = Client::memory();
    let mutex = client.mutex("a").expect("valid");
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let serve = service_fn({
        let (begun, dropped) = (begun.clone(), dropped.clone());
        move |()| {
            let (begun, dropped) = (begun.clone(), Dropped(dropped.clone()));
            async move {
                begun.notify_one();
                pending::<()>().await;
                drop(dropped);
                Ok::<(), io::Error>(())
            }
        }
    });
    let request = tokio::spawn(LockLayer::new(client, |(): &()| "a".to_owned()).layer(serve).oneshot(()));
    begun.notified().await;
    assert!(mutex.force_release().await.expect("it answers"));
    let error = request.await.expect("no panic").expect_err("it was taken away");
    dropped.notified().await;
    let rejected = error.downcast::<Rejected>().expect("of the layer");
    assert_eq!(rejected.status(), 503);
    let lost = |error| matches!(error, &leasehold::Error::Lost { reason: LossReason::Revoked, .. });
    assert!(rejected.error().is_some_and(lost), "{rejected:?}");
}

#[tokio::test]
async fn the_handler_can_know_the_token() {
    struct Request {
        token: Option<FencingToken>,
    }
    let layer = LockLayer::new(Client::memory(), |_: &Request| "a".to_owned())
        .on_acquired(|request: &mut Request, guard: &Guard| request.token = Some(guard.token()));
    let mut service = layer.layer(service_fn(async |request: Request| Ok::<_, io::Error>(request.token)));
    let first = service.ready().await.expect("ready").call(Request { token: None }).await.expect("served");
    let second = service.ready().await.expect("ready").call(Request { token: None }).await.expect("served");
    assert!(first.is_some() && first < second, "{first:?}, {second:?}");
}

/// A service that must be polled ready before every call, and has room for one at a time.
#[tokio::test]
async fn readiness_is_that_of_the_inner_service_and_no_permit_is_held_for_it() {
    let client = Client::memory();
    let gate = client.fair_semaphore("gate", 2).expect("valid");
    let inner = ServiceBuilder::new().concurrency_limit(1).service(Counting::default());
    let mut service = PermitLayer::new(gate.clone()).layer(inner);
    let mut other = service.clone();

    let first = service.ready().await.expect("ready");
    assert_eq!(gate.available().await.expect("it answers"), 2, "ready, but not called");
    let first = first.call(ms(1));
    assert!(poll!(poll_fn(|context| other.poll_ready(context))).is_pending());
    assert_eq!(gate.available().await.expect("it answers"), 2, "called, but not polled");
    first.await.expect("served");
    other.ready().await.expect("the first is done").call(ms(1)).await.expect("served");
}

/// The request is dropped in the queue, and then while it is served.
#[tokio::test]
async fn a_request_that_is_dropped_leaves_nothing() {
    let client = Client::memory().with_mutex_options(MutexOptions::new().local_handover(false));
    let mutex = client.mutex("a").expect("valid");
    let inner = Counting::default();
    let service = LockLayer::new(client, |_: &Duration| "a".to_owned()).layer(inner.clone());
    let guard = mutex.lock().await.expect("free");
    let drops = async |request: tokio::task::JoinHandle<_>| {
        request.abort();
        assert!(request.await.expect_err("it was dropped").is_cancelled());
    };
    let request = tokio::spawn(service.clone().oneshot(SOON));
    leasehold_support::eventually(SOON, async || {
        mutex.inspect().await.expect("it answers").waiters.len() == 1
    })
    .await;
    drops(request).await;
    leasehold_support::eventually(SOON, async || {
        mutex.inspect().await.expect("it answers").waiters.is_empty()
    })
    .await;
    guard.release().await.expect("held");

    let request = tokio::spawn(service.oneshot(SOON));
    leasehold_support::eventually(SOON, async || inner.most() == 1).await;
    drops(request).await;
    assert_eq!((inner.0.now.load(Ordering::SeqCst), inner.done()), (0, 0));
    is_free(async || mutex.inspect().await.expect("it answers")).await;
}

#[cfg(feature = "_redis")]
mod redis {
    use super::*;
    use leasehold_support::RedisServer;

    #[tokio::test]
    async fn no_more_requests_than_permits_are_served_at_a_time() {
        let Some(server) = RedisServer::start_or_skip("permits for requests") else { return };
        let connect = async || Client::connect(&server.url()).await.expect("the server answers");
        let clients = [connect().await, connect().await];
        the_limit_is_kept(&clients, ms(1)).await;
        for client in clients {
            client.shutdown().await.expect("released");
        }
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_is_503() {
        let Some(server) = RedisServer::start_or_skip("requests without a store") else { return };
        let client = Client::connect(&server.url()).await.expect("the server answers");
        let inner = Counting::default();
        let layer = || LockLayer::new(client.clone(), |_: &Duration| "a".to_owned());
        let patient = layer().layer(inner.clone());
        let service = layer().wait_limit(ms(500)).layer(inner.clone());
        patient.clone().oneshot(ms(1)).await.expect("served");
        server.pause();
        let error = service.clone().oneshot(ms(1)).await.expect_err("no answer");
        assert_eq!((status(&error), inner.done()), (Some(503), 1), "{error}");
        server.resume();
        patient.oneshot(ms(1)).await.expect("served");
        client.shutdown().await.expect("released");
        assert_eq!(server.raw().keys("lock:*"), Vec::<String>::new());
    }
}
