//! Faults of the server: it hangs, dies, loses its data, disconnects its clients, or sends nonsense.
#![cfg(feature = "_redis")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leasehold::{Client, DistMutex, Error, Guard, LossReason};
use leasehold_support::faults::waiter;
use leasehold_support::locks::*;
use leasehold_support::{Raw, RedisServer, Setup, eventually, within};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(31);

/// A server and two clients.
struct Fixture {
    one: Client,
    other: Client,
    server: RedisServer,
}

impl Fixture {
    async fn set_up(left_out: &str) -> Option<Self> {
        Self::set_up_with(left_out, Setup::default()).await
    }

    async fn set_up_with(left_out: &str, setup: Setup) -> Option<Self> {
        let server = RedisServer::start_with_or_skip(left_out, setup)?;
        let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
        warm_up(&server, &one).await;
        Some(Self { one, other, server })
    }

    fn clients(&self) -> [&Client; 2] {
        [&self.one, &self.other]
    }
}

async fn granted(waiter: JoinHandle<Result<Guard, Error>>, deadline: Duration) -> Guard {
    within(deadline, waiter).await.expect("no panic").expect("granted")
}

/// Several tasks of both clients lock and release one name until told to stop, and see that nobody else does
/// at the same time and that every token is greater than the one before.
struct Contention {
    stop: Arc<AtomicBool>,
    seen: Arc<Seen>,
    tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Seen {
    inside: AtomicUsize,
    newest: AtomicU64,
    grants: AtomicUsize,
    lost: AtomicUsize,
    slowest_us: AtomicU64,
}

impl Contention {
    fn start(fixture: &Fixture, tasks_per_client: usize, lease: Duration) -> Self {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
        let mut tasks = JoinSet::new();
        for client in fixture.clients() {
            for _ in 0..tasks_per_client {
                let (mutex, stop, seen) = (mutex(client, lease), Arc::clone(&stop), Arc::clone(&seen));
                tasks.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        seen.once(&mutex).await;
                    }
                });
            }
        }
        Self { stop, seen, tasks }
    }

    /// Waits for `n` further grants.
    async fn progress(&self, n: usize, deadline: Duration) {
        let goal = self.seen.grants.load(Ordering::SeqCst) + n;
        eventually(deadline, || std::future::ready(self.seen.grants.load(Ordering::SeqCst) >= goal)).await;
    }

    async fn end(mut self) -> Arc<Seen> {
        self.stop.store(true, Ordering::SeqCst);
        while let Some(ended) = within(LONG, self.tasks.join_next()).await {
            ended.expect("no panic");
        }
        self.seen
    }
}

impl Seen {
    async fn once(&self, mutex: &DistMutex) {
        let start = Instant::now();
        let guard = mutex.lock().await.expect("a fault is survived");
        let waited = u64::try_from(start.elapsed().as_micros()).expect("short");
        self.slowest_us.fetch_max(waited, Ordering::SeqCst);
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
        let token = guard.token().get();
        let last = self.newest.swap(token, Ordering::SeqCst);
        assert!(last < token, "the token {token} after {last}");
        self.grants.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        match guard.release().await {
            Ok(()) => {}
            Err(Error::Lost { .. }) => drop(self.lost.fetch_add(1, Ordering::SeqCst)),
            Err(error) => panic!("not released: {error}"),
        }
    }

    fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.load(Ordering::SeqCst))
    }

    fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

