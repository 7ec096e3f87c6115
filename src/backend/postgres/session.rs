//! A session of the server: connecting, its settings and checks, its statements.

use std::time::Duration;

use futures::TryStreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::{ready, select};
use futures::stream::poll_fn as stream_of;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Notification, Row};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::schema;
use super::settings::Settings;
use super::statement::{Prepared, Sql};
use super::tls::Encrypting;
use crate::backend::records::Failure;
use crate::backend::tls::explain;
use crate::runtime::spawn;

/// How long a client that stands still may keep a row locked before the server ends its session.
const ROW_LOCK: Duration = Duration::from_millis(500);
/// How long a statement waits for a row that another client has locked: longer than `ROW_LOCK`, after which the server
/// ends that client's session.
const LOCK_WAIT: Duration = Duration::from_millis(1000);
/// How long closing an unneeded session may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// What is to be known about the server.
const SERVER: &str = "SELECT current_setting('server_version_num'), current_setting('transaction_read_only'), \
     current_setting('server_encoding')";
/// The oldest version that has all that the statements need.
const OLDEST: u32 = 120_000;

pub(super) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// A connection to the server. Everything on it has a time limit.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    prepared: Prepared,
    reply_timeout: Duration,
    _connection: DropGuard,
}

/// A session with the notifications that arrive on it.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) session: Session,
    pub(super) heard: UnboundedReceiver<Notification>,
}

impl Session {
    /// A connection without settings and checks.
    pub(super) async fn connect(settings: &Settings, config: &Config) -> Result<Self, Failure> {
        Self::connect_and_tell(settings, config, None).await
    }

    pub(super) async fn connect_listening(
        settings: &Settings,
        config: &Config,
    ) -> Result<Listening, Failure> {
        let (hear, heard) = unbounded();
        let session = Self::connect_and_tell(settings, config, Some(hear)).await?;
        Ok(Listening { session, heard })
    }

    async fn connect_and_tell(
        settings: &Settings,
        config: &Config,
        hear: Option<UnboundedSender<Notification>>,
    ) -> Result<Self, Failure> {
        let (client, connection) = connect(settings, config, hear).await?;
        Ok(Self {
            client,
            prepared: Prepared::default(),
            reply_timeout: settings.reply_timeout,
            _connection: connection,
        })
    }

    /// Makes its settings, and makes sure that the server and its tables can be used.
    pub(super) async fn set_up(&self, settings: &Settings) -> Result<(), Failure> {
        let query = format!("{}; {SERVER}, {}", session_settings(settings), schema::FOUND);
        let found = schema::row(&self.client, &query).await?;
        let [Some(version), Some(is_read_only), Some(encoding), tables @ ..] = &found[..] else {
            return Err(Failure::unavailable("the server did not report its version and settings"));
        };
        if version.parse::<u32>().is_ok_and(|version| version < OLDEST) {
            return Err(Failure::refused(format!(
                "it has version {version}, but PostgreSQL 12 or later is needed"
            )));
        }
        if is_read_only != "off" {
            let why = "it is read-only, perhaps a standby: connect to the primary, or name all servers";
            return Err(Failure::not_now(why));
        }
        if encoding != "UTF8" {
            return Err(Failure::refused(format!(
                "its database has the encoding {encoding}, but UTF8 is needed"
            )));
        }
        schema::prepare(&self.client, &schema::Found::of(tables), settings).await
    }

    /// The rows that a statement returns.
    pub(super) async fn rows(&self, sql: Sql, with: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        let statement = self.prepared.get(&self.client, sql).await?;
        Ok(self.client.query(statement, with).await?)
    }

    /// Executes a statement that returns nothing.
    pub(super) async fn change(&self, sql: Sql, with: &[Parameter<'_>]) -> Result<(), Failure> {
        let statement = self.prepared.get(&self.client, sql).await?;
        Ok(self.client.execute(statement, with).await.map(drop)?)
    }

    /// Statements without parameters.
    pub(super) async fn execute(&self, statements: &str) -> Result<(), Failure> {
        Ok(self.client.batch_execute(statements).await?)
    }

    /// The first value of the last row that some statements return.
    pub(super) async fn value(&self, statements: &str) -> Result<Option<String>, Failure> {
        Ok(schema::row(&self.client, statements).await?.swap_remove(0))
    }

    /// The last row that some statements return.
    pub(super) async fn row(&self, statements: &str) -> Result<Vec<Option<String>>, Failure> {
        schema::row(&self.client, statements).await
    }

    /// Prepares statements, so that those that follow can be sent together.
    pub(super) async fn prepare<const N: usize>(&self, statements: [Sql; N]) -> Result<(), Failure> {
        for sql in statements {
            self.prepared.get(&self.client, sql).await?;
        }
        Ok(())
    }

    /// What one exchange with the server returns, within the time limit for replies.
    pub(super) async fn within<T>(
        &self,
        exchange: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let limit = self.reply_timeout;
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(Failure::timed_out(limit)))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.client.is_closed()
    }
}

/// A value of a row.
pub(super) fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Failure> {
    row.try_get(column).map_err(|_| Failure::unavailable("its answer cannot be read"))
}

fn session_settings(settings: &Settings) -> String {
    let statement = settings.reply_timeout.as_millis();
    let (lock, idle) = (LOCK_WAIT.as_millis(), ROW_LOCK.as_millis());
    // It contains no quotation marks.
    let path = settings.target.schema.as_ref().map(|schema| format!("SET search_path = \"{schema}\"; "));
    let path = path.unwrap_or_default();
    format!(
        "{path}SET default_transaction_isolation = 'read committed'; SET statement_timeout = {statement}; SET lock_timeout = {lock}; \
         SET idle_in_transaction_session_timeout = {idle}; SET client_min_messages = warning; SET jit = off; \
         SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
         SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('idle_session_timeout', 'transaction_timeout')"
    )
}

/// Opens a connection, which a task of the current runtime carries until the guard is dropped.
async fn connect(
    settings: &Settings,
    config: &Config,
    heard: Option<UnboundedSender<Notification>>,
) -> Result<(Client, DropGuard), Failure> {
    let Some(tls) = &settings.target.tls else {
        let (client, connection) = config.connect(NoTls).await?;
        return Ok((client, drive(connection, heard)));
    };
    let connected = config.connect(Encrypting(tls.clone())).await.map_err(Failure::from);
    let (client, connection) =
        connected.map_err(|failure| Failure { why: explain(failure.why), ..failure })?;
    Ok((client, drive(connection, heard)))
}

/// Runs a connection in a task of the current runtime until the guard is dropped.
fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    heard: Option<UnboundedSender<Notification>>,
) -> DropGuard
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let unneeded = CancellationToken::new();
    let guard = unneeded.clone().drop_guard();
    spawn(async move {
        let messages = stream_of(move |context| connection.poll_message(context));
        // The pending calls get the error that ends the connection.
        let carried = Box::pin(messages.try_for_each(|message| {
            if let (AsyncMessage::Notification(notification), Some(heard)) = (message, &heard) {
                // An error means that nobody listens any more.
                drop(heard.unbounded_send(notification));
            }
            ready(Ok(()))
        }));
        let leave = Box::pin(async {
            unneeded.cancelled().await;
            sleep(CLOSE_TIMEOUT).await;
        });
        select(carried, leave).await;
    });
    guard
}
