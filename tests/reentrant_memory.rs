//! What `ReentrantLock` promises, on the store inside the process. A peer of the store represents another process,
//! and where time matters, tokio's paused clock drives it.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use futures::future::{FutureExt, join_all};
use futures::poll;
use futures::stream::{BoxStream, StreamExt};
use leasehold::backend::{
    Answer, Answered, Backend, Claim, Kind, LeaseRef, Released, Renew, Request, Resource,
};
use leasehold::{
    Client, DistMutex, Error, FencingToken, Guard, Inspection, LeaseEnd, LossReason, MAX_NAME_BYTES,
    MemoryBackend, MutexOptions, ReentrantLock,
};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use leasehold_support::locks::orders;
use leasehold_support::{assert_pending, eventually, one_place_each, within};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// Lets the clients' tasks handle all events and send all pending releases, while no time passes.
async fn let_tasks_run() {
    for _ in 0..10 {
        yield_now().await;
    }
}

const NAME: &str = "stock";
const KEY: &str = "lock:stock";
const OWNER: &str = "order-42";
const OTHER_OWNER: &str = "order-43";
const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once.
const SOON: Duration = Duration::from_secs(5);
/// A deadline for what many tasks do on a busy machine.
const LONG: Duration = Duration::from_secs(30);

type Outcome = Result<(), Error>;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A client of `store`, as another process would have one.
fn client_of(store: &MemoryBackend) -> Client {
    Client::with_backend(Arc::new(store.peer()))
}

/// The lock of the tests, for an owner of its own.
fn anonymous(client: &Client) -> ReentrantLock {
    owned(client, &Uuid::new_v4().to_string())
}

/// The lock of the tests for `owner`.
fn owned(client: &Client, owner: &str) -> ReentrantLock {
    client.reentrant_lock(NAME, owner).expect("valid")
}

fn owned_with(client: &Client, owner: &str, options: MutexOptions) -> ReentrantLock {
    client.reentrant_lock_with(NAME, owner, options).expect("valid")
}

fn leased(client: &Client, owner: &str, lease: Duration) -> ReentrantLock {
    owned_with(client, owner, MutexOptions::new().ttl(lease))
}

/// The same lock as a mutex, with a place of its own in the store's queue for every waiter, as reentrant locks have.
fn mutex_of(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each()).expect("valid")
}

async fn inspect(client: &Client) -> Inspection {
    mutex_of(client).inspect().await.expect("memory answers")
}

/// Waits until neither a holder nor a waiter is left.
#[track_caller]
fn nothing_is_left(client: &Client) -> impl Future<Output = ()> {
    eventually(SOON, || async {
        let inspection = inspect(client).await;
        inspection.holders.is_empty() && inspection.waiters.is_empty()
    })
}

/// Waits until the lock is held under `n` leases.
#[track_caller]
fn holding(client: &Client, n: usize) -> impl Future<Output = ()> {
    eventually(SOON, move || async move { inspect(client).await.holders.len() == n })
}

/// Waits until `n` requests are queued.
#[track_caller]
fn waiting(client: &Client, n: usize) -> impl Future<Output = ()> {
    eventually(SOON, move || async move { inspect(client).await.waiters.len() == n })
}

/// Nobody but its owner gets the lock.
async fn assert_excluded(client: &Client, at: &str) {
    assert!(mutex_of(client).try_lock().await.expect("answered").is_none(), "{at}: a mutex got in");
    let other = owned(client, OTHER_OWNER).try_lock().await.expect("answered");
    assert!(other.is_none(), "{at}: another owner got in");
}

/// Anybody gets it.
async fn assert_free(client: &Client, at: &str) {
    let guard = owned(client, OTHER_OWNER).try_lock().await.expect("answered");
    guard.unwrap_or_else(|| panic!("{at}: not free")).release().await.expect("held to the end");
}

#[track_caller]
fn assert_lost<T: std::fmt::Debug>(outcome: Result<T, Error>, expected: LossReason) {
    let Err(Error::Lost { name, reason, .. }) = &outcome else { panic!("expected a loss, got {outcome:?}") };
    assert_eq!((name.as_str(), *reason), (NAME, expected));
}

#[track_caller]
fn assert_closed<T: std::fmt::Debug>(outcome: &Result<T, Error>) {
    assert!(matches!(outcome, Err(Error::Closed { .. })), "expected Closed, got {outcome:?}");
}

/// Waits for a lock that is free or already the owner's, which does not take long.
#[track_caller]
fn soon<T>(locking: impl Future<Output = Result<T, Error>>) -> impl Future<Output = Result<T, Error>> {
    within(SOON, locking)
}

/// The output of a future that is ready at the first poll: it has not asked the store.
#[track_caller]
fn at_once<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("ready at once")
}

/// A process acquires the lock for `owner` and dies: nobody renews its hold, and nobody releases it.
async fn die_holding(store: &MemoryBackend, owner: &str, lease: Duration) -> FencingToken {
    let dead = store.peer();
    let lock = Resource::new(KEY, Kind::Reentrant);
    let request = Request::new(LeaseRef::new(dead.lease_id(), lock), Claim::Owner(owner.into()), lease);
    let Ok(Answer::Granted(grant)) = dead.request(&request).await else { panic!("it was not let in") };
    grant.token
}

/// Gives a guard back in one way or another.
async fn give_back(guard: Guard, way: usize) {
    match way % 3 {
        0 => guard.release().await.expect("held to the end"),
        1 => drop(guard),
        _ => thread::spawn(move || drop(guard)).join().expect("no panic"),
    }
}

// Who the owner is

#[tokio::test]
async fn every_new_handle_is_an_owner_of_its_own() -> Outcome {
    let client = Client::memory();
    let (one, two) = (anonymous(&client), anonymous(&client));
    assert_ne!(one.owner(), two.owner());
    let guard = one.lock().await?;
    assert!(two.try_lock().await?.is_none(), "the same task in the same client is no reason to come in");
    guard.release().await?;
    assert!(two.try_lock().await?.is_some());
    Ok(())
}

#[tokio::test]
async fn clones_of_a_handle_are_one_owner() -> Outcome {
    let client = Client::memory();
    let lock = anonymous(&client);
    let guard = soon(lock.lock()).await?;
    let clone = lock.clone();
    assert_eq!(clone.owner(), lock.owner());
    let again = tokio::spawn(async move { clone.try_lock().await }).await.expect("no panic")?;
    assert_eq!(again.expect("let in").token(), guard.token());
    Ok(())
}

#[tokio::test]
async fn an_owner_named_the_same_is_the_same_in_any_handle_of_any_client() -> Outcome {
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let guard = soon(owned(&clients[0], OWNER).lock()).await?;
    for client in &clients {
        let again = owned(client, OWNER).try_lock().await?.expect("let in");
        assert_eq!(again.token(), guard.token());
        assert_excluded(client, "beside it").await;
    }
    Ok(())
}

#[tokio::test]
async fn a_lock_of_an_owner_has_its_name_prefix_and_options() -> Outcome {
    let client = Client::memory();
    let options = MutexOptions::new().prefix("other:").ttl(SECOND);
    let lock = client.reentrant_lock_with(NAME, OWNER, options)?;
    let guard = soon(lock.lock()).await?;
    assert_eq!((lock.name(), guard.name(), guard.permits()), (NAME, NAME, 1));
    assert!(guard.remaining() <= SECOND);
    assert!(owned(&client, OWNER).inspect().await?.holder().is_none(), "another prefix is another lock");
    assert_eq!(lock.inspect().await?.holders.len(), 1);
    Ok(())
}

