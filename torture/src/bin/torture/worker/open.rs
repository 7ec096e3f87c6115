//! What is noted when a task ends with its runtime, in the middle of what it does.

use std::sync::Arc;

use leasehold_torture::history::{HoldId, Refusal, What};

use super::Shared;

/// Requests without an answer: if nobody waits for it any more, they are given up.
pub(super) struct Pending {
    shared: Arc<Shared>,
    holds: Vec<HoldId>,
}

impl Pending {
    pub(super) fn new(shared: &Arc<Shared>, holds: Vec<HoldId>) -> Self {
        Self { shared: Arc::clone(shared), holds }
    }

    /// There is an answer.
    pub(super) fn answered(mut self) {
        self.holds.clear();
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.holds.iter().for_each(|hold| self.shared.log.event(*hold, What::Refused(Refusal::Dropped)));
    }
}

/// What is held: if nobody lets go of it, it is dropped.
pub(super) struct Holding<T> {
    shared: Arc<Shared>,
    holds: Vec<HoldId>,
    held: Option<T>,
}

impl<T> Holding<T> {
    pub(super) fn new(shared: &Arc<Shared>, holds: Vec<HoldId>, held: T) -> Self {
        Self { shared: Arc::clone(shared), holds, held: Some(held) }
    }

    pub(super) const fn get(&self) -> Option<&T> {
        self.held.as_ref()
    }

    /// To let go of it.
    pub(super) fn take(mut self) -> Option<T> {
        self.held.take()
    }
}

impl<T> Drop for Holding<T> {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.holds.iter().for_each(|hold| self.shared.log.event(*hold, What::Releasing));
        }
        drop(self.held.take());
    }
}
