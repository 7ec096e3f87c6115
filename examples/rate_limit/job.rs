//! What each process does: its callers take a permit for every call.

use std::net::SocketAddr;

use clap::Parser;
use futures::future::try_join_all;
use leasehold::{Client, CountingSemaphore};

use crate::failure::Failure;
use crate::loopback::Connection;
use crate::process;
use crate::service::DONE;

/// The job of one process; its command line.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Job {
    /// Names the semaphore, so that runs at the same time do not meet.
    #[arg(long)]
    pub(crate) run: String,
    #[arg(long)]
    pub(crate) service: SocketAddr,
    #[arg(long)]
    pub(crate) callers: u32,
    #[arg(long)]
    pub(crate) calls: u32,
    /// Without it, the number of concurrent calls is unlimited.
    #[arg(long)]
    pub(crate) limit: Option<u32>,
}

impl Job {
    /// The same as a command line.
    pub(crate) fn args(&self) -> Vec<String> {
        let Self { run, service, callers, calls, limit } = self;
        let mut args = vec![format!("--run={run}"), format!("--service={service}")];
        args.extend([format!("--callers={callers}"), format!("--calls={calls}")]);
        args.extend(limit.map(|limit| format!("--limit={limit}")));
        args
    }

    /// Does the job in this process, which was started for it.
    pub(crate) async fn work_at(self, url: &str) -> Result<(), Failure> {
        process::end_with_parent();
        self.work(Client::connect(url).await?).await
    }

    pub(crate) async fn work(self, client: Client) -> Result<(), Failure> {
        let name = format!("rate_limit:{}", self.run);
        let semaphore = self.limit.map(|limit| client.counting_semaphore(&name, limit)).transpose()?;
        try_join_all((0..self.callers).map(|_| self.make_calls(semaphore.as_ref()))).await?;
        Ok(client.shutdown().await?)
    }

    /// One caller.
    async fn make_calls(&self, semaphore: Option<&CountingSemaphore>) -> Result<(), Failure> {
        let mut service = Connection::open(self.service).await?;
        for _ in 0..self.calls {
            let Some(semaphore) = semaphore else {
                call(&mut service).await?;
                continue;
            };
            let permit = semaphore.acquire().await?;
            // Without its lease this call would be one too many: then `protect` ends it.
            permit.protect(call(&mut service)).await??;
            // Dropping the permit would work too, but would not report whether it had been lost.
            permit.release().await?;
        }
        Ok(())
    }
}

async fn call(service: &mut Connection) -> Result<(), Failure> {
    let answer = service.ask("call").await?;
    if answer == DONE { Ok(()) } else { Err(Failure::Protocol(answer)) }
}
