//! What hand-over inside a client promises on every store. Each promise is given clients that represent processes.
//!
//! Hand-over is on here, whatever the rest of the run tests.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{FutureExt, join_all};
use futures::poll;
use leasehold::{Client, DistMutex, Error, FencingToken, Guard, LeaseEnd, LossReason, MutexOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};

use leasehold_support::locks::{NAME, SECOND, SLACK, SOON, drive_until, ms, polled};
use leasehold_support::{begun, eventually, within};

/// Long enough that nothing here runs out by itself.
const LONG: Duration = Duration::from_secs(30);
/// How many holds in a row a client has while others wait.
const TURN: usize = 16;
/// For how long a client passes a lease on while others wait.
const TURN_TIME: Duration = Duration::from_millis(30);
/// More polls than any request takes.
const MANY: usize = 100;

pub(crate) fn local(client: &Client, lease: Duration) -> DistMutex {
    local_with(client, MutexOptions::new().ttl(lease))
}

fn local_with(client: &Client, options: MutexOptions) -> DistMutex {
    client.mutex_with(NAME, options.local_handover(true)).expect("valid")
}

/// `lock`, in a task of its own that has arrived.
pub(crate) async fn waiter(mutex: &DistMutex) -> JoinHandle<Result<Guard, Error>> {
    let mutex = mutex.clone();
    begun(async move { mutex.lock().await }).await
}

pub(crate) async fn granted(waiter: JoinHandle<Result<Guard, Error>>) -> Guard {
    within(SOON, waiter).await.expect("no panic").expect("granted")
}

