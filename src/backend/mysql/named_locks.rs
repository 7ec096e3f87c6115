//! The named locks of a client's own leases: which are to be taken, which are held, which are to be released.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::backend::LeaseId;

/// The named lock of a lease without known waiters is taken only after this time: most leases are released before.
const TAKE_AFTER: Duration = Duration::from_millis(5);
/// When to retry taking a named lock that a waiting client has just acquired; that client will find that the lease
/// still holds, and release it.
const RETRY: Duration = Duration::from_millis(2);
/// The maximum number of named locks held. Clients that wait behind other leases poll.
const MAX_HELD: usize = 1024;
/// How many are taken or released with one statement.
const TOGETHER: usize = 64;

/// Before the lease in the name of its lock. MySQL allows 64 characters in all.
const PREFIX: &str = "lh:";

#[derive(Debug)]
pub(super) struct NamedLocks {
    is_on: bool,
    states: HashMap<LeaseId, State>,
    take: VecDeque<LeaseId>,
    /// In the order of their times.
    take_later: VecDeque<(Instant, LeaseId)>,
    release: VecDeque<LeaseId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be taken later,
    Later,
    /// or at once.
    Wanted,
    Taking,
    Held,
}

impl NamedLocks {
    pub(super) fn new(is_on: bool) -> Self {
        let (states, take, take_later, release) = Default::default();
        Self { is_on, states, take, take_later, release }
    }

    /// A lease holds or waits. Whether there may be something to do.
    pub(super) fn want(&mut self, lease: LeaseId, is_urgent: bool, now: Instant) -> bool {
        match self.states.get(&lease) {
            _ if !self.is_on => {
                // It is taken when they are used again.
                if self.states.len() < MAX_HELD {
                    self.states.insert(lease, State::Wanted);
                }
                return false;
            }
            None if self.states.len() >= MAX_HELD => return false,
            None if is_urgent => {}
            None => {
                self.states.insert(lease, State::Later);
                self.take_later.push_back((now + TAKE_AFTER, lease));
                return true;
            }
            Some(State::Later) if is_urgent => {}
            Some(_) => return false,
        }
        self.states.insert(lease, State::Wanted);
        self.take.push_back(lease);
        true
    }

    /// A lease does not hold and does not wait any more. Whether there may be something to do.
    pub(super) fn give_up(&mut self, lease: LeaseId) -> bool {
        let is_held = self.states.remove(&lease) == Some(State::Held);
        if is_held {
            self.release.push_back(lease);
        }
        is_held
    }

    /// Handles an attempt to take a lock. Returns whether there may be something to do.
    pub(super) fn took(&mut self, lease: LeaseId, is_taken: bool) -> bool {
        let Some(state) = self.states.get_mut(&lease) else {
            // Given up meanwhile.
            if is_taken {
                self.release.push_back(lease);
            }
            return is_taken;
        };
        if is_taken {
            *state = State::Held;
            return false;
        }
        *state = State::Later;
        let at = Instant::now() + RETRY;
        let place = self.take_later.partition_point(|(other, _)| *other <= at);
        self.take_later.insert(place, (at, lease));
        true
    }

    /// None is held any more. From now on they are used, or not.
    pub(super) fn restart(&mut self, is_on: bool) {
        self.is_on = is_on;
        self.release.clear();
        self.take_later.clear();
        self.take.clear();
        if is_on {
            self.take.extend(self.states.keys());
        }
        self.states.values_mut().for_each(|state| *state = State::Wanted);
    }

