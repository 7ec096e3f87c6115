//! One lease: its states and the transitions between them.
//!
//! Every transition happens under the lease's mutex and returns what follows from it; the caller does that. A lease may
//! have several holds, one after another: it is passed on within the client, each time under the next token. A hold is
//! identified by its token and only asks the lease about itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::deadline::{Deadline, GIVE_UP_AFTER, margin, moment_within};
use super::ended::{LastRelease, Lost, Released};
use super::held::{Held, Kept, LastRenewal, Observation};
use super::known::Known;
use super::queued::{Flight, LastAnswer, Queued};
use crate::backend::{
    Answer, BackendError, Claim, Grant, LeaseId, LeaseRef, Limit, Renew, Renewal, Request, Resource, Ticket,
};
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::handover::{Group, may_pass_on};
use crate::observer::{Audience, Event, Observers, RenewalOutcome, Source};
use crate::options::Settings;
#[cfg(leasehold_planted)]
use crate::planted;
use crate::sync::{Mutex, OnceLock};

/// How long waiting requests tolerate a store that does not answer: this, or four TTLs if that is longer.
const OUTAGE: Duration = Duration::from_secs(30);
/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);

/// One acquisition at the store, from before it is requested until its release is confirmed.
#[derive(Debug)]
pub(crate) struct Lease {
    request: Request,
    terms: Arc<Settings>,
    /// The group within which the lease may be passed on, if it may be.
    group: Option<Group>,
    /// Cancelled when the lease is lost. Created when first requested.
    lost: OnceLock<CancellationToken>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    known: Known,
    /// If another process has it by now: its token there. Nothing of that is released here, only what a late request
    /// has taken after its end.
    given: Option<FencingToken>,
    /// The limit of a semaphore, as last reported to this lease by the store.
    limit: Option<Limit>,
    /// Cancelled when the hold of that token has been released.
    endings: Vec<(FencingToken, CancellationToken)>,
    /// The channel to the waiter for this lease, if it has no group.
    waiter: Option<oneshot::Sender<Message>>,
    /// Where the lease is filed in the keeper's schedule.
    filed: Option<Entry>,
    /// The loss of an observed hold, until the mutex is free and the observers can be told.
    untold: Option<Untold>,
    /// Who was told of the renewal that was sent last, and is told of its answer.
    renewal_told_to: Option<(Arc<Observers>, Audience)>,
}

#[derive(Debug)]
struct Untold {
    observed: Observation,
    token: FencingToken,
    held: Duration,
    reason: LossReason,
}

#[derive(Debug)]
enum Phase {
    Queued(Queued),
    Held(Held),
    Released(Released),
    Lost(Lost),
}

/// A message to a waiter: it has this hold, or the request has failed.
pub(super) type Message = Result<Hold, BackendError>;

/// What follows from the answer to a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The lease is held, and nobody has taken it up yet.
    Granted,
    /// It waits, and the request is to be repeated.
    Queued,
    /// It is not available without waiting.
    Busy,
    /// The request has failed for good.
    Failed(BackendError),
    /// It had been granted or given up before.
    Over,
}

/// What follows from a pushed grant.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushOutcome {
    /// The lease is held, and nobody has taken it up yet.
    Granted,
    /// It is not accepted: the client must ask the store.
    Doubtful,
    /// There is nothing to do.
    Known,
}

/// Why a lease cannot be given away.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotGiven {
    Lost(LossReason),
    /// Other guards share it.
    Shared,
}

/// The lists of the keeper's schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Waiting,
    Held,
}

/// Where a lease is filed: in which list, and the instant at which something is due.
pub(super) type Entry = (List, Instant);

/// What the keeper has to do for a lease now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Send its request, or its renewal.
    Send,
    /// Nothing yet: schedule it again.
    Wait,
    /// It is lost: release it.
    Release,
    /// Nothing more.
    Forget,
}

/// A lease as held by one holder. Its token distinguishes it from earlier and later holds of the same lease.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) lease: Arc<Lease>,
    pub(crate) token: FencingToken,
    pub(super) source: Source,
}

impl Lease {
    /// A lease that is about to be requested.
    pub(super) fn new(request: Request, terms: Arc<Settings>, group: Option<Group>) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            phase: Phase::Queued(Queued::new(now, now + terms.ttl / 3)),
            known: Known::Nothing,
            given: None,
            limit: None,
            endings: Vec::new(),
            waiter: None,
            filed: None,
            untold: None,
            renewal_told_to: None,
        };
        Arc::new(Self { request, terms, group, lost: OnceLock::new(), state: Mutex::new(state) })
    }

    /// A lease that another client has acquired: it was renewed by a request sent at `sent`.
    pub(super) fn handed_over(
        request: Request,
        terms: Arc<Settings>,
        token: FencingToken,
        sent: Instant,
        now: Instant,
    ) -> Arc<Self> {
        let lease = Self::new(request, terms, None);
        let deadline = Deadline::new(Arc::clone(&lease.terms), sent, now);
        let kept = Kept::new(token, deadline);
        let mut state = lease.state.lock();
        state.phase = Phase::Held(Held::granted(kept, now));
        state.known = Known::Possible;
        drop(state);
        lease
    }

    pub(crate) const fn id(&self) -> LeaseId {
        self.request.lease.id
    }

    pub(super) const fn resource(&self) -> &Resource {
        &self.request.lease.resource
    }

    /// The name of the resource, without prefix.
    pub(super) fn name(&self) -> &str {
        self.resource().name()
    }

    pub(super) const fn lease_ref(&self) -> &LeaseRef {
        &self.request.lease
    }

    pub(super) const fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    pub(super) const fn terms(&self) -> &Arc<Settings> {
        &self.terms
    }

    pub(super) const fn request(&self) -> &Request {
        &self.request
    }

    /// The owner for which a reentrant lock is held.
    pub(super) const fn owner(&self) -> Option<&Arc<str>> {
        self.request.claim.owner()
    }

    /// What is claimed, with the limit that the store reported last.
    pub(super) fn claim(&self) -> Claim {
        match (&self.request.claim, self.limit()) {
            (Claim::Permits(permits, _), Some(limit)) => Claim::Permits(*permits, limit),
            (claim, _) => claim.clone(),
        }
    }

    /// Whether there is a maximum hold time, which starts again with each hold.
    pub(super) fn is_capped(&self) -> bool {
        self.terms.max_hold.is_some()
    }

    /// Whether it is requested by a request that waits in the store's queue.
    pub(super) fn waits(&self) -> bool {
        self.request.waits && matches!(self.state.lock().phase, Phase::Queued(_))
    }

    pub(super) fn is_released(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Released(_))
    }

    /// The limit of a semaphore, as last reported to this lease by the store.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.state.lock().limit
    }
}

// Observed leases

impl Lease {
    /// Changes the state. If that loses an observed hold, the observers are told when the mutex is free.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let outcome = change(&mut state);
        let untold = state.untold.take();
        drop(state);
        if let Some(Untold { observed: Observation { observers, audience, .. }, token, held, reason }) =
            untold
        {
            let subject = observers.subject(self.resource());
            observers.tell(audience, &Event::Lost { subject, token, held, reason });
        }
        outcome
    }
}

// Requested leases

impl Lease {
    /// Handles the answer to a request that was sent at `sent`.
    pub(super) fn answered(
        &self,
        answer: Result<Answer, BackendError>,
        sent: Instant,
        now: Instant,
    ) -> Outcome {
        self.change(|state| self.answered_locked(state, answer, sent, now))
    }

