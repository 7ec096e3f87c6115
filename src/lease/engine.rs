//! What all primitives of one client share: the keeper and its tasks.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::keeper::Keeper;
use super::lease::Hold;
use super::reentry::Owners;
use super::release::ReleaseError;
use crate::backend::{Backend, BackendError};
use crate::closing::Closing;
use crate::error::Error;

/// How long a shutdown waits for releases to be confirmed before it leaves them to expire.
const DRAIN: Duration = Duration::from_secs(5);

/// A handle to the keeper of a client. The keeper's tasks end when the last handle to the client is gone.
#[derive(Debug)]
pub(crate) struct Engine {
    keeper: Arc<Keeper>,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self { keeper: Keeper::new(backend) }
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        self.keeper.backend()
    }

    pub(super) const fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    pub(crate) fn owners(&self) -> &Owners {
        self.keeper.owners()
    }

    pub(crate) fn closing(&self) -> &Closing {
        self.keeper.closing()
    }

    /// Starts the keeper's tasks on the current runtime unless they are running. Must be called within a runtime.
    pub(crate) fn ensure_running(&self) {
        self.keeper.ensure_running();
    }

    /// Releases a guard and its permits: to the next waiter of this client, or to the store, whose answer is awaited.
    pub(crate) async fn release(&self, hold: &Hold, permits: u32) -> Result<(), Error> {
        match self.keeper.release(hold, permits).await {
            Ok(()) => {
                tracing::debug!(name = %hold.name(), token = hold.token.get(), "released");
                Ok(())
            }
            Err(ReleaseError::Lost(reason)) => Err(hold.loss_error(reason)),
            Err(ReleaseError::Store(error)) => Err(self.error(error, "release", Some(hold.name()))),
        }
    }

    /// Releases a guard and its permits without waiting: a request to the store is sent in the background.
    pub(crate) fn abandon(&self, hold: &Hold, permits: u32) {
        self.keeper.abandon(hold, permits);
    }

    /// Shuts the client down: waiting requests fail, live leases are lost, everything is released, connections are closed.
    pub(crate) async fn shutdown(&self) -> Result<(), Error> {
        self.keeper.close();
        let drained = timeout(DRAIN, self.keeper.while_running(pin!(self.keeper.drained()))).await;
        self.backend().close().await;
        self.keeper.abandoned.cancel();
        let unconfirmed = match drained {
            Ok(true) => return Ok(()),
            Ok(false) => "the store did not confirm all releases".into(),
            Err(late) => late.into(),
        };
        Err(self.error(BackendError::Unanswered { source: unconfirmed }, "shutdown", None))
    }

    /// Adds the operation, the name and the store to a backend's error.
    pub(crate) fn error(&self, error: BackendError, step: &'static str, name: Option<&str>) -> Error {
        Error::from_backend(error, step, name, &self.backend().capabilities().store)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.keeper.abandoned.cancel();
    }
}
