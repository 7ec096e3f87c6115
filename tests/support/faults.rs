//! What the tests of faults do on every store: waiters of one lock, and logins that are refused.

use std::mem;
use std::sync::Mutex;
use std::time::Duration;

use leasehold::{Client, DistMutex, Error, FairSemaphore, Guard};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{eventually, one_place_each, within};

pub const NAME: &str = "machine:42";
pub const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once. Shorter than a third of the default lease, so that nothing can meet it
/// just because a request is repeated.
pub const SOON: Duration = Duration::from_secs(5);
/// What connecting may take at most, with its time limit.
pub const CONNECTING: Duration = Duration::from_secs(4);
pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each()).expect("valid")
}

/// With leases of a second.
pub fn brief_mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each().ttl(SECOND)).expect("valid")
}

pub fn waiter(mutex: &DistMutex) -> JoinHandle<Result<Guard, Error>> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.lock().await })
}

/// Waits until `n` requests are queued.
pub async fn until_waiting(mutex: &DistMutex, n: usize) {
    eventually(SOON, || async {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
    .await;
}

pub async fn granted(waiter: JoinHandle<Result<Guard, Error>>) -> Guard {
    within(SOON, waiter).await.expect("no panic").expect("granted")
}

/// Two clients get a lock in turns, while any request of `mine` may get lost: it is asked for again, and tokens grow.
pub async fn lock_in_turns(mine: &DistMutex, theirs: &DistMutex) {
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

/// Two clients share three permits, then four, while any request of `mine` may get lost: several at once, parts, a new
/// limit, renewals.
pub async fn share_in_turns(mine: &FairSemaphore, theirs: &FairSemaphore) {
    let mut guard = until_available(|| mine.acquire_many(3)).await;
    let first = guard.token();
    let part = guard.split(1).expect("of three");
    // A renewal that gets lost is repeated in time.
    until_renewed(&guard).await;
    let waiting = theirs.clone();
    let waiting = tokio::spawn(async move { waiting.acquire_many(2).await });
    eventually(SOON, || async { theirs.inspect().await.is_ok_and(|now| now.waiters.len() == 1) }).await;
    // What is not confirmed is still carried out, or was carried out before.
    let _ = part.release().await;
    until_available(|| mine.resize(4)).await;
    let next = granted(waiting).await;
    assert!(next.token() > first, "{} after {first}", next.token());
    assert!(guard.is_held());
    let _ = guard.release().await;
    eventually(SOON, || async { theirs.inspect().await.is_ok_and(|now| now.in_use == 2) }).await;
    match mine.try_acquire_many(2).await {
        Ok(guard) => {
            let guard = guard.expect("two of four are free");
            assert!(guard.token() > next.token(), "{} after {}", guard.token(), next.token());
            let _ = guard.release().await;
        }
        Err(error) => assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}"),
    }
    next.release().await.expect("its wire is whole");
}

async fn until_renewed(guard: &Guard) {
    let last = Mutex::new(guard.remaining());
    let is_renewed = || {
        let now = guard.remaining();
        now > mem::replace(&mut *last.lock().expect("no panic"), now)
    };
    eventually(SOON, || async { is_renewed() }).await;
}

async fn until_granted(mutex: &DistMutex) -> Guard {
    until_available(|| mutex.lock()).await
}

/// Repeats what fails because the store is unavailable.
async fn until_available<T: Send, F>(call: impl Fn() -> F + Send + Sync) -> T
where
    F: Future<Output = Result<T, Error>> + Send,
{
    let answered = async {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(error) => assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}"),
            }
        }
    };
    within(SOON, answered).await
}

/// The error of connecting to `url`, which is not accepted to take long.
pub async fn refused(url: &str) -> Error {
    let begun = Instant::now();
    let error = Client::connect(url).await.map(drop).expect_err("it is refused");
    assert!(begun.elapsed() < CONNECTING, "{:?}: {error}", begun.elapsed());
    error
}
