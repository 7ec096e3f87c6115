//! Connections that are held back and deliver everything later: nothing that arrives too late is believed.
//!
//! Answers and messages travel on different connections. Each case here holds back one of them, or the server, for
//! longer than a lease, and lets the rest go on. `stalls_soak` runs them at random, for longer.
#![cfg(feature = "_redis")]

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use leasehold::redis::RedisBackend;
use leasehold::{Client, Error, Guard, Inspection, SemaphoreOptions};
use leasehold_support::locks::*;
use leasehold_support::{Direction, Proxy, RedisServer, Traffic, eventually, one_place_each, within};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    Reentrant,
    Counting,
    Fair,
}

const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Reentrant, Kind::Counting, Kind::Fair];

impl Kind {
    /// Asks for all there is, with a place of its own in the queue.
    fn acquire(self, client: &Client, lease: Duration) -> BoxFuture<'static, Result<Guard, Error>> {
        let (locks, permits) = (one_place_each().ttl(lease), SemaphoreOptions::new().ttl(lease));
        match self {
            Self::Mutex => {
                let lock = client.mutex_with(NAME, locks).expect("valid");
                async move { lock.lock().await }.boxed()
            }
            Self::Reentrant => {
                let lock =
                    client.reentrant_lock_with(NAME, &Uuid::new_v4().to_string(), locks).expect("valid");
                async move { lock.lock().await }.boxed()
            }
            Self::Counting => {
                let semaphore = client.counting_semaphore_with(NAME, 1, permits).expect("valid");
                async move { semaphore.acquire().await }.boxed()
            }
            Self::Fair => {
                let semaphore = client.fair_semaphore_with(NAME, 1, permits).expect("valid");
                async move { semaphore.acquire().await }.boxed()
            }
        }
    }

    async fn inspect(self, client: &Client) -> Inspection {
        let inspection = match self {
            Self::Mutex => client.mutex(NAME).expect("valid").inspect().await,
            Self::Reentrant => client.reentrant_lock(NAME, "an onlooker").expect("valid").inspect().await,
            Self::Counting => client.counting_semaphore(NAME, 1).expect("valid").inspect().await,
            Self::Fair => client.fair_semaphore(NAME, 1).expect("valid").inspect().await,
        };
        inspection.expect("the server answers")
    }

    async fn until_waiting(self, client: &Client, count: usize) {
        eventually(SOON, || async { self.inspect(client).await.waiters.len() == count }).await;
    }
}

async fn connect_with(url: &str, reply_timeout: Duration) -> Client {
    let builder = RedisBackend::builder(url).expect("valid").reply_timeout(reply_timeout);
    Client::with_backend(Arc::new(builder.connect().await.expect("the server answers")))
}

async fn holds(waiter: JoinHandle<Result<Guard, Error>>, deadline: Duration) -> Guard {
    within(deadline, waiter).await.expect("no panic").expect("granted")
}

/// A waiter is granted what it waits for while both its connections are held back. Its lease runs out, the next one
/// holds. Its requests are delivered first: it waits again, in another place. Then comes the old grant.
async fn an_old_grant_is_held_back(kind: Kind) {
    let Some(server) = RedisServer::start_or_skip("a grant that was held back") else { return };
    let proxy = Proxy::start(server.port()).await;
    let (far, near, other) =
        (connect(&proxy.url()).await, connect(&server.url()).await, connect(&server.url()).await);
    let lease = SECOND;
    let holder = kind.acquire(&near, lease).await.expect("free");
    let mut waiter = tokio::spawn(kind.acquire(&far, lease));
    kind.until_waiting(&near, 1).await;
    let next = tokio::spawn(kind.acquire(&other, lease));
    kind.until_waiting(&near, 2).await;

    proxy.hold(Direction::Both);
    holder.release().await.expect("held");
    let next = holds(next, 2 * lease + SLACK).await;
    proxy.resume_traffic(Traffic::Commands);
    kind.until_waiting(&near, 1).await;
    // When it asks once more, its last request has been answered.
    within(SOON, proxy.next_request(|request| request.script_call().is_some())).await.expect("it asks");
    within(SOON, proxy.next_request(|request| request.script_call().is_some())).await.expect("it asks");
    proxy.resume_traffic(Traffic::Messages);
    let believed = timeout(lease / 2, &mut waiter).await;
    assert!(believed.is_err(), "{kind:?}: beside a holder that {}: {believed:?}", next.is_held());
    assert!(next.is_held());

    let token = next.token();
    next.release().await.expect("held to the end");
    let waiter = holds(waiter, SOON).await;
    assert!(waiter.token() > token && waiter.is_held());
    waiter.release().await.expect("held to the end");
    nothing_waits(kind, &near).await;
}

