//! Releases for a task of the keeper to send.
//!
//! They wait in a plain queue, so that `Drop` can add one without a runtime, and so that they outlive a runtime that
//! ends: the task that sends them can be started again elsewhere.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use scopeguard::{ScopeGuard, guard};
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::known::Known;
use super::lease::Lease;
use crate::backend::{BackendError, LeaseRef, Released};
use crate::hash::HashMap;
use crate::sync::Mutex;

/// The maximum number of releases in flight. The store answers them in order anyway;
/// this bounds memory, and how long renewals wait behind them.
pub(super) const MAX_RELEASES: usize = 256;
/// How long the end of a runtime, or a guard that is dropped without one, waits for releases.
pub(super) const LAST_RELEASES: Duration = Duration::from_millis(100);
/// How long the waits of all guards may take together. This is regained at a tenth of the time that passes.
const DROPS_WAIT: Duration = Duration::from_secs(1);

/// For how much longer guards that are dropped may keep the application waiting.
#[derive(Debug)]
pub(super) struct Patience {
    left: Duration,
    since: std::time::Instant,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { left: DROPS_WAIT, since: std::time::Instant::now() }
    }

    pub(super) fn left(&self) -> Duration {
        DROPS_WAIT.min(self.left + self.since.elapsed() / 10)
    }

    /// A guard has waited for so long, perhaps in vain: then the others do not wait for a while.
    pub(super) fn spend(&mut self, waited: Duration, in_vain: bool) {
        let left = if in_vain { Duration::ZERO } else { self.left().saturating_sub(waited) };
        *self = Self { left, since: std::time::Instant::now() };
    }
}

/// The queue of pending releases.
#[derive(Debug, Default)]
pub(super) struct ReleaseQueue {
    queue: Mutex<Queue>,
    /// A release is no longer pending, or something else has changed for which a shutdown waits.
    finished: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    pending: VecDeque<PendingRelease>,
    /// The keys for which a release is queued or in flight.
    unfinished: HashMap<Arc<str>, Numbers>,
    /// Those that were confirmed, and are repeated because a request may still be on its way: no other request waits
    /// for them.
    settling: Vec<Number>,
    next_number: Number,
    /// How many were taken out.
    sent: u64,
    /// Something was queued. Replaced whenever the task that sends releases is started: an earlier one may still wait,
    /// on a runtime that is not driven, and must not be notified in place of the current one.
    queued: Arc<Notify>,
}

/// The number of a release, in the order in which they were queued.
pub(super) type Number = u64;

/// Nearly always a single one.
type Numbers = SmallVec<[Number; 1]>;

/// A release that must reach the store.
#[derive(Debug)]
pub(super) struct PendingRelease {
    /// Assigned when it is queued.
    pub(super) number: Number,
    pub(super) lease: LeaseRef,
    /// How many permits are kept.
    pub(super) keep: u32,
    /// Whether it may have been sent before, so that the store may have executed it.
    pub(super) repeated: bool,
    /// What the store may know of the lease. If it has declined all requests for it, a release that is declined as
    /// well is not sent again.
    pub(super) known: Known,
    /// How long the store keeps the lease without a renewal, if that is known.
    pub(super) ttl: Duration,
    /// When it is given up if it is not answered; set when it is first sent from the queue.
    pub(super) give_up: Option<Instant>,
    /// The leases that are requested right before it, so that the next waiter of this client has a place in the store's
    /// queue when the store executes the release.
    pub(super) next: Vec<Arc<Lease>>,
    /// The channel for the first answer, if a caller waits for it.
    pub(super) confirm: Option<oneshot::Sender<Result<Released, BackendError>>>,
}

impl PendingRelease {
    /// The release of a whole lease.
    pub(super) fn of(lease: &Lease, known: Known) -> Self {
        Self { known, ttl: lease.terms().ttl, ..Self::orphan(lease.lease_ref().clone()) }
    }

    /// The release of a grant to a lease that has ended: its request may have been executed after its release.
    pub(super) const fn orphan(lease: LeaseRef) -> Self {
        Self {
            number: 0,
            lease,
            keep: 0,
            repeated: false,
            known: Known::Possible,
            ttl: Duration::ZERO,
            give_up: None,
            next: Vec::new(),
            confirm: None,
        }
    }

