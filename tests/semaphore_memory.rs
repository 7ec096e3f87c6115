//! What both semaphores and their guards promise, on the store inside the process. A peer of the store represents
//! another process, and where time matters, tokio's paused clock drives it.
//!
//! What every store must do in the same way is in `support/semaphore_promises.rs`; here is what can be tested on this
//! store only: exact times, any number of polls, threads that race.

#[path = "support/semaphores.rs"]
mod semaphores;

/// Makes a test of a function for each kind named, on a store of its own, under a paused clock.
macro_rules! promise {
    ($promise:ident: $($kind:ident),+) => {
        mod $promise {
            $(promise!(@ $promise $kind);)+
        }
    };
    (@ $promise:ident counting) => {
        #[tokio::test(start_paused = true)]
        async fn counting() {
            super::$promise::<leasehold::CountingSemaphore>(crate::semaphores::Site::memory()).await;
        }
    };
    (@ $promise:ident fair) => {
        #[tokio::test(start_paused = true)]
        async fn fair() {
            super::$promise::<leasehold::FairSemaphore>(crate::semaphores::Site::memory()).await;
        }
    };
}

/// The same in real time, on several threads.
macro_rules! promise_on_threads {
    ($promise:ident = $($body:ident)::+) => {
        mod $promise {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn counting() {
                $($body)::+::<CountingSemaphore>(Site::memory()).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn fair() {
                $($body)::+::<FairSemaphore>(Site::memory()).await;
            }
        }
    };
}

#[path = "support/permits_passed_on.rs"]
mod passed_on;
#[path = "support/semaphore_promises.rs"]
mod promises;

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::poll;
use leasehold::{
    Client, CountingSemaphore, Error, FairSemaphore, Guard, Inspection, LossReason, SemaphoreOptions,
};
use leasehold_support::unresponsive::Unresponsive;
use leasehold_support::{assert_pending, within};
use semaphores::*;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout, timeout_at};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

// Threads in competition

promise_on_threads!(
    no_permit_too_many_on_many_threads = promises::permits_in_use_never_exceed_the_limit_and_reach_it
);

promise_on_threads!(
    no_permit_idles_on_many_threads = promises::no_permit_idles_while_it_would_serve_the_next_in_the_queue
);

promise_on_threads!(
    parts_that_go_on_many_threads_leave_nothing = promises::parts_that_go_all_at_once_leave_nothing
);

promise_on_threads!(requests_cancelled_on_many_threads_leave_nothing_behind = cancelled_on_many_threads);
async fn cancelled_on_many_threads<S: Semaphore>(site: Site) {
    const LIMIT: u32 = 3;
    let (clients, inside) = (site.clients::<2>().await, Inside::new(LIMIT));
    let mut tasks = JoinSet::new();
    for i in 0..16 {
        let (semaphore, inside) = (S::of(&clients[i as usize % 2], LIMIT), Arc::clone(&inside));
        tasks.spawn(async move {
            for turn in 0..150 {
                let time_limit = Duration::from_micros((i * 37 + turn * 13) % 300);
                let permits = 1 + size((i + turn) as usize) % LIMIT;
                let Ok(guard) = timeout(time_limit, semaphore.acquire_many(permits)).await else { continue };
                let mut guard = guard.expect("granted");
                inside.count(permits);
                yield_now().await;
                inside.leave(permits);
                drop((guard.split(1), guard));
            }
        });
    }
    within(SECOND * 60, tasks.join_all()).await;
    let observer = S::of(&site.client().await, LIMIT);
    nothing_is_left(&observer).await;
    drop(taken(&observer, LIMIT).await);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_fails_one_request_and_no_other_of_its_client() {
    let store = Unresponsive::on(Site::memory().store());
    let client = Client::with_backend(store.clone());
    let options = SemaphoreOptions::new().local_handover(true);
    let semaphore = client.counting_semaphore_with(NAME, 1, options).expect("valid");
    let mutex = client.mutex(NAME).expect("valid");
    store.panic_once();
    let permits: Vec<_> = (0..5).map(|_| waiter(&semaphore, 1)).collect();
    yield_now().await;
    store.panic_once();
    let locks = (0..5).map(|_| {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock().await.expect("granted") })
    });
    for requests in [permits, locks.collect()] {
        let mut failed = 0;
        for request in requests {
            failed += usize::from(within(SOON, request).await.is_err());
        }
        assert_eq!(failed, 1);
    }
    nothing_is_left(&semaphore).await;
}

