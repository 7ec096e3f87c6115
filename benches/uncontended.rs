//! What a lock costs that nobody else wants, as ratios within one run.
//!
//! `cargo bench --bench uncontended` starts a `redis-server` of its own (or uses `--port`) and measures, beside the bare
//! recipe (`SET NX PX` + a compare-and-delete script) through a fred client with the same settings on the same server:
//!
//! * one task: the time of lock + release, and of lock + drop, in small interleaved blocks, because a shared machine drifts;
//! * 64 and 1024 tasks, each with a lock of its own: pairs per second, in interleaved rounds; the median round counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::{Client, DistMutex};

mod common;
use common::{Bare, Place, Result, micros, table, timed, url};

/// Pairs measured of one kind before the next kind has its turn.
const BLOCK: u64 = 50;
/// Locks that are dropped in turn, so that none is asked for while its release is still on its way.
const DROPPED: usize = 50;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Pairs of each kind for one task.
    #[arg(long, default_value_t = 20_000)]
    pairs: u64,
    /// How long each round with many tasks takes, in ms.
    #[arg(long, default_value_t = 1500)]
    round: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the cost of a mutex") else { return Ok(()) };
    one_task(port, options.place.choose(options.pairs, BLOCK)).await?;
    let round = Duration::from_millis(options.place.choose(options.round, 50));
    many_tasks(port, round, options.place.choose(5, 1)).await
}

async fn one_task(port: u16, pairs: u64) -> Result<()> {
    let bare = Bare::connect(&url(port)).await?;
    let client = Client::connect(&url(port)).await?;
    let mutex = client.mutex("bench:uncontended")?;
    let dropped = (0..DROPPED)
        .map(|n| client.mutex(&format!("bench:dropped:{n}")))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut times: Vec<Histogram<u64>> = vec![Histogram::new(3)?; 4];
    let progress = ProgressBar::new(pairs);
    // The first block warms up: connections, script cache, branch predictors.
    for block in 0..=pairs.div_ceil(BLOCK) {
        for kind in 0..times.len() {
            for n in 0..BLOCK {
                let took = match kind {
                    0 => timed(bare.pair("bench:bare")).await?,
                    1 => timed(pair(&mutex)).await?,
                    2 => timed(lock_and_drop(&dropped[n as usize % DROPPED])).await?,
                    _ => timed(bare.ping()).await?,
                };
                if block > 0 {
                    times[kind].record(took)?;
                }
            }
            // What was dropped is released before the next kind is measured.
            if kind == 2 {
                settled(&dropped).await?;
            }
        }
        progress.inc(BLOCK);
    }
    progress.finish_and_clear();
    let mut table = table(["one task", "p50 us", "p90 us", "mean us", "p50 ratio", "mean ratio"]);
    let names =
        ["SET NX PX + compare-and-delete", "leasehold, lock + release", "leasehold, lock + drop", "PING"];
    for (name, time) in names.iter().zip(&times) {
        table.add_row([
            (*name).to_owned(),
            format!("{:.1}", micros(time, 0.5)),
            format!("{:.1}", micros(time, 0.9)),
            format!("{:.1}", time.mean() / 1000.0),
            format!("{:.3}", micros(time, 0.5) / micros(&times[0], 0.5)),
            format!("{:.3}", time.mean() / times[0].mean()),
        ]);
    }
    println!("{table}\n");
    Ok(client.shutdown().await?)
}

async fn many_tasks(port: u16, round: Duration, rounds: usize) -> Result<()> {
    let bare = Bare::connect(&url(port)).await?;
    let client = Client::connect(&url(port)).await?;
    let mut table = table(["tasks", "bare pairs per second", "leasehold pairs per second", "ratio"]);
    for tasks in [64, 1024] {
        let mut results = Vec::new();
        for _ in 0..rounds {
            let theirs = per_second(tasks, round, |task| {
                let (bare, key) = (bare.clone(), format!("bench:bare:{task}"));
                move || {
                    let (bare, key) = (bare.clone(), key.clone());
                    async move { bare.pair(&key).await }
                }
            });
            let theirs = theirs.await?;
            let ours = per_second(tasks, round, |task| {
                let mutex = client.mutex(&format!("bench:many:{task}"));
                move || {
                    let mutex = mutex.as_ref().map(DistMutex::clone).map_err(ToString::to_string);
                    async move { pair(&mutex?).await }
                }
            });
            results.push((theirs, ours.await?));
        }
        results.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let (theirs, ours) = results[results.len() / 2];
        table.add_row([
            tasks.to_string(),
            format!("{theirs:.0}"),
            format!("{ours:.0}"),
            format!("{:.2}", ours / theirs),
        ]);
    }
    println!("{table}");
    Ok(client.shutdown().await?)
}

/// How often per second `tasks` tasks together do what `work` gives each of them.
async fn per_second<W, F>(tasks: usize, round: Duration, work: impl Fn(usize) -> W) -> Result<f64>
where
    W: Fn() -> F + Send + 'static,
    F: Future<Output = Result<()>> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (work, count) = (work(task), Arc::clone(&count));
            tokio::spawn(async move {
                let mut done = 0;
                while started.elapsed() < round {
                    work().await?;
                    done += 1;
                }
                count.fetch_add(done, Ordering::Relaxed);
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        })
        .collect();
    for task in running {
        task.await??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

async fn pair(mutex: &DistMutex) -> Result<()> {
    let guard = mutex.lock().await?;
    Ok(guard.release().await?)
}

async fn lock_and_drop(mutex: &DistMutex) -> Result<()> {
    drop(mutex.lock().await?);
    Ok(())
}

async fn settled(mutexes: &[DistMutex]) -> Result<()> {
    for mutex in mutexes {
        pair(mutex).await?;
    }
    Ok(())
}
