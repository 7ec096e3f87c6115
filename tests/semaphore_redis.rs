//! What both semaphores and their guards promise on a real Redis server, seen from one process.
#![cfg(feature = "_redis")]

#[path = "support/semaphores.rs"]
mod semaphores;

/// Makes a test of a function for each kind named, on a server of its own.
macro_rules! promise {
    ($promise:ident: $($kind:ident),+) => {
        mod $promise {
            $(promise!(@ $promise $kind);)+
        }
    };
    (@ $promise:ident counting) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn counting() {
            let Some(site) = crate::semaphores::Site::redis(stringify!($promise)) else { return };
            super::$promise::<leasehold::CountingSemaphore>(site).await;
        }
    };
    (@ $promise:ident fair) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn fair() {
            let Some(site) = crate::semaphores::Site::redis(stringify!($promise)) else { return };
            super::$promise::<leasehold::FairSemaphore>(site).await;
        }
    };
}

#[path = "support/permits_passed_on.rs"]
mod passed_on;
#[path = "support/semaphore_promises.rs"]
mod promises;

use std::future::{Future, ready};
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join, join_all, select_all};
use leasehold::backend::Kind;
use leasehold::{BackendError, Client, Error, Guard, LossReason, SemaphoreOptions};
use leasehold_support::locks::{
    all_commands, assert_unavailable, disconnected, drive_until, left, listeners, polled, scripts_called,
};
use leasehold_support::proxy::Request;
use leasehold_support::{
    Clock, Direction, Proxy, Raw, RedisServer, Reply, Setup, assert_pending, eventually, within,
};
use semaphores::*;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

const DAY_MS: i64 = 86_400_000;
/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(30);
/// More polls than any request takes.
const MANY: usize = 100;

// The store by hand

/// The key itself.
fn key<S: Semaphore>() -> String {
    format!("{}{NAME}", S::PREFIX)
}

/// A key that stands beside it.
fn beside<S: Semaphore>(suffix: &str) -> String {
    format!("{{{}{NAME}}}:{suffix}", S::PREFIX)
}

fn all_keys<S: Semaphore>() -> [String; 5] {
    [key::<S>(), beside::<S>("queue"), beside::<S>("waiters"), beside::<S>("state"), beside::<S>("holds")]
}

/// Of all semaphores of a kind, with the usual prefix.
fn fence<S: Semaphore>() -> String {
    format!("{{{}}}:fence", S::PREFIX)
}

/// Only fences are in the store, each of which goes after a day, and what is known of semaphores, which goes after four
/// leases.
#[track_caller]
fn assert_only_fences(raw: &mut Raw) {
    for key in raw.keys("*") {
        assert!(
            key.starts_with('{') && (key.ends_with(":fence") || key.ends_with(":state")),
            "left behind: {key}"
        );
        let rest = raw.pttl(&key);
        let most = if key.ends_with(":fence") { DAY_MS } else { 4 * 30_000 };
        // -2 is a key that has gone since.
        assert!(rest == -2 || 0 < rest && rest <= most, "{key} has {rest} ms left");
    }
}

/// Only fences, and what is known of semaphores, are in the store within a second.
#[track_caller]
fn only_fences_are_left(server: &RedisServer) -> impl Future<Output = ()> {
    let mut raw = server.raw();
    eventually(SECOND + SLACK, move || ready(left(&mut raw).is_empty()))
}

/// Makes the server remember every script, so that none of the next calls is refused as unknown.
async fn warm_up<S: Semaphore>(client: &Client) {
    let options = SemaphoreOptions::new().renewal_period(ms(20));
    let semaphore = S::make(client, "warm", 3, options).expect("valid");
    let guard = taken(&semaphore, 2).await;
    renewed(&guard).await;
    semaphore.resize(3).await.expect("resized");
    semaphore.inspect().await.expect("inspected");
    guard.release().await.expect("held to the end");
}

// Cost

promise!(an_acquisition_and_its_release_are_two_commands_and_a_part_is_one_more: counting, fair);
async fn an_acquisition_and_its_release_are_two_commands_and_a_part_is_one_more<S: Semaphore>(site: Site) {
    let client = site.client().await;
    let (semaphore, mut raw) = (S::of(&client, 5), site.server().raw());
    warm_up::<S>(&client).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    let mut guard = semaphore.acquire_many(3).await.expect("free");
    let part = guard.split(1).expect("of three");
    part.release().await.expect("held to the end");
    guard.release().await.expect("held to the end");
    let calls = raw.info_commandstats();
    assert_eq!(calls.get("evalsha"), Some(&3), "{calls:?}");
    assert!(!calls.contains_key("eval") && !calls.contains_key("publish"), "{calls:?}");
}

promise!(a_release_wakes_exactly_the_waiters_that_fit: counting, fair);
async fn a_release_wakes_exactly_the_waiters_that_fit<S: Semaphore>(site: Site) {
    let (clients, mut raw) = (site.clients::<3>().await, site.server().raw());
    warm_up::<S>(&clients[0]).await;
    let semaphores = clients.clone().map(|client| S::of(&client, 6));
    let (four, _two) = (taken(&semaphores[0], 4).await, taken(&semaphores[0], 2).await);
    let mut sizes = vec![3, 2, 1, 4, 1];
    sizes.extend([5; 20]);
    let mut waiters = queue_up(&semaphores, &sizes).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    four.release().await.expect("held to the end");
    let served = if S::KIND == Kind::Counting { vec![2, 0] } else { vec![0] };
    let mut guards = Vec::new();
    for i in &served {
        guards.push(granted(waiters.remove(*i)).await);
    }
    let calls = raw.info_commandstats();
    assert_eq!(scripts_called(&calls), 1, "the release, and nobody asked: {calls:?}");
    assert_eq!(calls.get("publish"), Some(&(served.len() as u64)), "nobody else was told: {calls:?}");
    waiters.iter().for_each(JoinHandle::abort);
}

/// Commands per hand-over, those inside scripts included, when so many wait for up to three of three permits.
async fn hand_over_cost<S: Semaphore>(server: &RedisServer, clients: &[Client], waiters: usize) -> f64 {
    let mut raw = server.raw();
    // Its requests are repeated every 100 seconds.
    let options = SemaphoreOptions::new().ttl(SECOND * 300);
    let semaphores: Vec<_> =
        clients.iter().map(|client| S::strict(client, NAME, 3, options.clone())).collect();
    let guard = taken(&semaphores[0], 3).await;
    let mut tasks = JoinSet::new();
    for i in 0..waiters {
        let semaphore = semaphores[i % semaphores.len()].clone();
        let permits = 1 + size(i) % 3;
        tasks.spawn(async move { semaphore.acquire_many(permits).await.expect("granted").release().await });
    }
    let (queue, expected) = (beside::<S>("queue"), i64::try_from(waiters).expect("a small number"));
    eventually(SECOND * 20, || ready(raw.send(&["ZCARD", &queue]).int() == expected)).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    guard.release().await.expect("held to the end");
    for released in within(SECOND * 40, tasks.join_all()).await {
        released.expect("held to the end");
    }
    let calls = raw.info_commandstats();
    // At most one release each, and that of the guard that began it; some may share a call.
    assert!(scripts_called(&calls) <= waiters as u64 + 1, "{calls:?}");
    all_commands(&calls) as f64 / waiters as f64
}

promise!(a_hand_over_takes_the_same_work_for_ten_and_for_a_thousand_waiters: counting, fair);
async fn a_hand_over_takes_the_same_work_for_ten_and_for_a_thousand_waiters<S: Semaphore>(site: Site) {
    let clients = site.clients::<2>().await;
    warm_up::<S>(&clients[0]).await;
    let few = hand_over_cost::<S>(site.server(), &clients, 10).await;
    let many = hand_over_cost::<S>(site.server(), &clients, 1000).await;
    assert!(many <= few * 1.2, "{few} commands per hand-over among 10 waiters, {many} among 1000");
}

promise!(a_long_queue_has_an_index: counting, fair);
async fn a_long_queue_has_an_index<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::strict(&client, NAME, 1, SemaphoreOptions::new());
    let guard = taken(&semaphore, 1).await;
    let waiters = queue_up(from_ref(&semaphore), &[1; 40]).await;
    for (suffix, encoding) in [("queue", "skiplist"), ("waiters", "hashtable")] {
        assert_eq!(raw.send(&["OBJECT", "ENCODING", &beside::<S>(suffix)]).text().as_deref(), Some(encoding));
    }
    guard.release().await.expect("held to the end");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
    only_fences_are_left(site.server()).await;
}

