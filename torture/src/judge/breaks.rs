//! What an operator has released by force.
//!
//! The holder is told at once, or by its next renewal (I4). Until then it believes to hold, beside whoever was granted
//! it next: then the smaller token is that of what was released, and data that checks tokens is safe. So I1 is judged by
//! tokens: of those who hold at once, all but the one with the greatest token must be what was released, one lease for
//! each release.

use std::collections::BTreeMap;

use super::{Bounds, Clients, End, Hold, Rule, Verdict, is_same_owner, words};
use crate::history::{Effect, History, Loss, Micros, Operation};

/// How many tokens a grant has: it may be passed on within its client under as many.
const TOKENS_PER_GRANT: u64 = 16;
/// A lease is renewed when this part of it has passed.
const RENEWED_AFTER: u64 = 3;

/// The releases by force of one lock.
pub(super) struct Breaks<'a> {
    /// When they began and ended.
    all: Vec<(Micros, Micros)>,
    lease: Micros,
    /// The first request under each token.
    asked: BTreeMap<u64, &'a Operation>,
}

impl<'a> Breaks<'a> {
    pub(super) fn of(history: &History, site: usize, operations: &[&'a Operation]) -> Self {
        let here = history.faults.iter().filter(|fault| fault.effect == Effect::Breaks { site });
        let all: Vec<_> = here.map(|fault| (fault.began, fault.ended)).collect();
        let mut asked = BTreeMap::new();
        for operation in operations.iter().filter(|_| !all.is_empty()) {
            if let Some((_, token)) = operation.granted() {
                asked.entry(token).or_insert(*operation);
            }
        }
        Self { all, lease: history.sites[site].lease, asked }
    }

    /// Those of which a holder need not know yet: what is never renewed again has ended a lease later.
    fn unknown(&self, from: Micros, to: Micros) -> impl Iterator<Item = Micros> {
        let recent =
            self.all.iter().filter(move |(began, ended)| *began <= to && from <= *ended + self.lease);
        recent.map(|(_, ended)| *ended)
    }

    /// Whether somebody may hold what was released, at any of these moments.
    pub(super) fn touch(&self, from: Micros, to: Micros) -> bool {
        self.unknown(from, to).next().is_some()
    }

    /// Whether all of these can hold at once: all but the newest have what was released.
    pub(super) fn explain<'b>(&self, held: impl Iterator<Item = &'b Operation>, at: Micros) -> bool {
        let mut held: Vec<_> = held.filter_map(|one| Some((one.granted()?.1, one))).collect();
        held.sort_by_key(|(token, _)| *token);
        let Some((newest, _)) = held.last().copied() else { return true };
        held.retain(|(token, _)| *token < newest);
        let leases = held.chunk_by(|one, other| is_same_lease(*one, *other)).count();
        leases <= self.unknown(at, at).count() && held.iter().all(|one| self.may_be_released(*one, at))
    }

    /// Whether it was granted before a release, or is passed on within the client to which that had been granted, or is a
    /// further hold of its owner, whom nobody has told either.
    fn may_be_released(&self, (token, operation): (u64, &Operation), at: Micros) -> bool {
        let tokens = token.saturating_sub(TOKENS_PER_GRANT - 1)..=token;
        let is_of_lease = |(before, earlier): &(&u64, &&Operation)| {
            earlier.request.client == operation.request.client
                || **before == token && is_same_owner(earlier, operation)
        };
        let earlier = self.asked.range(tokens).filter(is_of_lease).map(|(_, earlier)| *earlier);
        let asked = earlier.map(|earlier| earlier.asked).min().unwrap_or(operation.asked);
        self.unknown(at, at).any(|ended| asked.min(operation.asked) <= ended)
    }

    /// I4: whoever held at a release is told of it, and nobody else is.
    pub(super) fn judge(&self, history: &History, held: &[Hold<'_>], bounds: &Bounds, verdict: &mut Verdict) {
        let told = self.lease / RENEWED_AFTER + bounds.handed_over;
        let clients = Clients::of(history);
        for (began, ended) in &self.all {
            let known = ended + told;
            if is_disturbed(history, began.saturating_sub(self.lease), known) {
                continue;
            }
            for hold in held.iter().filter(|hold| hold.from < *began && hold.to > *ended) {
                let was_stopped = clients.pause_before(hold.operation.request.client, known, told);
                let wrong = match (hold.end, hold.operation.loss) {
                    _ if hold.to > known && was_stopped.is_none() => {
                        "it was released by force, and nobody was told"
                    }
                    // Unless its deadline had passed by then.
                    (End::Lost, Some(Loss::Ended | Loss::Closed))
                        if hold.operation.until.is_some_and(|until| hold.to < until) =>
                    {
                        "it was released by force, and something else was told"
                    }
                    _ => continue,
                };
                verdict.broken(Rule::I4, *ended, format!("{}: {wrong}", words(hold.operation)));
            }
        }
        for hold in held.iter().filter(|hold| hold.operation.loss == Some(Loss::Revoked)) {
            let Hold { operation, to, .. } = hold;
            if !self.all.iter().any(|(began, ended)| operation.asked <= *ended && began <= to) {
                let what = format!("{}: nobody has released it by force, as it was told", words(operation));
                verdict.broken(Rule::I4, *to, what);
            }
        }
    }
}

/// A lease is passed on under the next tokens.
fn is_same_lease((token, one): (u64, &Operation), (next, other): (u64, &Operation)) -> bool {
    let is_passed_on = one.request.client == other.request.client && next - token < TOKENS_PER_GRANT;
    is_passed_on || is_same_owner(one, other)
}

/// Whether anything has gone wrong otherwise, so that a message or a renewal may be late.
fn is_disturbed(history: &History, from: Micros, to: Micros) -> bool {
    let is_harmful = |effect: Effect| effect.is_fault() && !matches!(effect, Effect::Stalls { .. });
    history.faults.iter().any(|fault| is_harmful(fault.effect) && fault.began <= to && from <= fault.ended)
}

#[cfg(test)]
mod tests {
    use crate::history::{Effect, Loss};
    use crate::judge::Rule::{I1, I2, I4};
    use crate::judge::example::{Example, LEASE, LOCK, OWNED, PASSED_ON};

