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
