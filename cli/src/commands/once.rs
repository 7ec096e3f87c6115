//! `once`: a command once per tick of a timetable, whoever runs it.

use std::future::pending;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use futures::future::{FutureExt, join};
use leasehold::{Client, Error, MAX_TTL, OnDeadRunner, Once, OnceOptions, Tick, Ticks};
use tokio::sync::{mpsc, oneshot};

use super::elect::shut_down;
use super::run::START_AGAIN;
use crate::args::{self, Args};
use crate::exit::{self, Failure};
use crate::job::{Ended, Job, say};
use crate::signals::Signals;
use crate::store;
use crate::watcher::Watcher;

/// How long the store remembers at least which ticks were run: clocks may differ.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// How long the mark of a last tick may take.
const CLOSING: Duration = Duration::from_secs(5);

/// A tick that is this process's to run, and where to tell the status of its command. Its lease is lost when nobody
/// wants to know that any more.
type Turn = (Tick, oneshot::Sender<u8>);

pub(crate) async fn run(args: &Args, once: &args::Once) -> Result<ExitCode, Failure> {
    let builder = store::builder(args)?;
    let mut signals = Signals::that_end()?;
    let client = tokio::select! {
        client = builder.connect() => client?,
        signal = signals.end() => return Ok(exit::signal(signal).into()),
    };
    let status = carry_out(&client, once, &mut signals).await;
    shut_down(&client).await;
    Ok(status?.into())
}

async fn carry_out(client: &Client, once: &args::Once, signals: &mut Signals) -> Result<u8, Failure> {
    let (turns, taken) = mpsc::channel(1);
    let schedule = &schedule(client, once)?;
    let scheduled = async move {
        if once.now {
            return Ok(schedule.try_run(|tick| have_run(&turns, tick)).await?.unwrap_or(0));
        }
        let each = |tick| have_run(&turns, tick).map(|_| ());
        schedule.run(each).await.map(|()| 0)
    };
    let (mut scheduled, mut runner) = (pin!(scheduled), pin!(Runner { once, taken, signals }.run()));
    tokio::select! {
        ran = &mut scheduled => {
            // A command whose lease was lost may not have ended yet.
            runner.await?;
            ran.map_err(failed)
        }
        stopped = &mut runner => {
            let stopped = stopped?;
            if stopped.is_between_ticks {
                // The tick that was run last is marked.
                let (closed, _) = join(client.close(CLOSING), scheduled).await;
                closed?;
            }
            Ok(stopped.status)
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
    // A tick is due until the next one.
    let remembered = once.tick.saturating_mul(2).clamp(REMEMBERED, MAX_TTL);
    let mut options = OnceOptions::new().at_least_for(remembered);
    if once.at_most_once {
        options = options.on_dead_runner(OnDeadRunner::LeaveOut);
    }
    let runs = client.mutex_options();
    let runs = once.ttl.ttl.map_or(runs.clone(), |ttl| runs.ttl(ttl));
    Ok(client.clone().with_mutex_options(runs).once_with(&once.name, ticks, options)?)
}

/// What the schedule does with a tick: it has the runner run the command, and waits. If the lease is lost, the schedule
/// drops this future, and the runner notices. Never completes if the command was ended with this program: the tick is
/// not done then.
async fn have_run(turns: &mpsc::Sender<Turn>, tick: Tick) -> u8 {
    let (done, ended) = oneshot::channel();
    if turns.send((tick, done)).await.is_ok()
        && let Ok(status) = ended.await
    {
        return status;
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
    status: u8,
    is_between_ticks: bool,
}

impl Runner<'_> {
    /// Until this program is asked to end, or the schedule has ended.
    async fn run(mut self) -> Result<Stopped, Failure> {
        loop {
            let turn = tokio::select! {
                turn = self.taken.recv() => turn,
                signal = self.signals.end() => {
                    return Ok(Stopped { status: exit::signal(signal), is_between_ticks: true });
                }
            };
            let Some((tick, mut done)) = turn else {
                return Ok(Stopped { status: 0, is_between_ticks: true });
            };
            let ended = self.work(tick, done.closed()).await?;
            let is_interrupted = ended.is_last && ended.status != 0;
            if !is_interrupted && !ended.is_lost {
                // An error means that the lease has been lost since.
                let _ = done.send(ended.status);
            }
            if ended.is_last {
                return Ok(Stopped { status: ended.status, is_between_ticks: !is_interrupted });
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
        if ended.status != 0 && !ended.is_lost && !self.once.now {
            say(&format!(
                "the command for the tick that was due at {due} has ended with status {}",
                ended.status
            ));
        }
        Ok(ended)
    }
}
