//! The scripts for mutexes and reentrant locks as calls.

use std::sync::Arc;
use std::time::Duration;

use super::operation::Operation;
use super::protocol::{BUSY, NOT_HELD, RELEASED, SETTLED, WAITED_FOR};
use super::reply::{
    from_millis, held_for, inspection, millis, read_granted, read_held, read_lease, read_queued, wanted,
};
use super::script::{
    ACQUIRE, ACQUIRE_AND_TELL, FORCE, FORCE_AND_TELL, INSPECT, RELEASE, RELEASE_AND_TELL, RENEW, RENEW_OWNED,
    SETTLE, SETTLE_AND_TELL, WAS_REVOKED,
};
use super::transport::Transport;
use super::value::Value;
use crate::backend::{
    Answer, BackendError, Detail, Holder, Inspection, Kind, LeaseId, LeaseRef, MAX_TTL, Renew, Request,
    Resource,
};
use crate::fence::FencingToken;
use crate::options::DEFAULT_TTL;

/// Requests a lock, once. A lock key without an expiry gets that of `repair`. The token is not less than the `proposed`
/// one, as far as the server accepts the proposal.
pub(super) fn acquire(
    transport: &Arc<Transport>,
    request: &Request,
    repair: Option<Duration>,
    proposed: Option<FencingToken>,
) -> impl Future<Output = Result<Answer, BackendError>> {
    let operation = to_acquire(request, repair, proposed);
    transport.ask(operation, transport.answer_timeout(request.ttl), read_answer)
}

fn to_acquire(request: &Request, repair: Option<Duration>, proposed: Option<FencingToken>) -> Operation {
    let owner = request.claim.owner();
    let script = if request.lease.resource.is_of_election() { &ACQUIRE_AND_TELL } else { &ACQUIRE };
    let operation = Operation::new(script, &request.lease.resource).lease(request.lease.id);
    // Every argument costs the server as much as half a command, so the frequent cases omit them.
    let is_plain = request.waits && repair.is_none() && owner.is_none() && proposed.is_none();
    if is_plain && request.ttl == DEFAULT_TTL {
        return operation;
    }
    let operation = operation.number(millis(request.ttl));
    if is_plain {
        return operation;
    }
    let operation = operation.number(u8::from(request.waits)).number(repair.map_or(0, millis));
    match (owner, proposed) {
        (None, None) => operation,
        (Some(owner), None) => operation.word(owner),
        (owner, Some(proposed)) => operation.word(owner.map_or("", |owner| owner)).number(proposed.get()),
    }
}

/// Gives a lease that is held this token, once. `false` if the lease is not held.
pub(super) fn settle(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    token: FencingToken,
) -> impl Future<Output = Result<bool, BackendError>> {
    let script = if lease.resource.is_of_election() { &SETTLE_AND_TELL } else { &SETTLE };
    let operation = Operation::new(script, &lease.resource).lease(lease.id).number(token.get());
    transport.ask(operation, transport.answer_timeout(MAX_TTL), |answer| read_was_held(answer, SETTLED))
}

/// The renewal of a lease.
pub(super) fn to_renew(renew: &Renew) -> Operation {
    let script = if renew.lease.resource.kind == Kind::Reentrant { &RENEW_OWNED } else { &RENEW };
    Operation::new(script, &renew.lease.resource).lease(renew.lease.id).number(millis(renew.ttl))
}

/// The release of a lease. When a gap is due, the lock is left free for so long.
pub(super) fn to_release(lease: &LeaseRef, gap: Option<Duration>) -> Operation {
    let script = if lease.resource.is_of_election() { &RELEASE_AND_TELL } else { &RELEASE };
    let operation = Operation::new(script, &lease.resource).lease(lease.id);
    match gap {
        Some(gap) => operation.number(millis(gap)),
        None => operation,
    }
}

/// Ends all holds of the lock, once.
pub(super) fn force(
    transport: &Arc<Transport>,
    resource: &Resource,
) -> impl Future<Output = Result<bool, BackendError>> {
    let script = if resource.is_of_election() { &FORCE_AND_TELL } else { &FORCE };
    let operation = Operation::new(script, resource);
    transport.ask(operation, transport.reply_timeout, |answer| read_was_held(answer, RELEASED))
}

/// Whether a lease that was not found was released by force, once.
pub(super) fn was_revoked(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    time_limit: Duration,
) -> impl Future<Output = Result<bool, BackendError>> {
    let operation = Operation::new(&WAS_REVOKED, &lease.resource).lease(lease.id);
    transport.ask(operation, time_limit, |answer| Some(answer.as_i64()? == 1))
}

/// Inspects, once.
pub(super) fn inspect(
    transport: &Arc<Transport>,
    resource: &Resource,
    detail: Detail,
) -> impl Future<Output = Result<Inspection, BackendError>> {
    let operation = Operation::new(&INSPECT, resource).word(wanted(detail));
    transport.ask(operation, transport.reply_timeout, move |answer| read_inspection(answer.as_list(), detail))
}

/// Whether the lock was held; then the script has answered with `done`.
fn read_was_held(answer: &Value, done: i64) -> Option<bool> {
    match answer.as_i64()? {
        NOT_HELD => Some(false),
        number => (number == done).then_some(true),
    }
}

pub(super) fn read_answer(answer: &Value) -> Option<Answer> {
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

pub(super) fn read_inspection(parts: &[Value], detail: Detail) -> Option<Inspection> {
    let [value, remaining, waiters, holds, now] = parts else { return None };
    let Some(value) = value.as_bytes() else {
        return inspection(Vec::new(), waiters, None, 0);
    };
    let holders = read_holders(value, remaining, holds, now)?;
    let holders = if detail == Detail::Counts { Vec::new() } else { holders };
    inspection(holders, waiters, None, 1)
}

/// Who holds a lock: what is stored under it and the time until that ends, the holds of its owner if there are several,
/// and the time.
pub(super) fn read_holders(
    value: &[u8],
    remaining: &Value,
    holds: &Value,
    now: &Value,
) -> Option<Vec<Holder>> {
    let value = String::from_utf8_lossy(value);
    let remaining = from_millis(remaining);
    let lead = match read_value(&value) {
        Some((id, token, owner)) => {
            let held_for = held_for(Some(token), now);
            Holder { owner: owner.map(str::to_owned), held_for, ..Holder::new(id, Some(token), remaining) }
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
    Some(holders)
}
