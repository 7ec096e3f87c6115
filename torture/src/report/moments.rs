//! Which minute of a run is worth a picture, which seconds of that minute, and which locks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::history::{Effect, History, HoldId, Micros, Operation, Write};
use crate::judge::{Verdict, Violation};

const MINUTE: Micros = 60_000_000;
/// How many leases long the seconds are that are shown closely: a client may be stopped for two, and a half.
const LEASES: u64 = 4;
/// How many locks are shown.
const SITES: usize = 3;

/// Something worth looking at: the more it weighs, the more so.
#[derive(Clone, Copy, Debug)]
struct Point {
    at: Micros,
    site: Option<usize>,
    weight: u64,
}

const VIOLATION: u64 = 10_000;
const REFUSED: u64 = 100;
const LOST: u64 = 10;
const FAULT: u64 = 1;

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moments {
    /// A minute, or the whole run if that is shorter.
    pub minute: Range<Micros>,
    /// A few leases of it.
    pub seconds: Range<Micros>,
    /// Which locks and semaphores, the most interesting one first.
    pub sites: Vec<usize>,
}

impl Moments {
    /// The most interesting ones.
    #[must_use]
    pub fn of(history: &History, verdict: &Verdict) -> Self {
        let run = run(history);
        let points = points(history, verdict);
        let minute = best(&points, MINUTE, &run);
        let lease = history.sites.iter().map(|site| site.lease).max().unwrap_or(MINUTE / LEASES);
        let within: Vec<_> = points.iter().copied().filter(|point| minute.contains(&point.at)).collect();
        let seconds = best(&within, LEASES * lease, &minute);
        let sites = sites(history, &points, &seconds);
        Self { minute, seconds, sites }
    }
}

/// From the first thing that happened to the last one.
fn run(history: &History) -> Range<Micros> {
    let asked = history.operations.iter().map(|operation| operation.asked);
    let first = asked.chain(history.faults.iter().map(|fault| fault.began)).min().unwrap_or_default();
    first..history.end.max(first + 1)
}

/// In the order of time.
fn points(history: &History, verdict: &Verdict) -> Vec<Point> {
    let about = About::of(history);
    let violations = verdict.violations.iter().map(|violation| Point {
        at: violation.at,
        site: about.site(history, violation),
        weight: VIOLATION,
    });
    let refused = history.writes.iter().filter(|write| !write.is_accepted);
    let refused = refused.map(|write| Point { at: write.at, site: site_of(history, write), weight: REFUSED });
    let lost = history.operations.iter().filter_map(|operation| {
        Some(Point { at: operation.lost?, site: Some(operation.request.site), weight: LOST })
    });
    let caused = history.faults.iter().filter(|fault| !matches!(fault.effect, Effect::Stalls { .. }));
    let faults = caused.map(|fault| Point { at: fault.began, site: None, weight: FAULT });
    let mut points: Vec<_> = violations.chain(refused).chain(lost).chain(faults).collect();
    points.sort_unstable_by_key(|point| point.at);
    points
}

/// Data that checks tokens has the number of its lock.
pub(super) fn site_of(history: &History, write: &Write) -> Option<usize> {
    let site = usize::try_from(write.data).ok()?;
    (site < history.sites.len()).then_some(site)
}

/// Which lock a violation is about.
pub(super) struct About(HashMap<HoldId, usize>);

impl About {
    pub(super) fn of(history: &History) -> Self {
        Self(history.operations.iter().map(|operation| (operation.id, operation.request.site)).collect())
    }

    /// It names its hold; one of data is as old as its write.
    pub(super) fn site(&self, history: &History, violation: &Violation) -> Option<usize> {
        let named = violation.what.split("hold ").nth(1).and_then(|rest| rest.split(' ').next());
        let named = named.and_then(|id| self.0.get(&id.parse().ok()?).copied());
        named.or_else(|| {
            let write = history.writes.iter().find(|write| write.at == violation.at)?;
            site_of(history, write)
        })
    }
}

