//! What a lock costs, as ratios within one run.
//!
//! `cargo bench --bench mutex` starts a `redis-server` of its own (or uses `--url`) and prints
//!
//! * an uncontended lock + release against the bare recipe, `SET NX PX` + a compare-and-delete script, through
//!   a fred client with the same settings on the same server, in small interleaved blocks, because a shared
//!   machine drifts;
//! * commands per contended acquisition, counted by the server, and hand-overs per second, for 10 and for 1000
//!   waiters on two clients.
//!
//! The target is 1.15 times the bare recipe, and 2.0 commands at any number of waiters.

use std::error::Error;
use std::time::{Duration, Instant};

use clap::Parser;
use comfy_table::{Table, presets};
use fred::clients::Client as Fred;
use fred::interfaces::{ClientLike, KeysInterface, LuaInterface};
use fred::types::config::{Config, ConnectionConfig, PerformanceConfig, TcpConfig};
use fred::types::{Expiration, RespVersion, SetOptions};
use fred::util::sha1_hash;
use hdrhistogram::Histogram;
use leasehold::{Client, DistMutex};
use uuid::Uuid;

#[path = "../tests/support/mod.rs"]
mod support;
use support::{Raw, RedisServer};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The bare recipe's release.
const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
/// Pairs measured of one kind before the other kind has its turn.
const BLOCK: u32 = 50;

#[derive(Parser)]
struct Options {
    /// Lock + release pairs of each kind.
    #[arg(long, default_value_t = 20_000)]
    pairs: u32,
    /// A server to use instead of starting one; nothing else should use it meanwhile.
    #[arg(long)]
    port: Option<u16>,
    /// Given by `cargo bench`; without it, as under `cargo test`, one short round shows that everything works.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let server = match options.port {
        Some(_) => None,
        None => match RedisServer::start_or_skip("the cost of a mutex") {
            None => return Ok(()),
            server => server,
        },
    };
    let port = options.port.or(server.as_ref().map(RedisServer::port)).ok_or("no server")?;
    let pairs = if options.bench { options.pairs } else { BLOCK };
    uncontended(port, pairs).await?;
    contended(port, if options.bench { &[10, 100, 1000] } else { &[10] }).await
}

async fn uncontended(port: u16, pairs: u32) -> Result<()> {
    let url = format!("redis://127.0.0.1:{port}");
    let bare = Bare::connect(&url).await?;
    let client = Client::connect(&url).await?;
    let mutex = client.mutex("bench:uncontended")?;
    let (mut bare_ns, mut ours_ns) = (Histogram::<u64>::new(3)?, Histogram::<u64>::new(3)?);
    // The first round warms up: connections, script cache, branch predictors.
    for round in 0..=pairs.div_ceil(BLOCK) {
        for _ in 0..BLOCK {
            let took = timed(bare.pair()).await?;
            bare_ns.record(if round == 0 { 0 } else { took })?;
        }
        for _ in 0..BLOCK {
            let took = timed(pair(&mutex)).await?;
            ours_ns.record(if round == 0 { 0 } else { took })?;
        }
        if round == 0 {
            bare_ns.reset();
            ours_ns.reset();
        }
    }
    let ratio =
        |quantile| ours_ns.value_at_quantile(quantile) as f64 / bare_ns.value_at_quantile(quantile) as f64;
    let micros = |histogram: &Histogram<u64>, quantile| {
        format!("{:.1}", histogram.value_at_quantile(quantile) as f64 / 1000.0)
    };
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["uncontended lock + release", "p50 us", "p90 us", "mean us"]);
    for (name, histogram) in [("SET NX PX + compare-and-delete", &bare_ns), ("leasehold", &ours_ns)] {
        let mean = format!("{:.1}", histogram.mean() / 1000.0);
        table.add_row([name.to_owned(), micros(histogram, 0.5), micros(histogram, 0.9), mean]);
    }
    let mean = format!("{:.3}", ours_ns.mean() / bare_ns.mean());
    table.add_row(["ratio".to_owned(), format!("{:.3}", ratio(0.5)), format!("{:.3}", ratio(0.9)), mean]);
    println!("{table}\n");
    client.shutdown().await?;
    Ok(())
}