promise!(available_takes_the_same_work_for_any_number_of_holders_and_waiters: counting, fair);
async fn available_takes_the_same_work_for_any_number_of_holders_and_waiters<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    warm_up::<S>(&client).await;
    // While it is asked, nothing is repeated or renewed.
    let semaphore = S::leased(&client, 1000, SECOND * 60);
    let (mut held, mut waiters, mut costs) = (Vec::new(), Vec::new(), Vec::new());
    for (holders, waiting) in [(1, 1), (1000, 200)] {
        held.extend(join_all((held.len()..holders).map(|_| taken(&semaphore, 1))).await);
        waiters.extend((waiters.len()..waiting).map(|_| waiter(&semaphore, 1000)));
        until_waiting(&semaphore, waiting).await;
        raw.send(&["CONFIG", "RESETSTAT"]);
        assert_eq!(free(&semaphore).await, 1000 - size(holders));
        let calls = raw.info_commandstats();
        assert_eq!(scripts_called(&calls), 1, "{calls:?}");
        costs.push(all_commands(&calls));
        if S::KIND == Kind::Fair {
            // Or nobody would get past it.
            waiters.drain(..).for_each(|waiter| waiter.abort());
            until_waiting(&semaphore, 0).await;
        }
    }
    waiters.iter().for_each(JoinHandle::abort);
    assert_eq!(costs[0], costs[1]);
}

promise!(a_lease_is_renewed_once_however_many_parts_share_it: counting, fair);
async fn a_lease_is_renewed_once_however_many_parts_share_it<S: Semaphore>(site: Site) {
    const PARTS: u32 = 100;
    let (client, mut raw) = (site.client().await, site.server().raw());
    warm_up::<S>(&client).await;
    let mut guard = taken(&S::leased(&client, PARTS, SECOND * 3), PARTS).await;
    let _parts: Vec<_> = (1..PARTS).map(|_| guard.split(1).expect("one more")).collect();
    raw.send(&["CONFIG", "RESETSTAT"]);
    let begun = Instant::now();
    eventually(SOON * 2, || ready(scripts_called(&raw.info_commandstats()) >= 3)).await;
    assert!(begun.elapsed() >= SECOND * 2, "a lease, less what had passed: {:?}", begun.elapsed());
    assert!(guard.is_held());
}

promise!(the_first_waiter_is_awake_within_100_ms_of_the_release_of_the_second_holder: counting, fair);
async fn the_first_waiter_is_awake_within_100_ms_of_the_release_of_the_second_holder<S: Semaphore>(
    site: Site,
) {
    const MEASUREMENTS: usize = 5;
    let [one, two, three] = site.clients().await.map(|client| S::of(&client, 2));
    for dropped in [false, true] {
        let mut delays = Vec::new();
        while delays.len() < MEASUREMENTS {
            let (first, second) = (taken(&one, 1).await, taken(&two, 1).await);
            let semaphore = three.clone();
            let waiter = tokio::spawn(async move {
                let guard = semaphore.acquire().await.expect("granted");
                (guard, Instant::now())
            });
            until_waiting(&one, 1).await;
            let begun = Instant::now();
            if dropped {
                drop(second)
            } else {
                second.release().await.expect("held to the end")
            }
            let (guard, awake) = within(SOON, waiter).await.expect("no panic");
            delays.push(awake - begun);
            assert!(guard.token() > first.token());
            give_back([first, guard]).await;
        }
        // A busy machine may hold some of them up.
        assert!(delays.iter().min() <= Some(&ms(100)), "dropped: {dropped}, awake after {delays:?}");
    }
}

// Nothing left

promise!(a_mixed_run_leaves_nothing_but_fences_and_no_connection: counting, fair);
async fn a_mixed_run_leaves_nothing_but_fences_and_no_connection<S: Semaphore>(site: Site) {
    const TASKS: usize = 45;
    let mut raw = site.server().raw();
    let clients = site.clients::<3>().await;
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let client = clients[i % clients.len()].clone();
        tasks.spawn(async move {
            for turn in 0..8 {
                let semaphore = S::named(&client, &format!("service-{}", (i + turn) % 4), 3);
                let (permits, moment) = (1 + size(i * 7 + turn) % 3, ms((i * 7 + turn) as u64 % 12));
                match (i + turn) % 6 {
                    0 => give_back(semaphore.acquire_many(permits).await).await,
                    1 => drop(semaphore.acquire_many(permits).await.expect("granted")),
                    2 => drop(semaphore.try_acquire_many(permits).await.expect("answered")),
                    // Times out, and is dropped, at any point of the way to a grant and after it.
                    3 => drop(semaphore.acquire_many_timeout(permits, moment).await),
                    4 => drop(timeout(moment, semaphore.acquire_many(permits)).await),
                    _ => {
                        let mut guard = semaphore.acquire_many(3).await.expect("granted");
                        let (part, other) = (guard.split(1), guard.split(1));
                        give_back(part).await;
                        drop((other, guard));
                    }
                }
            }
        });
    }
    let mut seen = 0;
    let end = Instant::now() + LONG;
    while !tasks.is_empty() {
        for key in raw.keys("*") {
            // Whoever dies now leaves nothing forever. -2 is a key that has gone since.
            let rest = raw.pttl(&key);
            assert!(rest == -2 || rest > 0, "{key} has no expiry: {rest}");
            seen += u32::from(!key.ends_with(":fence") && !key.ends_with(":state"));
        }
        while let Some(ended) = tasks.try_join_next() {
            ended.expect("no panic");
        }
        assert!(Instant::now() < end, "{} tasks still run", tasks.len());
        tokio::task::yield_now().await;
    }
    assert!(seen > 0, "nothing was ever seen: the test proves nothing");
    for client in &clients {
        client.shutdown().await.expect("drained");
    }
    assert_only_fences(&mut raw);
    assert_eq!(raw.keys("*:fence"), [fence::<S>()], "one fence for all names");
    drop(clients);
    disconnected(&mut raw).await;
}

promise!(refused_arguments_send_nothing: counting, fair);
async fn refused_arguments_send_nothing<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::of(&client, 5);
    raw.send(&["CONFIG", "RESETSTAT"]);
    assert_invalid(S::make(&client, NAME, 0, SemaphoreOptions::new()), "limit");
    assert_invalid(semaphore.resize(0).await, "limit");
    for permits in [0, 6, u32::MAX] {
        assert_invalid(semaphore.acquire_many(permits).await, "permits");
        assert_invalid(semaphore.try_acquire_many(permits).await, "permits");
        assert_invalid(semaphore.acquire_many_timeout(permits, SECOND).await, "permits");
    }
    assert_eq!(scripts_called(&raw.info_commandstats()), 0);
    assert_eq!(raw.keys("*"), Vec::<String>::new());
}

// Futures dropped at every await point

/// A request for two of three permits, polled so often and dropped, for more and more polls until it is done.
async fn drop_after_any_poll<S: Semaphore, F>(site: &Site, request: impl Fn(S) -> F)
where
    F: Future,
{
    let [one, other] = site.clients().await.map(|client| S::of(&client, 3));
    for polls in 0..MANY {
        let output = polled(request(one.clone()), polls).await;
        let done = output.is_some();
        drop(output);
        for semaphore in [&other, &one] {
            semaphore.acquire_many_timeout(3, SECOND).await.expect("free").release().await.expect("held");
        }
        only_fences_are_left(site.server()).await;
        if done {
            return;
        }
    }
    panic!("not done after {MANY} polls");
}

promise!(a_request_dropped_after_any_poll_leaves_nothing: counting, fair);
async fn a_request_dropped_after_any_poll_leaves_nothing<S: Semaphore>(site: Site) {
    let is_granted = |guard: Result<Guard, Error>| drop(guard.expect("granted"));
    drop_after_any_poll(&site, |s: S| async move { is_granted(s.acquire_many(2).await) }).await;
    drop_after_any_poll(&site, |s: S| async move { is_granted(s.acquire_many_timeout(2, SECOND).await) })
        .await;
    drop_after_any_poll(&site, |s: S| async move { drop(s.try_acquire_many(2).await.expect("answered")) })
        .await;
}

