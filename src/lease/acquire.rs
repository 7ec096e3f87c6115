//! From request to grant.
//!
//! The obligation to release is taken on before the request leaves, under the request's own lease id. If this
//! future is dropped at any await point, the obligation is dropped with it, and the reaper releases that id,
//! whether it was queued, granted, or never arrived. A timeout is nothing but that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::engine::Engine;
use super::held::Lease;
use crate::backend::{AcquireRequest, Acquired, Claim, Revocation, Wait, Whose};
use crate::error::{Error, LossReason};
use crate::name::Name;
use crate::options::Settings;

/// How long a request that does not wait, or that an owner makes, lets an earlier release of this client finish first.
const SETTLE: Duration = Duration::from_secs(1);

/// What a release that is on its way may take, however short the patience is.
const ROUND_TRIP: Duration = Duration::from_millis(100);

/// How many grants in a row may arrive after their lease has ended. More mean that the lease is too short for
/// this store or this machine.
const MAX_LATE: u32 = 3;

/// Asks for what is claimed of `name`. `None` if somebody else held it for as long as `wait` allows.
///
/// Cancel safe: dropping the future gives back whatever it was granted.
pub(crate) async fn acquire(
    engine: &Engine,
    name: &Name,
    settings: Settings,
    claim: &Claim,
    wait: Wait,
) -> Result<Option<Arc<Lease>>, Error> {
    let span = tracing::debug_span!("acquire", %name, token = tracing::field::Empty);
    let lease = ask(engine, name, settings, claim, wait).instrument(span.clone()).await?;
    if let Some(lease) = &lease {
        // Not `Span::current()`: where this span is filtered out, that is the caller's.
        span.record("token", lease.token().get());
    }
    Ok(lease)
}

async fn ask(
    engine: &Engine,
    name: &Name,
    settings: Settings,
    claim: &Claim,
    wait: Wait,
) -> Result<Option<Arc<Lease>>, Error> {
    if engine.closed().is_cancelled() {
        return Err(closed(name));
    }
    engine.ensure_running();
    let mut late = 0;
    loop {
        let settled = tokio::select! {
            settled = settle(engine, name, claim, wait) => settled,
            () = engine.closed().cancelled() => return Err(closed(name)),
        };
        if !settled {
            return Ok(None);
        }
        let id = engine.backend().lease_id();
        let lost = CancellationToken::new();
        let obligation = engine.reaper().oblige(name.clone(), Whose::Lease(id), settings.terms.lease);
        let request = AcquireRequest {
            lease: id,
            resource: name.resource().clone(),
            claim: claim.clone(),
            term: settings.terms.lease,
            wait,
            poll_interval: settings.poll_interval,
            repair: settings.repair,
            revocation: Revocation::of(lost.clone()),
        };
        let answer = tokio::select! {
            biased;
            answer = engine.backend().acquire(&request) => answer,
            () = engine.closed().cancelled() => return Err(closed(name)),
        };
        match answer.map_err(|error| engine.error(error, "acquire", Some(name)))? {
            Acquired::Granted(grant) => {
                let obligation = obligation.granted(grant.token);
                let lease = Lease::new(&request, name.clone(), settings.terms, grant, lost, obligation);
                match lease.loss(Instant::now()) {
                    None => return hold(engine, lease).map(Some),
                    // The process was paused between request and now. The lease has given itself back.
                    Some(_) if late < MAX_LATE => late += 1,
                    Some(reason) => return Err(lease.loss_error(reason)),
                }
            }
            Acquired::Busy => {
                if wait == Wait::No {
                    obligation.settle();
                }
                tracing::debug!("busy");
                return Ok(None);
            }
        }
    }
}

/// Waits for guards of this client that were just dropped: they must not be in the way of a request that does not wait,
/// nor let their owner in again past those who wait for it to leave. `false` if the time to wait is over before that.
async fn settle(engine: &Engine, name: &Name, claim: &Claim, wait: Wait) -> bool {
    if wait != Wait::No && claim.owner().is_none() {
        return true;
    }
    let now = Instant::now();
    let latest = now + SETTLE;
    let until = wait.deadline().map_or(latest, |end| end.max(now + ROUND_TRIP).min(latest));
    // Late is no error: then they are in the way, or their owner is let in.
    timeout_at(until, engine.reaper().settled(name.key())).await.is_ok() || until == latest
}

/// A lease begins.
fn hold(engine: &Engine, lease: Lease) -> Result<Arc<Lease>, Error> {
    tracing::debug!(name = %lease.name(), token = lease.token().get(), "granted");
    let lease = Arc::new(lease);
    engine.watchdog().watch(Arc::clone(&lease));
    engine.owners().remember(&lease);
    // A shutdown that began after the request was answered has not seen this lease.
    if engine.closed().is_cancelled() {
        lease.lose(LossReason::ClientClosed);
        return Err(closed(lease.name()));
    }
    Ok(lease)
}

fn closed(name: &Name) -> Error {
    Error::Closed { name: Some(name.as_str().to_owned()), step: "acquire" }
}
