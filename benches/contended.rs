//! The cost of a contended lock: this crate and the usual recipes side by side, in one run.
//!
//! `cargo bench -p leasehold-benches --bench contended` starts its own `redis-server` (or uses `--port`) and, for each
//! strategy, section length and number of waiters, two worker processes among which the waiters are divided. Each
//! waiter requests the lock, holds it for the section, releases it and requests it again at once, until the time is
//! over. The first moments, while the waiters queue up, are not counted, nor, for strategies in which every waiter is
//! served, the time of about one turn of all waiters. Then, within the window:
//!
//! * hand-overs per second: grants seen by the workers;
//! * hand-over: from the call of a release to the next grant seen, in either process. Workers record the machine's time
//!   of each grant and each release, and all records are merged. If two holds overlap, the run fails;
//! * wait: from the request to the grant. A waiter that is still waiting when the window ends counts with its wait so
//!   far if that exceeds the median;
//! * commands per acquisition: what the clients sent, from the server's statistics. Commands that scripts run do not
//!   count. For this crate, operations are also counted, several of which may share a command: each begins with one
//!   EXISTS within the script;
//! * Jain: Jain's fairness index of the number of grants per waiter, 1 if all have the same number;
//! * PING: median time of a PING from the parent, every 5 ms on a connection of its own;
//! * PINGs alone: right after this crate's turns in strict order, PINGs one after another while nothing else runs, as
//!   many as usually take as long as a wait. Their spread is what this machine adds to anything done in order.
//!
//! WATCH/MULTI increments are over when they succeed, so they have no hand-over; their counter is checked instead.
//!
//! The second part measures the compared pairs once more, in alternation. The third does the same as the first with
//! sections of 2 ms and some time between turns. The fourth holds a lock in a fresh process, has tasks of one client
//! wait for it, and divides the growth of the resident memory by their number; for comparison, it shows what tasks that
//! wait for nothing cost.

use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};

mod common;
mod strategies;

use common::turns::Spread;
use common::{Place, Result, median, table};
use strategies::{Figures, Job, MemoryJob, Race, Strategy, memory_per_waiter};

/// Turns that each waiter should have, for strategies in which every waiter is served.
const TURNS: u32 = 12;
/// How often each compared strategy has its turn.
const ROUNDS: usize = 3;
/// Below this many turns, the fact that they are whole numbers shows in Jain's index.
const TURNS_FOR_JAIN: usize = 8;
/// An estimate of how long a hand-over takes in addition to the section: one through the server, on a busy machine.
const HAND_OVER: Duration = Duration::from_micros(150);

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    worker: Option<Worker>,
    /// Parts to run.
    #[arg(long, value_delimiter = ',', default_value = "closed,turns,think,memory")]
    parts: Vec<Part>,
    /// Strategies to measure; all by default.
    #[arg(long, value_delimiter = ',')]
    strategies: Option<Vec<Strategy>>,
    /// Numbers of waiters.
    #[arg(long, value_delimiter = ',', default_value = "2,16,128,1000,10000")]
    waiters: Vec<usize>,
    /// Lengths of section, in ms.
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    sections: Vec<u64>,
    /// How long to count, in ms.
    #[arg(long, default_value_t = 3000)]
    window: u64,
    /// The longest window, in ms: if every waiter is served, a window lasts until each has had several turns.
    #[arg(long, default_value_t = 30_000)]
    longest_window: u64,
    /// The longest time between two turns in the part with think time, in ms.
    #[arg(long, default_value_t = 4)]
    think: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Each waiter requests again at once.
    Closed,
    /// The compared pairs, in alternation, with their own numbers of waiters.
    Turns,
    /// 16 waiters, sections of 2 ms, and some time between turns.
    Think,
    /// Memory per waiter.
    Memory,
}

/// What this process is if it is not the benchmark itself.
#[derive(Subcommand)]
enum Worker {
    #[command(hide = true)]
    Race(Job),
    #[command(hide = true)]
    Memory(MemoryJob),
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut options = Options::parse();
    match options.worker.take() {
        Some(Worker::Race(job)) => job.run().await,
        Some(Worker::Memory(job)) => job.run().await,
        None => bench(&options).await,
    }
}

