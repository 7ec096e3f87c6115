//! A place in the store's line, and the request that stands there: what one task of a client can leave to another.

use std::fmt;

use futures::future::BoxFuture;
use tokio::runtime::{self, Handle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::reaper::Obligation;
use crate::backend::{Acquired, BackendError, Claim, LeaseId, Limit, Wait};

/// An acquisition that the store is asked for.
#[derive(Debug)]
pub(super) struct Place {
    // First: the request is not sent any more when its release is.
    pub(super) asking: Option<Asking>,
    pub(super) id: LeaseId,
    pub(super) lost: CancellationToken,
    pub(super) obligation: Obligation,
    /// When it was asked for first.
    pub(super) since: Instant,
}

/// A request on its way, or in the store's line, for whichever task of the client leads there.
pub(super) struct Asking {
    pub(super) answer: BoxFuture<'static, Result<Acquired, BackendError>>,
    /// That of a semaphore, as it states and learns it.
    limit: Option<Limit>,
    /// If it waits for as long as it takes, and so may be heard by others: where its timers live.
    patient_on: Option<runtime::Id>,
}

impl Asking {
    pub(super) fn new(
        answer: BoxFuture<'static, Result<Acquired, BackendError>>,
        claim: &Claim,
        wait: Wait,
    ) -> Self {
        let limit = claim.limit().cloned();
        Self { answer, limit, patient_on: (wait == Wait::Forever).then(|| Handle::current().id()) }
    }

    /// Whether this is what a task would ask that waits so.
    pub(super) fn suits(&self, wait: Wait) -> bool {
        wait == Wait::Forever && self.patient_on == Some(Handle::current().id())
    }

    /// Passes on what it has learned of the limit.
    pub(super) fn teach(&self, claim: &Claim) {
        claim.learn(self.limit.as_ref());
    }
}

impl fmt::Debug for Asking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking").field("patient_on", &self.patient_on).finish_non_exhaustive()
    }
}
