//! Workers as processes of their own: how they are started, listened to, and killed.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::Stdio;

use clap::Parser;
use leasehold::Client;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::event::Event;
use crate::failure::Failure;
use crate::process::{self, Process};
use crate::run;
use crate::storage::Storage;
use crate::worker::Worker;

/// The job of one process; its command line.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Job {
    #[arg(long)]
    pub(crate) run: String,
    /// Where the record is served.
    #[arg(long)]
    pub(crate) record: SocketAddr,
    #[arg(long)]
    pub(crate) ttl: u64,
    #[arg(long)]
    pub(crate) source: u32,
    /// The first round, and the one after the last.
    #[arg(long)]
    pub(crate) first: u32,
    #[arg(long)]
    pub(crate) end: u32,
    #[arg(long)]
    pub(crate) locked: bool,
    #[arg(long)]
    pub(crate) stall: bool,
}

impl Job {
    /// Starts a process that is ended when the returned handle is dropped.
    fn start(&self, url: &str) -> io::Result<Process> {
        let Self { run, record, ttl, source, first, end, .. } = self;
        let numbers = format!(
            "--run={run} --record={record} --ttl={ttl} --source={source} --first={first} --end={end}"
        );
        let mut command = process::command(url)?;
        command.args(numbers.split(' '));
        command.args(self.locked.then_some("--locked")).args(self.stall.then_some("--stall"));
        Process::start(command.stdout(Stdio::piped()))
    }
}

/// Runs a job in a process. With `crash`, that process is killed halfway while it holds the lock, and another
/// one makes the update that it could not make, and those after it.
pub(crate) async fn supervise(
    url: String,
    job: Job,
    crash: bool,
    events: UnboundedSender<Event>,
) -> Result<(), Failure> {
    if !crash {
        return listen(&url, &job, &events).await;
    }
    let fatal = job.end / 2;
    listen(&url, &Job { end: fatal + 1, stall: true, ..job.clone() }, &events).await?;
    listen(&url, &Job { first: fatal, ..job }, &events).await
}

/// Passes on what a process reports until it ends, and kills it if it stalls.
async fn listen(url: &str, job: &Job, events: &UnboundedSender<Event>) -> Result<(), Failure> {
    let mut process = job.start(url)?;
    let stdout = process.child.stdout.take().ok_or_else(|| io::Error::other("the worker has no output"))?;
    let mut lines = BufReader::new(stdout).lines();
    let mut killed = false;
    while let Some(line) = lines.next_line().await? {
        let event = line.parse()?;
        if matches!(event, Event::Stalled { .. }) {
            process.child.start_kill()?; // SIGKILL: it gets no chance to release anything
            killed = true;
        }
        let _ = events.send(event); // the receiver is gone only if the run has failed
    }
    match process.ended().await? {
        status if status.success() || killed => Ok(()),
        status => Err(Failure::Worker { number: job.source, status }),
    }
}

/// The other side of [`listen`]: does the job on the command line and reports on standard output.
pub(crate) async fn work(url: &str) -> Result<(), Failure> {
    process::end_with_parent();
    let job = Job::parse();
    let (events, inbox) = unbounded_channel();
    tokio::try_join!(work_at(url, job, events), print(inbox)).map(drop)
}

async fn work_at(url: &str, job: Job, events: UnboundedSender<Event>) -> Result<(), Failure> {
    let Job { run, record, ttl, source, first, end, locked, stall } = job;
    let storage = Storage::At(record);
    if !locked {
        return Worker { source, rounds: first..end, stall, storage, mutex: None, events }.run().await;
    }
    let client = Client::connect(url).await?;
    let mutex = Some(run::mutex(&client, &run, ttl)?);
    Worker { source, rounds: first..end, stall, storage, mutex, events }.run().await?;
    Ok(client.shutdown().await?)
}

async fn print(mut inbox: UnboundedReceiver<Event>) -> Result<(), Failure> {
    while let Some(event) = inbox.recv().await {
        writeln!(io::stdout(), "{event}")?;
    }
    Ok(())
}
