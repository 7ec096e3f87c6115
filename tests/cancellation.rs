//! What is left when futures, guards, runtimes and clients are dropped at every point: nothing.
#![cfg(feature = "_redis")]

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, poll};
use leasehold::redis::RedisBackend;
use leasehold::{Client, Error, LossReason};
use leasehold_support::locks::*;
use leasehold_support::{Direction, Proxy, RedisServer, begun, eventually, local_handover, within};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep_until, timeout};

/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(31);
/// More polls than any request takes.
const MANY: usize = 100;

struct Fixture {
    one: Client,
    other: Client,
    server: RedisServer,
}

impl Fixture {
    async fn set_up(left_out: &str) -> Option<Self> {
        let server = RedisServer::start_or_skip(left_out)?;
        let (one, other) = (connect(&server.url()).await, connect(&server.url()).await);
        warm_up(&server, &one).await;
        Some(Self { one, other, server })
    }

    /// Both clients get the lock at once, and nothing is left of whatever came before.
    async fn assert_clean(&self) {
        for client in [&self.other, &self.one] {
            let guard = mutex(client, LONG).lock_timeout(SECOND).await.expect("free within a second");
            guard.release().await.expect("held");
        }
        nothing_left(&self.server, SECOND).await;
    }
}

// Futures dropped at every await point

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_dropped_after_any_poll_on_a_free_lock_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("dropped requests on a free lock").await else { return };
    for polls in 0..MANY {
        let locked = polled(mutex(&fixture.one, LONG).lock(), polls).await;
        let done = locked.is_some();
        drop(locked);
        fixture.assert_clean().await;
        if done {
            return;
        }
    }
    panic!("not done after {MANY} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_lock_dropped_after_any_poll_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("dropped attempts").await else { return };
    for polls in 0..MANY {
        let locked = polled(mutex(&fixture.one, LONG).try_lock(), polls).await;
        let done = locked.is_some();
        drop(locked);
        fixture.assert_clean().await;
        if done {
            return;
        }
    }
    panic!("not done after {MANY} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_dropped_after_any_poll_on_a_held_lock_leaves_its_place() {
    let Some(fixture) = Fixture::set_up("dropped waiters").await else { return };
    let guard = mutex(&fixture.other, LONG).lock().await.expect("free");
    for polls in 0..MANY {
        // The last polls come with a wake-up that never comes: then it waits in the queue.
        let waiting = timeout(ms(50), polled(mutex(&fixture.one, LONG).lock(), polls)).await;
        assert!(!matches!(waiting, Ok(Some(_))), "the lock is held");
        queued(&fixture.server, 0).await;
        if waiting.is_err() {
            guard.release().await.expect("held to the end");
            fixture.assert_clean().await;
            return;
        }
    }
    panic!("not waiting after {MANY} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_dropped_after_any_poll_while_it_is_granted_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("dropped while granted").await else { return };
    for polls in 0..MANY {
        let guard = mutex(&fixture.other, LONG).lock().await.expect("free");
        let mutex = mutex(&fixture.one, LONG);
        let mut waiter = mutex.lock().boxed();
        drive_until(waiter.as_mut(), queued(&fixture.server, 1)).await;
        guard.release().await.expect("held");
        let locked = polled(waiter, polls).await;
        let done = locked.is_some();
        drop(locked);
        fixture.assert_clean().await;
        if done {
            return;
        }
    }
    panic!("not granted after {MANY} polls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_to_a_dropped_request_passes_to_the_next_waiter_at_once() {
    let Some(fixture) = Fixture::set_up("a grant to nobody").await else { return };
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let guard = mutex(&fixture.other, LONG).lock().await.expect("free");
        let (first, next) = (mutex(&fixture.one, LONG), queued_mutex(&fixture.other, LONG));
        let mut first = first.lock().boxed();
        drive_until(first.as_mut(), queued(&fixture.server, 1)).await;
        let next = tokio::spawn(async move { next.lock().await });
        queued(&fixture.server, 2).await;
        // Granted in the store, and not polled since: the push arrives at a future that will be dropped.
        guard.release().await.expect("held");
        let dropped = Instant::now();
        drop(first);
        let guard = within(SOON, next).await.expect("no panic").expect("granted");
        slowest = slowest.max(dropped.elapsed());
        guard.release().await.expect("held to the end");
    }
    assert!(slowest < ms(100) + SLACK / 2, "{slowest:?}");
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_dropped_right_after_it_was_sent_is_released_when_granted() {
    let Some(fixture) = Fixture::set_up("a grant after the drop").await else { return };
    for _ in 0..100 {
        // The first poll sends; the answer is under way when the future is dropped.
        drop(polled(mutex(&fixture.one, LONG).lock(), 1).await);
        drop(polled(mutex(&fixture.other, LONG).lock(), 1).await);
    }
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_that_races_the_grant_leaves_nothing_in_a_thousand_rounds() {
    const LANES: u64 = 4;
    const ROUNDS: u64 = 250;
    let Some(fixture) = Fixture::set_up("timeouts that race the grant").await else { return };
    let lanes = (0..LANES).map(|lane| {
        let name = format!("machine:{lane}");
        let (one, other) = (named(&fixture.one, &name, LONG), named(&fixture.other, &name, LONG));
        async move {
            let mut won = 0;
            for round in 0..ROUNDS {
                let guard = within(SECOND, other.lock()).await.expect("granted");
                let limit = Instant::now() + ms(8);
                // From 5 ms before the limit to 5 ms after it, in steps of 40 us.
                let release_at = limit - ms(5) + Duration::from_micros(10_000 * round / ROUNDS);
                let release = async {
                    sleep_until(release_at - ms(1)).await;
                    while Instant::now() < release_at {
                        tokio::task::yield_now().await;
                    }
                    guard.release().await.expect("held");
                };
                let (locked, ()) = tokio::join!(tokio::time::timeout_at(limit, one.lock()), release);
                if let Ok(locked) = locked {
                    locked.expect("granted").release().await.expect("held to the end");
                    won += 1;
                }
            }
            won
        }
    });
    let won: u64 = join_all(lanes).await.into_iter().sum();
    assert!(won > 0 && won < LANES * ROUNDS, "a race that both sides win now and then: {won}");
    nothing_left(&fixture.server, SECOND).await;
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_timeout_that_races_the_grant_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("limits that race the grant").await else { return };
    let (one, other) = (mutex(&fixture.one, LONG), mutex(&fixture.other, LONG));
    for round in 0..200 {
        let guard = other.lock_timeout(SECOND).await.expect("free");
        let release_at = Instant::now() + ms(3) + Duration::from_micros(50 * (round % 100));
        let release = async {
            sleep_until(release_at).await;
            guard.release().await.expect("held");
        };
        let (locked, ()) = tokio::join!(one.lock_timeout(ms(6)), release);
        match locked {
            Ok(guard) => guard.release().await.expect("held to the end"),
            Err(error) => assert!(matches!(error, Error::TimedOut { .. }), "{error:?}"),
        }
    }
    fixture.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_dropped_after_any_poll_still_releases() {
    let Some(fixture) = Fixture::set_up("dropped releases").await else { return };
    for polls in 0..MANY {
        let guard = mutex(&fixture.one, LONG).lock_timeout(SECOND).await.expect("free");
        let released = polled(guard.release(), polls).await;
        fixture.assert_clean().await;
        if let Some(released) = released {
            released.expect("held to the end");
            return;
        }
    }
    panic!("not released after {MANY} polls");
}

// Guards and runtimes

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts")
}

/// Waits on a runtime of its own, so that the one under test may be gone.
fn wait<F: Future>(future: F) -> F::Output {
    Builder::new_current_thread().enable_all().build().expect("a runtime starts").block_on(future)
}

#[test]
fn a_guard_dropped_outside_any_runtime_is_released() {
    let Some(server) = RedisServer::start_or_skip("a drop outside any runtime") else { return };
    let runtime = runtime();
    let client = runtime.block_on(connect(&server.url()));
    let guard = runtime.block_on(mutex(&client, LONG).lock()).expect("free");
    assert!(server.raw().get(KEY).is_some());
    drop(guard);
    wait(async { nothing_left(&server, SECOND + SLACK).await });
}

#[test]
fn a_guard_dropped_by_a_panic_is_released() {
    let Some(server) = RedisServer::start_or_skip("a panic") else { return };
    let runtime = runtime();
    let client = runtime.block_on(connect(&server.url()));
    let guard = runtime.block_on(mutex(&client, LONG).lock()).expect("free");
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    wait(async { nothing_left(&server, SECOND + SLACK).await });
    let mutex = mutex(&client, LONG);
    let task = runtime.spawn(async move {
        let _guard = mutex.lock().await.expect("free");
        panic!("on purpose");
    });
    assert!(runtime.block_on(task).is_err_and(|error| error.is_panic()));
    wait(async { nothing_left(&server, SECOND + SLACK).await });
}

/// `n` requests, all begun, wait for a lock that their own client holds. With hand-over the store hears nothing of
/// them.
async fn wait_behind_its_own_client(server: &RedisServer, n: i64) {
    queued(server, if local_handover() { 0 } else { n }).await;
}

/// Holds and waits in tasks of a runtime that then ends in the given way.
fn nothing_outlives_a_runtime(end: impl FnOnce(Runtime)) {
    let Some(server) = RedisServer::start_or_skip("the end of a runtime") else { return };
    let lease = SECOND;
    let dying = runtime();
    let client = dying.block_on(connect(&server.url()));
    let outside = dying.block_on(named(&client, "outside", lease).lock()).expect("free");
    for _ in 0..2 {
        let mutex = mutex(&client, lease);
        dying.block_on(begun(async move {
            let _guard = mutex.lock().await;
            std::future::pending::<()>().await;
        }));
    }
    wait(async {
        let mut raw = server.raw();
        eventually(SOON, || std::future::ready(raw.get(KEY).is_some())).await;
        wait_behind_its_own_client(&server, 1).await;
    });
    let start = Instant::now();
    end(dying);
    assert!(start.elapsed() < SOON, "no hang");
    drop(outside);
    drop(client);
    // As another client sees it: both are free within a lease.
    wait(async {
        let other = connect(&server.url()).await;
        for name in [NAME, "outside"] {
            let guard =
                named(&other, name, lease).lock_timeout(lease + SLACK).await.expect("free within a lease");
            guard.release().await.expect("held");
        }
        nothing_left(&server, 2 * lease + SLACK).await;
        other.shutdown().await.expect("drained");
    });
    let mut raw = server.raw();
    wait(disconnected(&mut raw));
}

#[test]
fn a_runtime_that_is_dropped_takes_its_leases_and_connections_with_it() {
    nothing_outlives_a_runtime(drop);
}

#[test]
fn a_runtime_that_is_shut_down_in_the_background_takes_its_leases_and_connections_with_it() {
    nothing_outlives_a_runtime(Runtime::shutdown_background);
}

#[test]
fn a_guard_that_outlives_its_runtime_is_renewed_and_released_from_the_next_one() {
    let Some(server) = RedisServer::start_or_skip("a guard without its runtime") else { return };
    let dying = runtime();
    let client = dying.block_on(connect(&server.url()));
    let guard = dying.block_on(mutex(&client, SECOND).lock()).expect("free");
    drop(dying);
    thread::sleep(2 * SECOND);
    assert!(guard.is_held(), "renewed by the crate's own thread");
    wait(async {
        guard.release().await.expect("held to the end");
        nothing_left(&server, SLACK).await;
        client.shutdown().await.expect("drained");
    });
}

/// Blocks its runtime for a while, as a computation in an async fn does.
fn block_the_runtime(duration: Duration) {
    thread::sleep(duration);
}

#[tokio::test(flavor = "current_thread")]
async fn a_runtime_blocked_for_one_and_a_half_renewal_periods_loses_nothing() {
    let Some(server) = RedisServer::start_or_skip("a blocked runtime") else { return };
    let lease = 3 * SECOND;
    let client = connect(&server.url()).await;
    let guard = mutex(&client, lease).lock().await.expect("free");
    let holder = server.raw().get(KEY);
    for _ in 0..3 {
        let ends = deadline(&guard);
        block_the_runtime(lease / 3 * 3 / 2);
        assert!(Instant::now() < ends && guard.is_held());
        // The renewal that is overdue is the first thing that happens.
        eventually(SLACK, || std::future::ready(guard.remaining() > lease * 3 / 4)).await;
    }
    assert_eq!(server.raw().get(KEY), holder);
    guard.release().await.expect("held to the end");
}

#[tokio::test(flavor = "current_thread")]
async fn a_runtime_blocked_for_longer_than_the_lease_keeps_it() {
    let Some(server) = RedisServer::start_or_skip("a runtime blocked for long") else { return };
    let lease = SECOND;
    let client = connect(&server.url()).await;
    let guard = mutex(&client, lease).lock().await.expect("free");
    // Somebody else asks for it meanwhile, with a runtime of its own.
    let url = server.url();
    let next = thread::spawn(move || {
        wait(async {
            let client = connect(&url).await;
            let outcome = mutex(&client, lease).lock_timeout(lease * 2).await.map(drop);
            client.shutdown().await.expect("drained");
            outcome
        })
    });
    queued(&server, 1).await;
    block_the_runtime(lease * 5 / 2);
    assert!(guard.is_held());
    let outcome = next.join().expect("no panic");
    assert!(
        matches!(outcome, Err(leasehold::Error::TimedOut { .. })),
        "let in beside the holder: {outcome:?}"
    );
    guard.release().await.expect("held to the end");
    nothing_left(&server, lease + SLACK).await;
}

#[test]
fn a_forgotten_guard_is_freed_when_its_client_is_shut_down() {
    let Some(server) = RedisServer::start_or_skip("a forgotten guard") else { return };
    let lease = SECOND;
    let dying = runtime();
    let client = dying.block_on(connect(&server.url()));
    mem::forget(dying.block_on(mutex(&client, lease).lock()).expect("free"));
    let mut raw = server.raw();
    // Renewed for as long as its process lives, whatever becomes of its runtime.
    drop(dying);
    let held = wait(async {
        let freed = eventually(LONG, || std::future::ready(raw.get(KEY).is_none()));
        timeout(2 * lease, freed).await
    });
    assert!(held.is_err(), "given up while its client lived");
    wait(client.shutdown()).expect("drained");
    assert_eq!(left(&mut raw), Vec::<String>::new());
}

// Clients

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_guards_and_waiters_and_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("shutdown") else { return };
    let client = connect(&server.url()).await;
    let guard = mutex(&client, LONG).lock().await.expect("free");
    let mut others = Vec::new();
    for n in 0..50 {
        others.push(named(&client, &format!("other:{n}"), LONG).lock().await.expect("free"));
    }
    let mut waiters = Vec::new();
    for n in 1..=20 {
        let mutex = mutex(&client, LONG);
        waiters.push(begun(async move { mutex.lock().await }).await);
        wait_behind_its_own_client(&server, n).await;
    }
    client.shutdown().await.expect("drained");
    let mut raw = server.raw();
    assert_eq!(left(&mut raw), Vec::<String>::new());
    disconnected(&mut raw).await;
    for waiter in waiters {
        let outcome = within(SOON, waiter).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::Closed { .. })), "{outcome:?}");
    }
    assert_eq!(guard.lost().await, LossReason::ClientClosed);
    assert!(others.iter().all(|guard| !guard.is_held()));
    assert!(matches!(mutex(&client, LONG).lock().await, Err(Error::Closed { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_everything_without_a_shutdown_releases_and_disconnects() {
    let Some(server) = RedisServer::start_or_skip("a client that is dropped") else { return };
    let mut raw = server.raw();
    for _ in 0..5 {
        let client = connect(&server.url()).await;
        let mut guards = vec![mutex(&client, LONG).lock().await.expect("free")];
        for n in 0..20 {
            guards.push(named(&client, &format!("other:{n}"), LONG).lock().await.expect("free"));
        }
        let mut waiter = {
            let mutex = mutex(&client, LONG);
            async move { mutex.lock().await }.boxed()
        };
        assert!(poll!(waiter.as_mut()).is_pending());
        drive_until(waiter.as_mut(), wait_behind_its_own_client(&server, 1)).await;
        drop((client, guards, waiter));
        nothing_left(&server, SECOND).await;
        disconnected(&mut raw).await;
    }
}

/// With time to connect: a machine that is busy with other tests may be slow.
async fn sixty(url: &str) -> Vec<Client> {
    let patient = RedisBackend::builder(url).expect("a URL").connect_timeout(2 * SOON);
    join_all((0..60).map(async |_| {
        let backend = patient.clone().connect().await.expect("the server answers");
        Client::with_backend(Arc::new(backend))
    }))
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_dropped_at_once_all_disconnect() {
    let Some(server) = RedisServer::start_or_skip("many clients that are dropped") else { return };
    let (mut raw, url) = (server.raw(), server.url());
    let clients = sixty(&url).await;
    let guards = join_all(clients.iter().enumerate().map(|(n, client)| async move {
        named(client, &format!("other:{n}"), LONG).lock().await.expect("free")
    }))
    .await;
    drop((clients, guards));
    nothing_left(&server, SOON).await;
    disconnected(&mut raw).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_shut_down_at_once_all_disconnect() {
    let Some(server) = RedisServer::start_or_skip("many clients that are shut down") else { return };
    let (mut raw, url) = (server.raw(), server.url());
    let clients = sixty(&url).await;
    for outcome in join_all(clients.iter().map(Client::shutdown)).await {
        outcome.expect("drained");
    }
    disconnected(&mut raw).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_into_a_black_hole_returns_and_leaves_no_connection() {
    let Some(server) = RedisServer::start_or_skip("shutdown in a black hole") else { return };
    // Longer than a shutdown waits for the store.
    let lease = 8 * SECOND;
    for direction in [Direction::ToClient, Direction::Both] {
        let proxy = Proxy::start(server.port()).await;
        let client = connect(&proxy.url()).await;
        let guard = mutex(&client, lease).lock().await.expect("free");
        proxy.hold(direction);
        let outcome = within(3 * SOON, client.shutdown()).await;
        assert!(matches!(outcome, Err(Error::StoreUnavailable { .. })), "{outcome:?}");
        assert!(!guard.is_held());
        proxy.resume();
        nothing_left(&server, lease + SLACK).await;
        eventually(SOON, || std::future::ready(proxy.open() == 0)).await;
        disconnected(&mut server.raw()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connects_dropped_halfway_leave_no_connection() {
    let Some(server) = RedisServer::start_or_skip("dropped connects") else { return };
    let (mut raw, url) = (server.raw(), server.url());
    join_all((0..120).map(|n| polled(Client::connect(&url), n % 8))).await;
    disconnected(&mut raw).await;
}

#[test]
fn dropping_everything_outside_any_runtime_releases_and_disconnects() {
    let Some(server) = RedisServer::start_or_skip("a client that is dropped outside") else { return };
    let runtime = runtime();
    let mut raw = server.raw();
    let client = runtime.block_on(connect(&server.url()));
    let guard = runtime.block_on(mutex(&client, LONG).lock()).expect("free");
    drop((client, guard));
    wait(async { nothing_left(&server, SECOND + SLACK).await });
    wait(disconnected(&mut raw));
    // A client that never asked for anything has no task that could see it go.
    let idle = runtime.block_on(connect(&server.url()));
    drop(idle);
    wait(disconnected(&mut raw));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_that_is_dropped_leaves_no_connection() {
    let Some(server) = RedisServer::start_or_skip("dropped connects") else { return };
    let mut raw = server.raw();
    let url = server.url();
    for polls in 0..MANY {
        let connected = polled(Client::connect(&url), polls).await;
        let done = connected.is_some();
        drop(connected);
        disconnected(&mut raw).await;
        if done {
            return;
        }
    }
    panic!("not connected after {MANY} polls");
}
