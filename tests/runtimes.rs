//! Leases are kept whatever the threads of the application do, and a client goes on working after a runtime has ended.
#![cfg(feature = "_redis")]

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use leasehold::redis::RedisBackend;
use leasehold::{Client, Guard, MutexOptions};
use leasehold_support::locks::*;
use leasehold_support::{Direction, Proxy, RedisServer, Worker, eventually, say, within, worker_args};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

fn several_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A section that blocks its thread for two and a half leases keeps its lease, and keeps others out.
async fn blocks(server: &RedisServer, block: impl AsyncFnOnce()) {
    let client = connect(&server.url()).await;
    let mutex = client.mutex_with("blocked", MutexOptions::new().ttl(SECOND)).expect("valid");
    let guard = mutex.lock().await.expect("free");
    block().await;
    assert!(guard.is_held(), "lost");
    guard.release().await.expect("held to the end");
    client.shutdown().await.expect("drained");
}

const BLOCKED: Duration = Duration::from_millis(2_500);

#[test]
fn a_section_that_blocks_its_thread_keeps_its_lease() {
    let Some(server) = RedisServer::start_or_skip("blocked threads") else { return };
    for runtime in [several_threads(), one_thread()] {
        runtime.block_on(async {
            // In the main task, and in a spawned one.
            blocks(&server, async || thread::sleep(BLOCKED)).await;
            let url = server.url();
            let task = tokio::spawn(async move {
                let client = connect(&url).await;
                let mutex = client.mutex_with("spawned", MutexOptions::new().ttl(SECOND)).expect("valid");
                let guard = mutex.lock().await.expect("free");
                thread::sleep(BLOCKED);
                guard.release().await
            });
            task.await.expect("no panic").expect("held to the end");
        });
    }
    several_threads().block_on(async {
        blocks(&server, async || tokio::task::block_in_place(|| thread::sleep(BLOCKED))).await;
        blocks(&server, async || {
            tokio::task::spawn_blocking(|| thread::sleep(BLOCKED)).await.expect("no panic");
        })
        .await;
    });
}

#[test]
fn a_client_works_on_a_second_runtime_when_the_first_has_ended() {
    let Some(server) = RedisServer::start_or_skip("a second runtime") else { return };
    let (first, client) = {
        let runtime = several_threads();
        let client = runtime.block_on(connect(&server.url()));
        let mutex = client.mutex("shared").expect("valid");
        runtime.block_on(async { mutex.lock().await.expect("free").release().await.expect("held") });
        (runtime, client)
    };
    drop(first);
    for runtime in [one_thread(), several_threads()] {
        runtime.block_on(async {
            let mutex = client.mutex("shared").expect("valid");
            let guard = within(SECOND, mutex.lock()).await.expect("free");
            let next = tokio::spawn({
                let mutex = mutex.clone();
                async move { mutex.lock().await }
            });
            guard.release().await.expect("held");
            within(SOON, next).await.expect("no panic").expect("granted").release().await.expect("held");
        });
    }
    one_thread().block_on(async { client.shutdown().await.expect("drained") });
}

#[test]
fn a_guard_outlives_the_runtime_on_which_it_was_taken() {
    let Some(server) = RedisServer::start_or_skip("a guard without a runtime") else { return };
    let runtime = several_threads();
    let (client, guard): (Client, _) = runtime.block_on(async {
        let client = connect(&server.url()).await;
        let mutex = client.mutex_with("kept", MutexOptions::new().ttl(SECOND)).expect("valid");
        let guard = mutex.lock().await.expect("free");
        (client, guard)
    });
    drop(runtime);
    thread::sleep(BLOCKED);
    assert!(guard.is_held(), "renewed without any runtime of the application");
    one_thread().block_on(async {
        guard.release().await.expect("held to the end");
        client.shutdown().await.expect("drained");
    });
}

#[test]
fn a_guard_dropped_after_its_runtime_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("a guard dropped without a runtime") else { return };
    for runtime in [several_threads(), one_thread()] {
        let (client, [dropped, released]) = runtime.block_on(async {
            let client = connect(&server.url()).await;
            let lock = async |name| client.mutex(name).expect("valid").lock().await.expect("free");
            let guards = [lock("dropped").await, lock("released").await];
            (client, guards)
        });
        drop(runtime);
        drop(dropped);
        // If a timer is needed, that is a panic outside a runtime, and the guard is dropped.
        let outside = || futures::executor::block_on(released.release());
        if let Ok(released) = catch_unwind(AssertUnwindSafe(outside)) {
            released.expect("held to the end");
        }
        one_thread().block_on(async {
            let locks = ["lock:dropped", "lock:released"];
            eventually(SOON, || ready(locks.iter().all(|key| server.raw().get(key).is_none()))).await;
        });
        drop(client);
    }
}

#[test]
fn many_guards_dropped_after_their_runtime_wait_for_a_second_in_all() {
    const GUARDS: usize = 60;
    let Some(server) = RedisServer::start_or_skip("many guards without a runtime") else { return };
    let (runtime, other) = (one_thread(), several_threads());
    let proxy = other.block_on(Proxy::start(server.port()));
    let (client, guards) = runtime.block_on(async {
        let client = connect(&proxy.url()).await;
        let mut guards = Vec::new();
        for n in 0..GUARDS {
            guards.push(client.mutex(&format!("many:{n}")).expect("valid").lock().await.expect("free"));
        }
        (client, guards)
    });
    drop(runtime);
    // Fast enough to be waited for, but not sixty times.
    proxy.delay_replies(ms(50));
    let begin = Instant::now();
    drop(guards);
    let took = begin.elapsed();
    assert!(took > ms(100) && took < SECOND + ms(500), "{took:?}");
    eventually_only_the_fence(&other, &server);
    drop(client);
}

