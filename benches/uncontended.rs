//! The cost of an uncontended lock, as ratios within one run.
//!
//! `cargo bench -p leasehold-benches --bench uncontended` starts its own `redis-server`, in a separate session (or uses
//! `--port`), and measures this crate against the bare recipe (`SET NX PX` + a compare-and-delete script) through a
//! fred client with the same settings on the same server, and against the crate `rslock`, which is that recipe on the
//! `redis` crate:
//!
//! * one task: the time of lock + release, and of lock + drop, in small interleaved blocks, because a shared machine
//!   drifts; x of lock + drop is what the caller sees: `drop` returns before the release has reached the server. Each
//!   block drops different locks, and waits for all their releases, unmeasured, before the next block begins;
//! * 64 and 1024 tasks, each with its own lock: pairs per second, in interleaved rounds; the medians of the rounds, and
//!   the medians of the ratios within each round.
//!
//! All tasks share one connection per library, and everything runs on one tokio runtime in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::{Client, DistMutex};
use rslock::LockManager;
use tokio::task::JoinSet;

mod common;
use common::{Bare, Place, Result, median, micros, table, timed, url};

/// Pairs of one kind measured before the next kind's turn.
const BLOCK: usize = 50;
/// As long as for the others.
const LEASE: Duration = Duration::from_secs(30);
const TASKS: [usize; 2] = [64, 1024];

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Pairs of each kind for one task.
    #[arg(long, default_value_t = 20_000)]
    pairs: usize,
    /// How long each round with many tasks takes, in ms.
    #[arg(long, default_value_t = 1500)]
    round: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the cost of a mutex") else { return Ok(()) };
    let libraries = Arc::new(Libraries::connect(port).await?);
    let pairs = options.place.choose(options.pairs, BLOCK);
    let main = one_task(&libraries, pairs).await?;
    println!("{}\n", main.table("one task"));
    let spawned = {
        let libraries = Arc::clone(&libraries);
        tokio::spawn(async move { one_task(&libraries, pairs).await }).await??
    };
    println!("{}\n", spawned.table("one spawned task"));
    let round = Duration::from_millis(options.place.choose(options.round, 50));
    let rates = many_tasks(&libraries, round, options.place.choose(5, 1)).await?;
    println!("{}\n", rates_table(&rates));
    if options.place.choose(true, false) {
        println!("{}", goals(&main, &spawned, &rates));
    }
    Ok(libraries.client.shutdown().await?)
}

/// One connection of each library.
struct Libraries {
    bare: Bare,
    rslock: LockManager,
    client: Client,
}

impl Libraries {
    const NAMES: [&str; 3] = ["bare", "rslock", "leasehold"];

    async fn connect(port: u16) -> Result<Self> {
        let url = url(port);
        let libraries = Self {
            bare: Bare::connect(&url).await?,
            rslock: LockManager::new(vec![url.as_str()]),
            client: Client::connect(&url).await?,
        };
        // rslock connects with its first request, and scripts are loaded with theirs.
        for library in 0..Self::NAMES.len() {
            libraries.lock(library, "warm")?.pair().await?;
        }
        Ok(libraries)
    }

    /// The lock of this name, by one of `NAMES`.
    fn lock(&self, library: usize, name: &str) -> Result<Lock> {
        let key = format!("bench:{}:{name}", Self::NAMES[library]);
        Ok(match library {
            0 => Lock::Bare(self.bare.clone(), key),
            1 => Lock::Rslock(self.rslock.clone(), key),
            _ => Lock::Leasehold(self.client.mutex(&key)?),
        })
    }
}

/// One name, locked by one library.
enum Lock {
    Bare(Bare, String),
    Rslock(LockManager, String),
    Leasehold(DistMutex),
}

impl Lock {
    /// Locks and releases.
    async fn pair(&self) -> Result<()> {
        match self {
            Self::Bare(bare, key) => bare.pair(key).await,
            Self::Rslock(manager, key) => {
                let lock = manager.lock(key.as_str(), LEASE).await?;
                manager.unlock(&lock).await;
                Ok(())
            }
            Self::Leasehold(mutex) => pair(mutex).await,
        }
    }
}

/// What one task did, kind by kind.
struct Times([Histogram<u64>; 5]);

async fn one_task(libraries: &Libraries, pairs: usize) -> Result<Times> {
    let locks = (0..Libraries::NAMES.len())
        .map(|library| libraries.lock(library, "one"))
        .collect::<Result<Vec<_>>>()?;
    // Each is dropped once a block, so that none is asked for while its release is still on its method.
    let dropped = (0..BLOCK)
        .map(|n| libraries.client.mutex(&format!("bench:dropped:{n}")))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut times = Times::new()?;
    let progress = ProgressBar::new(pairs as u64);
    // The first block warms up: connections, script cache, branch predictors.
    for block in 0..=pairs.div_ceil(BLOCK) {
        for (kind, histogram) in times.0.iter_mut().enumerate() {
            for mutex in &dropped {
                let took = match kind {
                    Times::PING => timed(libraries.bare.ping()).await?,
                    Times::DROP => timed(lock_and_drop(mutex)).await?,
                    library => timed(locks[library].pair()).await?,
                };
                if block > 0 {
                    histogram.record(took)?;
                }
            }
            if kind == Times::DROP {
                released(&dropped).await?;
            }
        }
        progress.inc(BLOCK as u64);
    }
    progress.finish_and_clear();
    Ok(times)
}

