//! The [contract](super) as functions: one per numbered point, each panicking where a store breaks it.
//!
//! A store's tests implement [`Harness`] and call every function, or [`run_all`]. Points 1 to 10 are checked for one
//! [`Kind`] at a time, semaphores with a limit of one. Every function uses keys of its own, so they may run side by side
//! on one store, except point 3, which makes the store forget, and point 9, which counts its work.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::{
    AcquireRequest, Acquired, Backend, BackendError, Claim, Detail, Grant, Inspection, Kind, LeaseId, Limit,
    Released, RenewRequest, Renewal, Resource, TOKENS_PER_GRANT, Wait, Whose,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// How long leases last here: long against a round trip, short against patience.
const TERM: Duration = Duration::from_millis(600);
/// What timers, scheduling and a round trip may add.
const SLACK: Duration = Duration::from_millis(500);

/// All kinds of resources.
pub const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Reentrant, Kind::Counting, Kind::Fair];

/// A store under test.
pub trait Harness: Send + Sync {
    /// A new client of the store, as another process would be.
    fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>>;
    /// Makes the store forget everything, as a restart without disk does.
    fn lose_memory(&self) -> BoxFuture<'_, ()>;
    /// A count of the work the store has done so far, in any unit that grows with it.
    fn work(&self) -> BoxFuture<'_, u64>;
    /// A client for which what the store tells by itself can be held back, while its requests are answered. In a store that tells
    /// nothing by any other way than it answers, an ordinary client, and a `hold_back` that does nothing.
    fn client_told_late(&self) -> BoxFuture<'_, ToldLate>;
}

/// A client that hears late what the store tells it.
pub struct ToldLate {
    /// The client.
    pub backend: Arc<dyn Backend>,
    /// Holds back what is told from now on, if called with `true`; delivers all of it and holds back nothing, if with `false`.
    pub hold_back: Box<dyn Fn(bool) + Send + Sync>,
}

impl fmt::Debug for ToldLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToldLate").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Checks every point.
///
/// # Panics
///
/// If the store breaks the contract.
pub async fn run_all(store: &dyn Harness) {
    for kind in KINDS {
        point_1_every_verb_can_be_sent_again(store, kind).await;
        point_2_release_forgets_a_lease_everywhere(store, kind).await;
        point_3_tokens_grow_whatever_happens(store, kind).await;
        point_4_a_lease_is_counted_from_before_its_grant(store, kind).await;
        point_4_a_grant_told_late_is_not_believed(store, kind).await;
        point_5_release_and_renew_touch_only_their_own_lease(store, kind).await;
        point_6_renewal_tells_renewed_from_lost_from_unknown(store, kind).await;
        point_7_a_dead_waiter_blocks_nobody(store, kind).await;
        point_8_requests_are_served_in_order_of_arrival(store, kind).await;
        point_9_a_hand_over_costs_the_same_however_many_wait(store, kind).await;
        point_10_the_store_decides_when_a_lease_is_over(store, kind).await;
    }
    point_6_many_renewals_are_answered_each_for_itself(store).await;
    point_11_an_owner_comes_in_again(store).await;
    for kind in [Kind::Counting, Kind::Fair] {
        point_12_a_release_serves_exactly_those_that_fit(store, kind).await;
        point_13_one_limit_is_in_force(store, kind).await;
    }
}

/// 1. Every verb is idempotent per lease id.
pub async fn point_1_every_verb_can_be_sent_again(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "again").await;
    let holder = one.request();
    let first = one.grant(&holder).await;
    let again = one.grant(&holder).await;
    assert_eq!(first.token, again.token, "the same acquisition was granted twice");

    let waiter = other.request_waiting();
    let mut waiting = other.spawn(waiter.clone());
    one.until_waiting(1).await;
    waiting.abort();
    let _ = (&mut waiting).await;
    let waiting = other.spawn(waiter.clone());
    // The line looks the same before and after the request is repeated, so its arrival cannot be awaited.
    sleep(SLACK / 5).await;
    one.until_waiting(1).await;

    for _ in 0..2 {
        assert!(matches!(one.renew(holder.lease).await, Renewal::Renewed { .. }));
    }
    assert_eq!(one.release(holder.lease).await, Released::Held);
    let next = granted(within(SLACK, "the repeated waiter", waiting).await);
    assert!(next.token > first.token);
    assert_eq!(one.release(holder.lease).await, one.not_ours(), "a release sent again must find nothing");
    assert_eq!(one.release(waiter.lease).await, Released::Held);
    one.assert_empty().await;
}

