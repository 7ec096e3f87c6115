//! The contract's verbs on one Redis server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::transport::{RETRY, Transport};
use super::waiting::Waiting;
use super::{RedisBackend, renewals};
use crate::backend::{
    AcquireRequest, Acquired, Answered, Backend, BackendError, Capabilities, Detail, Inspection, LeaseId,
    Limit, Released, RenewRequest, Renewal, Resource, Wait, Whose,
};

impl Backend for RedisBackend {
    fn lease_id(&self) -> LeaseId {
        self.ids.next()
    }

    fn acquire<'a>(&'a self, request: &'a AcquireRequest) -> BoxFuture<'a, Result<Acquired, BackendError>> {
        async move {
            self.open_or_closed()?;
            match request.wait {
                Wait::No => self.ask_once(request).await,
                Wait::Until(_) | Wait::Forever => {
                    Waiting::new(&self.transport, &self.wake, request).wait().await
                }
            }
        }
        .boxed()
    }

    fn renew<'a>(&'a self, request: &'a RenewRequest) -> BoxFuture<'a, Result<Renewal, BackendError>> {
        async move {
            self.open_or_closed()?;
            self.transport.renew(request).await
        }
        .boxed()
    }

    fn renew_all<'a>(&'a self, requests: &'a [RenewRequest]) -> BoxStream<'a, Answered> {
        match self.open_or_closed() {
            Ok(()) => renewals::renew_all(&self.transport, requests),
            Err(_) => stream::iter((0..requests.len()).map(|n| (n, Err(BackendError::Closed)))).boxed(),
        }
    }

    fn release<'a>(
        &'a self,
        resource: &'a Resource,
        whose: Whose,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            self.open_or_closed()?;
            let Whose::Lease(lease) = whose else { return self.transport.release(resource, whose).await };
            let leaving = self.wake.leave(lease);
            let released = self.transport.release(resource, whose).await?;
            if released != Released::Held && self.transport.outlive_earlier_connections().await? {
                // The request may have been carried out meanwhile, from the connection on which it was sent.
                self.transport.release(resource, whose).await?;
            }
            if leaving.end() {
                // Perhaps of a request that was carried out after its release. If not, there is nothing to be found.
                self.wake.stray(lease, resource.clone());
            }
            Ok(released)
        }
        .boxed()
    }

    fn resize<'a>(
        &'a self,
        resource: &'a Resource,
        permits: u32,
        term: Duration,
        limit: &'a Limit,
    ) -> BoxFuture<'a, Result<(), BackendError>> {
        async move {
            self.open_or_closed()?;
            self.transport.resize(resource, permits, term, limit).await
        }
        .boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        async move {
            self.open_or_closed()?;
            self.transport.inspect(resource, detail).await
        }
        .boxed()
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.close_connections().boxed()
    }
}

impl RedisBackend {
    fn open_or_closed(&self) -> Result<(), BackendError> {
        if self.closing.is_closed() { Err(BackendError::Closed) } else { Ok(()) }
    }

    /// A request that does not wait: sent again only while it is not answered.
    async fn ask_once(&self, request: &AcquireRequest) -> Result<Acquired, BackendError> {
        self.wake.register(request.lease, request.revocation.clone());
        let give_up = Instant::now() + self.timeouts.reply * 2;
        loop {
            let sent = Instant::now();
            match self.transport.acquire(request).await {
                Ok(answer) => {
                    let Some(grant) = answer.grant(sent, request.term) else {
                        self.wake.forget(request.lease);
                        return Ok(Acquired::Busy);
                    };
                    return grant.map(|grant| self.wake.hold(request.lease, grant));
                }
                Err(error) if error.is_transient() && Instant::now() < give_up => sleep(RETRY).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Gives back what was granted to requests that had been given up by then.
pub(super) async fn release_strays(
    transport: Arc<Transport>,
    mut strays: mpsc::UnboundedReceiver<(LeaseId, Resource)>,
) {
    while let Some((lease, resource)) = strays.recv().await {
        if let Err(error) = transport.release(&resource, Whose::Lease(lease)).await {
            let key = &*resource.key;
            tracing::warn!(key, %error, "a grant to nobody was not given back: it runs out by itself");
        }
    }
}
