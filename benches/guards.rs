//! What held leases cost: memory and processor time of 10 000 and 100 000 guards of one client, with continuous
//! renewals.
//!
//! `cargo bench -p leasehold-benches --bench guards` starts its own `redis-server` (or uses `--port`), takes that many
//! locks, and measures for a minute (`--hold`), six thirds of a lease of 30 s. Each lease is renewed about once per
//! third. The first row, without guards, is what this machine and the PINGs cost by themselves.
//!
//! * bytes per guard: growth of this process's resident memory since the client took and released its first 256 locks,
//!   including shared data;
//! * % of a core: processor time of this process, including the PINGs;
//! * PING: round trips on another connection of this process meanwhile, one after another, each 5 ms after the last;
//! * PEXPIRE per guard: how often the server ran it meanwhile, by its own count. A renewal takes one, and one more for
//!   the fence at the first renewal in an hour. If a lease was lost, the run fails when its guard is released.

use std::fs;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::Table;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::{Client, MutexOptions};
use tokio::time::{MissedTickBehavior, interval};

mod common;
use common::guards::{give_back, processor_time, take};
use common::{Bare, Place, Raw, Result, micros, table, timed, url};

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
    let lease = options.place.choose(Duration::from_secs(30), Duration::from_secs(3));
    let hold = options.place.choose(Duration::from_secs(options.hold), lease);
    let mut bench = Bench::new(port, lease).await?;
    let mut costs = Vec::new();
    for guards in options.place.choose([0, 10_000, 100_000], [0, 100, 1000]) {
        costs.push(bench.cost(guards, hold).await?);
    }
    println!("{}\n", summary(&costs));
    if options.place.choose(true, false) {
        println!("{}", goals(&costs));
    }
    Ok(bench.client.shutdown().await?)
}

struct Bench {
    client: Client,
    options: MutexOptions,
    bare: Bare,
    raw: Raw,
    /// In bytes, with the client warm and nothing held.
    memory: u64,
}

/// The cost of this many guards.
struct Cost {
    guards: usize,
    /// Of all of them.
    bytes: u64,
    /// Of one core.
    share: f64,
    /// In ns.
    pings: Histogram<u64>,
    pexpires: u64,
}

impl Bench {
    async fn new(port: u16, lease: Duration) -> Result<Self> {
        let mut bench = Self {
            client: Client::connect(&url(port)).await?,
            options: MutexOptions::new().ttl(lease),
            bare: Bare::connect(&url(port)).await?,
            raw: Raw::connect(port)?,
            memory: 0,
        };
        // What is allocated once is not a guard's.
        let guards = take(&bench.client, &bench.options, "bench:warm", 256).await?;
        give_back(guards).await?;
        bench.memory = resident()?;
        Ok(bench)
    }

    async fn cost(&mut self, count: usize, hold: Duration) -> Result<Cost> {
        let guards = take(&self.client, &self.options, "bench:guard", count).await?;
        let bytes = resident()?.saturating_sub(self.memory);
        let (pexpires, cpu, started) = (self.pexpires(), processor_time()?, Instant::now());
        let pings = self.ping_for(hold).await?;
        let share = (processor_time()? - cpu).as_secs_f64() / started.elapsed().as_secs_f64();
        let pexpires = self.pexpires() - pexpires;
        give_back(guards).await?;
        Ok(Cost { guards: count, bytes, share, pings, pexpires })
    }

    async fn ping_for(&self, hold: Duration) -> Result<Histogram<u64>> {
        let mut pings = Histogram::new(3)?;
        let mut pace = interval(Duration::from_millis(5));
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let progress = ProgressBar::new(hold.as_secs());
        let started = Instant::now();
        while started.elapsed() < hold {
            pace.tick().await;
            pings.record(timed(self.bare.ping()).await?)?;
            progress.set_position(started.elapsed().as_secs());
        }
        progress.finish_and_clear();
        Ok(pings)
    }

    /// How often the server ran PEXPIRE so far.
    fn pexpires(&mut self) -> u64 {
        self.raw.info_commandstats().get("pexpire").copied().unwrap_or(0)
    }
}

impl Cost {
    fn bytes_per_guard(&self) -> Option<u64> {
        self.bytes.checked_div(self.guards as u64)
    }

    fn pexpires_per_guard(&self) -> f64 {
        self.pexpires as f64 / self.guards as f64
    }
}

fn summary(costs: &[Cost]) -> Table {
    let mut table = table([
        "guards",
        "bytes per guard",
        "% of a core",
        "PING p50 us",
        "PING p99 us",
        "PING max us",
        "PEXPIRE per guard",
    ]);
    for cost in costs {
        table.add_row([
            cost.guards.to_string(),
            cost.bytes_per_guard().map_or("-".to_owned(), |bytes| bytes.to_string()),
            format!("{:.1}", cost.share * 100.0),
            format!("{:.0}", micros(&cost.pings, 0.5)),
            format!("{:.0}", micros(&cost.pings, 0.99)),
            format!("{:.0}", micros(&cost.pings, 1.0)),
            if cost.guards == 0 { "-".to_owned() } else { format!("{:.1}", cost.pexpires_per_guard()) },
        ]);
    }
    table
}

/// What is promised for the largest number of guards.
fn goals(costs: &[Cost]) -> Table {
    let mut table = table(["figure", "measured", "goal", ""]);
    let [idle, .., most] = costs else { return table };
    let bytes = most.bytes_per_guard().unwrap_or(0);
    let share = (most.share - idle.share) * 100.0;
    let ping = micros(&most.pings, 0.99);
    for (what, measured, goal, met) in [
        ("bytes per guard", bytes.to_string(), "<= 1024", bytes <= 1024),
        ("% of a core, without the pinging", format!("{share:.1}"), "<= 5", share <= 5.0),
        ("PING p99 us", format!("{ping:.0}"), "<= 1000", ping <= 1000.0),
    ] {
        let verdict = if met { "met" } else { "not met" };
        table.add_row([what, &measured, goal, verdict]);
    }
    table
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes = line.split_whitespace().nth(1).ok_or("no number")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}