/// 2. `release` forgets a lease everywhere, and a dropped `acquire` plus `release` leaves nothing.
pub async fn point_2_release_forgets_a_lease_everywhere(store: &dyn Harness, kind: Kind) {
    let site = Site::new(store, kind, "forget").await;
    let holder = site.request();
    site.grant(&holder).await;

    let queued = site.request_waiting();
    let waiting = site.spawn(queued.clone());
    site.until_waiting(1).await;
    waiting.abort();
    site.release(queued.lease).await;
    site.until_waiting(0).await;

    assert_eq!(site.release(holder.lease).await, Released::Held);
    assert_eq!(site.release(site.backend.lease_id()).await, Released::Absent, "never seen");
    site.assert_empty().await;
}

/// 3. Tokens grow, by as many as a grant reserves: from holder to holder, after an expiry, after the store lost its memory.
pub async fn point_3_tokens_grow_whatever_happens(store: &dyn Harness, kind: Kind) {
    let site = Site::new(store, kind, "tokens").await;
    let mut tokens = Vec::new();
    for _ in 0..100 {
        let request = site.request();
        tokens.push(site.grant(&request).await.token);
        site.release(request.lease).await;
    }
    tokens.push(site.grant(&site.request()).await.token);
    tokens.push(granted(within(TERM + SLACK, "expiry", site.spawn(site.request_waiting())).await).token);
    store.lose_memory().await;
    tokens.push(site.grant(&site.request()).await.token);
    let reserves = |pair: &[FencingToken]| pair[1].get() >= pair[0].get() + TOKENS_PER_GRANT;
    assert!(tokens.windows(2).all(reserves), "{tokens:?}");
}

/// 4. The instant a lease is counted from is not later than its grant: for an answer, a push and a renewal.
pub async fn point_4_a_lease_is_counted_from_before_its_grant(store: &dyn Harness, kind: Kind) {
    let site = Site::new(store, kind, "count").await;
    let holder = site.request();
    let grant = site.grant(&holder).await;
    site.assert_not_trusted_beyond_the_store(grant.counted_from).await;

    let waiter = site.request_waiting();
    let waiting = site.spawn(waiter.clone());
    site.until_waiting(1).await;
    site.release(holder.lease).await;
    let grant = granted(within(SLACK, "the waiter", waiting).await);
    site.assert_not_trusted_beyond_the_store(grant.counted_from).await;

    match site.renew(waiter.lease).await {
        Renewal::Renewed { counted_from } => site.assert_not_trusted_beyond_the_store(counted_from).await,
        lost => panic!("a held lease is not renewed: {lost:?}"),
    }
    site.release(waiter.lease).await;
}

