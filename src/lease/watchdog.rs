//! Keeps all live leases of a client renewed, and notices the ones that end.
//!
//! Leases are filed by the instant at which something is due for them; the task sleeps until the earliest one. Those to be
//! renewed leave the schedule in *rounds*: one round is one request to the store, and its leases are filed anew when they are
//! answered. Meanwhile the round knows when the first of them ends, and the task wakes for that too. So a store that hangs
//! delays no deadline, and a lease that is renewed in time is moved twice, in order, and not once for each thing that may happen.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem::take;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep_until};

use super::held::{Lease, Step};
use crate::backend::{Answered, Backend, BackendError, RenewRequest};
use crate::error::LossReason;
use crate::sync::Mutex;

/// Leases in one round: enough that what a request costs by itself matters little, few enough that a store is done with it
/// before anybody notices.
const ROUND: usize = 32;

/// Renewals under way at once, before another round is started: those of one round, so that a burst of them does not hold up what
/// else is asked of the store. If the store is far away and more of them wait, one for every [`WAITING_PER_UNDER_WAY`]: they are
/// late by so many round trips then, and not by more and more.
const UNDER_WAY: usize = ROUND;
const MAX_UNDER_WAY: usize = 1024;
const WAITING_PER_UNDER_WAY: usize = 16;

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
    /// What is being renewed, by a number that grows.
    rounds: BTreeMap<u64, Round>,
    next_round: u64,
    /// When the task will look next.
    alarm: Option<Instant>,
    /// Set once all leases were ended: one that was out of the schedule at that moment ends when it comes back.
    ended: Option<LossReason>,
}

/// Leases that are renewed together.
#[derive(Debug)]
struct Round {
    /// In the order of the requests; `None` once answered, or ended.
    leases: Vec<Option<Arc<Lease>>>,
    /// No lease ends before.
    ends: Instant,
    /// Present once the store is asked. The request is given up when this is dropped.
    under_way: Option<oneshot::Sender<Infallible>>,
}

/// A round that is to be asked for.
struct Started {
    number: u64,
    requests: Vec<RenewRequest>,
    given_up: oneshot::Receiver<Infallible>,
}

impl Watchdog {
    /// Takes a lease into care.
    pub(crate) fn watch(&self, lease: Arc<Lease>) {
        self.file([lease]);
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
        let (leases, rounds) = (take(&mut schedule.leases), take(&mut schedule.rounds));
        drop(schedule);
        for lease in leases.into_values().chain(in_rounds(rounds.into_values())) {
            lease.lose(reason);
        }
    }

    /// Does what is due, for ever.
    pub(crate) async fn run(self: Arc<Self>, backend: Arc<dyn Backend>) {
        self.take_over();
        let mut renewals = FuturesUnordered::new();
        loop {
            // A store that answers at once must not keep this loop from letting other tasks run.
            consume_budget().await;
            self.tend(Instant::now());
            renewals.extend(self.start_rounds().into_iter().map(|round| self.renew(&*backend, round)));
            let alarm = self.set_alarm();
            tokio::select! {
                Some(()) = renewals.next() => {}
                () = sleep_until(alarm) => {}
                () = self.rescheduled.notified() => {}
            }
        }
    }

    /// Asks the store for a round, until all of its leases have been answered or have ended.
    async fn renew(&self, backend: &dyn Backend, Started { number, requests, given_up }: Started) {
        let answered = async {
            let mut answers = backend.renew_all(&requests).ready_chunks(ROUND);
            while let Some(answers) = answers.next().await {
                self.take_in(number, answers);
            }
        };
        tokio::select! {
            () = answered => self.close(number),
            _ = given_up => {}
        }
    }

    /// Some leases of a round have been answered.
    fn take_in(&self, number: u64, answers: Vec<Answered>) {
        let mut schedule = self.schedule.lock();
        let Some(round) = schedule.rounds.get_mut(&number) else { return };
        let mut lease_at = |n: usize| round.leases.get_mut(n)?.take();
        let (leases, answers): (Vec<_>, Vec<_>) =
            answers.into_iter().filter_map(|(n, answer)| Some((lease_at(n)?, answer))).unzip();
        drop(schedule);
        let now = Instant::now();
        for (lease, answer) in leases.iter().zip(answers) {
            lease.renewed(answer, now);
        }
        self.file(leases);
        // There may be room for another round.
        self.rescheduled.notify_one();
    }

    /// A round is over. A lease that the store has left out was not answered.
    fn close(&self, number: u64) {
        let round = self.schedule.lock().rounds.remove(&number);
        let (leases, now) = (in_rounds(round), Instant::now());
        for lease in &leases {
            let source = "the store has left this renewal out".into();
            lease.renewed(Err(BackendError::Unanswered { source }), now);
        }
        self.file(leases);
    }

    /// Renewals that were under way on a runtime that has died are due again.
    fn take_over(&self) {
        let rounds = take(&mut self.schedule.lock().rounds);
        let leases = in_rounds(rounds.into_values());
        for lease in &leases {
            lease.renewal_abandoned();
        }
        self.file(leases);
    }

    /// Looks at every lease for which something is due. Those to renew form rounds.
    fn tend(&self, now: Instant) {
        let (mut renew, mut wait) = (Vec::new(), Vec::new());
        for lease in self.take_due(now) {
            match lease.step(now) {
                Step::Forget => {}
                Step::Renew => renew.push(lease),
                Step::Wait => wait.push(lease),
            }
        }
        self.file(wait);
        self.form_rounds(renew);
    }

