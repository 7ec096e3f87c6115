//! Leases are kept whatever the threads of the application do, and a client goes on working after a runtime has ended.
#![cfg(feature = "_redis")]

#[path = "support/locks.rs"]
mod locks;
mod support;

use std::future::ready;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use leasehold::{Client, MutexOptions};
use locks::*;
use support::{RedisServer, Worker, eventually, say, within, worker_args};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

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
        // There is no runtime to release it on: that is a panic, and the guard is dropped.
        let outside = || futures::executor::block_on(released.release());
        assert!(catch_unwind(AssertUnwindSafe(outside)).is_err());
        one_thread().block_on(async {
            let locks = ["lock:dropped", "lock:released"];
            eventually(SOON, || ready(locks.iter().all(|key| server.raw().get(key).is_none()))).await;
        });
        drop(client);
    }
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

/// Locks, and lets go as the last thing that its runtime does.
#[test]
fn drops_last() {
    let Some(args) = worker_args() else { return };
    let (threads, url) = args.split_once(' ').expect("two arguments");
    let runtime = if threads == "one" { one_thread() } else { several_threads() };
    runtime.block_on(async {
        let client = Client::connect(url).await.expect("the server answers");
        let guard = client.mutex(KEY_OF_LAST).expect("valid").lock().await.expect("free");
        say("locked");
        drop(guard);
    });
    drop(runtime);
    std::process::exit(0);
}

const KEY_OF_LAST: &str = "last";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_as_the_last_thing_of_main_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("the last line of main") else { return };
    for threads in ["one", "several"] {
        for round in 0..10 {
            let mut worker = Worker::start("drops_last", &format!("{threads} {}", server.url()));
            assert_eq!(worker.line().await.as_deref(), Some("locked"));
            assert_eq!(worker.line().await, None, "it ends");
            let left = server.raw().get(&format!("lock:{KEY_OF_LAST}"));
            assert_eq!(left, None, "round {round} on {threads}");
        }
    }
}
