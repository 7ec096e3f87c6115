//! I4: a loss is told within 50 ms of the deadline. (That it is told before another client's grant returns is a part of
//! I1, because what is lost counts as held until that is told.) And nothing is lost while nothing goes wrong.

use super::{Bounds, Clients, Rule, TOLD, Verdict, words};
use crate::history::{Effect, History, Loss, Micros, Operation};

pub(super) fn judge(history: &History, bounds: &Bounds, verdict: &mut Verdict) {
    let clients = Clients::of(history);
    let reasons = Reasons::of(history);
    for operation in history.operations.iter().filter(|operation| operation.granted().is_some()) {
        if let Some(late) = lateness(history, &clients, operation, bounds) {
            let what = format!("{}: {late} us after its deadline, nobody was told", words(operation));
            verdict.broken(Rule::I4, operation.until.unwrap_or_default(), what);
        }
        if let Some(at) = operation.lost.filter(|at| reasons.lack(history, operation, *at, bounds)) {
            let what =
                format!("{}: lost ({:?}), and nothing had gone wrong", words(operation), operation.loss);
            verdict.broken(Rule::I4, at, what);
        }
    }
}

/// Why something may be lost.
struct Reasons {
    /// From when, and the latest end of all that have begun by then.
    faults: Vec<(Micros, Micros)>,
    /// What was released by force, and from when.
    breaks: Vec<(usize, Micros)>,
}

impl Reasons {
    fn of(history: &History) -> Self {
        let mut latest = 0;
        let (mut faults, mut breaks) = (Vec::new(), Vec::new());
        for fault in &history.faults {
            match fault.effect {
                Effect::Breaks { site } => breaks.push((site, fault.began)),
                Effect::Resizes { .. } | Effect::Nothing | Effect::Kills { .. } => {}
                _ => {
                    latest = latest.max(fault.ended);
                    faults.push((fault.began, latest));
                }
            }
        }
        Self { faults, breaks }
    }

    /// Whether there is none for this loss. On a machine that is known to be busy, the store may have been late.
    fn lack(&self, history: &History, operation: &Operation, lost: Micros, bounds: &Bounds) -> bool {
        let is_busy = bounds.told > TOLD;
        let is_unexpected = match operation.loss {
            Some(Loss::Missing | Loss::Taken) => true,
            Some(Loss::Ended) => !is_busy,
            _ => false,
        };
        let site = operation.request.site;
        let from = operation.asked.saturating_sub(history.sites[site].lease);
        let begun = self.faults.partition_point(|(began, _)| *began <= lost);
        let had_fault = self.faults[..begun].last().is_some_and(|(_, ended)| from <= *ended);
        let was_broken = || self.breaks.iter().any(|(of, at)| *of == site && (from..=lost).contains(at));
        is_unexpected && !had_fault && !was_broken()
    }
}

/// By how much the deadline was passed before the holder was told, or had let go. `None` if it was told in time.
fn lateness(history: &History, clients: &Clients, operation: &Operation, bounds: &Bounds) -> Option<u64> {
    let until = operation.until?;
    let died = clients.killed.get(&operation.request.client).copied();
    let ends = [operation.lost, operation.releasing, died];
    let end = ends.into_iter().flatten().min().unwrap_or(history.end);
    // Whoever is stopped is told when it goes on.
    let from = match clients.pause_before(operation.request.client, end, bounds.told) {
        Some((began, ended)) if began <= until.saturating_add(bounds.told) => until.max(ended),
        _ => until,
    };
    let late = end.saturating_sub(from);
    (late > bounds.told).then_some(late)
}

#[cfg(test)]
mod tests {
    use crate::history::{Effect, Loss};
    use crate::judge::Rule::I4;
    use crate::judge::example::{Example, LEASE, LOCK};

    #[test]
    fn a_loss_that_is_told_in_time_is_fine() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..540_000, 100).until(500_000);
        run.is_fine();
    }

    #[test]
    fn i4_something_is_lost_though_nothing_goes_wrong() {
        for loss in [Loss::Ended, Loss::Missing, Loss::Taken] {
            let mut run = Example::default();
            run.lose_by(LOCK, 1, 2 * LEASE..2 * LEASE + 9, 100, loss);
            run.fault(LEASE - 2..LEASE - 1, "stop", Effect::Delays);
            run.fault(2 * LEASE..2 * LEASE, "kill", Effect::Kills { client: 2 });
            run.breaks(I4);
        }
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..9, 100, Loss::HeldTooLong);
        run.is_fine();
    }

    #[test]
    fn i4_a_loss_is_told_late() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..551_000, 100).until(500_000);
        run.breaks(I4);
    }

    #[test]
    fn i4_a_loss_is_never_told() {
        let mut run = Example::default();
        run.forget(LOCK, 1, 0, 100).until(500_000).hold(LOCK + 1, 2, 0..600_000, 200);
        run.breaks(I4);
    }

    #[test]
    fn whoever_is_stopped_or_dead_is_told_later_or_never() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..900_000, 100).until(500_000);
        run.fault(400_000..890_000, "stop", Effect::Pauses { client: 1 });
        run.is_fine();
        let mut run = Example::default();
        run.forget(LOCK, 1, 0, 100).until(500_000).hold(LOCK + 1, 2, 0..600_000, 200);
        run.fault(400_000..400_000, "kill", Effect::Kills { client: 1 });
        run.is_fine();
    }
}
