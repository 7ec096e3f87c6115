//! The entry point: one client per store, from which the primitives are created.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::ready;
use futures::stream::{Stream, StreamExt, once};
use tokio::time::timeout;

use crate::backend::{
    Backend, BackendError, Capabilities, FailFast, Finding, MemoryBackend, NodeState, Status, StoreState,
    by_url,
};
use crate::error::Error;
use crate::fair_semaphore::FairSemaphore;
use crate::label;
use crate::lease::Engine;
use crate::mutex::DistMutex;
use crate::observer::Observer;
use crate::options::{MutexOptions, SemaphoreOptions};
use crate::reentrant::ReentrantLock;
use crate::semaphore::CountingSemaphore;

/// A connection to a store, from which locks and semaphores are created. Cheap to clone.
///
/// A program needs one client per store. All that is created from a client and its clones shares the client's
/// connections and background tasks. The examples below run on the store in memory; on any other, only the URL differs.
///
/// # Mutex
///
/// At most one holder at a time, in all processes: [`DistMutex`].
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Client, Error};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let client = Client::connect("memory:").await?;
/// let mutex = client.mutex("machine:42")?;
/// let guard = mutex.lock().await?; // waits for its turn
/// assert!(mutex.try_lock().await?.is_none()); // does not wait
/// let late = mutex.lock_timeout(Duration::from_millis(10)).await; // waits for a limited time
/// assert!(matches!(late, Err(Error::TimedOut { .. })));
/// guard.release().await?; // waits until the store has confirmed it; dropping the guard releases it in the background
/// # Ok(()) }
/// ```
///
/// # Reentrant lock
///
/// At most one owner at a time, which can lock again what it holds, also from other processes: [`ReentrantLock`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let order = client.reentrant_lock("stock", "order-42")?;
/// let outer = order.lock().await?;
/// let inner = order.lock().await?; // the same owner: granted at once, under the same token
/// assert_eq!(outer.token(), inner.token());
/// let other = client.reentrant_lock("stock", "order-43")?;
/// assert!(other.try_lock().await?.is_none());
/// drop((outer, inner)); // the lock is free when the last guard is gone
/// assert!(other.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
///
/// # Read/write lock
///
/// Many readers or one writer, strictly in order of arrival, so that neither side starves: [`RwLock`](crate::RwLock).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let prices = client.rw_lock("prices")?;
/// let (one, other) = (prices.read().await?, prices.read().await?); // together
/// assert!(prices.try_write().await?.is_none());
/// drop((one, other));
/// let writing = prices.write().await?; // alone; its token fences
/// let reading = writing.downgrade().await?; // lets readers in, and no other writer before them
/// assert!(prices.try_read().await?.is_some());
/// # drop(reading);
/// # Ok(()) }
/// ```
///
/// # Several mutexes at once
///
/// All or none, without deadlocks among callers that name them in another order: [`LockAll`](crate::LockAll).
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let both = client.lock_all(["account:7", "account:3"])?;
/// let guards = both.lock_timeout(Duration::from_secs(5)).await?; // altogether
/// assert!(client.mutex("account:3")?.try_lock().await?.is_none());
/// let sum = guards.protect(async { 20 + 22 }).await?; // ends with `Error::Lost` if one of the leases is lost
/// println!("{sum} under token {:?}", guards.token("account:3"));
/// guards.release().await?; // both
/// # Ok(()) }
/// ```
///
/// # Counting semaphore
///
/// At most so many permits at a time, of which none is idle while a waiter could use it: [`CountingSemaphore`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let calls = client.counting_semaphore("slow-service", 5)?; // a limit of 5
/// let one = calls.acquire().await?;
/// let mut three = calls.acquire_many(3).await?; // all or nothing, under one guard
/// assert_eq!(calls.available().await?, 1);
/// assert!(calls.try_acquire_many(2).await?.is_none());
/// let two = three.split(2); // permits of one guard can be returned one after another
/// one.release().await?;
/// three.release().await?;
/// assert_eq!(calls.available().await?, 3);
/// # drop(two);
/// # Ok(()) }
/// ```
///
/// # Fair semaphore
///
/// At most so many permits at a time, strictly in order of arrival, so that no request for many is starved:
/// [`FairSemaphore`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let gate = client.fair_semaphore("gate", 2)?;
/// let first = gate.acquire().await?;
/// let later = async {
///     assert!(gate.try_acquire().await?.is_none()); // one permit is free, but a request for two is ahead
///     first.release().await
/// };
/// let (both, ()) = tokio::try_join!(gate.acquire_many(2), later)?;
/// assert_eq!(both.permits(), 2);
/// # Ok(()) }
/// ```
///
/// # While something is held
///
/// All of them return a [`Guard`](crate::Guard). Its lease is renewed in the background, and can be lost all the same:
/// if the store is unreachable for too long, for instance. Work that must not continue then is run by the guard, or
/// watches it.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::Error;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let guard = client.mutex("machine:42")?.lock().await?;
/// let sum = guard.protect(async { 20 + 22 }).await?; // ends with `Error::Lost` if the lease is lost
/// guard.try_protect(async { Ok::<_, Error>(sum) }).await?; // the same, for work that can itself fail
/// tokio::select! {
///     reason = guard.lost() => eprintln!("another client may hold the lock: {reason}"),
///     () = tokio::time::sleep(Duration::from_millis(10)) => assert!(guard.is_held()),
/// }
/// # Ok(()) }
/// ```
///
/// # Handing over to another process
///
/// A guard becomes a secret text, by which another process goes on holding, under the same token:
/// [`LeaseTicket`](crate::LeaseTicket).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::connect("memory:handover").await?;
/// # let other_process = leasehold::Client::connect("memory:handover").await?;
/// let guard = client.mutex("machine:42")?.lock().await?;
/// let secret = guard.into_ticket()?.expose(); // nobody renews the lease until it is resumed, within its TTL
/// let guard = other_process.resume(&secret.parse()?).await?; // renewed from here on
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Fencing tokens
///
/// A process that is paused for longer than its lease cannot be notified, and may write late. A resource that compares
/// tokens rejects that write: [`FencingToken`](crate::FencingToken).
///
/// ```
/// # use leasehold::Fence;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = leasehold::Client::connect("memory:").await?;
/// let storage = Fence::new(); // in a database: a column that is compared by the statement that writes
/// let mutex = client.mutex("machine:42")?;
/// let paused = mutex.lock().await?;
/// mutex.force_release().await?; // stands for a lease that expires during the pause
/// let next = mutex.lock().await?;
/// storage.admit(next.token())?;
/// assert!(storage.admit(paused.token()).is_err());
/// # Ok(()) }
/// ```
///
/// # Options
///
/// [`MutexOptions`] and [`SemaphoreOptions`] apply to one lock or semaphore, or to all that a client creates without
/// others.
///
/// ```
/// # use std::time::Duration;
/// # use leasehold::{Client, MutexOptions, OnOtherLimit, SemaphoreOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = Client::builder("memory:")
///     .mutex_options(MutexOptions::new().prefix("shop:").ttl(Duration::from_secs(10)))
///     .semaphore_options(SemaphoreOptions::new().on_other_limit(OnOtherLimit::Follow))
///     .connect()
///     .await?;
/// let cart = client.mutex("cart:7")?;
/// let brief = client.mutex_options().max_hold(Duration::from_secs(1)); // and otherwise the same
/// let report = client.mutex_with("report", brief)?;
/// # drop((cart, report));
/// # Ok(()) }
/// ```
///
/// # Runtimes and threads
///
/// Calls need a tokio runtime with timers (with Redis and Redlock also with I/O), and may come from any number of them;
/// a guard can be dropped anywhere. The client's tasks, and the connections of a Redis client for commands and
/// notifications, live on the runtime on which it was connected or first used; if that ends, or makes no progress while
/// something waits for it, they move to a thread of the crate, once and for good. Leases are renewed from another
/// thread of the crate, even while the application blocks its threads; only `memory:`, and a custom store that turns
/// [`own_thread`](crate::backend::Capabilities::own_thread) off, renews them where the client lives: when that runtime
/// has ended, the client goes on where somebody waits, or with the next call.
///
/// When the last handle (client, primitive or guard) is dropped, pending releases are sent and the connections are
/// closed. To wait for that, call [`shutdown`](Self::shutdown).
#[doc(alias = "connection")]
#[doc(alias = "pool")]
#[doc(alias = "lock manager")]
#[doc(alias = "redisson")]
#[derive(Clone)]
pub struct Client {
    pub(crate) engine: Arc<Engine>,
    defaults: Arc<Defaults>,
}

