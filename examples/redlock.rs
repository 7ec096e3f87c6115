//! A lock on a majority of five independent servers: what it survives, and what only fencing tokens can prevent.
//!
//! ```text
//! cargo run --release --example redlock
//! ```
//!
//! It starts five Redis servers of its own on free ports, so `redis-server` (or `valkey-server`) must be installed.
//!
//! 1. A client takes the lock and works. Two servers are killed: it keeps its lease, and can still take the lock. A
//!    third one is killed: now there is no majority, and the error says so, with the reason for each server.
//! 2. The clock of a server jumps ahead: it ends its part of a lease early. (The example ends that part itself, which
//!    is the same to the clients.) A first client has the lock from A, B and C; C ends its part; a second client,
//!    which reaches C, D and E, gets the lock. Both believe that they hold it, which no lock of this kind can rule
//!    out. But the second one has the greater token, so its write is accepted, and the late write of the first one is
//!    refused.
//!
//! Each step is printed with its token. The last line is `redlock: OK: ...`. The exit status is 1 if anything did not
//! happen as promised, and 2 if something else went wrong.

#[path = "redlock/failure.rs"]
mod failure;
#[path = "redlock/servers.rs"]
mod servers;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use leasehold::{BackendError, Client, DistMutex, Error, Fence, FencingToken, MutexOptions};
use tokio::time::{Instant, timeout};

use crate::failure::{Failure, check};
use crate::servers::Servers;

const NAME: &str = "report";
const KEY: &str = "lock:report";

/// Takes a lock on five servers, kills some of them, and lets the clock of one jump.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// The TTL of the lock, in milliseconds
    #[arg(long, default_value_t = 3000, value_parser = clap::value_parser!(u64).range(600..=60_000))]
    ttl: u64,
}

impl Args {
    const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match show(&Args::parse()).await {
        Ok(()) => {
            println!(
                "redlock: OK: the lock survived the loss of two servers, and the second holder's token is greater than the first's"
            );
            ExitCode::SUCCESS
        }
        Err(Failure::Broken(why)) => {
            println!("redlock: FAILED: {why}");
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("redlock: {failure}");
            ExitCode::from(2)
        }
    }
}

async fn show(args: &Args) -> Result<(), Failure> {
    servers_that_die(args).await?;
    println!();
    clock_that_jumps(args).await
}

fn step(who: &str, token: Option<FencingToken>, what: &str) {
    let token = token.map(|token| token.to_string()).unwrap_or_default();
    println!("  {who:9} {token:>16}  {what}");
}

fn mutex(client: &Client, args: &Args) -> Result<DistMutex, Error> {
    client.mutex_with(NAME, MutexOptions::new().ttl(args.ttl()))
}

/// Two of five servers may die. When the third one dies, the lock is lost, and the client reports it.
async fn servers_that_die(args: &Args) -> Result<(), Failure> {
    println!("Five servers, of which three are killed:");
    let mut servers = Servers::start().await?;
    let client = Client::connect(&servers.url()).await?;
    let mutex = mutex(&client, args)?;
    let guard = mutex.lock().await?;
    let mut newest = guard.token();
    step("client", Some(newest), "has the lock, from A, B, C, D and E");

    servers.kill(&['B', 'D'])?;
    step("", None, "B and D are killed");
    let lost = timeout(args.ttl() * 3 / 2, guard.lost()).await;
    check(lost.is_err() && guard.is_held(), || "the lease was lost with two of five servers".to_owned())?;
    step("client", Some(guard.token()), "still has it, one and a half leases later: A, C and E renew it");
    guard.release().await?;
    for _ in 0..3 {
        let begin = Instant::now();
        let guard = mutex.lock().await?;
        check(guard.token() > newest, || format!("the token {} after {newest}", guard.token()))?;
        newest = guard.token();
        step(
            "client",
            Some(newest),
            &format!("takes it again, in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3),
        );
        guard.release().await?;
    }

    servers.kill(&['E'])?;
    step("", None, "E is killed as well");
    let begin = Instant::now();
    match mutex.lock_timeout(Duration::from_secs(1)).await {
        Err(Error::StoreUnavailable { source: BackendError::NoQuorum { needed, of, nodes, .. }, .. }) => {
            let after = begin.elapsed().as_secs_f64();
            step(
                "client",
                None,
                &format!("gets an error after {after:.1} s: no quorum, {needed} of {of} nodes are needed"),
            );
            for node in nodes {
                println!("{:32}{}: {}", "", node.store, node.error);
            }
            Ok(())
        }
        Err(other) => Err(other.into()),
        Ok(guard) => Err(Failure::Broken(format!("token {} was granted by a minority", guard.token()))),
    }
}

/// Two clients believe that they hold the lock, and the storage tells them apart.
async fn clock_that_jumps(args: &Args) -> Result<(), Failure> {
    println!("Five servers, and the clock of one jumps ahead:");
    let servers = Servers::start().await?;
    let first = Client::connect(&servers.url_reaching(&['A', 'B', 'C'])).await?;
    let second = Client::connect(&servers.url_reaching(&['C', 'D', 'E'])).await?;
    let storage = Fence::new();

    let earlier = mutex(&first, args)?.lock().await?;
    step("client 1", Some(earlier.token()), "has the lock, from A, B and C; it does not reach D and E");
    servers.expire('C', KEY)?;
    step("", None, "C's clock jumps ahead: it ends its part of the lease");
    let later = mutex(&second, args)?.lock().await?;
    step("client 2", Some(later.token()), "has the lock, from C, D and E; it does not reach A and B");
    check(earlier.is_held() && later.is_held(), || {
        "only one of them believes that it holds the lock".to_owned()
    })?;
    step("", None, "both believe that they hold it");
    check(later.token() > earlier.token(), || {
        format!("client 2 has the token {} after {}", later.token(), earlier.token())
    })?;
    let written = storage.admit(later.token());
    check(written.is_ok(), || "the second client's write was rejected".to_owned())?;
    step("client 2", Some(later.token()), "writes: accepted");
    let late = storage.admit(earlier.token());
    check(late.is_err(), || "the first client's late write was accepted".to_owned())?;
    step(
        "client 1",
        Some(earlier.token()),
        "writes, too late: REJECTED, because a greater token has been seen",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_happens_as_told() {
        match show(&Args { ttl: 3000 }).await {
            Err(Failure::NoServer) if std::env::var_os("LEASEHOLD_REQUIRE_SERVERS").is_none() => {
                eprintln!("LEFT OUT: the example redlock: {}", Failure::NoServer);
            }
            outcome => outcome.expect("as told"),
        }
    }
}