#[test]
fn a_store_that_was_connected_on_a_runtime_that_has_ended_is_used() {
    let Some(server) = RedisServer::start_or_skip("a store without a runtime") else { return };
    let runtime = one_thread();
    let backend = runtime.block_on(RedisBackend::connect(&server.url())).expect("it answers");
    drop(runtime);
    let client = Client::with_backend(std::sync::Arc::new(backend));
    let runtime = several_threads();
    runtime.block_on(async {
        let mutex = client.mutex("late").expect("valid");
        let guard = within(SOON, mutex.lock()).await.expect("free");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        drop(guard);
        drop(within(SOON, waiter).await.expect("no panic").expect("granted"));
    });
    leaves_nothing(&runtime, &client, &server);
}

#[test]
fn a_lazy_client_is_used_first_by_several_threads_at_the_same_time() {
    let Some(server) = RedisServer::start_or_skip("several first calls") else { return };
    for _ in 0..30 {
        let client = Client::connect_lazy(&server.url()).expect("valid");
        let begin = std::sync::Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let runtime = one_thread();
                    begin.wait();
                    runtime.block_on(async {
                        let guard = within(SOON, client.mutex("shared").expect("valid").lock())
                            .await
                            .expect("granted");
                        guard.release().await.expect("held");
                    });
                });
            }
        });
    }
}

/// A client that was connected and used on a runtime, which has other things to do from then on.
fn client_of(server: &RedisServer, runtime: &Runtime) -> Client {
    runtime.block_on(async {
        let client = connect(&server.url()).await;
        let mutex = client.mutex("warm").expect("valid");
        mutex.lock().await.expect("free").release().await.expect("held");
        client
    })
}

#[test]
fn waiters_go_on_when_the_runtime_on_which_their_client_was_used_first_ends() {
    let Some(server) = RedisServer::start_or_skip("the end of a client's first runtime") else { return };
    let (first, second) = (several_threads(), several_threads());
    let client = client_of(&server, &first);
    second.block_on(async {
        let other = connect(&server.url()).await;
        // Queued by itself, and in a group of its client.
        let semaphores = [&client, &other].map(|client| client.fair_semaphore("last", 1).expect("valid"));
        let mutexes = [&client, &other].map(|client| client.mutex("last").expect("valid"));
        let permit = semaphores[1].acquire().await.expect("free");
        let guard = mutexes[1].lock().await.expect("free");
        let [semaphore, _] = semaphores.clone();
        let for_permit = tokio::spawn(async move { semaphore.acquire().await });
        let waiters = [(); 3].map(|()| {
            let mutex = mutexes[0].clone();
            tokio::spawn(async move { mutex.lock().await?.release().await })
        });
        eventually(SOON, || async {
            let permits = semaphores[1].inspect().await.expect("inspected");
            let locks = mutexes[1].inspect().await.expect("inspected");
            permits.waiters.len() == 1 && locks.waiters.len() == 1
        })
        .await;
        first.shutdown_background();
        permit.release().await.expect("held");
        guard.release().await.expect("held");
        // Long before anything would be asked again by itself.
        within(SOON, for_permit).await.expect("no panic").expect("granted").release().await.expect("held");
        for waiter in waiters {
            within(SOON, waiter).await.expect("no panic").expect("granted, and held to the end");
        }
    });
}

fn leaves_nothing(runtime: &Runtime, client: &Client, server: &RedisServer) {
    runtime.block_on(async { client.shutdown().await.expect("drained") });
    assert_eq!(left(&mut server.raw()), Vec::<String>::new());
}

/// As with the tests of a program that have a client in a `static`, and a runtime each.
#[test]
fn a_client_is_shared_by_runtimes_that_come_and_go() {
    let Some(server) = RedisServer::start_or_skip("many runtimes") else { return };
    let client = client_of(&server, &one_thread());
    let end = Instant::now() + 5 * SECOND;
    let locked = AtomicUsize::new(0);
    thread::scope(|scope| {
        for n in 0..6 {
            let (client, locked) = (&client, &locked);
            scope.spawn(move || {
                let mut turn = n;
                while Instant::now() < end {
                    turn += 1;
                    let runtime = if turn % 2 == 0 { one_thread() } else { several_threads() };
                    runtime.block_on(async {
                        for hold in 0..1 + turn % 7 {
                            let mutex = client.mutex(&format!("test:{}", (turn + hold) % 3)).expect("valid");
                            let guard = within(SOON, mutex.lock()).await.expect("granted");
                            locked.fetch_add(1, Ordering::Relaxed);
                            if hold % 2 == 0 { drop(guard) } else { guard.release().await.expect("held") }
                        }
                    });
                }
            });
        }
    });
    println!("locked {} times", locked.into_inner());
    leaves_nothing(&one_thread(), &client, &server);
}

