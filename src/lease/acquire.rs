//! From request to hold: ask, wait, give up.
//!
//! A request is asked in place, in the task that makes it. If the store grants it at once, that is all. If not, the lease is the
//! keeper's to ask again, and this future waits for a message. Dropping it at any await point gives up nothing but its own wish:
//! a lease that nobody wants any more is released, one that others of this client wait for stays in the store's queue.

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
use crate::handover::{Group, Joined, Number, group};
use crate::name::Name;
use crate::options::Settings;

/// How long a request that does not wait, or that an owner makes, lets an earlier release of this client finish first.
const SETTLE: Duration = Duration::from_secs(1);
/// What a request may take on its way, however short the patience is.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// How long a request that does not wait is sent again while the store does not answer.
const PERSIST: Duration = Duration::from_secs(4);
/// How many grants in a row may arrive after their lease has ended. More mean that the lease is too short for
/// this store or this machine.
const MAX_LATE: u32 = 3;

/// What is asked for, and on which terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a Name,
    pub(crate) settings: &'a Settings,
    pub(crate) claim: &'a Claim,
    /// The handle that follows the limit in force.
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

/// Asks for what is wanted. `None` if somebody else held it for as long as `wait` allows.
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
            // The process was paused between request and now, or whoever released by force was quicker.
            Some(_) if late < MAX_LATE => late += 1,
            Some(reason) => return Err(hold.loss_error(reason)),
        }
    }
}

/// The hold begins.
fn begin(engine: &Engine, wanted: Wanted<'_>, hold: Hold) -> Hold {
    tracing::debug!(name = %hold.name(), token = hold.token.get(), "granted");
    learn(wanted, hold.lease.limit());
    engine.owners().remember(&hold.lease);
    hold
}

fn learn(wanted: Wanted<'_>, limit: Option<Limit>) {
    if let (Some(follower), Some(limit)) = (wanted.follower, limit) {
        follower.follow(limit);
    }
}

async fn attempt(engine: &Engine, wanted: Wanted<'_>, wait: Wait) -> Result<Option<Hold>, Error> {
    if !settle(engine.keeper(), wanted, wait).await {
        return Ok(None);
    }
    let mut waiter = Waiter::arrive(engine, wanted, wait)?;
    if let Stage::Asks(lease) = &waiter.stage {
        let lease = Arc::clone(lease);
        match waiter.ask(lease, wait).await? {
            Asked::Holds(hold) => return Ok(Some(hold)),
            Asked::Busy => return Ok(None),
            Asked::Waits => {}
        }
    }
    waiter.wait(wait.deadline()).await
}

/// Waits for guards of this client that were just dropped: they must not be in the way of a request that does not wait,
/// nor let their owner in again past those who wait for it to leave. `false` if the time to wait is over before that.
async fn settle(keeper: &Keeper, wanted: Wanted<'_>, wait: Wait) -> bool {
    if wait != Wait::No && wanted.claim.owner().is_none() {
        return true;
    }
    let now = Instant::now();
    let latest = now + SETTLE;
    let until = wait.deadline().map_or(latest, |end| end.max(now + ROUND_TRIP).min(latest));
    // Late is no error: then they are in the way, or their owner is let in.
    timeout_at(until, keeper.releases().settled(wanted.name.key())).await.is_ok() || until == latest
}

/// A task that wants a lease, until it holds one.
struct Waiter<'a> {
    engine: &'a Engine,
    wanted: Wanted<'a>,
    /// In whose queue it stands, and under which number, if leases are passed on to it.
    place: Option<(Group, Number)>,
    stage: Stage,
}

enum Stage {
    /// It asks the store itself.
    Asks(Arc<Lease>),
    /// It waits to be told, of its own lease or of one of its group.
    Waits(Option<Arc<Lease>>, oneshot::Receiver<Told>),
    Done,
}

/// What came of asking the store in place.
enum Asked {
    Holds(Hold),
    Busy,
    Waits,
}

