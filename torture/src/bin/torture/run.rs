//! One run: servers and workers are started, things go wrong, and what happened is judged.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use leasehold_torture::history::{Effect, Fault, History, Micros, Site, Usage};
use leasehold_torture::judge::{Bounds, Verdict};

use crate::clock::{micros, now};
use crate::fleet::{Fleet, Plan};
use crate::injector::Injector;
use crate::log::Read;
use crate::random::Random;
use crate::register::Register;
use crate::report::Report;
use crate::scenario::Scenario;
use crate::sites;
use crate::store::{Server, Store};
use crate::worker::Planted;

/// The exit status if there are violations.
const VIOLATED: u8 = 1;
/// The exit status if this machine has no such server.
const LEFT_OUT: u8 = 3;
/// What the workers do is not disturbed before the first of them have begun.
const BEGINNING: Duration = Duration::from_millis(500);

#[derive(Args, Debug)]
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
    /// One of how many sections takes longer than a lease. Those of owners do so five times as often.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) long: u64,
    /// Of all leases, in milliseconds; a second by default, and two on etcd.
    #[arg(long)]
    pub(crate) lease: Option<u64>,
    /// By how many milliseconds everything may be later than promised: for machines that are busy.
    #[arg(long, default_value_t = 0)]
    pub(crate) slack: u64,
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

pub(crate) async fn run(options: &Options) -> Result<ExitCode, String> {
    let faults = options.scenario.faults_on(options.store)?;
    let Some(mut server) = Server::start_or_skip(options.store, options.scenario) else {
        return Ok(ExitCode::from(LEFT_OUT));
    };
    let Options { scenario, seed, seconds, .. } = options;
    println!("{}, {}, seed {seed}, {seconds} s: {}", options.store.name(), scenario.name, scenario.holds);
    let temporary = tempfile::tempdir().map_err(|error| format!("a directory for events: {error}"))?;
    let directory = options.report.clone().unwrap_or_else(|| temporary.path().to_owned());
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let register = Register::start(options.planted == Some(Planted::NoFence))
        .await
        .map_err(|error| format!("the register: {error}"))?;
    let lease = options.lease();
    let before = server.connections();
    let end = now() + micros(Duration::from_secs(*seconds));
    let plan = Plan {
        register: register.port(),
        directory: directory.clone(),
        seed: *seed,
        end,
        lease,
        each: options.each,
        tasks: options.tasks,
        long: options.long,
        has_semaphores: options.store.has_semaphores(),
        planted: options.planted,
    };
    let taken = sites::all(plan.has_semaphores, lease, plan.each);
    let mut fleet = Fleet::start(plan, options.workers, &server).await?;
    tokio::time::sleep(BEGINNING).await;
    let is_secret = options.planted == Some(Planted::SecretFlush);
    let mut injector =
        Injector { scenario, faults: &faults, lease, random: Random::new(*seed, 0), is_secret };
    // The last fault ends before the end, so that everybody is served by then.
    let last = end.saturating_sub(micros(4 * lease));
    let injected = injector.run(&mut server, &mut fleet, last).await?;
    fleet.finish().await?;
    let ended = now();
    let remains =
        server.remains(5 * lease + Duration::from_secs(1)).await.map_err(|error| error.to_string())?;
    let after = server.connections();
    let read = fleet.read()?;
    let usage = usage(&read, before.zip(after), remains);
    let count = injected.len();
    let history = history(&sites::judged(&taken, options.store), &read, injected, &register, usage)?;
    // Whoever still waits has waited until now.
    let history = History { end: history.end.max(ended), ..history };
    let verdict = Verdict::of(&history, &options.bounds());
    let report = Report { options, verdict: &verdict, history: &history, read: &read, faults: count };
    print!("{report}");
    if options.report.is_some() {
        report.write(&directory)?;
    }
    Ok(if verdict.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

/// Everything on one clock.
fn history(
    sites: &[Site],
    read: &[(u32, Read)],
    mut faults: Vec<Fault>,
    register: &Register,
    usage: (Usage, Usage),
) -> Result<History, String> {
    let events = read.iter().flat_map(|(_, read)| read.events.iter().cloned()).collect();
    let late = read.iter().flat_map(|(client, read)| {
        read.late.iter().map(|(began, ended)| not_running(*client, *began, *ended))
    });
    faults.extend(late);
    let history = History::of(sites.to_vec(), events).map_err(|error| error.to_string())?.under(faults);
    Ok(History { writes: register.writes(), usage: Some(usage), ..history })
}

/// What a fault is called that nobody caused.
const NOT_RUNNING: &str = "the machine was busy";

fn not_running(client: u32, began: Micros, ended: Micros) -> Fault {
    Fault { began, ended, what: NOT_RUNNING.to_owned(), effect: Effect::Stalls { client } }
}

/// Of the workers that lived to the end, and of the store.
fn usage(read: &[(u32, Read)], connections: Option<(u64, u64)>, records: Vec<String>) -> (Usage, Usage) {
    let (mut before, mut after) = (Usage::default(), Usage { records, ..Usage::default() });
    for (_, read) in read {
        if let [then, now] = read.uses[..] {
            before.tasks += then.0;
            before.descriptors += then.1;
            after.tasks += now.0;
            after.descriptors += now.1;
        }
    }
    if let Some((then, now)) = connections {
        (before.connections, after.connections) = (then, now);
    }
    (before, after)
}
