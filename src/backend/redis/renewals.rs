//! Many renewals in one call.
//!
//! Mutexes of one term go together, in a script of their own and past the queue of other operations: what a renewal costs the
//! client is then one key and a part of an argument. Whatever that script has no answer for is renewed by itself: other kinds,
//! what is refused as a whole because this user may not use one of the keys, what is no lock any more.

use std::time::Duration;

use fred::bytes::Bytes;
use fred::types::Value;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, Stream, StreamExt};
use tokio::time::Instant;

use super::keys::locks;
use super::protocol::{EACH_EXPIRED, EACH_RENEWED, EACH_TAKEN};
use super::reply::millis;
use super::script::{Call, RENEW_ALL};
use super::transport::Transport;
use crate::backend::{Answered, BackendError, Kind, LeaseId, RenewRequest, Renewal};
use crate::error::LossReason;

/// Leases in one call: the server does nothing else meanwhile, for about an eighth of a millisecond.
const MAX_LEASES: usize = 32;

/// A request and its index.
type Numbered<'a> = (usize, &'a RenewRequest);

/// Renews many leases.
pub(super) fn renew_all<'a>(
    transport: &'a Transport,
    requests: &'a [RenewRequest],
) -> BoxStream<'a, Answered> {
    let mut requests: Vec<_> =
        requests.iter().enumerate().map(|numbered| (shared_term(numbered.1), numbered)).collect();
    requests.sort_by_key(|(term, _)| *term);
    let calls = requests.chunk_by(|(a, _), (b, _)| a == b).flat_map(|group| group.chunks(MAX_LEASES));
    let calls = calls.map(|group| {
        let (term, group) = (group[0].0, group.iter().map(|(_, numbered)| *numbered).collect());
        renew_group(transport, term, group).flatten_stream().boxed()
    });
    stream::select_all(calls).boxed()
}

/// What leases have in common that go together: the term, if they are of mutexes. `None` for a lease that goes by itself.
fn shared_term(request: &RenewRequest) -> Option<Duration> {
    (request.resource.kind == Kind::Mutex).then_some(request.term)
}

/// Renews leases by one call if they share a term, and each by itself what that has not settled. No answer waits for another one.
async fn renew_group<'a>(
    transport: &'a Transport,
    term: Option<Duration>,
    group: Vec<Numbered<'a>>,
) -> impl Stream<Item = Answered> + use<'a> {
    let sent = Instant::now();
    let letters = match term {
        Some(term) if group.len() > 1 => renew_together(transport, term, &group).await,
        _ => Ok(Bytes::new()),
    };
    let (mut answers, others) = (Vec::with_capacity(group.len()), FuturesUnordered::new());
    for (position, (n, request)) in group.into_iter().enumerate() {
        let letter =
            letters.as_ref().map(|letters| letters.get(position).and_then(|letter| read(*letter, sent)));
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
    term: Duration,
    group: &[Numbered<'_>],
) -> Result<Bytes, BackendError> {
    match transport.call_apart(to_renew(term, group), transport.patience(term)).await {
        Ok(Value::Bytes(letters)) => Ok(letters),
        Ok(Value::String(letters)) => Ok(letters.into_inner()),
        Ok(_) | Err(BackendError::Refused { .. } | BackendError::WrongType { .. }) => Ok(Bytes::new()),
        Err(error) => Err(error),
    }
}

fn to_renew(term: Duration, group: &[Numbered<'_>]) -> Call {
    let keys = locks(group.iter().map(|(_, request)| &*request.resource.key));
    let mut ids = String::with_capacity(group.len() * (LeaseId::USUAL_LENGTH + 1));
    for (_, request) in group {
        request.lease.write(&mut ids);
        ids.push(' ');
    }
    Call { script: &RENEW_ALL, keys, args: vec![Value::from(millis(term)), Value::from(ids)] }
}

fn read(letter: u8, sent: Instant) -> Option<Renewal> {
    let is = |known: &str| known.as_bytes() == [letter];
    if is(EACH_RENEWED) {
        Some(Renewal::Renewed { counted_from: sent })
    } else if is(EACH_TAKEN) {
        Some(Renewal::Lost(LossReason::Taken))
    } else if is(EACH_EXPIRED) {
        Some(Renewal::Lost(LossReason::Expired))
    } else {
        None
    }
}
