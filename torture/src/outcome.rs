//! What is kept of a run: a few lines of text, from which the page of guarantees is written.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::history::History;
use crate::judge::Verdict;
use crate::report::page::RULES;

/// A run, in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// On which store.
    pub store: String,
    /// Under which faults.
    pub scenario: String,
    /// Which of all runs of that scenario.
    pub seed: u64,
    /// How long it was.
    pub seconds: u64,
    /// How many requests there were.
    pub operations: u64,
    /// How many faults were caused.
    pub faults: u64,
    /// How many writes were refused, because their tokens were too old.
    pub refused: u64,
    /// How many changes were lost by data that does not check tokens.
    pub lost_changes: u64,
    /// How often more was held than the limit while exclusion was not promised.
    pub overlaps: u64,
    /// How often each rule was broken.
    pub violations: BTreeMap<String, u64>,
}

impl Outcome {
    /// Of this run.
    #[must_use]
    pub fn of(history: &History, verdict: &Verdict) -> Self {
        let refused = history.writes.iter().filter(|write| !write.is_accepted).count();
        let violations = RULES.map(|(rule, _)| (format!("{rule:?}"), verdict.count(rule) as u64));
        Self {
            operations: verdict.operations as u64,
            refused: refused as u64,
            lost_changes: verdict.lost_changes as u64,
            overlaps: verdict.excused as u64,
            violations: violations.into(),
            ..Self::default()
        }
    }

    /// How often any rule was broken.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.violations.values().sum()
    }

    fn numbers(&mut self) -> [(&'static str, &mut u64); 7] {
        [
            ("seed", &mut self.seed),
            ("seconds", &mut self.seconds),
            ("operations", &mut self.operations),
            ("faults", &mut self.faults),
            ("refused", &mut self.refused),
            ("lost-changes", &mut self.lost_changes),
            ("overlaps", &mut self.overlaps),
        ]
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store {}\nscenario {}", self.store, self.scenario)?;
        for (name, number) in self.clone().numbers() {
            writeln!(f, "{name} {number}")?;
        }
        for (rule, count) in &self.violations {
            writeln!(f, "{rule} {count}")?;
        }
        Ok(())
    }
}

/// A line says nothing of a run, or nothing says something that must be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnOutcome(pub String);

impl fmt::Display for NotAnOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not the outcome of a run: {:?}", self.0)
    }
}

impl std::error::Error for NotAnOutcome {}

impl FromStr for Outcome {
    type Err = NotAnOutcome;

    fn from_str(text: &str) -> Result<Self, NotAnOutcome> {
        let mut lines = BTreeMap::new();
        for line in text.lines() {
            let (name, value) = line.split_once(' ').ok_or_else(|| NotAnOutcome(line.to_owned()))?;
            lines.insert(name, value);
        }
        let mut take = |name: &str| lines.remove(name).ok_or_else(|| NotAnOutcome(format!("no {name}")));
        let number = |text: &str| text.parse().map_err(|_| NotAnOutcome(text.to_owned()));
        let mut outcome = Self {
            store: take("store")?.to_owned(),
            scenario: take("scenario")?.to_owned(),
            ..Self::default()
        };
        for (name, value) in outcome.numbers() {
            *value = number(take(name)?)?;
        }
        for (rule, _) in RULES {
            let rule = format!("{rule:?}");
            let count = number(take(&rule)?)?;
            outcome.violations.insert(rule, count);
        }
        match lines.keys().next() {
            Some(unknown) => Err(NotAnOutcome((*unknown).to_owned())),
            None => Ok(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::example::{Example, LOCK};

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        let mut run = Example::default();
        run.hold(LOCK, 1, 0..10, 100).hold(LOCK, 2, 9..20, 200);
        let (history, verdict) = run.judged();
        let outcome = Outcome {
            store: "redis".to_owned(),
            scenario: "flush".to_owned(),
            seed: 3,
            seconds: 60,
            faults: 5,
            ..Outcome::of(&history, &verdict)
        };
        assert_eq!((outcome.broken(), outcome.operations), (1, 2));
        let text = outcome.to_string();
        assert_eq!(text.parse(), Ok(outcome));
        for wrong in
            [&text[1..], &text[..text.len() - 5], "", &format!("{text}I9 0\n"), &text.replace("60", "x")]
        {
            assert!(wrong.parse::<Outcome>().is_err(), "{wrong}");
        }
    }
}
