//! What all primitives of one client share: the keeper and its tasks.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::keeper::Keeper;
use crate::backend::{Backend, BackendError};
use crate::error::Error;

/// How long a shutdown waits for releases to be confirmed before it leaves them to expire.
const DRAIN: Duration = Duration::from_secs(5);

/// A handle to the keeper of a client. The keeper's tasks end when the last handle to the client is gone; a clone of the `Arc` that it
/// dereferences to is no handle.
#[derive(Debug)]
pub(crate) struct Engine(Arc<Keeper>);

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self(Keeper::new(backend))
    }

    /// Shuts the client down: waiting requests fail, live leases are lost, everything is released, connections are closed.
    pub(crate) async fn shutdown(&self) -> Result<(), Error> {
        self.origin.check("shutdown", None)?;
        self.close();
        let drained = timeout(DRAIN, self.while_running(pin!(self.drained()))).await;
        self.backend.close().await;
        self.abandoned.cancel();
        let unconfirmed = match drained {
            Ok(true) => return Ok(()),
            Ok(false) => "the store did not confirm all releases".into(),
            Err(late) => late.into(),
        };
        Err(self.error(BackendError::Unanswered { source: unconfirmed }, "shutdown", None))
    }
}

impl Deref for Engine {
    type Target = Arc<Keeper>;

    fn deref(&self) -> &Arc<Keeper> {
        &self.0
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            // What a copy of this client would close, deregister or say goodbye to belongs to the process that has made it.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.abandoned.cancel();
    }
}
