//! A program without tokio that must not run twice at a time: it is started several times at once, and only one
//! instance works. When that has ended, the next one works at once.
//!
//! ```text
//! cargo run --release --features blocking --example single_instance
//! cargo run --release --features blocking --example single_instance -- --url redis://127.0.0.1:6379 --instances 8
//! ```
//!
//! The first command needs nothing installed: the instances are threads, each with a client of its own. With the URL of
//! a server they are processes.
//!
//! The output is what each instance has said, followed by the line `single_instance: OK: ...`. The exit status is 1 if
//! more or fewer than one worked at a time, and 2 if something else went wrong.
//!
//! The program is the function `program`; the rest starts it and counts. How an instance is started is in
//! `single_instance/instance.rs`.

#[path = "single_instance/instance.rs"]
mod instance;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use leasehold::blocking::{Client, Guard};

use crate::instance::{Instance, Said};

/// Starts a program several times at once, and counts how many of its instances work.
#[derive(Parser, Debug)]
struct Args {
    /// Where the lock is: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// How many instances are started at once: threads in memory, otherwise processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    instances: u32,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Lock(#[from] leasehold::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("an instance ended without a word")]
    Silent,
}

/// Everything that a program needs in order not to run twice.
fn program(url: &str, report: impl FnOnce(&Guard) -> Result<(), Failure>) -> Result<Said, Failure> {
    let client = Client::connect(url)?;
    let Some(guard) = client.mutex("nightly-report")?.try_lock()? else { return Ok(Said::RunsElsewhere) };
    report(&guard)?; // calls `guard.check()?` before each step that must not be done twice
    guard.release()?;
    Ok(Said::Works)
}

fn main() -> ExitCode {
    let outcome = match instance::url_from_parent() {
        Some(url) => instance::run_as_a_process(&url).map(|()| ExitCode::SUCCESS),
        None => show(&Args::parse()),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("single_instance: {failure}");
        ExitCode::from(2)
    })
}

fn show(args: &Args) -> Result<ExitCode, Failure> {
    let (at_a_time, after_that) = go(args)?;
    println!("of {} instances, {at_a_time} worked; the next one: {after_that}", args.instances);
    if at_a_time == 1 && after_that == Said::Works {
        println!(
            "single_instance: OK: one instance worked at a time, and the next one as soon as it had ended"
        );
        Ok(ExitCode::SUCCESS)
    } else {
        println!("single_instance: FAILED: one instance should work at a time, and the next one after it");
        Ok(ExitCode::FAILURE)
    }
}

/// How many worked at a time, and what the one said that was started when they had ended.
fn go(args: &Args) -> Result<(usize, Said), Failure> {
    let instances = (0..args.instances).map(|_| Instance::start(&args.url)).collect::<Result<Vec<_>, _>>()?;
    let mut at_work = Vec::new();
    for mut instance in instances {
        match instance.said()? {
            Said::Works => at_work.push(instance),
            Said::RunsElsewhere => instance.ends()?,
        }
    }
    let at_a_time = at_work.len();
    at_work.into_iter().try_for_each(Instance::ends)?;
    let mut next = Instance::start(&args.url)?;
    let after_that = next.said()?;
    next.ends()?;
    Ok((at_a_time, after_that))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_instance_works_at_a_time() {
        let args = Args { url: "memory:".to_owned(), instances: 16 };
        for _ in 0..10 {
            assert_eq!(go(&args).expect("it works"), (1, Said::Works));
        }
    }
}
