//! Which tasks of a keeper run where its client lives. They are started again elsewhere when the client moves, and those
//! that were started before are of no concern then, whatever becomes of them.

use std::sync::atomic::Ordering;

use crate::runtime::Cancel;
use crate::sync::{AtomicBool, Mutex};

/// The tasks of a keeper, as far as it knows.
#[derive(Debug, Default)]
pub(super) struct Running {
    tasks: Mutex<Tasks>,
    /// Whether they have ended by themselves.
    are_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Tasks {
    /// How often they were started, or given up.
    number: u64,
    current: Option<Cancel>,
}

impl Running {
    /// Drops the tasks, of which those that are started next are independent. Returns their number.
    pub(super) fn give_up(&self) -> u64 {
        let (number, given_up) = {
            let mut tasks = self.tasks.lock();
            tasks.number += 1;
            (tasks.number, tasks.current.take())
        };
        // When the mutex is free again.
        drop(given_up);
        number
    }

    /// Tasks are about to be started.
    pub(super) fn begin(&self) {
        self.are_over.store(false, Ordering::Release);
    }

    /// The tasks with this number were started, unless they have been given up since: then they are dropped.
    pub(super) fn started(&self, number: u64, started: Cancel) {
        let mut tasks = self.tasks.lock();
        if tasks.number == number {
            tasks.current = Some(started);
        }
    }

    /// They have ended because nothing was left to be done.
    pub(super) fn have_ended(&self) {
        self.are_over.store(true, Ordering::Release);
    }

    /// The tasks with this number were dropped by their runtime, which perhaps ends, or one of them has panicked.
    /// `false` if they had been given up before, so that nobody misses them.
    pub(super) fn were_dropped(&self, number: u64) -> bool {
        let mut tasks = self.tasks.lock();
        if tasks.number != number {
            return false;
        }
        tasks.number += 1;
        self.are_over.store(true, Ordering::Release);
        true
    }

    /// Whether they have ended by themselves since this was last asked.
    pub(super) fn take_over(&self) -> bool {
        self.are_over.swap(false, Ordering::AcqRel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_were_given_up_are_of_no_concern() {
        let running = Running::default();
        let first = running.give_up();
        let second = running.give_up();
        assert!(!running.were_dropped(first));
        assert!(!running.take_over(), "the second ones run");
        assert!(running.were_dropped(second));
        assert!(running.take_over() && !running.take_over());
        assert!(!running.were_dropped(second), "they are missed once");
    }

    #[test]
    fn tasks_that_have_ended_are_taken_over_once_unless_others_have_begun() {
        let running = Running::default();
        running.have_ended();
        assert!(running.take_over() && !running.take_over());
        running.have_ended();
        running.begin();
        assert!(!running.take_over());
        let first = running.give_up();
        assert!(running.were_dropped(first));
        assert!(running.give_up() > first, "no task has the number of another");
    }
}
