//! One run, and what it says in the end.

use std::process::ExitCode;

use crate::attempt::attempt;
use crate::options::Options;
use crate::report::Report;
use crate::shrinking;

/// The exit status if there are violations.
const VIOLATED: u8 = 1;
/// The exit status if this machine has no such server.
const LEFT_OUT: u8 = 3;

pub(crate) async fn run(options: &Options) -> Result<ExitCode, String> {
    let Options { scenario, seed, seconds, report, .. } = options;
    options.possible()?;
    println!("{}, {}, seed {seed}, {seconds} s: {}", options.store.name(), scenario.name, scenario.holds);
    let Some(ran) = attempt(options, report.as_deref(), false).await? else {
        return Ok(ExitCode::from(LEFT_OUT));
    };
    let text = Report { options, ran: &ran };
    print!("{text}");
    if let Some(directory) = report {
        text.write(directory)?;
    }
    if ran.verdict.violations.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if options.shrink {
        shrinking::shrink(options, &ran).await?;
    }
    Ok(ExitCode::from(VIOLATED))
}
