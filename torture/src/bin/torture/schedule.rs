//! Which fault comes when, on whom, and for how long: the seed alone decides, and a run may be restricted to some of them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::fault::Fault;
use crate::scenario::{Scenario, length};
use leasehold_support::random::Random;

/// A fault that is to come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheduled {
    /// Counted from 1.
    pub(crate) number: usize,
    /// From the end of the last one.
    pub(crate) calm: Duration,
    pub(crate) fault: Fault,
    pub(crate) lasts: Duration,
    /// On which worker, if it concerns one.
    pub(crate) worker: usize,
    /// A random number: which of several servers, and the like.
    pub(crate) which: usize,
}

impl Scheduled {
    /// Until the next one may be thought of.
    pub(crate) const fn length(&self) -> Duration {
        if self.fault.is_instant() { Duration::ZERO } else { self.lasts }
    }
}

/// All that are to come, without an end; none, if the scenario has none.
#[derive(Clone, Debug)]
pub(crate) struct Schedule<'a> {
    scenario: &'a Scenario,
    faults: &'a [Fault],
    lease: Duration,
    workers: usize,
    spacing: u32,
    random: Random,
    last: usize,
}

impl<'a> Schedule<'a> {
    pub(crate) fn of(
        scenario: &'a Scenario,
        faults: &'a [Fault],
        lease: Duration,
        workers: usize,
        seed: u64,
    ) -> Self {
        Self { scenario, faults, lease, workers, spacing: 1, random: Random::new(seed, 0), last: 0 }
    }

    /// The same faults, with so many times as long between them.
    pub(crate) fn spaced(self, spacing: u32) -> Self {
        Self { spacing, ..self }
    }

    /// When the last of these has ended, counted from the beginning.
    pub(crate) fn end_of(self, chosen: &Chosen) -> Duration {
        let last = chosen.0.last().copied().unwrap_or_default();
        self.take(last).map(|scheduled| scheduled.calm + scheduled.length()).sum()
    }
}

impl Iterator for Schedule<'_> {
    type Item = Scheduled;

    fn next(&mut self) -> Option<Scheduled> {
        if self.faults.is_empty() {
            return None;
        }
        self.last += 1;
        let random = &mut self.random;
        let (least, most) = self.scenario.calm;
        let calm = random.millis(least..most) * self.spacing;
        let fault = *random.choose(self.faults);
        let (least, most) = *random.choose(self.scenario.lasts);
        let lasts = length(random.within(least..most), self.lease);
        let worker = random.within(0..self.workers as u64) as usize;
        let which = random.within(0..1_000) as usize;
        Some(Scheduled { number: self.last, calm, fault, lasts, worker, which })
    }
}

/// The numbers of some faults. As text, `3,7,9`, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen(pub(crate) BTreeSet<usize>);

impl Chosen {
    pub(crate) fn has(&self, number: usize) -> bool {
        self.0.contains(&number)
    }
}

impl From<&[usize]> for Chosen {
    fn from(numbers: &[usize]) -> Self {
        Self(numbers.iter().copied().collect())
    }
}

const NONE: &str = "none";

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(if numbers.is_empty() { NONE } else { "" })?;
        f.write_str(&numbers.join(","))
    }
}

impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == NONE {
            return Ok(Self(BTreeSet::new()));
        }
        let number = |word: &str| match word.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{word:?} is not the number of a fault; such as 3,7,9, or {NONE}")),
        };
        text.split(',').map(number).collect::<Result<_, _>>().map(Self)
    }
}
