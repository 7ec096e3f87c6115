//! The queue of a client's tasks that wait for leases on one key: first in, first out. No I/O, no clock.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::backend::LeaseId;
use crate::hash::HashMap;
use crate::sync::Mutex;

/// The number of a waiter, in order of arrival. It is never used again, not even after its queue was removed: a waiter
/// that has been sent a message may still leave with its number.
pub(crate) type Number = u64;

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The waiters and leases of one key on the same terms: these leases are passed on among these waiters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    key: Arc<str>,
    terms: u64,
}

impl Group {
    pub(crate) const fn new(key: Arc<str>, terms: u64) -> Self {
        Self { key, terms }
    }
}

/// The queue of one group. `W` is the channel to a waiter.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    /// In the order of their numbers.
    waiting: VecDeque<(Number, W)>,
    /// The leases that waiters request themselves, in the order of their requests.
    in_place: Leases,
    /// The leases that the keeper requests, likewise.
    asked: Leases,
    /// The leases that are held, or granted and not taken up yet.
    held: Leases,
    /// The limit of a semaphore.
    limit: Option<u32>,
}

type Leases = SmallVec<[LeaseId; 1]>;

impl<W> Queue<W> {
    fn new(limit: Option<u32>) -> Self {
        let (in_place, asked, held) = Default::default();
        Self { waiting: VecDeque::new(), in_place, asked, held, limit }
    }

    /// Adds a waiter and returns its number. `None` if it states a limit other than the queue's; then it is not added.
    pub(crate) fn join(&mut self, limit: Option<u32>, waiter: W) -> Option<Number> {
        if limit != self.limit {
            return None;
        }
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        self.waiting.push_back((number, waiter));
        Some(number)
    }

    /// Removes a waiter. `false` if it is no longer in the queue, because it has been sent a message.
    pub(crate) fn leave(&mut self, number: Number) -> bool {
        let place = self.waiting.binary_search_by_key(&number, |(number, _)| *number);
        place.is_ok_and(|place| self.waiting.remove(place).is_some())
    }

    /// Removes and returns a waiter if it is the first in the queue.
    pub(crate) fn leave_first(&mut self, number: Number) -> Option<W> {
        let is_first = self.waiting.front().is_some_and(|(first, _)| *first == number);
        if is_first { self.next() } else { None }
    }

    /// How many more leases should be requested.
    pub(crate) fn wanted(&self) -> usize {
        self.waiting.len().min(self.room()).saturating_sub(self.requested())
    }

    fn requested(&self) -> usize {
        self.in_place.len() + self.asked.len()
    }

    /// How many leases may be requested besides those that are held. A semaphore may have one more lease than permits,
    /// so that a permit that becomes free at the store is used, and an increased limit is noticed.
    fn room(&self) -> usize {
        let most = self.limit.map_or(1, |permits| permits.saturating_add(1));
        (most as usize).saturating_sub(self.held.len())
    }

    /// Adds a lease that the keeper requests.
    pub(crate) fn ask(&mut self, lease: LeaseId) {
        self.asked.push(lease);
    }

    /// Adds a lease that a waiter requests itself.
    pub(crate) fn ask_in_place(&mut self, lease: LeaseId) {
        self.in_place.push(lease);
    }

    /// The leases that waiters request themselves. From here on they count as requested by the keeper.
    pub(crate) fn take_in_place(&mut self) -> Leases {
        let in_place = mem::take(&mut self.in_place);
        self.asked.extend_from_slice(&in_place);
        in_place
    }

    /// Whether more leases are requested than there are waiters.
    pub(crate) fn has_surplus(&self) -> bool {
        self.requested() > self.waiting.len()
    }

    /// Removes a lease that was requested lately, if more are requested than there are waiters.
    pub(crate) fn surplus(&mut self) -> Option<LeaseId> {
        if !self.has_surplus() {
            return None;
        }
        self.in_place.pop().or_else(|| self.asked.pop())
    }

    /// Marks a requested lease as held. `false` if it had been given up before.
    pub(crate) fn hold(&mut self, lease: LeaseId) -> bool {
        let is_requested = remove(&mut self.in_place, lease) || remove(&mut self.asked, lease);
        if is_requested {
            self.held.push(lease);
        }
        is_requested
    }

