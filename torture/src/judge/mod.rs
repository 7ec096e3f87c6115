//! Whether a history keeps the promises I1 to I8.
//!
//! | file | rule |
//! |---|---|
//! | `exclusion`, `breaks` | **I1** No more is held at once than the limit. Held is what a client believes to hold: from the return of its request until its release is invoked or its loss is told, or until the client dies or is stopped. What was handed over by a ticket is held until somebody asks to go on. What was released by force holds with the smaller token for as long as nobody has told it |
//! | `tokens` | **I2** Tokens increase in the order of grants, and none is issued twice |
//! | `data` | **I3** Data that checks tokens loses no change and accepts no smaller token |
//! | `loss`, `breaks` | **I4** A loss is told within 50 ms of the deadline, and a release by force by the next renewal |
//! | `liveness`, `together` | **I5** Whoever waits is served 100 ms and two answers of the store after a release, and a lease and a second after anything worse |
//! | `remains` | **I6** Nothing is left |
//! | `order` | **I7** Grants follow the order of arrival |
//! | `herd` | **I8** A hand-over costs the same for any number of waiters |
//!
//! Each rule is one pass over what is sorted by time or token, so a million operations are judged within seconds.

mod answers;
mod breaks;
mod data;
mod exclusion;
mod herd;
mod liveness;
mod loss;
mod order;
mod remains;
mod together;
mod tokens;

use std::collections::BTreeMap;
use std::fmt;

use answers::Answers;
use breaks::Breaks;

use crate::history::{Effect, History, HoldId, Micros, Operation};

/// A promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// No more is held than the limit.
    I1,
    /// Tokens increase.
    I2,
    /// Data that checks tokens is never harmed.
    I3,
    /// Loss is told in time.
    I4,
    /// Whoever waits is served in time.
    I5,
    /// Nothing is left.
    I6,
    /// Grants follow arrival.
    I7,
    /// Nobody is woken in vain.
    I8,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// When.
    pub at: Micros,
    /// How.
    pub what: String,
}

/// How exactly the promises are meant.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Bounds {
    /// How long after its deadline a loss is told.
    pub told: Micros,
    /// How long after a release the next one holds, besides the time of some answers of the store.
    pub handed_over: Micros,
    /// How many that are: that to the release, and that to whoever waits.
    pub answers: u64,
    /// How much later than a lease after a fault.
    pub recovered: Micros,
    /// How long a request may be on its way to the store, besides the time of an answer: of two that were sent within this
    /// time, either may come first.
    pub on_its_way: Micros,
    /// How much more memory a worker may use in the last third of its time than in the first one, in bytes.
    pub memory: u64,
    /// By how many parts in a hundred the costs of hand-overs may differ.
    pub cost_percent: u64,
}

const TOLD: Micros = 50_000;

impl Default for Bounds {
    fn default() -> Self {
        Self {
            told: TOLD,
            handed_over: 100_000,
            answers: 2,
            recovered: 1_000_000,
            on_its_way: 100_000,
            memory: 8 * 1024 * 1024,
            cost_percent: 10,
        }
    }
}

/// What the judge found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// How many operations there were.
    pub operations: usize,
    /// How many of them were granted.
    pub grants: usize,
    /// How many faults there were.
    pub faults: usize,
    /// How often more was held than the limit while exclusion was not promised.
    pub excused: usize,
    /// How many changes were lost by data that does not check tokens.
    pub lost_changes: usize,
    /// The longest time after each kind of fault until somebody who waited was served.
    pub recovery: BTreeMap<String, Micros>,
    /// What was broken, rule by rule.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Judges a history.
    #[must_use]
    pub fn of(history: &History, bounds: &Bounds) -> Self {
        let mut verdict = Self {
            operations: history.operations.len(),
            grants: history.operations.iter().filter(|operation| operation.granted().is_some()).count(),
            faults: history.faults.len(),
            ..Self::default()
        };
        let (by_site, answers) = (by_site(history), Answers::of(history));
        let held: Vec<_> = by_site.iter().map(|operations| holds(history, operations, bounds)).collect();
        for (index, (operations, held)) in by_site.iter().zip(&held).enumerate() {
            let site = &history.sites[index];
            let breaks = Breaks::of(history, index, operations);
            exclusion::judge(history, site, held, &breaks, &mut verdict);
            breaks.judge(history, held, bounds, &mut verdict);
            tokens::judge(history, site, operations, &breaks, &mut verdict);
            liveness::judge(history, site, operations, held, &answers, bounds, &mut verdict);
            order::judge(history, site, operations, &answers, bounds, &mut verdict);
        }
        together::judge(history, &held, &answers, bounds, &mut verdict);
        data::judge(history, &mut verdict);
        loss::judge(history, bounds, &mut verdict);
        remains::judge(history, bounds, &mut verdict);
        herd::judge(history, bounds, &mut verdict);
        verdict.violations.sort_by_key(|violation| (violation.rule, violation.at));
        verdict
    }

    /// How often a rule was broken.
    #[must_use]
    pub fn count(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }

    fn broken(&mut self, rule: Rule, at: Micros, what: String) {
        self.violations.push(Violation { rule, at, what });
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let violations = self.violations.len();
        writeln!(f, "{} operations, {} faults, {violations} violations", self.operations, self.faults)?;
        writeln!(f, "{} grants; {} overlaps where exclusion is not promised", self.grants, self.excused)?;
        writeln!(f, "{} changes lost by data that does not check tokens", self.lost_changes)?;
        for (fault, longest) in &self.recovery {
            writeln!(f, "longest wait after {fault}: {} ms", longest / 1_000)?;
        }
        for Violation { rule, at, what } in &self.violations {
            writeln!(f, "{rule:?} at {at}: {what}")?;
        }
        Ok(())
    }
}

