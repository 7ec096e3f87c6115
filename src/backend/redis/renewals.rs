//! Many renewals in one call.
//!
//! Mutexes of one term go together, in a script of their own and past the queue of other operations: what a renewal costs the
//! client is then one key and a part of an argument. Whatever that script has no answer for is renewed by itself: other kinds,
//! what is refused as a whole because this user may not use one of the keys, what is no lock any more.
//!
//! A fence lasts a day, and a lease is renewed at least once per TTL: a renewal keeps the fence as well in the last TTL of every
//! hour.

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

/// Leases in one call: the server does nothing else meanwhile, for about an eighth of a millisecond.
const MAX_LEASES: usize = 32;

/// For how long a fence may not be kept. Leases that last as long keep it every time, so that it outlasts them.
const HOUR: Duration = Duration::from_secs(60 * 60);

/// What leases have in common that go together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Alike {
    term: Duration,
    with_fence: bool,
}

/// A request and its index.
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

/// Renews leases by one call if they are alike, and each by itself what that has not settled. No answer waits for another one.
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

/// The script's answer, a letter for each lease; nothing if the server has refused the call.
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
    /// `None` for a lease that goes by itself.
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
