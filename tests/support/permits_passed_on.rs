//! What hand-over of a counting semaphore's permits inside a client promises on every store, beyond what semaphores
//! promise anyway: `scripts/test.sh` runs their tests once more with it. Each client represents a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use futures::poll;
use futures::stream::{FuturesUnordered, StreamExt};
use leasehold::{Client, CountingSemaphore, Guard, SemaphoreOptions};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Duration, sleep};

use crate::semaphores::*;
use leasehold_support::{begun, eventually, within};

/// How many holds in a row a client has under one grant while others wait.
const TURN: usize = 16;

fn passing_on(client: &Client, limit: u32) -> CountingSemaphore {
    passing_on_leased(client, limit, Duration::from_secs(30))
}

fn passing_on_leased(client: &Client, limit: u32, lease: Duration) -> CountingSemaphore {
    let options = SemaphoreOptions::new().ttl(lease).local_handover(true);
    client.counting_semaphore_with(NAME, limit, options).expect("valid")
}

/// A request for one permit, in a task of its own that has arrived.
async fn arrived(semaphore: &CountingSemaphore) -> JoinHandle<Guard> {
    let semaphore = semaphore.clone();
    begun(async move { semaphore.acquire().await.expect("granted") }).await
}

/// As many as the limit hold, and `n` more have arrived. The client has met the limit.
async fn full(semaphore: &CountingSemaphore, n: usize) -> (Vec<Guard>, Vec<JoinHandle<Guard>>) {
    let mut held = Vec::new();
    for _ in 0..semaphore.limit() {
        held.push(semaphore.acquire().await.expect("granted"));
    }
    let mut waiting = Vec::new();
    for _ in 0..n {
        waiting.push(arrived(semaphore).await);
    }
    (held, waiting)
}

promise!(a_permit_is_passed_on_with_the_next_token_sixteen_holds_in_a_row: counting);
async fn a_permit_is_passed_on_with_the_next_token_sixteen_holds_in_a_row<S: Semaphore>(site: Site) {
    let semaphore = passing_on(&site.client().await, 1);
    let (held, waiting) = full(&semaphore, 2 * TURN).await;
    // One leads, and has a place in the store's queue; the others wait in the client.
    until_waiting(&semaphore, 1).await;
    let visits = waiting.into_iter().map(|waiter| {
        tokio::spawn(async move {
            let guard = waiter.await.expect("granted");
            let token = guard.token().get();
            // Both ways to leave pass the permit on.
            if token % 2 == 0 {
                drop(guard)
            } else {
                guard.release().await.expect("held to the end")
            }
            token
        })
    });
    let visits: Vec<_> = visits.collect();
    let mut tokens: Vec<_> = held.iter().map(|guard| guard.token().get()).collect();
    give_back(held).await;
    tokens.extend(within(SOON, join_all(visits)).await.into_iter().map(|token| token.expect("no panic")));
    tokens.sort_unstable();
    let turns: Vec<_> = tokens.chunk_by(|a, b| a + 1 == *b).map(<[u64]>::len).collect();
    assert!(turns.iter().all(|turn| *turn <= TURN) && turns.len() <= 4, "{turns:?}");
    nothing_is_left(&semaphore).await;
}

promise!(those_of_another_client_get_their_turn: counting);
async fn those_of_another_client_get_their_turn<S: Semaphore>(site: Site) {
    const LIMIT: u32 = 3;
    let [here, there] = site.clients::<2>().await.map(|client| passing_on(&client, LIMIT));
    let (held, waiting) = full(&here, 200).await;
    let (tell, mut told) = unbounded_channel();
    for waiter in waiting {
        let tell = tell.clone();
        tokio::spawn(async move {
            let guard = waiter.await.expect("granted");
            let _ = tell.send(("here", guard.token()));
            yield_now().await;
            drop(guard);
        });
    }
    let before = queued_permits(&here).await.len();
    let other = waiter(&there, 1);
    until_waiting(&here, before + 1).await;
    tokio::spawn(async move {
        let _ = tell.send(("there", other.await.expect("granted").token()));
    });
    drop(held);
    let mut served = Vec::new();
    while let Some(one) = within(SOON, told.recv()).await {
        served.push(one);
    }
    let (_, turn) = *served.iter().find(|(client, _)| *client == "there").expect("it was served");
    // By the store's grants: how soon a client hears of its own is up to the machine. A turn of each permit, and
    // another of those that were queued before, which is one for each permit at most.
    let before = served.iter().filter(|(_, token)| *token < turn).count();
    assert!(before <= 2 * TURN * LIMIT as usize + 1, "{before} were served before");
    nothing_is_left(&here).await;
}

promise!(an_increased_limit_admits_local_waiters_at_once: counting);
async fn an_increased_limit_admits_local_waiters_at_once<S: Semaphore>(site: Site) {
    let [here, there] = site.clients::<2>().await.map(|client| passing_on(&client, 2));
    let (mut held, waiting) = full(&here, 10).await;
    until_waiting(&here, 1).await;
    there.resize(8).await.expect("resized");
    let inside = Arc::new(AtomicUsize::new(0));
    let rest: Vec<_> = waiting
        .into_iter()
        .map(|waiter| {
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                let guard = waiter.await.expect("granted");
                inside.fetch_add(1, Ordering::SeqCst);
                guard
            })
        })
        .collect();
    eventually(SOON, || async { inside.load(Ordering::SeqCst) == 6 }).await;
    assert_none(&there, 1).await;
    assert_eq!(here.limit(), 8);
    held.clear();
    // Those who waited in the client now send requests of their own, in an order that is up to the scheduler.
    let mut rest: FuturesUnordered<_> = rest.into_iter().map(granted).collect();
    while let Some(guard) = rest.next().await {
        drop(guard);
    }
    nothing_is_left(&here).await;
}

