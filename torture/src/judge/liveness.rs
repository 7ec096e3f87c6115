//! I5: whoever waits is served 100 ms and two answers of the store after a release, a second after the store has refused what
//! was released meanwhile, and a lease and a second after anything worse.
//!
//! What matters is for how long somebody waits while everything that anybody could ask for is free: a holder may hold
//! for as long as it likes.

use super::answers::Answers;
use super::{Bounds, End, Hold, Rule, Verdict, words};
use crate::history::{Effect, History, Micros, Operation, Refusal, Site};

/// How much longer a hand-over takes at most while a client does not run now and then.
const STALLED: Micros = 1_000_000;

pub(super) fn judge(
    history: &History,
    site: &Site,
    operations: &[&Operation],
    holds: &[Hold<'_>],
    answers: &Answers,
    bounds: &Bounds,
    verdict: &mut Verdict,
) {
    for operation in operations.iter().filter(|operation| operation.request.waits_forever) {
        if let Some((at, Err(refusal @ (Refusal::Failed | Refusal::TimedOut)))) = operation.returned {
            verdict.broken(Rule::I5, at, format!("{}: {refusal:?}", words(operation)));
        }
    }
    let troubles = &Troubles::of(history, answers);
    let most = operations.iter().map(|operation| operation.request.permits).max().unwrap_or(1);
    let mut free = Free { site, most, held: 0, waiting: 0, since: None, was_released: true };
    for (at, change) in changes(history, site, operations, holds) {
        if let Some(span) = free.follow(at, change) {
            check(site, span, troubles, bounds, verdict);
        }
    }
    if let Some(since) = free.since {
        let span = Span { since, to: history.end, was_released: free.was_released };
        check(site, span, troubles, bounds, verdict);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Leaves,
    Ends { permits: u32, was_released: bool },
    Begins { permits: u32 },
    Waits,
    Resized,
}

/// In the order of time: whoever is served has waited until then.
fn changes(
    history: &History,
    site: &Site,
    operations: &[&Operation],
    holds: &[Hold<'_>],
) -> Vec<(Micros, Change)> {
    let clients = super::Clients::of(history);
    let mut changes = Vec::with_capacity(2 * (operations.len() + holds.len()));
    for operation in operations {
        let left = clients.left(operation, history.end);
        let permits = operation.request.permits;
        changes.extend(match operation.request.together {
            None => [(operation.asked, Change::Waits), (left, Change::Leaves)],
            // It may hold this one while it waits for another.
            Some(_) => [
                (operation.asked, Change::Begins { permits }),
                (left, Change::Ends { permits, was_released: true }),
            ],
        });
    }
    for hold in holds {
        let permits = hold.operation.request.permits;
        let was_released = matches!(hold.end, End::Released | End::HandedOver);
        changes.extend([
            (hold.from, Change::Begins { permits }),
            (hold.reserved, Change::Ends { permits, was_released }),
        ]);
    }
    changes.extend(
        site.limits.iter().flat_map(|limit| [(limit.from, Change::Resized), (limit.to, Change::Resized)]),
    );
    changes.retain(|(at, _)| *at < Micros::MAX);
    changes.sort_by_key(|(at, change)| {
        let first = match change {
            Change::Waits | Change::Resized => 0,
            Change::Begins { .. } => 1,
            Change::Leaves => 2,
            Change::Ends { .. } => 3,
        };
        (*at, first)
    });
    changes
}

/// Whether somebody waits though everything is free, and since when.
struct Free<'a> {
    site: &'a Site,
    /// As much as anybody asks for.
    most: u32,
    held: i64,
    waiting: i64,
    since: Option<Micros>,
    /// Whether what was held last was released.
    was_released: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) since: Micros,
    pub(super) to: Micros,
    pub(super) was_released: bool,
}

impl Free<'_> {
    /// Returns for how long somebody has waited in vain, if that is over.
    fn follow(&mut self, at: Micros, change: Change) -> Option<Span> {
        match change {
            Change::Waits => self.waiting += 1,
            Change::Leaves => self.waiting -= 1,
            Change::Resized => {}
            Change::Begins { permits } => self.held += i64::from(permits),
            Change::Ends { permits, was_released } => {
                self.held -= i64::from(permits);
                self.was_released = was_released;
            }
        }
        let room = i64::from(self.site.least_limit(at)) - self.held;
        let waits_in_vain = self.waiting > 0 && room >= i64::from(self.most);
        let was = self.since;
        if waits_in_vain && !matches!(change, Change::Begins { .. }) {
            self.since = was.or(Some(at));
            return None;
        }
        // Somebody was served, or nobody waits: for the others, it begins anew.
        self.since = waits_in_vain.then_some(at);
        was.map(|since| Span { since, to: at, was_released: self.was_released })
    }
}

