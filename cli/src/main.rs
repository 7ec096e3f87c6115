//! `leasehold`: distributed locks for scripts, and for looking at who holds what.
//!
//! `args` says what there is, `commands` has a file for each command, `store` finds and opens the store, `exit` has
//! the exit statuses, `visit` connects for the time of a look, `find` looks for what has a name, `report` has what is printed as JSON, and `output` prints.
//! `job` runs a command under a lease, with `signals`, the `terminal`, and a `watcher` in case this program is killed;
//! `waiting` shows who holds what is awaited.

#![expect(clippy::future_not_send, reason = "the program has one thread of its own")]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that panics has failed"))]

mod args;
mod commands;
mod exit;
mod find;
mod job;
mod output;
mod report;
mod signals;
mod store;
mod terminal;
mod visit;
mod waiting;
mod watcher;
mod wording;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    if watcher::is_this_process() {
        return watcher::watch();
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return exit::usage(&error),
    };
    args.color.write_global();
    match commands::run(args) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
