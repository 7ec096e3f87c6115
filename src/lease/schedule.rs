//! When something is due for which lease.
//!
//! Leases are filed by the instant at which something is due for them, those that wait and those that are held apart; the task
//! that keeps one of these lists sleeps until its earliest instant. Leases that are to be renewed leave the schedule in *rounds*: one round is one request to the store, and its leases are filed again when
//! they are answered. In the meantime the round keeps the earliest of their deadlines, and the keeper wakes for that too. So a
//! store that hangs delays no deadline, and a renewal moves a lease only twice: out of the schedule and back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::entry::{Entry, List};
use super::lease::Lease;
use crate::backend::{Answered, Backend, BackendError, Renew};
use crate::sync::Mutex;

/// Leases in one round: enough to make the fixed cost of a request negligible, few enough not to hold up the store noticeably.
const ROUND: usize = 32;

/// No round is started while this many renewals are in flight: one round's worth, so that a burst of renewals does not hold up
/// other requests at the store. If more of them wait because the store is far away, the limit is one for every
/// [`WAITING_PER_UNDER_WAY`] that wait, up to [`MAX_UNDER_WAY`]. This bounds by how many round trips a renewal is late.
const UNDER_WAY: usize = ROUND;
const MAX_UNDER_WAY: usize = 1024;
const WAITING_PER_UNDER_WAY: usize = 16;

/// How long the keeper sleeps while nothing is filed.
const IDLE: Duration = Duration::from_secs(3600);

/// The leases of a client, by the instant at which something is due for them. Every lease is filed once at most, and knows where.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    filed: Mutex<Filed>,
    rescheduled: [Notify; 2],
}

#[derive(Debug, Default)]
struct Filed {
    lists: [Due; 2],
    /// The leases that are being renewed, by the number of their round.
    rounds: BTreeMap<u64, Round>,
    next_round: u64,
}

#[derive(Debug, Default)]
struct Due {
    leases: BTreeMap<(Instant, usize), Arc<Lease>>,
    /// When the task of this list will wake next.
    alarm: Option<Instant>,
}

/// Leases that are renewed together.
#[derive(Debug)]
struct Round {
    /// In the order of the requests; `None` once answered or ended.
    leases: Vec<Option<Arc<Lease>>>,
    /// The earliest deadline among them.
    ends: Instant,
    /// Present once the request is sent. Dropping it gives the request up.
    under_way: Option<oneshot::Sender<Infallible>>,
}

/// A round that is to be sent.
pub(super) struct Started {
    number: u64,
    requests: Vec<Renew>,
    given_up: oneshot::Receiver<Infallible>,
}

impl Schedule {
    /// Files leases by what is due for them next. A lease for which nothing is due is dropped from the schedule.
    pub(super) fn file(&self, leases: impl IntoIterator<Item = Arc<Lease>>) {
        let mut filed = self.filed.lock();
        let mut wake = [false; 2];
        for lease in leases {
            let (before, after) = lease.file();
            if before == after {
                continue;
            }
            filed.remove(before, &lease);
            let Some(Entry { list, at }) = after else { continue };
            let due = &mut filed.lists[list as usize];
            due.leases.insert((at, address(&lease)), lease);
            // Most leases are due after the alarm that is set already, and need not wake anybody.
            if due.alarm.is_some_and(|alarm| at < alarm) {
                due.alarm = Some(at);
                wake[list as usize] = true;
            }
        }
        drop(filed);
        for (rescheduled, _) in self.rescheduled.iter().zip(wake).filter(|(_, wake)| *wake) {
            rescheduled.notify_one();
        }
    }

    /// Removes a lease.
    pub(super) fn forget(&self, lease: &Lease) {
        let mut filed = self.filed.lock();
        let before = lease.unfile();
        filed.remove(before, lease);
    }

    /// Waits until something is due before the alarm that was set, or there may be room for another round.
    pub(super) async fn rescheduled(&self, list: List) {
        self.rescheduled[list as usize].notified().await;
    }

    pub(super) fn wake(&self, list: List) {
        self.rescheduled[list as usize].notify_one();
    }

    /// Takes out the leases for which something is due, and those in rounds whose deadline has passed. Room that is left in the
    /// last round is filled with leases whose renewal is due soon.
    pub(super) fn take_due(&self, list: List, now: Instant) -> Vec<Arc<Lease>> {
        let mut filed = self.filed.lock();
        let mut taken = Vec::new();
        if list == List::Held {
            filed.rounds.retain(|_, round| round.ends > now || round.keep_others(now, &mut taken));
        }
        let due = &mut filed.lists[list as usize];
        due.alarm = due.alarm.filter(|alarm| *alarm > now);
        while let Some(first) = due.leases.first_entry() {
            let fits = || taken.len() % ROUND != 0 && first.get().may_renew(now);
            if first.key().0 > now && !fits() {
                break;
            }
            let lease = first.remove();
            lease.unfile();
            taken.push(lease);
        }
        taken
    }

