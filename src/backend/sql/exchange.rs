//! Changing records: uncontended ones by reading them and writing those that no other client has changed, a contended
//! one in its turn.

use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use super::record::{Changed, Next, Read, Written};
use super::server::{KeyBatch, Server, Session, Wrote};
use super::sweep;
use crate::backend::BackendError;
use crate::backend::records::{self, Connection, Done, Failure, Phase, Round, Schedule, failed};

type Outcome = records::Outcome<Written>;

/// Without turns: the longest pause before a contended record is read, and how often it is doubled.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_DOUBLINGS: u32 = 5;

impl<S: Session> Connection for S {
    type Settings = S::Server;
    type Written = Written;

    const SWEEP_INTERVAL: Duration = sweep::INTERVAL;
    const CONTENDED: Duration = S::CONTENDED;

    async fn open(server: &S::Server) -> Result<Self, Failure> {
        server.open().await
    }

    fn is_closed(&self) -> bool {
        Session::is_closed(self)
    }

    async fn carry_out(&mut self, round: Round<Written>, schedule: &Schedule<Written>) -> Outcome {
        // The outcome of a round that begins with a write would be unknown if the connection were lost.
        let probed = if writes_first(&round) { self.probe().await } else { Ok(()) };
        let mut exchange = Exchange { session: self, schedule };
        let outcome = match (probed, round) {
            (Err(failure), round) => failed(round.into_batches(), failure, Phase::Reading),
            (Ok(()), Round::Uncontended(batches)) => exchange.change_uncontended(batches).await,
            (Ok(()), Round::Contended(batch)) => exchange.change_contended(batch).await,
        };
        if outcome.1.as_ref().is_some_and(|failure| failure.is_broken) {
            self.has_broken();
        }
        outcome
    }

    async fn sweep(&mut self) -> Result<(), Failure> {
        sweep::sweep(self).await
    }
}

fn writes_first(round: &Round<Written>) -> bool {
    matches!(round, Round::Uncontended(batches) if batches.iter().all(|batch| batch.written.is_some()))
}

/// One round of changes.
struct Exchange<'a, S> {
    session: &'a mut S,
    /// The changes that are requested in the meantime.
    schedule: &'a Schedule<Written>,
}