async fn bench(options: &Options) -> Result<()> {
    let Some((port, _server)) = options.place.server("the cost of waiting") else { return Ok(()) };
    let mut claims = Claims::new();
    if options.parts.contains(&Part::Closed) {
        let cells = measure(port, &options.closed_races()).await?;
        print(&cells);
        claims.closed(&cells);
    }
    if options.parts.contains(&Part::Turns) {
        claims.in_turns(options, port).await?;
    }
    if options.parts.contains(&Part::Think) {
        println!("Sections of 2 ms, and up to {} ms between turns:\n", options.think);
        let cells = measure(port, &options.think_races()).await?;
        print(&cells);
        claims.think(&cells);
    }
    if options.parts.contains(&Part::Memory) {
        let waiters = options.place.choose(10_000, 100);
        let memory = memory_per_waiter(port, waiters).await?;
        println!(
            "{waiters} waiters of one client: {} bytes each; tasks that wait for nothing: {} bytes each\n",
            memory.waiting, memory.empty
        );
        let what = format!("memory per waiter, {waiters} on one client, bytes");
        claims.add(what, Some(memory.waiting as f64), Goal::AtMost(2048.0));
    }
    // A round that only shows that everything works says nothing about them.
    if options.place.choose(true, false) {
        println!("{}", claims.table);
    }
    Ok(())
}

impl Options {
    fn strategies(&self) -> &[Strategy] {
        self.strategies.as_deref().unwrap_or(Strategy::value_variants())
    }

    fn closed_races(&self) -> Vec<Race> {
        let waiters = self.place.choose(&self.waiters[..], &[16]);
        let mut races = Vec::new();
        for &section in self.place.choose(&self.sections[..], &[0]) {
            for &waiters in waiters {
                let section = Duration::from_millis(section);
                let race = |&strategy| self.closed_race(strategy, waiters, section);
                races.extend(self.strategies().iter().map(race));
            }
        }
        races
    }

    fn closed_race(&self, strategy: Strategy, waiters: usize, section: Duration) -> Race {
        let (mut window, mut first_turn) = (self.window(), Duration::ZERO);
        if strategy.is_ours() {
            let turn = (section + HAND_OVER) * waiters as u32;
            let longest = Duration::from_millis(self.longest_window);
            // In the first turn, each waits for those before it; in all others, for all others.
            first_turn = (turn * 2).min(longest);
            window = window.max((turn * TURNS).min(longest));
        }
        Race { strategy, waiters, section, think: Duration::ZERO, first_turn, window }
    }

    fn think_races(&self) -> Vec<Race> {
        let (section, think) = (Duration::from_millis(2), Duration::from_millis(self.think));
        [Strategy::ViaStore, Strategy::Leasehold, Strategy::Rslock, Strategy::Rslock10]
            .into_iter()
            .filter(|strategy| self.strategies().contains(strategy))
            .map(|strategy| {
                let (first_turn, window) = (Duration::ZERO, self.window());
                Race { strategy, waiters: 16, section, think, first_turn, window }
            })
            .collect()
    }

    fn window(&self) -> Duration {
        Duration::from_millis(self.place.choose(self.window, 100))
    }
}

/// A race and what it showed.
struct Cell {
    race: Race,
    figures: Figures,
}

async fn measure(port: u16, races: &[Race]) -> Result<Vec<Cell>> {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg}")?;
    let progress = ProgressBar::new(races.len() as u64).with_style(style);
    let mut cells = Vec::new();
    for &race in races {
        let name = format!("{}, {} waiters, {:?}", race.strategy.name(), race.waiters, race.section);
        progress.set_message(name.clone());
        let figures = race.run(port).await.map_err(|error| format!("{name}: {error}"))?;
        cells.push(Cell { race, figures });
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(cells)
}

