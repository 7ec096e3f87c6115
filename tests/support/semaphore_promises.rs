//! What both semaphores promise on every store. The test file that includes this says on which one, by its macro
//! `promise!`: it makes a test of a function here for each kind named.

use std::pin::pin;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join_all, select_all};
use leasehold::backend::{Kind, LeaseId};
use leasehold::{
    BackendError, Client, Error, Fence, Guard, LossReason, MAX_NAME_BYTES, MutexOptions, OnOtherLimit,
    SemaphoreOptions,
};
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::semaphores::*;
use leasehold_support::locks::polled;
use leasehold_support::{assert_pending, eventually, one_place_each, within};

// Never too many

promise!(permits_in_use_never_exceed_the_limit_and_reach_it: counting, fair);
pub(crate) async fn permits_in_use_never_exceed_the_limit_and_reach_it<S: Semaphore>(site: Site) {
    const LIMIT: u32 = 5;
    let (clients, inside) = (site.clients::<3>().await, Inside::new(LIMIT));
    let mut tasks = JoinSet::new();
    for i in 0..24 {
        let (semaphore, inside) = (S::of(&clients[i % 3], LIMIT), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut grants = Vec::new();
            for turn in 0..12 {
                let permits = 1 + size(i * 5 + turn) % LIMIT;
                let (guard, granted) = inside.enter(semaphore.acquire_many(permits)).await;
                grants.push(granted);
                sleep(ms(1)).await;
                assert!(guard.is_held());
                go_out(&inside, guard, turn).await;
            }
            grants
        });
    }
    let grants = within(SECOND * 60, tasks.join_all()).await;
    assert_tokens_grow(grants.into_iter().flatten().collect());
    assert_eq!(inside.most(), LIMIT, "the limit was never reached: the test proves little");
    nothing_is_left(&S::of(&clients[0], LIMIT)).await;
}

/// All ways to give back: at once or in parts, by a release or by a drop.
async fn go_out(inside: &Inside, mut guard: Guard, turn: usize) {
    if let Some(part) = guard.split(guard.permits() / 2) {
        inside.leave(part.permits());
        if turn.is_multiple_of(3) {
            drop(part)
        } else {
            part.release().await.expect("held to the end")
        }
        yield_now().await;
    }
    inside.leave(guard.permits());
    if turn.is_multiple_of(2) { drop(guard) } else { guard.release().await.expect("held to the end") }
}

promise!(requests_that_race_a_resize_are_granted_or_refused_at_once: counting, fair);
/// A limit below what is requested refuses a request whose first answer may still be on its way.
async fn requests_that_race_a_resize_are_granted_or_refused_at_once<S: Semaphore>(site: Site) {
    const LARGEST: u32 = 8;
    let (clients, inside) = (site.clients::<3>().await, Inside::new(LARGEST));
    let end = Instant::now() + SECOND * 3;
    let mut tasks = JoinSet::new();
    for (i, client) in clients.iter().enumerate() {
        let semaphore = S::of(client, 4);
        tasks.spawn(async move {
            let mut turn = i;
            while Instant::now() < end {
                turn += 1;
                semaphore.resize(1 + size(turn * 5) % LARGEST).await.expect("resized");
                sleep(ms(turn as u64 % 3)).await;
            }
        });
    }
    for i in 0..36 {
        let (semaphore, inside) = (S::of(&clients[i % 3], 4), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut turn = i;
            while Instant::now() < end {
                turn += 1;
                let permits = 1 + u32::from(turn.is_multiple_of(4));
                match timeout(SOON, semaphore.acquire_many(permits)).await.expect("answered soon") {
                    Ok(guard) => {
                        inside.count(permits);
                        sleep(ms(turn as u64 % 3)).await;
                        go_out(&inside, guard, turn).await;
                    }
                    Err(Error::InvalidArgument { .. } | Error::LimitDiffers { .. }) => sleep(ms(1)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    within(SECOND * 60, tasks.join_all()).await;
    nothing_is_left(&S::of(&clients[0], 4)).await;
}

promise!(a_plain_counter_under_a_single_permit_is_exact: counting, fair);
async fn a_plain_counter_under_a_single_permit_is_exact<S: Semaphore>(site: Site) {
    const TASKS: usize = 8;
    const TURNS: usize = 100;
    let clients = site.clients::<2>().await;
    let (counter, fence) = (Arc::new(AtomicU64::new(0)), Arc::new(Fence::new()));
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let semaphore = S::of(&clients[i % 2], 1);
        let (counter, fence) = (Arc::clone(&counter), Arc::clone(&fence));
        tasks.spawn(async move {
            for turn in 0..TURNS {
                let guard = semaphore.acquire().await.expect("granted");
                fence.admit(guard.token()).expect("tokens grow in the order of the grants");
                let read = counter.load(Ordering::SeqCst);
                sleep(ms(1)).await;
                counter.store(read + 1, Ordering::SeqCst);
                if turn % 2 == 0 {
                    guard.release().await.expect("held to the end");
                }
            }
        });
    }
    within(SECOND * 60, tasks.join_all()).await;
    assert_eq!(counter.load(Ordering::SeqCst), (TASKS * TURNS) as u64);
}

promise!(clones_and_equal_names_share_their_permits_and_other_names_and_kinds_do_not: counting, fair);
async fn clones_and_equal_names_share_their_permits_and_other_names_and_kinds_do_not<S: Semaphore>(
    site: Site,
) {
    let [one, two] = site.clients().await;
    let semaphore = S::of(&one, 2);
    assert_eq!((semaphore.name(), semaphore.limit()), (NAME, 2));
    let _both = [taken(&semaphore.clone(), 1).await, taken(&S::of(&two, 2), 1).await];
    assert_none(&semaphore, 1).await;
    assert_none(&S::of(&two, 2), 1).await;
    let _elsewhere = taken(&S::named(&two, "slow-service-2", 2), 2).await;
    // A name means something else to every kind.
    let (counting, fair) = (two.counting_semaphore(NAME, 7), two.fair_semaphore(NAME, 7));
    let counting = counting.expect("valid").try_acquire().await;
    let fair = fair.expect("valid").try_acquire().await;
    let (same, other) = if S::KIND == Kind::Counting { (counting, fair) } else { (fair, counting) };
    assert_differs(same, (7, 2));
    assert!(other.expect("answered").is_some(), "another semaphore");
    assert!(two.mutex(NAME).expect("valid").try_lock().await.expect("answered").is_some());
    // Prefix and name count together.
    let (start, end) = S::PREFIX.split_at(3);
    if let Site::Redis(server) = &site {
        server.allow(&[format!("~{{{start}}}:fence")]);
    }
    let options = SemaphoreOptions::new().prefix(start);
    let joined = S::make(&two, &format!("{end}{NAME}"), 2, options).expect("valid");
    assert_none(&joined, 1).await;
}

promise!(inspect_returns_holders_waiters_and_the_limit: counting, fair);
async fn inspect_returns_holders_waiters_and_the_limit<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 4));
    let nobody = one.inspect().await.expect("inspected");
    assert!(is_empty(&nobody) && nobody.limit.is_none() && nobody.holder().is_none(), "{nobody:?}");
    let brief = SemaphoreOptions::new().ttl(SECOND * 20);
    let (first, brief) = (taken(&one, 1).await, S::with(&site.client().await, 4, brief));
    let second = taken(&brief, 2).await;
    let waiters = queue_up(&[two.clone(), one.clone()], &[3, 2, 4]).await;
    let now = two.inspect().await.expect("inspected");
    assert_eq!((now.limit, now.in_use), (Some(4), 3));
    // By the time their leases end.
    let holders: Vec<_> = now.holders.iter().map(|holder| (holder.token, holder.permits)).collect();
    assert_eq!(holders, [(Some(second.token()), 2), (Some(first.token()), 1)]);
    for (holder, lease) in now.holders.iter().zip([SECOND * 20, SECOND * 30]) {
        assert!(holder.remaining.is_some_and(|rest| rest > lease / 2 && rest <= lease), "{holder:?}");
        assert_eq!(holder.owner, None);
        assert!(LeaseId::parse(&holder.id).is_some(), "{}", holder.id);
    }
    let sizes: Vec<_> = now.waiters.iter().map(|waiter| waiter.permits).collect();
    assert_eq!(sizes, [3, 2, 4]);
    assert!(now.waiters.iter().all(|waiter| waiter.remaining <= SECOND * 30));
    assert_eq!(now.waiters[0].id.client(), now.waiters[2].id.client());
    assert_ne!(now.waiters[0].id.client(), now.waiters[1].id.client());
    waiters.iter().for_each(JoinHandle::abort);
    give_back([first, second]).await;
    nothing_is_left(&one).await;
    assert_eq!(two.inspect().await.expect("inspected").limit, Some(4), "for a lease");
}

// Order of service

promise!(requests_of_all_sizes_are_served_in_order_of_arrival: fair);
async fn requests_of_all_sizes_are_served_in_order_of_arrival<S: Semaphore>(site: Site) {
    const LIMIT: u32 = 4;
    let semaphores = site.clients::<3>().await.map(|client| S::of(&client, LIMIT));
    let first = taken(&semaphores[0], LIMIT).await;
    let sizes: Vec<_> = (0..24).map(|i| 1 + i * 7 % 5 % LIMIT).collect();
    let waiters = queue_up(&semaphores, &sizes).await;
    assert_eq!(queued_permits(&semaphores[1]).await, sizes);
    let mut tokens = vec![first.token()];
    first.release().await.expect("held to the end");
    tokens.extend(serve_all(waiters).await);
    assert_grow(&tokens);
    nothing_is_left(&semaphores[0]).await;
}

/// Lets everybody have a turn, and answers the tokens in the order of the waiters.
async fn serve_all(waiters: Vec<JoinHandle<Guard>>) -> Vec<leasehold::FencingToken> {
    let turns = waiters.into_iter().enumerate().map(|(i, waiter)| async move {
        let guard = within(SOON * 2, waiter).await.expect("no panic");
        let token = guard.token();
        // Both ways to give back keep the order.
        if i % 2 == 0 {
            guard.release().await.expect("held to the end");
        }
        token
    });
    join_all(turns).await
}

promise!(a_request_for_many_is_not_starved_and_nobody_overtakes_it: fair);
async fn a_request_for_many_is_not_starved_and_nobody_overtakes_it<S: Semaphore>(site: Site) {
    let [one, two, three] = site.clients().await.map(|client| S::of(&client, 3));
    let held = [taken(&one, 1).await, taken(&two, 1).await];
    let large = queued(&two, 3, 0).await;
    let small = [queued(&one, 1, 1).await, queued(&three, 1, 2).await, queued(&one, 1, 3).await];
    let [first, second] = held;
    for (holder, free_now) in [(first, 2), (second, 3)] {
        // So many are free, and they are spoken for.
        assert_eq!(free(&three).await, free_now - 1);
        for impatient in [&one, &three] {
            assert_none(impatient, 1).await;
            assert_timed_out(impatient.acquire_timeout(ms(300)).await);
            assert_timed_out(impatient.acquire_timeout(Duration::ZERO).await);
        }
        until_waiting(&one, 4).await;
        assert_eq!(queued_permits(&one).await, [3, 1, 1, 1]);
        holder.release().await.expect("held to the end");
    }
    let large = granted(large).await;
    assert_eq!((large.permits(), queued_permits(&one).await, holds(&one).await), (3, vec![1, 1, 1], vec![3]));
    let mut tokens = vec![large.token()];
    large.release().await.expect("held to the end");
    for small in small {
        tokens.push(granted(small).await.token());
    }
    assert_grow(&tokens);
}

promise!(a_smaller_request_passes_a_larger_one: counting);
async fn a_smaller_request_passes_a_larger_one<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 3));
    let two_of_three = taken(&one, 2).await;
    let large = queued(&one, 3, 0).await;
    for passing in [&one, &two, &one] {
        taken(passing, 1).await.release().await.expect("held to the end");
        within(SOON, passing.acquire()).await.expect("granted").release().await.expect("held to the end");
    }
    let passing = taken(&two, 1).await;
    let small = queued(&two, 1, 1).await;
    passing.release().await.expect("held to the end");
    let small = granted(small).await;
    assert_eq!(queued_permits(&one).await, [3]);
    give_back([two_of_three, small]).await;
    assert_eq!(granted(large).await.permits(), 3);
}