/// Waits until `n` requests are in the store's queue.
#[track_caller]
pub(crate) fn until_waiting(mutex: &DistMutex, n: usize) -> impl Future<Output = ()> {
    eventually(SOON, move || async move {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
}

/// Neither a holder nor a waiter is left, and every client gets the lock at once.
pub(crate) async fn nothing_left(clients: &[Client]) {
    for client in clients {
        let mutex = local(client, LONG);
        let guard = mutex.lock_timeout(SECOND).await.expect("free within a second");
        guard.release().await.expect("held");
    }
    let mutex = local(&clients[0], LONG);
    eventually(SECOND, || async {
        let inspection = mutex.inspect().await.expect("answered");
        inspection.holder().is_none() && inspection.waiters.is_empty()
    })
    .await;
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: &Result<T, Error>, expected: LossReason) {
    assert!(matches!(outcome, Err(Error::Lost { reason, .. }) if *reason == expected), "{outcome:?}");
}

/// Sees who is inside, one at a time, under tokens that grow.
#[derive(Debug, Default)]
struct Room {
    inside: AtomicUsize,
    newest: AtomicU64,
    visits: AtomicUsize,
}

impl Room {
    fn enter(&self, guard: &Guard) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
        let token = guard.token().get();
        let last = self.newest.swap(token, Ordering::SeqCst);
        assert!(last < token, "the token {token} after {last}");
        self.visits.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Who was served, in order.
struct Served<T> {
    tell: UnboundedSender<(T, FencingToken)>,
    told: UnboundedReceiver<(T, FencingToken)>,
}

impl<T: Send + 'static> Served<T> {
    fn new() -> Self {
        let (tell, told) = unbounded_channel();
        Self { tell, told }
    }

    /// A task that waits for its turn, holds for a while, and leaves.
    async fn visitor(&self, mutex: &DistMutex, who: T, hold: Duration) {
        let (mutex, tell) = (mutex.clone(), self.tell.clone());
        begun(async move {
            let guard = mutex.lock().await.expect("granted");
            let _ = tell.send((who, guard.token()));
            if hold > Duration::ZERO {
                sleep(hold).await;
            }
            // Both ways to leave pass the lease on.
            if guard.token().get() % 2 == 0 {
                guard.release().await.expect("held to the end");
            }
        })
        .await;
    }

    /// The next `n` of them, under growing tokens.
    async fn next(&mut self, n: usize) -> Vec<T> {
        let (mut served, mut newest) = (Vec::new(), None);
        for _ in 0..n {
            let (who, token) = within(2 * SOON, self.told.recv()).await.expect("somebody is served");
            assert!(newest < Some(token), "tokens grow: {token} after {newest:?}");
            newest = Some(token);
            served.push(who);
        }
        served
    }
}

/// The lengths of the runs of equal elements.
fn runs(served: &[usize]) -> Vec<(usize, usize)> {
    served.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

// Order, exclusion, turns

pub(crate) async fn tasks_of_one_client_are_served_in_order_of_arrival(clients: &[Client]) {
    let mutex = local(&clients[0], LONG);
    let guard = mutex.lock().await.expect("free");
    let mut served = Served::new();
    for i in 0..120 {
        served.visitor(&mutex, i, Duration::ZERO).await;
    }
    guard.release().await.expect("held to the end");
    assert!(served.next(120).await.into_iter().eq(0..120));
    nothing_left(clients).await;
}

pub(crate) async fn a_hundred_tasks_exclude_each_other_under_growing_tokens(clients: &[Client]) {
    let room = Arc::new(Room::default());
    let mut tasks = JoinSet::new();
    for i in 0..100 {
        let (mutex, room) = (local(&clients[i % clients.len()], LONG), Arc::clone(&room));
        tasks.spawn(async move {
            for round in 0..4 {
                let guard = mutex.lock().await.expect("granted");
                room.enter(&guard);
                yield_now().await;
                room.leave();
                if (i + round) % 2 == 0 {
                    guard.release().await.expect("held to the end");
                }
            }
        });
    }
    while let Some(ended) = within(LONG, tasks.join_next()).await {
        ended.expect("no panic");
    }
    assert_eq!(room.visits.load(Ordering::SeqCst), 400);
    nothing_left(clients).await;
}

pub(crate) async fn another_client_waits_for_sixteen_holds_at_most(clients: &[Client]) {
    let (mutex, other) = (local(&clients[0], LONG), local(&clients[1], LONG));
    let guard = mutex.lock().await.expect("free");
    let mut served = Served::new();
    for _ in 0..40 {
        served.visitor(&mutex, 0, Duration::ZERO).await;
    }
    served.visitor(&other, 1, Duration::ZERO).await;
    until_waiting(&mutex, 1).await;
    guard.release().await.expect("held to the end");
    let served = served.next(41).await;
    let turn = served.iter().position(|who| *who == 1).expect("it was served");
    // The first hold was the guard's.
    assert!(turn < TURN, "after {turn} others");
    nothing_left(clients).await;
}

pub(crate) async fn another_client_waits_for_thirty_milliseconds_of_long_holds_at_most(clients: &[Client]) {
    const HOLD: Duration = Duration::from_millis(20);
    let (mutex, other) = (local(&clients[0], LONG), local(&clients[1], LONG));
    let guard = mutex.lock().await.expect("free");
    let mut served = Served::new();
    for _ in 0..12 {
        served.visitor(&mutex, 0, HOLD).await;
    }
    served.visitor(&other, 1, HOLD).await;
    until_waiting(&mutex, 1).await;
    guard.release().await.expect("held to the end");
    let served = served.next(13).await;
    let turn = served.iter().position(|who| *who == 1).expect("it was served");
    // One hold may begin just before the time is over.
    assert!(turn <= (TURN_TIME.as_millis() / HOLD.as_millis()) as usize + 1, "after {turn} others");
    nothing_left(clients).await;
}

pub(crate) async fn clients_take_turns_in_order(clients: &[Client]) {
    const EACH: usize = 40;
    // So long that the next one of a client is in the store's queue before the last hold of its turn ends.
    const HOLD: Duration = Duration::from_millis(1);
    let mutexes: Vec<_> = clients.iter().map(|client| local(client, LONG)).collect();
    let locked = Instant::now();
    let guard = mutexes[0].lock().await.expect("free");
    let mut served = Served::new();
    for (who, mutex) in mutexes.iter().enumerate() {
        for _ in 0..EACH {
            served.visitor(mutex, who, HOLD).await;
        }
        until_waiting(mutex, who).await;
    }
    let is_over = locked.elapsed() >= TURN_TIME;
    guard.release().await.expect("held to the end");
    let served = served.next(EACH * mutexes.len()).await;
    let runs = runs(&served);
    assert!(runs.iter().all(|(_, length)| *length <= TURN), "{runs:?}");
    // As long as all have somebody who waits. If letting them wait has taken longer than a turn, that of the first
    // client may be over.
    let order: Vec<_> = runs.iter().map(|(who, _)| *who).take(6).collect();
    assert!(order == [0, 1, 2, 0, 1, 2] || is_over && order == [1, 2, 0, 1, 2, 0], "{runs:?}");
    nothing_left(clients).await;
}

/// Under which id the store knows the holder.
async fn holder(mutex: &DistMutex) -> Option<String> {
    mutex.inspect().await.expect("answered").holder().map(|holder| holder.id.clone())
}

/// Tries `attempt` until it was not too slow for the time of a turn, which a busy machine may be.
async fn within_a_turn(attempt: impl AsyncFn(Instant) -> bool) {
    for _ in 0..50 {
        if attempt(Instant::now()).await {
            return;
        }
    }
    panic!("never within {TURN_TIME:?}");
}

/// Whether a hand-over at this moment is inside a turn that began after `start`.
fn still_in(start: Instant) -> bool {
    start.elapsed() < TURN_TIME
}

pub(crate) async fn mutexes_with_other_options_exclude_each_other_and_pass_nothing_on(clients: &[Client]) {
    let (one, another) = (local(&clients[0], LONG), local(&clients[0], LONG / 2));
    within_a_turn(async |start| {
        let guard = one.lock().await.expect("free");
        let id = holder(&one).await;
        let other_waiter = waiter(&another).await;
        // It is not behind the holder, but in the store's queue.
        until_waiting(&one, 1).await;
        let own = waiter(&one).await;
        assert!(another.try_lock().await.expect("answered").is_none());
        guard.release().await.expect("held to the end");
        if !still_in(start) {
            other_waiter.abort();
            own.abort();
            let _ = tokio::join!(other_waiter, own);
            nothing_left(clients).await;
            return false;
        }
        let own = granted(own).await;
        assert_eq!(holder(&one).await, id, "passed on");
        assert!(!other_waiter.is_finished());
        own.release().await.expect("held to the end");
        let other_guard = granted(other_waiter).await;
        assert_ne!(holder(&one).await, id, "granted by the store");
        assert!(one.try_lock().await.expect("answered").is_none());
        other_guard.release().await.expect("held to the end");
        true
    })
    .await;
    nothing_left(clients).await;
}

pub(crate) async fn a_dropped_guard_is_passed_on_as_a_released_one(clients: &[Client]) {
    let mutex = local(&clients[0], LONG);
    for dropped in [false, true] {
        within_a_turn(async |start| {
            let guard = mutex.lock().await.expect("free");
            let (id, token) = (holder(&mutex).await, guard.token());
            let next = waiter(&mutex).await;
            if dropped {
                drop(guard);
            } else {
                guard.release().await.expect("held to the end");
            }
            let passed_on = still_in(start);
            let next = granted(next).await;
            assert!(next.token() > token);
            assert!(!passed_on || holder(&mutex).await == id);
            next.release().await.expect("held to the end");
            passed_on
        })
        .await;
    }
    nothing_left(clients).await;
}

pub(crate) async fn try_lock_neither_waits_nor_overtakes(clients: &[Client]) {
    let mutex = local(&clients[0], LONG);
    within_a_turn(async |start| {
        let guard = mutex.lock().await.expect("free");
        let next = waiter(&mutex).await;
        assert!(mutex.try_lock().await.expect("answered").is_none());
        guard.release().await.expect("held to the end");
        if !still_in(start) {
            granted(next).await.release().await.expect("held to the end");
            return false;
        }
        assert!(mutex.try_lock().await.expect("answered").is_none(), "passed on");
        let next = granted(next).await;
        assert!(mutex.try_lock().await.expect("answered").is_none());
        drop(next);
        let last = mutex.try_lock().await.expect("answered").expect("free");
        last.release().await.expect("held to the end");
        true
    })
    .await;
    nothing_left(clients).await;
}

// Those who give up

pub(crate) async fn waiters_that_give_up_are_skipped(clients: &[Client]) {
    let mutex = local(&clients[0], LONG);
    let guard = mutex.lock().await.expect("free");
    let mut dropped = mutex.lock().boxed();
    assert!(poll!(&mut dropped).is_pending());
    let late = mutex.clone();
    let late = begun(async move { (late.lock_timeout(ms(150)).await, Instant::now()) }).await;
    let (next, start) = (waiter(&mutex).await, Instant::now());
    drop(dropped);
    let (outcome, at) = within(SOON, late).await.expect("no panic");
    assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    assert!(at - start < ms(150) + SLACK, "{:?}", at - start);
    assert!(!next.is_finished());
    let token = guard.token();
    guard.release().await.expect("held to the end");
    let next = granted(next).await;
    assert!(next.token() > token);
    next.release().await.expect("held to the end");
    nothing_left(clients).await;
}

/// The first waiter gives up in the given way, while a third client's waiter is queued behind it. Its place is the next
/// one's.
async fn leave_a_place(
    clients: &[Client],
    time_limit: Duration,
    give_up: impl AsyncFnOnce(JoinHandle<Result<Guard, Error>>),
) {
    let (mutex, other) = (local(&clients[0], LONG), local(&clients[1], LONG));
    let guard = other.lock().await.expect("free");
    let first = mutex.clone();
    let head = begun(async move { first.lock_timeout(time_limit).await }).await;
    until_waiting(&mutex, 1).await;
    let next = waiter(&mutex).await;
    // Not of the client that holds: that would wait behind its holder, in the client.
    let behind = waiter(&local(&clients[2], LONG)).await;
    until_waiting(&mutex, 2).await;
    give_up(head).await;
    until_waiting(&mutex, 2).await;
    guard.release().await.expect("held to the end");
    // Whoever is served first keeps the lock.
    within(SOON, eventually(SOON, || std::future::ready(next.is_finished() || behind.is_finished()))).await;
    assert!(!behind.is_finished(), "the next one was overtaken");
    granted(next).await.release().await.expect("held to the end");
    granted(behind).await.release().await.expect("held to the end");
    nothing_left(clients).await;
}

pub(crate) async fn the_first_waiter_that_is_dropped_leaves_its_place_to_the_next_one(clients: &[Client]) {
    leave_a_place(clients, LONG, async |head| {
        head.abort();
        assert!(head.await.is_err_and(|error| error.is_cancelled()));
    })
    .await;
}

pub(crate) async fn the_first_waiter_whose_time_is_over_leaves_its_place_to_the_next_one(clients: &[Client]) {
    leave_a_place(clients, ms(500), async |head| {
        let outcome = within(SOON, head).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::TimedOut { .. })), "{outcome:?}");
    })
    .await;
}

