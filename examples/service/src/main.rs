//! A web service whose instances coordinate through leasehold, and a trial of three of them.
//!
//! ```text
//! cargo run --release -p leasehold-service -- trial                     # in the memory of one process
//! cargo run --release -p leasehold-service -- trial --store redis       # three processes, and a server of its own
//! cargo run --release -p leasehold-service -- trial --store postgres --seconds 60
//! ```
//!
//! Under load, the trial kills the instance that leads, stops another for three TTLs, and restarts the store. It ends
//! with 1 if an update was lost, the upstream service got more calls at a time than it bears, two instances led under
//! one token, or the metrics disagree with what the instances did. To see what an application writes, read
//! `instance.rs`.

mod exposition;
mod instance;
mod load;
#[path = "../../shared/loopback.rs"]
mod loopback;
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
mod replica;
mod store;
mod trial;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::store::StoreKind;

/// A web service whose instances coordinate through leasehold, and a trial of three of them.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs one instance, which prints its address
    Serve(replica::Serve),
    /// Runs three instances under load and faults, and judges what they did
    Trial {
        /// Where the locks are
        #[arg(long, default_value = "memory")]
        store: StoreKind,
        /// How long the load lasts
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// How soon another instance must lead after the leader was killed, in seconds
        #[arg(long, default_value_t = (replica::TTL + Duration::from_secs(1)).as_secs())]
        take_over: u64,
    },
}

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Serve(serve) => serve.run().await.map(|()| true),
        Command::Trial { store, seconds, take_over } => {
            trial::run(store, Duration::from_secs(seconds), Duration::from_secs(take_over)).await
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
