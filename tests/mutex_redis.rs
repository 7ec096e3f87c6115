//! What `DistMutex`, `Guard` and `Client` promise on a real Redis server, seen from one process. Several
//! clients represent several processes; what another library or an operator would do is sent by hand.
#![cfg(feature = "_redis")]

use std::future::{Future, pending, ready};
use std::net::TcpListener;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{join_all, select_all};
use leasehold::backend::LeaseId;
use leasehold::redis::{RedisBackend, RedisBuilder};
use leasehold::{Client, DistMutex, Error, Guard, LeaseEnd, LossReason, MAX_NAME_BYTES, MutexOptions};
use leasehold_support::locks::{
    BARE_HOLDER, Counter, FENCE, KEY, NAME, QUEUE, SECOND, SOON, all_commands, bare_lock, bare_release, ms,
    scripts_called,
};
use leasehold_support::{
    Raw, RedisServer, Reply, Setup, assert_pending, eventually, local_handover, one_place_each, options,
    within,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

const DAY_MS: i64 = 86_400_000;

/// How redis-py's `Lock` sets its remaining time anew.
const BARE_EXTEND: &str = "
    local token = redis.call('get', KEYS[1])
    if not token or token ~= ARGV[1] then return 0 end
    if redis.call('pttl', KEYS[1]) < 0 then return 0 end
    redis.call('pexpire', KEYS[1], ARGV[2])
    return 1";

async fn connect(server: &RedisServer) -> Client {
    Client::connect(&server.url()).await.expect("the server accepts clients")
}

async fn connect_with(server: &RedisServer, set: impl FnOnce(RedisBuilder) -> RedisBuilder) -> Client {
    let builder = RedisBackend::builder(&server.url()).expect("a server's URL can be read");
    let backend = set(builder).connect().await;
    Client::with_backend(Arc::new(backend.expect("the server accepts clients")))
}

async fn connect_many<const N: usize>(server: &RedisServer) -> [Client; N] {
    let clients: Vec<_> = join_all((0..N).map(|_| connect(server))).await;
    clients.try_into().expect("as many as asked for")
}

/// The lock of the tests.
fn mutex_of(client: &Client) -> DistMutex {
    client.mutex_with(NAME, options()).expect("valid")
}

fn mutex_with(client: &Client, options: MutexOptions) -> DistMutex {
    client.mutex_with(NAME, options).expect("valid")
}

/// The lock of the tests, with a place of its own in the store's queue for every waiter.
fn queued_mutex(client: &Client) -> DistMutex {
    mutex_with(client, one_place_each())
}

/// A mutex whose holder notices within a few milliseconds what happened in the store, while its lease lasts
/// for longer than any test waits.
fn attentive(client: &Client) -> DistMutex {
    mutex_with(client, options().renewal_period(ms(20)))
}

/// `lock`, in a task of its own.
fn waiter(mutex: &DistMutex) -> JoinHandle<Guard> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.lock().await.expect("granted") })
}

async fn granted(waiter: JoinHandle<Guard>) -> Guard {
    within(SOON, waiter).await.expect("the waiter did not panic")
}

/// Waits until `n` requests are queued.
#[track_caller]
fn waiting(mutex: &DistMutex, n: usize) -> impl Future<Output = ()> {
    eventually(SOON, move || async move {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
}

async fn holder_id(mutex: &DistMutex) -> Option<String> {
    mutex.inspect().await.expect("inspected").holder().map(|holder| holder.id.clone())
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: LossReason) {
    let Err(Error::Lost { name, reason, .. }) = &outcome else { panic!("expected a loss, got {outcome:?}") };
    assert_eq!((name.as_str(), *reason), (NAME, expected));
}

#[track_caller]
fn assert_timed_out<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "expected a timeout, got {outcome:?}");
}

/// The message of a refusal by the store.
#[track_caller]
fn refusal<T: std::fmt::Debug>(outcome: Result<T, Error>) -> String {
    match outcome {
        Err(error @ Error::StoreRefused { .. }) => error.to_string(),
        other => panic!("expected a refusal by the store, got {other:?}"),
    }
}

// The store by hand

fn bare_extend(raw: &mut Raw, value: &str, expiry: Duration) -> bool {
    raw.send(&["EVAL", BARE_EXTEND, "1", KEY, value, &expiry.as_millis().to_string()]).int() == 1
}

fn connections(raw: &mut Raw) -> usize {
    raw.send(&["CLIENT", "LIST"]).text().expect("text").lines().count()
}

/// The lease id in what stands under a lock's key.
fn lease_in(value: &str) -> String {
    value.split(' ').next().unwrap_or_default().to_owned()
}

/// Only fences are in the store, and each goes after a day.
fn assert_only_fences(raw: &mut Raw) {
    for key in raw.keys("*") {
        assert!(key.starts_with('{') && key.ends_with(":fence"), "left behind: {key}");
        let rest = raw.pttl(&key);
        assert!(0 < rest && rest <= DAY_MS, "{key} has {rest} ms left");
    }
}

