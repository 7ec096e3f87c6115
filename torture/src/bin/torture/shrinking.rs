//! After violations: the same run again and again with fewer faults, until only those are left that are needed.

use std::collections::BTreeSet;
use std::time::Duration;

use leasehold_torture::judge::Rule;
use leasehold_torture::shrink::smallest;

use crate::attempt::{Ran, attempt};
use crate::options::Options;
use crate::schedule::Chosen;

/// Restarts of servers take longer than is planned for.
const LATER: Duration = Duration::from_secs(2);

/// Prints which faults are needed for at least one of the rules that were broken, and the command that repeats it.
pub(crate) async fn shrink(options: &Options, ran: &Ran) -> Result<(), String> {
    let broken: BTreeSet<Rule> = ran.verdict.violations.iter().map(|violation| violation.rule).collect();
    let all: Vec<usize> = ran.injected.iter().map(|one| one.number).collect();
    println!("\nshrinking {} faults; broken: {broken:?}", all.len());
    let needed = smallest(&all, async |some: &[usize]| is_enough(options, ran, some, &broken).await).await?;
    let needed = restricted(options, ran, Chosen::from(&needed[..]));
    println!("needed: {}", needed.faults.as_ref().map(ToString::to_string).unwrap_or_default());
    for one in
        ran.injected.iter().filter(|one| needed.faults.as_ref().is_some_and(|faults| faults.has(one.number)))
    {
        println!("{:>4} {}", one.number, one.fault.what);
    }
    println!("to repeat it: {}", needed.command());
    Ok(())
}

/// Whether these faults lead to it, in one of several runs: processes are not scheduled the same way twice.
async fn is_enough(
    options: &Options,
    ran: &Ran,
    some: &[usize],
    broken: &BTreeSet<Rule>,
) -> Result<bool, String> {
    let options = restricted(options, ran, Chosen::from(some));
    let faults = options.faults.as_ref().map(ToString::to_string).unwrap_or_default();
    for n in 1..=options.tries {
        let ran = attempt(&options, None, true).await?.ok_or("the server is gone")?;
        if ran.verdict.violations.iter().any(|violation| broken.contains(&violation.rule)) {
            println!("  {faults}: violated, in run {n} of {} s", options.seconds);
            return Ok(true);
        }
    }
    println!("  {faults}: not violated, in {} runs of {} s", options.tries, options.seconds);
    Ok(false)
}

/// The run with these faults alone, which ends soon after the last of them.
fn restricted(options: &Options, ran: &Ran, faults: Chosen) -> Options {
    let end = options.schedule(&ran.possible).end_of(&faults) + options.ending() + LATER;
    let seconds = (end.as_secs() + 1).min(options.seconds);
    Options { faults: Some(faults), seconds, report: None, shrink: false, ..options.clone() }
}
