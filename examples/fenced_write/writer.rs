//! A writer: adds itself to a record that is read whole and written back whole.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Parser;
use leasehold::{Client, Error, Guard, MutexOptions};

use crate::failure::Failure;
use crate::process;
use crate::storage::Access;

/// The job of one writer; its command line.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Writer {
    /// Names the lock, so that runs at the same time do not meet.
    #[arg(long)]
    pub(crate) run: String,
    #[arg(long)]
    pub(crate) number: u32,
    #[arg(long)]
    pub(crate) storage: SocketAddr,
    #[arg(long)]
    pub(crate) ttl: u64,
}

impl Writer {
    /// The same as a command line.
    pub(crate) fn args(&self) -> [String; 4] {
        let Self { run, number, storage, ttl } = self;
        [
            format!("--run={run}"),
            format!("--number={number}"),
            format!("--storage={storage}"),
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
        let mutex = client.mutex_with(&format!("fenced_write:{}", self.run), options)?;
        loop {
            let guard = mutex.lock().await?;
            let written = guard.protect(self.update(&guard)).await;
            match written.map_err(Failure::from).and_then(|written| written) {
                Ok(()) => break,
                // The lock has passed to another writer: the work done under it must be repeated.
                Err(Failure::Lock(Error::Lost { reason, .. })) => {
                    self.access(&guard).await?.told(&format!("lease lost, {reason}")).await?;
                }
                Err(Failure::Stale(_)) => self.access(&guard).await?.told("a newer token was seen").await?,
                Err(failure) => return Err(failure),
            }
        }
        Ok(client.shutdown().await?) // waits until the lock is released
    }

    /// The critical section.
    async fn update(&self, guard: &Guard) -> Result<(), Failure> {
        let mut storage = self.access(guard).await?;
        let mut record = storage.read().await?;
        record.insert(self.number);
        if !guard.is_held() {
            return Ok(()); // then `protect` returns the loss
        }
        // That was the last check: `protect` makes one whenever this future waits, and it does not wait again before
        // the write is sent. From here on, only the storage can tell.
        self.hold_up(guard)?;
        storage.write(&record).await
    }

    async fn access(&self, guard: &Guard) -> Result<Access, Failure> {
        Access::open(self.storage, guard.token(), self.number).await
    }

    /// A pause that the writer cannot see: a page that must be read from disk, a machine that is moved, a debugger. In
    /// this example it is a call that blocks the thread until the story continues.
    fn hold_up(&self, guard: &Guard) -> io::Result<()> {
        let mut stream = TcpStream::connect(self.storage)?;
        writeln!(stream, "sure {} {}", guard.token(), self.number)?;
        BufReader::new(stream).read_line(&mut String::new()).map(drop)
    }
}