/// What may be the reason for a wait.
pub(super) struct Troubles<'a> {
    refusals: Faults<'a>,
    worse: Faults<'a>,
    stalls: Stalls,
    answers: &'a Answers,
}

impl<'a> Troubles<'a> {
    pub(super) fn of(history: &'a History, answers: &'a Answers) -> Self {
        Self {
            refusals: Faults::of(history, |effect| effect == Effect::Refuses),
            // Without what is over at once, and what delays nobody.
            worse: Faults::of(history, |effect| {
                !matches!(effect, Effect::Refuses | Effect::Stalls { .. }) && effect.is_fault()
            }),
            stalls: Stalls::of(history),
            answers,
        }
    }
}

/// Faults of a kind, and the latest end of all that have begun by then.
struct Faults<'a>(Vec<(Micros, Micros, &'a str)>);

impl<'a> Faults<'a> {
    fn of(history: &'a History, is_meant: impl Fn(Effect) -> bool) -> Self {
        let (mut latest, mut what) = (0, "");
        Self(
            history
                .faults
                .iter()
                .filter(|fault| is_meant(fault.effect))
                .map(|fault| {
                    if fault.ended >= latest {
                        (latest, what) = (fault.ended, &fault.what);
                    }
                    (fault.began, latest, what)
                })
                .collect(),
        )
    }

    /// The one that ends last, of those that have begun by the end of this time, if it does so no longer than `within`
    /// before the time begins.
    fn before(&self, span: Span, within: Micros) -> Option<(Micros, &'a str)> {
        let begun = self.0.partition_point(|(began, ..)| *began <= span.to);
        let last = self.0[..begun].last().map(|(_, ended, what)| (*ended, *what));
        last.filter(|(ended, _)| ended + within > span.since)
    }
}

/// When a client did not run, though nobody had stopped it: then nothing is served at once, but all the same in the time
/// that there is for anything worse, however often that happens.
struct Stalls(Vec<(Micros, Micros)>);

impl Stalls {
    fn of(history: &History) -> Self {
        let stalls = history.faults.iter().filter(|fault| matches!(fault.effect, Effect::Stalls { .. }));
        let mut latest = 0;
        Self(
            stalls
                .map(|fault| {
                    latest = latest.max(fault.ended);
                    (fault.began, latest)
                })
                .collect(),
        )
    }

    fn touch(&self, from: Micros, to: Micros) -> bool {
        let begun = self.0.partition_point(|(began, _)| *began <= to);
        self.0[..begun].last().is_some_and(|(_, ended)| from <= *ended)
    }
}