fn by_site(history: &History) -> Vec<Vec<&Operation>> {
    let mut by_site = vec![Vec::new(); history.sites.len()];
    for operation in &history.operations {
        by_site[operation.request.site].push(operation);
    }
    by_site
}

/// Something that a client believes to hold.
#[derive(Clone, Copy, Debug)]
struct Hold<'a> {
    operation: &'a Operation,
    from: Micros,
    to: Micros,
    end: End,
    /// When it was asked for; if it continues another one, when that was.
    asked: Micros,
    /// Until when nobody else can be granted the same: by a ticket, somebody else may go on.
    reserved: Micros,
}

/// Why a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Released,
    /// By a ticket, by which somebody goes on.
    HandedOver,
    Lost,
    /// The client died.
    Died,
    /// It has not.
    Open,
}

/// The holds of these operations, by the time of their grants.
fn holds<'a>(history: &History, operations: &[&'a Operation], bounds: &Bounds) -> Vec<Hold<'a>> {
    let clients = Clients::of(history);
    let successions = Successions::of(operations);
    let mut holds: Vec<_> = operations
        .iter()
        .filter_map(|operation| {
            let (from, _) = operation.granted()?;
            let (to, end) = clients.end_of(operation, history.end, bounds);
            let (to, asked) = (to.max(from), successions.asked(operation));
            let hold = Hold { operation, from, to, end, asked, reserved: to };
            let is_handed_over = end == End::Released && operation.is_handed_over;
            Some(if is_handed_over {
                successions.hand_over(hold, history.sites[operation.request.site].lease)
            } else {
                hold
            })
        })
        .collect();
    holds.sort_by_key(|hold| (hold.from, hold.operation.id));
    holds
}

/// Which holds go on in others.
struct Successions<'a> {
    /// By the hold that goes on.
    next: BTreeMap<HoldId, &'a Operation>,
    /// By that in which it goes on.
    last: BTreeMap<HoldId, &'a Operation>,
}

impl<'a> Successions<'a> {
    fn of(operations: &[&'a Operation]) -> Self {
        let continuing = operations.iter().filter_map(|one| Some((one.request.continues?, *one)));
        let next: BTreeMap<_, _> = continuing.collect();
        let continued = operations.iter().filter_map(|one| Some((next.get(&one.id)?.id, *one)));
        let last = continued.collect();
        Self { next, last }
    }

    fn asked(&self, operation: &Operation) -> Micros {
        let (mut id, mut asked) = (operation.id, operation.asked);
        while let Some(last) = self.last.get(&id) {
            (id, asked) = (last.id, last.asked);
        }
        asked
    }

    /// What was handed over is held until somebody asks to go on, and nobody else can have it until that is granted.
    /// If it never is, the lease ends by itself: if the store was asked, a lease later.
    fn hand_over<'b>(&self, hold: Hold<'b>, lease: Micros) -> Hold<'b> {
        let next = self.next.get(&hold.operation.id);
        match next.and_then(|next| Some((next.asked, next.granted()?.0))) {
            Some((asked, granted)) => {
                let to = hold.to.max(asked);
                Hold { to, reserved: to.max(granted), end: End::HandedOver, ..hold }
            }
            None => {
                let asked = next.map(|next| next.returned.map_or(next.asked, |(at, _)| at) + lease);
                let reserved = [hold.operation.until, asked].into_iter().flatten().fold(hold.to, Micros::max);
                Hold { reserved, end: End::Lost, ..hold }
            }
        }
    }
}