/// Owners that are parts of each other, or look like something that a store contains.
fn odd_owners() -> Vec<String> {
    let plain = [
        " ", "  ", "a", "A", "a ", " a", "a b", "a/b", "a/", "/a", "/", "//", "a//b", "a\n", "\n", "a\r\nb",
        "a\0", "\0", "\t", "ä", "é", "e\u{301}", "机器", "🔒", "{a}", "}", ":", "a:holds", "*", "?", "%s",
        "\"", "'", "\\", "0", "-1", "1", "nil", "false", "grant", "revoke",
    ];
    let akin = [OWNER, "order-4", "order-421", "order-42/", "/order-42", "ORDER-42"];
    let long = ["o".repeat(MAX_NAME_BYTES), "o".repeat(MAX_NAME_BYTES - 1), "é".repeat(MAX_NAME_BYTES / 2)];
    plain.into_iter().chain(akin).map(str::to_owned).chain(long).collect()
}

#[tokio::test]
async fn unusual_owner_names_re_enter_and_stay_distinct() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    for owner in odd_owners() {
        let guard = soon(owned(&one, &owner).lock()).await?;
        for other in odd_owners() {
            for client in [&one, &two] {
                let again = owned(client, &other).try_lock().await?;
                assert_eq!(again.is_some(), other == owner, "{other:?} while {owner:?} holds");
                assert!(again.is_none_or(|again| again.token() == guard.token()));
            }
        }
        let told = inspect(&two).await.holder().and_then(|holder| holder.owner.clone());
        assert_eq!(told.as_deref(), Some(owner.as_str()));
        guard.release().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_owner_named_like_a_lease_id_is_a_different_owner() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let guard = soon(owned(&one, OWNER).lock()).await?;
    let id = inspect(&two).await.holder().expect("held").id.clone();
    for owner in [id.clone(), format!("{id}/{OWNER}"), format!("{id}/"), format!("/{OWNER}")] {
        for client in [&one, &two] {
            assert!(owned(client, &owner).try_lock().await?.is_none(), "{owner:?}");
        }
    }
    guard.release().await?;
    // A mutex has no owner, whatever its lease is called.
    let guard = soon(mutex_of(&one).lock()).await?;
    let id = inspect(&two).await.holder().expect("held").id.clone();
    for owner in [format!("{id}/"), id] {
        assert!(owned(&two, &owner).try_lock().await?.is_none(), "{owner:?}");
    }
    guard.release().await
}

#[test]
fn unusable_owners_are_refused_when_they_are_named() {
    let client = Client::memory();
    let named = |owner: &str| client.reentrant_lock(NAME, owner);
    // The limit counts bytes, as the store does, not characters.
    for owner in [String::new(), "o".repeat(MAX_NAME_BYTES + 1), "é".repeat(MAX_NAME_BYTES / 2 + 1)] {
        let Err(Error::InvalidArgument { argument: what, reason: why, .. }) = named(&owner) else {
            panic!("taken: {owner:?}")
        };
        assert_eq!(what, "owner");
        assert!(owner.is_empty() || why.contains(&owner.len().to_string()), "{why}");
    }
    assert!(named(&"o".repeat(MAX_NAME_BYTES)).is_ok());
}

#[test]
fn unusable_names_and_options_are_refused_when_the_lock_is_made() {
    let client = Client::memory();
    let what = |outcome: Result<ReentrantLock, Error>| match outcome {
        Err(Error::InvalidArgument { argument, .. }) => argument,
        other => panic!("expected a refusal, got {other:?}"),
    };
    let options = MutexOptions::new;
    assert_eq!(what(client.reentrant_lock("", OWNER)), "name");
    assert_eq!(what(client.reentrant_lock(&"n".repeat(MAX_NAME_BYTES + 1), OWNER)), "name");
    assert_eq!(what(client.reentrant_lock_with(NAME, OWNER, options().ttl(ms(99)))), "ttl");
    assert_eq!(what(client.reentrant_lock_with(NAME, OWNER, options().max_hold(ms(9)))), "maximum hold time");
}

#[tokio::test]
async fn an_owner_re_enters_locally_only_where_it_has_locked() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let guard = soon(owned(&client, OWNER).lock()).await?;
    let elsewhere = client.reentrant_lock("stocks", OWNER)?;
    let other_owner = other.reentrant_lock("stocks", OTHER_OWNER)?;
    let held = other_owner.lock().await?;
    assert!(elsewhere.try_lock().await?.is_none(), "another name is another lock");
    // Prefix and name count together.
    let joined = |owner| client.reentrant_lock_with("k:stock", owner, MutexOptions::new().prefix("loc"));
    assert!(joined(OTHER_OWNER)?.try_lock().await?.is_none());
    assert_eq!(joined(OWNER)?.try_lock().await?.expect("let in").token(), guard.token());
    held.release().await
}

// Coming in again within a client

