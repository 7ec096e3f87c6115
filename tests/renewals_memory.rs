//! Many leases are renewed in one request: a renewal that hangs holds up no other, and no deadline.

mod support;
#[path = "support/unresponsive.rs"]
mod unresponsive;

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, Guard, LossReason, MemoryBackend};
use support::intercept::Intercepted;
use support::{options, within};
use tokio::time::{Instant, sleep};
use unresponsive::{UNANSWERED, Unresponsive};

const SECOND: Duration = Duration::from_secs(1);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn client() -> (Client, Arc<Intercepted<Unresponsive>>) {
    let store = Unresponsive::on(&MemoryBackend::new());
    (Client::with_backend(store.clone()), store)
}

async fn take(client: &Client, names: impl Iterator<Item = (String, Duration)>) -> Vec<Guard> {
    let take = async |(name, lease): (String, Duration)| {
        let mutex = client.mutex_with(&name, options().ttl(lease)).expect("valid");
        mutex.lock().await.expect("free")
    };
    join_all(names.map(take)).await
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_holds_up_no_other_in_its_request() {
    let (client, store) = client();
    // Of every hundred one hangs: nearly every third request has one.
    let name = |n: usize| if n.is_multiple_of(100) { format!("{n}:{UNANSWERED}") } else { n.to_string() };
    let guards = take(&client, (0..1000).map(|n| (name(n), SECOND))).await;
    sleep(SECOND * 10).await;
    for guard in &guards {
        assert_eq!(guard.is_held(), !guard.name().ends_with(UNANSWERED), "{}", guard.name());
    }
    // Nor what comes later, though those before it will never be answered.
    let later = take(&client, (1000..1500).map(|n| (n.to_string(), SECOND / 2))).await;
    sleep(SECOND * 10).await;
    assert!(later.iter().all(Guard::is_held));
    assert!(store.released_at("lock:0:unanswered").is_some());
}

/// Nobody asks the guards: the store is told at the deadline all the same.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_no_deadline() {
    let (client, store) = client();
    store.hang();
    let lease = |n: u64| ms(100 + n * 7919 % 3000);
    let guards = take(&client, (0..3000).map(|n| (n.to_string(), lease(n)))).await;
    let ends: Vec<_> = guards.iter().map(|guard| Instant::now() + guard.remaining()).collect();
    sleep(SECOND * 4).await;
    for (guard, ends) in guards.iter().zip(ends) {
        let released = store.released_at(&format!("lock:{}", guard.name())).expect("given back");
        let late = released.saturating_duration_since(ends);
        assert!(released >= ends && late <= ms(2), "{} was given back {late:?} late", guard.name());
        assert_eq!(guard.lost().await, LossReason::StoreUnreachable);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_what_is_being_renewed() {
    let (client, store) = client();
    store.hang();
    let guards = take(&client, (0..2000).map(|n| (n.to_string(), SECOND * 30))).await;
    sleep(SECOND * 11).await;
    assert!(guards.iter().all(Guard::is_held));
    within(SECOND, client.shutdown()).await.expect("all is given back");
    for guard in &guards {
        assert_eq!(within(SECOND, guard.lost()).await, LossReason::ClientClosed);
    }
}
