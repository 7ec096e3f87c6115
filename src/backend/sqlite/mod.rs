//! Locks in an SQLite file, for the processes of one machine, with nothing to install.
//!
//! ```no_run
//! # async fn example() -> Result<(), leasehold::Error> {
//! use std::sync::Arc;
//!
//! use leasehold::Client;
//! use leasehold::sqlite::{SqliteBackend, Synchronous};
//!
//! let client = Client::connect("sqlite:/var/lib/app/locks.db").await?;
//!
//! // The same with settings, which can also be in the URL:
//! let builder = SqliteBackend::builder_from_path("/var/lib/app/locks.db").synchronous(Synchronous::Full);
//! let client = Client::with_backend(Arc::new(builder.connect().await?));
//! # drop(client);
//! # Ok(()) }
//! ```
//!
//! `docs/stores/sqlite.md` describes what such a lock guarantees and what it does not, the permissions it needs, and the
//! contents of the file.

// | file | content |
// |---|---|
// | `builder`, `url` | public: settings; parsing URLs |
// | `schema` | the tables, their version, and whether they are there |
// | `database` | the open file: its settings, its rows, waiting for other writers |
// | `file` | which file it is, and what can be said about it without opening it |
// | `transaction` | changes of records that are stored together |
// | `worker` | the thread of a client, which carries out its jobs |
// | `job` | the jobs |
// | `sweep` | removing rows that have not been used for a day |
// | `inbox` | events for this client: datagrams, messages inside the process, and what polling finds |
// | `health` | whether the file can currently be used |
// | `failure` | SQLite errors as text |

mod builder;
mod database;
mod failure;
mod file;
mod health;
mod inbox;
mod job;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod transaction;
mod url;
mod worker;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use futures::stream::BoxStream;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::key_pages::{PAGE, pages};
use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::{BackendError, Capabilities, Event, Finding, StoreState};
use crate::error::Error;
use builder::Settings;
use health::Health;
use inbox::Inbox;
use job::{Answered, Change, Job, Keys, Ping};
use worker::{Message, Worker};

pub use builder::{SqliteBuilder, Synchronous};
pub use schema::SCHEMA;

/// Leases in an SQLite file, for the processes of one machine.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::Client;
///
/// let dir = tempfile::tempdir()?;
/// let client = Client::connect(&format!("sqlite:{}", dir.path().join("locks.db").display())).await?;
/// let guard = client.mutex("machine:42")?.lock().await?;
/// guard.release().await?;
/// client.shutdown().await?;
/// # Ok(()) }
/// ```
///
/// Each client has its own thread, the only one of its threads that uses the file, and a UDP socket on the loopback
/// interface, to which other clients send the grants that they make to it. See `docs/stores/sqlite.md` for what this store
/// guarantees and what it does not.
#[doc(alias = "flock")]
#[doc(alias = "file lock")]
#[doc(alias = "lock file")]
pub struct SqliteBackend(LedgerBackend<SqliteStore>);

backend_on_ledger!(SqliteBackend);

/// The file of a [`SqliteBackend`].
struct SqliteStore {
    capabilities: Capabilities,
    messages: Sender<Message>,
    settings: Arc<Settings>,
    health: Arc<Health>,
    inbox: Arc<Inbox>,
}

impl SqliteBackend {
    /// Opens the file that a URL names, and creates it if necessary: `sqlite:PATH`, with options as query parameters.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`SqliteBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the file.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for the file at this path. A relative path is resolved against the current working directory.
    pub fn builder_from_path(path: impl Into<std::path::PathBuf>) -> SqliteBuilder {
        SqliteBuilder::new(path.into())
    }

    /// A builder with the path and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<SqliteBuilder, Error> {
        url::parse(url)
    }
}

impl SqliteStore {
    /// Starts the thread, which opens the file when it is first needed.
    fn start(settings: Settings) -> io::Result<Self> {
        let (settings, inbox) = (Arc::new(settings), Arc::new(Inbox::new()));
        let health = Arc::new(Health::new(settings.address()));
        let (messages, received) = channel();
        let worker = Worker::new(Arc::clone(&settings), Arc::clone(&health), Arc::clone(&inbox));
        thread::Builder::new().name("leasehold-sqlite".to_owned()).spawn(move || worker.work(&received))?;
        let mut capabilities = Capabilities::new(settings.address());
        // The whole queue is in the record.
        capabilities.constant_work = false;
        capabilities.lists = true;
        Ok(Self { capabilities, messages, settings, health, inbox })
    }

    /// Has the thread carry out a job, which is under way when this returns.
    fn ask<T: Send + 'static>(
        &self,
        (job, answered): (impl Job + 'static, Answered<T>),
    ) -> impl Future<Output = Result<T, BackendError>> + Send + 'static {
        let ended = || BackendError::Unanswered { source: "the thread of this client has ended".into() };
        let sent = self.messages.send(Message::Job(Box::new(job))).map_err(|_| ended());
        async move {
            sent?;
            answered.await.unwrap_or_else(|_| Err(ended()))
        }
    }
}

impl LedgerStore for SqliteStore {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.ask(Change::new(keys.to_vec(), change))
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let events = self.inbox.open(client);
        // If the thread has ended, there will be no events.
        drop(self.messages.send(Message::Listen(client)));
        events
    }

    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        pages(prefix, move |from| self.ask(Keys::new(from, PAGE as u32)))
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

    /// Waits until this client could write.
    async fn ping(&self) -> Result<(), BackendError> {
        self.ask(Ping::new()).await
    }

    async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        self.ping().await?;
        Ok(file::findings(&self.settings.path))
    }

    async fn close(&self) {
        let (sender, closed) = oneshot::channel();
        if self.messages.send(Message::Close(sender)).is_ok() {
            // An error means that the thread has ended for another reason, and the file is closed as well.
            drop(closed.await);
        }
        self.inbox.close();
        self.health.close();
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.settings.path).finish_non_exhaustive()
    }
}
