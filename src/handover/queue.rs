//! Who of a client waits for a key: first in, first out, in front of its leases. Pure.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::mem;
use std::sync::Arc;

use crate::backend::LeaseId;
use crate::sync::{Mutex, MutexGuard};

/// The number of an arrival in a queue.
pub(crate) type Number = u64;

/// Whose leases are passed on to each other: those of one key, on the same terms.
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

/// The queue of one group. `W` is where a waiter hears of its lease.
#[derive(Debug)]
pub(crate) struct Queue<W> {
    waiting: BTreeMap<Number, W>,
    arrivals: Number,
    /// How many ask the store themselves at the moment, and hear of nothing else meanwhile.
    asking: u32,
    /// The leases that are asked for, in order, and those that are held.
    leases: Vec<(LeaseId, bool)>,
    held: u32,
    /// Leases that are held for those who ask the store themselves, and have not looked yet.
    aside: Vec<LeaseId>,
    /// How many permits there are, of a semaphore.
    limit: Option<u32>,
}

/// How one who arrives goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// It asks the store itself, under this number.
    Asks(Number),
    /// It waits for what others have asked for, under this number.
    Waits(Number),
    /// It states another limit than those who are there, and is none of them.
    Differs,
}

impl<W> Queue<W> {
    fn new(limit: Option<u32>) -> Self {
        Self {
            waiting: BTreeMap::new(),
            arrivals: 0,
            asking: 0,
            leases: Vec::new(),
            held: 0,
            aside: Vec::new(),
            limit,
        }
    }

    /// One arrives. Whoever is to wait says next where it can be told.
    pub(crate) fn join(&mut self, limit: Option<u32>) -> Joined {
        if limit != self.limit {
            return Joined::Differs;
        }
        let number = self.arrivals;
        self.arrivals += 1;
        self.asking += 1;
        if self.wanted() > 0 {
            return Joined::Asks(number);
        }
        self.asking -= 1;
        Joined::Waits(number)
    }

    /// A waiter takes its place, by its number.
    pub(crate) fn wait(&mut self, number: Number, waiter: W) {
        self.waiting.insert(number, waiter);
    }

    /// One that has asked the store itself asks it no longer: it waits, holds, or has given up.
    pub(crate) const fn asked_itself(&mut self) {
        self.asking -= 1;
    }

    /// A waiter gives up. `false` if it has been told something meanwhile.
    pub(crate) fn leave(&mut self, number: Number) -> bool {
        self.waiting.remove(&number).is_some()
    }

    /// How many more leases should be asked for.
    pub(crate) fn wanted(&self) -> usize {
        self.waiters().min(self.room()).saturating_sub(self.asked())
    }

    fn waiters(&self) -> usize {
        self.waiting.len() + self.asking as usize
    }

    fn asked(&self) -> usize {
        self.leases.len() - self.held as usize
    }

    /// How many leases may be asked for besides those that are held: one more than there are permits, so that a permit that
    /// becomes free at the store, and a limit that grows, is noticed.
    fn room(&self) -> usize {
        let most = self.limit.map_or(1, |permits| permits.saturating_add(1));
        most.saturating_sub(self.held) as usize
    }

    /// A lease is being asked for.
    pub(crate) fn ask(&mut self, lease: LeaseId) {
        self.leases.push((lease, false));
    }

    /// A lease that is asked for and that nobody waits for any more: the last one.
    pub(crate) fn surplus(&mut self) -> Option<LeaseId> {
        if self.asked() <= self.waiters() {
            return None;
        }
        let place = self.leases.iter().rposition(|(_, held)| !held)?;
        Some(self.leases.remove(place).0)
    }

    /// A lease that was asked for is held. `false` if it was given up before.
    pub(crate) fn hold(&mut self, lease: LeaseId) -> bool {
        let asked = self.leases.iter_mut().find(|(asked, held)| *asked == lease && !held);
        let known = asked.map(|(_, held)| *held = true).is_some();
        self.held += u32::from(known);
        known
    }

    /// A lease is neither asked for nor held any more.
    pub(crate) fn end(&mut self, lease: LeaseId) {
        if let Some(place) = self.leases.iter().position(|(known, _)| *known == lease) {
            let (_, held) = self.leases.remove(place);
            self.held -= u32::from(held);
        }
    }

    /// Whoever waits longest.
    pub(crate) fn next(&mut self) -> Option<W> {
        self.waiting.pop_first().map(|(_, waiter)| waiter)
    }

    /// Whether anybody waits to be told.
    pub(crate) fn somebody_waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether anybody asks the store itself at the moment.
    pub(crate) const fn is_asked_in_place(&self) -> bool {
        self.asking > 0
    }

    /// Nobody waits to be told of this lease, but somebody may find it.
    pub(crate) fn set_aside(&mut self, lease: LeaseId) {
        self.aside.push(lease);
    }

    /// A lease that was set aside.
    pub(crate) fn take_aside(&mut self) -> Option<LeaseId> {
        self.aside.pop()
    }

    /// All who wait: there is nothing for them.
    pub(crate) fn dismiss(&mut self) -> Vec<W> {
        mem::take(&mut self.waiting).into_values().collect()
    }

    /// The store says that the limit is this.
    pub(crate) const fn follow(&mut self, limit: u32) {
        self.limit = Some(limit);
    }

    /// The leases that are asked for or held.
    pub(crate) fn leases(&self) -> Vec<LeaseId> {
        self.leases.iter().map(|(lease, _)| *lease).collect()
    }

    fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.asking == 0 && self.leases.is_empty()
    }
}

/// The queues of a client. A lock that is held or asked for has one, also while nobody else of the client wants it.
pub(crate) struct Queues<W>(Mutex<HashMap<Group, Queue<W>>>);

impl<W> Queues<W> {
    /// Looks after the queue of a group, which is made for this if there is none, and forgotten when it is over.
    pub(crate) fn with<T>(
        &self,
        group: &Group,
        limit: Option<u32>,
        change: impl FnOnce(&mut Queue<W>) -> T,
    ) -> T {
        let mut queues: MutexGuard<'_, HashMap<Group, Queue<W>>> = self.0.lock();
        let queue = match queues.get_mut(group) {
            Some(queue) => queue,
            None => queues.entry(group.clone()).or_insert_with(|| Queue::new(limit)),
        };
        let outcome = change(queue);
        if queue.is_over() {
            queues.remove(group);
        }
        outcome
    }

    /// Dismisses all who wait, in all queues.
    pub(crate) fn dismiss_all(&self) -> Vec<W> {
        self.0.lock().values_mut().flat_map(Queue::dismiss).collect()
    }
}

impl<W> Default for Queues<W> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<W> fmt::Debug for Queues<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::LeaseIds;

    fn lock() -> Queue<&'static str> {
        Queue::new(None)
    }

    fn waits(queue: &mut Queue<&'static str>, waiter: &'static str) -> Number {
        match queue.join(queue.limit) {
            Joined::Waits(number) => {
                queue.wait(number, waiter);
                number
            }
            other => panic!("{other:?}"),
        }
    }

    /// The first to come asks for `lease`, and gets it.
    fn holds(queue: &mut Queue<&'static str>, lease: LeaseId) {
        assert!(matches!(queue.join(queue.limit), Joined::Asks(_)));
        queue.ask(lease);
        assert!(queue.hold(lease));
        queue.asked_itself();
    }

    #[test]
    fn the_first_asks_the_store_and_those_behind_it_wait_in_order() {
        let (mut queue, ids) = (lock(), LeaseIds::new());
        holds(&mut queue, ids.next());
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
    fn when_a_lease_goes_back_another_is_wanted_for_those_who_wait() {
        let (mut queue, ids) = (lock(), LeaseIds::new());
        let first = ids.next();
        holds(&mut queue, first);
        waits(&mut queue, "a");
        waits(&mut queue, "b");
        queue.end(first);
        assert_eq!(queue.wanted(), 1);
        let lease = ids.next();
        queue.ask(lease);
        assert_eq!(queue.wanted(), 0);
        assert!(queue.hold(lease));
        assert_eq!(queue.next(), Some("a"));
        assert!(!queue.is_over());
    }

    #[test]
    fn one_who_gives_up_leaves_the_lease_to_the_next_and_the_last_one_to_nobody() {
        let (mut queue, ids) = (lock(), LeaseIds::new());
        let Joined::Asks(first) = queue.join(None) else { panic!("nobody is before it") };
        let lease = ids.next();
        queue.ask(lease);
        // It is told that it has a place in the store's queue, and waits.
        queue.asked_itself();
        queue.wait(first, "first");
        let second = waits(&mut queue, "second");
        assert!(queue.leave(first));
        assert_eq!(queue.surplus(), None);
        assert!(queue.leave(second) && !queue.leave(second));
        assert_eq!(queue.surplus(), Some(lease));
        assert!(!queue.hold(lease) && queue.is_over());
    }

    #[test]
    fn whoever_asked_first_is_served_first_also_if_the_store_let_it_wait() {
        let (mut queue, ids) = (lock(), LeaseIds::new());
        let Joined::Asks(first) = queue.join(None) else { panic!("nobody is before it") };
        queue.ask(ids.next());
        waits(&mut queue, "second");
        queue.asked_itself();
        queue.wait(first, "first");
        assert_eq!(queue.next(), Some("first"));
    }

    #[test]
    fn for_permits_one_lease_more_is_asked_for_than_there_are() {
        let (mut queue, ids) = (Queue::new(Some(2)), LeaseIds::new());
        let held = [ids.next(), ids.next()];
        for lease in held {
            holds(&mut queue, lease);
        }
        assert!(matches!(queue.join(Some(2)), Joined::Asks(_)), "its place is in the store's queue");
        let third = ids.next();
        queue.ask(third);
        queue.asked_itself();
        queue.wait(2, "a");
        waits(&mut queue, "b");
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
    fn whoever_states_another_limit_does_not_join() {
        let mut queue = Queue::<()>::new(Some(2));
        assert_eq!(queue.join(Some(3)), Joined::Differs);
        assert!(queue.is_over());
    }

    #[test]
    fn a_queue_is_forgotten_when_it_is_over() {
        let (queues, ids) = (Queues::<()>::default(), LeaseIds::new());
        let group = Group::new("key".into(), 1);
        let lease = ids.next();
        queues.with(&group, None, |queue| holds_for(queue, lease));
        assert_eq!(queues.0.lock().len(), 1);
        queues.with(&group, None, |queue| queue.end(lease));
        assert!(queues.0.lock().is_empty());
    }

    fn holds_for(queue: &mut Queue<()>, lease: LeaseId) {
        assert_eq!(queue.join(None), Joined::Asks(0));
        queue.ask(lease);
        assert!(queue.hold(lease));
        queue.asked_itself();
    }
}
