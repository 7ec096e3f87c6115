//! Locks that clients of this crate share with clients of other libraries, which poll for them:
//! `RedisBuilder::poll_interval`.
#![cfg(feature = "fred")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use futures::future::join_all;
use leasehold::redis::RedisBackend;
use leasehold::{Client, DistMutex, Error, Guard, MutexOptions, SemaphoreOptions};
use leasehold_support::locks::*;
use leasehold_support::{Proxy, Raw, RedisServer, eventually, one_place_each, options, within};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The interval at which others are said to poll in most tests, the gap that follows from it, and the period.
const INTERVAL: Duration = ms(60);
const GAP: Duration = ms(75);
const PERIOD_US: u64 = 600_000;
/// How long a waiter without the option may take to check on its own: longer than any test waits.
const LONG: Duration = Duration::from_secs(60);

async fn polling(url: &str, interval: Duration) -> Client {
    let backend = RedisBackend::builder(url).expect("valid").poll_interval(interval).connect();
    Client::with_backend(Arc::new(backend.await.expect("the server answers")))
}

async fn mixed(server: &RedisServer) -> Client {
    polling(&server.url(), INTERVAL).await
}

fn lock_of(client: &Client) -> DistMutex {
    client.mutex_with(NAME, options().ttl(LONG)).expect("valid")
}

fn waiter(mutex: &DistMutex) -> JoinHandle<(Guard, Instant)> {
    let mutex = mutex.clone();
    tokio::spawn(async move { (mutex.lock().await.expect("granted"), Instant::now()) })
}

async fn granted(waiter: JoinHandle<(Guard, Instant)>) -> (Guard, Instant) {
    within(SOON, waiter).await.expect("no panic")
}

fn is_free(raw: &mut Raw) -> bool {
    raw.get(KEY).is_none()
}

/// Waits until the period of that instant, in us, is over.
async fn period_after(raw: &mut Raw, us: u64) {
    while raw.now_us() / PERIOD_US == us / PERIOD_US {
        sleep(ms(5)).await;
    }
}

/// Waits until a gap is due after the release of `guard`.
async fn until_due(raw: &mut Raw, guard: &Guard) {
    period_after(raw, guard.token().get()).await;
}

/// Holds the lock until a gap is due, while `waits` waits.
async fn held_until_due(
    server: &RedisServer,
    holder: &DistMutex,
    waits: &DistMutex,
) -> (Guard, JoinHandle<(Guard, Instant)>) {
    let guard = holder.lock().await.expect("free");
    let waiting = waiter(waits);
    queued(server, 1).await;
    until_due(&mut server.raw(), &guard).await;
    (guard, waiting)
}

/// The recipe of the Redis documentation.
struct Bare {
    raw: Raw,
    value: String,
}

impl Bare {
    fn new(server: &RedisServer, value: &str) -> Self {
        Self { raw: server.raw(), value: value.to_owned() }
    }

    fn try_lock(&mut self) -> bool {
        bare_lock(&mut self.raw, &self.value, SECOND * 30)
    }

    fn unlock(&mut self) {
        let is_released = bare_release(&mut self.raw, &self.value);
        assert!(is_released, "somebody else took the lock of {}", self.value);
    }
}

// A gap

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_after_the_end_of_a_period_leaves_the_key_free_for_longer_than_the_interval() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two, mut raw) = (mixed(&server).await, mixed(&server).await, server.raw());
    let mut late = Vec::new();
    for _ in 0..4 {
        let (guard, waiting) = held_until_due(&server, &lock_of(&one), &lock_of(&two)).await;
        let token = guard.token();
        let begun = Instant::now();
        guard.release().await.expect("held");
        let confirmed = Instant::now();
        assert!(is_free(&mut raw) || begun.elapsed() > GAP);
        let (next, at) = granted(waiting).await;
        assert!(next.token() > token);
        // Both clocks count the same milliseconds, the server's rounded down.
        assert!(at - begun + ms(1) >= GAP, "after {:?}", at - begun);
        late.push((at - confirmed).saturating_sub(GAP));
        next.release().await.expect("held");
    }
    assert!(late.iter().min() < Some(&ms(25)), "each waited for longer than the gap: {late:?}");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_within_the_period_of_the_grant_hands_over_at_once() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two, mut raw) = (mixed(&server).await, mixed(&server).await, server.raw());
    // On a busy machine one attempt may take until the next period.
    for _ in 0..20 {
        let begun = raw.now_us();
        period_after(&mut raw, begun).await;
        let guard = lock_of(&one).lock().await.expect("free");
        let granted_in = guard.token().get() / PERIOD_US;
        let waiting = waiter(&lock_of(&two));
        queued(&server, 1).await;
        guard.release().await.expect("held");
        let value = raw.get(KEY);
        let released_in = raw.now_us() / PERIOD_US;
        let (next, _) = granted(waiting).await;
        if released_in == granted_in {
            assert!(value.is_some(), "no gap was due");
            return;
        }
        next.release().await.expect("held");
        eventually(SOON, || std::future::ready(is_free(&mut raw))).await;
    }
    panic!("no lock and release took less than a period");
}

