//! When something is due for which lease.
//!
//! Leases are filed by the instant at which something is due for them; the keeper sleeps until the earliest one. Those to be
//! renewed leave the schedule in *rounds*: one round is one request to the store, and its leases are filed anew when they are
//! answered. Meanwhile the round knows when the first of them ends, and the keeper wakes for that too. So a store that hangs
//! delays no deadline, and a lease that is renewed in time is moved twice, in order, and not once for each thing that may happen.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::lease::Lease;
use crate::backend::{Answered, Backend, BackendError, Renew};
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

/// How long the keeper sleeps when nothing is filed.
const IDLE: Duration = Duration::from_secs(3600);

/// The living leases of a client, by the instant at which something is due for them.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    filed: Mutex<Filed>,
    rescheduled: Notify,
}

#[derive(Debug, Default)]
struct Filed {
    leases: BTreeMap<(Instant, usize), Arc<Lease>>,
    /// What is being renewed, by a number that grows.
    rounds: BTreeMap<u64, Round>,
    next_round: u64,
    /// When the keeper will look next.
    alarm: Option<Instant>,
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
pub(super) struct Started {
    number: u64,
    requests: Vec<Renew>,
    given_up: oneshot::Receiver<Infallible>,
}

impl Schedule {
    /// Files leases by what is due for them next; those for which nothing is are let go.
    pub(super) fn file(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let mut filed = self.filed.lock();
        let mut earliest = None;
        for lease in leases {
            // If it is filed already, then in one place only.
            filed.leases.remove(&(lease.filed_at(), address(&lease)));
            let Some(at) = lease.file() else { continue };
            earliest = earliest.map_or(Some(at), |earliest: Instant| Some(earliest.min(at)));
            filed.leases.insert((at, address(&lease)), lease);
        }
        // Most leases are due later than what the keeper sleeps for already: then it need not wake.
        let wake = filed.alarm.zip(earliest).is_some_and(|(alarm, earliest)| earliest < alarm);
        if wake {
            filed.alarm = earliest;
        }
        drop(filed);
        if wake {
            self.rescheduled.notify_one();
        }
    }

    /// Lets go of a lease that is over.
    pub(super) fn forget(&self, lease: &Lease) {
        self.filed.lock().leases.remove(&(lease.filed_at(), address(lease)));
    }

    /// Waits until something is due earlier than the alarm was set for, or there is room for another round.
    pub(super) async fn rescheduled(&self) {
        self.rescheduled.notified().await;
    }

    pub(super) fn wake(&self) {
        self.rescheduled.notify_one();
    }

    /// Takes what is due out of the schedule, and of a round what ends. The last round is filled with what will be due soon.
    pub(super) fn take_due(&self, now: Instant) -> Vec<Arc<Lease>> {
        let mut filed = self.filed.lock();
        filed.alarm = filed.alarm.filter(|alarm| *alarm > now);
        let mut due = Vec::new();
        filed.rounds.retain(|_, round| round.ends > now || round.keep_others(now, &mut due));
        while let Some(first) = filed.leases.first_entry() {
            let fits = || due.len() % ROUND != 0 && first.get().may_renew(now);
            if first.key().0 > now && !fits() {
                break;
            }
            due.push(first.remove());
        }
        due
    }

    /// These are to be renewed.
    pub(super) fn renew(&self, leases: &[Arc<Lease>]) {
        let mut filed = self.filed.lock();
        for leases in leases.chunks(ROUND) {
            let number = filed.next_round;
            filed.next_round += 1;
            filed.rounds.insert(number, Round::new(leases));
        }
    }

    /// The rounds whose turn it is, in the order in which they were formed.
    pub(super) fn start_rounds(&self) -> Vec<Started> {
        let mut filed = self.filed.lock();
        if filed.rounds.is_empty() {
            return Vec::new();
        }
        let (under_way, waiting): (Vec<_>, Vec<_>) =
            filed.rounds.iter_mut().partition(|(_, round)| round.under_way.is_some());
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

    /// Asks the store for a round, until all of its leases have been answered or have ended.
    pub(super) async fn ask(&self, backend: &dyn Backend, Started { number, requests, given_up }: Started) {
        let answered = async {
            let sent = Instant::now();
            let mut answers = backend.renew(&requests).ready_chunks(ROUND);
            while let Some(answers) = answers.next().await {
                self.take_in(number, answers, sent);
            }
        };
        tokio::select! {
            () = answered => self.close(number),
            _ = given_up => {}
        }
    }

    /// Some leases of a round have been answered.
    fn take_in(&self, number: u64, answers: Vec<Answered>, sent: Instant) {
        let mut filed = self.filed.lock();
        let Some(round) = filed.rounds.get_mut(&number) else { return };
        let mut lease_at = |n: usize| round.leases.get_mut(n)?.take();
        let (leases, answers): (Vec<_>, Vec<_>) =
            answers.into_iter().filter_map(|(n, answer)| Some((lease_at(n)?, answer))).unzip();
        drop(filed);
        let now = Instant::now();
        for (lease, answer) in leases.iter().zip(answers) {
            lease.renewed(answer, sent, now);
        }
        self.file(leases);
        // There may be room for another round.
        self.rescheduled.notify_one();
    }

    /// A round is over. A lease that the store has left out was not answered.
    fn close(&self, number: u64) {
        let round = self.filed.lock().rounds.remove(&number);
        let (leases, now) = (in_rounds(round), Instant::now());
        for lease in &leases {
            let source = "the store has left this renewal out".into();
            lease.renewed(Err(BackendError::Unanswered { source }), now, now);
        }
        self.file(leases);
    }

    /// Whatever was under way on a runtime that has died is not any more.
    pub(super) fn clear(&self) {
        let mut filed = self.filed.lock();
        filed.rounds.clear();
        filed.leases.clear();
        filed.alarm = None;
    }

    /// From here on, a lease that is due before the returned instant wakes the keeper.
    pub(super) fn set_alarm(&self) -> Instant {
        let mut filed = self.filed.lock();
        let due = filed.leases.first_key_value().map(|((at, _), _)| *at);
        let ends = filed.rounds.values().map(|round| round.ends).min();
        // An alarm stands until it rings, even if its lease has been released meanwhile: otherwise each lease that is held for a
        // moment would wake the keeper.
        let alarm = due.into_iter().chain(ends).chain(filed.alarm).min();
        let alarm = alarm.unwrap_or_else(|| Instant::now() + IDLE);
        filed.alarm = Some(alarm);
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

fn address(lease: &Lease) -> usize {
    ptr::from_ref(lease).addr()
}
