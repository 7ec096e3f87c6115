//! The scripts as calls: which of them a request is for.

use std::time::Duration;

use super::reply::Answer;
use super::transport::Transport;
use super::{lock, semaphore};
use crate::backend::{
    AcquireRequest, BackendError, Claim, Detail, Inspection, Limit, Released, RenewRequest, Renewal,
    Resource, Whose,
};

impl Transport {
    /// Asks for a lock or for permits, once.
    pub(super) async fn acquire(&self, request: &AcquireRequest) -> Result<Answer, BackendError> {
        match &request.claim {
            Claim::Permits(permits, limit) => semaphore::acquire(self, request, *permits, limit).await,
            Claim::Sole | Claim::Owner(_) => lock::acquire(self, request).await,
        }
    }

    /// Renews a lease, once.
    pub(super) async fn renew(&self, request: &RenewRequest) -> Result<Renewal, BackendError> {
        if request.resource.kind.is_semaphore() {
            semaphore::renew(self, request).await
        } else {
            lock::renew(self, request).await
        }
    }

    /// Releases, until the server answers or two timeouts have passed. A release of whoever holds the lock is not
    /// idempotent, and not sent again once it may have been carried out.
    pub(super) async fn release(&self, resource: &Resource, whose: Whose) -> Result<Released, BackendError> {
        if resource.kind.is_semaphore() {
            semaphore::release(self, resource, whose).await
        } else {
            lock::release(self, resource, whose).await
        }
    }

    /// Changes a limit, until the server answers or two timeouts have passed.
    pub(super) async fn resize(
        &self,
        resource: &Resource,
        permits: u32,
        term: Duration,
        limit: &Limit,
    ) -> Result<(), BackendError> {
        semaphore::resize(self, resource, permits, term, limit).await
    }

    /// Inspects, until the server answers or two timeouts have passed.
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
