//! What the scripts answer, read into types.

use std::time::Duration;

use fred::types::Value;

use tokio::time::Instant;

use super::protocol::{EVERYBODY, NUMBERS};
use super::script::Script;
use crate::backend::{BackendError, Detail, Grant, LeaseId, Waiter};
use crate::fence::FencingToken;

/// The server's answer to a request.
pub(super) enum Answer {
    /// The lease began with this request.
    Granted(FencingToken),
    /// It had been granted before, and ends in so much time.
    Held {
        token: FencingToken,
        remaining: Duration,
    },
    /// How long until a holder's lease ends, if one does, how many wait before this one, and the ticket of its place.
    Queued {
        remaining: Option<Duration>,
        before: u32,
        ticket: Ticket,
    },
    Busy,
}

/// Names a place in the queue. No other place ever has the same, so what was told of an earlier place of the same lease, and
/// was held back on its way, is not taken for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Ticket {
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    pub(super) fn read(value: &Value) -> Option<Self> {
        value.as_u64().map(Self)
    }
}

impl Answer {
    /// The grant of a lease of `term` that a request sent at `sent` has found, if it has found one.
    pub(super) fn grant(&self, sent: Instant, term: Duration) -> Option<Result<Grant, BackendError>> {
        match self {
            Self::Granted(token) => Some(Ok(Grant::new(*token, sent))),
            Self::Held { token, remaining } => {
                // It ends so long after the server has looked, which was later than `sent`.
                let counted_from = sent.checked_sub(term.saturating_sub(*remaining));
                let too_early =
                    || BackendError::Unanswered { source: "granted before this clock began".into() };
                Some(counted_from.map(|from| Grant::new(*token, from)).ok_or_else(too_early))
            }
            Self::Queued { .. } | Self::Busy => None,
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

/// "Still queued", from the time until a holder's lease ends, the number of waiters before, and the ticket.
pub(super) fn read_queued(remaining: &Value, before: &Value, ticket: &Value) -> Option<Answer> {
    let (before, ticket) = (read_number(before)?, Ticket::read(ticket)?);
    Some(Answer::Queued { remaining: from_millis(remaining), before, ticket })
}

/// "Granted before", from the token and the time until the lease ends; a lease that is over by now has no time left.
pub(super) fn read_held(token: &Value, remaining: &Value) -> Option<Answer> {
    Some(Answer::Held { token: read_token(token)?, remaining: from_millis(remaining).unwrap_or_default() })
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
        Detail::Everybody => EVERYBODY,
        Detail::Numbers => NUMBERS,
    }
}

pub(super) fn unreadable(script: &Script) -> BackendError {
    BackendError::Refused {
        source: format!("script {} gave an answer of no known form", script.hash()).into(),
    }
}
