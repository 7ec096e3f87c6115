//! The commands, each in a file of its own.

mod check;
mod elect;
mod once;
mod run;

use std::future::Future;
use std::process::ExitCode;

use tokio::runtime;

use crate::args::{Args, Command};
use crate::exit::{Failure, LOST};

/// Carries out what the arguments say.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Check => wait_for(check::run(&args)),
        Command::Elect(elect) => wait_for(elect::run(&args, elect)),
        Command::Once(once) => wait_for(once::run(&args, once)),
        Command::Run(run) => wait_for(run::run(&args, run)),
        _ => todo!("cli"),
    }
}

fn wait_for(command: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(LOST, format!("no runtime: {error}")))?;
    runtime.block_on(command)
}