// A server that hangs

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_for_half_a_ttl_loses_nothing() {
    let Some(fixture) = Fixture::set_up("a short hang").await else { return };
    let lease = 3 * SECOND;
    let guard = mutex(&fixture.one, lease).lock().await.expect("free");
    let waiter = waiter(&mutex(&fixture.other, lease));
    queued(&fixture.server, 1).await;
    fixture.server.pause();
    sleep(lease / 2).await;
    fixture.server.resume();
    let lost = timeout(lease, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert_eq!(fixture.server.raw().send(&["ZCARD", QUEUE]).int(), 1);
    guard.release().await.expect("held to the end");
    granted(waiter, lease / 3 + SLACK).await.release().await.expect("held");
    nothing_left(&fixture.server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_for_two_leases_delays_no_loss_and_serves_the_waiters_afterwards() {
    let Some(fixture) = Fixture::set_up("a long hang").await else { return };
    let lease = 2 * SECOND;
    let guard = mutex(&fixture.one, lease).lock().await.expect("free");
    let waiters = [waiter(&mutex(&fixture.other, lease)), waiter(&queued_mutex(&fixture.one, lease))];
    queued(&fixture.server, 2).await;
    fixture.server.pause();
    let start = Instant::now();
    assert_eq!(within(lease + SLACK, guard.lost()).await, LossReason::StoreUnreachable);
    assert!(start.elapsed() <= lease, "by the clock: {:?}", start.elapsed());
    assert!(!guard.is_held());
    tokio::time::sleep_until(start + 2 * lease).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    fixture.server.resume();
    let resumed = Instant::now();
    let mut last = guard.token();
    // In whichever order: their places have run out meanwhile.
    let released = futures::future::join_all(waiters.map(|waiter| async {
        let guard = granted(waiter, lease + SLACK).await;
        let token = guard.token();
        guard.release().await.expect("held");
        token
    }));
    let mut tokens = released.await;
    assert!(resumed.elapsed() < lease + SLACK);
    tokens.sort_unstable();
    for token in tokens {
        assert!(token > last);
        last = token;
    }
    nothing_left(&fixture.server, lease + SLACK).await;
}

// A server that dies

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_without_persistence_the_holder_is_notified_and_waiters_get_greater_tokens() {
    let Some(mut fixture) = Fixture::set_up("a restart without disk").await else { return };
    let lease = 3 * SECOND;
    let guard = mutex(&fixture.one, lease).lock().await.expect("free");
    let mut waiters = Vec::new();
    for client in [&fixture.one, &fixture.other, &fixture.other] {
        waiters.push(waiter(&queued_mutex(client, lease)));
    }
    queued(&fixture.server, 3).await;
    fixture.server.restart();
    let restarted = Instant::now();
    let lost = tokio::spawn(guard.lost());
    let tokens: Vec<_> = futures::future::join_all(waiters.into_iter().map(|waiter| async {
        let guard = granted(waiter, lease + SOON).await;
        let token = guard.token();
        guard.release().await.expect("held");
        token
    }))
    .await;
    assert!(restarted.elapsed() < lease / 3 + SOON, "{:?}", restarted.elapsed());
    // What the restarted server cannot promise is exclusion; the tokens tell.
    assert!(tokens.iter().all(|token| *token > guard.token()), "{tokens:?} after {}", guard.token());
    let mut distinct = tokens.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), tokens.len());
    let reason = within(lease, lost).await.expect("no panic");
    assert!(matches!(reason, LossReason::Taken | LossReason::Missing), "{reason:?}");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    nothing_left(&fixture.server, SLACK).await;
}

/// A store that goes away while calls wait, and one that had gone before they began: with the default TTL, by which
/// nothing is sent while they wait; whether they wait behind a holder of their own client or of another; and however
/// short their time limit is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_time_limit_is_reached_say_so_if_the_server_does_not_answer() {
    // A lock and a reentrant lock of one name exclude each other.
    const OWNED: &str = "machine:43";
    for is_killed in [true, false] {
        let Some(mut fixture) = Fixture::set_up("time limits without a server").await else { return };
        let (one, other) = (fixture.one.clone(), fixture.other.clone());
        let waiters = |time_limit: Duration| {
            let mut waiters = JoinSet::new();
            for client in [&one, &other] {
                for _ in 0..3 {
                    let mutex = client.mutex(NAME).expect("valid");
                    waiters.spawn(async move { mutex.lock_timeout(time_limit).await.map(drop) });
                    let semaphore = client.fair_semaphore(NAME, 1).expect("valid");
                    waiters.spawn(async move { semaphore.acquire_timeout(time_limit).await.map(drop) });
                    let lock = client.reentrant_lock(OWNED, &Uuid::new_v4().to_string()).expect("valid");
                    waiters.spawn(async move { lock.lock_timeout(time_limit).await.map(drop) });
                }
            }
            waiters
        };
        let _held = (
            one.mutex(NAME).expect("valid").lock().await.expect("free"),
            one.fair_semaphore(NAME, 1).expect("valid").acquire().await.expect("free"),
            one.reentrant_lock(OWNED, "the holder").expect("valid").lock().await.expect("free"),
        );
        for outcome in waiters(SECOND).join_all().await {
            assert!(matches!(outcome, Err(Error::TimedOut { .. })), "the server answers: {outcome:?}");
        }
        let begun = waiters(SECOND * 3);
        // The holder's own client has no place for the mutex; the other has one for all its waiters.
        eventually(SOON, || async {
            let seen = [
                one.mutex(NAME).expect("valid").inspect().await,
                one.reentrant_lock(OWNED, "the holder").expect("valid").inspect().await,
                one.fair_semaphore(NAME, 1).expect("valid").inspect().await,
            ];
            seen.map(|seen| seen.expect("inspected").waiters.len()) == [1, 6, 6]
        })
        .await;
        if is_killed {
            fixture.server.kill()
        } else {
            fixture.server.pause()
        }
        let begun = within(SOON + SLACK, begun.join_all()).await;
        let short = within(SOON, waiters(ms(300)).join_all()).await;
        for outcome in begun.into_iter().chain(short) {
            assert!(
                matches!(outcome, Err(Error::StoreUnavailable { .. })),
                "killed: {is_killed}: {outcome:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_outlast_a_server_outage() {
    let Some(mut fixture) = Fixture::set_up("a dead server").await else { return };
    let guard = mutex(&fixture.one, LONG).lock().await.expect("free");
    let waiter = waiter(&mutex(&fixture.other, LONG));
    queued(&fixture.server, 1).await;
    fixture.server.kill();
    sleep(SECOND).await;
    assert!(!waiter.is_finished() && guard.is_held(), "its lease still lasts");
    fixture.server.restart();
    granted(waiter, 2 * SOON).await.release().await.expect("held");
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })), "the store had forgotten it");
    nothing_left(&fixture.server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_with_persistence_within_the_ttl_loses_nothing() {
    let Some(mut fixture) = Fixture::set_up_with("a restart with disk", Setup::on_disk()).await else {
        return;
    };
    let lease = 6 * SECOND;
    let guard = mutex(&fixture.one, lease).lock().await.expect("free");
    let waiter = waiter(&mutex(&fixture.other, lease));
    queued(&fixture.server, 1).await;
    let holder = fixture.server.raw().get(KEY);
    for _ in 0..2 {
        fixture.server.restart();
        assert_eq!(fixture.server.raw().get(KEY), holder, "remembered");
        let mut raw = fixture.server.raw();
        // All clients are connected again before the next fault.
        eventually(SOON, || std::future::ready(listeners(&mut raw) == 2)).await;
    }
    let lost = timeout(lease, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let token = guard.token();
    guard.release().await.expect("held to the end");
    let next = granted(waiter, lease / 3 + SLACK).await;
    assert!(next.token() > token);
    next.release().await.expect("held");
    nothing_left(&fixture.server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_under_load_are_survived_and_tokens_grow() {
    let Some(mut fixture) = Fixture::set_up("restarts under load").await else { return };
    let url = fixture.server.url();
    // Without memory a restart can admit two, so only tokens are watched: by a third party that asks for the
    // lock once after each restart.
    let mut last = 0;
    for _ in 0..3 {
        let client = connect(&url).await;
        let guard = within(LONG, mutex(&client, LONG).lock()).await.expect("granted");
        assert!(guard.token().get() > last);
        last = guard.token().get();
        let waiting = waiter(&mutex(&fixture.one, LONG));
        queued(&fixture.server, 1).await;
        fixture.server.restart();
        let next = granted(waiting, 2 * SOON).await;
        assert!(next.token().get() > last);
        last = next.token().get();
        next.release().await.expect("held");
        drop(guard);
    }
    nothing_left(&fixture.server, SOON).await;
}

// A server that forgets

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_flush_under_load_is_not_noticed() {
    let Some(fixture) = Fixture::set_up("SCRIPT FLUSH").await else { return };
    let contention = Contention::start(&fixture, 3, LONG);
    let mut raw = fixture.server.raw();
    for _ in 0..50 {
        contention.progress(5, SOON).await;
        raw.send(&["SCRIPT", "FLUSH"]);
    }
    let seen = contention.end().await;
    assert_eq!(seen.lost(), 0);
    assert!(seen.slowest() < SOON, "{:?}", seen.slowest());
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_in_grant_order_through_flushes_under_load() {
    const TASKS: usize = 6;
    let Some(fixture) = Fixture::set_up("FLUSHALL").await else { return };
    let lease = 3 * SECOND;
    let stop = Arc::new(AtomicBool::new(false));
    // A flush admits two holders at once, so the order of grants is told by the store: a listener of its own
    // hears every grant that is pushed, in order.
    let pushed = listen(&fixture.server, &stop);
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let (mutex, stop) = (mutex(fixture.clients()[n % 2], lease), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut own = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let guard = mutex.lock().await.expect("a flush is survived");
                own.push(guard.token().get());
                match guard.release().await {
                    Ok(()) | Err(Error::Lost { .. }) => {}
                    Err(error) => panic!("not released: {error}"),
                }
            }
            own
        });
    }
    let mut raw = fixture.server.raw();
    for _ in 0..5 {
        let mut fence = raw.get(FENCE);
        for _ in 0..20 {
            // Somebody was granted the lock since.
            eventually(lease / 3 + SOON, || {
                let now = raw.get(FENCE);
                let moved = now.is_some() && now != fence;
                fence = now;
                std::future::ready(moved)
            })
            .await;
        }
        raw.send(&["FLUSHALL"]);
    }
    stop.store(true, Ordering::SeqCst);
    let mut all = Vec::new();
    while let Some(own) = within(LONG, tasks.join_next()).await {
        let own = own.expect("no panic");
        assert!(own.is_sorted_by(|a, b| a < b), "each task sees its tokens grow");
        all.extend(own);
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no token was issued twice");
    let pushed = pushed.join().expect("no panic");
    assert!(pushed.len() > 10, "grants were heard: {}", pushed.len());
    assert!(pushed.is_sorted_by(|a, b| a < b), "the store's own order of grants");
    nothing_left(&fixture.server, lease + SLACK).await;
}

/// Collects the tokens of all grants that are pushed, until told to stop.
fn listen(server: &RedisServer, stop: &Arc<AtomicBool>) -> thread::JoinHandle<Vec<u64>> {
    let (mut raw, mut bell, stop) = (server.raw(), server.raw(), Arc::clone(stop));
    raw.send(&["PSUBSCRIBE", "leasehold:*"]);
    thread::spawn(move || {
        let mut tokens = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            // Never waits for long, and then only for the echo of its own message.
            bell.send(&["PUBLISH", "leasehold:nobody", "listening"]);
            loop {
                let message = raw.read().expect("a message").words();
                let text = message.last().cloned().unwrap_or_default();
                let mut words = text.split(' ');
                match (words.next(), words.nth(1).map(str::parse)) {
                    (Some("listening"), _) => break,
                    (Some("grant"), Some(token)) => tokens.push(token.expect("a token")),
                    _ => {}
                }
            }
            thread::yield_now();
        }
        tokens
    })
}

// A server that disconnects its clients

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_under_contention_lose_no_wake_up_and_admit_nobody_twice() {
    let Some(fixture) = Fixture::set_up("CLIENT KILL").await else { return };
    let lease = 6 * SECOND;
    let contention = Contention::start(&fixture, 4, lease);
    let mut raw = fixture.server.raw();
    for round in 0..20 {
        contention.progress(10, lease / 3 + SOON).await;
        let kind = if round % 2 == 0 { "pubsub" } else { "normal" };
        raw.send(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
    }
    contention.progress(10, lease / 3 + SOON).await;
    let seen = contention.end().await;
    assert_eq!(seen.lost(), 0);
    assert!(seen.slowest() < lease / 3 + SOON, "{:?}", seen.slowest());
    nothing_left(&fixture.server, SECOND).await;
}

// Pushes: too many, and nonsense

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_waiter_is_served_although_the_subscription_lags() {
    const WAITERS: usize = 200;
    const FLOOD: usize = 20_000;
    let Some(server) = RedisServer::start_or_skip("a lagged subscription") else { return };
    let lease = 9 * SECOND;
    let holder = connect(&server.url()).await;
    warm_up(&server, &holder).await;
    let names: Vec<_> = (0..WAITERS).map(|n| format!("burst:{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(named(&holder, name, lease).lock().await.expect("free"));
    }
    // The waiting client lives on a runtime of its own, which a computation keeps busy during the burst.
    let (tell, busy) = std::sync::mpsc::channel::<()>();
    let (told, done) = tokio::sync::oneshot::channel();
    let (url, waiting) = (server.url(), names.clone());
    let (started, start) = tokio::sync::oneshot::channel();
    let busy_client = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("starts");
        runtime.block_on(async {
            let client = connect(&url).await;
            let mut waiters = JoinSet::new();
            for name in waiting {
                let mutex = named(&client, &name, lease);
                waiters.spawn(async move { mutex.lock().await.expect("granted").release().await });
            }
            let mut raw = Raw::connect(url.rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port"))
                .expect("connects");
            for name in &names {
                let queue = format!("{{lock:{name}}}:queue");
                eventually(SOON, || std::future::ready(raw.send(&["ZCARD", &queue]).int() == 1)).await;
            }
            started.send(()).expect("the test waits");
            busy.recv().expect("the test goes on");
            while let Some(released) = waiters.join_next().await {
                released.expect("no panic").expect("held to the end");
            }
            told.send(()).expect("the test waits");
            client.shutdown().await.expect("drained");
        });
    });
    within(SOON + SLACK, start).await.expect("all wait");
    let mut raw = server.raw();
    let channels = raw.send(&["PUBSUB", "CHANNELS", "leasehold:*"]).words();
    assert_eq!(channels.len(), 2);
    let flood = |raw: &mut Raw| {
        for channel in &channels {
            for _ in 0..FLOOD / 10 {
                raw.write(&["PUBLISH", channel, "noise"]).expect("open");
            }
            for _ in 0..FLOOD / 10 {
                raw.read().expect("published");
            }
        }
    };
    for _ in 0..5 {
        flood(&mut raw);
    }
    for guard in held {
        guard.release().await.expect("held to the end");
    }
    for _ in 0..5 {
        flood(&mut raw);
    }
    tell.send(()).expect("the client is there");
    within(lease / 3 + SOON, done).await.expect("everybody was served");
    busy_client.join().expect("no panic");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_on_the_channel_changes_nothing() {
    let Some(fixture) = Fixture::set_up("nonsense").await else { return };
    let mut raw = fixture.server.raw();
    let guard = mutex(&fixture.one, LONG).lock().await.expect("free");
    let elsewhere = named(&fixture.other, "elsewhere", LONG).lock().await.expect("free");
    let waiting = waiter(&mutex(&fixture.other, LONG));
    queued(&fixture.server, 1).await;
    let holder = raw.get(KEY).expect("held");
    let channels = raw.send(&["PUBSUB", "CHANNELS", "leasehold:*"]).words();
    let value = raw.get(KEY);
    let holder = holder.split(' ').next().expect("a lease id");
    let unknown = format!("{}.999999", holder.split('.').next().expect("a lease id"));
    let foreign = "0bd7ff6e-a7e3-41f0-a9dd-0242ac120002.1";
    let forged = [
        String::new(),
        "grant".to_owned(),
        "grant  ".to_owned(),
        "revoke".to_owned(),
        "probe".to_owned(),
        "x".repeat(100_000),
        format!("grant {holder} not-a-number 1 mutex 5 {KEY}"),
        format!("grant {holder} 99999999999999999999999999 1 mutex 5 {KEY}"),
        format!("grant {holder} 1 1 gate 5 {KEY}"),
        format!("grant {unknown} 1 1 mutex 5 {KEY}"),
        format!("grant {foreign} 1 1 mutex 5 {KEY}"),
        format!("grant {unknown} 1 1 mutex 5 lock:elsewhere"),
        format!("grant {unknown} 1 1 fair 5 lock:elsewhere"),
        format!("ask {unknown} {KEY}"),
        format!("ask {foreign} {KEY}"),
        format!("revoke {unknown} {KEY}"),
        format!("revoke {foreign} {KEY}"),
    ];
    for channel in &channels {
        for message in &forged {
            assert_eq!(raw.send(&["PUBLISH", channel, message]).int(), 1);
        }
        // Bytes that are no text.
        let script = "return redis.call('PUBLISH', ARGV[1], '\\255\\254\\0grant')";
        assert_eq!(raw.send(&["EVAL", script, "0", channel]).int(), 1);
    }
    // When this push arrives, the clients have handled all messages before it, and released leases that nobody wanted.
    for client in fixture.clients() {
        let probe = named(client, "probe", LONG).lock().await.expect("free");
        let next = waiter(&queued_named(client, "probe", LONG));
        eventually(SOON, || std::future::ready(raw.send(&["ZCARD", "{lock:probe}:queue"]).int() == 1)).await;
        probe.release().await.expect("held");
        granted(next, SOON).await.release().await.expect("held");
    }
    assert_eq!(raw.get(KEY), value, "nobody's lock was released");
    assert!(guard.is_held() && elsewhere.is_held() && !waiting.is_finished());
    assert_eq!(raw.send(&["ZCARD", QUEUE]).int(), 1);
    guard.release().await.expect("held to the end");
    let guard = granted(waiting, SOON).await;
    assert_eq!(
        leasehold_support::locks::token_held(&mut raw),
        Some(guard.token().to_string()),
        "the real token"
    );
    guard.release().await.expect("held to the end");
    elsewhere.release().await.expect("held to the end");
    nothing_left(&fixture.server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_grant_of_a_held_lease_releases_nothing() {
    let Some(fixture) = Fixture::set_up("forged grants").await else { return };
    let mut raw = fixture.server.raw();
    let guard = mutex(&fixture.one, LONG).lock().await.expect("free");
    let value = raw.get(KEY);
    let holder = value.as_deref().and_then(|value| value.split(' ').next()).expect("held");
    // Its own client knows the lease; the other one does not, and has no business with it either.
    for channel in raw.send(&["PUBSUB", "CHANNELS", "leasehold:*"]).words() {
        assert_eq!(raw.send(&["PUBLISH", &channel, &format!("grant {holder} 7 1 mutex 5 {KEY}")]).int(), 1);
    }
    // What a client gives back goes the way of its requests: a later request is answered after it.
    for client in fixture.clients() {
        let probe = named(client, "probe", LONG).lock().await.expect("free");
        let next = waiter(&queued_named(client, "probe", LONG));
        eventually(SOON, || std::future::ready(raw.send(&["ZCARD", "{lock:probe}:queue"]).int() == 1)).await;
        probe.release().await.expect("held");
        granted(next, SOON).await.release().await.expect("held");
    }
    assert_eq!(raw.get(KEY), value, "still held by the same lease");
    guard.release().await.expect("held to the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_answered_after_the_end_of_the_lease_reports_the_loss() {
    let Some(server) = RedisServer::start_or_skip("a release into a hung server") else { return };
    let client = connect(&server.url()).await;
    warm_up(&server, &client).await;
    let guard = mutex(&client, ms(600)).lock().await.expect("free");
    server.pause();
    let release = tokio::spawn(guard.release());
    // Longer than one reply is waited for, so that the release is sent twice.
    sleep(ms(2300)).await;
    server.resume();
    let released = within(SOON, release).await.expect("no panic");
    assert!(matches!(released, Err(Error::Lost { .. })), "{released:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_stalls_under_many_leases_lose_neither_the_connection_nor_a_lease() {
    let Some(server) = RedisServer::start_or_skip("short stalls") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    warm_up(&server, &client).await;
    let mut guards = Vec::new();
    for n in 0..20 {
        guards.push(named(&client, &n.to_string(), SECOND * 2).lock().await.expect("free"));
    }
    let connections = |raw: &mut Raw| {
        let list = raw.send(&["CLIENT", "LIST"]).text().expect("a list");
        list.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect::<Vec<_>>()
    };
    let before = connections(&mut raw);
    for _ in 0..3 {
        server.pause();
        sleep(ms(900)).await;
        server.resume();
        sleep(ms(900)).await;
    }
    assert_eq!(connections(&mut raw), before, "a connection was replaced");
    for guard in guards {
        guard.release().await.expect("held to the end");
    }
}
