//! I7: grants follow the order of arrival, among those who are still there.
//!
//! Only what was asked so much earlier that it must have arrived earlier is compared, and only while nothing goes wrong:
//! a place may be lost with a connection that was held back for a lease.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::answers::Answers;
use super::{Bounds, Rule, Verdict, is_same_owner, words};
use crate::history::{Effect, History, Micros, Operation, Order, Refusal, Site};

pub(super) fn judge(
    history: &History,
    site: &Site,
    operations: &[&Operation],
    answers: &Answers,
    bounds: &Bounds,
    verdict: &mut Verdict,
) {
    if site.order == Order::Free {
        return;
    }
    let troubles = Troubles::of(history, site.lease);
    let mut waiting = Waiting::default();
    let mut holds: HashMap<u32, i64> = HashMap::new();
    // The tokens of owners: another hold under the same one was no further grant by the store.
    let mut tokens: HashMap<u32, u64> = HashMap::new();
    for (at, what, index) in changes(history, operations) {
        let operation = operations[index];
        let queue = if site.order == Order::WithinClients { Some(operation.request.client) } else { None };
        match what {
            Change::Asks => waiting.enter(queue, operation.asked, index),
            Change::Leaves => waiting.leave(queue, operation.asked, index),
            Change::Ends => {
                operation.request.owner.map(|owner| holds.entry(owner).and_modify(|holds| *holds -= 1));
            }
            Change::Granted => {
                waiting.leave(queue, operation.asked, index);
                let owner = operation.request.owner.map(|owner| holds.entry(owner).or_default());
                // An owner comes in again ahead of all, also while its last release is on its way.
                let token = operation.granted().map(|(_, token)| token);
                let last = operation.request.owner.zip(token).and_then(|of| tokens.insert(of.0, of.1));
                let re_enters = owner.is_some_and(|holds| {
                    *holds += 1;
                    *holds > 1 || last == token
                });
                let first = waiting.first(queue).map(|first| operations[first]);
                let Some(first) = first.filter(|first| !re_enters && !is_same_owner(first, operation)) else {
                    continue;
                };
                let is_earlier = |on_its_way| first.asked + on_its_way < operation.asked;
                // Both were granted, in this order, and returned in the other one.
                let was_first = site.ordered_tokens
                    && first.granted().zip(token).is_some_and(|((_, first), token)| first < token);
                // How slow the store was takes longest to find out.
                let is_late = is_earlier(bounds.on_its_way)
                    && !was_first
                    && !troubles.between(first.asked, at)
                    && is_earlier(bounds.on_its_way + answers.slowest(first.asked, operation.asked));
                if is_late {
                    let what = format!("{} before {}", words(operation), words(first));
                    verdict.broken(Rule::I7, at, what);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Asks,
    Granted,
    Leaves,
    Ends,
}

fn changes(history: &History, operations: &[&Operation]) -> Vec<(Micros, Change, usize)> {
    let clients = super::Clients::of(history);
    let mut changes = Vec::with_capacity(2 * operations.len());
    for (index, operation) in operations.iter().enumerate() {
        // It asks for one after another, so it has not asked for all of them by then; or it is granted nothing new.
        if operation.request.together.is_some() || operation.request.continues.is_some() {
            continue;
        }
        // It did not wait, however late its answer came, so it had no place.
        if matches!(operation.returned, Some((_, Err(Refusal::Busy)))) {
            continue;
        }
        changes.push((operation.asked, Change::Asks, index));
        let died = clients.killed.get(&operation.request.client).copied().unwrap_or(Micros::MAX);
        match operation.returned {
            Some((at, Ok(_))) => {
                changes.push((at, Change::Granted, index));
                let (end, _) = clients.end_of(operation, history.end, &Bounds::default());
                changes.push((end.max(at), Change::Ends, index));
            }
            Some((at, Err(_))) => changes.push((at, Change::Leaves, index)),
            None if died < Micros::MAX => changes.push((died.max(operation.asked), Change::Leaves, index)),
            None => {}
        }
    }
    changes.sort_unstable();
    changes
}

/// Who waits, by the time at which they asked.
#[derive(Default)]
struct Waiting(BTreeMap<Option<u32>, BTreeSet<(Micros, usize)>>);

impl Waiting {
    fn enter(&mut self, queue: Option<u32>, asked: Micros, index: usize) {
        self.0.entry(queue).or_default().insert((asked, index));
    }

    fn leave(&mut self, queue: Option<u32>, asked: Micros, index: usize) {
        self.0.entry(queue).or_default().remove(&(asked, index));
    }

    fn first(&self, queue: Option<u32>) -> Option<usize> {
        self.0.get(&queue)?.first().map(|(_, index)| *index)
    }
}

/// When something went wrong, and for a lease afterwards.
struct Troubles(Vec<(Micros, Micros)>);

impl Troubles {
    fn of(history: &History, lease: Micros) -> Self {
        let mut latest = 0;
        let harmful = history
            .faults
            .iter()
            .filter(|fault| !matches!(fault.effect, Effect::Kills { .. }) && fault.effect.is_fault());
        Self(
            harmful
                .map(|fault| {
                    let after = if matches!(fault.effect, Effect::Stalls { .. }) { 0 } else { lease };
                    latest = latest.max(fault.ended + after);
                    (fault.began, latest)
                })
                .collect(),
        )
    }

    fn between(&self, from: Micros, to: Micros) -> bool {
        let begun = self.0.partition_point(|(began, _)| *began <= to);
        self.0[..begun].last().is_some_and(|(_, ended)| from <= *ended)
    }
}

#[cfg(test)]
mod tests {
    use crate::history::{Effect, Refusal};
    use crate::judge::Rule::I7;
    use crate::judge::example::{Example, IN_TURN, LOCK, OWNED, PASSED_ON};

    const LONG: u64 = 200_000;

    #[test]
    fn i7_a_later_request_is_granted_first() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..2 * LONG, 100);
        run.wait(LOCK, 2, LONG, 2 * LONG + 1..2 * LONG + 2, 200);
        run.wait(LOCK, 3, 1, 2 * LONG + 3..2 * LONG + 4, 300);
        run.breaks(I7);
    }

    #[test]
    fn i7_what_was_granted_first_may_return_last() {
        for (token, is_fine) in [(200, true), (400, false)] {
            let mut run = Example::default();
            run.hold(IN_TURN, 1, 0..2 * LONG, 100).hold(IN_TURN, 4, 0..2 * LONG, 101);
            run.wait(IN_TURN, 2, LONG, 2 * LONG + 1..2 * LONG + 5, 300);
            run.wait(IN_TURN, 3, 1, 2 * LONG + 6..2 * LONG + 7, token);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I7);
            }
        }
    }

    #[test]
    fn i7_who_does_not_wait_and_is_refused_has_no_place() {
        for (refusal, is_fine) in [(Refusal::Busy, true), (Refusal::Dropped, false)] {
            let mut run = Example::default();
            run.hold(LOCK, 1, 0..2 * LONG, 100);
            run.wait(LOCK, 2, LONG, 2 * LONG + 1..2 * LONG + 2, 200);
            run.refuse(LOCK, 3, 1, 2 * LONG + 3, refusal);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I7);
            }
        }
    }

    #[test]
    fn requests_at_about_the_same_time_are_granted_in_any_order() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..LONG, 100);
        run.wait(LOCK, 2, 50_000, LONG + 1..LONG + 2, 200);
        run.wait(LOCK, 3, 1, LONG + 3..LONG + 4, 300);
        run.is_fine();
    }

    #[test]
    fn i7_a_request_is_on_its_way_for_as_long_as_an_answer_takes() {
        for (took, is_fine) in [(LONG, true), (10_000, false)] {
            let mut run = Example::default();
            run.hold(LOCK, 1, 0..2 * LONG, 100);
            run.hold(LOCK + 1, 1, 0..1_000, 100).is_released(1_000 + took);
            run.wait(LOCK, 2, LONG, 2 * LONG + 1..2 * LONG + 2, 200);
            run.wait(LOCK, 3, 1, 2 * LONG + 3..2 * LONG + 4, 300);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I7);
            }
        }
    }

    #[test]
    fn whoever_was_cut_off_may_have_lost_its_place() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..2 * LONG, 100);
        run.wait(LOCK, 2, LONG, 2 * LONG + 1..2 * LONG + 2, 200);
        run.wait(LOCK, 3, 1, 2 * LONG + 3..2 * LONG + 4, 300);
        run.fault(LONG..LONG + 1, "hold back", Effect::Delays);
        run.is_fine();
    }

    #[test]
    fn i7_among_the_tasks_of_a_client_that_passes_its_leases_on() {
        for (client, is_fine) in [(2, true), (3, false)] {
            let mut run = Example::default();
            run.hold(PASSED_ON, 1, 0..2 * LONG, 100);
            run.wait(PASSED_ON, client, LONG, 2 * LONG + 1..2 * LONG + 2, 200);
            run.wait(PASSED_ON, 3, 1, 2 * LONG + 3..2 * LONG + 4, 300);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I7);
            }
        }
    }

    #[test]
    fn i7_who_asks_for_several_has_no_place_yet_and_the_others_keep_theirs() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..2 * LONG, 100);
        run.wait(LOCK, 2, LONG, 2 * LONG + 1..2 * LONG + 2, 200);
        run.wait_together(&[LOCK, LOCK + 1], 3, 1, 2 * LONG + 3..2 * LONG + 4, 300);
        run.is_fine();
        run.wait(LOCK, 4, LONG + 1, 2 * LONG + 5..2 * LONG + 6, 400);
        run.wait(LOCK, 5, 1, 2 * LONG + 7..2 * LONG + 8, 500);
        run.breaks(I7);
    }

    #[test]
    fn an_owner_comes_in_again_ahead_of_all() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..2 * LONG, 100);
        run.wait_as(OWNED, 2, 8, 1, 2 * LONG + 1..2 * LONG + 2, 200);
        run.hold_as(OWNED, 3, 7, LONG..2 * LONG, 100);
        run.is_fine();
    }

    #[test]
    fn i7_an_owner_that_has_left_comes_in_ahead_of_others_under_a_new_token() {
        for (token, is_fine) in [(100, true), (150, false)] {
            let mut run = Example::default();
            run.hold_as(OWNED, 1, 7, 0..2 * LONG, 100);
            run.wait_as(OWNED, 2, 8, 1, 2 * LONG + 20..2 * LONG + 30, 200);
            run.hold_as(OWNED, 3, 7, 2 * LONG + 5..2 * LONG + 10, token);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I7);
            }
        }
    }
}
