//! What `DistMutex`, `Guard` and `Client` promise, on the store inside the process. A peer of the store represents
//! another process, and where time matters, tokio's paused clock drives it.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures::future::{FutureExt, join_all};
use futures::poll;
use futures::stream::{self, BoxStream, StreamExt};
use leasehold::backend::{
    Answer, Answered, Backend, Claim, Kind, LeaseRef, Released, Renew, Request, Resource,
};
use leasehold::{
    Client, DistMutex, Error, Fence, Guard, Inspection, LeaseEnd, LossReason, Lost, MAX_NAME_BYTES,
    MemoryBackend, MutexOptions, Protected, SemaphoreOptions,
};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use leasehold_support::{assert_pending, begun, eventually, local_handover, one_place_each, options, within};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout, timeout_at};

const NAME: &str = "machine:42";
const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once.
const SOON: Duration = Duration::from_secs(5);

type Outcome = Result<(), Error>;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client of `store`, as another process would have one.
fn client_of(store: &MemoryBackend) -> Client {
    Client::with_backend(Arc::new(store.peer()))
}

/// The lock of the tests, through a client of its own.
fn mutex_of(store: &MemoryBackend) -> DistMutex {
    client_of(store).mutex_with(NAME, options()).expect("valid")
}

fn lease_of(client: &Client, lease: Duration) -> DistMutex {
    client.mutex_with(NAME, options().ttl(lease)).expect("valid")
}

fn is_empty(inspection: &Inspection) -> bool {
    inspection.holder().is_none() && inspection.waiters.is_empty()
}

/// Waits until neither a holder nor a waiter is left.
#[track_caller]
fn nothing_is_left(mutex: &DistMutex) -> impl Future<Output = ()> {
    eventually(SOON, || async { mutex.inspect().await.is_ok_and(|inspection| is_empty(&inspection)) })
}

/// Waits until `n` requests are queued.
#[track_caller]
fn waiting(mutex: &DistMutex, n: usize) -> impl Future<Output = ()> {
    eventually(SOON, move || async move {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
}

#[track_caller]
fn assert_lost(outcome: &Outcome, expected: LossReason) {
    let Err(Error::Lost { name, reason, .. }) = outcome else { panic!("expected a loss, got {outcome:?}") };
    assert_eq!((name.as_str(), *reason), (NAME, expected));
}

#[track_caller]
fn assert_closed<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Closed { .. })), "expected Closed, got {outcome:?}");
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

// Exclusion and order

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hundred_tasks_of_two_processes_exclude_each_other_under_growing_tokens() {
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let (counter, fence) = (Arc::new(AtomicU64::new(0)), Arc::new(Fence::new()));
    let tasks = (0..100).map(|i| {
        let mutex = clients[i % 2].mutex_with(NAME, options()).expect("valid");
        let (counter, fence) = (Arc::clone(&counter), Arc::clone(&fence));
        tokio::spawn(async move {
            for round in 0..10 {
                let guard = mutex.lock().await.expect("granted");
                fence.admit(guard.token()).expect("tokens grow in the order of the grants");
                let read = counter.load(Ordering::Relaxed);
                yield_now().await;
                counter.store(read + 1, Ordering::Relaxed);
                if round % 2 == 0 {
                    guard.release().await.expect("held to the end");
                }
            }
        })
    });
    for task in within(Duration::from_secs(60), join_all(tasks)).await {
        task.expect("no task panicked");
    }
    assert_eq!(counter.load(Ordering::Relaxed), 1000);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_the_order_of_their_arrival_across_processes() -> Outcome {
    let store = MemoryBackend::new();
    let mutex = || client_of(&store).mutex_with(NAME, one_place_each()).expect("valid");
    let mutexes = [mutex(), mutex(), mutex()];
    let guard = mutexes[0].lock().await?;
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..30 {
        let (mutex, served) = (mutexes[i % 3].clone(), served.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("granted");
            served.send(i).expect("the test listens");
            // Both ways to give back keep the order.
            if i % 2 == 0 {
                guard.release().await.expect("held to the end");
            }
        });
        waiting(&mutexes[0], i + 1).await;
    }
    guard.release().await?;
    for i in 0..30 {
        assert_eq!(within(SOON, order.recv()).await, Some(i));
    }
    Ok(())
}

#[tokio::test]
async fn clones_and_equal_names_are_one_lock_and_different_names_are_not() -> Outcome {
    let store = MemoryBackend::new();
    let mutex = mutex_of(&store);
    let _guard = mutex.lock().await?;
    assert!(mutex.clone().try_lock().await?.is_none());
    assert!(mutex_of(&store).try_lock().await?.is_none());
    let client = client_of(&store);
    assert!(client.mutex_with("machine:43", options())?.try_lock().await?.is_some());
    assert!(client.mutex_with(NAME, options().prefix("other:"))?.try_lock().await?.is_some());
    // Prefix and name count together.
    let joined = client.mutex_with("k:machine:42", options().prefix("loc"))?;
    assert!(joined.try_lock().await?.is_none());
    Ok(())
}

#[tokio::test]
async fn the_options_of_a_client_hold_for_what_is_created_without_any() -> Outcome {
    let builder = Client::builder("memory:").mutex_options(MutexOptions::new().ttl(SECOND).prefix("shop:"));
    let permits = SemaphoreOptions::new().ttl(SECOND).prefix("gates:");
    let client = builder.semaphore_options(permits).connect_lazy()?;
    let brief = |guard: &Guard| guard.remaining() <= SECOND;
    assert!(brief(&client.mutex("a")?.lock().await?));
    assert!(brief(&client.reentrant_lock("a", "me")?.lock().await?));
    assert!(brief(&client.counting_semaphore("a", 1)?.acquire().await?));
    let held = client.mutex("a")?.lock().await?;
    let same = client.mutex_with("op:a", MutexOptions::new().prefix("sh"))?;
    assert!(same.try_lock().await?.is_none(), "the prefix is that of the client");
    let derived = client.mutex_with("b", client.mutex_options().ttl(60 * SECOND))?.lock().await?;
    assert!(!brief(&derived));
    let other = client.clone().with_mutex_options(MutexOptions::new());
    assert!(other.mutex("a")?.try_lock().await?.is_some_and(|guard| !brief(&guard)), "another prefix");
    assert!(client.mutex("a")?.try_lock().await?.is_none(), "the client is as it was");
    let invalid = client.with_semaphore_options(SemaphoreOptions::new().ttl(ms(1)));
    assert!(matches!(invalid.fair_semaphore("a", 1), Err(Error::InvalidArgument { argument: "ttl", .. })));
    drop(held);
    Ok(())
}