impl Client {
    /// Connects to the store that `url` names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | the memory of this process; every call creates a new, empty store |
    /// | `memory:NAME` | the same, shared by all clients of this process that use that name |
    /// | `sqlite:PATH[?options]` | a file shared by the processes of this machine, with the feature `sqlite`: see `SqliteBackend` |
    /// | `postgres://...`, `postgresql://...` | a table of a PostgreSQL database, with the feature `postgres`: see `PostgresBackend` |
    /// | `mysql://...`, `mariadb://...` | a table of a MySQL or MariaDB database, with the feature `mysql`: see `MysqlBackend` |
    /// | `etcd://...`, `etcds://...` (TLS) | an etcd cluster, with the feature `etcd`: see `EtcdBackend` |
    /// | `zookeeper://...` | a ZooKeeper server or ensemble, with the feature `zookeeper`: see `ZookeeperBackend` |
    /// | `redis://[[user:]password@]host[:port][/database]` | one Redis or Valkey server |
    /// | `redis+unix:///path/to/socket`, `redis+unix://user:password@localhost/path` | the same, over a Unix socket |
    /// | `redis-sentinel://[[user:]password@]host[:port],.../service[/database]` | the primary named by these sentinels |
    /// | `redis-cluster://[[user:]password@]host[:port],...` | a cluster; it is enough to list some of its nodes |
    /// | `rediss://...`, `rediss-sentinel://...`, `rediss-cluster://...` | the same over TLS, with the feature `rustls` or `native-tls` |
    /// | `redlock://[[user:]password@]host[:port],host[:port],...[/database][?options]`, `redlocks://...` (TLS) | a majority of independent servers: see `RedlockBackend` |
    ///
    /// All schemes that begin with `redis` also exist with `valkey`. User name, password, host and path are
    /// percent-decoded; the host of a Unix socket is ignored. The client connects to sentinels without credentials;
    /// the credentials in the URL are for the servers that the sentinels watch.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::connect("memory:").await?; // or "redis://127.0.0.1:6379", "postgres://…"
    /// assert!(client.state().status.is_connected());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the URL cannot be parsed.
    /// * [`Error::Unsupported`] if this build lacks the store's feature, which the error names.
    /// * [`Error::StoreUnavailable`], with the server's address, if the server, or a majority of several, cannot be
    ///   reached within 2 s; or at once if its certificate is not accepted, it requires a different client certificate,
    ///   or only one of the two speaks TLS.
    /// * [`Error::StoreRefused`] if the server refuses the credentials or denies this user a needed permission, is a
    ///   replica or a cluster node (with the URL of a single server), or is too old. See [`check`](Self::check) for
    ///   what is logged as a warning.
    ///
    /// The limit of 2 s and the reasons for a refusal are those of Redis; for another store, see the `connect` of its
    /// builder.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Creates a client of the store that `url` names that connects on first use and keeps retrying, so that a service
    /// can start before its store. Needs no runtime. A call while the store is unreachable waits or fails as during an
    /// outage. [`state`](Self::state) says whether the client is connected.
    ///
    /// A problem that would make [`connect`](Self::connect) fail is reported when it is detected: the server stays
    /// disconnected, its state gives the reason, and calls fail with [`Error::StoreRefused`]. Missing permissions are
    /// detected by the first call.
    ///
    /// ```
    /// let client = leasehold::Client::connect_lazy("memory:")?; // returns at once, whether or not the store is there
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] and [`Error::Unsupported`], as for [`connect`](Self::connect).
    /// [`Error::StoreUnavailable`] if the crate's own thread cannot be started.
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect_lazy()
    }

    /// A client of the store that `url` names, with options: see [`ClientBuilder`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let url = "memory:"; // such as "postgres://app@db.example/locks"
    /// let client = leasehold::Client::builder(url).label("importer-2").fail_fast(true).connect().await?;
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    pub fn builder(url: impl Into<String>) -> ClientBuilder {
        ClientBuilder::new(Source::Url(url.into()))
    }

    /// A client of any store that meets the [contract](crate::backend), with options: see [`ClientBuilder`]. The client
    /// takes over the backend, as with [`with_backend`](Self::with_backend).
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let backend = Arc::new(MemoryBackend::new());
    /// let client = Client::builder_with_backend(backend).label("importer-2").connect().await?;
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    pub fn builder_with_backend(backend: Arc<dyn Backend>) -> ClientBuilder {
        ClientBuilder::new(Source::Backend(backend))
    }

    /// Creates a client of a new, empty store in the memory of this process.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let client = Client::memory(); // for tests: nothing to start, and it follows tokio's paused clock
    /// assert!(client.mutex("machine:42")?.try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn memory() -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new()))
    }

    /// Creates a client of any store that meets the [contract](crate::backend).
    ///
    /// The client takes over the backend: shutting down the client closes the backend, even if other clients use it.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Client, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let store = MemoryBackend::new();
    /// let (api, worker) = (Client::with_backend(Arc::new(store.peer())), Client::with_backend(Arc::new(store)));
    /// let guard = api.mutex("machine:42")?.lock().await?;
    /// assert!(worker.mutex("machine:42")?.try_lock().await?.is_none()); // two clients, as in two processes
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_backend(backend: Arc<dyn Backend>) -> Self {
        Self::new(backend, Some(label::default_label()), Defaults::default())
    }

    fn new(backend: Arc<dyn Backend>, label: Option<Arc<str>>, defaults: Defaults) -> Self {
        Self { engine: Arc::new(Engine::new(backend, label)), defaults: Arc::new(defaults) }
    }

    /// The same client, whose locks have these options unless they are created with others. Existing locks and other
    /// clones of the client are not affected. [`ClientBuilder::mutex_options`] does the same.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Client, MutexOptions};
    /// let brief = Client::memory().with_mutex_options(MutexOptions::new().ttl(Duration::from_secs(5)));
    /// let mutex = brief.mutex("machine:42")?; // with a TTL of 5 s
    /// # drop(mutex);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn with_mutex_options(mut self, options: MutexOptions) -> Self {
        Arc::make_mut(&mut self.defaults).mutex = options;
        self
    }

    /// The same client, whose semaphores have these options unless they are created with others.
    /// [`ClientBuilder::semaphore_options`] does the same.
    ///
    /// ```
    /// # use leasehold::{Client, OnOtherLimit, SemaphoreOptions};
    /// let options = SemaphoreOptions::new().on_other_limit(OnOtherLimit::Follow);
    /// let semaphore = Client::memory().with_semaphore_options(options).counting_semaphore("api", 20)?;
    /// # drop(semaphore);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn with_semaphore_options(mut self, options: SemaphoreOptions) -> Self {
        Arc::make_mut(&mut self.defaults).semaphore = options;
        self
    }

    /// What the client is called at the store: see [`ClientBuilder::label`](crate::ClientBuilder::label).
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.engine.label().map(|label| &**label)
    }

    /// Enough of the id of this client to tell it from others: the ids of its leases begin with it, in logs and in what
    /// [`Guard::lease_id`](crate::Guard::lease_id) and [`Holder::short_id`](crate::Holder::short_id) return.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// assert!(guard.lease_id().starts_with(&client.id()));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn id(&self) -> String {
        self.engine.id().short_client()
    }

    /// The options that locks of this client have by default, from which others can be derived:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::MutexOptions;
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::memory().with_mutex_options(MutexOptions::new().prefix("shop:"));
    /// let brief = client.mutex_with("cart:7", client.mutex_options().ttl(Duration::from_secs(5)))?;
    /// # drop(brief);
    /// # Ok(()) }
    /// ```
    pub fn mutex_options(&self) -> MutexOptions {
        self.defaults.mutex.clone()
    }

    /// The options that semaphores of this client have by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::memory();
    /// let patient = client.semaphore_options().ttl(Duration::from_secs(120));
    /// let semaphore = client.counting_semaphore_with("exports", 2, patient)?;
    /// # drop(semaphore);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn semaphore_options(&self) -> SemaphoreOptions {
        self.defaults.semaphore.clone()
    }

    /// Returns the mutex called `name`, with default options. No I/O: nothing exists in the store until it is
    /// locked.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// assert_eq!(guard.name(), "machine:42");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `name` is empty or longer than 512 bytes.
    #[doc(alias = "lock")]
    #[doc(alias = "advisory lock")]
    #[doc(alias = "GET_LOCK")]
    #[doc(alias = "pg_advisory_lock")]
    #[doc(alias = "SETNX")]
    #[doc(alias = "flock")]
    pub fn mutex(&self, name: &str) -> Result<DistMutex, Error> {
        self.mutex_with(name, self.mutex_options())
    }

    /// Returns the mutex called `name`, with the given options. No I/O.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::memory();
    /// let options = client.mutex_options().ttl(Duration::from_secs(10)).prefix("shop:");
    /// let cart = client.mutex_with("cart:7", options)?;
    /// # drop(cart);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the name or an option is out of bounds; the message says which and why. With a
    /// prefix that is empty or starts with `{`, also if prefix and name together form a key that is reserved for
    /// another lock, such as `{lock:a}:queue`.
    pub fn mutex_with(&self, name: &str, options: MutexOptions) -> Result<DistMutex, Error> {
        DistMutex::new(Arc::clone(&self.engine), name, &options)
    }

    /// Returns the reentrant lock called `name` for the owner called `owner`, with default options. No I/O. It is the
    /// same lock as the mutex of that name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let order = client.reentrant_lock("stock", "order-42")?;
    /// let (outer, inner) = (order.lock().await?, order.lock().await?); // the same owner does not wait for itself
    /// assert_eq!(outer.token(), inner.token());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `name` or `owner` is empty or longer than 512 bytes.
    pub fn reentrant_lock(&self, name: &str, owner: &str) -> Result<ReentrantLock, Error> {
        self.reentrant_lock_with(name, owner, self.mutex_options())
    }

    /// Returns the reentrant lock called `name` for the owner called `owner`, with the given options. No I/O.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = leasehold::Client::memory();
    /// let options = client.mutex_options().ttl(Duration::from_secs(10));
    /// let order = client.reentrant_lock_with("stock", "order-42", options)?;
    /// assert_eq!(order.owner(), "order-42");
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`mutex_with`](Self::mutex_with), and if `owner` is empty or longer than 512 bytes.
    pub fn reentrant_lock_with(
        &self,
        name: &str,
        owner: &str,
        options: MutexOptions,
    ) -> Result<ReentrantLock, Error> {
        ReentrantLock::new(Arc::clone(&self.engine), name, owner, &options)
    }

    /// Returns the counting semaphore called `name` with `limit` permits and default options. No I/O: the first request
    /// checks whether the limit is the one in force.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let calls = client.counting_semaphore("slow-service", 5)?; // at most 5 at a time, in all processes
    /// let permit = calls.acquire().await?;
    /// assert_eq!(calls.available().await?, 4);
    /// # drop(permit);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `limit` is 0, or as for [`mutex`](Self::mutex). [`Error::Unsupported`] if the
    /// store does not support semaphores (Redlock does not).
    #[doc(alias = "semaphore")]
    #[doc(alias = "rate limit")]
    #[doc(alias = "concurrency limit")]
    pub fn counting_semaphore(&self, name: &str, limit: u32) -> Result<CountingSemaphore, Error> {
        self.counting_semaphore_with(name, limit, self.semaphore_options())
    }

    /// Returns the counting semaphore called `name`, with the given options. No I/O.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::SemaphoreOptions;
    /// # let client = leasehold::Client::memory();
    /// let options = SemaphoreOptions::new().ttl(Duration::from_secs(10));
    /// let calls = client.counting_semaphore_with("slow-service", 5, options)?;
    /// assert_eq!(calls.limit(), 5);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the name, the limit or an option is out of bounds; the message says which and why.
    /// [`Error::Unsupported`] as for [`counting_semaphore`](Self::counting_semaphore).
    pub fn counting_semaphore_with(
        &self,
        name: &str,
        limit: u32,
        options: SemaphoreOptions,
    ) -> Result<CountingSemaphore, Error> {
        CountingSemaphore::new(Arc::clone(&self.engine), name, limit, &options)
    }

    /// Returns the fair semaphore called `name` with `limit` permits and default options. No I/O.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let gate = client.fair_semaphore("gate", 2)?;
    /// let both = gate.acquire_many(2).await?; // strictly in turn: no later request overtakes this one
    /// # drop(both);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`counting_semaphore`](Self::counting_semaphore).
    pub fn fair_semaphore(&self, name: &str, limit: u32) -> Result<FairSemaphore, Error> {
        self.fair_semaphore_with(name, limit, self.semaphore_options())
    }

    /// Returns the fair semaphore called `name`, with the given options. No I/O.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::SemaphoreOptions;
    /// # let client = leasehold::Client::memory();
    /// let options = SemaphoreOptions::new().max_hold(Duration::from_secs(60));
    /// let gate = client.fair_semaphore_with("gate", 2, options)?;
    /// assert_eq!(gate.limit(), 2);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`counting_semaphore_with`](Self::counting_semaphore_with).
    pub fn fair_semaphore_with(
        &self,
        name: &str,
        limit: u32,
        options: SemaphoreOptions,
    ) -> Result<FairSemaphore, Error> {
        FairSemaphore::new(Arc::clone(&self.engine), name, limit, &options)
    }

    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The address of the store, as errors show it: without a password.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.capabilities().store
    }

    /// What the store supports.
    ///
    /// ```
    /// let client = leasehold::Client::memory();
    /// assert!(client.capabilities().pushes_losses); // whoever loses a lock by force is told at once
    /// ```
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        self.engine.backend().capabilities()
    }

    /// Whether the store can currently be reached, as far as the client knows: this call sends nothing. On most stores
    /// a client of [`connect_lazy`](Self::connect_lazy) that has not been used yet stays disconnected, so a readiness
    /// probe should use [`ping`](Self::ping).
    ///
    /// The status of a server is the worst of all connections to it: a client that can request locks, but not renew
    /// them, is not connected. Connections that have not been needed yet do not count. A client that has not reached
    /// its store yet ([`connect_lazy`](Self::connect_lazy)) is disconnected. Each server that is not connected has a
    /// reason. The status of a store is that of its worst server; a Redlock store is connected while a majority is. In
    /// a process that was forked from the one in which the client was made, it is closed.
    ///
    /// ```
    /// # fn example(client: &leasehold::Client) -> (u16, String) {
    /// let state = client.state();
    /// if state.status.is_connected() {
    ///     return (200, "connected".to_owned());
    /// }
    /// // Such as `127.0.0.1:6379 is disconnected (for 3.2s): Connection refused`.
    /// (503, state.nodes.iter().map(|node| format!("{node}\n")).collect())
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> StoreState {
        if let Err(forked) = self.engine.check_process("state", None) {
            let node = NodeState::new(self.engine.backend().capabilities().store.clone(), Status::Closed);
            return StoreState::of(vec![node.because(Some(forked.to_string()))]);
        }
        let mut state = self.engine.backend().state();
        if self.engine.closing().is_closed() {
            state.status = Status::Closed;
        }
        state
    }

    /// A stream of state changes. The last state is `Closed`: the stream ends when the client is shut down. If several
    /// changes follow each other quickly, only the last of them is reported.
    ///
    /// To miss nothing, create the stream before looking at [`state`](Self::state).
    ///
    /// ```
    /// # use futures::StreamExt;
    /// # async fn example(client: leasehold::Client) {
    /// let mut changes = client.state_changes();
    /// while let Some(state) = changes.next().await {
    ///     println!("the store is {}", state.status);
    /// }
    /// # }
    /// ```
    pub fn state_changes(&self) -> impl Stream<Item = StoreState> + Send + Unpin + use<> {
        let closed = self.engine.closing().token().cancelled_owned();
        let changes = self.engine.backend().state_changes().take_until(closed);
        let mut known = self.state();
        let states = changes.map(Some).chain(once(ready(None))).map(move |change| {
            known = change.unwrap_or_else(|| StoreState { status: Status::Closed, ..known.clone() });
            known.clone()
        });
        states.boxed()
    }

    /// Sends a request to the server in use (to every primary of a cluster; to all nodes of a Redlock store, of which a
    /// majority must answer), and returns how long the answer took. For health checks.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// let took = client.ping(Duration::from_millis(500)).await?;
    /// println!("the store answered within {took:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if there is no answer within `time_limit`. [`Error::StoreRefused`] if this client
    /// cannot use a server. [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn ping(&self, time_limit: Duration) -> Result<Duration, Error> {
        let begun = Instant::now();
        self.engine.check_process("ping", None)?;
        if self.engine.closing().is_closed() {
            return Err(self.engine.error(BackendError::Closed, "ping", None));
        }
        let answered = timeout(time_limit, self.engine.backend().ping()).await;
        let late =
            |_| Err(BackendError::Unanswered { source: format!("no answer within {time_limit:?}").into() });
        answered.unwrap_or_else(late).map_err(|error| self.engine.error(error, "ping", None))?;
        Ok(begun.elapsed())
    }

    /// Checks the servers of the store for problems and risky settings, as [`connect`](Self::connect) does once.
    ///
    /// | found on a Redis or Valkey server | [`Severity`](crate::backend::Severity) | at connect |
    /// |---|---|---|
    /// | it is a replica, a cluster node (with the URL of a single server), or older than 6.2 | `Refused` | an error |
    /// | commands that this user may not run | `Refused` | an error |
    /// | a `maxmemory-policy` that evicts keys; one of several servers does not answer | `Warning` | logged at WARN |
    /// | nothing is kept on disk, and grants do not wait for replicas | `Info` | logged at INFO |
    ///
    /// Settings are checked only if the user may run `INFO` and `CONFIG GET`. The pages of the other stores in `docs/`
    /// say what is found there.
    ///
    /// ```
    /// # async fn example(client: leasehold::Client) -> Result<(), leasehold::Error> {
    /// for finding in client.check().await? {
    ///     println!("{:?}: {finding}", finding.severity);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if no server answers. [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn check(&self) -> Result<Vec<Finding>, Error> {
        self.engine.check_process("check", None)?;
        if self.engine.closing().is_closed() {
            return Err(self.engine.error(BackendError::Closed, "check", None));
        }
        self.engine.backend().check().await.map_err(|error| self.engine.error(error, "check", None))
    }

    /// Takes no new requests, lets holders finish, and then [shuts down](Self::shutdown): for a service that is told to
    /// stop. From the first poll on, new requests and those that wait fail with [`Error::Closed`]. What is held stays
    /// held and renewed until its guards are gone, for at most `limit`; guards that are left then lose their leases,
    /// for the reason [`ClientClosed`](crate::LossReason::ClientClosed). An owner of a [reentrant lock](ReentrantLock)
    /// can lock again what it holds in this client. `Election::run` steps down at once, and `Once::run` after the tick
    /// that it is running.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::Error;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// let work = tokio::spawn(async move { guard.release().await });
    /// client.close(Duration::from_secs(30)).await?;
    /// work.await.expect("it does not panic")?; // it was held until the end
    /// assert!(matches!(client.mutex("machine:43")?.lock().await, Err(Error::Closed { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`shutdown`](Self::shutdown), which takes up to 5 s in addition to `limit`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was polled, the client takes no new requests any more, and holders go on. Call
    /// `close` again to wait for them, or `shutdown` to end them.
    pub async fn close(&self, limit: Duration) -> Result<(), Error> {
        self.engine.close_within(limit).await
    }

    /// Shuts down everything that was created from this client: waiting requests fail with [`Error::Closed`], live
    /// guards lose their leases, everything is released in the store, and the connections are closed. Later requests
    /// fail with [`Error::Closed`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.mutex("machine:42")?.lock().await?;
    /// client.shutdown().await?; // released, even though the guard still exists
    /// assert!(!guard.is_held());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the store did not confirm all releases within 4.5 s: it says how many are left,
    /// and why. Their leases expire on their own. The connections are closed in any case, and all of it takes 5 s at
    /// most. A [`release`](crate::Guard::release) future that was polled, but still exists and is no longer polled,
    /// also delays the shutdown: drop it first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client is shut down, but some releases may still be pending; call `shutdown` again
    /// to continue.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.engine.shutdown().await
    }
}

