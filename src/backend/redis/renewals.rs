//! Many renewals in one call.
//!
//! Mutexes with the same TTL are renewed together, by a script of their own that is never part of a batch: a renewal then costs the
//! client one key and a part of an argument. Renewed separately are other kinds, leases for which that script has no answer
//! because something else is stored under the key, and all leases of a call that was refused as a whole because this user may
//! not use one of the keys.
//!
//! A fence lasts a day, and a lease is renewed at least once per TTL. So it is enough that renewals in the last TTL of every hour
//! extend the fence.

use std::time::Duration;

use fred::bytes::Bytes;
use fred::types::Value;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use tokio::time::Instant;

use super::keys::{LOCK_AND_FENCE, keys, locks};
use super::reply::millis;
use super::script::{Call, RENEW_ALL};
use super::transport::Transport;
use crate::backend::{Answered, BackendError, Kind, LeaseId, Renew, Renewal};
use crate::error::LossReason;

/// How many leases one call may take: the server does nothing else while it executes it, for about an eighth of a millisecond.
const MAX_LEASES: usize = 32;

/// How often the expiry of a fence is extended. Leases with this TTL or a longer one extend it every time; it must outlast them.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// What leases have in common that are renewed together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    term: Duration,
    with_fence: bool,
}

/// A request with its index.
type Numbered<'a> = (usize, &'a Renew);

/// Renews many leases. Hours are counted from `opened`.
pub(super) fn renew_all<'a>(
    transport: &'a Transport,
    requests: &'a [Renew],
    opened: Instant,
) -> BoxStream<'a, Answered> {
    let now = Instant::now();
    let requests = requests.iter().enumerate();
    let mut requests: Vec<_> =
        requests.map(|numbered| (Alike::of(numbered.1, opened, now), numbered)).collect();
    requests.sort_by_key(|(alike, _)| *alike);
    let calls = requests.chunk_by(|(a, _), (b, _)| a == b).flat_map(|group| group.chunks(MAX_LEASES));
    let calls = calls.map(|group| {
        let (alike, group) = (group[0].0, group.iter().map(|(_, numbered)| *numbered).collect());
        renew_group(transport, alike, group).flatten_stream().boxed()
    });
    stream::select_all(calls).boxed()
}

/// Renews leases in one call if they are alike, and separately those without an answer. No answer waits for another one.
async fn renew_group<'a>(
    transport: &'a Transport,
    alike: Option<Alike>,
    group: Vec<Numbered<'a>>,
) -> impl Stream<Item = Answered> + use<'a> {
    let letters = match alike {
        Some(alike) if group.len() > 1 => renew_together(transport, alike, &group).await,
        _ => Ok(Bytes::new()),
    };
    let (mut answers, others) = (Vec::with_capacity(group.len()), FuturesUnordered::new());
    for (position, (n, request)) in group.into_iter().enumerate() {
        let letter = letters.as_ref().map(|letters| letters.get(position).and_then(|letter| read(*letter)));
        match letter {
            Ok(Some(renewal)) => answers.push((n, Ok(renewal))),
            Ok(None) => others.push(async move { (n, transport.renew(request).await) }),
            Err(error) => answers.push((n, Err(error.again()))),
        }
    }
    stream::iter(answers).chain(others)
}

/// The script's answer, a letter for each lease; empty if the server has refused the call.
async fn renew_together(
    transport: &Transport,
    alike: Alike,
    group: &[Numbered<'_>],
) -> Result<Bytes, BackendError> {
    match transport.call_apart(to_renew(alike, group), transport.patience(alike.term)).await {
        Ok(Value::Bytes(letters)) => Ok(letters),
        Ok(Value::String(letters)) => Ok(letters.into_inner()),
        Ok(_) | Err(BackendError::Refused { .. } | BackendError::WrongType { .. }) => Ok(Bytes::new()),
        Err(error) => Err(error),
    }
}

fn to_renew(alike: Alike, group: &[Numbered<'_>]) -> Call {
    let resources = group.iter().map(|(_, request)| &*request.lease.resource.key);
    let keys = if alike.with_fence {
        resources.flat_map(|key| keys(key, LOCK_AND_FENCE)).collect()
    } else {
        locks(resources)
    };
    let mut ids = String::with_capacity(group.len() * (LeaseId::USUAL_LENGTH + 1));
    for (_, request) in group {
        request.lease.id.write(&mut ids);
        ids.push(' ');
    }
    let width = 1 + i64::from(alike.with_fence);
    let args = vec![Value::from(millis(alike.term)), Value::from(ids), Value::from(width)];
    Call { script: &RENEW_ALL, keys, args }
}

fn read(letter: u8) -> Option<Renewal> {
    match letter {
        b'r' => Some(Renewal::Renewed),
        b't' => Some(Renewal::Lost(LossReason::Taken)),
        b'e' => Some(Renewal::Lost(LossReason::Expired)),
        _ => None,
    }
}

impl Alike {
    /// `None` for a lease that is renewed separately.
    fn of(renew: &Renew, opened: Instant, now: Instant) -> Option<Self> {
        let hour = now.saturating_duration_since(opened).as_millis() % HOUR.as_millis();
        let with_fence = hour + renew.ttl.as_millis() >= HOUR.as_millis();
        (renew.lease.resource.kind == Kind::Mutex).then_some(Self { term: renew.ttl, with_fence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{LeaseIds, LeaseRef, Resource};

    #[test]
    fn a_fence_is_kept_once_an_hour_and_always_for_long_leases() {
        let opened = Instant::now();
        let at = |seconds: u64| opened + Duration::from_secs(seconds);
        let with_fence = |ttl: Duration, now: Instant| {
            let lease = LeaseRef::new(LeaseIds::new().next(), Resource::new("lock:a", Kind::Mutex));
            Alike::of(&Renew::new(lease, ttl), opened, now).unwrap().with_fence
        };
        let ttl = Duration::from_secs(30);
        assert!(!with_fence(ttl, at(0)) && !with_fence(ttl, at(3569)));
        assert!(with_fence(ttl, at(3570)) && with_fence(ttl, at(3599)));
        assert!(!with_fence(ttl, at(3600)));
        assert!(with_fence(HOUR, at(1800)));
    }
}
