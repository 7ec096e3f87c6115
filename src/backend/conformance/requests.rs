//! Every operation can be repeated, and affects its own lease only.

use futures::FutureExt;
use tokio::time::{Duration, sleep};

use super::Harness;
use super::site::Site;
use crate::backend::{Kind, Released, Renewal};
use crate::error::LossReason;

/// 1. Every operation is idempotent per lease id. Repeating a request does not extend a lease that is held.
pub async fn point_1_every_operation_can_be_repeated(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "again").await;
    let holder = one.request();
    let first = one.grant(&holder).await;
    sleep(one.ttl / 6).await;
    let again = one.grant(&holder).await;
    assert_eq!(first.token, again.token, "the same acquisition was granted twice");
    let left = again.remaining.expect("granted before");
    assert!(
        left <= one.ttl * 5 / 6 + Duration::from_millis(1),
        "repeating the request extended the lease to {left:?}"
    );

    let waiter = other.request_waiting();
    let place = other.queue(&waiter).await;
    for _ in 0..2 {
        assert_eq!(other.queue(&waiter).await.ticket, place.ticket, "another place");
        assert_eq!(one.waiters().await, 1);
    }
    for _ in 0..2 {
        assert_eq!(one.renew(holder.lease.id).await, Renewal::Renewed);
    }
    assert_eq!(one.release(holder.lease.id).await, Released::Held);
    let next = other.grant(&waiter).await;
    assert!(next.token > first.token);
    assert_eq!(one.release(holder.lease.id).await, one.not_ours(), "a repeated release must find nothing");
    assert_eq!(other.release(waiter.lease.id).await, Released::Held);
    one.assert_empty().await;
}

/// 2. `release` removes a lease wherever it is, even if the future of its request was dropped.
pub async fn point_2_release_removes_a_lease_wherever_it_is(store: &dyn Harness, kind: Kind) {
    let mut site = Site::new(store, kind, "forget").await;
    // No lease ends here, not even on a machine that is busy for a moment.
    site.ttl *= 4;
    let holder = site.request();
    site.grant(&holder).await;

    let queued = site.request_waiting();
    site.queue(&queued).await;
    assert_eq!(site.waiters().await, 1);
    assert_eq!(site.release(queued.lease.id).await, Released::Queued);
    assert_eq!(site.waiters().await, 0);
    for _ in 0..20 {
        // Sent, but the answer is not awaited.
        let dropped = site.request_waiting();
        let _ = site.backend.request(&dropped).now_or_never();
        site.release(dropped.lease.id).await;
    }
    assert_eq!(site.waiters().await, 0);

    assert_eq!(site.release(holder.lease.id).await, Released::Held);
    assert_eq!(site.release(site.backend.lease_id()).await, Released::Absent, "never seen");
    site.assert_empty().await;
}

/// 5. Release and renew act on their lease id only.
pub async fn point_5_release_and_renewal_affect_only_their_own_lease(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "own").await;
    let late = one.request();
    one.grant(&late).await;
    one.release(late.lease.id).await;
    let holder = other.request();
    let grant = other.grant(&holder).await;

    assert_eq!(one.release(late.lease.id).await, one.not_ours());
    let reason = if kind.is_semaphore() { LossReason::Expired } else { LossReason::Taken };
    assert_eq!(one.renew(late.lease.id).await, Renewal::Lost(reason));
    assert_eq!(other.renew(holder.lease.id).await, Renewal::Renewed);
    assert_eq!(other.grant(&holder).await.token, grant.token, "still the same hold");
    assert_eq!(other.release(holder.lease.id).await, Released::Held);
}
