//! Owners that re-enter.

use std::sync::Arc;

use tokio::time::timeout;

use super::Harness;
use super::site::Site;
use crate::backend::{Claim, Kind, Released, Renewal, Request, Resource};
use crate::error::LossReason;

/// 11. An owner that holds the lock is admitted again at once, ahead of all waiters, under the same token; the lock is
///     free when its last hold has ended.
pub async fn point_11_an_owner_can_re_enter(store: &dyn Harness) {
    let (one, other) = Site::pair(store, Kind::Reentrant, "owner").await;
    let claim = Claim::Owner("order-42".into());
    let first = Request { claim: claim.clone(), ..one.request() };
    let second = Request { claim: claim.clone(), ..other.request() };
    let token = one.grant(&first).await.token;
    let mutex = Site { resource: Resource::new(Arc::clone(&one.resource.key), Kind::Mutex), ..one.clone() };
    let mut waiting = mutex.wait(mutex.request_waiting());
    one.until_waiting(1).await;

    for _ in 0..2 {
        assert_eq!(
            other.grant(&second).await.token,
            token,
            "admitted ahead of the waiter, and a repeated request changes nothing"
        );
    }
    assert_eq!(one.inspect().await.holders.len(), 2);
    assert_eq!(one.release(first.lease.id).await, Released::Held);
    assert_eq!(one.renew(first.lease.id).await, Renewal::Lost(LossReason::Taken));
    assert_eq!(other.renew(second.lease.id).await, Renewal::Renewed);
    // The hold is not renewed meanwhile.
    let meanwhile = (one.slack / 5).min(one.ttl / 4);
    assert!(timeout(meanwhile, &mut waiting).await.is_err(), "admitted while the owner had a hold");
    assert_eq!(other.release(second.lease.id).await, Released::Held);
    let (next, _) = one.within(one.slack, "the waiter", waiting).await;
    assert!(next.token > token);
}
