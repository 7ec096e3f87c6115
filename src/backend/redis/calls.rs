//! Which script an operation uses.

use std::time::Duration;

use super::protocol::TOKENS_PER_GRANT;
use super::transport::Transport;
use super::{lock, semaphore};
use crate::backend::{
    Answer, BackendError, Claim, Detail, Inspection, LeaseRef, Limit, Released, Renew, Renewal, Request,
    Resource,
};

impl Transport {
    /// Requests a lock or permits, once.
    pub(super) async fn request(
        &self,
        request: &Request,
        repair: Option<Duration>,
    ) -> Result<Answer, BackendError> {
        if u64::from(request.tokens) > TOKENS_PER_GRANT {
            let reason =
                format!("{} tokens were requested, but a grant has {TOKENS_PER_GRANT}", request.tokens);
            return Err(BackendError::Unsupported { reason });
        }
        match &request.claim {
            Claim::Permits(permits, limit) => semaphore::acquire(self, request, *permits, *limit).await,
            Claim::Sole | Claim::Owner(_) => lock::acquire(self, request, repair).await,
        }
    }

    /// Renews a lease, once.
    pub(super) async fn renew(&self, renew: &Renew) -> Result<Renewal, BackendError> {
        if renew.lease.resource.kind.is_semaphore() {
            semaphore::renew(self, renew).await
        } else {
            lock::renew(self, renew).await
        }
    }

    /// Releases, repeatedly until the server answers or two timeouts have passed. A lock is not divisible: whoever keeps a permit
    /// keeps all of it.
    pub(super) async fn release(&self, lease: &LeaseRef, keep: u32) -> Result<Released, BackendError> {
        if lease.resource.kind.is_semaphore() {
            semaphore::release(self, lease, keep).await
        } else if keep > 0 {
            Ok(Released::Held)
        } else {
            lock::release(self, lease).await
        }
    }

    /// Ends all holds of a lock. Not repeated once it may have been executed.
    pub(super) async fn force_release(&self, resource: &Resource) -> Result<bool, BackendError> {
        if resource.kind.is_semaphore() {
            return Err(BackendError::many_holders());
        }
        lock::force(self, resource).await
    }

    /// Changes a limit, repeatedly until the server answers or two timeouts have passed.
    pub(super) async fn set_limit(
        &self,
        resource: &Resource,
        permits: u32,
        ttl: Duration,
    ) -> Result<Limit, BackendError> {
        semaphore::set_limit(self, resource, permits, ttl).await
    }

    /// Inspects, repeatedly until the server answers or two timeouts have passed.
    pub(super) async fn inspect(
        &self,
        resource: &Resource,
        detail: Detail,
    ) -> Result<Inspection, BackendError> {
        if resource.kind.is_semaphore() {
            semaphore::inspect(self, resource, detail).await
        } else {
            lock::inspect(self, resource, detail).await
        }
    }
}