promise!(among_those_that_fit_the_oldest_is_served_first: counting);
async fn among_those_that_fit_the_oldest_is_served_first<S: Semaphore>(site: Site) {
    let semaphores = site.clients::<3>().await.map(|client| S::of(&client, 4));
    let [one, ..] = &semaphores;
    let (three, single) = (taken(one, 3).await, taken(one, 1).await);
    let mut waiters = queue_up(&semaphores, &[3, 2, 1, 2, 1]).await;
    single.release().await.expect("held to the end");
    assert_eq!(queued_permits(one).await, [3, 2, 2, 1], "the older one of the two for whom one is enough");
    let first_small = granted(waiters.remove(2)).await;
    three.release().await.expect("held to the end");
    assert_eq!(queued_permits(one).await, [2, 2, 1], "three are free: enough for the oldest of all");
    let large = granted(waiters.remove(0)).await;
    large.release().await.expect("held to the end");
    assert_eq!(
        queued_permits(one).await,
        [2],
        "two of three go to the older pair, the third to whom it is enough"
    );
    let (pair, last_small) = (granted(waiters.remove(0)).await, granted(waiters.remove(1)).await);
    assert_eq!(holds(one).await, [1, 1, 2]);
    give_back([first_small, last_small]).await;
    let last = granted(waiters.remove(0)).await;
    assert!(pair.token() < last.token());
}

promise!(no_permit_idles_while_it_would_serve_the_next_in_the_queue: counting, fair);
pub(crate) async fn no_permit_idles_while_it_would_serve_the_next_in_the_queue<S: Semaphore>(site: Site) {
    const LIMIT: u32 = 6;
    const STEPS: usize = 120;
    let semaphores = site.clients::<3>().await.map(|client| S::of(&client, LIMIT));
    let (mut dice, mut asked, mut held) = (Dice::new(42), Vec::new(), Vec::<Guard>::new());
    for step in 0..STEPS {
        match dice.below(6) {
            0..=2 => {
                let permits = 1 + dice.below(LIMIT);
                asked.push(waiter(&semaphores[step % 3], permits));
            }
            3 if !asked.is_empty() => asked.swap_remove(dice.index(asked.len())).abort(),
            4 if !held.is_empty() => {
                let guard = &mut held[0];
                let part = guard.split(guard.permits() / 2);
                give_back(part).await;
            }
            _ if !held.is_empty() => drop(held.swap_remove(dice.index(held.len()))),
            _ => {}
        }
        until_agreed(&semaphores[0], LIMIT, &mut asked, &mut held, step).await;
    }
    drop((asked, held));
    nothing_is_left(&semaphores[0]).await;
}

