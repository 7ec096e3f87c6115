//! What is due for which lease, and when.
//!
//! Leases are filed by the instant at which something is due for them, those that wait and those that are held apart;
//! the task that tends one of these lists sleeps until its earliest instant. Most leases are held so briefly that
//! nothing is ever due for them, so a lease that has just been taken up is kept in a list of recent ones, and filed if
//! it is still held a little later.

use std::collections::BTreeMap;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::lease::{Entry, Lease, List};
use crate::sync::Mutex;

/// How many leases are renewed together: enough to make the fixed cost of a request negligible, few enough not to hold
/// up the store noticeably.
pub(super) const TOGETHER: usize = 32;
/// How long the keeper sleeps while nothing is filed.
const IDLE: Duration = Duration::from_secs(3600);
/// How long after it was taken up a lease is filed.
const RECENT: Duration = Duration::from_millis(100);
/// How many leases may have been taken up recently before those that have ended are dropped.
const MANY: usize = 1024;

/// The leases of a client, by the instant at which something is due for them. Every lease is filed once at most, and
/// knows where.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    due: Mutex<[Due; 2]>,
}

/// The leases of one list.
#[derive(Debug, Default)]
struct Due {
    leases: BTreeMap<(Instant, usize), Arc<Lease>>,
    /// Leases that have just been taken up; they are filed at `file_recent_at`.
    recent: Vec<Arc<Lease>>,
    prune_recent_at: usize,
    file_recent_at: Option<Instant>,
    /// When the task of this list will wake next.
    alarm: Option<Instant>,
    /// Notified when something is due before that. Replaced whenever the task is started: an earlier one may still
    /// wait, on a runtime that is not driven, and must not be notified in place of the current one.
    rescheduled: Arc<Notify>,
}

impl Schedule {
    /// Files leases by what is due for them next. A lease for which nothing is due is dropped from the schedule.
    pub(super) fn file(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let mut wake = [None, None];
        let mut lists = self.due.lock();
        for lease in leases {
            if let Some(list) = file(&mut lists, lease) {
                wake[list as usize] = Some(Arc::clone(&lists[list as usize].rescheduled));
            }
        }
        drop(lists);
        for rescheduled in wake.into_iter().flatten() {
            rescheduled.notify_one();
        }
    }

    /// Files a lease that has just been taken up, and for which something is due at `at`.
    pub(super) fn file_taken_up(&self, lease: &Arc<Lease>, at: Instant, now: Instant) {
        let file_at = now + RECENT;
        if at < file_at {
            return self.file([Arc::clone(lease)]);
        }
        let mut lists = self.due.lock();
        let held = &mut lists[List::Held as usize];
        held.add_recent(Arc::clone(lease));
        let file_at = *held.file_recent_at.get_or_insert(file_at);
        let wake = held.is_before_alarm(file_at);
        drop(lists);
        if wake {
            self.wake(List::Held);
        }
    }

    /// Removes a lease.
    pub(super) fn forget(&self, lease: &Lease) {
        if lease.is_filed() {
            let mut lists = self.due.lock();
            unfile(&mut lists, lease.unfile(), lease);
        }
    }

    /// For the task of a list: notified when something is due before the alarm that was set, or there may be room for
    /// more renewals.
    pub(super) fn rescheduled(&self, list: List) -> Arc<Notify> {
        Arc::clone(&self.due.lock()[list as usize].rescheduled)
    }

    pub(super) fn wake(&self, list: List) {
        self.rescheduled(list).notify_one();
    }

    /// Takes out the leases for which something is due. The last renewals are joined by others that are due soon.
    pub(super) fn take_due(&self, list: List, now: Instant) -> Vec<Arc<Lease>> {
        let mut lists = self.due.lock();
        let recent = lists[list as usize].take_recent(now);
        for lease in &recent {
            file(&mut lists, Arc::clone(lease));
        }
        let due = &mut lists[list as usize];
        due.alarm = due.alarm.filter(|alarm| *alarm > now);
        let mut taken = Vec::new();
        while let Some(first) = due.leases.first_entry() {
            let fits = || taken.len() % TOGETHER != 0 && first.get().may_renew(now);
            if first.key().0 > now && !fits() {
                break;
            }
            let lease = first.remove();
            lease.unfile();
            taken.push(lease);
        }
        drop(lists);
        // Those that have ended are freed here, without the lock.
        drop(recent);
        taken
    }