/// The numbers of the grants by the store, in order: a lease that is passed on within a client takes the 15 after its
/// own.
async fn grants(mutexes: &[DistMutex], sections: Duration) -> Vec<u64> {
    let end = Instant::now() + sections;
    let tasks = mutexes.iter().cloned().map(|mutex| {
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            while Instant::now() < end {
                let guard = mutex.lock().await.expect("granted");
                tokens.push(guard.token().get());
                sleep(ms(2)).await;
                guard.release().await.expect("held");
            }
            tokens
        })
    });
    let mut tokens: Vec<_> =
        join_all(tasks).await.into_iter().flat_map(|tokens| tokens.expect("no panic")).collect();
    tokens.sort_unstable();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "a token was issued twice");
    let mut grants = vec![tokens[0]];
    let mut last = tokens[0];
    for token in tokens {
        if token > last + 1 {
            grants.push(token);
        }
        last = token;
    }
    grants
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_lock_has_a_gap_in_every_period() {
    const INTERVAL: Duration = ms(16);
    const GAP_US: u64 = 20_000;
    const PERIOD_US: u64 = 160_000;
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let url = server.url();
    let clients = join_all((0..2).map(|_| polling(&url, INTERVAL))).await;
    let mutexes: Vec<_> = clients.iter().flat_map(|client| vec![lock_of(client); 4]).collect();
    let grants = grants(&mutexes, ms(3000)).await;
    // A lease that is handed over is granted at the moment of the release before it. So between two grants of different
    // periods there is a gap, unless nobody waited.
    let ends = |pair: &&[u64]| pair[0] / PERIOD_US < pair[1] / PERIOD_US;
    let with_gap = |pair: &&[u64]| pair[1] - pair[0].max(pair[1] / PERIOD_US * PERIOD_US) >= GAP_US;
    let ends: Vec<_> = grants.windows(2).filter(ends).collect();
    let gaps = ends.iter().filter(|pair| with_gap(pair)).count();
    assert!(ends.len() >= 10, "{} periods in 3 s", ends.len());
    assert!(gaps * 10 >= ends.len() * 8, "{gaps} gaps in {} periods", ends.len());
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_polls_gets_in_and_ours_follow_within_an_interval() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two) = (mixed(&server).await, mixed(&server).await);
    let mut late = Vec::new();
    for _ in 0..4 {
        let (guard, waiting) = held_until_due(&server, &lock_of(&one), &lock_of(&two)).await;
        let mut bare = Bare::new(&server, "0bd7ff6ea7e311f0a9dd0242ac120002");
        assert!(!bare.try_lock());
        let token = guard.token();
        guard.release().await.expect("held");
        // At this moment, or an interval later at the latest.
        let begun = Instant::now();
        if !bare.try_lock() {
            assert!(begun.elapsed() > INTERVAL, "the key was not left free");
            granted(waiting).await.0.release().await.expect("held");
            continue;
        }
        sleep(2 * GAP).await;
        assert!(!waiting.is_finished(), "two holders");
        bare.unlock();
        let unlocked = Instant::now();
        let (next, at) = granted(waiting).await;
        assert!(next.token() > token);
        late.push(at.saturating_duration_since(unlocked));
        next.release().await.expect("held");
    }
    assert!(late.iter().min().is_some_and(|best| *best <= INTERVAL + ms(25)), "{late:?}");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_that_polls_leaves_of_a_gap_is_for_others_of_its_kind() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two, mut raw) = (mixed(&server).await, mixed(&server).await, server.raw());
    let (guard, waiting) = held_until_due(&server, &lock_of(&one), &lock_of(&two)).await;
    let begun = Instant::now();
    guard.release().await.expect("held");
    for value in ["first", "second", "third"] {
        let mut bare = Bare::new(&server, value);
        let taken = bare.try_lock();
        assert!(taken || begun.elapsed() + ms(1) >= GAP, "{value} found the lock held");
        if taken {
            bare.unlock();
        }
    }
    let (next, at) = granted(waiting).await;
    assert!(at - begun + ms(1) >= GAP);
    next.release().await.expect("held");
    assert!(raw.get(KEY).is_none());
}