/// A current-thread runtime outside `block_on`.
#[test]
fn a_client_is_used_although_the_runtime_on_which_it_was_used_first_is_not_driven() {
    let Some(server) = RedisServer::start_or_skip("a runtime that is not driven") else { return };
    let first = one_thread();
    let client = client_of(&server, &first);
    let second = several_threads();
    second.block_on(async {
        let mutex = client.mutex("moved").expect("valid");
        // Two seconds until the call is known to be unanswered.
        let guard = within(SOON + SLACK, mutex.lock()).await.expect("free");
        guard.release().await.expect("held");
        let guard = within(SECOND, mutex.lock()).await.expect("free");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        guard.release().await.expect("held");
        let guard = within(SECOND, waiter).await.expect("no panic").expect("granted");
        // Those that send releases and repeat requests on the first runtime still wait for something to do.
        let other = connect(&server.url()).await.mutex("moved").expect("valid");
        drop(guard);
        let guard = within(SECOND, other.lock()).await.expect("granted");
        let waiters = [(); 2].map(|()| {
            let mutex = client.mutex("moved").expect("valid");
            tokio::spawn(async move { mutex.lock().await?.release().await })
        });
        eventually(SOON, || async { other.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) }).await;
        drop(guard);
        for waiter in waiters {
            within(SECOND, waiter).await.expect("no panic").expect("granted, and held to the end");
        }
    });
    // What it has begun changes nothing.
    first.block_on(tokio::task::yield_now());
    drop(first);
    second.block_on(async {
        let mutex = client.mutex("moved").expect("valid");
        within(SECOND, mutex.lock()).await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("drained");
    });
    assert_eq!(server.raw().keys("*"), [FENCE]);
}

/// Drives a runtime on a thread of its own until this is dropped.
struct Driven {
    _until: tokio::sync::oneshot::Sender<()>,
}

impl Driven {
    /// Whoever drops this must wait for the thread, which returns the runtime.
    fn start(runtime: Runtime) -> (Self, thread::JoinHandle<Runtime>) {
        let (until, stopped) = tokio::sync::oneshot::channel();
        let thread = thread::spawn(move || {
            // An error, because the other side is dropped.
            let _ = runtime.block_on(stopped);
            runtime
        });
        (Self { _until: until }, thread)
    }
}

#[test]
fn a_release_in_flight_on_a_runtime_that_is_no_longer_driven_is_repeated() {
    let Some(server) = RedisServer::start_or_skip("a release in flight") else { return };
    let (first, second) = (one_thread(), several_threads());
    let proxy = second.block_on(Proxy::start(server.port()));
    let client = first.block_on(connect(&proxy.url()));
    let mutex = client.mutex("left").expect("valid");
    let guard = first.block_on(async { mutex.lock().await.expect("free") });
    proxy.hold(Direction::ToServer);
    // It is sent, and gets lost.
    first.block_on(async {
        drop(guard);
        tokio::time::sleep(ms(50)).await;
    });
    proxy.cut();
    proxy.resume();
    second.block_on(async {
        let waiter = tokio::spawn(async move { mutex.lock().await });
        let guard = within(SOON + SLACK, waiter).await.expect("no panic").expect("released");
        guard.release().await.expect("held");
    });
    drop(first);
    leaves_nothing(&second, &client, &server);
}

#[test]
fn a_client_connects_although_its_first_attempt_is_on_a_runtime_that_is_not_driven() {
    let Some(server) = RedisServer::start_or_skip("an attempt to connect that is stuck") else { return };
    let (first, second) = (one_thread(), several_threads());
    let proxy = second.block_on(Proxy::start(server.port()));
    for dropped in [true, false] {
        let client = Client::connect_lazy(&proxy.url()).expect("valid");
        let mutex = client.mutex("late").expect("valid");
        proxy.hold(Direction::ToClient);
        let mut call = Box::pin(async move { mutex.lock().await.map(drop) });
        first.block_on(async { timeout(ms(50), &mut call).await.expect_err("no answer") });
        let kept = (!dropped).then_some(call);
        proxy.resume();
        second.block_on(async {
            let mutex = client.mutex("another").expect("valid");
            let guard = within(SOON + SLACK, mutex.lock()).await.expect("free");
            guard.release().await.expect("held");
        });
        drop(kept);
        second.block_on(async { client.shutdown().await.expect("drained") });
    }
    eventually_only_the_fence(&second, &server);
}

#[test]
fn calls_on_a_runtime_that_is_no_longer_driven_hold_up_no_others() {
    let Some(server) = RedisServer::start_or_skip("calls that wait for each other") else { return };
    let (first, second) = (one_thread(), several_threads());
    let proxy = second.block_on(Proxy::start(server.port()));
    let client = first.block_on(connect(&proxy.url()));
    first.block_on(async {
        client.mutex("warm").expect("valid").lock().await.expect("free").release().await.expect("held")
    });
    proxy.hold(Direction::ToClient);
    // Some are in flight, and the others wait for them.
    let mut calls: Vec<_> = (0..8)
        .map(|n| {
            let mutex = client.mutex(&format!("held up:{n}")).expect("valid");
            Box::pin(async move { mutex.lock().await })
        })
        .collect();
    first.block_on(async { timeout(ms(50), join_all(&mut calls)).await.expect_err("no answers") });
    proxy.resume();
    second.block_on(async {
        let (mutex, semaphore) =
            (client.mutex("other").expect("valid"), client.counting_semaphore("other", 2).expect("valid"));
        let (guard, permit) = within(SOON + SLACK, join(mutex.lock(), semaphore.acquire())).await;
        let (guard, permit) = (guard.expect("free"), permit.expect("free"));
        let released = within(SOON, join(guard.release(), permit.release())).await;
        assert!(matches!(released, (Ok(()), Ok(()))), "{released:?}");
    });
    let guards = first.block_on(join_all(&mut calls));
    drop(guards.into_iter().map(|guard| guard.expect("free")).collect::<Vec<_>>());
    second.block_on(async { client.shutdown().await.expect("drained") });
}

