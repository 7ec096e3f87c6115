//! Refusals that last some seconds: a holder, many waiters and an awaited release go through them, whatever the store.

// Each of the programs that include this uses a part.
#![allow(dead_code)]

use std::mem;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use leasehold::{Client, MutexOptions};
use tokio::time::{Instant, sleep};

use crate::faults::{SECOND, mutex, until_waiting, waiter};
use crate::within;

/// How long each refusal lasts.
pub const REFUSAL: Duration = Duration::from_secs(3);
/// How long a release may take once the store accepts changes again, on a busy machine.
pub const RECOVERY: Duration = Duration::from_secs(2);
/// How long a release is repeated while its caller waits, at least.
const AWAITED: Duration = Duration::from_millis(3500);
/// A deadline for what takes a moment.
const SOON: Duration = Duration::from_secs(15);

/// A holder, 20 waiters, of which half come meanwhile, and a release that is awaited, while the store refuses something
/// for [`REFUSAL`]. `end` returns once the store accepts changes again. Each client may hold `NAME`.
pub async fn nothing_fails_during(
    case: &str,
    client: Client,
    other: Client,
    begin: impl AsyncFnOnce(),
    end: impl AsyncFnOnce(),
) {
    let lock = mutex(&client);
    let kept = client.mutex_with("kept", MutexOptions::new().ttl(SECOND * 10)).expect("valid");
    let kept = kept.lock().await.expect("free");
    let held = mutex(&other).lock().await.expect("free");
    let mut waiters: FuturesUnordered<_> = (0..10).map(|_| waiter(&lock)).collect();
    until_waiting(&lock, 10).await;
    begin().await;
    waiters.extend((0..10).map(|_| waiter(&lock)));
    let asked = Instant::now();
    let release = tokio::spawn(held.release());
    sleep(REFUSAL).await;
    assert!(kept.is_held(), "{case}");
    end().await;
    let recovered = Instant::now();
    let mut is_first = true;
    while let Some(guard) = within(SOON, waiters.next()).await {
        let guard = guard.expect("no panic").unwrap_or_else(|error| panic!("{case}: {error}"));
        if mem::take(&mut is_first) {
            let late = recovered.elapsed();
            assert!(late < RECOVERY, "{case}: the release was done {late:?} after the recovery");
        }
        guard.release().await.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
    if let Err(error) = release.await.expect("no panic") {
        // The store took longer to recover than a release is waited for; it was done all the same.
        assert!(recovered - asked > AWAITED, "{case}: {error}");
    }
    assert!(kept.is_held(), "{case}");
    kept.release().await.expect("held");
    assert!(client.state().status.is_connected(), "{case}: {:?}", client.state());
}