    /// Forgets the leases of a list, and the task that may still wait for it.
    pub(super) fn clear(&self, list: List) {
        let mut lists = self.due.lock();
        let due = mem::take(&mut lists[list as usize]);
        for lease in due.leases.values() {
            lease.unfile();
        }
        drop(lists);
    }

    /// Sets the alarm of a list and returns it. From here on, a lease that is due before it wakes the task of the list.
    pub(super) fn set_alarm(&self, list: List) -> Instant {
        let mut lists = self.due.lock();
        let due = &mut lists[list as usize];
        let first = due.leases.first_key_value().map(|((at, _), _)| *at);
        // An alarm stays set until it fires, even if its lease has been released: setting another one would wake the
        // task as well.
        let alarm = first.into_iter().chain(due.file_recent_at).chain(due.alarm).min();
        *due.alarm.insert(alarm.unwrap_or_else(|| Instant::now() + IDLE))
    }
}

impl Due {
    /// Whether the task of the list must be woken, because something is due before its alarm. Most leases are due after
    /// it.
    fn is_before_alarm(&mut self, at: Instant) -> bool {
        let is_before = self.alarm.is_some_and(|alarm| at < alarm);
        if is_before {
            self.alarm = Some(at);
        }
        is_before
    }

    fn add_recent(&mut self, lease: Arc<Lease>) {
        if self.recent.len() >= self.prune_recent_at.max(MANY) {
            self.recent.retain(|lease| lease.needs_keeper());
            // The effort per lease is constant, no matter how many are still held.
            self.prune_recent_at = self.recent.len() * 2;
        }
        self.recent.push(lease);
    }

    fn take_recent(&mut self, now: Instant) -> Vec<Arc<Lease>> {
        if self.file_recent_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        (self.file_recent_at, self.prune_recent_at) = (None, 0);
        mem::take(&mut self.recent)
    }
}

/// Files a lease. Returns the list whose task must be woken for it.
fn file(lists: &mut [Due; 2], lease: Arc<Lease>) -> Option<List> {
    let (before, after) = lease.file();
    if before == after {
        return None;
    }
    unfile(lists, before, &lease);
    let (list, at) = after?;
    let due = &mut lists[list as usize];
    due.leases.insert((at, address(&lease)), lease);
    due.is_before_alarm(at).then_some(list)
}

fn unfile(lists: &mut [Due; 2], filed: Option<Entry>, lease: &Lease) {
    if let Some((list, at)) = filed {
        lists[list as usize].leases.remove(&(at, address(lease)));
    }
}

