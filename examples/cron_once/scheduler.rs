//! One of the schedulers: waits until it leads, and leads until everything is run or its lease is lost.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use leasehold::{Client, Error, FencingToken, MutexOptions};
use tokio::time::sleep;

use crate::failure::Failure;
use crate::process;
use crate::record::{Access, unix_millis};

/// The job of one scheduler; its command line.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Scheduler {
    /// Names the lock, so that runs at the same time do not meet.
    #[arg(long)]
    pub(crate) run: String,
    #[arg(long)]
    pub(crate) number: u32,
    #[arg(long)]
    pub(crate) record: SocketAddr,
    /// Tick n is due n periods after the beginning of 1970.
    #[arg(long)]
    pub(crate) period: u32,
    /// The tick after the last one.
    #[arg(long)]
    pub(crate) end: u64,
    /// By how much its clock is fast, in milliseconds.
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) skew: i64,
    #[arg(long)]
    pub(crate) ttl: u64,
}

impl Scheduler {
    /// The same as a command line.
    pub(crate) fn args(&self) -> [String; 7] {
        let Self { run, number, record, period, end, skew, ttl } = self;
        [
            format!("--run={run}"),
            format!("--number={number}"),
            format!("--record={record}"),
            format!("--period={period}"),
            format!("--end={end}"),
            format!("--skew={skew}"),
            format!("--ttl={ttl}"),
        ]
    }

    /// Works in this process, which was started for it.
    pub(crate) async fn work_at(self, url: &str) -> Result<(), Failure> {
        process::end_with_parent();
        self.work(Client::connect(url).await?).await
    }

    pub(crate) async fn work(self, client: Client) -> Result<(), Failure> {
        let options = MutexOptions::new().ttl(Duration::from_millis(self.ttl));
        let leadership = client.mutex_with(&format!("cron_once:{}", self.run), options)?;
        loop {
            let guard = leadership.lock().await?;
            let led = guard.protect(self.lead(guard.token())).await;
            match led.map_err(Failure::from).and_then(|led| led) {
                Ok(()) => break,
                // Another scheduler leads by now. The work begun here does not count: back into the queue.
                Err(Failure::Lock(Error::Lost { .. }) | Failure::Stale(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(client.shutdown().await?) // waits until the lock is released
    }

    /// Runs what is left to run.
    async fn lead(&self, token: FencingToken) -> Result<(), Failure> {
        let mut record = Access::open(self.record, token, self.number).await?;
        loop {
            // Asked each time: the record knows what has been run, this scheduler may have missed it.
            let tick = record.next().await?;
            if tick >= self.end {
                return Ok(());
            }
            self.wait_for(tick).await;
            record.begin(tick).await?;
            job().await;
            record.finish(tick).await?;
        }
    }

    /// Waits until a tick is due, by this scheduler's own clock.
    async fn wait_for(&self, tick: u64) {
        let (due, now) = (due(tick, self.period), unix_millis() + self.skew);
        sleep(Duration::from_millis(u64::try_from(due - now).unwrap_or(0))).await;
    }
}

/// When a tick is due, in milliseconds since the beginning of 1970.
pub(crate) fn due(tick: u64, period: u32) -> i64 {
    i64::try_from(tick * u64::from(period)).unwrap_or(i64::MAX)
}

/// Real jobs take their time.
async fn job() {
    sleep(Duration::from_millis(30)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_says_the_same_as_the_scheduler_it_was_made_from() {
        let record = SocketAddr::from(([127, 0, 0, 1], 7));
        let run = "a run".to_owned();
        let scheduler = Scheduler { run, number: 1, record, period: 400, end: 9, skew: -600, ttl: 1000 };
        let read =
            Scheduler::try_parse_from([vec!["cron_once".to_owned()], scheduler.args().to_vec()].concat());
        assert_eq!(read.expect("it was written here").args(), scheduler.args());
    }
}