/// 4. A grant that was held back on its way, until its lease was over and the request had been given another place in the queue,
///    is not believed.
pub async fn point_4_a_grant_told_late_is_not_believed(store: &dyn Harness, kind: Kind) {
    let ToldLate { backend, hold_back } = store.client_told_late().await;
    let (one, other) = Site::pair(store, kind, "late").await;
    let late = Site { backend, ..one.clone() };
    let (holder, waiter, next) = (one.request(), late.request_waiting(), other.request_waiting());
    one.grant(&holder).await;
    let mut waiting = pin!(late.backend.acquire(&waiter));
    drive(&mut waiting, one.until_waiting(1)).await;
    let waiting_next = other.spawn(next.clone());
    one.until_waiting(2).await;

    // Neither polled nor told, the waiter is granted what it waits for, and does not take it.
    hold_back(true);
    one.release(holder.lease).await;
    let served = granted(
        within(TERM * 2 + SLACK, "the next one, when the unheard grant was over", waiting_next).await,
    );
    // It asks again, and stands in the queue again.
    let kept = kept_by(&other, next.lease);
    let asked = async {
        one.until_waiting(1).await;
        // That the answer has come cannot be seen from here.
        sleep(SLACK / 5).await;
    };
    let early = with(kept, until(&mut waiting, asked)).await;
    hold_back(false);
    let answer = match early {
        None => with(kept_by(&other, next.lease), until(&mut waiting, sleep(TERM / 2))).await,
        early => early,
    };
    let grant = match answer {
        Some(answer) => {
            let grant = granted(answer.expect("the store answers"));
            let over = grant.counted_from + TERM <= Instant::now();
            assert!(over, "believed beside the next holder: {grant:?}, {served:?}");
            None
        }
        None => {
            assert_eq!(other.release(next.lease).await, Released::Held);
            let grant = timeout(SLACK + TERM, &mut waiting).await.expect("it waits in its new place");
            Some(granted(grant.expect("the store answers")))
        }
    };
    if let Some(grant) = grant {
        assert!(grant.token > served.token, "an older token after a newer one");
        late.assert_not_trusted_beyond_the_store(grant.counted_from).await;
    }
    late.release(waiter.lease).await;
    other.release(next.lease).await;
    one.assert_empty().await;
}

type Waiting<'a, 'b> = Pin<&'a mut BoxFuture<'b, Result<Acquired, BackendError>>>;

/// Polls `waiting` until `event`. Its answer, if that comes first.
async fn until(
    waiting: &mut Waiting<'_, '_>,
    event: impl Future<Output = ()>,
) -> Option<Result<Acquired, BackendError>> {
    tokio::select! {
        biased;
        answer = waiting => Some(answer),
        () = event => None,
    }
}

/// The same for a request that cannot be granted yet.
async fn drive(waiting: &mut Waiting<'_, '_>, event: impl Future<Output = ()>) {
    let answer = until(waiting, event).await;
    assert!(answer.is_none(), "granted beside a holder: {answer:?}");
}

/// Keeps a lease alive, for ever.
async fn kept_by(site: &Site, lease: LeaseId) {
    loop {
        site.renew(lease).await;
        sleep(TERM / 6).await;
    }
}

/// `work` done while `others` goes on.
async fn with<T>(others: impl Future<Output = ()>, work: impl Future<Output = T>) -> T {
    tokio::select! {
        () = others => unreachable!("goes on for ever"),
        output = work => output,
    }
}

/// 5. Release and renew act on their lease id only.
pub async fn point_5_release_and_renew_touch_only_their_own_lease(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "own").await;
    let late = one.request();
    one.grant(&late).await;
    one.release(late.lease).await;
    let holder = other.request();
    let grant = other.grant(&holder).await;

    assert_eq!(one.release(late.lease).await, one.not_ours());
    let reason = if kind.is_semaphore() { LossReason::Expired } else { LossReason::Taken };
    assert_eq!(one.renew(late.lease).await, Renewal::Lost(reason));
    assert!(matches!(other.renew(holder.lease).await, Renewal::Renewed { .. }));
    assert_eq!(other.grant(&holder).await.token, grant.token, "still the same hold");
    assert_eq!(other.release(holder.lease).await, Released::Held);
}

/// 6. Renewal answers renewed, lost, or unknown.
pub async fn point_6_renewal_tells_renewed_from_lost_from_unknown(store: &dyn Harness, kind: Kind) {
    let (site, watcher) = Site::pair(store, kind, "renew").await;
    let request = site.request();
    site.grant(&request).await;
    let until = Instant::now() + TERM * 2;
    while Instant::now() < until {
        assert!(matches!(site.renew(request.lease).await, Renewal::Renewed { .. }));
        sleep(TERM / 6).await;
    }
    site.release(request.lease).await;
    assert_eq!(site.renew(request.lease).await, Renewal::Lost(LossReason::Expired));
    site.assert_empty().await;

    let request = site.request();
    site.grant(&request).await;
    site.backend.close().await;
    let renewal = RenewRequest::new(request.lease, site.resource.clone(), TERM);
    let unknown = site.backend.renew(&renewal).await;
    assert!(
        matches!(unknown, Err(BackendError::Closed)),
        "a renewal that cannot be sent is not lost: {unknown:?}"
    );
    assert!(watcher.inspect().await.holder().is_some(), "an unknown renewal ended the lease");
}

