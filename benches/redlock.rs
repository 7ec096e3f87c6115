//! What a lock on five nodes costs against one on a single server.
//!
//! `cargo bench -p leasehold-benches --bench redlock` starts its own six servers, and measures the time of lock +
//! release by one task, in small interleaved blocks, because a shared machine drifts:
//!
//! * `redis://`, one server;
//! * `redlock://`, five servers;
//! * the same five through redis-rs instead of fred;
//! * `redlock://`, the same with one of the five behind a proxy that delays its answers by a hundred times what a pair
//!   takes on one server.
//!
//! Everything runs twice: on a runtime with one thread, and on one with worker threads. All servers are on this
//! machine, so five of them also compete for its processors, unlike the nodes of a real deployment.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use leasehold::redis::RedisBackend;
use leasehold::redlock::RedlockBackend;
use leasehold::{Client, DistMutex};
use tokio::runtime::Builder;

mod common;
use common::{Nodes, Place, Proxy, RedisServer, Result, Setup, micros, redlock_url, table, timed, url};

/// Pairs of one kind measured before the next kind's turn.
const BLOCK: usize = 50;
const NODES: usize = 5;
const KINDS: [&str; 4] =
    ["one server", "five nodes", "five nodes, one of them slow", "five nodes, through redis-rs"];
/// How much slower the slow node is.
const SLOWER: u32 = 100;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
    /// Pairs of each kind.
    #[arg(long, default_value_t = 10_000)]
    pairs: usize,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pairs = options.place.choose(options.pairs, BLOCK);
    let setups = || vec![Setup::as_a_service(); NODES];
    let Some(nodes) = Nodes::start_with_or_skip("the cost of a Redlock", setups()) else { return Ok(()) };
    let Some((port, _server)) = options.place.server("the cost of a Redlock") else { return Ok(()) };
    let mut figures = table(["lock + release, one task", "p50 us", "p90 us", "mean us", "p50 ratio"]);
    let mut goals = table(["five nodes", "p50 ratio", "goal", ""]);
    for (runtime, mut builder) in
        [("one thread", Builder::new_current_thread()), ("worker threads", Builder::new_multi_thread())]
    {
        let times = builder.enable_all().build()?.block_on(measure(port, &nodes, pairs))?;
        let [one, five, slow] = [0, 1, 2].map(|kind| micros(&times[kind], 0.5));
        for (what, time) in KINDS.iter().zip(&times) {
            figures.add_row([
                format!("{runtime}: {what}"),
                format!("{:.1}", micros(time, 0.5)),
                format!("{:.1}", micros(time, 0.9)),
                format!("{:.1}", time.mean() / 1000.0),
                format!("{:.2}", micros(time, 0.5) / one),
            ]);
        }
        for (what, ratio, goal) in [
            ("against one server", five / one, 1.5),
            ("one of them slow, against all fast", slow / five, 1.1),
        ] {
            let met = if ratio <= goal { "met" } else { "not met" };
            goals.add_row([
                &format!("{runtime}: {what}"),
                &format!("{ratio:.2}"),
                &format!("<= {goal}"),
                met,
            ]);
        }
    }
    println!("{figures}\n");
    if options.place.choose(true, false) {
        println!("{goals}");
    }
    Ok(())
}

async fn measure(port: u16, nodes: &Nodes, pairs: usize) -> Result<Vec<Histogram<u64>>> {
    let one = Client::connect(&url(port)).await?;
    let five = nodes.connect().await;
    let slow = Proxy::start(nodes.0[0].port()).await;
    let ports = [slow.port()].into_iter().chain(nodes.0[1..].iter().map(RedisServer::port));
    let with_slow = Client::connect(&redlock_url(ports)).await?;
    let through_redis_rs =
        nodes.0.iter().map(|node| Ok(RedisBackend::builder(&node.url())?.through_redis_rs()));
    let through_redis_rs: Vec<_> = through_redis_rs.collect::<std::result::Result<_, leasehold::Error>>()?;
    let through_redis_rs = RedlockBackend::builder_from_nodes(through_redis_rs).connect().await?;
    let clients = [one, five, with_slow, Client::with_backend(Arc::new(through_redis_rs))];
    let locks = clients
        .iter()
        .map(|client| client.mutex("bench:redlock"))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut times = vec![Histogram::new(3)?; KINDS.len()];
    let progress = ProgressBar::new(pairs as u64);
    // The first block warms up, and says how slow the slow one is to be.
    for block in 0..=pairs.div_ceil(BLOCK) {
        for (lock, histogram) in locks.iter().zip(&mut times) {
            for _ in 0..BLOCK {
                let took = timed(pair(lock)).await?;
                if block > 0 {
                    histogram.record(took)?;
                }
            }
        }
        if block == 0 {
            slow.delay_replies(Duration::from_nanos(timed(pair(&locks[0])).await?) * SLOWER);
        }
        progress.inc(BLOCK as u64);
    }
    progress.finish_and_clear();
    drop(locks);
    for client in clients {
        client.shutdown().await?;
    }
    Ok(times)
}

async fn pair(mutex: &DistMutex) -> Result<()> {
    Ok(mutex.lock().await?.release().await?)
}
