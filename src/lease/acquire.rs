//! From request to hold: request, wait, give up.
//!
//! The task that wants a lease sends the first request itself, unless enough leases are requested for its group already. If the
//! store grants it, that is all. If not, the keeper repeats the request, and this future waits for a message. Dropping it at any
//! await point affects no other waiter: a lease that nobody waits for any more is released, and one that other tasks of this
//! client wait for stays in the store's queue.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::Instrument;

use super::engine::Engine;
use super::keeper::Keeper;
use super::lease::{Hold, Lease, Outcome, RETRY, Told};
use super::release_queue::{PendingRelease, Target};
use crate::backend::{Answer, BackendError, Claim, Limit};
use crate::error::{Error, LossReason};
use crate::handover::{Group, Number, group};
use crate::name::Name;
use crate::options::Settings;

/// How long a request that does not wait, or a request of an owner, lets earlier releases of this client finish first.
const RELEASES_FIRST: Duration = Duration::from_secs(1);
/// The minimum time for a first answer, however short the time limit of the call is.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// How long a request that does not wait is repeated while the store does not answer.
const PERSIST: Duration = Duration::from_secs(4);
/// How many grants in a row may arrive after their lease has ended. More mean that the lease is too short for
/// this store or this machine.
const MAX_LATE: u32 = 3;

/// What is requested, and on which terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a Name,
    pub(crate) settings: &'a Settings,
    pub(crate) claim: &'a Claim,
    /// The semaphore handle that follows the limit in force.
    pub(crate) follower: Option<&'a dyn FollowsLimit>,
}

/// A handle of a semaphore, which states a limit and follows the one in force.
pub(crate) trait FollowsLimit: std::fmt::Debug + Sync {
    fn follow(&self, limit: Limit);
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until this instant.
    Until(Instant),
    /// As long as it takes.
    Forever,
}

impl Wait {
    const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(instant) => Some(instant),
            Self::No | Self::Forever => None,
        }
    }
}

/// Acquires what is wanted. `None` if it was not available for as long as `wait` allows.
///
/// Cancel safe: dropping the future gives back whatever it was granted.
pub(crate) async fn acquire(engine: &Engine, wanted: Wanted<'_>, wait: Wait) -> Result<Option<Hold>, Error> {
    let span = tracing::debug_span!("acquire", name = %wanted.name, token = tracing::field::Empty);
    let hold = ask(engine, wanted, wait).instrument(span.clone()).await?;
    if let Some(hold) = &hold {
        // Not `Span::current()`: where this span is filtered out, that is the caller's.
        span.record("token", hold.token.get());
    }
    Ok(hold)
}

async fn ask(engine: &Engine, wanted: Wanted<'_>, wait: Wait) -> Result<Option<Hold>, Error> {
    let mut late = 0;
    loop {
        if engine.closing().is_closed() {
            return Err(closed(wanted.name));
        }
        engine.ensure_running();
        // Once the client is closed, nothing more may be sent.
        let attempt = engine.closing().unless(pin!(attempt(engine, wanted, wait))).await;
        let Some(hold) = attempt.unwrap_or_else(|| Err(closed(wanted.name)))? else {
            tracing::debug!("busy");
            return Ok(None);
        };
        match hold.loss(Instant::now()) {
            None => return Ok(Some(begin(engine, wanted, hold))),
            Some(LossReason::ClientClosed) => return Err(closed(wanted.name)),
            // The process was paused since the request, or the lease was released by force in the meantime.
            Some(_) if late < MAX_LATE => late += 1,
            Some(reason) => return Err(hold.loss_error(reason)),
        }
    }
}

/// Records a hold that begins.
fn begin(engine: &Engine, wanted: Wanted<'_>, hold: Hold) -> Hold {
    tracing::debug!(name = %hold.name(), token = hold.token.get(), "granted");
    learn(wanted, hold.lease.limit());
    engine.owners().remember(&hold.lease);
    if hold.lease.owner().is_some() && hold.loss(Instant::now()).is_some() {
        // Perhaps the keeper has looked for it before it was there.
        engine.owners().forget(&hold.lease);
    }
    hold
}

fn learn(wanted: Wanted<'_>, limit: Option<Limit>) {
    if let (Some(follower), Some(limit)) = (wanted.follower, limit) {
        follower.follow(limit);
    }
}

async fn attempt(engine: &Engine, wanted: Wanted<'_>, wait: Wait) -> Result<Option<Hold>, Error> {
    if !wait_for_releases(engine.keeper(), wanted, wait).await {
        return Ok(None);
    }
    let mut waiter = Waiter::arrive(engine, wanted, wait)?;
    match waiter.ask(wait).await? {
        Asked::Holds(hold) => Ok(Some(hold)),
        Asked::Busy => Ok(None),
        Asked::Waits => waiter.wait(wait.deadline()).await,
    }
}

