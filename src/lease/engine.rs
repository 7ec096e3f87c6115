//! What all primitives of one client share: the keeper and its tasks.

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::keeper::Keeper;
use crate::backend::Backend;
use crate::error::Error;

/// How long a shutdown takes at most. Releases that are not confirmed by then are left to expire.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// How much of that is for closing connections at least.
const CLOSING: Duration = Duration::from_millis(500);

/// A handle to the keeper of a client. The keeper's tasks end when the last handle to the client is gone; a clone of
/// the `Arc` that it dereferences to is no handle.
#[derive(Debug)]
pub(crate) struct Engine(Arc<Keeper>);

impl Engine {
    /// For a client with this label.
    pub(crate) fn new(backend: Arc<dyn Backend>, label: Option<Arc<str>>) -> Self {
        Self(Keeper::new(backend, label))
    }

    /// Takes no new requests, waits until everything that is held is released or `limit` is over, and shuts the client
    /// down.
    pub(crate) async fn close_within(&self, limit: Duration) -> Result<(), Error> {
        self.check_process("close", None)?;
        drop(self.drain());
        self.ensure_running();
        if timeout(limit, self.home.awaiting(pin!(self.drained()))).await.is_err() {
            tracing::warn!(target: "leasehold::client", ?limit, "closed with leases that are still held or not yet released");
        }
        self.shutdown().await
    }

    /// Shuts the client down: waiting requests fail, live leases are lost, everything is released, connections are
    /// closed.
    pub(crate) async fn shutdown(&self) -> Result<(), Error> {
        self.check_process("shutdown", None)?;
        let (end, given_up) = (Instant::now() + SHUTDOWN, self.given_up());
        self.close();
        self.ensure_running();
        let drained = timeout_at(end - CLOSING, self.home.awaiting(pin!(self.drained()))).await;
        let given_up = self.given_up() - given_up;
        let is_done = drained.is_ok() && given_up == 0;
        // Before the backend is closed, because then the releases that are left fail for that reason.
        let left = (!is_done).then(|| self.unconfirmed(given_up));
        // What takes longer ends on its own.
        let _ = timeout_at(end, self.backend.close()).await;
        self.abandoned.cancel();
        self.observers.closed();
        left.map_or(Ok(()), |left| Err(self.error(left, "shutdown", None)))
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
            // What a copy of this client would close, deregister or say goodbye to belongs to the process that has made
            // it.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.abandoned.cancel();
        self.observers.closed();
    }
}
