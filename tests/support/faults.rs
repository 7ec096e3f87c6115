//! What the tests of faults do on every store: waiters of one lock, and logins that are refused.

use std::time::Duration;

use leasehold::{Client, DistMutex, Error, Guard};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{eventually, one_place_each, within};

pub(crate) const NAME: &str = "machine:42";
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once. Shorter than a third of the default lease, so that nothing can meet it just because a
/// request is repeated.
pub(crate) const SOON: Duration = Duration::from_secs(5);
/// What connecting may take at most, with its time limit.
pub(crate) const CONNECTING: Duration = Duration::from_secs(4);
pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each()).expect("valid")
}

/// With leases of a second.
pub(crate) fn brief_mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each().ttl(SECOND)).expect("valid")
}

pub(crate) fn waiter(mutex: &DistMutex) -> JoinHandle<Result<Guard, Error>> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.lock().await })
}

/// Waits until `n` requests are queued.
pub(crate) async fn until_waiting(mutex: &DistMutex, n: usize) {
    eventually(SOON, || async {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
    .await;
}

pub(crate) async fn granted(waiter: JoinHandle<Result<Guard, Error>>) -> Guard {
    within(SOON, waiter).await.expect("no panic").expect("granted")
}

/// Two clients get a lock in turns, while any request of `mine` may get lost: it is asked for again, and tokens grow.
pub(crate) async fn lock_in_turns(mine: &DistMutex, theirs: &DistMutex) {
    let guard = until_granted(mine).await;
    let mut tokens = vec![guard.token()];
    let next = waiter(theirs);
    until_waiting(theirs, 1).await;
    // A release that finds nothing to end was carried out before, and its answer was lost.
    let _ = guard.release().await;
    let guard = granted(next).await;
    tokens.push(guard.token());
    let last = waiter(mine);
    until_waiting(theirs, 1).await;
    guard.release().await.expect("its wire is whole");
    match within(SOON, last).await.expect("no panic") {
        Ok(guard) => {
            tokens.push(guard.token());
            let _ = guard.release().await;
        }
        Err(error) => assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}"),
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

async fn until_granted(mutex: &DistMutex) -> Guard {
    let granted = async {
        loop {
            match mutex.lock().await {
                Ok(guard) => return guard,
                Err(error) => assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}"),
            }
        }
    };
    within(SOON, granted).await
}

/// The error of connecting to `url`, which is not accepted to take long.
pub(crate) async fn refused(url: &str) -> Error {
    let begun = Instant::now();
    let error = Client::connect(url).await.map(drop).expect_err("it is refused");
    assert!(begun.elapsed() < CONNECTING, "{:?}: {error}", begun.elapsed());
    error
}
