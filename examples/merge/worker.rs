//! A worker: reads the record, adds its part, writes it back, round after round.

use std::future;
use std::ops::Range;
use std::time::{Duration, Instant};

use leasehold::{DistMutex, Error, FencingToken};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use crate::event::Event;
use crate::failure::Failure;
use crate::machine;
use crate::record::Record;
use crate::storage::Storage;

#[derive(Debug)]
pub(crate) struct Worker {
    /// Which of the sources this is.
    pub(crate) source: u32,
    pub(crate) rounds: Range<u32>,
    /// Stall in the last round, between read and write, to be killed there.
    pub(crate) stall: bool,
    pub(crate) storage: Storage,
    /// Without a lock, workers wipe out each other's updates.
    pub(crate) mutex: Option<DistMutex>,
    pub(crate) events: UnboundedSender<Event>,
}

impl Worker {
    pub(crate) async fn run(self) -> Result<(), Failure> {
        for round in self.rounds.clone() {
            match &self.mutex {
                None => self.merge(round, None).await?,
                // The lock can be lost on the way, to a pause or an outage. Then the round is done again.
                Some(mutex) => while !self.merge_locked(round, mutex).await? {},
            }
            self.report(Event::Made);
        }
        Ok(())
    }

    /// Returns whether the update was written.
    async fn merge_locked(&self, round: u32, mutex: &DistMutex) -> Result<bool, Failure> {
        let asked = Instant::now();
        let guard = mutex.lock().await?;
        let token = guard.token();
        self.report(Event::Locked { token, waited: asked.elapsed() });
        // `protect` ends the work at its next await if the lease is lost. If the process does not even run at
        // that moment, the token tells the storage.
        let merged = guard.protect(self.merge(round, Some(token))).await;
        match merged.map_err(Failure::from).and_then(|written| written) {
            Ok(()) => {}
            Err(failure) if failure.lease_is_gone() => return Ok(false),
            Err(failure) => return Err(failure),
        }
        match guard.release().await {
            // Lost, but only after the write: had another worker read before it, the storage would have refused it.
            Ok(()) | Err(Error::Lost { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The critical section.
    async fn merge(&self, round: u32, token: Option<FencingToken>) -> Result<(), Failure> {
        let mut record: Record = self.storage.read(token).await?.parse()?;
        let (part, text) = machine::part(self.source + round).await;
        // Files of this machine are read at once; real sources take their time.
        sleep(Duration::from_millis(1 + u64::from(self.source + round) % 3)).await;
        record.add(self.source, round, part, &text);
        if let Some(token) = token.filter(|_| self.stall && round + 1 == self.rounds.end) {
            self.report(Event::Stalled { token });
            future::pending::<()>().await;
        }
        self.storage.write(token, record.to_string()).await
    }

    fn report(&self, event: Event) {
        // The receiver is gone only if the run has failed, and then this worker is about to be stopped too.
        let _ = self.events.send(event);
    }
}
