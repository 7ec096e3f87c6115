//! Servers and workers are started, things go wrong, and what happened is judged.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold_torture::history::{Effect, Fault, History, Micros, Site, Usage};
use leasehold_torture::judge::Verdict;

use crate::clock::{micros, now};
use crate::fault::Fault as Possible;
use crate::fleet::{Fleet, log_of};
use crate::injector::{Injected, Injector};
use crate::log::Read;
use crate::options::Options;
use crate::own_client;
use crate::register::Register;
use crate::servers::{self, Start};
use crate::sites;
use crate::worker::Planted;

/// What the workers do is not disturbed before the first of them have begun.
const BEGINNING: Duration = Duration::from_millis(500);

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
    let Some(mut server) = servers::start_or_skip(*store, start).await? else { return Ok(None) };
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
    let remains = own_client::remains(&*server, 5 * lease + Duration::from_secs(1))
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

/// Of the workers that lived to the end, of the store, and the memory of the one that grew most of those who lived long
/// enough.
fn usage(read: &[(u32, Read)], connections: Option<(u64, u64)>, records: Vec<String>) -> (Usage, Usage) {
    let (mut before, mut after) = (Usage::default(), Usage { records, ..Usage::default() });
    for (_, read) in read {
        if let [then, now] = read.uses[..] {
            before.tasks += then.0;
            before.descriptors += then.1;
            after.tasks += now.0;
            after.descriptors += now.1;
        }
        let grown = |(then, now): (u64, u64)| now.saturating_sub(then);
        let most = grown((before.memory, after.memory));
        if let Some((then, now)) = read.peaks().filter(|peaks| after.memory == 0 || grown(*peaks) > most) {
            (before.memory, after.memory) = (then, now);
        }
    }
    if let Some((then, now)) = connections {
        (before.connections, after.connections) = (then, now);
    }
    (before, after)
}