fn print(cells: &[Cell]) {
    let mut table = table([
        "section",
        "waiters",
        "strategy",
        "hand-overs/s",
        "hand-over p50/p99 us",
        "wait p50/p99 ms",
        "p99/p50",
        "commands",
        "operations",
        "Jain",
        "PING p50 us",
    ]);
    for Cell { race, figures } in cells {
        let wait = figures.wait;
        table.add_row([
            format!("{:?}", race.section),
            race.waiters.to_string(),
            race.strategy.name().to_owned(),
            format!("{:.0}", figures.per_second),
            or_dash(figures.hand_over.map(|Spread { p50, p99 }| format!("{p50:.0} / {p99:.0}"))),
            format!("{:.2} / {:.2}", wait.p50 / 1000.0, wait.p99 / 1000.0),
            format!("{:.2}", wait.p99 / wait.p50),
            format!("{:.2}", figures.commands),
            or_dash(figures.operations.map(|operations| format!("{operations:.2}"))),
            format!("{:.4}", figures.jain),
            format!("{:.0}", figures.ping),
        ]);
    }
    println!("{table}\n");
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// What a figure is compared with.
#[derive(Clone, Copy)]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

/// The goals, and to what extent they are met.
struct Claims {
    table: Table,
}

impl Claims {
    fn new() -> Self {
        Self { table: table(["figure", "measured", "goal", ""]) }
    }

    fn add(&mut self, what: String, measured: Option<f64>, goal: Goal) {
        let (goal, met) = match goal {
            Goal::AtLeast(least) => (format!(">= {least}"), measured.map(|measured| measured >= least)),
            Goal::AtMost(most) => (format!("<= {most}"), measured.map(|measured| measured <= most)),
        };
        let verdict = match met {
            Some(true) => "met",
            Some(false) => "not met",
            None => "not measured",
        };
        self.table.add_row([
            what,
            or_dash(measured.map(|measured| format!("{measured:.3}"))),
            goal,
            verdict.to_owned(),
        ]);
    }

    /// A figure of the machine, which has no goal.
    fn tell(&mut self, what: String, measured: f64) {
        self.table.add_row([what, format!("{measured:.3}"), "-".to_owned(), "the machine".to_owned()]);
    }

    fn closed(&mut self, cells: &[Cell]) {
        for Cell { race, figures } in cells.iter().filter(|cell| cell.race.strategy.is_ours()) {
            let of = |what: &str| {
                format!("{}, {} waiters, {:?}: {what}", race.strategy.name(), race.waiters, race.section)
            };
            self.add(of("commands per acquisition"), Some(figures.commands), Goal::AtMost(2.05));
            if figures.grants >= TURNS_FOR_JAIN * race.waiters {
                self.add(of("Jain"), Some(figures.jain), Goal::AtLeast(0.99));
            }
            if race.strategy == Strategy::ViaStore {
                if race.section.is_zero() {
                    let hand_over = figures.hand_over.map(|hand_over| hand_over.p50 / figures.ping);
                    self.add(of("hand-over p50 / PING p50"), hand_over, Goal::AtMost(1.35));
                }
                if race.waiters >= 16 {
                    let ratio = figures.wait.p99 / figures.wait.p50;
                    self.add(of("wait p99 / p50"), Some(ratio), Goal::AtMost(1.3));
                    if let Some(Spread { p50, p99 }) = figures.pings_alone.filter(|_| race.section.is_zero())
                    {
                        self.tell(of("PINGs alone for as long, p99 / p50"), p99 / p50);
                    }
                }
            }
        }
    }

    /// Hand-overs per second with empty sections: both in each of several rounds, because a shared machine drifts, and
    /// the median of the ratios within each round.
    async fn in_turns(&mut self, options: &Options, port: u16) -> Result<()> {
        use Strategy::{Leasehold, Notify, ViaStore, Watch};
        let name = |(strategy, waiters): (Strategy, usize)| format!("{} at {waiters}", strategy.name());
        for (one, other, least) in [
            ((ViaStore, 10_000), (ViaStore, 16), 0.9),
            ((Leasehold, 16), (ViaStore, 16), 10.0),
            ((Leasehold, 128), (ViaStore, 128), 10.0),
            ((Leasehold, 1000), (ViaStore, 1000), 10.0),
            ((Leasehold, 1000), (Notify, 1000), 100.0),
            ((Leasehold, 1000), (Watch, 1000), 1000.0),
        ] {
            if ![one.0, other.0].iter().all(|strategy| options.strategies().contains(strategy)) {
                continue;
            }
            let race = |(strategy, waiters)| {
                options.closed_race(strategy, options.place.choose(waiters, 16), Duration::ZERO)
            };
            let mut ratios = Vec::new();
            for _ in 0..options.place.choose(ROUNDS, 1) {
                let cells = measure(port, &[race(one), race(other)]).await?;
                ratios.push(cells[0].figures.per_second / cells[1].figures.per_second);
            }
            let what = format!("hand-overs/s, {} : {}", name(one), name(other));
            self.add(what, Some(median(ratios.into_iter())), Goal::AtLeast(least));
        }
        Ok(())
    }

    /// The longest waits, with some time between turns.
    fn think(&mut self, cells: &[Cell]) {
        let p99 = |strategy| {
            let found = cells.iter().find(|cell| cell.race.strategy == strategy);
            found.map(|cell| cell.figures.wait.p99)
        };
        for ours in [Strategy::ViaStore, Strategy::Leasehold] {
            for theirs in [Strategy::Rslock, Strategy::Rslock10] {
                let ratio = p99(ours).zip(p99(theirs)).map(|(ours, theirs)| ours / theirs);
                let what = format!("wait p99 with think time, {} : {}", ours.name(), theirs.name());
                self.add(what, ratio, Goal::AtMost(0.3));
            }
        }
    }
}