/// Collects who was granted until the store and the test agree on how many hold and wait. Whenever it is looked at, the
/// store has served all whom it may serve.
async fn until_agreed<S: Semaphore>(
    semaphore: &S,
    limit: u32,
    asked: &mut Vec<JoinHandle<Guard>>,
    held: &mut Vec<Guard>,
    step: usize,
) {
    let end = Instant::now() + SOON;
    loop {
        for i in (0..asked.len()).rev() {
            if asked[i].is_finished() {
                held.push(granted(asked.remove(i)).await);
            }
        }
        let now = semaphore.inspect().await.expect("inspected");
        assert_eq!(now.in_use, now.holders.iter().map(|holder| holder.permits).sum::<u32>());
        assert!(now.in_use <= limit, "step {step}: {now:?}");
        let free = limit - now.in_use;
        let next = match S::KIND {
            Kind::Counting => now.waiters.iter().map(|waiter| waiter.permits).min(),
            _ => now.waiters.first().map(|waiter| waiter.permits),
        };
        assert!(next.is_none_or(|permits| permits > free), "step {step}: {free} idle: {now:?}");
        if (now.holders.len(), now.waiters.len()) == (held.len(), asked.len()) {
            return;
        }
        assert!(Instant::now() < end, "step {step}: {} held, {} asked, {now:?}", held.len(), asked.len());
        sleep(ms(1)).await;
    }
}

promise!(order_holds_among_the_rest_when_a_fifth_of_fifty_waiters_give_up: counting, fair);
async fn order_holds_among_the_rest_when_a_fifth_of_fifty_waiters_give_up<S: Semaphore>(site: Site) {
    const WAITERS: usize = 50;
    let clients = site.clients::<4>().await;
    let semaphores = clients.clone().map(|client| S::strict(&client, NAME, 2, SemaphoreOptions::new()));
    let [one, .., doomed] = &semaphores;
    let held = [taken(one, 1).await, taken(one, 1).await];
    let (mut rest, mut abandoned) = (Vec::new(), Vec::new());
    for i in 0..WAITERS {
        let semaphore = if i % 15 == 12 { doomed.clone() } else { semaphores[i % 3].clone() };
        match i % 15 {
            // A third is dropped, a third times out, and the client of the last third is dropped with all it has.
            2 => abandoned.push(tokio::spawn(async move { semaphore.acquire().await.map(drop) })),
            7 | 12 => {
                drop(tokio::spawn(async move { semaphore.acquire_timeout(SECOND * 4).await.map(drop) }))
            }
            _ => rest.push(waiter(&semaphore, 1)),
        }
        until_waiting(one, i + 1).await;
    }
    abandoned.iter().for_each(JoinHandle::abort);
    clients[3].shutdown().await.expect("drained");
    until_waiting(one, rest.len()).await;
    assert_eq!(rest.len(), WAITERS * 4 / 5);
    give_back(held).await;
    assert_grow(&serve_all(rest).await);
    nothing_is_left(one).await;
}

promise!(a_request_that_gives_up_admits_the_waiters_behind_it_at_once: counting, fair);
async fn a_request_that_gives_up_admits_the_waiters_behind_it_at_once<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 3));
    let holder = taken(&two, 2).await;
    for way in 0..3 {
        // The head wants more than there is. A fair semaphore keeps the others waiting for it.
        let semaphore = one.clone();
        let head = tokio::spawn(async move {
            match way {
                0 => semaphore.acquire_many(2).await.ok(),
                1 => semaphore.acquire_many_timeout(2, SECOND * 2).await.ok(),
                _ => timeout(SECOND * 2, semaphore.acquire_many(2)).await.ok().and_then(Result::ok),
            }
        });
        until_waiting(&two, 1).await;
        let behind = waiter(&two, 1);
        if S::KIND == Kind::Fair {
            until_waiting(&two, 2).await;
        }
        match way {
            0 => head.abort(),
            _ => assert!(within(SOON, head).await.expect("no panic").is_none()),
        }
        granted(behind).await.release().await.expect("held to the end");
        until_waiting(&two, 0).await;
        assert_eq!(holds(&two).await, [2]);
    }
    holder.release().await.expect("held to the end");
}

// Giving back

promise!(a_release_that_frees_several_permits_serves_exactly_those_that_now_fit: counting, fair);
async fn a_release_that_frees_several_permits_serves_exactly_those_that_now_fit<S: Semaphore>(site: Site) {
    let semaphores = site.clients::<3>().await.map(|client| S::of(&client, 6));
    let [one, ..] = &semaphores;
    let (four, two) = (taken(one, 4).await, taken(one, 2).await);
    let waiters = queue_up(&semaphores, &[3, 2, 1, 4, 1]).await;
    let last = four.token();
    four.release().await.expect("held to the end");
    // Not eventually: when the release has returned, they hold.
    let (served, left) = match S::KIND {
        Kind::Counting => (vec![0, 2], vec![2, 4, 1]),
        _ => (vec![0], vec![2, 1, 4, 1]),
    };
    assert_eq!(queued_permits(one).await, left);
    let mut waiters: Vec<_> = waiters.into_iter().map(Some).collect();
    let mut tokens = vec![last];
    let mut guards = vec![two];
    for i in served {
        guards.push(granted(waiters[i].take().expect("there")).await);
        tokens.push(guards[guards.len() - 1].token());
    }
    assert!(waiters.iter().flatten().all(|waiter| !waiter.is_finished()));
    assert_grow(&tokens);
    give_back(guards).await;
    let waiters: Vec<_> = waiters.into_iter().flatten().collect();
    serve_all(waiters).await;
    nothing_is_left(one).await;
}

promise!(of_two_holders_the_second_may_leave_first: counting, fair);
async fn of_two_holders_the_second_may_leave_first<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 2));
    for dropped in [false, true] {
        let (first, second) = (taken(&one, 1).await, taken(&two, 1).await);
        let waiters = [queued(&two, 1, 0).await, queued(&one, 1, 1).await];
        if dropped {
            drop(second)
        } else {
            second.release().await.expect("held to the end")
        }
        let [head, tail] = waiters;
        let head = granted(head).await;
        assert_eq!(queued_permits(&one).await.len(), 1);
        give_back([first]).await;
        give_back([granted(tail).await, head]).await;
    }
    nothing_is_left(&one).await;
}

promise!(try_acquire_succeeds_at_once_after_a_guard_of_the_same_client_was_dropped: counting, fair);
async fn try_acquire_succeeds_at_once_after_a_guard_of_the_same_client_was_dropped<S: Semaphore>(site: Site) {
    let semaphore = S::of(&site.client().await, 3);
    for _ in 0..30 {
        let mut all = taken(&semaphore, 3).await;
        let part = all.split(2).expect("two of three");
        drop(part);
        let pair = taken(&semaphore, 2).await;
        drop((all, pair));
    }
}

promise!(requests_with_a_time_limit_take_free_permits_and_report_how_long_they_waited: counting, fair);
async fn requests_with_a_time_limit_take_free_permits_and_report_how_long_they_waited<S: Semaphore>(
    site: Site,
) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 2));
    let guard = one.acquire_timeout(Duration::ZERO).await.expect("free");
    let error = two.acquire_many_timeout(2, ms(150)).await.expect_err("one is missing");
    assert!(error.to_string().contains(NAME), "{error}");
    let Error::TimedOut { name, waited, .. } = error else { panic!("expected TimedOut, got {error:?}") };
    assert_eq!(name, NAME);
    assert!(waited >= ms(150), "{waited:?}");
    let mut other = two.acquire_timeout(SOON).await.expect("free");
    assert_timed_out(two.acquire_timeout(Duration::ZERO).await);
    assert!(other.split(1).is_none());
    let waiter = two.clone();
    let waiter = tokio::spawn(async move { waiter.acquire_many_timeout(2, Duration::MAX).await });
    until_waiting(&one, 1).await;
    drop((guard, other));
    assert_eq!(within(SOON, waiter).await.expect("no panic").expect("granted").permits(), 2);
    nothing_is_left(&one).await;
}

