//! I4: a loss is told within 50 ms of the deadline. (That it is told before another client's grant returns is a part of
//! I1, because what is lost counts as held until that is told.)

use super::{Bounds, Clients, Rule, Verdict, words};
use crate::history::{History, Operation};

pub(super) fn judge(history: &History, bounds: &Bounds, verdict: &mut Verdict) {
    let clients = Clients::of(history);
    for operation in history.operations.iter().filter(|operation| operation.granted().is_some()) {
        if let Some(late) = lateness(history, &clients, operation, bounds) {
            let what = format!("{}: {late} us after its deadline, nobody was told", words(operation));
            verdict.broken(Rule::I4, operation.until.unwrap_or_default(), what);
        }
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
    use crate::history::Effect;
    use crate::judge::Rule::I4;
    use crate::judge::example::{Example, LOCK};

    #[test]
    fn a_loss_that_is_told_in_time_is_fine() {
        let mut run = Example::default();
        run.lose(LOCK, 1, 0..540_000, 100).until(500_000);
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
