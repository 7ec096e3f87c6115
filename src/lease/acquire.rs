//! From request to hold: request, wait, give up.
//!
//! The task that wants a lease sends the first request itself, unless enough leases are requested for its group
//! already. If the store grants it, that is all. If not, the keeper repeats the request, and this future waits for a
//! message. Dropping it at any await point affects no other waiter: a lease that nobody waits for is released, and one
//! that other tasks of this client wait for stays in the store's queue.

use std::future::pending;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use scopeguard::{ScopeGuard, guard};
use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::Instrument;

use super::keeper::Keeper;
use super::lease::{Hold, Lease, Message, Outcome, RETRY};
use crate::backend::{Answer, BackendError, Claim, Detail, Inspection, Limit, Resource};
use crate::contention::Contention;
use crate::error::{Error, LossReason};
use crate::handover::{Group, Number, group, with_queue};
use crate::options::Settings;

/// How long a request that does not wait, or a request of an owner, lets earlier releases of this client finish first.
const RELEASES_FIRST: Duration = Duration::from_secs(1);
/// The minimum time for a first answer, no matter how short the time limit of the call is.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// How long before the end of its time limit a call asks whether the store answers, so that it can say why it has
/// failed.
const PROBE: Duration = Duration::from_millis(500);
/// How long a request that does not wait, or a release that is awaited, is repeated while the store does not answer, or
/// refuses it for now.
pub(super) const PERSIST: Duration = Duration::from_secs(4);
/// How many grants in a row may arrive after their lease has ended. More mean that the lease is too short for
/// this store or this machine.
const MAX_LATE: u32 = 3;

/// The limit that a handle of a semaphore and its clones state. They follow a change together.
#[derive(Debug)]
pub(crate) struct StatedLimit(Mutex<Limit>);

impl StatedLimit {
    pub(crate) const fn new(limit: Limit) -> Self {
        Self(Mutex::new(limit))
    }

    pub(crate) fn get(&self) -> Limit {
        *self.0.lock()
    }

    /// States a limit that the store has reported without its version, which the next answer says.
    pub(crate) fn restate(&self, permits: u32) {
        *self.0.lock() = Limit::stated(permits);
    }

    /// A late answer about an earlier version changes nothing.
    pub(crate) fn follow(&self, limit: Limit) {
        let mut stated = self.0.lock();
        if limit.version >= stated.version {
            *stated = limit;
        }
    }
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// From the one instant to the other.
    Until { since: Instant, deadline: Instant },
    /// As long as it takes.
    Forever,
}

impl Wait {
    /// For at most `timeout` from now.
    pub(crate) fn timeout(timeout: Duration) -> Self {
        let since = Instant::now();
        since.checked_add(timeout).map_or(Self::Forever, |deadline| Self::Until { since, deadline })
    }

    pub(crate) const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until { deadline, .. } => Some(deadline),
            Self::No | Self::Forever => None,
        }
    }

    /// Whether the time is up.
    pub(crate) fn is_over(self) -> bool {
        self.deadline().is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// Until when a request that is sent now may be answered: for [`ROUND_TRIP`] at least.
    pub(crate) fn latest_answer(self) -> Option<Instant> {
        self.deadline().map(|deadline| deadline.max(Instant::now() + ROUND_TRIP))
    }

    pub(crate) fn so_far(self) -> Duration {
        match self {
            Self::Until { since, .. } => since.elapsed(),
            Self::No | Self::Forever => Duration::ZERO,
        }
    }
}

