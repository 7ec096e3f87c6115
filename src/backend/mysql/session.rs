//! A session of the server: opening it, its settings, its statements.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, Row};
use tokio::time::timeout;

use super::record::Written;
use super::settings::Settings;
use super::statement::IDLE;
use super::watch::Watch;
use super::{exchange, schema, sweep, tls};
use crate::backend::records::{Connection, Failure, KeyBatch, Outcome, Phase, Round, Workers, failed};

/// How long a statement waits for a row that another client has locked, in seconds: as long as a stalled client can keep it.
const LOCK_WAIT: u32 = 1;
/// A connection that was not used for that long is tried before something is written: it may have been closed meanwhile.
const PROBE_AFTER: Duration = Duration::from_millis(500);
/// The oldest versions that have all that is needed.
const OLDEST: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 5);

/// A connection to the server. Everything on it has a time limit.
pub(super) struct Session {
    connection: Conn,
    reply_timeout: Duration,
    used: Instant,
    pub(super) watch: Arc<Watch>,
    workers: Option<Weak<Workers<Self>>>,
}

/// What one statement returned.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
    /// How many rows it has changed.
    pub(super) changed: u64,
    /// What the statement has passed to `LAST_INSERT_ID`.
    pub(super) id: Option<u64>,
}

impl Session {
    /// Opens a session and makes sure that it can be used.
    pub(super) async fn open(settings: &Settings) -> Result<Self, Failure> {
        let limit = settings.connect_timeout;
        let connecting = async {
            let mut session = Self::connect(settings).await?;
            session.set_up(settings).await?;
            Ok(session)
        };
        let connected = timeout(limit, connecting).await;
        connected.unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {limit:?}"))))
    }

    async fn connect(settings: &Settings) -> Result<Self, Failure> {
        let connected = Conn::new(settings.opts.clone()).await;
        Ok(Self {
            connection: connected.map_err(|error| tls::explained(&settings.opts, error.into()))?,
            reply_timeout: settings.reply_timeout,
            used: Instant::now(),
            watch: Arc::clone(&settings.watch),
            workers: settings.workers.get().cloned(),
        })
    }

    /// Makes its settings, and makes sure that the server and its tables can be used.
    async fn set_up(&mut self, settings: &Settings) -> Result<(), Failure> {
        let statements = [
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
            format!(
                "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
                 innodb_lock_wait_timeout = {LOCK_WAIT}, lock_wait_timeout = {LOCK_WAIT}, wait_timeout = {IDLE}, \
                 sql_safe_updates = 0"
            ),
            "SELECT VERSION(), CAST(@@GLOBAL.read_only AS CHAR)".to_owned(),
            schema::EXIST.to_owned(),
        ];
        let answers = self.run(&statements).await.map_err(|failure| {
            let has_no_innodb = failure.why.contains("innodb_lock_wait_timeout");
            if has_no_innodb { Failure::refused("it lacks InnoDB, which is needed") } else { failure }
        })?;
        let [.., server, tables] = &answers[..] else { return Err(missing()) };
        let Some(server) = server.rows.first() else { return Err(missing()) };
        check_version(&value::<String>(server, 0)?)?;
        let is_read_only: String = value(server, 1)?;
        if !["0", "OFF"].contains(&&*is_read_only) {
            let why = "it is read-only, perhaps a replica: connect to the server that accepts writes";
            return Err(Failure::unavailable(why));
        }
        let tables: Result<Vec<(String, Option<String>)>, Failure> =
            tables.rows.iter().map(|row| Ok((value(row, 0)?, value(row, 1)?))).collect();
        schema::prepare(self, &tables?, settings.create).await
    }

    /// Executes statements in one exchange, up to the first that fails, and returns what each has returned.
    pub(super) async fn run(&mut self, statements: &[String]) -> Result<Vec<Answer>, Failure> {
        let mut answers = Vec::with_capacity(statements.len());
        let mut result = self.connection.query_iter(statements.join("; ")).await?;
        while answers.len() < statements.len() {
            let (changed, id) = (result.affected_rows(), result.last_insert_id());
            answers.push(Answer { rows: result.collect().await?, changed, id });
        }
        result.drop_result().await?;
        self.used = Instant::now();
        Ok(answers)
    }

