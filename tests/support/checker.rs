//! Checks what several processes believed they held: intervals, tokens and waits, on one clock.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Permits of both semaphores.
pub const LIMIT: u32 = 2;
/// How much longer than one lease after a fault a waiter may have to wait.
const SLACK: Duration = Duration::from_secs(1);

/// Microseconds on the clock that all processes of this machine share.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since.as_micros()).expect("before the year 500 000")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Primitive {
    Mutex,
    QueuedMutex,
    Reentrant,
    Counting,
    Fair,
}

impl Primitive {
    pub const ALL: [Self; 5] = [Self::Mutex, Self::QueuedMutex, Self::Reentrant, Self::Counting, Self::Fair];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::QueuedMutex => "queued mutex",
            Self::Reentrant => "reentrant",
            Self::Counting => "counting",
            Self::Fair => "fair",
        }
    }

    pub const fn lease(self) -> Duration {
        Duration::from_millis(match self {
            Self::Mutex => 500,
            Self::QueuedMutex => 300,
            Self::Reentrant => 700,
            Self::Counting => 1_000,
            Self::Fair => 2_000,
        })
    }

    const fn limit(self) -> u32 {
        if matches!(self, Self::Counting | Self::Fair) { LIMIT } else { 1 }
    }
}

/// One request and what came of it.
#[derive(Clone, Debug)]
pub struct Record {
    pub primitive: Primitive,
    /// The task that asked.
    pub user: String,
    pub owner: String,
    /// Whether it waited without a time limit.
    pub unlimited: bool,
    pub asked: u64,
    /// 0 if it was not.
    pub answered: u64,
    /// When it was last seen to be held; 0 if it never was.
    pub believed: u64,
    pub token: u64,
    /// The token of a nested guard that was held beside it; 0 if there was none.
    pub nested: u64,
    pub outcome: String,
}

impl Record {
    pub fn open(primitive: Primitive, user: String, owner: &str, asked: u64) -> Self {
        let (owner, outcome) = (owner.to_owned(), "open".to_owned());
        let (unlimited, answered, believed, token, nested) = (true, 0, 0, 0, 0);
        Self { primitive, user, owner, unlimited, asked, answered, believed, token, nested, outcome }
    }

    pub fn is_open(&self) -> bool {
        self.outcome == "open"
    }

    pub fn to_line(&self) -> String {
        let Self { primitive, user, owner, unlimited, asked, answered, believed, token, nested, outcome } =
            self;
        let primitive = *primitive as usize;
        format!(
            "{primitive} {user} {owner} {unlimited} {asked} {answered} {believed} {token} {nested} {outcome}\n"
        )
    }

    fn of_line(line: &str) -> Option<Self> {
        let parts: Vec<_> = line.split(' ').collect();
        let [primitive, user, owner, unlimited, asked, answered, believed, token, nested, outcome] =
            parts[..]
        else {
            return None;
        };
        Some(Self {
            primitive: *Primitive::ALL.get(primitive.parse::<usize>().ok()?)?,
            user: user.to_owned(),
            owner: owner.to_owned(),
            unlimited: unlimited.parse().ok()?,
            asked: asked.parse().ok()?,
            answered: answered.parse().ok()?,
            believed: believed.parse().ok()?,
            token: token.parse().ok()?,
            nested: nested.parse().ok()?,
            outcome: outcome.to_owned(),
        })
    }

    pub fn read(file: &Path) -> Vec<Self> {
        let text = fs::read_to_string(file).expect("a worker has written its records");
        text.lines().map(|line| Self::of_line(line).expect("a record")).collect()
    }
}

/// A fault, from when to when.
#[derive(Clone, Debug)]
pub struct Stall {
    pub began: u64,
    pub ended: u64,
    pub what: String,
}

/// When all of so many permits were held, as intervals in order.
fn taken(held: &[&Record], limit: u32) -> Vec<(u64, u64)> {
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for record in held {
        changes.extend([(record.answered, 1), (record.believed, -1)]);
    }
    changes.sort_unstable();
    let (mut holders, mut since, mut taken) = (0, None, Vec::new());
    for (at, change) in changes {
        holders += change;
        match since {
            None if holders >= i64::from(limit) => since = Some(at),
            Some(from) if holders < i64::from(limit) => {
                taken.push((from, at));
                since = None;
            }
            _ => {}
        }
    }
    taken
}

/// What the checks found.
#[derive(Debug, Default)]
pub struct Verdict {
    stalls: usize,
    held: usize,
    outcomes: BTreeMap<String, usize>,
    /// More holders at once than the limit.
    overlaps: Vec<String>,
    /// An older token after a newer one, or one twice.
    backwards: Vec<String>,
    /// A nested guard with another token than its outer guard.
    nested: Vec<String>,
    /// Served later than a lease and a second after the fault.
    late: Vec<String>,
    /// Never answered, or with an error though they waited without a time limit.
    open: Vec<String>,
    longest_wait: Duration,
}

