//! The scripts for mutexes and reentrant locks as calls.

use fred::types::Value;
use tokio::time::Instant;

use super::args::Args;
use super::operation::Operation;
use super::protocol::{
    BUSY, EXPIRED, HELD_BY_OTHER, LEFT_QUEUE, NOT_HELD, RELEASED, RENEWED, TAKEN, TOKENS_PER_GRANT,
};
use super::reply::{
    Answer, from_millis, millis, read_held, read_lease, read_queued, read_token, read_waiters, unreadable,
    wanted,
};
use super::script::{ACQUIRE, ACQUIRE_OWNED, FORCE, INSPECT, RELEASE, RELEASE_OWNED, RENEW, RENEW_OWNED};
use super::transport::Transport;
use crate::backend::{
    AcquireRequest, BackendError, Detail, Holder, Inspection, Kind, LeaseId, Released, RenewRequest, Renewal,
    Resource, Wait, Whose,
};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// Asks for a lock, once.
pub(super) async fn acquire(transport: &Transport, request: &AcquireRequest) -> Result<Answer, BackendError> {
    let operation = to_acquire(request);
    let script = operation.script;
    let answer = transport.call(operation, transport.patience(request.term)).await?;
    read_answer(&answer).ok_or_else(|| unreadable(script))
}

// Apart from the future that waits for the answer, which would carry all of this with it.
fn to_acquire(request: &AcquireRequest) -> Operation {
    let mut args = Args::new().lease(request.lease).number(millis(request.term));
    let owner = request.claim.owner();
    // Every argument costs a microsecond on its way: the frequent case goes without the others.
    let more = request.wait == Wait::No || request.repair.is_some() || owner.is_some();
    if more || request.reserve != TOKENS_PER_GRANT {
        args = args.number(request.reserve);
    }
    if more {
        args = args.number(u8::from(request.wait != Wait::No)).number(request.repair.map_or(0, millis));
    }
    let (script, args) = match owner {
        Some(owner) => (&ACQUIRE_OWNED, args.word(owner)),
        None => (&ACQUIRE, args),
    };
    Operation { script, resource: request.resource.clone(), args }
}

/// Renews a lease, once.
pub(super) async fn renew(transport: &Transport, request: &RenewRequest) -> Result<Renewal, BackendError> {
    let operation = to_renew(request);
    let (script, sent) = (operation.script, Instant::now());
    match transport.call(operation, transport.patience(request.term)).await {
        // Somebody has put something else in the place of the lock.
        Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
        answer => match answer?.as_bytes_str().as_deref() {
            Some(RENEWED) => Ok(Renewal::Renewed { counted_from: sent }),
            Some(TAKEN) => Ok(Renewal::Lost(LossReason::Taken)),
            Some(EXPIRED) => Ok(Renewal::Lost(LossReason::Expired)),
            _ => Err(unreadable(script)),
        },
    }
}

fn to_renew(request: &RenewRequest) -> Operation {
    let args = Args::new().lease(request.lease).number(millis(request.term));
    let owned = request.resource.kind == Kind::Reentrant;
    let script = if owned { &RENEW_OWNED } else { &RENEW };
    Operation { script, resource: request.resource.clone(), args }
}

/// Releases, until the server answers or two timeouts have passed. A lock has no parts: what keeps one keeps all.
pub(super) async fn release(
    transport: &Transport,
    resource: &Resource,
    whose: Whose,
) -> Result<Released, BackendError> {
    let lease = match whose {
        Whose::Anyone => return force(transport, resource).await,
        Whose::AllBut(_, kept) if kept > 0 => return Ok(Released::Held),
        Whose::AllBut(lease, _) | Whose::Lease(lease) => lease,
    };
    let release = || to_release(resource, lease);
    let (answer, repeated) = transport.insist(release, BackendError::is_transient).await?;
    match answer.as_i64() {
        Some(RELEASED) => Ok(Released::Held),
        Some(LEFT_QUEUE) => Ok(Released::Queued),
        // An earlier attempt may have released it, and its answer got lost.
        Some(NOT_HELD | HELD_BY_OTHER) if repeated => Ok(Released::Unknown),
        Some(HELD_BY_OTHER) => Ok(Released::Taken),
        Some(NOT_HELD) => Ok(Released::Absent),
        _ => Err(unreadable(release().script)),
    }
}

fn to_release(resource: &Resource, lease: LeaseId) -> Operation {
    let script = if resource.kind == Kind::Reentrant { &RELEASE_OWNED } else { &RELEASE };
    Operation { script, resource: resource.clone(), args: Args::new().lease(lease) }
}

/// Releases whoever holds the lock. Not sent again once it may have been carried out.
async fn force(transport: &Transport, resource: &Resource) -> Result<Released, BackendError> {
    let not_sent = |error: &BackendError| matches!(error, BackendError::NotSent { .. });
    let force = || Operation { script: &FORCE, resource: resource.clone(), args: Args::new() };
    let (answer, _) = transport.insist(force, not_sent).await?;
    match answer.as_i64() {
        Some(RELEASED) => Ok(Released::Held),
        Some(NOT_HELD) => Ok(Released::Absent),
        _ => Err(unreadable(&FORCE)),
    }
}

/// Inspects, until the server answers or two timeouts have passed.
pub(super) async fn inspect(
    transport: &Transport,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, BackendError> {
    let args = || Args::new().word(wanted(detail));
    let inspect = || Operation { script: &INSPECT, resource: resource.clone(), args: args() };
    let (answer, _) = transport.insist(inspect, BackendError::is_transient).await?;
    read_inspection(&answer.into_array(), detail).ok_or_else(|| unreadable(&INSPECT))
}

fn read_answer(answer: &Value) -> Option<Answer> {
    if let Value::Array(parts) = answer {
        return match &parts[..] {
            [remaining, before, ticket] => read_queued(remaining, before, ticket),
            [token, remaining] => read_held(token, remaining),
            _ => None,
        };
    }
    match answer.as_i64()? {
        BUSY => Some(Answer::Busy),
        _ => read_token(answer).map(Answer::Granted),
    }
}

/// What stands under a lock's key: `<lease id> <token>`, for a reentrant lock followed by `/<owner>`. `None` for what another library
/// has put there.
fn read_value(value: &str) -> Option<(&str, FencingToken, Option<&str>)> {
    let (id, rest) = value.split_once(' ')?;
    let (token, owner) = rest.split_once('/').map_or((rest, None), |(token, owner)| (token, Some(owner)));
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
    for hold in holds.clone().into_array().chunks_exact(2) {
        let id = read_lease(&hold[0])?.to_string();
        holders.push(Holder { id, remaining: from_millis(&hold[1]), ..lead.clone() });
    }
    if holders.is_empty() {
        holders.push(lead);
    } else {
        // The one that the key names comes first.
        holders.sort_by_key(|hold| hold.id != lead.id);
    }
    let holders = if detail == Detail::Everybody { holders } else { Vec::new() };
    Some(Inspection::new(holders, read_waiters(waiters)?, None, 1))
}
