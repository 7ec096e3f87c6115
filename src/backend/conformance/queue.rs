//! Places in the queue: tickets, dead waiters, order, and the work of a hand-over.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::Harness;
use super::site::Site;
use crate::backend::{Event, Kind, Released, Wakes};

/// 4. A place has a ticket that is never used again. The answer and the event of its grant contain it, and the grant
///    ends when the place would have ended. So a client can recognize by its ticket a grant that is reported too late.
pub async fn point_4_every_place_has_its_own_ticket(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "ticket").await;
    let (holder, waiter) = (one.request(), other.request_waiting());
    one.grant(&holder).await;
    let mut events = other.listen();
    let place = other.queue(&waiter).await;
    let asked = Instant::now();
    sleep(one.ttl / 3).await;
    one.release(holder.lease.id).await;
    if one.backend.capabilities().wakes == Wakes::Pushed {
        let grant = timeout(one.slack, async {
            loop {
                match events.recv().await.expect("the store sends events") {
                    Event::Granted { lease, ticket, .. } if lease == waiter.lease => return ticket,
                    _ => {}
                }
            }
        });
        assert_eq!(grant.await.expect("the grant is reported"), place.ticket, "the ticket of another place");
    }
    // The waiter ignores it and repeats its request when the grant has ended and another client holds the resource.
    let next = one.request_waiting();
    let (next_grant, _) = one.within(one.ttl + one.slack, "the next one", one.wait(next.clone())).await;
    let lasted = asked.elapsed();
    assert!(
        lasted <= one.ttl + one.slack / 2,
        "an unnoticed grant lasted until {lasted:?} after its request"
    );
    let again = one.keeping(next.lease.id, other.queue(&waiter)).await;
    assert!(again.ticket != place.ticket, "a ticket was used twice");
    assert_eq!(one.release(next.lease.id).await, Released::Held);
    let grant = other.grant(&waiter).await;
    assert!(grant.token > next_grant.token);
    other.release(waiter.lease.id).await;
    one.assert_empty().await;
}

/// 7. A place whose request is not repeated is gone within a TTL, and those behind it are served.
pub async fn point_7_a_dead_waiter_blocks_no_other_waiter(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "dead").await;
    let holder = one.request();
    one.grant(&holder).await;
    one.queue(&one.request_waiting()).await;
    let waiting = other.wait(other.request_waiting());
    // Long enough for the dead waiter's place to end while the lock is still held.
    one.keeping(holder.lease.id, sleep(one.ttl + one.slack / 2)).await;
    assert!(one.waiters().await <= 1, "a waiter that died a TTL ago still counts");
    one.release(holder.lease.id).await;
    one.within(one.slack, "the waiter behind a dead one", waiting).await;
}

/// 7. However many places a dead client has, all of them are gone within one TTL.
pub async fn point_7_all_places_of_a_dead_client_are_gone_within_one_ttl(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "dead").await;
    let holder = one.request();
    one.grant(&holder).await;
    for _ in 0..4 {
        other.queue(&other.request_waiting()).await;
    }
    let died = Instant::now();
    let waiting = one.wait(one.request_waiting());
    one.until_waiting(5).await;
    one.release(holder.lease.id).await;
    one.within(one.ttl + one.slack, "the waiter behind them", waiting).await;
    assert!(died.elapsed() <= one.ttl + one.slack, "after {:?}", died.elapsed());
}

/// 8. Requests are served in order of arrival, no matter which client they come from, if the store claims it. All are
///    served in any case.
pub async fn point_8_requests_are_served_in_order_of_arrival(store: &dyn Harness, kind: Kind) {
    const WAITERS: usize = 12;
    let (one, other) = Site::pair(store, kind, "order").await;
    let holder = one.request();
    one.grant(&holder).await;
    let mut waiting = Vec::new();
    let queued = async {
        for n in 0..WAITERS {
            let site = if n % 3 == 0 { &other } else { &one };
            waiting.push(site.wait_and_release(site.request_waiting()));
            one.until_waiting(n + 1).await;
        }
    };
    one.keeping(holder.lease.id, queued).await;
    one.release(holder.lease.id).await;
    let grants =
        join_all(waiting.into_iter().map(|waiting| one.within(one.slack * 4, "a waiter", waiting))).await;
    let tokens: Vec<_> = grants.iter().map(|grant| grant.token).collect();
    let ordered = one.backend.capabilities().ordered;
    assert!(!ordered || tokens.is_sorted(), "not served in order of arrival: {tokens:?}");
}

/// 9. The work of a hand-over is the same for few and for many waiters, if the store claims it.
pub async fn point_9_hand_over_work_is_independent_of_the_number_of_waiters(store: &dyn Harness, kind: Kind) {
    const { assert!(FEW * 20 == MANY) };
    if !store.client().await.capabilities().constant_work {
        return;
    }
    let few = work_per_hand_over(store, kind, FEW).await;
    let many = work_per_hand_over(store, kind, MANY).await;
    assert!(many <= few * 1.2 + 1.0, "work per hand-over: {few} with {FEW} waiters, {many} with {MANY}");
}

const FEW: usize = 10;
const MANY: usize = 200;

async fn work_per_hand_over(store: &dyn Harness, kind: Kind, waiters: usize) -> f64 {
    let site = Site { ttl: Duration::from_secs(30), ..Site::new(store, kind, "work").await };
    let holder = site.request();
    site.grant(&holder).await;
    let waiting: Vec<_> = (0..waiters).map(|_| site.wait_and_release(site.request_waiting())).collect();
    site.until_waiting(waiters).await;
    let before = store.work().await;
    site.release(holder.lease.id).await;
    for waiting in waiting {
        site.within(Duration::from_secs(30), "a waiter", waiting).await;
    }
    let done = store.work().await - before;
    done as f64 / waiters as f64
}
