//! This crate.

use std::time::Instant;

use leasehold::{Client, DistMutex, Guard, MutexOptions};
use tokio::time::timeout_at;

use super::Result;
use super::turns::Contender;

#[derive(Clone)]
pub(crate) struct Ours {
    mutex: DistMutex,
}

impl Ours {
    pub(crate) async fn connect(url: &str, name: &str, local_handover: bool) -> Result<Self> {
        Ok(Self { mutex: Client::connect(url).await?.mutex_with(name, options(local_handover))? })
    }
}

impl Contender for Ours {
    type Held = Guard;

    async fn acquire(&self, until: Instant) -> Result<Option<Guard>> {
        match timeout_at(until.into(), self.mutex.lock()).await {
            Ok(guard) => Ok(Some(guard?)),
            Err(_) => Ok(None),
        }
    }

    async fn release(&self, guard: Guard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// With or without hand-over among the waiters of one client.
fn options(local_handover: bool) -> MutexOptions {
    MutexOptions::new().local_handover(local_handover)
}