    fn answered_locked(
        &self,
        state: &mut State,
        answer: Result<Answer, BackendError>,
        sent: Instant,
        now: Instant,
    ) -> Outcome {
        #[cfg(leasehold_planted)]
        let sent = planted::measured_from(sent, now);
        if let Some(limit) = answer.as_ref().ok().and_then(Answer::limit) {
            state.limit = Some(limit);
        }
        match &answer {
            Ok(Answer::Granted(grant)) => state.record_taken(Some(grant.token)),
            Ok(Answer::Queued(_)) => state.record_taken(None),
            other => state.record(Known::by(other)),
        }
        let Phase::Queued(queued) = &mut state.phase else { return Outcome::Over };
        match answer {
            Ok(Answer::Granted(grant)) => match self.measured_from(grant, sent, now) {
                Some(measured_from) => self.hold(state, grant, measured_from, now),
                // Its time is over, or nearly. No task repeats this request; the caller gets the answer and requests
                // another lease.
                None if !self.request.waits => {
                    let outcome = self.hold(state, grant, sent, now);
                    self.lose_locked(state, LossReason::Expired, LastRelease::AtOnce);
                    outcome
                }
                None => {
                    // Its time is over, or nearly: repeat the request when it has ended at the store, too.
                    queued.last = LastAnswer::At(now);
                    queued.flight = Flight::Due(now + grant.remaining.unwrap_or_default().max(RETRY));
                    Outcome::Queued
                }
            },
            Ok(Answer::Queued(place)) => {
                let alive = moment_within(now, self.terms.ttl);
                let pause = place.ask_again_in.map_or(alive, |pause| pause.min(alive));
                #[cfg(leasehold_planted)]
                let pause = planted::pause(pause);
                match queued.placed(place, sent, now, pause, self.is_fresh(sent, now)) {
                    Some(grant) => self.hold(state, grant, sent, now),
                    None => Outcome::Queued,
                }
            }
            Ok(Answer::Busy { .. }) => {
                state.phase = Phase::Released(Released::Over);
                Outcome::Busy
            }
            Err(error) if error.is_transient() && !self.has_waited_too_long(queued.last.at(), now) => {
                queued.last = LastAnswer::Unanswered(queued.last.at(), Box::new(error));
                queued.flight = Flight::Due(now + RETRY);
                Outcome::Queued
            }
            Err(error) => {
                state.phase = Phase::Released(Released::Over);
                Outcome::Failed(error)
            }
        }
    }

    /// Handles a pushed grant to the place `ticket`. It is accepted only for the ticket of the store's last answer:
    /// events and answers travel on different connections, and an event may be old. The lease is then measured from the
    /// request that was answered with that ticket, because the grant ends when the place would have ended.
    pub(super) fn pushed_grant(&self, ticket: Ticket, grant: Grant, now: Instant) -> PushOutcome {
        self.change(|state| match &mut state.phase {
            #[cfg(leasehold_planted)]
            Phase::Queued(_) if planted::is(planted::Mistake::BelievesLateGrants) => {
                self.hold(state, grant, now, now);
                PushOutcome::Granted
            }
            Phase::Queued(queued) => {
                if let Some((place, sent)) = queued.place
                    && place.ticket == ticket
                    && self.is_fresh(sent, now)
                {
                    self.hold(state, grant, sent, now);
                    return PushOutcome::Granted;
                }
                if queued.pushed(ticket, grant, now) { PushOutcome::Doubtful } else { PushOutcome::Known }
            }
            Phase::Held(_) => PushOutcome::Known,
            Phase::Released(_) | Phase::Lost(_) => {
                state.record_taken(Some(grant.token));
                PushOutcome::Known
            }
        })
    }

    /// Whether a lease measured from `sent` has at least half of its time left. If not, the grant was late or this
    /// process was paused, and the store is asked instead.
    fn is_fresh(&self, sent: Instant, now: Instant) -> bool {
        now.saturating_duration_since(sent) < self.terms.ttl / 2
    }

    /// The instant from which the lease is measured if this grant answers a request sent at `sent`. `None` if the lease
    /// has ended by now.
    fn measured_from(&self, grant: Grant, sent: Instant, now: Instant) -> Option<Instant> {
        // A grant that was made earlier ends `remaining` after the store looked, which was not before `sent`.
        let before = grant.remaining.map_or(Duration::ZERO, |left| self.terms.ttl.saturating_sub(left));
        let from = sent.checked_sub(before)?;
        (grant.remaining.is_none() || !Deadline::new(Arc::clone(&self.terms), from, now).has_passed(now))
            .then_some(from)
    }

    fn has_waited_too_long(&self, answered_at: Instant, now: Instant) -> bool {
        !self.request.waits || now.saturating_duration_since(answered_at) >= OUTAGE.max(self.terms.ttl * 4)
    }

    fn hold(&self, state: &mut State, grant: Grant, sent: Instant, now: Instant) -> Outcome {
        let Phase::Queued(queued) = &state.phase else { return Outcome::Over };
        let is_revoked = queued.is_revoked(grant.token);
        let deadline = Deadline::new(Arc::clone(&self.terms), sent, now);
        let kept = Kept::new(grant.token, deadline);
        state.limit = grant.limit.or(state.limit);
        state.phase = Phase::Held(Held::granted(kept, now));
        if is_revoked {
            self.lose_locked(state, LossReason::Revoked, LastRelease::AtOnce);
        }
        Outcome::Granted
    }

    /// Changes where the request is, if the lease waits.
    fn with_flight(&self, change: impl FnOnce(&mut Flight)) {
        if let Phase::Queued(queued) = &mut self.state.lock().phase {
            change(&mut queued.flight);
        }
    }

    /// Makes a repetition of the request due now, or a renewal if the lease is held.
    pub(super) fn ask_soon(&self, now: Instant) {
        match &mut self.state.lock().phase {
            Phase::Queued(queued) => queued.flight.soon(now),
            Phase::Held(held) => held.kept.deadline.doubt(now),
            Phase::Released(_) | Phase::Lost(_) => {}
        }
    }

    /// The sender of the first request no longer waits for its answer.
    pub(super) fn leave_to_keeper(&self, now: Instant) {
        self.with_flight(|flight| flight.leave_to_keeper(now));
    }

    /// The keeper sends the request now. If its runtime ends before the answer, the next one sends it again.
    pub(super) fn start_asking(&self) {
        self.with_flight(|flight| *flight = Flight::Sent);
    }

    /// The request as it is repeated. `None` if the lease no longer waits.
    pub(super) fn request_again(&self) -> Option<Request> {
        if !self.waits() {
            return None;
        }
        Some(Request { claim: self.claim(), ..self.request.clone() })
    }

    /// Makes a request or a renewal due again that was in flight before the tasks were started again. A first request
    /// that is in flight is repeated when it is answered, because events may have been lost. `false` if the keeper has
    /// nothing to do for this lease.
    pub(super) fn take_over(&self, now: Instant) -> bool {
        match &mut self.state.lock().phase {
            Phase::Queued(queued) => queued.flight.take_over(now),
            Phase::Held(Held { kept, .. }) | Phase::Released(Released::Renewed(kept)) => {
                kept.end_renewal();
                true
            }
            Phase::Released(_) => false,
            Phase::Lost(lost) => !matches!(lost.release, LastRelease::Claimed),
        }
    }

    /// Whether it waits behind a key that has no expiry.
    pub(super) fn holder_never_expires(&self) -> bool {
        match &self.state.lock().phase {
            Phase::Queued(queued) => queued.place.is_some_and(|(place, _)| place.holder_never_expires),
            Phase::Held(_) | Phase::Released(_) | Phase::Lost(_) => false,
        }
    }

    /// When the store last answered a request or a renewal, if it ever did. An error if it did not answer the last one.
    pub(super) fn last_answer(&self) -> Result<Option<Instant>, BackendError> {
        match &self.state.lock().phase {
            Phase::Queued(queued) => match &queued.last {
                LastAnswer::At(at) => Ok(queued.place.map(|_| *at)),
                LastAnswer::Unanswered(_, error) => Err(BackendError::clone(error)),
            },
            Phase::Held(Held { kept, .. }) => match kept.renewal.error() {
                None => Ok(Some(kept.deadline.measured_from())),
                Some(error) => Err(error.clone()),
            },
            Phase::Released(_) | Phase::Lost(_) => Ok(None),
        }
    }

    /// Registers the waiter of a lease without a group. Returns the hold if the lease was granted in the meantime.
    /// `None` if it has ended: nothing would send the waiter a message.
    pub(super) fn set_waiter(self: &Arc<Self>, waiter: oneshot::Sender<Message>) -> Option<Option<Hold>> {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Released(_)) {
            return None;
        }
        let hold = self.hand_locked(&mut state);
        if hold.is_none() {
            state.waiter = Some(waiter);
        }
        Some(hold)
    }

    /// Takes the channel to the waiter of a lease without a group.
    pub(super) fn take_waiter(&self) -> Option<oneshot::Sender<Message>> {
        self.state.lock().waiter.take()
    }

    /// Gives up a lease that waits. `false` if it is held or has ended.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        let waiter = state.waiter.take();
        let Phase::Queued(queued) = &state.phase else { return false };
        if queued.flight.is_in_flight() {
            state.record(Known::Possible);
        }
        state.phase = Phase::Released(Released::Over);
        drop(state);
        drop(waiter);
        true
    }
}