async fn contended(port: u16, waiters: &[usize]) -> Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["waiters", "commands per acquisition", "hand-overs per second"]);
    for &waiters in waiters {
        let (commands, per_second) = hand_overs(port, waiters).await?;
        assert!(commands < 2.1, "{commands} commands per acquisition with {waiters} waiters");
        table.add_row([waiters.to_string(), format!("{commands:.3}"), format!("{per_second:.0}")]);
    }
    println!("{table}");
    Ok(())
}

/// Queues `waiters` behind a held lock, then lets them through: counts every command a client sent for that,
/// from the first one to queue to the last release.
async fn hand_overs(port: u16, waiters: usize) -> Result<(f64, f64)> {
    let url = format!("redis://127.0.0.1:{port}");
    let clients = [Client::connect(&url).await?, Client::connect(&url).await?];
    let name = format!("bench:{}", Uuid::new_v4());
    let mutexes = [clients[0].mutex(&name)?, clients[1].mutex(&name)?];
    // The scripts are known to the server from here on.
    pair(&mutexes[0]).await?;
    let holder = mutexes[0].lock().await?;
    let mut raw = Raw::connect(port)?;
    let before = client_commands(&mut raw);
    let tasks: Vec<_> = (0..waiters)
        .map(|n| {
            let mutex = mutexes[n % 2].clone();
            tokio::spawn(async move { pair(&mutex).await })
        })
        .collect();
    let queue = format!("{{lock:{name}}}:queue");
    while raw.send(&["ZCARD", &queue]).int() < waiters as i64 {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    holder.release().await?;
    for task in tasks {
        task.await??;
    }
    let elapsed = started.elapsed();
    // The holder's release is one command more than the waiters' own.
    let commands = client_commands(&mut raw) - before - 1;
    for client in clients {
        client.shutdown().await?;
    }
    Ok((commands as f64 / waiters as f64, waiters as f64 / elapsed.as_secs_f64()))
}

/// What clients sent; commands that only scripts run are not theirs.
fn client_commands(raw: &mut Raw) -> u64 {
    let calls = raw.info_commandstats();
    ["evalsha", "eval", "ping", "subscribe"].iter().filter_map(|command| calls.get(*command)).sum()
}

async fn pair(mutex: &DistMutex) -> Result<()> {
    let guard = mutex.lock().await?;
    Ok(guard.release().await?)
}

async fn timed(work: impl Future<Output = Result<()>>) -> Result<u64> {
    let started = Instant::now();
    work.await?;
    Ok(u64::try_from(started.elapsed().as_nanos())?)
}

/// The bare recipe through fred, set up like this crate's own connection.
struct Bare {
    client: Fred,
    script: String,
    value: String,
}

impl Bare {
    async fn connect(url: &str) -> Result<Self> {
        let mut config = Config::from_url(url)?;
        config.version = RespVersion::RESP3;
        let performance = PerformanceConfig {
            default_command_timeout: Duration::from_secs(2),
            ..PerformanceConfig::default()
        };
        let connection = ConnectionConfig {
            max_command_attempts: 1,
            tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
            ..ConnectionConfig::default()
        };
        let client = Fred::new(config, Some(performance), Some(connection), None);
        client.init().await?;
        let script: String = client.script_load(COMPARE_AND_DELETE).await?;
        assert_eq!(script, sha1_hash(COMPARE_AND_DELETE));
        Ok(Self { client, script, value: Uuid::new_v4().to_string() })
    }

    async fn pair(&self) -> Result<()> {
        let expiry = Some(Expiration::PX(30_000));
        let set: Option<String> =
            self.client.set("bench:bare", &self.value, expiry, Some(SetOptions::NX), false).await?;
        assert!(set.is_some(), "nobody else uses this key");
        let deleted: i64 = self.client.evalsha(&self.script, "bench:bare", &self.value).await?;
        assert_eq!(deleted, 1);
        Ok(())
    }
}