impl Times {
    // The libraries' pairs come first.
    const BARE: usize = 0;
    const RELEASE: usize = 2;
    const DROP: usize = 3;
    const PING: usize = 4;
    const NAMES: [&str; 5] = [
        "SET NX PX + compare-and-delete",
        "rslock, lock + unlock",
        "leasehold, lock + release",
        "leasehold, lock + drop",
        "PING",
    ];

    fn new() -> Result<Self> {
        let empty = Histogram::new(3)?;
        Ok(Self(std::array::from_fn(|_| empty.clone())))
    }

    fn median(&self, kind: usize) -> f64 {
        micros(&self.0[kind], 0.5)
    }

    fn against_bare(&self, kind: usize) -> f64 {
        self.median(kind) / self.median(Self::BARE)
    }

    fn table(&self, what: &str) -> Table {
        let mut table = table([what, "p50 us", "p90 us", "mean us", "p50 ratio", "mean ratio"]);
        for (kind, time) in self.0.iter().enumerate() {
            table.add_row([
                Self::NAMES[kind].to_owned(),
                format!("{:.1}", self.median(kind)),
                format!("{:.1}", micros(time, 0.9)),
                format!("{:.1}", time.mean() / 1000.0),
                format!("{:.3}", self.against_bare(kind)),
                format!("{:.3}", time.mean() / self.0[Self::BARE].mean()),
            ]);
        }
        table
    }
}

/// Pairs per second, by library, round by round.
struct Rates(Vec<[f64; 3]>);

impl Rates {
    fn median(&self, library: usize) -> f64 {
        median(self.0.iter().map(|round| round[library]))
    }

    fn ratio(&self, library: usize, other: usize) -> f64 {
        median(self.0.iter().map(|round| round[library] / round[other]))
    }
}

/// For each of `TASKS`.
async fn many_tasks(libraries: &Libraries, length: Duration, rounds: usize) -> Result<Vec<Rates>> {
    let progress = ProgressBar::new((TASKS.len() * rounds) as u64);
    let mut all = Vec::new();
    for tasks in TASKS {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            let mut round = [0.0; 3];
            for (library, rate) in round.iter_mut().enumerate() {
                let locks = (0..tasks).map(|task| libraries.lock(library, &format!("many:{task}")));
                *rate = per_second(locks.collect::<Result<_>>()?, length).await?;
            }
            rates.push(round);
            progress.inc(1);
        }
        all.push(Rates(rates));
    }
    progress.finish_and_clear();
    Ok(all)
}

/// Pairs per second of as many tasks as there are locks, each with one of them.
async fn per_second(locks: Vec<Lock>, length: Duration) -> Result<f64> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for lock in locks {
        tasks.spawn(async move {
            let mut pairs = 0_u64;
            while started.elapsed() < length {
                lock.pair().await?;
                pairs += 1;
            }
            Result::Ok(pairs)
        });
    }
    let mut pairs = 0;
    while let Some(task) = tasks.join_next().await {
        pairs += task??;
    }
    Ok(pairs as f64 / started.elapsed().as_secs_f64())
}

fn rates_table(all: &[Rates]) -> Table {
    let mut table = table([
        "tasks",
        "bare pairs/s",
        "rslock pairs/s",
        "leasehold pairs/s",
        "rslock ratio",
        "leasehold ratio",
    ]);
    for (tasks, rates) in TASKS.iter().zip(all) {
        table.add_row([
            tasks.to_string(),
            format!("{:.0}", rates.median(0)),
            format!("{:.0}", rates.median(1)),
            format!("{:.0}", rates.median(2)),
            format!("{:.2}", rates.ratio(1, 0)),
            format!("{:.2}", rates.ratio(2, 0)),
        ]);
    }
    table
}

/// The goals.
fn goals(main: &Times, spawned: &Times, all: &[Rates]) -> Table {
    let mut table = table(["leasehold", "ratio", "goal", ""]);
    let at_most =
        |what: &str, ratio: f64, goal: f64| (what.to_owned(), ratio, format!("<= {goal:.2}"), ratio <= goal);
    let at_least =
        |what: String, ratio: f64, goal: f64| (what, ratio, format!(">= {goal:.2}"), ratio >= goal);
    let mut rows = vec![
        at_most("lock + release, p50, to the bare recipe", main.against_bare(Times::RELEASE), 1.15),
        at_most("the same in a spawned task", spawned.against_bare(Times::RELEASE), 1.25),
        at_most("lock + drop, p50, to the bare recipe", main.against_bare(Times::DROP), 0.6),
    ];
    for ((tasks, rates), [bare, rslock]) in TASKS.iter().zip(all).zip([[2.0, 1.0], [2.2, 1.2]]) {
        rows.push(at_least(format!("{tasks} tasks, pairs/s, to the bare recipe"), rates.ratio(2, 0), bare));
        rows.push(at_least(format!("{tasks} tasks, pairs/s, to rslock"), rates.ratio(2, 1), rslock));
    }
    for (what, ratio, goal, met) in rows {
        table.add_row([what, format!("{ratio:.3}"), goal, if met { "met" } else { "not met" }.to_owned()]);
    }
    table
}

async fn pair(mutex: &DistMutex) -> Result<()> {
    let guard = mutex.lock().await?;
    Ok(guard.release().await?)
}

async fn lock_and_drop(mutex: &DistMutex) -> Result<()> {
    drop(mutex.lock().await?);
    Ok(())
}

/// Dropped locks are released before anything else is measured.
async fn released(mutexes: &[DistMutex]) -> Result<()> {
    for mutex in mutexes {
        pair(mutex).await?;
    }
    Ok(())
}