// Parts of a guard

promise!(a_split_guard_leaves_a_permit_behind_and_splits_off_at_least_one: counting, fair);
async fn a_split_guard_leaves_a_permit_behind_and_splits_off_at_least_one<S: Semaphore>(site: Site) {
    let semaphore = S::of(&site.client().await, 5);
    let mut guard = taken(&semaphore, 5).await;
    for permits in [0, 5, 6, u32::MAX] {
        assert!(guard.split(permits).is_none(), "{permits} of 5");
    }
    let mut three = guard.split(3).expect("three of five");
    let mut one = three.split(1).expect("one of three");
    assert_eq!((guard.permits(), three.permits(), one.permits()), (2, 2, 1));
    for permits in [0, 1, 2] {
        assert!(one.split(permits).is_none(), "{permits} of 1");
    }
    assert_eq!((guard.name(), three.token(), one.token()), (NAME, guard.token(), guard.token()));
    assert!(guard.is_held() && three.is_held() && one.is_held());
    // To the store they are one lease.
    assert_eq!((holds(&semaphore).await, free(&semaphore).await), (vec![5], 0));
}

promise!(the_parts_of_a_guard_are_released_in_any_order_and_in_any_way: counting, fair);
async fn the_parts_of_a_guard_are_released_in_any_order_and_in_any_way<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 6));
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for (round, order) in orders.into_iter().enumerate() {
        let mut guard = taken(&one, 6).await;
        let (pair, three) = (guard.split(2).expect("of six"), guard.split(3).expect("of four"));
        let mut parts = [Some(guard), Some(pair), Some(three)];
        let mut available = 0;
        for (step, part) in order.into_iter().enumerate() {
            let part = parts[part].take().expect("each once");
            available += part.permits();
            if (round + step) % 2 == 0 {
                part.release().await.expect("held to the end");
                assert_eq!(free(&two).await, available, "round {round}, step {step}");
            } else {
                drop(part);
                becomes_free(&two, available).await;
            }
            assert!(parts.iter().flatten().all(Guard::is_held));
        }
        nothing_is_left(&two).await;
    }
}

promise!(the_release_of_a_part_serves_waiters_that_fit: counting, fair);
async fn the_release_of_a_part_serves_waiters_that_fit<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 5));
    let mut guard = taken(&one, 5).await;
    let parts = [guard.split(2).expect("of five"), guard.split(2).expect("of three")];
    let waiters = queue_up(from_ref(&two), &[1, 1, 1, 2]).await;
    let [first, second] = parts;
    first.release().await.expect("held to the end");
    assert_eq!((queued_permits(&two).await, holds(&two).await), (vec![1, 2], vec![1, 1, 3]));
    drop(second);
    until_waiting(&two, 1).await;
    assert_eq!(holds(&two).await, [1, 1, 1, 1]);
    let mut served = Vec::new();
    let mut waiters = waiters.into_iter();
    for waiter in waiters.by_ref().take(3) {
        served.push(granted(waiter).await);
    }
    assert!(guard.is_held() && served.iter().all(Guard::is_held));
    guard.release().await.expect("held to the end");
    let last = granted(waiters.next().expect("the fourth")).await;
    give_back(served).await;
    give_back([last]).await;
    nothing_is_left(&two).await;
}

promise!(parts_that_go_all_at_once_leave_nothing: counting, fair);
pub(crate) async fn parts_that_go_all_at_once_leave_nothing<S: Semaphore>(site: Site) {
    const PARTS: usize = 40;
    let [one, two] = site.clients().await.map(|client| S::of(&client, size(PARTS)));
    for round in 0..6 {
        let mut guard = taken(&one, size(PARTS)).await;
        let mut tasks = JoinSet::new();
        for i in 1..PARTS {
            let part = guard.split(1).expect("one more");
            tasks.spawn(async move {
                yield_now().await;
                if (i + round) % 2 == 0 { drop(part) } else { part.release().await.expect("held to the end") }
            });
        }
        assert_eq!(guard.permits(), 1);
        tasks.spawn(async move { drop(guard) });
        within(SOON, tasks.join_all()).await;
        nothing_is_left(&two).await;
        assert_eq!(free(&two).await, size(PARTS));
    }
}

promise!(a_lease_is_kept_until_its_last_part_has_gone: counting, fair);
async fn a_lease_is_kept_until_its_last_part_has_gone<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::attentive(&client, 3));
    let mut guard = taken(&one, 3).await;
    let (part, last) = (guard.split(1).expect("of three"), guard.split(1).expect("of two"));
    for (gone, left) in [(guard, 2), (part, 1)] {
        gone.release().await.expect("held to the end");
        renewed(&last).await;
        assert_eq!(holds(&two).await, [left]);
    }
    last.release().await.expect("held to the end");
    nothing_is_left(&two).await;
}

// Loss

promise!(a_loss_is_reported_to_all_parts_and_their_release_is_an_error: counting, fair);
async fn a_loss_is_reported_to_all_parts_and_their_release_is_an_error<S: Semaphore>(site: Site) {
    let clients = site.clients::<2>().await;
    let options = SemaphoreOptions::new().renewal_period(ms(20));
    let mut guard = taken(&S::with(&clients[0], 3, options), 3).await;
    let (part, last) = (guard.split(1).expect("of three"), guard.split(1).expect("of two"));
    let token = guard.token();
    let parts = [guard, part, last];
    let told: Vec<_> = parts.iter().map(|part| tokio::spawn(part.lost())).collect();
    yield_now().await;
    site.flush();
    for told in told {
        assert_eq!(within(SOON, told).await.expect("no panic"), LossReason::Missing);
    }
    let next = taken(&S::of(&clients[1], 3), 3).await;
    assert!(next.token() > token);
    for part in parts {
        assert_eq!((part.is_held(), part.remaining()), (false, Duration::ZERO));
        assert_lost(part.protect(async {}).await, LossReason::Missing);
        assert_lost(part.release().await, LossReason::Missing);
    }
    assert_eq!(holds(&S::of(&clients[1], 3)).await, [3], "the later holder was left alone");
    next.release().await.expect("held to the end");
}

promise!(a_part_that_does_not_know_of_its_loss_finds_out_by_its_release: counting, fair);
async fn a_part_that_does_not_know_of_its_loss_finds_out_by_its_release<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 3));
    let mut guard = taken(&one, 3).await;
    let part = guard.split(2).expect("of three");
    site.flush();
    let next = taken(&two, 3).await;
    assert!(guard.is_held(), "nobody has told it");
    assert_lost(part.release().await, LossReason::Missing);
    assert!(!guard.is_held());
    assert_eq!(within(SOON, guard.lost()).await, LossReason::Missing);
    drop(guard);
    // The release of the dropped one has been sent before this is answered.
    assert_none(&one, 1).await;
    assert_eq!(holds(&two).await, [3], "the later holder was left alone");
    next.release().await.expect("held to the end");
}

promise!(the_maximum_hold_time_ends_a_lease_with_all_its_parts_and_the_waiters_get_its_permits: counting, fair);
async fn the_maximum_hold_time_ends_a_lease_with_all_its_parts_and_the_waiters_get_its_permits<
    S: Semaphore,
