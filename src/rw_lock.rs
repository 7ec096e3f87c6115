//! A lock for many readers or one writer, shared by many processes.
//!
//! It is a fair semaphore with a fixed limit: a reader holds one permit, a writer all of them. The order of arrival,
//! the expiry of dead holders and the tokens are those of the semaphore, and a downgrade returns permits of a lease
//! that goes on.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Claim, Detail, Inspection, Kind, Limit};
use crate::client::Client;
use crate::error::Error;
use crate::guard::Guard;
use crate::label::with_note;
use crate::lease::{Engine, StatedLimit, Wait};
use crate::name;
use crate::options::{MutexOptions, within};
use crate::primitive::Primitive;

/// A lock that any number of readers, or one writer, can hold at a time among all processes that use the same store.
///
/// Cheap to clone. All clones, and all read/write locks with the same prefix and name on the same store, are the same
/// lock. It is not reentrant: a task that holds it for writing and asks for it again deadlocks, and so does one that
/// holds it for reading and asks again, for reading or writing, while a writer waits.
///
/// # Order
///
/// Requests are served strictly in the order in which they arrive at the store, so neither side starves: readers that
/// arrive after a waiting writer wait behind it, and a writer waits only for those that arrived before it. Readers next
/// to each other in the queue are admitted together. `try_read` and `try_write` overtake nobody. An unreachable waiter
/// is skipped and keeps its place; a dead one is removed within one TTL.
///
/// # Tokens
///
/// Each grant, for reading or writing, has a token greater than all earlier ones, so the tokens of writers fence: a
/// resource that remembers the newest token of a *writer* rejects a writer that has lost its lease. Readers hold the
/// lock together, so a resource that also remembered their tokens would reject legitimate readers. A downgraded guard
/// keeps its token.
///
/// # Key
///
/// The key is the prefix of the [`MutexOptions`], which is empty by default here, followed by `rwlock:` and the name.
/// So a read/write lock never meets a mutex or a semaphore of that name, even if a client gives all its keys the same
/// prefix. In the store, and in [`inspect`](Self::inspect), it is a fair semaphore with
/// [`MAX_READERS`](Self::MAX_READERS) permits. Stores without semaphores do not have it (Redlock).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let lock = leasehold::Client::memory().rw_lock("prices")?;
/// let (one, other) = (lock.read().await?, lock.read().await?);
/// assert!(lock.try_write().await?.is_none(), "two are reading");
/// one.release().await?;
/// other.release().await?;
/// let writing = lock.write().await?;
/// assert!(lock.try_read().await?.is_none(), "one is writing");
/// let reading = writing.downgrade().await?; // no other writer comes in between
/// assert!(lock.try_read().await?.is_some());
/// # drop(reading);
/// # Ok(()) }
/// ```
#[doc(alias = "shared lock")]
#[doc(alias = "exclusive lock")]
#[doc(alias = "reader-writer lock")]
#[derive(Clone)]
pub struct RwLock {
    primitive: Primitive,
    limit: Arc<StatedLimit>,
}

impl Client {
    /// Returns the read/write lock called `name`, with default options. No I/O: nothing exists in the store until it is
    /// locked.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] as for [`mutex`](Self::mutex). [`Error::Unsupported`] if the store does not support
    /// semaphores, because a read/write lock is one (Redlock does not).
    pub fn rw_lock(&self, name: &str) -> Result<RwLock, Error> {
        self.rw_lock_with(name, self.mutex_options())
    }

    /// Returns the read/write lock called `name`, with the given options, of which `local_handover` has no effect. No
    /// I/O.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] as for [`mutex_with`](Self::mutex_with), and [`Error::Unsupported`] as for
    /// [`rw_lock`](Self::rw_lock).
    pub fn rw_lock_with(&self, name: &str, options: MutexOptions) -> Result<RwLock, Error> {
        RwLock::new(self.engine(), name, options)
    }
}

impl RwLock {
    /// How many readers can hold the lock at the same time. Further ones wait until one of them has left, and
    /// `try_read` returns `None`.
    ///
    /// The number costs nothing: no store keeps a record for a permit that nobody holds.
    pub const MAX_READERS: u32 = 1_000_000;

