//! The scripts for mutexes and reentrant locks as calls.

use std::sync::Arc;
use std::time::Duration;

use super::operation::Operation;
use super::protocol::{
    BUSY, EXPIRED, HELD_BY_OTHER, LEFT_QUEUE, NOT_HELD, RELEASED, RENEWED, SETTLED, TAKEN, WAITED_FOR,
};
use super::reply::{
    from_millis, millis, read_granted, read_held, read_lease, read_queued, read_waiters, unreadable, wanted,
};
use super::script::{
    ACQUIRE, ACQUIRE_FROM, ACQUIRE_OWNED, FORCE, INSPECT, RELEASE, RELEASE_OWNED, RELEASE_WITH_GAPS, RENEW,
    RENEW_OWNED, SETTLE,
};
use super::transport::Transport;
use super::value::Value;
use crate::backend::{
    Answer, BackendError, Detail, Holder, Inspection, Kind, LeaseId, LeaseRef, MAX_TTL, Released, Renew,
    Renewal, Request, Resource,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// Requests a lock, once. A lock key without an expiry gets that of `repair`.
pub(super) async fn acquire(
    transport: &Arc<Transport>,
    request: &Request,
    repair: Option<Duration>,
) -> Result<Answer, BackendError> {
    let operation = to_acquire(request, repair);
    let script = operation.script;
    let answer = transport.call(operation, transport.answer_timeout(request.ttl)).await?;
    read_answer(&answer).ok_or_else(|| unreadable(script))
}

// A separate function, so that the future that waits for the answer does not contain these variables.
fn to_acquire(request: &Request, repair: Option<Duration>) -> Operation {
    let owner = request.claim.owner();
    let script = if owner.is_some() { &ACQUIRE_OWNED } else { &ACQUIRE };
    let operation = Operation::new(script, &request.lease.resource).lease(request.lease.id);
    let operation = operation.number(millis(request.ttl));
    // Every argument costs a microsecond, so the frequent case omits the last two.
    if request.waits && repair.is_none() && owner.is_none() {
        return operation;
    }
    let operation = operation.number(u8::from(request.waits)).number(repair.map_or(0, millis));
    match owner {
        Some(owner) => operation.word(owner),
        None => operation,
    }
}

/// Requests a lock, once, for a token that is not less than `proposed`, as far as the server accepts the proposal.
pub(super) async fn acquire_from(
    transport: &Arc<Transport>,
    request: &Request,
    proposed: FencingToken,
    repair: Option<Duration>,
) -> Result<Answer, BackendError> {
    let operation = to_acquire_from(request, proposed, repair);
    let answer = transport.call(operation, transport.answer_timeout(request.ttl)).await?;
    read_answer(&answer).ok_or_else(|| unreadable(&ACQUIRE_FROM))
}

fn to_acquire_from(request: &Request, proposed: FencingToken, repair: Option<Duration>) -> Operation {
    let operation = Operation::new(&ACQUIRE_FROM, &request.lease.resource).number(proposed.get());
    let operation = operation.lease(request.lease.id).number(millis(request.ttl));
    let operation = operation.number(u8::from(request.waits)).number(repair.map_or(0, millis));
    match request.claim.owner() {
        Some(owner) => operation.word(owner),
        None => operation,
    }
}

/// Gives a lease that is held this token, once. `false` if the lease is not held.
pub(super) async fn settle(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    token: FencingToken,
) -> Result<bool, BackendError> {
    let operation = Operation::new(&SETTLE, &lease.resource).lease(lease.id).number(token.get());
    match transport.call(operation, transport.answer_timeout(MAX_TTL)).await?.as_i64() {
        Some(SETTLED) => Ok(true),
        Some(NOT_HELD) => Ok(false),
        _ => Err(unreadable(&SETTLE)),
    }
}

/// Renews a lease, once.
pub(super) async fn renew(transport: &Arc<Transport>, renew: &Renew) -> Result<Renewal, BackendError> {
    let operation = to_renew(renew);
    let script = operation.script;
    match transport.call(operation, transport.answer_timeout(renew.ttl)).await {
        // Another program has stored something else under the key of the lock.
        Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
        answer => match answer?.as_str() {
            Some(RENEWED) => Ok(Renewal::Renewed),
            Some(TAKEN) => Ok(Renewal::Lost(LossReason::Taken)),
            Some(EXPIRED) => Ok(Renewal::Lost(LossReason::Expired)),
            _ => Err(unreadable(script)),
        },
    }
}

fn to_renew(renew: &Renew) -> Operation {
    let script = if renew.lease.resource.kind == Kind::Reentrant { &RENEW_OWNED } else { &RENEW };
    Operation::new(script, &renew.lease.resource).lease(renew.lease.id).number(millis(renew.ttl))
}

/// Releases, once. When a gap is due, the lock is left free for so long.
pub(super) async fn release(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    gap: Option<Duration>,
) -> Result<Released, BackendError> {
    let operation = to_release(lease, gap);
    let script = operation.script;
    match transport.call_once(operation).await?.as_i64() {
        Some(RELEASED) => Ok(Released::Held),
        Some(LEFT_QUEUE) => Ok(Released::Queued),
        Some(HELD_BY_OTHER) => Ok(Released::Taken),
        Some(NOT_HELD) => Ok(Released::Absent),
        _ => Err(unreadable(script)),
    }
}

fn to_release(lease: &LeaseRef, gap: Option<Duration>) -> Operation {
    let script = match (lease.resource.kind, gap) {
        (Kind::Reentrant, _) => &RELEASE_OWNED,
        (_, None) => &RELEASE,
        (_, Some(_)) => &RELEASE_WITH_GAPS,
    };
    let operation = Operation::new(script, &lease.resource).lease(lease.id);
    match gap {
        Some(gap) => operation.number(millis(gap)),
        None => operation,
    }
}

/// Ends all holds of the lock, once.
pub(super) async fn force(transport: &Arc<Transport>, resource: &Resource) -> Result<bool, BackendError> {
    match transport.call_once(Operation::new(&FORCE, resource)).await?.as_i64() {
        Some(RELEASED) => Ok(true),
        Some(NOT_HELD) => Ok(false),
        _ => Err(unreadable(&FORCE)),
    }
}

/// Inspects, once.
pub(super) async fn inspect(
    transport: &Arc<Transport>,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, BackendError> {
    let answer = transport.call_once(Operation::new(&INSPECT, resource).word(wanted(detail))).await?;
    read_inspection(answer.as_list(), detail).ok_or_else(|| unreadable(&INSPECT))
}

fn read_answer(answer: &Value) -> Option<Answer> {
    match answer {
        Value::Integer(BUSY) => Some(Answer::Busy { limit: None }),
        Value::List(parts) => match &parts[..] {
            [remaining, before, ticket] => read_queued(remaining, before, ticket, None),
            [token, remaining] => read_held(token, remaining, None),
            _ => None,
        },
        token => read_granted(token, None),
    }
}

/// The value of a lock's key (`value.lua`): lease id, token, owner. `None` for the value of another library.
fn read_value(value: &str) -> Option<(&str, FencingToken, Option<&str>)> {
    let (id, rest) = value.split_once(' ')?;
    let (token, owner) = rest.split_once('/').map_or((rest, None), |(token, owner)| (token, Some(owner)));
    let token = token.strip_suffix(WAITED_FOR).unwrap_or(token);
    LeaseId::parse(id)?;
    Some((id, FencingToken::new(token.parse().ok()?), owner))
}

fn read_inspection(parts: &[Value], detail: Detail) -> Option<Inspection> {
    let [value, remaining, waiters, holds] = parts else { return None };
    let Some(value) = value.as_bytes() else {
        return Some(Inspection::new(Vec::new(), read_waiters(waiters)?, None, 0));
    };
    let value = String::from_utf8_lossy(value);
    let remaining = from_millis(remaining);
    let lead = match read_value(&value) {
        Some((id, token, owner)) => {
            Holder { owner: owner.map(str::to_owned), ..Holder::new(id, Some(token), remaining) }
        }
        None => Holder::new(&*value, None, remaining),
    };
    let mut holders = Vec::new();
    for hold in holds.as_list().chunks_exact(2) {
        let id = read_lease(&hold[0])?.to_string();
        holders.push(Holder { id, remaining: from_millis(&hold[1]), ..lead.clone() });
    }
    if holders.is_empty() {
        holders.push(lead);
    } else {
        // The one that the key names comes first.
        holders.sort_by_key(|hold| hold.id != lead.id);
    }
    let holders = if detail == Detail::Full { holders } else { Vec::new() };
    Some(Inspection::new(holders, read_waiters(waiters)?, None, 1))
}