/// A client whose first attempt to connect, on a runtime that is not driven any more, ended halfway.
fn is_connected_elsewhere_after(server: &RedisServer, proxy: &Proxy, second: &Runtime, client: &Client) {
    proxy.accept_at_most(usize::MAX);
    proxy.delay_replies(Duration::ZERO);
    proxy.resume();
    second.block_on(async {
        // Each gives up before it can be certain.
        let mutex = client.mutex("halfway").expect("valid");
        eventually(SOON, || async { mutex.lock_timeout(ms(300)).await.is_ok() }).await;
        within(SECOND, mutex.lock()).await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("drained");
    });
    eventually_only_the_fence(second, server);
}

#[test]
fn connections_do_not_stay_on_two_runtimes() {
    let Some(server) = RedisServer::start_or_skip("a subscription that was refused") else { return };
    let (first, second) = (one_thread(), several_threads());
    let proxy = second.block_on(Proxy::start(server.port()));
    let client = Client::connect_lazy(&proxy.url()).expect("valid");
    second.block_on(eventually(SOON, || ready(proxy.accepted() == 1)));
    // That for renewals, and that for commands.
    proxy.accept_at_most(2);
    let outcome =
        first.block_on(async { client.mutex("halfway").expect("valid").lock_timeout(ms(200)).await });
    outcome.expect_err("not subscribed");
    assert_eq!(proxy.accepted(), 2);
    is_connected_elsewhere_after(&server, &proxy, &second, &client);
}

#[test]
fn a_server_that_did_not_answer_its_check_is_checked_from_another_runtime() {
    let Some(server) = RedisServer::start_or_skip("a check that was not answered") else { return };
    let (first, second) = (one_thread(), several_threads());
    let proxy = second.block_on(Proxy::start(server.port()));
    let client = Client::connect_lazy(&proxy.url()).expect("valid");
    proxy.delay_replies(ms(20));
    let checked = proxy.next_request(|request| request.contains(b"leasehold-check"));
    first.block_on(async {
        let mutex = client.mutex("halfway").expect("valid");
        tokio::select! {
            outcome = mutex.lock() => panic!("{outcome:?} without a check"),
            checked = checked => checked.expect("the proxy is there"),
        }
    });
    proxy.hold(Direction::ToClient);
    // The answer is not waited for any longer.
    first.block_on(async { tokio::time::sleep(3 * SECOND).await });
    is_connected_elsewhere_after(&server, &proxy, &second, &client);
}

#[test]
fn those_that_give_up_early_keep_no_waiter_from_noticing_that_a_runtime_is_not_driven() {
    let Some(server) = RedisServer::start_or_skip("short time limits") else { return };
    let (first, second) = (one_thread(), several_threads());
    let client = second.block_on(connect(&server.url()));
    first.block_on(async { drop(client.mutex("warm").expect("valid").lock().await.expect("free")) });
    second.block_on(async {
        let other = connect(&server.url()).await;
        let lock = async |name| other.mutex(name).expect("valid").lock().await.expect("free");
        let (_taken, guard) = (lock("taken").await, lock("released").await);
        let impatient = [0, 71, 142, 213].map(|begin| {
            let taken = client.mutex("taken").expect("valid");
            AbortOnDropHandle::new(tokio::spawn(async move {
                tokio::time::sleep(ms(begin)).await;
                loop {
                    drop(taken.lock_timeout(ms(100)).await);
                }
            }))
        });
        let until_queued = async |name| {
            let seen = other.mutex(name).expect("valid");
            eventually(SOON, || async { seen.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) })
                .await;
        };
        until_queued("taken").await;
        // Their looks and those of the waiter are not to coincide.
        tokio::time::sleep(ms(300)).await;
        let released = client.mutex("released").expect("valid");
        let waiter = tokio::spawn(async move { released.lock().await });
        until_queued("released").await;
        guard.release().await.expect("held");
        within(SOON, waiter).await.expect("no panic").expect("granted").release().await.expect("held");
        drop(impatient);
    });
}

fn eventually_only_the_fence(runtime: &Runtime, server: &RedisServer) {
    runtime.block_on(eventually(SOON, || ready(server.raw().keys("*") == [FENCE])));
}

#[test]
fn a_waiter_gets_its_grant_although_the_subscription_is_on_a_runtime_that_is_no_longer_driven() {
    let Some(server) = RedisServer::start_or_skip("a subscription that is not driven") else { return };
    let (first, second) = (one_thread(), several_threads());
    let client = first.block_on(connect(&server.url()));
    let (driven, thread) = Driven::start(first);
    let (waiter, guard) = second.block_on(async {
        let guard = connect(&server.url()).await.mutex("told").expect("valid").lock().await.expect("free");
        let mutex = client.mutex("told").expect("valid");
        let seen = client.mutex("told").expect("valid");
        let waiter = tokio::spawn(async move { mutex.lock().await });
        eventually(SOON, || async { seen.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) }).await;
        (waiter, guard)
    });
    drop(driven);
    let first = thread.join().expect("no panic");
    second.block_on(async {
        guard.release().await.expect("held");
        // Ten seconds before it would ask again by itself.
        let guard = within(SOON, waiter).await.expect("no panic").expect("granted");
        guard.release().await.expect("held");
        client.shutdown().await.expect("drained");
    });
    drop(first);
    assert_eq!(server.raw().keys("*"), [FENCE]);
}

