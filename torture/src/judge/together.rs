//! I5 for those who ask for several at once: they are served when nobody holds any of these, and nobody else has any of
//! them while waiting for others.
//!
//! (That each of them is held, and that each wait for one is in its queue, is judged site by site.)

use std::collections::BTreeMap;

use super::answers::Answers;
use super::liveness::{Span, Troubles, check};
use super::{Bounds, Clients, End, Hold, Verdict};
use crate::history::{History, HoldId, Micros};

pub(super) fn judge(
    history: &History,
    held: &[Vec<Hold<'_>>],
    answers: &Answers,
    bounds: &Bounds,
    verdict: &mut Verdict,
) {
    let groups = groups(history);
    if groups.is_empty() {
        return;
    }
    let taken = taken(held, &groups);
    let troubles = Troubles::of(history, answers);
    for (id, group) in &groups {
        // Each of them is waited for in its turn.
        let turns = group.sites.len() as u64;
        let (handed_over, answers) = (bounds.handed_over * turns, bounds.answers * turns);
        let bounds = Bounds { handed_over, answers, ..*bounds };
        for span in group.waits_in_vain(*id, &taken) {
            check(&history.sites[group.sites[0]], span, &troubles, &bounds, verdict);
        }
    }
}

/// A request for several.
struct Group {
    sites: Vec<usize>,
    asked: Micros,
    /// Until when it waited.
    left: Micros,
}

fn groups(history: &History) -> BTreeMap<HoldId, Group> {
    let clients = Clients::of(history);
    let mut groups: BTreeMap<HoldId, Group> = BTreeMap::new();
    for operation in &history.operations {
        let Some(id) = operation.request.together else { continue };
        let (asked, left) = (operation.asked, clients.left(operation, history.end));
        groups
            .entry(id)
            .or_insert(Group { sites: Vec::new(), asked, left })
            .sites
            .push(operation.request.site);
    }
    groups
}

/// Something was held, or may have been.
#[derive(Clone, Copy)]
struct Use {
    from: Micros,
    to: Micros,
    was_released: bool,
    /// By whom that waits for others.
    group: Option<HoldId>,
}

/// Of one site, by their beginnings; each with the latest end of all that have begun by then.
struct Taken(Vec<(Use, Micros)>);

fn taken(held: &[Vec<Hold<'_>>], groups: &BTreeMap<HoldId, Group>) -> Vec<Taken> {
    let hold = |hold: &Hold<'_>| {
        let was_released = matches!(hold.end, End::Released | End::HandedOver);
        Use { from: hold.from, to: hold.reserved, was_released, group: None }
    };
    let mut uses: Vec<Vec<Use>> = held.iter().map(|held| held.iter().map(hold).collect()).collect();
    for (id, group) in groups {
        for site in &group.sites {
            uses[*site].push(Use { from: group.asked, to: group.left, was_released: true, group: Some(*id) });
        }
    }
    uses.into_iter().map(Taken::of).collect()
}

impl Taken {
    fn of(mut uses: Vec<Use>) -> Self {
        uses.sort_by_key(|one| one.from);
        let mut latest = 0;
        let with_latest = |one: Use| {
            latest = latest.max(one.to);
            (one, latest)
        };
        Self(uses.into_iter().map(with_latest).collect())
    }

    /// What overlaps this time.
    fn between(&self, from: Micros, to: Micros) -> impl Iterator<Item = Use> {
        let begun = self.0.partition_point(|(one, _)| one.from < to);
        let recent = self.0[..begun].iter().rev().take_while(move |(_, latest)| *latest >= from);
        recent.map(|(one, _)| *one).filter(move |one| one.to >= from)
    }
}

impl Group {
    /// When nobody else had any of its sites.
    fn waits_in_vain(&self, id: HoldId, taken: &[Taken]) -> Vec<Span> {
        let mut uses: Vec<Use> = self
            .sites
            .iter()
            .flat_map(|site| taken[*site].between(self.asked, self.left))
            .filter(|one| one.group != Some(id))
            .collect();
        uses.sort_by_key(|one| one.from);
        let (mut since, mut was_released, mut spans) = (self.asked, true, Vec::new());
        for one in uses {
            if one.from > since {
                spans.push(Span { since, to: one.from, was_released });
            }
            if one.to >= since {
                (since, was_released) = (one.to, one.was_released);
            }
        }
        if self.left > since {
            spans.push(Span { since, to: self.left, was_released });
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use crate::judge::Rule::{I1, I5};
    use crate::judge::example::{Example, LOCK};

    const BOTH: &[usize] = &[LOCK, LOCK + 1];
    /// Twice 100 ms.
    const MOST: u64 = 200_000;

    #[test]
    fn i5_who_asks_for_several_waits_long_though_all_are_free() {
        for (waits, is_fine) in [(MOST, true), (MOST + 1, false)] {
            let mut run = Example::default();
            run.hold(LOCK, 1, 0..10, 100).hold(LOCK + 1, 2, 0..20, 100);
            run.wait_together(BOTH, 3, 5, 20 + waits..30 + waits, 200);
            if is_fine {
                run.is_fine();
            } else {
                run.breaks(I5);
            }
        }
    }

    #[test]
    fn who_asks_for_several_waits_for_as_long_as_one_of_them_is_held() {
        let mut run = Example::default();
        run.hold(LOCK + 1, 2, 0..9 * MOST, 100);
        run.wait_together(BOTH, 3, 5, 9 * MOST + 10..9 * MOST + 20, 200);
        run.is_fine();
    }

    #[test]
    fn others_wait_for_one_that_somebody_has_who_waits_for_another() {
        let mut run = Example::default();
        run.hold(LOCK + 1, 2, 0..9 * MOST, 100);
        run.wait_together(BOTH, 3, 5, 9 * MOST + 10..9 * MOST + 20, 200);
        run.wait(LOCK, 4, 10, 9 * MOST + 30..9 * MOST + 40, 300);
        run.is_fine();
        let mut run = Example::default();
        run.hold(LOCK, 2, 0..10, 100).wait(LOCK, 4, 10, 9 * MOST + 30..9 * MOST + 40, 300);
        run.breaks(I5);
    }

    #[test]
    fn i1_one_of_several_is_held_by_somebody_else() {
        let mut run = Example::default();
        run.wait_together(BOTH, 1, 0, 0..20, 100).hold(LOCK + 1, 2, 10..30, 200);
        run.breaks(I1);
    }
}
