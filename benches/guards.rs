//! What held leases cost: memory and processor time of 10 000 and 100 000 guards of one client, renewed all the while.
//!
//! `cargo bench --bench guards` starts a `redis-server` of its own (or uses `--port`), takes that many locks, and watches for
//! a minute, two lease thirds of 30 s: bytes per guard (growth of the process's resident memory, shared things included),
//! the share of one core that the client uses, and the time of PINGs on another connection meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use clap::Parser;
use futures::StreamExt;
use futures::stream;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::{Client, Guard};

mod common;
use common::{Bare, Place, Result, micros, table, timed, url};

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// For how long the leases are held, in s.
    #[arg(long, default_value_t = 60)]
    hold: u64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the cost of guards") else { return Ok(()) };
    let hold = Duration::from_secs(options.place.choose(options.hold, 1));
    let mut table =
        table(["guards", "bytes per guard", "% of a core", "PING p50 us", "PING p99 us", "PING max us"]);
    for guards in options.place.choose([10_000, 100_000], [100, 1000]) {
        table.add_row(hold_all(port, guards, hold).await?);
    }
    println!("{table}");
    Ok(())
}

async fn hold_all(port: u16, count: usize, hold: Duration) -> Result<[String; 6]> {
    let bare = Bare::connect(&url(port)).await?;
    let client = Client::connect(&url(port)).await?;
    // What is allocated once is not a guard's.
    drop(take(&client, "bench:warm", 256).await?);
    client.mutex("bench:warm:0")?.lock().await?.release().await?;
    let before = resident()?;
    let guards = take(&client, "bench:guard", count).await?;
    let bytes = resident()?.saturating_sub(before) / count as u64;

    let (started, cpu) = (Instant::now(), processor_time()?);
    let mut pings = Histogram::<u64>::new(3)?;
    let progress = ProgressBar::new(hold.as_secs());
    while started.elapsed() < hold {
        pings.record(timed(bare.ping()).await?)?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        progress.set_position(started.elapsed().as_secs());
    }
    progress.finish_and_clear();
    let share = (processor_time()? - cpu).as_secs_f64() / started.elapsed().as_secs_f64();
    assert!(guards.iter().all(Guard::is_held), "a lease was lost");
    drop(guards);
    client.shutdown().await?;
    Ok([
        count.to_string(),
        bytes.to_string(),
        format!("{:.1}", share * 100.0),
        format!("{:.0}", micros(&pings, 0.5)),
        format!("{:.0}", micros(&pings, 0.99)),
        format!("{:.0}", pings.max() as f64 / 1000.0),
    ])
}

async fn take(client: &Client, name: &str, count: usize) -> Result<Vec<Guard>> {
    let mut guards = Vec::with_capacity(count);
    let locks = (0..count).map(|n| {
        let mutex = client.mutex(&format!("{name}:{n}"));
        async move { mutex?.lock().await }
    });
    let mut granted = stream::iter(locks).buffer_unordered(512);
    while let Some(guard) = granted.next().await {
        guards.push(guard?);
    }
    Ok(guards)
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes = line.split_whitespace().nth(1).ok_or("no number")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}

/// What this process has used of a processor, all threads together.
fn processor_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<_> = stat.rsplit(')').next().ok_or("no fields")?.split_whitespace().collect();
    let ticks: u64 = fields.get(11).ok_or("no utime")?.parse::<u64>()?
        + fields.get(12).ok_or("no stime")?.parse::<u64>()?;
    // The kernel counts in hundredths of a second here, whatever its own clock does.
    Ok(Duration::from_millis(ticks * 10))
}
