//! The blocking interface, as a program without tokio uses it. Where a store must be shared by processes, it is Redis.
#![cfg(feature = "blocking")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use leasehold::blocking::{Client, DistMutex, Guard};
use leasehold::{Error, LeaseEnd, LossReason, MutexOptions};
use tokio::runtime::Builder;

/// A deadline for what should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

fn mutex_with_ttl(client: &Client, ttl: Duration) -> DistMutex {
    client.mutex_with("machine:42", MutexOptions::new().ttl(ttl)).expect("valid")
}

/// Each thread reads, waits and writes, so that two holders at a time would lose an update.
fn no_update_is_lost(clients: &[Client]) {
    const THREADS: usize = 8;
    const UPDATES: u32 = 20;
    let record = AtomicU32::new(0);
    thread::scope(|scope| {
        for client in clients.iter().cycle().take(THREADS) {
            let (mutex, record) = (client.mutex("record").expect("valid"), &record);
            scope.spawn(move || {
                for _ in 0..UPDATES {
                    let guard = mutex.lock().expect("its turn comes");
                    let read = record.load(Ordering::Relaxed);
                    thread::yield_now();
                    record.store(read + 1, Ordering::Relaxed);
                    guard.release().expect("held");
                }
            });
        }
    });
    assert_eq!(record.into_inner(), THREADS as u32 * UPDATES);
}

#[test]
fn threads_exclude_each_other_on_one_client_and_on_several() {
    no_update_is_lost(&[Client::memory()]);
    let connect = || Client::connect("memory:blocking-threads").expect("in memory");
    no_update_is_lost(&[connect(), connect(), connect()]);
}

#[test]
fn calls_that_do_not_wait_say_so_and_bad_input_is_refused() {
    let client = Client::memory();
    let mutex = client.mutex("a").expect("valid");
    let guard = mutex.lock().expect("free");
    assert!(mutex.try_lock().expect("it answers").is_none());
    let late = mutex.lock_timeout(Duration::from_millis(20)).expect_err("held");
    assert!(matches!(late, Error::TimedOut { .. }), "{late:?}");
    assert_eq!(mutex.inspect().expect("it answers").waiters.len(), 0, "what gave up has left the queue");
    guard.release().expect("held");
    let invalid = Client::connect("http://a:hunter2@b").map(drop).expect_err("not a store");
    assert!(matches!(invalid, Error::InvalidArgument { argument: "url", .. }), "{invalid:?}");
    assert!(client.mutex("").is_err());
    client.ping(SOON).expect("it answers");
    assert!(client.check().expect("it answers").is_empty());
    assert!(client.state().status.is_connected());
}

#[test]
fn permits_are_split_returned_and_resized() {
    let client = Client::memory();
    let gate = client.fair_semaphore("gate", 3).expect("valid");
    let mut three = gate.acquire_many(3).expect("free");
    assert!(gate.try_acquire_many(2).expect("it answers").is_none());
    let one = three.split(1).expect("three are more than one");
    three.release().expect("held");
    assert_eq!((gate.available().expect("it answers"), one.permits()), (2, 1));
    gate.resize(5).expect("it answers");
    assert_eq!(gate.limit(), 5);
    drop(one);
    drop(gate.acquire_many_timeout(5, SOON).expect("they were all returned"));
    let calls = client.counting_semaphore("calls", 1).expect("valid");
    let only = calls.acquire_timeout(SOON).expect("free");
    assert!(calls.try_acquire().expect("it answers").is_none());
    drop(only);
}

#[test]
fn a_loss_is_said_to_the_callback_the_watcher_and_the_next_check() {
    let client = Client::memory();
    let mutex = client.mutex("a").expect("valid");
    let guard = mutex.lock().expect("free");
    guard.check().expect("held");
    let mut ended = guard.ended();
    assert_eq!(ended.wait_timeout(Duration::from_millis(5)), None);
    let watcher = thread::spawn(move || ended.wait());
    let (said, says) = channel();
    let again = client.mutex("in the callback").expect("valid");
    // The callback may block, as any other thread.
    guard
        .on_lost(move |reason| said.send((reason, again.lock().is_ok())).expect("awaited"))
        .expect("a thread");

    assert!(mutex.force_release().expect("it answers"));
    assert_eq!(says.recv_timeout(SOON), Ok((LossReason::Revoked, true)));
    assert_eq!(watcher.join().expect("no panic"), LeaseEnd::Lost(LossReason::Revoked));
    let lost = guard.check().expect_err("it was taken away");
    assert!(matches!(lost, Error::Lost { reason: LossReason::Revoked, .. }), "{lost:?}");
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert!(matches!(guard.release(), Err(Error::Lost { .. })));
}

