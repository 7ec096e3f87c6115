//! One measurement: the waiters of one strategy, in two processes, take turns for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use tokio::sync::Barrier;
use tokio::time::sleep;
use uuid::Uuid;

use super::figures::{Counted, Figures};
use super::{Increments, Notify, Redlock, Strategy, pings};
use crate::common::turns::{Contender, Held, Turn, now};
use crate::common::workers::{self, Workers};
use crate::common::{Bare, Ours, Polling, Raw, Result, timed, url};

const PROCESSES: usize = 2;
/// How long waiters continue after the window, so that their end is not measured.
const MARGIN: Duration = Duration::from_millis(200);
/// For how long PINGs alone are measured at most.
const LONGEST_ALONE: Duration = Duration::from_secs(3);
/// Between PINGs.
const PING_PAUSE: Duration = Duration::from_millis(5);

/// What is measured.
#[derive(Clone, Copy)]
pub(crate) struct Race {
    pub(crate) strategy: Strategy,
    /// In all processes together.
    pub(crate) waiters: usize,
    /// For how long each holds the lock.
    pub(crate) section: Duration,
    /// For how long each does something else after a turn, at most; evenly spread from zero.
    pub(crate) think: Duration,
    /// What is not counted besides the time in which all come to wait.
    pub(crate) first_turn: Duration,
    pub(crate) window: Duration,
}

impl Race {
    /// Runs the workers and counts what happens between two looks at the server's statistics, after a warm-up in which
    /// all have queued up.
    pub(crate) async fn run(self, port: u16) -> Result<Figures> {
        let name = format!("bench:{}", Uuid::new_v4());
        let (mut raw, bare) = (Raw::connect(port)?, Bare::connect(&url(port)).await?);
        let mut workers =
            Workers::start((0..PROCESSES).map(|process| self.job(port, &name, process).args())).await?;
        workers.go().await?;
        sleep(self.warm_up()).await;
        let before = self.commands(&mut raw);
        let from = now();
        let pings = pings(&bare, self.window).await?;
        let to = now();
        let after = self.commands(&mut raw);
        let turns = self.merge(workers.reports().await?)?;
        if !self.strategy.excludes() {
            check_counter(&mut raw, &name, &turns)?;
        }
        let counted = Counted {
            commands: after.sent - before.sent - if self.strategy.is_ours() { pings.len() } else { 0 },
            operations: after.operations - before.operations,
            window: from..to,
            pings,
        };
        let mut figures = Figures::new(self.strategy, self.waiters, turns, counted)?;
        if self.strategy == Strategy::ViaStore {
            let length = self.window.min(LONGEST_ALONE);
            figures.pings_alone = pings::spread(&bare, figures.wait.p50, length).await?;
        }
        Ok(figures)
    }

    fn warm_up(self) -> Duration {
        let coming =
            Duration::from_millis(300).min(self.window) + Duration::from_micros(100) * self.waiters as u32;
        coming + self.first_turn
    }

    fn job(self, port: u16, name: &str, process: usize) -> Job {
        Job {
            port,
            name: name.to_owned(),
            strategy: self.strategy,
            first: self.first(process),
            waiters: self.first(process + 1) - self.first(process),
            section_us: self.section.as_micros() as u64,
            think_us: self.think.as_micros() as u64,
            run_ms: (self.warm_up() + self.window + MARGIN).as_millis() as u64,
        }
    }

    /// The number of the first waiter of a process.
    fn first(self, process: usize) -> usize {
        self.waiters * process / PROCESSES
    }

    fn commands(self, raw: &mut Raw) -> Commands {
        let calls = raw.info_commandstats();
        let count = |commands: &[&str]| commands.iter().filter_map(|command| calls.get(*command)).sum();
        Commands { sent: count(self.strategy.commands()), operations: count(&["exists"]) }
    }

    /// The turns of all workers.
    fn merge(self, reports: Vec<Vec<u8>>) -> Result<Vec<Turn>> {
        let mut turns = Vec::new();
        for report in reports {
            turns.extend(Turn::decode(&report)?);
        }
        Ok(turns)
    }
}

struct Commands {
    sent: u64,
    /// In this crate's scripts, each request for a mutex begins with one EXISTS, and so does each release by its
    /// holder.
    operations: u64,
}

/// Time of PINGs during the window, one after another with a pause between them.
async fn pings(bare: &Bare, window: Duration) -> Result<Histogram<u64>> {
    let mut pings = Histogram::new(3)?;
    let started = Instant::now();
    while started.elapsed() < window {
        pings.record(timed(bare.ping()).await?)?;
        sleep(PING_PAUSE.min(window.saturating_sub(started.elapsed()))).await;
    }
    Ok(pings)
}

