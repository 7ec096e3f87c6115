//! What the instances work on: records that compare tokens, an upstream service that bears a few calls at a time, and a
//! register that only the leader writes. It judges what arrives, and shares nothing with the instances but this line
//! protocol.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use crate::loopback::Answer;

/// How many calls the upstream service bears at a time.
pub(crate) const UPSTREAM_LIMIT: u32 = 4;
/// How long a call takes there.
const UPSTREAM_CALL: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct World(Mutex<Seen>);

/// What has arrived.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    records: HashMap<String, Record>,
    pub(crate) writes: u64,
    /// Writes that were based on a record that had been written again in the meantime.
    pub(crate) lost_updates: u64,
    /// Writes and reports that were refused because a newer token was known.
    pub(crate) refused: u64,
    calls_now: u32,
    pub(crate) calls: u64,
    pub(crate) most_calls: u32,
    register: Register,
    pub(crate) reports: u64,
    pub(crate) leaders: u32,
    /// Tokens under which two instances have led.
    pub(crate) shared_terms: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    value: u64,
    version: u64,
    token: u64,
}

/// Written by the leader.
#[derive(Debug, Default)]
struct Register {
    token: u64,
    leader: String,
}

impl World {
    /// Who has led last, and how many have.
    pub(crate) fn leader(&self) -> (String, u32) {
        let seen = self.seen();
        (seen.register.leader.clone(), seen.leaders)
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer for World {
    async fn answer(&self, request: &str) -> String {
        let words: Vec<_> = request.split(' ').collect();
        match words[..] {
            ["read", id] => self.seen().read(id),
            ["write", id, value, version, token] => self.seen().write(id, [value, version, token]),
            ["call"] => {
                self.seen().call_begins();
                sleep(UPSTREAM_CALL).await;
                self.seen().calls_now -= 1;
                "done".to_owned()
            }
            ["report", token, leader] => self.seen().report(token, leader),
            _ => "what?".to_owned(),
        }
    }
}

impl Seen {
    fn read(&self, id: &str) -> String {
        let record = self.records.get(id).copied().unwrap_or_default();
        format!("{} {}", record.value, record.version)
    }

    fn write(&mut self, id: &str, numbers: [&str; 3]) -> String {
        let Ok(numbers) = numbers.iter().map(|number| number.parse()).collect::<Result<Vec<u64>, _>>() else {
            return "what?".to_owned();
        };
        let (value, version, token) = (numbers[0], numbers[1], numbers[2]);
        let record = self.records.entry(id.to_owned()).or_default();
        if token < record.token {
            self.refused += 1;
            return "stale".to_owned();
        }
        self.lost_updates += u64::from(version != record.version);
        self.writes += 1;
        *record = Record { value, version: record.version + 1, token };
        "written".to_owned()
    }

    fn call_begins(&mut self) {
        self.calls += 1;
        self.calls_now += 1;
        self.most_calls = self.most_calls.max(self.calls_now);
    }

    fn report(&mut self, token: &str, leader: &str) -> String {
        let Ok(token) = token.parse::<u64>() else { return "what?".to_owned() };
        if token < self.register.token {
            self.refused += 1;
            return "stale".to_owned();
        }
        if token == self.register.token {
            self.shared_terms += u64::from(leader != self.register.leader);
        } else {
            self.leaders += 1;
            self.register = Register { token, leader: leader.to_owned() };
        }
        self.reports += 1;
        "written".to_owned()
    }

    /// The sum of all records: as many as writes, unless updates were lost.
    pub(crate) fn sum(&self) -> u64 {
        self.records.values().map(|record| record.value).sum()
    }

    /// What is wrong with what has arrived; empty if nothing is.
    pub(crate) fn violations(&self) -> String {
        let mut text = String::new();
        let mut say = |wrong: bool, what: String| {
            if wrong {
                let _ = writeln!(text, "{what}");
            }
        };
        say(self.lost_updates > 0, format!("{} updates were lost", self.lost_updates));
        say(self.sum() != self.writes, format!("{} writes, but the records say {}", self.writes, self.sum()));
        let most = self.most_calls;
        say(most > UPSTREAM_LIMIT, format!("{most} calls at a time upstream, which bears {UPSTREAM_LIMIT}"));
        say(self.shared_terms > 0, format!("{} reports of two leaders under one token", self.shared_terms));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_is_found() {
        let mut seen = Seen::default();
        assert_eq!(seen.read("a"), "0 0");
        assert_eq!(seen.write("a", ["1", "0", "5"]), "written");
        assert_eq!(seen.write("a", ["2", "1", "4"]), "stale");
        assert_eq!((seen.report("7", "one"), seen.report("7", "one")), ("written".into(), "written".into()));
        assert_eq!(seen.report("6", "two"), "stale");
        assert_eq!(seen.violations(), "");
        seen.write("a", ["1", "0", "6"]);
        assert_eq!(seen.report("7", "two"), "written");
        (0..=UPSTREAM_LIMIT).for_each(|_| seen.call_begins());
        let found = seen.violations();
        for part in ["updates were lost", "the records say", "calls at a time", "two leaders"] {
            assert!(found.contains(part), "{found}");
        }
    }
}