    /// By the next renewal.
    const TOLD: u64 = LEASE / 3 + 100_000;

    #[test]
    fn what_was_released_by_force_is_held_beside_the_next_one_until_that_is_told() {
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..300, 100, Loss::Revoked).hold(LOCK, 2, 210..400, 200);
        run.break_by_force(LOCK, 200..205);
        assert_eq!(run.is_fine().excused, 1);
    }

    #[test]
    fn an_owner_holds_again_what_was_released_by_force_until_that_is_told() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..300, 100).hold_as(OWNED, 2, 8, 210..400, 200);
        run.hold_as(OWNED, 1, 7, 250..260, 100).break_by_force(OWNED, 200..205);
        assert_eq!(run.is_fine().excused, 2);
    }

    #[test]
    fn i1_two_hold_that_were_granted_after_a_release_by_force() {
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..300, 100, Loss::Revoked).hold(LOCK, 2, 210..400, 200);
        run.break_by_force(LOCK, 200..205);
        run.hold(LOCK, 3, 220..230, 300);
        run.breaks(I1);
    }

    #[test]
    fn i1_another_lock_was_released_by_force() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..300, 100).hold(LOCK, 2, 210..400, 200).break_by_force(LOCK + 1, 200..205);
        run.breaks(I1);
    }

    #[test]
    fn i1_the_first_of_two_had_asked_after_the_release_by_force() {
        let mut run = Example::default();
        run.break_by_force(LOCK, 200..205).hold(LOCK, 1, 206..300, 100).hold(LOCK, 2, 210..400, 200);
        run.breaks(I1);
    }

    #[test]
    fn i2_the_next_one_has_a_smaller_token_than_what_was_released_by_force() {
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..300, 200, Loss::Revoked).hold(LOCK, 2, 310..400, 100);
        run.break_by_force(LOCK, 200..205);
        run.breaks(I2);
    }

    #[test]
    fn what_was_released_by_force_is_passed_on_under_the_next_token_for_a_moment() {
        let mut run = Example::default();
        run.hold(PASSED_ON, 1, 0..220, 100).hold(PASSED_ON, 2, 210..400, 200);
        run.break_by_force(PASSED_ON, 200..205);
        run.wait(PASSED_ON, 1, 206, 221..230, 101);
        run.is_fine();
        run.wait(PASSED_ON, 3, 206, 240..250, 130);
        run.breaks(I1);
    }

    #[test]
    fn all_holds_of_an_owner_are_released_by_force_at_once() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..300, 100).hold_as(OWNED, 2, 7, 10..300, 100);
        run.break_by_force(OWNED, 200..205).hold_as(OWNED, 3, 8, 210..400, 200);
        run.is_fine();
        run.hold_as(OWNED, 4, 9, 220..400, 300);
        run.breaks(I1);
    }

    #[test]
    fn i4_a_holder_is_not_told_of_a_release_by_force() {
        for (late, is_fine) in [(TOLD, true), (TOLD + 1, false)] {
            let mut run = Example::default();
            run.lose_by(LOCK, 1, 0..20 + late, 100, Loss::Revoked).break_by_force(LOCK, 10..20);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I4);
            }
        }
    }

    #[test]
    fn i4_a_holder_is_told_something_else_of_a_release_by_force() {
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..30, 100, Loss::Ended).until(LEASE).break_by_force(LOCK, 10..20);
        run.breaks(I4);
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..LEASE, 100, Loss::Ended)
            .until(LEASE)
            .break_by_force(LOCK, LEASE - 9..LEASE - 5);
        run.is_fine();
    }

    #[test]
    fn i4_a_holder_is_told_of_a_release_by_force_that_never_was() {
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..30, 100, Loss::Revoked).break_by_force(LOCK + 1, 10..20);
        run.breaks(I4);
    }

    #[test]
    fn whoever_is_stopped_is_told_of_a_release_by_force_later() {
        let mut run = Example::default();
        run.lose_by(LOCK, 1, 0..TOLD + 200, 100, Loss::Revoked).break_by_force(LOCK, 10..20);
        run.fault(15..TOLD + 100, "stop", Effect::Pauses { client: 1 });
        run.is_fine();
    }
}