/// A task that wants a lease, until it holds one. If this is dropped, whatever it was granted is released.
pub(crate) struct Waiter<'a> {
    keeper: &'a Arc<Keeper>,
    resource: &'a Resource,
    settings: &'a Arc<Settings>,
    claim: &'a Claim,
    note: Option<&'a Arc<str>>,
    /// The limit that the handle of a semaphore states.
    limit: Option<&'a StatedLimit>,
    wait: Wait,

    /// Its group and its number in the group's queue, if leases may be passed on to it.
    place: Option<(Group, Number)>,
    /// The lease that it requests itself, or that is requested for it alone.
    lease: Option<Arc<Lease>>,
    /// The channel on which it is handed a hold or an error.
    receiver: Option<oneshot::Receiver<Message>>,
    /// Who stood in the way when its time was up.
    contention: Option<Contention>,
}

/// What follows from the first answer: the waiter is done, with a hold or because nothing was available, or it has to
/// wait.
type Step = ControlFlow<Option<Hold>>;

impl<'a> Waiter<'a> {
    pub(crate) const fn new(
        keeper: &'a Arc<Keeper>,
        resource: &'a Resource,
        settings: &'a Arc<Settings>,
        claim: &'a Claim,
        note: Option<&'a Arc<str>>,
        limit: Option<&'a StatedLimit>,
        wait: Wait,
    ) -> Self {
        let (place, lease, receiver, contention) = (None, None, None, None);
        Self { keeper, resource, settings, claim, note, limit, wait, place, lease, receiver, contention }
    }

    /// Acquires a lease. Fails with [`Error::TimedOut`] if none was available for as long as the task waits.
    ///
    /// Cancel safe: dropping the future releases whatever it was granted.
    pub(crate) async fn acquire(mut self) -> Result<Hold, Error> {
        let span = tracing::debug_span!(target: "leasehold::lease", "acquire", name = %self.resource.name(), token = tracing::field::Empty);
        let hold = if span.is_disabled() {
            self.acquire_until_held().await?
        } else {
            self.acquire_until_held().instrument(span.clone()).await?
        };
        let Some(hold) = hold else { return Err(self.timed_out()) };
        // Not `Span::current()`: where this span is filtered out, that is the caller's.
        span.record("token", hold.token.get());
        Ok(hold)
    }

    async fn acquire_until_held(&mut self) -> Result<Option<Hold>, Error> {
        let mut late = 0;
        self.check_process()?;
        loop {
            self.check_open()?;
            self.keeper.ensure_running();
            let Some(hold) = self.attempt().await? else {
                tracing::debug!(target: "leasehold::lease", name = self.resource.name(), "busy");
                return Ok(None);
            };
            // It may have been handed this hold while a request of its own was in flight.
            self.leave();
            match hold.loss(Instant::now()) {
                None if self.keeper.draining.is_closed() => {
                    self.keeper.return_hold(&hold);
                    return Err(self.closed());
                }
                None => return Ok(Some(self.begin(hold))),
                Some(LossReason::ClientClosed) => return Err(self.closed()),
                // The process was paused since the request, or the lease was released by force in the meantime.
                Some(_) if late < MAX_LATE => late += 1,
                Some(reason) => return Err(hold.loss_error(reason)),
            }
        }
    }

    /// Records a hold that begins.
    fn begin(&self, hold: Hold) -> Hold {
        tracing::debug!(target: "leasehold::lease", name = %hold.name(), token = hold.token.get(), "granted");
        if self.limit.is_some() {
            self.follow_limit(hold.lease.limit());
        }
        if hold.lease.owner().is_some() {
            self.keeper.owners.remember(&hold);
            if hold.loss(Instant::now()).is_some() {
                // The keeper may have looked for it before it was there.
                self.keeper.owners.forget(&hold.lease);
            }
        }
        hold
    }

    fn follow_limit(&self, limit: Option<Limit>) {
        if let (Some(stated), Some(limit)) = (self.limit, limit) {
            stated.follow(limit);
        }
    }

