//! MySQL and MariaDB.
//!
//! | file | content |
//! |---|---|
//! | `builder`, `url` | public: making a client; parsing URLs |
//! | `settings` | the settings of a client |
//! | `schema` | the tables, their version, and whether they can be used |
//! | `session`, `tls` | a session of the server; TLS |
//! | `connect` | opening a session, its settings and checks |
//! | `statement` | the statements |
//! | `exchange`, `record` | changing records, optimistically, and in turns if they are contended; a record as it is read, changed and written |
//! | `worker` | a connection for changes |
//! | `view` | what a record is for one client |
//! | `watch`, `named_locks` | what a client waits for; the named locks that others wait for |
//! | `watcher`, `waiters` | the connection that looks at records and holds named locks; those that wait for named locks |
//! | `sweep` | records that nobody has used for a day |
//! | `check` | what the server's user should know about it |
//! | `failure` | errors of MySQL in words, and what follows from them |
//!
//! In which order changes are carried out, and by which connection, is in `backend::records`.
//!
//! All connections run on the crate's own thread, so leases are kept regardless of what the application's runtimes do.

mod builder;
mod check;
mod connect;
mod exchange;
mod failure;
mod named_locks;
mod record;
mod schema;
mod session;
mod settings;
mod statement;
mod sweep;
mod tls;
mod url;
mod view;
mod waiters;
mod watch;
mod watcher;
mod worker;

use std::fmt;
use std::io;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use futures::future::join;
use futures::stream::BoxStream;
use tokio::runtime::Handle;
use uuid::Uuid;

use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::records::{Failure, Health, Workers};
use super::{BackendError, Capabilities, Event, Finding, StoreState};
use crate::background;
use crate::error::Error;
use crate::runtime::spawn_on;
use settings::Settings;
use watcher::Watcher;
use worker::{Worker, WorkerSettings};

pub use builder::MysqlBuilder;
pub use schema::SCHEMA;
pub use settings::MysqlPush;

/// Leases in a table of a MySQL or MariaDB database.
///
/// Each client has two connections, one for changes and one that watches the rows it waits for, and opens more to wait for named locks, and
/// for changes while they are held up by locked rows. See `docs/mysql.md` for what this store guarantees and what it does not.
pub struct MysqlBackend(LedgerBackend<MysqlStore>);

backend_on_ledger!(MysqlBackend);

/// The table of a [`MysqlBackend`].
struct MysqlStore {
    capabilities: Capabilities,
    settings: Arc<Settings>,
    health: Arc<Health>,
    workers: Arc<Workers<Worker>>,
    watcher: Arc<Watcher>,
    runtime: Handle,
}

impl MysqlBackend {
    /// Connects to the server in a URL: `mysql://[user[:password]@]host[:port][,host...]/database[?option=value&...]`.
    /// Of several servers, the one that accepts changes is used.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`MysqlBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for the server in a configuration. `prefer_socket` and `client_found_rows` are turned off, and pool settings are ignored.
    pub fn builder_from_opts(opts: impl Into<mysql_async::Opts>) -> MysqlBuilder {
        MysqlBuilder::new(opts.into())
    }

    /// A builder with the server, the credentials and the TLS settings of a pool. A pool does not expose them, so this briefly borrows
    /// one of its connections to read them. The store opens its own connections and takes no others from the pool.
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the pool provides no connection within 2 s; [`Error::StoreRefused`] if the server rejects the credentials.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future returns the connection to the pool.
    pub async fn builder_from_pool(pool: &mysql_async::Pool) -> Result<MysqlBuilder, Error> {
        MysqlBuilder::of_pool(pool).await
    }

    /// A builder with the server and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<MysqlBuilder, Error> {
        url::parse(url)
    }
}

impl MysqlStore {
    /// Prepares everything; the connections are opened when they are needed.
    fn start(settings: Arc<Settings>) -> io::Result<Self> {
        let runtime = background::handle()?;
        let health = Arc::new(Health::new(settings.address.clone()));
        // One connection looks.
        let max_workers = settings.max_connections - 1 - settings.max_waiters();
        let time_limit = settings.connect_timeout + settings.reply_timeout;
        let workers = Arc::new_cyclic(|workers| {
            let settings = WorkerSettings { settings: Arc::clone(&settings), workers: Weak::clone(workers) };
            Workers::new(Arc::new(settings), max_workers, time_limit, Arc::clone(&health), runtime.clone())
        });
        let watcher = Arc::new(Watcher::new(Arc::clone(&settings), Arc::clone(&health)));
        let mut capabilities = Capabilities::new(settings.address.clone());
        // The whole queue is in the record.
        capabilities.constant_work = false;
        Ok(Self { capabilities, settings, health, workers, watcher, runtime })
    }

    /// Returns when both connections have been opened.
    async fn connected(&self) -> Result<(), BackendError> {
        self.watcher.start(&self.runtime);
        let (looking, changing) = join(self.watcher.connected(), self.ping()).await;
        looking.map_err(|failure| failure.before_storing())?;
        changing
    }
}

impl LedgerStore for MysqlStore {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.workers.transact(keys, change)
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let workers = Arc::clone(&self.workers);
        let events = self.watcher.open(client, &self.runtime);
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
        let settings = Arc::clone(&self.settings);
        let looked = spawn_on(&self.runtime, async move {
            let mut session = connect::open(&settings).await?;
            let mut findings = check::findings(&mut session).await?;
            findings.extend(check::servers(&settings).await);
            Ok(findings)
        });
        let found = looked.await.map_err(|error| BackendError::Unanswered { source: error.into() })?;
        found.map_err(|failure: Failure| failure.before_storing())
    }

    async fn close(&self) {
        self.stop();
        self.workers.ended().await;
    }
}

impl MysqlStore {
    /// Nothing new is begun, and the connections are closed when what they have begun is done.
    fn stop(&self) {
        self.health.close();
        self.workers.close();
        self.watcher.close();
    }
}

impl Drop for MysqlStore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for MysqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MysqlStore").field("address", &self.settings.address).finish_non_exhaustive()
    }
}
