//! A session of the server: connecting, statements, and what they return.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, Opts, Row};
use tokio::time::timeout;

use super::shared::Mysql;
use super::tls;
use super::watch::Watch;
use crate::backend::records::Failure;

/// A connection that was not used for that long is tried before something is written: it may have been closed
/// meanwhile.
const PROBE_AFTER: Duration = Duration::from_millis(500);

/// A connection to the server. The caller sets a time limit for `connect` and `run`.
pub(super) struct Session {
    connection: Conn,
    /// Notified of what is read and written.
    pub(super) watch: Arc<Watch>,
    reply_timeout: Duration,
    used: Instant,
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
    /// Connects, and does nothing else: see `connect::open`.
    pub(super) async fn connect(opts: Opts, server: &Mysql) -> Result<Self, Failure> {
        let connected = Conn::new(opts.clone()).await;
        Ok(Self {
            connection: connected.map_err(|error| tls::explained(&opts, error.into()))?,
            watch: Arc::clone(&server.watch),
            reply_timeout: server.settings.reply_timeout,
            used: Instant::now(),
        })
    }

    /// Executes statements in one exchange, up to the first that fails, and returns what each has returned.
    pub(super) async fn run(&mut self, statements: &[String]) -> Result<Vec<Answer>, Failure> {
        let mut answers = Vec::with_capacity(statements.len());
        self.run_into(&mut answers, statements).await?;
        Ok(answers)
    }

    /// Adds what each statement has returned, up to the first that fails.
    async fn run_into(&mut self, answers: &mut Vec<Answer>, statements: &[String]) -> Result<(), Failure> {
        let mut result = self.connection.query_iter(statements.join("; ")).await?;
        for _ in statements {
            let (changed, id) = (result.affected_rows(), result.last_insert_id());
            answers.push(Answer { rows: result.collect().await?, changed, id });
        }
        result.drop_result().await?;
        self.used = Instant::now();
        Ok(())
    }

    /// The same, within the time limit for replies, with what was returned before a failure.
    pub(super) async fn run_until_failure(
        &mut self,
        statements: &[String],
    ) -> (Vec<Answer>, Option<Failure>) {
        let (limit, mut answers) = (self.reply_timeout, Vec::with_capacity(statements.len()));
        let ran = timeout(limit, self.run_into(&mut answers, statements)).await;
        let failure = ran.unwrap_or_else(|_| Err(Failure::timed_out(limit))).err();
        (answers, failure)
    }

    /// As [`run`](Self::run), within the time limit for replies.
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

    /// Probes a connection that has not been used for a while.
    pub(super) async fn ping_if_unused(&mut self) -> Result<(), Failure> {
        if self.used.elapsed() < PROBE_AFTER {
            return Ok(());
        }
        let limit = self.reply_timeout;
        let tried = timeout(limit, self.connection.ping()).await;
        Ok(tried.map_err(|_| Failure::timed_out(limit))??)
    }

    /// How long the server may take to answer.
    pub(super) const fn reply_timeout(&self) -> Duration {
        self.reply_timeout
    }
}

/// A value of a row.
pub(super) fn value<T: FromValue>(row: &Row, column: usize) -> Result<T, Failure> {
    let read = row.get_opt(column).and_then(Result::ok);
    read.ok_or_else(|| Failure::unavailable("its answer cannot be read"))
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.connection.id()).finish_non_exhaustive()
    }
}
