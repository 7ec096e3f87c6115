//! `wait`: until something is free. It is looked at, and not acquired: who waits for it is not kept waiting longer.

use std::process::ExitCode;
use std::time::Duration;

use leasehold::{Client, Contention};
use tokio::time::{Instant, sleep, timeout};

use crate::args::{Args, Wait, Which};
use crate::exit::{Failure, NOT_OBTAINED, UNAVAILABLE};
use crate::find::{self, Answer, Found};
use crate::report::{Free, seconds};
use crate::waiting::Line;
use crate::{output, store, visit, wording};

/// The first pause between two looks; each is longer than the one before. Stores tell only those who are in the queue.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For how long the store may be away, as when somebody waits in the queue.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: &Args, wanted: &Wait) -> Result<ExitCode, Failure> {
    // The store may be away from the start.
    let client = store::builder(args)?.connect_lazy()?;
    visit::with(&client, async |client| wait(args, wanted, client).await).await
}

async fn wait(args: &Args, wanted: &Wait, client: &Client) -> Result<ExitCode, Failure> {
    let (begun, mut looks) = (Instant::now(), Looks::new(client, &wanted.which));
    let waiting = looks.until_free();
    let free = match wanted.timeout {
        Some(limit) => timeout(limit, waiting).await.ok().transpose()?.is_some(),
        None => waiting.await.map(|()| true)?,
    };
    let is_known = looks.is_known;
    drop(looks);
    if !free && !is_known {
        return Err(Failure::new(UNAVAILABLE, format!("{} has not answered in time", client.store())));
    }
    let name = wording::clean(&wanted.which.name);
    if args.json {
        let waited_seconds = seconds(begun.elapsed());
        output::json(&Free { name: wanted.which.name.clone(), free, waited_seconds })?;
    } else if !free {
        output::note(&format!("{name} is still in use: `leasehold show {name}` says by whom"));
    }
    Ok(ExitCode::from(if free { 0 } else { NOT_OBTAINED }))
}

/// One look after the other.
struct Looks<'a> {
    client: &'a Client,
    which: &'a Which,
    /// On standard error, and only on a terminal.
    line: Line,
    /// Whether the last look has found out who holds it.
    is_known: bool,
    /// Since when the store has not answered.
    away_since: Option<Instant>,
    /// What the store refuses to tell is said once.
    has_said: bool,
}

impl<'a> Looks<'a> {
    fn new(client: &'a Client, which: &'a Which) -> Self {
        let line = Line::new(&wording::clean(&which.name));
        Self { client, which, line, is_known: false, away_since: None, has_said: false }
    }

    async fn until_free(&mut self) -> Result<(), Failure> {
        let mut pause = FIRST_PAUSE;
        while !self.is_free().await? {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Whether it is free, as far as is known. Fails if the store has been away for too long.
    async fn is_free(&mut self) -> Result<bool, Failure> {
        match find::ask(self.client, self.which).await {
            Ok(Answer { found, unknown }) => {
                (self.is_known, self.away_since) = (true, None);
                if !self.has_said {
                    unknown.iter().for_each(|unknown| output::note(unknown));
                    self.has_said = true;
                }
                let Some(used) = found.iter().find(|found| !found.is_free()) else { return Ok(true) };
                self.line.show(&say(&self.which.name, used));
            }
            Err(failure) if failure.is(UNAVAILABLE) => {
                self.is_known = false;
                if self.away_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(failure);
                }
                self.line.show("the store does not answer");
            }
            Err(failure) => return Err(failure),
        }
        Ok(false)
    }
}

/// As `run` says it.
fn say(name: &str, used: &Found) -> String {
    let contention = Contention::from(used.now.clone()).to_string();
    format!("`{}`: {}", wording::clean(name), wording::clean(&contention))
}
