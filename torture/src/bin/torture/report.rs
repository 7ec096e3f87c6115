//! What a run has shown, as text.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use leasehold_torture::history::{Effect, Micros};
use leasehold_torture::outcome::Outcome;
use leasehold_torture::report::page::{Page, RULES};
use leasehold_torture::report::timeline::Scene;

use crate::attempt::Ran;
use crate::options::Options;

/// How many violations are written out.
const WRITTEN_OUT: usize = 40;

pub(crate) struct Report<'a> {
    pub(crate) options: &'a Options,
    pub(crate) ran: &'a Ran,
}

impl Report<'_> {
    /// Leaves it in this directory: as text, as a page, and as what the page of guarantees is made from.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), String> {
        let files = [
            ("report.txt", self.to_string()),
            ("report.html", self.page()),
            ("outcome.txt", self.outcome().to_string()),
        ];
        for (name, text) in files {
            let file = directory.join(name);
            fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok(())
    }

    fn outcome(&self) -> Outcome {
        let Options { store, scenario, seed, seconds, .. } = self.options;
        Outcome {
            store: store.name().to_owned(),
            scenario: scenario.name.to_owned(),
            seed: *seed,
            seconds: *seconds,
            faults: self.ran.injected.len() as u64,
            ..Outcome::of(&self.ran.history, &self.ran.verdict)
        }
    }

    fn page(&self) -> String {
        let Options { store, scenario, seed, seconds, workers, each, tasks, slack, .. } = self.options;
        let Ran { history, verdict, began, injected, .. } = self.ran;
        let concerned = injected.iter().filter_map(|one| Some((one.fault.began, one.client?))).collect();
        let late = self.late();
        let longest = late.iter().max().copied().unwrap_or_default();
        let facts = vec![
            ("store", store.name().to_owned()),
            ("scenario", scenario.name.to_owned()),
            ("seed", seed.to_string()),
            ("length", format!("{seconds} s")),
            ("leases", format!("{} ms", self.options.lease().as_millis())),
            ("workers", format!("{workers}, with {tasks} tasks for each lock")),
            ("locks and semaphores", format!("{each} of each kind")),
            ("allowed to be later by", format!("{slack} ms")),
            ("grants", verdict.grants.to_string()),
            (
                "a worker did not run when it should",
                format!("{} times, for {} ms at most", late.len(), longest / 1_000),
            ),
            ("to repeat it", self.options.command()),
        ];
        let errors = self.errors().into_iter().map(|(kind, (count, example))| (kind, count, example));
        let page = Page {
            scene: Scene { history, verdict, began: *began, concerned: &concerned },
            title: format!("{} on {}, seed {seed}", scenario.name, store.name()),
            holds: scenario.holds,
            facts,
            summary: self.summary(),
            errors: errors.collect(),
        };
        page.html()
    }

    /// The last line.
    fn summary(&self) -> String {
        let Ran { verdict, injected, .. } = self.ran;
        let (faults, violations) = (injected.len(), verdict.violations.len());
        format!("torture: {} operations, {faults} faults, {violations} violations", verdict.operations)
    }

    /// How often calls failed, by their kind, and how one of them did.
    fn errors(&self) -> BTreeMap<&str, (usize, &str)> {
        let mut errors: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
        for (kind, (count, example)) in self.ran.read.iter().flat_map(|(_, read)| &read.errors) {
            errors.entry(kind).or_insert((0, example)).0 += count;
        }
        errors
    }

    /// Of the worker that grew most, in megabytes.
    fn memory(&self) -> Option<(u64, u64)> {
        let (before, after) = self.ran.history.usage.as_ref()?;
        (after.memory > 0).then_some((before.memory >> 20, after.memory >> 20))
    }

    /// When workers did not run though nobody had stopped them.
    fn late(&self) -> Vec<Micros> {
        let is_stopped = |client: u32, began: Micros, ended: Micros| {
            self.ran.history.faults.iter().any(|fault| {
                fault.effect == Effect::Pauses { client } && fault.began <= ended && began <= fault.ended
            })
        };
        let late =
            self.ran.read.iter().flat_map(|(client, read)| read.late.iter().map(|late| (*client, *late)));
        late.filter(|(client, (began, ended))| !is_stopped(*client, *began, *ended))
            .map(|(_, (began, ended))| ended - began)
            .collect()
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, ran: Ran { verdict, history, .. } } = self;
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
        if let Some((first, last)) = self.memory() {
            writeln!(
                f,
                "{first} MB of memory at most in the first third of the time of the worker that grew most, {last} MB in the last\n"
            )?;
        }
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
        writeln!(f, "\n{}", self.summary())
    }
}
