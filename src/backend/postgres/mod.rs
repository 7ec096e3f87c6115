//! PostgreSQL: one server, or the primary of several.
//!
//! | file | content |
//! |---|---|
//! | `builder`, `url` | public: what an application sets; parsing URLs |
//! | `settings` | the settings of a client, their defaults and bounds |
//! | `schema` | the tables, their version, and whether they can be used |
//! | `session`, `tls` | a session of the server: connecting, with TLS or without, its settings and checks |
//! | `pooler` | whether there is a pooler in between that would lose notifications |
//! | `reach` | trying all servers, and all addresses of each |
//! | `connector` | opening sessions that can be used |
//! | `statement` | the statements |
//! | `exchange`, `record` | changing records, optimistically or under a lock; a record as it is read, changed and written |
//! | `listener` | the connection for notifications |
//! | `sweep` | records that nobody has used for a day |
//! | `worker` | what each connection for changes does: opening, changing, sweeping |
//! | `check` | what the server's user should know about it |
//! | `failure` | errors of PostgreSQL in words, and what follows from them |
//! | `text` | text that PostgreSQL can store |
//!
//! In which order changes are carried out, and by which connection, is in `backend::records`.
//!
//! All connections run on the crate's own thread, so leases are kept regardless of what the application's runtimes do.

mod builder;
mod check;
mod connector;
mod exchange;
mod failure;
mod listener;
mod pooler;
mod reach;
mod record;
mod schema;
mod session;
mod settings;
mod statement;
mod sweep;
mod text;
mod tls;
mod url;
mod worker;

use std::fmt;
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::join;
use futures::stream::BoxStream;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::records::{Health, Workers};
use super::{BackendError, Capabilities, Event, Finding, StoreState};
use crate::background;
use crate::error::Error;
use crate::runtime::spawn_on;
use connector::Connector;
use listener::Listener;
use session::Session;
use settings::Settings;

pub use builder::PostgresBuilder;
pub use schema::SCHEMA;

/// Leases in a table of a PostgreSQL database.
///
/// Each client has two connections, one for changes and one for notifications, and opens more for changes while changes are held up by
/// locked rows. See `docs/postgres.md` for what this store guarantees and what it does not.
pub struct PostgresBackend(LedgerBackend<PostgresStore>);

backend_on_ledger!(PostgresBackend);

/// The table of a [`PostgresBackend`].
struct PostgresStore {
    capabilities: Capabilities,
    connector: Arc<Connector>,
    health: Arc<Health>,
    workers: Arc<Workers<Session>>,
    listener: Arc<Listener>,
    runtime: Handle,
}

impl PostgresBackend {
    /// Connects to the server in a URL: `postgres://[user[:password]@]host[:port][,host...][/database][?option=value&...]`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`PostgresBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for the server that a configuration names.
    pub fn builder_from_config(config: tokio_postgres::Config) -> PostgresBuilder {
        PostgresBuilder::new(config)
    }

    /// A builder with the server and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<PostgresBuilder, Error> {
        url::parse(url)
    }
}

impl PostgresStore {
    /// Prepares everything; the connections are opened when they are needed.
    fn start(settings: Settings) -> io::Result<Self> {
        let runtime = background::handle()?;
        let health = Arc::new(Health::new(settings.address.clone()));
        let mut capabilities = Capabilities::new(settings.address.clone());
        // The whole queue is in the record.
        capabilities.constant_work = false;
        // One connection is for notifications.
        let max_workers = settings.max_connections - 1;
        let time_limit = settings.connect_timeout + settings.reply_timeout;
        let connector = Arc::new(Connector::new(settings));
        let workers = Workers::new(
            Arc::clone(&connector),
            max_workers,
            time_limit,
            Arc::clone(&health),
            runtime.clone(),
        );
        let listener = Listener::new(Arc::clone(&connector), Arc::clone(&health));
        let (workers, listener) = (Arc::new(workers), Arc::new(listener));
        Ok(Self { capabilities, connector, health, workers, listener, runtime })
    }

    /// Returns when both connections have been opened.
    async fn connected(&self) -> Result<(), BackendError> {
        self.listener.start(&self.runtime);
        let (listening, changing) = join(self.listener.connected(), self.ping()).await;
        listening.map_err(|failure| failure.before_storing())?;
        changing
    }
}

impl LedgerStore for PostgresStore {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.workers.transact(keys, change)
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let workers = Arc::clone(&self.workers);
        let events = self.listener.open(client, &self.runtime);
        // What another client has granted is known before it is acted upon.
        let observed = events.inspect(move |event| {
            if let Event::Granted { lease, .. } = event {
                workers.schedule.forget(&lease.resource.key);
            }
        });
        observed.boxed()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn state(&self) -> StoreState {
        self.health.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.health.changes()
    }

    fn was_reached(&self) -> bool {
        self.workers.was_reached()
    }

    /// Reads a record that does not exist.
    async fn ping(&self) -> Result<(), BackendError> {
        // Names are not empty.
        self.transact(&["".into()], |_, _, _| ((), Effects::default())).await.map(drop)
    }

    async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        let connector = Arc::clone(&self.connector);
        let looked = spawn_on(&self.runtime, async move {
            let session = connector.open().await?;
            session.within(check::findings(&session, &connector.settings)).await
        });
        let found = looked.await.map_err(|error| BackendError::Unanswered { source: error.into() })?;
        found.map_err(|failure| failure.before_storing())
    }

    async fn close(&self) {
        self.stop();
        self.workers.ended().await;
    }
}

impl PostgresStore {
    /// Nothing new is begun, and the connections are closed when what they have begun is done.
    fn stop(&self) {
        self.health.close();
        self.workers.close();
        self.listener.close();
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("address", &self.connector.settings.address)
            .finish_non_exhaustive()
    }
}
