//! Changing records: those that are uncontended by reading and then writing what nobody else has changed, a contended one in turns.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use uuid::Uuid;

use super::failure::is_declined;
use super::record::{Changed, Clock, Next, Read, Stored, Written};
use super::session::{Answer, Session, value};
use super::statement;
use super::watch::Watch;
use crate::backend::records::{self, Done, Failure, Phase, Schedule, failed};

type KeyBatch = records::KeyBatch<Written>;
type Outcome = records::Outcome<Written>;

/// Without turns: the longest pause before a contended record is read, and how often it is doubled.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_DOUBLINGS: u32 = 5;

/// One round of changes.
pub(super) struct Exchange<'a> {
    pub(super) session: &'a mut Session,
    /// Notified of what is read and written.
    pub(super) watch: &'a Watch,
    /// The changes that are requested in the meantime.
    pub(super) schedule: Option<&'a Schedule<Written>>,
}

impl Exchange<'_> {
    /// Writes the records as they are remembered in one exchange, if all are. Those that another client has changed, or that are not
    /// remembered, are read in one exchange and written in another one.
    pub(super) async fn change_uncontended(&mut self, batches: Vec<KeyBatch>) -> Outcome {
        if batches.iter().any(|batch| batch.written.is_none()) {
            return self.read_and_write(batches).await;
        }
        let client = self.watch.client();
        let (mut outcome, mut changed, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for mut batch in batches {
            match batch.written.take().map(|written| written.read().change(&batch, client)) {
                Some(Ok(Next::Write(record))) => changed.push((batch, record)),
                // That nothing changes, or is wrong, is true only of what is stored now.
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
        let (clock, mut stored) = match read(self.session, &batches).await {
            Ok(read) => read,
            Err(failure) => return failed(batches, failure, Phase::Reading),
        };
        let client = self.watch.client();
        let (mut outcome, mut changed) = (Vec::new(), Vec::new());
        for mut batch in batches {
            let is_for_later = self.add_later(&mut batch);
            let read = Read::at(clock, stored.remove(batch.key.as_bytes()), is_for_later);
            match read.change(&batch, client) {
                Ok(Next::Write(record)) => changed.push((batch, record)),
                // "No change" and errors must be based on a record that was read after the request.
                Ok(Next::Keep(..)) | Err(_) if is_for_later => outcome.push((batch, Done::Retry)),
                Ok(Next::Keep(version, view)) => {
                    self.watch.note(&batch.key, version, view);
                    outcome.push((batch, Done::Finished));
                }
                Err(error) => outcome.push((batch, Done::Failed { error, unsure: false })),
            }
        }
        if changed.is_empty() {
            return (outcome, None);
        }
        let (written, failure) = self.write(changed).await;
        outcome.extend(written);
        (outcome, failure)
    }

    /// Writes records that have been changed. A single one is a transaction by itself.
    async fn write(&mut self, changed: Vec<(KeyBatch, Changed)>) -> Outcome {
        let each = changed.iter().map(|(batch, record)| statement::write(&batch.key, record));
        let mut statements: Vec<_> = each.collect();
        let are_several = changed.len() > 1;
        if are_several {
            let locked = statement::lock_without_waiting(changed.iter().map(|(batch, _)| &*batch.key));
            statements.splice(0..0, ["BEGIN".to_owned(), locked]);
            statements.push("COMMIT".to_owned());
        }
        let asked = Instant::now();
        match self.session.run_in_time(&statements).await {
            Ok(answers) => {
                let answers = answers.iter().skip(if are_several { 2 } else { 0 });
                let done = changed.into_iter().zip(answers);
                let done = done.map(|((batch, record), answer)| self.finished(batch, record, answer, asked));
                (done.collect(), None)
            }
            Err(failure) => {
                let failure = if are_several { roll_back(self.session, failure).await } else { failure };
                failed(changed.into_iter().map(|(batch, _)| batch).collect(), failure, Phase::Writing)
            }
        }
    }

    /// What a statement that was to write a record has done.
    fn finished(
        &self,
        mut batch: KeyBatch,
        record: Changed,
        answer: &Answer,
        asked: Instant,
    ) -> (KeyBatch, Done) {
        if answer.changed == 0 {
            return (batch, Done::Conflict);
        }
        batch.written = Written::of(answer, record.doc, asked);
        let version = batch.written.as_ref().map(|written| written.version);
        self.watch.note(&batch.key, version, record.view);
        (batch, Done::Finished)
    }

    /// Waits for its turn and reads the record in one exchange, and writes it in another. Other clients may still write in between, if
    /// they do not know that the record is contended, or have waited for too long. If there are no named locks, it is done without turns.
    pub(super) async fn change_contended(&mut self, mut batch: KeyBatch) -> Outcome {
        if !self.watch.may_use_locks() {
            return self.change_without_turns(batch).await;
        }
        let (clock, stored) = match self.read_in_turn(&batch).await {
            Ok(Some(read)) => read,
            Ok(None) => return self.change_without_turns(batch).await,
            Err(failure) => {
                return end_turn(self.session, failed(vec![batch], failure, Phase::Reading)).await;
            }
        };
        // It may have waited for long.
        let is_for_later = self.add_later(&mut batch);
        let read = Read::at(clock, stored, is_for_later);
        let done = match read.change(&batch, self.watch.client()) {
            Ok(Next::Write(record)) => return self.write_in_turn(batch, record).await,
            // That nothing changes, or is wrong, has to be true after it was asked for.
            Ok(Next::Keep(..)) | Err(_) if is_for_later => Done::Retry,
            Ok(Next::Keep(version, view)) => {
                self.watch.note(&batch.key, version, view);
                Done::Finished
            }
            Err(error) => Done::Failed { error, unsure: false },
        };
        end_turn(self.session, (vec![(batch, done)], None)).await
    }

    /// `None` if the server does not take part in turns, as those of some clusters.
    async fn read_in_turn(&mut self, batch: &KeyBatch) -> Result<Option<(Clock, Option<Stored>)>, Failure> {
        let asked = Instant::now();
        let (answers, failure) = self.session.run_until_failure(&statement::read_in_turn(&batch.key)).await;
        if let Some(failure) = failure {
            // The first two statements are about the turn.
            if answers.len() < 2 && is_declined(&failure) {
                self.watch.give_up_locks(&failure);
                self.session.run_in_time(&[statement::idle_again()]).await?;
                return Ok(None);
            }
            return Err(failure);
        }
        let [_, turn, record, clock] = &answers[..] else {
            return Err(Failure::unavailable("an answer is missing"));
        };
        let turn = turn.rows.first().map(|row| value::<Option<i64>>(row, 0)).transpose()?;
        if turn.flatten().is_none() {
            self.watch.give_up_locks(&Failure::unavailable("`GET_LOCK` returns NULL"));
        }
        Ok(Some((Clock::of(clock, asked)?, record.rows.first().map(Stored::of).transpose()?)))
    }

    /// Like an uncontended record. The more often another client was faster, the longer is the pause before the next attempt.
    async fn change_without_turns(&mut self, batch: KeyBatch) -> Outcome {
        let longest = FIRST_PAUSE * (1 << batch.tries.min(MAX_DOUBLINGS));
        sleep(longest * (Uuid::new_v4().as_fields().0 >> 16) / (1 << 16)).await;
        self.read_and_write(vec![batch]).await
    }

    async fn write_in_turn(&mut self, batch: KeyBatch, record: Changed) -> Outcome {
        let [release, idle] = statement::end_turn(&batch.key);
        let statements = [statement::write(&batch.key, &record), release, idle];
        let asked = Instant::now();
        let (answers, failure) = self.session.run_until_failure(&statements).await;
        match (answers.first(), failure) {
            // A session that may still have the lock is closed.
            (Some(answer), failure) => {
                let failure = failure.map(|failure| Failure { is_broken: true, ..failure });
                (vec![self.finished(batch, record, answer, asked)], failure)
            }
            (None, failure) => {
                let failure = failure.unwrap_or_else(|| Failure::unavailable("an answer is missing"));
                end_turn(self.session, failed(vec![batch], failure, Phase::Writing)).await
            }
        }
    }

    /// Adds changes of the same key that were requested since. Returns whether there were any. Called once per round, because a batch
    /// that keeps growing would never be executed.
    fn add_later(&self, batch: &mut KeyBatch) -> bool {
        batch.tries == 0 && self.schedule.is_some_and(|schedule| schedule.add_later(batch))
    }
}

/// The records that there are, by their keys, and then the time.
async fn read(
    session: &mut Session,
    batches: &[KeyBatch],
) -> Result<(Clock, HashMap<Vec<u8>, Stored>), Failure> {
    let statements = statement::read(batches.iter().map(|batch| &*batch.key));
    let asked = Instant::now();
    let answers = session.run_in_time(&statements).await?;
    let [records, clock] = &answers[..] else { return Err(Failure::unavailable("an answer is missing")) };
    let records = records.rows.iter().map(|row| Stored::of(row).map(|stored| (stored.key.clone(), stored)));
    Ok((Clock::of(clock, asked)?, records.collect::<Result<_, _>>()?))
}

/// Ends the turn, unless the session has ended. The result of the batch is known by then.
async fn end_turn(session: &mut Session, (batches, failure): Outcome) -> Outcome {
    let Some((batch, _)) =
        batches.first().filter(|_| failure.as_ref().is_none_or(|failure| !failure.is_broken))
    else {
        return (batches, failure);
    };
    let ended = session.run_in_time(&statement::end_turn(&batch.key)).await;
    // A session that may still have the lock is closed.
    let broken = ended.err().map(|ended| Failure { is_broken: true, ..failure.clone().unwrap_or(ended) });
    (batches, broken.or(failure))
}

/// Ends the transaction in which something failed, unless the session has ended with it.
async fn roll_back(session: &mut Session, failure: Failure) -> Failure {
    if failure.is_broken {
        return failure;
    }
    match session.run_in_time(&["ROLLBACK".to_owned()]).await {
        Ok(_) => failure,
        Err(_) => Failure { is_broken: true, ..failure },
    }
}
