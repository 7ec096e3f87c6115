//! What a run is told on the command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use leasehold_torture::history::Micros;
use leasehold_torture::judge::Bounds;

use crate::clock::micros;
use crate::fault::{Fault, ServerFault};
use crate::fleet::Plan;
use crate::scenario::Scenario;
use crate::schedule::{Chosen, Schedule};
use crate::store::Store;
use crate::worker::Planted;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Where locks are stored.
    #[arg(long, value_enum, default_value = "redis")]
    pub(crate) store: Store,
    /// Which faults there are.
    #[arg(long, default_value = "mixed", value_parser = Scenario::named)]
    pub(crate) scenario: &'static Scenario,
    /// Decides which fault comes when.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// For how long.
    #[arg(long, default_value_t = 60)]
    pub(crate) seconds: u64,
    /// How many processes.
    #[arg(long, default_value_t = 4)]
    pub(crate) workers: usize,
    /// How many locks and semaphores of each kind.
    #[arg(long, default_value_t = 4)]
    pub(crate) each: usize,
    /// How many tasks of each worker ask for each of them.
    #[arg(long, default_value_t = 2)]
    pub(crate) tasks: usize,
    /// One of how many sections takes longer than a lease; 500 by default, and fewer where the scenario needs it. Those of owners do
    /// so five times as often.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) long: Option<u64>,
    /// For how long a task rests at most before it asks again, in milliseconds: more for long runs, which must not keep
    /// the machine busy.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rest: u64,
    /// How many times as long as usual nothing goes wrong between two faults: more for long runs, for the same reason.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) spacing: u32,
    /// Of all leases, in milliseconds; a second by default, and two on etcd.
    #[arg(long)]
    pub(crate) lease: Option<u64>,
    /// By how many milliseconds everything may be later than promised: for machines that are busy.
    #[arg(long, default_value_t = 0)]
    pub(crate) slack: u64,
    /// Only these faults of those that the seed determines, by their numbers, such as 3,7,9, or none.
    #[arg(long)]
    pub(crate) faults: Option<Chosen>,
    /// After violations, look for the fewest faults that are needed for them.
    #[arg(long)]
    pub(crate) shrink: bool,
    /// How often some faults are tried before they are taken for harmless.
    #[arg(long, default_value_t = 3)]
    pub(crate) tries: usize,
    /// Where to leave the report, and what each worker wrote down.
    #[arg(long)]
    pub(crate) report: Option<PathBuf>,
    /// A mistake that must be found.
    #[arg(long, hide = true)]
    pub(crate) planted: Option<Planted>,
}

impl Options {
    pub(crate) fn lease(&self) -> Duration {
        self.lease.map_or(self.store.lease(), Duration::from_millis)
    }

    pub(crate) fn long(&self) -> u64 {
        self.long.unwrap_or(self.scenario.long)
    }

    /// The last fault ends so long before the end, so that everybody is served by then.
    pub(crate) fn ending(&self) -> Duration {
        4 * self.lease()
    }

    /// Every fault that there may be.
    pub(crate) fn possible(&self) -> Result<Vec<Fault>, String> {
        let mut faults = self.scenario.faults_on(self.store)?;
        let flush = Fault::Server(ServerFault::Flush);
        if self.planted == Some(Planted::SecretFlush) && !faults.contains(&flush) {
            faults.push(flush);
        }
        Ok(faults)
    }

    /// Which of these faults come when.
    pub(crate) fn schedule<'a>(&self, possible: &'a [Fault]) -> Schedule<'a> {
        Schedule::of(self.scenario, possible, self.lease(), self.workers, self.seed).spaced(self.spacing)
    }

    /// What repeats this run.
    pub(crate) fn command(&self) -> String {
        let Self { store, scenario, seed, seconds, workers, each, tasks, rest, spacing, slack, .. } = self;
        let long = self.long();
        let mut command = format!(
            "torture --store {} --scenario {} --seed {seed} --seconds {seconds} --workers {workers} --each {each} \
             --tasks {tasks} --long {long} --rest {rest} --spacing {spacing} --lease {} --slack {slack}",
            store.name(),
            scenario.name,
            self.lease().as_millis()
        );
        if let Some(planted) = self.planted {
            command += &format!(" --planted {}", planted.name());
        }
        if let Some(faults) = &self.faults {
            command += &format!(" --faults {faults}");
        }
        command
    }

    pub(crate) fn plan(&self, register: u16, directory: &Path, end: Micros) -> Plan {
        Plan {
            register,
            directory: directory.to_owned(),
            seed: self.seed,
            end,
            lease: self.lease(),
            each: self.each,
            tasks: self.tasks,
            long: self.long(),
            rest: Duration::from_millis(self.rest),
            has_semaphores: self.store.has_semaphores(),
            has_other_runtimes: self.scenario.has_other_runtimes,
            planted: self.planted,
        }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        let slack = micros(Duration::from_millis(self.slack));
        let mut bounds = Bounds::default();
        bounds.told += slack;
        bounds.handed_over += slack;
        bounds.recovered += slack;
        bounds.on_its_way += slack;
        bounds
    }
}