    /// Tells the caller who waits for it, if one does, what the store has answered.
    pub(super) fn tell(&mut self, answer: Result<Released, BackendError>) {
        if let Some(confirm) = self.confirm.take() {
            // The receiver is gone if the `release` future was dropped.
            let _ = confirm.send(answer);
        }
    }
}

impl ReleaseQueue {
    /// Adds a release.
    pub(super) fn push(&self, pending: PendingRelease) {
        self.add(|queue| {
            let pending = queue.admit(pending);
            queue.pending.push_back(pending);
        });
    }

    /// Counts a release as in flight, which the caller sends.
    pub(super) fn admit(&self, pending: PendingRelease) -> PendingRelease {
        self.queue.lock().admit(pending)
    }

    /// Adds a release that is to be sent, and notifies the task that sends them.
    fn add(&self, add: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue.lock();
        add(&mut queue);
        let queued = Arc::clone(&queue.queued);
        drop(queue);
        queued.notify_one();
    }

    /// For the task that sends releases from now on: notified when something is queued.
    pub(super) fn listen(&self) -> Arc<Notify> {
        let queued = Arc::default();
        self.queue.lock().queued = Arc::clone(&queued);
        queued
    }

    /// Takes out the oldest release. If the result is dropped before it is [finished](Self::finish), the release is
    /// pending again.
    pub(super) fn pop(&self) -> Option<ScopeGuard<PendingRelease, impl FnOnce(PendingRelease) + Send>> {
        let pending = {
            let mut queue = self.queue.lock();
            let pending = queue.pending.pop_front()?;
            queue.sent += 1;
            pending
        };
        Some(self.until_finished(pending))
    }

    /// Takes out all releases, which are then in flight.
    pub(super) fn take_pending(&self) -> VecDeque<PendingRelease> {
        mem::take(&mut self.queue.lock().pending)
    }

    /// A release that is in flight. If the result is dropped before it is [finished](Self::finish), the release is
    /// pending again.
    pub(super) fn until_finished(
        &self,
        pending: PendingRelease,
    ) -> ScopeGuard<PendingRelease, impl FnOnce(PendingRelease) + Send> {
        guard(pending, |interrupted| self.add(|queue| queue.pending.push_front(interrupted)))
    }

    /// A release that was taken out is pending again, behind all others.
    pub(super) fn postpone(&self, pending: ScopeGuard<PendingRelease, impl FnOnce(PendingRelease)>) {
        let postponed = ScopeGuard::into_inner(pending);
        self.add(|queue| queue.pending.push_back(postponed));
    }

    /// A release that was taken out is no longer pending.
    pub(super) fn finish(&self, pending: ScopeGuard<PendingRelease, impl FnOnce(PendingRelease)>) {
        let PendingRelease { number, lease, .. } = ScopeGuard::into_inner(pending);
        let mut queue = self.queue.lock();
        queue.remove(lease.resource.key, number);
        queue.settling.retain(|other| *other != number);
        drop(queue);
        self.finished.notify_waiters();
    }

    /// A release was confirmed, and is repeated all the same.
    pub(super) fn settle(&self, pending: &PendingRelease) {
        let mut queue = self.queue.lock();
        if queue.remove(Arc::clone(&pending.lease.resource.key), pending.number) {
            queue.settling.push(pending.number);
        }
        drop(queue);
        self.finished.notify_waiters();
    }

    /// How many releases are queued or in flight.
    pub(super) fn unfinished(&self) -> usize {
        self.queue.lock().unfinished()
    }

    /// Whether a release waits to be sent.
    pub(super) fn is_any_waiting(&self) -> bool {
        !self.queue.lock().pending.is_empty()
    }

    /// The number of the release that is queued next.
    pub(super) fn next_number(&self) -> Number {
        self.queue.lock().next_number
    }

