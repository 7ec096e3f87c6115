//! A lock that its owner can acquire again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Claim, Detail, Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::label::with_note;
use crate::lease::{Engine, Wait};
use crate::name::{self, MAX_NAME_BYTES};
use crate::options::MutexOptions;
use crate::primitive::Primitive;

/// A lock that at most one **owner** holds at a time, and that this owner can acquire again while holding it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let order = client.reentrant_lock("stock", "order-42")?;
/// let outer = order.lock().await?;
/// let inner = order.lock().await?; // does not deadlock
/// assert_eq!(outer.token(), inner.token());
/// drop(outer);
/// assert!(client.reentrant_lock("stock", "order-43")?.try_lock().await?.is_none(), "other owners have to wait");
/// inner.release().await?;
/// assert!(client.mutex("stock")?.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
///
/// # Owners
///
/// An owner is never a thread or a task, which are short-lived and have no identity in other processes. It is the name
/// that [`Client::reentrant_lock`](crate::Client::reentrant_lock) is given: all handles that name the same owner, in
/// any process, are that owner, for instance all steps of one order, wherever they run. For an owner that nobody else
/// can be, use a random name, such as a new UUID.
///
/// # Reentrancy
///
/// Within a client (and its clones), an owner that holds the lock re-enters without asking the store: the new [`Guard`]
/// shares the lease of the first. In other clients and processes the store admits the owner at once, ahead of all
/// waiters, with a separate lease. So a crashing process loses only its own holds, and the lock becomes free when the
/// last hold of the owner is gone. Guards can be dropped in any order. All of them carry the same token (on Redlock,
/// that of a later guard may be greater), so a fence rejects earlier owners, but not a process that lost its hold while
/// its owner still has others.
///
/// # Fairness
///
/// Different owners are served in the order in which they arrive at the store. They share one queue with the
/// waiters of a [`DistMutex`](crate::DistMutex) with the same prefix and name, which is the same lock. A client that
/// holds the mutex of that name may first pass it on among its tasks, within the bounds of
/// [`MutexOptions::local_handover`](crate::MutexOptions::local_handover).
///
/// # On Redis
///
/// The lock key follows the canonical recipe, as for the mutex, so this lock and clients of other libraries exclude
/// each other.
#[doc(alias = "recursive")]
#[doc(alias = "RLock")]
#[derive(Clone)]
pub struct ReentrantLock {
    primitive: Primitive,
    owner: Arc<str>,
    /// `Claim::Owner` of the owner.
    claim: Claim,
}

impl ReentrantLock {
    pub(crate) fn new(
        engine: Arc<Engine>,
        name: &str,
        owner: &str,
        options: &MutexOptions,
    ) -> Result<Self, Error> {
        let resource = name::resource(options.key_prefix(), name, Kind::Reentrant)?;
        let primitive = Primitive::new(engine, resource, options.validate()?)?;
        if owner.is_empty() {
            return Err(Error::invalid("owner", "it is empty"));
        }
        if owner.len() > MAX_NAME_BYTES {
            let why = format!("it has {} bytes, more than the limit of {MAX_NAME_BYTES}", owner.len());
            return Err(Error::invalid("owner", why));
        }
        let owner: Arc<str> = owner.into();
        Ok(Self { primitive, claim: Claim::Owner(Arc::clone(&owner)), owner })
    }

    with_note!(primitive);

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.primitive.name()
    }

    /// The owner's name.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Acquires the lock: at once if this owner already holds it, otherwise waiting as long as necessary.
    ///
    /// The maximum hold time is measured from the first of the nested guards within a client. If this client has just
    /// dropped the owner's last guard, the call first waits for its release, for up to 1 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let order = client.reentrant_lock("stock", "order-42")?;
    /// let guard = order.lock().await?; // waits as long as necessary
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock`](crate::DistMutex::lock).
    ///
    /// # Panics
    ///
    /// As for [`DistMutex::lock`](crate::DistMutex::lock).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: it gives up its place in the queue,
    /// and anything it was granted is released in the background.
    pub async fn lock(&self) -> Result<Guard, Error> {
        match self.primitive.reenter(&self.owner) {
            Some(guard) => Ok(guard),
            None => self.primitive.acquire(&self.claim, Wait::Forever).await,
        }
    }

    /// Acquires the lock if this owner already holds it, or if nobody holds it or waits for it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let order = client.reentrant_lock("stock", "order-42")?;
    /// match order.try_lock().await? {
    ///     Some(guard) => guard.release().await?,
    ///     None => println!("somebody else has it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::try_lock`](crate::DistMutex::try_lock).
    ///
    /// # Panics
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        match self.primitive.reenter(&self.owner) {
            Some(guard) => Ok(Some(guard)),
            None => self.primitive.try_acquire(&self.claim).await,
        }
    }

    /// Acquires the lock: at once if this owner already holds it, otherwise waiting for at most `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let guard = client.reentrant_lock("stock", "order-42")?.lock_timeout(Duration::from_secs(5)).await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock_timeout`](crate::DistMutex::lock_timeout).
    ///
    /// # Panics
    ///
    /// As for [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        match self.primitive.reenter(&self.owner) {
            Some(guard) => Ok(guard),
            None => self.primitive.acquire(&self.claim, Wait::timeout(timeout)).await,
        }
    }

    /// Returns who holds the lock and who waits for it, with one holder per lease. This is a snapshot and may already
    /// be out of date.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let order = client.reentrant_lock("stock", "order-42")?;
    /// let guard = order.lock().await?;
    /// println!("held by {:?}", order.inspect().await?.holder());
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::inspect`](crate::DistMutex::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the call changes nothing.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.primitive.inspect(Detail::Full).await
    }

    /// Takes the lock, with all its holds, away from its owner, and gives it to the next waiter. Returns `false` if
    /// nobody held it. See [`DistMutex::force_release`](crate::DistMutex::force_release) for how the holders are
    /// notified.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::memory();
    /// let order = client.reentrant_lock("stock", "order-42")?;
    /// let stuck = order.lock().await?;
    /// order.force_release().await?; // its holder is told, and the next waiter has the lock
    /// stuck.lost().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::force_release`](crate::DistMutex::force_release).
    ///
    /// # Cancel safety
    ///
    /// As for [`DistMutex::force_release`](crate::DistMutex::force_release).
    #[doc(alias = "break")]
    #[doc(alias = "steal")]
    #[doc(alias = "unlock")]
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.primitive.force_release().await
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.primitive.debug("ReentrantLock", f).field("owner", &self.owner).finish_non_exhaustive()
    }
}