    /// Removes a lease that is no longer requested or held.
    pub(crate) fn end(&mut self, lease: LeaseId) {
        let lists = [&mut self.held, &mut self.in_place, &mut self.asked];
        // In one of them at most.
        let _ = lists.into_iter().any(|leases| remove(leases, lease));
    }

    /// Removes and returns the waiter that has waited longest.
    pub(crate) fn next(&mut self) -> Option<W> {
        self.waiting.pop_front().map(|(_, waiter)| waiter)
    }

    /// The same, if the lease is passed on by `pass_on`.
    pub(crate) fn next_if<T>(&mut self, pass_on: impl FnOnce() -> Option<T>) -> Option<(W, T)> {
        if self.waiting.is_empty() {
            return None;
        }
        let passed = pass_on()?;
        Some((self.next()?, passed))
    }

    /// Removes and returns all waiters.
    pub(crate) fn take_waiters(&mut self) -> Vec<W> {
        mem::take(&mut self.waiting).into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// Takes over the limit that the store has reported.
    pub(crate) const fn follow(&mut self, limit: u32) {
        self.limit = Some(limit);
    }

    /// The leases that are requested or held.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        [&self.in_place, &self.asked, &self.held].into_iter().flatten().copied().collect()
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.requested() == 0 && self.held.is_empty()
    }
}

/// Removes a lease from a list. `false` if it is not in it.
fn remove(leases: &mut Leases, lease: LeaseId) -> bool {
    let place = leases.iter().position(|known| *known == lease);
    place.is_some_and(|place| {
        leases.remove(place);
        true
    })
}

/// The queues of a client. Every group with a lease that is requested or held has one, even if nobody waits.
pub(crate) type Queues<W> = Mutex<HashMap<Group, Queue<W>>>;

/// Runs `change` on the queue of a group. The queue is created if there is none, and removed if it is empty afterwards.
pub(crate) fn with_queue<W, T>(
    queues: &Queues<W>,
    group: &Group,
    limit: Option<u32>,
    change: impl FnOnce(&mut Queue<W>) -> T,
) -> T {
    let mut queues = queues.lock();
    let mut queue = match queues.entry(group.clone()) {
        Entry::Occupied(queue) => queue,
        Entry::Vacant(place) => place.insert_entry(Queue::new(limit)),
    };
    let outcome = change(queue.get_mut());
    if queue.get().is_over() {
        queue.remove();
    }
    outcome
}

