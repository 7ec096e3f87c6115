//! A store whose calls fail at once while it is known to be unreachable.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, ready};
use futures::stream::{BoxStream, select};
use futures::{FutureExt, StreamExt};
use tokio::sync::Semaphore;

use super::{
    Answer, Answered, Backend, BackendError, Capabilities, Detail, Event, Finding, Inspection, LeaseId,
    LeaseRef, Limit, Listed, Released, Renew, Request, Resource, Status, StoreState, delegate,
};
use crate::home::Home;
use crate::runtime::spawn_on;
use crate::sync::Handle;

/// Any store, whose requests fail at once with [`BackendError::FailedFast`] while it is known to be unreachable, those
/// that wait included. Renewals and releases are not affected: they are repeated. See
/// [`ClientBuilder::fail_fast`](crate::ClientBuilder::fail_fast).
///
/// A store that has not been tried yet is not known to be unreachable, so a client that connects when needed tries it
/// with its first request. While requests fail, the store is still pinged whenever one does, one ping at a time: so the
/// client finds out when it is back, even if nothing else of it talks to the store.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::backend::FailFast;
/// use leasehold::{Client, MemoryBackend};
///
/// let client = Client::with_backend(Arc::new(FailFast::new(Arc::new(MemoryBackend::new()))));
/// # drop(client);
/// ```
#[derive(Debug)]
pub struct FailFast {
    store: Arc<dyn Backend>,
    /// A permit for the ping that is under way.
    pings: Arc<Semaphore>,
}

impl FailFast {
    /// The same store, with requests that fail fast.
    #[must_use]
    pub fn new(store: Arc<dyn Backend>) -> Self {
        Self { store, pings: Arc::new(Semaphore::new(1)) }
    }

    fn check(&self) -> Result<(), BackendError> {
        let Some(why) = unreachable(&self.store.state()) else { return Ok(()) };
        if let Ok(runtime) = Handle::try_current()
            && let Ok(permit) = Arc::clone(&self.pings).try_acquire_owned()
        {
            let store = Arc::clone(&self.store);
            spawn_on(&runtime, async move {
                // How it went is seen in the state.
                drop(store.ping().await);
                drop(permit);
            });
        }
        Err(BackendError::FailedFast { source: why.into() })
    }

    /// What `call` returns, unless the store is known to be unreachable.
    fn unless_unreachable<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a dyn Backend) -> BoxFuture<'a, Result<T, BackendError>>,
    ) -> BoxFuture<'a, Result<T, BackendError>> {
        match self.check() {
            Ok(()) => call(&*self.store),
            Err(error) => ready(Err(error)).boxed(),
        }
    }
}

/// Why the store cannot be reached, if that is known of each server that is not connected: one that has not been tried
/// yet has no reason.
fn unreachable(state: &StoreState) -> Option<String> {
    let away: Vec<_> = state.nodes.iter().filter(|node| !node.status.is_connected()).collect();
    let is_known = !away.is_empty() && away.iter().all(|node| node.reason.is_some());
    (is_known && matches!(state.status, Status::Disconnected { .. }))
        .then(|| away.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

impl Backend for FailFast {
    delegate! {
        store: lease_id renew release release_permits release_from_own_thread list list_any changes capabilities
        state state_changes ping check handed_over home close
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.unless_unreachable(move |store| store.request(request))
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.unless_unreachable(move |store| store.force_release(resource))
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        self.unless_unreachable(move |store| store.set_limit(resource, permits, ttl))
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.unless_unreachable(move |store| store.inspect(resource, detail))
    }

    /// The events of the store, and an [`Event::Resync`] when it becomes unreachable, so that waiting requests are
    /// repeated, and fail.
    fn events(&self) -> BoxStream<'static, Event> {
        let lost =
            self.store.state_changes().filter_map(|state| ready(unreachable(&state).map(|_| Event::Resync)));
        select(self.store.events(), lost).boxed()
    }
}