fn address(lease: &Lease) -> usize {
    ptr::from_ref(lease).addr()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// What is due after all that is filed here.
    fn late(start: Instant) -> Instant {
        start + TTL * 2
    }

    fn held(start: Instant) -> Arc<Lease> {
        Lease::taken_up(TTL, 42, start).0
    }

    fn is_woken(schedule: &Schedule) -> bool {
        schedule.rescheduled(List::Held).notified().now_or_never().is_some()
    }

    #[test]
    fn a_lease_that_is_forgotten_is_not_due_any_more() {
        let (schedule, start) = (Schedule::default(), Instant::now());
        let [kept, forgotten] = [held(start), held(start)];
        schedule.file([Arc::clone(&kept), Arc::clone(&forgotten)]);
        schedule.forget(&forgotten);
        assert!(!forgotten.is_filed());
        let due = schedule.take_due(List::Held, late(start));
        assert!(due.len() == 1 && Arc::ptr_eq(&due[0], &kept) && !kept.is_filed());
    }

    #[test]
    fn a_lease_that_is_filed_again_is_due_once() {
        let (schedule, start) = (Schedule::default(), Instant::now());
        let lease = Lease::of_mutex(TTL);
        for ask_at in [start + TTL, start + TTL / 2] {
            lease.ask_soon(ask_at);
            schedule.file([Arc::clone(&lease)]);
        }
        assert_eq!(schedule.take_due(List::Waiting, late(start)).len(), 1);
        assert_eq!(schedule.take_due(List::Waiting, late(start)).len(), 0);
    }

    #[test]
    fn a_task_is_woken_for_what_is_due_before_its_alarm_and_for_nothing_else() {
        let (schedule, start) = (Schedule::default(), Instant::now());
        schedule.file([held(start)]);
        assert!(!is_woken(&schedule), "no task waits");
        let alarm = schedule.set_alarm(List::Held);
        assert!(alarm > start && alarm < start + TTL);
        schedule.file([held(start + TTL)]);
        assert!(!is_woken(&schedule), "it is due later");
        let [taken_up, sooner] = [held(start), held(start)];
        schedule.file_taken_up(&taken_up, late(start), start + TTL);
        assert!(!is_woken(&schedule), "recent ones are filed later");
        schedule.file_taken_up(&sooner, start + RECENT / 2, start);
        assert!(sooner.is_filed() && !taken_up.is_filed(), "it would be late");
    }

    #[test]
    fn a_lease_that_was_taken_up_is_filed_a_little_later_and_with_those_before_it() {
        let (schedule, start) = (Schedule::default(), Instant::now());
        schedule.set_alarm(List::Held);
        let [first, second] = [held(start), held(start)];
        schedule.file_taken_up(&first, start + RECENT, start);
        assert!(is_woken(&schedule));
        schedule.file_taken_up(&second, start + TTL, start + RECENT / 2);
        assert!(!is_woken(&schedule), "it is filed with the first one");
        assert_eq!(schedule.set_alarm(List::Held), start + RECENT);
        assert!(schedule.take_due(List::Held, start + RECENT / 2).is_empty());
        assert!(!first.is_filed() && !second.is_filed());
        assert!(schedule.take_due(List::Held, start + RECENT).is_empty(), "nothing is due for them");
        assert!(first.is_filed() && second.is_filed());
    }

    #[test]
    fn the_last_renewals_are_joined_by_others_and_each_request_is_full_at_most() {
        for (due, early, taken) in [
            (1, TOGETHER, TOGETHER),
            (TOGETHER, 1, TOGETHER),
            (TOGETHER + 1, TOGETHER, 2 * TOGETHER),
            (0, 1, 0),
        ] {
            let (schedule, start) = (Schedule::default(), Instant::now());
            let soon = TTL / 1000;
            schedule.file((0..due).map(|_| held(start)));
            schedule.file((0..early).map(|_| held(start + soon)));
            let now = if due > 0 { schedule.set_alarm(List::Held) } else { start };
            assert_eq!(
                schedule.take_due(List::Held, now).len(),
                taken,
                "{due} are due, {early} a little later"
            );
        }
    }

    #[test]
    fn what_was_taken_up_and_has_ended_is_dropped_when_there_is_much_of_it() {
        let (schedule, start) = (Schedule::default(), Instant::now());
        let recent = |number: usize, ended: bool| {
            for _ in 0..number {
                let (lease, _hold) = Lease::taken_up(TTL, 42, start);
                if ended {
                    lease.end(false, start);
                }
                schedule.file_taken_up(&lease, start + TTL, start);
            }
            schedule.due.lock()[List::Held as usize].recent.len()
        };
        assert_eq!(recent(MANY, true), MANY);
        assert_eq!(recent(MANY, false), MANY, "the ended ones were dropped");
        assert_eq!(recent(MANY, true), MANY * 2);
        assert_eq!(recent(1, true), MANY + 1);
        let due = &schedule.due.lock()[List::Held as usize];
        assert_eq!(due.prune_recent_at, MANY * 2, "twice as many as were kept");
    }

    #[test]
    fn a_list_that_is_cleared_keeps_no_lease_and_no_alarm() {
        let (schedule, start) = (Schedule::default(), Instant::now());
        let lease = held(start);
        schedule.file([Arc::clone(&lease)]);
        let before = schedule.rescheduled(List::Held);
        schedule.set_alarm(List::Held);
        schedule.clear(List::Held);
        assert!(!lease.is_filed() && Arc::strong_count(&lease) == 1);
        assert!(schedule.take_due(List::Held, late(start)).is_empty());
        schedule.file([lease]);
        assert!(before.notified().now_or_never().is_none(), "it is that of an earlier task");
    }
}