#[test]
fn a_connection_that_was_down_on_a_runtime_that_is_not_driven_is_opened_again() {
    let Some(server) = RedisServer::start_or_skip("a connection that is down") else { return };
    let (first, second) = (one_thread(), several_threads());
    let proxy = second.block_on(Proxy::start(server.port()));
    let client = first.block_on(connect(&proxy.url()));
    proxy.refuse(true);
    proxy.cut();
    // It notices that, and is not driven any more.
    first.block_on(eventually(SOON, || ready(!client.state().status.is_connected())));
    proxy.refuse(false);
    second.block_on(async {
        let mutex = client.mutex("down").expect("valid");
        within(SOON + SLACK, mutex.lock()).await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("drained");
    });
    assert_eq!(server.raw().keys("*"), [FENCE]);
}

#[test]
fn callers_with_short_time_limits_connect_from_their_own_runtime() {
    let Some(server) = RedisServer::start_or_skip("short time limits on another runtime") else { return };
    let (first, second) = (one_thread(), several_threads());
    let client = client_of(&server, &first);
    second.block_on(async {
        let mutex = client.mutex("impatient").expect("valid");
        // Long before a reply timeout.
        eventually(SOON, || async { mutex.lock_timeout(ms(200)).await.is_ok() }).await;
        within(SECOND, mutex.lock()).await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("drained");
    });
    assert_eq!(server.raw().keys("*"), [FENCE]);
    drop(first);
}

/// A client that is connected on the second runtime and was used first on the first one, which is no longer driven:
/// releases are queued for that.
fn client_used_first_on(first: &Runtime, second: &Runtime, server: &RedisServer) -> Client {
    let client = second.block_on(connect(&server.url()));
    let mutex = client.mutex("warm").expect("valid");
    first.block_on(async { mutex.lock().await.expect("free").release().await.expect("held") });
    client
}

#[test]
fn guards_are_released_although_the_runtime_on_which_their_client_was_used_first_is_not_driven() {
    let Some(server) = RedisServer::start_or_skip("guards dropped on another runtime") else { return };
    let (first, second) = (one_thread(), several_threads());
    let lock = async |client: &Client| {
        let mutex = client.mutex("dropped").expect("valid");
        drop(within(SECOND, mutex.lock()).await.expect("free"));
        mutex
    };
    // Nobody waits for it.
    let client = client_used_first_on(&first, &second, &server);
    second.block_on(lock(&client));
    eventually_only_the_fence(&second, &server);
    // By now the client no longer relies on the first runtime, so the next guard is released at once.
    thread::sleep(SECOND);
    second.block_on(async {
        let other = connect(&server.url()).await;
        drop(lock(&client).await);
        let guard = other.mutex("dropped").expect("valid").lock_timeout(SECOND / 2).await;
        guard.expect("released").release().await.expect("held");
    });
    drop(client);
    // A call that does not wait for others waits for it.
    let client = client_used_first_on(&first, &second, &server);
    second.block_on(async {
        let mutex = lock(&client).await;
        let guard =
            within(SECOND + SLACK, mutex.try_lock()).await.expect("answered").expect("released before");
        guard.release().await.expect("held");
    });
    drop(client);
    // The last handle is gone, too.
    let client = client_used_first_on(&first, &second, &server);
    second.block_on(async { drop(lock(&client).await) });
    drop(client);
    eventually_only_the_fence(&second, &server);
    second.block_on(disconnected(&mut server.raw()));
    drop(first);
}

#[test]
fn a_client_that_is_dropped_leaves_no_connection_on_a_runtime_that_is_not_driven() {
    let Some(server) = RedisServer::start_or_skip("connections on a runtime that is not driven") else {
        return;
    };
    let (first, second) = (one_thread(), several_threads());
    let client = client_of(&server, &first);
    let mutex = client.mutex("moved").expect("valid");
    second.block_on(async {
        let other = connect(&server.url()).await.mutex("moved").expect("valid");
        let guard = other.lock().await.expect("free");
        let waiter = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        // It has the tasks run on this runtime before it is granted.
        eventually(SOON, || async { other.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) }).await;
        guard.release().await.expect("held");
        within(SOON, waiter).await.expect("no panic").expect("granted").release().await.expect("held");
    });
    drop((client, mutex));
    // Without the permission to have the server close them, those for commands and messages are closed with their
    // runtime.
    let left = if leasehold_support::acl::is_restricted() { 2 } else { 0 };
    let mut raw = server.raw();
    second.block_on(eventually(SOON, || ready(connections(&mut raw) <= left)));
    assert_eq!(raw.keys("*"), [FENCE]);
    drop(first);
    second.block_on(disconnected(&mut raw));
}