/// Increments that got lost would show here.
fn check_counter(raw: &mut Raw, key: &str, turns: &[Turn]) -> Result<()> {
    let successes = turns.iter().filter(|turn| turn.held.is_some()).count();
    let counter = raw.get(key).unwrap_or_default();
    if counter == successes.to_string() {
        Ok(())
    } else {
        Err(format!("{successes} increments made {counter}").into())
    }
}

/// One process's share of a race.
#[derive(Args)]
pub(crate) struct Job {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    name: String,
    #[arg(long)]
    strategy: Strategy,
    /// The number of its first waiter.
    #[arg(long)]
    first: usize,
    #[arg(long)]
    waiters: usize,
    #[arg(long)]
    section_us: u64,
    #[arg(long)]
    think_us: u64,
    #[arg(long)]
    run_ms: u64,
}

impl Job {
    /// The command line that makes a process do this.
    fn args(&self) -> Vec<String> {
        let strategy = self.strategy.to_possible_value().map(|value| value.get_name().to_owned());
        let options = [
            ("--port", self.port.to_string()),
            ("--name", self.name.clone()),
            ("--strategy", strategy.unwrap_or_default()),
            ("--first", self.first.to_string()),
            ("--waiters", self.waiters.to_string()),
            ("--section-us", self.section_us.to_string()),
            ("--think-us", self.think_us.to_string()),
            ("--run-ms", self.run_ms.to_string()),
        ];
        let options = options.into_iter().flat_map(|(option, value)| [option.to_owned(), value]);
        std::iter::once("race".to_owned()).chain(options).collect()
    }

    /// The worker.
    pub(crate) async fn run(self) -> Result<()> {
        let (url, name, waiters) = (url(self.port), self.name.clone(), self.waiters);
        let ms = Duration::from_millis;
        match self.strategy {
            Strategy::ViaStore => self.race(Ours::connect(&url, &name, false).await?).await,
            Strategy::Leasehold => self.race(Ours::connect(&url, &name, true).await?).await,
            Strategy::Poll1 => self.race(Polling::connect(&url, &name, ms(1)).await?).await,
            Strategy::Poll10 => self.race(Polling::connect(&url, &name, ms(10)).await?).await,
            Strategy::Notify => self.race(Notify::connect(&url, &name).await?).await,
            Strategy::Watch => self.race(Increments::connect(&url, &name, waiters).await?).await,
            Strategy::Rslock => self.race(Redlock::new(&url, &name, None)).await,
            Strategy::Rslock10 => self.race(Redlock::new(&url, &name, Some(ms(10)))).await,
        }
    }

    async fn race<C: Contender>(self, contender: C) -> Result<()> {
        let job = Arc::new(self);
        let start = Arc::new(Barrier::new(job.waiters + 1));
        let tasks: Vec<_> = (job.first..job.first + job.waiters)
            .map(|waiter| {
                let (job, contender, start) = (Arc::clone(&job), contender.clone(), Arc::clone(&start));
                tokio::spawn(async move {
                    start.wait().await;
                    job.turns(&contender, waiter).await
                })
            })
            .collect();
        workers::ready().await?;
        start.wait().await;
        let mut turns = Vec::new();
        for task in tasks {
            turns.extend(task.await??);
        }
        workers::report(&Turn::encode(&turns)).await
    }

    /// Takes the lock, holds it, releases it and asks again, until the time is over.
    async fn turns<C: Contender>(&self, contender: &C, waiter: usize) -> Result<Vec<Turn>> {
        let until = Instant::now() + Duration::from_millis(self.run_ms);
        let mut turns = Vec::new();
        while Instant::now() < until {
            let asked = now();
            let Some(hold) = contender.acquire(until).await? else {
                turns.push(Turn { waiter, asked, held: None });
                break;
            };
            let granted = now();
            pause(self.section_us).await;
            let released = now();
            contender.release(hold).await?;
            turns.push(Turn { waiter, asked, held: Some(Held { granted, released }) });
            pause(up_to(self.think_us)).await;
        }
        Ok(turns)
    }
}

async fn pause(micros: u64) {
    if micros > 0 {
        sleep(Duration::from_micros(micros)).await;
    }
}

/// A random number, evenly spread.
fn up_to(most: u64) -> u64 {
    if most == 0 { 0 } else { Uuid::new_v4().as_u64_pair().1 % (most + 1) }
}
