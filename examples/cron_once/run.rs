//! One run: the record, the schedulers, and killing the leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Args;
use crate::failure::Failure;
use crate::loopback::Service;
use crate::process::{self, Process};
use crate::record::{Record, Tick, unix_millis};
use crate::scheduler::Scheduler;
use crate::store::Store;

/// How many periods before the first tick the schedulers are started.
const LEAD_TIME: u64 = 2;

/// What the record was told.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// By number, counted from 0.
    pub(crate) ticks: BTreeMap<u64, Tick>,
    /// The time from when the leader began the tick in which it was killed until another scheduler began it again.
    pub(crate) took_over: Option<Duration>,
}

pub(crate) async fn go(args: &Args) -> Result<Outcome, Failure> {
    let now = u64::try_from(unix_millis()).unwrap_or_default();
    let first = now / u64::from(args.period) + LEAD_TIME;
    let bar = progress_bar(args);
    let record = Arc::new(Record::new(first, first + args.fatal(), args.period, bar.clone()));
    let service = Service::start(Arc::clone(&record)).await?;
    let (store, run) = (Store::at(&args.url), Uuid::new_v4().to_string());

    let mut schedulers = JoinSet::new();
    for number in 0..args.schedulers {
        let scheduler = Scheduler {
            run: run.clone(),
            number,
            record: service.address(),
            period: args.period,
            end: first + u64::from(args.ticks),
            skew: skew_of(number, args),
            ttl: args.ttl,
        };
        schedulers.spawn(supervise(store.clone(), scheduler, record.doomed()));
    }
    // The first failure returns at once, which ends the others: the set is dropped.
    while let Some(ended) = schedulers.join_next().await {
        ended??;
    }
    bar.finish_and_clear();

    let ticks = record.ticks();
    let took_over = ticks.get(&args.fatal()).and_then(took_over);
    Ok(Outcome { ticks, took_over })
}

/// Runs a scheduler, as a process where the store is a server and as a task otherwise, until it ends or is doomed.
async fn supervise(
    store: Store,
    scheduler: Scheduler,
    mut doomed: watch::Receiver<Option<u32>>,
) -> Result<(), Failure> {
    let number = scheduler.number;
    let doom = doomed.wait_for(|doomed| *doomed == Some(number));
    let Store::Server(url) = &store else {
        let client = store.client().await?;
        return tokio::select! {
            ended = scheduler.work(client) => ended,
            Ok(_) = doom => Ok(()), // it is dropped at once
        };
    };
    let mut process = Process::start(process::command(url)?.args(scheduler.args()))?;
    tokio::select! {
        status = process.ended() => match status? {
            status if status.success() => return Ok(()),
            status => return Err(Failure::Ended(status)),
        },
        Ok(_) = doom => {}
    }
    Ok(process.child.kill().await?) // SIGKILL: it gets no chance to release anything
}

/// Clocks are off evenly, from as slow as allowed to as fast.
fn skew_of(number: u32, args: &Args) -> i64 {
    let (number, last, skew) = (i64::from(number), i64::from(args.schedulers) - 1, i64::from(args.skew));
    skew * (2 * number - last) / last
}

/// How much later the second one began the tick.
fn took_over(tick: &Tick) -> Option<Duration> {
    let [first, second, ..] = &tick.begun[..] else { return None };
    let later = u64::try_from(second.late - first.late).unwrap_or_default();
    (first.by != second.by).then_some(Duration::from_millis(later))
}

/// Draws on a terminal only.
fn progress_bar(args: &Args) -> ProgressBar {
    let bar = ProgressBar::new(u64::from(args.ticks));
    let style = ProgressStyle::with_template("ticks {bar:50} {pos}/{len} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