pub(crate) async fn the_first_waiter_dropped_after_any_poll_while_it_is_granted_stalls_nobody(
    clients: &[Client],
) {
    let (mutex, other) = (local(&clients[0], LONG), local(&clients[1], LONG));
    for polls in 0..MANY {
        let guard = other.lock().await.expect("free");
        let mut head = mutex.lock().boxed();
        drive_until(head.as_mut(), until_waiting(&mutex, 1)).await;
        let next = waiter(&mutex).await;
        guard.release().await.expect("held to the end");
        let locked = polled(head, polls).await;
        let done = locked.is_some();
        drop(locked);
        granted(next).await.release().await.expect("held to the end");
        nothing_left(clients).await;
        if done {
            return;
        }
    }
    panic!("not granted after {MANY} polls");
}

pub(crate) async fn the_first_waiter_dropped_after_any_poll_leaves_nothing_and_stalls_nobody(
    clients: &[Client],
) {
    let (mutex, other) = (local(&clients[0], LONG), local(&clients[1], LONG));
    for held in [false, true] {
        let mut waited = false;
        for polls in 0..MANY {
            let guard = if held { Some(other.lock().await.expect("free")) } else { None };
            let mut head = mutex.lock().boxed();
            let first = polls > 0 && poll!(&mut head).is_ready();
            assert!(!first || !held);
            let next = waiter(&mutex).await;
            // The last polls come with a wake-up that never comes.
            let rest = async { if first { None } else { polled(head, polls.saturating_sub(1)).await } };
            let rest = timeout(ms(50), rest).await;
            waited = rest.is_err();
            let locked = matches!(rest, Ok(Some(_)));
            drop(rest);
            if let Some(guard) = guard {
                assert!(!next.is_finished(), "the lock is held");
                guard.release().await.expect("held to the end");
            }
            granted(next).await.release().await.expect("held to the end");
            nothing_left(clients).await;
            if waited || locked {
                break;
            }
        }
        assert!(waited || !held, "not waiting after {MANY} polls");
    }
}

