//! A slow service handles 5 calls at a time. Several processes, each with several callers, share those 5 through a
//! `CountingSemaphore`, without knowing about each other.
//!
//! ```text
//! cargo run --release --example rate_limit
//! cargo run --release --example rate_limit -- --url redis://127.0.0.1:6379 --processes 4 --callers 4
//! ```
//!
//! The first command needs nothing installed: the processes are tasks with a client each, and the permits are in
//! memory. With the URL of a store they are real processes, and the permits are in that store. The service runs on
//! loopback in the process that you start and knows nothing about permits; it counts concurrent calls itself.
//!
//! The output is a table of two runs, first without permits and then with them, followed by the line
//! `rate_limit: OK: ...`. The exit status is 1 if, with permits, there were ever more than 5 concurrent calls, or
//! never as many as 5 (which means that permits were left idle), or if a call was lost, and 2 if something else went
//! wrong.
//!
//! To see how permits are held, read `rate_limit/job.rs`; how the service counts, `rate_limit/service.rs`.

#[path = "shared/failure.rs"]
mod failure;
#[path = "rate_limit/job.rs"]
mod job;
#[path = "shared/loopback.rs"]
mod loopback;
#[path = "shared/process.rs"]
mod process;
#[path = "rate_limit/run.rs"]
mod run;
#[path = "rate_limit/service.rs"]
mod service;
#[path = "shared/store.rs"]
mod store;
#[path = "shared/table.rs"]
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;
use crate::job::Job;
use crate::run::Outcome;

/// Calls a slow service from several processes, first without a limit and then with permits, and lets it count the
/// calls.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Where the permits are: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// How many processes (tasks, in memory)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    processes: u32,
    /// How many callers each process has
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    callers: u32,
    /// How many calls each caller makes
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    calls: u32,
    /// How many concurrent calls the service handles; there must be at least as many callers
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The processes of a run are this program too; they find the URL in their environment.
    let outcome = match process::url_from_parent() {
        Some(url) => Job::parse().work_at(&url).await.map(|()| ExitCode::SUCCESS),
        None => compare(&Args::parse()).await,
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("rate_limit: {failure}");
        ExitCode::from(2)
    })
}

/// Makes all calls twice and reports the difference.
async fn compare(args: &Args) -> Result<ExitCode, Failure> {
    let at_will = run::go(args, false).await?;
    let limited = run::go(args, true).await?;

    let beyond = format!("calls beyond {}", args.limit);
    let header = ["", "calls", "most at once", "on average", &beyond, "elapsed"];
    println!("{}", table::table(header, [row("unlimited", &at_will), row("with permits", &limited)]));
    Ok(match disproof(args, &limited) {
        None => {
            let Args { limit, processes, callers, .. } = args;
            println!(
                "rate_limit: OK: {processes} processes with {callers} callers each made {} calls, never more than \
                 {limit} at once, and {limit} whenever possible",
                limited.calls
            );
            ExitCode::SUCCESS
        }
        Some(why) => {
            println!("rate_limit: FAILED: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Why the run with permits does not show what it should.
fn disproof(args: &Args, limited: &Outcome) -> Option<String> {
    let Args { processes, callers, calls, limit, .. } = *args;
    let Outcome { most, .. } = *limited;
    let wanted = u64::from(processes) * u64::from(callers) * u64::from(calls);
    match limited.calls {
        calls if calls != wanted => Some(format!("{calls} calls were made instead of {wanted}")),
        _ if most > limit => Some(format!("{most} concurrent calls, but only {limit} were allowed")),
        _ if most < limit => Some(format!("at most {most} concurrent calls: permits were left idle")),
        _ => None,
    }
}

fn row(name: &str, outcome: &Outcome) -> [String; 6] {
    let Outcome { calls, most, average, beyond, elapsed } = outcome;
    [
        name.to_owned(),
        calls.to_string(),
        most.to_string(),
        format!("{average:.1}"),
        beyond.to_string(),
        format!("{elapsed:.1?}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn small() -> Args {
        Args { url: "memory:".to_owned(), processes: 3, callers: 2, calls: 4, limit: 2 }
    }

    fn seen(calls: u64, most: u32) -> Outcome {
        Outcome { calls, most, average: 1.0, beyond: 0, elapsed: Duration::ZERO }
    }

    #[test]
    fn only_exactly_as_many_calls_as_allowed_are_a_proof() {
        assert_eq!(disproof(&small(), &seen(24, 2)), None);
        assert!(disproof(&small(), &seen(24, 3)).is_some_and(|why| why.contains("3 concurrent calls")));
        assert!(disproof(&small(), &seen(24, 1)).is_some_and(|why| why.contains("idle")));
        assert!(disproof(&small(), &seen(23, 2)).is_some_and(|why| why.contains("instead of 24")));
    }

    #[tokio::test]
    async fn the_service_counts_more_at_will_and_the_limit_with_permits() {
        let at_will = run::go(&small(), false).await.expect("memory does not fail");
        assert!(at_will.most > 2, "{at_will:?}");
        let limited = run::go(&small(), true).await.expect("memory does not fail");
        assert_eq!(disproof(&small(), &limited), None);
        assert_eq!(limited.beyond, 0);
    }
}
