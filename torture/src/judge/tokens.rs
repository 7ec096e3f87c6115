//! I2: tokens increase in the order of grants, and none is issued twice.
//!
//! A grant happened between its request and its return. Tokens show an order of grants; it is possible if every grant
//! can have happened after those with smaller tokens. For a lock it is known more exactly: what is returned later was
//! also granted later, because both are held, one after the other. (Unless the store has forgotten one of them, one was
//! released by force, or a client was stopped before it could return.)

use std::collections::HashMap;

use super::exclusion::Excuses;
use super::{Breaks, Clients, Rule, TOLD, Verdict, is_same_owner, words};
use crate::history::{History, HoldId, Micros, Operation, Order, Site};

pub(super) fn judge(
    history: &History,
    site: &Site,
    operations: &[&Operation],
    breaks: &Breaks<'_>,
    verdict: &mut Verdict,
) {
    let mut granted: Vec<Grant<'_>> =
        operations.iter().filter_map(|operation| Grant::of(operation)).collect();
    if site.is_lock() {
        sharpen(history, site, breaks, &mut granted);
    }
    granted.sort_by_key(|grant| (grant.token, grant.returned));
    check_nested(history, site, &granted, verdict);
    check_continued(&granted, verdict);
    check_twice(&granted, verdict);
    if site.ordered_tokens {
        check_order(&ordered_by_the_store(history, site, breaks, granted), verdict);
    }
}

struct Grant<'a> {
    operation: &'a Operation,
    token: u64,
    /// Not before then.
    earliest: Micros,
    returned: Micros,
}

impl<'a> Grant<'a> {
    fn of(operation: &'a Operation) -> Option<Self> {
        let (returned, token) = operation.granted()?;
        Some(Self { operation, token, earliest: operation.asked, returned })
    }
}

fn sharpen(history: &History, site: &Site, breaks: &Breaks<'_>, granted: &mut [Grant<'_>]) {
    let excuses = Excuses::of(history, site.lease);
    granted.sort_by_key(|grant| grant.returned);
    let clients = Clients::of(history);
    let (mut floor, mut last): (Micros, Option<&Grant<'_>>) = (0, None);
    for grant in granted {
        let client = grant.operation.request.client;
        // It was granted before the client was stopped, and returned when the client went on.
        if clients.pause_before(client, grant.returned, TOLD).is_some() {
            continue;
        }
        // The holds of one owner are held together. Which of two at the same moment was the first is not known.
        if let Some(last) = last.filter(|last| !is_same_owner(last.operation, grant.operation)) {
            floor = if last.returned < grant.returned { last.returned + 1 } else { floor };
        }
        if !excuses.touch(grant.earliest, grant.returned) && !breaks.touch(grant.earliest, grant.returned) {
            grant.earliest = grant.earliest.max(floor);
        }
        last = Some(grant);
    }
}

/// Those that the store has ordered. A client does not know at once that the store has no longer its lease, and passes
/// it on for a moment, under tokens that were its own before somebody else had greater ones.
fn ordered_by_the_store<'a>(
    history: &History,
    site: &Site,
    breaks: &Breaks<'_>,
    mut granted: Vec<Grant<'a>>,
) -> Vec<Grant<'a>> {
    if site.order == Order::WithinClients {
        let excuses = Excuses::of(history, site.lease);
        granted
            .retain(|grant| !excuses.cover(grant.returned) && !breaks.touch(grant.returned, grant.returned));
    }
    granted
}