promise!(a_request_dropped_after_any_poll_while_it_waits_leaves_its_place: counting, fair);
async fn a_request_dropped_after_any_poll_while_it_waits_leaves_its_place<S: Semaphore>(site: Site) {
    let [one, other] = site.clients().await.map(|client| S::of(&client, 3));
    let guard = taken(&other, 2).await;
    for polls in 0..MANY {
        // The last polls come with a wake-up that never comes: then it waits in the queue.
        let waiting = timeout(ms(50), polled(one.acquire_many(2), polls)).await;
        assert!(!matches!(waiting, Ok(Some(_))), "one is missing");
        until_waiting(&other, 0).await;
        if waiting.is_err() {
            guard.release().await.expect("held to the end");
            return only_fences_are_left(site.server()).await;
        }
    }
    panic!("not waiting after {MANY} polls");
}

promise!(a_request_dropped_after_any_poll_while_it_is_granted_leaves_nothing: counting, fair);
async fn a_request_dropped_after_any_poll_while_it_is_granted_leaves_nothing<S: Semaphore>(site: Site) {
    let [one, other] = site.clients().await.map(|client| S::of(&client, 3));
    for polls in 0..MANY {
        let mut guard = taken(&other, 3).await;
        let part = guard.split(2).expect("of three");
        let mut waiter = one.acquire_many(2).boxed();
        drive_until(waiter.as_mut(), until_waiting(&other, 1)).await;
        part.release().await.expect("held to the end");
        let output = polled(waiter, polls).await;
        let done = output.is_some();
        drop(output);
        becomes_free(&other, 2).await;
        guard.release().await.expect("held to the end");
        only_fences_are_left(site.server()).await;
        if done {
            return;
        }
    }
    panic!("not granted after {MANY} polls");
}

promise!(a_time_limit_that_races_the_grant_leaves_nothing_in_a_thousand_rounds: counting, fair);
async fn a_time_limit_that_races_the_grant_leaves_nothing_in_a_thousand_rounds<S: Semaphore>(site: Site) {
    const LANES: u64 = 5;
    const ROUNDS: u64 = 200;
    let clients = site.clients::<2>().await;
    let lanes = (0..LANES).map(|lane| {
        let [one, other] = [0, 1].map(|i: usize| S::named(&clients[i], &format!("lane-{lane}"), 2));
        async move {
            let mut won = 0;
            for round in 0..ROUNDS {
                let guard = within(SOON, other.acquire_many(2)).await.expect("granted");
                let limit = Instant::now() + ms(8);
                // From 5 ms before the limit to 5 ms after it.
                let release_at = limit - ms(5) + Duration::from_micros(10_000 * round / ROUNDS);
                let release = async {
                    sleep_until(release_at).await;
                    guard.release().await.expect("held to the end");
                };
                let time_limit = limit - Instant::now();
                let request = async {
                    match round % 2 {
                        0 => timeout_at(limit, one.acquire()).await.ok().map(|guard| guard.expect("granted")),
                        _ => one.acquire_timeout(time_limit).await.ok(),
                    }
                };
                if let (Some(guard), ()) = tokio::join!(request, release) {
                    guard.release().await.expect("held to the end");
                    won += 1;
                }
            }
            won
        }
    });
    let won: u64 = join_all(lanes).await.into_iter().sum();
    assert!(won > 0 && won < LANES * ROUNDS, "a race that both sides win now and then: {won}");
    only_fences_are_left(site.server()).await;
}

promise!(what_was_dropped_is_gone_within_a_second_without_any_shutdown: counting, fair);
async fn what_was_dropped_is_gone_within_a_second_without_any_shutdown<S: Semaphore>(site: Site) {
    let semaphore = S::of(&site.client().await, 3);
    let mut guard = taken(&semaphore, 3).await;
    let waiters = queue_up(from_ref(&semaphore), &[1, 2, 3, 1, 2, 3]).await;
    waiters.iter().for_each(JoinHandle::abort);
    drop((guard.split(1), guard));
    only_fences_are_left(site.server()).await;
    assert_only_fences(&mut site.server().raw());
}

// Keys changed from outside

promise!(deleted_holders_are_notified_and_other_names_are_not_affected: counting, fair);
async fn deleted_holders_are_notified_and_other_names_are_not_affected<S: Semaphore>(site: Site) {
    let ([one, two], mut raw) = (site.clients().await, site.server().raw());
    let options = SemaphoreOptions::new().renewal_period(ms(20));
    let other = taken(&S::make(&one, "other", 3, options).expect("valid"), 3).await;
    let semaphore = S::attentive(&one, 3);
    for suffix in ["", "holds"] {
        let deleted = if suffix.is_empty() { key::<S>() } else { beside::<S>(suffix) };
        let held = [taken(&semaphore, 1).await, taken(&semaphore, 2).await];
        let waiter = queued(&S::leased(&two, 3, SECOND * 3), 3, 0).await;
        assert_eq!(raw.send(&["DEL", &deleted]).int(), 1);
        let told = join_all(held.iter().map(Guard::lost));
        assert_eq!(within(SOON, told).await, [LossReason::Missing; 2], "{deleted}");
        let next = granted(waiter).await;
        for guard in held {
            assert!(guard.token() < next.token());
            assert_lost(guard.release().await, LossReason::Missing);
        }
        assert_eq!(holds(&semaphore).await, [3], "{deleted}");
        next.release().await.expect("held to the end");
    }
    assert_pending(ms(200), other.lost()).await;
    other.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

promise!(a_single_holder_removed_from_outside_loses_its_permits_and_no_other_does: counting, fair);
async fn a_single_holder_removed_from_outside_loses_its_permits_and_no_other_does<S: Semaphore>(site: Site) {
    let ([one, two], mut raw) = (site.clients().await, site.server().raw());
    let semaphore = S::attentive(&one, 5);
    for (command, key) in [("ZREM", key::<S>()), ("HDEL", beside::<S>("holds"))] {
        let stays = taken(&semaphore, 2).await;
        let goes = taken(&semaphore, 3).await;
        let now = semaphore.inspect().await.expect("inspected");
        let gone = now.holders.iter().find(|holder| holder.token == Some(goes.token())).expect("a holder");
        assert_eq!(raw.send(&[command, &key, &gone.id]).int(), 1);
        assert_eq!(within(SOON, goes.lost()).await, LossReason::Missing, "{command}");
        assert_eq!(taken(&S::of(&two, 5), 3).await.permits(), 3);
        assert_pending(ms(100), stays.lost()).await;
        stays.release().await.expect("held to the end");
        assert_lost(goes.release().await, LossReason::Missing);
        nothing_is_left(&semaphore).await;
    }
}

promise!(waiters_whose_queue_was_deleted_are_served_all_the_same: counting, fair);
async fn waiters_whose_queue_was_deleted_are_served_all_the_same<S: Semaphore>(site: Site) {
    const LEASE: Duration = Duration::from_secs(3);
    let (clients, mut raw) = (site.clients::<2>().await, site.server().raw());
    let semaphores = clients.clone().map(|client| S::leased(&client, 2, LEASE));
    for suffixes in [&["queue", "waiters"][..], &["queue"], &["waiters"]] {
        let guard = taken(&S::of(&clients[0], 2), 2).await;
        let waiters = queue_up(&semaphores, &[1, 2, 1]).await;
        for suffix in suffixes {
            assert_eq!(raw.send(&["DEL", &beside::<S>(suffix)]).int(), 1);
        }
        guard.release().await.expect("held to the end");
        let served = waiters.into_iter().map(|waiter| async { granted(waiter).await.release().await });
        for released in join_all(served).await {
            released.expect("held to the end");
        }
        // What cannot be found any more goes by itself.
        eventually(LEASE * 2 + SLACK, || ready(left(&mut raw).is_empty())).await;
    }
}

promise!(holders_whose_keys_were_deleted_leave_all_permits_to_others: counting, fair);
async fn holders_whose_keys_were_deleted_leave_all_permits_to_others<S: Semaphore>(site: Site) {
    let ([one, two], mut raw) = (site.clients().await, site.server().raw());
    let (semaphore, other) = (S::of(&one, 3), S::of(&two, 3));
    taken(&other, 1).await.release().await.expect("held to the end");
    let gone = [taken(&semaphore, 1).await, taken(&semaphore, 1).await];
    assert_eq!(raw.send(&["DEL", &key::<S>(), &beside::<S>("holds")]).int(), 2);
    let fresh = [taken(&other, 1).await, taken(&other, 1).await, taken(&other, 1).await];
    assert!(other.try_acquire().await.expect("answered").is_none(), "three of three are held");
    for key in [key::<S>(), beside::<S>("holds")] {
        assert!(raw.pttl(&key) > 0, "{key} never expires");
    }
    for guard in gone {
        assert_lost(guard.release().await, LossReason::Missing);
    }
    give_back(fresh).await;
    nothing_is_left(&other).await;
}

promise!(something_else_under_the_key_for_a_while_admits_nobody_too_many: counting, fair);
async fn something_else_under_the_key_for_a_while_admits_nobody_too_many<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::of(&client, 1);
    for foreign in [key::<S>(), beside::<S>("queue")] {
        let guard = taken(&semaphore, 1).await;
        let held = foreign != key::<S>();
        if !held {
            guard.release().await.expect("held to the end");
            raw.send(&["SET", &foreign, "foreign"]);
            assert_refused(semaphore.try_acquire().await);
        } else {
            raw.send(&["SET", &foreign, "foreign"]);
            assert_refused(semaphore.acquire_timeout(SECOND).await);
            assert_eq!(raw.send(&["EXISTS", &beside::<S>("waiters")]).int(), 0, "nobody waits in that queue");
            // It is refused, but what it had is given back before that.
            drop(guard);
        }
        raw.send(&["DEL", &foreign]);
        let guard = within(SOON, semaphore.acquire()).await.expect("free");
        assert!(semaphore.try_acquire().await.expect("answered").is_none(), "one of one is held");
        guard.release().await.expect("held to the end");
    }
    nothing_is_left(&semaphore).await;
}

