//! What a lock costs that many want.
//!
//! `cargo bench --bench contended` starts a `redis-server` of its own (or uses `--port`), queues waiters of two clients behind
//! a held lock and lets them through: operations per acquisition (sent by the clients; several may share a call), counted by
//! the server, and hand-overs per second, for 10, 100, 1000 and 10 000 waiters.
//!
//! The target is 2.0 operations at any number of waiters: one to stand in line, one to release.

use std::time::Instant;

use clap::Parser;
use leasehold::{Client, DistMutex};
use uuid::Uuid;

mod common;
use common::{Place, Raw, Result, table, url};

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    place: Place,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = Options::parse();
    let Some((port, _server)) = options.place.server("the cost of waiting") else { return Ok(()) };
    let mut table =
        table(["waiters", "calls per acquisition", "hand-overs per second", "against 10 waiters"]);
    let mut first = None;
    for &waiters in options.place.choose(&[10, 100, 1000, 10_000][..], &[10][..]) {
        let (calls, per_second) = hand_overs(port, waiters).await?;
        assert!(calls < 2.1, "{calls} calls per acquisition with {waiters} waiters");
        let ratio = per_second / *first.get_or_insert(per_second);
        table.add_row([
            waiters.to_string(),
            format!("{calls:.3}"),
            format!("{per_second:.0}"),
            format!("{ratio:.2}"),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Queues `waiters` behind a held lock, then lets them through: counts every call a client made for that,
/// from the first one to queue to the last release.
async fn hand_overs(port: u16, waiters: usize) -> Result<(f64, f64)> {
    let clients = [Client::connect(&url(port)).await?, Client::connect(&url(port)).await?];
    let name = format!("bench:{}", Uuid::new_v4());
    let mutexes = [clients[0].mutex(&name)?, clients[1].mutex(&name)?];
    // The scripts are known to the server from here on.
    pair(&mutexes[0]).await?;
    let holder = mutexes[0].lock().await?;
    let mut raw = Raw::connect(port)?;
    let before = client_calls(&mut raw);
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
    // The holder's release is one call more than the waiters' own.
    let calls = client_calls(&mut raw) - before - 1;
    for client in clients {
        client.shutdown().await?;
    }
    Ok((calls as f64 / waiters as f64, waiters as f64 / elapsed.as_secs_f64()))
}

/// What clients sent; commands that only scripts run are not theirs.
fn client_calls(raw: &mut Raw) -> u64 {
    let calls = raw.info_commandstats();
    ["evalsha", "eval", "ping", "subscribe"].iter().filter_map(|command| calls.get(*command)).sum()
}

async fn pair(mutex: &DistMutex) -> Result<()> {
    let guard = mutex.lock().await?;
    Ok(guard.release().await?)
}