#[test]
fn a_callback_is_dropped_with_a_guard_that_was_not_lost() {
    let guard = Client::memory().mutex("a").expect("valid").lock().expect("free");
    let (said, says) = channel::<()>();
    guard.on_lost(move |_| said.send(()).expect("awaited")).expect("a thread");
    drop(guard);
    // Disconnected, not timed out.
    assert_eq!(says.recv_timeout(SOON), Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn shutdown_ends_the_calls_that_wait_in_other_threads() {
    let client = Client::memory();
    let queued = MutexOptions::new().local_handover(false);
    let mutex = client.mutex_with("a", queued).expect("valid");
    let held = mutex.lock().expect("free");
    let waiter = thread::spawn({
        let mutex = mutex.clone();
        move || mutex.lock().map(drop)
    });
    let begun = Instant::now();
    while mutex.inspect().expect("it answers").waiters.is_empty() {
        assert!(begun.elapsed() < SOON, "it does not wait");
        thread::yield_now();
    }
    client.shutdown().expect("released");
    assert!(matches!(waiter.join().expect("no panic"), Err(Error::Closed { .. })));
    assert!(matches!(held.check(), Err(Error::Lost { reason: LossReason::ClientClosed, .. })));
}

/// More calls than the budget of a task, in which it does not yield.
#[test]
fn inside_a_runtime_a_call_blocks_its_thread_and_nothing_else() {
    for mut runtime in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        runtime.enable_all().build().expect("a runtime").block_on(async {
            let mutex = Client::memory().mutex("a").expect("valid");
            let task = tokio::spawn(async move {
                for _ in 0..500 {
                    mutex.lock().expect("free").release().expect("held");
                }
                drop(mutex.lock().expect("free"));
                drop(mutex.lock_timeout(SOON).expect("the dropped one was released"));
            });
            task.await.expect("no panic");
        });
    }
}

#[test]
fn both_interfaces_share_a_client() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = leasehold::Client::memory();
    let mutex = client.mutex("a").expect("valid");
    let guard = runtime.block_on(mutex.lock()).expect("free");
    // The runtime on which the client lives is not driven from here on.
    let blocking = Client::from(client);
    assert!(blocking.mutex("a").expect("valid").try_lock().expect("it answers").is_none());
    drop(guard);
    let guard = blocking.mutex("a").expect("valid").lock_timeout(SOON).expect("it was released");
    let taken = blocking.as_async().mutex("a").expect("valid");
    assert!(runtime.block_on(taken.try_lock()).expect("it answers").is_none());
    drop(guard);
}

#[cfg(feature = "_redis")]
mod redis {
    use leasehold::Fence;

    use super::*;
    use leasehold_support::{RedisServer, Worker, say, worker_args};

    const KEY: &str = "lock:machine:42";

    #[test]
    fn threads_and_clients_exclude_each_other() {
        let Some(server) = RedisServer::start_or_skip("the blocking interface") else { return };
        let connect = || Client::connect(&server.url()).expect("the server answers");
        let clients = [connect(), connect()];
        no_update_is_lost(&clients);
        clients.iter().for_each(|client| client.shutdown().expect("released"));
        assert_eq!(server.raw().keys("lock:*"), Vec::<String>::new());
    }

    /// The main thread does something else for more than two TTLs.
    #[test]
    fn a_lease_is_renewed_while_its_thread_works() {
        let Some(server) = RedisServer::start_or_skip("renewals of the blocking interface") else { return };
        let client = Client::connect(&server.url()).expect("the server answers");
        let guard = mutex_with_ttl(&client, SECOND * 4).lock().expect("free");
        thread::sleep(SECOND * 9);
        guard.check().expect("renewed");
        guard.release().expect("held to the end");
    }

    #[test]
    fn a_store_that_stops_answering_costs_the_lease_and_the_token_rejects_late_writes() {
        let Some(server) = RedisServer::start_or_skip("losses in the blocking interface") else { return };
        let client = Client::connect(&server.url()).expect("the server answers");
        let (mutex, fence) = (mutex_with_ttl(&client, SECOND), Fence::new());
        let guard = mutex.lock().expect("free");
        let mut ended = guard.ended();
        server.pause();
        assert_eq!(ended.wait_timeout(SOON), Some(LeaseEnd::Lost(LossReason::StoreUnreachable)));
        guard.check().expect_err("it is lost");
        server.resume();
        let next = mutex.lock_timeout(SOON).expect("it has expired");
        fence.admit(next.token()).expect("the newest");
        fence.admit(guard.token()).expect_err("too late");
        client.shutdown().expect("released");
    }

    /// The end of a process, right after it has dropped a guard, or returned an error with one in scope.
    #[test]
    fn drops_a_guard_last() {
        let Some(url) = worker_args() else { return };
        let client = Client::connect(&url).expect("the server answers");
        let guard: Guard = client.mutex("machine:42").expect("valid").lock().expect("free");
        say("locked");
        let begun = Instant::now();
        drop(guard);
        say(&begun.elapsed().as_millis().to_string());
        // Nothing of the client is dropped.
        std::process::exit(0);
    }

    #[tokio::test]
    async fn what_a_program_drops_last_is_released() {
        let Some(server) = RedisServer::start_or_skip("the end of blocking programs") else { return };
        for round in 0..5 {
            let mut worker = Worker::start("redis::drops_a_guard_last", &server.url());
            assert_eq!(worker.line().await.as_deref(), Some("locked"));
            let took = worker.line().await.expect("it is not stuck").parse::<u64>().expect("a number");
            assert_eq!(worker.line().await, None, "it ends");
            // A drop waits for a tenth of a second: a busy machine may need longer.
            assert!(server.raw().get(KEY).is_none() || took >= 100, "round {round}: {took} ms");
        }
    }

    #[test]
    fn a_drop_does_not_wait_for_a_store_that_does_not_answer() {
        let Some(server) = RedisServer::start_or_skip("drops in the blocking interface") else { return };
        let client = Client::connect(&server.url()).expect("the server answers");
        let guards: Vec<_> =
            ["a", "b", "c"].map(|name| client.mutex(name).expect("valid").lock().expect("free")).into();
        server.pause();
        let begun = Instant::now();
        drop(guards);
        let took = begun.elapsed();
        // A tenth of a second for each, and what the machine is late.
        assert!(took < Duration::from_millis(300) + SECOND * 4, "{took:?}");
        server.resume();
        client.shutdown().expect("released");
        assert_eq!(server.raw().keys("lock:*"), Vec::<String>::new());
    }
}
