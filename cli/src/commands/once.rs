//! `once`: a command once per tick of a schedule, whichever machine runs it.

use std::future::pending;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::{FutureExt, join};
use leasehold::{Client, Error, MAX_TTL, OnDeadRunner, Once, OnceOptions, Tick, Ticks};
use tokio::sync::{mpsc, oneshot};

use super::run::{START_AGAIN, shut_down};
use crate::args::{self, Args};
use crate::exit::{End, Failure};
use crate::job::{Ended, Job, say};
use crate::signals::Signals;
use crate::store;
use crate::watcher::Watcher;

/// How long the store remembers at least which ticks were run: clocks may differ.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// How long the mark of a last tick may take.
const CLOSING: Duration = Duration::from_secs(5);

/// A tick that is this process's to run, and where to tell how its command has ended. Its lease is lost when nobody
/// wants to know that any more.
type Turn = (Tick, oneshot::Sender<End>);

pub(crate) async fn run(args: &Args, once: &args::Once) -> Result<ExitCode, Failure> {
    Ok(follow(args, once).await?.finish())
}

async fn follow(args: &Args, once: &args::Once) -> Result<End, Failure> {
    let builder = store::builder(args)?;
    let mut signals = Signals::that_end()?;
    let client = tokio::select! {
        client = builder.connect() => client?,
        signal = signals.end() => return Ok(End::Signal(signal)),
    };
    let end = carry_out(&client, once, &mut signals).await;
    shut_down(&client, &mut signals).await;
    end
}

async fn carry_out(client: &Client, once: &args::Once, signals: &mut Signals) -> Result<End, Failure> {
    let (turns, taken) = mpsc::channel(1);
    let schedule = &schedule(client, once)?;
    let scheduled = async move {
        if once.now {
            return schedule.try_run(|tick| have_run(&turns, tick)).await;
        }
        let each = |tick| have_run(&turns, tick).map(|_| ());
        schedule.run(each).await.map(|()| Some(End::Status(0)))
    };
    let (mut scheduled, mut runner) = (pin!(scheduled), pin!(Runner { once, taken, signals }.run()));
    tokio::select! {
        ran = &mut scheduled => {
            // A command whose lease was lost may not have ended yet.
            runner.await?;
            Ok(ran.map_err(failed)?.unwrap_or_else(|| {
                tell_why_not(once);
                End::Status(0)
            }))
        }
        stopped = &mut runner => {
            let stopped = stopped?;
            if stopped.is_between_ticks {
                // The tick that was run last is marked.
                let (closed, _) = join(client.close(CLOSING), scheduled).await;
                if let Err(error) = closed {
                    say(&format!("the tick that was run last may be run again: {error}"));
                }
            }
            Ok(stopped.end)
        }
    }
}

fn failed(error: Error) -> Failure {
    let is_lost = matches!(error, Error::Lost { .. });
    let failure = Failure::from(error);
    if is_lost { failure.hint(START_AGAIN) } else { failure }
}

fn schedule(client: &Client, once: &args::Once) -> Result<Once, Failure> {
    let ticks = Ticks::every(once.tick).offset(once.offset);
    let mut options = OnceOptions::new().at_least_for(2 * due_for(once).max(REMEMBERED / 2));
    options = options.at_most_late(due_for(once));
    if once.at_most_once {
        options = options.on_dead_runner(OnDeadRunner::LeaveOut);
    }
    let runs = client.mutex_options();
    let runs = once.ttl.ttl.map_or(runs.clone(), |ttl| runs.ttl(ttl));
    Ok(client.clone().with_mutex_options(runs).once_with(&once.name, ticks, options)?)
}

/// For how long after its time a tick can be run: until the next one, but no longer than can be remembered.
fn due_for(once: &args::Once) -> Duration {
    once.tick.min(MAX_TTL / 2)
}

/// Nothing was run. A tick that is over hints at a wrong time or offset; who comes second need not tell, for instance
/// in a mail of `cron`'s.
fn tell_why_not(once: &args::Once) {
    let now = SystemTime::now();
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(once.offset);
    let late = since.as_nanos() % once.tick.as_nanos().max(1);
    let late = Duration::from_nanos(u64::try_from(late).unwrap_or(u64::MAX));
    let due = now.checked_sub(late).unwrap_or(now);
    let (name, due) = (&once.name, humantime::format_rfc3339_seconds(due));
    if late >= due_for(once) {
        let limit = humantime::format_duration(due_for(once)).to_string();
        say(&format!(
            "nothing was run: the tick of `{name}` that was due at {due} is over, as it can be run for {limit} only; \
             --offset counts in UTC"
        ));
    } else if io::stderr().is_terminal() {
        say(&format!("nothing was run: the tick of `{name}` that was due at {due} was run already"));
    }
}

/// What the schedule does with a tick: it has the runner run the command, and waits. If the lease is lost, the schedule
/// drops this future, and the runner notices. Never completes if the command was ended with this program: the tick is
/// not done then.
async fn have_run(turns: &mpsc::Sender<Turn>, tick: Tick) -> End {
    let (done, ended) = oneshot::channel();
    if turns.send((tick, done)).await.is_ok()
        && let Ok(end) = ended.await
    {
        return end;
    }
    pending().await
}

/// Runs the command for each tick that the schedule takes.
struct Runner<'a> {
    once: &'a args::Once,
    taken: mpsc::Receiver<Turn>,
    signals: &'a mut Signals,
}

/// Why no more ticks are run.
struct Stopped {
    end: End,
    is_between_ticks: bool,
}

impl Runner<'_> {
    /// Until this program is asked to end, or the schedule has ended.
    async fn run(mut self) -> Result<Stopped, Failure> {
        loop {
            let turn = tokio::select! {
                turn = self.taken.recv() => turn,
                signal = self.signals.end() => {
                    return Ok(Stopped { end: End::Signal(signal), is_between_ticks: true });
                }
            };
            let Some((tick, mut done)) = turn else {
                return Ok(Stopped { end: End::Status(0), is_between_ticks: true });
            };
            let ended = self.work(tick, done.closed()).await?;
            let is_interrupted = ended.is_last && ended.end != End::Status(0);
            if !is_interrupted && !ended.is_lost {
                // An error means that the lease has been lost since.
                let _ = done.send(ended.end);
            }
            if ended.is_last {
                return Ok(Stopped { end: ended.end, is_between_ticks: !is_interrupted });
            }
        }
    }

    async fn work(&mut self, tick: Tick, lost: impl Future<Output = ()>) -> Result<Ended, Failure> {
        let name = &self.once.name;
        let due = humantime::format_rfc3339(tick.due).to_string();
        let environment = vec![
            ("LEASEHOLD_NAME", name.clone()),
            ("LEASEHOLD_TOKEN", tick.token.to_string()),
            ("LEASEHOLD_TICK", tick.number.to_string()),
            ("LEASEHOLD_TICK_DUE", due.clone()),
        ];
        let lost = async {
            lost.await;
            format!("the lease of the tick of `{name}` that was due at {due} was lost")
        };
        let mut watcher = Watcher::start()?;
        let ended = Job { job: &self.once.job, environment }.run(&mut watcher, self.signals, lost).await?;
        let status = ended.end.status();
        if status != 0 && !ended.is_lost && !self.once.now {
            say(&format!("the command for the tick that was due at {due} has ended with status {status}"));
        }
        Ok(ended)
    }
}