    async fn attempt(&mut self) -> Result<Option<Hold>, Error> {
        if !self.wait_for_releases().await {
            let latest = Some(Instant::now() + ROUND_TRIP / 2);
            let probed = probe(self.keeper, self.resource, latest, Detail::Counts).await.map(|_| None);
            return self.time_is_up(probed);
        }
        loop {
            self.arrive()?;
            match self.ask().await? {
                Some(ControlFlow::Break(done)) => return Ok(done),
                Some(ControlFlow::Continue(())) => return self.wait().await,
                // A repetition of the request has failed before it was answered itself: the next one gets the error.
                None => self.lease = None,
            }
        }
    }

    /// Waits until guards that this client has just dropped are released: otherwise a request that does not wait would
    /// find the resource held by its own client, and an owner would re-enter ahead of those who wait for its release.
    /// `false` if the time limit of the call is reached first.
    async fn wait_for_releases(&self) -> bool {
        if self.wait != Wait::No && self.claim.owner().is_none() {
            return true;
        }
        let now = Instant::now();
        let latest = now + RELEASES_FIRST;
        // The other half of that time is left for a last question to the store.
        let until = self.wait.deadline().map_or(latest, |end| end.max(now + ROUND_TRIP / 2).min(latest));
        let keeper = self.keeper;
        let finished = pin!(keeper.releases.finished(&self.resource.key));
        let finished = pin!(keeper.home.awaiting(finished));
        // A timeout is not an error: the request is sent and finds whatever is still held.
        timeout_at(until, self.keeper.draining.unless(finished)).await.is_ok() || until == latest
    }

    /// Joins the queue of its group, or opens a lease for itself alone.
    fn arrive(&mut self) -> Result<(), Error> {
        // A lease that is passed on keeps its note at the store.
        let may_share = self.wait != Wait::No && self.note.is_none();
        let group = group(self.claim, self.settings).filter(|_| may_share);
        let group = group.map(|terms| Group::new(Arc::clone(&self.resource.key), terms));
        if !group.is_some_and(|group| self.join(group)) {
            self.lease = Some(self.open(None).ok_or_else(|| self.closed())?);
        }
        // A waiter that joins a queue after it was cleared gets no message.
        self.check_open()
    }

    fn open(&self, group: Option<Group>) -> Option<Arc<Lease>> {
        self.keeper.open(self.resource, self.settings, self.claim, self.note, self.wait != Wait::No, group)
    }

    /// Joins the queue of a group, and opens a lease if the group wants one more. `false` if the group follows another
    /// limit than this request states.
    fn join(&mut self, group: Group) -> bool {
        let keeper = self.keeper;
        let limit = self.claim.limit().map(|limit| limit.permits);
        let (sender, receiver) = oneshot::channel();
        let number = with_queue(&keeper.queues, &group, limit, |queue| {
            let number = queue.join(limit, sender)?;
            // `None` once the client is closed; then nothing waits for it either.
            let lease = (queue.wanted() > 0).then(|| self.open(Some(group.clone()))).flatten();
            match &lease {
                Some(lease) => queue.ask_in_place(lease.id()),
                None => keeper.watch(queue),
            }
            self.lease = lease;
            Some(number)
        });
        if let Some(number) = number {
            (self.place, self.receiver) = (Some((group, number)), Some(receiver));
        }
        number.is_some()
    }