/// A hold within another one has its token, unless the store has forgotten that one, or the owner has got another lease
/// since where it can have several.
fn check_nested(history: &History, site: &Site, granted: &[Grant<'_>], verdict: &mut Verdict) {
    let excuses = Excuses::of(history, site.lease);
    let mut tokens: Vec<(HoldId, u64)> =
        granted.iter().map(|grant| (grant.operation.id, grant.token)).collect();
    tokens.sort_unstable();
    for grant in granted {
        let Some(outer) = grant.operation.request.within else { continue };
        let found = tokens.binary_search_by_key(&outer, |(id, _)| *id).map(|at| tokens[at].1);
        let is_entered =
            found.is_ok_and(|token| token == grant.token || site.lease_per_request && token < grant.token);
        if !is_entered && !excuses.cover(grant.returned) {
            let what = format!("{} is within hold {outer}, under token {found:?}", words(grant.operation));
            verdict.broken(Rule::I2, grant.returned, what);
        }
    }
}

/// A hold that continues another one has its token.
fn check_continued(granted: &[Grant<'_>], verdict: &mut Verdict) {
    let tokens: HashMap<HoldId, u64> =
        granted.iter().map(|grant| (grant.operation.id, grant.token)).collect();
    for grant in granted {
        let Some(last) = grant.operation.request.continues else { continue };
        let token = tokens.get(&last);
        if token != Some(&grant.token) {
            let what = format!("{} continues hold {last}, under token {token:?}", words(grant.operation));
            verdict.broken(Rule::I2, grant.returned, what);
        }
    }
}

/// Only the holds of one owner have the same token, and one that continues another one.
fn check_twice(by_token: &[Grant<'_>], verdict: &mut Verdict) {
    for pair in by_token.windows(2) {
        let [one, other] = pair else { continue };
        let goes_on = other.operation.request.continues == Some(one.operation.id);
        if one.token == other.token && !goes_on && !is_same_owner(one.operation, other.operation) {
            let what = format!("{} after {}", words(other.operation), words(one.operation));
            verdict.broken(Rule::I2, other.returned, what);
        }
    }
}

fn check_order(by_token: &[Grant<'_>], verdict: &mut Verdict) {
    // Of those with smaller tokens, the one that was granted last.
    let mut last: Option<&Grant<'_>> = None;
    for same in by_token.chunk_by(|one, other| one.token == other.token) {
        for grant in same {
            if let Some(smaller) = last.filter(|smaller| grant.returned < smaller.earliest) {
                let what = format!("{} after {}", words(smaller.operation), words(grant.operation));
                verdict.broken(Rule::I2, smaller.returned, what);
            }
        }
        // Holds of one owner that come later have the token of its first one.
        let first = same.iter().min_by_key(|grant| grant.returned);
        last = last.into_iter().chain(first).max_by_key(|grant| grant.earliest);
    }
}

#[cfg(test)]
mod tests {
    use crate::history::Effect;
    use crate::judge::Rule::I2;
    use crate::judge::example::{ENTERED, Example, FAIR, LOCK, OWNED, PASSED_ON};

    #[test]
    fn i2_a_token_goes_back() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 200).hold(LOCK, 2, 10..20, 100);
        run.breaks(I2);
    }

    #[test]
    fn i2_a_token_goes_back_though_both_had_asked_before() {
        let mut run = Example::default();
        run.wait(LOCK, 1, 0, 10..20, 200).wait(LOCK, 2, 0, 20..30, 100);
        run.breaks(I2);
    }

    #[test]
    fn i2_a_token_is_issued_twice() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).hold(LOCK, 2, 10..20, 100);
        run.breaks(I2);
    }

    #[test]
    fn i2_a_token_goes_back_although_the_store_has_forgotten() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 200).hold(LOCK, 2, 30..40, 100);
        run.fault(20..21, "flush", Effect::Forgets);
        run.breaks(I2);
    }

    #[test]
    fn a_grant_that_returns_when_its_client_goes_on_is_older_than_it_seems() {
        let mut run = Example::default();
        run.wait(LOCK, 1, 0, 900_000..900_001, 100).until(500_000).hold(LOCK, 2, 600_000..700_000, 200);
        run.fault(10..899_000, "stop", Effect::Pauses { client: 1 });
        run.hold(LOCK, 3, 910_000..920_000, 300);
        run.is_fine();
        run.hold(LOCK, 3, 930_000..940_000, 250);
        run.breaks(I2);
    }

    #[test]
    fn what_an_owner_asks_for_at_the_same_time_may_return_in_any_order() {
        let mut run = Example::default();
        run.wait_as(OWNED, 1, 7, 0, 21..30, 100).wait_as(OWNED, 2, 7, 5, 20..30, 110);
        run.is_fine();
        run.wait_as(OWNED, 3, 8, 0, 40..50, 105);
        run.breaks(I2);
    }

    #[test]
    fn a_lease_that_was_forgotten_may_be_passed_on_for_a_moment() {
        for (site, is_fine) in [(PASSED_ON, true), (LOCK, false)] {
            let mut run = Example::default();
            run.hold(site, 1, 0..40, 100).hold(site, 2, 30..50, 200).hold(site, 1, 50..60, 101);
            run.fault(20..21, "flush", Effect::Forgets);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I2);
            }
        }
    }

    #[test]
    fn a_grant_that_was_forgotten_may_return_after_a_later_one() {
        let mut run = Example::default();
        run.wait(LOCK, 1, 0, 40..50, 100).wait(LOCK, 2, 25, 30..35, 200);
        run.fault(20..21, "flush", Effect::Forgets);
        run.is_fine();
    }

    #[test]
    fn permits_that_were_asked_for_together_may_return_in_any_order() {
        let mut run = Example::default();
        run.wait(FAIR, 1, 0, 10..20, 200).wait(FAIR, 2, 0, 11..20, 100);
        run.is_fine();
        run.wait(FAIR, 3, 20, 21..22, 50);
        run.breaks(I2);
    }

    #[test]
    fn i2_another_owner_has_the_same_token() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..10, 100).hold_as(OWNED, 2, 7, 5..15, 100);
        run.is_fine();
        run.hold_as(OWNED, 3, 8, 15..20, 100);
        run.breaks(I2);
    }

    #[test]
    fn i2_a_hold_that_was_handed_over_goes_on_under_another_token() {
        for (token, is_fine) in [(100, true), (101, false)] {
            let mut run = Example::default();
            run.forget(LOCK, 1, 0, 100).hand_over(LOCK, 5, 2, 6, 8..20, token);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I2);
            }
        }
    }

    #[test]
    fn i2_somebody_else_has_the_token_of_what_was_handed_over() {
        let mut run = Example::default();
        run.forget(LOCK, 1, 0, 100).hand_over(LOCK, 5, 2, 6, 8..20, 100);
        run.hold(LOCK, 3, 30..40, 100);
        run.breaks(I2);
    }

    #[test]
    fn i2_a_hold_within_another_one_has_another_token() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..10, 100).within_last(OWNED, 1, 7, 2..3, 100);
        run.is_fine();
        run.within_last(OWNED, 1, 7, 4..5, 101);
        run.breaks(I2);
    }

    #[test]
    fn i2_a_hold_within_another_one_may_have_a_greater_token_where_each_request_gets_a_lease() {
        let mut run = Example::default();
        run.hold_as(ENTERED, 1, 7, 0..10, 100).within_last(ENTERED, 1, 7, 2..3, 100);
        run.within_last(ENTERED, 1, 7, 4..5, 101);
        run.is_fine();
        run.within_last(ENTERED, 1, 7, 6..7, 99);
        run.breaks(I2);
    }

    #[test]
    fn a_hold_within_one_that_the_store_has_forgotten_may_have_another_token() {
        let mut run = Example::default();
        run.hold_as(OWNED, 1, 7, 0..50, 100).within_last(OWNED, 1, 7, 30..40, 200);
        run.fault(20..21, "flush", Effect::Forgets);
        run.is_fine();
    }
}