/// 6. Leases that are renewed together, of all kinds and of several terms, are answered each for itself: held, gone, taken.
pub async fn point_6_many_renewals_are_answered_each_for_itself(store: &dyn Harness) {
    let (backend, other) = (store.client().await, store.client().await);
    let mut renewals = Vec::new();
    for (kind, part) in KINDS.into_iter().flat_map(|kind| [(kind, 1), (kind, 2)]) {
        let site = || async {
            let site = Site::new(store, kind, "together").await;
            Site { backend: Arc::clone(&backend), term: TERM * part, ..site }
        };
        let (held, gone, taken) = (site().await, site().await, site().await);
        for (site, lost) in [
            (held, None),
            (gone, Some(LossReason::Expired)),
            (taken, Some(if kind.is_semaphore() { LossReason::Expired } else { LossReason::Taken })),
        ] {
            let request = site.request();
            site.grant(&request).await;
            let renewal = RenewRequest::new(request.lease, site.resource.clone(), site.term);
            let confirmed = (part == 2).then(Instant::now);
            renewals.push((RenewRequest { confirmed, ..renewal }, site, lost));
        }
    }
    for (request, site, lost) in &renewals {
        if lost.is_some() {
            site.release(request.lease).await;
        }
        if *lost == Some(LossReason::Taken) {
            let site = Site { backend: Arc::clone(&other), ..site.clone() };
            site.grant(&site.request()).await;
        }
    }
    let requests: Vec<_> = renewals.iter().map(|(request, ..)| request.clone()).collect();
    let mut answers: Vec<_> = backend.renew_all(&requests).collect().await;
    answers.sort_by_key(|(n, _)| *n);
    assert!(answers.iter().map(|(n, _)| *n).eq(0..requests.len()), "each is answered once: {answers:?}");
    for ((n, answer), (request, site, lost)) in answers.into_iter().zip(&renewals) {
        match (answer.expect("the store answers"), lost) {
            (Renewal::Renewed { counted_from }, None) => {
                site.assert_not_trusted_beyond_the_store(counted_from).await;
                assert_eq!(site.release(request.lease).await, Released::Held);
            }
            (answer, lost) => assert_eq!(Some(answer), lost.map(Renewal::Lost), "{n}: {request:?}"),
        }
    }
    assert!(backend.renew_all(&[]).next().await.is_none());
    backend.close().await;
    let unknown: Vec<_> = backend.renew_all(&requests).collect().await;
    assert_eq!(unknown.len(), requests.len());
    assert!(unknown.iter().all(|(_, answer)| matches!(answer, Err(BackendError::Closed))), "{unknown:?}");
}

/// 7. A dead waiter is passed over, or stops counting within a lease; those behind it are served.
pub async fn point_7_a_dead_waiter_blocks_nobody(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "dead").await;
    let holder = one.request();
    one.grant(&holder).await;

    let dead = one.spawn(one.request_waiting());
    one.until_waiting(1).await;
    dead.abort();
    let _ = dead.await;
    let waiting = other.spawn(other.request_waiting());
    let kept = async {
        loop {
            one.renew(holder.lease).await;
            sleep(TERM / 6).await;
        }
    };
    // Long enough for the dead waiter to be forgotten while the lock is still held.
    let _ = timeout(TERM + SLACK / 2, kept).await;
    assert!(one.waiters().await <= 1, "a waiter that died a lease ago still counts");
    one.release(holder.lease).await;
    granted(within(SLACK, "the waiter behind a dead one", waiting).await);
}