    /// Takes what is due out of the schedule, and of a round what ends. The last round is filled with what will be due soon.
    fn take_due(&self, now: Instant) -> Vec<Arc<Lease>> {
        let mut schedule = self.schedule.lock();
        schedule.alarm = schedule.alarm.filter(|alarm| *alarm > now);
        let mut due = Vec::new();
        schedule.rounds.retain(|_, round| round.ends > now || round.keep_others(now, &mut due));
        while let Some(first) = schedule.leases.first_entry() {
            let fits = || due.len() % ROUND != 0 && first.get().may_renew(now);
            if first.key().0 > now && !fits() {
                break;
            }
            due.push(first.remove());
        }
        due
    }

    /// Files leases by what is due for them next; those that are over are let go.
    fn file(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let mut schedule = self.schedule.lock();
        if let Some(reason) = schedule.ended {
            drop(schedule);
            return lose(leases, reason);
        }
        let mut earliest = None;
        for lease in leases {
            let Some(at) = lease.file() else { continue };
            earliest = earliest.map_or(Some(at), |earliest: Instant| Some(earliest.min(at)));
            schedule.leases.insert((at, address(&lease)), lease);
        }
        // Most leases are due later than what the task sleeps for already: then it need not wake.
        let wake = schedule.alarm.zip(earliest).is_some_and(|(alarm, earliest)| earliest < alarm);
        if wake {
            schedule.alarm = earliest;
        }
        drop(schedule);
        if wake {
            self.rescheduled.notify_one();
        }
    }

    fn form_rounds(&self, leases: Vec<Arc<Lease>>) {
        let mut schedule = self.schedule.lock();
        if let Some(reason) = schedule.ended {
            drop(schedule);
            return lose(leases, reason);
        }
        for leases in leases.chunks(ROUND) {
            let number = schedule.next_round;
            schedule.next_round += 1;
            schedule.rounds.insert(number, Round::new(leases));
        }
    }

    /// The rounds whose turn it is, in the order in which they were formed.
    fn start_rounds(&self) -> Vec<Started> {
        let mut schedule = self.schedule.lock();
        let (under_way, waiting): (Vec<_>, Vec<_>) =
            schedule.rounds.iter_mut().partition(|(_, round)| round.under_way.is_some());
        let limit = (waiting.len() * ROUND / WAITING_PER_UNDER_WAY).clamp(UNDER_WAY, MAX_UNDER_WAY);
        let unanswered = |round: &Round| round.leases.iter().flatten().count();
        let mut room = limit.saturating_sub(under_way.iter().map(|(_, round)| unanswered(round)).sum());
        let mut started = Vec::new();
        for (number, round) in waiting {
            if room == 0 {
                break;
            }
            started.push(round.start(*number));
            room = room.saturating_sub(unanswered(round));
        }
        started
    }

    /// From here on, a lease that is due before the returned instant wakes the task.
    fn set_alarm(&self) -> Instant {
        let mut schedule = self.schedule.lock();
        let due = schedule.leases.first_key_value().map(|((at, _), _)| *at);
        let ends = schedule.rounds.values().map(|round| round.ends).min();
        // An alarm stands until it rings, even if its lease has been released meanwhile: otherwise each lease that is held for a
        // moment would wake the task.
        let alarm = due.into_iter().chain(ends).chain(schedule.alarm).min();
        let alarm = alarm.unwrap_or_else(|| Instant::now() + IDLE);
        schedule.alarm = Some(alarm);
        alarm
    }
}

impl Round {
    fn new(leases: &[Arc<Lease>]) -> Self {
        let ends = leases.iter().map(|lease| lease.ends()).min().unwrap_or_else(Instant::now);
        Self { leases: leases.iter().cloned().map(Some).collect(), ends, under_way: None }
    }

    /// What is over by now is left out of it.
    fn start(&mut self, number: u64) -> Started {
        let mut requests = Vec::with_capacity(self.leases.len());
        self.leases.retain(|lease| {
            let request = lease.as_ref().and_then(|lease| lease.renewal());
            let live = request.is_some();
            requests.extend(request);
            live
        });
        let (under_way, given_up) = oneshot::channel();
        self.under_way = Some(under_way);
        Started { number, requests, given_up }
    }

    /// Moves the leases that have ended to `ended`. Tells whether others are left.
    fn keep_others(&mut self, now: Instant, ended: &mut Vec<Arc<Lease>>) -> bool {
        for lease in &mut self.leases {
            ended.extend(lease.take_if(|lease| lease.ends() <= now));
        }
        let ends = self.leases.iter().flatten().map(|lease| lease.ends()).min();
        self.ends = ends.unwrap_or(now);
        ends.is_some()
    }
}

/// The leases of rounds, in order.
fn in_rounds(rounds: impl IntoIterator<Item = Round>) -> Vec<Arc<Lease>> {
    rounds.into_iter().flat_map(|round| round.leases).flatten().collect()
}

fn lose(leases: impl IntoIterator<Item = Arc<Lease>>, reason: LossReason) {
    for lease in leases {
        lease.lose(reason);
    }
}

fn address(lease: &Lease) -> usize {
    ptr::from_ref(lease).addr()
}
