//! Keeps all live leases of a client renewed, and notices the ones that end.
//!
//! Leases are filed by the instant at which something is due for them. The task sleeps until the earliest one;
//! a renewal is polled beside the others and never awaited alone, so a store that hangs delays no deadline.

use std::collections::{BTreeMap, VecDeque};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::Notify;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until};

use super::held::{Lease, Step};
use crate::backend::{Backend, BackendError, RenewRequest, Renewal};
use crate::error::LossReason;
use crate::sync::Mutex;

/// Renewals under way at once: few, so that a burst of them does not hold up what else is asked of the store; more if they come
/// too slowly for those that are due; and never so many that a burst takes much memory.
const IN_FLIGHT: usize = 64;
const MAX_IN_FLIGHT: usize = 1024;

/// How long the task sleeps when there is nothing to watch.
const IDLE: Duration = Duration::from_secs(3600);

/// The leases of a client.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    schedule: Mutex<Schedule>,
    rescheduled: Notify,
}

#[derive(Debug, Default)]
struct Schedule {
    /// Told apart by address: a lease that was passed on has the id of its predecessor.
    leases: BTreeMap<(Instant, usize), Arc<Lease>>,
    /// When the task will look next; `None` while it does not sleep.
    alarm: Option<Instant>,
    /// Set once all leases were ended: one that was out of the schedule at that moment ends when it comes back.
    ended: Option<LossReason>,
}

impl Watchdog {
    /// Takes a lease into care, or files it anew after something happened to it.
    pub(crate) fn watch(&self, lease: Arc<Lease>) {
        let at = lease.next_event();
        let mut schedule = self.schedule.lock();
        if let Some(reason) = schedule.ended {
            drop(schedule);
            lease.lose(reason);
            return;
        }
        lease.file_under(at);
        schedule.leases.insert((at, address(&lease)), lease);
        // Most leases are due later than what the task sleeps for already: then it need not wake.
        let wake = schedule.alarm.is_some_and(|alarm| at < alarm);
        if wake {
            schedule.alarm = Some(at);
        }
        drop(schedule);
        if wake {
            self.rescheduled.notify_one();
        }
    }

    /// Lets go of a lease that has ended.
    pub(crate) fn forget(&self, lease: &Lease) {
        let mut schedule = self.schedule.lock();
        schedule.leases.remove(&(lease.event_at(), address(lease)));
    }

    /// Ends all leases as lost.
    pub(crate) fn lose_all(&self, reason: LossReason) {
        let mut schedule = self.schedule.lock();
        schedule.ended = Some(reason);
        let leases = std::mem::take(&mut schedule.leases);
        drop(schedule);
        for lease in leases.into_values() {
            lease.lose(reason);
        }
    }

    /// Does what is due, for ever.
    pub(crate) async fn run(self: Arc<Self>, backend: Arc<dyn Backend>) {
        self.take_over();
        let mut due = VecDeque::new();
        let mut renewals = FuturesUnordered::new();
        loop {
            // A store that answers at once must not keep this loop from letting other tasks run.
            consume_budget().await;
            due.extend(self.tend(Instant::now()));
            let limit = (due.len() / 4).clamp(IN_FLIGHT, MAX_IN_FLIGHT);
            while renewals.len() < limit {
                let Some(lease) = due.pop_front() else { break };
                if !lease.is_over() {
                    renewals.push(renew(backend.as_ref(), lease));
                }
            }
            let alarm = self.set_alarm();
            tokio::select! {
                Some(answered) = renewals.next() => {
                    self.take_in(answered);
                    // All that have come together, so that as many can go together.
                    while let Some(Some(answered)) = renewals.next().now_or_never() {
                        self.take_in(answered);
                    }
                }
                () = sleep_until(alarm) => {}
                () = self.rescheduled.notified() => {}
            }
        }
    }

    /// A renewal has been answered, or not.
    fn take_in(&self, (lease, answer): (Arc<Lease>, Result<Renewal, BackendError>)) {
        self.forget(&lease);
        lease.renewed(answer, Instant::now());
        if !lease.is_released() {
            self.watch(lease);
        }
    }

    /// Renewals that were under way on a runtime that has died are due again.
    fn take_over(&self) {
        let mut schedule = self.schedule.lock();
        for lease in std::mem::take(&mut schedule.leases).into_values() {
            lease.renewal_abandoned();
            let at = lease.next_event();
            lease.file_under(at);
            schedule.leases.insert((at, address(&lease)), lease);
        }
    }

    /// Looks at every lease for which something is due, and returns those to renew.
    fn tend(&self, now: Instant) -> Vec<Arc<Lease>> {
        let mut renew = Vec::new();
        for lease in self.take_due(now) {
            match lease.step(now) {
                Step::Forget => continue,
                Step::Renew => renew.push(Arc::clone(&lease)),
                Step::Wait => {}
            }
            self.watch(lease);
        }
        renew
    }

    fn take_due(&self, now: Instant) -> Vec<Arc<Lease>> {
        let mut schedule = self.schedule.lock();
        schedule.alarm = schedule.alarm.filter(|alarm| *alarm > now);
        let mut due = Vec::new();
        while let Some(first) = schedule.leases.first_entry() {
            if first.key().0 > now {
                break;
            }
            due.push(first.remove());
        }
        due
    }

    /// From here on, a lease that is due before the returned instant wakes the task.
    fn set_alarm(&self) -> Instant {
        let mut schedule = self.schedule.lock();
        let first = schedule.leases.first_key_value().map(|((at, _), _)| *at);
        // An alarm stands until it rings, even if the lease has been released meanwhile: otherwise each lease that is held for
        // a moment would wake the task.
        let alarm = first.into_iter().chain(schedule.alarm).min().unwrap_or_else(|| Instant::now() + IDLE);
        schedule.alarm = Some(alarm);
        alarm
    }
}

fn address(lease: &Lease) -> usize {
    ptr::from_ref(lease).addr()
}

async fn renew(backend: &dyn Backend, lease: Arc<Lease>) -> (Arc<Lease>, Result<Renewal, BackendError>) {
    let request = RenewRequest::new(lease.id(), lease.name().resource().clone(), lease.term());
    let answer = backend.renew(&request).await;
    (lease, answer)
}
