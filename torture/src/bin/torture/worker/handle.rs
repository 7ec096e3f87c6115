//! Everything that the crate can lock, and each way to ask for it.

use std::ops::Deref;
use std::time::Duration;

use leasehold::{
    CountingSemaphore, DistMutex, Error, FairSemaphore, Guard, LockAll, Locks, ReentrantLock, RwLock,
    WriteGuard,
};

use crate::sites::READERS;

/// What can be asked for.
pub(super) trait Request: Sync {
    /// What comes of it.
    type Held: Send;

    fn wait(&self) -> impl Future<Output = Result<Self::Held, Error>> + Send;

    fn wait_for(&self, limit: Duration) -> impl Future<Output = Result<Self::Held, Error>> + Send;

    fn try_now(&self) -> impl Future<Output = Result<Option<Self::Held>, Error>> + Send;
}

impl Request for LockAll {
    type Held = Locks;

    async fn wait(&self) -> Result<Locks, Error> {
        self.lock().await
    }

    async fn wait_for(&self, limit: Duration) -> Result<Locks, Error> {
        self.lock_timeout(limit).await
    }

    async fn try_now(&self) -> Result<Option<Locks>, Error> {
        self.try_lock().await
    }
}

/// One thing that is asked for.
pub(super) enum Handle {
    Mutex(DistMutex),
    Reentrant(ReentrantLock),
    Counting(CountingSemaphore),
    Fair(FairSemaphore, u32),
    Read(RwLock),
    Write(RwLock),
}

/// What is held.
pub(super) enum Held {
    Guard(Guard),
    Write(WriteGuard),
}

impl Deref for Held {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        match self {
            Self::Guard(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}

impl Held {
    pub(super) async fn release(self) -> Result<(), Error> {
        match self {
            Self::Guard(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }

    /// In two parts at the same time, if it is more than one permit.
    pub(super) fn split(self) -> (Self, Option<Guard>) {
        match self {
            Self::Guard(mut guard) => {
                let part = guard.split(1);
                (Self::Guard(guard), part)
            }
            whole => (whole, None),
        }
    }
}

impl Handle {
    pub(super) const fn permits(&self) -> u32 {
        match self {
            Self::Fair(_, permits) => *permits,
            Self::Write(_) => READERS,
            _ => 1,
        }
    }
}

impl Request for Handle {
    type Held = Held;

    async fn wait(&self) -> Result<Held, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock().await.map(Held::Guard),
            Self::Reentrant(lock) => lock.lock().await.map(Held::Guard),
            Self::Counting(semaphore) => semaphore.acquire().await.map(Held::Guard),
            Self::Fair(semaphore, permits) => semaphore.acquire_many(*permits).await.map(Held::Guard),
            Self::Read(lock) => lock.read().await.map(Held::Guard),
            Self::Write(lock) => lock.write().await.map(Held::Write),
        }
    }

    async fn wait_for(&self, limit: Duration) -> Result<Held, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock_timeout(limit).await.map(Held::Guard),
            Self::Reentrant(lock) => lock.lock_timeout(limit).await.map(Held::Guard),
            Self::Counting(semaphore) => semaphore.acquire_timeout(limit).await.map(Held::Guard),
            Self::Fair(semaphore, permits) => {
                semaphore.acquire_many_timeout(*permits, limit).await.map(Held::Guard)
            }
            Self::Read(lock) => lock.read_timeout(limit).await.map(Held::Guard),
            Self::Write(lock) => lock.write_timeout(limit).await.map(Held::Write),
        }
    }

    async fn try_now(&self) -> Result<Option<Held>, Error> {
        Ok(match self {
            Self::Mutex(mutex) => mutex.try_lock().await?.map(Held::Guard),
            Self::Reentrant(lock) => lock.try_lock().await?.map(Held::Guard),
            Self::Counting(semaphore) => semaphore.try_acquire().await?.map(Held::Guard),
            Self::Fair(semaphore, permits) => semaphore.try_acquire_many(*permits).await?.map(Held::Guard),
            Self::Read(lock) => lock.try_read().await?.map(Held::Guard),
            Self::Write(lock) => lock.try_write().await?.map(Held::Write),
        })
    }
}
