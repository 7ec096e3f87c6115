//! The scripts' answers, converted to types.

use std::time::Duration;

use super::protocol::{
    COUNTS, EXPIRED, FULL, HELD_BY_OTHER, LEFT_QUEUE, NOT_HELD, PROPOSED_AHEAD_US, RELEASED, RENEWED,
    SUMMARY, TAKEN,
};
use super::script::Script;
use super::value::Value;
use crate::backend::{
    Answer, BackendError, Detail, Grant, Holder, Inspection, LeaseId, Limit, Queued, Released, Renewal,
    Ticket, Waiter,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// How much later than the waiter before it each waiter repeats its request when the holder's lease ends, up to a
/// limit: the first one serves the queue, so the others need not all come at that moment.
const STAGGER: Duration = Duration::from_millis(2);
const MAX_STAGGER: Duration = Duration::from_millis(500);

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What PTTL answers for a key that has no expiry.
const NO_EXPIRY: i64 = -1;

/// `None` for `-1` and `-2`, which mean "no expiry" and "no such key".
pub(super) fn from_millis(value: &Value) -> Option<Duration> {
    value.as_i64().and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis)
}

pub(super) fn read_token(value: &Value) -> Option<FencingToken> {
    value.as_u64().map(FencingToken::new)
}

pub(super) fn read_number(value: &Value) -> Option<u32> {
    value.as_i64().and_then(|number| u32::try_from(number).ok())
}

/// "Queued", from the time until a holder's lease ends, the number of waiters before this one, and the ticket.
pub(super) fn read_queued(
    remaining: &Value,
    before: &Value,
    ticket: &Value,
    limit: Option<Limit>,
) -> Option<Answer> {
    let before = read_number(before)?;
    let pause = |left: Duration| left + Duration::from_millis(1) + (STAGGER * before).min(MAX_STAGGER);
    let ticket = Ticket::new(ticket.as_u64()?);
    let mut queued = Queued::new(ticket, from_millis(remaining).map(pause), limit);
    queued.holder_never_expires = remaining.as_i64() == Some(NO_EXPIRY) && limit.is_none();
    Some(Answer::Queued(queued))
}

/// "Granted", from the token.
pub(super) fn read_granted(token: &Value, limit: Option<Limit>) -> Option<Answer> {
    Some(Answer::Granted(Grant::new(issued(token)?, limit)))
}

/// The token of a grant. None is 0, whatever the form of the answer.
fn issued(token: &Value) -> Option<FencingToken> {
    read_token(token).filter(|token| token.get() > 0)
}

/// "Granted before", from the token and the time until the lease ends, which is zero if it has ended by now.
pub(super) fn read_held(token: &Value, remaining: &Value, limit: Option<Limit>) -> Option<Answer> {
    let remaining = from_millis(remaining).unwrap_or_default();
    Some(Answer::Granted(Grant::new(issued(token)?, limit).lasting(remaining)))
}

pub(super) fn read_renewal(answer: &Value) -> Option<Renewal> {
    match answer.as_str()? {
        RENEWED => Some(Renewal::Renewed),
        TAKEN => Some(Renewal::Lost(LossReason::Taken)),
        EXPIRED => Some(Renewal::Lost(LossReason::Expired)),
        _ => None,
    }
}

pub(super) fn read_released(answer: &Value) -> Option<Released> {
    match answer.as_i64()? {
        RELEASED => Some(Released::Held),
        LEFT_QUEUE => Some(Released::Queued),
        HELD_BY_OTHER => Some(Released::Taken),
        NOT_HELD => Some(Released::Absent),
        _ => None,
    }
}

/// For how long a lease has been held that was granted under this token, by the server's clock in microseconds: a token
/// is the time of its grant (`fence.lua`), or ahead of it if many locks were granted then. `None` if it is further
/// ahead: the clock was set back.
pub(super) fn held_for(token: Option<FencingToken>, now: &Value) -> Option<Duration> {
    let (granted, now) = (token?.get(), now.as_u64()?);
    (granted <= now.saturating_add(PROPOSED_AHEAD_US))
        .then(|| Duration::from_micros(now.saturating_sub(granted)))
}

/// An inspection with these waiters: a list, or only their number.
pub(super) fn inspection(
    holders: Vec<Holder>,
    waiters: &Value,
    limit: Option<u32>,
    in_use: u32,
) -> Option<Inspection> {
    if let Some(number) = waiters.as_u64() {
        let waiting = usize::try_from(number).ok()?;
        return Some(Inspection { waiting, ..Inspection::new(holders, Vec::new(), limit, in_use) });
    }
    Some(Inspection::new(holders, read_waiters(waiters)?, limit, in_use))
}

/// Lease id, remaining time, permits and ticket of each waiter, in order of arrival.
fn read_waiters(waiters: &Value) -> Option<Vec<Waiter>> {
    let mut waiters: Vec<_> = waiters.as_list().chunks_exact(4).collect();
    waiters.sort_by_key(|part| part[3].as_u64());
    let waiters = waiters.into_iter().map(|part| {
        let waiter = Waiter::new(read_lease(&part[0])?, from_millis(&part[1])?);
        Some(Waiter { permits: read_number(&part[2])?, ..waiter })
    });
    waiters.collect()
}

pub(super) fn read_lease(value: &Value) -> Option<LeaseId> {
    value.as_str().and_then(LeaseId::parse)
}

/// The argument that says how much an inspection returns.
pub(super) const fn wanted(detail: Detail) -> &'static str {
    match detail {
        Detail::Full => FULL,
        Detail::Summary => SUMMARY,
        Detail::Counts => COUNTS,
    }
}

pub(super) fn unreadable(script: &Script) -> BackendError {
    BackendError::Refused {
        source: format!("script {:?} returned an answer of an unknown form", script.hash()).into(),
    }
}