    fn new(engine: &Arc<Engine>, name: &str, options: MutexOptions) -> Result<Self, Error> {
        let options = options.within(within::RW_LOCK);
        let resource = name::resource(options.key_prefix(), name, Kind::Fair)?;
        let primitive = Primitive::new(Arc::clone(engine), resource, options.validate_without_handover()?);
        let primitive = primitive.map_err(|error| match error {
            Error::Unsupported { store, reason } => Error::Unsupported {
                store,
                reason: format!("a read/write lock is a fair semaphore: {reason}"),
            },
            error => error,
        })?;
        let limit = Arc::new(StatedLimit::new(Limit::stated(Self::MAX_READERS)));
        Ok(Self { primitive: Primitive { limit: Some(Arc::clone(&limit)), ..primitive }, limit })
    }

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.primitive.name()
    }

    with_note!(primitive);

    /// Locks for reading, together with other readers, waiting as long as necessary until every request that arrived
    /// earlier was served and no writer holds the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let reading = client.rw_lock("prices")?.read().await?; // together with other readers
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock`](crate::DistMutex::lock).
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: it gives up its place in the queue, and
    /// anything it was granted is released in the background.
    pub async fn read(&self) -> Result<Guard, Error> {
        self.primitive.acquire(&self.one_reader(), Wait::Forever).await
    }

    /// Locks for reading if no writer holds the lock and nobody waits for it.
    ///
    /// If this client has just dropped a guard of the same lock, the call first waits for its release, for up to 1 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let reading = client.rw_lock("prices")?.try_read().await?;
    /// assert!(reading.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::try_lock`](crate::DistMutex::try_lock).
    ///
    /// # Panics
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn try_read(&self) -> Result<Option<Guard>, Error> {
        self.primitive.try_acquire(&self.one_reader()).await
    }

    /// Locks for reading, waiting for at most `timeout`. However short the timeout, the call waits up to 100 ms for a
    /// first answer from the store.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let reading = client.rw_lock("prices")?.read_timeout(Duration::from_secs(5)).await?;
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock_timeout`](crate::DistMutex::lock_timeout).
    ///
    /// # Panics
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn read_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        self.primitive.acquire(&self.one_reader(), Wait::timeout(timeout)).await
    }

    /// Locks for writing, alone, waiting as long as necessary until every request that arrived earlier was served and
    /// all their guards are gone.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let writing = client.rw_lock("prices")?.write().await?; // alone
    /// # drop(writing);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock`](crate::DistMutex::lock).
    ///
    /// # Panics
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.primitive.acquire(&self.writer(), Wait::Forever).await.map(WriteGuard)
    }

    /// Locks for writing if nobody holds the lock or waits for it.
    ///
    /// If this client has just dropped a guard of the same lock, the call first waits for its release, for up to 1 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let writing = client.rw_lock("prices")?.try_write().await?;
    /// assert!(writing.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::try_lock`](crate::DistMutex::try_lock).
    ///
    /// # Panics
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.primitive.try_acquire(&self.writer()).await?.map(WriteGuard))
    }

    /// Locks for writing, waiting for at most `timeout`. However short the timeout, the call waits up to 100 ms for a
    /// first answer from the store.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let writing = client.rw_lock("prices")?.write_timeout(Duration::from_secs(5)).await?;
    /// # drop(writing);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock_timeout`](crate::DistMutex::lock_timeout).
    ///
    /// # Panics
    ///
    /// As for [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// As for [`read`](Self::read).
    pub async fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard, Error> {
        self.primitive.acquire(&self.writer(), Wait::timeout(timeout)).await.map(WriteGuard)
    }

    /// Returns who holds the lock and who waits for it: a writer has [`MAX_READERS`](Self::MAX_READERS) permits, a
    /// reader one. This is a snapshot and may already be out of date.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let prices = client.rw_lock("prices")?;
    /// let reading = prices.read().await?;
    /// assert_eq!(prices.inspect().await?.holders.len(), 1);
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::StoreUnavailable`], [`Error::StoreRefused`] and [`Error::Closed`], as for [`try_read`](Self::try_read).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.primitive.inspect(Detail::Full).await
    }

    fn one_reader(&self) -> Claim {
        Claim::Permits(1, self.limit.get())
    }

    fn writer(&self) -> Claim {
        Claim::Permits(Self::MAX_READERS, self.limit.get())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primitive.debug("RwLock", f).finish_non_exhaustive()
    }
}

/// A [`RwLock`] held for writing. It is a [`Guard`] in all other respects: see there for what happens when it is
/// dropped, and when its lease is lost.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::memory();
/// let writing = client.rw_lock("prices")?.write().await?;
/// println!("UPDATE … WHERE token <= {}", writing.token());
/// writing.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "dropping the guard releases it at once"]
pub struct WriteGuard(pub(crate) Guard);

impl WriteGuard {
    /// Turns this into a guard for reading, which has the same lease and token, and lets the readers in that are next
    /// in the queue. No writer gets the lock in between: it was never free.
    ///
    /// If the store does not confirm that within 4 s, or refuses it, this is logged and the guard is returned all the
    /// same: it is held, and until the store has carried out the change, which is repeated in the background for a
    /// minute, or for the TTL if that is longer, other readers wait.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let prices = client.rw_lock("prices")?;
    /// let reading = prices.write().await?.downgrade().await?; // never free in between
    /// assert!(prices.try_read().await?.is_some());
    /// # drop(reading);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease was lost, at once also while the store does not answer, or the client was shut down.
    /// [`Error::Closed`] if it is shut down meanwhile.
    ///
    /// # Panics
    ///
    /// When it is polled outside a tokio runtime, or in one without timers. The guard is then released as if it had
    /// been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock, as dropping the guard does.
    pub async fn downgrade(self) -> Result<Guard, Error> {
        let Self(mut others) = self;
        let Some(reader) = others.split(1) else { return Ok(others) };
        // A store that does not answer must not keep the caller from being told of a loss.
        match reader.protect(others.release()).await? {
            Err(error) if reader.is_held() => {
                tracing::warn!(target: "leasehold::lease", name = %reader.name(), %error, "not downgraded yet: other readers have to wait");
                Ok(reader)
            }
            downgraded => downgraded.map(|()| reader),
        }
    }

    /// Releases the lock and waits until the store has confirmed it: see [`Guard::release`].
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`].
    ///
    /// # Panics
    ///
    /// As for [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Guard::release`].
    pub async fn release(self) -> Result<(), Error> {
        self.0.release().await
    }
}

impl Deref for WriteGuard {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteGuard")
            .field("name", &self.name())
            .field("token", &self.token().get())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