/// 8. Requests are served in order of arrival, whichever client they come from.
pub async fn point_8_requests_are_served_in_order_of_arrival(store: &dyn Harness, kind: Kind) {
    const WAITERS: usize = 12;
    let (one, other) = Site::pair(store, kind, "order").await;
    let holder = one.request();
    one.grant(&holder).await;
    let mut waiting = Vec::new();
    for n in 0..WAITERS {
        let site = if n % 3 == 0 { &other } else { &one };
        waiting.push(site.spawn_and_release(site.request_waiting()));
        one.until_waiting(n + 1).await;
    }
    one.release(holder.lease).await;
    let grants = join_all(waiting.into_iter().map(|waiting| within(SLACK * 4, "a waiter", waiting))).await;
    let tokens: Vec<_> = grants.iter().map(|grant| grant.token).collect();
    assert!(tokens.is_sorted(), "not served in order of arrival: {tokens:?}");
}

/// 9. The work of a hand-over is the same for few waiters and for many.
pub async fn point_9_a_hand_over_costs_the_same_however_many_wait(store: &dyn Harness, kind: Kind) {
    const { assert!(FEW * 20 == MANY) };
    let few = work_per_hand_over(store, kind, FEW).await;
    let many = work_per_hand_over(store, kind, MANY).await;
    assert!(many <= few * 1.2 + 1.0, "work per hand-over: {few} with {FEW} waiters, {many} with {MANY}");
}

const FEW: usize = 10;
const MANY: usize = 200;

async fn work_per_hand_over(store: &dyn Harness, kind: Kind, waiters: usize) -> f64 {
    let site = Site { term: Duration::from_secs(30), ..Site::new(store, kind, "work").await };
    let holder = site.request();
    site.grant(&holder).await;
    let waiting: Vec<_> = (0..waiters).map(|_| site.spawn_and_release(site.request_waiting())).collect();
    site.until_waiting(waiters).await;
    let before = store.work().await;
    site.release(holder.lease).await;
    for waiting in waiting {
        within(Duration::from_secs(30), "a waiter", waiting).await;
    }
    let done = store.work().await - before;
    done as f64 / waiters as f64
}

/// 10. A lease that nobody renews is over when the store says so: not before its term, and soon after.
pub async fn point_10_the_store_decides_when_a_lease_is_over(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "expiry").await;
    let asked = Instant::now();
    one.grant(&one.request()).await;
    let answered = Instant::now();
    granted(within(TERM + SLACK, "expiry", other.spawn(other.request_waiting())).await);
    let took_over = Instant::now();
    assert!(took_over >= asked + TERM, "taken over {:?} after the request", took_over - asked);
    assert!(took_over <= answered + TERM + SLACK, "taken over {:?} after the grant", took_over - answered);
}

/// 11. An owner that holds the lock is let in at once, past those who wait, under the same token; the lock is free when
///     its last hold has ended.
pub async fn point_11_an_owner_comes_in_again(store: &dyn Harness) {
    let (one, other) = Site::pair(store, Kind::Reentrant, "owner").await;
    let claim = Claim::Owner("order-42".into());
    let first = AcquireRequest { claim: claim.clone(), ..one.request() };
    let second = AcquireRequest { claim: claim.clone(), ..other.request() };
    let token = one.grant(&first).await.token;
    let mutex = Site { resource: Resource::new(Arc::clone(&one.resource.key), Kind::Mutex), ..one.clone() };
    let mut waiting = mutex.spawn(mutex.request_waiting());
    one.until_waiting(1).await;

    for _ in 0..2 {
        assert_eq!(other.grant(&second).await.token, token, "past the one who waits, and twice is once");
    }
    assert_eq!(one.inspect().await.holders.len(), 2);
    assert_eq!(one.release(first.lease).await, Released::Held);
    assert_eq!(one.renew(first.lease).await, Renewal::Lost(LossReason::Taken));
    assert!(matches!(other.renew(second.lease).await, Renewal::Renewed { .. }));
    assert!(timeout(SLACK / 5, &mut waiting).await.is_err(), "let in while the owner had a hold");
    assert_eq!(other.release(second.lease).await, Released::Held);
    let next = granted(within(SLACK, "the one who waits", waiting).await);
    assert!(next.token > token);
}

