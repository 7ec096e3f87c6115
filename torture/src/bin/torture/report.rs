//! What a run has shown, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use leasehold_torture::history::{Effect, History, Micros};
use leasehold_torture::judge::{Rule, Verdict};

use crate::log::Read;
use crate::run::Options;

const RULES: [(Rule, &str); 7] = [
    (Rule::I1, "no more is held at once than the limit"),
    (Rule::I2, "tokens increase in the order of grants"),
    (Rule::I3, "data that checks tokens loses no change"),
    (Rule::I4, "a loss is told within 50 ms of the deadline"),
    (Rule::I5, "whoever waits is served in time"),
    (Rule::I6, "nothing is left"),
    (Rule::I7, "grants follow the order of arrival"),
];
/// How many violations are written out.
const WRITTEN_OUT: usize = 40;

pub(crate) struct Report<'a> {
    pub(crate) options: &'a Options,
    pub(crate) verdict: &'a Verdict,
    pub(crate) history: &'a History,
    pub(crate) read: &'a [(u32, Read)],
    /// How many were caused.
    pub(crate) faults: usize,
}

impl Report<'_> {
    /// Leaves it in this directory.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), String> {
        let file = directory.join("report.txt");
        fs::write(&file, self.to_string()).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// How often calls failed, by their kind, and how one of them did.
    fn errors(&self) -> BTreeMap<&str, (usize, &str)> {
        let mut errors: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
        for (kind, (count, example)) in self.read.iter().flat_map(|(_, read)| &read.errors) {
            errors.entry(kind).or_insert((0, example)).0 += count;
        }
        errors
    }

    /// When workers did not run though nobody had stopped them.
    fn late(&self) -> Vec<Micros> {
        let is_stopped = |client: u32, began: Micros, ended: Micros| {
            self.history.faults.iter().any(|fault| {
                fault.effect == Effect::Pauses { client } && fault.began <= ended && began <= fault.ended
            })
        };
        let late = self.read.iter().flat_map(|(client, read)| read.late.iter().map(|late| (*client, *late)));
        late.filter(|(client, (began, ended))| !is_stopped(*client, *began, *ended))
            .map(|(_, (began, ended))| ended - began)
            .collect()
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, verdict, history, faults, .. } = self;
        let Options { store, scenario, seed, seconds, workers, .. } = options;
        let lease = options.lease().as_millis();
        writeln!(
            f,
            "\n{}, {}, seed {seed}, {seconds} s, {workers} workers, leases of {lease} ms",
            store.name(),
            scenario.name
        )?;
        writeln!(f, "must hold: {}\n", scenario.holds)?;
        let losses = history.operations.iter().filter(|operation| operation.lost.is_some()).count();
        writeln!(f, "{} grants, {losses} of which were lost", verdict.grants)?;
        let refused = history.writes.iter().filter(|write| !write.is_accepted).count();
        writeln!(f, "{} changes of data, {refused} of which were refused", history.writes.len())?;
        writeln!(f, "{} changes lost by data that does not check tokens", verdict.lost_changes)?;
        writeln!(f, "{} overlaps while exclusion was not promised", verdict.excused)?;
        let late = self.late();
        let longest = late.iter().max().copied().unwrap_or_default();
        writeln!(
            f,
            "{} times a worker did not run when it should, {} ms at most\n",
            late.len(),
            longest / 1_000
        )?;
        for (rule, what) in RULES {
            writeln!(f, "{rule:?}  {:>6} violations: {what}", verdict.count(rule))?;
        }
        writeln!(f, "I8  not judged here\n")?;
        for (fault, longest) in &verdict.recovery {
            writeln!(f, "{:>6} ms: the longest wait after: {fault}", longest / 1_000)?;
        }
        for (kind, (count, example)) in self.errors() {
            writeln!(f, "{count:>6} times {kind}, such as: {example}")?;
        }
        for violation in verdict.violations.iter().take(WRITTEN_OUT) {
            writeln!(f, "{:?} at {}: {}", violation.rule, violation.at, violation.what)?;
        }
        let violations = verdict.violations.len();
        writeln!(f, "\ntorture: {} operations, {faults} faults, {violations} violations", verdict.operations)
    }
}
