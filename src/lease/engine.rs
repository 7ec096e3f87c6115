//! What all primitives of one client share: the keeper and its tasks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::keeper::Keeper;
use super::lease::Hold;
use super::reentry::Owners;
use super::release::ReleaseError;
use crate::backend::{Backend, BackendError};
use crate::background;
use crate::closing::Closing;
use crate::error::Error;

/// How long a shutdown waits for releases to be confirmed before it leaves them to expire.
const DRAIN: Duration = Duration::from_secs(5);
/// How long the end of a runtime waits for releases that are still pending.
const LAST_RELEASES: Duration = Duration::from_millis(100);

/// A handle to the keeper of a client. The keeper's tasks end when the last handle to the client is gone.
#[derive(Debug)]
pub(crate) struct Engine {
    keeper: Arc<Keeper>,
    task: Mutex<Option<JoinHandle<()>>>,
    /// Whether held leases are kept on the crate's own thread.
    own_thread: bool,
    /// Cancelled with the last handle, when no further release can be queued.
    abandoned: CancellationToken,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let keeper = Keeper::new(backend);
        let abandoned = CancellationToken::new();
        let own_thread = keeper.backend().capabilities().own_thread && keep_apart(&keeper, &abandoned);
        Self { keeper, task: Mutex::default(), own_thread, abandoned }
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

    /// Starts the keeper's task on the current runtime unless it is running. The first request does this, and a later one
    /// does it again if that runtime has ended in the meantime. Must be called within a runtime.
    pub(crate) fn ensure_running(&self) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            // Subscribed before the request is sent, so that no event caused by it is missed.
            let events = self.backend().events();
            let last = self.own_thread.then(|| LastReleases(Arc::clone(&self.keeper)));
            let keeper = Arc::clone(&self.keeper);
            let run = keeper.run(events, self.abandoned.clone(), !self.own_thread);
            *task = Some(tokio::spawn(async move {
                let _last = last;
                run.await;
            }));
        }
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
        self.ensure_running();
        let drained = timeout(DRAIN, self.keeper.drained()).await;
        self.backend().close().await;
        self.abandoned.cancel();
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

/// Starts keeping held leases on the crate's own thread. `false` if that thread cannot be started; they are then kept
/// on the caller's runtime.
fn keep_apart(keeper: &Arc<Keeper>, abandoned: &CancellationToken) -> bool {
    match background::handle() {
        Ok(background) => {
            background.spawn(Arc::clone(keeper).keep_held(abandoned.clone()));
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the crate's own thread could not be started: code that blocks its thread may lose its lease");
            false
        }
    }
}

/// Dropped when the keeper's task ends, perhaps because its runtime does. The end of the runtime waits for a moment until the
/// releases that are still pending are sent from the crate's own thread, because the end of the process may come next.
struct LastReleases(Arc<Keeper>);

impl Drop for LastReleases {
    fn drop(&mut self) {
        self.0.leave_runtime(LAST_RELEASES);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.abandoned.cancel();
    }
}