// Requests dropped at every await point

/// What else happens while a request is polled.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// Nobody holds anything.
    Free,
    /// Somebody holds everything all the time.
    Held,
    /// Its holder gives all of it back after so many polls.
    ReleasedAfter(usize),
    /// It gives back too little after so many polls, and the rest after one more.
    SplitAfter(usize),
    /// The limit is raised by enough after so many polls.
    GrownAfter(usize),
    /// The store forgets everything after so many polls.
    FlushedAfter(usize),
}

promise!(a_request_dropped_at_any_await_point_leaves_nothing_behind: counting, fair);
async fn a_request_dropped_at_any_await_point_leaves_nothing_behind<S: Semaphore>(_: Site) {
    let mut cases = vec![Meanwhile::Free, Meanwhile::Held];
    for after in
        [Meanwhile::ReleasedAfter, Meanwhile::SplitAfter, Meanwhile::GrownAfter, Meanwhile::FlushedAfter]
    {
        cases.extend((0..4).map(after));
    }
    for case in cases {
        for polls in 0..6 {
            for verb in 0..3 {
                drop_after::<S>(case, polls, verb).await;
            }
        }
    }
}

/// Polls a request for two of three permits `polls` times and drops it, whether it has been granted or not.
async fn drop_after<S: Semaphore>(case: Meanwhile, polls: usize, verb: usize) {
    let at = format!("{case:?}, dropped after {polls} polls of verb {verb}");
    let site = Site::memory();
    let [mine, other] = site.clients().await.map(|client| S::of(&client, 3));
    let mut holder = match case {
        Meanwhile::Free => None,
        _ => Some(taken(&other, 3).await),
    };
    // So that it follows when the limit is raised.
    let met = mine.try_acquire().await;
    assert_eq!(met.expect("answered").is_some(), holder.is_none());
    {
        let request = match verb {
            0 => mine.acquire_many(2).map(|guard| guard.map(Some)).boxed(),
            1 => mine.acquire_many_timeout(2, SECOND).map(|guard| guard.map(Some)).boxed(),
            _ => mine.try_acquire_many(2).boxed(),
        };
        let mut request = pin!(request);
        for i in 0..polls {
            match case {
                Meanwhile::ReleasedAfter(n) if n == i => drop(holder.take()),
                Meanwhile::SplitAfter(n) if n == i => drop(holder.as_mut().and_then(|all| all.split(1))),
                Meanwhile::SplitAfter(n) if n + 1 == i => drop(holder.take()),
                Meanwhile::GrownAfter(n) if n == i => other.resize(6).await.expect("resized"),
                Meanwhile::FlushedAfter(n) if n == i => site.flush(),
                _ => {}
            }
            if poll!(request.as_mut()).is_ready() {
                break;
            }
            yield_now().await;
        }
    }
    drop(holder);
    nothing_is_left(&other).await;
    assert!(
        within(SOON, mine.try_acquire_many(2)).await.is_ok_and(|guard| guard.is_some()),
        "{at}: the same"
    );
    assert!(
        within(SOON, other.acquire_many(3)).await.is_ok_and(|guard| guard.is_held()),
        "{at}: another one"
    );
}