// Waiters

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_of_our_waiters_outlasts_a_gap() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let clients = join_all((0..3).map(|_| mixed(&server))).await;
    let queued_lock = |n: usize| clients[n].mutex_with(NAME, one_place_each().ttl(LONG)).expect("valid");
    let (guard, first) = held_until_due(&server, &queued_lock(0), &queued_lock(1)).await;
    let mut waiting = vec![first];
    for n in 2..8 {
        waiting.push(waiter(&queued_lock(n % 3)));
        queued(&server, i64::try_from(n).expect("few")).await;
    }
    let mut last = guard.token();
    guard.release().await.expect("held");
    let late = waiter(&queued_lock(0));
    for task in waiting.into_iter().chain([late]) {
        let (guard, _) = granted(task).await;
        assert!(guard.token() > last, "another one came before");
        last = guard.token();
        guard.release().await.expect("held");
    }
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_cancelled_in_a_gap_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two) = (mixed(&server).await, mixed(&server).await);
    let (guard, waiting) = held_until_due(&server, &lock_of(&one), &lock_of(&two)).await;
    guard.release().await.expect("held");
    waiting.abort();
    // Not even what marks the gap outlasts it.
    nothing_left(&server, GAP + SECOND).await;
    let (guard, _) = granted(waiter(&lock_of(&two))).await;
    guard.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_client_that_polls_holds_it_at_the_end_of_a_gap_a_cancelled_waiter_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two) = (mixed(&server).await, mixed(&server).await);
    let (guard, waiting) = held_until_due(&server, &lock_of(&one), &lock_of(&two)).await;
    guard.release().await.expect("held");
    let mut bare = Bare::new(&server, "theirs");
    let taken = bare.try_lock();
    sleep(GAP + ms(10)).await;
    waiting.abort();
    if taken {
        bare.unlock();
    }
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_the_option_respects_gaps_and_is_woken_at_the_end_of_one() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, plain) = (mixed(&server).await, connect(&server.url()).await);
    // A waiter.
    let (guard, waiting) = held_until_due(&server, &lock_of(&one), &lock_of(&plain)).await;
    let begun = Instant::now();
    guard.release().await.expect("held");
    let (next, at) = granted(waiting).await;
    assert!(at - begun + ms(1) >= GAP, "after {:?}", at - begun);
    next.release().await.expect("held");
    // A new request, when nobody waits.
    let guard = lock_of(&one).lock().await.expect("free");
    until_due(&mut server.raw(), &guard).await;
    let begun = Instant::now();
    guard.release().await.expect("held");
    let (next, at) = granted(waiter(&lock_of(&plain))).await;
    assert!(at - begun + ms(1) >= GAP, "after {:?}", at - begun);
    next.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_first_waiter_gives_up_in_a_gap_the_next_one_is_woken_at_its_end() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two, three) =
        (mixed(&server).await, connect(&server.url()).await, connect(&server.url()).await);
    let (guard, first) = held_until_due(&server, &lock_of(&one), &lock_of(&two)).await;
    let second = waiter(&lock_of(&three));
    queued(&server, 2).await;
    guard.release().await.expect("held");
    first.abort();
    // On its own it would check after a third of its TTL, which is longer than this waits.
    granted(second).await.0.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_waiter_that_cannot_be_reached_is_passed_over_when_a_gap_begins() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let proxy = Proxy::start(server.port()).await;
    let (one, cut_off, three) =
        (mixed(&server).await, connect(&proxy.url()).await, connect(&server.url()).await);
    let (guard, first) = held_until_due(&server, &lock_of(&one), &lock_of(&cut_off)).await;
    let second = waiter(&lock_of(&three));
    queued(&server, 2).await;
    proxy.refuse(true);
    proxy.cut();
    let mut raw = server.raw();
    eventually(SOON, || std::future::ready(listeners(&mut raw) == 2)).await;
    guard.release().await.expect("held");
    granted(second).await.0.release().await.expect("held");
    proxy.refuse(false);
    granted(first).await.0.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_gets_the_lock_in_a_gap_only_if_nobody_waits() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two) = (mixed(&server).await, mixed(&server).await);
    let guard = lock_of(&one).lock().await.expect("free");
    until_due(&mut server.raw(), &guard).await;
    let token = guard.token();
    guard.release().await.expect("held");
    let at_once = lock_of(&two).try_lock().await.expect("answered").expect("nobody waits");
    assert!(at_once.token() > token);
    let waiting = waiter(&lock_of(&one));
    // The gap may be marked beside it.
    let mut raw = server.raw();
    eventually(SOON, || std::future::ready(raw.send(&["ZCOUNT", QUEUE, "1", "+inf"]).int() == 1)).await;
    until_due(&mut raw, &at_once).await;
    let begun = Instant::now();
    at_once.release().await.expect("held");
    let tried = lock_of(&two).try_lock().await.expect("answered");
    assert!(tried.is_none(), "it overtook a waiter");
    let (next, at) = granted(waiting).await;
    assert!(at - begun + ms(1) >= GAP);
    next.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_ends_a_gap() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let url = server.url();
    // Of half a minute, so that only the release by force can end it; the period is 4 min.
    let (one, two) = (polling(&url, ms(24_000)).await, connect(&url).await);
    let guard = lock_of(&one).lock().await.expect("free");
    let waiting = waiter(&lock_of(&two));
    queued(&server, 1).await;
    let mut raw = server.raw();
    // As if it had been granted in the period before.
    let value = raw.get(KEY).expect("held");
    let token = token_held(&mut raw).expect("held");
    let earlier = (token.parse::<u64>().expect("a number") - 240_000_000).to_string();
    raw.send(&["SET", KEY, &value.replace(&token, &earlier), "KEEPTTL"]);
    guard.release().await.expect("held");
    assert!(is_free(&mut raw));
    assert!(!lock_of(&one).force_release().await.expect("answered"), "nobody held it");
    granted(waiting).await.0.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

