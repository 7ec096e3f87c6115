//! The workers: processes of this program, each with a line of its own to the store.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_torture::history::Micros;
use tokio::time::{Instant, sleep};

use crate::clock::now;
use crate::line::Line;
use crate::log::Read;
use crate::servers::Server;
use crate::worker::Planted;
use leasehold_support::child::ChildProcess;

/// How long workers may take to end after the end of their time.
const ENDING: Duration = Duration::from_secs(60);

/// What every worker is told.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) register: u16,
    pub(crate) directory: PathBuf,
    pub(crate) seed: u64,
    pub(crate) end: Micros,
    pub(crate) lease: Duration,
    pub(crate) each: usize,
    pub(crate) tasks: usize,
    pub(crate) long: u64,
    pub(crate) rest: Duration,
    pub(crate) has_semaphores: bool,
    pub(crate) has_other_runtimes: bool,
    pub(crate) planted: Option<Planted>,
}

#[derive(Debug)]
pub(crate) struct Fleet {
    plan: Plan,
    workers: Vec<Worker>,
    began: Micros,
    next_client: u32,
    logs: Vec<PathBuf>,
}

#[derive(Debug)]
struct Worker {
    client: u32,
    line: Line,
    url: String,
    process: ChildProcess,
}

impl Fleet {
    pub(crate) async fn start(plan: Plan, count: usize, server: &dyn Server) -> Result<Self, String> {
        let mut fleet = Self { plan, workers: Vec::new(), began: now(), next_client: 1, logs: Vec::new() };
        for _ in 0..count {
            let (line, url) = server.line().await;
            let (client, process) = fleet.launch(&url)?;
            fleet.workers.push(Worker { client, line, url, process });
        }
        Ok(fleet)
    }

    /// A worker's process, under the next number.
    fn launch(&mut self, url: &str) -> Result<(u32, ChildProcess), String> {
        let client = self.next_client;
        self.next_client += 1;
        let log = log_of(&self.plan.directory, client);
        let program = env::current_exe().map_err(|error| format!("this program's file: {error}"))?;
        let args = self.args(client, url, &log);
        self.logs.push(log);
        Ok((client, ChildProcess::start(program.as_os_str(), args, |_| {})))
    }

    fn args(&self, client: u32, url: &str, log: &Path) -> Vec<OsString> {
        let Plan {
            register,
            seed,
            end,
            lease,
            each,
            tasks,
            long,
            rest,
            has_semaphores,
            has_other_runtimes,
            planted,
            ..
        } = &self.plan;
        let (lease, rest) = (lease.as_millis(), rest.as_millis());
        let mut args: Vec<OsString> = ["worker", "--url", url, "--log"].map(OsString::from).to_vec();
        args.push(log.into());
        let more = format!(
            "--register {register} --client {client} --seed {seed} --end {end} --lease {lease} --each {each} --tasks {tasks} --long {long} --rest {rest}"
        );
        args.extend(more.split(' ').map(OsString::from));
        args.extend(has_semaphores.then(|| "--semaphores".into()));
        args.extend(has_other_runtimes.then(|| "--other-runtimes".into()));
        if let Some(planted) = planted {
            args.extend(["--planted".into(), planted.name().into()]);
        }
        args
    }

    pub(crate) fn client(&self, worker: usize) -> u32 {
        self.workers[worker].client
    }

    pub(crate) fn line(&self, worker: usize) -> &Line {
        &self.workers[worker].line
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.workers.iter().map(|worker| &worker.line)
    }

    pub(crate) const fn began(&self) -> Micros {
        self.began
    }

    /// In seconds since the start.
    pub(crate) fn since(&self, at: Micros) -> f64 {
        at.saturating_sub(self.began) as f64 / 1e6
    }

    pub(crate) fn pause(&self, worker: usize) {
        self.workers[worker].process.pause();
    }

    pub(crate) fn resume(&self, worker: usize) {
        self.workers[worker].process.resume();
    }

    /// Kills a worker, and starts another one on its line.
    pub(crate) fn replace(&mut self, worker: usize) -> Result<(), String> {
        self.workers[worker].process.kill();
        let url = self.workers[worker].url.clone();
        let (client, process) = self.launch(&url)?;
        self.workers[worker].client = client;
        self.workers[worker].process = process;
        Ok(())
    }

    /// Waits until all have ended by themselves.
    pub(crate) async fn finish(&mut self) -> Result<(), String> {
        let end = Instant::now() + ENDING;
        for worker in &mut self.workers {
            while worker.process.is_alive() {
                if Instant::now() > end {
                    return Err(format!("worker {} does not end", worker.client));
                }
                sleep(Duration::from_millis(10)).await;
            }
            let status = worker.process.wait();
            if !status.success() {
                return Err(format!("worker {} failed: {status}", worker.client));
            }
        }
        Ok(())
    }

    /// What all of them wrote down, also those that were killed, by their clients' numbers.
    pub(crate) fn read(&self) -> Result<Vec<(u32, Read)>, String> {
        let existing = self.logs.iter().zip(1_u32..).filter(|(log, _)| log.exists());
        existing.map(|(log, client)| Ok((client, Read::of(log)?))).collect()
    }
}

/// Where a client's events are.
pub(crate) fn log_of(directory: &Path, client: u32) -> PathBuf {
    directory.join(format!("worker-{client}.events"))
}