/// The options of a client: see [`Client::builder`].
///
/// ```
/// # use leasehold::{Client, MutexOptions};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = Client::builder("memory:")
///     .label("importer-2")
///     .mutex_options(MutexOptions::new().prefix("shop:"))
///     .connect()
///     .await?;
/// # drop(client);
/// # Ok(()) }
/// ```
#[cfg_attr(feature = "serde", doc = include_str!("config.md"))]
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct ClientBuilder {
    source: Source,
    fail_fast: bool,
    label: Option<String>,
    defaults: Defaults,
    pub(crate) observers: Vec<Arc<dyn Observer>>,
}

/// Where the store is.
#[derive(Clone)]
enum Source {
    Url(String),
    Backend(Arc<dyn Backend>),
}

/// The options of what is created without any.
#[derive(Clone, Debug, Default)]
struct Defaults {
    mutex: MutexOptions,
    semaphore: SemaphoreOptions,
}

impl ClientBuilder {
    fn new(source: Source) -> Self {
        Self { source, fail_fast: false, label: None, defaults: Defaults::default(), observers: Vec::new() }
    }

    /// Whether requests, including those already waiting, fail at once with [`Error::StoreUnavailable`] while the store
    /// is known to be unreachable, which means that its [state](Client::state) is disconnected and has a reason. In a
    /// Redis cluster, only requests to an unreachable server fail. Releases and renewals are not affected. See also
    /// [`FailFast`](crate::backend::FailFast).
    ///
    /// Default: false. Then `try_lock` tries for 4 s, `lock` for 30 s or four TTLs, whichever is longer, and
    /// `lock_timeout` for as long as `lock` or until its time is up; a restart or a failover in the meantime delays
    /// them but is not an error.
    ///
    /// ```
    /// let client = leasehold::Client::builder("memory:").fail_fast(true).connect_lazy()?;
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// What the client is called at the store, for people who look at it: `inspect` and errors say who holds, and the
    /// connections to the store are named after it where the store has names for them. At most
    /// [`MAX_LABEL_BYTES`](crate::MAX_LABEL_BYTES), without control characters. The empty label is none.
    ///
    /// Default: the host name and the process id, such as `api-7 (pid 4711)`.
    ///
    /// ```
    /// # use leasehold::Client;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let client = Client::builder("memory:").label("importer-2").connect().await?;
    /// let mutex = client.mutex("machine:42")?;
    /// let guard = mutex.lock().await?;
    /// assert_eq!(mutex.inspect().await?.holders[0].label.as_deref(), Some("importer-2"));
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The options of locks that are created without any, such as a TTL and a prefix for all locks of a service. They
    /// are validated when a lock is created.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::{Client, MutexOptions};
    /// let options = MutexOptions::new().prefix("shop:").ttl(Duration::from_secs(10));
    /// let client = Client::builder("memory:").mutex_options(options).connect_lazy()?;
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn mutex_options(mut self, options: MutexOptions) -> Self {
        self.defaults.mutex = options;
        self
    }