#[test]
fn a_lock_that_is_polled_on_one_runtime_and_then_on_another_is_granted() {
    let Some(server) = RedisServer::start_or_skip("a future that changes its runtime") else { return };
    let (first, second) = (one_thread(), several_threads());
    let client = client_of(&server, &first);
    let mutex = client.mutex("moved").expect("valid");
    let guard = second.block_on(async {
        connect(&server.url()).await.mutex("moved").expect("valid").lock().await.expect("free")
    });
    let mut waiting = Box::pin(mutex.lock());
    first.block_on(async {
        tokio::select! {
            outcome = &mut waiting => panic!("{outcome:?}, which is held"),
            () = eventually(SOON, || async { mutex.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) }) => {}
        }
    });
    second.block_on(async {
        guard.release().await.expect("held");
        within(SOON, waiting).await.expect("granted").release().await.expect("held");
        client.shutdown().await.expect("drained");
    });
    assert_eq!(server.raw().keys("*"), [FENCE]);
    drop(first);
}

/// Shuts a client down twice while a release is kept that is not polled, and says how much processor time the second
/// one takes.
#[test]
fn shuts_down_twice() {
    let Some(port) = worker_args() else { return };
    one_thread().block_on(async {
        let proxy = Proxy::start(port.parse().expect("a port")).await;
        let client = Client::connect(&proxy.url()).await.expect("the server answers");
        let guard = client.mutex("kept").expect("valid").lock().await.expect("free");
        proxy.hold(Direction::ToClient);
        let mut kept = Box::pin(guard.release());
        assert!(timeout(ms(20), &mut kept).await.is_err());
        client.shutdown().await.expect_err("the release is not confirmed");
        let before = cpu_time();
        client.shutdown().await.expect_err("the release is not confirmed");
        say(&format!("{}", (cpu_time() - before).as_millis()));
        drop(kept);
    });
    std::process::exit(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_shutdown_keeps_no_processor_busy() {
    let Some(server) = RedisServer::start_or_skip("a second shutdown") else { return };
    let mut worker = Worker::start("shuts_down_twice", &server.port().to_string());
    let used = worker.line().await.expect("it is not stuck").parse::<u64>().expect("a number");
    assert!(used < 1000, "{used} ms of processor time in five seconds");
}

#[test]
fn a_guard_dropped_before_its_thread_is_blocked_is_released_and_its_client_goes_on() {
    let Some(server) = RedisServer::start_or_skip("a release on a blocked thread") else { return };
    const BLOCKED: Duration = Duration::from_secs(5);
    let (runtime, elsewhere) = (one_thread(), several_threads());
    let client = client_of(&server, &runtime);
    let other = elsewhere.block_on(connect(&server.url()));
    runtime.block_on(async {
        let mutex = client.mutex("blocked").expect("valid");
        let kept = client.mutex("kept").expect("valid").lock().await.expect("free");
        drop(mutex.lock().await.expect("free"));
        let theirs = other.mutex("blocked").expect("valid");
        let begin = Instant::now();
        let waiter = elsewhere.spawn(async move { (theirs.lock().await, begin.elapsed()) });
        thread::sleep(BLOCKED);
        let (guard, waited) = within(SOON, waiter).await.expect("no panic");
        assert!(waited < BLOCKED - SECOND, "granted after {waited:?}");
        // It waits, is granted, and is notified, as before.
        let waiter = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        eventually(SOON, || async { mutex.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) }).await;
        guard.expect("granted").release().await.expect("held");
        drop(within(SECOND, waiter).await.expect("no panic").expect("granted"));
        within(SECOND, other.mutex("blocked").expect("valid").lock())
            .await
            .expect("free")
            .release()
            .await
            .expect("held");
        other.mutex("kept").expect("valid").force_release().await.expect("answered");
        within(SECOND, kept.lost()).await;
    });
    leaves_nothing(&runtime, &client, &server);
}

/// The task that sends releases was woken by that worker, and waits for it although others are idle.
#[test]
fn a_guard_dropped_before_its_worker_is_blocked_is_released() {
    let Some(server) = RedisServer::start_or_skip("a release on a blocked worker") else { return };
    const BLOCKED: Duration = Duration::from_secs(6);
    let (runtime, elsewhere) = (several_threads(), several_threads());
    let client = client_of(&server, &runtime);
    let other = elsewhere.block_on(connect(&server.url()));
    runtime.block_on(async {
        let mutex = client.mutex("blocked").expect("valid");
        let (dropped, is_dropped) = oneshot::channel();
        let blocking = tokio::spawn(async move {
            drop(mutex.lock().await.expect("free"));
            dropped.send(Instant::now()).expect("awaited");
            thread::sleep(BLOCKED);
        });
        let dropped = is_dropped.await.expect("dropped");
        let theirs = other.mutex("blocked").expect("valid");
        let guard =
            elsewhere.spawn(async move { theirs.lock().await }).await.expect("no panic").expect("free");
        assert!(dropped.elapsed() < BLOCKED / 2, "released after {:?}", dropped.elapsed());
        guard.release().await.expect("held");
        blocking.await.expect("no panic");
    });
    leaves_nothing(&runtime, &client, &server);
}

/// They are sent from the thread that renews leases, and over the same connection.
fn many_guards_dropped_delay_no_renewal(drop_all: impl AsyncFnOnce(Vec<Guard>)) {
    const GUARDS: usize = 20_000;
    let Some(server) = RedisServer::start_or_skip("many releases from the crate's own thread") else {
        return;
    };
    let (runtime, other) = (several_threads(), several_threads());
    let proxy = other.block_on(Proxy::start(server.port()));
    runtime.block_on(async {
        let client = connect(&proxy.url()).await;
        let lock =
            client.reentrant_lock_with("kept", "me", MutexOptions::new().ttl(2 * SECOND)).expect("valid");
        let kept = lock.lock().await.expect("free");
        // With the default TTL, these need no renewal in the meantime.
        let all = (0..GUARDS).map(|n| client.mutex(&format!("many:{n}")).expect("valid"));
        let guards = join_all(all.map(|mutex| async move { mutex.lock().await.expect("free") })).await;
        proxy.delay_replies(ms(50));
        drop_all(guards).await;
        eventually(4 * SOON, || ready(server.raw().keys("lock:many:*").is_empty())).await;
        kept.release().await.expect("held all the time");
        client.shutdown().await.expect("drained");
    });
}

#[test]
fn many_guards_dropped_before_a_worker_is_blocked_delay_no_renewal() {
    many_guards_dropped_delay_no_renewal(async |guards| {
        let blocking = tokio::spawn(async move {
            drop(guards);
            thread::sleep(3 * SECOND);
        });
        blocking.await.expect("no panic");
    });
}

#[test]
fn many_guards_dropped_on_a_plain_thread_delay_no_renewal() {
    many_guards_dropped_delay_no_renewal(async |guards| drop(thread::spawn(move || drop(guards))));
}

/// As in a program that is not asynchronous otherwise.
#[test]
fn a_guard_dropped_between_two_calls_of_block_on_is_released() {
    let Some(server) = RedisServer::start_or_skip("a guard dropped outside block_on") else { return };
    let runtime = one_thread();
    let client = client_of(&server, &runtime);
    let guard = runtime.block_on(async { client.mutex("sync").expect("valid").lock().await.expect("free") });
    drop(guard);
    several_threads().block_on(async {
        let other = connect(&server.url()).await.mutex("sync").expect("valid");
        within(SECOND, other.lock()).await.expect("granted").release().await.expect("held");
    });
    leaves_nothing(&runtime, &client, &server);
}

/// Waits for a lock on a runtime that ends, and says how much processor time it uses meanwhile.
#[test]
fn waits_on_a_runtime_that_has_ended() {
    let Some(url) = worker_args() else { return };
    let (runtime, mut polled) = (several_threads(), false);
    let client = runtime.block_on(async { Client::connect(&url).await.expect("the server answers") });
    let mutex = client.mutex(KEY_OF_LAST).expect("valid");
    let handle = runtime.handle().clone();
    let (begun, has_begun) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut waiting = Box::pin(async move { mutex.lock().await.map(drop) });
        // It is polled by a thread that does not end with the runtime.
        let waiting = std::future::poll_fn(move |context| {
            let state = waiting.as_mut().poll(context);
            if !std::mem::replace(&mut polled, true) {
                begun.send(()).expect("awaited");
            }
            state
        });
        drop(handle.block_on(waiting));
    });
    has_begun.recv().expect("it waits");
    thread::sleep(SECOND / 2);
    runtime.shutdown_background();
    let before = cpu_time();
    thread::sleep(SECOND);
    say(&format!("{}", (cpu_time() - before).as_millis()));
    std::process::exit(0);
}

