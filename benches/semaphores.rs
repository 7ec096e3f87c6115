//! The cost of a contended semaphore: this crate's two kinds and the naive recipe, in one run; the counting kind also
//! with hand-over within a client.
//!
//! `cargo bench -p leasehold-benches --bench semaphores` starts its own `redis-server` (or uses `--port`). Tasks of two
//! clients in one process share a limit of 10. Each requests a permit, lets the others run once, returns the permit and
//! requests again at once, until the time is over. All kinds run in each of several rounds, because a shared machine
//! drifts; the medians of the rounds are reported, and the medians of the ratios within each round. The first moments
//! are not counted; then, within the window:
//!
//! * acquisitions per second: grants seen;
//! * wait: from the request to the grant. A task that is still waiting when the window ends counts with its wait so far
//!   if that exceeds the median;
//! * commands per acquisition: what the clients sent, from the server's statistics; what scripts run does not count;
//! * most at once: permits held, from a grant seen to the call of its release. More than the limit fails the run,
//!   except for the naive recipe.
//!
//! The naive recipe keeps holders in a sorted set, scored by the time of their clients. To acquire, a client removes
//! expired holders, adds itself, and checks its own rank, in separate commands, and tries again after a pause if the
//! rank is too high. It is measured with pauses of 1, 5 and 10 ms; the comparison uses the one with the most
//! acquisitions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use fred::clients::Client as Fred;
use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, Value};
use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{Client, CountingSemaphore, FairSemaphore, Guard, SemaphoreOptions};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout_at};
use uuid::Uuid;

mod common;

use common::turns::{Contender, Held, Spread, Turn, now, waits};
use common::{Bare, Place, Raw, Result, median, table, url};

/// Clients that share the tasks.
const CLIENTS: usize = 2;
/// How long tasks continue after the window, so that their end is not measured.
const MARGIN: Duration = Duration::from_millis(100);
/// When the naive recipe considers a holder dead, in ms.
const TIMEOUT_MS: u64 = 30_000;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// What to measure; everything by default.
    #[arg(long, value_delimiter = ',')]
    kinds: Option<Vec<Kind>>,
    /// Numbers of tasks.
    #[arg(long, value_delimiter = ',', default_value = "100,1000")]
    tasks: Vec<usize>,
    /// Permits in all.
    #[arg(long, default_value_t = 10)]
    limit: u32,
    /// For how long is counted, in ms, in each round.
    #[arg(long, default_value_t = 1500)]
    window: u64,
    /// How often each kind has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Naive1,
    Naive5,
    Naive10,
    Counting,
    Fair,
    /// A counting semaphore whose permits are passed on within a client.
    PassedOn,
}

impl Kind {
    const NAIVE: [Self; 3] = [Self::Naive1, Self::Naive5, Self::Naive10];
    const OURS: [Self; 3] = [Self::Counting, Self::Fair, Self::PassedOn];

    const fn name(self) -> &'static str {
        match self {
            Self::Naive1 => "naive, polling 1 ms",
            Self::Naive5 => "naive, polling 5 ms",
            Self::Naive10 => "naive, polling 10 ms",
            Self::Counting => "CountingSemaphore",
            Self::Fair => "FairSemaphore",
            Self::PassedOn => "CountingSemaphore, hand-over",
        }
    }

    /// The commands that its clients send; none of them is run by a script.
    fn commands(self) -> &'static [&'static str] {
        if Self::NAIVE.contains(&self) {
            &["zremrangebyscore", "zadd", "zrank", "zrem"]
        } else {
            &["evalsha", "eval", "ping", "subscribe"]
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the cost of a semaphore") else { return Ok(()) };
    let cells = options.measure(port).await?;
    print(&cells);
    if options.place.choose(true, false) {
        compare(&cells);
    }
    Ok(())
}

impl Options {
    fn kinds(&self) -> &[Kind] {
        self.kinds.as_deref().unwrap_or(Kind::value_variants())
    }

    fn tasks(&self) -> &[usize] {
        self.place.choose(&self.tasks[..], &[30])
    }

    async fn measure(&self, port: u16) -> Result<Vec<Cell>> {
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}")?;
        let rounds = self.place.choose(self.rounds, 1);
        let turns = self.tasks().len() * self.kinds().len() * rounds;
        let progress = ProgressBar::new(turns as u64).with_style(style);
        let mut all = Vec::new();
        for &tasks in self.tasks() {
            let mut cells: Vec<_> =
                self.kinds().iter().map(|&kind| Cell { kind, tasks, rounds: Vec::new() }).collect();
            for _ in 0..rounds {
                for cell in &mut cells {
                    progress.set_message(format!("{}, {tasks} tasks", cell.kind.name()));
                    cell.rounds.push(self.figures(port, cell.kind, tasks).await?);
                    progress.inc(1);
                }
            }
            all.extend(cells);
        }
        progress.finish_and_clear();
        Ok(all)
    }

    async fn figures(&self, port: u16, kind: Kind, tasks: usize) -> Result<Figures> {
        let (url, name) = (url(port), format!("bench:{}", Uuid::new_v4()));
        let ms = Duration::from_millis;
        let crowd = Crowd { port, kind, tasks, window: ms(self.place.choose(self.window, 100)) };
        match kind {
            Kind::Naive1 => crowd.run(Naive::connect(&url, &name, self.limit, ms(1)).await?).await,
            Kind::Naive5 => crowd.run(Naive::connect(&url, &name, self.limit, ms(5)).await?).await,
            Kind::Naive10 => crowd.run(Naive::connect(&url, &name, self.limit, ms(10)).await?).await,
            Kind::Counting => crowd.run(counting(&url, &name, self.limit, false).await?).await,
            Kind::PassedOn => crowd.run(counting(&url, &name, self.limit, true).await?).await,
            Kind::Fair => crowd.run(fair(&url, &name, self.limit).await?).await,
        }
        .and_then(|figures| {
            let excess = Kind::OURS.contains(&kind) && figures.most > self.limit as usize;
            if excess {
                Err(format!("{} held {} permits of {}", kind.name(), figures.most, self.limit).into())
            } else {
                Ok(figures)
            }
        })
    }
}

