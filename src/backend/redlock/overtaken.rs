//! Requests that a release may have overtaken. No I/O.
//!
//! A decision needs a majority, so a lease can be released while its request is still on its way to other nodes.
//! Usually they execute it first, because it was sent first. But a node that does not know the script, or is being
//! connected to, gets the request again or later, and may get the release before it: then nothing would end what it
//! grants.

use parking_lot::Mutex;

use crate::backend::{LeaseId, Released};
use crate::hash::HashMap;

/// The leases that were released while their requests were on the way to some nodes, by the numbers in their ids.
#[derive(Debug, Default)]
pub(super) struct Overtaken(Mutex<HashMap<u64, Answers>>);

/// The answers of those nodes, to the request and to the release. Each field is a set of nodes, as bits.
#[derive(Debug)]
struct Answers {
    /// Those for which one of the two is still missing.
    open: u32,
    /// Those that have answered the request,
    answered: u32,
    /// and have granted it, or given it a place.
    granted: u32,
    /// Those that have answered the release,
    released: u32,
    /// and had something to release.
    held: u32,
}

impl Overtaken {
    /// A lease is released while its request is on the way to these nodes.
    pub(super) fn add(&self, id: LeaseId, nodes: u32) {
        if nodes != 0 {
            let answers = Answers { open: nodes, answered: 0, granted: 0, released: 0, held: 0 };
            self.0.lock().insert(id.sequence(), answers);
        }
    }

    /// A node has answered the request, or never will. Returns whether it must release the lease, perhaps again.
    pub(super) fn answered(&self, id: LeaseId, node: usize, granted: bool) -> bool {
        self.record(id, node, |answers, bit| {
            let first = answers.answered & bit == 0;
            answers.answered |= bit;
            if granted {
                answers.granted |= bit;
            }
            first
        })
        .unwrap_or(granted)
    }

    /// A node has answered the release. Returns whether it must release the lease again.
    pub(super) fn released(&self, id: LeaseId, node: usize, released: Released) -> bool {
        let held = !matches!(released, Released::Absent | Released::Taken);
        self.record(id, node, |answers, bit| {
            answers.released |= bit;
            if held {
                answers.held |= bit;
            }
            true
        })
        .unwrap_or(false)
    }

    /// `None` if nothing is known of this lease and node, or `take` says that it is not enough.
    fn record(&self, id: LeaseId, node: usize, take: impl FnOnce(&mut Answers, u32) -> bool) -> Option<bool> {
        let mut all = self.0.lock();
        let bit = 1 << node;
        let answers = all.get_mut(&id.sequence()).filter(|answers| answers.open & bit != 0)?;
        let is_enough = take(answers, bit);
        if answers.answered & answers.released & bit != 0 {
            answers.open &= !bit;
        }
        let again = answers.granted & answers.released & !answers.held & bit != 0;
        if answers.open == 0 {
            all.remove(&id.sequence());
        }
        is_enough.then_some(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn what_was_granted_after_its_release_is_released_again() {
        let all = Overtaken::default();
        // The order in which the answers arrive does not matter.
        for late_first in [true, false] {
            for (held, granted, again) in [
                (Released::Held, true, false),
                (Released::Absent, true, true),
                (Released::Taken, false, false),
                (Released::Queued, true, false),
            ] {
                let id = LeaseId::next(Uuid::nil());
                all.add(id, 0b110);
                let told = if late_first {
                    [all.answered(id, 1, granted), all.released(id, 1, held)]
                } else {
                    [all.released(id, 1, held), all.answered(id, 1, granted)]
                };
                assert_eq!(told, [false, again], "{late_first} {held:?} {granted}");
                // A request that was repeated, and is answered once more.
                assert!(all.answered(id, 1, true) && !all.answered(id, 1, false));
                assert!(!all.released(id, 0, Released::Absent), "its request had been answered");
                assert!(!all.released(id, 2, Released::Absent) && !all.answered(id, 2, false));
                assert!(all.0.lock().is_empty());
            }
        }
    }

    #[test]
    fn a_grant_of_which_nothing_is_known_is_released() {
        let (all, id) = (Overtaken::default(), LeaseId::next(Uuid::nil()));
        assert!(
            all.answered(id, 0, true)
                && !all.answered(id, 0, false)
                && !all.released(id, 0, Released::Absent)
        );
        all.add(id, 0);
        assert!(all.0.lock().is_empty());
    }
}
