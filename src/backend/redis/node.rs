//! A server as one of the nodes of a Redlock.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::backend::written;
use super::{RedisBackend, calls};
use crate::backend::redlock::Node;
use crate::backend::{Answer, BackendError, LeaseRef, Request};
use crate::fence::FencingToken;

impl Node for RedisBackend {
    fn request_from<'a>(
        &'a self,
        request: &'a Request,
        proposed: FencingToken,
    ) -> BoxFuture<'a, Result<Answer, BackendError>> {
        async move {
            let transport = self.transport_of_releases(&request.lease.resource).await?;
            let described = self.descriptions.send_with_request(&self.commands, request);
            let asked = calls::acquire(&transport, request, self.repair, Some(proposed)).await;
            written(described).await;
            if let Some(removed) = self.descriptions.send_unless_known(&self.commands, request, &asked) {
                written(Some(removed)).await;
            }
            let answer = self.polled(request, asked?);
            self.notifications.answered(request.lease.id, &answer);
            Ok(answer)
        }
        .boxed()
    }

    fn settle<'a>(
        &'a self,
        lease: &'a LeaseRef,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            let transport = self.transport_of_releases(&lease.resource).await?;
            calls::settle(&transport, lease, token).await
        }
        .boxed()
    }
}
