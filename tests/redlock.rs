//! A lock on a majority of several servers.
#![cfg(feature = "_redis")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{FusedFuture, join_all};
use futures::{FutureExt, StreamExt};
use leasehold::redis::RedisBackend;
use leasehold::redlock::RedlockBackend;
use leasehold::{BackendError, Client, DistMutex, Error, Fence, Guard, Inspection, LossReason, MutexOptions};
use leasehold_support::nodes::url;
use leasehold_support::{
    Clock, Direction, Nodes, Proxy, Setup, assert_is_never_lowered, eventually, options, within,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const NAME: &str = "machine:42";
const KEY: &str = "lock:machine:42";
const FENCE: &str = "{lock:}:fence";

/// A deadline for what should happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(30);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn mutex(client: &Client, ttl: Duration) -> DistMutex {
    client.mutex_with(NAME, options().ttl(ttl)).expect("valid")
}

async fn lock(client: &Client, ttl: Duration) -> Guard {
    within(SOON, mutex(client, ttl).lock()).await.expect("granted")
}

/// Waits until no node that runs has any key but fences.
async fn left_empty(nodes: &mut Nodes) {
    let end = Instant::now() + SOON;
    loop {
        let keys = nodes.keys();
        if keys.iter().all(Vec::is_empty) {
            return;
        }
        assert!(Instant::now() < end, "left behind: {keys:?}");
        sleep(ms(3)).await;
    }
}

