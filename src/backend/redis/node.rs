//! A server as one of the nodes of a Redlock.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::commands::in_place;
use super::protocol::TOKENS_PER_GRANT;
use super::{RedisBackend, lock};
use crate::backend::redlock::Node;
use crate::backend::{Answer, BackendError, LeaseRef, Request};
use crate::fence::FencingToken;

impl Node for RedisBackend {
    fn request_from<'a>(
        &'a self,
        request: &'a Request,
        proposed: FencingToken,
    ) -> BoxFuture<'a, Result<Answer, BackendError>> {
        in_place(move || async move {
            let transport = self.transport_of_releases().await?;
            debug_assert!(u64::from(request.tokens) <= TOKENS_PER_GRANT, "checked by the Redlock");
            let answer = lock::acquire_from(transport, request, proposed, self.repair).await?;
            self.notifications.answered(request.lease.id, &answer);
            Ok(answer)
        })
    }

    fn settle<'a>(
        &'a self,
        lease: &'a LeaseRef,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<bool, BackendError>> {
        async move {
            let transport = self.transport_of_releases().await?;
            lock::settle(transport, lease, token, transport.connection.timeouts.reply).await
        }
        .boxed()
    }
}
