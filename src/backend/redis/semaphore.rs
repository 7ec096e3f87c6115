//! The scripts for semaphores as calls.

use std::time::Duration;

use fred::types::Value;
use tokio::time::Instant;

use super::args::Args;
use super::operation::Operation;
use super::protocol::{
    ABOVE_LIMIT, EXPIRED, GRANTED, LEFT_QUEUE, LIMIT_DIFFERS, NONE_FREE, NOT_HELD, QUEUED, RELEASED, RENEWED,
};
use super::reply::{
    Answer, from_millis, millis, read_held, read_lease, read_number, read_queued, read_token, read_waiters,
    unreadable, wanted,
};
use super::script::{ACQUIRE_PERMITS, INSPECT_PERMITS, RELEASE_PERMITS, RENEW_PERMITS, RESIZE};
use super::transport::Transport;
use crate::backend::{
    AcquireRequest, BackendError, Detail, Holder, Inspection, LeaseId, Limit, Released, RenewRequest,
    Renewal, Resource, Stated, Wait, Whose,
};
use crate::error::LossReason;

/// Asks for permits, once.
pub(super) async fn acquire(
    transport: &Transport,
    request: &AcquireRequest,
    permits: u32,
    limit: &Limit,
) -> Result<Answer, BackendError> {
    let stated = limit.stated();
    let operation = to_acquire(request, permits, stated);
    let answer = transport.call(operation, transport.patience(request.term)).await?;
    let answer = answer.into_array();
    let said = answer.first().and_then(Value::as_bytes_str);
    match (said.as_deref(), answer.get(1).and_then(read_number)) {
        (Some(LIMIT_DIFFERS), Some(in_force)) => {
            Err(BackendError::LimitDiffers { stated: stated.permits, in_force })
        }
        (Some(ABOVE_LIMIT), Some(limit)) => Err(BackendError::AboveLimit { permits, limit }),
        _ => read_answer(&answer, limit).ok_or_else(|| unreadable(&ACQUIRE_PERMITS)),
    }
}

fn to_acquire(request: &AcquireRequest, permits: u32, stated: Stated) -> Operation {
    let args = about(&request.resource, request.lease)
        .number(millis(request.term))
        .number(u8::from(request.wait != Wait::No))
        .number(permits)
        .number(stated.permits)
        .number(stated.reign)
        .number(request.reserve);
    Operation { script: &ACQUIRE_PERMITS, resource: request.resource.clone(), args }
}

/// Renews a lease, once.
pub(super) async fn renew(transport: &Transport, request: &RenewRequest) -> Result<Renewal, BackendError> {
    let args = about(&request.resource, request.lease).number(millis(request.term));
    let operation = Operation { script: &RENEW_PERMITS, resource: request.resource.clone(), args };
    let sent = Instant::now();
    match transport.call(operation, transport.patience(request.term)).await {
        // Somebody has put something else in the place of the semaphore.
        Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
        answer => match answer?.as_bytes_str().as_deref() {
            Some(RENEWED) => Ok(Renewal::Renewed { counted_from: sent }),
            Some(EXPIRED) => Ok(Renewal::Lost(LossReason::Expired)),
            _ => Err(unreadable(&RENEW_PERMITS)),
        },
    }
}

/// Releases, until the server answers or two timeouts have passed.
pub(super) async fn release(
    transport: &Transport,
    resource: &Resource,
    whose: Whose,
) -> Result<Released, BackendError> {
    let (lease, kept) = match whose {
        Whose::Lease(lease) => (lease, 0),
        Whose::AllBut(lease, kept) => (lease, kept),
        Whose::Anyone => return Err(BackendError::many_holders()),
    };
    let release = || {
        let args = about(resource, lease).number(kept);
        Operation { script: &RELEASE_PERMITS, resource: resource.clone(), args }
    };
    let (answer, repeated) = transport.insist(release, BackendError::is_transient).await?;
    match answer.as_i64() {
        Some(RELEASED) => Ok(Released::Held),
        Some(LEFT_QUEUE) => Ok(Released::Queued),
        // An earlier attempt may have released it, and its answer got lost.
        Some(NOT_HELD) if repeated => Ok(Released::Unknown),
        Some(NOT_HELD) => Ok(Released::Absent),
        _ => Err(unreadable(&RELEASE_PERMITS)),
    }
}

/// Changes a limit, until the server answers or two timeouts have passed.
pub(super) async fn resize(
    transport: &Transport,
    resource: &Resource,
    permits: u32,
    term: Duration,
    limit: &Limit,
) -> Result<(), BackendError> {
    let resize = || {
        let args = Args::new().word(resource.kind.as_str()).number(permits).number(millis(term));
        Operation { script: &RESIZE, resource: resource.clone(), args }
    };
    let (version, _) = transport.insist(resize, BackendError::is_transient).await?;
    limit.follow(permits, version.as_u64().ok_or_else(|| unreadable(&RESIZE))?);
    Ok(())
}

/// Inspects, until the server answers or two timeouts have passed.
pub(super) async fn inspect(
    transport: &Transport,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, BackendError> {
    let args = || Args::new().word(wanted(detail));
    let inspect = || Operation { script: &INSPECT_PERMITS, resource: resource.clone(), args: args() };
    let (answer, _) = transport.insist(inspect, BackendError::is_transient).await?;
    read_inspection(&answer.into_array()).ok_or_else(|| unreadable(&INSPECT_PERMITS))
}

/// Which kind of semaphore the script is to serve, and a lease.
fn about(resource: &Resource, lease: LeaseId) -> Args {
    Args::new().word(resource.kind.as_str()).lease(lease)
}

fn read_answer(answer: &[Value], limit: &Limit) -> Option<Answer> {
    let [said, in_force, version, rest @ ..] = answer else { return None };
    limit.follow(read_number(in_force)?, version.as_u64()?);
    match (said.as_bytes_str().as_deref()?, rest) {
        (GRANTED, [token]) => Some(Answer::Granted(read_token(token)?)),
        (GRANTED, [token, remaining]) => read_held(token, remaining),
        (QUEUED, [remaining, before, ticket]) => read_queued(remaining, before, ticket),
        (NONE_FREE, []) => Some(Answer::Busy),
        _ => None,
    }
}

fn read_inspection(parts: &[Value]) -> Option<Inspection> {
    let [limit, in_use, waiters, holders] = parts else { return None };
    let holders = holders.clone().into_array();
    let holders = holders.chunks_exact(4).map(|part| {
        let id = read_lease(&part[0])?.to_string();
        let holder = Holder::new(id, read_token(&part[3]), from_millis(&part[1]));
        Some(Holder { permits: read_number(&part[2])?, ..holder })
    });
    let holders = holders.collect::<Option<_>>()?;
    Some(Inspection::new(holders, read_waiters(waiters)?, read_number(limit), read_number(in_use)?))
}
