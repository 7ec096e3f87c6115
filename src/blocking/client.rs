//! The client.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;

use super::calls;
use super::drive::drive;
use super::guard::Guard;
use super::locks::{DistMutex, ReentrantLock, RwLock};
use super::semaphores::{CountingSemaphore, FairSemaphore};
use crate::backend::{Backend, Capabilities, Finding, Inspection, StoreState};
use crate::error::Error;
use crate::options::{MutexOptions, SemaphoreOptions};
use crate::ticket::LeaseTicket;
use crate::{ClientBuilder, ListEntry, Purpose};

/// A connection to a store, from which locks and semaphores are created: [`crate::Client`] without async. Cheap to
/// clone, and can be used from any number of threads at a time.
///
/// ```
/// use leasehold::blocking::Client;
///
/// let client = Client::connect("memory:")?;
/// let guard = client.mutex("machine:42")?.lock()?; // blocks this thread
/// guard.release()?;
/// client.shutdown()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
#[doc(alias = "sync")]
#[doc(alias = "synchronous")]
#[derive(Clone)]
pub struct Client(crate::Client);

impl Client {
    /// Connects to the store that `url` names: see [`crate::Client::connect`] for the URLs.
    ///
    /// ```
    /// let client = leasehold::blocking::Client::connect("memory:")?; // or "sqlite:locks.db", "redis://127.0.0.1:6379"
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::connect`]; [`Error::StoreUnavailable`] also if the crate's own thread cannot be started.
    pub fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect_blocking()
    }

    /// Creates a client that connects on first use and keeps retrying.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::connect_lazy`].
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        Ok(Self(crate::Client::connect_lazy(url)?))
    }

    /// A client with options, which ends with [`ClientBuilder::connect_blocking`]:
    ///
    /// ```
    /// # use leasehold::blocking::Client;
    /// let client = Client::builder("memory:").fail_fast(true).connect_blocking()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        crate::Client::builder(url)
    }

    /// Creates a client of a new, empty store in the memory of this process.
    #[must_use]
    pub fn memory() -> Self {
        Self(crate::Client::memory())
    }

    /// Creates a client of any store. Those of this crate are made by their builders, with `connect_lazy`, if they need
    /// more than a URL can say.
    #[must_use]
    pub fn with_backend(backend: Arc<dyn Backend>) -> Self {
        Self(crate::Client::with_backend(backend))
    }

    /// The same client in the async interface, for the parts of a program that use tokio. Both share leases and
    /// connections. The other way round, there is `From<leasehold::Client>`.
    #[must_use]
    pub const fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// The same client, whose locks have these options unless they are created with others: see
    /// [`crate::Client::with_mutex_options`].
    #[must_use]
    pub fn with_mutex_options(self, options: MutexOptions) -> Self {
        Self(self.0.with_mutex_options(options))
    }

    /// The same client, whose semaphores have these options unless they are created with others: see
    /// [`crate::Client::with_semaphore_options`].
    #[must_use]
    pub fn with_semaphore_options(self, options: SemaphoreOptions) -> Self {
        Self(self.0.with_semaphore_options(options))
    }

    /// The options that locks of this client have by default.
    pub fn mutex_options(&self) -> MutexOptions {
        self.0.mutex_options()
    }

    /// The options that semaphores of this client have by default.
    pub fn semaphore_options(&self) -> SemaphoreOptions {
        self.0.semaphore_options()
    }

    /// Returns the mutex called `name`, with default options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::mutex`].
    pub fn mutex(&self, name: &str) -> Result<DistMutex, Error> {
        self.0.mutex(name).map(DistMutex)
    }

    /// Returns the mutex called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::mutex_with`].
    pub fn mutex_with(&self, name: &str, options: MutexOptions) -> Result<DistMutex, Error> {
        self.0.mutex_with(name, options).map(DistMutex)
    }

    /// Returns the reentrant lock called `name` for the owner called `owner`, with default options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::reentrant_lock`].
    pub fn reentrant_lock(&self, name: &str, owner: &str) -> Result<ReentrantLock, Error> {
        self.0.reentrant_lock(name, owner).map(ReentrantLock)
    }

    /// Returns the reentrant lock called `name` for the owner called `owner`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::reentrant_lock_with`].
    pub fn reentrant_lock_with(
        &self,
        name: &str,
        owner: &str,
        options: MutexOptions,
    ) -> Result<ReentrantLock, Error> {
        self.0.reentrant_lock_with(name, owner, options).map(ReentrantLock)
    }

    /// Returns the read/write lock called `name`, with default options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::rw_lock`].
    pub fn rw_lock(&self, name: &str) -> Result<RwLock, Error> {
        self.0.rw_lock(name).map(RwLock)
    }

    /// Returns the read/write lock called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::rw_lock_with`].
    pub fn rw_lock_with(&self, name: &str, options: MutexOptions) -> Result<RwLock, Error> {
        self.0.rw_lock_with(name, options).map(RwLock)
    }

    /// What the client is called at the store: see [`crate::Client::label`].
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.0.label()
    }

    /// Enough of the id of this client to tell it from others: see [`crate::Client::id`].
    #[must_use]
    pub fn id(&self) -> String {
        self.0.id()
    }

    /// Takes up a lease that another process has handed over: see [`crate::Client::resume`].
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::resume`]; [`Error::Unsupported`] on the crate's own threads.
    pub fn resume(&self, ticket: &LeaseTicket) -> Result<Guard, Error> {
        let (client, ticket) = (self.0.clone(), ticket.clone());
        drive("resume", async move { client.resume(&ticket).await }).map(Guard)
    }

    /// Returns the counting semaphore called `name` with `limit` permits and default options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::counting_semaphore`].
    pub fn counting_semaphore(&self, name: &str, limit: u32) -> Result<CountingSemaphore, Error> {
        self.0.counting_semaphore(name, limit).map(CountingSemaphore)
    }

    /// Returns the counting semaphore called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::counting_semaphore_with`].
    pub fn counting_semaphore_with(
        &self,
        name: &str,
        limit: u32,
        options: SemaphoreOptions,
    ) -> Result<CountingSemaphore, Error> {
        self.0.counting_semaphore_with(name, limit, options).map(CountingSemaphore)
    }

    /// Returns the fair semaphore called `name` with `limit` permits and default options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::fair_semaphore`].
    pub fn fair_semaphore(&self, name: &str, limit: u32) -> Result<FairSemaphore, Error> {
        self.0.fair_semaphore(name, limit).map(FairSemaphore)
    }

    /// Returns the fair semaphore called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::fair_semaphore_with`].
    pub fn fair_semaphore_with(
        &self,
        name: &str,
        limit: u32,
        options: SemaphoreOptions,
    ) -> Result<FairSemaphore, Error> {
        self.0.fair_semaphore_with(name, limit, options).map(FairSemaphore)
    }

    /// The address of the store, as errors show it: see [`crate::Client::store`].
    #[must_use]
    pub fn store(&self) -> &str {
        self.0.store()
    }

    /// What the store supports: see [`crate::Client::capabilities`].
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// Who holds the thing of this name and purpose, and who waits for it: see [`crate::Client::inspect`].
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::inspect`].
    pub fn inspect(&self, purpose: Purpose, name: &str) -> Result<Inspection, Error> {
        let (client, name) = (self.0.clone(), name.to_owned());
        drive("inspect", async move { client.inspect(purpose, &name).await })
    }

    /// What anybody holds or waits for under names that begin with `prefix`, all of it at once: see
    /// [`crate::Client::list`].
    ///
    /// ```
    /// let client = leasehold::blocking::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock()?;
    /// assert_eq!(client.list("machine:")?[0].name, "machine:42");
    /// # drop(guard);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::list`], also if only a part is missing.
    pub fn list(&self, prefix: &str) -> Result<Vec<ListEntry>, Error> {
        let found = self.0.list(prefix);
        drive("list", found.try_collect())
    }

    /// Ends the hold of a lock, an election or the run of a schedule: see [`crate::Client::force_release`].
    ///
    /// # Errors
    ///
    /// As for [`crate::Client::force_release`].
    pub fn force_release(&self, purpose: Purpose, name: &str) -> Result<bool, Error> {
        let (client, name) = (self.0.clone(), name.to_owned());
        drive("force release", async move { client.force_release(purpose, &name).await })
    }

    /// Whether the store can currently be reached, as far as the client knows: see [`crate::Client::state`]. No I/O.
    #[must_use]
    pub fn state(&self) -> StoreState {
        self.0.state()
    }

    calls! { Client {
        /// Sends a request to the server in use, and returns how long the answer took.
        fn ping(time_limit: Duration) -> Duration;

        /// Checks the servers of the store for problems and risky settings.
        fn check() -> Vec<Finding>;

        /// Refuses new requests, waits up to `limit` for the guards that there are, and shuts down.
        fn close(limit: Duration) -> ();

        /// Shuts down everything that was created from this client: waiting calls of other threads fail with
        /// [`Error::Closed`], live guards lose their leases, and everything is released in the store. Takes 5 s at
        /// most.
        fn shutdown() -> ();
    }}
}

impl From<crate::Client> for Client {
    /// The client keeps its connections on the runtime on which it has used them. If that makes no progress while a
    /// call waits here, the client leaves it.
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ClientBuilder {
    /// Connects, and waits for it: see [`blocking`](crate::blocking).
    ///
    /// ```
    /// let client = leasehold::Client::builder("memory:").label("importer-2").connect_blocking()?;
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`blocking::Client::connect`](Client::connect).
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    pub fn connect_blocking(self) -> Result<Client, Error> {
        drive("connect", self.connect()).map(Client)
    }
}
