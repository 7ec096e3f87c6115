//! Several schedulers know the same timetable, so that the job is run no matter which of their machines fails. Only
//! one of them runs it: exactly once for every tick, with none skipped, even though their clocks differ and the
//! scheduler running the job is killed in the middle of a tick.
//!
//! ```text
//! cargo run --release --example cron_once
//! cargo run --release --example cron_once -- --url redis://127.0.0.1:6379 --schedulers 4 --ticks 12
//! ```
//!
//! The first command needs nothing installed: the schedulers are tasks, and the one running the job is dropped on the
//! spot. With the URL of a server the schedulers are processes, and that one is killed (SIGKILL): it gets no chance
//! to release anything.
//!
//! It takes two things to make this work:
//!
//! * A lock for leadership, held for as long as its holder lives. It decides *who* works. The others queue,
//!   and the first of them takes over within one lease when the leader dies.
//! * A record stored with the job's results, which knows the next tick to run. It decides *what is left to do*: it
//!   accepts a result and the step to the next tick together, and only with the newest token. A leader that was
//!   paused and has been replaced is rejected. A new leader continues where the last one stopped, no matter what its
//!   own clock says, and catches up on what was due in the meantime.
//!
//! For most jobs, `client.once("nightly", Ticks::every(day))?.run(job)` is all that is needed: a few lines, and no
//! record. But only the store knows there which ticks were run, so a tick whose runner dies after its last step is run
//! again, or one that was not finished is left out, and how much clocks may differ is limited. This example shows what
//! `once` cannot do, because it needs the help of what the job writes to: every result is accepted exactly once, whoever
//! dies, however wrong the clocks are, and a tick is never too late.
//!
//! The lock alone would not be enough: a paused leader could run a tick at the same time as the next leader. Nor
//! would a lock per tick, such as `try_lock` on `report:12:00` kept for a minute: a scheduler whose clock is behind
//! finds that lock gone and runs the tick again. If the job acts on something that cannot share a step with the
//! record, such as a mail server, no lock can make it exactly once; pass it the tick as an idempotency key.
//!
//! The output is a table of all ticks, followed by the line `cron_once: OK: ...`. The exit status is 1 if the job of
//! any tick ran to completion twice, or not at all, or if no scheduler took over from the killed one, and 2 if
//! something else went wrong.
//!
//! To see how a scheduler leads, read `cron_once/scheduler.rs`; what the record checks, `cron_once/record.rs`.

#[path = "shared/failure.rs"]
mod failure;
#[path = "shared/fenced.rs"]
mod fenced;
#[path = "shared/loopback.rs"]
mod loopback;
#[path = "shared/process.rs"]
mod process;
#[path = "cron_once/record.rs"]
mod record;
#[path = "cron_once/run.rs"]
mod run;
#[path = "cron_once/scheduler.rs"]
mod scheduler;
#[path = "shared/store.rs"]
mod store;
#[path = "shared/table.rs"]
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;
use crate::record::Tick;
use crate::run::Outcome;
use crate::scheduler::Scheduler;

/// Lets several schedulers follow one timetable, kills the one that runs the job, and counts how often each tick was
/// run.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Where the lock is: `memory:`, or the URL of a store that processes share
    #[arg(long, default_value = "memory:")]
    url: String,
    /// How many schedulers: tasks in memory, otherwise processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=64))]
    schedulers: u32,
    /// How many ticks the timetable has; the leader is killed in the middle one
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(3..=1000))]
    ticks: u32,
    /// Time from one tick to the next, in milliseconds
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    period: u32,
    /// Maximum clock error, fast and slow, in milliseconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(0..=60_000))]
    skew: u32,
    /// The TTL of the lock, in milliseconds
    #[arg(long, default_value_t = 1000)]
    ttl: u64,
}

impl Args {
    /// The tick in which the leader is killed.
    fn fatal(&self) -> u64 {
        u64::from(self.ticks / 2)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    // The processes of a run are this program too; they find the URL in their environment.
    let outcome = match process::url_from_parent() {
        Some(url) => Scheduler::parse().work_at(&url).await.map(|()| ExitCode::SUCCESS),
        None => show(&Args::parse()).await,
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("cron_once: {failure}");
        ExitCode::from(2)
    })
}

