//! Several workers keep one record of this machine: each reads the whole record, adds its part, and writes the
//! whole record back. Without a lock, the last writer overwrites what the others have added in the meantime.
//!
//! ```text
//! cargo run --release --example merge
//! cargo run --release --example merge -- --url redis://127.0.0.1:6379 --processes 4 --rounds 25
//! cargo run --release --example merge -- --url redis://127.0.0.1:6379 --crash
//! cargo run --release --features sqlite --example merge -- --url sqlite:/tmp/locks.db --processes 4
//! cargo run --release --features postgres --example merge -- --url postgres://user:password@127.0.0.1/database
//! ```
//!
//! The first command needs nothing installed: the workers are tasks, and the lock is in memory. With any other URL
//! the workers are processes, and the lock is in that store (a file needs nothing installed either).
//! They reach the record, which is kept by the process that you start, over loopback. `--crash` kills one of
//! the processes (SIGKILL) while it holds the lock; the others continue within one lease.
//!
//! The output is a table of two runs, first without the lock and then with it, followed by the line
//! `merge: locked kept 100/100, unlocked kept NN/100`. The exit status is 1 if the locked run lost an update, and 2
//! if something else went wrong.
//!
//! To see how a lock is held, read `merge/worker.rs`; how a resource checks the tokens, `merge/storage.rs`.

#[path = "merge/event.rs"]
mod event;
#[path = "merge/failure.rs"]
mod failure;
#[path = "shared/fenced.rs"]
mod fenced;
#[path = "merge/job.rs"]
mod job;
#[path = "shared/loopback.rs"]
mod loopback;
#[path = "merge/machine.rs"]
mod machine;
#[path = "shared/process.rs"]
mod process;
#[path = "merge/record.rs"]
mod record;
#[path = "merge/run.rs"]
mod run;
#[path = "merge/storage.rs"]
mod storage;
#[path = "merge/worker.rs"]
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use leasehold::Client;

use crate::failure::Failure;
use crate::run::{Outcome, Run};

/// Merges parts of this machine's record, first without a lock and then with one, and counts what is kept.
#[derive(Parser, Debug)]
struct Args {
    /// Where the lock is: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// How many workers: tasks in memory, otherwise processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    processes: u32,
    /// How many updates each worker makes
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// The TTL of the lock, in milliseconds
    #[arg(long, default_value_t = 2000)]
    ttl: u64,
    /// Kill one process while it holds the lock, in the locked run; needs a --url
    #[arg(long)]
    crash: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The processes of a run are this program too; they find the URL in their environment.
    let outcome = match process::url_from_parent() {
        Some(url) => job::work(&url).await.map(|()| ExitCode::SUCCESS),
        None => compare(&Args::parse()).await,
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("merge: {failure}");
        ExitCode::from(2)
    })
}

/// Does the work twice and reports the difference.
async fn compare(args: &Args) -> Result<ExitCode, Failure> {
    if args.crash && args.url == "memory:" {
        return Err(Failure::NothingToKill);
    }
    let client = Client::connect(&args.url).await?;
    let unlocked = Run::new(args, &client, false)?.go().await?;
    let locked = Run::new(args, &client, true)?.go().await?;
    client.shutdown().await?;

    println!("the record contains {}", locked.parts);
    if let Some(recovery) = locked.recovery {
        let ttl = Duration::from_millis(args.ttl);
        println!("one holder was killed; the next one got the lock {recovery:.2?} later (TTL {ttl:?})");
    }
    println!("{}", table(&unlocked, &locked));
    let total = (args.processes * args.rounds) as usize;
    println!("merge: locked kept {}/{total}, unlocked kept {}/{total}", locked.kept, unlocked.kept);
    Ok(ExitCode::from(u8::from(locked.kept < total)))
}

fn table(unlocked: &Outcome, locked: &Outcome) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["", "updates made", "updates kept", "elapsed", "longest wait"]);
    table.add_row(row("unlocked", unlocked));
    table.add_row(row("locked", locked));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

fn row(name: &str, outcome: &Outcome) -> [String; 5] {
    let Outcome { made, kept, elapsed, longest_wait, .. } = outcome;
    let wait = longest_wait.map_or_else(|| "no lock".to_owned(), |wait| format!("{wait:.1?}"));
    [name.to_owned(), made.to_string(), kept.to_string(), format!("{elapsed:.1?}"), wait]
}