promise!(a_time_limit_that_races_the_grant_either_holds_or_leaves_nothing: counting, fair);
async fn a_time_limit_that_races_the_grant_either_holds_or_leaves_nothing<S: Semaphore>(site: Site) {
    let [mine, other] = site.clients().await.map(|client| S::of(&client, 4));
    let (mut won, mut timed_out) = (0, 0);
    for round in 0..1100 {
        let time_limit = ms(45 + round % 11); // a part is given back after 50 ms
        let mut rest = taken(&other, 4).await;
        let part = rest.split(2).expect("of four");
        let request = async {
            match round % 3 {
                0 => mine.acquire_many_timeout(2, time_limit).await.ok(),
                1 => timeout(time_limit, mine.acquire_many(2)).await.ok().transpose().expect("no error"),
                _ => tokio::select! {
                    biased;
                    () = sleep(time_limit) => None,
                    guard = mine.acquire_many(2) => guard.ok(),
                },
            }
        };
        let give_part_back = async {
            sleep(ms(50)).await;
            drop(part);
        };
        let (guard, ()) = tokio::join!(request, give_part_back);
        match guard {
            Some(guard) => {
                won += 1;
                assert_none(&other, 1).await;
                guard.release().await.expect("held to the end");
            }
            None => timed_out += 1,
        }
        rest.release().await.expect("held to the end");
        nothing_is_left(&other).await;
    }
    assert!(won > 400 && timed_out > 400, "both sides won: {won} and {timed_out}");
}

// Time, exactly

promise!(a_request_times_out_to_the_millisecond: counting, fair);
async fn a_request_times_out_to_the_millisecond<S: Semaphore>(site: Site) {
    let [mine, other] = site.clients().await.map(|client| S::of(&client, 2));
    let _guard = taken(&other, 1).await;
    let started = Instant::now();
    let Err(Error::TimedOut { name, waited, .. }) = mine.acquire_many_timeout(2, ms(250)).await else {
        panic!("one is missing");
    };
    assert_eq!((started.elapsed(), name.as_str(), waited), (ms(250), NAME, ms(250)));
    until_waiting(&mine, 0).await;
}

promise!(hand_overs_take_no_time: counting, fair);
async fn hand_overs_take_no_time<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 3));
    let mut guard = taken(&one, 3).await;
    let mut first = pin!(two.acquire());
    let mut second = pin!(two.acquire_many(2));
    assert!(poll!(first.as_mut()).is_pending() && poll!(second.as_mut()).is_pending());
    let part = guard.split(1).expect("of three");
    let started = Instant::now();
    part.release().await.expect("held to the end");
    let first = within(SOON, first).await;
    assert!(poll!(second.as_mut()).is_pending());
    guard.release().await.expect("held to the end");
    let second = within(SOON, second).await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    give_back([first.expect("granted"), second.expect("granted")]).await;
}

promise!(a_limit_stays_in_force_for_one_to_two_leases_after_the_last_has_left: counting, fair);
async fn a_limit_stays_in_force_for_one_to_two_leases_after_the_last_has_left<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let (five, ten) = (S::leased(&one, 5, SECOND * 3), S::leased(&two, 10, SECOND * 3));
    // Renewed after one, two and three seconds.
    for held in [ms(0), ms(500), ms(3500)] {
        let guard = taken(&five, 1).await;
        sleep(held).await;
        guard.release().await.expect("held to the end");
        sleep(ms(2900)).await;
        assert_differs(ten.try_acquire().await, (10, 5));
        // One lease at least, two at most.
        sleep(ms(3200)).await;
        let now = ten.inspect().await.expect("inspected");
        assert_eq!(now.limit, None, "held for {held:?}");
    }
    drop(taken(&ten, 10).await);
}

promise!(a_request_that_is_not_polled_blocks_no_other_for_longer_than_a_ttl_and_is_repeated: counting, fair);
async fn a_request_that_is_not_polled_blocks_no_other_for_longer_than_a_ttl_and_is_repeated<S: Semaphore>(
    site: Site,
) {
    let [one, two] = site.clients().await.map(|client| S::leased(&client, 2, SECOND));
    let guard = taken(&two, 2).await;
    let mut stalled = pin!(one.acquire_many(2));
    assert!(poll!(stalled.as_mut()).is_pending());
    guard.release().await.expect("held to the end");
    assert_eq!(holds(&two).await, [2], "granted, and nobody knows");
    let next = within(ms(1010), two.acquire_many(2)).await.expect("granted");
    assert!(poll!(stalled.as_mut()).is_pending(), "what it was granted is over");
    assert_eq!(queued_permits(&two).await, [2]);
    let token = next.token();
    next.release().await.expect("held to the end");
    assert!(within(SOON, stalled).await.expect("granted").token() > token);
}