    /// The same, within the time limit for replies.
    pub(super) async fn run_in_time(&mut self, statements: &[String]) -> Result<Vec<Answer>, Failure> {
        self.run_within(statements, self.reply_timeout).await
    }

    pub(super) async fn run_within(
        &mut self,
        statements: &[String],
        limit: Duration,
    ) -> Result<Vec<Answer>, Failure> {
        timeout(limit, self.run(statements)).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)))
    }

    /// Adds changes of the same key that were requested since. Returns whether there were any. Called once per round, because a batch
    /// that keeps growing would never be executed.
    pub(super) fn add_later(&self, batch: &mut KeyBatch<Written>) -> bool {
        if batch.tries > 0 {
            return false;
        }
        let workers = self.workers.as_ref().and_then(Weak::upgrade);
        workers.is_some_and(|workers| workers.schedule.add_later(batch))
    }

    /// How long the server may take to answer.
    pub(super) const fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }

    /// Probes a connection that has not been used for a while, if the round begins with a write, whose outcome would be unknown if the
    /// connection were lost. A round that begins with a read needs no probe.
    async fn probe(&mut self, round: &Round<Written>) -> Result<(), Failure> {
        let writes_first = match round {
            Round::Uncontended(batches) => batches.iter().all(|batch| batch.written.is_some()),
            Round::Contended(_) => false,
        };
        if !writes_first || self.used.elapsed() < PROBE_AFTER {
            return Ok(());
        }
        let limit = self.reply_timeout;
        let tried = timeout(limit, self.connection.ping()).await;
        Ok(tried.map_err(|_| Failure::timed_out(limit))??)
    }
}

impl Connection for Session {
    type Settings = Settings;
    type Written = Written;

    const SWEEP_INTERVAL: Duration = sweep::INTERVAL;

    async fn open(settings: &Settings) -> Result<Self, Failure> {
        Self::open(settings).await
    }

    /// That shows when it is tried.
    fn is_closed(&self) -> bool {
        false
    }

    async fn carry_out(&mut self, round: Round<Written>) -> Outcome<Written> {
        let outcome = match (self.probe(&round).await, round) {
            (Err(failure), round) => failed(round.into_batches(), failure, Phase::Reading),
            (Ok(()), Round::Uncontended(batches)) => exchange::change_uncontended(self, batches).await,
            (Ok(()), Round::Contended(batch)) => exchange::change_contended(self, batch).await,
        };
        if outcome.1.as_ref().is_some_and(|failure| failure.is_broken) {
            self.watch.check_now();
        }
        outcome
    }

    async fn sweep(&mut self) -> Result<(), Failure> {
        sweep::sweep(self).await
    }
}

/// A value of a row.
pub(super) fn value<T: FromValue>(row: &Row, column: usize) -> Result<T, Failure> {
    let read = row.get_opt(column).and_then(Result::ok);
    read.ok_or_else(|| Failure::unavailable("its answer cannot be read"))
}

fn missing() -> Failure {
    Failure::unavailable("an answer is missing")
}

/// `8.0.36`, `10.11.19-MariaDB-0+deb12u1`
fn check_version(version: &str) -> Result<(), Failure> {
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let Some(known) = numbers.next().zip(numbers.next()) else { return Ok(()) };
    let (oldest, what) =
        if version.contains("MariaDB") { (OLDEST_MARIADB, "MariaDB 10.5") } else { (OLDEST, "MySQL 8.0") };
    if known < oldest {
        return Err(Failure::refused(format!("it has version {version}, but {what} or later is needed")));
    }
    Ok(())
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.connection.id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_too_old_are_refused_and_unknown_ones_are_not() {
        for version in
            ["8.0.36", "9.1.0-log", "10.5.0-MariaDB", "11.4.2-MariaDB-ubu2404", "8.0.mysql_aurora.3.05.2"]
        {
            check_version(version).unwrap();
        }
        check_version("unknown").unwrap();
        for version in ["5.7.44-log", "10.4.32-MariaDB"] {
            check_version(version).unwrap_err();
        }
    }
}
