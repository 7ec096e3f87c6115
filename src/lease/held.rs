//! One lease that is, or was, held, and the guards that share it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cohort::Turn;
use super::deadline::Deadline;
use super::place::Place;
use super::reaper::Obligation;
use crate::backend::{BackendError, Claim, Grant, LeaseId, Limit, RenewRequest, Renewal};
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::name::Name;
use crate::options::Terms;
use crate::sync::Mutex;

/// What the guards, their futures and the watchdog share.
#[derive(Debug)]
pub(crate) struct Lease {
    id: LeaseId,
    name: Name,
    token: FencingToken,
    /// For whom a reentrant lock is held.
    owner: Option<Arc<str>>,
    /// That of a semaphore, as it was when the lease was granted or later.
    limit: Option<Limit>,
    /// Set before `lost` is cancelled, except by a revocation, which comes from the backend without a reason.
    reason: OnceLock<LossReason>,
    lost: CancellationToken,
    /// Cancelled when the lease has been given back. Only made if somebody waits for that.
    released: OnceLock<CancellationToken>,
    state: Mutex<State>,
}

/// What whoever holds a lease has to see to when it ends.
#[derive(Debug)]
pub(crate) struct Tenure {
    pub(super) obligation: Obligation,
    /// Of a lock that can be passed on within the client.
    pub(super) turn: Option<Turn<Arc<Lease>>>,
}

#[derive(Debug)]
struct State {
    deadline: Deadline,
    /// Present while the lease is held; taken by whoever ends it.
    tenure: Option<Tenure>,
    /// How many guards share the lease. A guard that comes in again or is split off is one more.
    guards: u32,
    /// How many permits they have together.
    permits: u32,
    /// Its last guard has gone, and its release is over, whatever came of that.
    given_back: bool,
    renewing: bool,
    /// Set after a renewal that was not answered: when to try again.
    retry_at: Option<Instant>,
    /// Under which instant the watchdog has filed the lease.
    event_at: Instant,
}

/// What the watchdog has to do for a lease now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Renew,
    Wait,
    Forget,
}

/// What a guard that goes leaves to be done.
#[derive(Debug)]
pub(crate) enum Leaving {
    /// It was the last one: the hold is over, and this is to be seen to.
    Last(Tenure),
    /// Others stay, and keep so many permits; the rest goes back.
    Keeping(u32),
    /// Others stay, and keep everything.
    Sharing,
    /// The lease had ended before.
    Ended,
}

impl Lease {
    /// The lease that was granted for a place.
    pub(super) fn granted(
        place: Place,
        turn: Option<Turn<Arc<Self>>>,
        claim: &Claim,
        name: &Name,
        terms: Terms,
        grant: Grant,
    ) -> Self {
        let now = Instant::now();
        let tenure = Tenure { obligation: place.obligation.granted(grant.token), turn };
        Self {
            id: place.id,
            name: name.clone(),
            token: grant.token,
            owner: claim.owner().cloned(),
            limit: claim.limit().cloned(),
            reason: OnceLock::new(),
            lost: place.lost,
            released: OnceLock::new(),
            state: Mutex::new(State::new(
                Deadline::new(terms, grant.counted_from, now),
                tenure,
                claim.permits(),
                now,
            )),
        }
    }

    pub(crate) const fn id(&self) -> LeaseId {
        self.id
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) const fn token(&self) -> FencingToken {
        self.token
    }

    /// How long the store keeps the lease without hearing of it.
    pub(crate) fn term(&self) -> Duration {
        self.state.lock().deadline.term()
    }

    pub(crate) const fn owner(&self) -> Option<&Arc<str>> {
        self.owner.as_ref()
    }

    /// Fires when the lease is lost by anything but time; for time, ask [`ends`](Self::ends).
    pub(crate) const fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    /// Fires when the lease has been given back, and it is known whether it was lost before.
    pub(crate) fn released(&self) -> CancellationToken {
        let token = self.released.get_or_init(CancellationToken::new).clone();
        if self.state.lock().given_back {
            token.cancel();
        }
        token
    }

    /// The release is over; from now on nobody waits for the end of this lease any more.
    pub(crate) fn give_back(&self) {
        // Whoever makes a token after this look at it finds what was set before.
        self.state.lock().given_back = true;
        if let Some(token) = self.released.get() {
            token.cancel();
        }
    }

