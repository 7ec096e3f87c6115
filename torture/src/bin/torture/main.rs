//! Takes locks and semaphores in several processes while everything goes wrong that can, and judges what happened.
//!
//! ```sh
//! cargo run --release -p torture -- --store redis --scenario mixed --seed 1 --seconds 120
//! ```
//!
//! Decisions:
//!
//! * **Workers are processes of this program**, one client each, so that they can be stopped and killed as in life. Each
//!   writes down what it sees, in a file and at once: nothing is lost with it. Requests have numbers that contain that of
//!   the client, and a worker that takes the place of one that was killed is another client.
//! * **One clock**: `CLOCK_MONOTONIC`, which is the same for all processes of a machine. What is invoked is dated before,
//!   and what returns after, so that the judge never takes for an overlap what was none.
//! * **The data is the harness's own** (`register`): a number for each lock, which no fault reaches and no store keeps,
//!   decides in one place which change is accepted, and in which order.
//! * **A worker that does not run cannot be told.** On a machine with other work, a process that is ready may wait for
//!   longer than a lease has in reserve. Each worker notices that itself, and it is judged as what it is: a stall of that
//!   client. The report says how often, so that a run on a machine that was too busy to show anything can be told.
//! * **The seed** decides which fault comes when, for how long, and on whom, and what each worker asks for. It cannot decide
//!   how the system schedules processes: a run with the same seed has the same faults, not the same interleaving.
//! * **Servers and proxies are those of the tests** (`tests/support`), as for the benches.

mod attempt;
mod clock;
mod fault;
mod fleet;
mod guarantees;
mod injector;
mod line;
mod log;
mod operator;
mod options;
mod own_client;
mod register;
mod report;
mod run;
mod scenario;
mod schedule;
mod servers;
mod shrinking;
mod sites;
mod store;
mod worker;

#[path = "../../../../tests/support/etcd.rs"]
mod etcd;
#[path = "../../../../tests/support/mysql.rs"]
mod mysql;
#[path = "../../../../tests/support/postgres.rs"]
mod postgres;
#[path = "../../../../tests/support/sqlite.rs"]
mod sqlite;
#[path = "../../../../tests/support/zookeeper.rs"]
mod zookeeper;

use std::alloc::System;
use std::process::ExitCode;

use cap::Cap;
use clap::{Parser, Subcommand};
use leasehold_support::nodes::url as nodes_url;

/// Counts what a worker has allocated.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Takes locks and semaphores in several processes while everything goes wrong that can, and judges what happened.
#[derive(Debug, Parser)]
#[command(name = "torture", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: options::Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One of the processes that this program starts.
    #[command(hide = true)]
    Worker(worker::Orders),
    /// Prints which scenarios there are on which stores.
    List,
    /// Writes the page of guarantees from what was kept of runs.
    Guarantees(guarantees::Orders),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Some(Command::Worker(orders)) => {
            worker::work(orders).await.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }
        Some(Command::List) => {
            scenario::list().for_each(|(store, scenario)| println!("{} {}", store.name(), scenario.name));
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Guarantees(orders)) => guarantees::write(&orders),
        None => run::run(&arguments.run).await,
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("torture: {error}");
        ExitCode::from(2)
    })
}