#[tokio::test]
async fn memory_clients_share_a_store_only_if_they_name_it() -> Outcome {
    let _one = Client::connect("memory:").await?.mutex_with(NAME, options())?.lock().await?;
    assert!(Client::connect("memory:").await?.mutex_with(NAME, options())?.try_lock().await?.is_some());
    let held = Client::connect("memory:one").await?.mutex_with(NAME, options())?.lock().await?;
    assert!(Client::connect("memory:two").await?.mutex_with(NAME, options())?.try_lock().await?.is_some());
    let same = Client::connect_lazy("memory:one")?.mutex_with(NAME, options())?;
    assert!(same.try_lock().await?.is_none(), "clients of one process that name a store share it");
    let error = same.lock_timeout(ms(1)).await.expect_err("it is held");
    assert!(error.is_retryable(), "{error}");
    held.release().await?;
    drop(same);
    Ok(())
}

// try_lock and lock_timeout

#[tokio::test]
async fn try_lock_answers_none_while_the_lock_is_held() -> Outcome {
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    assert!(mutex_of(&store).try_lock().await?.is_none());
    guard.release().await?;
    assert!(mutex_of(&store).try_lock().await?.is_some());
    Ok(())
}

#[tokio::test]
async fn try_lock_does_not_overtake_waiters() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let guard = mutex.lock().await?;
    let mut waiter = pin!(other.lock());
    assert!(poll!(waiter.as_mut()).is_pending());
    drop(guard);
    assert!(mutex.try_lock().await?.is_none(), "the waiter was first");
    assert!(within(SOON, waiter).await?.is_held());
    Ok(())
}

