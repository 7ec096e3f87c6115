//! Many renewals in one call.
//!
//! Mutexes with the same TTL are renewed together, by a separate script that is never part of a batch: a renewal then
//! costs the client one key and a part of an argument. Renewed separately are other kinds, leases for which that script
//! has no answer because something else is stored under the key, and all leases of a call that was refused as a whole
//! because this user may not use one of the keys.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};

use super::calls::{self, millis, read_renewal};
use super::connections::Commands;
use super::keys::locks;
use super::link::Value;
use super::protocol::{EACH_EXPIRED, EACH_RENEWED, EACH_TAKEN};
use super::script::{Arguments, RENEW_ALL};
use super::transport::Transport;
use crate::backend::{Answered, BackendError, Kind, LeaseId, Renew, Renewal};
use crate::error::LossReason;

/// How many leases one call may take: the server does nothing else while it executes it, for about an eighth of a
/// millisecond.
const MAX_LEASES: usize = 32;

/// A request with its index.
type Numbered<'a> = (usize, &'a Renew);

/// Renews many leases.
pub(super) fn renew_all<'a>(commands: &Commands, requests: &'a [Renew]) -> BoxStream<'a, Answered> {
    let mut requests: Vec<_> =
        requests.iter().enumerate().map(|numbered| (shared(commands, numbered.1), numbered)).collect();
    requests.sort_by_key(|(shared, _)| *shared);
    let calls = requests.chunk_by(|(a, _), (b, _)| a == b).flat_map(|group| group.chunks(MAX_LEASES));
    let calls = calls.map(|group| {
        let ((ttl, _), (_, first)) = group[0];
        let transport = commands.of(&first.lease.resource);
        renew_group(transport, ttl, group.iter().map(|(_, numbered)| *numbered).collect())
            .flatten_stream()
            .boxed()
    });
    stream::select_all(calls).boxed()
}

/// What leases that are renewed together share: the TTL, which is `None` for a lease that is renewed separately, and in
/// a cluster the slot.
fn shared(commands: &Commands, request: &Renew) -> (Option<Duration>, Option<u16>) {
    let resource = &request.lease.resource;
    ((resource.kind == Kind::Mutex).then_some(request.ttl), commands.slot(resource))
}

/// Renews leases in one call if they share a TTL, and separately those without an answer. No answer waits for another
/// one.
async fn renew_group<'a>(
    transport: Arc<Transport>,
    ttl: Option<Duration>,
    group: Vec<Numbered<'a>>,
) -> impl Stream<Item = Answered> + use<'a> {
    let letters = match ttl {
        Some(ttl) if group.len() > 1 => renew_together(&transport, ttl, &group).await,
        _ => Ok(Bytes::new()),
    };
    let (mut answers, others) = (Vec::with_capacity(group.len()), FuturesUnordered::new());
    for (position, (n, request)) in group.into_iter().enumerate() {
        let letter = letters.as_ref().map(|letters| letters.get(position).and_then(|letter| read(*letter)));
        match letter {
            Ok(Some(Renewal::Renewed)) => answers.push((n, Ok(Renewal::Renewed))),
            Ok(answer) => {
                let transport = Arc::clone(&transport);
                others.push(async move { (n, renew_or_explain(&transport, request, answer).await) });
            }
            Err(error) => answers.push((n, Err(error.clone()))),
        }
    }
    stream::iter(answers).chain(others)
}

/// The script's answer, a letter for each lease; empty if the server has refused the call.
async fn renew_together(
    transport: &Arc<Transport>,
    ttl: Duration,
    group: &[Numbered<'_>],
) -> Result<Bytes, BackendError> {
    let call = transport.deliver(&RENEW_ALL, || to_renew(ttl, group));
    match transport.call_within(call, transport.answer_timeout(ttl)).await {
        Ok(Value::Text(letters)) => Ok(letters),
        Ok(_) | Err(BackendError::Refused { .. } | BackendError::WrongType { .. }) => Ok(Bytes::new()),
        // Some of the keys may be on another node by now.
        Err(BackendError::NotSent { .. } | BackendError::RefusedForNow { .. })
            if transport.slot().is_some() =>
        {
            Ok(Bytes::new())
        }
        Err(error) => Err(error),
    }
}

fn to_renew(ttl: Duration, group: &[Numbered<'_>]) -> Arguments {
    let keys = locks(group.iter().map(|(_, request)| &*request.lease.resource.key));
    let mut ids = Vec::with_capacity(group.len() * LeaseId::MAX_LENGTH);
    for (_, request) in group {
        ids.extend_from_slice(request.lease.id.text(&mut [0; LeaseId::MAX_LENGTH]));
        ids.push(b' ');
    }
    Arguments { keys, args: vec![Bytes::from(millis(ttl).to_string()), Bytes::from(ids)] }
}

/// Renews a lease that has not been answered yet. If it is gone, finds out whether it was released by force: the
/// message may be late, or lost.
async fn renew_or_explain(
    transport: &Arc<Transport>,
    request: &Renew,
    answer: Option<Renewal>,
) -> Result<Renewal, BackendError> {
    let renewal = match answer {
        Some(renewal) => renewal,
        None => renew(transport, request).await?,
    };
    if renewal == Renewal::Renewed || request.lease.resource.kind.is_semaphore() {
        return Ok(renewal);
    }
    match calls::was_revoked(transport, &request.lease, transport.answer_timeout(request.ttl)).await {
        Ok(true) => Ok(Renewal::Lost(LossReason::Revoked)),
        // This user may not read that key, or something else is stored there.
        Ok(false) | Err(BackendError::Refused { .. } | BackendError::WrongType { .. }) => Ok(renewal),
        Err(error) => Err(error),
    }
}

/// Renews one lease.
async fn renew(transport: &Arc<Transport>, request: &Renew) -> Result<Renewal, BackendError> {
    match transport.ask(calls::to_renew(request), transport.answer_timeout(request.ttl), read_renewal).await {
        // Another program has stored something else under the key.
        Err(BackendError::WrongType { .. }) => Ok(Renewal::Lost(LossReason::Taken)),
        answer => answer,
    }
}

fn read(letter: u8) -> Option<Renewal> {
    let is = |known: &str| known.as_bytes() == [letter];
    if is(EACH_RENEWED) {
        Some(Renewal::Renewed)
    } else if is(EACH_TAKEN) {
        Some(Renewal::Lost(LossReason::Taken))
    } else if is(EACH_EXPIRED) {
        Some(Renewal::Lost(LossReason::Expired))
    } else {
        None
    }
}