/// The processor time of this process, in steps of 10 ms.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number"));
    ms(ticks.sum::<u64>() * 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_on_a_runtime_that_has_ended_keeps_no_processor_busy() {
    let Some(server) = RedisServer::start_or_skip("a waiter without a runtime") else { return };
    let mutex = connect(&server.url()).await.mutex(KEY_OF_LAST).expect("valid");
    let guard = mutex.lock().await.expect("free");
    let mut worker = Worker::start("waits_on_a_runtime_that_has_ended", &server.url());
    let used = worker.line().await.expect("it is not stuck").parse::<u64>().expect("a number");
    assert!(used < 300, "{used} ms of processor time in a second");
    guard.release().await.expect("held");
}

/// A call that is given up while the client connects again must not leave it without its subscription.
#[test]
fn a_client_gets_its_grants_after_a_call_was_dropped_during_a_reconnect() {
    let Some(server) = RedisServer::start_or_skip("connecting again, given up") else { return };
    for given_up_after in 0..6 {
        let runtime = one_thread();
        let (client, other) =
            runtime.block_on(async { (connect(&server.url()).await, connect(&server.url()).await) });
        drop(runtime);
        several_threads().block_on(async {
            let [here, there] = [client, other].map(|client| client.mutex("shared").expect("valid"));
            drop(timeout(Duration::from_micros(300 * given_up_after), here.inspect()).await);
            let guard = within(SOON, there.lock()).await.expect("free");
            let waiter = tokio::spawn(async move { here.lock().await });
            eventually(SOON, || async { there.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) })
                .await;
            guard.release().await.expect("held to the end");
            // Long before it would ask again by itself.
            let guard = within(SOON, waiter).await.expect("no panic").expect("granted");
            guard.release().await.expect("held to the end");
        });
    }
}