/// What was measured, and what it showed.
struct Cell {
    kind: Kind,
    tasks: usize,
    rounds: Vec<Figures>,
}

impl Cell {
    fn median(&self, value: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(value))
    }

    /// Of the ratios within each round.
    fn against(&self, other: &Self, value: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(own, others)| value(own) / value(others)))
    }
}

struct Figures {
    per_second: f64,
    wait: Spread,
    commands: f64,
    most: usize,
}

/// Many tasks that want permits.
struct Crowd {
    port: u16,
    kind: Kind,
    tasks: usize,
    window: Duration,
}

impl Crowd {
    async fn run<C: Contender>(self, semaphores: [C; CLIENTS]) -> Result<Figures> {
        let mut raw = Raw::connect(self.port)?;
        let warm_up = self.window / 5;
        let until = Instant::now() + warm_up + self.window + MARGIN;
        let held = Arc::new(Occupancy::default());
        let tasks: Vec<_> = (0..self.tasks)
            .map(|task| {
                let (semaphore, held) = (semaphores[task % CLIENTS].clone(), Arc::clone(&held));
                tokio::spawn(async move { turns(task, &semaphore, &held, until).await })
            })
            .collect();
        sleep(warm_up).await;
        let (before, from) = (self.commands(&mut raw), now());
        sleep(self.window).await;
        let (after, to) = (self.commands(&mut raw), now());
        let mut turns = Vec::new();
        for task in tasks {
            turns.extend(task.await??);
        }
        let window = from..to;
        let granted = |turn: &&Turn| turn.held.is_some_and(|held| window.contains(&held.granted));
        let grants = turns.iter().filter(granted).count() as f64;
        Ok(Figures {
            per_second: grants * 1e9 / (to - from) as f64,
            wait: waits(&turns, &window)?,
            commands: (after - before) as f64 / grants,
            most: held.most.load(Ordering::Relaxed),
        })
    }

    fn commands(&self, raw: &mut Raw) -> u64 {
        let calls = raw.info_commandstats();
        self.kind.commands().iter().filter_map(|command| calls.get(*command)).sum()
    }
}

/// How many permits are held, and the maximum so far.
#[derive(Default)]
struct Occupancy {
    now: AtomicUsize,
    most: AtomicUsize,
}

