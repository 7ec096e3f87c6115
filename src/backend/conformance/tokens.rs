//! Tokens increase, no matter what happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::Instant;

use super::Harness;
use super::site::Site;
use crate::backend::{Kind, Released, Request};
use crate::fence::FencingToken;

/// 3. Tokens increase, by at least as many as a grant reserves: from holder to holder, after an expiry, after the store
///    has lost its data.
pub async fn point_3_tokens_increase_in_every_case(store: &dyn Harness, kind: Kind) {
    const EACH: u32 = 16;
    let site = Site::new(store, kind, "tokens").await;
    let request = || Request { tokens: EACH, ..site.request() };
    let mut tokens = Vec::new();
    for _ in 0..40 {
        let request = request();
        tokens.push(site.grant(&request).await.token);
        site.release(request.lease.id).await;
    }
    tokens.push(site.grant(&request()).await.token);
    let waiting = site.wait(request().waiting());
    let (grant, _) = site.within(site.ttl + site.slack, "expiry", waiting).await;
    tokens.push(grant.token);
    if site.backend.capabilities().tokens_survive_data_loss {
        store.lose_data().await;
        tokens.push(site.grant(&request()).await.token);
    }
    let takes_up = |pair: &[FencingToken]| pair[1].get() >= pair[0].get() + u64::from(EACH);
    assert!(tokens.windows(2).all(takes_up), "{tokens:?}");
}

/// 3. Two clients acquire and release as fast as they can, for a second and six turns each: they never hold at the
///    same time, and tokens increase. This is most likely to expose a record that is deleted too early or a lost
///    update.
pub async fn point_3_two_alternating_clients_exclude_each_other(store: &dyn Harness, kind: Kind) {
    let (mut one, mut other) = Site::pair(store, kind, "turns").await;
    // No lease ends here, not even on a machine that is busy for a moment.
    (one.ttl, other.ttl) = (one.ttl * 4, other.ttl * 4);
    let (inside, newest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
    let end = Instant::now() + Duration::from_secs(1);
    let client = |site: Site| {
        let (inside, newest) = (Arc::clone(&inside), Arc::clone(&newest));
        tokio::spawn(async move {
            let mut turns = 0;
            while Instant::now() < end || turns < 6 {
                let request = site.request_waiting();
                let lease = request.lease.id;
                let waiting = site.wait(request);
                let (grant, _) = site.within(site.ttl * 2 + site.slack, "a turn", waiting).await;
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                let before = newest.swap(grant.token.get(), Ordering::SeqCst);
                assert!(before < grant.token.get(), "the token {} after {before}", grant.token);
                yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert_eq!(site.release(lease).await, Released::Held);
                turns += 1;
            }
        })
    };
    let clients = [client(one.clone()), client(other)];
    for client in clients {
        one.within(one.ttl * 4 + Duration::from_secs(3), "a client", client).await;
    }
    one.assert_empty().await;
}
