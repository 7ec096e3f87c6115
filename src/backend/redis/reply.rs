//! What the scripts answer, read into types.

use std::time::Duration;

use fred::types::Value;

use super::script::Script;
use crate::backend::{BackendError, Detail, LeaseId, Waiter};
use crate::fence::FencingToken;

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
pub(super) const fn wanted(detail: Detail) -> &'static str {
    match detail {
        Detail::Everybody => "everybody",
        Detail::Numbers => "numbers",
    }
}

pub(super) fn unreadable(script: &Script) -> BackendError {
    BackendError::Refused {
        source: format!("script {} gave an answer of no known form", script.hash()).into(),
    }
}
