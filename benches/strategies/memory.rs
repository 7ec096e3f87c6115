//! What a waiter costs in memory: a separate process in which many tasks wait for one lock.

use std::fs;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;

use clap::Args;
use futures::poll;
use leasehold::Client;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::common::workers::{self, Workers};
use crate::common::{Result, url};

/// Growth of resident memory, in bytes per task.
pub(crate) struct Memory {
    /// Tasks that wait for nothing.
    pub(crate) empty: u64,
    /// Tasks that wait for a lock.
    pub(crate) waiting: u64,
}

#[derive(Args)]
pub(crate) struct MemoryJob {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    waiters: usize,
}

/// Has a fresh process measure it.
pub(crate) async fn measure(port: u16, waiters: usize) -> Result<Memory> {
    let (port, waiters) = (port.to_string(), waiters.to_string());
    let args = ["memory", "--port", &port, "--waiters", &waiters].map(str::to_owned).to_vec();
    let mut workers = Workers::start([args]).await?;
    workers.go().await?;
    let report = String::from_utf8(workers.reports().await?.concat())?;
    let (empty, waiting) = report.split_once(' ').ok_or("a report without two numbers")?;
    Ok(Memory { empty: empty.parse()?, waiting: waiting.parse()? })
}

impl MemoryJob {
    /// The worker.
    pub(crate) async fn run(self) -> Result<()> {
        let client = Client::connect(&url(self.port)).await?;
        let mutex = client.mutex(&format!("bench:memory:{}", Uuid::new_v4()))?;
        let holder = mutex.lock().await?;
        workers::ready().await?;
        let count = self.waiters as u64;
        let (start, mut idle) = (resident()?, JoinSet::new());
        for _ in 0..self.waiters {
            idle.spawn(pending::<()>());
        }
        let empty = resident()?.saturating_sub(start) / count;

        let (start, mut waiters) = (resident()?, JoinSet::new());
        let asked = Arc::new(Semaphore::new(0));
        for _ in 0..self.waiters {
            let (mutex, asked) = (mutex.clone(), Arc::clone(&asked));
            waiters.spawn(async move {
                let mut lock = pin!(mutex.lock());
                let early = poll!(lock.as_mut()).is_ready();
                asked.add_permits(1);
                drop(asked);
                if early { Ok(()) } else { lock.await.map(drop) }
            });
        }
        asked.acquire_many(u32::try_from(count)?).await?.forget();
        // Requests leave in the order in which they came in: when this is answered, so are those of all who wait.
        if mutex.try_lock().await?.is_some() {
            return Err("the lock that all wait for was free".into());
        }
        let waiting = resident()?.saturating_sub(start) / count;
        if let Some(ended) = waiters.try_join_next() {
            return Err(format!("a waiter does not wait: {ended:?}").into());
        }
        drop(holder);
        workers::report(format!("{empty} {waiting}").as_bytes()).await
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes = line.split_whitespace().nth(1).ok_or("no number")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}