pub(crate) async fn a_local_waiter_dropped_at_any_poll_leaves_nothing_and_stalls_no_other(
    clients: &[Client],
) {
    let (mutex, other) = (local(&clients[0], LONG), local(&clients[1], LONG));
    for by_other in [false, true] {
        for polls in 0..8 {
            let guard = if by_other { &other } else { &mutex }.lock().await.expect("free");
            let head = if by_other { Some(waiter(&mutex).await) } else { None };
            let second = timeout(ms(20), polled(mutex.lock(), polls)).await;
            assert!(!matches!(second, Ok(Some(_))), "the lock is held");
            let next = waiter(&mutex).await;
            guard.release().await.expect("held to the end");
            if let Some(head) = head {
                granted(head).await.release().await.expect("held to the end");
            }
            granted(next).await.release().await.expect("held to the end");
            nothing_left(clients).await;
        }
    }
    // Passed to it, and dropped after any poll from there on.
    for polls in 0..8 {
        let guard = mutex.lock().await.expect("free");
        let mut second = mutex.lock().boxed();
        assert!(poll!(&mut second).is_pending());
        let next = waiter(&mutex).await;
        guard.release().await.expect("held to the end");
        drop(polled(second, polls).await);
        granted(next).await.release().await.expect("held to the end");
        nothing_left(clients).await;
    }
}