    /// How many releases were taken out to be sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.queue.lock().sent
    }

    /// Whether a release with a number below this one is queued or in flight.
    pub(super) fn is_any_late(&self, below: Number) -> bool {
        let queue = self.queue.lock();
        queue.unfinished.values().flatten().chain(&queue.settling).any(|number| *number < below)
    }

    /// Whether a release with a number below this one is queued although fewer than `max` are in flight.
    pub(super) fn is_any_unsent(&self, below: Number, max: usize) -> bool {
        let queue = self.queue.lock();
        queue.pending.iter().any(|pending| pending.number < below)
            && queue.unfinished() - queue.pending.len() < max
    }

    /// Waits until the releases of `key` that are queued or in flight now are done, so that a request that is sent then
    /// finds released what was dropped before. Releases that are queued later are not waited for.
    pub(super) async fn finished(&self, key: &str) {
        let later = self.queue.lock().next_number;
        let all_later = |numbers: &Numbers| numbers.iter().all(|number| *number >= later);
        self.until(|queue| queue.unfinished.get(key).is_none_or(all_later)).await;
    }

    /// Waits until no release is pending and `done` returns true.
    pub(super) async fn drained(&self, done: impl Fn() -> bool + Send + Sync) {
        self.until(|queue| queue.unfinished() == 0 && done()).await;
    }

    /// Makes [`drained`](Self::drained) evaluate its condition again.
    pub(super) fn recheck(&self) {
        self.finished.notify_waiters();
    }

    async fn until(&self, reached: impl Fn(&Queue) -> bool + Send + Sync) {
        loop {
            let finished = self.finished.notified();
            if reached(&self.queue.lock()) {
                return;
            }
            finished.await;
        }
    }
}

impl Queue {
    fn admit(&mut self, mut pending: PendingRelease) -> PendingRelease {
        pending.number = self.next_number;
        self.next_number += 1;
        self.unfinished.entry(Arc::clone(&pending.lease.resource.key)).or_default().push(pending.number);
        pending
    }

    /// Returns whether a request may have waited for it.
    fn remove(&mut self, key: Arc<str>, number: Number) -> bool {
        let Entry::Occupied(mut numbers) = self.unfinished.entry(key) else { return false };
        let were = numbers.get().len();
        numbers.get_mut().retain(|other| *other != number);
        let is_removed = numbers.get().len() < were;
        if numbers.get().is_empty() {
            numbers.remove();
        }
        is_removed
    }

