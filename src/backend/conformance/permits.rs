//! Permits and their limit.

use tokio::task::JoinHandle;

use super::Harness;
use super::site::Site;
use crate::backend::{Answer, BackendError, Kind, Limit, Released};

/// 12. Permits held never exceed the limit; a release hands them to exactly those waiters that now fit.
pub async fn point_12_a_release_serves_exactly_those_that_fit(store: &dyn Harness, kind: Kind) {
    let site = Site { limit: Limit::stated(4), ..Site::new(store, kind, "permits").await };
    let holder = site.request_for(4);
    site.grant(&holder).await;
    let mut waiting = Vec::new();
    for permits in [3, 2, 1] {
        waiting.push(site.wait(site.request_for(permits).waiting()));
        site.until_waiting(waiting.len()).await;
    }
    // Two are returned: too few for the first in the queue. The second takes them unless nobody may overtake.
    assert_eq!(site.keep(holder.lease.id, 2).await, Released::Held);
    let now = site.inspect().await;
    let expected = if kind == Kind::Counting { (4, 2) } else { (2, 3) };
    assert_eq!((now.in_use, now.waiters.len()), expected, "in use, waiting");
    // Two more: the counting semaphore serves its last waiter with one of them, the fair one serves its first.
    assert_eq!(site.release(holder.lease.id).await, Released::Held);
    let now = site.inspect().await;
    let expected = if kind == Kind::Counting { (3, 1) } else { (3, 2) };
    assert_eq!((now.in_use, now.waiters.len()), expected, "in use, waiting");
    assert_eq!(now.in_use, now.holders.iter().map(|holder| holder.permits).sum::<u32>());
    waiting.iter().for_each(JoinHandle::abort);
}

/// 13. The first request states the limit, others must agree, and clients that know its version follow a change.
pub async fn point_13_one_limit_is_in_force(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "limit").await;
    let stating = |site: &Site, limit| Site { limit, ..site.clone() };
    let (one, two) = (stating(&one, Limit::stated(1)), stating(&other, Limit::stated(2)));
    let holder = one.request();
    let met = one.grant(&holder).await.limit.expect("a limit is in force");
    assert_eq!(met.permits, 1);
    let refused = two.refused(&two.request()).await;
    assert!(matches!(refused, BackendError::LimitDiffers { stated: 2, in_force: 1 }), "{refused:?}");
    let refused = one.refused(&one.request_for(2)).await;
    assert!(matches!(refused, BackendError::AboveLimit { permits: 2, limit: 1 }), "{refused:?}");

    let waiting = one.wait(one.request_waiting());
    one.until_waiting(1).await;
    let changed = two.backend.set_limit(&two.resource, 3, two.ttl).await.expect("the store answers");
    assert_eq!(changed, Limit::new(3, met.version), "the same version, changed");
    one.within(one.slack, "the waiter, after the limit was increased", waiting).await;
    let one = stating(&one, met);
    let followed = one.grant(&one.request()).await.limit;
    assert_eq!(followed, Some(changed), "a client that knows the version learns the new limit");

    two.backend.set_limit(&two.resource, 1, two.ttl).await.expect("the store answers");
    let now = one.inspect().await;
    assert_eq!((now.limit, now.in_use), (Some(1), 3), "nothing is revoked");
    one.release(holder.lease.id).await;
    assert!(matches!(one.ask(&one.request()).await, Answer::Busy { .. }));
    let newcomer = stating(&two, Limit::stated(3));
    let refused = newcomer.refused(&newcomer.request()).await;
    assert!(matches!(refused, BackendError::LimitDiffers { stated: 3, in_force: 1 }), "{refused:?}");
}