#[tokio::test]
async fn re_entering_shares_the_lease_and_the_token() -> Outcome {
    let client = Client::memory();
    let lock = owned(&client, OWNER);
    let mut guards = vec![soon(lock.lock()).await?];
    guards.push(at_once(lock.lock())?);
    guards.push(at_once(lock.try_lock())?.expect("let in"));
    guards.push(at_once(lock.lock_timeout(Duration::ZERO))?);
    guards.push(at_once(lock.clone().lock())?);
    guards.push(at_once(owned(&client.clone(), OWNER).lock())?);
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token() && guard.is_held()));
    let inspection = inspect(&client).await;
    assert_eq!((inspection.holders.len(), inspection.in_use), (1, 1), "one lease");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn re_entering_and_leaving_sends_nothing_and_needs_no_store() -> Outcome {
    let wire = Wire::to(&MemoryBackend::new());
    let client = Client::with_backend(wire.clone());
    let lock = owned(&client, OWNER);
    let outer = soon(lock.lock()).await?;
    let sent = wire.sent();
    wire.hang();
    for _ in 0..10 {
        let again = [
            at_once(lock.lock())?,
            at_once(lock.try_lock())?.expect("let in"),
            at_once(owned(&client, OWNER).lock_timeout(SECOND))?,
        ];
        for (way, guard) in again.into_iter().enumerate() {
            at_once(give_back(guard, way));
        }
    }
    yield_now().await;
    assert_eq!(wire.sent(), sent);
    assert!(outer.is_held());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_enter_at_once_under_one_lease() -> Outcome {
    let wire = Wire::to(&MemoryBackend::new());
    let client = Client::with_backend(wire.clone());
    let lock = owned(&client, OWNER);
    let outer = soon(lock.lock()).await?;
    let (sent, token) = (wire.sent(), outer.token());
    let tasks = (0..50).map(|i| {
        let lock = if i % 2 == 0 { lock.clone() } else { owned(&client, OWNER) };
        tokio::spawn(async move {
            for way in 0..20 {
                let guard = lock.lock().await.expect("let in");
                assert_eq!(guard.token(), token);
                yield_now().await;
                give_back(guard, way % 2).await;
            }
        })
    });
    for task in within(LONG, join_all(tasks)).await {
        task.expect("no panic");
    }
    assert_eq!(wire.sent(), sent);
    outer.release().await?;
    assert_free(&client, "all have left").await;
    Ok(())
}

#[tokio::test]
async fn the_first_guard_decides_the_lease_of_those_that_share_it() -> Outcome {
    let client = Client::memory();
    let outer = soon(leased(&client, OWNER, SECOND).lock()).await?;
    let inner = soon(leased(&client, OWNER, 60 * SECOND).lock()).await?;
    assert!(inner.remaining() <= SECOND);
    assert_eq!(inner.token(), outer.token());
    Ok(())
}

#[tokio::test]
async fn guards_are_released_in_any_order_and_the_lock_is_free_with_the_last() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = anonymous(&client);
    for (way, order) in orders(4).into_iter().enumerate() {
        let mut guards = Vec::new();
        for _ in 0..4 {
            guards.push(Some(soon(lock.lock()).await?));
        }
        for (left, i) in (0..4).rev().zip(&order) {
            assert_excluded(&other, &format!("{order:?}, before {i} goes")).await;
            give_back(guards[*i].take().expect("each once"), way + i).await;
            assert!(guards.iter().flatten().all(Guard::is_held), "{order:?}: {left} are left");
        }
        nothing_is_left(&other).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn releasing_an_inner_guard_is_confirmed_at_once_and_frees_nothing() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = anonymous(&client);
    let (outer, inner) = (soon(lock.lock()).await?, soon(lock.lock()).await?);
    let mutex = mutex_of(&other);
    let mut next = pin!(mutex.lock());
    assert!(poll!(next.as_mut()).is_pending());
    at_once(inner.release())?;
    assert_pending(10 * SECOND, next.as_mut()).await;
    outer.release().await?;
    assert!(inspect(&client).await.waiters.is_empty(), "the waiter holds when the last release returns");
    soon(next).await?.release().await
}

#[tokio::test]
async fn the_token_is_the_same_while_nested_and_a_greater_one_after_the_last_guard() -> Outcome {
    let client = Client::memory();
    let lock = anonymous(&client);
    let mut newest = None;
    for _ in 0..20 {
        let first = soon(lock.lock()).await?;
        let token = first.token();
        assert!(Some(token) > newest);
        newest = Some(token);
        // One by one: somebody is always in.
        let mut held = first;
        for _ in 0..5 {
            let next = soon(lock.lock()).await?;
            held.release().await?;
            assert_eq!(next.token(), token);
            held = next;
        }
        held.release().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn nested_guards_are_kept_for_many_leases_whichever_of_them_stays() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = leased(&client, OWNER, SECOND);
    let (outer, inner) = (soon(lock.lock()).await?, soon(lock.lock()).await?);
    assert_pending(10 * SECOND, outer.lost()).await;
    drop(outer);
    drop((lock, client));
    for _ in 0..100 {
        sleep(ms(100)).await;
        assert!(inner.is_held());
        assert_excluded(&other, "one guard is left").await;
    }
    inner.release().await
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_of_one_owner_are_admitted_together() -> Outcome {
    let store = MemoryBackend::new();
    let wire = Wire::to(&store);
    let (client, other) = (Client::with_backend(wire.clone()), client_of(&store));
    // Granted by the store, and the answers are still on their way when the next one asks.
    wire.slow_down();
    let lock = leased(&client, OWNER, SECOND);
    let guards = join_all((0..5).map(|_| soon(lock.lock()))).await;
    let mut guards = guards.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    while let Some(guard) = guards.pop() {
        assert_excluded(&other, "one is in").await;
        guard.release().await?;
        sleep(5 * SECOND).await;
        assert!(guards.iter().all(Guard::is_held));
    }
    nothing_is_left(&other).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_owner_with_several_leases_re_enters_under_one_that_is_still_held() -> Outcome {
    let wire = Wire::to(&MemoryBackend::new());
    let client = Client::with_backend(wire.clone());
    wire.slow_down();
    let brief = owned_with(&client, OWNER, MutexOptions::new().max_hold(SECOND));
    let lasting = owned(&client, OWNER);
    // In this order.
    let (first, second) = futures::join!(soon(brief.lock()), soon(lasting.lock()));
    let (first, second) = (first?, second?);
    assert_eq!(within(SOON, first.lost()).await, LossReason::HeldTooLong);
    for lost in [Some(first), None] {
        let again = at_once(brief.lock())?;
        assert!(again.is_held());
        assert_eq!(again.token(), second.token());
        drop(lost);
    }
    Ok(())
}

/// Who is in, and under which token.
#[derive(Debug, Default)]
struct Inside(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    owner: usize,
    guards: usize,
    token: u64,
}

impl Inside {
    fn enter(&self, owner: usize, token: FencingToken) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, token) = (seen.token, token.get());
        if seen.guards > 0 {
            assert_eq!((seen.owner, before), (owner, token), "two owners at once, or two tokens");
        } else if seen.owner == owner {
            // Its last release may still have been under way: then it came in again.
            assert!(before <= token, "{token} after {before}");
        } else {
            assert!(before < token, "{token} after {before}");
        }
        *seen = Seen { owner, guards: seen.guards + 1, token };
    }

    fn leave(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).guards -= 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn owners_with_many_tasks_in_many_clients_exclude_each_other() -> Outcome {
    const OWNERS: usize = 3;
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let inside = Arc::new(Inside::default());
    let tasks = (0..24).map(|i| {
        let owner = 1 + i % OWNERS;
        let lock = owned(&clients[i % clients.len()], &owner.to_string());
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            for round in 0..100 {
                let guard = lock.lock().await.expect("granted");
                inside.enter(owner, guard.token());
                let inner = lock.lock().await.expect("let in");
                assert_eq!(inner.token(), guard.token());
                yield_now().await;
                // Counted as gone before it is gone: the other way round would see two where there is one.
                inside.leave();
                give_back(guard, round % 2).await;
                give_back(inner, (i + round) % 2).await;
            }
        })
    });
    for task in within(LONG, join_all(tasks)).await {
        task.expect("no panic");
    }
    nothing_is_left(&clients[0]).await;
    Ok(())
}

// Loss

/// Takes three nested guards, has them lost, and sees that every one of them is told.
async fn lose_all(lock: ReentrantLock, reason: LossReason, lose: impl AsyncFnOnce()) -> Outcome {
    let guards = [soon(lock.lock()).await?, soon(lock.lock()).await?, soon(lock.lock()).await?];
    let told: Vec<_> = guards.iter().map(|guard| tokio::spawn(guard.lost())).collect();
    let work = join_all(guards.iter().map(|guard| guard.protect(std::future::pending::<()>())));
    lose().await;
    for outcome in within(SOON, work).await {
        assert_lost(outcome, reason);
    }
    for told in told {
        assert_eq!(within(SOON, told).await.expect("no panic"), reason);
    }
    for guard in guards {
        assert_eq!((guard.is_held(), guard.remaining()), (false, Duration::ZERO));
        assert_lost(guard.protect(async {}).await, reason);
        assert_eq!(at_once(guard.lost()), reason);
        assert_lost(guard.release().await, reason);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_to_every_guard() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = leased(&client, OWNER, 2 * SECOND);
    lose_all(lock.clone(), LossReason::Revoked, async || {
        assert!(mutex_of(&other).force_release().await.expect("answered"));
    })
    .await?;
    lose_all(lock.clone(), LossReason::Missing, async || store.flush()).await?;
    lose_all(lock.clone(), LossReason::Taken, async || {
        store.flush();
        die_holding(&store, OTHER_OWNER, 5 * SECOND).await;
    })
    .await?;
    let capped = owned_with(&client, "capped", MutexOptions::new().max_hold(ms(700)));
    lose_all(capped, LossReason::HeldTooLong, async || {}).await?;
    lose_all(lock, LossReason::ClientClosed, async || client.shutdown().await.expect("drained")).await
}

#[tokio::test(start_paused = true)]
async fn an_expiry_is_reported_to_every_guard_before_another_owner_is_admitted() -> Outcome {
    let store = MemoryBackend::new();
    let wire = Wire::to(&store);
    let client = Client::with_backend(wire.clone());
    let lock = leased(&client, OWNER, 2 * SECOND);
    let guards = [soon(lock.lock()).await?, soon(lock.lock()).await?];
    wire.hang();
    let next = within(10 * SECOND, owned(&client_of(&store), OTHER_OWNER).lock()).await?;
    for guard in guards {
        assert!(!guard.is_held(), "two owners");
        assert_eq!(at_once(guard.lost()), LossReason::StoreUnreachable);
        assert!(next.token() > guard.token());
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_the_owner_requests_again_even_while_lost_guards_exist() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = owned(&client, OWNER);
    let lost = [soon(lock.lock()).await?, soon(lock.lock()).await?];
    assert!(lock.force_release().await?);
    let_tasks_run().await;
    let other_owner = soon(owned(&other, OTHER_OWNER).lock()).await?;
    assert!(lock.try_lock().await?.is_none(), "what is lost opens nothing");
    other_owner.release().await?;
    let (again, inner) = (soon(lock.lock()).await?, soon(lock.lock()).await?);
    assert!(again.token() > lost[0].token());
    assert_eq!(inner.token(), again.token());
    // Nor does what is lost close anything.
    for guard in lost {
        assert_lost(guard.release().await, LossReason::Revoked);
    }
    inner.release().await?;
    assert_pending(60 * SECOND, again.lost()).await;
    assert_excluded(&other, "the later hold remains").await;
    again.release().await
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_has_passed_unnoticed_is_not_shared_any_more() -> Outcome {
    let store = MemoryBackend::new();
    let wire = Wire::to(&store);
    let client = Client::with_backend(wire.clone());
    let lock = leased(&client, OWNER, SECOND);
    let guard = soon(lock.lock()).await?;
    let token = guard.token();
    wire.hang();
    tokio::time::advance(2 * SECOND).await;
    wire.answer();
    let again = soon(lock.lock()).await?;
    assert!(again.token() > token, "the lock was free in between");
    assert!(again.is_held() && !guard.is_held());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn released_guards_count_as_released_and_see_no_later_loss() -> Outcome {
    let store = MemoryBackend::new();
    let lock = leased(&client_of(&store), OWNER, SECOND);
    let guards = [soon(lock.lock()).await?, soon(lock.lock()).await?];
    let ended = join_all(guards.iter().map(Guard::ended));
    for guard in guards {
        guard.release().await?;
    }
    let later = soon(lock.lock()).await?;
    assert!(lock.force_release().await?);
    let_tasks_run().await;
    assert!(!later.is_held());
    assert_eq!(at_once(ended), [LeaseEnd::Released; 2]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lease_counts_as_released_when_its_last_guard_has_gone() -> Outcome {
    let lock = owned(&Client::memory(), OWNER);
    let (outer, inner) = (soon(lock.lock()).await?, soon(lock.lock()).await?);
    let told = outer.ended();
    outer.release().await?;
    assert_pending(10 * SECOND, inner.lost()).await;
    drop(inner);
    assert_eq!(at_once(told), LeaseEnd::Released);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn re_entering_that_races_a_loss_gives_a_guard_that_is_notified_or_held() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = owned(&client, OWNER);
    for round in 0..2000 {
        let outer = soon(lock.lock()).await?;
        let entering = tokio::spawn({
            let lock = lock.clone();
            async move { lock.lock().await }
        });
        let revoking = tokio::spawn({
            let mutex = mutex_of(&other);
            async move { mutex.force_release().await }
        });
        let inner = within(SOON, entering).await.expect("no panic")?;
        assert!(revoking.await.expect("no panic")?);
        if inner.token() == outer.token() {
            assert_eq!(within(SOON, inner.lost()).await, LossReason::Revoked, "round {round}");
        } else {
            assert!(inner.is_held(), "round {round}");
        }
        assert!(within(SOON, outer.release()).await.is_err(), "round {round}");
        drop(inner);
        nothing_is_left(&other).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_maximum_hold_time_counts_from_the_first_of_nested_guards() -> Outcome {
    let client = Client::memory();
    let lock = owned_with(&client, OWNER, MutexOptions::new().max_hold(ms(900)));
    for round in 0..3 {
        let started = Instant::now();
        let mut guards = vec![soon(lock.lock()).await?];
        for _ in 0..2 {
            sleep(ms(300)).await;
            guards.push(soon(lock.lock()).await?);
        }
        // Whichever of them stays.
        let stays = guards.swap_remove(round);
        drop(guards);
        assert_eq!(within(SOON, stays.lost()).await, LossReason::HeldTooLong);
        let held = started.elapsed();
        assert!(held >= ms(900) && held < ms(950), "round {round}: after {held:?}");
        // The next lease has a time of its own.
        let next = soon(lock.lock()).await?;
        assert_pending(ms(890), next.lost()).await;
        assert!(next.is_held());
        next.release().await?;
    }
    Ok(())
}

// Guards in unusual places

#[tokio::test]
async fn a_guard_dropped_while_panicking_leaves_the_others() -> Outcome {
    let client = Client::memory();
    let lock = anonymous(&client);
    let (outer, inner) = (soon(lock.lock()).await?, soon(lock.lock()).await?);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _inner = inner;
        panic!("as meant");
    }));
    assert!(panicked.is_err() && outer.is_held());
    assert_excluded(&client, "the outer guard is there").await;
    outer.release().await?;
    assert_free(&client, "nobody is in").await;
    Ok(())
}

#[test]
fn guards_dropped_outside_a_runtime_are_released_with_the_last() -> Outcome {
    let store = MemoryBackend::new();
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let lock = anonymous(&client_of(&store));
    let guards =
        runtime.block_on(async { Ok::<_, Error>([soon(lock.lock()).await?, soon(lock.lock()).await?]) })?;
    let [outer, inner] = guards;
    drop(outer);
    runtime.block_on(assert_excluded(&client_of(&store), "one is left"));
    drop(inner);
    runtime.block_on(nothing_is_left(&client_of(&store)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_guard_keeps_the_lock_for_its_owner_until_shutdown() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let lock = leased(&client, OWNER, SECOND);
    let outer = soon(lock.lock()).await?;
    mem::forget(soon(lock.lock()).await?);
    outer.release().await?;
    assert!(mutex_of(&other).lock_timeout(10 * SECOND).await.is_err(), "it stays held and renewed");
    assert!(at_once(lock.try_lock())?.is_some(), "its owner comes in");
    client.shutdown().await?;
    assert_free(&other, "after the shutdown").await;
    Ok(())
}

#[tokio::test]
async fn a_dropped_release_of_an_inner_guard_gives_that_guard_back_and_no_other() -> Outcome {
    let client = Client::memory();
    let lock = anonymous(&client);
    for polls in 0..2 {
        let (outer, inner) = (soon(lock.lock()).await?, soon(lock.lock()).await?);
        let mut release = Box::pin(inner.release());
        for _ in 0..polls {
            let _ = poll!(&mut release);
        }
        drop(release);
        assert!(outer.is_held());
        assert_excluded(&client, "the outer guard is there").await;
        outer.release().await?;
        assert_free(&client, "the inner guard is gone").await;
    }
    Ok(())
}

// Across clients

#[tokio::test]
async fn each_client_holds_under_a_lease_of_its_own_and_the_same_token() -> Outcome {
    let store = MemoryBackend::new();
    let clients: Vec<_> = (0..3).map(|_| client_of(&store)).collect();
    let mut guards = Vec::new();
    for client in &clients {
        guards.push(soon(owned(client, OWNER).lock()).await?);
        guards.push(soon(owned(client, OWNER).lock()).await?);
    }
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token()));
    let inspection = owned(&clients[0], OTHER_OWNER).inspect().await?;
    assert_eq!((inspection.holders.len(), inspection.in_use, inspection.limit), (3, 1, None));
    let mut ids: Vec<_> = inspection.holders.iter().map(|holder| holder.id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
    for holder in &inspection.holders {
        assert_eq!((holder.owner.as_deref(), holder.permits), (Some(OWNER), 1));
        assert_eq!(holder.token, Some(guards[0].token()));
        assert!(holder.remaining.is_some_and(|rest| rest > 25 * SECOND && rest <= 30 * SECOND));
    }
    drop(guards);
    let _mutex = soon(mutex_of(&clients[0]).lock()).await?;
    assert_eq!(inspect(&clients[1]).await.holder().expect("held").owner, None);
    Ok(())
}

#[tokio::test]
async fn the_lock_is_free_when_the_last_client_has_left_whichever_order_they_leave_in() -> Outcome {
    let store = MemoryBackend::new();
    let (clients, other) = ([(); 3].map(|()| client_of(&store)), client_of(&store));
    for (way, order) in orders(3).into_iter().enumerate() {
        let mut guards = Vec::new();
        for client in &clients {
            guards.push(Some(soon(owned(client, OWNER).lock()).await?));
        }
        for (left, i) in (0..3).rev().zip(&order) {
            assert_excluded(&other, &format!("{order:?}, before {i} goes")).await;
            give_back(guards[*i].take().expect("each once"), way + i).await;
            holding(&other, left).await;
            assert!(guards.iter().flatten().all(Guard::is_held));
        }
        assert_free(&other, &format!("{order:?}")).await;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn whichever_client_stays_keeps_the_lock_for_many_leases() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two, other) = (client_of(&store), client_of(&store), client_of(&store));
    for (first, second) in [(ms(300), 2 * SECOND), (2 * SECOND, ms(300)), (SECOND, SECOND)] {
        for first_stays in [true, false] {
            let guards = (
                soon(leased(&one, OWNER, first).lock()).await?,
                soon(leased(&two, OWNER, second).lock()).await?,
            );
            let (stays, goes) = if first_stays { guards } else { (guards.1, guards.0) };
            goes.release().await?;
            for _ in 0..50 {
                sleep(ms(137)).await;
                assert!(stays.is_held(), "leases of {first:?} and {second:?}");
                assert_excluded(&other, "one client is in").await;
            }
            stays.release().await?;
            assert_free(&other, "both have left").await;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_dies_drops_its_own_holds_and_nobody_elses() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    for dead_lease in [ms(200), 5 * SECOND] {
        let guard = soon(leased(&client, OWNER, SECOND).lock()).await?;
        assert_eq!(die_holding(&store, OWNER, dead_lease).await, guard.token());
        let mutex = mutex_of(&other);
        let mut next = pin!(mutex.lock());
        assert_pending(10 * SECOND, next.as_mut()).await;
        assert_eq!(inspect(&other).await.holders.len(), 1);
        assert!(guard.is_held());
        guard.release().await?;
        within(SOON, next).await?.release().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_lock_passes_to_a_waiter_when_the_last_lease_of_dead_clients_ends() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let cases = [
        // How long each of the dead had its lease for, and whether a living one joined them and left.
        (vec![ms(300)], false),
        (vec![ms(300), ms(900)], false),
        (vec![ms(900), ms(300)], false),
        (vec![ms(900)], true),
        (vec![ms(300), ms(900), ms(600)], true),
    ];
    for (leases, joined) in cases {
        let started = Instant::now();
        for lease in &leases {
            die_holding(&store, OWNER, *lease).await;
        }
        if joined {
            soon(leased(&client, OWNER, 30 * SECOND).lock()).await?.release().await?;
        }
        let next = within(10 * SECOND, mutex_of(&other).lock()).await?;
        assert_eq!(started.elapsed(), ms(900).min(leases.iter().copied().max().expect("some")));
        next.release().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn losing_one_hold_leaves_those_of_other_clients() -> Outcome {
    let store = MemoryBackend::new();
    let wire = Wire::to(&store);
    let (hanging, living, other) = (Client::with_backend(wire.clone()), client_of(&store), client_of(&store));
    let capped = owned_with(&living, OWNER, MutexOptions::new().max_hold(2 * SECOND));
    let stays = soon(leased(&other, OWNER, SECOND).lock()).await?;
    let (unheard, too_long) =
        (soon(leased(&hanging, OWNER, SECOND).lock()).await?, soon(capped.lock()).await?);
    wire.hang();
    assert_eq!(within(SOON, unheard.lost()).await, LossReason::StoreUnreachable);
    assert!(stays.is_held() && too_long.is_held());
    assert_eq!(within(SOON, too_long.lost()).await, LossReason::HeldTooLong);
    assert_pending(10 * SECOND, stays.lost()).await;
    assert_excluded(&other, "one hold is left").await;
    assert_eq!(inspect(&other).await.holders.len(), 1);
    // Whoever lost its hold comes in again, since its owner never left.
    let again = soon(capped.lock()).await?;
    assert_eq!(again.token(), stays.token());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn shutting_one_client_down_leaves_the_holds_of_others() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two, other) = (client_of(&store), client_of(&store), client_of(&store));
    let (first, second) = (soon(owned(&one, OWNER).lock()).await?, soon(owned(&two, OWNER).lock()).await?);
    one.shutdown().await?;
    assert_lost(first.release().await, LossReason::ClientClosed);
    assert_eq!(inspect(&other).await.holders.len(), 1);
    assert!(second.is_held());
    assert_excluded(&other, "one client is in").await;
    second.release().await?;
    assert_free(&other, "both have left").await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn after_a_loss_of_data_the_holds_of_all_clients_are_notified_and_tokens_increase() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two, other) = (client_of(&store), client_of(&store), client_of(&store));
    for taken in [false, true] {
        let guards = [
            soon(leased(&one, OWNER, 3 * SECOND).lock()).await?,
            soon(leased(&two, OWNER, SECOND).lock()).await?,
        ];
        let token = guards[0].token();
        store.flush();
        let next = if taken { Some(soon(owned(&other, OTHER_OWNER).lock()).await?) } else { None };
        let reason = if taken { LossReason::Taken } else { LossReason::Missing };
        for guard in guards {
            assert_eq!(within(ms(1010), guard.lost()).await, reason);
            assert_lost(guard.release().await, reason);
        }
        if let Some(next) = next {
            assert!(next.is_held() && next.token() > token);
            next.release().await?;
        }
        assert!(soon(owned(&one, OWNER).lock()).await?.token() > token);
        nothing_is_left(&other).await;
    }
    Ok(())
}

// The queue

#[tokio::test(start_paused = true)]
async fn an_owner_re_enters_ahead_of_all_waiters() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let guard = soon(owned(&one, OWNER).lock()).await?;
    let (mutex, other_owner) = (mutex_of(&two), owned(&two, OTHER_OWNER));
    let mut queue = [mutex.lock().boxed(), other_owner.lock().boxed()];
    for waiter in &mut queue {
        assert!(poll!(waiter).is_pending());
    }
    let started = Instant::now();
    let mut again = Vec::new();
    for client in [&one, &two] {
        let lock = owned(client, OWNER);
        again.push(soon(lock.lock()).await?);
        again.push(lock.try_lock().await?.expect("let in"));
        again.push(lock.lock_timeout(Duration::ZERO).await?);
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(again.iter().all(|again| again.token() == guard.token()));
    assert_eq!(inspect(&one).await.waiters.len(), 2, "the queue is as it was");
    drop((guard, again));
    for waiter in queue {
        within(SOON, waiter).await?.release().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn different_owners_and_mutexes_are_served_from_one_queue_in_order_of_arrival() -> Outcome {
    let store = MemoryBackend::new();
    let clients = [(); 3].map(|()| client_of(&store));
    let guard = soon(anonymous(&clients[0]).lock()).await?;
    let (served, mut order) = mpsc::unbounded_channel();
    for i in 0..30 {
        let (client, served) = (clients[i % 3].clone(), served.clone());
        tokio::spawn(async move {
            let guard = match i % 4 {
                0 => mutex_of(&client).lock().await,
                1 => anonymous(&client).lock().await,
                2 => owned(&client, &i.to_string()).lock_timeout(LONG).await,
                _ => owned(&client, &i.to_string()).lock().await,
            };
            let guard = guard.expect("granted");
            served.send((i, guard.token())).expect("the test listens");
            give_back(guard, i % 2).await;
        });
        waiting(&clients[0], i + 1).await;
    }
    let mut newest = guard.token();
    guard.release().await?;
    for i in 0..30 {
        let (served, token) = within(SOON, order.recv()).await.expect("all are served");
        assert!(served == i && token > newest, "{served} instead of {i}, with {token} after {newest}");
        newest = token;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_owner_are_admitted_with_the_first_of_them() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two, other) = (client_of(&store), client_of(&store), client_of(&store));
    let (same, also) = (owned(&one, OWNER), owned(&two, OWNER));
    let (mutex, other_owner) = (mutex_of(&other), owned(&other, OTHER_OWNER));
    let holder = mutex.lock().await?;
    // Two of one client and one of another, with others in between.
    let mut owners = [same.lock().boxed(), also.lock().boxed(), also.lock().boxed()];
    let mut others = [mutex.lock().boxed(), other_owner.lock().boxed()];
    assert!(poll!(&mut owners[0]).is_pending());
    assert!(poll!(&mut others[0]).is_pending());
    assert!(poll!(&mut owners[1]).is_pending());
    assert!(poll!(&mut others[1]).is_pending());
    assert!(poll!(&mut owners[2]).is_pending());
    let (token, started) = (holder.token(), Instant::now());
    holder.release().await?;
    let guards = within(SOON, join_all(owners)).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert!(guards.iter().all(|guard| guard.token() == guards[0].token() && guard.token() > token));
    assert_eq!(inspect(&other).await.waiters.len(), 2);
    for guard in guards {
        assert!(others.iter_mut().all(|waiter| waiter.now_or_never().is_none()), "somebody is still in");
        guard.release().await?;
    }
    for waiter in others {
        within(SOON, waiter).await?.release().await?;
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_admits_no_other() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let (first, also, mutex) = (owned(&one, OWNER), owned(&two, OWNER), mutex_of(&two));
    let holder = mutex.lock().await?;
    let mut head = first.lock().boxed();
    let (mut middle, mut last) = (mutex.lock().boxed(), also.lock().boxed());
    for waiter in [&mut head, &mut middle, &mut last] {
        assert!(poll!(waiter).is_pending());
    }
    drop(head);
    let_tasks_run().await;
    holder.release().await?;
    let middle = within(SOON, middle).await?;
    assert!(poll!(&mut last).is_pending(), "it is queued behind the mutex");
    middle.release().await?;
    within(SOON, last).await?.release().await?;
    nothing_is_left(&one).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_no_longer_runs_holds_nobody_up_for_longer_than_its_lease() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let [holder, dead] = [OTHER_OWNER, OWNER].map(|owner| leased(&one, owner, SECOND));
    let [living, other] = [OWNER, "order-44"].map(|owner| leased(&two, owner, SECOND));
    let holder = holder.lock().await?;
    let mut hung = dead.lock().boxed();
    assert!(poll!(&mut hung).is_pending());
    let mut same = living.lock().boxed();
    assert!(poll!(&mut same).is_pending());
    let mut next = other.lock().boxed();
    assert!(poll!(&mut next).is_pending());
    let started = Instant::now();
    holder.release().await?;
    // Granted with the one that is never polled again.
    let same = within(SOON, same).await?;
    assert_eq!(started.elapsed(), Duration::ZERO);
    same.release().await?;
    within(SOON, next).await?.release().await?;
    // A little earlier, if its own client still runs.
    assert!(started.elapsed() <= SECOND && started.elapsed() > SECOND - ms(20), "{:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_mutex_and_a_reentrant_lock_of_one_name_are_one_lock() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    for client in [&one, &two] {
        let guard = soon(mutex_of(&one).lock()).await?;
        assert!(owned(client, OWNER).try_lock().await?.is_none());
        guard.release().await?;
        let guard = soon(owned(&one, OWNER).lock()).await?;
        assert!(mutex_of(client).try_lock().await?.is_none());
        guard.release().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_owner_that_dropped_its_last_guard_queues_behind_the_waiters() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let (lock, mutex) = (owned(&one, OWNER), mutex_of(&two));
    for nested in [false, true] {
        let guard = soon(lock.lock()).await?;
        let inner = if nested { Some(soon(lock.lock()).await?) } else { None };
        let token = guard.token();
        let mut next = mutex.lock().boxed();
        assert!(poll!(&mut next).is_pending());
        drop(guard);
        drop(inner);
        let mut again = lock.lock().boxed();
        assert!(poll!(&mut again).is_pending(), "it came in again, past the waiter");
        let next = within(SOON, next).await?;
        assert!(poll!(&mut again).is_pending() && next.token() > token);
        let token = next.token();
        next.release().await?;
        let again = within(SOON, again).await?;
        assert!(again.token() > token);
        again.release().await?;
    }
    Ok(())
}

#[tokio::test]
async fn try_lock_does_not_overtake_waiters_of_other_owners() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    for mutex_waits in [true, false] {
        let guard = soon(owned(&one, OWNER).lock()).await?;
        let (mutex, other_owner) = (mutex_of(&two), owned(&two, OTHER_OWNER));
        let mut waiter = if mutex_waits { mutex.lock().boxed() } else { other_owner.lock().boxed() };
        assert!(poll!(&mut waiter).is_pending());
        drop(guard);
        for client in [&one, &two] {
            assert!(owned(client, OWNER).try_lock().await?.is_none(), "the waiter was first");
        }
        within(SOON, waiter).await?.release().await?;
    }
    Ok(())
}

#[tokio::test]
async fn try_lock_succeeds_at_once_after_the_last_guard_of_another_owner_of_the_client_was_dropped() -> Outcome
{
    let client = Client::memory();
    let mut newest = None;
    for round in 0..100 {
        let lock = anonymous(&client);
        let outer = lock.try_lock().await?.unwrap_or_else(|| panic!("round {round}: still in the way"));
        let inner = soon(lock.lock()).await?;
        assert!(Some(outer.token()) > newest);
        newest = Some(outer.token());
        drop(outer);
        drop(inner);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_times_out_naming_the_lock_and_leaves_no_waiter() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let guard = soon(owned(&one, OWNER).lock()).await?;
    for time_limit in [Duration::ZERO, ms(250)] {
        let started = Instant::now();
        let error = owned(&two, OTHER_OWNER).lock_timeout(time_limit).await.expect_err("held");
        assert_eq!(started.elapsed(), time_limit);
        let Error::TimedOut { name, waited, .. } = error else { panic!("expected TimedOut, got {error:?}") };
        assert_eq!((name.as_str(), waited), (NAME, time_limit));
        let_tasks_run().await;
        assert!(inspect(&one).await.waiters.is_empty());
    }
    assert!(guard.is_held());
    guard.release().await?;
    owned(&two, OTHER_OWNER).lock_timeout(Duration::ZERO).await?.release().await
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_waits_no_longer_than_its_limit_for_a_release_of_its_own() -> Outcome {
    let store = MemoryBackend::new();
    let wire = Wire::to(&store);
    let (client, other) = (Client::with_backend(wire.clone()), client_of(&store));
    let (lock, mutex) = (owned(&client, OWNER), mutex_of(&other));
    let guard = soon(lock.lock()).await?;
    let mut next = mutex.lock().boxed();
    assert!(poll!(&mut next).is_pending());
    wire.delay_releases();
    drop(guard);
    let started = Instant::now();
    let again = lock.lock_timeout(ms(20)).await;
    assert!(matches!(again, Err(Error::TimedOut { .. })), "{again:?}");
    // But for the time of a round trip.
    assert!(started.elapsed() <= ms(100), "{:?}", started.elapsed());
    within(SOON, next).await?.release().await
}

#[tokio::test(start_paused = true)]
async fn lock_timeout_beyond_the_clock_waits_as_long_as_it_takes() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let guard = soon(owned(&one, OWNER).lock()).await?;
    let lock = owned(&two, OTHER_OWNER);
    let mut waiter = pin!(lock.lock_timeout(Duration::MAX));
    assert!(poll!(waiter.as_mut()).is_pending());
    drop(guard);
    within(SOON, waiter).await?.release().await
}

// Release by force

#[tokio::test(start_paused = true)]
async fn force_release_notifies_all_holds_at_once_and_serves_the_next_waiter() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two, other) = (client_of(&store), client_of(&store), client_of(&store));
    for by in 0..4 {
        let same = owned(&one, OWNER);
        let guards =
            [soon(same.lock()).await?, soon(same.lock()).await?, soon(owned(&two, OWNER).lock()).await?];
        let mutex = mutex_of(&other);
        let mut next = mutex.lock().boxed();
        assert!(poll!(&mut next).is_pending());
        let started = Instant::now();
        let taken = match by {
            0 => mutex.force_release().await?,
            1 => anonymous(&other).force_release().await?,
            2 => owned(&other, OWNER).force_release().await?,
            _ => same.force_release().await?,
        };
        assert!(taken);
        let_tasks_run().await;
        for guard in &guards {
            assert_eq!(at_once(guard.lost()), LossReason::Revoked);
            assert!(!guard.is_held());
        }
        let next = next.await?;
        assert_eq!(started.elapsed(), Duration::ZERO);
        assert!(next.token() > guards[0].token());
        // The owner is out: it waits like everybody.
        assert!(same.try_lock().await?.is_none());
        for guard in guards {
            assert_lost(guard.release().await, LossReason::Revoked);
        }
        assert!(next.is_held(), "the late releases touched nobody");
        next.release().await?;
        assert!(!same.force_release().await?, "nobody holds it");
    }
    Ok(())
}

/// The renewal and the forced release come in the same instant, in either order.
#[tokio::test(start_paused = true)]
async fn all_holds_are_told_of_a_forced_release_however_they_find_out() -> Outcome {
    for early in 0..3 {
        let store = MemoryBackend::new();
        let (one, two, other) = (client_of(&store), client_of(&store), client_of(&store));
        let mut guards = Vec::new();
        for client in [&one, &one, &two] {
            guards.push(soon(owned(client, OWNER).lock()).await?);
        }
        sleep(guards[0].remaining() / 3 - ms(early)).await;
        assert!(anonymous(&other).force_release().await?);
        for guard in guards {
            assert_eq!(within(ms(10), guard.lost()).await, LossReason::Revoked, "{early}");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_whatever_ended_the_hold_before() -> Outcome {
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let mut newest = None;
    for round in 0..60 {
        let lock = leased(&clients[round % 2], OWNER, SECOND);
        // Whoever asks at once after a drop may still be in under the old one.
        nothing_is_left(&clients[0]).await;
        let guard = soon(lock.lock()).await?;
        let joined = soon(leased(&clients[(round + 1) % 2], OWNER, SECOND).lock()).await?;
        assert!(Some(guard.token()) > newest, "round {round}");
        assert_eq!(joined.token(), guard.token());
        newest = Some(guard.token());
        match round % 5 {
            0 => guard.release().await?,
            1 => drop(guard),
            2 => drop(lock.force_release().await?),
            3 => store.flush(),
            _ => drop(die_holding(&store, OWNER, ms(500)).await),
        }
        drop(joined);
    }
    Ok(())
}

// Shutdown

#[tokio::test(start_paused = true)]
async fn shutdown_ends_waiting_requests_and_re_entering() -> Outcome {
    let store = MemoryBackend::new();
    let (client, other) = (client_of(&store), client_of(&store));
    let held = client.reentrant_lock("held", OWNER)?;
    let inside = [soon(held.lock()).await?, soon(held.lock()).await?];
    let guard = soon(owned(&other, OTHER_OWNER).lock()).await?;
    let lock = owned(&client, OWNER);
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    waiting(&other, 1).await;
    client.shutdown().await?;
    assert_closed(&within(SOON, waiter).await.expect("no panic"));
    for lock in [&lock, &held] {
        assert_closed(&lock.lock().await);
        assert_closed(&lock.try_lock().await);
        assert_closed(&lock.lock_timeout(SECOND).await);
        assert_closed(&lock.inspect().await);
        assert_closed(&lock.force_release().await);
    }
    assert!(inside.iter().all(|guard| at_once(guard.lost()) == LossReason::ClientClosed));
    assert!(
        other.reentrant_lock("held", OTHER_OWNER)?.try_lock().await?.is_some(),
        "the store has forgotten the client"
    );
    assert!(inspect(&other).await.waiters.is_empty());
    guard.release().await
}

// Cancellation

/// What else happens while a request of the owner is polled.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// Nobody holds the lock.
    Free,
    /// Somebody else holds it all the time.
    Held,
    /// The same owner holds it in another client.
    HeldByItself,
    /// Somebody else gives it back after so many polls.
    ReleasedAfter(usize),
    /// The same, and the same owner is queued before it in another client: both come in together.
    LetInAfter(usize),
    /// The same owner in another client leaves after so many polls.
    LeftAfter(usize),
    /// The same owner holds it in another client, and the store forgets everything after so many polls.
    FlushedAfter(usize),
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_at_any_await_point_leaves_nothing_behind() -> Outcome {
    use Meanwhile::{FlushedAfter, Free, Held, HeldByItself, LeftAfter, LetInAfter, ReleasedAfter};
    let mut cases = vec![Free, Held, HeldByItself];
    cases.extend((0..4).flat_map(|n| [ReleasedAfter(n), LetInAfter(n), LeftAfter(n), FlushedAfter(n)]));
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
    let (client, other) = (client_of(&store), client_of(&store));
    let (lock, same) = (owned(&client, OWNER), owned(&other, OWNER));
    let mut holder = match case {
        Meanwhile::Free => None,
        Meanwhile::Held | Meanwhile::ReleasedAfter(_) | Meanwhile::LetInAfter(_) => {
            Some(soon(owned(&other, OTHER_OWNER).lock()).await?)
        }
        _ => Some(soon(same.lock()).await?),
    };
    let mut ahead = same.lock().boxed();
    if matches!(case, Meanwhile::LetInAfter(_)) {
        assert!(poll!(&mut ahead).is_pending());
    }
    {
        let request = match verb {
            0 => lock.lock().map(|guard| guard.map(Some)).boxed(),
            1 => lock.lock_timeout(SECOND).map(|guard| guard.map(Some)).boxed(),
            _ => lock.try_lock().boxed(),
        };
        let mut request = pin!(request);
        for i in 0..polls {
            match case {
                Meanwhile::ReleasedAfter(n) | Meanwhile::LetInAfter(n) | Meanwhile::LeftAfter(n)
                    if n == i =>
                {
                    drop(holder.take());
                }
                Meanwhile::FlushedAfter(n) if n == i => store.flush(),
                _ => {}
            }
            if poll!(request.as_mut()).is_ready() {
                break;
            }
            yield_now().await;
        }
    }
    if let Meanwhile::Held | Meanwhile::HeldByItself = case {
        // What was there before the request is there after it, and nothing else.
        holding(&other, 1).await;
        waiting(&other, 0).await;
        assert!(holder.as_ref().is_some_and(Guard::is_held), "{at}");
    }
    drop(holder);
    if matches!(case, Meanwhile::LetInAfter(_)) {
        let ahead = within(SOON, ahead).await?;
        holding(&other, 1).await;
        assert!(ahead.is_held(), "{at}");
        assert_free_after(ahead, &other, &at).await?;
    }
    nothing_is_left(&other).await;
    assert!(within(SOON, lock.try_lock()).await?.is_some(), "{at}: the same client locks again");
    assert!(within(SOON, mutex_of(&other).lock()).await?.is_held(), "{at}: another one does");
    Ok(())
}

/// The lock is held by this guard alone.
async fn assert_free_after(guard: Guard, client: &Client, at: &str) -> Outcome {
    assert_excluded(client, at).await;
    guard.release().await?;
    assert_free(client, at).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_timeout_that_races_the_grant_either_holds_or_leaves_nothing() -> Outcome {
    let store = MemoryBackend::new();
    let (one, two) = (client_of(&store), client_of(&store));
    let lock = owned(&one, OWNER);
    let (mut granted, mut timed_out) = (0, 0);
    for round in 0..1100 {
        let time_limit = ms(45 + round % 11); // the lock is given back after 50 ms
        let guard = soon(anonymous(&two).lock()).await?;
        let request = async {
            match round % 3 {
                0 => lock.lock_timeout(time_limit).await.ok(),
                1 => timeout(time_limit, lock.lock()).await.ok().transpose().expect("no error"),
                _ => tokio::select! {
                    biased;
                    () = sleep(time_limit) => None,
                    guard = lock.lock() => guard.ok(),
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
                assert_excluded(&two, &format!("round {round}")).await;
                assert_eq!(at_once(lock.lock())?.token(), guard.token());
                guard.release().await?;
            }
            None => timed_out += 1,
        }
        nothing_is_left(&two).await;
    }
    assert!(granted > 400 && timed_out > 400, "both sides won: {granted} and {timed_out}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_cancelled_on_many_threads_leave_nothing_behind() -> Outcome {
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let inside = Arc::new(Inside::default());
    let tasks = (0..16).map(|i| {
        let owner = 1 + i % 5;
        let lock = owned(&clients[i % 2], &owner.to_string());
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            for round in 0..200 {
                let time_limit = Duration::from_micros((i as u64 * 37 + round * 13) % 300);
                let Ok(guard) = timeout(time_limit, lock.lock()).await else { continue };
                let guard = guard.expect("granted");
                inside.enter(owner, guard.token());
                yield_now().await;
                inside.leave();
                drop(guard);
            }
        })
    });
    for task in within(LONG, join_all(tasks)).await {
        task.expect("no panic");
    }
    nothing_is_left(&clients[0]).await;
    assert_free(&clients[1], "all have left").await;
    Ok(())
}

// Exclusion under load

/// When a lock was held, and under which token.
type Hold = (Instant, Instant, FencingToken);

/// Reads, sleeps and writes a plain counter under the lock, sometimes under two guards of it.
async fn count(lock: &ReentrantLock, counter: &AtomicU64, round: usize) -> Hold {
    let outer = lock.lock().await.expect("granted");
    let (begin, token) = (Instant::now(), outer.token());
    let inner = if round.is_multiple_of(3) { Some(lock.lock().await.expect("let in")) } else { None };
    assert!(inner.as_ref().is_none_or(|inner| inner.token() == token));
    let read = counter.load(Ordering::Relaxed);
    sleep(ms(1)).await;
    counter.store(read + 1, Ordering::Relaxed);
    assert!(outer.is_held());
    let end = Instant::now();
    // The last one decides, whichever it is.
    let (last, first) = match inner {
        Some(inner) if round.is_multiple_of(2) => (inner, Some(outer)),
        inner => (outer, inner),
    };
    drop(first);
    last.release().await.expect("held to the end");
    (begin, end, token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_tasks_that_read_sleep_and_write_a_plain_counter_lose_no_update() {
    const TASKS: usize = 8;
    const ROUNDS: usize = 100;
    let store = MemoryBackend::new();
    let clients = [client_of(&store), client_of(&store)];
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for i in 0..TASKS {
        let (client, counter) = (&clients[i % 2], Arc::clone(&counter));
        let lock = if i % 4 < 2 { anonymous(client) } else { owned(client, &i.to_string()) };
        tasks.spawn(async move {
            let mut holds = Vec::new();
            for round in 0..ROUNDS {
                holds.push(count(&lock, &counter, i + round).await);
            }
            holds
        });
    }
    let mut holds: Vec<Hold> = within(LONG, tasks.join_all()).await.into_iter().flatten().collect();
    assert_eq!(counter.load(Ordering::Relaxed), (TASKS * ROUNDS) as u64);
    holds.sort_by_key(|&(begin, ..)| begin);
    for pair in holds.windows(2) {
        let [(_, end, token), (begin, _, next_token)] = pair else { unreachable!("windows of two") };
        assert!(end <= begin, "two held at once: {pair:?}");
        assert!(token < next_token, "tokens do not grow: {pair:?}");
    }
    nothing_is_left(&clients[0]).await;
}

// Traits

fn everywhere<T: Send + Sync + 'static>() {}
fn send<T: Send>(_: &T) {}
fn detached<T: Send + 'static>(_: &T) {}

#[tokio::test]
async fn handles_go_everywhere_and_futures_can_be_spawned() -> Outcome {
    everywhere::<ReentrantLock>();
    let lock = anonymous(&Client::memory());
    send(&lock.lock());
    send(&lock.try_lock());
    send(&lock.lock_timeout(SECOND));
    send(&lock.inspect());
    send(&lock.force_release());
    detached(&async move { lock.lock().await });
    Ok(())
}

#[tokio::test]
async fn handles_and_guards_can_be_printed_without_the_lease_id() -> Outcome {
    let client = Client::memory();
    let lock = owned(&client, OWNER);
    let guard = soon(lock.lock()).await?;
    let inspection = lock.inspect().await?;
    let id = inspection.holder().cloned().expect("a holder").id;
    let printed = format!("{client:?} {lock:?} {guard:?} {inspection:?}");
    assert!(printed.contains(NAME) && printed.contains(OWNER));
    assert!(!printed.contains(&id) && !printed.contains(&id[9..]), "whoever knows the id can end the lease");
    Ok(())
}

// A wire to the store that counts what is sent, and may hold it up.

#[derive(Debug, Default)]
struct Wire {
    sent: AtomicUsize,
    hanging: AtomicBool,
    slow: AtomicBool,
    slow_releases: AtomicBool,
}

impl Wire {
    fn to(store: &MemoryBackend) -> Arc<Intercepted<Self>> {
        Intercepted::new(store, Self::default())
    }

    /// How many calls were sent so far.
    fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// From now on, nothing arrives.
    fn hang(&self) {
        self.hanging.store(true, Ordering::SeqCst);
    }

    fn answer(&self) {
        self.hanging.store(false, Ordering::SeqCst);
    }

    /// From now on, grants take a while to come back.
    fn slow_down(&self) {
        self.slow.store(true, Ordering::SeqCst);
    }

    /// From now on, releases take a while to arrive.
    fn delay_releases(&self) {
        self.slow_releases.store(true, Ordering::SeqCst);
    }

    /// Counts a call, and loses it if nothing arrives.
    async fn send(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        if self.hanging.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

impl Intercept for Wire {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        async move {
            self.send().await;
            let answer = store.request(request).await;
            if self.slow.load(Ordering::SeqCst) {
                sleep(ms(100)).await;
            }
            answer
        }
        .boxed()
    }

    fn renew<'a>(&'a self, store: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        let renewed = async move {
            self.send().await;
            store.renew(renewals)
        };
        StreamExt::boxed(renewed.flatten_stream())
    }

    fn release<'a>(&'a self, store: &'a MemoryBackend, lease: &'a LeaseRef) -> Reply<'a, Released> {
        async move {
            self.send().await;
            if self.slow_releases.load(Ordering::SeqCst) {
                sleep(ms(500)).await;
            }
            store.release(lease).await
        }
        .boxed()
    }

    fn force_release<'a>(&'a self, store: &'a MemoryBackend, resource: &'a Resource) -> Reply<'a, bool> {
        async move {
            self.send().await;
            store.force_release(resource).await
        }
        .boxed()
    }
}