/// When clients were stopped and killed.
struct Clients {
    killed: BTreeMap<u32, Micros>,
    /// One after another: those that follow each other closely are one.
    paused: BTreeMap<u32, Vec<(Micros, Micros)>>,
}

impl Clients {
    fn of(history: &History) -> Self {
        let mut clients = Self { killed: BTreeMap::new(), paused: BTreeMap::new() };
        for fault in &history.faults {
            match fault.effect {
                Effect::Kills { client } => {
                    clients.killed.entry(client).or_insert(fault.began);
                }
                Effect::Pauses { client } | Effect::Stalls { client } => {
                    let pauses = clients.paused.entry(client).or_default();
                    match pauses.last_mut() {
                        // Nobody need have been told in between.
                        Some((_, ended)) if fault.began <= ended.saturating_add(TOLD) => {
                            *ended = (*ended).max(fault.ended);
                        }
                        _ => pauses.push((fault.began, fault.ended)),
                    }
                }
                Effect::Delays
                | Effect::Refuses
                | Effect::Forgets
                | Effect::Breaks { .. }
                | Effect::Resizes { .. }
                | Effect::Nothing => {}
            }
        }
        clients
    }

    /// Until when an operation has waited: a client that has died waits no longer.
    fn left(&self, operation: &Operation, last: Micros) -> Micros {
        let died = self.killed.get(&operation.request.client).copied();
        let answered = operation.returned.map(|(at, _)| at);
        [answered, died].into_iter().flatten().min().unwrap_or(last).max(operation.asked)
    }

    /// Until when an operation's client believes to hold.
    fn end_of(&self, operation: &Operation, last: Micros, bounds: &Bounds) -> (Micros, End) {
        let released = operation.releasing.map(|at| (self.believed(operation, at, bounds), End::Released));
        let lost = operation.lost.map(|at| (self.believed(operation, at, bounds), End::Lost));
        let died = self.killed.get(&operation.request.client).map(|at| (*at, End::Died));
        let ends = [released, lost, died].into_iter().flatten();
        ends.min_by_key(|(at, _)| *at).unwrap_or((last, End::Open))
    }

    /// Until when a lease was relied on whose loss was told, or which was released, at `ended`: a client that was stopped
    /// cannot be told, and does nothing either; perhaps it was stopped when it had done its work.
    fn believed(&self, operation: &Operation, ended: Micros, bounds: &Bounds) -> Micros {
        let stopped = self.pause_before(operation.request.client, ended, bounds.told);
        stopped.map_or(ended, |(began, _)| ended.min(began.max(operation.until.unwrap_or(began))))
    }

    /// The pause of this client in which `at` is, or that has ended no longer than `slack` before it.
    fn pause_before(&self, client: u32, at: Micros, slack: Micros) -> Option<(Micros, Micros)> {
        let pauses = self.paused.get(&client)?;
        let before = pauses.partition_point(|(began, _)| *began <= at);
        pauses[..before].last().copied().filter(|(_, ended)| at <= ended.saturating_add(slack))
    }
}

/// A hold, in words.
fn words(operation: &Operation) -> String {
    let Operation { id, request, asked, .. } = operation;
    let of = operation.granted();
    let (granted, token) = of.map_or((0, 0), |of| of);
    let owner = request.owner.map_or_else(String::new, |owner| format!(" for owner {owner}"));
    format!(
        "hold {id} of client {}{owner}, asked at {asked}, granted at {granted} under token {token}",
        request.client
    )
}

/// Two of them are the same to a lock: one owner.
fn is_same_owner(one: &Operation, other: &Operation) -> bool {
    one.request.owner.is_some() && one.request.owner == other.request.owner
}

#[cfg(test)]
pub(crate) mod example;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::example::{Example, LOCK};
    use super::*;

    /// Work that grows with the square of the operations would take hours.
    #[test]
    fn many_operations_are_judged_within_seconds() {
        const OPERATIONS: u64 = 200_000;
        let mut run = Example::default();
        for n in 0..OPERATIONS {
            // All but the first wait for some others.
            let from = (n + 64) * 10;
            run.wait(LOCK, (n % 64) as u32, n * 10, from..from + 9, n + 1);
        }
        for n in 0..1_000 {
            run.fault(n * 9_999..n * 9_999 + 5, "hold back", Effect::Delays);
        }
        let began = Instant::now();
        let verdict = run.is_fine();
        let took = began.elapsed();
        println!("{} operations judged in {took:.1?}", verdict.operations);
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}
