//! fred and redis-rs as the Redis client under this crate, side by side.
//!
//! `cargo bench -p leasehold-benches --bench clients` starts its own `redis-server` (or uses `--port`), and runs the
//! same measurements through both, in interleaved blocks or rounds, because a shared machine drifts:
//!
//! * one task, in the main task and in a spawned one: the time of lock + release;
//! * 64 and 1024 tasks, each with its own lock: pairs per second;
//! * 2 and 100 tasks that want the same lock, half of them on each of two clients, every hand-over through the server:
//!   turns per second;
//! * 100 tasks that share a counting semaphore of 10, half of them on each of two clients: turns per second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use futures::future::BoxFuture;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::redis::RedisBackend;
use leasehold::{Client, CountingSemaphore, DistMutex, MutexOptions};
use tokio::task::JoinSet;

mod common;
use common::{Place, Result, median, micros, table, timed, url};

/// Pairs of one kind measured before the next kind's turn.
const BLOCK: usize = 50;
const NAMES: [&str; 2] = ["fred", "redis-rs"];

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Pairs of each kind for one task.
    #[arg(long, default_value_t = 10_000)]
    pairs: usize,
    /// How long each round with many tasks takes, in ms.
    #[arg(long, default_value_t = 1500)]
    round: u64,
}

/// What one task does repeatedly.
type Turn = Arc<dyn Fn() -> BoxFuture<'static, Result<()>> + Send + Sync>;

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("fred and redis-rs") else { return Ok(()) };
    let pairs = options.place.choose(options.pairs, BLOCK);
    let length = Duration::from_millis(options.place.choose(options.round, 50));
    let rounds = options.place.choose(5, 1);
    let libraries = [Clients::connect(port, 0).await?, Clients::connect(port, 1).await?];
    let turns = [libraries[0].pair("one")?, libraries[1].pair("one")?];

    let mut figures = table(["", NAMES[0], NAMES[1], "redis-rs / fred"]);
    add_times(&mut figures, "one task, lock + release, p50 us", &one_task(turns.clone(), pairs).await?);
    let spawned = tokio::spawn(one_task(turns, pairs)).await??;
    add_times(&mut figures, "one spawned task, lock + release, p50 us", &spawned);
    for tasks in [64, 1024] {
        let own = |clients: &Clients| (0..tasks).map(|n| clients.pair(&format!("many:{n}"))).collect();
        add_rates(&mut figures, &format!("{tasks} tasks, pairs/s"), &libraries, own, length, rounds).await?;
    }
    for tasks in [2, 100] {
        let contended = |clients: &Clients| clients.contended(tasks);
        let what = format!("{tasks} tasks for one lock, turns/s");
        add_rates(&mut figures, &what, &libraries, contended, length, rounds).await?;
    }
    let semaphore = |clients: &Clients| clients.semaphore(100, 10);
    let what = "100 tasks, a counting semaphore of 10, turns/s";
    add_rates(&mut figures, what, &libraries, semaphore, length, rounds).await?;
    println!("{figures}");
    for Clients { clients, .. } in libraries {
        for client in clients {
            client.shutdown().await?;
        }
    }
    Ok(())
}

/// Two clients that use one of the libraries.
struct Clients {
    library: &'static str,
    clients: [Client; 2],
}

impl Clients {
    async fn connect(port: u16, library: usize) -> Result<Self> {
        let connect = async || {
            let builder = RedisBackend::builder(&url(port))?;
            let builder = if library == 1 { builder.through_redis_rs() } else { builder };
            Result::Ok(Client::with_backend(Arc::new(builder.connect().await?)))
        };
        Ok(Self { library: NAMES[library], clients: [connect().await?, connect().await?] })
    }

    fn name(&self, what: &str) -> String {
        format!("bench:{}:{what}", self.library)
    }

    /// A lock that nobody else wants.
    fn pair(&self, what: &str) -> Result<Turn> {
        Ok(turn(self.clients[0].mutex(&self.name(what))?, lock_and_release))
    }

    fn contended(&self, tasks: usize) -> Result<Vec<Turn>> {
        let task = |n: usize| {
            let options = MutexOptions::new().local_handover(false);
            let mutex = self.clients[n % 2].mutex_with(&self.name("wanted"), options)?;
            Ok(turn(mutex, lock_and_release))
        };
        (0..tasks).map(task).collect()
    }

    fn semaphore(&self, tasks: usize, limit: u32) -> Result<Vec<Turn>> {
        let task = |n: usize| {
            let semaphore = self.clients[n % 2].counting_semaphore(&self.name("permits"), limit)?;
            Ok(turn(semaphore, |semaphore: CountingSemaphore| async move {
                Ok(semaphore.acquire().await?.release().await?)
            }))
        };
        (0..tasks).map(task).collect()
    }
}

fn turn<P, F>(primitive: P, once: impl Fn(P) -> F + Send + Sync + 'static) -> Turn
where
    P: Clone + Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    Arc::new(move || Box::pin(once(primitive.clone())))
}

async fn lock_and_release(mutex: DistMutex) -> Result<()> {
    Ok(mutex.lock().await?.release().await?)
}

async fn one_task(turns: [Turn; 2], pairs: usize) -> Result<[Histogram<u64>; 2]> {
    let empty = Histogram::new(3)?;
    let mut times = [empty.clone(), empty];
    // The first block warms up.
    for block in 0..=pairs.div_ceil(BLOCK) {
        for (turn, histogram) in turns.iter().zip(&mut times) {
            for _ in 0..BLOCK {
                let took = timed(turn()).await?;
                if block > 0 {
                    histogram.record(took)?;
                }
            }
        }
    }
    Ok(times)
}

fn add_times(figures: &mut Table, what: &str, times: &[Histogram<u64>; 2]) {
    let [fred, redis_rs] = [0, 1].map(|library| micros(&times[library], 0.5));
    add(figures, what, [format!("{fred:.1}"), format!("{redis_rs:.1}")], redis_rs / fred);
}

/// Turns per second through either library, in rounds: the medians, and the median of the ratios within each round.
async fn add_rates(
    figures: &mut Table,
    what: &str,
    libraries: &[Clients; 2],
    turns: impl Fn(&Clients) -> Result<Vec<Turn>>,
    length: Duration,
    rounds: usize,
) -> Result<()> {
    let progress = ProgressBar::new(rounds as u64);
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let mut round = [0.0; 2];
        for (clients, rate) in libraries.iter().zip(&mut round) {
            *rate = per_second(turns(clients)?, length).await?;
        }
        rates.push(round);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let [fred, redis_rs] = [0, 1].map(|library: usize| median(rates.iter().map(|round| round[library])));
    let ratio = median(rates.iter().map(|round| round[1] / round[0]));
    add(figures, what, [format!("{fred:.0}"), format!("{redis_rs:.0}")], ratio);
    Ok(())
}

fn add(figures: &mut Table, what: &str, [fred, redis_rs]: [String; 2], ratio: f64) {
    figures.add_row([what.to_owned(), fred, redis_rs, format!("{ratio:.2}")]);
}

async fn per_second(turns: Vec<Turn>, length: Duration) -> Result<f64> {
    let mut tasks = JoinSet::new();
    let started = Instant::now();
    for turn in turns {
        tasks.spawn(async move {
            let mut done = 0_u64;
            while started.elapsed() < length {
                turn().await?;
                done += 1;
            }
            Result::Ok(done)
        });
    }
    let mut done = 0;
    while let Some(task) = tasks.join_next().await {
        done += task??;
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}