pub(super) fn check(
    site: &Site,
    span: Span,
    troubles: &Troubles<'_>,
    bounds: &Bounds,
    verdict: &mut Verdict,
) {
    let worse = site.lease + bounds.recovered;
    let calm = span.since
        + match (span.was_released, troubles.stalls.touch(span.since, span.to)) {
            (true, false) => {
                bounds.handed_over + bounds.answers * troubles.answers.slowest(span.since, span.to)
            }
            (true, true) => site.lease.min(STALLED) + bounds.recovered,
            (false, _) => worse,
        };
    let (refusal, fault) =
        (troubles.refusals.before(span, bounds.recovered), troubles.worse.before(span, worse));
    let bound = refusal.map_or(calm, |(ended, _)| calm.max(ended + bounds.recovered));
    let bound = fault.map_or(bound, |(ended, _)| bound.max(ended + worse));
    let fault = refusal.into_iter().chain(fault).max_by_key(|(ended, _)| *ended);
    if let Some((ended, what)) = fault {
        let waited = span.to.saturating_sub(ended.max(span.since));
        let longest = verdict.recovery.entry(what.to_owned()).or_default();
        *longest = (*longest).max(waited);
    }
    if span.to > bound {
        let after = fault.map_or("no fault", |(_, what)| what);
        let what = format!(
            "{}: somebody waits from {} to {} though it is free, after {after}",
            site.name, span.since, span.to
        );
        verdict.broken(Rule::I5, span.to, what);
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Effect;
    use crate::judge::Rule::I5;
    use crate::judge::example::{Example, FAIR, LEASE, LOCK};

    #[test]
    fn i5_a_waiter_waits_long_after_a_release() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, 100_009..100_020, 200);
        run.is_fine();
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, 100_011..100_020, 200);
        run.breaks(I5);
    }

    #[test]
    fn i5_a_waiter_waits_for_longer_than_two_answers_of_a_slow_store() {
        for (waits, is_fine) in [(180_000, true), (180_001, false)] {
            let mut run = Example::default();
            run.hold(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, 10 + waits..20 + waits, 200);
            run.hold(LOCK + 1, 3, 0..30_000, 100).is_released(70_000);
            run.hold(LOCK + 1, 3, 300_000..300_001, 101).is_released(400_000);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn i5_a_waiter_waits_for_longer_than_a_dead_holder_s_lease() {
        for (late, is_fine) in [(1_000_000, true), (1_000_001, false)] {
            let mut run = Example::default();
            let served = 500 + LEASE + late;
            run.forget(LOCK, 1, 0, 100).wait(LOCK, 2, 5, served..served + 10, 200);
            run.fault(500..500, "kill", Effect::Kills { client: 1 });
            if is_fine {
                assert_eq!(run.is_fine().recovery["kill"], LEASE + late);
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn i5_a_release_that_the_store_has_refused_is_not_repeated() {
        for (late, is_fine) in [(1_000_000, true), (1_000_001, false)] {
            let mut run = Example::default();
            run.hold(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, 500 + late..510 + late, 200);
            run.fault(5..500, "refuse", Effect::Refuses);
            if is_fine {
                assert_eq!(run.is_fine().recovery["refuse"], late);
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn a_holder_that_was_lost_while_the_store_refused_has_a_lease_and_a_second() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, LEASE + 900_000..LEASE + 900_010, 200);
        run.fault(5..500, "refuse", Effect::Refuses);
        run.is_fine();
    }

    #[test]
    fn i5_a_waiter_waits_long_though_others_give_up_meanwhile() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, 150_000..150_020, 200);
        run.drop_request(LOCK, 3, 7, 90_000);
        run.breaks(I5);
    }

    #[test]
    fn while_somebody_holds_a_waiter_waits_for_as_long_as_that_takes() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..90_000_000, 100).wait(LOCK, 2, 5, 90_000_100..90_000_200, 200);
        run.is_fine();
    }

    #[test]
    fn i5_a_waiter_waits_long_on_a_machine_that_is_busy_all_the_time() {
        for (waits, is_fine) in [(150_000, true), (LEASE + 1_000_001, false)] {
            let mut run = Example::default();
            run.hold(LOCK, 1, 0..10, 100).wait(LOCK, 2, 5, 10 + waits..20 + waits, 200);
            for at in 0..300 {
                run.fault(at * 10_000..at * 10_000 + 9_000, "busy", Effect::Stalls { client: 3 });
            }
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn i5_a_waiter_waits_long_though_the_limit_was_increased() {
        for (waits, is_fine) in [(100_000, true), (100_001, false)] {
            let mut run = Example::default();
            run.resize(FAIR, 5..20, 3).hold(FAIR, 1, 0..300_000, 100).hold(FAIR, 2, 0..300_000, 200);
            run.wait(FAIR, 3, 1, 20 + waits..30 + waits, 300);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn i5_a_ticket_that_is_lost_keeps_waiters_for_longer_than_its_lease() {
        for (late, is_fine) in [(LEASE + 1_000_000, true), (LEASE + 1_000_001, false)] {
            let mut run = Example::default();
            run.forget(LOCK, 1, 0, 100).until(LEASE).lose_ticket(10);
            run.wait(LOCK, 2, 5, LEASE + late..LEASE + late + 10, 200);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn i5_a_waiter_waits_long_after_the_end_of_what_was_handed_over() {
        for (waits, is_fine) in [(100_000, true), (100_001, false)] {
            let mut run = Example::default();
            run.forget(LOCK, 1, 0, 100).hand_over(LOCK, 10, 3, 200_000, 400_000..500_000, 100);
            run.wait(LOCK, 2, 5, 500_000 + waits..600_001, 200);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn i5_a_request_without_a_limit_of_time_fails() {
        let mut run = Example::default();
        run.fail(LOCK, 1, 0, 10);
        run.breaks(I5);
    }

    #[test]
    fn i5_a_request_is_never_answered() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).ask(LOCK, 2, 5).hold(LOCK + 1, 3, 0..200_000, 100);
        run.breaks(I5);
    }
}