pub(crate) async fn a_waiter_dropped_while_the_lease_is_passed_to_it_stalls_no_other(clients: &[Client]) {
    let mutex = local(&clients[0], LONG);
    let mut won = 0;
    for round in 0..300_u64 {
        let guard = mutex.lock().await.expect("free");
        let doomed = mutex.clone();
        let time_limit = Duration::from_micros(round % 100);
        let doomed = begun(async move {
            let locked = timeout(time_limit, doomed.lock()).await;
            locked.is_ok()
        })
        .await;
        let next = waiter(&mutex).await;
        for _ in 0..round % 7 {
            yield_now().await;
        }
        if round % 2 == 0 {
            doomed.abort();
        }
        guard.release().await.expect("held to the end");
        won += u32::from(matches!(within(SOON, doomed).await, Ok(true)));
        granted(next).await.release().await.expect("held to the end");
    }
    assert!(won < 300, "{won}");
    nothing_left(clients).await;
}

// Those who are not polled

/// Everybody in `waiters` gets the lock, one after another, within `limit`.
async fn all_served(waiters: Vec<JoinHandle<Result<Guard, Error>>>, limit: Duration) {
    let all = join_all(waiters.into_iter().map(|waiter| async {
        waiter.await.expect("no panic").expect("granted").release().await.expect("held to the end");
    }));
    within(limit, all).await;
}

