//! How long a lease lasts, and who decides.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep};

use super::site::Site;
use super::{Harness, KINDS};
use crate::backend::{BackendError, Kind, Released, Renew, Renewal, Request};
use crate::error::LossReason;

/// 4. A client stops trusting a lease before the store ends it: after a granted request, a pushed grant, and a renewal.
pub async fn point_4_a_lease_is_measured_from_before_its_grant(store: &dyn Harness, kind: Kind) {
    let site = Site::new(store, kind, "count").await;
    let holder = site.request();
    let sent = Instant::now();
    site.grant(&holder).await;
    site.assert_not_trusted_beyond_the_store(sent).await;

    let waiter = site.request_waiting();
    let waiting = site.wait(waiter.clone());
    site.until_waiting(1).await;
    sleep(site.ttl / 6).await;
    site.release(holder.lease.id).await;
    let (_, measured_from) = site.within(site.slack, "the waiter", waiting).await;
    site.assert_not_trusted_beyond_the_store(measured_from).await;

    let sent = Instant::now();
    assert_eq!(site.renew(waiter.lease.id).await, Renewal::Renewed);
    site.assert_not_trusted_beyond_the_store(sent).await;
    site.release(waiter.lease.id).await;
}

/// 6. Renewal answers renewed, lost, or unknown.
pub async fn point_6_renewal_distinguishes_renewed_lost_and_unknown(store: &dyn Harness, kind: Kind) {
    let (site, watcher) = Site::pair(store, kind, "renew").await;
    let request = site.request();
    site.grant(&request).await;
    let until = Instant::now() + site.ttl * 2;
    while Instant::now() < until {
        assert_eq!(site.renew(request.lease.id).await, Renewal::Renewed);
        sleep(site.ttl / 6).await;
    }
    site.release(request.lease.id).await;
    assert_eq!(site.renew(request.lease.id).await, Renewal::Lost(LossReason::Expired));
    site.assert_empty().await;

    let request = site.request();
    site.grant(&request).await;
    site.backend.close().await;
    let unknown = site.try_renew(request.lease.id).await;
    assert!(
        matches!(unknown, Err(BackendError::Closed)),
        "a renewal that cannot be sent is not lost: {unknown:?}"
    );
    assert!(watcher.inspect().await.holder().is_some(), "an unknown renewal ended the lease");
}

/// 14. A lease that was released by force is answered as revoked, as often as it is asked about, until it would have
///     ended: by itself, together with others, and whether or not another lease holds the lock. The holder does not see
///     the event.
pub async fn point_14_a_lease_released_by_force_is_remembered(store: &dyn Harness, kind: Kind) {
    let revoked = Renewal::Lost(LossReason::Revoked);
    for is_taken in [false, true] {
        let (site, other) = Site::pair(store, kind, "by force").await;
        let (one, two) = (site.request(), site.request());
        site.grant(&one).await;
        assert!(other.backend.force_release(&other.resource).await.expect("the store answers"));
        let next = other.request();
        if is_taken {
            other.grant(&next).await;
        }
        let other_site = Site::new(store, kind, "not by force").await;
        let kept = Site { backend: Arc::clone(&site.backend), ..other_site };
        kept.grant(&Request { lease: kept.lease(two.lease.id), ..two.clone() }).await;
        assert_eq!(site.renew(one.lease.id).await, revoked);
        let requests =
            [Renew::new(one.lease.clone(), site.ttl), Renew::new(kept.lease(two.lease.id), site.ttl)];
        let mut answers: Vec<_> = site.backend.renew(&requests).collect().await;
        answers.sort_by_key(|(n, _)| *n);
        let answers: Vec<_> =
            answers.into_iter().map(|(_, answer)| answer.expect("the store answers")).collect();
        assert_eq!(answers, [revoked, Renewal::Renewed]);
        for _ in 0..2 {
            let released = site.release(one.lease.id).await;
            let is_gone = matches!(released, Released::Revoked | Released::Taken | Released::Absent);
            assert!(is_gone, "{released:?}");
        }
        assert_eq!(kept.release(two.lease.id).await, Released::Held);
        let never = site.release(site.backend.lease_id()).await;
        assert_eq!(never, if is_taken { site.not_ours() } else { Released::Absent });
        if is_taken {
            assert_eq!(other.renew(next.lease.id).await, Renewal::Renewed, "it is not affected");
            assert_eq!(other.release(next.lease.id).await, Released::Held);
        }
        site.assert_empty().await;
    }
}