// Holders that die, stores that hang

promise!(a_holder_that_no_longer_runs_is_replaced_within_its_lease: counting, fair);
async fn a_holder_that_no_longer_runs_is_replaced_within_its_lease<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::leased(&client, 3, SECOND));
    let living = taken(&two, 1).await;
    // A runtime that nobody drives any more represents a process that has died. Its clock stands at a later time than
    // the one of this runtime, which was stopped before.
    let (runtime, dead, taken_at) = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("one");
        let (guard, taken_at) = runtime.block_on(async { (one.acquire_many(2).await, Instant::now()) });
        (runtime, guard.expect("granted"), taken_at)
    })
    .join()
    .expect("no panic");
    let early = two.acquire_timeout(ms(500)).await;
    let next = timeout_at(taken_at + SECOND + ms(10), two.acquire_many(2)).await;
    runtime.shutdown_background();
    assert_timed_out(early);
    let next = next.expect("not replaced").expect("granted");
    assert!(next.token() > dead.token() && living.is_held());
    assert_eq!(holds(&two).await, [1, 2]);
}

promise!(loss_is_reported_to_all_parts_before_another_grant_when_the_store_does_not_answer: counting, fair);
async fn loss_is_reported_to_all_parts_before_another_grant_when_the_store_does_not_answer<S: Semaphore>(
    site: Site,
) {
    let hanging = Unresponsive::on(site.store());
    let client = Client::with_backend(hanging.clone());
    let mut guard = taken(&S::leased(&client, 2, SECOND * 2), 2).await;
    let part = guard.split(1).expect("of two");
    hanging.hang();
    let next = within(SECOND * 10, S::of(&site.client().await, 2).acquire()).await.expect("granted");
    for part in [guard, part] {
        assert!(!part.is_held(), "three of two");
        assert_eq!(poll!(part.lost()), Poll::Ready(LossReason::StoreUnreachable));
        assert!(next.token() > part.token());
        assert_lost(part.release().await, LossReason::StoreUnreachable);
    }
}

promise!(tokens_grow_whatever_ended_the_hold_before: counting, fair);
async fn tokens_grow_whatever_ended_the_hold_before<S: Semaphore>(site: Site) {
    let semaphores = site.clients::<2>().await.map(|client| S::leased(&client, 2, SECOND));
    let mut tokens = Vec::new();
    for round in 0..40 {
        let mut guard = within(SOON, semaphores[round % 2].acquire_many(2)).await.expect("granted");
        tokens.push(guard.token());
        match round % 4 {
            0 => guard.release().await.expect("held to the end"),
            1 => drop(guard),
            2 => drop((guard.split(1), guard)),
            _ => site.flush(),
        }
    }
    assert_grow(&tokens);
}

// Guards in unusual places

promise!(a_forgotten_guard_stays_held_until_the_client_is_shut_down: counting, fair);
async fn a_forgotten_guard_stays_held_until_the_client_is_shut_down<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let other = S::of(&two, 3);
    let mut guard = taken(&S::leased(&one, 3, SECOND), 3).await;
    let part = guard.split(1).expect("of three");
    mem::forget(guard);
    part.release().await.expect("held to the end");
    assert_timed_out(other.acquire_many_timeout(2, SECOND * 10).await);
    assert_eq!(free(&other).await, 1);
    one.shutdown().await.expect("drained");
    assert_eq!(free(&other).await, 3);
}

promise!(a_guard_keeps_its_permits_when_client_and_semaphore_are_gone: counting, fair);
async fn a_guard_keeps_its_permits_when_client_and_semaphore_are_gone<S: Semaphore>(site: Site) {
    let mut guard = taken(&S::leased(&site.client().await, 3, SECOND), 3).await;
    assert_pending(SECOND * 10, guard.lost()).await;
    let part = guard.split(1).expect("of three");
    let observer = S::of(&site.client().await, 3);
    drop(guard);
    becomes_free(&observer, 2).await;
    assert_pending(SECOND * 10, part.lost()).await;
    drop(part);
    nothing_is_left(&observer).await;
}

