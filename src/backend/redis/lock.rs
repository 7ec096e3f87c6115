//! The scripts for mutexes and reentrant locks as calls.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;

use super::args::Args;
use super::operation::Operation;
use super::reply::{
    from_millis, millis, read_granted, read_held, read_lease, read_queued, read_token, read_waiters,
    unreadable, wanted,
};
use super::script::{ACQUIRE, ACQUIRE_OWNED, FORCE, INSPECT, RELEASE, RELEASE_OWNED, RENEW, RENEW_OWNED};
use super::transport::Transport;
use crate::backend::{
    Answer, BackendError, Detail, Holder, Inspection, Kind, LeaseId, LeaseRef, Released, Renew, Renewal,
    Request, Resource,
};
use crate::error::LossReason;

/// Requests a lock, once. A lock key without an expiry gets that of `repair`.
pub(super) async fn acquire(
    transport: &Transport,
    request: &Request,
    repair: Option<Duration>,
) -> Result<Answer, BackendError> {
    let operation = to_acquire(request, repair);
    let script = operation.script;
    let answer = transport.call(operation, transport.patience(request.ttl)).await?;
    read_answer(&answer).ok_or_else(|| unreadable(script))
}

// A function of its own, so that the future that waits for the answer does not contain these variables.
fn to_acquire(request: &Request, repair: Option<Duration>) -> Operation {
    let mut args = Args::new().lease(request.lease.id).number(millis(request.ttl));
    let owner = request.claim.owner();
    // Every argument costs a microsecond, so the frequent case omits the last two.
    if !request.waits || repair.is_some() || owner.is_some() {
        args = args.number(u8::from(request.waits)).number(repair.map_or(0, millis));
    }
    let (script, args) = match owner {
        Some(owner) => (&ACQUIRE_OWNED, args.word(owner)),
        None => (&ACQUIRE, args),
    };
    Operation { script, key: Arc::clone(&request.lease.resource.key), args }
}

/// Renews a lease, once.
pub(super) async fn renew(transport: &Transport, renew: &Renew) -> Result<Renewal, BackendError> {
    let operation = to_renew(renew);
    let script = operation.script;
    match transport.call(operation, transport.patience(renew.ttl)).await {
        // Somebody has stored something else under the key of the lock.
        Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
        answer => match answer?.as_bytes_str().as_deref() {
            Some("renewed") => Ok(Renewal::Renewed),
            Some("taken") => Ok(Renewal::Lost(LossReason::Taken)),
            Some("expired") => Ok(Renewal::Lost(LossReason::Expired)),
            _ => Err(unreadable(script)),
        },
    }
}

fn to_renew(renew: &Renew) -> Operation {
    let args = Args::new().lease(renew.lease.id).number(millis(renew.ttl));
    let owned = renew.lease.resource.kind == Kind::Reentrant;
    let script = if owned { &RENEW_OWNED } else { &RENEW };
    Operation { script, key: Arc::clone(&renew.lease.resource.key), args }
}

/// Releases, repeatedly until the server answers or two timeouts have passed.
pub(super) async fn release(transport: &Transport, lease: &LeaseRef) -> Result<Released, BackendError> {
    let release = || to_release(lease);
    let (answer, repeated) = transport.insist(release, BackendError::is_transient).await?;
    match answer.as_i64() {
        Some(1) => Ok(Released::Held),
        Some(2) => Ok(Released::Queued),
        // An earlier attempt, whose answer was lost, may have released it.
        Some(0 | 3) if repeated => Ok(Released::Unknown),
        Some(3) => Ok(Released::Taken),
        Some(0) => Ok(Released::Absent),
        _ => Err(unreadable(release().script)),
    }
}

fn to_release(lease: &LeaseRef) -> Operation {
    let script = if lease.resource.kind == Kind::Reentrant { &RELEASE_OWNED } else { &RELEASE };
    Operation { script, key: Arc::clone(&lease.resource.key), args: Args::new().lease(lease.id) }
}

/// Ends all holds of the lock. Not repeated once it may have been executed.
pub(super) async fn force(transport: &Transport, resource: &Resource) -> Result<bool, BackendError> {
    let not_sent = |error: &BackendError| matches!(error, BackendError::NotSent { .. });
    let force = || Operation { script: &FORCE, key: Arc::clone(&resource.key), args: Args::new() };
    let (answer, _) = transport.insist(force, not_sent).await?;
    match answer.as_i64() {
        Some(1) => Ok(true),
        Some(0) => Ok(false),
        _ => Err(unreadable(&FORCE)),
    }
}

/// Inspects, repeatedly until the server answers or two timeouts have passed.
pub(super) async fn inspect(
    transport: &Transport,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, BackendError> {
    let args = || Args::new().word(wanted(detail));
    let inspect = || Operation { script: &INSPECT, key: Arc::clone(&resource.key), args: args() };
    let (answer, _) = transport.insist(inspect, BackendError::is_transient).await?;
    read_inspection(&answer.into_array(), detail).ok_or_else(|| unreadable(&INSPECT))
}

fn read_answer(answer: &Value) -> Option<Answer> {
    if let Value::Array(parts) = answer {
        return match &parts[..] {
            [remaining, before, ticket] => read_queued(remaining, before, ticket, None),
            [token, remaining] => read_held(token, remaining, None),
            _ => None,
        };
    }
    match read_token(answer)? {
        token if token.get() == 0 => Some(Answer::Busy { limit: None }),
        _ => read_granted(answer, None),
    }
}

fn read_inspection(parts: &[Value], detail: Detail) -> Option<Inspection> {
    let [value, remaining, token, waiters, holds] = parts else { return None };
    let Some(value) = value.as_bytes() else {
        return Some(Inspection::new(Vec::new(), read_waiters(waiters)?, None, 0));
    };
    let value = String::from_utf8_lossy(value);
    let lead = Holder::new(&*value, None, from_millis(remaining));
    let lead = match value.split_once('/').map_or((&*value, None), |(id, owner)| (id, Some(owner))) {
        (id, owner) if LeaseId::parse(id).is_some() => {
            Holder { id: id.to_owned(), token: read_token(token), owner: owner.map(str::to_owned), ..lead }
        }
        _ => lead,
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