// Other kinds, and many at once

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentrant_lock_leaves_gaps_when_its_last_hold_ends() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two, mut raw) = (mixed(&server).await, mixed(&server).await, server.raw());
    let lock = |client: &Client, owner: &str| {
        client.reentrant_lock_with(NAME, owner, MutexOptions::new().ttl(LONG)).expect("valid")
    };
    let (holder, other_process, waits) =
        (lock(&one, "order-1"), lock(&two, "order-1"), lock(&two, "order-2"));
    let outer = holder.lock().await.expect("free");
    let inner = holder.lock().await.expect("re-entered");
    let elsewhere = other_process.lock().await.expect("re-entered");
    let waiting = tokio::spawn(async move { (waits.lock().await.expect("granted"), Instant::now()) });
    queued(&server, 1).await;
    until_due(&mut raw, &outer).await;
    let token = outer.token();
    outer.release().await.expect("held");
    inner.release().await.expect("held");
    assert!(!is_free(&mut raw), "the owner has another hold");
    let begun = Instant::now();
    elsewhere.release().await.expect("held");
    let (next, at) = granted(waiting).await;
    assert!(at - begun + ms(1) >= GAP, "after {:?}", at - begun);
    assert!(next.token() > token);
    next.release().await.expect("held");
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_in_one_call_leave_a_gap_each() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let (one, two, mut raw) = (mixed(&server).await, mixed(&server).await, server.raw());
    let locks = |client: &Client| {
        let lock = |n: usize| client.mutex_with(&format!("record:{n}"), options().ttl(LONG)).expect("valid");
        (0..96).map(lock).collect::<Vec<_>>()
    };
    let (ours, theirs) = (locks(&one), locks(&two));
    let guards =
        join_all(ours.iter().map(DistMutex::lock)).await.into_iter().collect::<Result<Vec<_>, Error>>();
    let guards = guards.expect("free");
    // Somebody waits for every other one.
    let waiting: Vec<_> = theirs.iter().step_by(2).map(waiter).collect();
    let queues = || std::future::ready(raw.keys("*:queue").len() == 48);
    eventually(SOON, queues).await;
    let latest = guards.iter().map(|guard| guard.token().get()).max().expect("some");
    period_after(&mut raw, latest).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    let begun = Instant::now();
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released.expect("held");
    }
    let calls = raw.info_commandstats();
    let scripts = ["evalsha", "eval"].iter().filter_map(|command| calls.get(*command)).sum::<u64>();
    assert!(scripts < 96, "{scripts} calls for 96 releases");
    for task in waiting {
        let (guard, at) = granted(task).await;
        assert!(at - begun + ms(1) >= GAP, "after {:?}", at - begun);
        guard.release().await.expect("held");
    }
    nothing_left(&server, SECOND).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_is_not_polled() {
    let Some(server) = RedisServer::start_or_skip("gaps") else { return };
    let url = server.url();
    let (one, two) = (polling(&url, ms(1)).await, polling(&url, ms(1)).await);
    let semaphore = |client: &Client| {
        client.counting_semaphore_with("service", 1, SemaphoreOptions::new().ttl(LONG)).expect("valid")
    };
    let permit = semaphore(&one).acquire().await.expect("free");
    let waits = semaphore(&two);
    let waiting = tokio::spawn(async move { waits.acquire().await.expect("granted") });
    let mut raw = server.raw();
    eventually(SOON, || std::future::ready(raw.send(&["EXISTS", "{semaphore:service}:queue"]).int() == 1))
        .await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    sleep(ms(200)).await;
    assert_eq!(raw.info_commandstats().get("evalsha"), None);
    permit.release().await.expect("held");
    within(SOON, waiting).await.expect("no panic").release().await.expect("held");
}