impl<'a> Waiter<'a> {
    fn arrive(engine: &'a Engine, wanted: Wanted<'a>, wait: Wait) -> Result<Self, Error> {
        let keeper = engine.keeper();
        let terms = wanted.settings.terms;
        let open = |group| keeper.open(wanted.name, terms, wanted.claim, wait != Wait::No, group);
        let group = group(wanted.claim, wanted.settings).filter(|_| wait != Wait::No);
        let group = group.map(|terms| Group::new(Arc::clone(wanted.name.key()), terms));
        let limit = wanted.claim.limit().map(|limit| limit.permits);
        let joined = group.and_then(|group| {
            keeper.queues().with(&group, limit, |queue| match queue.join(limit) {
                Joined::Differs => None,
                Joined::Waits(number) => {
                    let (tell, told) = oneshot::channel();
                    queue.wait(number, tell);
                    keeper.watch(queue);
                    Some(Ok((Some((group.clone(), number)), Stage::Waits(None, told))))
                }
                Joined::Asks(number) => Some(match open(Some(group.clone())) {
                    Some(lease) => {
                        queue.ask(lease.id());
                        Ok((Some((group.clone(), number)), Stage::Asks(lease)))
                    }
                    None => {
                        queue.asked_itself();
                        Err(closed(wanted.name))
                    }
                }),
            })
        });
        let alone = || Ok((None, Stage::Asks(open(None).ok_or_else(|| closed(wanted.name))?)));
        let (place, stage) = joined.unwrap_or_else(alone)?;
        Ok(Self { engine, wanted, place, stage })
    }

    /// Asks the store in place.
    async fn ask(&mut self, lease: Arc<Lease>, wait: Wait) -> Result<Asked, Error> {
        let sent = Instant::now();
        let (answer, sent) = match wait.deadline() {
            // The first request gets the time of a round trip, however short the patience is.
            Some(deadline) => {
                let asked = timeout_at(deadline.max(sent + ROUND_TRIP), self.send(&lease, wait)).await;
                asked.map_err(|_| self.error(unanswered()))?
            }
            None => self.send(&lease, wait).await,
        };
        let limit = answer.as_ref().ok().and_then(Answer::limit);
        learn(self.wanted, limit);
        match lease.answered(answer, sent, Instant::now()) {
            Outcome::Granted => Ok(self.hold_in_place(&lease).map_or(Asked::Waits, Asked::Holds)),
            Outcome::Busy => {
                self.stage = Stage::Done;
                self.engine.keeper().forget(&lease);
                Ok(Asked::Busy)
            }
            Outcome::Failed(error) => {
                self.fail(&lease);
                Err(self.error(error))
            }
            Outcome::Queued | Outcome::Over => {
                tracing::debug!(key = &**self.wanted.name.key(), "waiting");
                Ok(self.wait_in_queue(&lease, limit).map_or(Asked::Waits, Asked::Holds))
            }
        }
    }

    /// Sends the request, again and again for a while if it is one that does not wait.
    async fn send(&self, lease: &Lease, wait: Wait) -> (Result<Answer, BackendError>, Instant) {
        let give_up = Instant::now() + PERSIST;
        loop {
            let sent = Instant::now();
            let answer = self.engine.backend().request(lease.request()).await;
            match &answer {
                Err(error) if wait == Wait::No && error.is_transient() && Instant::now() < give_up => {
                    sleep(RETRY).await;
                }
                _ => return (answer, sent),
            }
        }
    }

    /// The store has granted it at once.
    fn hold_in_place(&mut self, lease: &Arc<Lease>) -> Option<Hold> {
        self.stage = Stage::Done;
        let keeper = self.engine.keeper();
        if let Some((group, _)) = &self.place {
            let limit = lease.limit();
            keeper.queues().with(group, None, |queue| {
                queue.asked_itself();
                queue.hold(lease.id());
                if let Some(limit) = limit {
                    queue.follow(limit.permits);
                }
            });
            keeper.offer_again(group);
            if limit.is_some() {
                keeper.ask_more(lease);
            }
        }
        let hold = lease.hand()?;
        hold.begin(Instant::now());
        keeper.file(lease);
        Some(hold)
    }

