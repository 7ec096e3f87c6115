//! Runs a scene in many orders.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// How many orders are tried by default, by each way of choosing them.
const SCHEDULES: usize = 500;
/// How many changes between threads PCT makes where they may not be made.
const DEPTH: usize = 3;
/// After how many steps somebody waits in vain.
const STEPS: usize = 60_000;
const STACK: usize = 1 << 20;

/// Runs `scene` in as many orders as `LEASEHOLD_SCHEDULES` says, drawn from `LEASEHOLD_SEED`, or in the one that
/// `LEASEHOLD_SCHEDULE` is.
pub(crate) fn explore(scene: fn()) {
    if let Ok(schedule) = env::var("LEASEHOLD_SCHEDULE") {
        return run(
            "the schedule of LEASEHOLD_SCHEDULE",
            ReplayScheduler::new_from_encoded(&schedule),
            scene,
        );
    }
    let (schedules, seed) = (number("LEASEHOLD_SCHEDULES", SCHEDULES), number("LEASEHOLD_SEED", 1));
    let seed = seed as u64;
    run("random orders", RandomScheduler::new_from_seed(seed, schedules), scene);
    run("PCT", PctScheduler::new_from_seed(seed, DEPTH, schedules), scene);
}

fn run(way: &str, scheduler: impl Scheduler + 'static, scene: fn()) {
    let mut config = Config::new();
    (config.stack_size, config.max_steps, config.silence_warnings) =
        (STACK, MaxSteps::FailAfter(STEPS), true);
    let ran = catch_unwind(AssertUnwindSafe(|| Runner::new(scheduler, config).run(scene)));
    if let Err(failure) = ran {
        eprintln!("failed in {way}; set LEASEHOLD_SCHEDULE to the schedule above, and run this test alone");
        resume_unwind(failure);
    }
}

fn number(variable: &str, default: usize) -> usize {
    let Ok(text) = env::var(variable) else { return default };
    text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}"))
}