>(
    site: Site,
) {
    let clients = site.clients::<2>().await;
    let lease = site.brief_lease();
    let options = SemaphoreOptions::new().ttl(lease).max_hold(lease * 7 / 5);
    let begun = Instant::now();
    let mut guard = taken(&S::with(&clients[0], 3, options), 2).await;
    let part = guard.split(1).expect("of two");
    let two = S::leased(&clients[1], 3, lease);
    let other = taken(&two, 1).await;
    let waiter = queued(&two, 2, 0).await;
    assert_eq!(within(SOON, part.lost()).await, LossReason::HeldTooLong);
    assert!(!guard.is_held() && !part.is_held());
    let next = granted(waiter).await;
    assert!(begun.elapsed() >= lease * 6 / 5, "after {:?}", begun.elapsed());
    assert!(next.token() > guard.token());
    assert_lost(guard.release().await, LossReason::HeldTooLong);
    assert_lost(part.release().await, LossReason::HeldTooLong);
    give_back([other, next]).await;
    nothing_is_left(&two).await;
}

promise!(shutdown_frees_all_permits_of_the_client_and_ends_its_requests: counting, fair);
async fn shutdown_frees_all_permits_of_the_client_and_ends_its_requests<S: Semaphore>(site: Site) {
    let [doomed, other] = site.clients().await;
    let (one, two) = (S::of(&doomed, 4), S::of(&other, 4));
    let mut guard = taken(&one, 3).await;
    let part = guard.split(1).expect("of three");
    let single = taken(&one, 1).await;
    let (own, semaphore) = (one.clone(), one.clone());
    let waiting = tokio::spawn(async move { own.acquire_many(2).await.map(drop) });
    until_waiting(&two, 1).await;
    let next = queued(&two, 4, 1).await;
    doomed.shutdown().await.expect("drained");
    assert_closed(within(SOON, waiting).await.expect("no panic"));
    // Not eventually: when the shutdown has returned, all of it is free.
    assert_eq!((holds(&two).await, queued_permits(&two).await), (vec![4], vec![]));
    for part in [guard, part, single] {
        assert_eq!(within(SOON, part.lost()).await, LossReason::ClientClosed);
        assert_lost(part.release().await, LossReason::ClientClosed);
    }
    assert_closed(semaphore.acquire().await);
    assert_closed(semaphore.try_acquire_many(2).await);
    assert_closed(semaphore.acquire_timeout(SECOND).await);
    assert_closed(semaphore.available().await);
    assert_closed(semaphore.inspect().await);
    assert_closed(semaphore.resize(9).await);
    granted(next).await.release().await.expect("held to the end");
    nothing_is_left(&two).await;
}

promise!(waiters_are_served_again_after_the_store_has_forgotten_everything: counting, fair);
async fn waiters_are_served_again_after_the_store_has_forgotten_everything<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::leased(&client, 2, site.brief_lease()));
    let guard = taken(&one, 2).await;
    let waiters = queue_up(&[one.clone(), two.clone()], &[1, 2, 1]).await;
    site.flush();
    let tokens = serve_all(waiters).await;
    // In any order: they are queued again.
    assert!(tokens.iter().all(|token| *token > guard.token()), "{tokens:?} after {}", guard.token());
    assert_eq!(within(SOON, guard.lost()).await, LossReason::Missing);
    nothing_is_left(&two).await;
}

// The limit

promise!(another_limit_than_the_one_in_force_is_refused_naming_both: counting, fair);
async fn another_limit_than_the_one_in_force_is_refused_naming_both<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let (five, ten, three) = (S::of(&one, 5), S::of(&two, 10), S::of(&two, 3));
    let guard = taken(&five, 1).await;
    assert_differs(ten.acquire().await, (10, 5));
    assert_differs(ten.acquire_many(7).await, (10, 5));
    assert_differs(ten.acquire_timeout(SOON).await, (10, 5));
    assert_differs(ten.try_acquire_many(10).await, (10, 5));
    assert_differs(three.try_acquire().await, (3, 5));
    // Nothing was granted, and nobody waits.
    assert_eq!((holds(&five).await, queued_permits(&five).await), (vec![1], vec![]));
    assert_eq!((five.limit(), ten.limit(), three.limit()), (5, 10, 3));
    assert_eq!(free(&ten).await, 4, "that is asked about what is in force");
    assert_eq!(ten.inspect().await.expect("inspected").limit, Some(5));
    // While somebody waits and nobody holds more than before, too.
    let waiter = queued(&five, 5, 0).await;
    assert_differs(ten.acquire().await, (10, 5));
    guard.release().await.expect("held to the end");
    assert_eq!(granted(waiter).await.permits(), 5);
}

promise!(a_handle_follows_another_limit_or_sets_its_own_if_told_to: counting, fair);
async fn a_handle_follows_another_limit_or_sets_its_own_if_told_to<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let old = S::of(&one, 2);
    let new = |choice| S::with(&two, 3, SemaphoreOptions::new().on_other_limit(choice));
    let held = taken(&old, 2).await;

    let refused = new(OnOtherLimit::Refuse).acquire().await.map(drop).expect_err("another limit").to_string();
    for part in [" 3", " 2", "`Follow`", "`Set`"] {
        assert!(refused.contains(part), "{refused}");
    }

    let following = new(OnOtherLimit::Follow);
    assert!(following.try_acquire().await.expect("answered").is_none());
    assert_eq!(following.limit(), 2, "the one in force");
    let error = following.acquire_many(3).await.map(drop).expect_err("more than there are");
    assert!(matches!(error, Error::InvalidArgument { argument: "permits", .. }), "{error:?}");
    let waiter = queued(&following, 1, 0).await;

    let setting = new(OnOtherLimit::Set);
    assert!(setting.try_acquire().await.expect("answered").is_none(), "the third permit is that waiter's");
    let waited = granted(waiter).await;
    assert_eq!((setting.limit(), old.inspect().await.expect("answered").limit), (3, Some(3)));
    // What is in use goes on, and follows.
    held.release().await.expect("held to the end");
    waited.release().await.expect("held to the end");
    taken(&old, 3).await.release().await.expect("held to the end");

    // It has set its limit once. Afterwards, it is changed only by `resize`.
    old.resize(1).await.expect("answered");
    taken(&setting, 1).await.release().await.expect("held to the end");
    assert_eq!((setting.limit(), old.limit()), (1, 1));
}

promise!(two_versions_of_a_service_with_different_limits_replace_each_other_under_load: counting, fair);
async fn two_versions_of_a_service_with_different_limits_replace_each_other_under_load<S: Semaphore>(
    site: Site,
) {
    let clients = site.clients::<4>().await;
    for choice in [OnOtherLimit::Follow, OnOtherLimit::Set] {
        let in_use = Arc::new(AtomicU64::new(0));
        let instance = |client: &Client, limit| {
            let semaphore = S::with(client, limit, SemaphoreOptions::new().on_other_limit(choice));
            let in_use = Arc::clone(&in_use);
            async move {
                for _ in 0..20 {
                    let guard = within(SOON, semaphore.acquire()).await.expect("no request fails");
                    let beside = in_use.fetch_add(1, Ordering::SeqCst);
                    assert!(beside < 6, "{beside}");
                    yield_now().await;
                    in_use.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("held to the end");
                }
            }
        };
        // Instances of the old version end while those of the new one begin.
        let old = clients[..2].iter().flat_map(|client| [4; 4].map(|limit| instance(client, limit)));
        let new = clients[2..].iter().flat_map(|client| [6; 4].map(|limit| instance(client, limit)));
        let all: JoinSet<()> = old.chain(new).collect();
        all.join_all().await;
    }
}

