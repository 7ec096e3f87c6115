//! The entrance: one client per store, from which the primitives come.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Backend, MemoryBackend};
use crate::error::Error;
use crate::fair_semaphore::FairSemaphore;
use crate::lease::Engine;
use crate::mutex::DistMutex;
use crate::options::{MutexOptions, SemaphoreOptions};
use crate::reentrant::ReentrantLock;
use crate::semaphore::CountingSemaphore;

/// A connection to a store, shared by everything that comes from it. Cheap to clone.
///
/// Each client has one background task for renewals and releases, and one subscription for wake-ups, however
/// many locks and waiters it has. The task runs on the tokio runtime of the first request, which needs its
/// timer (and its I/O, for Redis) enabled. A client of a Redis server lives on the runtime on which it was connected.
///
/// When the last handle (clients, primitives and guards) is gone, what is still owed to the store is released
/// and the connections close. To wait for that, call [`shutdown`](Self::shutdown).
#[derive(Clone)]
pub struct Client {
    engine: Arc<Engine>,
}

impl Client {
    /// Connects to the store that `url` names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory:` | this process; every call makes a new, empty store |
    /// | `redis://[[user:]password@]host[:port][/database]` | one Redis or Valkey server |
    /// | `valkey://...` | the same |
    /// | `redis+unix:///path/to/socket`, `redis+unix://user:password@x/path` | the same over a unix socket |
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the URL cannot be read.
    /// * [`Error::Unsupported`] if this build does not speak its scheme.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached within 2 s, with its address.
    /// * [`Error::StoreRefused`] if it refuses the credentials, or does not let this user subscribe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        if url == "memory:" {
            return Ok(Self::memory());
        }
        #[cfg(feature = "redis")]
        {
            let backend = crate::backend::RedisBackend::connect(url).await?;
            Ok(Self::with_backend(Arc::new(backend)))
        }
        #[cfg(not(feature = "redis"))]
        {
            let scheme = url.split(':').next().unwrap_or_default().to_owned();
            match scheme.as_str() {
                "redis" | "redis+unix" => Err(Error::Unsupported {
                    store: scheme,
                    what: "this build lacks the feature `redis`".to_owned(),
                }),
                _ => Err(Error::invalid("url", "it is not `memory:`, the only store this build has")),
            }
        }
    }

    /// A client of a new, empty store inside this process.
    #[must_use]
    pub fn memory() -> Self {
        Self::with_backend(Arc::new(MemoryBackend::new()))
    }

    /// A client of any store that keeps the [contract](crate::backend).
    ///
    /// The client takes the backend over: shutting it down closes the backend, for other clients on it as well.
    #[must_use]
    pub fn with_backend(backend: Arc<dyn Backend>) -> Self {
        Self { engine: Arc::new(Engine::new(backend)) }
    }

    /// The mutex called `name`, with default options. Local, no I/O: nothing exists in the store until it is
    /// locked.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `name` is empty or longer than 512 bytes. (With a prefix that is empty or starts
    /// with `{`, also if prefix and name make a key that stands beside another lock, such as `{lock:a}:queue`.)
    pub fn mutex(&self, name: &str) -> Result<DistMutex, Error> {
        self.mutex_with(name, MutexOptions::new())
    }

    /// The mutex called `name`, with the given options. Local, no I/O.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the name or an option is out of bounds; the message says which and why.
    pub fn mutex_with(&self, name: &str, options: MutexOptions) -> Result<DistMutex, Error> {
        DistMutex::new(Arc::clone(&self.engine), name, &options)
    }

    /// The reentrant lock called `name`, with default options, for a new owner that this handle and its clones are. Local,
    /// no I/O. It is the same lock as the mutex of that name.
    ///
    /// # Errors
    ///
    /// As for [`mutex`](Self::mutex).
    pub fn reentrant_lock(&self, name: &str) -> Result<ReentrantLock, Error> {
        self.reentrant_lock_with(name, MutexOptions::new())
    }

    /// The reentrant lock called `name`, with the given options. Local, no I/O.
    ///
    /// # Errors
    ///
    /// As for [`mutex_with`](Self::mutex_with).
    pub fn reentrant_lock_with(&self, name: &str, options: MutexOptions) -> Result<ReentrantLock, Error> {
        ReentrantLock::new(Arc::clone(&self.engine), name, &options)
    }

    /// The counting semaphore called `name` with so many permits, with default options. Local, no I/O: whether the limit
    /// is the one in force is seen by the first request.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `limit` is 0, or as for [`mutex`](Self::mutex).
    pub fn counting_semaphore(&self, name: &str, limit: u32) -> Result<CountingSemaphore, Error> {
        self.counting_semaphore_with(name, limit, SemaphoreOptions::new())
    }

    /// The counting semaphore called `name`, with the given options. Local, no I/O.
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

    /// The fair semaphore called `name` with so many permits, with default options. Local, no I/O.
    ///
    /// # Errors
    ///
    /// As for [`counting_semaphore`](Self::counting_semaphore).
    pub fn fair_semaphore(&self, name: &str, limit: u32) -> Result<FairSemaphore, Error> {
        self.fair_semaphore_with(name, limit, SemaphoreOptions::new())
    }

    /// The fair semaphore called `name`, with the given options. Local, no I/O.
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

    /// Ends everything that comes from this client: waiting requests fail with [`Error::Closed`], live guards
    /// lose their leases, all of it is released in the store, and the connections close. Later requests fail
    /// with [`Error::Closed`].
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`] if the store did not confirm all releases within 5 s; what is left runs out
    /// within a lease. A `lock()` future that still exists and is not polled is waited for as well: drop it first. The
    /// connections are closed all the same.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the client shut down, but possibly not drained; calling again goes on.
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
