//! `wait`: until something is free. It is looked at, and not acquired: who waits for it is not kept waiting longer.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use leasehold::Client;
use tokio::time::{Instant, sleep, timeout};

use super::list::who;
use crate::args::{Args, Wait, Which};
use crate::exit::{Failure, NOT_OBTAINED, UNAVAILABLE};
use crate::find::Found;
use crate::report::{Free, seconds};
use crate::{find, output, store};

/// The first pause between two looks; each is longer than the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For how long the store may be away, as when somebody waits in the queue.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: &Args, wanted: &Wait) -> Result<ExitCode, Failure> {
    let client = store::connect(args).await?;
    let (begun, bar) = (Instant::now(), bar());
    let waiting = until_free(&client, &wanted.which, &bar);
    let free = match wanted.timeout {
        Some(limit) => timeout(limit, waiting).await.unwrap_or(Ok(false)),
        None => waiting.await,
    };
    bar.finish_and_clear();
    let free = free?;
    let name = output::clean(&wanted.which.name);
    if args.json {
        let waited_seconds = seconds(begun.elapsed());
        output::json(&Free { name: wanted.which.name.clone(), free, waited_seconds })?;
    } else if !free {
        output::note(&format!("{name} is still in use: `leasehold show {name}` says by whom"));
    }
    client.shutdown().await?;
    Ok(ExitCode::from(if free { 0 } else { NOT_OBTAINED }))
}

/// Returns `true`, after a while.
async fn until_free(client: &Client, which: &Which, bar: &ProgressBar) -> Result<bool, Failure> {
    let (mut pause, mut away_since) = (FIRST_PAUSE, None);
    loop {
        match find::in_use(client, which).await {
            Ok(found) => {
                let Some(used) = found.iter().find(|found| !found.is_free()) else { return Ok(true) };
                bar.set_message(say(&which.name, used));
                away_since = None;
            }
            Err(failure) if failure.is(UNAVAILABLE) => {
                if away_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(failure);
                }
                bar.set_message("the store does not answer");
            }
            Err(failure) => return Err(failure),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn say(name: &str, used: &Found) -> String {
    let name = output::clean(name);
    let waiters = used.now.waiters.len();
    match used.now.holders.first() {
        Some(holder) => {
            let held_for = holder.held_for.map(|time| format!(" for {}", output::time(time)));
            let (who, held_for) = (who(used.purpose, holder), held_for.unwrap_or_default());
            format!("{name} is held by {who}{held_for}, {waiters} waiting")
        }
        None => format!("{name} is held by nobody, {waiters} waiting"),
    }
}

/// On standard error, and only on a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