/// Dropping outside a runtime, and while panicking, gives back what the next request then finds.
fn drop_out_of_place<S: Semaphore>() {
    let site = Site::memory();
    let (semaphore, observer) = runtime().block_on(async {
        let [one, two] = site.clients().await;
        (S::of(&one, 4), S::of(&two, 4))
    });
    let mut guard = runtime().block_on(taken(&semaphore, 4));
    drop(guard.split(1));
    runtime().block_on(async {
        let one = taken(&semaphore, 1).await;
        assert_eq!(holds(&observer).await, [1, 3]);
        drop(one);
    });
    let part = guard.split(2).expect("of three");
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _parts = (part, guard);
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    runtime().block_on(async {
        drop(taken(&semaphore, 4).await);
        nothing_is_left(&observer).await;
    });
}

#[test]
fn parts_dropped_outside_a_runtime_or_in_a_panic_are_released() {
    drop_out_of_place::<CountingSemaphore>();
    drop_out_of_place::<FairSemaphore>();
}

#[tokio::test]
async fn the_guard_of_a_lock_cannot_be_split() {
    let client = Client::memory();
    let mut guard = client.mutex(NAME).expect("valid").lock().await.expect("free");
    let mut nested = client.reentrant_lock("nested", "me").expect("valid").lock().await.expect("free");
    for permits in [0, 1, 2] {
        assert!(guard.split(permits).is_none() && nested.split(permits).is_none());
    }
    assert_eq!((guard.permits(), nested.permits()), (1, 1));
}

// What can be done with handles and futures

fn everywhere<T: Send + Sync + 'static>() {}
fn send<T: Send>(_: &T) {}
fn detached<T: Send + 'static>(_: &T) {}

#[test]
fn handles_go_everywhere() {
    everywhere::<CountingSemaphore>();
    everywhere::<FairSemaphore>();
    everywhere::<SemaphoreOptions>();
    everywhere::<Guard>();
    everywhere::<Inspection>();
}

macro_rules! futures_can_be_spawned {
    ($($test:ident: $make:ident),+) => {
        $(#[tokio::test]
        async fn $test() {
            let semaphore = Client::memory().$make(NAME, 3).expect("valid");
            send(&semaphore.acquire());
            send(&semaphore.acquire_many(2));
            send(&semaphore.try_acquire());
            send(&semaphore.try_acquire_many(2));
            send(&semaphore.acquire_timeout(SECOND));
            send(&semaphore.acquire_many_timeout(2, SECOND));
            send(&semaphore.available());
            send(&semaphore.inspect());
            send(&semaphore.resize(4));
            let guard = semaphore.acquire_many(2).await.expect("free");
            detached(&guard.lost());
            detached(&guard.release());
            detached(&async move { semaphore.acquire().await });
        })+
    };
}

futures_can_be_spawned!(
    futures_of_a_counting_semaphore_can_be_spawned: counting_semaphore,
    futures_of_a_fair_semaphore_can_be_spawned: fair_semaphore
);

promise!(handles_guards_and_inspections_can_be_printed_without_the_lease_id: counting, fair);
async fn handles_guards_and_inspections_can_be_printed_without_the_lease_id<S: Semaphore>(site: Site) {
    let semaphore = S::of(&site.client().await, 2);
    let guard = taken(&semaphore, 2).await;
    let waiter = queued(&semaphore, 2, 0).await;
    let now = semaphore.inspect().await.expect("inspected");
    let printed = format!("{semaphore:?} {guard:?} {:?} {now:?}", guard.lost());
    assert!(printed.contains(NAME) && printed.contains("permits: 2"), "{printed}");
    for id in [&now.holders[0].id, &now.waiters[0].id.to_string()] {
        assert!(!printed.contains(&id[9..]), "whoever knows the id can end the lease: {printed}");
    }
    waiter.abort();
}
