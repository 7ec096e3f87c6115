//! The operations of the contract on one Redis server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::transport::{RETRY, Transport};
use super::{RedisBackend, renewals};
use crate::backend::{
    Answer, Answered, Backend, BackendError, Capabilities, Detail, Event, Inspection, LeaseId, LeaseRef,
    Limit, Released, Renew, Request, Resource,
};
use crate::background;

/// How long the second release of a lease is repeated while the server does not answer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

impl Backend for RedisBackend {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            self.revive().await?;
            let mut answer = self.transport.request(request, self.foreign.repair).await?;
            if let (Answer::Queued(queued), Some(interval)) = (&mut answer, self.foreign.poll_interval) {
                let pause = queued.ask_again_in.map_or(interval, |pause| pause.min(interval));
                queued.ask_again_in = Some(pause);
            }
            self.notifications.answered(request.lease.id, &answer);
            Ok(answer)
        }
        .boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        match self.open_or_closed() {
            Ok(()) => renewals::renew_all(&self.renewals, renewals),
            Err(_) => stream::iter((0..renewals.len()).map(|n| (n, Err(BackendError::Closed)))).boxed(),
        }
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            let transport = self.transport_of_releases().await?;
            self.notifications.forget(lease.id);
            let released = transport.release(lease, 0).await?;
            if !transport.earlier_are_closed() {
                // Its request may still be executed, from the connection on which it was sent.
                let (transport, closed) = (Arc::clone(transport), self.closing.token());
                tokio::spawn(release_again(transport, lease.clone(), closed));
            }
            Ok(released)
        }
        .boxed()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move { self.transport_of_releases().await?.release(lease, keep).await }.boxed()
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            self.revive().await?;
            self.transport.force_release(resource).await
        }
        .boxed()
    }

    fn set_limit<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        async move {
            self.revive().await?;
            self.transport.set_limit(resource, permits, ttl).await
        }
        .boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            self.revive().await?;
            self.transport.inspect(resource, detail).await
        }
        .boxed()
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.notifications.events(self.callers.subscriber())
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close_connections().boxed()
    }
}

impl RedisBackend {
    /// The transport of this thread: what is released from the crate's own one is so because the runtime has ended on which the
    /// connection for commands lived.
    async fn transport_of_releases(&self) -> Result<&Arc<Transport>, BackendError> {
        if background::is_current() {
            self.open_or_closed()?;
            return Ok(&self.renewals);
        }
        self.revive().await?;
        Ok(&self.transport)
    }

    fn open_or_closed(&self) -> Result<(), BackendError> {
        if self.closing.is_closed() { Err(BackendError::Closed) } else { Ok(()) }
    }
}

/// Releases a lease once more when nothing that was sent on an earlier connection can be executed any more.
async fn release_again(transport: Arc<Transport>, lease: LeaseRef, closed: CancellationToken) {
    let give_up = Instant::now() + GIVE_UP_AFTER;
    while !closed.is_cancelled() {
        let released = async {
            transport.outlive_earlier_connections().await?;
            transport.release(&lease, 0).await
        };
        match released.await {
            Ok(_) => return,
            Err(error) if error.is_transient() && Instant::now() < give_up => sleep(RETRY).await,
            Err(error) => {
                let key = &*lease.resource.key;
                tracing::warn!(key, %error, "a grant to nobody was not given back: it runs out by itself");
                return;
            }
        }
    }
}
