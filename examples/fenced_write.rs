//! A paused client writes late (the scenario of Kleppmann, "How to do distributed locking", 2016): a client holds the
//! lock (token 33), checks its lease for the last time, and is paused before it writes. Its lease expires, another
//! client gets the lock (token 34), writes, and is done. The first one wakes up and writes: it had no way of knowing.
//! Without a fence, that write overwrites the other one; with a fence, the storage has seen 34 and rejects 33.
//!
//! ```text
//! cargo run --release --example fenced_write
//! cargo run --release --example fenced_write -- --url redis://127.0.0.1:6379
//! ```
//!
//! The first command needs nothing installed: the writers are threads with their own runtimes, and the lock is in
//! memory. The first writer's thread is blocked for longer than its lease, so nothing on its runtime runs in the
//! meantime. With the URL of a store the lock is there, the writers are processes, and the first one is stopped
//! (SIGSTOP) until the other one has finished, and then continued (SIGCONT); this needs a Unix system. The storage is
//! a service of the process that you start. Nothing depends on timing: each step waits for the one before it.
//!
//! The output is what the storage saw, first without a fence and then with one. (Real tokens are the store's time in
//! microseconds; what counts is which is greater. The table calls them 33, 34 and 35.) The last line is
//! `fenced_write: OK: ...`. The exit status is 1 if the late write was not accepted without the fence, was not
//! rejected with it, or if an update was lost despite the fence, and 2 if something else went wrong.
//!
//! To see how a writer works under its lock, read `fenced_write/writer.rs`; how storage checks tokens,
//! `fenced_write/storage.rs`.

#[path = "fenced_write/body.rs"]
mod body;
#[path = "shared/failure.rs"]
mod failure;
#[path = "shared/fenced.rs"]
mod fenced;
#[path = "shared/loopback.rs"]
mod loopback;
#[path = "shared/process.rs"]
mod process;
#[path = "fenced_write/storage.rs"]
mod storage;
#[path = "shared/store.rs"]
mod store;
#[path = "fenced_write/story.rs"]
mod story;
#[path = "shared/table.rs"]
mod table;
#[path = "fenced_write/writer.rs"]
mod writer;

use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;
use crate::story::Outcome;
use crate::writer::Writer;

/// Pauses a writer between its last check and its write, lets another writer write, and shows what a fence is for.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Where the lock is: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// The TTL of the lock, in milliseconds
    #[arg(long, default_value_t = 1000)]
    ttl: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The processes of a run are this program too; they find the URL in their environment.
    let outcome = match process::url_from_parent() {
        Some(url) => Writer::parse().work_at(&url).await.map(|()| ExitCode::SUCCESS),
        None => show(&Args::parse()).await,
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("fenced_write: {failure}");
        ExitCode::from(2)
    })
}

/// Tells the story twice.
async fn show(args: &Args) -> Result<ExitCode, Failure> {
    let unfenced = story::tell(args, false).await?;
    println!("without a fence:\n{unfenced}");
    let fenced = story::tell(args, true).await?;
    println!("with a fence:\n{fenced}");
    Ok(match disproof(&unfenced, &fenced) {
        None => {
            println!(
                "fenced_write: OK: without a fence a late write overwrote an update, with a fence it was rejected"
            );
            ExitCode::SUCCESS
        }
        Some(why) => {
            println!("fenced_write: FAILED: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Why the two runs do not show what they should.
fn disproof(unfenced: &Outcome, fenced: &Outcome) -> Option<&'static str> {
    match () {
        () if unfenced.late_write_accepted != Some(true) => {
            Some("the late write did not succeed without a fence")
        }
        () if unfenced.keeps_both => Some("nothing was lost without a fence"),
        () if fenced.late_write_accepted != Some(false) => {
            Some("the late write was not rejected by the fence")
        }
        () if !fenced.keeps_both => Some("an update was lost despite the fence"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_write_is_refused_by_the_fence_and_by_nothing_else() {
        let args = Args { url: "memory:".to_owned(), ttl: 200 };
        let (unfenced, fenced) = tokio::join!(story::tell(&args, false), story::tell(&args, true));
        let (unfenced, fenced) = (unfenced.expect("the story goes on"), fenced.expect("the story goes on"));
        assert_eq!(disproof(&unfenced, &fenced), None, "{unfenced}{fenced}");
        assert!(disproof(&fenced, &fenced).is_some());
        assert!(disproof(&unfenced, &unfenced).is_some());
    }
}