    /// How many releases are queued or in flight.
    fn unfinished(&self) -> usize {
        self.unfinished.values().map(SmallVec::len).sum::<usize>() + self.settling.len()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;
    use uuid::Uuid;

    use super::*;
    use crate::backend::{Kind, LeaseId, Resource};

    fn orphan() -> PendingRelease {
        let id = LeaseId::next(Uuid::nil());
        PendingRelease::orphan(LeaseRef::new(id, Resource::new("a", Kind::Mutex)))
    }

    #[test]
    fn guards_wait_for_a_second_in_all_and_then_for_a_tenth_of_the_time() {
        let mut patience = Patience::new();
        assert_eq!(patience.left(), DROPS_WAIT);
        patience.spend(DROPS_WAIT / 4, false);
        assert!(patience.left() >= DROPS_WAIT * 3 / 4 && patience.left() < DROPS_WAIT);
        patience.spend(Duration::ZERO, true);
        assert!(patience.left() < DROPS_WAIT / 2);
        patience.since -= DROPS_WAIT * 5;
        assert!(patience.left() >= DROPS_WAIT / 2 && patience.left() < DROPS_WAIT);
        patience.since -= DROPS_WAIT * 100;
        assert_eq!(patience.left(), DROPS_WAIT);
    }

    #[tokio::test]
    async fn a_release_that_is_interrupted_is_pending_again() {
        let queue = ReleaseQueue::default();
        queue.push(orphan());
        drop(queue.pop());
        let mut finished = pin!(queue.finished("a"));
        assert!(poll!(&mut finished).is_pending());
        queue.finish(queue.pop().unwrap());
        assert!(poll!(&mut finished).is_ready() && queue.unfinished() == 0);
    }

    #[tokio::test]
    async fn a_release_is_unsent_unless_as_many_as_possible_are_in_flight() {
        let queue = ReleaseQueue::default();
        queue.push(orphan());
        queue.push(orphan());
        assert!(!queue.is_any_unsent(0, 1) && queue.is_any_unsent(1, 1));
        let in_flight = queue.pop().unwrap();
        assert!(!queue.is_any_unsent(1, 2), "the other one was queued later");
        assert!(!queue.is_any_unsent(2, 1) && queue.is_any_unsent(2, 2));
        assert!(!queue.is_any_late(0) && queue.is_any_late(1));
        queue.finish(in_flight);
        assert!(!queue.is_any_late(1) && queue.is_any_late(2));
        let other = queue.pop().unwrap();
        assert!(!queue.is_any_unsent(2, 9));
        queue.finish(other);
    }

    #[tokio::test]
    async fn what_waits_and_what_was_sent_is_counted() {
        let queue = ReleaseQueue::default();
        assert_eq!((queue.next_number(), queue.sent(), queue.is_any_waiting()), (0, 0, false));
        for _ in 0..3 {
            queue.push(orphan());
        }
        assert_eq!((queue.next_number(), queue.sent(), queue.is_any_waiting()), (3, 0, true));
        let first = queue.pop().unwrap();
        assert_eq!(queue.sent(), 1);
        let others = queue.take_pending();
        assert_eq!((others.len(), queue.is_any_waiting(), queue.unfinished()), (2, false, 3));
        for other in others {
            queue.finish(queue.until_finished(other));
        }
        drop(first);
        queue.finish(queue.pop().unwrap());
        assert_eq!((queue.sent(), queue.unfinished()), (2, 0));
    }

    #[tokio::test]
    async fn whoever_waits_for_all_releases_looks_again_when_something_else_has_changed() {
        let (queue, is_done) = (ReleaseQueue::default(), std::sync::atomic::AtomicBool::new(false));
        let mut drained = pin!(queue.drained(|| is_done.load(std::sync::atomic::Ordering::Relaxed)));
        assert!(poll!(&mut drained).is_pending());
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(poll!(&mut drained).is_pending(), "nobody has told it");
        queue.recheck();
        assert!(poll!(&mut drained).is_ready());
    }

    #[tokio::test]
    async fn a_release_that_is_postponed_is_pending_behind_the_others() {
        let queue = ReleaseQueue::default();
        queue.push(orphan());
        queue.push(orphan());
        let mut first = queue.pop().unwrap();
        first.give_up = Some(Instant::now());
        queue.postpone(first);
        for number in [1, 0] {
            let next = queue.pop().unwrap();
            assert_eq!((next.number, next.give_up.is_some()), (number, number == 0));
            queue.finish(next);
        }
        assert!(queue.unfinished() == 0);
    }

    #[tokio::test]
    async fn a_release_that_is_confirmed_and_repeated_delays_no_request_but_a_shutdown() {
        let queue = ReleaseQueue::default();
        queue.push(orphan());
        let (mut finished, mut drained) = (pin!(queue.finished("a")), pin!(queue.drained(|| true)));
        assert!(poll!(&mut finished).is_pending() && poll!(&mut drained).is_pending());
        let mut release = queue.pop().unwrap();
        for _ in 0..2 {
            queue.settle(&release);
            assert!(poll!(&mut finished).is_ready() && poll!(&mut drained).is_pending());
            assert!(queue.unfinished() == 1 && queue.is_any_late(1));
            finished.set(queue.finished("a"));
            // Its runtime ends, and the next one takes it over.
            drop(release);
            release = queue.pop().unwrap();
        }
        queue.finish(release);
        assert!(poll!(&mut drained).is_ready() && queue.unfinished() == 0);
    }

    #[tokio::test]
    async fn later_releases_are_not_waited_for() {
        let queue = ReleaseQueue::default();
        queue.finished("a").await;
        queue.push(orphan());
        let mut finished = pin!(queue.finished("a"));
        assert!(poll!(&mut finished).is_pending());
        queue.push(orphan());
        queue.finish(queue.pop().unwrap());
        assert!(poll!(&mut finished).is_ready());
        assert!(poll!(pin!(queue.drained(|| true))).is_pending());
    }

    #[tokio::test]
    async fn those_queued_before_are_waited_for_whichever_is_done_first() {
        let queue = ReleaseQueue::default();
        queue.push(orphan());
        let first = queue.pop().unwrap();
        let mut finished = pin!(queue.finished("a"));
        assert!(poll!(&mut finished).is_pending());
        queue.push(orphan());
        queue.finish(queue.pop().unwrap());
        assert!(poll!(&mut finished).is_pending(), "the later one was done first");
        queue.finish(first);
        // Another one is queued before the first is looked at.
        queue.push(orphan());
        assert!(poll!(&mut finished).is_ready());
    }
}
