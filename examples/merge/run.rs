//! One run: workers, their lock, their record, and the count of what they did.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Client, DistMutex, FencingToken, MutexOptions};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Args;
use crate::event::Event;
use crate::failure::Failure;
use crate::job::{self, Job};
use crate::loopback::Service;
use crate::record::Record;
use crate::storage::{Fenced, Storage};
use crate::worker::Worker;

/// The lock that guards the record of the run called `id`.
pub(crate) fn mutex(client: &Client, id: &str, ttl: u64) -> Result<DistMutex, leasehold::Error> {
    let options = MutexOptions::new().ttl(Duration::from_millis(ttl));
    client.mutex_with(&format!("merge:{id}"), options)
}

#[derive(Debug)]
pub(crate) struct Run<'a> {
    args: &'a Args,
    /// Names the lock, so that runs at the same time do not meet.
    id: String,
    locked: bool,
    mutex: DistMutex,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Updates that were acknowledged to a worker.
    pub(crate) made: u32,
    /// Updates that are in the record in the end.
    pub(crate) kept: usize,
    pub(crate) elapsed: Duration,
    /// The longest time that any worker waited for the lock.
    pub(crate) longest_wait: Option<Duration>,
    /// How long after a holder was killed the next one had the lock.
    pub(crate) recovery: Option<Duration>,
    /// What the record is about.
    pub(crate) parts: String,
}

impl<'a> Run<'a> {
    pub(crate) fn new(args: &'a Args, client: &Client, locked: bool) -> Result<Self, Failure> {
        let id = Uuid::new_v4().to_string();
        let mutex = mutex(client, &id, args.ttl)?;
        Ok(Self { args, id, locked, mutex })
    }

    pub(crate) async fn go(&self) -> Result<Outcome, Failure> {
        let record = Arc::<Fenced>::default();
        let service = Service::start(Arc::clone(&record)).await?;
        let storage = Storage::Here(record);
        let started = Instant::now();
        let (events, inbox) = unbounded_channel();
        let workers = self.start(&storage, service.address(), &events);
        drop(events); // the tally is complete when the last worker has dropped its copy
        let done = tokio::try_join!(tally(inbox, self.progress_bar()), all(workers));
        let elapsed = started.elapsed();

        let (Tally { made, longest_wait, recovery, .. }, ()) = done?;
        let record: Record = storage.read(None).await?.parse()?;
        let parts = record.parts().collect::<Vec<_>>().join(", ");
        Ok(Outcome { made, kept: record.updates(), elapsed, longest_wait, recovery, parts })
    }

    fn start(
        &self,
        storage: &Storage,
        record: SocketAddr,
        events: &UnboundedSender<Event>,
    ) -> JoinSet<Result<(), Failure>> {
        let mut workers = JoinSet::new();
        for source in 0..self.args.processes {
            if self.args.url == "memory:" {
                workers.spawn(self.task(source, storage.clone(), events.clone()).run());
            } else {
                let crash = self.args.crash && self.locked && source == 0;
                let (url, own) = (self.args.url.clone(), self.job(source, record));
                workers.spawn(job::supervise(url, own, crash, events.clone()));
            }
        }
        workers
    }

    /// A worker inside this process.
    fn task(&self, source: u32, storage: Storage, events: UnboundedSender<Event>) -> Worker {
        let mutex = self.locked.then(|| self.mutex.clone());
        Worker { source, rounds: 0..self.args.rounds, stall: false, storage, mutex, events }
    }

    /// A worker as a process of its own.
    fn job(&self, source: u32, record: SocketAddr) -> Job {
        let Args { rounds, ttl, .. } = *self.args;
        let (run, locked) = (self.id.clone(), self.locked);
        Job { run, record, locked, ttl, source, first: 0, end: rounds, stall: false }
    }

    /// Draws on a terminal only.
    fn progress_bar(&self) -> ProgressBar {
        let bar = ProgressBar::new(u64::from(self.args.processes * self.args.rounds));
        let style = ProgressStyle::with_template("{msg:8} {bar:50} {pos}/{len} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(if self.locked { "locked" } else { "unlocked" });
        bar
    }
}

/// Waits for all workers. The first failure returns at once, which ends the others: the set is dropped.
async fn all(mut workers: JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn tally(mut inbox: UnboundedReceiver<Event>, bar: ProgressBar) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    while let Some(event) = inbox.recv().await {
        tally.count(event);
        bar.set_position(u64::from(tally.made));
    }
    bar.finish_and_clear();
    Ok(tally)
}

/// What the workers have reported so far.
#[derive(Debug, Default)]
struct Tally {
    made: u32,
    longest_wait: Option<Duration>,
    killed: Option<(FencingToken, Instant)>,
    recovery: Option<Duration>,
}

impl Tally {
    fn count(&mut self, event: Event) {
        match event {
            Event::Made => self.made += 1,
            Event::Stalled { token } => self.killed = Some((token, Instant::now())),
            Event::Locked { token, waited } => {
                self.longest_wait = self.longest_wait.max(Some(waited));
                // Reports of several workers arrive in any order; tokens tell who held the lock after whom.
                if let Some((_, killed)) = self.killed.filter(|(victim, _)| token > *victim) {
                    self.recovery.get_or_insert(killed.elapsed());
                }
            }
        }
    }
}