pub(crate) async fn a_first_waiter_that_is_not_polled_holds_the_others_up_for_two_leases_at_most(
    clients: &[Client],
) {
    const LEASE: Duration = Duration::from_millis(500);
    let (mutex, other) = (local(&clients[0], LEASE), local(&clients[1], LEASE));
    let guard = other.lock().await.expect("free");
    let mut head = mutex.lock().boxed();
    assert!(poll!(&mut head).is_pending());
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(waiter(&mutex).await);
    }
    guard.release().await.expect("held to the end");
    all_served(waiters, 2 * LEASE + SLACK).await;
    // Whoever polls it at last gets the lock as well.
    within(2 * LEASE + SLACK, head).await.expect("granted").release().await.expect("held to the end");
    nothing_left(clients).await;
}

/// Each of those who come later has a shorter time limit than a lease.
pub(crate) async fn a_first_waiter_that_is_never_polled_does_not_block_later_ones(clients: &[Client]) {
    const LEASE: Duration = Duration::from_millis(400);
    let (mutex, other) = (local(&clients[0], LEASE), local(&clients[1], LEASE));
    let guard = other.lock().await.expect("free");
    let mut head = mutex.lock().boxed();
    assert!(poll!(&mut head).is_pending());
    guard.release().await.expect("held to the end");
    let start = Instant::now();
    let guard = loop {
        match mutex.lock_timeout(ms(50)).await {
            Ok(guard) => break guard,
            Err(Error::TimedOut { .. }) => assert!(start.elapsed() < 3 * LEASE + SLACK, "nobody is let in"),
            Err(error) => panic!("{error}"),
        }
    };
    // From here on it is as if the other were not there.
    guard.release().await.expect("held to the end");
    within(SLACK, mutex.lock()).await.expect("free").release().await.expect("held to the end");
    drop(head);
    nothing_left(clients).await;
}

pub(crate) async fn a_waiter_with_a_passed_on_lease_that_is_not_polled_blocks_others_for_at_most_two_ttls(
    clients: &[Client],
) {
    const LEASE: Duration = Duration::from_millis(500);
    let mutex = local(&clients[0], LEASE);
    let guard = mutex.lock().await.expect("free");
    let mut second = mutex.lock().boxed();
    assert!(poll!(&mut second).is_pending());
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(waiter(&mutex).await);
    }
    guard.release().await.expect("held to the end");
    all_served(waiters, 2 * LEASE + SLACK).await;
    within(2 * LEASE + SLACK, second).await.expect("granted").release().await.expect("held to the end");
    nothing_left(clients).await;
}

// Loss

pub(crate) async fn a_loss_is_reported_to_the_current_holder_only(clients: &[Client]) {
    let (mutex, operator) = (local(&clients[0], LONG), local(&clients[1], LONG));
    let first = mutex.lock().await.expect("free");
    let (second, third) = (waiter(&mutex).await, waiter(&mutex).await);
    let before = first.ended();
    first.release().await.expect("held to the end");
    let second = granted(second).await;
    let id = operator.inspect().await.expect("answered").holder().map(|holder| holder.id.clone());
    assert!(operator.force_release().await.expect("answered"));
    assert_eq!(within(SOON, second.lost()).await, LossReason::Revoked);
    assert!(!second.is_held());
    let third = granted(third).await;
    assert!(third.token() > second.token());
    let fresh = operator.inspect().await.expect("answered").holder().map(|holder| holder.id.clone());
    assert_ne!(fresh, id, "a grant of the store");
    assert_lost(&second.release().await, LossReason::Revoked);
    assert!(third.is_held());
    assert_eq!(before.await, LeaseEnd::Released);
    third.release().await.expect("held to the end");
    nothing_left(clients).await;
}

