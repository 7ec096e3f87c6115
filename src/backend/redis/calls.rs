//! What the scripts for locks and for semaphores have in common as calls: typed requests in, typed answers out.

use std::time::Duration;

use fred::types::{Key, Value};
use tokio::time::{Instant, sleep};

use super::script::Script;
use super::transport::Transport;
use super::{lock, semaphore};
use crate::backend::{
    AcquireRequest, BackendError, Claim, Detail, Inspection, LeaseId, Limit, Released, RenewRequest, Renewal,
    Resource, Waiter, Whose,
};
use crate::fence::FencingToken;

/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);

/// The server's answer to a request.
pub(super) enum Answer {
    Granted(FencingToken),
    /// How long until a holder's lease ends, if one does, and how many wait before this one.
    Queued {
        remaining: Option<Duration>,
        before: u32,
    },
    Busy,
}

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

    /// How long one command for a lease of `term` may take.
    pub(super) fn patience(&self, term: Duration) -> Duration {
        self.reply_timeout().min(term / 3)
    }

    /// Calls a script again while it fails in a way for which `again` allows that. Tells whether an attempt before
    /// the one that was answered may have been carried out.
    pub(super) async fn insist(
        &self,
        script: &Script,
        keys: &[Key],
        args: &[Value],
        again: fn(&BackendError) -> bool,
    ) -> Result<(Value, bool), BackendError> {
        let patience = self.reply_timeout();
        let give_up = Instant::now() + patience * 2;
        let mut repeated = false;
        loop {
            match self.call(script, keys, args, patience).await {
                Ok(answer) => return Ok((answer, repeated)),
                Err(error) if again(&error) && Instant::now() + RETRY < give_up => {
                    repeated |= matches!(error, BackendError::Unanswered { .. });
                    sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// `-1` and `-2`, for "never" and "not there", are no durations.
pub(super) fn from_millis(value: &Value) -> Option<Duration> {
    value.as_i64().and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis)
}

pub(super) fn read_token(value: &Value) -> Option<FencingToken> {
    value.as_u64().map(FencingToken::new)
}

pub(super) fn read_number(value: &Value) -> Option<u32> {
    value.as_i64().and_then(|number| u32::try_from(number).ok())
}

/// "Still queued", from the time until a holder's lease ends and the number of waiters before.
pub(super) fn read_queued(remaining: &Value, before: &Value) -> Option<Answer> {
    Some(Answer::Queued { remaining: from_millis(remaining), before: read_number(before)? })
}

/// Lease id, time and permits of each waiter.
pub(super) fn read_waiters(waiters: &Value) -> Option<Vec<Waiter>> {
    let waiters = waiters.clone().into_array();
    let waiters = waiters.chunks_exact(3).map(|part| {
        let waiter = Waiter::new(read_lease(&part[0])?, from_millis(&part[1])?);
        Some(Waiter { permits: read_number(&part[2])?, ..waiter })
    });
    waiters.collect()
}

pub(super) fn read_lease(value: &Value) -> Option<LeaseId> {
    value.as_bytes_str().and_then(|id| LeaseId::parse(&id))
}

/// How much an inspection is asked to tell.
pub(super) fn wanted(detail: Detail) -> Value {
    Value::from_static_str(match detail {
        Detail::Everybody => "everybody",
        Detail::Numbers => "numbers",
    })
}

pub(super) fn unreadable(script: &Script) -> BackendError {
    BackendError::Refused {
        source: format!("script {} gave an answer of no known form", script.hash()).into(),
    }
}