promise!(an_unreadable_state_is_rebuilt_and_admits_no_extra_holder: counting, fair);
async fn an_unreadable_state_is_rebuilt_and_admits_no_extra_holder<S: Semaphore>(site: Site) {
    let (clients, mut raw) = (site.clients::<2>().await, site.server().raw());
    let [one, two] = clients.map(|client| S::of(&client, 2));
    for text in ["", "7", "12345678", "junk"] {
        let held = [taken(&one, 1).await, taken(&two, 1).await];
        let waiters = queue_up(&[one.clone(), two.clone()], &[1, 1]).await;
        raw.send(&["SET", &beside::<S>("state"), text]);
        give_back(held).await;
        let mut served = Vec::new();
        for waiter in waiters {
            // Nobody knows the limit until somebody states it: the waiters, when they repeat their requests.
            drop(one.try_acquire().await);
            served.push(granted(waiter).await);
        }
        assert_none(&one, 1).await;
        assert_none(&two, 1).await;
        give_back(served).await;
        nothing_is_left(&one).await;
    }
    only_fences_are_left(site.server()).await;
}

promise!(what_is_made_anew_by_a_grant_expires: counting, fair);
async fn what_is_made_anew_by_a_grant_expires<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::of(&client, 4);
    let held = [taken(&semaphore, 1).await, taken(&semaphore, 1).await];
    raw.send(&["DEL", &beside::<S>("holds")]);
    let guard = taken(&semaphore, 1).await;
    assert!(raw.pttl(&beside::<S>("holds")) > 0);
    guard.release().await.expect("held to the end");
    drop(held);
    nothing_is_left(&semaphore).await;
}

promise!(a_full_store_releases_holds_that_were_deleted: counting, fair);
async fn a_full_store_releases_holds_that_were_deleted<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    for gone in [&[key::<S>(), beside::<S>("holds")][..], &[beside::<S>("state")]] {
        let guard = taken(&S::of(&client, 3), 2).await;
        raw.send(&["CONFIG", "SET", "maxmemory", "1"]);
        for key in gone {
            assert_eq!(raw.send(&["DEL", key]).int(), 1);
        }
        match guard.release().await {
            Ok(()) => assert_eq!(gone.len(), 1, "it had nothing left"),
            Err(error) => assert_lost(Err::<(), _>(error), LossReason::Missing),
        }
        assert_eq!(raw.send(&["CONFIG", "SET", "maxmemory", "0"]), Reply::ok());
    }
    only_fences_are_left(site.server()).await;
}

promise!(an_inspection_without_the_state_counts_what_is_held: counting, fair);
async fn an_inspection_without_the_state_counts_what_is_held<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::of(&client, 5);
    let held = [taken(&semaphore, 1).await, taken(&semaphore, 2).await];
    assert_eq!(raw.send(&["DEL", &beside::<S>("state")]).int(), 1);
    let now = semaphore.inspect().await.expect("inspected");
    assert_eq!((now.in_use, now.holders.len()), (3, 2));
    give_back(held).await;
    only_fences_are_left(site.server()).await;
}

promise!(a_queue_that_was_deleted_and_created_again_is_kept_for_all_who_wait_in_it: counting, fair);
async fn a_queue_that_was_deleted_and_created_again_is_kept_for_all_who_wait_in_it<S: Semaphore>(site: Site) {
    let (clients, mut raw) = (site.clients::<3>().await, site.server().raw());
    let long = ms(30_000);
    let [brief, patient, newcomer] = [SECOND, long, long];
    let [brief, patient, newcomer] =
        [(0, brief), (1, patient), (2, newcomer)].map(|(n, lease)| S::leased(&clients[n], 1, lease));
    let guard = taken(&newcomer, 1).await;
    let first = queue_up(&[patient, brief], &[1, 1]).await;
    assert_eq!(raw.send(&["DEL", &beside::<S>("queue")]).int(), 1);
    // Whoever repeats itself first makes it anew, for two of its own leases.
    eventually(SECOND, || ready(raw.send(&["ZCARD", &beside::<S>("queue")]).int() == 1)).await;
    let last = queued(&newcomer, 1, 2).await;
    for suffix in ["queue", "waiters"] {
        let left = raw.pttl(&beside::<S>(suffix));
        assert!(left > 30_000, "{suffix} goes in {left} ms");
    }
    guard.release().await.expect("held to the end");
    first.into_iter().chain([last]).for_each(|waiter| waiter.abort());
    only_fences_are_left(site.server()).await;
}

promise!(dead_waiters_that_no_hand_over_reaches_are_removed_by_later_requests: counting, fair);
async fn dead_waiters_that_no_hand_over_reaches_are_removed_by_later_requests<S: Semaphore>(site: Site) {
    const DEAD: i64 = 200;
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::of(&client, 3);
    let guard = taken(&semaphore, 3).await;
    for n in 0..DEAD {
        let id = format!("0bd7ff6e-a7e3-41f0-a9dd-0242ac120002.{n}");
        let ticket = 1_000_000_000_000_000 + n;
        raw.send(&["HSET", &beside::<S>("waiters"), &id, &format!("{ticket} 1000 1000000001000 3")]);
        // Those who want all permits are queued behind the others; where there is only one queue, they have been set
        // aside.
        let score = if S::KIND == Kind::Counting { "3" } else { "-1000000001000" };
        raw.send(&["ZADD", &beside::<S>("queue"), score, &format!("{ticket} {id}")]);
    }
    let mut left = DEAD;
    for _ in 0..5000 {
        let Err(Error::TimedOut { .. }) = semaphore.acquire_timeout(ms(1)).await else {
            panic!("all permits are held")
        };
        left = raw.send(&["HLEN", &beside::<S>("waiters")]).int();
        if left <= 1 {
            break;
        }
    }
    assert!(left <= 1, "{left} are left");
    guard.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

promise!(after_the_state_is_deleted_holders_keep_their_permits_and_tokens_increase: counting, fair);
async fn after_the_state_is_deleted_holders_keep_their_permits_and_tokens_increase<S: Semaphore>(site: Site) {
    let (clients, mut raw) = (site.clients::<2>().await, site.server().raw());
    let semaphores = clients.clone().map(|client| S::leased(&client, 3, SECOND * 3));
    let [one, two] = &semaphores;
    let held = [taken(one, 1).await, taken(two, 2).await];
    let waiters = queue_up(&semaphores, &[2, 1]).await;
    let newest = held[1].token();
    assert_eq!(raw.send(&["DEL", &beside::<S>("state")]).int(), 1);
    let lost = select_all(held.iter().map(|guard| Box::pin(guard.lost())));
    assert_pending(SECOND * 2, lost).await;
    assert_eq!(one.inspect().await.expect("inspected").in_use, 3, "nobody was let in");
    give_back(held).await;
    for waiter in waiters {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest);
        guard.release().await.expect("held to the end");
    }
    only_fences_are_left(site.server()).await;
}