/// `forget` makes the store forget the lock.
pub(crate) async fn a_forgotten_lease_is_reported_to_the_current_holder_only(
    clients: &[Client],
    forget: impl FnOnce(),
) {
    let mutex = local_with(&clients[0], MutexOptions::new().ttl(3 * SECOND).renewal_period(ms(20)));
    let first = mutex.lock().await.expect("free");
    let (second, third) = (waiter(&mutex).await, waiter(&mutex).await);
    let before = first.ended();
    first.release().await.expect("held to the end");
    let second = granted(second).await;
    forget();
    assert_eq!(within(SECOND, second.lost()).await, LossReason::Missing);
    let third = granted(third).await;
    assert!(third.token() > second.token() && third.is_held());
    assert_lost(&second.release().await, LossReason::Missing);
    assert_eq!(before.await, LeaseEnd::Released);
    third.release().await.expect("held to the end");
    nothing_left(clients).await;
}

pub(crate) async fn the_maximum_hold_time_counts_for_each_hold(clients: &[Client]) {
    let mutex = local_with(&clients[0], MutexOptions::new().ttl(SECOND).max_hold(ms(300)));
    let first = mutex.lock().await.expect("free");
    let (second, third) = (waiter(&mutex).await, waiter(&mutex).await);
    let (start, token) = (Instant::now(), first.token().get());
    sleep(TURN_TIME / 3).await; // a hold of some length
    first.release().await.expect("held to the end");
    let second = granted(second).await;
    assert_eq!(second.token().get(), token + 1, "passed on");
    let passed = Instant::now();
    assert!(second.remaining() <= ms(300));
    assert_eq!(within(SOON, second.lost()).await, LossReason::HeldTooLong);
    assert!(passed.elapsed() + ms(20) >= ms(300) && start.elapsed() >= ms(305), "{:?}", passed.elapsed());
    let third = granted(third).await;
    assert!(third.token() > second.token());
    assert_lost(&second.release().await, LossReason::HeldTooLong);
    third.release().await.expect("held to the end");
    nothing_left(clients).await;
}

pub(crate) async fn short_leases_are_passed_on_for_many_lease_lengths_and_none_is_lost(clients: &[Client]) {
    let room = Arc::new(Room::default());
    let end = Instant::now() + 2 * SECOND;
    let mut tasks = JoinSet::new();
    for i in 0..16 {
        let (mutex, room) = (local(&clients[i % 2], ms(300)), Arc::clone(&room));
        tasks.spawn(async move {
            while Instant::now() < end {
                let guard = mutex.lock().await.expect("granted");
                room.enter(&guard);
                sleep(ms(2)).await;
                room.leave();
                guard.release().await.expect("not lost");
            }
        });
    }
    while let Some(ended) = within(LONG, tasks.join_next()).await {
        ended.expect("no panic");
    }
    assert!(room.visits.load(Ordering::SeqCst) > 50);
    nothing_left(clients).await;
}

// Ends

pub(crate) async fn a_shutdown_ends_holders_and_waiters(clients: &[Client]) {
    let [doomed, other, ..] = clients else { panic!("two clients") };
    let (mutex, elsewhere) = (local(doomed, LONG), local(other, LONG));
    let held = doomed.mutex("held").expect("valid");
    let guard = held.lock().await.expect("free");
    let mut waiters = vec![waiter(&held).await, waiter(&held).await];
    let blocker = elsewhere.lock().await.expect("free");
    for _ in 0..3 {
        waiters.push(waiter(&mutex).await);
    }
    until_waiting(&elsewhere, 1).await;
    doomed.shutdown().await.expect("drained");
    for waiter in waiters {
        let outcome = within(SOON, waiter).await.expect("no panic");
        assert!(matches!(outcome, Err(Error::Closed { .. })), "{outcome:?}");
    }
    assert_eq!(guard.lost().await, LossReason::ClientClosed);
    until_waiting(&elsewhere, 0).await;
    assert!(other.mutex("held").expect("valid").try_lock().await.expect("answered").is_some());
    blocker.release().await.expect("held to the end");
    nothing_left(&clients[1..]).await;
}