impl<S: Session> Exchange<'_, S> {
    /// Writes all records in one exchange, based on their cached versions, if all are cached. Records that another
    /// client has changed, or that are not cached, are read in one exchange and written in another.
    async fn change_uncontended(&mut self, batches: Vec<KeyBatch>) -> Outcome {
        if batches.iter().any(|batch| batch.written.is_none()) {
            return self.read_and_write(batches).await;
        }
        let (mut outcome, mut changed, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for mut batch in batches {
            match batch.written.take().map(|written| self.run(&batch, written.read())) {
                Some(Ok(Next::Write(record))) => changed.push((batch, record)),
                // "No change" and errors must not be answered from a cached record.
                Some(Ok(Next::Keep(..)) | Err(_)) | None => left.push(batch),
            }
        }
        let mut failure = None;
        if !changed.is_empty() {
            let (written, failed) = self.write(changed).await;
            for (batch, done) in written {
                match done {
                    Done::Conflict => left.push(batch),
                    done => outcome.push((batch, done)),
                }
            }
            failure = failed;
        }
        if failure.is_some() || left.is_empty() {
            outcome.extend(left.into_iter().map(|batch| (batch, Done::Retry)));
            return (outcome, failure);
        }
        let (read, failure) = self.read_and_write(left).await;
        outcome.extend(read);
        (outcome, failure)
    }

    async fn read_and_write(&mut self, batches: Vec<KeyBatch>) -> Outcome {
        let read = match self.session.read(&batches).await {
            Ok(read) => read,
            Err(failure) => return failed(batches, failure, Phase::Reading),
        };
        let (mut outcome, mut changed) = (Vec::new(), Vec::new());
        for (mut batch, read) in batches.into_iter().zip(read) {
            match self.change(&mut batch, read) {
                Ok(record) => changed.push((batch, record)),
                Err(done) => outcome.push((batch, done)),
            }
        }
        if changed.is_empty() {
            return (outcome, None);
        }
        let (written, failure) = self.write(changed).await;
        outcome.extend(written);
        (outcome, failure)
    }

    /// Changes a record as it was read. What is to be written, or what becomes of the batch if nothing is.
    fn change(&self, batch: &mut KeyBatch, read: Read) -> Result<Changed<S::Effects>, Done> {
        let is_for_later = self.add_later(batch);
        let read = if is_for_later { read.for_later_request() } else { read };
        match self.run(batch, read) {
            Ok(Next::Write(record)) => Ok(record),
            // "No change" and errors must be based on a record that was read after the request.
            Ok(Next::Keep(..)) | Err(_) if is_for_later => Err(Done::Retry),
            Ok(Next::Keep(version, effects)) => {
                self.session.note(&batch.key, version, effects);
                Err(Done::Finished)
            }
            Err(error) => Err(Done::Failed { error, unsure: false }),
        }
    }

    fn run(&self, batch: &KeyBatch, read: Read) -> Result<Next<S::Effects>, BackendError> {
        let must_be_written = |effects: &S::Effects| batch.must_write || S::must_be_told(effects);
        read.change(|ledger, stamp| self.session.run(batch, ledger, stamp), must_be_written)
    }

    /// Adds changes of the same key that were requested since. Returns whether there were any. Called once per round,
    /// because a batch that keeps growing would never be executed.
    fn add_later(&self, batch: &mut KeyBatch) -> bool {
        S::JOIN_LATE && batch.tries == 0 && self.schedule.add_later(batch)
    }

    /// Writes records that have been changed.
    async fn write(&mut self, changed: Vec<(KeyBatch, Changed<S::Effects>)>) -> Outcome {
        match self.session.write(&changed).await {
            Ok(wrote) => {
                let each = changed.into_iter().zip(wrote);
                let each = each.map(|((batch, record), wrote)| self.finished(batch, record, wrote));
                (each.collect(), None)
            }
            Err(failure) => {
                failed(changed.into_iter().map(|(batch, _)| batch).collect(), failure, Phase::Writing)
            }
        }
    }

    fn finished(&self, mut batch: KeyBatch, record: Changed<S::Effects>, wrote: Wrote) -> (KeyBatch, Done) {
        let Wrote::Stored(written) = wrote else { return (batch, Done::Conflict) };
        batch.written = written.map(|written| written.of(record.doc));
        let version = batch.written.as_ref().map(|written| written.version);
        self.session.note(&batch.key, version, record.effects);
        (batch, Done::Finished)
    }

    /// Waits for its turn and reads the record in one exchange, and writes it in another, which ends the turn.
    async fn change_contended(&mut self, mut batch: KeyBatch) -> Outcome {
        let read = match self.session.begin_turn(&batch.key).await {
            Ok(Some(read)) => read,
            Ok(None) => return self.change_without_turns(batch).await,
            Err(failure) => return self.end_turn(failed(vec![batch], failure, Phase::Reading)).await,
        };
        // It may have waited for long.
        let record = match self.change(&mut batch, read) {
            Ok(record) => record,
            Err(done) => return self.end_turn((vec![(batch, done)], None)).await,
        };
        match self.session.write_in_turn(&batch.key, &record).await {
            // A session that may still have the turn is closed.
            Ok((wrote, failure)) => {
                let failure = failure.map(|failure| Failure { is_broken: true, ..failure });
                (vec![self.finished(batch, record, wrote)], failure)
            }
            Err(failure) => self.end_turn(failed(vec![batch], failure, Phase::Writing)).await,
        }
    }

    /// Like an uncontended record. The more often another client was faster, the longer is the pause before the next
    /// attempt.
    async fn change_without_turns(&mut self, batch: KeyBatch) -> Outcome {
        let longest = FIRST_PAUSE * (1 << batch.tries.min(MAX_DOUBLINGS));
        sleep(longest * (Uuid::new_v4().as_fields().0 >> 16) / (1 << 16)).await;
        self.read_and_write(vec![batch]).await
    }

    /// Ends the turn, unless the session has ended. The result of the batch is known by then.
    async fn end_turn(&mut self, (batches, failure): Outcome) -> Outcome {
        let has_ended = failure.as_ref().is_some_and(|failure| failure.is_broken);
        let Some((batch, _)) = batches.first().filter(|_| !has_ended) else { return (batches, failure) };
        let ended = self.session.end_turn(&batch.key).await;
        // A session that may still have the turn is closed.
        let broken = ended.err().map(|ended| Failure { is_broken: true, ..failure.clone().unwrap_or(ended) });
        (batches, broken.or(failure))
    }
}
