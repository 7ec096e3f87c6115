//! From request to grant.
//!
//! The obligation to release is taken on before the request leaves, under the request's own lease id. If this
//! future is dropped at any await point, the obligation is dropped with it, and the reaper releases that id,
//! whether it was queued, granted, or never arrived. A timeout is nothing but that.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::cohort::{Heard, Lead, Next, Wish};
use super::engine::Engine;
use super::held::Lease;
use super::place::{Asking, Place};
use crate::backend::{AcquireRequest, Acquired, Claim, Revocation, TOKENS_PER_GRANT, Wait, Whose};
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
    settings: &Settings,
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
    settings: &Settings,
    claim: &Claim,
    wait: Wait,
) -> Result<Option<Arc<Lease>>, Error> {
    if engine.closing().is_closed() {
        return Err(closed(name));
    }
    engine.ensure_running();
    let mut late = 0;
    loop {
        // Here and below: once the client is closed, nothing more may be sent.
        let next = engine.closing().unless(pin!(queue_up(engine, name, settings, claim, wait))).await;
        let next = next.ok_or_else(|| closed(name))?;
        let granted = match next {
            Next::Hold(lease) => {
                lease.teach(claim);
                Some(lease)
            }
            Next::Ask(lead) => ask_store(engine, name, settings, claim, wait, lead).await?,
            Next::Late => None,
        };
        let Some(lease) = granted else {
            tracing::debug!("busy");
            return Ok(None);
        };
        match lease.loss(Instant::now()) {
            None => return hold(engine, lease).map(Some),
            // The process was paused between request and now. The lease has given itself back.
            Some(_) if late < MAX_LATE => late += 1,
            Some(reason) => return Err(lease.loss_error(reason)),
        }
    }
}

/// Waits until those of this client who came before have had their turn.
async fn queue_up(
    engine: &Engine,
    name: &Name,
    settings: &Settings,
    claim: &Claim,
    wait: Wait,
) -> Next<Arc<Lease>> {
    if let Some(wish) = Wish::of(claim, settings).filter(|_| wait != Wait::No) {
        // Should the runtime end on which the leases are looked after, somebody else's must go on with that.
        let look = || engine.ensure_running();
        return engine.cohorts().next(name.key(), wish, wait, look).await;
    }
    if settle(engine, name, claim, wait).await { Next::Ask(Lead::alone()) } else { Next::Late }
}

async fn ask_store(
    engine: &Engine,
    name: &Name,
    settings: &Settings,
    claim: &Claim,
    wait: Wait,
    mut lead: Lead<Arc<Lease>>,
) -> Result<Option<Arc<Lease>>, Error> {
    let place = lead.place(|| take_place(engine, name, settings));
    // What stands in line for another task of this client may stand there for this one.
    if !place.asking.as_ref().is_some_and(|asking| asking.suits(wait)) {
        // In this order: if it has not been sent yet, it is not, and not twice.
        place.asking = None;
        place.asking = Some(asking(engine, name, settings, claim, wait, place));
    }
    let heard = engine.closing().unless(pin!(lead.hear())).await;
    let answer = match heard.ok_or_else(|| closed(name))? {
        Heard::Lease(lease) => {
            lease.teach(claim);
            return Ok(Some(lease));
        }
        Heard::Answer(answer) => answer,
    };
    if let Some(asked) = lead.take_asking() {
        asked.teach(claim);
    }
    match answer {
        Ok(Acquired::Granted(grant)) => {
            let (place, turn) = lead.granted(Wish::of(claim, settings));
            Ok(place.map(|place| Arc::new(Lease::granted(*place, turn, claim, name, settings.terms, grant))))
        }
        Ok(Acquired::Busy) => {
            if wait == Wait::No {
                lead.refused();
            }
            Ok(None)
        }
        Err(error) => {
            // That this task's own time is over says nothing about the store.
            if wait.deadline().is_none_or(|deadline| Instant::now() < deadline) {
                lead.disband();
            }
            Err(engine.error(error, "acquire", Some(name)))
        }
    }
}

fn asking(
    engine: &Engine,
    name: &Name,
    settings: &Settings,
    claim: &Claim,
    wait: Wait,
    place: &Place,
) -> Asking {
    let request = AcquireRequest {
        lease: place.id,
        resource: name.resource().clone(),
        claim: claim.clone(),
        term: settings.terms.lease,
        wait,
        since: Some(place.since),
        reserve: if settings.local_handover && claim.owner().is_none() { TOKENS_PER_GRANT } else { 1 },
        poll_interval: settings.poll_interval,
        repair: settings.repair,
        revocation: Revocation::of(place.lost.clone()),
    };
    let backend = Arc::clone(engine.backend());
    Asking::new(async move { backend.acquire(&request).await }.boxed(), claim, wait)
}

/// From here on a release is owed.
fn take_place(engine: &Engine, name: &Name, settings: &Settings) -> Place {
    let id = engine.backend().lease_id();
    let obligation = engine.reaper().oblige(name.clone(), Whose::Lease(id), settings.terms.lease);
    Place { asking: None, id, lost: CancellationToken::new(), obligation, since: Instant::now() }
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
fn hold(engine: &Engine, lease: Arc<Lease>) -> Result<Arc<Lease>, Error> {
    tracing::debug!(name = %lease.name(), token = lease.token().get(), "granted");
    lease.begin();
    engine.watchdog().watch(Arc::clone(&lease));
    engine.owners().remember(&lease);
    // A shutdown that began after the request was answered has not seen this lease.
    if engine.closing().is_closed() {
        lease.lose(LossReason::ClientClosed);
        return Err(closed(lease.name()));
    }
    Ok(lease)
}

fn closed(name: &Name) -> Error {
    Error::Closed { name: Some(name.as_str().to_owned()), step: "acquire" }
}