    /// Sends the request, unless a lease of the group is passed on to this waiter first.
    /// `None` if its lease has ended in the meantime.
    async fn ask(&mut self) -> Result<Option<Step>, Error> {
        let Some(lease) = self.lease.clone() else { return Ok(Some(ControlFlow::Continue(()))) };
        let dropped = guard(&lease, |lease| self.keeper.request_dropped(lease));
        let asked = send(self.keeper, &lease, self.wait);
        let asked = match &mut self.receiver {
            None => self.keeper.draining.unless(pin!(asked)).await.ok_or_else(|| self.closed())?,
            // Closing the client drops the sender, which ends the wait.
            Some(receiver) => tokio::select! {
                biased;
                asked = asked => asked,
                message = receiver => return self.received(message.ok()).map(|hold| Some(ControlFlow::Break(Some(hold)))),
            },
        };
        let (answer, sent) = asked.ok_or_else(|| self.error(self.keeper.unanswered()))?;
        ScopeGuard::into_inner(dropped);
        let limit = answer.as_ref().ok().and_then(Answer::limit);
        self.follow_limit(limit);
        let now = Instant::now();
        match lease.answered(answer, sent, now) {
            Outcome::Granted => Ok(Some(self.granted(&lease, now))),
            Outcome::Busy => {
                self.lease = None;
                self.keeper.release_if_known(&lease);
                Ok(Some(ControlFlow::Break(None)))
            }
            Outcome::Failed(error) => {
                self.failed(&lease);
                Err(self.error(error))
            }
            Outcome::Queued => self.queued(&lease, limit),
            Outcome::Over => {
                self.keeper.release_again(&lease);
                self.queued(&lease, limit)
            }
        }
    }

    /// The store has granted the lease in its first answer. In a group, it goes to the waiter that has waited longest.
    fn granted(&mut self, lease: &Arc<Lease>, now: Instant) -> Step {
        self.lease = None;
        let keeper = self.keeper;
        if let Some((group, number)) = &self.place {
            let first = keeper.hold(group, lease, |queue| queue.leave_first(*number));
            if let Some(None) = first {
                keeper.file(lease);
                keeper.offer(lease);
            }
            if self.claim.limit().is_some() {
                keeper.ask_more(lease);
            }
            let Some(Some(sender)) = first else { return ControlFlow::Continue(()) };
            // In this order, because a receiver that still listens would be woken.
            self.receiver = None;
            drop(sender);
        }
        self.place = None;
        match lease.hand() {
            Some(hold) => ControlFlow::Break(Some(self.taken(hold, now))),
            None => ControlFlow::Continue(()),
        }
    }

    /// From here on the keeper repeats the request, and this waits for a message, unless the lease was granted in the
    /// meantime. `None` if it has ended.
    fn queued(&mut self, lease: &Arc<Lease>, limit: Option<Limit>) -> Result<Option<Step>, Error> {
        tracing::debug!(target: "leasehold::lease", name = self.resource.name(), "waiting");
        let keeper = self.keeper;
        if self.place.is_some() {
            self.lease = None;
            keeper.file(lease);
            keeper.follow(lease, limit);
            return Ok(Some(ControlFlow::Continue(())));
        }
        let (sender, receiver) = oneshot::channel();
        let Some(hold) = lease.set_waiter(sender) else { return self.check_open().map(|()| None) };
        if let Some(hold) = hold {
            self.lease = None;
            return Ok(Some(ControlFlow::Break(Some(self.taken(hold, Instant::now())))));
        }
        self.receiver = Some(receiver);
        keeper.file(lease);
        // If a shutdown has given up the lease already, no message arrives.
        self.check_open().map(|()| Some(ControlFlow::Continue(())))
    }

    /// The request has failed for good. For the other waiters of the group another lease is requested.
    fn failed(&mut self, lease: &Arc<Lease>) {
        self.lease = None;
        let keeper = self.keeper;
        if let Some((group, number)) = &self.place {
            keeper.queue(group, |queue| {
                queue.leave(*number);
                queue.end(lease.id());
            });
            keeper.ask_more(lease);
        }
        keeper.release_if_known(lease);
    }

