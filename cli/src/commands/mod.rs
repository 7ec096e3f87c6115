//! The commands, each in a file of its own.

mod check;

use std::future::Future;
use std::process::ExitCode;

use tokio::runtime;

use crate::args::{Args, Command};
use crate::exit::{Failure, LOST};

/// Carries out what the arguments say.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Check => wait_for(check::run(&args)),
        _ => todo!("cli"),
    }
}

fn wait_for(command: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(LOST, format!("no runtime: {error}")))?;
    runtime.block_on(command)
}
