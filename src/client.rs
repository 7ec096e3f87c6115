//! The entry point: one client per store, from which the primitives are created.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::ready;
use futures::stream::{Stream, StreamExt, once};
use tokio::time::timeout;

use crate::backend::{Backend, BackendError, Finding, MemoryBackend, Status, StoreState, by_url};
use crate::error::Error;
use crate::fair_semaphore::FairSemaphore;
use crate::lease::Engine;
use crate::mutex::DistMutex;
use crate::options::{MutexOptions, SemaphoreOptions};
use crate::reentrant::ReentrantLock;
use crate::semaphore::CountingSemaphore;

/// A connection to a store, shared by everything that is created from it. Cheap to clone.
///
/// Each client has one background task, no matter how many locks and waiters it has. It repeats the requests of waiters and
/// sends releases. It runs on the tokio runtime of the first request, whose timer must be enabled (and its I/O, for Redis). If that
/// runtime ends, the next call from another runtime starts the task again there.
///
/// A client of a Redis server keeps three connections (in a cluster, the first and the last of them to every primary). Those for commands and for notifications are on the runtime on which it was
/// connected; if that ends, the next call connects again from its own. The one for renewals is on a thread of this crate, which all
/// clients of the process share, so leases are renewed even while the threads of the application are blocked. Releases that are
/// pending when the runtime ends are sent from that thread. The leases of the memory store are renewed by the background task.
///
/// A runtime that exists and is not driven (a current-thread runtime outside `block_on`) neither repeats requests nor sends
/// releases, and calls from other runtimes wait for it.
///
/// When the last handle (client, primitive or guard) is dropped, pending releases are sent and the connections are
/// closed. To wait for that, call [`shutdown`](Self::shutdown).
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
}