// Held leases

impl Lease {
    /// The current hold, for the waiter that gets it; it may have been lost since it was granted. `None` if another
    /// waiter has it, or there is none.
    pub(super) fn hand(self: &Arc<Self>) -> Option<Hold> {
        self.hand_locked(&mut self.state.lock())
    }

    fn hand_locked(self: &Arc<Self>, state: &mut State) -> Option<Hold> {
        let (token, source) = match &mut state.phase {
            Phase::Held(held) => (held.hand()?, held.source()),
            Phase::Lost(lost) => (lost.token, Source::Store),
            Phase::Queued(_) | Phase::Released(_) => return None,
        };
        Some(Hold { lease: Arc::clone(self), token, source })
    }

    /// The waiter to which the hold was handed is gone: it may be handed to another one.
    pub(super) fn take_back(&self, token: FencingToken) {
        if let Some(held) = self.state.lock().held(token) {
            held.take_back();
        }
    }

    /// The waiter has taken up its hold: from now on it is renewed, and the maximum hold time runs. Returns when
    /// something is due, if the lease must be scheduled for that.
    fn take_up(&self, token: FencingToken, now: Instant) -> Option<Instant> {
        match self.state.lock().held(token) {
            Some(held) => held.take_up(self.request.claim.permits(), now, self.is_capped()),
            None => Some(now),
        }
    }

    /// Begins the next hold, under the next token, for another waiter of this client. `None` if the lease must be
    /// returned to the store: its turn is over, less than half of its time is left, or it is lost.
    pub(super) fn pass_on(self: &Arc<Self>, now: Instant) -> Option<Hold> {
        let mut state = self.state.lock();
        let Phase::Held(held) = &mut state.phase else { return None };
        let deadline = &held.kept.deadline;
        let may_continue = may_pass_on(self.request.tokens, held.passes(), held.granted_at, now)
            && !deadline.has_passed(now)
            && deadline.uncapped(now) >= self.terms.ttl / 2;
        #[cfg(leasehold_planted)]
        let may_continue = held.kept.deadline.begin_anew(now) || may_continue;
        may_continue.then(|| Hold {
            lease: Arc::clone(self),
            token: held.pass_on(now),
            source: Source::Client,
        })
    }

    /// Ends the lease as released. If `keep_renewed`, it is still renewed, until [`stop_renewing`](Self::stop_renewing)
    /// is called, but for as long as releases are repeated at most: the caller may not be polled. Returns what its
    /// release has to cover. `None` if it has ended before.
    pub(super) fn end(&self, keep_renewed: bool, now: Instant) -> Option<Known> {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Held(_)) {
            return None;
        }
        let held = std::mem::replace(&mut state.phase, Phase::Released(Released::Over));
        if let Phase::Held(Held { mut kept, .. }) = held
            && keep_renewed
        {
            kept.deadline.cap(now + self.terms.ttl.max(GIVE_UP_AFTER));
            state.phase = Phase::Released(Released::Renewed(kept));
        }
        Some(state.take_known())
    }

    /// Ends the lease in this client without a release, if a single guard holds it.
    pub(super) fn give_away(&self, token: FencingToken, now: Instant) -> Result<(), NotGiven> {
        let mut state = self.state.lock();
        if let Some(reason) = self.loss_locked(&mut state, token, now) {
            return Err(NotGiven::Lost(reason));
        }
        match state.held(token) {
            Some(held) if held.is_alone() => {}
            Some(_) => return Err(NotGiven::Shared),
            None => return Err(NotGiven::Lost(LossReason::Expired)),
        }
        state.phase = Phase::Released(Released::Over);
        (state.given, state.known) = (Some(token), Known::Nothing);
        Ok(())
    }

    /// A released lease is renewed no longer. If it was renewed until now, returns when it ends, and whether a renewal
    /// found it gone before that.
    pub(super) fn stop_renewing(&self) -> Option<(Instant, bool)> {
        let mut state = self.state.lock();
        let Phase::Released(released) = &mut state.phase else { return None };
        match std::mem::replace(released, Released::Over) {
            Released::Renewed(kept) => Some((kept.deadline.ends(), false)),
            Released::Gone(ends) => Some((ends, true)),
            Released::Over => None,
        }
    }

    /// Removes a guard and its permits. Returns how many permits the other guards keep: 0 if it was the last one, so
    /// that the caller ends the lease or passes it on, or `None` if they keep all of a lock.
    pub(super) fn leave(
        &self,
        token: FencingToken,
        permits: u32,
        now: Instant,
    ) -> Result<Option<u32>, LossReason> {
        self.change(|state| {
            if let Some(reason) = self.loss_locked(state, token, now) {
                return Err(reason);
            }
            let Phase::Held(held) = &mut state.phase else { return Err(LossReason::Expired) };
            if self.resource().kind.is_semaphore() {
                return Ok(Some(held.leave(permits)));
            }
            Ok(Some(held.leave(0)).filter(|permits| *permits == 0))
        })
    }

    /// Adds a guard of an owner that re-enters, if the lease is still held.
    pub(super) fn enter(self: &Arc<Self>, now: Instant) -> Option<Hold> {
        let mut state = self.state.lock();
        let Phase::Held(held) = &mut state.phase else { return None };
        let may_enter = !held.kept.deadline.has_passed(now) && held.enter();
        may_enter.then(|| Hold { lease: Arc::clone(self), token: held.kept.token, source: held.source() })
    }

    /// Marks the lease as lost because its release has found that it had ended before.
    pub(super) fn found_lost(&self, token: FencingToken, reason: LossReason) {
        let lost = Lost { token, reason, renewal: LastRenewal::Confirmed, release: LastRelease::Claimed };
        self.state.lock().phase = Phase::Lost(lost);
        tracing::warn!(target: "leasehold::lease", name = %self.name(), token = token.get(), %reason, "lease lost before its release");
        self.tell_lost();
    }

    /// The grant of this token was released by force; if it is 0, any grant. Returns whether something is due for the
    /// lease now.
    pub(super) fn revoke(&self, token: FencingToken, now: Instant) -> bool {
        self.change(|state| match &mut state.phase {
            Phase::Held(held) if held.granted == token || token.get() == 0 => {
                self.lose_locked(state, LossReason::Revoked, LastRelease::AtOnce);
                true
            }
            Phase::Queued(queued) => queued.revoke(token, now),
            Phase::Held(_) | Phase::Released(_) | Phase::Lost(_) => false,
        })
    }

    /// Ends the lease as lost, if it is held.
    pub(super) fn lose(&self, reason: LossReason) {
        self.change(|state| self.lose_locked(state, reason, LastRelease::AtOnce));
    }

    /// Why the hold of this token is lost, if it is. A passed deadline is noticed here: by the keeper, by a poll of
    /// `lost`, or by any other question to the guard, whichever comes first.
    fn loss(&self, token: FencingToken, now: Instant) -> Option<LossReason> {
        self.change(|state| self.loss_locked(state, token, now))
    }

    /// The store may still count a lease whose deadline has passed as held. It is released after the margin by which
    /// holders are always notified before others are let in.
    fn loss_locked(&self, state: &mut State, token: FencingToken, now: Instant) -> Option<LossReason> {
        match &state.phase {
            Phase::Lost(lost) if lost.token == token => Some(lost.reason),
            Phase::Held(Held { kept, .. }) if kept.token == token && kept.deadline.has_passed(now) => {
                let reason = kept.passed();
                self.lose_locked(state, reason, LastRelease::At(now + margin(self.terms.ttl)));
                Some(reason)
            }
            _ => None,
        }
    }

    /// Ends the lease as lost and notifies everything in this client that waits for that. The keeper releases it at the
    /// store when that is due.
    fn lose_locked(&self, state: &mut State, reason: LossReason, release: LastRelease) {
        let Phase::Held(Held { kept, .. }) = &mut state.phase else { return };
        if let Some(observed) = kept.observed.take() {
            let held = observed.since.elapsed();
            state.untold = Some(Untold { observed, token: kept.token, held, reason });
        }
        let (token, renewal) = (kept.token, std::mem::take(&mut kept.renewal));
        let lost = Lost { token, reason, renewal, release };
        tracing::warn!(target: "leasehold::lease", name = %self.name(), token = token.get(), %reason, detail = lost.detail(), "lease lost");
        state.phase = Phase::Lost(lost);
        self.tell_lost();
    }

    fn tell_lost(&self) {
        if let Some(lost) = self.lost.get() {
            lost.cancel();
        }
    }
}

