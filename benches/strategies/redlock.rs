//! The crate `rslock`, on one server, retried until the lock is granted.

use std::time::{Duration, Instant};

use rslock::{Lock, LockError, LockManager};

use crate::common::turns::Contender;
use crate::common::{LEASE, Result};

#[derive(Clone)]
pub(crate) struct Redlock {
    manager: LockManager,
    key: String,
}

impl Redlock {
    /// Retries after up to `delay`, or as the crate does by default.
    pub(crate) fn new(url: &str, key: &str, delay: Option<Duration>) -> Self {
        let mut manager = LockManager::new(vec![url]);
        if let Some(delay) = delay {
            manager.set_retry(3, delay);
        }
        Self { manager, key: key.to_owned() }
    }
}

impl Contender for Redlock {
    type Held = Lock;

    async fn acquire(&self, until: Instant) -> Result<Option<Lock>> {
        while Instant::now() < until {
            match self.manager.lock(self.key.as_str(), LEASE).await {
                Ok(lock) => return Ok(Some(lock)),
                // Three attempts were in vain.
                Err(LockError::Unavailable) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    async fn release(&self, lock: Lock) -> Result<()> {
        self.manager.unlock(&lock).await;
        Ok(())
    }
}
