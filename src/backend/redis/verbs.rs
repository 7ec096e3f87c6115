//! The operations of the contract on one Redis server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::commands::in_place;
use super::protocol::TOKENS_PER_GRANT;
use super::transport::{RETRY, Transport};
use super::{RedisBackend, lock, renewals, semaphore};
use crate::backend::{
    Answer, Answered, Backend, BackendError, Capabilities, Claim, Detail, Event, Inspection, LeaseId,
    LeaseRef, Limit, Released, Renew, Request, Resource,
};
use crate::background;

/// How long the second release of a lease is repeated while the server does not answer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

impl Backend for RedisBackend {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        in_place(move || async move {
            self.revive().await?;
            let answer = self.polled(self.ask(request).await?);
            self.notifications.answered(request.lease.id, &answer);
            Ok(answer)
        })
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        match self.open_or_closed() {
            Ok(()) => renewals::renew_all(&self.renewals, renewals),
            Err(_) => stream::iter((0..renewals.len()).map(|n| (n, Err(BackendError::Closed)))).boxed(),
        }
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        in_place(move || async move {
            let transport = self.transport_of_releases().await?;
            self.notifications.forget(lease.id);
            let released = release(transport, lease, 0).await?;
            if !transport.connection.is_sole() {
                // Its request may still be executed, from the connection on which it was sent.
                let (transport, closed) = (Arc::clone(transport), self.closing.token());
                tokio::spawn(release_again(transport, lease.clone(), closed));
            }
            Ok(released)
        })
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move { release(self.transport_of_releases().await?, lease, keep).await }.boxed()
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            if resource.kind.is_semaphore() {
                return Err(BackendError::many_holders());
            }
            self.revive().await?;
            lock::force(&self.transport, resource).await
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
            semaphore::set_limit(&self.transport, resource, permits, ttl).await
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
            if resource.kind.is_semaphore() {
                semaphore::inspect(&self.transport, resource, detail).await
            } else {
                lock::inspect(&self.transport, resource, detail).await
            }
        }
        .boxed()
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.notifications.events(&self.callers.subscriber.client)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close_connections().boxed()
    }
}

impl RedisBackend {
    async fn ask(&self, request: &Request) -> Result<Answer, BackendError> {
        if u64::from(request.tokens) > TOKENS_PER_GRANT {
            let reason =
                format!("{} tokens were requested, but a grant has {TOKENS_PER_GRANT}", request.tokens);
            return Err(BackendError::Unsupported { reason });
        }
        match &request.claim {
            Claim::Permits(permits, limit) => {
                semaphore::acquire(&self.transport, request, *permits, *limit).await
            }
            Claim::Sole | Claim::Owner(_) => lock::acquire(&self.transport, request, self.repair).await,
        }
    }

    /// The answer of a store that is polled, if the settings say so.
    pub(super) fn polled(&self, mut answer: Answer) -> Answer {
        if let (Answer::Queued(queued), Some(interval)) = (&mut answer, self.poll_interval) {
            let pause = queued.ask_again_in.map_or(interval, |pause| pause.min(interval));
            queued.ask_again_in = Some(pause);
        }
        answer
    }

    /// The transport of this thread: what is released from the crate's own one is so because the runtime has ended on which the
    /// connection for commands lived.
    pub(super) async fn transport_of_releases(&self) -> Result<&Arc<Transport>, BackendError> {
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

/// Releases all permits but `keep`, repeatedly until the server answers or two timeouts have passed. A lock is not divisible: whoever
/// keeps a permit keeps all of it.
async fn release(transport: &Arc<Transport>, lease: &LeaseRef, keep: u32) -> Result<Released, BackendError> {
    if lease.resource.kind.is_semaphore() {
        semaphore::release(transport, lease, keep).await
    } else if keep > 0 {
        Ok(Released::Held)
    } else {
        lock::release(transport, lease).await
    }
}

/// Releases a lease once more when nothing that was sent on an earlier connection can be executed any more.
async fn release_again(transport: Arc<Transport>, lease: LeaseRef, closed: CancellationToken) {
    let give_up = Instant::now() + GIVE_UP_AFTER;
    while !closed.is_cancelled() {
        let released = async {
            transport.connection.until_sole().await?;
            release(&transport, &lease, 0).await
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