/// What a majority says, and each node, also on a busy machine on which some of them are late at first.
async fn inspected(client: &Client) -> Inspection {
    let end = Instant::now() + SOON;
    loop {
        match mutex(client, LONG).inspect().await {
            Ok(seen) => return seen,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

/// On how many nodes something stands under the lock's key.
fn held_on(nodes: &Nodes) -> usize {
    nodes.values(KEY).iter().flatten().count()
}

fn no_quorum(error: &Error) -> Option<usize> {
    match error {
        Error::StoreUnavailable { source: BackendError::NoQuorum { nodes, .. }, .. } => Some(nodes.len()),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_nodes_works() {
    for count in [1, 2, 3, 4, 5] {
        let Some(mut nodes) = Nodes::start_or_skip("any number of nodes", count) else { return };
        let (one, other) = (nodes.connect().await, nodes.connect().await);
        let mut newest = None;
        for _ in 0..20 {
            let guard = lock(&one, LONG).await;
            assert!(mutex(&other, LONG).try_lock().await.expect("a quorum").is_none(), "{count}: held twice");
            assert!(newest < Some(guard.token()), "{count}: the token {} after {newest:?}", guard.token());
            newest = Some(guard.token());
            let waiting = tokio::spawn({
                let other = other.clone();
                async move { lock(&other, LONG).await }
            });
            sleep(ms(2)).await;
            guard.release().await.expect("held");
            let guard = within(SOON, waiting).await.expect("no panic");
            assert!(newest < Some(guard.token()), "{count}: the token {} after {newest:?}", guard.token());
            newest = Some(guard.token());
            guard.release().await.expect("held");
        }
        one.shutdown().await.expect("released");
        other.shutdown().await.expect("released");
        left_empty(&mut nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_of_five_nodes_may_hang_and_three_are_an_error_in_time() {
    let Some(mut nodes) = Nodes::start_or_skip("nodes that hang", 5) else { return };
    let client = nodes.connect().await;
    for first in 0..5 {
        for second in first + 1..5 {
            let kept = lock(&client, ms(1500)).await;
            nodes.0[first].pause();
            nodes.0[second].pause();
            let begin = Instant::now();
            let other = client.mutex_with("other", options().ttl(ms(1500))).expect("valid");
            for _ in 0..3 {
                let guard = within(SOON, other.lock()).await.expect("granted by three");
                guard.release().await.expect("confirmed by three");
            }
            assert!(begin.elapsed() < ms(1000), "two nodes that hang cost {:?}", begin.elapsed());
            assert!(timeout(ms(300), kept.lost()).await.is_err(), "a majority renews it");
            kept.release().await.expect("confirmed by three");
            nodes.0[first].resume();
            nodes.0[second].resume();
        }
    }
    left_empty(&mut nodes).await;

    for server in &nodes.0[..3] {
        server.pause();
    }
    let begin = Instant::now();
    let error = mutex(&client, LONG).try_lock().await.expect_err("no quorum");
    assert_eq!(no_quorum(&error), Some(3), "{error}");
    assert!(begin.elapsed() < SOON, "after {:?}", begin.elapsed());
    let begin = Instant::now();
    let error = mutex(&client, LONG).lock_timeout(ms(500)).await.expect_err("no quorum");
    assert_eq!(no_quorum(&error), Some(3), "{error}");
    assert!(begin.elapsed() < ms(1500), "after {:?}", begin.elapsed());
    for server in &nodes.0[..3] {
        assert!(error.to_string().contains(&server.address()), "{error}");
        server.resume();
    }
    lock(&client, LONG).await.release().await.expect("held");
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_five_nodes_may_die_during_a_hold_and_three_end_it_in_time() {
    let Some(mut nodes) = Nodes::start_or_skip("nodes that die", 5) else { return };
    let client = nodes.connect().await;
    let guard = lock(&client, ms(3000)).await;
    nodes.0[1].kill();
    nodes.0[4].kill();
    assert!(timeout(ms(4000), guard.lost()).await.is_err(), "three of five renew it");
    let other = client.mutex_with("other", options().ttl(LONG)).expect("valid");
    let released = within(SOON, other.lock()).await.expect("granted by three").release().await;
    released.expect("confirmed by three");

    nodes.0[2].kill();
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, LossReason::StoreUnreachable);
    let error = other.lock_timeout(ms(400)).await.expect_err("no quorum");
    assert_eq!(no_quorum(&error), Some(3), "{error}");
    drop(guard);

    nodes.0[2].restart();
    let guard = within(SOON * 2, other.lock()).await.expect("a quorum again");
    guard.release().await.expect("held");
}

/// Whether two nodes have the same record; of an owner, the same lease, whose token may be greater on one of them.
fn are_same(kind: &str, one: &Option<String>, other: &Option<String>) -> bool {
    let lease =
        |value: &Option<String>| value.as_ref().and_then(|value| value.split(' ').next().map(str::to_owned));
    if kind == "mutex" { one == other } else { lease(one) == lease(other) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_memory_is_taken_in_again_by_a_renewal() {
    let Some(mut nodes) = Nodes::start_or_skip("a node that lost its memory", 5) else { return };
    let client = nodes.connect().await;
    for kind in ["mutex", "reentrant"] {
        let ttl = ms(2000);
        let guard = match kind {
            "mutex" => lock(&client, ttl).await,
            _ => {
                let lock =
                    client.reentrant_lock_with(NAME, "me", MutexOptions::new().ttl(ttl)).expect("valid");
                lock.lock().await.expect("granted")
            }
        };
        // A node that was slow has had a token of its own at first, and may keep it for an owner if it is greater.
        let agree = |nodes: &Nodes| {
            let values = nodes.values(KEY);
            values[0].is_some() && values.iter().all(|value| are_same(kind, value, &values[0]))
        };
        eventually(SOON, || std::future::ready(agree(&nodes))).await;
        let value = nodes.values(KEY)[0].clone();
        for n in [0, 3] {
            nodes.0[n].restart();
        }
        assert_eq!(held_on(&nodes), 3);
        // The same lease under the same token. For an owner the token may be greater: that node may have known of a
        // later hold.
        let is_same = |now: &Option<String>| are_same(kind, now, &value);
        eventually(SOON, || std::future::ready(nodes.values(KEY).iter().all(is_same))).await;
        // Two of those that had it all the time are now dispensable.
        sleep(ttl / 2).await;
        for n in [1, 2] {
            nodes.0[n].restart();
        }
        assert!(timeout(ttl * 2, guard.lost()).await.is_err(), "a majority held it all the time");
        guard.release().await.expect("held");
        left_empty(&mut nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_majority_has_forgotten_is_lost_and_not_put_back() {
    let Some(mut nodes) = Nodes::start_or_skip("nodes that forget", 5) else { return };
    let client = nodes.connect().await;
    let guard = lock(&client, ms(1200)).await;
    eventually(SOON, || std::future::ready(held_on(&nodes) == 5)).await;
    for server in &nodes.0[..3] {
        server.raw().send(&["FLUSHALL"]);
    }
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, LossReason::Missing);
    drop(guard);
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_the_clock_of_a_node_jumps_and_two_clients_believe_that_they_hold() {
    let left_out = "a clock that jumps";
    let Some(clock) = Clock::new_or_skip(left_out) else { return };
    let setups = (0..5).map(|n| if n == 2 { Setup::under(&clock) } else { Setup::default() });
    let Some(mut nodes) = Nodes::start_with_or_skip(left_out, setups.collect()) else { return };
    // The first client reaches A, B and C only, the second one C, D and E.
    let mut proxies = Vec::new();
    for server in &nodes.0 {
        let unreachable = Proxy::start(server.port()).await;
        unreachable.refuse(true);
        proxies.push(unreachable);
    }
    let reaching = |reached: [usize; 3]| {
        let port = |n: usize| if reached.contains(&n) { nodes.0[n].port() } else { proxies[n].port() };
        url((0..5).map(port))
    };
    let first = Client::connect(&reaching([0, 1, 2])).await.expect("a majority");
    let second = Client::connect(&reaching([2, 3, 4])).await.expect("a majority");

    // Whatever the clocks were before.
    for jump in [ms(31_000), Duration::from_secs(3600)] {
        let earlier = lock(&first, LONG).await;
        clock.shift(jump);
        clock.is_followed_by(&mut nodes.0[2].raw());
        let later = lock(&second, LONG).await;
        assert!(earlier.is_held() && later.is_held(), "both believe that they hold it");
        assert!(earlier.token() < later.token(), "{} after {}", later.token(), earlier.token());
        let storage = Fence::new();
        storage.admit(earlier.token()).expect("the first write");
        storage.admit(later.token()).expect("the second client's write");
        storage.admit(earlier.token()).expect_err("the first client's late write");

        let newest = later.token();
        clock.set_back(jump);
        clock.is_followed_by(&mut nodes.0[2].raw());
        later.release().await.expect("held by C, D and E");
        drop(earlier);
        // And whoever is next, on whichever majority.
        let next = lock(&first, LONG).await;
        assert!(next.token() > newest, "{} after {newest}", next.token());
        next.release().await.expect("held");
    }
    first.shutdown().await.expect("released");
    second.shutdown().await.expect("released");
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_slow_delays_nothing_and_keeps_nothing() {
    let Some(mut nodes) = Nodes::start_or_skip("a slow node", 5) else { return };
    let slow = Proxy::start(nodes.0[1].port()).await;
    let ports =
        nodes.0.iter().enumerate().map(|(n, server)| if n == 1 { slow.port() } else { server.port() });
    let client = Client::connect(&url(ports)).await.expect("all nodes accept clients");
    lock(&client, LONG).await.release().await.expect("held");
    slow.delay_replies(ms(300));
    for _ in 0..20 {
        let begin = Instant::now();
        lock(&client, LONG).await.release().await.expect("held");
        assert!(begin.elapsed() < ms(290), "a slow node delayed a lock: {:?}", begin.elapsed());
    }
    left_empty(&mut nodes).await;
    client.shutdown().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_hung_nodes_execute_late_is_cleaned_up() {
    let Some(mut nodes) = Nodes::start_or_skip("nodes that execute late", 5) else { return };
    let (one, other) = (nodes.connect().await, nodes.connect().await);
    nodes.0[0].pause();
    nodes.0[1].pause();
    let held = lock(&one, LONG).await;
    // Refused by three, unanswered by two.
    assert!(mutex(&other, LONG).try_lock().await.expect("a quorum").is_none());
    let error = mutex(&other, LONG).lock_timeout(ms(200)).await.expect_err("held by another");
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    nodes.0[2].pause();
    let error = mutex(&other, LONG).try_lock().await.expect_err("no quorum");
    assert_eq!(no_quorum(&error), Some(3), "{error}");
    for server in &nodes.0[..3] {
        server.resume();
    }
    held.release().await.expect("held");
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_while_two_nodes_hang_pile_up_nothing() {
    let Some(mut nodes) = Nodes::start_or_skip("nodes that hang for long", 5) else { return };
    let client = nodes.connect().await;
    lock(&client, LONG).await.release().await.expect("held");
    let before = nodes.0[0].raw().info_commandstats()["evalsha"];
    nodes.0[1].pause();
    nodes.0[2].pause();
    let (begin, mut count) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(3) || count < 300 {
        lock(&client, LONG).await.release().await.expect("held");
        count += 1;
    }
    // If each of them waited for the nodes that hang, it would be minutes.
    assert!(begin.elapsed() < Duration::from_secs(20), "{count} locks in {:?}", begin.elapsed());
    nodes.0[1].resume();
    nodes.0[2].resume();
    left_empty(&mut nodes).await;
    // A node that hangs was asked now and then, not for every lock.
    let done = |n: usize| nodes.0[n].raw().info_commandstats()["evalsha"] - before;
    assert!(done(0) >= 2 * count, "{count} locks, {} calls", done(0));
    assert!(
        done(1) < done(0) / 3,
        "{count} locks: {} calls of a node that hung, {} of another",
        done(1),
        done(0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn waiters_of_several_clients_make_progress_and_exclude_each_other() {
    const CLIENTS: usize = 3;
    const TASKS: usize = 4;
    const TURNS: u32 = 5;
    const LEASE: Duration = Duration::from_secs(4);
    // Without hand-over within a client each task queues at the nodes, which makes differing queues far more likely.
    for (count, local_handover) in [(5, true), (5, false), (4, false), (2, false)] {
        let Some(mut nodes) = Nodes::start_or_skip("contention", count) else { return };
        let (inside, newest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let end = Instant::now() + Duration::from_secs(3);
        let mut tasks = JoinSet::new();
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            clients.push(nodes.connect().await);
            for _ in 0..TASKS {
                let (inside, newest) = (Arc::clone(&inside), Arc::clone(&newest));
                let terms = MutexOptions::new().ttl(LEASE).local_handover(local_handover);
                let mutex = clients[client].mutex_with(NAME, terms).expect("valid");
                tasks.spawn(async move {
                    let (mut turns, mut longest) = (0_u32, Duration::ZERO);
                    while Instant::now() < end || turns < TURNS {
                        let begin = Instant::now();
                        let guard = within(SOON, mutex.lock()).await.expect("granted");
                        longest = longest.max(begin.elapsed());
                        assert!(!inside.swap(true, Ordering::SeqCst), "two holders at once");
                        let before = newest.swap(guard.token().get(), Ordering::SeqCst);
                        assert!(before < guard.token().get(), "the token {} after {before}", guard.token());
                        sleep(ms(1)).await;
                        inside.store(false, Ordering::SeqCst);
                        guard.release().await.expect("held");
                        turns += 1;
                    }
                    (client, turns, longest)
                });
            }
        }
        let done = tasks.join_all().await;
        println!("{count} nodes: {done:?}");
        // Nobody has waited until the leases of others had ended.
        let served = |(.., longest): &(usize, u32, Duration)| *longest < LEASE * 3 / 4;
        assert!(done.iter().all(served), "{count} nodes: starved: {done:?}");
        for client in clients {
            client.shutdown().await.expect("released");
        }
        left_empty(&mut nodes).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_woken_by_the_release() {
    const WAITERS: usize = 8;
    let Some(nodes) = Nodes::start_or_skip("waking", 5) else { return };
    let mut clients = Vec::new();
    for _ in 0..WAITERS {
        clients.push(nodes.connect().await);
    }
    let holder = nodes.connect().await;
    let guard = lock(&holder, LONG).await;
    let waiting = clients.iter().map(|client| {
        let mutex = mutex(client, LONG);
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("granted");
            let granted = Instant::now();
            guard.release().await.expect("held");
            granted
        })
    });
    let waiting: Vec<_> = waiting.collect();
    eventually(SOON, || async { inspected(&holder).await.waiters.len() == WAITERS }).await;
    let released = Instant::now();
    guard.release().await.expect("held");
    let granted = within(SOON, join_all(waiting)).await;
    let last = granted.into_iter().map(|granted| granted.expect("no panic")).max().expect("some") - released;
    // With polling it would be a multiple of the shortest interval, a third of the lease.
    assert!(last < ms(100 * WAITERS as u64), "{WAITERS} hand-overs took {last:?}");
    println!("{WAITERS} hand-overs took {last:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_enters_from_several_clients_under_one_token() {
    let Some(mut nodes) = Nodes::start_or_skip("owners", 5) else { return };
    let (one, other) = (nodes.connect().await, nodes.connect().await);
    let lock = |client: &Client, owner: &str| {
        client.reentrant_lock_with(NAME, owner, MutexOptions::new().ttl(ms(1500))).expect("valid")
    };
    let first = lock(&one, "me").lock().await.expect("free");
    eventually(SOON, || std::future::ready(held_on(&nodes) == 5)).await;
    let second = lock(&one, "me").lock().await.expect("re-entered");
    let third = lock(&other, "me").lock().await.expect("entered from another client");
    assert_eq!(first.token(), second.token());
    assert_eq!(first.token(), third.token());
    assert!(lock(&other, "you").try_lock().await.expect("a quorum").is_none());
    let you = lock(&other, "you");
    let waiting = tokio::spawn(async move { you.lock().await.expect("granted") });
    drop(first);
    drop(second);
    // The last hold keeps the lock, and is renewed.
    assert!(timeout(ms(2000), third.lost()).await.is_err());
    assert!(!waiting.is_finished());
    let token = third.token();
    third.release().await.expect("held");
    let yours = within(SOON, waiting).await.expect("no panic");
    assert!(yours.token() > token);
    yours.release().await.expect("held");
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_requests_do_not_take_the_tokens_of_an_owner_back() {
    let Some(nodes) = Nodes::start_or_skip("late requests of an owner", 5) else { return };
    // Each of two clients reaches some of the nodes late.
    let mut ways = [Vec::new(), Vec::new()];
    for way in &mut ways {
        for server in &nodes.0 {
            way.push(Proxy::start(server.port()).await);
        }
    }
    let connect = async |way: &[Proxy], node_timeout: &str| {
        // Nothing but the node timeout runs out by itself, however busy the machine is.
        let rest = "connect_timeout=10s&reply_timeout=30s";
        let url = format!("{}?node_timeout={node_timeout}&{rest}", url(way.iter().map(Proxy::port)));
        Client::connect(&url).await.expect("the nodes accept clients")
    };
    let [first_way, second_way] = &ways;
    let (first, second) = (connect(first_way, "30s").await, connect(second_way, "150ms").await);
    let third = nodes.connect().await;
    let entered = async |client: &Client, round: u32| {
        let name = format!("{NAME} {round}");
        let lock = client.reentrant_lock_with(&name, "me", options().ttl(LONG)).expect("valid");
        // On a busy machine the second client needs several attempts: three nodes have to answer within its 150 ms.
        within(SOON * 6, lock.lock()).await.expect("its owner may enter")
    };
    for round in 0..20 {
        // In each round others; three nodes grant it at once.
        let at = |n: u32| ((round + n) % 5) as usize;
        for n in [at(3), at(4)] {
            first_way[n].hold(Direction::ToServer);
        }
        let one = entered(&first, round).await;
        for n in [at(0), at(1)] {
            second_way[n].hold(Direction::ToServer);
        }
        let two = entered(&second, round).await;
        assert!(two.token() >= one.token(), "round {round}: {} after {}", two.token(), one.token());
        for n in [at(3), at(4)] {
            first_way[n].resume();
        }
        let key = format!("{KEY} {round}");
        let holders = async || {
            let lock = third.reentrant_lock(&format!("{NAME} {round}"), "me").expect("valid");
            let seen = lock.inspect().await.map(|seen| seen.nodes).unwrap_or_default();
            seen.iter()
                .map(|node| node.view.as_ref().map_or(0, |view| view.holders.len()))
                .collect::<Vec<_>>()
        };
        // What follows from a late answer has been sent by the time the next request is made; give it the time to
        // arrive.
        eventually(SOON, || async { [at(3), at(4)].iter().all(|n| nodes.values(&key)[*n].is_some()) }).await;
        eventually(SOON, || async { holders().await.iter().filter(|holders| **holders == 2).count() >= 3 })
            .await;
        sleep(ms(10)).await;
        let three = entered(&third, round).await;
        assert!(three.token() >= two.token(), "round {round}: {} after {}", three.token(), two.token());
        for n in [at(0), at(1)] {
            second_way[n].resume();
        }
        for guard in [one, two, three] {
            guard.release().await.expect("held");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_dropped_at_any_moment_leaves_nothing() {
    let Some(mut nodes) = Nodes::start_or_skip("cancellation", 5) else { return };
    let (one, other) = (nodes.connect().await, nodes.connect().await);
    for step in 0..60 {
        let after = Duration::from_micros(step * 40);
        // Free, held, and released in the meantime.
        let _ = timeout(after, mutex(&one, LONG).lock()).await;
        let held = lock(&other, LONG).await;
        let _ = timeout(after, mutex(&one, LONG).lock()).await;
        let _ = timeout(after, mutex(&one, LONG).try_lock()).await;
        let waiting = mutex(&one, LONG);
        let waiting = timeout(ms(2) + after, waiting.lock());
        let (waited, released) = tokio::join!(waiting, async {
            sleep(ms(2)).await;
            held.release().await
        });
        released.expect("held");
        drop(waited);
    }
    left_empty(&mut nodes).await;
    let guard = lock(&other, LONG).await;
    guard.release().await.expect("held");
    one.shutdown().await.expect("released");
    other.shutdown().await.expect("released");
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn semaphores_are_refused_with_the_reason() {
    let Some(nodes) = Nodes::start_or_skip("semaphores", 3) else { return };
    let client = nodes.connect().await;
    let counting = client.counting_semaphore("slow-service", 2).expect_err("refused");
    let fair = client.fair_semaphore("slow-service", 2).expect_err("refused");
    for error in [counting, fair] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("{A,B}, {B,C} and {A,C}"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inspection_has_the_view_of_each_node() {
    let Some(mut nodes) = Nodes::start_or_skip("inspection", 5) else { return };
    let (one, other) = (nodes.connect().await, nodes.connect().await);
    let guard = lock(&one, LONG).await;
    let waiting = tokio::spawn({
        let mutex = mutex(&other, LONG);
        async move { mutex.lock().await.expect("granted") }
    });
    eventually(SOON, || async {
        let seen = inspected(&one).await;
        let all =
            |has: fn(&Inspection) -> bool| seen.nodes.iter().all(|node| node.view.as_ref().is_ok_and(has));
        all(|view| view.holders.len() == 1) && all(|view| view.waiters.len() == 1)
    })
    .await;
    nodes.0[3].kill();
    let seen = inspected(&one).await;
    assert_eq!(seen.holder().and_then(|holder| holder.token), Some(guard.token()));
    assert_eq!((seen.holders.len(), seen.waiters.len(), seen.in_use, seen.nodes.len()), (1, 1, 1, 5));
    for (node, server) in seen.nodes.iter().zip(&nodes.0) {
        assert_eq!(node.store, server.address());
    }
    assert!(seen.nodes[3].view.is_err());
    assert_eq!(seen.nodes.iter().filter(|node| node.view.is_ok()).count(), 4);
    guard.release().await.expect("held");
    within(SOON, waiting).await.expect("no panic").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_ends_the_hold_on_all_nodes() {
    let Some(mut nodes) = Nodes::start_or_skip("forced release", 5) else { return };
    let (one, other) = (nodes.connect().await, nodes.connect().await);
    let guard = lock(&one, LONG).await;
    assert!(mutex(&other, LONG).force_release().await.expect("a quorum"));
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, LossReason::Revoked);
    assert!(!mutex(&other, LONG).force_release().await.expect("a quorum"));
    drop(guard);
    left_empty(&mut nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_is_enough_to_connect_and_the_others_follow() {
    let Some(mut nodes) = Nodes::start_or_skip("connecting", 5) else { return };
    nodes.0[0].kill();
    nodes.0[4].kill();
    let client = nodes.connect().await;
    let guard = lock(&client, ms(1200)).await;
    nodes.0[0].restart();
    nodes.0[4].restart();
    // Connected in the background, and given the lease by a renewal.
    eventually(SOON, || std::future::ready(held_on(&nodes) == 5)).await;
    guard.release().await.expect("held");
    left_empty(&mut nodes).await;

    for server in &mut nodes.0[..3] {
        server.kill();
    }
    let begin = Instant::now();
    // Each that is not connected says why.
    nodes.0[0].restart();
    let another = nodes.connect().await;
    let reason = |n: usize| another.state().nodes[n].reason.clone();
    eventually(SOON, || async { reason(1).is_some() && reason(2).is_some() && reason(3).is_none() }).await;
    nodes.0[0].kill();
    let error = Client::connect(&nodes.url()).await.expect_err("no majority");
    assert_eq!(no_quorum(&error), Some(3), "{error}");
    assert!(begin.elapsed() < SOON, "after {:?}", begin.elapsed());
}

#[test]
fn a_client_is_used_although_the_runtime_on_which_it_was_used_first_is_not_driven() {
    let first = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let second = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let Some(mut nodes) = Nodes::start_or_skip("a runtime that is not driven", 3) else { return };
    let client = first.block_on(async {
        let client = nodes.connect().await;
        lock(&client, LONG).await.release().await.expect("held");
        // The last node confirms the release in the background.
        left_empty(&mut nodes).await;
        client
    });
    second.block_on(async {
        // The nodes are asked for a tenth of a second each, which is not long enough to be sure.
        lock(&client, LONG).await.release().await.expect("held");
        drop(client);
        left_empty(&mut nodes).await;
    });
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_and_timeouts_are_checked() {
    let node = |port: u16| RedisBackend::builder(&format!("redis://127.0.0.1:{port}")).expect("valid");
    let refused = async |builder: leasehold::redlock::RedlockBuilder| match builder.connect().await {
        Err(Error::InvalidArgument { argument, .. }) => argument,
        other => panic!("not refused: {other:?}"),
    };
    assert_eq!(refused(RedlockBackend::builder_from_nodes([])).await, "nodes");
    assert_eq!(refused(RedlockBackend::builder_from_nodes([node(1), node(1)])).await, "nodes");
    assert_eq!(refused(RedlockBackend::builder_from_nodes((1..=32).map(node))).await, "nodes");
    let builder = || RedlockBackend::builder_from_nodes([node(1)]);
    assert_eq!(refused(builder().node_timeout(Duration::ZERO)).await, "node timeout");
    assert_eq!(refused(builder().node_timeout(Duration::from_secs(61))).await, "node timeout");
}

/// What the lock costs: `cargo test --release --test redlock -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn timing() {
    use tokio::runtime::Builder;
    for workers in [0, 2, 4] {
        println!("worker threads: {workers}");
        let mut builder =
            if workers == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let runtime = builder.worker_threads(workers.max(1)).enable_all().build().expect("a runtime");
        runtime.block_on(measure());
    }
}

async fn measure() {
    const TURNS: u32 = 3000;
    let Some(nodes) = Nodes::start_with_or_skip("timing", vec![Setup::as_a_service(); 5]) else { return };
    let slow = Proxy::start(nodes.0[4].port()).await;
    let with_proxy = |n: usize| if n == 4 { slow.port() } else { nodes.0[n].port() };
    let single = Client::connect(&nodes.0[0].url()).await.expect("a server");
    let clients = [
        ("redis://, one node", single),
        ("redlock://, one node", Client::connect(&url((0..1).map(with_proxy))).await.expect("one")),
        ("redlock://, three nodes", Client::connect(&url((0..3).map(with_proxy))).await.expect("three")),
        ("redlock://, five nodes", nodes.connect().await),
        ("redlock://, the fifth slow", Client::connect(&url((0..5).map(with_proxy))).await.expect("five")),
    ];
    for round in 0..3 {
        for (n, (what, client)) in clients.iter().enumerate() {
            slow.delay_replies(if n == 4 { ms(8) } else { Duration::ZERO });
            let mutex = client.mutex(&format!("timing:{n}")).expect("valid");
            let mut turns = Vec::new();
            for _ in 0..TURNS {
                let begin = Instant::now();
                let guard = mutex.lock().await.expect("granted");
                guard.release().await.expect("held");
                turns.push(begin.elapsed());
            }
            turns.sort();
            let mean = turns.iter().sum::<Duration>() / TURNS;
            let (median, late) = (turns[turns.len() / 2], turns[turns.len() * 99 / 100]);
            let calls = nodes.0[0].raw().info_commandstats().get("evalsha").copied().unwrap_or_default();
            nodes.0[0].raw().send(&["CONFIG", "RESETSTAT"]);
            let calls = calls as f64 / f64::from(TURNS);
            println!(
                "{round} {what:28} {calls:4.2} calls mean {mean:>10.1?} median {median:>10.1?} p99 {late:>10.1?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_is_that_of_a_majority_and_names_each_node() -> Result<(), Error> {
    let Some(mut nodes) = Nodes::start_or_skip("the state of a Redlock", 3) else { return Ok(()) };
    let client = Client::connect_lazy(&nodes.url())?;
    mutex(&client, LONG).lock().await?.release().await?;
    let connected = || {
        let state = client.state();
        (state.status.is_connected(), state.nodes.iter().filter(|node| node.status.is_connected()).count())
    };
    eventually(SOON, || async { connected() == (true, 3) }).await;
    let mut changes = client.state_changes();
    nodes.0[0].kill();
    eventually(SOON, || async { connected() == (true, 2) }).await;
    client.ping(SOON).await?;
    nodes.0[1].kill();
    eventually(SOON, || async { connected() == (false, 1) }).await;
    within(SOON, async { while changes.next().await.is_some_and(|state| state.status.is_connected()) {} })
        .await;
    let error = client.ping(LONG).await.expect_err("there is no majority");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    Ok(())
}

/// One node is ahead of the others again and again. Then they get its tokens as well, in calls in which they grant other
/// locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_lowers_a_fence_that_agreed_tokens_have_raised() {
    let setups = (0..3).map(|_| Setup::with_a_log_of_writes()).collect();
    let Some(mut nodes) = Nodes::start_with_or_skip("agreed tokens among grants", setups) else { return };
    let client = nodes.connect().await;
    let lock_often = |n: u64| {
        let mutex = client.mutex_with(&format!("machine:{n}"), options().ttl(LONG)).expect("valid");
        async move {
            for _ in 0..20 {
                let guard = mutex.lock().await.expect("free");
                // So that some request while others release or settle.
                sleep(ms(n % 7)).await;
                guard.release().await.expect("held");
            }
        }
    };
    let tasks: JoinSet<_> = (0..100).map(lock_often).collect();
    let all = pin!(tasks.join_all());
    let mut all = all.fuse();
    let mut ahead = nodes.0[2].raw();
    // So far that clients do not propose such tokens at once.
    let far = ahead.now_us() + 6_000_000;
    ahead.send(&["SET", FENCE, &far.to_string()]);
    for _ in 0..100 {
        ahead.send(&["INCRBY", FENCE, "50000"]);
        if timeout(ms(5), &mut all).await.is_ok() {
            break;
        }
    }
    if !all.is_terminated() {
        within(SOON * 4, all).await;
    }
    client.shutdown().await.expect("released");
    for node in &mut nodes.0[..2] {
        assert_is_never_lowered(node, FENCE);
    }
}
