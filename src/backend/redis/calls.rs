//! The scripts as typed calls: their arguments, and what their answers say.

use std::sync::Arc;
use std::time::Duration;

use super::link::Value;
use super::protocol::{
    ABOVE_LIMIT, BUSY, COUNTS, EXPIRED, FULL, GRANTED, HELD_BY_OTHER, LEFT_QUEUE, LIMIT_DIFFERS, NONE_FREE,
    NOT_HELD, PROPOSED_AHEAD_US, QUEUED, RELEASED, RENEWED, SETTLED, SUMMARY, TAKEN, WAITED_FOR,
};
use super::script::{
    ACQUIRE, ACQUIRE_AND_TELL, ACQUIRE_PERMITS, FORCE, FORCE_AND_TELL, INSPECT, INSPECT_PERMITS, Operation,
    RELEASE, RELEASE_AND_TELL, RELEASE_PERMITS, RENEW, RENEW_OWNED, RENEW_PERMITS, RESIZE, SETTLE,
    SETTLE_AND_TELL, Script, WAS_REVOKED,
};
use super::transport::Transport;
use crate::backend::{
    Answer, BackendError, Detail, Grant, Holder, Inspection, Kind, LeaseId, LeaseRef, Limit, MAX_TTL, Queued,
    Released, Renew, Renewal, Request, Resource, Ticket, Waiter,
};
use crate::error::LossReason;
use crate::fence::FencingToken;
use crate::options::DEFAULT_TTL;

/// How much later than the waiter before it each waiter repeats its request when the holder's lease ends, up to a
/// limit: the first one serves the queue, so the others need not all come at that moment.
const STAGGER: Duration = Duration::from_millis(2);
const MAX_STAGGER: Duration = Duration::from_millis(500);
/// What PTTL answers for a key that has no expiry.
const NO_EXPIRY: i64 = -1;

/// Requests a lock, once. A lock key without an expiry gets that of `repair`. The token is not less than the `proposed`
/// one, as far as the server accepts the proposal.
pub(super) fn acquire(
    transport: &Arc<Transport>,
    request: &Request,
    repair: Option<Duration>,
    proposed: Option<FencingToken>,
) -> impl Future<Output = Result<Answer, BackendError>> {
    let operation = to_acquire(request, repair, proposed);
    transport.ask(operation, transport.answer_timeout(request.ttl), read_lock_answer)
}

