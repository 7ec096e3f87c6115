//! What hand-over inside a client promises, on a real server.
#![cfg(feature = "_redis")]

#[macro_use]
#[path = "support/handover_promises.rs"]
mod handover_promises;

use std::time::Duration;

use futures::future::join_all;
use handover_promises::{granted, local, until_waiting, waiter};
use leasehold::{Client, DistMutex, Error, LeaseEnd, LossReason};
use leasehold_support::locks::*;
use leasehold_support::{Direction, Proxy, RedisServer, begun, eventually, within};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(31);

/// A server and its clients.
struct Fixture {
    clients: Vec<Client>,
    server: RedisServer,
}

impl Fixture {
    async fn set_up(left_out: &str, n: usize) -> Option<Self> {
        let server = RedisServer::start_or_skip(left_out)?;
        let url = server.url();
        let clients = join_all((0..n).map(|_| connect(&url))).await;
        warm_up(&server, &clients[0]).await;
        Some(Self { clients, server })
    }

    /// Nothing but fences is left, and no connection.
    async fn end(self) {
        nothing_left(&self.server, SECOND).await;
        for client in &self.clients {
            client.shutdown().await.expect("drained");
        }
        disconnected(&mut self.server.raw()).await;
    }
}

promises! {
    tokio::test(flavor = "multi_thread", worker_threads = 2), Fixture::set_up,
    tasks_of_one_client_are_served_in_order_of_arrival: 2,
    a_hundred_tasks_exclude_each_other_under_growing_tokens: 4,
    another_client_waits_for_sixteen_holds_at_most: 2,
    another_client_waits_for_thirty_milliseconds_of_long_holds_at_most: 2,
    clients_take_turns_in_order: 3,
    mutexes_with_other_options_exclude_each_other_and_pass_nothing_on: 1,
    a_dropped_guard_is_passed_on_as_a_released_one: 1,
    try_lock_neither_waits_nor_overtakes: 1,
    waiters_that_give_up_are_skipped: 1,
    the_first_waiter_that_is_dropped_leaves_its_place_to_the_next_one: 3,
    the_first_waiter_whose_time_is_over_leaves_its_place_to_the_next_one: 3,
    the_first_waiter_dropped_after_any_poll_while_it_is_granted_stalls_nobody: 2,
    the_first_waiter_dropped_after_any_poll_leaves_nothing_and_stalls_nobody: 2,
    a_local_waiter_dropped_at_any_poll_leaves_nothing_and_stalls_no_other: 2,
    a_waiter_dropped_while_the_lease_is_passed_to_it_stalls_no_other: 1,
    a_first_waiter_that_is_not_polled_holds_the_others_up_for_two_leases_at_most: 2,
    a_first_waiter_that_is_never_polled_does_not_block_later_ones: 2,
    a_waiter_with_a_passed_on_lease_that_is_not_polled_blocks_others_for_at_most_two_ttls: 1,
    a_loss_is_reported_to_the_current_holder_only: 2,
    the_maximum_hold_time_counts_for_each_hold: 1,
    short_leases_are_passed_on_for_many_lease_lengths_and_none_is_lost: 2,
    a_shutdown_ends_holders_and_waiters: 2,
    a_shutdown_does_not_wait_for_ever_for_those_that_are_not_polled: 2,
    whatever_tasks_do_at_random_nothing_is_left: 2,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_lease_is_reported_to_the_current_holder_only() {
    let Some(fixture) = Fixture::set_up("forgotten leases", 2).await else { return };
    let mut raw = fixture.server.raw();
    let forget = move || drop(raw.send(&["DEL", KEY]));
    handover_promises::a_forgotten_lease_is_reported_to_the_current_holder_only(&fixture.clients, forget)
        .await;
    fixture.end().await;
}

// Cost

/// How many scripts the server runs while a lock is passed on `holds` times within one client.
async fn cost_of(fixture: &Fixture, mutex: &DistMutex, holds: i64, is_queued: bool) -> u64 {
    let mut raw = fixture.server.raw();
    let mut guard = mutex.lock().await.expect("free");
    let mut waiters = Vec::new();
    for n in 1..holds {
        waiters.push(waiter(mutex).await);
        queued(&fixture.server, if is_queued { n } else { 0 }).await;
    }
    raw.send(&["CONFIG", "RESETSTAT"]);
    for waiter in waiters {
        guard.release().await.expect("held to the end");
        guard = granted(waiter).await;
    }
    let calls = raw.info_commandstats().get("evalsha").copied().unwrap_or(0);
    guard.release().await.expect("held to the end");
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_hand_over_sends_no_command_and_a_release_if_it_is_off() {
    let Some(fixture) = Fixture::set_up("costs", 1).await else { return };
    // More than the time of a turn may pass on a busy machine, but not always.
    let mut costs = Vec::new();
    for _ in 0..20 {
        costs.push(cost_of(&fixture, &local(&fixture.clients[0], LONG), 10, false).await);
        if costs.last() == Some(&0) {
            break;
        }
    }
    assert_eq!(costs.last(), Some(&0), "{costs:?}");
    let switched_off = cost_of(&fixture, &queued_mutex(&fixture.clients[0], LONG), 10, true).await;
    assert_eq!(switched_off, 9);
    fixture.end().await;
}

// A store that fails

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_of_a_passed_on_lease_is_notified_when_the_server_hangs() {
    let Some(fixture) = Fixture::set_up("a server that hangs", 1).await else { return };
    let lease = SECOND;
    let mutex = local(&fixture.clients[0], lease);
    let first = mutex.lock().await.expect("free");
    let (second, third) = (waiter(&mutex).await, waiter(&mutex).await);
    let before = first.ended();
    first.release().await.expect("held to the end");
    let second = granted(second).await;
    fixture.server.pause();
    assert_eq!(within(lease + SLACK, second.lost()).await, LossReason::StoreUnreachable);
    assert!(!second.is_held() && !third.is_finished());
    assert_eq!(before.await, LeaseEnd::Released);
    fixture.server.resume();
    let third = within(lease + SOON, third).await.expect("no panic").expect("granted");
    assert!(third.token() > second.token());
    assert!(matches!(second.release().await, Err(Error::Lost { .. })));
    third.release().await.expect("held to the end");
    nothing_left(&fixture.server, lease + SLACK).await;
    fixture.end().await;
}

/// `lock_timeout` of the first waiter and of those who wait behind it.
async fn lock_with_time_limit(client: &Client, time_limit: Duration) -> Vec<JoinHandle<Result<(), Error>>> {
    let mut waiters = Vec::new();
    for _ in 0..5 {
        let mutex = local(client, LONG);
        let lock = async move { mutex.lock_timeout(time_limit).await?.release().await };
        waiters.push(begun(lock).await);
    }
    waiters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_waiter_hangs_when_the_store_disappears() {
    let Some(fixture) = Fixture::set_up("a store that goes away", 1).await else { return };
    for held_back in [false, true] {
        let proxy = Proxy::start(fixture.server.port()).await;
        let far = connect(&proxy.url()).await;
        let guard = local(&fixture.clients[0], LONG).lock().await.expect("free");
        let waiters = lock_with_time_limit(&far, SECOND).await;
        queued(&fixture.server, 1).await;
        if held_back {
            proxy.hold(Direction::Both);
        } else {
            proxy.refuse(true);
            proxy.cut();
        }
        for outcome in within(SECOND + SOON, join_all(waiters)).await {
            let outcome = outcome.expect("no panic");
            let failed = matches!(outcome, Err(Error::TimedOut { .. } | Error::StoreUnavailable { .. }));
            assert!(failed, "{outcome:?}");
        }
        proxy.refuse(false);
        proxy.resume();
        guard.release().await.expect("held to the end");
        for outcome in within(2 * SOON, join_all(lock_with_time_limit(&far, 2 * SOON).await)).await {
            outcome.expect("no panic").expect("works again");
        }
        nothing_left(&fixture.server, SOON).await;
        far.shutdown().await.expect("drained");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_by_the_store_is_reported_to_all_waiters() {
    let Some(fixture) = Fixture::set_up("refusals", 1).await else { return };
    let mut raw = fixture.server.raw();
    raw.send(&["LPUSH", KEY, "something else"]);
    let mutex = local(&fixture.clients[0], LONG);
    let mut waiters = Vec::new();
    for _ in 0..10 {
        waiters.push(waiter(&mutex).await);
    }
    for waiter in waiters {
        let outcome = within(SOON, waiter).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::StoreRefused { .. })), "{outcome:?}");
    }
    raw.send(&["DEL", KEY]);
    mutex.lock_timeout(SECOND).await.expect("works again").release().await.expect("held to the end");
    drop(raw);
    fixture.end().await;
}

// Places and connections

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_task_of_a_client_is_queued_for_all() {
    let Some(fixture) = Fixture::set_up("places in the queue", 2).await else { return };
    let mutex = local(&fixture.clients[0], LONG);
    let guard = local(&fixture.clients[1], LONG).lock().await.expect("free");
    let mut waiters = Vec::new();
    for _ in 0..30 {
        waiters.push(waiter(&mutex).await);
    }
    until_waiting(&mutex, 1).await;
    assert!(timeout(ms(100), until_waiting(&mutex, 2)).await.is_err(), "more than one");
    guard.release().await.expect("held to the end");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_dropped_while_some_hold_lead_and_wait_leaves_nothing() {
    let Some(fixture) = Fixture::set_up("a dropped client", 1).await else { return };
    let mut raw = fixture.server.raw();
    let before = connections(&mut raw);
    let doomed = connect(&fixture.server.url()).await;
    let blocker = local(&fixture.clients[0], LONG).lock().await.expect("free");
    let held = doomed.mutex("held").expect("valid");
    let guard = held.lock().await.expect("free");
    let mut waiters = vec![waiter(&held).await, waiter(&held).await];
    for _ in 0..4 {
        waiters.push(waiter(&local(&doomed, LONG)).await);
    }
    queued(&fixture.server, 1).await;
    for waiter in &waiters {
        waiter.abort();
    }
    drop((guard, held, doomed));
    for waiter in waiters {
        // Whether the lease was passed to it or not.
        drop(within(SOON, waiter).await);
    }
    eventually(SOON, || std::future::ready(connections(&mut raw) == before)).await;
    drop(raw);
    blocker.release().await.expect("held to the end");
    fixture.end().await;
}
