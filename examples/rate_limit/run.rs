//! One run: the service, the processes that call it, and what it saw.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::Args;
use crate::failure::Failure;
use crate::job::Job;
use crate::loopback::Service;
use crate::process::{self, Process};
use crate::service::SlowService;
use crate::store::Store;

/// What the service saw.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) calls: u64,
    /// The most calls that were under way at once.
    pub(crate) most: u32,
    /// How many were under way on average.
    pub(crate) average: f64,
    /// Calls that arrived when the service was already handling its maximum.
    pub(crate) beyond: u64,
    /// From the first call to the end of the last one.
    pub(crate) elapsed: Duration,
}

/// Makes all calls, with permits or without a limit.
pub(crate) async fn go(args: &Args, permits: bool) -> Result<Outcome, Failure> {
    let bar = progress_bar(args, permits);
    let slow = Arc::new(SlowService::new(args.limit, bar.clone()));
    let service = Service::start(Arc::clone(&slow)).await?;
    let store = Store::at(&args.url);
    let job = Job {
        run: Uuid::new_v4().to_string(),
        service: service.address(),
        callers: args.callers,
        calls: args.calls,
        limit: permits.then_some(args.limit),
    };

    let mut workers = JoinSet::new();
    (0..args.processes).for_each(|_| drop(workers.spawn(work(store.clone(), job.clone()))));
    // The first failure returns at once, which ends the others: the set is dropped.
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    bar.finish_and_clear();

    let count = *slow.count();
    let elapsed = count.elapsed();
    let average = count.busy.as_secs_f64() / elapsed.as_secs_f64();
    Ok(Outcome { calls: count.calls, most: count.most, average, beyond: count.beyond, elapsed })
}

/// A worker: a process where the store is a server, a task otherwise.
async fn work(store: Store, job: Job) -> Result<(), Failure> {
    let Store::Server(url) = &store else { return job.work(store.client().await?).await };
    let mut process = Process::start(process::command(url)?.args(job.args()))?;
    match process.ended().await? {
        status if status.success() => Ok(()),
        status => Err(Failure::Ended(status)),
    }
}

/// Draws on a terminal only.
fn progress_bar(args: &Args, permits: bool) -> ProgressBar {
    let Args { processes, callers, calls, .. } = *args;
    let bar = ProgressBar::new(u64::from(processes) * u64::from(callers) * u64::from(calls));
    let style = ProgressStyle::with_template("{msg:12} {bar:50} {pos}/{len} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(if permits { "with permits" } else { "unlimited" });
    bar
}