promise!(something_else_under_a_key_of_ours_is_refused_and_left_alone: counting, fair);
async fn something_else_under_a_key_of_ours_is_refused_and_left_alone<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let (semaphore, other) = (S::of(&client, 3), S::named(&client, "other", 3));
    for key in all_keys::<S>() {
        raw.send(&["LPUSH", &key, "x"]);
        // Who waits is looked up by those who wait.
        let held = if key.ends_with("waiters") { Some(taken(&semaphore, 3).await) } else { None };
        let mut outcomes = vec![
            within(SOON, semaphore.acquire()).await.map(drop),
            within(SOON, semaphore.acquire_many_timeout(2, ms(100))).await.map(drop),
        ];
        if held.is_none() {
            outcomes.push(within(SOON, semaphore.try_acquire_many(2)).await.map(drop));
        }
        for outcome in outcomes {
            let Err(Error::StoreRefused { source, name, .. }) = outcome else {
                panic!("{key}: expected a refusal by the store, got {outcome:?}");
            };
            assert_eq!(name.as_deref(), Some(NAME), "{key}");
            assert!(matches!(source, BackendError::WrongType { .. }), "{key}: {source:?}");
        }
        let unharmed = taken(&other, 3).await;
        unharmed.release().await.expect("held to the end");
        drop(held);
        // The refused requests have been released as well.
        eventually(SOON, || ready(left(&mut raw).iter().all(|left| *left == key))).await;
        assert_eq!(raw.send(&["LRANGE", &key, "0", "-1"]), Reply::Array(vec![Reply::bulk("x")]), "{key}");
        raw.send(&["DEL", &key]);
        taken(&semaphore, 3).await.release().await.expect("repaired");
        raw.send(&["FLUSHALL"]);
    }
}

promise!(holders_whose_key_was_replaced_are_notified: counting, fair);
async fn holders_whose_key_was_replaced_are_notified<S: Semaphore>(site: Site) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::attentive(&client, 3);
    for key in [key::<S>(), beside::<S>("holds")] {
        let mut guard = taken(&semaphore, 3).await;
        let part = guard.split(1).expect("of three");
        raw.send(&["MULTI"]);
        raw.send(&["DEL", &key]);
        raw.send(&["LPUSH", &key, "x"]);
        raw.send(&["EXEC"]);
        assert_eq!(within(SOON, part.lost()).await, LossReason::Taken, "{key}");
        assert_lost(guard.release().await, LossReason::Taken);
        assert_lost(part.release().await, LossReason::Taken);
        assert_eq!(raw.send(&["LRANGE", &key, "0", "-1"]), Reply::Array(vec![Reply::bulk("x")]), "{key}");
        raw.send(&["FLUSHALL"]);
    }
}

promise!(a_full_store_refuses_new_requests_and_still_renews_and_hands_over: counting, fair);
async fn a_full_store_refuses_new_requests_and_still_renews_and_hands_over<S: Semaphore>(site: Site) {
    let ([one, two], mut raw) = (site.clients().await, site.server().raw());
    warm_up::<S>(&one).await;
    let mut guard = taken(&S::attentive(&one, 3), 3).await;
    let waiters = queue_up(&[S::of(&two, 3)], &[1, 2]).await;
    let part = guard.split(1).expect("of three");
    assert_eq!(raw.send(&["CONFIG", "SET", "maxmemory", "1"]), Reply::ok());
    let (free, taken) = (S::named(&two, "other", 3), S::of(&one, 3));
    let limit = Duration::from_millis(400);
    let asked = join(free.try_acquire(), taken.acquire_timeout(limit));
    let (free, taken) = within(SOON * 2, asked).await;
    for error in [free.map(drop), taken.map(drop)].map(|result| result.expect_err("there is no memory")) {
        let is_unavailable = matches!(error, Error::StoreUnavailable { .. });
        assert!(is_unavailable && error.to_string().contains("OOM"), "{error}");
    }
    renewed(&guard).await;
    part.release().await.expect("held to the end");
    guard.release().await.expect("held to the end");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
    only_fences_are_left(site.server()).await;
}

// Clients that cannot be reached

/// A server, a client behind a wire, and a client beside it.
struct Wired<S> {
    far_client: Client,
    near_client: Client,
    far: S,
    near: S,
    proxy: Proxy,
}

impl<S: Semaphore> Wired<S> {
    async fn set(site: &Site, limit: u32, lease: Duration) -> Self {
        let proxy = Proxy::start(site.server().port()).await;
        let (far_client, near_client) = (connect(&proxy.url()).await, site.client().await);
        warm_up::<S>(&near_client).await;
        let [far, near] = [&far_client, &near_client].map(|client| S::leased(client, limit, lease));
        Self { far_client, near_client, far, near, proxy }
    }

    /// Loses the reply to the next script call for the semaphore.
    fn lose_next_reply(&self) -> tokio::sync::oneshot::Receiver<()> {
        self.proxy.cut_after_next_request(is_for::<S>)
    }

    /// The far client cannot be reached any more, and the server knows that.
    async fn cut_off(&self, raw: &mut Raw) {
        self.proxy.refuse(true);
        self.proxy.cut();
        eventually(SOON, || ready(listeners(raw) == 1)).await;
    }
}

fn is_for<S: Semaphore>(request: &Request) -> bool {
    request.script_call().is_some_and(|(keys, _)| keys.first() == Some(&key::<S>()))
}

promise!(a_client_in_a_black_hole_is_notified_before_its_permits_are_granted_to_others: counting, fair);
async fn a_client_in_a_black_hole_is_notified_before_its_permits_are_granted_to_others<S: Semaphore>(
    site: Site,
) {
    const LEASE: Duration = Duration::from_secs(2);
    let wired = Wired::<S>::set(&site, 3, LEASE).await;
    let mut guard = taken(&wired.far, 2).await;
    let part = guard.split(1).expect("of two");
    let parts = Arc::new([guard, part]);
    let living = taken(&S::of(&wired.near_client, 3), 1).await;
    let (waiting, others) = (wired.near.clone(), Arc::clone(&parts));
    let waiter = tokio::spawn(async move {
        let guard = waiting.acquire_many(2).await.expect("granted");
        assert!(others.iter().all(|part| !part.is_held()), "five of three");
        guard
    });
    until_waiting(&wired.near, 1).await;
    wired.proxy.hold(Direction::Both);
    let told = join_all(parts.iter().map(Guard::lost));
    assert_eq!(within(LEASE + SLACK, told).await, [LossReason::StoreUnreachable; 2]);
    let next = within(SLACK, waiter).await.expect("no panic");
    assert!(next.token() > parts[0].token() && living.is_held());
    wired.proxy.resume();
    for part in Arc::into_inner(parts).expect("the waiter is done") {
        assert_lost(part.release().await, LossReason::StoreUnreachable);
    }
    // What the far client still sends touches nobody else.
    wired.far_client.shutdown().await.expect("drained");
    assert_eq!(holds(&wired.near).await, [1, 2]);
    give_back([living, next]).await;
    only_fences_are_left(site.server()).await;
}