/// Removes and returns all waiters of all queues.
pub(crate) fn take_all_waiters<W>(queues: &Queues<W>) -> Vec<W> {
    queues.lock().values_mut().flat_map(Queue::take_waiters).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn new_id() -> LeaseId {
        LeaseId::next(Uuid::nil())
    }

    fn lock() -> Queue<&'static str> {
        Queue::new(None)
    }

    fn waits(queue: &mut Queue<&'static str>, waiter: &'static str) -> Number {
        queue.join(queue.limit, waiter).expect("the limit in force")
    }

    /// A waiter arrives, requests `lease`, and gets it.
    fn holds(queue: &mut Queue<&'static str>, lease: LeaseId) {
        let number = waits(queue, "holder");
        assert_eq!(queue.wanted(), 1);
        queue.ask_in_place(lease);
        assert!(queue.hold(lease) && queue.leave_first(number).is_some());
    }

    #[test]
    fn a_waiter_that_leaves_late_removes_no_waiter_of_the_next_queue() {
        let queues = Queues::default();
        let group = Group::new("lock:a".into(), 1);
        let with_queue = |change: fn(&mut Queue<_>) -> Number| with_queue(&queues, &group, None, change);
        let first = with_queue(|queue| {
            let number = waits(queue, "a");
            assert_eq!(queue.next(), Some("a"), "it was sent a message");
            number
        });
        assert!(queues.lock().is_empty());
        let second = with_queue(|queue| waits(queue, "b"));
        let mut queues = queues.lock();
        let queue = queues.get_mut(&group).expect("somebody waits");
        assert!(!queue.leave(first) && queue.leave_first(first).is_none());
        assert!(queue.leave(second));
    }

    #[test]
    fn the_first_waiter_requests_a_lease_and_later_ones_queue_in_order() {
        let mut queue = lock();
        holds(&mut queue, new_id());
        for waiter in ["a", "b", "c"] {
            waits(&mut queue, waiter);
        }
        assert_eq!(queue.wanted(), 0, "one lease at a time");
        assert_eq!(
            [queue.next(), queue.next(), queue.next(), queue.next()],
            [Some("a"), Some("b"), Some("c"), None]
        );
    }

    #[test]
    fn when_a_lease_is_returned_another_is_wanted_for_the_waiters() {
        let mut queue = lock();
        let first = new_id();
        holds(&mut queue, first);
        waits(&mut queue, "a");
        waits(&mut queue, "b");
        queue.end(first);
        assert_eq!(queue.wanted(), 1);
        let lease = new_id();
        queue.ask(lease);
        assert_eq!(queue.wanted(), 0);
        assert!(queue.hold(lease));
        assert_eq!(queue.next(), Some("a"));
        assert!(!queue.is_over());
    }

    #[test]
    fn a_lease_is_given_up_only_with_the_last_waiter() {
        let mut queue = lock();
        let first = waits(&mut queue, "first");
        let lease = new_id();
        queue.ask_in_place(lease);
        let second = waits(&mut queue, "second");
        assert!(queue.leave(first));
        assert_eq!(queue.surplus(), None);
        assert!(queue.leave(second) && !queue.leave(second));
        assert_eq!(queue.surplus(), Some(lease));
        assert!(!queue.hold(lease) && queue.is_over());
    }

    #[test]
    fn a_waiter_that_sends_its_own_request_is_served_before_later_ones() {
        let mut queue = Queue::new(Some(1));
        holds(&mut queue, new_id());
        let first = waits(&mut queue, "first");
        queue.ask_in_place(new_id());
        let second = waits(&mut queue, "second");
        assert!(queue.leave_first(second).is_none());
        assert_eq!(queue.next(), Some("first"));
        assert!(queue.leave_first(first).is_none(), "it was notified");
        assert!(queue.leave_first(second).is_some());
    }

    #[test]
    fn the_keeper_adopts_a_directly_sent_request_once() {
        let mut queue = lock();
        waits(&mut queue, "first");
        let lease = new_id();
        queue.ask_in_place(lease);
        assert_eq!((queue.take_in_place().to_vec(), queue.take_in_place().to_vec()), (vec![lease], vec![]));
        assert!(queue.hold(lease) && queue.take_in_place().is_empty());
    }

    #[test]
    fn for_permits_one_more_lease_is_requested_than_the_limit() {
        let mut queue = Queue::new(Some(2));
        let held = [new_id(), new_id()];
        for lease in held {
            holds(&mut queue, lease);
        }
        waits(&mut queue, "a");
        assert_eq!(queue.wanted(), 1, "its place is in the store's queue");
        queue.ask_in_place(new_id());
        waits(&mut queue, "b");
        assert_eq!(queue.wanted(), 0);
        queue.follow(4);
        assert_eq!(queue.wanted(), 1, "the limit grew, and there are two who wait");
        queue.follow(1);
        assert_eq!(queue.wanted(), 0);
        for lease in held {
            queue.end(lease);
        }
        assert_eq!(queue.wanted(), 1);
    }

    #[test]
    fn a_waiter_with_another_limit_does_not_join() {
        let mut queue = Queue::<()>::new(Some(2));
        assert_eq!(queue.join(Some(3), ()), None);
        assert!(queue.is_over());
    }

    #[test]
    fn a_queue_is_forgotten_when_it_is_over() {
        let queues = Queues::default();
        let group = Group::new("key".into(), 1);
        let lease = new_id();
        with_queue(&queues, &group, None, |queue| holds(queue, lease));
        assert_eq!(queues.lock().len(), 1);
        with_queue(&queues, &group, None, |queue| queue.end(lease));
        assert!(queues.lock().is_empty());
    }
}