fn to_acquire(request: &Request, repair: Option<Duration>, proposed: Option<FencingToken>) -> Operation {
    let owner = request.claim.owner();
    let script = if request.lease.resource.is_of_election() { &ACQUIRE_AND_TELL } else { &ACQUIRE };
    let operation = of_lock(script, &request.lease);
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

/// Requests permits, once.
pub(super) async fn acquire_permits(
    transport: &Arc<Transport>,
    request: &Request,
    permits: u32,
    stated: Limit,
) -> Result<Answer, BackendError> {
    let operation = to_acquire_permits(request, permits, stated);
    let read = |answer: &Value| read_permits_answer(answer.as_list(), permits, stated);
    transport.ask(operation, transport.answer_timeout(request.ttl), read).await?
}

fn to_acquire_permits(request: &Request, permits: u32, stated: Limit) -> Operation {
    of_permits(&ACQUIRE_PERMITS, &request.lease)
        .number(millis(request.ttl))
        .number(u8::from(request.waits))
        .number(permits)
        .number(stated.permits)
        .number(stated.version)
}

/// Gives a lease that is held this token, once. `false` if the lease is not held.
pub(super) fn settle(
    transport: &Arc<Transport>,
    lease: &LeaseRef,
    token: FencingToken,
) -> impl Future<Output = Result<bool, BackendError>> {
    let script = if lease.resource.is_of_election() { &SETTLE_AND_TELL } else { &SETTLE };
    let operation = of_lock(script, lease).number(token.get());
    transport.ask(operation, transport.answer_timeout(MAX_TTL), |answer| read_was_held(answer, SETTLED))
}

/// The renewal of a lease.
pub(super) fn to_renew(renew: &Renew) -> Operation {
    let operation = match renew.lease.resource.kind {
        kind if kind.is_semaphore() => of_permits(&RENEW_PERMITS, &renew.lease),
        Kind::Reentrant => of_lock(&RENEW_OWNED, &renew.lease),
        _ => of_lock(&RENEW, &renew.lease),
    };
    operation.number(millis(renew.ttl))
}

/// The release of a lease, or of all its permits but `keep`. When a gap is due, a lock is left free for so long.
pub(super) fn to_release(lease: &LeaseRef, keep: u32, gap: Option<Duration>) -> Operation {
    if lease.resource.kind.is_semaphore() {
        return of_permits(&RELEASE_PERMITS, lease).number(keep);
    }
    let script = if lease.resource.is_of_election() { &RELEASE_AND_TELL } else { &RELEASE };
    let operation = of_lock(script, lease);
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
    let operation = of_lock(&WAS_REVOKED, lease);
    transport.ask(operation, time_limit, |answer| Some(answer.as_i64()? == 1))
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
pub(super) async fn inspect(
    transport: &Arc<Transport>,
    resource: &Resource,
    detail: Detail,
) -> Result<Inspection, BackendError> {
    let is_semaphore = resource.kind.is_semaphore();
    let operation =
        Operation::new(if is_semaphore { &INSPECT_PERMITS } else { &INSPECT }, resource).word(wanted(detail));
    let read = |answer: &Value| {
        let parts = answer.as_list();
        if is_semaphore { read_inspection_of_permits(parts) } else { read_inspection_of_lock(parts, detail) }
    };
    transport.ask(operation, transport.reply_timeout, read).await
}

/// A script, and a lease as its first argument.
fn of_lock(script: &'static Script, lease: &LeaseRef) -> Operation {
    Operation::new(script, &lease.resource).lease(lease.id)
}

/// A script, and the kind of semaphore and a lease as its first arguments.
fn of_permits(script: &'static Script, lease: &LeaseRef) -> Operation {
    Operation::new(script, &lease.resource).word(lease.resource.kind.as_str()).lease(lease.id)
}

/// The argument that says how much an inspection returns.
const fn wanted(detail: Detail) -> &'static str {
    match detail {
        Detail::Full => FULL,
        Detail::Summary => SUMMARY,
        Detail::Counts => COUNTS,
    }
}

pub(super) fn read_lock_answer(answer: &Value) -> Option<Answer> {
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

/// The answer, or why the request is invalid.
pub(super) fn read_permits_answer(
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

/// "Queued", from the time until a holder's lease ends, the number of waiters before this one, and the ticket.
fn read_queued(remaining: &Value, before: &Value, ticket: &Value, limit: Option<Limit>) -> Option<Answer> {
    let before = read_number(before)?;
    let pause = |left: Duration| left + Duration::from_millis(1) + (STAGGER * before).min(MAX_STAGGER);
    let ticket = Ticket::new(ticket.as_u64()?);
    let mut queued = Queued::new(ticket, from_millis(remaining).map(pause), limit);
    queued.holder_never_expires = remaining.as_i64() == Some(NO_EXPIRY) && limit.is_none();
    Some(Answer::Queued(queued))
}

/// "Granted", from the token.
fn read_granted(token: &Value, limit: Option<Limit>) -> Option<Answer> {
    Some(Answer::Granted(Grant::new(issued(token)?, limit)))
}

/// The token of a grant. None is 0, whatever the form of the answer.
fn issued(token: &Value) -> Option<FencingToken> {
    read_token(token).filter(|token| token.get() > 0)
}

/// "Granted before", from the token and the time until the lease ends, which is zero if it has ended by now.
fn read_held(token: &Value, remaining: &Value, limit: Option<Limit>) -> Option<Answer> {
    let remaining = from_millis(remaining).unwrap_or_default();
    Some(Answer::Granted(Grant::new(issued(token)?, limit).lasting(remaining)))
}

/// Whether the lock was held; then the script has answered with `done`.
fn read_was_held(answer: &Value, done: i64) -> Option<bool> {
    match answer.as_i64()? {
        NOT_HELD => Some(false),
        number => (number == done).then_some(true),
    }
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

pub(super) fn read_inspection_of_lock(parts: &[Value], detail: Detail) -> Option<Inspection> {
    let [value, remaining, waiters, holds, now] = parts else { return None };
    let Some(value) = value.as_bytes() else {
        return inspection(Vec::new(), waiters, None, 0);
    };
    let holders = read_lock_holders(value, remaining, holds, now)?;
    let holders = if detail == Detail::Counts { Vec::new() } else { holders };
    inspection(holders, waiters, None, 1)
}

/// Who holds a lock: what is stored under it and the time until that ends, the holds of its owner if there are several,
/// and the time.
pub(super) fn read_lock_holders(
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

/// The value of a lock's key (`value.lua`): lease id, token, owner. `None` for the value of another library.
fn read_value(value: &str) -> Option<(&str, FencingToken, Option<&str>)> {
    let (id, rest) = value.split_once(' ')?;
    let (token, owner) = rest.split_once('/').map_or((rest, None), |(token, owner)| (token, Some(owner)));
    let token = token.strip_suffix(WAITED_FOR).unwrap_or(token);
    LeaseId::parse(id)?;
    Some((id, FencingToken::new(token.parse().ok()?), owner))
}

pub(super) fn read_inspection_of_permits(parts: &[Value]) -> Option<Inspection> {
    let [limit, in_use, waiters, holders, now] = parts else { return None };
    let holders = read_permit_holders(holders, now).collect::<Option<_>>()?;
    inspection(holders, waiters, read_number(limit), read_number(in_use)?)
}

/// Who holds permits: lease id, remaining time, permits and token of each, and the time. `None` for one that is not
/// ours.
pub(super) fn read_permit_holders<'a>(
    holders: &'a Value,
    now: &'a Value,
) -> impl Iterator<Item = Option<Holder>> + 'a {
    holders.as_list().chunks_exact(4).map(|part| {
        let (id, token) = (read_lease(&part[0])?.to_string(), read_token(&part[3]));
        let holder = Holder::new(id, token, from_millis(&part[1]));
        Some(Holder { permits: read_number(&part[2])?, held_for: held_for(token, now), ..holder })
    })
}

/// An inspection with these waiters: a list, or only their number.
fn inspection(holders: Vec<Holder>, waiters: &Value, limit: Option<u32>, in_use: u32) -> Option<Inspection> {
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

/// For how long a lease has been held that was granted under this token, by the server's clock in microseconds: a token
/// is the time of its grant (`fence.lua`), or ahead of it if many locks were granted then. `None` if it is further
/// ahead: the clock was set back.
fn held_for(token: Option<FencingToken>, now: &Value) -> Option<Duration> {
    let (granted, now) = (token?.get(), now.as_u64()?);
    (granted <= now.saturating_add(PROPOSED_AHEAD_US))
        .then(|| Duration::from_micros(now.saturating_sub(granted)))
}

fn read_lease(value: &Value) -> Option<LeaseId> {
    value.as_str().and_then(LeaseId::parse)
}

fn read_token(value: &Value) -> Option<FencingToken> {
    value.as_u64().map(FencingToken::new)
}

pub(super) fn read_number(value: &Value) -> Option<u32> {
    value.as_i64().and_then(|number| u32::try_from(number).ok())
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// `None` for `-1` and `-2`, which mean "no expiry" and "no such key".
fn from_millis(value: &Value) -> Option<Duration> {
    value.as_i64().and_then(|millis| u64::try_from(millis).ok()).map(Duration::from_millis)
}