    /// The options of semaphores that are created without any.
    ///
    /// ```
    /// # use leasehold::{Client, OnOtherLimit, SemaphoreOptions};
    /// let options = SemaphoreOptions::new().on_other_limit(OnOtherLimit::Follow);
    /// let client = Client::builder("memory:").semaphore_options(options).connect_lazy()?;
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn semaphore_options(mut self, options: SemaphoreOptions) -> Self {
        self.defaults.semaphore = options;
        self
    }

    /// Connects.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::Client::builder("memory:").connect().await?;
    /// # drop(client);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Client::connect`]. [`Error::InvalidArgument`] for a label that is too long or contains control
    /// characters.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<Client, Error> {
        let label = label::label(self.label.as_deref())?;
        let backend = match self.source {
            Source::Url(url) if self.fail_fast => by_url::connect_fail_fast(&url, label.as_deref()).await?,
            Source::Url(url) => by_url::connect(&url, label.as_deref()).await?,
            Source::Backend(backend) => given(backend, self.fail_fast),
        };
        Ok(Client::new(backend, label, self.defaults).observed_by(self.observers))
    }

    /// Creates a client that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// ```
    /// let client = leasehold::Client::builder("memory:").connect_lazy()?; // the store may start later
    /// # drop(client);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Client::connect_lazy`].
    pub fn connect_lazy(self) -> Result<Client, Error> {
        let label = label::label(self.label.as_deref())?;
        let backend = match self.source {
            Source::Url(url) if self.fail_fast => by_url::connect_lazy_fail_fast(&url, label.as_deref())?,
            Source::Url(url) => by_url::connect_lazy(&url, label.as_deref())?,
            Source::Backend(backend) => given(backend, self.fail_fast),
        };
        Ok(Client::new(backend, label, self.defaults).observed_by(self.observers))
    }
}

