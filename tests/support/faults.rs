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

/// The error of connecting to `url`, which is not accepted to take long.
pub(crate) async fn refused(url: &str) -> Error {
    let begun = Instant::now();
    let error = Client::connect(url).await.map(drop).expect_err("it is refused");
    assert!(begun.elapsed() < CONNECTING, "{:?}: {error}", begun.elapsed());
    error
}