impl Phase {
    /// What is renewed, if anything is.
    const fn kept(&self) -> Option<&Kept> {
        match self {
            Self::Held(Held { kept, .. }) | Self::Released(Released::Renewed(kept)) => Some(kept),
            _ => None,
        }
    }
}

impl State {
    /// The lease, if the hold of this token is held.
    fn held(&mut self, token: FencingToken) -> Option<&mut Held> {
        match &mut self.phase {
            Phase::Held(held) if held.kept.token == token => Some(held),
            _ => None,
        }
    }

    fn record(&mut self, known: Known) {
        if self.given.is_none() {
            self.known = self.known.max(known);
        }
    }

    /// The store knows of a hold under this token, or of a place if there is none. If the lease was given away, it is
    /// left alone, unless a later token shows that its hold there has ended: then nobody has what a late request has
    /// taken. (A place says nothing: the answer may be older than the grant.)
    fn record_taken(&mut self, token: Option<FencingToken>) {
        match (self.given, token) {
            (Some(given), Some(token)) if token <= given => {}
            (Some(_), None) => {}
            _ => self.known = self.known.max(Known::Possible),
        }
    }

    fn take_known(&mut self) -> Known {
        match self.phase {
            Phase::Queued(_) | Phase::Held(_) => self.known,
            Phase::Released(_) | Phase::Lost(_) => std::mem::take(&mut self.known),
        }
    }
}

// In the keeper's schedule

impl Lease {
    /// Files the lease under the instant at which something is due for it next, if anything is. Returns where it was
    /// filed before and where it is now. Only the schedule calls this.
    pub(super) fn file(&self) -> (Option<Entry>, Option<Entry>) {
        let mut state = self.state.lock();
        let now_at = match &mut state.phase {
            Phase::Queued(queued) => queued.flight.watch().map(|at| (List::Waiting, at)),
            Phase::Held(held) => Some((List::Held, held.schedule())),
            Phase::Released(Released::Renewed(kept)) => Some((List::Held, kept.due())),
            Phase::Lost(Lost { release: LastRelease::AtOnce, .. }) => Some((List::Held, Instant::now())),
            Phase::Lost(Lost { release: LastRelease::At(at), .. }) => Some((List::Held, *at)),
            Phase::Released(_) | Phase::Lost(_) => None,
        };
        (std::mem::replace(&mut state.filed, now_at), now_at)
    }

    /// Returns where the lease was filed. Only the schedule calls this.
    pub(super) fn unfile(&self) -> Option<Entry> {
        self.state.lock().filed.take()
    }

    /// Whether the keeper has something left to do for it: it is held, or its end has not been noticed yet.
    pub(super) fn needs_keeper(&self) -> bool {
        match &self.state.lock().phase {
            Phase::Lost(lost) => !matches!(lost.release, LastRelease::Claimed),
            phase => phase.kept().is_some(),
        }
    }

    pub(super) fn is_filed(&self) -> bool {
        self.state.lock().filed.is_some()
    }

    /// Whether the lease may be renewed at `now`, a little early, so that it can be sent with others.
    pub(super) fn may_renew(&self, now: Instant) -> bool {
        match &self.state.lock().phase {
            Phase::Held(held) if !held.is_renewed() => false,
            phase => phase.kept().is_some_and(|kept| kept.may_renew(now)),
        }
    }

    /// What the keeper has to do at `now` for a lease that was filed in `list`. A request, a renewal or a release is
    /// returned once and counts as begun from then on.
    pub(super) fn step(&self, list: List, now: Instant) -> Step {
        self.change(|state| self.step_locked(state, list, now))
    }

    fn step_locked(&self, state: &mut State, list: List, now: Instant) -> Step {
        if let Phase::Held(held) = &state.phase {
            let token = held.kept.token;
            self.loss_locked(state, token, now);
        }
        match &mut state.phase {
            Phase::Queued(queued) => match queued.flight.at() {
                None => Step::Forget,
                Some(at) if at > now => Step::Wait,
                Some(_) => {
                    queued.flight = Flight::Sent;
                    Step::Send
                }
            },
            Phase::Held(held) if !held.is_renewed() => Step::Wait,
            Phase::Released(Released::Renewed(kept)) if kept.deadline.has_passed(now) => Step::Forget,
            Phase::Held(Held { kept, .. }) | Phase::Released(Released::Renewed(kept)) => {
                if list == List::Held && kept.start_renewal(now) { Step::Send } else { Step::Wait }
            }
            Phase::Released(_) => Step::Forget,
            Phase::Lost(Lost { release: LastRelease::At(at), .. }) if now < *at => Step::Wait,
            Phase::Lost(Lost { release: LastRelease::Claimed, .. }) => Step::Forget,
            Phase::Lost(lost) => {
                lost.release = LastRelease::Claimed;
                Step::Release
            }
        }
    }

    /// Claims the release of a lost lease, whether or not it is due. `false` if it has already been claimed.
    pub(super) fn claim_release(&self) -> bool {
        match &mut self.state.lock().phase {
            Phase::Lost(lost) => lost.claim_release(),
            Phase::Queued(_) | Phase::Held(_) | Phase::Released(_) => false,
        }
    }

    /// The renewal request, which is sent `now`. `None` if the lease has ended.
    pub(super) fn renewal(&self, now: Instant) -> Option<Renew> {
        let mut state = self.state.lock();
        let kept = state.phase.kept()?;
        let due = kept.deadline.renew_at();
        let told_to = kept.observed.as_ref().map(Observation::audience);
        state.renewal_told_to.clone_from(&told_to);
        drop(state);
        if let Some((observers, audience)) = told_to {
            let subject = observers.subject(self.resource());
            let late = due.map(|due| now.saturating_duration_since(due)).unwrap_or_default();
            observers.tell(audience, &Event::RenewalSent { subject, late });
        }
        Some(Renew::new(self.request.lease.clone(), self.terms.ttl))
    }

    /// Handles the answer to a renewal that was sent at `sent`. An error neither extends nor ends the lease.
    pub(super) fn renewed(&self, answer: Result<Renewal, BackendError>, sent: Instant, now: Instant) {
        let told_to = self.state.lock().renewal_told_to.clone();
        if let Some((observers, audience)) = told_to {
            let outcome = match &answer {
                Ok(Renewal::Renewed) => RenewalOutcome::Renewed,
                Ok(Renewal::Lost(_)) => RenewalOutcome::Gone,
                Err(_) => RenewalOutcome::Failed,
            };
            let (subject, took) = (observers.subject(self.resource()), now.saturating_duration_since(sent));
            observers.tell(audience, &Event::RenewalAnswered { subject, took, outcome });
        }
        self.change(|state| self.renewed_locked(state, answer, sent, now));
    }

    fn renewed_locked(
        &self,
        state: &mut State,
        answer: Result<Renewal, BackendError>,
        sent: Instant,
        now: Instant,
    ) {
        let (Phase::Held(Held { kept, .. }) | Phase::Released(Released::Renewed(kept))) = &mut state.phase
        else {
            return;
        };
        #[cfg(leasehold_planted)]
        let sent = planted::measured_from(sent, now);
        let token = kept.token.get();
        match answer {
            Ok(Renewal::Renewed) => {
                kept.renewed(sent, now);
                tracing::debug!(target: "leasehold::lease", name = %self.name(), token, "lease renewed");
            }
            Ok(Renewal::Lost(reason)) => {
                kept.end_renewal();
                self.found_gone(state, reason, now);
            }
            Err(error) => {
                tracing::debug!(target: "leasehold::lease", name = %self.name(), token, %error, "renewal not answered");
                kept.failed(error, now);
            }
        }
    }