/// It cannot know whether somebody will poll it, and waits for a while.
pub(crate) async fn a_shutdown_does_not_wait_for_ever_for_those_that_are_not_polled(clients: &[Client]) {
    const LEASE: Duration = Duration::from_secs(1);
    let [doomed, rest @ ..] = clients else { panic!("some clients") };
    let mutex = local(doomed, LEASE);
    let guard = mutex.lock().await.expect("free");
    let mut second = mutex.lock().boxed();
    assert!(poll!(&mut second).is_pending());
    guard.release().await.expect("held to the end");
    // What it could not take back it says.
    let outcome = within(2 * SOON, doomed.shutdown()).await;
    assert!(matches!(outcome, Ok(()) | Err(Error::StoreUnavailable { .. })), "{outcome:?}");
    let outcome = within(SOON, second).await;
    assert!(matches!(outcome, Err(Error::Closed { .. })), "{outcome:?}");
    let guard = local(&rest[0], LONG).lock_timeout(LEASE + SLACK).await.expect("free within a lease");
    guard.release().await.expect("held to the end");
    nothing_left(rest).await;
}

// Everything at once

pub(crate) async fn whatever_tasks_do_at_random_nothing_is_left(clients: &[Client]) {
    let room = Arc::new(Room::default());
    let end = Instant::now() + 2 * SECOND;
    let mut tasks = JoinSet::new();
    for i in 0..24_u64 {
        let (mutex, room) = (local(&clients[i as usize % 2], 5 * SECOND), Arc::clone(&room));
        tasks.spawn(async move {
            // xorshift
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ (i + 1);
            let mut random = move |n: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % n
            };
            while Instant::now() < end {
                let time_limit = Duration::from_micros(random(5000));
                let guard = match random(6) {
                    0 | 1 => Some(mutex.lock().await.expect("granted")),
                    2 => match mutex.lock_timeout(time_limit).await {
                        Ok(guard) => Some(guard),
                        Err(Error::TimedOut { .. }) => None,
                        Err(error) => panic!("{error}"),
                    },
                    3 => {
                        let mut idle = mutex.lock().boxed();
                        let polled = poll!(&mut idle);
                        sleep(time_limit).await; // not polled meanwhile
                        drop((idle, polled));
                        None
                    }
                    4 => timeout(time_limit, mutex.lock()).await.ok().map(|locked| locked.expect("granted")),
                    _ => {
                        polled(mutex.lock(), random(6) as usize).await.map(|locked| locked.expect("granted"))
                    }
                };
                let Some(guard) = guard else {
                    sleep(Duration::from_micros(random(2000))).await; // the others' turn
                    continue;
                };
                room.enter(&guard);
                if random(3) == 0 {
                    sleep(Duration::from_micros(random(3000))).await; // a hold of some length
                }
                room.leave();
                match random(3) {
                    0 => drop(guard),
                    1 => drop(polled(guard.release(), random(3) as usize).await),
                    _ => guard.release().await.expect("held to the end"),
                }
            }
        });
    }
    while let Some(ended) = within(LONG, tasks.join_next()).await {
        ended.expect("no panic");
    }
    assert!(room.visits.load(Ordering::SeqCst) > 100);
    nothing_left(clients).await;
}

/// Every promise as a test: `$clients` makes `n` clients, or leaves the test out.
macro_rules! promises {
    ($test:meta, $clients:path, $($name:ident: $n:literal,)*) => {
        $(
            #[$test]
            async fn $name() {
                let Some(fixture) = $clients(stringify!($name), $n).await else { return };
                handover_promises::$name(&fixture.clients).await;
                fixture.end().await;
            }
        )*
    };
}