promise!(a_waiter_that_cannot_be_reached_is_passed_over_and_keeps_its_place: counting, fair);
async fn a_waiter_that_cannot_be_reached_is_passed_over_and_keeps_its_place<S: Semaphore>(site: Site) {
    let (wired, mut raw) = (Wired::<S>::set(&site, 2, LONG).await, site.server().raw());
    let held = taken(&wired.near, 2).await;
    // The head wants everything: a fair semaphore would let nobody pass who can be reached.
    let head = queued(&wired.far, 2, 0).await;
    let behind = [queued(&wired.near, 1, 1).await, queued(&wired.near, 2, 2).await];
    wired.cut_off(&mut raw).await;
    held.release().await.expect("held to the end");
    let [passes, last] = behind;
    let passes = granted(passes).await;
    assert_eq!(holds(&wired.near).await, [1]);
    wired.proxy.refuse(false);
    // Its place is scored by minus a time while nobody listens for it.
    let (queue, set_aside) =
        (beside::<S>("queue"), |raw: &mut Raw, queue: &str| raw.send(&["ZCOUNT", queue, "-inf", "(0"]).int());
    eventually(SOON * 2, || ready(listeners(&mut raw) == 2 && set_aside(&mut raw, &queue) == 0)).await;
    passes.release().await.expect("held to the end");
    let head = granted(head).await;
    assert_eq!(queued_permits(&wired.near).await, [2], "it was there before");
    head.release().await.expect("held to the end");
    granted(last).await.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

promise!(a_dead_waiter_for_many_holds_up_nobody_for_longer_than_a_lease: counting, fair);
async fn a_dead_waiter_for_many_holds_up_nobody_for_longer_than_a_lease<S: Semaphore>(site: Site) {
    const LEASE: Duration = Duration::from_millis(1500);
    // Cut off: known to be gone. In a black hole: it might still listen.
    for cut_off in [true, false] {
        let (wired, mut raw) = (Wired::<S>::set(&site, 3, LEASE).await, site.server().raw());
        let held = taken(&S::of(&wired.near_client, 3), 2).await;
        let head = queued(&wired.far, 3, 0).await;
        let behind = waiter(&wired.near, 1);
        if cut_off {
            wired.cut_off(&mut raw).await
        } else {
            wired.proxy.hold(Direction::Both)
        }
        let begun = Instant::now();
        // Nobody releases anything: whoever asks next finds out.
        let behind = within(SOON, behind).await.expect("no panic");
        assert!(begun.elapsed() <= LEASE + SLACK, "after {:?}", begun.elapsed());
        assert_eq!(holds(&wired.near).await, [1, 2]);
        head.abort();
        give_back([held, behind]).await;
        until_waiting(&wired.near, 0).await;
        drop(wired);
        eventually(LEASE * 2 + SLACK, || ready(left(&mut raw).is_empty())).await;
        raw.send(&["FLUSHALL"]);
    }
}

promise!(a_dead_client_frees_its_permits_and_its_limit: counting, fair);
async fn a_dead_client_frees_its_permits_and_its_limit<S: Semaphore>(site: Site) {
    const LEASE: Duration = Duration::from_secs(1);
    let (wired, mut raw) = (Wired::<S>::set(&site, 3, LEASE).await, site.server().raw());
    let guards = [taken(&wired.far, 1).await, taken(&wired.far, 2).await];
    let waiters = queue_up(from_ref(&wired.far), &[1, 3]).await;
    wired.cut_off(&mut raw).await;
    let dead = Instant::now();
    let other = S::leased(&connect(&site.server().url()).await, 9, LEASE);
    assert_differs(other.try_acquire().await, (9, 3));
    eventually(LEASE + SLACK, || async { other.inspect().await.is_ok_and(|now| is_empty(&now)) }).await;
    assert!(guards.iter().all(|guard| !guard.is_held()));
    // Its place in the queue is remembered for two leases.
    let admitted = || async { other.try_acquire_many(9).await.is_ok_and(|guard| guard.is_some()) };
    eventually(LEASE * 2, admitted).await;
    assert!(dead.elapsed() <= LEASE * 2 + SLACK, "after {:?}", dead.elapsed());
    waiters.iter().for_each(JoinHandle::abort);
}

promise!(requests_into_a_black_hole_are_answered_in_time_and_done_when_the_wire_is_back: counting, fair);
async fn requests_into_a_black_hole_are_answered_in_time_and_done_when_the_wire_is_back<S: Semaphore>(
    site: Site,
) {
    let wired = Wired::<S>::set(&site, 4, LONG).await;
    let mut guard = taken(&wired.far, 3).await;
    let part = guard.split(1).expect("of three");
    wired.proxy.hold(Direction::Both);
    let impatient = async {
        let begun = Instant::now();
        assert_unavailable(&wired.far.acquire_timeout(ms(300)).await);
        assert!(begun.elapsed() >= ms(300) && begun.elapsed() < ms(300) + SLACK, "{:?}", begun.elapsed());
    };
    let all = async {
        tokio::join!(
            impatient,
            async { assert_unavailable(&wired.far.try_acquire().await) },
            async { assert_unavailable(&wired.far.available().await) },
            async { assert_unavailable(&wired.far.inspect().await) },
            async { assert_unavailable(&wired.far.resize(4).await) },
            async { assert_unavailable(&part.release().await) },
        )
    };
    within(SOON + SLACK, all).await;
    assert_eq!(holds(&wired.near).await, [3]);
    wired.proxy.resume();
    // The part is given back in the background, and nothing that was asked for is kept.
    eventually(SOON, async || holds(&wired.near).await == [2]).await;
    guard.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

// Applied, and never answered

promise!(a_request_whose_grant_was_never_answered_is_adopted: counting, fair);
async fn a_request_whose_grant_was_never_answered_is_adopted<S: Semaphore>(site: Site) {
    let wired = Wired::<S>::set(&site, 5, LONG).await;
    let mut guards = Vec::new();
    for tries in [false, true] {
        let cut = wired.lose_next_reply();
        let guard = match tries {
            true => within(SOON, wired.far.try_acquire_many(2)).await.expect("answered").expect("free"),
            false => within(SOON, wired.far.acquire_many(2)).await.expect("granted"),
        };
        within(SOON, cut).await.expect("the first answer was lost");
        // One grant: the second request was told the token of the first.
        let now = wired.near.inspect().await.expect("inspected");
        assert!(now.holders.iter().any(|holder| holder.token == Some(guard.token())));
        guards.push(guard);
    }
    assert_eq!((holds(&wired.near).await, free(&wired.near).await), (vec![2, 2], 1));
    give_back(guards).await;
    only_fences_are_left(site.server()).await;
}

promise!(a_request_that_was_never_answered_succeeds_whatever_has_become_of_the_limit: counting, fair);
async fn a_request_that_was_never_answered_succeeds_whatever_has_become_of_the_limit<S: Semaphore>(
    site: Site,
) {
    let wired = Wired::<S>::set(&site, 5, LONG).await;
    for limit in [7, 3] {
        // New, so that it states the old limit when it asks again.
        let far = S::of(&wired.far_client, wired.near.inspect().await.expect("inspected").limit.unwrap_or(5));
        let cut = wired.lose_next_reply();
        let request = tokio::spawn(async move { far.acquire_many(2).await });
        within(SOON, cut).await.expect("the first answer was lost");
        wired.near.resize(limit).await.expect("resized");
        let guard = within(SOON, request).await.expect("no panic").expect("granted before");
        assert_eq!(holds(&wired.near).await, [2]);
        // The same for a place in the queue.
        let far = S::of(&wired.far_client, limit);
        let cut = wired.lose_next_reply();
        let request = tokio::spawn(async move { far.acquire_many(limit).await });
        within(SOON, cut).await.expect("the first answer was lost");
        wired.near.resize(limit + 1).await.expect("resized");
        guard.release().await.expect("held to the end");
        let guard = within(SOON * 3, request).await.expect("no panic").expect("it was queued before");
        assert_eq!(holds(&wired.near).await, [limit]);
        guard.release().await.expect("held to the end");
    }
    only_fences_are_left(site.server()).await;
}

promise!(a_waiter_whose_place_was_never_confirmed_is_queued_once_and_keeps_its_place: counting, fair);
async fn a_waiter_whose_place_was_never_confirmed_is_queued_once_and_keeps_its_place<S: Semaphore>(
    site: Site,
) {
    let (wired, mut raw) = (Wired::<S>::set(&site, 2, LONG).await, site.server().raw());
    let guard = taken(&wired.near, 2).await;
    let cut = wired.lose_next_reply();
    let first = waiter(&wired.far, 2);
    within(SOON, cut).await.expect("the first answer was lost");
    until_waiting(&wired.near, 1).await;
    let second = queued(&wired.near, 2, 1).await;
    // The connection and the subscription are back: the place can be told of a grant.
    eventually(SOON, || ready(listeners(&mut raw) == 2 && wired.proxy.open() >= 2)).await;
    assert_eq!(queued_permits(&wired.near).await, [2, 2]);
    guard.release().await.expect("held to the end");
    let first = granted(first).await;
    assert_eq!(queued_permits(&wired.near).await, [2], "the order of the queue was kept");
    first.release().await.expect("held to the end");
    granted(second).await.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

promise!(an_unanswered_release_succeeds_and_returns_permits_once: counting, fair);
async fn an_unanswered_release_succeeds_and_returns_permits_once<S: Semaphore>(site: Site) {
    let wired = Wired::<S>::set(&site, 6, LONG).await;
    let mut guard = taken(&wired.far, 4).await;
    let (part, other) = (guard.split(1).expect("of four"), taken(&wired.near, 2).await);
    let waiters = queue_up(from_ref(&wired.near), &[1, 1, 1, 1]).await;
    // A part, then the rest.
    for (part, waiting) in [(part, 3), (guard, 0)] {
        let cut = wired.lose_next_reply();
        let released = within(SOON, part.release()).await;
        within(SOON, cut).await.expect("the first answer was lost");
        released.expect("repeated until answered");
        assert_eq!(queued_permits(&wired.near).await.len(), waiting, "given back once");
    }
    assert!(other.is_held());
    assert_eq!(holds(&wired.near).await, [1, 1, 1, 1, 2], "the repeated release left the others alone");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
    other.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

promise!(an_unanswered_renewal_loses_nothing: counting, fair);
async fn an_unanswered_renewal_loses_nothing<S: Semaphore>(site: Site) {
    let wired = Wired::<S>::set(&site, 3, LONG).await;
    let guard = taken(&S::attentive(&wired.far_client, 3), 2).await;
    let cut = wired.lose_next_reply();
    within(SOON, cut).await.expect("an answer to a renewal was lost");
    renewed(&guard).await;
    assert_eq!(holds(&wired.near).await, [2]);
    guard.release().await.expect("held to the end");
    only_fences_are_left(site.server()).await;
}

promise!(a_resize_that_was_never_answered_is_done_once: counting, fair);
async fn a_resize_that_was_never_answered_is_done_once<S: Semaphore>(site: Site) {
    let wired = Wired::<S>::set(&site, 2, LONG).await;
    let guard = taken(&wired.near, 2).await;
    let waiters = queue_up(from_ref(&wired.near), &[1, 2, 2]).await;
    let cut = wired.lose_next_reply();
    within(SOON, wired.far.resize(5)).await.expect("repeated until answered");
    within(SOON, cut).await.expect("the first answer was lost");
    assert_eq!((queued_permits(&wired.near).await, holds(&wired.near).await), (vec![2], vec![1, 2, 2]));
    assert_eq!(wired.far.limit(), 5);
    give_back([guard]).await;
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
}

promise!(a_grant_that_could_not_be_pushed_is_found_when_the_wire_is_back: counting, fair);
async fn a_grant_that_could_not_be_pushed_is_found_when_the_wire_is_back<S: Semaphore>(site: Site) {
    const LEASE: Duration = Duration::from_secs(6);
    let wired = Wired::<S>::set(&site, 2, LEASE).await;
    for cut in [false, true] {
        let guard = taken(&wired.near, 2).await;
        let waiter = queued(&wired.far, 2, 0).await;
        wired.proxy.hold(Direction::ToClient);
        guard.release().await.expect("held to the end");
        assert_eq!(holds(&wired.near).await, [2], "granted in the store");
        assert!(!waiter.is_finished(), "and nobody knows");
        if cut {
            wired.proxy.cut();
        }
        wired.proxy.resume();
        let guard = within(LEASE / 3 + SLACK, waiter).await.expect("no panic");
        guard.release().await.expect("held to the end");
        only_fences_are_left(site.server()).await;
    }
}

// Servers that die, forget, and disconnect their clients

/// Several tasks of two clients acquire and release until told to stop. Together they never believe they hold more than
/// the limit.
struct Traffic {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
    inside: Arc<Inside>,
    tasks: JoinSet<(Vec<Granted>, usize)>,
}

impl Traffic {
    async fn start<S: Semaphore>(site: &Site, limit: u32, lease: Duration) -> Self {
        let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (inside, mut tasks) = (Inside::new(limit), JoinSet::new());
        for (i, client) in site.clients::<2>().await.into_iter().cycle().take(8).enumerate() {
            let semaphore = S::leased(&client, limit, lease);
            let (stop, turns, inside) = (Arc::clone(&stop), Arc::clone(&turns), Arc::clone(&inside));
            tasks.spawn(async move {
                let (mut grants, mut lost) = (Vec::new(), 0);
                while !stop.load(Ordering::SeqCst) {
                    let permits = 1 + size(i + grants.len()) % limit;
                    let (guard, granted) = inside.enter(semaphore.acquire_many(permits)).await;
                    grants.push(granted);
                    turns.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.leave(permits);
                    match guard.release().await {
                        Ok(()) => {}
                        Err(Error::Lost { .. }) => lost += 1,
                        Err(error) => panic!("not released: {error}"),
                    }
                }
                (grants, lost)
            });
        }
        Self { stop, turns, inside, tasks }
    }

    /// Waits for `n` further grants.
    async fn progress(&self, n: usize, deadline: Duration) {
        let goal = self.turns.load(Ordering::SeqCst) + n;
        eventually(deadline, || ready(self.turns.load(Ordering::SeqCst) >= goal)).await;
    }

    /// All grants, and how many of them were lost.
    async fn end(self) -> (Vec<Granted>, usize) {
        self.stop.store(true, Ordering::SeqCst);
        let ended = within(LONG, self.tasks.join_all()).await;
        assert_eq!(self.inside.most(), self.inside.limit());
        let lost = ended.iter().map(|(_, lost)| lost).sum();
        (ended.into_iter().flat_map(|(grants, _)| grants).collect(), lost)
    }
}

promise!(forgotten_scripts_and_killed_connections_under_load_admit_nobody_too_many: counting, fair);
async fn forgotten_scripts_and_killed_connections_under_load_admit_nobody_too_many<S: Semaphore>(site: Site) {
    const LEASE: Duration = Duration::from_secs(6);
    let (traffic, mut raw) = (Traffic::start::<S>(&site, 3, LEASE).await, site.server().raw());
    for round in 0..30 {
        traffic.progress(10, LEASE / 3 + SOON).await;
        match round % 3 {
            0 => raw.send(&["SCRIPT", "FLUSH"]),
            1 => raw.send(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]),
            _ => raw.send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]),
        };
    }
    traffic.progress(10, LEASE / 3 + SOON).await;
    let (grants, lost) = traffic.end().await;
    assert_tokens_grow(grants);
    assert_eq!(lost, 0);
    only_fences_are_left(site.server()).await;
}

promise!(a_store_that_forgets_under_load_admits_too_many_until_the_next_renewal_at_most: counting, fair);
async fn a_store_that_forgets_under_load_admits_too_many_until_the_next_renewal_at_most<S: Semaphore>(
    site: Site,
) {
    const LIMIT: u32 = 4;
    let (clients, mut raw) = (site.clients::<2>().await, site.server().raw());
    let options = SemaphoreOptions::new().ttl(SECOND * 3).renewal_period(ms(100));
    let semaphores = clients.clone().map(|client| S::with(&client, LIMIT, options.clone()));
    let mut newest = None;
    for round in 0..3 {
        let old = join_all(semaphores.iter().map(|semaphore| within(SOON, semaphore.acquire_many(2)))).await;
        let old: Vec<_> = old.into_iter().map(|guard| guard.expect("granted")).collect();
        assert!(old.iter().all(|guard| Some(guard.token()) > newest), "round {round}");
        let waiters = queue_up(&semaphores, &[1, 4, 2]).await;
        raw.send(&["FLUSHALL"]);
        let told = join_all(old.iter().map(Guard::lost));
        let told = within(ms(100) + SLACK, told).await;
        assert!(told.iter().all(|reason| *reason == LossReason::Missing), "{told:?}");
        // From here on they have nothing, and the store counts again.
        let inside = Inside::new(LIMIT);
        let served = waiters.into_iter().map(|waiter| async {
            let guard = granted(waiter).await;
            let token = guard.token();
            inside.count(guard.permits());
            sleep(ms(20)).await;
            inside.leave(guard.permits());
            guard.release().await.expect("held to the end");
            token
        });
        newest = join_all(served).await.into_iter().max();
        for guard in old {
            assert!(newest > Some(guard.token()));
            assert_lost(guard.release().await, LossReason::Missing);
        }
    }
    only_fences_are_left(site.server()).await;
}

promise!(after_a_restart_without_persistence_holders_are_notified_and_waiters_served: counting, fair);
async fn after_a_restart_without_persistence_holders_are_notified_and_waiters_served<S: Semaphore>(
    mut site: Site,
) {
    const LEASE: Duration = Duration::from_secs(3);
    let semaphores = site.clients::<2>().await.map(|client| S::leased(&client, 3, LEASE));
    let held = [taken(&semaphores[0], 1).await, taken(&semaphores[1], 2).await];
    let newest = held[1].token();
    let waiters = queue_up(&semaphores, &[2, 3, 1]).await;
    let Site::Redis(server) = &mut site else { unreachable!("on Redis") };
    server.restart();
    // In any order: they are queued again.
    let served = waiters.into_iter().map(|waiter| async {
        let guard = within(LEASE / 3 + SOON * 2, waiter).await.expect("no panic");
        assert!(guard.token() > newest);
        guard.release().await.expect("held to the end");
    });
    join_all(served).await;
    for guard in held {
        let reason = within(LEASE, guard.lost()).await;
        assert!(matches!(reason, LossReason::Missing | LossReason::StoreUnreachable), "{reason:?}");
        assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    }
    only_fences_are_left(site.server()).await;
}

/// Makes a test of a function for each kind, which is given what another function starts.
macro_rules! promise_on {
    ($promise:ident: $start_or_skip:ident, $body:ident) => {
        mod $promise {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn counting() {
                let Some(started) = $start_or_skip() else { return };
                $body::<leasehold::CountingSemaphore>(started).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn fair() {
                let Some(started) = $start_or_skip() else { return };
                $body::<leasehold::FairSemaphore>(started).await;
            }
        }
    };
}

/// A server whose disk remembers everything.
fn server_on_disk() -> Option<RedisServer> {
    RedisServer::start_with_or_skip("restarts with disk", Setup::on_disk())
}

promise_on!(a_restart_with_persistence_within_the_ttl_loses_nothing: server_on_disk, restart_on_disk);
async fn restart_on_disk<S: Semaphore>(mut server: RedisServer) {
    let (one, two) = (connect(&server.url()).await, connect(&server.url()).await);
    let [one, two] = [&one, &two].map(|client| S::attentive(client, 3));
    let mut guard = taken(&one, 3).await;
    let part = guard.split(1).expect("of three");
    let waiters = queue_up(&[two.clone(), one.clone()], &[1, 2]).await;
    server.restart();
    let mut raw = server.raw();
    eventually(SOON * 2, || ready(listeners(&mut raw) == 2)).await;
    assert_eq!((holds(&two).await, queued_permits(&two).await), (vec![3], vec![1, 2]), "remembered");
    renewed(&guard).await;
    let mut tokens = vec![guard.token()];
    for (part, waiter) in [part, guard].into_iter().zip(waiters) {
        part.release().await.expect("held to the end");
        let next = granted(waiter).await;
        tokens.push(next.token());
        next.release().await.expect("held to the end");
    }
    assert_grow(&tokens);
    only_fences_are_left(&server).await;
}

// The server's own clock

fn site_under_a_clock() -> Option<(Clock, Site)> {
    let clock = Clock::new_or_skip("a server whose clock jumps")?;
    let server = RedisServer::start_with_or_skip("a server whose clock jumps", Setup::under(&clock))?;
    Some((clock, Site::Redis(server)))
}

promise_on!(tokens_grow_and_holders_are_told_when_the_servers_clock_jumps: site_under_a_clock, jumping_clock);
async fn jumping_clock<S: Semaphore>((clock, site): (Clock, Site)) {
    const LEASE: Duration = Duration::from_secs(4);
    let [one, two] = site.clients().await.map(|client| S::leased(&client, 2, LEASE));
    // Back: leases last longer, and nobody is let in.
    let held = taken(&one, 2).await;
    let mut raw = site.server().raw();
    clock.set_back(SECOND * 100);
    clock.is_followed_by(&mut raw);
    assert_none(&two, 1).await;
    let next = queued(&two, 2, 0).await;
    // Not a multiple of a third, or the waiter would be repeating its request just when it is granted.
    assert_pending(LEASE * 7 / 6, held.lost()).await;
    let mut tokens = vec![held.token()];
    held.release().await.expect("held to the end");
    let held = granted(next).await;
    tokens.push(held.token());
    // Ahead: they run out early, and the holder is told at its next renewal.
    clock.shift(SECOND * 131);
    clock.is_followed_by(&mut raw);
    let next = within(SOON, one.acquire_many(2)).await.expect("granted");
    tokens.push(next.token());
    assert_eq!(within(LEASE / 3 + SLACK, held.lost()).await, LossReason::Missing);
    assert!(next.is_held());
    next.release().await.expect("held to the end");
    let last = taken(&two, 2).await;
    tokens.push(last.token());
    assert_grow(&tokens);
    last.release().await.expect("held to the end");
    nothing_is_left(&one).await;
}

promise_on!(a_semaphore_is_kept_no_longer_because_the_clock_was_set_back: site_under_a_clock, expiry_under_a_clock);
async fn expiry_under_a_clock<S: Semaphore>((clock, site): (Clock, Site)) {
    const LEASE: Duration = Duration::from_secs(4);
    let [one, two] = site.clients().await.map(|client| S::leased(&client, 1, LEASE));
    let mut raw = site.server().raw();
    let held = taken(&one, 1).await;
    let next = queued(&two, 1, 0).await;
    let latest = raw.now_us() / 1000 + 4 * LEASE.as_millis() as u64;
    clock.set_back(SECOND * 100);
    clock.is_followed_by(&mut raw);
    // The place in the queue dates from before, and so does the end of the lease that comes of it.
    held.release().await.expect("held to the end");
    let held = granted(next).await;
    let states: Vec<_> = raw.keys("*:state");
    let [state] = &states[..] else { panic!("{states:?}") };
    let left = raw.send(&["PTTL", state]).int();
    let expires = raw.now_us() / 1000 + u64::try_from(left).expect("it expires");
    assert!(expires <= latest, "{} ms later than ever without that", expires - latest);
    held.release().await.expect("held to the end");
    clock.shift(SECOND * 100);
    clock.is_followed_by(&mut raw);
    nothing_is_left(&one).await;
}

promise_on!(tokens_grow_when_the_clock_is_set_back_while_nobody_uses_the_semaphore: site_under_a_clock, idle_under_a_clock);
async fn idle_under_a_clock<S: Semaphore>((clock, site): (Clock, Site)) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::leased(&client, 2, ms(200));
    let mut tokens = Vec::new();
    for _ in 0..3 {
        for _ in 0..5 {
            let guard = taken(&semaphore, 1).await;
            tokens.push(guard.token());
            guard.release().await.expect("held to the end");
            sleep(ms(40)).await;
        }
        // What is left of it has expired, and is not only hidden until the clock is set back.
        eventually(SOON, || ready(raw.send(&["DBSIZE"]).int() == 1 + raw.label_keys().len() as i64)).await;
        assert_eq!(raw.keys("*"), [fence::<S>()]);
        clock.set_back(SECOND * 100);
        clock.is_followed_by(&mut raw);
    }
    assert_grow(&tokens);
}

promise_on!(tokens_grow_when_the_clock_is_set_back_after_many_grants: site_under_a_clock, busy_under_a_clock);
async fn busy_under_a_clock<S: Semaphore>((clock, site): (Clock, Site)) {
    let (client, mut raw) = (site.client().await, site.server().raw());
    let semaphore = S::leased(&client, 3, SECOND);
    let mut last = 0;
    for _ in 0..3 {
        let turns = (0..60).map(|_| async {
            let guard = semaphore.acquire().await.expect("granted");
            let token = guard.token().get();
            guard.release().await.expect("held to the end");
            token
        });
        let tokens = within(SOON * 4, join_all(turns)).await;
        assert!(tokens.iter().all(|token| *token > last), "{last}: {tokens:?}");
        last = tokens.into_iter().max().expect("sixty");
        // Written for a millisecond ahead of the time at most, or of the tokens if they are. A grant takes up sixteen
        // numbers, and there may have been one more to nobody.
        let covered: u64 =
            raw.send(&["GET", &fence::<S>()]).text().expect("written").parse().expect("a token");
        let now = raw.now_us();
        let latest = last.max(now) + 1000 + 16;
        assert!((last - 15..=latest).contains(&covered), "{covered} for {last} at {now}");
        eventually(SOON, || ready(raw.send(&["DBSIZE"]).int() == 1 + raw.label_keys().len() as i64)).await;
        clock.set_back(SECOND * 100);
        clock.is_followed_by(&mut raw);
    }
}