/// 12. Permits held never exceed the limit; a release hands them to exactly those that now fit.
pub async fn point_12_a_release_serves_exactly_those_that_fit(store: &dyn Harness, kind: Kind) {
    let site = Site { limit: Limit::new(4), ..Site::new(store, kind, "permits").await };
    let holder = site.request_for(4);
    site.grant(&holder).await;
    let mut waiting = Vec::new();
    for permits in [3, 2, 1] {
        waiting.push(site.spawn(AcquireRequest { wait: Wait::Forever, ..site.request_for(permits) }));
        site.until_waiting(waiting.len()).await;
    }
    // Two are given back: too few for the first in line. The second takes them unless nobody may pass anybody.
    let whose = Whose::AllBut(holder.lease, 2);
    assert_eq!(site.backend.release(&site.resource, whose).await.expect("the store answers"), Released::Held);
    let now = site.inspect().await;
    let expected = if kind == Kind::Counting { (4, 2) } else { (2, 3) };
    assert_eq!((now.in_use, now.waiters.len()), expected, "in use, waiting");
    // Two more: one is left over for the counting semaphore's last waiter, the fair one serves its first.
    assert_eq!(site.release(holder.lease).await, Released::Held);
    let now = site.inspect().await;
    let expected = if kind == Kind::Counting { (3, 1) } else { (3, 2) };
    assert_eq!((now.in_use, now.waiters.len()), expected, "in use, waiting");
    assert_eq!(now.in_use, now.holders.iter().map(|holder| holder.permits).sum::<u32>());
    waiting.iter().for_each(JoinHandle::abort);
}

/// 13. The first to come states the limit, others must agree, and a resize is followed by those who have met it.
pub async fn point_13_one_limit_is_in_force(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "limit").await;
    let (one, other) = (Site { limit: Limit::new(1), ..one }, Site { limit: Limit::new(2), ..other });
    let holder = one.request();
    one.grant(&holder).await;
    let refused = other.backend.acquire(&other.request()).await;
    assert!(matches!(refused, Err(BackendError::LimitDiffers { stated: 2, in_force: 1 })), "{refused:?}");
    let refused = one.backend.acquire(&one.request_for(2)).await;
    assert!(matches!(refused, Err(BackendError::AboveLimit { permits: 2, limit: 1 })), "{refused:?}");

    let waiting = one.spawn(one.request_waiting());
    one.until_waiting(1).await;
    other.backend.resize(&other.resource, 3, TERM, &other.limit).await.expect("the store answers");
    granted(within(SLACK, "the waiter, when the limit grew", waiting).await);
    one.grant(&one.request()).await;
    assert_eq!(one.limit.stated().permits, 3, "who has met a limit follows it");

    other.backend.resize(&other.resource, 1, TERM, &other.limit).await.expect("the store answers");
    let now = one.inspect().await;
    assert_eq!((now.limit, now.in_use), (Some(1), 3), "nothing is taken away");
    one.release(holder.lease).await;
    assert_eq!(one.backend.acquire(&one.request()).await.expect("the store answers"), Acquired::Busy);
    let stranger = Site { limit: Limit::new(3), ..other };
    let refused = stranger.backend.acquire(&stranger.request()).await;
    assert!(matches!(refused, Err(BackendError::LimitDiffers { stated: 3, in_force: 1 })), "{refused:?}");
}

/// One client and one resource.
#[derive(Clone)]
struct Site {
    backend: Arc<dyn Backend>,
    resource: Resource,
    limit: Limit,
    term: Duration,
}

impl Site {
    async fn new(store: &dyn Harness, kind: Kind, what: &str) -> Self {
        let key = format!("lock:conformance:{what}:{}", Uuid::new_v4());
        let (backend, resource) = (store.client().await, Resource::new(key, kind));
        Self { backend, resource, limit: Limit::new(1), term: TERM }
    }