/// Waits until guards that this client has just dropped are released: otherwise a request that does not wait would find the
/// resource held by its own client, and an owner would re-enter ahead of those who wait for its release. `false` if the time
/// limit of the call is reached first.
async fn wait_for_releases(keeper: &Keeper, wanted: Wanted<'_>, wait: Wait) -> bool {
    if wait != Wait::No && wanted.claim.owner().is_none() {
        return true;
    }
    let now = Instant::now();
    let latest = now + RELEASES_FIRST;
    let until = wait.deadline().map_or(latest, |end| end.max(now + ROUND_TRIP).min(latest));
    // A timeout is no error: the request is sent and meets whatever is still held.
    timeout_at(until, keeper.releases.finished(wanted.name.key())).await.is_ok() || until == latest
}

/// A task that wants a lease, until it holds one.
struct Waiter<'a> {
    engine: &'a Engine,
    wanted: Wanted<'a>,
    /// Its group and its number in the group's queue, if leases may be passed on to it.
    place: Option<(Group, Number)>,
    /// The lease that it requests itself, or that is requested for it alone.
    lease: Option<Arc<Lease>>,
    /// The channel on which it is handed a hold or an error.
    told: Option<oneshot::Receiver<Told>>,
}

/// The result of the request that the waiter sends itself.
enum Asked {
    Holds(Hold),
    Busy,
    Waits,
}

impl<'a> Waiter<'a> {
    fn arrive(engine: &'a Engine, wanted: Wanted<'a>, wait: Wait) -> Result<Self, Error> {
        let mut waiter = Self { engine, wanted, place: None, lease: None, told: None };
        let group = group(wanted.claim, wanted.settings).filter(|_| wait != Wait::No);
        let group = group.map(|terms| Group::new(Arc::clone(wanted.name.key()), terms));
        if !group.is_some_and(|group| waiter.join(group)) {
            waiter.lease = Some(waiter.open(wait, None).ok_or_else(|| closed(wanted.name))?);
        }
        Ok(waiter)
    }

    fn open(&self, wait: Wait, group: Option<Group>) -> Option<Arc<Lease>> {
        let Wanted { name, settings, claim, .. } = self.wanted;
        self.engine.keeper().open(name, &settings.terms, claim, wait != Wait::No, group)
    }

    /// Joins the queue of a group, and opens a lease if the group wants one more. `false` if the group follows another limit than
    /// this request states.
    fn join(&mut self, group: Group) -> bool {
        let keeper = self.engine.keeper();
        let limit = self.wanted.claim.limit().map(|limit| limit.permits);
        let (tell, told) = oneshot::channel();
        let number = keeper.queues.with(&group, limit, |queue| {
            let number = queue.join(limit, tell)?;
            // `None` once the client is closed; then nobody waits for it either.
            let lease = (queue.wanted() > 0).then(|| self.open(Wait::Forever, Some(group.clone()))).flatten();
            match &lease {
                Some(lease) => queue.ask_in_place(lease.id()),
                None => keeper.watch(queue),
            }
            self.lease = lease;
            Some(number)
        });
        if let Some(number) = number {
            (self.place, self.told) = (Some((group, number)), Some(told));
        }
        number.is_some()
    }

    /// Sends the request, unless a lease of the group is passed on to this waiter first.
    async fn ask(&mut self, wait: Wait) -> Result<Asked, Error> {
        let Some(lease) = self.lease.clone() else { return Ok(Asked::Waits) };
        let asked = send(self.engine, &lease, wait);
        let asked = match &mut self.told {
            None => asked.await,
            Some(told) => tokio::select! {
                biased;
                asked = asked => asked,
                told = told => return self.heard(told.ok()).map(Asked::Holds),
            },
        };
        let (answer, sent) = asked.ok_or_else(|| self.error(unanswered()))?;
        let limit = answer.as_ref().ok().and_then(Answer::limit);
        let known = matches!(answer, Ok(Answer::Granted(_) | Answer::Queued(_)));
        learn(self.wanted, limit);
        match lease.answered(answer, sent, Instant::now()) {
            Outcome::Granted => Ok(self.granted(&lease)),
            Outcome::Busy => {
                self.lease = None;
                self.engine.keeper().forget(&lease);
                Ok(Asked::Busy)
            }
            Outcome::Failed(error) => {
                self.failed(&lease);
                Err(self.error(error))
            }
            Outcome::Queued => Ok(self.queued(&lease, limit)),
            Outcome::Over => {
                if known {
                    self.engine.keeper().known_again(&lease);
                }
                Ok(self.queued(&lease, limit))
            }
        }
    }

    /// The store has granted the lease in its first answer. In a group, it goes to the waiter that has waited longest.
    fn granted(&mut self, lease: &Arc<Lease>) -> Asked {
        self.lease = None;
        let keeper = self.engine.keeper();
        if let Some((group, number)) = &self.place {
            let first = keeper.hold(group, lease, |queue| queue.leave_first(*number));
            if let Some(None) = first {
                keeper.file(lease);
                keeper.offer(lease);
            }
            if lease.limit().is_some() {
                keeper.ask_more(lease);
            }
            let Some(Some(tell)) = first else { return Asked::Waits };
            // In this order, because a receiver that still listens would be woken.
            self.told = None;
            drop(tell);
        }
        self.place = None;
        lease.hand().map_or(Asked::Waits, |hold| Asked::Holds(self.taken(hold)))
    }