    /// From here on the lease is the keeper's to ask for, and this waits for a message. Unless it is there already.
    fn wait_in_queue(&mut self, lease: &Arc<Lease>, limit: Option<Limit>) -> Option<Hold> {
        let keeper = self.engine.keeper();
        let (tell, told) = oneshot::channel();
        match &self.place {
            Some((group, number)) => {
                keeper.queues().with(group, None, |queue| {
                    queue.asked_itself();
                    queue.wait(*number, tell);
                });
                self.stage = Stage::Waits(None, told);
                keeper.offer_again(group);
                keeper.file(lease);
                keeper.follow(lease, limit);
                keeper.ask_more(lease);
            }
            None => {
                if let Some(hold) = lease.wait(tell) {
                    self.stage = Stage::Done;
                    return Some(self.taken(hold));
                }
                self.stage = Stage::Waits(Some(Arc::clone(lease)), told);
                keeper.file(lease);
            }
        }
        None
    }

    /// The store has refused it. Others of the group ask for themselves.
    fn fail(&mut self, lease: &Arc<Lease>) {
        self.stage = Stage::Done;
        let keeper = self.engine.keeper();
        if let Some((group, _)) = &self.place {
            keeper.queues().with(group, None, |queue| {
                queue.asked_itself();
                queue.end(lease.id());
            });
            keeper.offer_again(group);
            keeper.ask_more(lease);
        }
        keeper.queue_release(PendingRelease::of(Target::Lease(Arc::clone(lease))));
    }

    async fn wait(&mut self, deadline: Option<Instant>) -> Result<Option<Hold>, Error> {
        let ttl = self.wanted.settings.terms.ttl;
        loop {
            let Stage::Waits(_, told) = &mut self.stage else { return Ok(None) };
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
                        // Should the runtime have ended on which the leases are kept, they must be kept on this one.
                        self.engine.ensure_running();
                        continue;
                    }
                },
            };
            // Nothing is left to be given up.
            self.stage = Stage::Done;
            return match told {
                Some(Told::Granted(hold)) => Ok(Some(self.taken(hold))),
                Some(Told::Failed(error)) => Err(self.error(error)),
                None => Err(closed(self.wanted.name)),
            };
        }
    }

    fn taken(&self, hold: Hold) -> Hold {
        hold.begin(Instant::now());
        self.engine.keeper().file(&hold.lease);
        hold
    }

    /// Why the store was not heard by whatever this waits for, if it was not.
    fn silence(&self) -> Option<BackendError> {
        match (&self.stage, &self.place) {
            (Stage::Waits(Some(lease), _), _) => lease.silence(),
            (_, Some((group, _))) => self.engine.keeper().silence(group),
            _ => None,
        }
    }

    fn error(&self, error: BackendError) -> Error {
        self.engine.error(error, "acquire", Some(self.wanted.name))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let keeper = self.engine.keeper();
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Asks(lease) => match &self.place {
                Some((group, _)) => {
                    keeper.queues().with(group, None, |queue| queue.asked_itself());
                    keeper.give_up_surplus(group);
                    keeper.offer_again(group);
                    keeper.take_on(&lease);
                }
                None => keeper.give_up(&lease),
            },
            Stage::Waits(own, mut told) => {
                told.close();
                if let Ok(Told::Granted(hold)) = told.try_recv() {
                    return keeper.give_back(&hold);
                }
                if let Some(lease) = own {
                    keeper.give_up(&lease);
                } else if let Some((group, number)) = &self.place {
                    keeper.queues().with(group, None, |queue| queue.leave(*number));
                    keeper.give_up_surplus(group);
                }
            }
            Stage::Done => {}
        }
    }
}

fn unanswered() -> BackendError {
    BackendError::Unanswered { source: "no answer within the time to wait".into() }
}

fn closed(name: &Name) -> Error {
    Error::Closed { name: Some(name.as_str().to_owned()), operation: "acquire" }
}