    /// Two clients and one resource.
    async fn pair(store: &dyn Harness, kind: Kind, what: &str) -> (Self, Self) {
        let one = Self::new(store, kind, what).await;
        let other = Self { backend: store.client().await, ..one.clone() };
        (one, other)
    }

    fn request(&self) -> AcquireRequest {
        self.request_for(1)
    }

    /// Of a lock, by an owner of its own; or for so many permits.
    fn request_for(&self, permits: u32) -> AcquireRequest {
        let lease = self.backend.lease_id();
        let claim = match self.resource.kind {
            Kind::Mutex => Claim::Sole,
            Kind::Reentrant => Claim::Owner(lease.to_string().into()),
            Kind::Counting | Kind::Fair => Claim::Permits(permits, self.limit.clone()),
        };
        AcquireRequest::new(lease, self.resource.clone(), claim, self.term)
    }

    fn request_waiting(&self) -> AcquireRequest {
        AcquireRequest { wait: Wait::Forever, ..self.request() }
    }

    /// What a release finds that has nothing to release, while somebody else holds.
    const fn not_ours(&self) -> Released {
        if self.resource.kind.is_semaphore() { Released::Absent } else { Released::Taken }
    }

    async fn inspect(&self) -> Inspection {
        self.backend.inspect(&self.resource, Detail::Everybody).await.expect("the store answers")
    }

    async fn grant(&self, request: &AcquireRequest) -> Grant {
        granted(self.backend.acquire(request).await.expect("the store answers"))
    }

    async fn release(&self, lease: LeaseId) -> Released {
        self.backend.release(&self.resource, Whose::Lease(lease)).await.expect("the store answers")
    }

    async fn renew(&self, lease: LeaseId) -> Renewal {
        let request = RenewRequest::new(lease, self.resource.clone(), self.term);
        self.backend.renew(&request).await.expect("the store answers")
    }

    fn spawn(&self, request: AcquireRequest) -> JoinHandle<Acquired> {
        let backend = Arc::clone(&self.backend);
        tokio::spawn(async move { backend.acquire(&request).await.expect("the store answers") })
    }

    fn spawn_and_release(&self, request: AcquireRequest) -> JoinHandle<Grant> {
        let (backend, resource) = (Arc::clone(&self.backend), self.resource.clone());
        tokio::spawn(async move {
            let grant = granted(backend.acquire(&request).await.expect("the store answers"));
            backend.release(&resource, Whose::Lease(request.lease)).await.expect("the store answers");
            grant
        })
    }

    async fn waiters(&self) -> usize {
        self.inspect().await.waiters.len()
    }

    /// Waits until exactly `count` requests stand in line: a store cannot push that.
    async fn until_waiting(&self, count: usize) {
        let arrived = async {
            while self.waiters().await != count {
                sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(timeout(SLACK * 10, arrived).await.is_ok(), "there never were {count} waiters");
    }

    async fn assert_empty(&self) {
        let left = self.inspect().await;
        assert!(left.holders.is_empty() && left.waiters.is_empty(), "left behind: {left:?}");
    }

    /// What a client would believe of a lease counted from `counted_from` must end before the store's lease.
    async fn assert_not_trusted_beyond_the_store(&self, counted_from: Instant) {
        let now = self.inspect().await;
        let remaining = now.holder().and_then(|holder| holder.remaining).expect("the lease has an expiry");
        // The store rounds to milliseconds.
        let store_ends = Instant::now() + remaining + Duration::from_millis(1);
        assert!(counted_from + self.term <= store_ends, "the client outlives the store");
    }
}

fn granted(acquired: Acquired) -> Grant {
    match acquired {
        Acquired::Granted(grant) => grant,
        Acquired::Busy => panic!("not granted"),
    }
}

async fn within<T>(
    limit: Duration,
    what: &str,
    task: impl Future<Output = Result<T, tokio::task::JoinError>>,
) -> T {
    match timeout(limit, task).await {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => panic!("{what}: {error}"),
        Err(_) => panic!("{what} took longer than {limit:?}"),
    }
}