#[tokio::test]
async fn try_lock_succeeds_at_once_after_a_guard_of_the_same_client_was_dropped() -> Outcome {
    let mutex = Client::memory().mutex_with(NAME, options())?;
    for round in 0..100 {
        let guard = mutex.try_lock().await?;
        assert!(guard.is_some(), "round {round}: the last guard is still in the way");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_times_out_naming_the_lock_and_leaves_no_waiter() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let guard = mutex.lock().await?;
    let started = Instant::now();
    let error = other.lock_timeout(ms(250)).await.expect_err("held");
    assert_eq!(started.elapsed(), ms(250));
    assert!(error.to_string().contains("`machine:42`"), "{error}");
    let Error::TimedOut { name, waited, .. } = error else { panic!("expected TimedOut, got {error:?}") };
    assert_eq!((name.as_str(), waited), (NAME, ms(250)));
    waiting(&mutex, 0).await;
    assert!(guard.is_held());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_of_zero_takes_a_free_lock_and_times_out_on_a_held_one() -> Outcome {
    let store = MemoryBackend::new();
    let _guard = mutex_of(&store).lock_timeout(Duration::ZERO).await?;
    assert!(matches!(mutex_of(&store).lock_timeout(Duration::ZERO).await, Err(Error::TimedOut { .. })));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_beyond_the_clock_waits_as_long_as_it_takes() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let guard = mutex.lock().await?;
    let mut waiter = pin!(other.lock_timeout(Duration::MAX));
    assert!(poll!(waiter.as_mut()).is_pending());
    drop(guard);
    within(SOON, waiter).await?.release().await
}

// Cancellation

/// What else happens while a request is polled.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// Nobody holds the lock.
    Free,
    /// Somebody holds it all the time.
    Held,
    /// Its holder gives it back after so many polls.
    ReleasedAfter(usize),
    /// The store forgets everything after so many polls.
    FlushedAfter(usize),
}

#[tokio::test(start_paused = true)]
async fn a_lock_future_dropped_at_any_await_point_leaves_nothing_behind() -> Outcome {
    let mut cases = vec![Meanwhile::Free, Meanwhile::Held];
    cases.extend((0..4).flat_map(|n| [Meanwhile::ReleasedAfter(n), Meanwhile::FlushedAfter(n)]));
    for case in cases {
        for polls in 0..6 {
            for verb in 0..3 {
                drop_after(case, polls, verb).await?;
            }
        }
    }
    Ok(())
}

/// Polls a request `polls` times and drops it, whether it has been granted or not.
async fn drop_after(case: Meanwhile, polls: usize, verb: usize) -> Outcome {
    let at = format!("{case:?}, dropped after {polls} polls of verb {verb}");
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let mut holder = match case {
        Meanwhile::Free => None,
        _ => Some(other.lock().await?),
    };
    {
        let request = match verb {
            0 => mutex.lock().map(|guard| guard.map(Some)).boxed(),
            1 => mutex.lock_timeout(SECOND).map(|guard| guard.map(Some)).boxed(),
            _ => mutex.try_lock().boxed(),
        };
        let mut request = pin!(request);
        for i in 0..polls {
            match case {
                Meanwhile::ReleasedAfter(n) if n == i => drop(holder.take()),
                Meanwhile::FlushedAfter(n) if n == i => store.flush(),
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
    assert!(within(SOON, mutex.try_lock()).await?.is_some(), "{at}: the same client locks again");
    assert!(within(SOON, other.lock()).await?.is_held(), "{at}: another one does");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_does_not_hold_up_those_behind_it() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let guard = mutex.lock().await?;
    let mut first = Box::pin(other.lock());
    assert!(poll!(&mut first).is_pending());
    let mut second = pin!(mutex.lock());
    assert!(poll!(second.as_mut()).is_pending());
    drop(first);
    drop(guard);
    let started = Instant::now();
    within(SOON, second).await?.release().await?;
    assert_eq!(started.elapsed(), Duration::ZERO);
    nothing_is_left(&mutex).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_races_the_grant_either_holds_or_leaves_nothing() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let (mut granted, mut timed_out) = (0, 0);
    for round in 0..1100 {
        let time_limit = ms(45 + round % 11); // the lock is given back after 50 ms
        let guard = other.lock().await?;
        let request = async {
            match round % 3 {
                0 => mutex.lock_timeout(time_limit).await.ok(),
                1 => timeout(time_limit, mutex.lock()).await.ok().transpose().expect("no error"),
                _ => tokio::select! {
                    biased;
                    () = sleep(time_limit) => None,
                    guard = mutex.lock() => guard.ok(),
                },
            }
        };
        let give_back = async {
            sleep(ms(50)).await;
            drop(guard);
        };
        let (won, ()) = tokio::join!(request, give_back);
        match won {
            Some(guard) => {
                granted += 1;
                assert!(other.try_lock().await?.is_none(), "round {round}: held means held");
                guard.release().await?;
            }
            None => timed_out += 1,
        }
        nothing_is_left(&other).await;
    }
    assert!(granted > 400 && timed_out > 400, "both sides won: {granted} and {timed_out}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_cancelled_on_many_threads_leave_nothing_behind() -> Outcome {
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let held = Arc::new(AtomicBool::new(false));
    let tasks = (0..16).map(|i| {
        let (mutex, held) = (clients[i % 2].mutex_with(NAME, options()).expect("valid"), Arc::clone(&held));
        tokio::spawn(async move {
            for round in 0..200 {
                let time_limit = Duration::from_micros((i as u64 * 37 + round * 13) % 300);
                let Ok(guard) = timeout(time_limit, mutex.lock()).await else { continue };
                let guard = guard.expect("granted");
                assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                yield_now().await;
                held.store(false, Ordering::SeqCst);
                drop(guard);
            }
        })
    });
    for task in within(Duration::from_secs(60), join_all(tasks)).await {
        task.expect("no task panicked");
    }
    let observer = mutex_of(&store);
    nothing_is_left(&observer).await;
    assert!(observer.try_lock().await?.is_some());
    Ok(())
}

// Keeping the lease

#[tokio::test(start_paused = true)]
async fn renewal_keeps_a_lease_for_ten_times_its_duration() -> Outcome {
    let store = MemoryBackend::new();
    let guard = lease_of(&client_of(&store), SECOND).lock().await?;
    let other = mutex_of(&store);
    for _ in 0..100 {
        sleep(ms(100)).await;
        assert!(guard.is_held() && guard.remaining() <= SECOND);
        assert!(other.try_lock().await?.is_none());
    }
    guard.release().await
}

#[tokio::test(start_paused = true)]
async fn a_guard_keeps_its_lease_when_client_and_mutex_are_gone() -> Outcome {
    let store = MemoryBackend::new();
    let guard = lease_of(&client_of(&store), SECOND).lock().await?;
    assert_pending(10 * SECOND, guard.lost()).await;
    assert!(guard.is_held());
    drop(guard);
    nothing_is_left(&mutex_of(&store)).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_no_longer_runs_is_replaced_within_its_lease() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), mutex_of(&store));
    let mutex = lease_of(&client, SECOND);
    // A runtime that nobody drives any more represents a process that has died. Its clock stands at a later time than
    // the one of this runtime, which was stopped before.
    let (runtime, guard, taken_at) = thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("one");
        let (guard, taken_at) = runtime.block_on(async { (mutex.lock().await, Instant::now()) });
        (runtime, guard.expect("granted"), taken_at)
    })
    .join()
    .expect("no panic");
    let early = other.lock_timeout(ms(500)).await;
    let next = timeout_at(taken_at + SECOND + ms(10), other.lock()).await;
    runtime.shutdown_background();
    assert!(early.is_err(), "the lease still ran");
    assert!(next.expect("not replaced")?.token() > guard.token());
    Ok(())
}

// Giving back

#[tokio::test]
async fn release_confirms_that_the_next_waiter_holds() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let guard = mutex.lock().await?;
    let token = guard.token();
    let mut waiter = pin!(other.lock());
    assert!(poll!(waiter.as_mut()).is_pending());
    guard.release().await?;
    let holder = mutex.inspect().await?.holder().cloned().expect("the waiter holds when release returns");
    let next = within(SOON, waiter).await?;
    assert_eq!(holder.token, Some(next.token()));
    assert!(next.token() > token);
    Ok(())
}

#[tokio::test]
async fn a_guard_reports_its_name_permits_and_state() -> Outcome {
    let mutex = Client::memory().mutex_with(NAME, options())?;
    let guard = mutex.lock().await?;
    assert_eq!((mutex.name(), guard.name(), guard.permits()), (NAME, NAME, 1));
    assert!(guard.is_held());
    assert!(guard.remaining() > Duration::from_secs(25) && guard.remaining() < Duration::from_secs(30));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn release_after_a_loss_reports_the_reason_and_the_token() -> Outcome {
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    let token = guard.token();
    assert!(mutex_of(&store).force_release().await?);
    within(SOON, guard.lost()).await;
    let outcome = guard.release().await;
    assert_lost(&outcome, LossReason::Revoked);
    assert!(matches!(outcome, Err(Error::Lost { token: told, .. }) if told == token));
    Ok(())
}

#[tokio::test]
async fn release_after_an_unnoticed_loss_is_an_error_and_spares_the_next_holder() -> Outcome {
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    store.flush();
    let next = mutex_of(&store).lock().await?;
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    assert!(mutex_of(&store).try_lock().await?.is_none(), "the next holder was not touched");
    next.release().await
}

#[tokio::test]
async fn a_dropped_release_still_releases() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    for polls in 0..2 {
        let guard = mutex.lock().await?;
        let mut release = Box::pin(guard.release());
        for _ in 0..polls {
            let _ = poll!(&mut release);
        }
        drop(release);
        nothing_is_left(&other).await;
    }
    Ok(())
}