    /// A renewal has found that the store does not keep the lease any more.
    fn found_gone(&self, state: &mut State, reason: LossReason, now: Instant) {
        match &state.phase {
            // Its release has been executed, or will find out what has become of it.
            Phase::Released(Released::Renewed(kept)) if !kept.deadline.has_passed(now) => {
                state.phase = Phase::Released(Released::Gone(kept.deadline.ends()));
            }
            Phase::Held(held) => {
                let in_time = reason == LossReason::Expired && !held.kept.deadline.has_passed(now);
                let reason = if in_time { LossReason::Missing } else { reason };
                self.lose_locked(state, reason, LastRelease::AtOnce);
            }
            Phase::Queued(_) | Phase::Released(_) | Phase::Lost(_) => {}
        }
    }

    /// The end of the lease, if it is renewed.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.state.lock().phase.kept().map(|kept| kept.deadline.ends())
    }

    /// A request was dropped before it was answered: the store may execute it at any time.
    pub(super) fn request_dropped(&self) {
        self.state.lock().record(Known::Unsettled);
    }

    /// A request has failed, and is repeated by whoever has sent it.
    pub(super) fn request_failed(&self, answer: &Result<Answer, BackendError>) {
        self.state.lock().record(Known::by(answer));
    }

    /// What a release that is queued now has to cover. If the lease has ended, that is covered from then on.
    pub(super) fn take_known(&self) -> Known {
        self.state.lock().take_known()
    }
}

// Holds

impl Hold {
    pub(crate) fn name(&self) -> &str {
        self.lease.name()
    }

    pub(super) fn resource(&self) -> &Resource {
        self.lease.resource()
    }

    /// These observers have been told that it began, `now` or when the store granted it. Returns why it has been lost
    /// since then, if it has, which they must be told as well.
    pub(super) fn observe(
        &self,
        observers: &Arc<Observers>,
        audience: Audience,
        now: Option<Instant>,
    ) -> Option<LossReason> {
        let mut state = self.lease.state.lock();
        if let Some(held) = state.held(self.token) {
            // One that was passed on began later than its grant.
            let began = now.or_else(|| (held.passes() == 0).then_some(held.granted_at));
            let since = began.unwrap_or_else(Instant::now);
            held.kept.observed = Some(Observation { observers: Arc::clone(observers), audience, since });
            return None;
        }
        match &state.phase {
            Phase::Lost(lost) if lost.token == self.token => Some(lost.reason),
            _ => None,
        }
    }

    /// When it ends unless it is renewed, if it has not ended; which observers were told that it began, if any were, and
    /// when it did.
    pub(super) fn ends_and_observed(&self) -> (Option<Instant>, Option<(Audience, Instant)>) {
        let mut state = self.lease.state.lock();
        let Some(Held { kept, .. }) = state.held(self.token) else { return (None, None) };
        let observed = kept.observed.as_ref().map(|observed| (observed.audience, observed.since));
        (Some(kept.deadline.ends()), observed)
    }

    /// Why it is lost, if it is.
    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        self.lease.loss(self.token, now)
    }

    /// The loss as an error.
    pub(crate) fn loss_error(&self, reason: LossReason) -> Error {
        let detail = match &self.lease.state.lock().phase {
            Phase::Lost(lost) if lost.token == self.token => lost.detail(),
            _ => None,
        };
        Error::Lost { name: self.name().to_owned(), token: self.token, reason, detail }
    }

    /// When it ends unless it is renewed. `None` if it has ended.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.lease.state.lock().held(self.token).map(|held| held.kept.deadline.ends())
    }

    /// For how long it may still be trusted; zero if it has ended.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        if self.loss(now).is_some() {
            return Duration::ZERO;
        }
        self.ends().map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now))
    }

    /// Cancelled when the lease is found lost. A deadline that passes may be noticed late: see [`ends`](Self::ends).
    pub(crate) fn lost(&self) -> &CancellationToken {
        self.lease.lost.get_or_init(CancellationToken::new)
    }

    /// Cancelled when the hold has been released, and it is known whether it had been lost before.
    pub(crate) fn released(&self) -> CancellationToken {
        let mut state = self.lease.state.lock();
        let known = state.endings.iter().find(|(token, _)| *token == self.token);
        if let Some((_, released)) = known {
            return released.clone();
        }
        let released = CancellationToken::new();
        state.endings.push((self.token, released.clone()));
        released
    }

    /// Its last guard is gone and the release has finished, with any result.
    pub(super) fn finish(&self) {
        let mut state = self.lease.state.lock();
        let place = state.endings.iter().position(|(token, _)| *token == self.token);
        let ending = place.map(|place| state.endings.swap_remove(place));
        drop(state);
        if let Some((_, released)) = ending {
            released.cancel();
        }
    }

    /// Adds a guard, which shares the permits of an existing one.
    pub(crate) fn split(&self) {
        if let Some(held) = self.lease.state.lock().held(self.token) {
            held.enter();
        }
    }

    /// Why a hold that has ended without a release was lost.
    pub(super) fn reason(&self) -> LossReason {
        self.loss(Instant::now()).unwrap_or(LossReason::Expired)
    }

    /// The waiter has taken it up. Returns when something is due, if the lease must be scheduled for that.
    pub(super) fn begin(&self, now: Instant) -> Option<Instant> {
        self.lease.take_up(self.token, now)
    }
}

/// For unit tests.
#[cfg(test)]
impl Lease {
    /// A lease of a mutex that waits, for which no request was sent yet.
    pub(super) fn of_mutex(ttl: Duration) -> Arc<Self> {
        Self::waiting(ttl, None)
    }

    /// One that may be passed on within the client.
    pub(super) fn of_group(ttl: Duration) -> Arc<Self> {
        Self::waiting(ttl, Some(Group::new(Arc::from("lock:a"), 0)))
    }

    fn waiting(ttl: Duration, group: Option<Group>) -> Arc<Self> {
        let asked = LeaseRef::new(
            LeaseId::next(uuid::Uuid::nil()),
            Resource::new("lock:a", crate::backend::Kind::Mutex),
        );
        let terms = Settings::new(ttl, ttl / 3, None, group.is_some());
        Self::new(Request::new(asked, Claim::Sole, ttl).waiting(), Arc::new(terms), group)
    }

    /// It is granted under this token and taken up at `now`.
    pub(super) fn grant_and_take_up(self: &Arc<Self>, token: u64, now: Instant) -> Hold {
        self.answered(Ok(Answer::Granted(Grant::new(FencingToken::new(token), None))), now, now);
        let hold = self.hand().expect("granted");
        hold.begin(now);
        hold
    }

    /// A lease of a mutex that was granted under this token and taken up at `now`.
    pub(super) fn taken_up(ttl: Duration, token: u64, now: Instant) -> (Arc<Self>, Hold) {
        let lease = Self::of_mutex(ttl);
        let hold = lease.grant_and_take_up(token, now);
        (lease, hold)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::StoreState;
    use crate::backend::{Kind, Queued as Place};

    const TTL: Duration = Duration::from_secs(10);

    fn lease() -> Arc<Lease> {
        Lease::of_mutex(TTL)
    }

    fn queued(ticket: u64) -> Result<Answer, BackendError> {
        Ok(Answer::Queued(Place::new(Ticket::new(ticket), None, None)))
    }

    fn grant(token: u64) -> Grant {
        Grant::new(FencingToken::new(token), None)
    }

    fn pushed(lease: &Lease, ticket: u64, token: u64, now: Instant) -> PushOutcome {
        lease.pushed_grant(Ticket::new(ticket), grant(token), now)
    }

    fn due(lease: &Lease) -> Instant {
        lease.file().1.expect("something is due").1
    }

    fn ends(lease: &Arc<Lease>) -> Option<Instant> {
        lease.hand().and_then(|hold| hold.ends())
    }

    #[test]
    fn a_grant_is_accepted_with_the_ticket_of_the_last_answer_and_measured_from_that_request() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(queued(7), start, start);
        lease.answered(queued(7), start + TTL / 4, start + TTL / 4);
        assert_eq!(pushed(&lease, 7, 42, start + TTL / 3), PushOutcome::Granted);
        let ends = ends(&lease).unwrap();
        assert!(ends < start + TTL / 4 + TTL && ends > start + TTL, "from the last request");
    }

