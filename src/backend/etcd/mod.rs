//! etcd: one server, or a cluster.
//!
//! | file | content |
//! |---|---|
//! | `builder` | public: making a client |
//! | `url`, `settings` | parsing URLs; what can be set, and its bounds |
//! | `proto` | the messages of etcd's API |
//! | `connect`, `connection`, `link` | opening a connection; calls and streams on it; failover among members |
//! | `keep_alive` | what is asked and answered on the stream on which all leases are kept alive |
//! | `leases` | the etcd leases of a client |
//! | `keys`, `value` | the keys; a hold or a place as it is stored |
//! | `view` | what is known of a resource |
//! | `plan`, `write` | what has to be stored for what was asked for; the transactions that do so (no I/O) |
//! | `exchange` | storing it, again if others came first |
//! | `calls`, `transaction` | calls about one resource, with the etcd leases that they need; what transactions consist of |
//! | `driver`, `shared` | carrying out everything that a client is asked for; what its tasks share |
//! | `mail`, `mailbox` | messages from other clients |
//! | `list` | which resources there are |
//! | `watch` | whether one of them has changed |
//! | `sweep` | records that nobody has used for a day |
//! | `check`, `failure` | what the user of a cluster should know about it; errors of etcd in words |
//!
//! The connection runs on the crate's own thread, so leases are kept regardless of what the application's runtimes do.

mod builder;
mod calls;
mod check;
mod connect;
mod connection;
mod driver;
mod exchange;
mod failure;
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) mod fuzzing;
mod keep_alive;
mod keys;
mod leases;
mod link;
mod list;
mod mail;
mod mailbox;
mod plan;
mod proto;
mod settings;
mod shared;
mod sweep;
#[cfg(test)]
mod tests;
mod transaction;
mod url;
mod value;
mod view;
mod watch;
mod write;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::{BackendError, Capabilities, Event, Finding, StoreState};
use crate::background;
use crate::error::Error;
use crate::runtime::spawn_on;
use mailbox::Mailbox;
use settings::Settings;
use shared::Shared;

pub use builder::EtcdBuilder;

/// The shortest lease that a cluster grants whose settings are the default ones.
const MIN_TTL: Duration = Duration::from_secs(2);

/// Leases in an etcd cluster.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::etcd::EtcdBackend;
///
/// let backend = EtcdBackend::builder("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?
///     .prefix("team-a/leasehold/")
///     .connect_lazy()?; // or `connect().await?`
/// let client = Client::with_backend(Arc::new(backend));
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Each client has one connection, to one member. See `docs/stores/etcd.md` for what this store guarantees and what it does
/// not.
pub struct EtcdBackend(LedgerBackend<EtcdStore>);

backend_on_ledger!(EtcdBackend);

/// The keys of an [`EtcdBackend`].
struct EtcdStore {
    capabilities: Capabilities,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    runtime: Handle,
    driver: Mutex<Option<JoinHandle<()>>>,
}

impl EtcdBackend {
    /// Connects to the cluster with the members in a URL:
    /// `etcd://[user:password@]host[:port][,host[:port]...][?option=value&...]`, or the same with `etcds://`, over TLS.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`EtcdBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for the cluster with these members, each `host:port`. One is enough, but if it fails, the client knows
    /// no other.
    ///
    /// ```
    /// let builder = leasehold::etcd::EtcdBackend::builder_from_endpoints(["10.0.0.7:2379", "10.0.0.8:2379"]);
    /// # drop(builder);
    /// ```
    pub fn builder_from_endpoints(endpoints: impl IntoIterator<Item = impl Into<String>>) -> EtcdBuilder {
        EtcdBuilder::new(endpoints.into_iter().map(Into::into).collect())
    }

    /// A builder with the members, the user and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<EtcdBuilder, Error> {
        EtcdBuilder::from_url(url)
    }
}

impl EtcdStore {
    /// Prepares everything; the connection is opened when it is needed.
    fn start(settings: Arc<Settings>) -> io::Result<Self> {
        let runtime = background::handle()?;
        let mut capabilities = Capabilities::new(settings.address.clone());
        capabilities.min_ttl = MIN_TTL;
        capabilities.ttl_granularity = Duration::from_secs(1);
        // A new cluster counts revisions from one.
        capabilities.tokens_survive_data_loss = false;
        // The whole queue is read.
        capabilities.constant_work = false;
        capabilities.lists = true;
        let shared = Arc::new(Shared::new(settings));
        let mailbox = Arc::new(Mailbox::new(Arc::clone(&shared)));
        let driver = Mutex::new(Some(spawn_on(&runtime, driver::drive(Arc::clone(&shared)))));
        Ok(Self { capabilities, shared, mailbox, runtime, driver })
    }

    /// Returns when the connection has been opened.
    async fn connected(&self) -> Result<(), BackendError> {
        super::LedgerStore::ping(self).await
    }

    /// Runs something on the crate's own thread.
    async fn run<T: Send + 'static>(
        &self,
        batch: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Result<T, BackendError> {
        let done = spawn_on(&self.runtime, batch).await;
        done.unwrap_or_else(|error| Err(BackendError::Unanswered { source: error.into() }))
    }
}

impl LedgerStore for EtcdStore {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        // A task waits for that.
        self.shared.schedule.transact(keys, change, || ())
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        self.mailbox.open(client, &self.runtime)
    }

    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        let all = Some(list::Next::all(&self.shared.keys, prefix));
        let page = async |next: Option<list::Next>| {
            let Some(next) = next else { return Ok(None) };
            let shared = Arc::clone(&self.shared);
            let page = async move { next.page(&shared).await.map_err(|failure| failure.before_storing()) };
            self.run(page).await.map(Some)
        };
        stream::try_unfold(all, page).boxed()
    }

    fn changes(&self, key: &Arc<str>) -> BoxStream<'static, ()> {
        watch::changes(&self.shared, key, &self.runtime)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn state(&self) -> StoreState {
        self.shared.health.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.shared.health.changes()
    }

    fn was_reached(&self) -> bool {
        self.shared.link.was_reached()
    }

    /// Reads what does not exist.
    async fn ping(&self) -> Result<(), BackendError> {
        self.run(driver::ping(Arc::clone(&self.shared))).await
    }

    async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        let shared = Arc::clone(&self.shared);
        let found = async move {
            let connection = shared.link.open().await?;
            check::findings(&shared.link, &connection).await
        };
        self.run(async { found.await.map_err(|failure| failure.before_storing()) }).await
    }

    async fn close(&self) {
        self.stop();
        let driver = self.driver.lock().take();
        if let Some(driver) = driver {
            // It fails only if the thread has ended, and then nothing is left to be closed.
            let _ = driver.await;
        }
    }
}

impl EtcdStore {
    /// Nothing new is begun, and the connection, if there is one, is closed when what has begun is done.
    fn stop(&self) {
        self.shared.health.close();
        self.shared.schedule.close();
        self.shared.link.stop_connecting();
        self.mailbox.close();
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("address", &self.capabilities.store).finish_non_exhaustive()
    }
}
