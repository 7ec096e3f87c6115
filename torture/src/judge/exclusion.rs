//! I1: no more is held at once than the limit.

use std::collections::{BTreeMap, BTreeSet};

use super::{Breaks, Hold, Rule, Verdict, words};
use crate::history::{Effect, History, Micros, Site};

pub(super) fn judge(
    history: &History,
    site: &Site,
    holds: &[Hold<'_>],
    breaks: &Breaks<'_>,
    verdict: &mut Verdict,
) {
    let excuses = Excuses::of(history, site.lease);
    // By their ends.
    let mut held: BTreeSet<(Micros, usize)> = BTreeSet::new();
    let mut taken = Taken::default();
    for (index, hold) in holds.iter().enumerate() {
        while let Some((_, ended)) = held.first().copied().filter(|(end, _)| *end <= hold.from) {
            taken.remove(&holds[ended]);
            held.pop_first();
        }
        taken.add(hold);
        held.insert((hold.to, index));
        // Nothing is taken away when it is reduced.
        let limit = site.greatest_limit(hold.asked, hold.from);
        if taken.permits > u64::from(limit) {
            let all = held.iter().map(|(_, index)| holds[*index].operation);
            if excuses.cover(hold.from) || site.is_lock() && breaks.explain(all, hold.from) {
                verdict.excused += 1;
                continue;
            }
            let others = held.iter().map(|(_, other)| *other).filter(|other| *other != index);
            let beside: Vec<_> = others.map(|other| words(holds[other].operation)).collect();
            let what = format!(
                "{}: {} of {limit} permits are held, beside {}",
                words(hold.operation),
                taken.permits,
                beside.join("; ")
            );
            verdict.broken(Rule::I1, hold.from, what);
        }
    }
}

/// The permits that are held; an owner takes its lock once.
#[derive(Default)]
struct Taken {
    permits: u64,
    owners: BTreeMap<u32, usize>,
}

impl Taken {
    fn add(&mut self, hold: &Hold<'_>) {
        let request = &hold.operation.request;
        let holds = request.owner.map(|owner| self.owners.entry(owner).or_default());
        let is_first = holds.is_none_or(|holds| {
            *holds += 1;
            *holds == 1
        });
        self.permits += if is_first { u64::from(request.permits) } else { 0 };
    }

    fn remove(&mut self, hold: &Hold<'_>) {
        let request = &hold.operation.request;
        let holds = request.owner.and_then(|owner| self.owners.get_mut(&owner));
        let is_last = holds.is_none_or(|holds| {
            *holds -= 1;
            *holds == 0
        });
        self.permits -= if is_last { u64::from(request.permits) } else { 0 };
    }
}

/// When exclusion is not promised.
pub(super) struct Excuses(Vec<(Micros, Micros)>);

impl Excuses {
    pub(super) fn of(history: &History, lease: Micros) -> Self {
        let forgets = history.faults.iter().filter(|fault| fault.effect == Effect::Forgets);
        let mut latest = 0;
        // With the latest end of all that have begun by then.
        Self(
            forgets
                .map(|fault| {
                    latest = latest.max(fault.ended + lease);
                    (fault.began, latest)
                })
                .collect(),
        )
    }

    pub(super) fn cover(&self, at: Micros) -> bool {
        let begun = self.0.partition_point(|(began, _)| *began <= at);
        self.0[..begun].last().is_some_and(|(_, ended)| at <= *ended)
    }

    /// Whether any of them is between these moments.
    pub(super) fn touch(&self, from: Micros, to: Micros) -> bool {
        let begun = self.0.partition_point(|(began, _)| *began <= to);
        self.0[..begun].last().is_some_and(|(_, ended)| from <= *ended)
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Effect;
    use crate::judge::Rule::{I1, I4};
    use crate::judge::example::{Example, FAIR, IN_TURN, LOCK, OWNED};

    #[test]
    fn holds_one_after_another_are_fine() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).hold(LOCK, 2, 10..20, 200);
        run.is_fine();
    }

    #[test]
    fn i1_two_hold_a_lock() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).hold(LOCK, 2, 9..20, 200);
        run.breaks(I1);
    }

    #[test]
    fn i1_three_hold_two_permits() {
        let mut run = Example::default();
        run.hold(FAIR, 1, 0..10, 100).hold(FAIR, 2, 1..10, 200);
        run.is_fine();
        run.hold(FAIR, 3, 2..10, 300);
        run.breaks(I1);
    }

    #[test]
    fn i1_an_owner_excludes_others_and_not_itself() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..10, 100).hold_as(OWNED, 2, 7, 5..15, 100);
        run.is_fine();
        run.hold_as(OWNED, 3, 8, 12..20, 200);
        run.breaks(I1);
    }

    #[test]
    fn i1_a_holder_that_is_told_late_has_held_until_then() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..12, 100).hold(LOCK, 2, 11..20, 200);
        run.breaks(I1);
    }

    #[test]
    fn a_holder_that_is_stopped_holds_nothing_after_its_deadline() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..1_000, 100).until(500).hold(LOCK, 2, 600..700, 200);
        run.fault(400..990, "stop", Effect::Pauses { client: 1 });
        run.is_fine();
    }

    #[test]
    fn a_holder_that_is_stopped_again_before_it_could_be_told_holds_nothing_in_between() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..1_200_000, 100).until(500_000).hold(LOCK, 2, 600_000..700_000, 200);
        run.fault(400_000..990_000, "stop", Effect::Pauses { client: 1 });
        run.fault(399_000..1_000_000, "busy", Effect::Pauses { client: 1 });
        run.fault(1_030_000..1_190_000, "busy", Effect::Pauses { client: 1 });
        run.is_fine();
    }

    #[test]
    fn a_holder_that_is_stopped_when_it_has_done_its_work_holds_nothing_after_its_deadline() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..1_000, 100).until(500).hold(LOCK, 2, 600..700, 200);
        run.fault(400..990, "stop", Effect::Pauses { client: 1 });
        run.is_fine();
    }

    #[test]
    fn i1_a_holder_goes_on_after_it_was_stopped() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..1_100_000, 100).until(500_000).hold(LOCK, 2, 600_000..700_000, 200);
        run.fault(400_000..990_000, "stop", Effect::Pauses { client: 1 });
        let (_, verdict) = run.judged();
        assert_eq!((verdict.count(I1), verdict.count(I4)), (1, 1), "nobody was told either");
    }

    #[test]
    fn i1_a_holder_that_is_stopped_holds_until_its_deadline() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..1_000, 100).until(500).hold(LOCK, 2, 450..700, 200);
        run.fault(400..990, "stop", Effect::Pauses { client: 1 });
        run.breaks(I1);
    }

    #[test]
    fn an_overlap_after_the_store_has_forgotten_is_counted_and_no_violation() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..1_000, 100).hold(LOCK, 2, 600..700, 200);
        run.fault(500..510, "flush", Effect::Forgets);
        assert_eq!(run.is_fine().excused, 1);
    }

    #[test]
    fn a_limit_that_is_reduced_takes_nothing_away() {
        let mut run = Example::default();
        run.resize(FAIR, 4..5, 1).hold(FAIR, 1, 0..10, 100).hold(FAIR, 2, 3..10, 200);
        run.is_fine();
        run.hold(FAIR, 3, 6..8, 300);
        run.breaks(I1);
    }

    #[test]
    fn while_a_limit_changes_the_larger_one_counts() {
        for (permits, at) in [(3, 4), (3, 5), (3, 9), (1, 4), (1, 5)] {
            let mut run = Example::default();
            run.resize(FAIR, 4..5, permits).hold(FAIR, 1, 0..10, 100).wait(FAIR, 2, at, at..10, 200);
            run.is_fine();
            if permits > 2 {
                run.wait(FAIR, 3, at, at..10, 300);
                run.is_fine();
            }
            run.wait(FAIR, 4, at, at..10, 400);
            run.breaks(I1);
        }
    }

    #[test]
    fn i1_a_limit_is_exceeded_before_it_is_increased() {
        let mut run = Example::default();
        run.resize(FAIR, 4..5, 3);
        run.hold(FAIR, 1, 0..10, 100).hold(FAIR, 2, 1..10, 200).hold(FAIR, 3, 3..10, 300);
        run.breaks(I1);
    }

    #[test]
    fn i1_a_limit_is_exceeded_after_it_was_reduced() {
        let mut run = Example::default();
        run.resize(FAIR, 4..5, 1).hold(FAIR, 1, 0..10, 100).hold(FAIR, 2, 6..10, 200);
        run.breaks(I1);
    }

    #[test]
    fn i1_what_was_handed_over_is_held_until_somebody_goes_on() {
        let mut run = Example::default();
        run.forget(LOCK, 1, 0, 100).hand_over(LOCK, 5, 2, 20, 30..40, 100);
        run.hold(LOCK, 3, 40..50, 200);
        run.is_fine();
        let mut run = Example::default();
        run.forget(LOCK, 1, 0, 100).hand_over(LOCK, 5, 2, 20, 30..40, 100);
        run.hold(LOCK, 3, 10..15, 50);
        assert_eq!(run.count(I1), 1);
    }

    #[test]
    fn i1_somebody_goes_on_though_another_one_was_granted_meanwhile() {
        let mut run = Example::default();
        run.forget(LOCK, 1, 0, 100).hand_over(LOCK, 5, 2, 6, 30..40, 100);
        run.hold(LOCK, 3, 10..35, 200);
        assert!(run.count(I1) > 0);
    }

    #[test]
    fn what_goes_on_may_exceed_a_limit_that_was_reduced_meanwhile() {
        let mut run = Example::default();
        run.hold(FAIR, 1, 0..90, 100).forget(FAIR, 2, 0, 200);
        run.hand_over(FAIR, 20, 3, 30, 31..80, 200).resize(FAIR, 10..11, 1);
        run.is_fine();
        run.hold(FAIR, 4, 50..60, 300);
        run.breaks(I1);
    }

    #[test]
    fn readers_come_in_when_a_writer_has_become_a_reader() {
        let mut run = Example::default();
        run.downgrade(IN_TURN, 1, 2, 0..10, 50, 100).hold(IN_TURN, 2, 10..20, 200);
        run.is_fine();
        run.hold(IN_TURN, 3, 15..20, 300);
        run.breaks(I1);
        let mut run = Example::default();
        run.downgrade(IN_TURN, 1, 2, 0..10, 50, 100).hold(IN_TURN, 2, 9..20, 200);
        run.breaks(I1);
    }
}