impl Client {
    /// Connects to the store that `url` names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | this process; every call creates a new, empty store |
    /// | `sqlite:PATH[?options]` | the processes of this machine that share a file, with the feature `sqlite`: see `SqliteBackend` |
    /// | `redis://[[user:]password@]host[:port][/database]` | one Redis or Valkey server |
    /// | `valkey://...` | the same |
    /// | `redis+unix:///path/to/socket`, `redis+unix://user:password@x/path` | the same, over a Unix socket |
    /// | `redis-sentinel://[[user:]password@]host[:port],.../service[/database]` | the primary that these sentinels name |
    /// | `redis-cluster://[[user:]password@]host[:port],...` | a cluster, by some of its nodes |
    /// | `rediss://...`, `valkeys://...`, `rediss-sentinel://...`, `rediss-cluster://...` | the same over TLS, with the feature `rustls` or `native-tls` |
    /// | `redlock://[[user:]password@]host[:port],host[:port],...[/database][?options]` | a majority of independent servers: see `RedlockBackend` |
    ///
    /// User name, password, host and path are percent-decoded. Sentinels are connected to without credentials; those in the URL are
    /// for the servers that they watch.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the URL cannot be parsed.
    /// * [`Error::Unsupported`] if this build lacks the store's feature, which it names.
    /// * [`Error::StoreUnavailable`] if the server, or a majority of several, cannot be reached within 2 s, with its address; or at once
    ///   if its certificate is not accepted, it requires another one of the client, or only one of the two speaks TLS.
    /// * For an SQLite file, see `SqliteBuilder::connect`.
    /// * [`Error::StoreRefused`] if it rejects the credentials, does not allow this user what is needed, is a replica, a node of a cluster
    ///   (with a URL of a single server), or too old. See [`check`](Self::check) for what is traced as a warning.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Ok(Self::with_backend(by_url::connect(url).await?))
    }

    /// Creates a client of the store that `url` names, which connects when it is needed and goes on trying: a service may start before
    /// its store. Needs no runtime. A call while the store is away waits or fails as during an outage. [`state`](Self::state) says
    /// whether it is connected.
    ///
    /// What [`connect`](Self::connect) would refuse is refused when it is found: the state of a server that cannot carry locks stays
    /// disconnected, for that reason, and calls fail with [`Error::StoreRefused`]. What this user may not do is found by the first call.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] and [`Error::Unsupported`], as for [`connect`](Self::connect).
    pub fn connect_lazy(url: &str) -> Result<Self, Error> {
        Ok(Self::with_backend(by_url::connect_lazy(url)?))
    }

    /// Creates a client of a new, empty store inside this process.
    #[must_use]
    pub fn memory() -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new()))
    }

    /// Creates a client of any store that fulfils the [contract](crate::backend).
    ///
    /// The client takes over the backend: shutting the client down closes the backend, also for other clients that use it.
    #[must_use]
    pub fn with_backend(backend: Arc<dyn Backend>) -> Self {
        Self { engine: Arc::new(Engine::new(backend)) }
    }

    /// Returns the mutex called `name`, with default options. No I/O: nothing exists in the store until it is
    /// locked.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `name` is empty or longer than 512 bytes. (If the prefix is empty or starts
    /// with `{`, also if prefix and name form a key that belongs to another lock, such as `{lock:a}:queue`.)
    pub fn mutex(&self, name: &str) -> Result<DistMutex, Error> {
        self.mutex_with(name, MutexOptions::new())
    }

    /// Returns the mutex called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the name or an option is out of bounds; the message says which and why.
    pub fn mutex_with(&self, name: &str, options: MutexOptions) -> Result<DistMutex, Error> {
        DistMutex::new(Arc::clone(&self.engine), name, &options)
    }

    /// Returns the reentrant lock called `name`, with default options. The handle and its clones are a new owner. No I/O.
    /// It is the same lock as the mutex of that name.
    ///
    /// # Errors
    ///
    /// As for [`mutex`](Self::mutex).
    pub fn reentrant_lock(&self, name: &str) -> Result<ReentrantLock, Error> {
        self.reentrant_lock_with(name, MutexOptions::new())
    }

    /// Returns the reentrant lock called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// As for [`mutex_with`](Self::mutex_with).
    pub fn reentrant_lock_with(&self, name: &str, options: MutexOptions) -> Result<ReentrantLock, Error> {
        ReentrantLock::new(Arc::clone(&self.engine), name, &options)
    }

    /// Returns the counting semaphore called `name` with `limit` permits and default options. No I/O: the first request
    /// checks whether the limit is the one in force.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `limit` is 0, or as for [`mutex`](Self::mutex).
    pub fn counting_semaphore(&self, name: &str, limit: u32) -> Result<CountingSemaphore, Error> {
        self.counting_semaphore_with(name, limit, SemaphoreOptions::new())
    }

    /// Returns the counting semaphore called `name`, with the given options. No I/O.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the name, the limit or an option is out of bounds; the message says which and why.
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
    /// # Errors
    ///
    /// As for [`counting_semaphore`](Self::counting_semaphore).
    pub fn fair_semaphore(&self, name: &str, limit: u32) -> Result<FairSemaphore, Error> {
        self.fair_semaphore_with(name, limit, SemaphoreOptions::new())
    }

    /// Returns the fair semaphore called `name`, with the given options. No I/O.
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

    /// How the store can be reached at present, as far as the client knows: it sends nothing. For a readiness check.
    ///
    /// The state of a server is the worst of the connections to it: a client that can request locks, but not renew them, is not
    /// connected. Connections that have not been needed yet do not count. A client that has not reached its store yet
    /// ([`connect_lazy`](Self::connect_lazy)) is disconnected. Each server that is not connected says why. A store is as the worst of its
    /// servers; a Redlock is connected while a majority is.
    ///
    /// ```
    /// # fn example(client: &leasehold::Client) -> (u16, String) {
    /// let state = client.state();
    /// if state.status.is_connected() {
    ///     return (200, "ready".to_owned());
    /// }
    /// // Such as `127.0.0.1:6379 is disconnected for 3.2s: Connection refused`.
    /// (503, state.nodes.iter().map(|node| format!("{node}\n")).collect())
    /// # }
    /// ```
    #[must_use]
    pub fn state(&self) -> StoreState {
        let mut state = self.engine.backend().state();
        if self.engine.closing().is_closed() {
            state.status = Status::Closed;
        }
        state
    }

    /// The states to come, of which the last is closed: the stream ends when the client is shut down. If several follow each other
    /// quickly, only the last of them.
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

    /// Sends a request to every server of the store (of a Redlock, to a majority), and returns how long the answers took. For a
    /// health check.
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
    /// [`Error::StoreUnavailable`] if they did not answer within `time_limit`. [`Error::StoreRefused`] if a server cannot be used by
    /// this client. [`Error::Closed`] after a shutdown.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn ping(&self, time_limit: Duration) -> Result<Duration, Error> {
        let begun = Instant::now();
        if self.engine.closing().is_closed() {
            return Err(self.engine.error(BackendError::Closed, "ping", None));
        }
        let answered = timeout(time_limit, self.engine.backend().ping()).await;
        let late =
            |_| Err(BackendError::Unanswered { source: format!("no answer within {time_limit:?}").into() });
        answered.unwrap_or_else(late).map_err(|error| self.engine.error(error, "ping", None))?;
        Ok(begun.elapsed())
    }

    /// Looks at the servers of the store for what its user should know, as [`connect`](Self::connect) does once.
    ///
    /// | found on a Redis or Valkey server | [`Severity`](crate::backend::Severity) | at connect |
    /// |---|---|---|
    /// | it is a replica; a node of a cluster, with a URL of a single server; older than 6.2 | `Refused` | an error |
    /// | commands that this user may not run | `Refused` | an error |
    /// | a `maxmemory-policy` that evicts keys; one of several servers that does not answer | `Warning` | traced at WARN |
    /// | nothing is kept on disk, and no replicas are waited for | `Info` | traced at INFO |
    ///
    /// The last two are only found if the user may run `INFO` and `CONFIG GET`. Of an SQLite file, that it is on a network file system is a
    /// `Warning`.
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
        if self.engine.closing().is_closed() {
            return Err(self.engine.error(BackendError::Closed, "check", None));
        }
        self.engine.backend().check().await.map_err(|error| self.engine.error(error, "check", None))
    }

    /// Shuts down everything that was created from this client: waiting requests fail with [`Error::Closed`], live guards
    /// lose their leases, everything is released in the store, and the connections are closed. Later requests fail
    /// with [`Error::Closed`].
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the store did not confirm all releases within 5 s; the remaining leases expire
    /// on their own. The connections are closed in any case. A [`release`](crate::Guard::release) future that was polled, but
    /// still exists and is not polled any more, delays the shutdown as well: drop it first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client is shut down, but some releases may be pending; call it again to continue.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.engine.shutdown().await
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
    async fn handles_print_what_they_are_for_however_much_the_client_has_in_hand() -> Result<(), Error> {
        let client = Client::memory();
        let mut guards = Vec::new();
        for n in 0..1000 {
            guards.push(client.mutex(&n.to_string())?.lock().await?);
        }
        let store = "store: \"memory:\"";
        assert_eq!(format!("{client:?}"), format!("Client {{ {store}, .. }}"));
        let mutex = client.mutex("a")?;
        assert_eq!(format!("{mutex:?}"), format!("DistMutex {{ name: \"a\", {store}, .. }}"));
        let lock = client.reentrant_lock("a")?.with_owner("me")?;
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