    /// Forms rounds of leases that are to be renewed.
    pub(super) fn renew(&self, leases: &[Arc<Lease>]) {
        let mut filed = self.filed.lock();
        for leases in leases.chunks(ROUND) {
            let number = filed.next_round;
            filed.next_round += 1;
            filed.rounds.insert(number, Round::new(leases));
        }
    }

    /// Starts as many rounds as may be in flight, in the order in which they were formed. Leases that have ended in the meantime
    /// are filed again: what is due for them is something else than a renewal.
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
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        for (number, round) in waiting {
            if room == 0 {
                break;
            }
            started.push(round.start(*number, &mut ended));
            room = room.saturating_sub(unanswered(round));
        }
        drop(filed);
        self.file(ended);
        started
    }

    /// Sends the renewals of a round and handles the answers, until all of its leases have been answered or have ended.
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

    /// Handles the answers to some leases of a round.
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
        self.wake(List::Held);
    }

    /// Ends a round. Leases for which the store gave no answer count as not answered.
    fn close(&self, number: u64) {
        let round = self.filed.lock().rounds.remove(&number);
        let (leases, now) = (in_rounds(round), Instant::now());
        for lease in &leases {
            let source = "the store has left this renewal out".into();
            lease.renewed(Err(BackendError::Unanswered { source }), now, now);
        }
        self.file(leases);
    }

    /// Forgets the leases of a list, including those in rounds that were in flight on a runtime that has ended.
    pub(super) fn clear(&self, list: List) {
        let mut filed = self.filed.lock();
        for lease in mem::take(&mut filed.lists[list as usize]).leases.into_values() {
            lease.unfile();
        }
        if list == List::Held {
            filed.rounds.clear();
        }
    }

    /// Sets the alarm of a list and returns it. From here on, a lease that is due before it wakes the task of the list.
    pub(super) fn set_alarm(&self, list: List) -> Instant {
        let mut filed = self.filed.lock();
        let rounds =
            if list == List::Held { filed.rounds.values().map(|round| round.ends).min() } else { None };
        let due = &mut filed.lists[list as usize];
        let first = due.leases.first_key_value().map(|((at, _), _)| *at);
        // An alarm stays set until it fires, even if its lease has been released: otherwise every lease that is held only
        // briefly would wake the task.
        let alarm = first.into_iter().chain(rounds).chain(due.alarm).min();
        *due.alarm.insert(alarm.unwrap_or_else(|| Instant::now() + IDLE))
    }
}

impl Filed {
    fn remove(&mut self, entry: Option<Entry>, lease: &Lease) {
        if let Some(Entry { list, at }) = entry {
            self.lists[list as usize].leases.remove(&(at, address(lease)));
        }
    }
}

impl Round {
    fn new(leases: &[Arc<Lease>]) -> Self {
        let ends = leases.iter().filter_map(|lease| lease.ends()).min().unwrap_or_else(Instant::now);
        Self { leases: leases.iter().cloned().map(Some).collect(), ends, under_way: None }
    }

    /// Builds the requests. Moves the leases that have ended in the meantime to `ended`.
    fn start(&mut self, number: u64, ended: &mut Vec<Arc<Lease>>) -> Started {
        let mut requests = Vec::with_capacity(self.leases.len());
        for lease in mem::take(&mut self.leases).into_iter().flatten() {
            match lease.renewal() {
                Some(request) => {
                    requests.push(request);
                    self.leases.push(Some(lease));
                }
                None => ended.push(lease),
            }
        }
        let (under_way, given_up) = oneshot::channel();
        self.under_way = Some(under_way);
        Started { number, requests, given_up }
    }

    /// Moves the leases that have ended to `ended`. Returns whether others are left.
    fn keep_others(&mut self, now: Instant, ended: &mut Vec<Arc<Lease>>) -> bool {
        for lease in &mut self.leases {
            ended.extend(lease.take_if(|lease| lease.is_over(now)));
        }
        // One that ends at this moment is looked at in the next turn.
        let ends = self.leases.iter().flatten().filter_map(|lease| lease.ends()).min();
        self.ends = ends.unwrap_or(now);
        self.leases.iter().any(Option::is_some)
    }
}

/// The leases of rounds, in order.
fn in_rounds(rounds: impl IntoIterator<Item = Round>) -> Vec<Arc<Lease>> {
    rounds.into_iter().flat_map(|round| round.leases).flatten().collect()
}

fn address(lease: &Lease) -> usize {
    ptr::from_ref(lease).addr()
}