// Exclusion and order

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_tasks_of_four_clients_exclude_each_other_under_growing_tokens() {
    const TASKS: usize = 100;
    const ROUNDS: usize = 3;
    let Some(server) = RedisServer::start_or_skip("exclusion") else { return };
    let clients = connect_many::<4>(&server).await;
    let counter = Counter::new(&server);
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let (mutex, counter) = (mutex_of(&clients[i % clients.len()]), Arc::clone(&counter));
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for round in 0..ROUNDS {
                let guard = mutex.lock().await.expect("granted");
                let (begin, token) = (Instant::now(), guard.token());
                let read = counter.read();
                sleep(ms(1)).await;
                counter.write(read + 1);
                assert!(guard.is_held());
                holds.push((begin, Instant::now(), token));
                if (i + round) % 2 == 0 {
                    guard.release().await.expect("held to the end");
                }
            }
            holds
        });
    }
    let mut holds: Vec<_> = within(SECOND * 60, tasks.join_all()).await.into_iter().flatten().collect();
    assert_eq!(counter.read(), (TASKS * ROUNDS) as u64);
    holds.sort_by_key(|&(begin, ..)| begin);
    for pair in holds.windows(2) {
        let [(_, end, token), (begin, _, next_token)] = pair else { unreachable!("windows of two") };
        assert!(end <= begin, "two held at once: {pair:?}");
        assert!(token < next_token, "tokens do not grow: {pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_three_clients_are_served_in_order_of_arrival() {
    const WAITERS: usize = 12;
    let Some(server) = RedisServer::start_or_skip("order") else { return };
    let clients = connect_many::<3>(&server).await;
    let first = mutex_of(&clients[0]).lock().await.expect("free");
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for i in 0..WAITERS {
        let (mutex, served) = (queued_mutex(&clients[i % clients.len()]), Arc::clone(&served));
        tasks.spawn(async move {
            let guard = mutex.lock().await.expect("granted");
            served.lock().unwrap_or_else(PoisonError::into_inner).push((i, guard.token()));
            if i % 2 == 0 {
                guard.release().await.expect("held to the end");
            }
        });
        waiting(&mutex_of(&clients[0]), i + 1).await;
    }
    first.release().await.expect("held to the end");
    within(SOON, tasks.join_all()).await;
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(served.iter().map(|(i, _)| *i).eq(0..WAITERS), "{served:?}");
    assert!(served.windows(2).all(|pair| pair[0].1 < pair[1].1), "{served:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_lists_the_waiters_in_order_and_the_holders_token() {
    let Some(server) = RedisServer::start_or_skip("inspection") else { return };
    let [one, two] = connect_many(&server).await;
    let guard = mutex_of(&one).lock().await.expect("free");
    let mut waiters = Vec::new();
    for (i, client) in [&two, &one, &two].into_iter().enumerate() {
        waiters.push(waiter(&queued_mutex(client)));
        waiting(&mutex_of(&one), i + 1).await;
    }
    let inspection = mutex_of(&two).inspect().await.expect("inspected");
    let holder = inspection.holder().cloned().expect("held");
    assert_eq!(holder.token, Some(guard.token()));
    assert!(holder.remaining.is_some_and(|rest| rest > SECOND * 20 && rest <= SECOND * 30), "{holder:?}");
    let clients: Vec<_> = inspection.waiters.iter().map(|waiter| waiter.id.client()).collect();
    let ours = LeaseId::parse(&holder.id).expect("a lease id").client();
    assert_eq!(clients[1], ours);
    assert_eq!(clients[0], clients[2]);
    assert_ne!(clients[0], ours);
    waiters.iter().for_each(JoinHandle::abort);
    waiting(&mutex_of(&one), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_lock_does_not_overtake_a_waiter_even_if_the_lock_is_free() {
    let Some(server) = RedisServer::start_or_skip("no overtaking") else { return };
    let [one, two, three] = connect_many(&server).await;
    let first = mutex_of(&one).lock().await.expect("free");
    let waiter = waiter(&mutex_of(&two));
    waiting(&mutex_of(&one), 1).await;
    assert!(mutex_of(&three).try_lock().await.expect("answered").is_none());
    // Free, and nobody has told the waiter: it would ask in ten seconds.
    server.raw().send(&["DEL", KEY]);
    assert!(mutex_of(&three).try_lock().await.expect("answered").is_none());
    let second = granted(waiter).await;
    assert!(second.token() > first.token());
    assert!(mutex_of(&three).try_lock().await.expect("answered").is_none());
}

// Beside other libraries

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_by_the_bare_recipe_excludes_ours() {
    let Some(server) = RedisServer::start_or_skip("other libraries") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND * 60));
    assert!(mutex.try_lock().await.expect("answered").is_none());
    assert_timed_out(mutex.lock_timeout(ms(300)).await);
    let holder = mutex.inspect().await.expect("inspected").holder().cloned().expect("held");
    assert_eq!((holder.id.as_str(), holder.token), (BARE_HOLDER, None));
    assert!(holder.remaining.is_some_and(|rest| rest > SECOND * 40 && rest <= SECOND * 60), "{holder:?}");
    assert!(bare_release(&mut raw, BARE_HOLDER));
    assert!(mutex.try_lock().await.expect("answered").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_by_ours_excludes_the_bare_recipe() {
    let Some(server) = RedisServer::start_or_skip("other libraries") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_with(&client, options().ttl(SECOND * 20));
    let guard = mutex.lock().await.expect("free");
    let id = raw.get(KEY).expect("a string");
    assert_eq!(id, format!("{} {}", lease_in(&id), guard.token()));
    assert!(LeaseId::parse(&lease_in(&id)).is_some(), "{id}");
    assert!((1..=20_000).contains(&raw.pttl(KEY)));
    assert!(!bare_lock(&mut raw, BARE_HOLDER, SECOND));
    assert!(!bare_release(&mut raw, BARE_HOLDER));
    assert!(!bare_extend(&mut raw, BARE_HOLDER, SECOND * 90));
    assert_eq!(raw.get(KEY), Some(id));
    assert!(raw.pttl(KEY) <= 20_000);
    guard.release().await.expect("held to the end");
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_a_bare_lock_when_its_time_is_over_and_not_before() {
    let Some(server) = RedisServer::start_or_skip("other libraries") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let begun = Instant::now();
    assert!(bare_lock(&mut raw, BARE_HOLDER, ms(600)));
    let waiter = waiter(&mutex_of(&client));
    waiting(&mutex_of(&client), 1).await;
    let _guard = granted(waiter).await;
    assert!(begun.elapsed() >= ms(595), "after {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_lock_that_is_extended_is_waited_for() {
    let Some(server) = RedisServer::start_or_skip("other libraries") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND));
    let mutex = mutex_of(&client);
    let impatient = tokio::spawn(async move { mutex.lock_timeout(ms(1500)).await });
    waiting(&mutex_of(&client), 1).await;
    assert!(bare_extend(&mut raw, BARE_HOLDER, SECOND * 60), "the test was too slow to extend in time");
    assert_timed_out(within(SOON, impatient).await.expect("no panic"));
    assert_eq!(raw.get(KEY).as_deref(), Some(BARE_HOLDER));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bare_release_is_noticed_within_a_third_of_a_lease() {
    let Some(server) = RedisServer::start_or_skip("other libraries") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND * 60));
    let waiter = waiter(&mutex_with(&client, options().ttl(SECOND)));
    waiting(&mutex_of(&client), 1).await;
    assert!(bare_release(&mut raw, BARE_HOLDER));
    let _guard = granted(waiter).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_interval_notices_a_bare_release_soon() {
    let Some(server) = RedisServer::start_or_skip("other libraries") else { return };
    let (client, mut raw) =
        (connect_with(&server, |builder| builder.poll_interval(ms(20))).await, server.raw());
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND * 60));
    let waiter = waiter(&mutex_of(&client));
    waiting(&mutex_of(&client), 1).await;
    assert!(bare_release(&mut raw, BARE_HOLDER));
    let _guard = within(SECOND, waiter).await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_expiry_is_never_taken_unless_repair_is_on() {
    let Some(server) = RedisServer::start_or_skip("keys without expiry") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    assert_eq!(raw.send(&["SET", KEY, BARE_HOLDER]), Reply::ok());
    let short = options().ttl(ms(300));
    let plain = mutex_with(&client, short.clone());
    let error = plain.lock_timeout(ms(700)).await.expect_err("it is never free");
    assert!(error.to_string().contains("its key has no expiry"), "{error}");
    assert!(matches!(error, Error::TimedOut { holder_never_expires: true, .. }), "{error:?}");
    assert!(plain.try_lock().await.expect("answered").is_none());
    assert_eq!((raw.get(KEY).as_deref(), raw.pttl(KEY)), (Some(BARE_HOLDER), -1));
    let holder = plain.inspect().await.expect("inspected").holder().cloned().expect("held");
    assert_eq!((holder.id.as_str(), holder.remaining), (BARE_HOLDER, None));

    let client = connect_with(&server, |builder| builder.repair_keys_without_expiry(SECOND)).await;
    let repairing = mutex_with(&client, short);
    let begun = Instant::now();
    assert!(repairing.try_lock().await.expect("answered").is_none());
    let rest = raw.pttl(KEY);
    assert!(rest == -2 || (1..=1000).contains(&rest), "{rest} ms left");
    let _guard = within(SOON, repairing.lock()).await.expect("granted");
    assert!(begun.elapsed() >= ms(995), "the expiry counts from the first request that met the key");
}

// Later holders

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_a_lost_lease_reports_the_loss_and_does_not_affect_the_next_holder() {
    let Some(server) = RedisServer::start_or_skip("later holders") else { return };
    let [one, two] = connect_many(&server).await;
    let first = mutex_of(&one).lock().await.expect("free");
    server.raw().send(&["DEL", KEY]);
    let second = mutex_of(&two).try_lock().await.expect("answered").expect("free");
    let id = holder_id(&mutex_of(&two)).await;
    assert_lost(first.release().await, LossReason::Taken);
    assert_eq!(holder_id(&mutex_of(&two)).await, id);
    second.release().await.expect("held to the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_an_expired_guard_leaves_the_later_holder_alone() {
    let Some(server) = RedisServer::start_or_skip("later holders") else { return };
    let [one, two] = connect_many(&server).await;
    let first = mutex_with(&one, options().ttl(ms(500))).lock().await.expect("free");
    let lost = first.lost();
    server.pause();
    assert_eq!(within(SOON, lost).await, LossReason::StoreUnreachable);
    assert!(!first.is_held());
    server.resume();
    let second = within(SOON, mutex_of(&two).lock()).await.expect("granted");
    assert!(second.token() > first.token());
    let id = holder_id(&mutex_of(&two)).await;
    drop(first);
    // By then every release of the first client has been sent and answered.
    one.shutdown().await.expect("drained");
    assert_eq!(holder_id(&mutex_of(&two)).await, id);
    second.release().await.expect("held to the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_guard_that_does_not_know_of_its_loss_leaves_the_later_holder_alone() {
    let Some(server) = RedisServer::start_or_skip("later holders") else { return };
    let [one, two] = connect_many(&server).await;
    let first = mutex_of(&one).lock().await.expect("free");
    server.raw().send(&["DEL", KEY]);
    let second = mutex_of(&two).try_lock().await.expect("answered").expect("free");
    assert!(first.is_held(), "nobody has told it");
    drop(first);
    one.shutdown().await.expect("drained");
    assert_eq!(holder_id(&mutex_of(&two)).await, server.raw().get(KEY).map(|value| lease_in(&value)));
    second.release().await.expect("held to the end");
}

// Loss

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_reports_a_release() {
    let Some(server) = RedisServer::start_or_skip("releases") else { return };
    let mutex = mutex_of(&connect(&server).await);
    for release in [true, false] {
        let guard = mutex.lock().await.expect("free");
        let mut ended = guard.ended();
        assert_pending(ms(50), &mut ended).await;
        if release {
            guard.release().await.expect("held to the end");
        } else {
            drop(guard);
        }
        assert_eq!(within(SOON, ended).await, LeaseEnd::Released);
    }
    // A release that finds another holder tells of a loss.
    let guard = mutex.lock().await.expect("free");
    let lost = guard.lost();
    server.raw().send(&["SET", KEY, BARE_HOLDER]);
    assert_lost(guard.release().await, LossReason::Taken);
    assert_eq!(within(SOON, lost).await, LossReason::Taken);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_key_is_a_loss_and_other_names_are_unharmed() {
    let Some(server) = RedisServer::start_or_skip("deleted keys") else { return };
    let client = connect(&server).await;
    let guard = attentive(&client).lock().await.expect("free");
    let options = options().renewal_period(ms(20));
    let other = client.mutex_with("machine:43", options).expect("valid").lock().await.expect("free");
    let mut lost = pin!(guard.lost());
    assert_pending(ms(200), &mut lost).await;
    server.raw().send(&["DEL", KEY]);
    assert_eq!(within(SOON, lost).await, LossReason::Missing);
    assert!(!guard.is_held());
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_lost(guard.release().await, LossReason::Missing);
    assert_pending(ms(200), other.lost()).await;
    other.release().await.expect("held to the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replaced_value_is_a_loss_and_is_left_alone() {
    let Some(server) = RedisServer::start_or_skip("replaced keys") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let guard = attentive(&client).lock().await.expect("free");
    assert_eq!(raw.send(&["SET", KEY, BARE_HOLDER]), Reply::ok());
    assert_eq!(within(SOON, guard.lost()).await, LossReason::Taken);
    drop(guard);
    client.shutdown().await.expect("drained");
    assert_eq!((raw.get(KEY).as_deref(), raw.pttl(KEY)), (Some(BARE_HOLDER), -1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_another_type_is_a_loss_and_is_left_alone() {
    let Some(server) = RedisServer::start_or_skip("replaced keys") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let guard = attentive(&client).lock().await.expect("free");
    let other = client.mutex_with("machine:43", options()).expect("valid").lock().await.expect("free");
    raw.send(&["MULTI"]);
    raw.send(&["DEL", KEY]);
    raw.send(&["LPUSH", KEY, "x"]);
    raw.send(&["EXEC"]);
    assert_eq!(within(SOON, guard.lost()).await, LossReason::Taken);
    assert_lost(guard.release().await, LossReason::Taken);
    assert!(other.is_held());
    other.release().await.expect("held to the end");
    client.shutdown().await.expect("drained");
    assert_eq!(raw.send(&["LRANGE", KEY, "0", "-1"]), Reply::Array(vec![Reply::bulk("x")]));
}

/// Records when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protected_work_ends_with_the_lease() {
    let Some(server) = RedisServer::start_or_skip("protected work") else { return };
    let client = connect(&server).await;
    let guard = attentive(&client).lock().await.expect("free");
    assert_eq!(guard.protect(async { 42 }).await.expect("held"), 42);
    let dropped = Arc::new(AtomicBool::default());
    let witness = Dropped(Arc::clone(&dropped));
    let mut work = pin!(guard.protect(async move {
        let _witness = witness;
        pending::<()>().await;
    }));
    assert_pending(ms(100), &mut work).await;
    server.raw().send(&["DEL", KEY]);
    assert_lost(within(SOON, &mut work).await, LossReason::Missing);
    assert!(dropped.load(Ordering::SeqCst), "the work is dropped when the loss is told, not later");
}

// Ending by force and by time

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_notifies_the_holder_at_once_and_serves_the_next_waiter() {
    const ROUNDS: usize = 9;
    let Some(server) = RedisServer::start_or_skip("release by force") else { return };
    let [one, two, operator] = connect_many(&server).await;
    let mut delays = Vec::new();
    for _ in 0..ROUNDS {
        // Renewed every ten seconds: only a push can tell sooner.
        let guard = mutex_of(&one).lock().await.expect("free");
        let waiter = waiter(&mutex_of(&two));
        waiting(&mutex_of(&operator), 1).await;
        let lost = tokio::spawn({
            let lost = guard.lost();
            async move { (lost.await, Instant::now()) }
        });
        let begun = Instant::now();
        assert!(mutex_of(&operator).force_release().await.expect("answered"));
        let next = granted(waiter).await;
        let (reason, told) = within(SOON, lost).await.expect("no panic");
        assert_eq!(reason, LossReason::Revoked);
        delays.push(told - begun);
        assert!(next.token() > guard.token());
        assert!(!guard.is_held());
        assert_lost(guard.release().await, LossReason::Revoked);
        assert!(next.is_held());
        next.release().await.expect("held to the end");
    }
    // A busy machine may hold one of them up.
    delays.sort();
    assert!(delays[ROUNDS / 2] <= ms(50), "told after {delays:?}");
    assert!(!mutex_of(&operator).force_release().await.expect("answered"), "nobody holds it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_takes_the_lock_from_another_librarys_client() {
    let Some(server) = RedisServer::start_or_skip("release by force") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND * 60));
    let waiter = waiter(&mutex);
    waiting(&mutex, 1).await;
    assert!(mutex.force_release().await.expect("answered"));
    let guard = granted(waiter).await;
    assert!(!bare_release(&mut raw, BARE_HOLDER));
    guard.release().await.expect("held to the end");
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND * 60));
    assert!(mutex.force_release().await.expect("answered"));
    assert!(!mutex.force_release().await.expect("answered"));
    assert_eq!(raw.get(KEY), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_maximum_hold_time_ends_a_lease_and_the_next_waiter_gets_it() {
    let Some(server) = RedisServer::start_or_skip("maximum hold time") else { return };
    let [one, two] = connect_many(&server).await;
    let guard = mutex_with(&one, options().max_hold(ms(700))).lock().await.expect("free");
    let begun = Instant::now();
    let waiter = waiter(&mutex_of(&two));
    waiting(&mutex_of(&two), 1).await;
    assert!(guard.remaining() <= ms(700));
    assert_eq!(within(SOON, guard.lost()).await, LossReason::HeldTooLong);
    let next = granted(waiter).await;
    assert!(begun.elapsed() >= ms(650), "after {:?}", begun.elapsed());
    assert!(next.token() > guard.token());
    assert_lost(guard.release().await, LossReason::HeldTooLong);
    next.release().await.expect("held to the end");
}

// Tokens

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_the_store_forgets_while_the_lock_is_idle() {
    let Some(server) = RedisServer::start_or_skip("tokens") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    let mut newest = None;
    for forget in [&["FLUSHALL"][..], &["DEL", FENCE], &["SCRIPT", "FLUSH"], &["FLUSHALL"]] {
        let guard = mutex.lock().await.expect("free");
        assert!(Some(guard.token()) > newest, "{:?} after {newest:?}", guard.token());
        newest = Some(guard.token());
        guard.release().await.expect("held to the end");
        raw.send(forget);
    }
    assert!(Some(mutex.lock().await.expect("free").token()) > newest);
}

/// As after a failover to a replica that had not received the last writes: a counter would issue the same tokens again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_the_store_forgets_the_last_grants_only() {
    let Some(server) = RedisServer::start_or_skip("tokens") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    let mut newest = None;
    let mut replica = None;
    for grants in [1, 5, 20, 80] {
        for _ in 0..grants {
            let guard = mutex.lock().await.expect("free");
            assert!(Some(guard.token()) > newest, "{:?} after {newest:?}", guard.token());
            assert!(guard.token().get() <= raw.now_us(), "ahead of the clock");
            newest = Some(guard.token());
            guard.release().await.expect("held to the end");
        }
        let fence = raw.get(FENCE).expect("a token");
        if let Some(older) = replica.replace(fence) {
            raw.send(&["SET", FENCE, &older, "KEEPTTL"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_the_store_forgets_while_the_lock_is_held_and_waited_for() {
    let Some(server) = RedisServer::start_or_skip("tokens") else { return };
    let [one, two] = connect_many(&server).await;
    let mut raw = server.raw();
    let short = options().ttl(SECOND);
    for forget in [&["FLUSHALL"][..], &["DEL", KEY, FENCE], &["DEL", FENCE]] {
        let guard = mutex_with(&one, short.clone()).lock().await.expect("free");
        let waiter = waiter(&mutex_with(&two, short.clone()));
        waiting(&mutex_of(&two), 1).await;
        raw.send(forget);
        if forget[1..] == [FENCE] {
            guard.protect(ready(())).await.expect("still held");
            assert!(raw.get(KEY).is_some(), "the lock itself was not forgotten");
        }
        let first = guard.token();
        drop(guard);
        // It may have to find out by itself that it is no longer queued.
        let next = granted(waiter).await;
        assert!(next.token() > first, "after {forget:?}: {:?} after {first:?}", next.token());
        next.release().await.expect("held to the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_over_a_restart_without_disk() {
    let Some(mut server) = RedisServer::start_or_skip("restarts") else { return };
    let [one, two] = connect_many(&server).await;
    let short = options().ttl(SECOND);
    let idle = one.mutex_with("idle", options()).expect("valid").lock().await.expect("free");
    let idle_token = idle.token();
    idle.release().await.expect("held to the end");
    let held = mutex_with(&one, short.clone()).lock().await.expect("free");
    let waiter = waiter(&mutex_with(&two, short));
    waiting(&mutex_of(&two), 1).await;
    server.restart();
    assert_eq!(server.raw().get(FENCE), None, "the server remembers nothing");
    let next = within(SECOND * 15, waiter).await.expect("no panic");
    assert!(next.token() > held.token());
    let again =
        within(SECOND * 15, two.mutex_with("idle", options()).expect("valid").lock()).await.expect("granted");
    assert!(again.token() > idle_token);
    let reason = within(SOON, held.lost()).await;
    assert!(matches!(reason, LossReason::Missing | LossReason::Taken | LossReason::StoreUnreachable));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_continue_from_the_last_one_when_the_clock_is_set_back() {
    let Some(server) = RedisServer::start_or_skip("tokens") else { return };
    let [one, two] = connect_many(&server).await;
    let mut raw = server.raw();
    // What the store would remember if its clock had been eleven days ahead.
    let ahead = raw.now_us() + 1_000_000_000_000;
    raw.send(&["SET", FENCE, &ahead.to_string()]);
    let first = mutex_of(&one).lock().await.expect("free");
    // A grant reserves tokens for those to whom it may be passed on.
    let per_grant = 16;
    assert_eq!(first.token().get(), ahead + per_grant);
    let waiter = waiter(&mutex_of(&two));
    waiting(&mutex_of(&two), 1).await;
    first.release().await.expect("held to the end");
    let second = granted(waiter).await;
    assert_eq!(second.token().get(), ahead + 2 * per_grant);
    second.release().await.expect("held to the end");
    let third = mutex_of(&one).try_lock().await.expect("answered").expect("free");
    assert_eq!(third.token().get(), ahead + 3 * per_grant);
    assert_eq!(raw.get(FENCE), Some((ahead + 3 * per_grant).to_string()));
}

/// Written by another program: a fence without room for a token that fits into 53 bits, and a gap that lasts for
/// centuries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fence_and_a_gap_from_the_far_future_count_for_nothing() {
    let Some(server) = RedisServer::start_or_skip("forged records") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mut last = leasehold::FencingToken::new(0);
    for forged in [(1_u64 << 53) - 1, (1 << 53) - 32, 1 << 53, u64::MAX] {
        raw.send(&["SET", FENCE, &forged.to_string()]);
        for _ in 0..3 {
            let guard = mutex_of(&client).lock().await.expect("free");
            assert!(guard.token() > last && guard.token().get() < 1 << 53, "{forged}: {}", guard.token());
            last = guard.token();
            guard.release().await.expect("held to the end");
        }
    }
    raw.send(&["ZADD", QUEUE, "-99999999999999999", "-"]);
    let guard = within(SOON, mutex_of(&client).lock()).await.expect("free");
    let waiter = waiter(&mutex_of(&connect(&server).await));
    waiting(&mutex_of(&client), 1).await;
    guard.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
    assert_eq!(raw.keys("*"), [FENCE]);
}

// Nothing left

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_run_leaves_nothing_but_fences_and_no_connection() {
    const TASKS: usize = 60;
    let Some(server) = RedisServer::start_or_skip("nothing left") else { return };
    let mut raw = server.raw();
    let before = connections(&mut raw);
    let clients = connect_many::<3>(&server).await;
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let client = clients[i % clients.len()].clone();
        tasks.spawn(async move {
            for round in 0..8 {
                let name = format!("machine:{}", (i + round) % 4);
                let mutex = client.mutex_with(&name, options()).expect("valid");
                match (i + round) % 5 {
                    0 => mutex.lock().await.expect("granted").release().await.expect("held to the end"),
                    1 => drop(mutex.lock().await.expect("granted")),
                    2 => drop(mutex.try_lock().await.expect("answered")),
                    // Times out, and is dropped, at any point of the way to a grant and after it.
                    3 => drop(mutex.lock_timeout(ms((i * 7 + round) as u64 % 12)).await),
                    _ => drop(timeout(ms((i * 5 + round) as u64 % 12), mutex.lock()).await),
                }
            }
        });
    }
    let mut seen = 0;
    let end = Instant::now() + SECOND * 30;
    while !tasks.is_empty() {
        let lines = [raw.keys("*:queue"), raw.keys("*:waiters")].concat();
        for key in lines {
            let rest = raw.pttl(&key);
            assert!(rest == -2 || rest > 0, "{key} has no expiry: {rest}");
            seen += u32::from(rest > 0);
        }
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("no panic");
        }
        assert!(Instant::now() < end, "{} tasks still run", tasks.len());
        tokio::task::yield_now().await;
    }
    assert!(seen > 0, "no queue was ever seen: the test proves nothing");
    for client in &clients {
        client.shutdown().await.expect("drained");
    }
    assert_only_fences(&mut raw);
    assert_eq!(raw.keys("*"), [FENCE], "one fence for all names");
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_dropped_is_gone_within_a_second_without_any_shutdown() {
    let Some(server) = RedisServer::start_or_skip("nothing left") else { return };
    let ([holder, client], mut raw) = (connect_many(&server).await, server.raw());
    let guard = mutex_of(&holder).lock().await.expect("free");
    let waiters: Vec<_> = (0..20).map(|_| waiter(&mutex_of(&client))).collect();
    // With hand-over, one is queued for all of them.
    waiting(&mutex_of(&client), if local_handover() { 1 } else { 20 }).await;
    for key in [QUEUE, "{lock:machine:42}:waiters"] {
        assert!((1..=60_000).contains(&raw.pttl(key)), "{key}: two leases at most");
    }
    waiters.iter().for_each(JoinHandle::abort);
    drop(guard);
    eventually(SECOND, || ready(raw.keys("*") == [FENCE])).await;
    assert_only_fences(&mut raw);
}

// Connections

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_has_three_connections_however_many_locks_and_waiters() {
    let Some(server) = RedisServer::start_or_skip("connections") else { return };
    let mut raw = server.raw();
    let before = connections(&mut raw);
    let clients = connect_many::<3>(&server).await;
    let mut guards = Vec::new();
    let mut waiters = JoinSet::new();
    for client in &clients {
        for i in 0..40 {
            let mutex = client.mutex_with(&format!("machine:{i}"), options()).expect("valid");
            match mutex.try_lock().await.expect("answered") {
                Some(guard) => guards.push(guard),
                None => drop(waiters.spawn(async move { mutex.lock().await.map(drop) })),
            }
        }
    }
    eventually(SOON, || {
        let queues = raw.keys("*:queue");
        let waiting: i64 = queues.iter().map(|queue| raw.send(&["ZCARD", queue]).int()).sum();
        ready(waiting == 80)
    })
    .await;
    assert_eq!(guards.len(), 40);
    assert_eq!(connections(&mut raw), before + 9);
    let channels = raw.send(&["PUBSUB", "CHANNELS", "leasehold:*"]).array();
    assert_eq!(channels.len(), 3);
    for channel in &channels {
        let channel = channel.text().expect("a name");
        let numbers = raw.send(&["PUBSUB", "NUMSUB", &channel]).array();
        assert_eq!(numbers[1].int(), 1, "{channel}");
    }
    drop(guards);
    for served in within(SECOND * 20, waiters.join_all()).await {
        served.expect("granted");
    }
    assert_eq!(connections(&mut raw), before + 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_close_on_shutdown_and_when_everything_is_dropped() {
    let Some(server) = RedisServer::start_or_skip("connections") else { return };
    let mut raw = server.raw();
    let before = connections(&mut raw);

    // Never used.
    drop(connect(&server).await);
    eventually(SOON, || ready(connections(&mut raw) == before)).await;

    // Shut down, with a handle left.
    let client = connect(&server).await;
    let guard = mutex_of(&client).lock().await.expect("free");
    client.shutdown().await.expect("drained");
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
    assert_lost(guard.release().await, LossReason::ClientClosed);
    assert!(matches!(mutex_of(&client).lock().await, Err(Error::Closed { .. })));
    assert!(matches!(mutex_of(&client).inspect().await, Err(Error::Closed { .. })));

    // Used and dropped; the last handle is a guard's.
    let client = connect(&server).await;
    let guard = mutex_of(&client).lock().await.expect("free");
    drop(client);
    assert_eq!(connections(&mut raw), before + 3);
    assert!(guard.is_held());
    drop(guard);
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
    assert_only_fences(&mut raw);

    // Dropped in the middle of a wait.
    assert!(bare_lock(&mut raw, BARE_HOLDER, SECOND * 60));
    let client = connect(&server).await;
    assert_timed_out(mutex_of(&client).lock_timeout(ms(300)).await);
    let waiter = waiter(&mutex_of(&client));
    waiting(&mutex_of(&client), 1).await;
    drop(client);
    waiter.abort();
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
    eventually(SOON, || ready(raw.send(&["EXISTS", QUEUE]).int() == 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_that_is_given_up_at_any_point_leaves_no_connection() {
    let Some(server) = RedisServer::start_or_skip("connections") else { return };
    let mut raw = server.raw();
    let before = connections(&mut raw);
    for i in 0..100 {
        // The first poll begins, the others fall anywhere between that and the end.
        drop(timeout(ms(i % 5), Client::connect(&server.url())).await);
    }
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_works_over_a_unix_socket() {
    let setup = Setup { unix_socket: true, ..Setup::default() };
    let Some(server) = RedisServer::start_with_or_skip("unix sockets", setup) else { return };
    let [one, two] = [(); 2].map(|()| server.unix_url());
    let (one, two) = tokio::join!(Client::connect(&one), Client::connect(&two));
    let (one, two) = (one.expect("connected"), two.expect("connected"));
    let tcp = connections(&mut server.raw());
    let guard = mutex_of(&one).lock().await.expect("free");
    let waiter = waiter(&mutex_of(&two));
    waiting(&mutex_of(&one), 1).await;
    guard.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
    let clients = server.raw().send(&["CLIENT", "LIST"]).text().expect("text");
    let over_socket = clients.lines().filter(|line| line.contains("redis.sock")).count();
    assert_eq!((over_socket, tcp), (6, 7), "{clients}");
    assert!(Path::new(server.dir()).join("redis.sock").exists());
}

#[cfg(feature = "fred")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_of_fred_names_the_database() {
    use fred::types::config::Config;

    let Some(server) = RedisServer::start_or_skip("databases") else { return };
    server.allow(&leasehold_support::more_rules("+select"));
    let config = Config { database: Some(3), ..Config::from_url(&server.url()).expect("valid") };
    let backend = RedisBackend::builder_from_fred(config).connect().await.expect("connected");
    let by_config = Client::with_backend(Arc::new(backend));
    let by_url = Client::connect(&format!("{}/3", server.url())).await.expect("connected");
    let elsewhere = connect(&server).await;
    let guard = mutex_of(&by_config).lock().await.expect("free");
    assert!(mutex_of(&by_url).try_lock().await.expect("answered").is_none());
    let mut raw = server.raw();
    assert_eq!(raw.keys("*"), Vec::<String>::new());
    assert_eq!(raw.send(&["SELECT", "3"]), Reply::ok());
    assert_eq!(raw.keys("*"), [KEY, FENCE]);
    assert!(mutex_of(&elsewhere).try_lock().await.expect("answered").is_some(), "another database");
    let waiter = waiter(&mutex_of(&by_url));
    waiting(&mutex_of(&by_config), 1).await;
    guard.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
}

// Names

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusual_names_lock_wait_and_hand_over_and_never_collide() {
    let Some(server) = RedisServer::start_or_skip("odd names") else { return };
    let [one, two] = connect_many(&server).await;
    let long = ["x".repeat(MAX_NAME_BYTES), "é".repeat(MAX_NAME_BYTES / 2), "{".repeat(MAX_NAME_BYTES)];
    let names = [
        " ",
        "  ",
        "a b",
        "a  b",
        " a b ",
        "\n",
        "a\nb",
        "a\r\nb",
        "\t",
        "\0",
        "a\0b",
        "maschine:ä",
        "机器",
        "🔒",
        "a",
        "A",
        "{",
        "}",
        "{}",
        "}{",
        "{tag}",
        "{tag}x",
        "{tag}y",
        "x{tag}",
        "a}b",
        "a}b}",
        "{a",
        "{{a}}",
        "{lock:a}:queue",
        "{lock:a}:fence",
        "{lock:}:fence",
        "a:queue",
        "a}:queue",
        "lock:a",
        ":",
        "*",
        "?",
        "\"",
        "'",
        "\\",
        "%s %d",
        "0",
        "-1",
        "nil",
        "grant",
        "revoke x y",
        "é",
        "e\u{301}",
    ];
    let names: Vec<_> = names.into_iter().map(str::to_owned).chain(long).collect();
    let mut held = Vec::new();
    for name in &names {
        let mutex = one.mutex_with(name, options()).expect("valid");
        let guard = mutex.try_lock().await.expect("answered");
        held.push(guard.unwrap_or_else(|| panic!("{name:?} collides with a name before it")));
    }
    let mut tasks = Vec::new();
    for name in &names {
        let mutex = two.mutex_with(name, options()).expect("valid");
        assert!(mutex.try_lock().await.expect("answered").is_none(), "{name:?} is held");
        tasks.push(waiter(&mutex));
        waiting(&mutex, 1).await;
    }
    for ((name, guard), waiter) in names.iter().zip(held).zip(tasks) {
        assert_eq!(guard.name(), name);
        let first = guard.token();
        guard.release().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let next = granted(waiter).await;
        assert!(next.token() > first, "{name:?}");
        next.release().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    assert_only_fences(&mut server.raw());
    assert_eq!(server.raw().keys("*"), [FENCE]);
}

// Cost

/// What contended acquisitions cost.
struct Cost {
    /// Operations per acquisition, from the queued request to the end of its release.
    operations: f64,
    /// Client commands for that; some operations share one.
    client_commands: f64,
    /// Commands per hand-over, those inside scripts included.
    all_commands: f64,
}

async fn cost_of(server: &RedisServer, clients: &[Client], waiters: usize) -> Cost {
    let mut raw = server.raw();
    // Its requests are repeated every 100 seconds.
    let options = one_place_each().ttl(SECOND * 300);
    let guard = mutex_with(&clients[0], options.clone()).lock().await.expect("free");
    raw.send(&["CONFIG", "RESETSTAT"]);
    let mut tasks = JoinSet::new();
    for i in 0..waiters {
        let mutex = mutex_with(&clients[i % clients.len()], options.clone());
        tasks.spawn(async move { mutex.lock().await.expect("granted").release().await });
    }
    let expected = i64::try_from(waiters).expect("a small number");
    eventually(SECOND * 20, || ready(raw.send(&["ZCARD", QUEUE]).int() == expected)).await;
    let queueing = raw.info_commandstats();
    raw.send(&["CONFIG", "RESETSTAT"]);
    guard.release().await.expect("held to the end");
    for released in within(SECOND * 30, tasks.join_all()).await {
        released.expect("held to the end");
    }
    let calls = raw.info_commandstats();
    // The first release was not the waiters'.
    let client_commands = scripts_called(&queueing) + scripts_called(&calls) - 1;
    // Each queued request writes its record once, each release notifies one waiter.
    let written = |command: &str| queueing.get(command).copied().unwrap_or_default();
    let operations = written("hset") + written("hsetnx") + calls["publish"];
    Cost {
        operations: operations as f64 / waiters as f64,
        client_commands: client_commands as f64 / waiters as f64,
        all_commands: all_commands(&calls) as f64 / waiters as f64,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_the_same_work_for_ten_and_for_a_thousand_waiters() {
    let Some(server) = RedisServer::start_or_skip("costs") else { return };
    let clients = connect_many::<2>(&server).await;
    // The server learns the scripts.
    cost_of(&server, &clients, 2).await;
    let few = cost_of(&server, &clients, 10).await;
    let many = cost_of(&server, &clients, 1000).await;
    for cost in [&few, &many] {
        let (operations, commands) = (cost.operations, cost.client_commands);
        assert!((2.0..2.05).contains(&operations), "{operations} operations per acquisition");
        assert!(commands < 2.05, "{commands} client commands per acquisition");
    }
    let (few, many) = (few.all_commands, many.all_commands);
    assert!(many <= few * 1.1, "{few} commands per hand-over among 10 waiters, {many} among 1000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncontended_lock_and_release_are_two_commands() {
    let Some(server) = RedisServer::start_or_skip("costs") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    mutex.lock().await.expect("free").release().await.expect("held to the end");
    raw.send(&["CONFIG", "RESETSTAT"]);
    mutex.lock().await.expect("free").release().await.expect("held to the end");
    let calls = raw.info_commandstats();
    assert_eq!(calls.get("evalsha"), Some(&2), "{calls:?}");
    assert!(!calls.contains_key("eval"), "{calls:?}");
    assert!(!calls.contains_key("publish"), "{calls:?}");
    assert!(all_commands(&calls) <= 10, "{calls:?}");
}

// Keeping leases

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_kept_for_many_times_its_length() {
    let Some(server) = RedisServer::start_or_skip("renewal") else { return };
    let [one, two] = connect_many(&server).await;
    let guard = mutex_with(&one, options().ttl(SECOND)).lock().await.expect("free");
    let (begun, mut raw, id) = (Instant::now(), server.raw(), server.raw().get(KEY));
    let (mut refreshed, mut last) = (0, i64::MAX);
    eventually(SECOND * 10, || {
        let rest = raw.pttl(KEY);
        assert!((1..=1000).contains(&rest), "{rest} ms left after {:?}", begun.elapsed());
        assert!(guard.is_held(), "lost after {:?}", begun.elapsed());
        refreshed += u32::from(rest > last);
        last = rest;
        ready(begun.elapsed() >= SECOND * 5)
    })
    .await;
    assert!(refreshed >= 5, "refreshed {refreshed} times");
    assert_eq!(raw.get(KEY), id);
    assert!(mutex_of(&two).try_lock().await.expect("answered").is_none());
    guard.release().await.expect("held to the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_leases_of_one_client_are_all_kept() {
    const LEASES: usize = 500;
    let Some(server) = RedisServer::start_or_skip("renewal") else { return };
    let client = connect(&server).await;
    let options = options().ttl(ms(3000));
    let guards = join_all((0..LEASES).map(|i| {
        let mutex = client.mutex_with(&format!("machine:{i}"), options.clone()).expect("valid");
        async move { mutex.lock().await.expect("free") }
    }))
    .await;
    assert_pending(ms(7000), select_all(guards.iter().map(|guard| Box::pin(guard.lost())))).await;
    assert!(guards.iter().all(Guard::is_held));
    assert_eq!(server.raw().keys("lock:machine:*").len(), LEASES);
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released.expect("held to the end");
    }
    assert_only_fences(&mut server.raw());
}

// Refusals

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_arguments_are_reported_and_send_nothing() {
    let Some(server) = RedisServer::start_or_skip("arguments") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    raw.send(&["CONFIG", "RESETSTAT"]);
    let argument = |outcome: Result<DistMutex, Error>| match outcome {
        Err(Error::InvalidArgument { argument, .. }) => argument,
        other => panic!("expected a refusal, got {other:?}"),
    };
    let lease = |lease: Duration| options().ttl(lease);
    assert_eq!(argument(client.mutex("")), "name");
    assert_eq!(argument(client.mutex(&"n".repeat(MAX_NAME_BYTES + 1))), "name");
    assert_eq!(argument(client.mutex_with(NAME, lease(ms(99)))), "ttl");
    assert_eq!(argument(client.mutex_with(NAME, lease(SECOND).renewal_period(SECOND))), "renewal period");
    assert_eq!(argument(client.mutex_with(NAME, lease(SECOND).renewal_period(SECOND * 2))), "renewal period");
    assert_eq!(raw.keys("*"), Vec::<String>::new());
    assert_eq!(scripts_called(&raw.info_commandstats()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urls_that_name_no_server_are_refused_without_their_password() {
    for url in
        ["", "redis", "http://:hunter2@h", "redis://:hunter2@", "redis://:hunter2@h:99999", "redis://h/x"]
    {
        let error = Client::connect(url).await.expect_err(url);
        assert!(matches!(error, Error::InvalidArgument { argument: "url", .. }), "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    }
    for url in ["rediss://:hunter2@h", "rediss-cluster://:hunter2@h", "rediss-sentinel://:hunter2@h/s"] {
        let error = Client::connect(url).await.expect_err(url);
        let has_tls = cfg!(any(feature = "rustls", feature = "native-tls"));
        let is_expected = match &error {
            Error::Unsupported { reason, .. } => !has_tls && reason.contains("`rustls`"),
            error => has_tls && matches!(error, Error::StoreUnavailable { .. }),
        };
        assert!(is_expected, "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
    }
}

/// The error of a connection that cannot be made, and how long it took.
async fn unreachable(port: u16) -> (String, Duration) {
    let begun = Instant::now();
    let url = format!("redis://:hunter2@127.0.0.1:{port}");
    let error = within(SECOND * 20, Client::connect(&url)).await.expect_err("nobody is there");
    let text = error.to_string();
    assert!(matches!(error, Error::StoreUnavailable { operation: "connect", .. }), "{error:?}");
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    (text, begun.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_nobody_listens_on_is_reported_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("a listener has an address").port();
    drop(listener);
    let (error, elapsed) = unreachable(port).await;
    assert!(elapsed < SECOND, "after {elapsed:?}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_answers_is_reported_within_the_connect_timeout() {
    // Connections are accepted by the system, and nobody reads them.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("a listener has an address").port();
    let (error, elapsed) = unreachable(port).await;
    assert!((ms(1900)..ms(3500)).contains(&elapsed), "after {elapsed:?}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_refused_and_not_repeated() {
    let Some(server) = RedisServer::start_or_skip("passwords") else { return };
    let mut raw = server.raw();
    let before = connections(&mut raw);
    assert_eq!(raw.send(&["CONFIG", "SET", "requirepass", "swordfish"]), Reply::ok());
    for url in ["redis://:hunter2@", "redis://default:hunter2@", "redis://nobody:hunter2@", "redis://"] {
        let url = format!("{url}127.0.0.1:{}", server.port());
        let error = within(SOON, Client::connect(&url)).await.expect_err("refused");
        assert!(matches!(error, Error::StoreRefused { operation: "connect", .. }), "{url}: {error:?}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{}", server.port())), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let client = Client::connect(&format!("redis://:swordfish@127.0.0.1:{}", server.port())).await;
    let client = client.expect("the right password");
    assert!(!format!("{client:?}").contains("swordfish"));
    assert!(mutex_of(&client).try_lock().await.expect("answered").is_some());
    client.shutdown().await.expect("drained");
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
    assert_only_fences(&mut raw);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_channel_permissions_are_reported() {
    let Some(server) = RedisServer::start_or_skip("users") else { return };
    let mut raw = server.raw();
    let before = connections(&mut raw);
    let user = |name: &str| format!("redis://{name}:pw@127.0.0.1:{}", server.port());
    raw.send(&["ACL", "SETUSER", "no-channels", "on", ">pw", "~*", "+@all", "resetchannels"]);
    // More than once: the server's answer may find the client at one step or the next.
    for _ in 0..20 {
        let error = refusal(within(SOON, Client::connect(&user("no-channels"))).await);
        assert!(error.contains("leasehold:*"), "{error}");
    }
    eventually(SOON, || ready(connections(&mut raw) == before)).await;
    assert_eq!(raw.keys("*"), Vec::<String>::new());

    raw.send(&["ACL", "SETUSER", "subscriber", "on", ">pw", "+@all", "resetchannels", "&leasehold:*"]);
    raw.send(&["ACL", "SETUSER", "subscriber", "~lock:*", "~{lock:*"]);
    let client = Client::connect(&user("subscriber")).await.expect("it may subscribe");
    let guard = mutex_of(&client).lock().await.expect("free");
    let waiter = waiter(&queued_mutex(&client));
    waiting(&mutex_of(&client), 1).await;
    guard.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
    let elsewhere = client.mutex_with(NAME, options().prefix("private:")).expect("valid");
    let error = refusal(elsewhere.try_lock().await);
    assert!(error.contains("NOPERM") && error.contains(NAME), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn something_else_under_a_key_of_ours_is_refused_and_left_alone() {
    let Some(server) = RedisServer::start_or_skip("wrong types") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    for key in [KEY, QUEUE, FENCE] {
        raw.send(&["LPUSH", key, "x"]);
        for error in [
            refusal(within(SOON, mutex.try_lock()).await),
            refusal(within(SOON, mutex.lock()).await),
            refusal(within(SOON, mutex.lock_timeout(SOON)).await),
        ] {
            assert!(error.contains("WRONGTYPE") && error.contains(NAME), "{key}: {error}");
        }
        // The fence is that of all names of its prefix.
        if key != FENCE {
            let other = client.mutex_with("machine:43", options()).expect("valid");
            let other = other.lock().await.expect("other names are unharmed");
            other.release().await.expect("held to the end");
            raw.send(&["DEL", FENCE]);
        }
        // The refused requests have been released as well.
        eventually(SOON, || ready(raw.keys("*") == [key])).await;
        assert_eq!(raw.send(&["LRANGE", key, "0", "-1"]), Reply::Array(vec![Reply::bulk("x")]));
        raw.send(&["DEL", key]);
        mutex.lock().await.expect("works again").release().await.expect("held to the end");
        raw.send(&["DEL", FENCE]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_refuses_new_locks_and_still_renews_and_hands_over() {
    let Some(server) = RedisServer::start_or_skip("a full store") else { return };
    let [one, two] = connect_many(&server).await;
    let mut raw = server.raw();
    let guard = attentive(&one).lock().await.expect("free");
    let waiter = waiter(&mutex_of(&two));
    waiting(&mutex_of(&two), 1).await;
    assert_eq!(raw.send(&["CONFIG", "SET", "maxmemory", "1"]), Reply::ok());
    let other = two.mutex_with("machine:43", options()).expect("valid");
    let (trying, locking, joining) = tokio::join!(
        within(SOON * 2, other.try_lock()),
        within(SOON * 2, other.lock_timeout(ms(400))),
        within(SOON * 2, async { mutex_of(&one).lock_timeout(ms(400)).await }),
    );
    for error in
        [trying.map(drop), locking.map(drop), joining.map(drop)].map(|result| result.expect_err("no memory"))
    {
        let is_unavailable = matches!(error, Error::StoreUnavailable { .. });
        assert!(is_unavailable && error.to_string().contains("OOM"), "{error}");
    }
    assert_pending(ms(200), guard.lost()).await;
    guard.release().await.expect("held to the end");
    let next = granted(waiter).await;
    assert_eq!(holder_id(&mutex_of(&one)).await, raw.get(KEY).map(|value| lease_in(&value)));
    next.release().await.expect("held to the end");
    assert_eq!(raw.keys("*"), [FENCE]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_unreachable_waiters_are_looked_at_only_once() {
    const TURNS: u64 = 50;
    let Some(server) = RedisServer::start_or_skip("silent waiters") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = queued_mutex(&client);
    let mut costs = Vec::new();
    for silent in [0, 1000] {
        let mut guard = mutex.lock().await.expect("free");
        queue_up_and_die(&mut raw, silent);
        // The first hand-over meets them all, the others none.
        guard = handed_over(&mutex, guard, &mut raw, silent).await;
        let before = work(&mut raw);
        for _ in 0..TURNS {
            guard = handed_over(&mutex, guard, &mut raw, silent).await;
        }
        costs.push(work(&mut raw) - before);
        guard.release().await.expect("held");
    }
    assert!(costs[1] <= costs[0] + TURNS, "{costs:?} commands for {TURNS} hand-overs, without and with them");
}

/// As `n` tasks of a process that is killed: for half a minute they count as alive, but nobody receives their events.
fn queue_up_and_die(raw: &mut Raw, n: i64) {
    let (client, alive_until) = (uuid::Uuid::new_v4(), raw.now_us() / 1000 + 30_000);
    for ticket in 1..=n {
        let (id, ticket) = (format!("{client}.{ticket}"), format!("{ticket:016}"));
        raw.send(&["HSET", "{lock:machine:42}:waiters", &id, &format!("{ticket} 30000 {alive_until} 1")]);
        raw.send(&["ZADD", QUEUE, "1", &format!("{ticket} {id}")]);
    }
}

async fn handed_over(mutex: &DistMutex, guard: Guard, raw: &mut Raw, others: i64) -> Guard {
    let next = waiter(mutex);
    eventually(SOON, || std::future::ready(raw.send(&["ZCARD", QUEUE]).int() > others)).await;
    guard.release().await.expect("held");
    granted(next).await
}

/// Everything the server did but for what this test looks up.
fn work(raw: &mut Raw) -> u64 {
    let mut calls = raw.info_commandstats();
    calls.remove("zcard");
    all_commands(&calls)
}