promise!(a_limit_that_shrinks_is_kept_once_the_turns_are_over: counting);
async fn a_limit_that_shrinks_is_kept_once_the_turns_are_over<S: Semaphore>(site: Site) {
    let [here, there] = site.clients::<2>().await.map(|client| passing_on(&client, 6));
    let (held, waiting) = full(&here, 300).await;
    there.resize(2).await.expect("resized");
    let inside = Inside::new(6);
    let visits = waiting.into_iter().map(|waiter| {
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            let guard = waiter.await.expect("granted");
            inside.count(1);
            yield_now().await;
            inside.leave(1);
            drop(guard);
        })
    });
    let visits: Vec<_> = visits.collect();
    drop(held);
    within(SECOND * 60, join_all(visits)).await;
    nothing_is_left(&here).await;
    assert_eq!(here.limit(), 2);
    let (two, waiting) = full(&here, 1).await;
    assert_none(&there, 1).await;
    drop(two);
    for waiter in waiting {
        drop(granted(waiter).await);
    }
    nothing_is_left(&here).await;
}

promise!(a_handle_that_was_only_ever_passed_a_permit_follows_the_limit: counting);
async fn a_handle_that_was_only_ever_passed_a_permit_follows_the_limit<S: Semaphore>(site: Site) {
    // The last ones of a turn, and the first of the next.
    for place in [1, TURN - 2, TURN - 1, TURN] {
        let [here, there] = site.clients::<2>().await;
        let (one, fresh) = (passing_on(&here, 1), passing_on(&here, 1));
        let (held, before) = full(&one, place - 1).await;
        let receiver = arrived(&fresh).await;
        drop(held);
        for waiter in before {
            drop(granted(waiter).await);
        }
        drop(granted(receiver).await);
        passing_on(&there, 1).resize(4).await.expect("resized");
        drop(within(SOON, fresh.acquire()).await.expect("it has met the limit that was changed"));
        assert_eq!(fresh.limit(), 4);
        assert_differs(passing_on(&here, 1).acquire().await, (1, 4));
        nothing_is_left(&fresh).await;
        site.flush();
    }
}

promise!(first_waiters_that_are_not_polled_hold_up_nobody_for_ever: counting);
async fn first_waiters_that_are_not_polled_hold_up_nobody_for_ever<S: Semaphore>(site: Site) {
    let lease = site.brief_lease();
    let semaphore = passing_on_leased(&site.client().await, 1, lease);
    let held = semaphore.acquire().await.expect("granted");
    let (mut stuck, mut second) = (Box::pin(semaphore.acquire()), Box::pin(semaphore.acquire()));
    assert!(poll!(stuck.as_mut()).is_pending(), "the first leads");
    assert!(poll!(second.as_mut()).is_pending(), "the second waits in the client");
    let last = arrived(&semaphore).await;
    drop(held);
    // The first waiter's grant, or the permit that was passed to one who is not polled, runs out.
    drop(within(lease * 5, last).await.expect("granted"));
    drop((stuck, second));
    nothing_is_left(&semaphore).await;
}

promise!(a_first_waiter_that_is_not_polled_keeps_no_permit_from_the_others: counting);
async fn a_first_waiter_that_is_not_polled_keeps_no_permit_from_the_others<S: Semaphore>(site: Site) {
    let lease = site.brief_lease();
    let semaphore = passing_on_leased(&site.client().await, 2, lease);
    let [one, two] =
        [semaphore.acquire().await.expect("granted"), semaphore.acquire().await.expect("granted")];
    let mut stuck = Box::pin(semaphore.acquire());
    assert!(poll!(stuck.as_mut()).is_pending(), "it is the first");
    let (next, last) = (arrived(&semaphore).await, arrived(&semaphore).await);
    // To the first waiter, which is not polled, and to the next one, who holds on to it.
    drop((one, two));
    let held = granted(next).await;
    drop(within(lease * 4, last).await.expect("granted"));
    assert!(held.is_held());
    drop((held, stuck));
    nothing_is_left(&semaphore).await;
}

promise!(requests_for_several_permits_or_without_waiting_go_to_the_store: counting);
async fn requests_for_several_permits_or_without_waiting_go_to_the_store<S: Semaphore>(site: Site) {
    let semaphore = passing_on(&site.client().await, 2);
    let (mut held, waiting) = full(&semaphore, 3).await;
    assert_none(&semaphore, 1).await;
    let two = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire_many(2).await.expect("granted") }
    });
    until_waiting(&semaphore, 2).await;
    held.clear();
    for waiter in waiting {
        drop(granted(waiter).await);
    }
    drop(granted(two).await);
    sleep(ms(1)).await;
    nothing_is_left(&semaphore).await;
}

#[test]
fn a_fair_semaphore_refuses_to_pass_permits_on() {
    let options = SemaphoreOptions::new().local_handover(true);
    assert_invalid(Client::memory().fair_semaphore_with(NAME, 3, options), "local hand-over");
}