fn given(backend: Arc<dyn Backend>, fail_fast: bool) -> Arc<dyn Backend> {
    if fail_fast { Arc::new(FailFast::new(backend)) } else { backend }
}

impl fmt::Debug for ClientBuilder {
    /// Leaves out the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("fail_fast", &self.fail_fast).finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("store", &self.engine.backend().capabilities().store)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn debug_output_of_handles_is_short() -> Result<(), Error> {
        let client = Client::memory();
        let mut guards = Vec::new();
        for n in 0..1000 {
            guards.push(client.mutex(&n.to_string())?.lock().await?);
        }
        let store = "store: \"memory:\"";
        assert_eq!(format!("{client:?}"), format!("Client {{ {store}, .. }}"));
        let mutex = client.mutex("a")?;
        assert_eq!(format!("{mutex:?}"), format!("DistMutex {{ name: \"a\", {store}, .. }}"));
        let lock = client.reentrant_lock("a", "me")?;
        assert_eq!(
            format!("{lock:?}"),
            format!("ReentrantLock {{ name: \"a\", {store}, owner: \"me\", .. }}")
        );
        let counting = client.counting_semaphore("a", 5)?;
        let limited = format!("{{ name: \"a\", {store}, limit: 5, .. }}");
        assert_eq!(format!("{counting:?}"), format!("CountingSemaphore {limited}"));
        assert_eq!(format!("{:?}", client.fair_semaphore("a", 5)?), format!("FairSemaphore {limited}"));
        Ok(())
    }
}