promise!(limits_of_five_and_ten_on_one_name_never_admit_more_than_the_first_to_come: counting, fair);
async fn limits_of_five_and_ten_on_one_name_never_admit_more_than_the_first_to_come<S: Semaphore>(
    site: Site,
) {
    let clients = site.clients::<2>().await;
    for round in 0..20 {
        let name = format!("round-{round}");
        let limits = if round % 2 == 0 { [5, 10] } else { [10, 5] };
        let requests = (0..24).map(|i| {
            let semaphore = S::named(&clients[i % 2], &name, limits[i % 2]);
            tokio::spawn(async move { (semaphore.try_acquire().await, semaphore.limit()) })
        });
        let (mut guards, mut admitted, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for request in join_all(requests).await {
            match request.expect("no panic") {
                (Ok(guard), limit) => {
                    admitted.push(limit);
                    guards.extend(guard);
                }
                (Err(Error::LimitDiffers { stated, in_force, .. }), _) => refused.push((stated, in_force)),
                (Err(error), _) => panic!("round {round}: {error:?}"),
            }
        }
        let in_force = admitted[0];
        assert!(admitted.iter().all(|limit| *limit == in_force), "round {round}: {admitted:?}");
        assert!(refused.iter().all(|both| *both == (15 - in_force, in_force)), "round {round}: {refused:?}");
        assert_eq!((guards.len(), refused.len()), (in_force as usize, 12), "round {round}");
    }
}

promise!(a_limit_that_nobody_has_used_for_two_leases_gives_way_to_another: counting, fair);
async fn a_limit_that_nobody_has_used_for_two_leases_gives_way_to_another<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let lease = site.brief_lease();
    let (five, ten) = (S::leased(&one, 5, lease), S::leased(&two, 10, lease));
    let guard = taken(&five, 1).await;
    // Held for longer than a lease.
    assert_pending(lease * 3 / 2, guard.lost()).await;
    assert_differs(ten.acquire().await, (10, 5));
    guard.release().await.expect("held to the end");
    assert_differs(ten.acquire().await, (10, 5));
    eventually(lease * 2 + SLACK, || async { five.inspect().await.is_ok_and(|now| now.limit.is_none()) })
        .await;
    assert_eq!((free(&five).await, free(&ten).await), (5, 10), "each counts by its own limit");
    let guard = taken(&ten, 10).await;
    // Another limit has been put in force since it last asked.
    assert_differs(five.try_acquire().await, (5, 10));
    guard.release().await.expect("held to the end");
}

promise!(an_increased_limit_admits_at_once_exactly_the_waiters_that_now_fit: counting, fair);
async fn an_increased_limit_admits_at_once_exactly_the_waiters_that_now_fit<S: Semaphore>(site: Site) {
    let semaphores = site.clients::<3>().await.map(|client| S::of(&client, 2));
    let [one, two, _] = &semaphores;
    let guard = taken(one, 2).await;
    let waiters = queue_up(&semaphores, &[1, 2, 1, 2]).await;
    two.resize(4).await.expect("resized");
    // Not eventually: when it has been changed, they hold.
    let left = if S::KIND == Kind::Counting { vec![2, 2] } else { vec![2, 1, 2] };
    assert_eq!(queued_permits(one).await, left);
    one.resize(1000).await.expect("resized");
    assert_eq!((queued_permits(one).await, free(one).await), (vec![], 1000 - 8));
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held to the end");
    }
    guard.release().await.expect("held to the end");
}

promise!(a_reduced_limit_revokes_nothing_and_admits_no_one_until_enough_permits_are_returned: counting, fair);
async fn a_reduced_limit_revokes_nothing_and_admits_no_one_until_enough_permits_are_returned<S: Semaphore>(
    site: Site,
) {
    let [one, two] = site.clients().await.map(|client| S::attentive(&client, 4));
    let mut guards = [taken(&one, 1).await, taken(&two, 1).await, taken(&one, 2).await].map(Some);
    two.resize(2).await.expect("resized");
    let waiter = queued(&two, 1, 0).await;
    for guard in guards.iter().flatten() {
        renewed(guard).await;
    }
    assert_eq!((holds(&two).await, free(&two).await), (vec![1, 1, 2], 0));
    for (held, guard) in [(3, 0), (2, 1)] {
        give_back(guards[guard].take()).await;
        assert_eq!(two.inspect().await.expect("inspected").in_use, held);
        assert_eq!((queued_permits(&two).await, free(&two).await), (vec![1], 0));
        assert_none(&one, 1).await;
    }
    let mut last = guards[2].take().expect("not given back");
    let part = last.split(1).expect("of two");
    part.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
    last.release().await.expect("held to the end");
    assert_eq!(free(&one).await, 2);
}

promise!(handles_that_have_used_the_semaphore_follow_a_resize_and_new_ones_must_state_it: counting, fair);
async fn handles_that_have_used_the_semaphore_follow_a_resize_and_new_ones_must_state_it<S: Semaphore>(
    site: Site,
) {
    let [one, two, operator] = site.clients().await;
    let (holder, seen) = (S::of(&one, 5), S::of(&two, 5));
    let guard = taken(&holder, 1).await;
    taken(&seen, 1).await.release().await.expect("held to the end");
    let early_clone = seen.clone();
    // Whatever it states itself, and whether it has met the semaphore or not.
    let resizing = S::of(&operator, 77);
    resizing.resize(8).await.expect("resized");
    assert_eq!(resizing.limit(), 8);
    assert_eq!(resizing.inspect().await.expect("inspected").limit, Some(8));
    assert_eq!((seen.limit(), free(&seen).await), (5, 7), "it has not asked since");
    taken(&seen, 7).await.release().await.expect("held to the end");
    assert_eq!((seen.limit(), early_clone.limit(), holder.limit()), (8, 8, 5));
    taken(&early_clone, 7).await.release().await.expect("held to the end");
    assert_differs(S::of(&two, 5).try_acquire().await, (5, 8));
    assert_differs(S::of(&operator, 77).acquire().await, (77, 8));
    taken(&S::of(&two, 8), 1).await.release().await.expect("held to the end");
    // Down again, below what it was made with.
    seen.resize(3).await.expect("resized");
    taken(&holder, 2).await.release().await.expect("held to the end");
    assert_eq!(holder.limit(), 3);
    assert_invalid(holder.acquire_many(4).await, "permits");
    assert_differs(S::of(&one, 5).try_acquire().await, (5, 3));
    guard.release().await.expect("held to the end");
}

promise!(a_resize_puts_its_limit_in_force_even_if_nobody_uses_the_semaphore: counting, fair);
async fn a_resize_puts_its_limit_in_force_even_if_nobody_uses_the_semaphore<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::leased(&client, 5, SECOND));
    one.resize(7).await.expect("resized");
    one.resize(7).await.expect("again does no harm");
    assert_differs(two.try_acquire().await, (5, 7));
    taken(&one, 7).await.release().await.expect("held to the end");
    eventually(SOON * 3, || async { one.inspect().await.is_ok_and(|now| now.limit.is_none()) }).await;
    taken(&two, 5).await.release().await.expect("held to the end");
}

promise!(a_waiting_request_above_a_reduced_limit_fails_at_once: counting, fair);
async fn a_waiting_request_above_a_reduced_limit_fails_at_once<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 3));
    // All permits are kept, so that it is not met by a hand-over.
    let (pair, single) = (taken(&one, 2).await, taken(&one, 1).await);
    let semaphore = two.clone();
    let large = tokio::spawn(async move { semaphore.acquire_many(3).await.map(drop) });
    until_waiting(&one, 1).await;
    let small = queued(&two, 1, 1).await;
    one.resize(2).await.expect("resized");
    assert_invalid(within(SOON, large).await.expect("no panic"), "permits");
    until_waiting(&one, 1).await;
    assert_eq!(queued_permits(&one).await, [1]);
    single.release().await.expect("held to the end");
    assert_eq!(queued_permits(&one).await, [1], "the two that are left are as many as there may be");
    pair.release().await.expect("held to the end");
    granted(small).await.release().await.expect("held to the end");
    nothing_is_left(&one).await;
}