    async fn wait(&mut self) -> Result<Option<Hold>, Error> {
        let Self { keeper, resource, wait, place, lease, receiver, .. } = self;
        let Some(receiver) = receiver else { return Err(self.closed()) };
        let deadline = wait.deadline();
        let not_in_time = async {
            let before_end =
                |end: Instant| end - PROBE.min(end.saturating_duration_since(Instant::now()) / 2);
            until(deadline.map(before_end)).await;
            let last = last_answer(keeper, place.as_ref(), lease.as_ref());
            let answers_anyway = matches!(last, Ok(Some(at)) if at.elapsed() < ROUND_TRIP);
            let found = look(keeper, resource, deadline, answers_anyway).await;
            let looked = Instant::now();
            until(deadline).await;
            found.map(|found| found.map(|found| Contention::from(found).after(looked.elapsed())))
        };
        let message = keeper.home.awaiting(Pin::new(receiver));
        tokio::select! {
            biased;
            message = message => self.received(message.ok()).map(Some),
            probed = not_in_time => self.time_is_up(probed),
        }
    }

    /// Nothing was granted in time: because others hold the resource, or because the store does not answer.
    fn time_is_up(
        &mut self,
        probed: Result<Option<Contention>, BackendError>,
    ) -> Result<Option<Hold>, Error> {
        let last = last_answer(self.keeper, self.place.as_ref(), self.lease.as_ref());
        let error = match last.and(probed) {
            Ok(contention) => {
                self.contention = contention;
                None
            }
            Err(error) => Some(error),
        };
        match self.receiver.as_mut().map(oneshot::Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => error.map_or(Ok(None), |error| Err(self.error(error))),
            Some(message) => self.received(message.ok()).map(Some),
        }
    }

    fn received(&mut self, message: Option<Message>) -> Result<Hold, Error> {
        self.receiver = None;
        if self.place.is_none() || self.lease.is_none() {
            // Nothing is left to give up.
            (self.place, self.lease) = (None, None);
        }
        match message {
            Some(Ok(hold)) => Ok(self.taken(hold, Instant::now())),
            Some(Err(error)) => Err(self.error(error)),
            None => Err(self.closed()),
        }
    }

    fn taken(&self, hold: Hold, now: Instant) -> Hold {
        if let Some(due) = hold.begin(now) {
            self.keeper.schedule.file_taken_up(&hold.lease, due, now);
        }
        hold
    }

    fn holder_never_expires(&self) -> bool {
        match &self.place {
            Some((group, _)) => self.keeper.holder_never_expires(group),
            None => self.lease.as_ref().is_some_and(|lease| lease.holder_never_expires()),
        }
    }

    /// Gives up its place and its request, and returns a hold that it has not taken up.
    fn leave(&mut self) {
        let keeper = self.keeper;
        if let Some(mut receiver) = self.receiver.take() {
            receiver.close();
            if let Ok(Ok(hold)) = receiver.try_recv() {
                keeper.return_hold(&hold);
            }
        }
        match (self.place.take(), self.lease.take()) {
            (Some((group, number)), lease) => {
                keeper.queue(&group, |queue| queue.leave(number));
                keeper.give_up_surplus(&group);
                if let Some(lease) = lease {
                    keeper.adopt(&lease);
                }
            }
            (None, Some(lease)) => keeper.give_up(&lease),
            (None, None) => {}
        }
    }

    fn error(&self, error: BackendError) -> Error {
        self.keeper.error(error, "acquire", Some(self.resource.name()))
    }

    /// For requests that begin.
    fn check_process(&self) -> Result<(), Error> {
        self.keeper.check_process("acquire", Some(self.resource.name()))
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.keeper.draining.is_closed() { Err(self.closed()) } else { Ok(()) }
    }

    fn timed_out(&mut self) -> Error {
        Error::TimedOut {
            name: self.resource.name().to_owned(),
            waited: self.wait.so_far(),
            holder_never_expires: self.holder_never_expires(),
            contention: self.contention.take().map(Box::new),
        }
    }

    fn closed(&self) -> Error {
        Error::Closed { name: Some(self.resource.name().to_owned()), operation: "acquire" }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // A copy in a process that was forked has no place and no request.
        if !self.keeper.origin.is_elsewhere() {
            self.leave();
        }
    }
}

