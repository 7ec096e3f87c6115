//! The scripts for semaphores as calls.

use std::sync::Arc;
use std::time::Duration;

use super::operation::Operation;
use super::protocol::{ABOVE_LIMIT, GRANTED, LIMIT_DIFFERS, NONE_FREE, QUEUED};
use super::reply::{
    from_millis, held_for, inspection, millis, read_granted, read_held, read_lease, read_number, read_queued,
    read_token, wanted,
};
use super::script::{ACQUIRE_PERMITS, INSPECT_PERMITS, RELEASE_PERMITS, RENEW_PERMITS, RESIZE, Script};
use super::transport::Transport;
use super::value::Value;
use crate::backend::{
    Answer, BackendError, Detail, Holder, Inspection, LeaseRef, Limit, Renew, Request, Resource,
};

/// Requests permits, once.
pub(super) async fn acquire(
    transport: &Arc<Transport>,
    request: &Request,
    permits: u32,
    stated: Limit,
) -> Result<Answer, BackendError> {
    let operation = to_acquire(request, permits, stated);
    let read = |answer: &Value| read_answer(answer.as_list(), permits, stated);
    transport.ask(operation, transport.answer_timeout(request.ttl), read).await?
}

fn to_acquire(request: &Request, permits: u32, stated: Limit) -> Operation {
    about(&ACQUIRE_PERMITS, &request.lease)
        .number(millis(request.ttl))
        .number(u8::from(request.waits))
        .number(permits)
        .number(stated.permits)
        .number(stated.version)
}

/// The renewal of a lease.
pub(super) fn to_renew(renew: &Renew) -> Operation {
    about(&RENEW_PERMITS, &renew.lease).number(millis(renew.ttl))
}

/// The release of all permits of a lease but `keep`.
pub(super) fn to_release(lease: &LeaseRef, keep: u32) -> Operation {
    about(&RELEASE_PERMITS, lease).number(keep)
}

/// Changes a limit, once.
pub(super) fn set_limit(
    transport: &Arc<Transport>,
    resource: &Resource,
    permits: u32,
    ttl: Duration,
) -> impl Future<Output = Result<Limit, BackendError>> {
    let operation = Operation::new(&RESIZE, resource).word(resource.kind.as_str());
    let operation = operation.number(permits).number(millis(ttl));
    transport
        .ask(operation, transport.reply_timeout, move |version| Some(Limit::new(permits, version.as_u64()?)))
}

/// Inspects, once.
pub(super) fn inspect(
    transport: &Arc<Transport>,
    resource: &Resource,
    detail: Detail,
) -> impl Future<Output = Result<Inspection, BackendError>> {
    let operation = Operation::new(&INSPECT_PERMITS, resource).word(wanted(detail));
    transport.ask(operation, transport.reply_timeout, |answer| read_inspection(answer.as_list()))
}

/// A script, and the kind of semaphore and a lease as its first arguments.
fn about(script: &'static Script, lease: &LeaseRef) -> Operation {
    Operation::new(script, &lease.resource).word(lease.resource.kind.as_str()).lease(lease.id)
}

/// The answer, or why the request is invalid.
pub(super) fn read_answer(
    answer: &[Value],
    permits: u32,
    stated: Limit,
) -> Option<Result<Answer, BackendError>> {
    let [said, in_force, rest @ ..] = answer else { return None };
    let (said, in_force) = (said.as_str()?, read_number(in_force)?);
    let answer = match (said, rest) {
        (LIMIT_DIFFERS, _) => Err(BackendError::LimitDiffers { stated: stated.permits, in_force }),
        (ABOVE_LIMIT, _) => Err(BackendError::AboveLimit { permits, limit: in_force }),
        (_, [version, rest @ ..]) => {
            let limit = Some(Limit::new(in_force, version.as_u64()?));
            Ok(match (said, rest) {
                (GRANTED, [token]) => read_granted(token, limit)?,
                (GRANTED, [token, remaining]) => read_held(token, remaining, limit)?,
                (QUEUED, [remaining, before, ticket]) => read_queued(remaining, before, ticket, limit)?,
                (NONE_FREE, []) => Answer::Busy { limit },
                _ => return None,
            })
        }
        _ => return None,
    };
    Some(answer)
}

pub(super) fn read_inspection(parts: &[Value]) -> Option<Inspection> {
    let [limit, in_use, waiters, holders, now] = parts else { return None };
    let holders = read_holders(holders, now).collect::<Option<_>>()?;
    inspection(holders, waiters, read_number(limit), read_number(in_use)?)
}

/// Who holds permits: lease id, remaining time, permits and token of each, and the time. `None` for one that is not
/// ours.
pub(super) fn read_holders<'a>(
    holders: &'a Value,
    now: &'a Value,
) -> impl Iterator<Item = Option<Holder>> + 'a {
    holders.as_list().chunks_exact(4).map(|part| {
        let (id, token) = (read_lease(&part[0])?.to_string(), read_token(&part[3]));
        let holder = Holder::new(id, token, from_millis(&part[1]));
        Some(Holder { permits: read_number(&part[2])?, held_for: held_for(token, now), ..holder })
    })
}
