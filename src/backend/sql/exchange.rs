//! Changing records: uncontended ones by reading them and writing those that no other client has changed, a contended one in its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use super::Server;
use super::record::{Changed, Next, Read, Written};
use crate::backend::records::{self, Done, Failure, Phase, Schedule, failed};
use crate::backend::{Ledger, Stamp};

pub(in crate::backend) type KeyBatch<D> = records::KeyBatch<Written<D>>;
type Outcome<D> = records::Outcome<Written<D>>;

/// Without turns: the longest pause before a contended record is read, and how often it is doubled.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_DOUBLINGS: u32 = 5;

/// What became of a record that was to be written.
pub(in crate::backend) enum Wrote<D> {
    /// It was not: another client was first, or it was too late.
    Nothing,
    /// It was, and may be cached.
    Stored(Option<Written<D>>),
}

/// How records are read, changed and written.
pub(in crate::backend) trait Records: Server {
    /// What a change of a record means for clients.
    type Effects: Send + Sync;

    /// Whether changes that are requested while a record is read are carried out with it.
    const JOIN_LATE: bool;

    /// Runs the changes of a batch.
    fn run(&self, batch: &KeyBatch<Self>, ledger: &mut Ledger, stamp: Stamp) -> Self::Effects;

    /// Whether the record must be written even if it stays the same, because it is written together with messages.
    fn must_be_told(effects: &Self::Effects) -> bool;

    /// Notified of what is known of a record after a change: its version, if it is known, and what the change means.
    fn note(&self, key: &Arc<str>, version: Option<i64>, effects: Self::Effects);

    /// The records of these batches, in one exchange and in their order.
    fn read(
        &self,
        session: &mut Self::Session,
        batches: &[KeyBatch<Self>],
    ) -> impl Future<Output = Result<Vec<Read>, Failure>> + Send;

    /// Writes those of these records that no other client has changed or is about to, in one exchange.
    fn write(
        &self,
        session: &mut Self::Session,
        changed: &[(KeyBatch<Self>, Changed<Self::Effects>)],
    ) -> impl Future<Output = Result<Vec<Wrote<Self>>, Failure>> + Send;

    /// Waits until it is this client's turn to change a contended record, and reads it in the same exchange. `None` if the server does not
    /// take part in turns.
    fn begin_turn(
        &self,
        session: &mut Self::Session,
        batch: &KeyBatch<Self>,
    ) -> impl Future<Output = Result<Option<Read>, Failure>> + Send;

    /// Writes the record and ends the turn in one exchange. It may be written although the turn was not ended.
    fn write_in_turn(
        &self,
        session: &mut Self::Session,
        batch: &KeyBatch<Self>,
        record: &Changed<Self::Effects>,
    ) -> impl Future<Output = Result<(Wrote<Self>, Option<Failure>), Failure>> + Send;