/// 6. Leases that are renewed together, of all kinds that the store supports and of several TTLs, are each answered
///    separately: held, expired, or taken by another lease.
pub async fn point_6_renewals_are_answered_individually(store: &dyn Harness) {
    let (backend, other) = (store.client().await, store.client().await);
    let kinds = KINDS.into_iter().filter(|kind| backend.capabilities().kinds.contains(kind));
    let mut renewals = Vec::new();
    // None may expire while the others are granted.
    for (kind, times) in kinds.flat_map(|kind| [(kind, 10), (kind, 20)]) {
        let taken = if kind.is_semaphore() { LossReason::Expired } else { LossReason::Taken };
        for (lost, again) in [(None, false), (Some(LossReason::Expired), false), (Some(taken), true)] {
            let site = Site::new(store, kind, "together").await;
            let site = Site { backend: Arc::clone(&backend), ttl: site.ttl * times, ..site };
            let request = site.request();
            site.grant(&request).await;
            renewals.push((Renew::new(request.lease, site.ttl), site, lost, again));
        }
    }
    for (renew, site, lost, again) in &renewals {
        if lost.is_some() {
            site.release(renew.lease.id).await;
        }
        if *again {
            let site = Site { backend: Arc::clone(&other), ..site.clone() };
            site.grant(&site.request()).await;
        }
    }
    let sent = Instant::now();
    let requests: Vec<_> = renewals.iter().map(|(renew, ..)| renew.clone()).collect();
    let mut answers: Vec<_> = backend.renew(&requests).collect().await;
    answers.sort_by_key(|(n, _)| *n);
    assert!(answers.iter().map(|(n, _)| *n).eq(0..requests.len()), "each is answered once: {answers:?}");
    for ((n, answer), (renew, site, lost, _)) in answers.into_iter().zip(&renewals) {
        match (answer.expect("the store answers"), lost) {
            (Renewal::Renewed, None) => {
                site.assert_not_trusted_beyond_the_store(sent).await;
                assert_eq!(site.release(renew.lease.id).await, Released::Held);
            }
            (answer, lost) => assert_eq!(Some(answer), lost.map(Renewal::Lost), "{n}: {renew:?}"),
        }
    }
    assert!(backend.renew(&[]).next().await.is_none());
    backend.close().await;
    let unknown: Vec<_> = backend.renew(&requests).collect().await;
    assert_eq!(unknown.len(), requests.len());
    assert!(unknown.iter().all(|(_, answer)| matches!(answer, Err(BackendError::Closed))), "{unknown:?}");
}

/// 10. A lease that nobody renews ends when the store says so: not before its TTL, and soon after.
pub async fn point_10_the_store_decides_when_a_lease_ends(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "expiry").await;
    let asked = Instant::now();
    one.grant(&one.request()).await;
    let answered = Instant::now();
    one.within(one.ttl + one.slack, "expiry", other.wait(other.request_waiting())).await;
    let took_over = Instant::now();
    // Timers and stores count in milliseconds.
    let least = one.ttl - Duration::from_millis(2);
    assert!(took_over >= asked + least, "taken over {:?} after the request", took_over - asked);
    assert!(
        took_over <= answered + one.ttl + one.slack,
        "taken over {:?} after the grant",
        took_over - answered
    );
}
