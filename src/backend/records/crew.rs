//! What is known of all connections for changes: which of them are idle, which answer, and whether another one may be
//! opened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::failure::{Failure, Remedy};

/// How long a change waits for a busy connection before another connection is opened.
const HELD_UP: Duration = Duration::from_millis(50);
/// How long no further connection is opened after one was refused, while others work: it grows from the first of these
/// to the second.
const REFUSED_PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is known of all workers.
#[derive(Default)]
pub(super) struct Crew {
    /// By their numbers, which are in the order in which they started.
    pub(super) members: BTreeMap<u64, Member>,
    last_number: u64,
    /// Whether another one is about to start if it is still needed then.
    pub(super) is_starting: bool,
    /// After a further connection was refused: for how long no other one is tried, and since when.
    pub(super) refused: Option<(Duration, Instant)>,
    /// When a request was sent that was not answered in time. A connection that has not answered since is replaced
    /// before it is used: it may lead to the same server that hangs.
    pub(super) unanswered: Option<Instant>,
}

/// What is known of one worker.
#[derive(Default)]
pub(super) struct Member {
    /// When its connection last answered; `None` if it has none.
    pub(super) answered: Option<Instant>,
    /// Wakes it, if it waits for something to do.
    pub(super) idle: Option<Arc<Notify>>,
}

impl Crew {
    /// How long to wait before another worker is started; `None` if none is.
    pub(super) fn may_grow(&mut self, max: usize) -> Option<Duration> {
        let is_refused = self.refused.is_some_and(|(pause, since)| since.elapsed() < pause);
        let is_any_idle = self.members.values().any(|member| member.idle.is_some());
        let is_first = self.members.is_empty();
        if is_any_idle || self.is_starting || self.members.len() >= max || (is_refused && !is_first) {
            return None;
        }
        self.is_starting = true;
        Some(if is_first { Duration::ZERO } else { HELD_UP })
    }

    pub(super) fn enlist(&mut self) -> u64 {
        self.last_number += 1;
        self.members.insert(self.last_number, Member::default());
        self.last_number
    }

    pub(super) fn others(&self, number: u64) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(move |(other, _)| **other != number).map(|(_, member)| member)
    }

    /// Whether another connection works, after this one has failed. If the server declines, it does answer. If it
    /// cannot be reached, only an answer since then shows that another connection can reach it.
    pub(super) fn do_others_work(&self, number: u64, failure: &Failure, begun: Instant) -> bool {
        let has_declined = matches!(failure.remedy, Remedy::NotNow | Remedy::Fix);
        self.others(number)
            .any(|other| other.answered.is_some_and(|answered| has_declined || answered >= begun))
    }

    pub(super) fn set_answered(&mut self, number: u64, answered: Option<Instant>) {
        if let Some(member) = self.members.get_mut(&number) {
            member.answered = answered;
        }
    }

    /// No further connection is opened for a while.
    pub(super) fn pause_growing(&mut self) {
        let pause = self.refused.map_or(REFUSED_PAUSES.0, |(pause, _)| (pause * 2).min(REFUSED_PAUSES.1));
        self.refused = Some((pause, Instant::now()));
    }
}