impl Verdict {
    pub fn of(records: &[Record], stalls: &[Stall]) -> Self {
        let mut verdict = Self { stalls: stalls.len(), ..Self::default() };
        for record in records {
            *verdict.outcomes.entry(record.outcome.clone()).or_default() += 1;
            if record.is_open() || (record.unlimited && record.outcome != "held") {
                verdict.open.push(format!("{record:?}"));
            }
            if record.nested != 0 && record.nested != record.token {
                verdict.nested.push(format!("{record:?}"));
            }
        }
        for primitive in Primitive::ALL {
            let mut held: Vec<_> = records
                .iter()
                .filter(|record| record.primitive == primitive && record.believed > 0)
                .collect();
            held.sort_by_key(|record| record.answered);
            verdict.held += held.len();
            verdict.check_intervals(primitive, &held, stalls);
            let asked: Vec<_> = records.iter().filter(|record| record.primitive == primitive).collect();
            verdict.check_waits(primitive, &asked, &held, stalls);
            if primitive.limit() == 1 {
                verdict.check_tokens(&held);
            }
        }
        verdict
    }

    fn check_intervals(&mut self, primitive: Primitive, held: &[&Record], stalls: &[Stall]) {
        let mut present: Vec<&Record> = Vec::new();
        for record in held {
            present.retain(|other| other.believed > record.answered);
            // An owner excludes nobody but others.
            let beside = present
                .iter()
                .filter(|other| primitive != Primitive::Reentrant || other.owner != record.owner);
            if beside.count() >= primitive.limit() as usize {
                let during = stalls.iter().rfind(|stall| stall.began <= record.answered);
                let during = during.map_or("no fault", |stall| &stall.what);
                self.overlaps.push(format!("after {during}: {record:?} beside {present:?}"));
            }
            present.push(record);
        }
    }

    fn check_tokens(&mut self, held: &[&Record]) {
        let mut newest: Option<&Record> = None;
        for record in held {
            let Some(before) = newest.replace(record) else { continue };
            let same = before.token == record.token && before.owner == record.owner && record.owner != "-";
            if record.token <= before.token && !same {
                self.backwards.push(format!("{record:?} after {before:?}"));
                newest = Some(before);
            }
        }
    }

    /// Checks how long requests were open while what they asked for was free, in each calm after a fault: a holder may
    /// hold for as long as it likes.
    fn check_waits(&mut self, primitive: Primitive, asked: &[&Record], held: &[&Record], stalls: &[Stall]) {
        let taken = taken(held, primitive.limit());
        let ends = stalls.iter().skip(1).map(|stall| stall.began).chain([u64::MAX]);
        for (fault, end) in stalls.iter().zip(ends) {
            for record in asked.iter().filter(|record| record.unlimited && record.answered > 0) {
                let (start, end) = (fault.ended.max(record.asked), end.min(record.answered));
                // They are in order: those before its start, of which there may be a million, are left out.
                let first = taken.partition_point(|(_, to)| *to <= start);
                let meanwhile = taken[first..].iter().take_while(|(from, _)| *from < end);
                let overlap = |(from, to): &(u64, u64)| (*to).min(end).saturating_sub((*from).max(start));
                let waited = end.saturating_sub(start).saturating_sub(meanwhile.map(overlap).sum());
                let waited = Duration::from_micros(waited);
                self.longest_wait = self.longest_wait.max(waited);
                if waited > primitive.lease() + SLACK {
                    self.late.push(format!("{waited:?} after {:?}: {record:?}", fault.what));
                }
            }
        }
    }

    /// # Panics
    ///
    /// If a guarantee was broken.
    pub fn assert(&self) {
        assert!(self.held > 0 && self.stalls > 0, "nothing happened");
        for broken in [&self.overlaps, &self.backwards, &self.nested, &self.open, &self.late] {
            assert!(broken.is_empty(), "{broken:#?}");
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} faults, {} grants", self.stalls, self.held)?;
        writeln!(f, "{} overlaps, {} tokens that went back", self.overlaps.len(), self.backwards.len())?;
        writeln!(f, "{} nested guards with another token", self.nested.len())?;
        writeln!(f, "{} requests never answered, {} served late", self.open.len(), self.late.len())?;
        writeln!(f, "longest wait after a fault: {:?}", self.longest_wait)?;
        write!(f, "outcomes: {:?}", self.outcomes)
    }
}