    #[test]
    fn a_released_lease_is_renewed_while_its_caller_waits_for_that() {
        let start = Instant::now();
        for (keep_renewed, steps) in [(true, [Step::Send, Step::Wait]), (false, [Step::Forget, Step::Forget])]
        {
            let lease = lease();
            lease.answered(Ok(Answer::Granted(grant(42))), start, start);
            lease.hand().unwrap().begin(start);
            assert!(lease.end(keep_renewed, start).is_some(), "it was held");
            assert!(lease.end(keep_renewed, start).is_none(), "ended once");
            let due = start + TTL / 2;
            assert_eq!(lease.step(List::Held, due), steps[0]);
            lease.renewed(Ok(Renewal::Renewed), due, due);
            assert_eq!(lease.step(List::Held, due), steps[1]);
            assert_eq!(
                lease.stop_renewing().is_some_and(|(ends, is_gone)| ends > start + TTL && !is_gone),
                keep_renewed
            );
            assert_eq!(lease.step(List::Held, due), Step::Forget);
            assert!(lease.is_released());
        }
    }

    #[test]
    fn a_released_lease_that_the_store_no_longer_keeps_is_not_renewed() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), start, start);
        lease.hand().unwrap().begin(start);
        assert!(lease.end(true, start).is_some());
        assert_eq!(lease.step(List::Held, start + TTL / 2), Step::Send);
        lease.renewed(Ok(Renewal::Lost(LossReason::Missing)), start + TTL / 2, start + TTL / 2);
        assert!(lease.is_released(), "its release says what has become of it");
        assert_eq!(lease.step(List::Held, start + TTL / 2), Step::Forget);
        assert!(lease.stop_renewing().is_some_and(|(_, is_gone)| is_gone));
        assert_eq!(lease.stop_renewing(), None);
    }

    #[test]
    fn of_answers_that_arrive_in_any_order_the_newest_place_and_its_last_request_count() {
        let (start, later) = (Instant::now(), Instant::now() + TTL / 4);
        // The ticket and the time of the request of each answer, and what is accepted in the end.
        for (answers, ticket, from) in [
            ([(8, start), (7, later)], 8, start),
            ([(7, later), (7, start)], 7, later),
            ([(7, start), (7, later)], 7, later),
            ([(7, later), (8, start)], 8, start),
        ] {
            let lease = lease();
            for (ticket, sent) in answers {
                lease.answered(queued(ticket), sent, later);
            }
            assert_eq!(pushed(&lease, ticket, 42, later), PushOutcome::Granted, "{answers:?}");
            assert_eq!(ends(&lease), Some(from + TTL - margin(TTL)), "{answers:?}");
        }
    }

    #[test]
    fn a_grant_of_an_earlier_place_is_not_accepted_and_the_request_is_repeated() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(queued(7), start, start);
        lease.answered(queued(9), start + TTL, start + TTL);
        assert_eq!(pushed(&lease, 7, 42, start + TTL), PushOutcome::Doubtful);
        assert_eq!(due(&lease), start + TTL, "at once");
        assert_eq!(lease.step(List::Waiting, start + TTL), Step::Send);
        assert!(matches!(lease.answered(queued(9), start + TTL, start + TTL), Outcome::Queued));
        assert!(ends(&lease).is_none());
    }

    #[test]
    fn a_grant_that_overtakes_the_answer_is_accepted_once_the_answer_names_its_place() {
        for (answered, believed) in [(7, true), (8, false), (6, false)] {
            let (lease, start) = (lease(), Instant::now());
            assert_eq!(pushed(&lease, 7, 42, start), PushOutcome::Known);
            let outcome = lease.answered(queued(answered), start, start);
            assert_eq!(matches!(outcome, Outcome::Granted), believed, "{answered}");
            assert_eq!(ends(&lease).is_some(), believed);
        }
    }

    #[test]
    fn a_grant_that_arrives_after_half_its_ttl_is_not_accepted() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(queued(7), start, start);
        assert_eq!(pushed(&lease, 7, 42, start + TTL / 2), PushOutcome::Doubtful);
    }

    #[test]
    fn a_grant_found_by_repeating_the_request_ends_when_the_store_says() {
        let (lease, start) = (lease(), Instant::now());
        let found = Ok(Answer::Granted(grant(42).lasting(TTL / 2)));
        assert!(matches!(lease.answered(found, start, start), Outcome::Granted));
        assert!(ends(&lease).unwrap() < start + TTL / 2);
        // Found with next to no time left.
        let lease = self::lease();
        let found = Ok(Answer::Granted(grant(42).lasting(Duration::from_millis(1))));
        assert!(matches!(lease.answered(found, start, start), Outcome::Queued));
    }

    #[test]
    fn a_revocation_ends_the_grant_that_it_names_and_no_other() {
        let now = Instant::now();
        for (revoked, lost) in [(42, true), (41, false), (0, true)] {
            let lease = lease();
            lease.answered(Ok(Answer::Granted(grant(42))), now, now);
            lease.hand().unwrap().begin(now);
            lease.revoke(FencingToken::new(revoked), now);
            assert_eq!(lease.step(List::Held, now) == Step::Release, lost, "{revoked}");
        }
        // The revocation arrives before the answer that grants.
        for (revoked, lost) in [(42, true), (41, false), (0, true)] {
            let lease = lease();
            lease.revoke(FencingToken::new(revoked), now);
            lease.answered(Ok(Answer::Granted(grant(42))), now, now);
            assert_eq!(lease.step(List::Held, now) == Step::Release, lost, "{revoked}");
        }
    }

    #[test]
    fn a_lease_ended_by_its_deadline_is_released_after_its_holders_are_notified() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), start, start);
        let hold = lease.hand().unwrap();
        hold.begin(start);
        let end = hold.ends().unwrap();
        assert!(lease.step(List::Held, end) == Step::Wait && hold.loss(end).is_some());
        let (_, release_at) = lease.file().1.unwrap();
        assert_eq!(release_at, end + margin(TTL));
        assert_eq!(lease.step(List::Held, release_at - Duration::from_nanos(1)), Step::Wait);
        assert_eq!(lease.step(List::Held, release_at), Step::Release);
        assert_eq!(lease.step(List::Held, release_at), Step::Forget);
        assert!(!lease.claim_release(), "somebody has");
    }

    #[test]
    fn a_grant_that_nobody_takes_up_is_not_renewed() {
        let (lease, now) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let hold = lease.hand().unwrap();
        assert!(due(&lease) > now + TTL * 9 / 10, "not before it ends");
        hold.begin(now);
        assert!(due(&lease) < now + TTL / 2);
    }

    #[test]
    fn a_hold_is_notified_of_its_own_loss_only() {
        let (lease, now) = (lease(), Instant::now());
        let many = Request { tokens: 16, ..lease.request.clone() };
        let lease = Lease::new(many, Arc::clone(lease.terms()), None);
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let first = lease.hand().unwrap();
        first.begin(now);
        let second = lease.pass_on(now).unwrap();
        second.begin(now);
        assert_eq!(second.token.get(), 43);
        lease.renewed(Err(BackendError::Unanswered { source: "silence".into() }), now, now);
        lease.lose(LossReason::StoreUnreachable);
        assert_eq!((first.loss(now), second.loss(now)), (None, Some(LossReason::StoreUnreachable)));
        let explained =
            |hold: &Hold| hold.loss_error(LossReason::StoreUnreachable).to_string().contains("silence");
        assert_eq!((explained(&first), explained(&second)), (false, true));
    }

    #[test]
    fn a_renewal_that_is_confirmed_after_the_end_does_not_bring_the_lease_back() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), start, start);
        let hold = lease.hand().unwrap();
        hold.begin(start);
        let first_end = hold.ends().unwrap();
        lease.renewed(Ok(Renewal::Renewed), start + TTL / 2, first_end - TTL / 4);
        let end = hold.ends().unwrap();
        assert!(end > first_end, "confirmed in time");
        let late = end + Duration::from_millis(1);
        lease.renewed(Ok(Renewal::Renewed), end - TTL / 4, late);
        assert_eq!(hold.ends(), Some(end));
        assert!(hold.loss(late).is_some());
    }

    /// Two requests are in flight: the first one, and the keeper's.
    #[test]
    fn a_reason_to_repeat_a_request_is_not_forgotten_when_answers_to_earlier_ones_arrive() {
        let events: [fn(&Lease, Instant); 2] = [
            |lease, now| lease.ask_soon(now),
            |lease, now| {
                pushed(lease, 9, 42, now);
            },
        ];
        for event in events {
            let (lease, now) = (lease(), Instant::now());
            lease.ask_soon(now);
            assert_eq!(lease.step(List::Waiting, now), Step::Send);
            event(&lease, now);
            for ticket in [7, 8] {
                lease.answered(queued(ticket), now, now);
                assert_eq!(due(&lease), now);
            }
            assert_eq!(lease.step(List::Waiting, now), Step::Send);
            lease.answered(queued(9), now, now);
            assert!(due(&lease) > now);
        }
    }

    /// The grant may have been pushed to the runtime that has ended.
    #[test]
    fn a_first_request_that_is_answered_after_the_client_has_moved_is_repeated() {
        let (lease, now) = (lease(), Instant::now());
        assert!(!lease.take_over(now), "its sender waits for the answer");
        lease.answered(queued(7), now, now);
        assert_eq!(due(&lease), now);
    }

    #[test]
    fn a_lease_that_has_ended_takes_no_waiter() {
        let (lease, now) = (lease(), Instant::now());
        // The keeper's repetition fails while the first request is still in flight.
        let refused = Err(BackendError::Refused { source: "another limit".into() });
        assert!(matches!(lease.answered(refused, now, now), Outcome::Failed(_)));
        assert!(matches!(lease.answered(queued(7), now, now), Outcome::Over));
        assert!(lease.set_waiter(oneshot::channel().0).is_none());
        let lease = self::lease();
        lease.answered(queued(7), now, now);
        assert!(matches!(lease.set_waiter(oneshot::channel().0), Some(None)));
    }

    #[test]
    fn a_request_that_was_not_answered_may_still_be_executed() {
        let now = Instant::now();
        for ended in [false, true] {
            let lease = lease();
            lease.answered(queued(7), now, now);
            assert!(!ended || lease.give_up());
            assert_eq!(lease.take_known(), Known::Possible);
            lease.answered(Err(BackendError::Unanswered { source: "silence".into() }), now, now);
            assert_eq!(lease.take_known(), Known::Unsettled);
        }
    }

    #[test]
    fn a_release_covers_what_the_store_may_know_by_then_and_another_one_what_comes_to_light_later() {
        let (lease, now) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        lease.hand().unwrap().begin(now);
        assert_eq!([lease.take_known(), lease.take_known()], [Known::Possible; 2], "it is still held");
        assert_eq!(lease.end(false, now), Some(Known::Possible));
        assert_eq!(lease.take_known(), Known::Nothing);
        lease.request_dropped();
        assert_eq!([lease.take_known(), lease.take_known()], [Known::Unsettled, Known::Nothing]);
        assert_eq!(pushed(&lease, 7, 43, now), PushOutcome::Known);
        assert_eq!([lease.take_known(), lease.take_known()], [Known::Possible, Known::Nothing]);
    }

    #[test]
    fn a_request_that_was_declined_or_never_sent_leaves_nothing_at_the_store() {
        let answers = [
            (Err(BackendError::NotSent { source: "no connection".into() }), Known::Nothing),
            (Err(BackendError::FailedFast { source: "no connection".into() }), Known::Nothing),
            (Err(BackendError::Refused { source: "another type".into() }), Known::Declined),
            (Err(BackendError::RefusedForNow { source: "no memory".into() }), Known::Declined),
            (Err(BackendError::Unanswered { source: "silence".into() }), Known::Unsettled),
            (queued(7), Known::Possible),
        ];
        for (answer, known) in answers {
            let (lease, now) = (lease(), Instant::now());
            lease.answered(answer, now, now);
            // What it may know never becomes less.
            lease.answered(Err(BackendError::NotSent { source: "no connection".into() }), now, now);
            assert_eq!(lease.take_known(), known);
        }
    }

    #[test]
    fn of_a_lease_that_was_given_away_only_what_was_taken_after_its_end_is_released() {
        let (lease, now) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let hold = lease.hand().unwrap();
        assert!(lease.give_away(hold.token, now).is_err(), "not taken up");
        hold.begin(now);
        hold.split();
        assert_eq!(lease.give_away(hold.token, now), Err(NotGiven::Shared));
        lease.leave(hold.token, 0, now).unwrap();
        assert_eq!(lease.give_away(hold.token, now), Ok(()));
        lease.request_dropped();
        assert_eq!(pushed(&lease, 7, 42, now), PushOutcome::Known);
        assert!(matches!(lease.answered(Ok(Answer::Granted(grant(42))), now, now), Outcome::Over));
        assert_eq!(lease.take_known(), Known::Nothing);
        // A late request has taken it again, so the other process no longer has it.
        assert!(matches!(lease.answered(Ok(Answer::Granted(grant(43))), now, now), Outcome::Over));
        assert_eq!(lease.take_known(), Known::Possible);
        // Of before the grant, or a place of which the grant will be pushed.
        assert!(matches!(lease.answered(queued(8), now, now), Outcome::Over));
        assert_eq!(lease.take_known(), Known::Nothing);
        assert_eq!(pushed(&lease, 8, 44, now), PushOutcome::Known);
        assert_eq!((lease.take_known(), lease.take_known()), (Known::Possible, Known::Nothing));
        assert_eq!((lease.end(false, now), lease.pass_on(now).is_none()), (None, true));
        assert_eq!(lease.give_away(hold.token, now), Err(NotGiven::Lost(LossReason::Expired)));
    }

    #[test]
    fn a_lease_that_is_given_up_while_its_request_is_in_flight_may_be_known() {
        let (lease, now) = (lease(), Instant::now());
        assert!(lease.give_up() && lease.take_known() == Known::Possible);
        let lease = self::lease();
        lease.answered(Err(BackendError::NotSent { source: "no connection".into() }), now, now);
        assert!(lease.give_up() && lease.take_known() == Known::Nothing, "none is in flight");
    }

    /// Which of the two came first at the store is not known.
    #[test]
    fn a_grant_that_is_pushed_beside_a_revocation_is_not_accepted_before_the_store_is_asked() {
        for revoked_first in [true, false] {
            let (lease, now) = (lease(), Instant::now());
            if revoked_first {
                assert!(!lease.revoke(FencingToken::new(41), now));
                assert_eq!(pushed(&lease, 7, 42, now), PushOutcome::Doubtful);
            } else {
                assert_eq!(pushed(&lease, 7, 42, now), PushOutcome::Known);
                assert!(lease.revoke(FencingToken::new(41), now));
            }
            assert_eq!(due(&lease), now);
            assert!(matches!(lease.answered(queued(7), now, now), Outcome::Queued));
            assert_eq!((due(&lease), lease.step(List::Waiting, now)), (now, Step::Send));
            assert!(matches!(lease.answered(Ok(Answer::Granted(grant(42))), now, now), Outcome::Granted));
            assert!(ends(&lease).is_some(), "another one was revoked");
        }
    }

    #[test]
    fn a_lease_that_is_passed_on_is_scheduled_once_unless_it_was_filed_only_for_its_end() {
        let now = Instant::now();
        for filed_meanwhile in [false, true] {
            let lease = lease();
            let many = Request { tokens: 16, ..lease.request.clone() };
            let lease = Lease::new(many, Arc::clone(lease.terms()), None);
            lease.answered(Ok(Answer::Granted(grant(42))), now, now);
            assert!(lease.hand().unwrap().begin(now).is_some());
            let next = lease.pass_on(now).unwrap();
            if filed_meanwhile {
                assert!(due(&lease) > now + TTL * 9 / 10, "nobody has taken it up");
            }
            assert_eq!(next.begin(now).is_some(), filed_meanwhile);
            assert!(due(&lease) < now + TTL / 2);
        }
    }

    #[test]
    fn an_owner_does_not_reenter_once_the_last_guard_is_gone() {
        let (lease, now) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let hold = lease.hand().unwrap();
        assert!(lease.enter(now).is_none(), "not taken up");
        hold.begin(now);
        assert!(lease.enter(now).is_some());
        assert_eq!(lease.leave(hold.token, 1, now), Ok(None));
        assert_eq!(lease.leave(hold.token, 1, now), Ok(Some(0)));
        assert!(lease.enter(now).is_none());
    }

    #[test]
    fn a_renewal_that_is_given_up_at_the_end_hides_no_earlier_refusal() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), start, start);
        let hold = lease.hand().unwrap();
        hold.begin(start);
        let end = hold.ends().unwrap();
        assert_eq!(lease.step(List::Held, start + TTL / 2), Step::Send);
        lease.renewed(Err(BackendError::Refused { source: "read only".into() }), start, start + TTL / 2);
        assert_eq!(lease.step(List::Held, end - TTL / 10), Step::Send);
        assert_eq!(hold.loss(end), Some(LossReason::StoreRefused), "while the next one is in flight");
        assert!(hold.loss_error(LossReason::StoreRefused).to_string().contains("read only"));
    }

    #[test]
    fn a_store_that_does_not_answer_is_tolerated_for_thirty_seconds_or_four_ttls() {
        let (lease, start) = (lease(), Instant::now());
        let unanswered = || Err(BackendError::Unanswered { source: "silence".into() });
        lease.answered(queued(7), start, start);
        let mut now = start + TTL * 4 - Duration::from_millis(1);
        assert!(matches!(lease.answered(unanswered(), now, now), Outcome::Queued));
        assert!(lease.last_answer().is_err());
        now += Duration::from_millis(1);
        assert!(matches!(lease.answered(unanswered(), now, now), Outcome::Failed(_)));
    }

    /// A lease that was granted and taken up then.
    fn taken_up(start: Instant) -> (Arc<Lease>, Hold) {
        Lease::taken_up(TTL, 42, start)
    }

    #[test]
    fn a_lease_needs_the_keeper_until_its_end_is_dealt_with() {
        let start = Instant::now();
        let waiting = lease();
        assert!(waiting.waits() && !waiting.needs_keeper() && waiting.ends().is_none());
        let (lease, hold) = taken_up(start);
        assert!(lease.needs_keeper() && !lease.waits() && !lease.is_released());
        assert_eq!(lease.ends(), hold.ends());
        assert!(!lease.is_filed());
        lease.file();
        assert!(lease.is_filed() && lease.unfile().is_some() && !lease.is_filed());
        lease.lose(LossReason::Taken);
        assert!(lease.needs_keeper() && lease.take_over(start), "it is to be released");
        assert!(lease.claim_release());
        assert!(!lease.needs_keeper() && !lease.take_over(start));
        let (lease, _) = taken_up(start);
        lease.end(false, start);
        assert!(lease.is_released() && !lease.needs_keeper() && lease.ends().is_none());
    }

    #[test]
    fn a_request_that_does_not_wait_is_answered_even_if_its_grant_is_as_good_as_over() {
        let (lease, start) = (lease(), Instant::now());
        let at_once =
            Lease::new(Request { waits: false, ..lease.request.clone() }, Arc::clone(lease.terms()), None);
        assert!(!at_once.waits());
        let found = || Ok(Answer::Granted(grant(42).lasting(Duration::from_millis(1))));
        assert!(matches!(at_once.answered(found(), start, start), Outcome::Granted));
        assert_eq!(at_once.hand().unwrap().loss(start), Some(LossReason::Expired));
        // Whoever waits asks again when it is over.
        assert!(matches!(lease.answered(found(), start, start), Outcome::Queued));
        assert_eq!(due(&lease), start + RETRY);
    }

    #[test]
    fn the_keeper_sends_a_request_when_it_is_due_or_its_sender_is_gone() {
        let (lease, start) = (lease(), Instant::now());
        lease.leave_to_keeper(start);
        assert_eq!(lease.step(List::Waiting, start), Step::Send);
        lease.answered(Err(BackendError::Unanswered { source: "silence".into() }), start, start);
        assert_eq!(due(&lease), start + RETRY);
        lease.answered(queued(7), start, start);
        assert_eq!(lease.step(List::Waiting, start), Step::Wait);
        lease.ask_soon(start);
        lease.start_asking();
        assert_eq!(lease.step(List::Waiting, start), Step::Forget, "it is in flight");
    }

    #[test]
    fn a_holder_without_an_expiry_is_known_from_the_last_answer() {
        let (lease, now) = (lease(), Instant::now());
        assert!(!lease.holder_never_expires());
        for never in [true, false] {
            let place = Place { holder_never_expires: never, ..Place::new(Ticket::new(7), None, None) };
            lease.answered(Ok(Answer::Queued(place)), now, now);
            assert_eq!(lease.holder_never_expires(), never);
        }
    }

    #[test]
    fn a_renewal_is_sent_when_it_is_due_or_a_little_earlier_with_others() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), start, start);
        let (due, early) = (start + TTL / 3, TTL / 300);
        assert_eq!((lease.may_renew(due), lease.step(List::Held, due)), (false, Step::Wait), "not taken up");
        lease.hand().unwrap().begin(start);
        assert!(!lease.may_renew(due - early - Duration::from_millis(1)));
        assert!(lease.may_renew(due - early + Duration::from_millis(1)));
        assert_eq!(lease.step(List::Held, due), Step::Send);
        assert!(!lease.may_renew(due), "it is in flight");
        // Its runtime has ended.
        assert!(lease.take_over(due));
        assert_eq!(lease.step(List::Held, due), Step::Send);
    }

    #[test]
    fn a_lease_that_no_renewal_was_sent_for_has_expired() {
        let start = Instant::now();
        let (_, hold) = taken_up(start);
        assert_eq!(hold.loss(hold.ends().unwrap()), Some(LossReason::Expired));
    }

    #[test]
    fn a_released_lease_is_renewed_no_longer_than_releases_are_repeated() {
        let start = Instant::now();
        let (lease, hold) = taken_up(start);
        let first_end = hold.ends().unwrap();
        lease.end(true, start);
        assert_eq!(lease.step(List::Held, first_end), Step::Forget);
        // Found gone after its end: its release has nothing to explain.
        lease.renewed(Ok(Renewal::Lost(LossReason::Expired)), start, first_end);
        assert_eq!(lease.stop_renewing(), Some((first_end, false)));
        let (lease, _) = taken_up(start);
        lease.end(true, start);
        for n in 1..20 {
            lease.renewed(Ok(Renewal::Renewed), start + TTL / 2 * n, start + TTL / 2 * n);
        }
        assert_eq!(lease.stop_renewing(), Some((start + GIVE_UP_AFTER, false)));
    }

    #[test]
    fn a_hold_that_was_passed_on_is_not_the_one_before_it() {
        let (lease, now) = (lease(), Instant::now());
        let many = Request { tokens: 16, ..lease.request.clone() };
        let capped = Settings::new(TTL, TTL / 3, Some(TTL), false);
        let lease = Lease::new(many, Arc::new(capped), None);
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let first = lease.hand().unwrap();
        assert!(matches!(first.source, Source::Store));
        first.begin(now);
        let second = lease.pass_on(now).unwrap();
        assert!(
            second.begin(now).is_some(),
            "its maximum hold time begins, so something is due at another time"
        );
        assert!(first.ends().is_none() && second.ends().is_some());
        assert!(matches!(lease.enter(now).unwrap().source, Source::Client));
        lease.lose(LossReason::Taken);
        let observers = Arc::new(Observers::new("a store"));
        observers.add(Arc::new(|_: &Event<'_>| ()), StoreState::of(Vec::new()));
        let audience = observers.audience().unwrap();
        assert_eq!(first.observe(&observers, audience, None), None);
        assert_eq!(second.observe(&observers, audience, None), Some(LossReason::Taken));
    }

    #[test]
    fn permits_are_counted_from_guard_to_guard_under_the_limit_reported_last() {
        let now = Instant::now();
        let asked = LeaseRef::new(LeaseId::next(Uuid::nil()), Resource::new("semaphore:a", Kind::Fair));
        let (stated, reported) = (Limit::stated(5), Limit::new(7, 1));
        let request = Request::new(asked, Claim::Permits(3, stated), TTL).waiting();
        let lease = Lease::new(request, Arc::new(Settings::new(TTL, TTL / 3, None, false)), None);
        assert!(
            lease.limit().is_none() && matches!(lease.claim(), Claim::Permits(3, limit) if limit == stated)
        );
        lease.answered(Ok(Answer::Granted(Grant::new(FencingToken::new(42), Some(reported)))), now, now);
        assert!(matches!(lease.claim(), Claim::Permits(3, limit) if limit == reported));
        let hold = lease.hand().unwrap();
        hold.begin(now);
        hold.split();
        assert_eq!(lease.leave(hold.token, 1, now), Ok(Some(2)));
        assert_eq!(lease.leave(hold.token, 2, now), Ok(Some(0)));
    }
}