    /// From here on the keeper repeats the request, and this waits for a message, unless the lease was granted in the meantime.
    fn queued(&mut self, lease: &Arc<Lease>, limit: Option<Limit>) -> Asked {
        tracing::debug!(key = &**self.wanted.name.key(), "waiting");
        let keeper = self.engine.keeper();
        if self.place.is_some() {
            self.lease = None;
            keeper.file(lease);
            keeper.follow(lease, limit);
            return Asked::Waits;
        }
        let (tell, told) = oneshot::channel();
        if let Some(hold) = lease.wait(tell) {
            self.lease = None;
            return Asked::Holds(self.taken(hold));
        }
        self.told = Some(told);
        keeper.file(lease);
        Asked::Waits
    }

    /// The request has failed for good. For the other waiters of the group another lease is requested.
    fn failed(&mut self, lease: &Arc<Lease>) {
        self.lease = None;
        let keeper = self.engine.keeper();
        if let Some((group, number)) = &self.place {
            keeper.queues.with(group, None, |queue| {
                queue.leave(*number);
                queue.end(lease.id());
            });
            keeper.ask_more(lease);
        }
        keeper.queue_release(PendingRelease::of(Target::Lease(Arc::clone(lease))));
    }

    async fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Hold>, Error> {
        let ttl = self.wanted.settings.terms.ttl;
        loop {
            let Some(told) = &mut self.told else { return Err(closed(self.wanted.name)) };
            let look = Instant::now() + ttl;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            let told = match timeout_at(until, &mut *told).await {
                Ok(told) => told.ok(),
                Err(_) => match told.try_recv() {
                    Ok(told) => Some(told),
                    Err(oneshot::error::TryRecvError::Closed) => None,
                    Err(oneshot::error::TryRecvError::Empty) if deadline == Some(until) => {
                        return self.silence().map_or(Ok(None), |error| Err(self.error(error)));
                    }
                    Err(oneshot::error::TryRecvError::Empty) => {
                        // If the runtime of the keeper's task has ended, the task has to run on this one.
                        self.engine.ensure_running();
                        continue;
                    }
                },
            };
            return self.heard(told).map(Some);
        }
    }

    fn heard(&mut self, told: Option<Told>) -> Result<Hold, Error> {
        self.told = None;
        if self.place.is_none() || self.lease.is_none() {
            // Nothing is left to give up.
            (self.place, self.lease) = (None, None);
        }
        match told {
            Some(Told::Granted(hold)) => Ok(self.taken(hold)),
            Some(Told::Failed(error)) => Err(self.error(error)),
            None => Err(closed(self.wanted.name)),
        }
    }

    fn taken(&self, hold: Hold) -> Hold {
        if hold.begin(Instant::now()) {
            self.engine.keeper().file(&hold.lease);
        }
        hold
    }

    /// Why the store did not answer the last request on behalf of this waiter, if it did not.
    fn silence(&self) -> Option<BackendError> {
        match &self.place {
            Some((group, _)) => self.engine.keeper().silence(group),
            None => self.lease.as_ref()?.silence(),
        }
    }

    fn error(&self, error: BackendError) -> Error {
        self.engine.error(error, "acquire", Some(self.wanted.name))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let keeper = self.engine.keeper();
        if let Some(mut told) = self.told.take() {
            told.close();
            if let Ok(Told::Granted(hold)) = told.try_recv() {
                keeper.give_back(&hold);
            }
        }
        match (&self.place, &self.lease) {
            (Some((group, number)), lease) => {
                keeper.queues.with(group, None, |queue| queue.leave(*number));
                keeper.give_up_surplus(group);
                if let Some(lease) = lease {
                    keeper.take_on(lease);
                }
            }
            (None, Some(lease)) => keeper.give_up(lease),
            (None, None) => {}
        }
    }
}

/// Sends the request; one that does not wait is repeated for a while if it is not answered. `None` if it is not answered within
/// the time limit of the call, or [`ROUND_TRIP`] if that is longer.
async fn send(engine: &Engine, lease: &Lease, wait: Wait) -> Option<(Result<Answer, BackendError>, Instant)> {
    let begin = Instant::now();
    let asked = async {
        let give_up = begin + PERSIST;
        let mut sent = begin;
        loop {
            let answer = engine.backend().request(lease.request()).await;
            match &answer {
                Err(error) if wait == Wait::No && error.is_transient() && Instant::now() < give_up => {
                    sleep(RETRY).await;
                    sent = Instant::now();
                }
                _ => return (answer, sent),
            }
        }
    };
    match wait.deadline() {
        Some(deadline) => timeout_at(deadline.max(begin + ROUND_TRIP), asked).await.ok(),
        None => Some(asked.await),
    }
}

fn unanswered() -> BackendError {
    BackendError::Unanswered { source: "no answer within the time to wait".into() }
}

fn closed(name: &Name) -> Error {
    Error::Closed { name: Some(name.as_str().to_owned()), operation: "acquire" }
}