// Loss

/// The renewal and the forced release come in the same instant, in either order.
#[tokio::test(start_paused = true)]
async fn a_holder_is_told_of_a_forced_release_however_it_finds_out() -> Outcome {
    for early in 0..3 {
        let store = MemoryBackend::new();
        let (mutex, other) = (mutex_of(&store), mutex_of(&store));
        let guard = mutex.lock().await?;
        tokio::time::sleep(guard.remaining() / 3 - ms(early)).await;
        assert!(other.force_release().await?);
        assert_eq!(within(ms(10), guard.lost()).await, LossReason::Revoked, "{early}");
        let guard = other.lock().await?;
        assert!(mutex.force_release().await?);
        assert_lost(&guard.release().await, LossReason::Revoked);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_fires_at_once_when_the_lock_is_released_by_force() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    assert!(!other.force_release().await?, "nobody holds it");
    let guard = mutex.lock().await?;
    let mut lost = pin!(guard.lost());
    assert!(poll!(lost.as_mut()).is_pending());
    assert!(other.force_release().await?);
    assert_eq!(within(ms(1), lost).await, LossReason::Revoked);
    assert_eq!((guard.is_held(), guard.remaining()), (false, Duration::ZERO));
    assert!(other.try_lock().await?.is_some_and(|next| next.token() > guard.token()));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_fires_when_the_maximum_hold_time_is_over_and_the_next_waiter_gets_the_lock() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), mutex_of(&store));
    for hold in [ms(500), ms(3500)] {
        let options = options().ttl(SECOND).max_hold(hold);
        let started = Instant::now();
        let guard = client.mutex_with(NAME, options)?.lock().await?;
        let mut next = pin!(other.lock());
        assert!(poll!(next.as_mut()).is_pending());
        assert_eq!(within(10 * SECOND, guard.lost()).await, LossReason::HeldTooLong);
        assert!(started.elapsed() >= hold && started.elapsed() < hold + ms(50), "{:?}", started.elapsed());
        assert!(!guard.is_held());
        let _next = within(ms(50), next).await?;
        assert_lost(&guard.release().await, LossReason::HeldTooLong);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_fires_within_a_renewal_period_when_the_store_has_forgotten_the_lease() -> Outcome {
    for taken in [false, true] {
        let store = MemoryBackend::new();
        let guard = lease_of(&client_of(&store), 3 * SECOND).lock().await?;
        store.flush();
        let next = if taken { Some(mutex_of(&store).lock().await?) } else { None };
        let expected = if taken { LossReason::Taken } else { LossReason::Missing };
        assert_eq!(within(ms(1010), guard.lost()).await, expected);
        assert!(!guard.is_held());
        assert_lost(&guard.release().await, expected);
        assert!(next.is_none_or(|next| next.is_held()));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_fires_when_the_client_is_shut_down() -> Outcome {
    let client = Client::memory();
    let guard = client.mutex_with(NAME, options())?.lock().await?;
    let lost = guard.lost();
    client.shutdown().await?;
    assert_eq!(within(SOON, lost).await, LossReason::ClientClosed);
    assert!(!guard.is_held());
    assert_lost(&guard.release().await, LossReason::ClientClosed);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn loss_is_reported_before_another_grant_when_the_store_does_not_answer() -> Outcome {
    let store = MemoryBackend::new();
    let hanging = SlowStore::on(&store);
    let guard = lease_of(&Client::with_backend(hanging.clone()), 2 * SECOND).lock().await?;
    hanging.hang();
    let other = mutex_of(&store);
    let next = within(10 * SECOND, other.lock()).await?;
    assert!(!guard.is_held(), "two holders");
    assert_eq!(poll!(guard.lost()), Poll::Ready(LossReason::StoreUnreachable));
    assert!(next.token() > guard.token());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_reports_a_release_even_if_called_after_it() -> Outcome {
    let store = MemoryBackend::new();
    let mutex = lease_of(&client_of(&store), SECOND);
    for release in [true, false] {
        let guard = mutex.lock().await?;
        let (unpolled, mut polled) = (guard.ended(), guard.ended());
        assert!(poll!(&mut polled).is_pending());
        let watchers: Vec<_> = (0..10).map(|_| tokio::spawn(guard.ended())).collect();
        yield_now().await;
        if release {
            guard.release().await?
        } else {
            drop(guard)
        }
        mutex.force_release().await?;
        for watcher in watchers {
            assert_eq!(within(SOON, watcher).await.expect("no panic"), LeaseEnd::Released);
        }
        assert_eq!(poll!(polled), Poll::Ready(LeaseEnd::Released));
        assert_eq!(within(SOON, unpolled).await, LeaseEnd::Released);
    }
    Ok(())
}

/// The task stands for one that treats a loss as fatal: the service lives as long as nothing is lost.
#[tokio::test(start_paused = true)]
async fn a_task_that_panics_on_a_loss_does_nothing_after_a_release() -> Outcome {
    let client = Client::memory();
    let mutex = client.mutex_with(NAME, options())?;
    for release in [true, false] {
        let guard = mutex.lock().await?;
        let lost = guard.lost();
        let fatal = tokio::spawn(async move { panic!("lost: {}", lost.await) });
        yield_now().await;
        if release {
            guard.release().await?
        } else {
            drop(guard)
        }
        mutex.lock().await?.release().await?;
        sleep(1000 * SECOND).await;
        assert!(!fatal.is_finished());
        fatal.abort();
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn work_that_fails_and_a_loss_are_one_error() -> Outcome {
    #[derive(Debug)]
    enum Failure {
        Work(&'static str),
        Lock(Error),
    }
    impl From<Error> for Failure {
        fn from(error: Error) -> Self {
            Self::Lock(error)
        }
    }
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    let done = guard.try_protect(async { Ok::<_, Failure>(42) }).await;
    assert!(matches!(done, Ok(42)), "{done:?}");
    let failed = guard.try_protect(async { Err::<(), _>(Failure::Work("no paper")) }).await;
    assert!(matches!(failed, Err(Failure::Work("no paper"))), "{failed:?}");
    mutex_of(&store).force_release().await?;
    within(SOON, guard.lost()).await;
    let lost = guard.try_protect(async { Ok::<_, Failure>(42) }).await;
    assert!(matches!(lost, Err(Failure::Lock(Error::Lost { .. }))), "{lost:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn ended_can_be_awaited_by_reference_in_a_loop() -> Outcome {
    let guard = Client::memory().mutex_with(NAME, options())?.lock().await?;
    let (mut ended, mut ticks) = (guard.ended(), 0);
    let mut guard = Some(guard);
    let end = loop {
        tokio::select! {
            end = &mut ended => break end,
            () = sleep(SECOND) => ticks += 1,
        }
        if ticks == 100 {
            drop(guard.take());
        }
    };
    assert_eq!((end, ticks), (LeaseEnd::Released, 100));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn ended_stays_pending_while_a_release_is_in_flight() -> Outcome {
    for forgotten in [false, true] {
        let store = MemoryBackend::new();
        let slow = SlowStore::on(&store);
        slow.slow_down();
        let guard = Client::with_backend(slow.clone()).mutex_with(NAME, options())?.lock().await?;
        let mut ended = guard.ended();
        let mut release = Box::pin(guard.release());
        assert!(poll!(&mut release).is_pending() && poll!(&mut ended).is_pending());
        if forgotten {
            store.flush();
        }
        let released = within(10 * SECOND, release).await;
        assert_eq!(released.is_err(), forgotten);
        let end = if forgotten { LeaseEnd::Lost(LossReason::Missing) } else { LeaseEnd::Released };
        assert_eq!(within(SOON, ended).await, end);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_half_way_counts_as_one() -> Outcome {
    let store = MemoryBackend::new();
    let slow = SlowStore::on(&store);
    slow.slow_down();
    let guard = Client::with_backend(slow.clone()).mutex_with(NAME, options())?.lock().await?;
    let mut ended = guard.ended();
    let mut release = Box::pin(guard.release());
    assert!(poll!(&mut release).is_pending() && poll!(&mut ended).is_pending());
    drop(release);
    assert_eq!(poll!(ended), Poll::Ready(LeaseEnd::Released));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn every_future_of_lost_completes_even_if_created_after_the_loss() -> Outcome {
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    let tasks: Vec<_> = (0..10).map(|_| tokio::spawn(guard.lost())).collect();
    yield_now().await;
    mutex_of(&store).force_release().await?;
    for task in tasks {
        assert_eq!(within(SOON, task).await.expect("no panic"), LossReason::Revoked);
    }
    assert_eq!(within(SOON, guard.lost()).await, LossReason::Revoked);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_revocation_noticed_by_many_threads_is_reported_to_all_of_them() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    for round in 0..6000 {
        let guard = mutex.lock().await?;
        let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(guard.lost())).collect();
        other.force_release().await?;
        for task in tasks {
            let reason = timeout(SOON, task).await;
            assert!(reason.is_ok(), "round {round}: one of them was never told");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_release_that_races_a_revocation_is_confirmed_or_lost_and_never_both() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    for round in 0..6000 {
        let guard = mutex.lock().await?;
        let (asked, told) = (guard.ended(), guard.ended());
        let watching = tokio::spawn(async move { drop(timeout(ms(1), asked).await) });
        let revoking = tokio::spawn({
            let other = other.clone();
            async move { other.force_release().await }
        });
        let released = tokio::spawn(guard.release()).await.expect("no panic");
        revoking.await.expect("no panic")?;
        watching.abort();
        if released.is_ok() {
            assert_eq!(poll!(told), Poll::Ready(LeaseEnd::Released), "round {round}: released and lost");
        }
    }
    Ok(())
}

// Protected work

#[tokio::test]
async fn protected_work_returns_its_value_while_the_lease_is_held() -> Outcome {
    let guard = Client::memory().mutex_with(NAME, options())?.lock().await?;
    let value = guard.protect(async {
        yield_now().await;
        42
    });
    assert_eq!(value.await?, 42);
    guard.release().await
}

#[tokio::test(start_paused = true)]
async fn protected_work_is_dropped_the_moment_the_lease_is_lost() -> Outcome {
    let store = MemoryBackend::new();
    let (mutex, other) = (mutex_of(&store), mutex_of(&store));
    let guard = mutex.lock().await?;
    let alive = Arc::new(());
    let work = {
        let alive = Arc::clone(&alive);
        async move {
            std::future::pending::<()>().await;
            drop(alive);
        }
    };
    let mut protected = pin!(guard.protect(work));
    assert!(poll!(protected.as_mut()).is_pending());
    other.force_release().await?;
    within(SOON, guard.lost()).await;
    let Poll::Ready(outcome) = poll!(protected.as_mut()) else { panic!("it goes on") };
    assert_lost(&outcome, LossReason::Revoked);
    assert_eq!(Arc::strong_count(&alive), 1, "the work was dropped before the error was returned");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn no_step_of_protected_work_is_taken_after_a_loss() -> Outcome {
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    mutex_of(&store).force_release().await?;
    within(SOON, guard.lost()).await;
    let outcome = guard.protect(async { panic!("the lease is lost") }).await;
    assert_lost(&outcome, LossReason::Revoked);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn protected_work_ends_at_the_deadline_when_the_store_does_not_answer() -> Outcome {
    let store = MemoryBackend::new();
    let hanging = SlowStore::on(&store);
    let guard = lease_of(&Client::with_backend(hanging.clone()), 2 * SECOND).lock().await?;
    hanging.hang();
    let outcome = within(2 * SECOND, guard.protect(std::future::pending())).await;
    assert_lost(&outcome, LossReason::StoreUnreachable);
    Ok(())
}

// Guards in unusual places

#[test]
fn a_guard_dropped_outside_a_runtime_is_released_when_its_runtime_runs_again() -> Outcome {
    let store = MemoryBackend::new();
    let runtime = runtime();
    let mutex = mutex_of(&store);
    let guard = runtime.block_on(mutex.lock())?;
    drop(guard);
    runtime.block_on(nothing_is_left(&mutex_of(&store)));
    Ok(())
}

#[test]
fn a_guard_dropped_on_a_plain_thread_is_released() -> Outcome {
    let store = MemoryBackend::new();
    let runtime = runtime();
    let guard = runtime.block_on(mutex_of(&store).lock())?;
    thread::spawn(move || drop(guard)).join().expect("no panic");
    runtime.block_on(nothing_is_left(&mutex_of(&store)));
    Ok(())
}

#[tokio::test]
async fn a_guard_dropped_while_panicking_is_released() -> Outcome {
    let mutex = Client::memory().mutex_with(NAME, options())?;
    let guard = mutex.lock().await?;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guard = guard;
        panic!("as meant");
    }));
    assert!(panicked.is_err());
    assert!(mutex.try_lock().await?.is_some());
    Ok(())
}

#[test]
fn a_guard_dropped_after_its_runtime_died_is_released_from_the_next_runtime() -> Outcome {
    let store = MemoryBackend::new();
    let mutex = mutex_of(&store);
    let first = runtime();
    let guard = first.block_on(mutex.lock())?;
    drop(first);
    drop(guard);
    runtime().block_on(async {
        assert!(mutex.try_lock().await?.is_some());
        nothing_is_left(&mutex_of(&store)).await;
        Ok(())
    })
}

#[test]
fn guards_and_waiters_dropped_by_a_dying_runtime_are_released_from_the_next_runtime() -> Outcome {
    let store = MemoryBackend::new();
    let mutex = mutex_of(&store);
    let first = runtime();
    first.block_on(async {
        let (holder, waiter) = (mutex.clone(), mutex.clone());
        begun(async move {
            let _guard = holder.lock().await;
            std::future::pending::<()>().await;
        })
        .await;
        begun(async move { waiter.lock().await }).await;
        // With hand-over, it waits behind the holder in the client.
        waiting(&mutex, usize::from(!local_handover())).await;
    });
    drop(first);
    runtime().block_on(async {
        assert!(mutex.try_lock().await?.is_some());
        nothing_is_left(&mutex_of(&store)).await;
        Ok(())
    })
}

#[tokio::test(start_paused = true)]
async fn what_the_last_handle_owes_is_released_even_if_the_store_is_slow() -> Outcome {
    let store = MemoryBackend::new();
    let slow = SlowStore::on(&store);
    let guard = Client::with_backend(slow.clone()).mutex_with(NAME, options())?.lock().await?;
    slow.slow_down();
    drop(guard);
    nothing_is_left(&mutex_of(&store)).await;
    Ok(())
}

#[test]
fn a_release_that_died_with_its_runtime_is_sent_again_from_the_next_one() -> Outcome {
    let store = MemoryBackend::new();
    let slow = SlowStore::on(&store);
    let client = Client::with_backend(slow.clone());
    let mutex = client.mutex_with(NAME, options())?;
    let first = runtime();
    first.block_on(async {
        let guard = mutex.lock().await?;
        slow.slow_down();
        drop(guard);
        within(SOON, slow.called.notified()).await;
        Ok::<_, Error>(())
    })?;
    drop(first);
    runtime().block_on(async {
        assert!(mutex_of(&store).try_lock().await?.is_none(), "the first attempt was cut off");
        assert!(mutex.try_lock().await?.is_some(), "the second was waited for");
        Ok(())
    })
}

#[test]
fn a_client_works_in_two_runtimes_one_after_another() -> Outcome {
    let client = Client::memory();
    for _ in 0..2 {
        runtime().block_on(async {
            let mutex = lease_of(&client, ms(150));
            let guard = mutex.lock().await?;
            assert_pending(ms(300), guard.lost()).await;
            guard.release().await
        })?;
    }
    runtime().block_on(client.shutdown())
}

/// Each has a runtime of its own, on which the client may live while others wait.
#[test]
fn a_client_is_used_first_by_several_threads_at_the_same_time() {
    for _ in 0..300 {
        let client = Client::with_backend(Arc::new(MemoryBackend::new()));
        let begin = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let runtime = runtime();
                    begin.wait();
                    runtime.block_on(async {
                        let guard = leasehold_support::within(
                            SECOND * 5,
                            client.mutex("shared").expect("valid").lock(),
                        )
                        .await
                        .expect("granted");
                        guard.release().await.expect("held");
                    });
                });
            }
        });
    }
}

#[test]
fn a_guard_that_outlives_its_runtime_is_renewed_from_the_next_one() -> Outcome {
    let client = Client::memory();
    let mutex = lease_of(&client, ms(400));
    let first = runtime();
    let guard = first.block_on(mutex.lock())?;
    drop(first);
    runtime().block_on(async {
        // The first request starts the background task anew.
        assert!(mutex.try_lock().await?.is_none());
        assert_pending(ms(800), guard.lost()).await;
        guard.release().await
    })
}

#[test]
fn a_renewal_that_died_with_its_runtime_does_not_keep_the_next_runtime_from_renewing() -> Outcome {
    let store = MemoryBackend::new();
    let hanging = SlowStore::on(&store);
    let client = Client::with_backend(hanging.clone());
    let mutex = client.mutex_with(NAME, options().ttl(ms(900)).renewal_period(ms(50)))?;
    let first = runtime();
    let guard = first.block_on(async {
        let guard = mutex.lock().await?;
        hanging.hang();
        within(SOON, hanging.called.notified()).await;
        Ok::<_, Error>(guard)
    })?;
    drop(first);
    hanging.answer();
    runtime().block_on(async {
        assert!(mutex.try_lock().await?.is_none());
        assert_pending(ms(1800), guard.lost()).await;
        guard.release().await
    })
}

// Shutdown

#[tokio::test(start_paused = true)]
async fn shutdown_ends_waiting_requests_and_refuses_later_ones() -> Outcome {
    let store = MemoryBackend::new();
    let other = mutex_of(&store);
    let guard = other.lock().await?;
    let client = client_of(&store);
    let mutex = client.mutex_with(NAME, options())?;
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    // With hand-over, one is queued for all of them.
    waiting(&other, if local_handover() { 1 } else { 3 }).await;
    client.clone().shutdown().await?;
    for waiter in waiters {
        let outcome = within(SOON, waiter).await.expect("no panic");
        assert!(
            matches!(&outcome, Err(Error::Closed { name: Some(name), .. }) if name == NAME),
            "{outcome:?}"
        );
    }
    assert_closed(&mutex.lock().await);
    assert_closed(&mutex.try_lock().await);
    assert_closed(&mutex.lock_timeout(SECOND).await);
    assert_closed(&mutex.inspect().await);
    assert_closed(&mutex.force_release().await);
    waiting(&other, 0).await;
    assert!(guard.is_held(), "another client's guard is not concerned");
    client.shutdown().await
}

#[tokio::test(start_paused = true)]
async fn when_shutdown_returns_the_store_has_forgotten_the_client() -> Outcome {
    let store = MemoryBackend::new();
    let (client, observer) = (client_of(&store), client_of(&store));
    let (live, dropped) = (client.mutex_with("live", options())?, client.mutex_with("dropped", options())?);
    let _live = live.lock().await?;
    drop(dropped.lock().await?);
    client.shutdown().await?;
    for name in ["live", "dropped"] {
        assert!(is_empty(&observer.mutex_with(name, options())?.inspect().await?), "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn shutdown_misses_no_lease_that_is_being_renewed_at_that_moment() -> Outcome {
    for round in 0..60 {
        let client = Client::memory();
        let options = options().renewal_period(Duration::from_micros(10));
        let mutexes = (0..50).map(|i| client.mutex_with(&i.to_string(), options.clone()));
        let mutexes = mutexes.collect::<Result<Vec<_>, _>>()?;
        let guards = join_all(mutexes.iter().map(DistMutex::lock)).await;
        let guards = guards.into_iter().collect::<Result<Vec<_>, _>>()?;
        sleep(Duration::from_micros(1000 + round * 7)).await; // any moment will do
        client.shutdown().await?;
        let held = guards.iter().filter(|guard| guard.is_held()).count();
        assert_eq!(held, 0, "round {round}: held after shutdown");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn shutdown_frees_what_a_forgotten_guard_holds() -> Outcome {
    let store = MemoryBackend::new();
    let client = client_of(&store);
    let mutex = lease_of(&client, SECOND);
    mem::forget(mutex.lock().await?);
    let other = mutex_of(&store);
    assert!(other.lock_timeout(10 * SECOND).await.is_err(), "a forgotten guard stays held and renewed");
    client.shutdown().await?;
    assert!(other.try_lock().await?.is_some());
    Ok(())
}

#[tokio::test]
async fn a_client_that_was_never_used_shuts_down() -> Outcome {
    Client::memory().shutdown().await
}

// Tokens

#[tokio::test(start_paused = true)]
async fn tokens_grow_whatever_ended_the_hold_before() -> Outcome {
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let mut newest = 0;
    for round in 0..60 {
        let mutex = lease_of(&clients[round % 2], SECOND);
        let guard = mutex.lock().await?;
        assert!(guard.token().get() > newest, "round {round}");
        newest = guard.token().get();
        match round % 5 {
            0 => guard.release().await?,
            1 => drop(guard),
            2 => drop(mutex.force_release().await?),
            3 => store.flush(),
            _ => {
                // The holder dies: nobody renews and nobody releases.
                store.flush();
                let dead = store.peer();
                let lock = Resource::new("lock:machine:42", Kind::Mutex);
                let lease = LeaseRef::new(dead.lease_id(), lock);
                let request = Request::new(lease, Claim::Sole, ms(100));
                let Ok(Answer::Granted(grant)) = dead.request(&request).await else { panic!("free") };
                assert!(grant.token.get() > newest, "round {round}");
                newest = grant.token.get();
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn tokens_are_the_time_in_microseconds() -> Outcome {
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let token = u128::from(Client::memory().mutex_with(NAME, options())?.lock().await?.token().get());
    assert!(token >= before.as_micros() && token < (before + 60 * SECOND).as_micros());
    Ok(())
}

// Arguments

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: &str) {
    let Err(Error::InvalidArgument { argument: what, .. }) = &outcome else {
        panic!("expected InvalidArgument, got {outcome:?}");
    };
    assert_eq!(*what, expected);
}

#[test]
fn unusable_arguments_are_refused_when_the_mutex_is_made() {
    let client = Client::memory();
    assert_invalid(client.mutex(""), "name");
    assert_invalid(client.mutex(&"n".repeat(MAX_NAME_BYTES + 1)), "name");
    let with = |options| client.mutex_with(NAME, options);
    assert_invalid(with(options().prefix("p".repeat(MAX_NAME_BYTES + 1))), "prefix");
    assert_invalid(with(options().ttl(ms(99))), "ttl");
    assert_invalid(with(options().ttl(Duration::MAX)), "ttl");
    assert_invalid(with(options().ttl(SECOND).renewal_period(SECOND)), "renewal period");
    assert_invalid(with(options().ttl(SECOND).renewal_period(2 * SECOND)), "renewal period");
    assert_invalid(with(options().renewal_period(Duration::ZERO)), "renewal period");
    assert_invalid(with(options().max_hold(Duration::ZERO)), "maximum hold time");
}

#[tokio::test]
async fn unusual_names_are_distinct_locks() -> Outcome {
    let client = Client::memory();
    let longest = "n".repeat(MAX_NAME_BYTES);
    let names =
        [" ", "a", "A", "a ", "a\n", "a\0", "{a}", "{a}b", "ä", "a:queue", "{lock:a}:queue", &longest];
    let mut guards = Vec::new();
    for name in names {
        guards.push(
            client
                .mutex_with(name, options())?
                .try_lock()
                .await?
                .unwrap_or_else(|| panic!("{name:?} is taken")),
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_url_that_names_no_store_is_an_invalid_argument() {
    for url in ["", "memory", "machine:42", "http://127.0.0.1"] {
        assert_invalid(Client::connect(url).await, "url");
    }
}

#[cfg(not(feature = "_redis"))]
#[tokio::test]
async fn a_build_without_redis_says_so() {
    let error = Client::connect("redis://127.0.0.1").await.expect_err("not built in");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(error.to_string().contains("feature `fred`"), "{error}");
}

// Auto traits

fn everywhere<T: Send + Sync + 'static>() {}
fn send<T: Send>(_: &T) {}
fn detached<T: Send + 'static>(_: &T) {}

#[test]
fn handles_and_guards_go_everywhere() {
    everywhere::<Client>();
    everywhere::<DistMutex>();
    everywhere::<Guard>();
    everywhere::<Lost>();
    everywhere::<LeaseEnd>();
    everywhere::<Protected<'static, std::future::Ready<()>>>();
    everywhere::<MutexOptions>();
    everywhere::<MemoryBackend>();
    everywhere::<Error>();
}

#[tokio::test]
async fn futures_can_be_spawned() -> Outcome {
    let client = Client::memory();
    let mutex = client.mutex_with(NAME, options())?;
    send(&mutex.lock());
    send(&mutex.try_lock());
    send(&mutex.lock_timeout(SECOND));
    send(&mutex.inspect());
    send(&mutex.force_release());
    send(&client.shutdown());
    let guard = mutex.lock().await?;
    send(&guard.protect(async {}));
    detached(&guard.lost());
    detached(&guard.release());
    detached(&async move { mutex.lock().await });
    Ok(())
}

#[tokio::test]
async fn handles_guards_and_futures_can_be_printed_without_the_lease_id() -> Outcome {
    let client = Client::memory();
    let mutex = client.mutex_with(NAME, options())?;
    let guard = mutex.lock().await?;
    let id = mutex.inspect().await?.holder().cloned().expect("a holder").id;
    let printed = format!("{client:?} {mutex:?} {guard:?} {:?} {:?}", guard.lost(), guard.protect(async {}));
    assert!(printed.contains(NAME));
    assert!(!printed.contains(&id) && !printed.contains(&id[9..]), "whoever knows the id can end the lease");
    Ok(())
}

#[tokio::test]
async fn what_is_printed_of_a_client_does_not_depend_on_how_many_leases_it_has() -> Outcome {
    let client = Client::memory();
    let (reentrant, counting, fair) = (
        client.reentrant_lock(NAME, "me")?,
        client.counting_semaphore(NAME, 3)?,
        client.fair_semaphore(NAME, 3)?,
    );
    let mutex = client.mutex(NAME)?;
    let print = || format!("{client:?}\n{mutex:?}\n{reentrant:?}\n{counting:?}\n{fair:?}");
    let before = print();
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(client.mutex(&format!("{n}"))?.lock().await?);
    }
    assert_eq!(print(), before);
    for line in before.lines() {
        assert!(line.len() < 200 && line.contains("memory:"), "the store, and little more: {line}");
    }
    for name_of in ["Client", "DistMutex", "ReentrantLock", "CountingSemaphore", "FairSemaphore"] {
        assert!(before.contains(name_of), "{before}");
    }
    Ok(())
}

// A store that does not answer renewals, or is slow to release.

#[derive(Debug, Default)]
struct SlowStore {
    hanging: AtomicBool,
    slow: AtomicBool,
    /// A call has come that is not answered, or not at once.
    called: Notify,
}

impl SlowStore {
    fn on(store: &MemoryBackend) -> Arc<Intercepted<Self>> {
        Intercepted::new(store, Self::default())
    }

    /// From now on, renewals are not answered.
    fn hang(&self) {
        self.hanging.store(true, Ordering::SeqCst);
    }

    fn answer(&self) {
        self.hanging.store(false, Ordering::SeqCst);
    }

    /// From now on, releases take a while.
    fn slow_down(&self) {
        self.slow.store(true, Ordering::SeqCst);
    }
}

impl Intercept for SlowStore {
    fn renew<'a>(&'a self, store: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        if self.hanging.load(Ordering::SeqCst) {
            self.called.notify_one();
            return stream::pending().boxed();
        }
        store.renew(renewals)
    }

    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        async move {
            if self.slow.load(Ordering::SeqCst) {
                self.called.notify_one();
                sleep(ms(100)).await;
            }
            store.release(lease).await
        }
        .boxed()
    }
}

// What a release or the last step of the work finds out

#[tokio::test(start_paused = true)]
async fn lost_reports_a_loss_that_a_release_found() -> Outcome {
    let store = MemoryBackend::new();
    let guard = mutex_of(&store).lock().await?;
    let lost = tokio::spawn(guard.lost());
    store.flush();
    assert!(matches!(guard.release().await, Err(Error::Lost { reason: LossReason::Missing, .. })));
    assert_eq!(within(SECOND, lost).await.expect("no panic"), LossReason::Missing);
    Ok(())
}

#[tokio::test]
async fn protect_does_not_hand_out_what_was_done_after_the_deadline() -> Outcome {
    let client = Client::memory();
    let guard = lease_of(&client, ms(100)).lock().await?;
    // A step that blocks its thread is the fault here.
    let output = guard.protect(async { std::thread::sleep(ms(150)) }).await;
    assert!(matches!(output, Err(Error::Lost { .. })), "{output:?}");
    Ok(())
}
