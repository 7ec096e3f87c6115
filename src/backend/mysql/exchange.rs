//! Reading and writing records: as many statements in one exchange as there are records, a contended one while its
//! named lock is held.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::Row;

use super::failure::is_declined;
use super::session::{Answer, Session, value};
use super::shared::Mysql;
use super::statement;
use super::view::{OwnChange, View};
use crate::backend::ledger::{Entry, EntryKind};
use crate::backend::records::Failure;
use crate::backend::sql::{self, KeyBatch, Read, Stored, Written, Wrote};
use crate::backend::{Effects, Ledger, Stamp};

type Changed = sql::Changed<View>;

impl sql::Session for Session {
    type Server = Mysql;
    type Effects = View;

    // Long enough to last until a client's next turn, even among hundreds of clients.
    const CONTENDED: Duration = Duration::from_secs(10);
    const JOIN_LATE: bool = true;

    /// That shows when it is tried.
    fn is_closed(&self) -> bool {
        false
    }

    async fn probe(&mut self) -> Result<(), Failure> {
        self.ping_if_unused().await
    }

    fn has_broken(&self) {
        self.watch.check_now();
    }

    fn run(&self, batch: &KeyBatch, ledger: &mut Ledger, stamp: Stamp) -> View {
        let is_held = |entry: &Entry| matches!(entry.kind, EntryKind::Held { .. });
        let held_before = ledger.entries().filter(is_held).map(|entry| entry.lease).collect();
        // The clients concerned find the events by reading the record.
        let effects: Effects = batch.tasks.iter().map(|task| task.run(ledger, stamp)).collect();
        let asked = effects.requests.into_iter().map(|request| request.lease.clone()).collect();
        View { own: Some(OwnChange { held_before, asked }), ..View::of(ledger, self.watch.client()) }
    }

    fn note(&self, key: &Arc<str>, version: Option<i64>, view: View) {
        self.watch.note(key, version, view);
    }

    async fn read(&mut self, batches: &[KeyBatch]) -> Result<Vec<Read>, Failure> {
        let statements = statement::read(batches.iter().map(|batch| &*batch.key));
        let asked = Instant::now();
        let answers = self.run_in_time(&statements).await?;
        let [records, clock] = &answers[..] else { return Err(sql::missing()) };
        let mut records = records.rows.iter().map(stored).collect::<Result<HashMap<_, _>, _>>()?;
        let (now, floor) = time(clock)?;
        let read = |batch: &KeyBatch| Read::at(now, floor, records.remove(batch.key.as_bytes()), asked);
        Ok(batches.iter().map(read).collect())
    }

    /// A single record is a transaction by itself.
    async fn write(&mut self, changed: &[(KeyBatch, Changed)]) -> Result<Vec<Wrote>, Failure> {
        let each = changed.iter().map(|(batch, record)| statement::write(&batch.key, record));
        let mut statements: Vec<_> = each.collect();
        let are_several = changed.len() > 1;
        if are_several {
            let locked = statement::lock_without_waiting(changed.iter().map(|(batch, _)| &*batch.key));
            statements.splice(0..0, ["BEGIN".to_owned(), locked]);
            statements.push("COMMIT".to_owned());
        }
        let asked = Instant::now();
        match self.run_in_time(&statements).await {
            Ok(answers) => {
                let answers = answers.iter().skip(if are_several { 2 } else { 0 }).take(changed.len());
                Ok(answers.map(|answer| wrote(answer, asked)).collect())
            }
            Err(failure) if are_several => Err(roll_back(self, failure).await),
            Err(failure) => Err(failure),
        }
    }

    async fn keys(&mut self, from: &str, limit: usize) -> Result<Vec<String>, Failure> {
        let found = self.run_in_time(&[statement::keys(from, limit)]).await?;
        found.iter().flat_map(|answer| &answer.rows).map(|row| value(row, 0)).collect()
    }

    /// Waits for the named lock of the record. Other clients may still write in between, if they do not know that the
    /// record is contended, or have waited for too long. If there are no named locks, there are no turns.
    async fn begin_turn(&mut self, key: &str) -> Result<Option<Read>, Failure> {
        if !self.watch.may_use_locks() {
            return Ok(None);
        }
        let asked = Instant::now();
        let (answers, failure) = self.run_until_failure(&statement::read_in_turn(key)).await;
        if let Some(failure) = failure {
            // The first two statements are about the turn. The servers of some clusters do not take part in turns.
            if answers.len() < 2 && is_declined(&failure) {
                self.watch.give_up_locks(&failure);
                self.run_in_time(&[statement::idle_again()]).await?;
                return Ok(None);
            }
            return Err(failure);
        }
        let [_, turn, record, clock] = &answers[..] else { return Err(sql::missing()) };
        let turn = turn.rows.first().map(|row| value::<Option<i64>>(row, 0)).transpose()?;
        if turn.flatten().is_none() {
            self.watch.give_up_locks(&Failure::unavailable("`GET_LOCK` returns NULL"));
        }
        let stored = record.rows.first().map(stored).transpose()?.map(|(_, stored)| stored);
        let (now, floor) = time(clock)?;
        Ok(Some(Read::at(now, floor, stored, asked)))
    }

    async fn write_in_turn(
        &mut self,
        key: &str,
        record: &Changed,
    ) -> Result<(Wrote, Option<Failure>), Failure> {
        let [release, idle] = statement::end_turn(key);
        let statements = [statement::write(key, record), release, idle];
        let asked = Instant::now();
        let (answers, failure) = self.run_until_failure(&statements).await;
        match answers.first() {
            Some(answer) => Ok((wrote(answer, asked), failure)),
            None => Err(failure.unwrap_or_else(sql::missing)),
        }
    }

    async fn end_turn(&mut self, key: &str) -> Result<(), Failure> {
        self.run_in_time(&statement::end_turn(key)).await.map(drop)
    }
}

/// A row with a record, by its key.
pub(super) fn stored(row: &Row) -> Result<(Vec<u8>, Stored), Failure> {
    Ok((value(row, 0)?, Stored { version: value(row, 1)?, doc: value(row, 2)? }))
}

/// The server's time, and the number that all those issued by records that were removed are below.
fn time(clock: &Answer) -> Result<(i64, Option<i64>), Failure> {
    let Some(row) = clock.rows.first() else { return Err(sql::missing()) };
    Ok((value(row, 0)?, value(row, 1)?))
}

/// What a statement that was to write a record has done.
fn wrote(answer: &Answer, asked: Instant) -> Wrote {
    if answer.changed == 0 {
        return Wrote::Nothing;
    }
    // The answer lacks the version if, for instance, a trigger on the table has changed `LAST_INSERT_ID`.
    let version = answer.id.and_then(|id| i64::try_from(id).ok());
    // It is the time when the record was written. If it is ahead of that, a change of the cached record is not written
    // before the time has come, so the record is read.
    Wrote::Stored(version.map(|version| Written::new(version, version, asked)))
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
