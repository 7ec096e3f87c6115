//! The settings of a client, and opening the file.

use std::fmt;
use std::path::{self, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{SqliteBackend, SqliteStore, file};
use crate::backend::{Backend, LedgerBackend, LedgerStore};
use crate::error::Error;

const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_BUSY_TIMEOUT: Duration = Duration::from_secs(60 * 60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// When a change is on the disk.
///
/// ```
/// # use leasehold::sqlite::{SqliteBackend, Synchronous};
/// let builder = SqliteBackend::builder("sqlite:locks.db")?.synchronous(Synchronous::Full); // survives a power failure
/// # drop(builder);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Synchronous {
    /// Some time after it was answered. Nothing is lost when a process dies. When the machine dies, the latest grants
    /// may be forgotten, but their holders have died with it, and tokens follow the clock.
    #[default]
    Normal,
    /// Before it is answered. Only needed if something outside this machine relies on a lease that is still held after
    /// a power cut.
    Full,
}

/// Makes a [`SqliteBackend`]: see [`SqliteBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`synchronous`](Self::synchronous) | `synchronous=normal`, `synchronous=full` | normal |
/// | [`busy_timeout`](Self::busy_timeout) | `busy_timeout=500ms` | 2 s |
/// | [`poll_interval`](Self::poll_interval) | `poll_interval=50ms` | 100 ms |
/// | [`create`](Self::create) | `create=false` | true |
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use leasehold::{Client, sqlite::SqliteBackend};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = tempfile::tempdir()?.keep().join("locks.db");
/// let backend = SqliteBackend::builder_from_path(&file).busy_timeout(Duration::from_secs(2)).connect().await?;
/// let client = Client::with_backend(Arc::new(backend));
/// client.mutex("machine:42")?.lock().await?.release().await?; // excludes the other processes that use the file
/// client.shutdown().await?;
/// # std::fs::remove_dir_all(file.parent().expect("it has one"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct SqliteBuilder {
    pub(super) settings: Settings,
}

/// The settings of a client.
#[derive(Clone)]
pub(super) struct Settings {
    /// Absolute, so that nothing changes with the working directory.
    pub(super) path: PathBuf,
    pub(super) synchronous: Synchronous,
    pub(super) busy_timeout: Duration,
    pub(super) poll_interval: Duration,
    pub(super) create: bool,
    pub(super) clock: Arc<dyn Fn() -> SystemTime + Send + Sync>,
}

impl Settings {
    /// The store's address.
    pub(super) fn address(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    /// The time of day in microseconds.
    pub(super) fn now(&self) -> u64 {
        let since = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

impl SqliteBuilder {
    pub(super) fn new(path: PathBuf) -> Self {
        // It fails for an empty path only, which opening reports, or without a working directory.
        let path = path::absolute(&path).unwrap_or(path);
        Self {
            settings: Settings {
                path,
                synchronous: Synchronous::default(),
                busy_timeout: BUSY_TIMEOUT,
                poll_interval: POLL_INTERVAL,
                create: true,
                clock: Arc::new(SystemTime::now),
            },
        }
    }

    /// When a change is on the disk.
    ///
    /// ```
    /// # use leasehold::sqlite::SqliteBackend;
    /// let builder = SqliteBackend::builder("sqlite:locks.db")?.synchronous(leasehold::sqlite::Synchronous::Full);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.settings.synchronous = synchronous;
        self
    }

    /// How long a change waits while another program writes to the file, 1 ms to 1 h. Clients of this crate take a few
    /// microseconds each.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::sqlite::SqliteBackend;
    /// let builder = SqliteBackend::builder("sqlite:locks.db")?.busy_timeout(Duration::from_secs(2));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.settings.busy_timeout = timeout;
        self
    }

    /// How often a client that waits checks whether a message has been lost, 1 ms to 1 min. It costs a few microseconds
    /// each time. Hand-overs do not wait for it, unless the processes cannot reach each other over the loopback
    /// interface, for instance in different containers.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::sqlite::SqliteBackend;
    /// let builder = SqliteBackend::builder("sqlite:locks.db")?.poll_interval(Duration::from_millis(50));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
        self
    }

    /// Whether the file and the tables are created if they do not exist. If not, create them with
    /// [`SCHEMA`](super::SCHEMA).
    ///
    /// ```
    /// # use leasehold::sqlite::SqliteBackend;
    /// let builder = SqliteBackend::builder("sqlite:locks.db")?.create(false);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// For tests: the time of day by which leases end. All clients of a file must use the same clock.
    #[cfg(feature = "conformance")]
    pub fn clock(mut self, clock: Arc<dyn Fn() -> SystemTime + Send + Sync>) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds.
    /// * [`Error::StoreUnavailable`] if another program locks the file for longer than
    ///   [`busy_timeout`](Self::busy_timeout), or reading or writing fails.
    /// * [`Error::StoreRefused`] if the path is a directory, or its directory does not exist; if the file is not an
    ///   SQLite database, cannot be written, belongs to a newer version of this crate, or does not exist and
    ///   [`create`](Self::create) is off; or if the disk is full.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the file.
    pub async fn connect(self) -> Result<SqliteBackend, Error> {
        let backend = self.connect_lazy()?;
        let store = backend.0.store();
        store.ping().await.map_err(|error| backend.0.connect_error(error))?;
        for finding in file::findings(&store.settings.path) {
            tracing::warn!(target: "leasehold::store", store = %backend.capabilities().store, "{finding}");
        }
        Ok(backend)
    }

    /// Opens the file when it is first used, and keeps trying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds. [`Error::StoreUnavailable`] if the client's thread
    /// cannot be started.
    pub fn connect_lazy(self) -> Result<SqliteBackend, Error> {
        let within = |argument, value: Duration, limit| {
            if (Duration::from_millis(1)..=limit).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(argument, format!("{value:?} is not between 1ms and {limit:?}")))
        };
        within("busy_timeout", self.settings.busy_timeout, MAX_BUSY_TIMEOUT)?;
        within("poll_interval", self.settings.poll_interval, MAX_POLL_INTERVAL)?;
        let address = self.settings.address();
        LedgerBackend::started(SqliteStore::start(self.settings), &address).map(SqliteBackend)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, synchronous, busy_timeout, poll_interval, create, clock: _ } = self;
        f.debug_struct("Settings")
            .field("path", path)
            .field("synchronous", synchronous)
            .field("busy_timeout", busy_timeout)
            .field("poll_interval", poll_interval)
            .field("create", create)
            .finish_non_exhaustive()
    }
}