    /// Ends the turn without a change, also if it was not begun.
    fn end_turn(
        &self,
        session: &mut Self::Session,
        key: &str,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// One round of changes.
pub(super) struct Exchange<'a, D: Records> {
    pub(super) server: &'a D,
    pub(super) session: &'a mut D::Session,
    /// The changes that are requested in the meantime.
    pub(super) schedule: Option<&'a Schedule<Written<D>>>,
}

impl<D: Records> Exchange<'_, D> {
    /// Writes all records in one exchange, based on their cached versions, if all are cached. Records that another client has changed, or
    /// that are not cached, are read in one exchange and written in another.
    pub(super) async fn change_uncontended(&mut self, batches: Vec<KeyBatch<D>>) -> Outcome<D> {
        if batches.iter().any(|batch| batch.written.is_none()) {
            return self.read_and_write(batches).await;
        }
        let (mut outcome, mut changed, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for mut batch in batches {
            match batch.written.take().map(|written| written.read().change(self.server, &batch)) {
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

    async fn read_and_write(&mut self, batches: Vec<KeyBatch<D>>) -> Outcome<D> {
        let read = match self.server.read(self.session, &batches).await {
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
    fn change(&self, batch: &mut KeyBatch<D>, read: Read) -> Result<Changed<D::Effects>, Done> {
        let is_for_later = self.add_later(batch);
        let read = if is_for_later { read.for_later_request() } else { read };
        match read.change(self.server, batch) {
            Ok(Next::Write(record)) => Ok(record),
            // "No change" and errors must be based on a record that was read after the request.
            Ok(Next::Keep(..)) | Err(_) if is_for_later => Err(Done::Retry),
            Ok(Next::Keep(version, effects)) => {
                self.server.note(&batch.key, version, effects);
                Err(Done::Finished)
            }
            Err(error) => Err(Done::Failed { error, unsure: false }),
        }
    }

    /// Adds changes of the same key that were requested since. Returns whether there were any. Called once per round, because a batch
    /// that keeps growing would never be executed.
    fn add_later(&self, batch: &mut KeyBatch<D>) -> bool {
        D::JOIN_LATE && batch.tries == 0 && self.schedule.is_some_and(|schedule| schedule.add_later(batch))
    }

    /// Writes records that have been changed.
    async fn write(&mut self, changed: Vec<(KeyBatch<D>, Changed<D::Effects>)>) -> Outcome<D> {
        match self.server.write(self.session, &changed).await {
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

    fn finished(
        &self,
        mut batch: KeyBatch<D>,
        record: Changed<D::Effects>,
        wrote: Wrote<D>,
    ) -> (KeyBatch<D>, Done) {
        let Wrote::Stored(written) = wrote else { return (batch, Done::Conflict) };
        batch.written = written.map(|written| written.of(record.doc));
        let version = batch.written.as_ref().map(|written| written.version);
        self.server.note(&batch.key, version, record.effects);
        (batch, Done::Finished)
    }

    /// Waits for its turn and reads the record in one exchange, and writes it in another, which ends the turn.
    pub(super) async fn change_contended(&mut self, mut batch: KeyBatch<D>) -> Outcome<D> {
        let read = match self.server.begin_turn(self.session, &batch).await {
            Ok(Some(read)) => read,
            Ok(None) => return self.change_without_turns(batch).await,
            Err(failure) => return self.end_turn(failed(vec![batch], failure, Phase::Reading)).await,
        };
        // It may have waited for long.
        let record = match self.change(&mut batch, read) {
            Ok(record) => record,
            Err(done) => return self.end_turn((vec![(batch, done)], None)).await,
        };
        match self.server.write_in_turn(self.session, &batch, &record).await {
            // A session that may still have the turn is closed.
            Ok((wrote, failure)) => {
                let failure = failure.map(|failure| Failure { is_broken: true, ..failure });
                (vec![self.finished(batch, record, wrote)], failure)
            }
            Err(failure) => self.end_turn(failed(vec![batch], failure, Phase::Writing)).await,
        }
    }

    /// Like an uncontended record. The more often another client was faster, the longer is the pause before the next attempt.
    async fn change_without_turns(&mut self, batch: KeyBatch<D>) -> Outcome<D> {
        let longest = FIRST_PAUSE * (1 << batch.tries.min(MAX_DOUBLINGS));
        sleep(longest * (Uuid::new_v4().as_fields().0 >> 16) / (1 << 16)).await;
        self.read_and_write(vec![batch]).await
    }

    /// Ends the turn, unless the session has ended. The result of the batch is known by then.
    async fn end_turn(&mut self, (batches, failure): Outcome<D>) -> Outcome<D> {
        let has_ended = failure.as_ref().is_some_and(|failure| failure.is_broken);
        let Some((batch, _)) = batches.first().filter(|_| !has_ended) else { return (batches, failure) };
        let ended = self.server.end_turn(self.session, &batch.key).await;
        // A session that may still have the turn is closed.
        let broken = ended.err().map(|ended| Failure { is_broken: true, ..failure.clone().unwrap_or(ended) });
        (batches, broken.or(failure))
    }
}