#[tokio::test]
async fn a_poll_interval_is_from_a_millisecond_to_a_minute() {
    for interval in [Duration::from_micros(999), Duration::from_secs(61)] {
        let builder = RedisBackend::builder("redis://127.0.0.1:1").expect("valid").poll_interval(interval);
        let refused = builder.connect().await;
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    }
}

// A fleet

/// What a worker thread does until it is stopped: polls every 5 to 10 ms, holds the lock for 3 ms, and counts.
fn foreign_worker(mut bare: Bare, number: u64, stop: &AtomicBool, sections: &AtomicU64, inside: &AtomicBool) {
    let poll = Duration::from_micros(5_000 + number * 700);
    while !stop.load(Ordering::Relaxed) {
        if bare.try_lock() {
            assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
            thread::sleep(ms(3));
            assert!(inside.swap(false, Ordering::SeqCst), "two holders");
            bare.unlock();
            sections.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(poll);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_two_of_ours_no_worker_that_polls_gets_less_than_a_tenth_of_its_share() {
    const FOREIGN: usize = 8;
    let Some(server) = RedisServer::start_or_skip("a mixed fleet") else { return };
    let url = server.url();
    let clients = join_all((0..2).map(|_| polling(&url, ms(10)))).await;
    let (stop, inside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let sections: Arc<Vec<AtomicU64>> = Arc::new((0..FOREIGN + 2).map(|_| AtomicU64::new(0)).collect());
    let workers: Vec<_> = (0..FOREIGN)
        .map(|n| {
            let bare = Bare::new(&server, &format!("worker-{n}"));
            let (stop, sections, inside) = (Arc::clone(&stop), Arc::clone(&sections), Arc::clone(&inside));
            thread::spawn(move || foreign_worker(bare, n as u64, &stop, &sections[n], &inside))
        })
        .collect();
    // Two tasks each, so that both clients lock back to back.
    let ours: Vec<_> = (0..4)
        .map(|n| {
            let mutex = lock_of(&clients[n % 2]);
            let (stop, sections, inside) = (Arc::clone(&stop), Arc::clone(&sections), Arc::clone(&inside));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let guard = mutex.lock().await.expect("granted");
                    assert!(!inside.swap(true, Ordering::SeqCst), "two holders");
                    sleep(ms(3)).await;
                    assert!(inside.swap(false, Ordering::SeqCst), "two holders");
                    guard.release().await.expect("held");
                    sections[FOREIGN + n % 2].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    sleep(Duration::from_secs(6)).await;
    stop.store(true, Ordering::Relaxed);
    for task in ours {
        within(SOON, task).await.expect("no panic");
    }
    for worker in workers {
        tokio::task::spawn_blocking(|| worker.join()).await.expect("not cancelled").expect("no panic");
    }
    let counts: Vec<_> = sections.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let share = counts.iter().sum::<u64>() / counts.len() as u64;
    eprintln!("sections: {counts:?}");
    assert!(counts.iter().all(|count| count * 10 >= share), "less than a tenth of {share}: {counts:?}");
    nothing_left(&server, SECOND).await;
}