    pub(super) const fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.take_later.front().map(|(at, _)| *at)
    }

    pub(super) fn releases(&mut self) -> Vec<LeaseId> {
        self.release.drain(..self.release.len().min(TOGETHER)).collect()
    }

    pub(super) fn takes(&mut self, now: Instant) -> Vec<LeaseId> {
        while let Some((_, lease)) = self.take_later.front().copied().filter(|(at, _)| *at <= now) {
            self.take_later.pop_front();
            if self.states.get(&lease) == Some(&State::Later) {
                self.states.insert(lease, State::Wanted);
                self.take.push_back(lease);
            }
        }
        let mut taken = Vec::new();
        while taken.len() < TOGETHER
            && let Some(lease) = self.take.pop_front()
        {
            if let Some(state) = self.states.get_mut(&lease).filter(|state| **state == State::Wanted) {
                *state = State::Taking;
                taken.push(lease);
            }
        }
        taken
    }
}

/// Takes these locks, unless another client has them: 1 if so, else 0.
pub(super) fn take(leases: &[LeaseId]) -> String {
    let each: Vec<_> = leases.iter().map(|lease| format!("GET_LOCK('{PREFIX}{lease}', 0)")).collect();
    format!("SELECT {}", each.join(", "))
}

pub(super) fn release(leases: &[LeaseId]) -> String {
    let each: Vec<_> = leases.iter().map(|lease| format!("RELEASE_LOCK('{PREFIX}{lease}')")).collect();
    format!("SELECT {}", each.join(", "))
}

/// Waits until this lock is free, for at most this many seconds, and does not keep it: 1 if it was acquired, 0 if not,
/// NULL if it could not be waited for.
pub(super) fn wait(lease: LeaseId, seconds: u64) -> String {
    let name = format!("{PREFIX}{lease}");
    format!("SELECT CASE GET_LOCK('{name}', {seconds}) WHEN 1 THEN RELEASE_LOCK('{name}') WHEN 0 THEN 0 END")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn new_id() -> LeaseId {
        LeaseId::next(Uuid::nil())
    }

    #[test]
    fn names_fit_the_limit_of_mysql() {
        assert!(PREFIX.len() + LeaseId::MAX_LENGTH <= 64);
    }

    #[test]
    fn a_short_lease_takes_no_named_lock_and_a_contended_one_does_at_once() {
        let (now, mut locks) = (Instant::now(), NamedLocks::new(true));
        let (brief, wanted) = (new_id(), new_id());
        assert!(locks.want(brief, false, now));
        assert!(locks.want(wanted, true, now));
        assert_eq!(locks.takes(now), [wanted]);
        assert!(!locks.give_up(brief));
        assert_eq!(locks.takes(now + TAKE_AFTER), []);
        assert!(!locks.took(wanted, true));
        assert!(locks.give_up(wanted));
        assert_eq!(locks.releases(), [wanted]);
    }

    #[test]
    fn a_named_lock_held_elsewhere_is_retried_and_one_taken_too_late_is_released() {
        let (now, mut locks) = (Instant::now(), NamedLocks::new(true));
        let lease = new_id();
        locks.want(lease, true, now);
        assert_eq!(locks.takes(now), [lease]);
        assert!(locks.took(lease, false));
        assert_eq!(locks.takes(now), []);
        let later = locks.next_due().unwrap();
        assert_eq!(locks.takes(later), [lease]);
        assert!(!locks.give_up(lease), "it is not held yet");
        assert!(locks.took(lease, true));
        assert_eq!(locks.releases(), [lease]);
    }

    #[test]
    fn locks_that_ended_with_their_session_are_taken_again() {
        let (now, mut locks) = (Instant::now(), NamedLocks::new(true));
        let leases = [new_id(), new_id(), new_id()];
        assert!(leases.iter().all(|lease| locks.want(*lease, true, now)));
        assert_eq!(locks.takes(now), leases);
        locks.took(leases[0], true);
        locks.took(leases[1], true);
        locks.give_up(leases[0]);
        locks.restart(true);
        assert_eq!(locks.releases(), []);
        let mut taken = locks.takes(now);
        taken.sort();
        assert_eq!(taken, leases[1..]);
        locks.restart(false);
        assert!(!locks.want(leases[0], true, now));
        assert_eq!(locks.takes(now), []);
    }
}