/// So much time, in which most weighs most. What weighs is in its middle.
fn best(points: &[Point], length: Micros, within: &Range<Micros>) -> Range<Micros> {
    if within.end - within.start <= length {
        return within.clone();
    }
    let (mut heaviest, mut middle) = (0, within.start + length / 2);
    let (mut first, mut weight) = (0, 0);
    for (last, point) in points.iter().enumerate() {
        weight += point.weight;
        while point.at - points[first].at > length / 2 {
            weight -= points[first].weight;
            first += 1;
        }
        if weight > heaviest {
            heaviest = weight;
            middle = points[first].at.midpoint(points[last].at);
        }
    }
    let latest = within.end - length;
    let start = middle.saturating_sub(length / 2).clamp(within.start, latest);
    start..start + length
}

fn sites(history: &History, points: &[Point], seconds: &Range<Micros>) -> Vec<usize> {
    let mut weights: BTreeMap<usize, (u64, usize)> = BTreeMap::new();
    for point in points.iter().filter(|point| seconds.contains(&point.at)) {
        if let Some(site) = point.site {
            weights.entry(site).or_default().0 += point.weight;
        }
    }
    for operation in history.operations.iter().filter(|operation| is_in(operation, seconds)) {
        weights.entry(operation.request.site).or_default().1 += 1;
    }
    let mut sites: Vec<_> = weights.into_iter().collect();
    sites.sort_by_key(|(site, weight)| (std::cmp::Reverse(*weight), *site));
    sites.into_iter().take(SITES).map(|(site, _)| site).collect()
}

/// Whether it was open at any of these moments.
pub(super) fn is_in(operation: &Operation, seconds: &Range<Micros>) -> bool {
    let ends = [operation.released, operation.releasing, operation.lost];
    let ended = ends.into_iter().flatten().max();
    let left = operation.returned.filter(|(_, answer)| answer.is_err()).map(|(at, _)| at);
    operation.asked < seconds.end && left.or(ended).unwrap_or(Micros::MAX) >= seconds.start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::example::{Example, FAIR, LEASE, LOCK, OWNED};

    #[test]
    fn a_violation_is_in_the_picture_and_its_lock_comes_first() {
        let mut run = Example::default();
        for n in 0..300_u64 {
            run.lose(FAIR, 1, n * LEASE..n * LEASE + 10, n + 1);
        }
        run.hold(OWNED, 1, 222 * LEASE..222 * LEASE + 9, 7);
        run.hold(LOCK, 2, 222 * LEASE..222 * LEASE + 9, 8).hold(
            LOCK,
            3,
            222 * LEASE + 3..222 * LEASE + 12,
            9,
        );
        let (history, verdict) = run.judged();
        let [violation] = &verdict.violations[..] else { panic!("{verdict}") };
        let moments = Moments::of(&history, &verdict);
        assert_eq!(moments.sites, [LOCK, FAIR, OWNED]);
        assert!(moments.minute.contains(&violation.at) && moments.seconds.contains(&violation.at));
        assert_eq!(moments.minute.end - moments.minute.start, 60 * LEASE);
        assert_eq!(moments.seconds.end - moments.seconds.start, 4 * LEASE);
    }

    #[test]
    fn without_one_it_is_where_most_was_lost() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 1).hold(LOCK, 1, 199 * LEASE..200 * LEASE, 2);
        for n in 0..3 {
            run.lose(OWNED, 1, 100 * LEASE + n * 10..100 * LEASE + n * 10 + 5, n + 1);
        }
        let (history, verdict) = run.judged();
        let moments = Moments::of(&history, &verdict);
        assert!(moments.seconds.contains(&(100 * LEASE)) && moments.sites == [OWNED], "{moments:?}");
    }

    #[test]
    fn a_short_run_is_shown_whole() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 10..20, 1);
        let (history, verdict) = run.judged();
        assert_eq!(
            Moments::of(&history, &verdict),
            Moments { minute: 10..20, seconds: 10..20, sites: vec![LOCK] }
        );
    }
}
