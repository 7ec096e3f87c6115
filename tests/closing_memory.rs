//! What a client that is closed lets others finish, and what a test of an application can do to a client of the store
//! in memory.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use leasehold::{Client, Error, LossReason, MemoryBackend, Status};
use leasehold_support::{assert_pending, begun, within};
use tokio::time::{Instant, sleep};

const NAME: &str = "machine:42";
const SECOND: Duration = Duration::from_secs(1);
/// The default.
const TTL: Duration = Duration::from_secs(30);

/// Two clients of one store, with a handle to that of the first one.
fn two() -> (Arc<MemoryBackend>, Client, Client) {
    let store = Arc::new(MemoryBackend::new());
    let other = Client::with_backend(Arc::new(store.peer()));
    (Arc::clone(&store), Client::with_backend(store), other)
}

fn is_closed<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Closed { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_refuses_requests_and_lets_holders_finish() {
    let (_store, client, other) = two();
    let mutex = client.mutex(NAME).expect("valid");
    let permits = client.counting_semaphore("calls", 5).expect("valid");
    let guard = mutex.lock().await.expect("free");
    let permit = permits.acquire().await.expect("free");
    let closing = begun({
        let client = client.clone();
        async move { client.close(TTL * 10).await }
    })
    .await;
    assert!(is_closed(&mutex.try_lock().await), "new");
    assert!(is_closed(&permits.acquire().await), "new, although permits are free");
    // For longer than the leases last without renewal.
    sleep(TTL * 3).await;
    assert!(guard.is_held() && permit.is_held() && !closing.is_finished());
    assert!(other.mutex(NAME).expect("valid").try_lock().await.expect("answered").is_none());
    guard.release().await.expect("held until the end");
    assert_pending(SECOND, permit.lost()).await;
    assert!(!closing.is_finished(), "a permit is held");
    drop(permit);
    within(SECOND, closing).await.expect("no panic").expect("all is released");
    assert!(client.state().status == Status::Closed);
    assert!(other.mutex(NAME).expect("valid").try_lock().await.expect("answered").is_some());
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_client_that_is_closed_fail_at_once_and_leave_nothing() {
    let (_store, client, other) = two();
    let held = other.mutex(NAME).expect("valid").lock().await.expect("free");
    let mutex = client.mutex(NAME).expect("valid");
    let noted = mutex.with_note("with a place of its own");
    let waiting = begun(async move { mutex.lock().await.map(drop) }).await;
    let alone = begun(async move { noted.lock().await.map(drop) }).await;
    let inspected = other.mutex(NAME).expect("valid").inspect().await.expect("answered");
    assert_eq!(inspected.waiters.len(), 2);
    within(SECOND, client.close(TTL)).await.expect("nothing is held");
    assert!(is_closed(&waiting.await.expect("no panic")));
    assert!(is_closed(&alone.await.expect("no panic")));
    let inspected = other.mutex(NAME).expect("valid").inspect().await.expect("answered");
    assert_eq!(inspected.waiters.len(), 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn holders_that_are_left_at_the_limit_lose_their_leases() {
    let (_store, client, other) = two();
    let guard = client.mutex(NAME).expect("valid").lock().await.expect("free");
    let lost = guard.lost();
    let begun = Instant::now();
    client.close(SECOND * 7).await.expect("the lease is released");
    assert_eq!(begun.elapsed().as_secs(), 7);
    assert_eq!(lost.await, LossReason::ClientClosed);
    assert!(other.mutex(NAME).expect("valid").try_lock().await.expect("answered").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_dropped_lets_holders_go_on_and_can_be_continued() {
    let (_store, client, _other) = two();
    let mutex = client.mutex(NAME).expect("valid");
    let guard = mutex.lock().await.expect("free");
    assert_pending(SECOND, client.close(TTL)).await;
    assert!(is_closed(&mutex.lock().await));
    assert_pending(TTL * 2, guard.lost()).await;
    drop(guard);
    within(SECOND, client.close(TTL)).await.expect("all is released");
}

#[tokio::test(start_paused = true)]
async fn an_owner_re_enters_what_it_holds_while_the_client_is_closed() {
    let (_store, client, _other) = two();
    let lock = client.reentrant_lock(NAME, "order").expect("valid");
    let outer = lock.lock().await.expect("free");
    let closing = begun({
        let client = client.clone();
        async move { client.close(TTL).await }
    })
    .await;
    let inner = lock.lock().await.expect("it holds the lock");
    drop(outer);
    assert!(inner.is_held() && !closing.is_finished());
    drop(inner);
    within(SECOND, closing).await.expect("no panic").expect("all is released");
}

#[tokio::test(start_paused = true)]
async fn a_crashed_client_releases_nothing_and_its_leases_expire() {
    let (store, client, other) = two();
    let begun = Instant::now();
    let guard = client.mutex(NAME).expect("valid").lock().await.expect("free");
    let lost = guard.lost();
    store.crash();
    assert!(matches!(client.state().status, Status::Silent { .. }));
    store.restore();
    assert!(matches!(client.state().status, Status::Silent { .. }), "for good");
    drop(guard);
    let next = other.mutex(NAME).expect("valid").lock().await.expect("granted");
    let after = begun.elapsed();
    assert!(after >= TTL && after < TTL + SECOND * 2, "{after:?}");
    drop((next, lost));
    assert_pending(TTL * 2, client.mutex("other").expect("valid").lock()).await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_a_crashed_client_reports_the_loss_before_another_client_holds() {
    let (store, client, other) = two();
    let guard = client.mutex(NAME).expect("valid").lock().await.expect("free");
    store.crash();
    let other = other.mutex(NAME).expect("valid");
    let next = other.lock();
    let reason = tokio::select! {
        reason = guard.lost() => reason,
        _ = next => panic!("granted before the loss was reported"),
    };
    assert_eq!(reason, LossReason::StoreUnreachable);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_was_cut_off_fails_and_goes_on_when_it_is_restored() {
    let (store, client, other) = two();
    let mutex = client.mutex(NAME).expect("valid");
    let mut states = client.state_changes();
    store.cut_off();
    let failed = mutex.try_lock().await.map(drop).expect_err("it is cut off");
    assert!(matches!(failed, Error::StoreUnavailable { .. }), "{failed:?}");
    assert!(failed.to_string().contains("cut this client off"), "{failed}");
    assert!(client.ping(SECOND).await.is_err());
    let state = within(SECOND, states.next()).await.expect("it changes");
    assert!(matches!(state.status, Status::Disconnected { .. }), "{state:?}");
    let theirs = other.mutex(NAME).expect("valid").lock().await.expect("the other client is not cut off");
    theirs.release().await.expect("held");
    store.restore();
    assert_eq!(within(SECOND, states.next()).await.expect("it changes").status, Status::Connected);
    assert!(mutex.try_lock().await.expect("answered").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_short_cut_is_survived_by_holders_and_a_grant_during_it_is_not_missed() {
    let (store, client, other) = two();
    let held = client.mutex("held").expect("valid").lock().await.expect("free");
    let theirs = other.mutex(NAME).expect("valid").lock().await.expect("free");
    let waiting = begun({
        let mutex = client.mutex(NAME).expect("valid");
        async move { mutex.lock().await }
    })
    .await;
    store.cut_off();
    theirs.release().await.expect("held");
    sleep(TTL / 4).await;
    assert!(!waiting.is_finished());
    store.restore();
    let granted = within(SECOND, waiting).await.expect("no panic").expect("granted");
    assert!(granted.is_held());
    assert_pending(TTL * 2, held.lost()).await;
}

#[tokio::test(start_paused = true)]
async fn a_long_cut_ends_the_lease() {
    let (store, client, other) = two();
    let guard = client.mutex(NAME).expect("valid").lock().await.expect("free");
    store.cut_off();
    let next = other.mutex(NAME).expect("valid").lock().await.expect("granted");
    assert!(!guard.is_held() && next.token() > guard.token());
    store.restore();
    assert_eq!(guard.lost().await, LossReason::StoreUnreachable);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_forgets_ends_leases_and_tokens_still_increase() {
    let (store, client, other) = two();
    let guard = client.mutex(NAME).expect("valid").lock().await.expect("free");
    store.flush();
    let next = other.mutex(NAME).expect("valid").try_lock().await.expect("answered").expect("forgotten");
    assert!(next.token() > guard.token());
    let reason = within(TTL, guard.lost()).await;
    assert!(matches!(reason, LossReason::Taken | LossReason::Missing), "{reason:?}");
}
