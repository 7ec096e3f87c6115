//! The process in which a client was made. A process that is forked from it has a copy of the client's memory and of
//! its sockets, but none of its threads: whatever the copy sent would be read as the parent's, and whatever it released
//! would be the parent's lease.

use std::mem;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often the system is asked which process this is where that would cost too much.
const CHECK_INTERVAL_MICROS: u64 = 1000;
/// In how many processes, each forked from the one before, a [`PerProcess`] has a lock of its own.
const GENERATIONS: usize = 16;

/// The process in which something was made.
#[derive(Debug)]
pub(crate) struct Origin {
    process: u32,
    made: Instant,
    /// When the system was last asked, in microseconds since then.
    checked: AtomicU64,
}

impl Default for Origin {
    fn default() -> Self {
        Self { process: process::id(), made: Instant::now(), checked: AtomicU64::new(0) }
    }
}

impl Origin {
    /// Whether this is another process. Asking the system costs some 0.1 us.
    pub(crate) fn is_elsewhere(&self) -> bool {
        process::id() != self.process
    }

    /// The same, as it was less than a millisecond before `now`: usually, the system is not asked.
    pub(crate) fn was_elsewhere(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.made).as_micros();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        if since < self.checked.load(Ordering::Relaxed).saturating_add(CHECK_INTERVAL_MICROS) {
            return false;
        }
        let is_elsewhere = self.is_elsewhere();
        if !is_elsewhere {
            self.checked.store(since, Ordering::Relaxed);
        }
        is_elsewhere
    }

    /// The process in which it was made, and this one, if they are not the same.
    pub(crate) fn elsewhere(&self) -> Option<(u32, u32)> {
        let here = process::id();
        (here != self.process).then_some((self.process, here))
    }
}

/// A value of which each process has its own. A copy of the parent's would be of no use in a process that was forked
/// from it; and another thread of the parent may have locked it at that moment, which does not exist in the copy and
/// never unlocks it. So the lock is not the same either.
#[derive(Debug)]
pub(crate) struct PerProcess<T>([Slot<T>; GENERATIONS]);

#[derive(Debug)]
struct Slot<T> {
    /// The process whose lock this is; 0 for none yet.
    process: AtomicU32,
    /// With the process whose value it is.
    value: Mutex<Option<(u32, T)>>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self([const { Slot { process: AtomicU32::new(0), value: Mutex::new(None) } }; GENERATIONS])
    }

    /// Calls `use_it` with the value of this process, which is the default one at first, under its lock.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        self.with_that_of(process::id(), use_it)
    }

    fn with_that_of<R>(&self, process: u32, use_it: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.slot(process).value.lock();
        if value.as_ref().is_none_or(|(of, _)| *of != process) {
            // What is in it may be shared with the parent, down to its sockets: that must not be dropped.
            mem::forget(value.take());
        }
        use_it(&mut value.get_or_insert_with(|| (process, T::default())).1)
    }

    /// The slot of a process. After too many generations, all share the last one.
    fn slot(&self, process: u32) -> &Slot<T> {
        let is_its = |slot: &&Slot<T>| {
            let claimed = slot.process.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
            claimed.is_ok() || claimed == Err(process)
        };
        self.0.iter().find(is_its).unwrap_or(&self.0[GENERATIONS - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_has_its_own_value_and_waits_for_no_lock_of_another_one() {
        let values = PerProcess::<Vec<u32>>::new();
        let add = |process| {
            values.with_that_of(process, |value| {
                value.push(process);
                value.clone()
            })
        };
        values.with_that_of(1, |value| {
            value.push(1);
            // As after a fork, while another thread has locked it.
            assert_eq!((add(2), add(2)), (vec![2], vec![2, 2]));
        });
        assert_eq!(add(1), [1, 1]);
        for process in 3..100 {
            assert_eq!(add(process), [process]);
        }
        assert_eq!(add(2), [2, 2, 2]);
    }
}