/// Sends the request; one that does not wait is repeated for a while if it is not answered. `None` if it is not
/// answered within the time limit of the call, or [`ROUND_TRIP`] if that is longer.
async fn send(keeper: &Keeper, lease: &Lease, wait: Wait) -> Option<(Result<Answer, BackendError>, Instant)> {
    let begin = Instant::now();
    let asked = async {
        let give_up = begin + PERSIST;
        let mut sent = begin;
        loop {
            let answer = keeper.backend.request(lease.request()).await;
            match &answer {
                Err(error) if wait == Wait::No && error.is_transient() && Instant::now() < give_up => {
                    // Whatever follows, the store may execute this one as well.
                    lease.request_failed(&answer);
                    sleep(RETRY).await;
                    sent = Instant::now();
                }
                _ => return (answer, sent),
            }
        }
    };
    match wait.latest_answer() {
        Some(latest) => timeout_at(latest, asked).await.ok(),
        None => Some(asked.await),
    }
}

/// When the store last answered a request or a renewal on behalf of a waiter. An error if it did not answer the last
/// one.
fn last_answer(
    keeper: &Keeper,
    place: Option<&(Group, Number)>,
    lease: Option<&Arc<Lease>>,
) -> Result<Option<Instant>, BackendError> {
    match (place, lease) {
        (Some((group, _)), _) => keeper.last_answer(group),
        (None, Some(lease)) => lease.last_answer(),
        (None, None) => Ok(None),
    }
}

/// Looks who holds the resource, unless too many calls of this client are doing so; this is part of a wait that ends at
/// the deadline, or up to [`ROUND_TRIP`] later if it is asked so late. It fails if the store does not answer, unless it
/// is known to answer anyway: then the wait ends at the deadline.
async fn look(
    keeper: &Keeper,
    resource: &Resource,
    deadline: Option<Instant>,
    answers_anyway: bool,
) -> Result<Option<Inspection>, BackendError> {
    let latest = deadline.map(|end| end.max(Instant::now() + ROUND_TRIP));
    match (keeper.asking_who.try_acquire(), answers_anyway) {
        (Ok(_turn), true) => {
            let inspected = keeper.backend.inspect(resource, Detail::Summary);
            tokio::select! {
                biased;
                answer = inspected => Ok(answer.ok()),
                () = until(deadline) => Ok(None),
            }
        }
        (Ok(_turn), false) => probe(keeper, resource, latest, Detail::Summary).await,
        (Err(_), true) => Ok(None),
        (Err(_), false) => probe(keeper, resource, latest, Detail::Counts).await.map(|_| None),
    }
}

/// Whether the store answers until then; if not, why.
async fn probe(
    keeper: &Keeper,
    resource: &Resource,
    latest: Option<Instant>,
    detail: Detail,
) -> Result<Option<Inspection>, BackendError> {
    let inspected = keeper.backend.inspect(resource, detail);
    tokio::select! {
        biased;
        answer = inspected => match answer {
            Err(error) if error.is_transient() => Err(error),
            answer => Ok(answer.ok()),
        },
        () = until(latest) => Err(keeper.unanswered()),
    }
}

/// Never, if there is no deadline.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_has_time_for_an_answer_however_short_the_time_limit_is() {
        let now = Instant::now();
        for (limit, latest) in
            [(Duration::ZERO, ROUND_TRIP), (ROUND_TRIP / 2, ROUND_TRIP), (ROUND_TRIP * 2, ROUND_TRIP * 2)]
        {
            assert_eq!(Wait::timeout(limit).latest_answer(), Some(now + latest));
        }
        assert_eq!(Wait::timeout(Duration::MAX), Wait::Forever);
        assert_eq!(Wait::Forever.latest_answer(), None);
        assert!(Wait::timeout(Duration::ZERO).is_over() && !Wait::timeout(ROUND_TRIP).is_over());
        assert!(!Wait::No.is_over() && !Wait::Forever.is_over());
    }
}
