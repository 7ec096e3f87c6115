//! Changing records: uncontended ones by reading them and writing those that no other client has changed, a contended one under its lock.

use std::collections::HashMap;
use std::time::Instant;

use futures::future::{join, join3};
use tokio_postgres::Row;

use super::record::{Changed, Read, Written};
use super::session::{Parameter, Session};
use super::statement::Sql;
use super::text::escape;
use crate::backend::records::{self, Done, Failure, Phase, failed};

type KeyBatch = records::KeyBatch<Written>;
type Outcome = records::Outcome<Written>;

/// Writes all records in one exchange, based on their cached versions, if all are cached. Records that another client has changed, or that
/// are not cached, are read in one exchange and written in another.
pub(super) async fn change_uncontended(session: &Session, batches: Vec<KeyBatch>) -> Outcome {
    if batches.iter().any(|batch| batch.written.is_none()) {
        return read_and_write(session, batches).await;
    }
    let (mut outcome, mut changed, mut left) = (Vec::new(), Vec::new(), Vec::new());
    for mut batch in batches {
        match batch.written.take().map(|written| written.read().change(&batch)) {
            Some(Ok(Some(record))) => changed.push((batch, record)),
            // "No change" and errors must not be answered from a cached record.
            Some(Ok(None) | Err(_)) | None => left.push(batch),
        }
    }
    let mut failure = None;
    if !changed.is_empty() {
        let (written, failed) = write(session, changed).await;
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
    let (read, failure) = read_and_write(session, left).await;
    outcome.extend(read);
    (outcome, failure)
}

async fn read_and_write(session: &Session, batches: Vec<KeyBatch>) -> Outcome {
    let rows = match session.within(read(session, &batches)).await {
        Ok(rows) => rows,
        Err(failure) => return failed(batches, failure, Phase::Reading),
    };
    let (mut outcome, mut changed) = (Vec::new(), Vec::new());
    for (batch, row) in batches.into_iter().zip(&rows) {
        match read_and_change(row, &batch) {
            Ok(Some(record)) => changed.push((batch, record)),
            Ok(None) => outcome.push((batch, Done::Finished)),
            Err(done) => outcome.push((batch, done)),
        }
    }
    if changed.is_empty() {
        return (outcome, None);
    }
    let (written, failure) = write(session, changed).await;
    outcome.extend(written);
    (outcome, failure)
}

/// Writes records that have been changed.
async fn write(session: &Session, changed: Vec<(KeyBatch, Changed)>) -> Outcome {
    let (batches, records): (Vec<_>, Vec<_>) = changed.into_iter().unzip();
    match write_all(session, &batches, &records).await {
        Ok(written) => {
            let done = |(mut batch, written): (KeyBatch, Option<Written>)| {
                let done = if written.is_some() { Done::Finished } else { Done::Conflict };
                batch.written = written;
                (batch, done)
            };
            (batches.into_iter().zip(written).map(done).collect(), None)
        }
        Err(failure) => failed(batches, failure, Phase::Writing),
    }
}

/// A row for each of the batches, in their order.
async fn read(session: &Session, batches: &[KeyBatch]) -> Result<Vec<Row>, Failure> {
    if let [batch] = batches {
        return session.rows(Sql::ReadOne, &[&escape(&batch.key)]).await;
    }
    let keys: Vec<_> = batches.iter().map(|batch| escape(&batch.key)).collect();
    session.rows(Sql::Read, &[&keys]).await
}

fn read_and_change(row: &Row, batch: &KeyBatch) -> Result<Option<Changed>, Done> {
    let read =
        Read::of(row).map_err(|failure| Done::Failed { error: failure.before_storing(), unsure: false })?;
    read.change(batch).map_err(|error| Done::Failed { error, unsure: false })
}

/// Each of the records as it was written, or `None` if it was not.
async fn write_all(
    session: &Session,
    batches: &[KeyBatch],
    records: &[Changed],
) -> Result<Vec<Option<Written>>, Failure> {
    if let ([batch], [record]) = (batches, records) {
        return Ok(vec![session.within(write_one(session, batch, record)).await?]);
    }
    let keys: Vec<_> = batches.iter().map(|batch| escape(&batch.key)).collect();
    let versions: Vec<_> = records.iter().map(|record| record.version).collect();
    let docs: Vec<_> = records.iter().map(|record| record.doc.as_str()).collect();
    let read_at = records.iter().map(|record| record.now).min();
    let until = records.iter().map(|record| record.until).min();
    let messages = || {
        keys.iter().zip(records).flat_map(|(key, record)| {
            let messages = record.channels.iter().zip(&record.messages);
            messages.map(move |(channel, message)| (key, channel, message))
        })
    };
    let of_keys: Vec<_> = messages().map(|(key, ..)| key.as_ref()).collect();
    let channels: Vec<_> = messages().map(|(_, channel, _)| channel).collect();
    let texts: Vec<_> = messages().map(|(.., message)| message).collect();
    let with: [Parameter<'_>; 8] = [&keys, &versions, &docs, &read_at, &of_keys, &channels, &texts, &until];
    let asked = Instant::now();
    let rows = session.within(session.rows(Sql::Write, &with)).await?;
    let mut written = HashMap::new();
    for row in &rows {
        written.insert(row.try_get::<_, &str>(0)?, row);
    }
    let each = keys.iter().zip(&docs);
    let each = each.map(|(key, doc)| written.get(key.as_ref()).map(|row| Written::of(row, 1, doc, asked)));
    each.map(Option::transpose).collect()
}

/// The record as it was written, or `None` if it was not.
async fn write_one(
    session: &Session,
    batch: &KeyBatch,
    record: &Changed,
) -> Result<Option<Written>, Failure> {
    let Changed { version, now, until, doc, channels, messages } = record;
    let (key, asked) = (escape(&batch.key), Instant::now());
    let rows = match version {
        // A record that did not exist has no waiters, so there are no events to send.
        None => session.rows(Sql::Insert, &[&key, doc, now]).await?,
        Some(version) if messages.is_empty() => {
            session.rows(Sql::Update, &[&key, version, doc, until]).await?
        }
        Some(version) => {
            session.rows(Sql::UpdateAndTell, &[&key, version, doc, until, channels, messages]).await?
        }
    };
    rows.first().map(|row| Written::of(row, 0, doc, asked)).transpose()
}

/// Locks the record and reads it in one exchange, and writes it in another one, which ends the transaction.
pub(super) async fn change_contended(session: &Session, batch: KeyBatch) -> Outcome {
    let read = match session.within(lock_and_read(session, &batch)).await {
        Ok(read) => read,
        Err(failure) => {
            let failure = roll_back(session, failure).await;
            return failed(vec![batch], failure, Phase::Reading);
        }
    };
    let (written, done) = match read.change(&batch) {
        Ok(Some(record)) => (session.within(write_and_commit(session, &batch, &record)).await, None),
        Ok(None) => (session.within(session.execute("ROLLBACK")).await.map(|()| true), Some(Done::Finished)),
        Err(error) => {
            let done = Done::Failed { error, unsure: false };
            (session.within(session.execute("ROLLBACK")).await.map(|()| true), Some(done))
        }
    };
    match (written, done) {
        // An answer that needed no write holds however the transaction ends.
        (written, Some(done)) => (vec![(batch, done)], written.err()),
        (Ok(true), None) => (vec![(batch, Done::Finished)], None),
        (Ok(false), None) => (vec![(batch, Done::Conflict)], None),
        (Err(failure), None) => {
            let failure = roll_back(session, failure).await;
            failed(vec![batch], failure, Phase::Writing)
        }
    }
}

/// The record, and the time after it was locked.
async fn lock_and_read(session: &Session, batch: &KeyBatch) -> Result<Read, Failure> {
    session.prepare([Sql::Lock, Sql::Clock, Sql::Update, Sql::UpdateAndTell, Sql::Insert]).await?;
    let key = escape(&batch.key);
    let (begun, record, clock) =
        join3(session.execute("BEGIN"), session.rows(Sql::Lock, &[&key]), session.rows(Sql::Clock, &[]))
            .await;
    begun?;
    let (record, clock) = (record?, clock?);
    let Some(clock) = clock.first() else {
        return Err(Failure::unavailable("the server did not return its time"));
    };
    let stored = match record.first() {
        Some(row) => Some((row.try_get(0)?, row.try_get(1)?)),
        None => None,
    };
    Ok(Read::at(clock.try_get(0)?, stored, clock.try_get(1)?))
}

async fn write_and_commit(session: &Session, batch: &KeyBatch, record: &Changed) -> Result<bool, Failure> {
    let (written, committed) = join(write_one(session, batch, record), session.execute("COMMIT")).await;
    let is_written = written?.is_some();
    committed.map(|()| is_written)
}

/// Ends the transaction in which something failed, unless the session has ended with it.
async fn roll_back(session: &Session, failure: Failure) -> Failure {
    if failure.is_broken {
        return failure;
    }
    match session.within(session.execute("ROLLBACK")).await {
        Ok(()) => failure,
        Err(_) => Failure { is_broken: true, ..failure },
    }
}
