//! Many leases are renewed in one request: a renewal that hangs holds up no other, and no deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use leasehold::backend::{Answer, Answered, Backend, Event, LeaseId, Renew, Renewal, Request};
use leasehold::{Client, Guard, LossReason, MemoryBackend};
use leasehold_support::intercept::{Intercept, Intercepted, Reply};
use leasehold_support::unresponsive::{UNANSWERED, Unresponsive};
use leasehold_support::{options, within};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::task::unconstrained;
use tokio::time::{Instant, sleep, sleep_until};

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

/// Nobody asks the guards: the leases are given back all the same, after the margin in which holders hear of the loss.
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_delays_no_deadline() {
    let (client, store) = client();
    store.hang();
    let lease = |n: u64| ms(100 + n * 7919 % 3000);
    let guards = take(&client, (0..3000).map(|n| (n.to_string(), lease(n)))).await;
    let ends: Vec<_> = guards.iter().map(|guard| Instant::now() + guard.remaining()).collect();
    sleep(SECOND * 4).await;
    for (n, (guard, ends)) in (0..).zip(guards.iter().zip(ends)) {
        let due = ends + ms(10) + lease(n) / 1000;
        let released = store.released_at(&format!("lock:{}", guard.name())).expect("given back");
        let late = released.saturating_duration_since(due);
        assert!(released >= due && late <= ms(2), "{} was given back {late:?} late", guard.name());
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

/// Whoever holds many locks briefly has them dropped from a list. One that was lost meanwhile must still be released.
#[tokio::test(flavor = "current_thread")]
async fn a_lease_lost_before_the_keeper_looked_at_it_is_released_although_many_others_follow() {
    let client = Client::memory();
    let lock = client.mutex_with("a", options().max_hold(ms(110))).expect("valid");
    drop(lock.lock().await.expect("free"));
    sleep(ms(250)).await;
    let guard = lock.lock().await.expect("free");
    // The keeper's task, which runs by now, has no chance to look at it, nor while the others take their turns.
    std::thread::sleep(ms(150));
    assert!(!guard.is_held());
    for n in 0..1100 {
        let mutex = client.mutex(&n.to_string()).expect("valid");
        drop(unconstrained(mutex.lock()).now_or_never().expect("free").expect("free"));
    }
    drop(guard);
    drop(within(SECOND * 3, lock.lock()).await.expect("it was released"));
}

/// A store that has doubts, at the command of a test.
#[derive(Debug)]
struct Doubting {
    leases: Mutex<Vec<LeaseId>>,
    events: broadcast::Sender<Event>,
    renewed_at: Mutex<Vec<Instant>>,
    has_forgotten: AtomicBool,
}

impl Intercept for Doubting {
    fn request<'a>(&'a self, store: &'a MemoryBackend, request: &'a Request) -> Reply<'a, Answer> {
        self.leases.lock().push(request.lease.id);
        store.request(request)
    }

    fn renew<'a>(&'a self, store: &'a MemoryBackend, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        self.renewed_at.lock().push(Instant::now());
        if !self.has_forgotten.load(Ordering::Relaxed) {
            return store.renew(renewals);
        }
        let lost = |n| (n, Ok(Renewal::Lost(LossReason::Expired)));
        stream::iter(0..renewals.len()).map(lost).boxed()
    }

    fn events(&self, _: &MemoryBackend) -> BoxStream<'static, Event> {
        let events = stream::unfold(self.events.subscribe(), |mut events| async {
            events.recv().await.ok().map(|event| (event, events))
        });
        events.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_may_have_lost_a_lease_is_asked_at_once() {
    let doubting = Doubting {
        leases: Mutex::default(),
        events: broadcast::Sender::new(1),
        renewed_at: Mutex::default(),
        has_forgotten: AtomicBool::new(false),
    };
    let store = Intercepted::new(&MemoryBackend::new(), doubting);
    let client = Client::with_backend(store.clone());
    let begun = Instant::now();
    let guard =
        client.mutex_with("a", options().ttl(SECOND * 30)).expect("valid").lock().await.expect("free");
    let lease = store.leases.lock()[0];
    for (forgets, doubts_at) in [(false, 2), (true, 3)] {
        sleep_until(begun + SECOND * doubts_at).await;
        store.has_forgotten.store(forgets, Ordering::Relaxed);
        store.events.send(Event::AskAgain(lease)).expect("the client listens");
        sleep(ms(1)).await;
        assert_eq!(store.renewed_at.lock().last(), Some(&(begun + SECOND * doubts_at)));
        assert_eq!(guard.is_held(), !forgets);
    }
    assert_eq!(store.renewed_at.lock().len(), 2);
    assert_eq!(guard.lost().await, LossReason::Missing);
}