async fn turns<C: Contender>(
    waiter: usize,
    semaphore: &C,
    held: &Occupancy,
    until: Instant,
) -> Result<Vec<Turn>> {
    let mut turns = Vec::new();
    while Instant::now() < until {
        let asked = now();
        let Some(permit) = semaphore.acquire(until).await? else {
            turns.push(Turn { waiter, asked, held: None });
            break;
        };
        let granted = now();
        held.most.fetch_max(held.now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Otherwise there would be no more permits in use than threads.
        yield_now().await;
        held.now.fetch_sub(1, Ordering::Relaxed);
        turns.push(Turn { waiter, asked, held: Some(Held { granted, released: now() }) });
        semaphore.release(permit).await?;
    }
    Ok(turns)
}

async fn counting(url: &str, name: &str, limit: u32, handover: bool) -> Result<[CountingSemaphore; CLIENTS]> {
    let clients = [Client::connect(url).await?, Client::connect(url).await?];
    let options = SemaphoreOptions::new().local_handover(handover);
    let semaphore = |client: &Client| client.counting_semaphore_with(name, limit, options.clone());
    Ok([semaphore(&clients[0])?, semaphore(&clients[1])?])
}

async fn fair(url: &str, name: &str, limit: u32) -> Result<[FairSemaphore; CLIENTS]> {
    let clients = [Client::connect(url).await?, Client::connect(url).await?];
    Ok([clients[0].fair_semaphore(name, limit)?, clients[1].fair_semaphore(name, limit)?])
}

impl Contender for CountingSemaphore {
    type Held = Guard;

    async fn acquire(&self, until: Instant) -> Result<Option<Guard>> {
        Ok(timeout_at(until.into(), Self::acquire(self)).await.ok().transpose()?)
    }

    async fn release(&self, guard: Guard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

impl Contender for FairSemaphore {
    type Held = Guard;

    async fn acquire(&self, until: Instant) -> Result<Option<Guard>> {
        Ok(timeout_at(until.into(), Self::acquire(self)).await.ok().transpose()?)
    }

    async fn release(&self, guard: Guard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// The naive recipe.
#[derive(Clone)]
struct Naive {
    client: Fred,
    key: String,
    limit: i64,
    pause: Duration,
}

impl Naive {
    async fn connect(url: &str, key: &str, limit: u32, pause: Duration) -> Result<[Self; CLIENTS]> {
        let one = |client| Self { client, key: key.to_owned(), limit: i64::from(limit), pause };
        Ok([one(Bare::connection(url).await?), one(Bare::connection(url).await?)])
    }

    /// Whether there was a permit for `holder`.
    async fn attempt(&self, holder: &str) -> Result<bool> {
        let time = now() / 1_000_000;
        let (time, expired) = (time.to_string(), (time - TIMEOUT_MS).to_string());
        self.send("ZREMRANGEBYSCORE", &["-inf", &expired]).await?;
        self.send("ZADD", &[&time, holder]).await?;
        // Nothing if a client whose clock is ahead has taken this one for dead.
        let rank = self.send("ZRANK", &[holder]).await?.as_i64();
        if rank.is_some_and(|rank| rank < self.limit) {
            return Ok(true);
        }
        self.send("ZREM", &[holder]).await?;
        Ok(false)
    }

    async fn send(&self, command: &'static str, args: &[&str]) -> Result<Value> {
        let args: Vec<_> = [&self.key[..]].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
        let command = CustomCommand::new_static(command, ClusterHash::FirstKey, false);
        Ok(self.client.custom(command, args).await?)
    }
}

impl Contender for Naive {
    type Held = String;

    async fn acquire(&self, until: Instant) -> Result<Option<String>> {
        let holder = Uuid::new_v4().to_string();
        while Instant::now() < until {
            if self.attempt(&holder).await? {
                return Ok(Some(holder));
            }
            sleep(self.pause).await;
        }
        Ok(None)
    }

    async fn release(&self, holder: String) -> Result<()> {
        self.send("ZREM", &[&holder]).await?;
        Ok(())
    }
}

fn print(cells: &[Cell]) {
    let mut table = table([
        "tasks",
        "semaphore",
        "acquisitions/s",
        "wait p50/p99 ms",
        "commands per acquisition",
        "most at once",
    ]);
    for cell in cells {
        let [p50, p99] = [cell.median(|round| round.wait.p50), cell.median(|round| round.wait.p99)];
        let most = cell.rounds.iter().map(|round| round.most).max().unwrap_or_default();
        table.add_row([
            cell.tasks.to_string(),
            cell.kind.name().to_owned(),
            format!("{:.0}", cell.median(|round| round.per_second)),
            format!("{:.2} / {:.2}", p50 / 1000.0, p99 / 1000.0),
            format!("{:.2}", cell.median(|round| round.commands)),
            most.to_string(),
        ]);
    }
    println!("{table}\n");
}

/// This crate against the naive recipe at its best pause, at 100 tasks.
fn compare(cells: &[Cell]) {
    let mut table = table(["figure, at 100 tasks", "measured", "goal", ""]);
    let at_100 =
        |kinds: &'static [Kind]| cells.iter().filter(|cell| cell.tasks == 100 && kinds.contains(&cell.kind));
    let rate = |round: &Figures| round.per_second;
    let best = at_100(&Kind::NAIVE).max_by(|a, b| a.median(rate).total_cmp(&b.median(rate)));
    for (best, ours) in best.iter().flat_map(|best| at_100(&Kind::OURS).map(move |ours| (best, ours))) {
        let mut add = |what: &str, ratio: f64, goal: &str, met: bool| {
            let what = format!("{what}, {} : {}", ours.kind.name(), best.kind.name());
            let verdict = if met { "met" } else { "not met" };
            table.add_row([what, format!("{ratio:.3}"), goal.to_owned(), verdict.to_owned()]);
        };
        let rate = ours.against(best, rate);
        add("acquisitions/s", rate, ">= 1.3", rate >= 1.3);
        let wait = ours.against(best, |round| round.wait.p99);
        add("wait p99", wait, "<= 0.1", wait <= 0.1);
    }
    println!("{table}");
}
