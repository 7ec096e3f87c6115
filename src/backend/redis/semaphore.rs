//! The scripts for semaphores as calls.

use std::sync::Arc;
use std::time::Duration;

use super::operation::Operation;
use super::protocol::{
    ABOVE_LIMIT, EXPIRED, GRANTED, LEFT_QUEUE, LIMIT_DIFFERS, NONE_FREE, NOT_HELD, QUEUED, RELEASED, RENEWED,
};
use super::reply::{
    from_millis, millis, read_granted, read_held, read_lease, read_number, read_queued, read_token,
    read_waiters, unreadable, wanted,
};
use super::script::{ACQUIRE_PERMITS, INSPECT_PERMITS, RELEASE_PERMITS, RENEW_PERMITS, RESIZE, Script};
use super::transport::Transport;
use super::value::Value;
use crate::backend::{
    Answer, BackendError, Detail, Holder, Inspection, LeaseRef, Limit, Released, Renew, Renewal, Request,
    Resource,
};
use crate::error::LossReason;

/// Requests permits, once.
pub(super) async fn acquire(
    transport: &Arc<Transport>,
    request: &Request,
    permits: u32,
    stated: Limit,
) -> Result<Answer, BackendError> {
    let operation = to_acquire(request, permits, stated);
    let answer = transport.call(operation, transport.answer_timeout(request.ttl)).await?;
    let answer = answer.as_list();
    let said = answer.first().and_then(Value::as_str);
    match (said, answer.get(1).and_then(read_number)) {
        (Some(LIMIT_DIFFERS), Some(in_force)) => {
            Err(BackendError::LimitDiffers { stated: stated.permits, in_force })
        }
        (Some(ABOVE_LIMIT), Some(limit)) => Err(BackendError::AboveLimit { permits, limit }),
        _ => read_answer(answer).ok_or_else(|| unreadable(&ACQUIRE_PERMITS)),
    }
}

fn to_acquire(request: &Request, permits: u32, stated: Limit) -> Operation {
    about(&ACQUIRE_PERMITS, &request.lease)
        .number(millis(request.ttl))
        .number(u8::from(request.waits))
        .number(permits)
        .number(stated.permits)
        .number(stated.version)
}

/// Renews a lease, once.
pub(super) async fn renew(transport: &Arc<Transport>, renew: &Renew) -> Result<Renewal, BackendError> {
    let operation = about(&RENEW_PERMITS, &renew.lease).number(millis(renew.ttl));
    match transport.call(operation, transport.answer_timeout(renew.ttl)).await {
        // Another program has stored something else under the key of the semaphore.
        Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
        answer => match answer?.as_str() {
            Some(RENEWED) => Ok(Renewal::Renewed),
            Some(EXPIRED) => Ok(Renewal::Lost(LossReason::Expired)),
            _ => Err(unreadable(&RENEW_PERMITS)),
        },
    }
}

/// Releases all permits of a lease but `kept`, once.
pub(super) async fn release(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    kept: u32,
) -> Result<Released, BackendError> {
    match transport.call_once(about(&RELEASE_PERMITS, lease).number(kept)).await?.as_i64() {
        Some(RELEASED) => Ok(Released::Held),
        Some(LEFT_QUEUE) => Ok(Released::Queued),
        Some(NOT_HELD) => Ok(Released::Absent),
        _ => Err(unreadable(&RELEASE_PERMITS)),
    }
}

/// Changes a limit, once.
pub(super) async fn set_limit(
    transport: &Arc<Transport>,
    resource: &Resource,
    permits: u32,
    ttl: Duration,
) -> Result<Limit, BackendError> {
    let resize = Operation::new(&RESIZE, resource).word(resource.kind.as_str());
    let version = transport.call_once(resize.number(permits).number(millis(ttl))).await?;
    Ok(Limit::new(permits, version.as_u64().ok_or_else(|| unreadable(&RESIZE))?))
}

/// Inspects, once.
pub(super) async fn inspect(
    transport: &Arc<Transport>,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, BackendError> {
    let answer = transport.call_once(Operation::new(&INSPECT_PERMITS, resource).word(wanted(detail))).await?;
    read_inspection(answer.as_list()).ok_or_else(|| unreadable(&INSPECT_PERMITS))
}

/// A script, and the kind of semaphore and a lease as its first arguments.
fn about(script: &'static Script, lease: &LeaseRef) -> Operation {
    Operation::new(script, &lease.resource).word(lease.resource.kind.as_str()).lease(lease.id)
}

fn read_answer(answer: &[Value]) -> Option<Answer> {
    let [said, in_force, version, rest @ ..] = answer else { return None };
    let limit = Some(Limit::new(read_number(in_force)?, version.as_u64()?));
    match (said.as_str()?, rest) {
        (GRANTED, [token]) => read_granted(token, limit),
        (GRANTED, [token, remaining]) => read_held(token, remaining, limit),
        (QUEUED, [remaining, before, ticket]) => read_queued(remaining, before, ticket, limit),
        (NONE_FREE, []) => Some(Answer::Busy { limit }),
        _ => None,
    }
}

fn read_inspection(parts: &[Value]) -> Option<Inspection> {
    let [limit, in_use, waiters, holders] = parts else { return None };
    let holders = holders.as_list();
    let holders = holders.chunks_exact(4).map(|part| {
        let id = read_lease(&part[0])?.to_string();
        let holder = Holder::new(id, read_token(&part[3]), from_millis(&part[1]));
        Some(Holder { permits: read_number(&part[2])?, ..holder })
    });
    let holders = holders.collect::<Option<_>>()?;
    Some(Inspection::new(holders, read_waiters(waiters)?, read_number(limit), read_number(in_use)?))
}