promise!(a_waiting_request_above_a_shrunken_limit_blocks_nobody: fair);
async fn a_waiting_request_above_a_shrunken_limit_blocks_nobody<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 5));
    let three = taken(&one, 3).await;
    let semaphore = two.clone();
    let large = tokio::spawn(async move { semaphore.acquire_many(5).await.map(drop) });
    until_waiting(&one, 1).await;
    let small = queued(&two, 1, 1).await;
    one.resize(4).await.expect("resized");
    // Not eventually: when it has been changed, the one behind holds.
    assert_eq!(holds(&one).await, [1, 3]);
    assert_invalid(within(SOON, large).await.expect("no panic"), "permits");
    give_back([three, granted(small).await]).await;
    taken(&one, 4).await.release().await.expect("held to the end");
    nothing_is_left(&one).await;
}

promise!(requests_that_can_never_be_granted_fail_and_leave_nothing: counting, fair);
async fn requests_that_can_never_be_granted_fail_and_leave_nothing<S: Semaphore>(site: Site) {
    let client = site.client().await;
    assert_invalid(S::make(&client, NAME, 0, SemaphoreOptions::new()), "limit");
    let semaphore = S::of(&client, 5);
    assert_invalid(semaphore.resize(0).await, "limit");
    for permits in [0, 6, 7, u32::MAX] {
        assert_invalid(semaphore.acquire_many(permits).await, "permits");
        assert_invalid(semaphore.try_acquire_many(permits).await, "permits");
        assert_invalid(semaphore.acquire_many_timeout(permits, SECOND).await, "permits");
    }
    // Not even a limit.
    let now = semaphore.inspect().await.expect("inspected");
    assert!(is_empty(&now) && now.limit.is_none(), "{now:?}");
    // The same when the store is known to have it in force.
    let guard = taken(&semaphore, 5).await;
    for permits in [0, 6, u32::MAX] {
        assert_invalid(semaphore.acquire_many(permits).await, "permits");
        assert_invalid(semaphore.try_acquire_many(permits).await, "permits");
    }
    let error = semaphore.acquire_many(6).await.expect_err("more than there are").to_string();
    assert!(error.contains('6') && error.contains('5'), "{error}");
    assert_eq!((holds(&semaphore).await, queued_permits(&semaphore).await), (vec![5], vec![]));
    guard.release().await.expect("held to the end");
}

promise!(the_largest_limit_there_is_can_be_held_and_split: counting, fair);
async fn the_largest_limit_there_is_can_be_held_and_split<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, u32::MAX));
    let mut most = taken(&one, u32::MAX - 1).await;
    assert_eq!((most.permits(), free(&two).await), (u32::MAX - 1, 1));
    let waiter = queued(&two, u32::MAX, 0).await;
    let half = most.split(u32::MAX / 2).expect("of more");
    half.release().await.expect("held to the end");
    assert_eq!(free(&two).await, 1 + u32::MAX / 2);
    most.release().await.expect("held to the end");
    let all = granted(waiter).await;
    assert_eq!((holds(&one).await, free(&one).await), (vec![u32::MAX], 0));
    assert_none(&one, 1).await;
    two.resize(1).await.expect("resized");
    all.release().await.expect("held to the end");
    assert_eq!(free(&one).await, 1);
}

// Names

/// Names that somebody could take for one another, or for something else.
fn odd_names() -> Vec<String> {
    let long = ["x".repeat(MAX_NAME_BYTES), "é".repeat(MAX_NAME_BYTES / 2), "{".repeat(MAX_NAME_BYTES)];
    let names = [
        " ",
        "  ",
        "a b",
        "a  b",
        "\n",
        "a\nb",
        "a\r\nb",
        "\0",
        "a\0b",
        "dienst:ä",
        "服务",
        "🔑",
        "a",
        "A",
        "{",
        "}",
        "{}",
        "}{",
        "{tag}",
        "{tag}x",
        "x{tag}",
        "a}b",
        "{{a}}",
        "{semaphore:a}:queue",
        "{semaphore:a}:holds",
        "{fair-semaphore:a}:state",
        "{semaphore:}:fence",
        "{fair-semaphore:}:fence",
        "a:queue",
        "a}:queue",
        "semaphore:a",
        "fair-semaphore:a",
        "lock:a",
        ":",
        "*",
        "?",
        "\"",
        "'",
        "\\",
        "%s %d",
        "0",
        "-1",
        "nil",
        "grant",
        "used",
        "limit",
        "é",
        "e\u{301}",
    ];
    names.into_iter().map(str::to_owned).chain(long).collect()
}

promise!(unusual_names_are_distinct_semaphores: counting, fair);
async fn unusual_names_are_distinct_semaphores<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let names = odd_names();
    let (mut held, mut others) = (Vec::new(), Vec::new());
    for (i, name) in names.iter().enumerate() {
        // Each has a limit of its own: another one's would be told.
        held.push(taken(&S::named(&one, name, 1 + size(i)), 1 + size(i)).await);
        let mutex = two.mutex(name).expect("valid");
        let lock = mutex.try_lock().await.expect("answered").expect("no semaphore's");
        let other = match S::KIND {
            Kind::Counting => two.fair_semaphore(name, 1).expect("valid").try_acquire().await,
            _ => two.counting_semaphore(name, 1).expect("valid").try_acquire().await,
        };
        others.push((lock, other.expect("answered").expect("another semaphore")));
    }
    let mut waiters = Vec::new();
    for (i, name) in names.iter().enumerate() {
        waiters.push(queued(&S::named(&two, name, 1 + size(i)), 1, 0).await);
    }
    for ((name, guard), waiter) in names.iter().zip(held).zip(waiters) {
        assert_eq!(guard.name(), name);
        let first = guard.token();
        guard.release().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let next = granted(waiter).await;
        assert!(next.token() > first, "{name:?}");
        next.release().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    for (lock, permit) in others {
        give_back([lock, permit]).await;
    }
}

promise!(names_and_options_out_of_bounds_are_refused: counting, fair);
async fn names_and_options_out_of_bounds_are_refused<S: Semaphore>(site: Site) {
    let client = site.client().await;
    let options = SemaphoreOptions::new;
    let named = |name: &str| S::make(&client, name, 1, options());
    assert_invalid(named(""), "name");
    assert_invalid(named(&"n".repeat(MAX_NAME_BYTES + 1)), "name");
    assert_invalid(named(&"é".repeat(MAX_NAME_BYTES / 2 + 1)), "name");
    let with = |options| S::make(&client, NAME, 1, options);
    assert_invalid(with(options().prefix("p".repeat(MAX_NAME_BYTES + 1))), "prefix");
    assert_invalid(with(options().ttl(ms(99))), "ttl");
    assert_invalid(with(options().ttl(Duration::MAX)), "ttl");
    assert_invalid(with(options().ttl(SECOND).renewal_period(SECOND)), "renewal period");
    assert_invalid(with(options().renewal_period(Duration::ZERO)), "renewal period");
    assert_invalid(with(options().max_hold(Duration::ZERO)), "maximum hold time");
    for suffix in ["queue", "waiters", "holds", "state", "fence"] {
        let name = format!("{{semaphore:a}}:{suffix}");
        assert_invalid(S::make(&client, &name, 1, options().prefix("")), "name");
    }
}

// One key, two kinds

/// Every waiter has a place in the store.
fn lock_options<S: Semaphore>() -> MutexOptions {
    one_place_each().prefix(S::PREFIX)
}

