//! `Guard::protect` stops the work when the lease is lost, for any reason.
//!
//! ```text
//! cargo run --release --example lost_lease
//! cargo run --release --example lost_lease -- --url redis://127.0.0.1:6379
//! ```
//!
//! Up to five holders, each a thread with its own runtime and client, do endless work under a lock in small steps, and
//! each of those locks has a waiter. Then all of them lose their leases at the same time:
//!
//! | lost by | how | in memory | with another URL |
//! |---|---|---|---|
//! | force | another client calls `force_release` | the same | the same |
//! | max_hold | `max_hold` is two thirds of the TTL | the same | the same |
//! | data_loss | the store loses the lock | `MemoryBackend::flush` | the key or row is deleted; left out on etcd and ZooKeeper |
//! | no_answer | the store stops answering | a backend that does not answer | a connection that swallows everything |
//! | pause | nothing on the holder's runtime runs | its thread is blocked | left out: leases on a server are renewed from the crate's own thread |
//!
//! The first command needs nothing installed. The connection that swallows everything needs a URL with one host and
//! port; for others, that row is left out.
//!
//! On MySQL, which sends no events to holders, the holder is notified of a forced release at its next renewal.
//!
//! The output shows how soon the work ended in each case, and that no step of it ran afterwards. If the lease
//! expires, no step overlaps with the next holder either. Force and data loss are different: the store gives the
//! lock away first, so the work may overlap with the next holder until it is notified, and only fencing tokens help.
//! The last line is `lost_lease: OK: ...`. The exit status is 1 if any step ran after the work was stopped, or
//! overlapped with the next holder where that must not happen, or if the end came later than promised, and 2 if
//! something else went wrong.
//!
//! To see how work is protected, read `lost_lease/holder.rs`.

#[path = "lost_lease/case.rs"]
mod case;
#[path = "lost_lease/failure.rs"]
mod failure;
#[path = "lost_lease/holder.rs"]
mod holder;
#[path = "lost_lease/silence.rs"]
mod silence;
#[path = "shared/store.rs"]
mod store;
#[path = "shared/table.rs"]
mod table;
#[path = "lost_lease/wire.rs"]
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use comfy_table::CellAlignment;
use futures::future::try_join_all;

use crate::case::{Case, Outcome};
use crate::failure::Failure;

/// Takes leases away in several ways, and shows how soon the protected work ends.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Where the locks are: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// The TTL of the locks, in milliseconds
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(300..=60_000))]
    ttl: u64,
}

impl Args {
    const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl)
    }

    fn max_hold(&self) -> Duration {
        self.ttl() * 2 / 3
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    show(&Args::parse()).await.unwrap_or_else(|failure| {
        eprintln!("lost_lease: {failure}");
        ExitCode::from(2)
    })
}

/// Runs all cases at the same time.
async fn show(args: &Args) -> Result<ExitCode, Failure> {
    let cases = Case::ALL.into_iter().filter(|case| case.fits(&args.url));
    let outcomes = try_join_all(cases.map(|case| case.play(args))).await?;
    let header = [
        "lost by",
        "reported reason",
        "should end",
        "ended after",
        "steps",
        "after the end",
        "overlap with next",
    ];
    let mut table = table::table(header, outcomes.iter().map(|outcome| row(args, outcome)));
    table.column_iter_mut().take(3).for_each(|column| column.set_cell_alignment(CellAlignment::Left));
    println!("{table}");
    Ok(match outcomes.iter().find_map(|outcome| outcome.flaw(args)) {
        None => {
            println!(
                "lost_lease: OK: leases were lost in {} ways, and no step of the work ran after the loss was reported",
                outcomes.len()
            );
            ExitCode::SUCCESS
        }
        Some(why) => {
            println!("lost_lease: FAILED: {why}");
            ExitCode::FAILURE
        }
    })
}

fn row(args: &Args, outcome: &Outcome) -> [String; 7] {
    let Outcome { case, reason, steps, after, beside, ended_after } = outcome;
    let (_, promise) = case.promise(args);
    let ended_after = format!("{:.1} ms", ended_after.as_secs_f64() * 1e3);
    let [name, reason, promise] = [case.name().to_owned(), reason.to_string(), promise.to_owned()];
    [name, reason, promise, ended_after, steps.to_string(), after.to_string(), beside.to_string()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_ends_as_promised_in_every_case() {
        let args = Args { url: "memory:".to_owned(), ttl: 900 };
        let outcomes =
            try_join_all(Case::ALL.map(|case| case.play(&args))).await.expect("memory does not fail");
        for outcome in outcomes {
            assert_eq!(outcome.flaw(&args), None, "{outcome:?}");
        }
    }
}