    /// When the lease ends unless it is renewed.
    pub(crate) fn ends(&self) -> Instant {
        self.state.lock().deadline.ends()
    }

    /// For how long the lease may still be trusted, zero if it is lost or released.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        if self.loss(now).is_some() {
            return Duration::ZERO;
        }
        let state = self.state.lock();
        if state.tenure.is_some() { state.deadline.remaining(now) } else { Duration::ZERO }
    }

    /// Why the lease is lost, if it is. This is where a passed deadline and a revocation are noticed: by the
    /// watchdog, by a poll of `lost`, by any question to the guard, whichever comes first.
    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        if let Some(reason) = self.reason.get() {
            return Some(*reason);
        }
        if self.lost.is_cancelled() {
            return self.lose(LossReason::Revoked);
        }
        let state = self.state.lock();
        if state.tenure.is_none() || !state.deadline.has_passed(now) {
            return None;
        }
        let reason = match &*state {
            state if state.deadline.ends_by_cap() => LossReason::HeldTooLong,
            state if state.renewing || state.retry_at.is_some() => LossReason::StoreUnreachable,
            _ => LossReason::Expired,
        };
        drop(state);
        self.lose(reason)
    }

    /// Ends the lease as lost, unless it has ended already: tells everybody first, then gives it back.
    pub(crate) fn lose(&self, reason: LossReason) -> Option<LossReason> {
        let mut state = self.state.lock();
        let tenure = state.tenure.take();
        if tenure.is_some() {
            // Under the lock: whoever finds the tenure gone must find the reason.
            let _ = self.reason.set(reason);
        }
        drop(state);
        if let Some(tenure) = tenure {
            tracing::warn!(name = %self.name, token = self.token.get(), %reason, "lease lost");
            self.lost.cancel();
            drop(tenure);
        }
        self.reason.get().copied()
    }

    /// The release has found that the lease was lost before: tells whoever still waits for that.
    pub(crate) fn found_lost(&self, reason: LossReason) -> LossReason {
        if let Some(reason) = self.lose(reason) {
            return reason;
        }
        let reason = *self.reason.get_or_init(|| reason);
        tracing::warn!(name = %self.name, token = self.token.get(), %reason, "lease lost before its release");
        self.lost.cancel();
        reason
    }

    /// The lease is in the watchdog's care, whether its holder is polled or not.
    pub(crate) fn begin(&self) {
        if let Some(turn) = self.state.lock().tenure.as_ref().and_then(|tenure| tenure.turn.as_ref()) {
            turn.hold();
        }
    }

    /// Whether enough of the lease is left to pass it on.
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        let state = self.state.lock();
        state.deadline.uncapped(now) >= state.deadline.term() / 2
    }

    /// The same lease for the next holder in this client, under the next token. A revocation is told to both.
    pub(super) fn succeed(&self, tenure: Tenure, now: Instant) -> Self {
        let token = FencingToken::new(self.token.get() + 1);
        let Tenure { obligation, turn } = tenure;
        let tenure = Tenure { obligation: obligation.granted(token), turn };
        let deadline = self.state.lock().deadline.for_next(now);
        Self {
            id: self.id,
            name: self.name.clone(),
            token,
            owner: None,
            limit: self.limit.clone(),
            reason: OnceLock::new(),
            lost: self.lost.child_token(),
            released: OnceLock::new(),
            state: Mutex::new(State::new(deadline, tenure, 1, now)),
        }
    }

    /// The holder of a permit that was passed on has met the limit in force, as if the store had told it.
    pub(super) fn teach(&self, claim: &Claim) {
        claim.learn(self.limit.as_ref());
    }

    /// One guard more shares the lease, if it is still held.
    pub(crate) fn enter(&self, now: Instant) -> bool {
        let lost = self.loss(now).is_some();
        let mut state = self.state.lock();
        let held = !lost && state.tenure.is_some();
        if held {
            state.guards += 1;
        }
        held
    }

    /// One guard more shares the permits that the others have.
    pub(crate) fn split(&self) {
        self.state.lock().guards += 1;
    }

    /// A guard goes, with its permits. The last one ends the lease as released: what is owed to the store passes to the
    /// caller.
    pub(crate) fn leave(&self, permits: u32, now: Instant) -> Leaving {
        let lost = self.loss(now).is_some();
        let mut state = self.state.lock();
        state.guards -= 1;
        if lost || state.tenure.is_none() {
            return Leaving::Ended;
        }
        if state.guards == 0 {
            return state.tenure.take().map_or(Leaving::Ended, Leaving::Last);
        }
        if !self.name.kind().is_semaphore() {
            return Leaving::Sharing;
        }
        state.permits -= permits;
        Leaving::Keeping(state.permits)
    }

    /// Whether no guard is left.
    pub(crate) fn is_deserted(&self) -> bool {
        self.state.lock().guards == 0
    }

    /// The loss as an error.
    pub(crate) fn loss_error(&self, reason: LossReason) -> Error {
        Error::Lost { name: self.name.as_str().to_owned(), token: self.token, reason }
    }

    /// Whether the lease has been released by its guard, and so cannot be lost any more.
    pub(crate) fn is_released(&self) -> bool {
        self.state.lock().tenure.is_none() && self.reason.get().is_none()
    }

    /// When something is due for this lease next, a renewal or its end: there the watchdog files it. `None` if it is over.
    pub(crate) fn file(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        state.tenure.as_ref()?;
        state.event_at = state.next_renewal().unwrap_or_else(|| state.deadline.ends());
        Some(state.event_at)
    }

    /// Whether the lease may be renewed at `now`, to go together with others, though it is not due yet.
    pub(crate) fn may_renew(&self, now: Instant) -> bool {
        self.state.lock().may_renew(now)
    }

    /// How the store is asked for another term. `None` if the lease is over.
    pub(crate) fn renewal(&self) -> Option<RenewRequest> {
        let state = self.state.lock();
        state.tenure.as_ref()?;
        let request = RenewRequest::new(self.id, self.name.resource().clone(), state.deadline.term());
        Some(RenewRequest { confirmed: Some(state.deadline.confirmed()), ..request })
    }

    /// What the watchdog has to do at `now`. Answers [`Step::Renew`] once per renewal.
    pub(crate) fn step(&self, now: Instant) -> Step {
        let lost = self.loss(now).is_some();
        let mut state = self.state.lock();
        if lost || state.tenure.is_none() {
            return Step::Forget;
        }
        if state.may_renew(now) {
            state.renewing = true;
            return Step::Renew;
        }
        Step::Wait
    }

    /// Takes in the answer to a renewal. Unknown neither extends nor ends the lease.
    pub(crate) fn renewed(&self, answer: Result<Renewal, BackendError>, now: Instant) {
        let mut state = self.state.lock();
        state.renewing = false;
        match answer {
            Ok(Renewal::Renewed { counted_from }) => {
                // Too late if the deadline passed in between, even if nobody has looked yet.
                if !state.deadline.has_passed(now) {
                    state.deadline.extend(counted_from);
                }
                state.retry_at = None;
                tracing::debug!(name = %self.name, token = self.token.get(), "lease renewed");
            }
            Ok(Renewal::Lost(reason)) => {
                drop(state);
                // A revocation whose push was lost looks like this as well, and cannot be told apart.
                self.lose(reason);
            }
            Err(error) => {
                state.retry_at = Some(state.deadline.retry_at(now));
                tracing::debug!(name = %self.name, token = self.token.get(), %error, "renewal not answered");
            }
        }
    }

    /// The runtime that a renewal was under way on has died.
    pub(crate) fn renewal_abandoned(&self) {
        self.state.lock().renewing = false;
    }

    pub(crate) fn event_at(&self) -> Instant {
        self.state.lock().event_at
    }
}

impl State {
    const fn new(deadline: Deadline, tenure: Tenure, permits: u32, now: Instant) -> Self {
        Self {
            deadline,
            tenure: Some(tenure),
            guards: 1,
            permits,
            given_back: false,
            renewing: false,
            retry_at: None,
            event_at: now,
        }
    }

    /// When the next renewal is due, if one is and none is under way.
    fn next_renewal(&self) -> Option<Instant> {
        if self.renewing {
            return None;
        }
        let due = self.deadline.renew_at()?;
        Some(self.retry_at.map_or(due, |retry| due.max(retry)))
    }

    fn may_renew(&self, now: Instant) -> bool {
        self.next_renewal().is_some_and(|at| at <= now + self.deadline.leeway())
    }
}