/// The key holds something that is no lock, or no semaphore: a refusal by the store that says so.
#[track_caller]
fn assert_wrong_type<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let Err(Error::StoreRefused { source, name, .. }) = &outcome else {
        panic!("expected a refusal by the store, got {outcome:?}");
    };
    assert_eq!(name.as_deref(), Some(NAME));
    assert!(matches!(source, BackendError::WrongType { .. }), "{source:?}");
}

promise!(a_lock_cannot_be_taken_under_the_key_of_a_semaphore_in_use: counting, fair);
async fn a_lock_cannot_be_taken_under_the_key_of_a_semaphore_in_use<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let semaphore = S::attentive(&one, 3);
    let guard = taken(&semaphore, 2).await;
    let waiter = queued(&semaphore, 3, 0).await;
    let mutex = two.mutex_with(NAME, lock_options::<S>()).expect("valid");
    assert_wrong_type(within(SOON, mutex.lock()).await);
    assert_wrong_type(within(SOON, mutex.try_lock()).await);
    assert_wrong_type(within(SOON, mutex.lock_timeout(SOON)).await);
    let reentrant = two.reentrant_lock_with(NAME, "me", lock_options::<S>()).expect("valid");
    assert_wrong_type(within(SOON, reentrant.lock()).await);
    assert_wrong_type(within(SOON, reentrant.try_lock()).await);
    assert!(mutex.force_release().await.is_err(), "a semaphore is not released by force");
    two.shutdown().await.expect("drained");
    // The semaphore was not touched.
    assert_pending(ms(100), guard.lost()).await;
    assert_eq!((holds(&semaphore).await, queued_permits(&semaphore).await), (vec![2], vec![3]));
    guard.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
}

promise!(permits_cannot_be_taken_under_the_key_of_a_lock_in_use: counting, fair);
async fn permits_cannot_be_taken_under_the_key_of_a_lock_in_use<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await;
    let options = lock_options::<S>().renewal_period(ms(20));
    let mutex = one.mutex_with(NAME, options).expect("valid");
    let guard = mutex.lock().await.expect("free");
    let waiter = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.expect("granted") }
    });
    let inspect = || async { mutex.inspect().await.expect("inspected") };
    eventually(SOON, || async { inspect().await.waiters.len() == 1 }).await;
    let semaphore = S::of(&two, 1);
    assert_wrong_type(within(SOON, semaphore.acquire()).await);
    assert_wrong_type(within(SOON, semaphore.try_acquire()).await);
    assert_wrong_type(within(SOON, semaphore.acquire_timeout(SOON)).await);
    assert_wrong_type(within(SOON, semaphore.resize(2)).await);
    assert_wrong_type(within(SOON, semaphore.available()).await);
    assert_wrong_type(within(SOON, semaphore.inspect()).await);
    two.shutdown().await.expect("drained");
    assert_pending(ms(100), guard.lost()).await;
    assert_eq!((inspect().await.holders.len(), inspect().await.waiters.len()), (1, 1));
    guard.release().await.expect("held to the end");
    granted(waiter).await.release().await.expect("held to the end");
}

// Dropped requests

promise!(a_dropped_waiter_holds_up_nobody_behind_it: counting, fair);
async fn a_dropped_waiter_holds_up_nobody_behind_it<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 2));
    let guard = taken(&one, 2).await;
    let dropped = queued(&two, 2, 0).await;
    let behind = queued(&one, 2, 1).await;
    dropped.abort();
    guard.release().await.expect("held to the end");
    let behind = granted(behind).await;
    until_waiting(&one, 0).await;
    behind.release().await.expect("held to the end");
    nothing_is_left(&one).await;
}

promise!(a_dropped_release_still_returns_permits: counting, fair);
async fn a_dropped_release_still_returns_permits<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 4));
    for polls in 0..3 {
        let mut guard = taken(&one, 4).await;
        let part = guard.split(3).expect("of four");
        for (part, available) in [(part, 3), (guard, 4)] {
            drop(polled(part.release(), polls).await);
            becomes_free(&two, available).await;
        }
        nothing_is_left(&two).await;
    }
}

promise!(a_dropped_resize_changes_the_limit_or_leaves_it: counting, fair);
async fn a_dropped_resize_changes_the_limit_or_leaves_it<S: Semaphore>(site: Site) {
    let [one, two] = site.clients().await.map(|client| S::of(&client, 4));
    let guard = taken(&one, 2).await;
    for polls in 0..4 {
        drop(polled(two.resize(5), polls).await);
        let limit = one.inspect().await.expect("inspected").limit.expect("in force");
        assert!(limit == 4 || limit == 5, "{limit}");
        // Whatever became of it, calling again does no harm.
        two.resize(5).await.expect("resized");
        assert_eq!(free(&one).await, 3);
        two.resize(4).await.expect("resized");
    }
    guard.release().await.expect("held to the end");
    nothing_is_left(&one).await;
}

// Many

promise!(two_thousand_permits_are_held_for_longer_than_their_ttl_and_leave_nothing: counting, fair);
async fn two_thousand_permits_are_held_for_longer_than_their_ttl_and_leave_nothing<S: Semaphore>(site: Site) {
    const PERMITS: u32 = 2000;
    static ONE_KIND_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _alone = ONE_KIND_AT_A_TIME.lock().await;
    let [one, two] = site.clients().await;
    let take = |semaphore: &S, permits: u32| {
        let semaphore = semaphore.clone();
        async move { semaphore.acquire_many(permits).await.expect("free") }
    };
    // As short as this machine can renew so many, with what else it has to do now.
    let (warm, begun) = (S::named(&one, "warm", PERMITS), Instant::now());
    drop(join_all((0..PERMITS).map(|_| take(&warm, 1))).await);
    let lease = (SECOND * 5).max(begun.elapsed() * 24);
    nothing_is_left(&warm).await;
    let make = |client: &Client, name: &str| {
        S::make(client, name, PERMITS, SemaphoreOptions::new().ttl(lease)).expect("valid")
    };
    let [singles, single, mixed] = ["singles", "single", "mixed"].map(|name| make(&one, name));
    let ones = join_all((0..PERMITS).map(|_| take(&singles, 1)));
    // 1 + 2 + ... + 62 are 1953.
    let (mut guards, some) = tokio::join!(ones, join_all((1..63).map(|n| take(&mixed, n))));
    guards.extend(some);
    guards.push(take(&mixed, 47).await);
    guards.push(take(&single, PERMITS).await);
    let watched: Vec<_> = ["singles", "single", "mixed"].map(|name| make(&two, name)).to_vec();
    {
        let mut lost =
            pin!(select_all(guards.iter().map(|guard| Box::pin(guard.lost()))).map(|(reason, ..)| reason));
        for _ in 0..2 {
            for semaphore in &watched {
                assert_eq!(free(semaphore).await, 0);
                assert_none(semaphore, 1).await;
            }
            assert_pending(lease * 2 / 3, lost.as_mut()).await;
        }
    }
    assert!(guards.iter().all(Guard::is_held));
    assert_eq!(holds(&watched[0]).await, vec![1; PERMITS as usize]);
    // A waiter for everything gets it when the last one is gone.
    let waiter = queued(&watched[0], PERMITS, 0).await;
    for (i, released) in join_all(guards.into_iter().map(Guard::release)).await.into_iter().enumerate() {
        released.unwrap_or_else(|error| panic!("guard {i}: {error}"));
    }
    assert_eq!(granted(waiter).await.permits(), PERMITS);
    for semaphore in &watched {
        nothing_is_left(semaphore).await;
        assert_eq!(free(semaphore).await, PERMITS);
    }
}
