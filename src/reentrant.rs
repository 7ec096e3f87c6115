//! A lock that its owner may take again.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::backend::{Claim, Detail, Inspection, Kind};
use crate::error::Error;
use crate::guard::Guard;
use crate::lease::Engine;
use crate::name::{MAX_NAME_BYTES, Name};
use crate::options::MutexOptions;
use crate::primitive::Primitive;

/// A lock that at most one **owner** has at a time, and that this owner may take again while it has it.
///
/// # Who the owner is
///
/// Never a thread or a task, which come and go and are not the same in another process. A handle made by
/// [`Client::reentrant_lock`](crate::Client::reentrant_lock) is an owner of its own, under a random name, and its clones
/// are the same owner: pass clones to whatever may come in again. [`with_owner`](Self::with_owner) names the owner, so
/// that other handles and other processes can be the same one: the steps of one order, say, wherever they run.
///
/// # Coming in again
///
/// Within a client (and its clones) an owner that holds the lock comes in again without a word to the store: the new
/// [`Guard`] shares the lease of the first. In other clients and processes the store lets it in at once, past everybody
/// who waits, under a lease of its own. So a process that crashes drops its holds and nobody else's, and the lock is free
/// when the last hold of the owner is gone. Guards may be dropped in any order. All of them carry the same token.
/// So a fence keeps earlier owners out, not a process that lost its hold while its owner has others.
///
/// # Fairness
///
/// Different owners are served in the order in which they arrive at the store, in one line with those who wait for a
/// [`DistMutex`](crate::DistMutex) of the same prefix and name, which is the same lock.
/// A client that holds the mutex of that name may pass it on among its tasks first, within the bounds of
/// [`MutexOptions::local_handover`](crate::MutexOptions::local_handover).
///
/// # On Redis
///
/// The lock key is the canonical recipe, as for the mutex, so that clients of other libraries exclude it and are excluded.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::memory();
/// let order = client.reentrant_lock("stock")?.with_owner("order-42")?;
/// let outer = order.lock().await?;
/// let inner = order.lock().await?; // no waiting for oneself
/// assert_eq!(outer.token(), inner.token());
/// drop(outer);
/// assert!(client.reentrant_lock("stock")?.try_lock().await?.is_none(), "somebody else has to wait");
/// inner.release().await?;
/// assert!(client.mutex("stock")?.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantLock {
    primitive: Primitive,
    owner: Arc<str>,
    /// `Claim::Owner` of the owner.
    claim: Claim,
}

impl ReentrantLock {
    pub(crate) fn new(engine: Arc<Engine>, name: &str, options: &MutexOptions) -> Result<Self, Error> {
        let name = Name::new(options.key_prefix(), name, Kind::Reentrant)?;
        let primitive = Primitive { engine, name, settings: options.validate()? };
        Ok(Self::owned(primitive, Uuid::new_v4().to_string().into()))
    }

    /// The same lock for the owner called `owner`, in place of this handle's own. All handles that name the same owner,
    /// in any process, are that owner.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if `owner` is empty or longer than 512 bytes.
    pub fn with_owner(self, owner: &str) -> Result<Self, Error> {
        if owner.is_empty() {
            return Err(Error::invalid("owner", "it is empty"));
        }
        if owner.len() > MAX_NAME_BYTES {
            let why = format!("it has {} bytes, the limit is {MAX_NAME_BYTES}", owner.len());
            return Err(Error::invalid("owner", why));
        }
        Ok(Self::owned(self.primitive, owner.into()))
    }

    fn owned(primitive: Primitive, owner: Arc<str>) -> Self {
        Self { primitive, claim: Claim::Owner(Arc::clone(&owner)), owner }
    }

    /// The name, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        self.primitive.name.as_str()
    }

    /// The owner.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Locks: at once if this owner has the lock, otherwise waiting in line for as long as it takes.
    ///
    /// The maximum hold time counts from the first of nested guards within a client.
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock`](crate::DistMutex::lock).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any await point and leaves nothing behind: its place in the queue is lost,
    /// and whatever it was granted is released in the background.
    pub async fn lock(&self) -> Result<Guard, Error> {
        match self.primitive.reenter(&self.owner) {
            Some(guard) => Ok(guard),
            None => self.primitive.acquire(&self.claim, None).await,
        }
    }

    /// Locks if this owner has the lock, or if nobody has it or waits for it.
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::try_lock`](crate::DistMutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        match self.primitive.reenter(&self.owner) {
            Some(guard) => Ok(Some(guard)),
            None => self.primitive.try_acquire(&self.claim, None).await,
        }
    }

    /// Locks: at once if this owner has the lock, otherwise waiting in line for at most `patience`.
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::lock_for`](crate::DistMutex::lock_for).
    ///
    /// # Cancel safety
    ///
    /// As for [`lock`](Self::lock).
    pub async fn lock_for(&self, patience: Duration) -> Result<Guard, Error> {
        match self.primitive.reenter(&self.owner) {
            Some(guard) => Ok(guard),
            None => self.primitive.acquire_for(&self.claim, patience, None).await,
        }
    }

    /// Tells who holds the lock and who waits for it; one holder per lease. A snapshot: it may be out of date on arrival.
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::inspect`](crate::DistMutex::inspect).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is changed.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.primitive.inspect(Detail::Everybody).await
    }

    /// Takes the lock away from whoever holds it, with all its holds, and gives it to the next waiter. `false` if nobody
    /// held it. See [`DistMutex::force_release`](crate::DistMutex::force_release) for what the holders are told.
    ///
    /// # Errors
    ///
    /// As for [`DistMutex::force_release`](crate::DistMutex::force_release).
    ///
    /// # Cancel safety
    ///
    /// As for [`DistMutex::force_release`](crate::DistMutex::force_release).
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.primitive.force_release().await
    }
}