/// A request that is still in the network when its runtime ends is not executed after its release, or is released
/// again.
#[test]
fn a_request_on_its_way_when_its_runtime_ends_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("requests on their way") else { return };
    let mut raw = server.raw();
    raw.send(&["ACL", "SETUSER", "limited", "on", ">pw", "+@all", "-client|kill", "&*", "~*"]);
    let of_proxy = several_threads();
    for (locks, is_client_kept, closes_connections) in [
        (true, true, true),
        (true, false, true),
        (false, true, true),
        (false, false, true),
        (true, true, false),
        (false, false, false),
    ] {
        let proxy = of_proxy.block_on(Proxy::start(server.port()));
        let runtime = several_threads();
        let limited = format!("redis://limited:pw@127.0.0.1:{}", proxy.port());
        let url = if closes_connections { proxy.url() } else { limited };
        let client = runtime.block_on(connect(&url));
        let (mutex, semaphore) =
            (client.mutex("late").expect("valid"), client.fair_semaphore("late", 2).expect("valid"));
        // The server knows the scripts.
        runtime.block_on(async {
            mutex.lock().await.expect("free").release().await.expect("held to the end");
            semaphore.acquire().await.expect("free").release().await.expect("held to the end");
        });
        raw.send(&["CONFIG", "RESETSTAT"]);
        let held = proxy.hold_connection_at(|request| request.script_call().is_some());
        if locks {
            runtime.spawn(async move { mutex.lock().await });
        } else {
            runtime.spawn(async move { semaphore.acquire().await });
        }
        runtime.block_on(held).expect("it is requested");
        drop(runtime);
        let client = is_client_kept.then_some(client);
        // Its release has been executed.
        of_proxy.block_on(eventually(SOON, || ready(raw.info_commandstats().contains_key("evalsha"))));
        proxy.resume();
        // The connection of the request is gone: if it was not closed before, the request has been delivered now.
        of_proxy.block_on(eventually(SOON, || ready(proxy.open() <= 3)));
        // No event says that the server has executed it, or never will.
        thread::sleep(ms(50));
        of_proxy.block_on(nothing_left(&server, SOON));
        drop(client);
    }
}

/// A release whose thread is blocked before it is sent does not find its lease expired.
#[test]
fn a_release_before_its_thread_is_blocked_finds_its_lease_held() {
    let Some(server) = RedisServer::start_or_skip("releases of blocked threads") else { return };
    // For longer than a TTL, and than a reply may take.
    for (runtime, blocked) in [
        (one_thread(), SECOND),
        (several_threads(), SECOND),
        (one_thread(), BLOCKED),
        (several_threads(), BLOCKED),
    ] {
        runtime.block_on(async {
            let client = connect(&server.url()).await;
            let mutex = client.mutex_with("released", MutexOptions::new().ttl(ms(400))).expect("valid");
            let guard = mutex.lock().await.expect("free");
            let (released, ()) = join(guard.release(), async { thread::sleep(blocked) }).await;
            released.expect("it was held when it was released");
            nothing_left(&server, ms(200)).await;
            client.shutdown().await.expect("drained");
        });
    }
}

/// Locks, and lets go as the last thing that its runtime does, or after it. Says how many ms that has taken.
#[test]
fn drops_last() {
    let Some(args) = worker_args() else { return };
    let [threads, place, url] = args.split(' ').collect::<Vec<_>>()[..] else { panic!("three arguments") };
    let runtime = if threads == "one" { one_thread() } else { several_threads() };
    let later = runtime.block_on(async {
        let client = Client::connect(url).await.expect("the server answers");
        let guard = client.mutex(KEY_OF_LAST).expect("valid").lock().await.expect("free");
        match place {
            "main" => {
                say("locked");
                drop(guard);
                None
            }
            "task" => {
                // It never ends: the runtime drops it.
                let (begun, has_begun) = tokio::sync::oneshot::channel();
                tokio::spawn(async move {
                    begun.send(()).expect("awaited");
                    std::future::pending::<()>().await;
                    drop(guard);
                });
                has_begun.await.expect("it begins");
                say("locked");
                None
            }
            _ => {
                say("locked");
                Some(guard)
            }
        }
    });
    let dropped = Instant::now();
    if place == "forgotten" {
        // As in a `static`: it never ends.
        std::mem::forget(runtime);
    } else {
        drop(runtime);
    }
    drop(later);
    say(&dropped.elapsed().as_millis().to_string());
    std::process::exit(0);
}

const KEY_OF_LAST: &str = "last";
/// How long the end of a runtime waits for releases.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_as_the_last_thing_of_main_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("the last line of main") else { return };
    for place in ["main", "task", "after", "forgotten"] {
        for threads in ["one", "several"] {
            let (mut in_time, mut late) = (0, 0);
            while in_time < 10 {
                assert!(late < 100, "never done in time on {threads}: {place}");
                let args = format!("{threads} {place} {}", server.url());
                let mut worker = Worker::start("drops_last", &args);
                assert_eq!(worker.line().await.as_deref(), Some("locked"));
                let waited =
                    Duration::from_millis(worker.line().await.expect("a time").parse().expect("in ms"));
                assert_eq!(worker.line().await, None, "it ends");
                let key = format!("lock:{KEY_OF_LAST}");
                // On a busy machine the time may not be enough.
                if waited < LONGEST_WAIT {
                    assert_eq!(server.raw().get(&key), None, "round {in_time} on {threads}: {place}");
                    in_time += 1;
                } else {
                    late += 1;
                    server.raw().send(&["DEL", &key]);
                }
            }
        }
    }
}