async fn nothing_waits(kind: Kind, client: &Client) {
    let now = kind.inspect(client).await;
    assert!(now.holders.is_empty() && now.waiters.is_empty(), "left behind: {now:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_not_held_by_a_grant_that_was_held_back() {
    an_old_grant_is_held_back(Kind::Mutex).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reentrant_lock_is_not_held_by_a_grant_that_was_held_back() {
    an_old_grant_is_held_back(Kind::Reentrant).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counting_semaphore_is_not_held_by_a_grant_that_was_held_back() {
    an_old_grant_is_held_back(Kind::Counting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fair_semaphore_is_not_held_by_a_grant_that_was_held_back() {
    an_old_grant_is_held_back(Kind::Fair).await;
}

/// The requests of a client arrive, and no answer comes back. It is granted the lock and does not know it; asking again
/// must not keep the lock from the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_receives_no_answers_blocks_no_other_for_longer_than_a_ttl() {
    for kind in KINDS {
        let Some(server) = RedisServer::start_or_skip("a client that hears nothing") else { return };
        let proxy = Proxy::start(server.port()).await;
        let (far, near) = (connect(&proxy.url()).await, connect(&server.url()).await);
        let lease = ms(300);
        // The server knows the script.
        drop(kind.acquire(&near, lease).await.expect("free"));
        eventually(SOON, || async { kind.inspect(&near).await.holders.is_empty() }).await;
        proxy.hold(Direction::ToClient);
        let unanswered = tokio::spawn(kind.acquire(&far, lease));
        eventually(SOON, || async { !kind.inspect(&near).await.holders.is_empty() }).await;
        let start = Instant::now();
        let guard = within(SOON, kind.acquire(&near, lease)).await.expect("granted");
        let waited = start.elapsed();
        assert!(waited < lease + SLACK, "{kind:?}: granted after {waited:?}");
        drop(guard);
        proxy.resume();
        holds(unanswered, SOON).await.release().await.expect("held");
    }
}

/// Requests that were given up while the server was paused are not granted afterwards.
async fn requests_are_given_up_during_a_stall(reply_timeout: Duration, lease: Duration, rounds: u64) {
    const CLIENTS: usize = 3;
    const REQUESTS: u64 = 100;
    const NAMES: u64 = 25;
    let Some(server) = RedisServer::start_or_skip("requests that were given up in a stall") else { return };
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect_with(&server.url(), reply_timeout).await);
    }
    let stall = Duration::from_secs(setting("LEASEHOLD_STALL_LENGTH", 4));
    let name = |n: u64| format!("order:{}", n % NAMES);
    let mut fastest = Duration::MAX;
    for round in 0..rounds {
        // Nothing is left of the requests of the round before.
        for n in 0..NAMES {
            let lock = named(&clients[0], &name(n), lease);
            eventually(SOON, || async {
                let now = lock.inspect().await.expect("inspected");
                now.holders.is_empty() && now.waiters.is_empty()
            })
            .await;
        }
        server.pause();
        let stalled = Instant::now();
        let mut given_up = Vec::new();
        for client in &clients {
            for n in 0..REQUESTS {
                let lock = named(client, &name(n), lease);
                // Spread over the stall, some until shortly before its end.
                let (begin, time_limit) = (stall * n as u32 / 120, ms(100 + n * 4));
                given_up.push(tokio::spawn(async move {
                    tokio::time::sleep(begin).await;
                    let begun = Instant::now();
                    (n, lock.lock_timeout(time_limit).await, begun.elapsed())
                }));
            }
        }
        for outcome in join_all(given_up).await {
            let (n, outcome, waited) = outcome.expect("no panic");
            assert!(outcome.is_err(), "request {n} was granted by a paused server after {waited:?}");
        }
        tokio::time::sleep_until(stalled + stall).await;
        server.resume();
        let resumed = Instant::now();
        let again = (0..NAMES).map(|n| {
            let lock = named(&clients[n as usize % CLIENTS], &name(n), lease);
            async move {
                let guard = lock.lock().await.expect("granted");
                let waited = resumed.elapsed();
                guard.release().await.expect("held");
                waited
            }
        });
        let waited = within(SOON + lease, join_all(again)).await;
        let longest = waited.iter().max().expect("some");
        println!("round {round}: every name locked again within {longest:?}");
        assert!(*longest < ms(200) + LOAD, "round {round}: {longest:?} after the stall");
        fastest = fastest.min(*longest);
    }
    assert!(fastest < ms(200), "at best {fastest:?} after a stall");
}

/// What a machine that has other things to do may add to 200 ms in one of the rounds.
const LOAD: Duration = Duration::from_millis(300);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// How often the server is paused, each time for `LEASEHOLD_STALL_LENGTH` seconds.
fn rounds() -> u64 {
    setting("LEASEHOLD_STALL_ROUNDS", 2)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_given_up_during_a_stall_leave_every_name_free() {
    requests_are_given_up_during_a_stall(2 * SECOND, 30 * SECOND, rounds()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_given_up_during_a_stall_leave_every_name_free_with_short_leases() {
    requests_are_given_up_during_a_stall(2 * SECOND, ms(500), rounds()).await;
}

/// Their releases are sent many times in vain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_given_up_during_a_stall_by_impatient_clients_leave_every_name_free() {
    requests_are_given_up_during_a_stall(ms(100), 30 * SECOND, rounds()).await;
}

/// A request that is still on its way when its release has been confirmed, on another connection, is not carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_on_a_lost_connection_is_not_carried_out_after_its_release() {
    let Some(server) = RedisServer::start_or_skip("a request that was held back") else { return };
    server.allow(&leasehold_support::more_rules("+client|kill"));
    let proxy = Proxy::start(server.port()).await;
    let (far, near) = (connect_with(&proxy.url(), ms(100)).await, connect(&server.url()).await);
    proxy.hold_connections();
    let replaced = proxy.accepted();
    let guard = within(SOON, mutex(&far, 30 * SECOND).lock()).await.expect("free");
    guard.release().await.expect("held");
    assert!(proxy.accepted() > replaced, "locked on a new connection");
    proxy.resume();
    // The connection that was lost ends behind its requests.
    eventually(SOON, || ready(proxy.open() <= replaced)).await;
    within(SOON, mutex(&near, SECOND).lock()).await.expect("free").release().await.expect("held");
    let mut raw = server.raw();
    raw.send(&["PING"]);
    assert_eq!(raw.get(KEY), None);
}
