//! The commands, each in a file of its own.

mod break_hold;
pub(crate) mod check;
mod completions;
mod demo;
mod elect;
mod list;
mod once;
mod run;
mod show;
mod token;
mod wait;
mod watch;

use std::future::Future;
use std::process::ExitCode;

use tokio::runtime;

use crate::args::{Args, Command};
use crate::exit::{Failure, LOST};

/// Carries out what the arguments say.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Break(wanted) => wait_for(break_hold::run(&args, wanted)),
        Command::Check => wait_for(check::run(&args)),
        Command::Completions(wanted) => completions::run(wanted),
        Command::Demo => wait_for(demo::run(&args)),
        Command::Elect(elect) => wait_for(elect::run(&args, elect)),
        Command::List(wanted) => wait_for(list::run(&args, wanted)),
        Command::Once(once) => wait_for(once::run(&args, once)),
        Command::Run(run) => wait_for(run::run(&args, run)),
        Command::Show(wanted) => wait_for(show::run(&args, wanted)),
        Command::Token(wanted) => wait_for(token::run(&args, wanted)),
        Command::Wait(wanted) => wait_for(wait::run(&args, wanted)),
        Command::Watch(wanted) => wait_for(watch::run(&args, wanted)),
    }
}

fn wait_for(command: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new(LOST, format!("no runtime: {error}")))?;
    runtime.block_on(command)
}
