//! The scripts as calls: typed requests in, typed answers out.

use std::time::Duration;

use fred::types::{Key, Value};
use tokio::time::{Instant, sleep};

use super::keys::LockKeys;
use super::script::{ACQUIRE, INSPECT, RELEASE, RENEW, Script};
use super::transport::Transport;
use crate::backend::{
    AcquireRequest, BackendError, Holder, Inspection, LeaseId, Released, RenewRequest, Renewal, Wait, Waiter,
    Whose,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);

/// The server's answer to a request for a lock.
pub(super) enum Answer {
    Granted(FencingToken),
    /// How long the holder's lease still lasts, if it ends at all, and how many wait before this one.
    Queued {
        remaining: Option<Duration>,
        before: u32,
    },
    Busy,
}

impl Transport {
    /// How long one command for a lease of `term` may take.
    fn patience(&self, term: Duration) -> Duration {
        self.reply_timeout().min(term / 3)
    }

    /// Asks for a lock, once.
    pub(super) async fn acquire(&self, request: &AcquireRequest) -> Result<Answer, BackendError> {
        let waits = Value::from(i64::from(request.wait != Wait::No));
        let repair = Value::from(request.repair.map_or(0, millis));
        let args = [Value::from(request.lease.to_text()), Value::from(millis(request.term)), waits, repair];
        // Every argument costs a microsecond on its way: the frequent case goes without the last two.
        let usual = request.wait != Wait::No && request.repair.is_none();
        let args = if usual { &args[..2] } else { &args[..] };
        let keys = LockKeys::of(&request.key);
        read_answer(self.call(&ACQUIRE, keys.all(), args, self.patience(request.term)).await?)
    }

    /// Renews a lease, once.
    pub(super) async fn renew(&self, request: &RenewRequest) -> Result<Renewal, BackendError> {
        let keys = LockKeys::of(&request.key).lock_and_fence();
        let args = [Value::from(request.lease.to_text()), Value::from(millis(request.term))];
        let sent = Instant::now();
        match self.call(&RENEW, &keys, &args, self.patience(request.term)).await {
            // Somebody has put something else in the place of the lock.
            Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
            answer => match answer?.as_bytes_str().as_deref() {
                Some("renewed") => Ok(Renewal::Renewed { counted_from: sent }),
                Some("taken") => Ok(Renewal::Lost(LossReason::Taken)),
                Some("expired") => Ok(Renewal::Lost(LossReason::Expired)),
                _ => Err(unreadable(&RENEW)),
            },
        }
    }

    /// Releases, until the server answers or two timeouts have passed. A release of whoever holds the lock is not
    /// idempotent, and not sent again once it may have been carried out.
    pub(super) async fn release(&self, key: &str, whose: Whose) -> Result<Released, BackendError> {
        let lease = match whose {
            Whose::Lease(lease) => Value::from(lease.to_text()),
            Whose::Anyone => Value::from_static_str(""),
        };
        let again: fn(&BackendError) -> bool = match whose {
            Whose::Lease(_) => BackendError::is_transient,
            Whose::Anyone => |error| matches!(error, BackendError::NotSent { .. }),
        };
        let (answer, repeated) = self.insist(&RELEASE, LockKeys::of(key).all(), &[lease], again).await?;
        match answer.as_i64() {
            Some(1) => Ok(Released::Held),
            Some(2) => Ok(Released::Queued),
            // An earlier attempt may have released it, and its answer got lost.
            Some(0 | 3) if repeated => Ok(Released::Unknown),
            Some(3) => Ok(Released::Taken),
            Some(0) => Ok(Released::Absent),
            _ => Err(unreadable(&RELEASE)),
        }
    }

    /// Inspects, until the server answers or two timeouts have passed.
    pub(super) async fn inspect(&self, key: &str) -> Result<Inspection, BackendError> {
        let keys = LockKeys::of(key);
        let (answer, _) = self.insist(&INSPECT, keys.all(), &[], BackendError::is_transient).await?;
        read_inspection(answer)
    }

    /// Calls a script again while it fails in a way for which `again` allows that. Tells whether an attempt before
    /// the one that was answered may have been carried out.
    async fn insist(
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

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// `-1` and `-2`, for "never" and "not there", are no durations.
fn from_millis(value: &Value) -> Option<Duration> {
    value.as_i64().and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis)
}

fn read_answer(answer: Value) -> Result<Answer, BackendError> {
    if let Value::Array(parts) = &answer {
        let [remaining, before] = &parts[..] else { return Err(unreadable(&ACQUIRE)) };
        let before = before.as_i64().and_then(|before| u32::try_from(before).ok());
        let before = before.ok_or_else(|| unreadable(&ACQUIRE))?;
        return Ok(Answer::Queued { remaining: from_millis(remaining), before });
    }
    match read_token(&answer).ok_or_else(|| unreadable(&ACQUIRE))? {
        token if token.get() == 0 => Ok(Answer::Busy),
        token => Ok(Answer::Granted(token)),
    }
}

fn read_token(value: &Value) -> Option<FencingToken> {
    value.as_u64().map(FencingToken::new)
}

fn read_inspection(answer: Value) -> Result<Inspection, BackendError> {
    let parts = answer.into_array();
    let [holder, remaining, token, waiters] = &parts[..] else { return Err(unreadable(&INSPECT)) };
    let holder = holder.as_bytes().map(|id| {
        let id = String::from_utf8_lossy(id).into_owned();
        let ours = LeaseId::parse(&id).is_some();
        Holder { token: if ours { read_token(token) } else { None }, remaining: from_millis(remaining), id }
    });
    let waiters = waiters.clone().into_array();
    let waiters = waiters.chunks_exact(2).map(|pair| {
        let id = pair[0].as_bytes_str().and_then(|id| LeaseId::parse(&id))?;
        Some(Waiter { id, remaining: from_millis(&pair[1])? })
    });
    let waiters = waiters.collect::<Option<_>>().ok_or_else(|| unreadable(&INSPECT))?;
    Ok(Inspection { holder, waiters })
}

pub(super) fn unreadable(script: &Script) -> BackendError {
    BackendError::Refused {
        source: format!("script {} gave an answer of no known form", script.hash()).into(),
    }
}