async fn show(args: &Args) -> Result<ExitCode, Failure> {
    let outcome = run::go(args).await?;
    let rows = outcome.ticks.iter().map(|(number, tick)| row(*number, tick));
    println!("{}", table::table(["tick", "started by", "run by", "token", "delay"], rows));
    Ok(match disproof(args, &outcome) {
        None => {
            println!("{}", proof(args, &outcome));
            ExitCode::SUCCESS
        }
        Some(why) => {
            println!("cron_once: FAILED: {why}");
            ExitCode::FAILURE
        }
    })
}

/// Why the run does not show what it should show.
fn disproof(args: &Args, outcome: &Outcome) -> Option<String> {
    let Outcome { ticks, took_over } = outcome;
    let run_by = |number: &u64| ticks.get(number).map_or(&[][..], |tick| &tick.run_by);
    if let Some(number) = (0..u64::from(args.ticks)).find(|number| run_by(number).len() != 1) {
        return Some(format!("schedulers that ran tick {number}: {:?}", run_by(&number)));
    }
    match took_over {
        _ if ticks.len() > args.ticks as usize => {
            Some("a tick was started that is not in the timetable".to_owned())
        }
        None => Some("no scheduler took over from the leader that was supposed to be killed".to_owned()),
        Some(_) => None,
    }
}

fn proof(args: &Args, outcome: &Outcome) -> String {
    let Args { schedulers, ticks, skew, ttl, .. } = args;
    let lost = if args.url == "memory:" {
        "dropped, along with its lock".to_owned()
    } else {
        format!("killed (TTL {ttl} ms)")
    };
    let took_over = outcome.took_over.unwrap_or_default();
    format!(
        "in tick {} the leader was {lost}; {took_over:.0?} later another scheduler started that tick again\n\
         cron_once: OK: {schedulers} schedulers, clocks up to {skew} ms off, ran {ticks} ticks, each exactly once",
        args.fatal()
    )
}

fn row(number: u64, tick: &Tick) -> [String; 5] {
    let begun = tick.begun.iter().map(|attempt| attempt.by.to_string()).collect::<Vec<_>>();
    let run = tick.run_by.iter().map(u32::to_string).collect::<Vec<_>>();
    let last = tick.begun.last();
    let token = last.map(|attempt| attempt.token.to_string()).unwrap_or_default();
    let late = last.map(|attempt| format!("{} ms", attempt.late)).unwrap_or_default();
    [number.to_string(), begun.join(", then "), run.join(" and "), token, late]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn small() -> Args {
        Args { url: "memory:".to_owned(), schedulers: 3, ticks: 4, period: 40, skew: 60, ttl: 1000 }
    }

    fn seen(run_by: [&[u32]; 4], took_over: Option<Duration>) -> Outcome {
        let tick = |by: &[u32]| Tick { begun: Vec::new(), run_by: by.to_vec() };
        Outcome { ticks: (0..).zip(run_by.map(tick)).collect(), took_over }
    }

    #[test]
    fn only_ticks_that_were_run_once_are_a_proof() {
        let took_over = Some(Duration::from_secs(1));
        assert_eq!(disproof(&small(), &seen([&[0], &[0], &[1], &[1]], took_over)), None);
        let twice = disproof(&small(), &seen([&[0], &[0, 1], &[1], &[1]], took_over));
        assert!(twice.is_some_and(|why| why.contains("tick 1: [0, 1]")));
        let never = disproof(&small(), &seen([&[0], &[0], &[1], &[]], took_over));
        assert!(never.is_some_and(|why| why.contains("tick 3: []")));
        assert!(disproof(&small(), &seen([&[0], &[0], &[1], &[1]], None)).is_some());
    }

    #[tokio::test]
    async fn each_tick_is_run_once_although_the_leader_is_lost() {
        let outcome = run::go(&small()).await.expect("memory does not fail");
        assert_eq!(disproof(&small(), &outcome), None, "{outcome:?}");
        let fatal = &outcome.ticks[&small().fatal()];
        assert_ne!(fatal.begun[0].by, fatal.run_by[0], "another one ran it");
    }
}
