//! One run: servers and workers are started, things go wrong, and what happened is judged.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leasehold_torture::history::{Effect, Fault, History, Micros, Site, Usage};
use leasehold_torture::judge::{Bounds, Verdict};

use crate::clock::{micros, now};
use crate::fault::{Fault as Possible, ServerFault};
use crate::fleet::{Fleet, Plan, log_of};
use crate::injector::{Injected, Injector};
use crate::log::Read;
use crate::register::Register;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::schedule::{Chosen, Schedule};
use crate::servers::Start;
use crate::shrinking;
use crate::sites;
use crate::store::{self, Store};
use crate::worker::Planted;

/// The exit status if there are violations.
const VIOLATED: u8 = 1;
/// The exit status if this machine has no such server.
const LEFT_OUT: u8 = 3;
/// What the workers do is not disturbed before the first of them have begun.
const BEGINNING: Duration = Duration::from_millis(500);

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

    fn long(&self) -> u64 {
        self.long.unwrap_or(self.scenario.long)
    }

    /// The last fault ends so long before the end, so that everybody is served by then.
    pub(crate) fn ending(&self) -> Duration {
        4 * self.lease()
    }

    /// Every fault that there may be.
    pub(crate) fn possible(&self) -> Result<Vec<Possible>, String> {
        let mut faults = self.scenario.faults_on(self.store)?;
        let flush = Possible::Server(ServerFault::Flush);
        if self.planted == Some(Planted::SecretFlush) && !faults.contains(&flush) {
            faults.push(flush);
        }
        Ok(faults)
    }

    /// Which of these faults come when.
    pub(crate) fn schedule<'a>(&self, possible: &'a [Possible]) -> Schedule<'a> {
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

    fn plan(&self, register: u16, directory: &Path, end: Micros) -> Plan {
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

    fn bounds(&self) -> Bounds {
        let slack = micros(Duration::from_millis(self.slack));
        let mut bounds = Bounds::default();
        bounds.told += slack;
        bounds.handed_over += slack;
        bounds.recovered += slack;
        bounds.on_its_way += slack;
        bounds
    }
}

/// A run, and what was found.
pub(crate) struct Ran {
    pub(crate) history: History,
    pub(crate) verdict: Verdict,
    pub(crate) read: Vec<(u32, Read)>,
    /// What could be caused.
    pub(crate) possible: Vec<Possible>,
    /// What was caused.
    pub(crate) injected: Vec<Injected>,
    /// From when times are counted.
    pub(crate) began: Micros,
}

pub(crate) async fn run(options: &Options) -> Result<ExitCode, String> {
    let Options { scenario, seed, seconds, report, .. } = options;
    options.possible()?;
    println!("{}, {}, seed {seed}, {seconds} s: {}", options.store.name(), scenario.name, scenario.holds);
    let Some(ran) = attempt(options, report.as_deref(), false).await? else {
        return Ok(ExitCode::from(LEFT_OUT));
    };
    let text = Report { options, ran: &ran };
    print!("{text}");
    if let Some(directory) = report {
        text.write(directory)?;
    }
    if ran.verdict.violations.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if options.shrink {
        shrinking::shrink(options, &ran).await?;
    }
    Ok(ExitCode::from(VIOLATED))
}

/// One run; `None` if this machine has no such server, or the server none of the faults. Events are left in the
/// directory, if there is one.
pub(crate) async fn attempt(
    options: &Options,
    directory: Option<&Path>,
    is_quiet: bool,
) -> Result<Option<Ran>, String> {
    let Options { store, scenario, .. } = options;
    let mut possible = options.possible()?;
    let start = Start { is_on_disk: scenario.is_on_disk, faults: &possible };
    let Some(mut server) = store.start_or_skip(start) else { return Ok(None) };
    possible.retain(|fault| !matches!(fault, Possible::Server(fault) if !server.can_have(*fault)));
    if possible.is_empty() && !scenario.faults.is_empty() {
        return Ok(None);
    }
    let temporary = tempfile::tempdir().map_err(|error| format!("a directory for events: {error}"))?;
    let directory = directory.unwrap_or_else(|| temporary.path());
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    if log_of(directory, 1).exists() {
        return Err(format!("{}: it has the events of another run", directory.display()));
    }
    let register = Register::start(options.planted == Some(Planted::NoFence))
        .await
        .map_err(|error| format!("the register: {error}"))?;
    let lease = options.lease();
    let before = server.connections();
    let end = now() + micros(Duration::from_secs(options.seconds));
    let plan = options.plan(register.port(), directory, end);
    let taken = sites::all(plan.has_semaphores, lease, plan.each);
    let sites = &taken[..];
    let mut fleet = Fleet::start(plan, options.workers, &*server).await?;
    tokio::time::sleep(BEGINNING).await;
    let schedule = options.schedule(&possible);
    let is_secret = options.planted == Some(Planted::SecretFlush);
    let injector = Injector {
        store: *store,
        schedule,
        lease,
        sites,
        chosen: options.faults.as_ref(),
        is_quiet,
        is_secret,
    };
    let last = end.saturating_sub(micros(options.ending()));
    let injected = injector.run(&mut *server, &mut fleet, last).await?;
    fleet.finish().await?;
    let ended = now();
    let remains = store::remains(&*server, 5 * lease + Duration::from_secs(1))
        .await
        .map_err(|error| error.to_string())?;
    let after = server.connections();
    let read = fleet.read()?;
    let usage = usage(&read, before.zip(after), remains);
    let history = history(&sites::judged(&taken, *store), &read, &injected, &register, usage)?;
    // Whoever still waits has waited until now.
    let history = History { end: history.end.max(ended), ..history };
    let verdict = Verdict::of(&history, &options.bounds());
    Ok(Some(Ran { history, verdict, read, possible, injected, began: fleet.began() }))
}

/// Everything on one clock.
fn history(
    sites: &[Site],
    read: &[(u32, Read)],
    injected: &[Injected],
    register: &Register,
    usage: (Usage, Usage),
) -> Result<History, String> {
    let events = read.iter().flat_map(|(_, read)| read.events.iter().cloned()).collect();
    let late = read.iter().flat_map(|(client, read)| {
        read.late.iter().map(|(began, ended)| not_running(*client, *began, *ended))
    });
    let faults = injected.iter().map(|one| one.fault.clone()).chain(late).collect();
    let history = History::of(sites.to_vec(), events).map_err(|error| error.to_string())?.under(faults);
    Ok(History { writes: register.writes(), usage: Some(usage), ..history })
}

/// What a fault is called that nobody caused.
const NOT_RUNNING: &str = "the machine was busy";

fn not_running(client: u32, began: Micros, ended: Micros) -> Fault {
    Fault { began, ended, what: NOT_RUNNING.to_owned(), effect: Effect::Stalls { client } }
}

/// Of the workers that lived to the end, of the store, and the memory of those who lived long enough.
fn usage(read: &[(u32, Read)], connections: Option<(u64, u64)>, records: Vec<String>) -> (Usage, Usage) {
    let (mut before, mut after) = (Usage::default(), Usage { records, ..Usage::default() });
    for (_, read) in read {
        if let [then, now] = read.uses[..] {
            before.tasks += then.0;
            before.descriptors += then.1;
            after.tasks += now.0;
            after.descriptors += now.1;
        }
        if let Some((then, now)) = read.peaks() {
            before.memory += then;
            after.memory += now;
        }
    }
    if let Some((then, now)) = connections {
        (before.connections, after.connections) = (then, now);
    }
    (before, after)
}
