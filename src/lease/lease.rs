//! One lease: asked for, held, and over; and who may change what about that.
//!
//! All changes happen under one lock and are answered by what follows from them; to carry that out is the caller's business. A
//! lease may have several holds, one after another: it is passed on within the client, each time under the next token. A hold is
//! known by its token, and asks the lease about itself only.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::deadline::{Deadline, moment_within};
use crate::backend::{
    Answer, BackendError, Claim, Grant, LeaseId, LeaseRef, Limit, Renew, Renewal, Request, Ticket,
};
use crate::error::{Error, LossReason};
use crate::fence::FencingToken;
use crate::handover::{Group, Turn};
use crate::name::Name;
use crate::options::Terms;
use crate::sync::Mutex;

/// How long a store that does not answer is borne by those who wait: this, or four TTLs if that is longer.
const OUTAGE: Duration = Duration::from_secs(30);
/// The pause before a request that was not answered is sent again.
pub(super) const RETRY: Duration = Duration::from_millis(25);

/// One acquisition at the store, from before it is asked for until its release is confirmed.
#[derive(Debug)]
pub(crate) struct Lease {
    name: Name,
    request: Request,
    terms: Terms,
    /// Whose leases are passed on to each other, if this one can be.
    group: Option<Group>,
    /// Cancelled when the lease is lost. Made by the first who wants to hear of it.
    lost: OnceLock<CancellationToken>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The limit of a semaphore, as the store has last told it to this lease.
    limit: Option<Limit>,
    /// Where those who wait for the end of a hold hear that it was given back.
    endings: Vec<(FencingToken, CancellationToken)>,
    /// Where the one who waits for this lease alone hears of it.
    waiter: Option<oneshot::Sender<Told>>,
    /// Under which instant the lease is filed in the schedule.
    filed_at: Instant,
}

#[derive(Debug)]
enum Phase {
    Queued(Queued),
    Held(Held),
    /// Given up, or released. Whether a grant was told since.
    Released {
        granted_since: bool,
    },
    Lost {
        token: FencingToken,
        reason: LossReason,
        /// What the store said, if it refused to renew it.
        detail: Option<String>,
        /// Whether somebody has taken it on to release it.
        seen_to: bool,
    },
}

/// A lease that is asked for.
#[derive(Debug)]
struct Queued {
    /// When the store was heard last, or else asked first.
    heard: Instant,
    /// The place, and when the request left that was last answered by it.
    place: Option<(Ticket, Instant)>,
    /// A grant that was told, and is not believed yet.
    told: Option<(Ticket, Grant)>,
    /// A grant of which was told that it was released by force.
    revoked: Option<FencingToken>,
    /// The error of the last request, if it was not answered.
    silence: Option<BackendError>,
    /// Whether it is the keeper's to ask again. Until then, whoever wants it asks in place.
    kept: bool,
    /// Whether the keeper has a request under way.
    asking: bool,
    ask_at: Instant,
}

/// A lease that is held.
#[derive(Debug)]
struct Held {
    deadline: Deadline,
    /// As the store has granted it.
    grant: Grant,
    /// That of the present hold.
    token: FencingToken,
    turn: Turn,
    /// Whether the present hold is on its way to somebody, and whether it has arrived there. Until then it is not renewed.
    handed: bool,
    taken: bool,
    /// How many guards share the hold. A guard that comes in again or is split off is one more.
    guards: u32,
    /// How many permits they have together.
    permits: u32,
    /// Whether it is filed where it is renewed in time.
    filed_to_renew: bool,
    renewing: bool,
    /// Set after a renewal that was not answered: when to try again, and why.
    unanswered: Option<(Instant, BackendError)>,
}

/// What is told to a waiter.
#[derive(Debug)]
pub(crate) enum Told {
    /// It holds this.
    Granted(Hold),
    /// It cannot be had.
    Failed(BackendError),
}

/// What follows from an answer to a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The lease is held, by nobody yet.
    Granted,
    /// It waits, and is to be asked for again.
    Queued,
    /// It is not to be had without waiting.
    Busy,
    /// It cannot be had.
    Failed(BackendError),
    /// It was granted or given up before.
    Over,
}

/// What follows from a grant that was told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The lease is held, by nobody yet.
    Granted,
    /// It is not believed: the store is to be asked.
    Doubtful,
    /// There is nothing to do.
    Known,
}

/// What the keeper has to do for a lease now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Ask,
    Renew,
    Wait,
    /// It is lost, and to be released.
    Release,
    Forget,
}

/// What a guard that goes leaves to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It was the last one: the hold is over.
    Last,
    /// Others stay, and keep so many permits; the rest goes back.
    Keeping(u32),
    /// Others stay, and keep everything.
    Sharing,
    /// The lease was lost before.
    Ended(LossReason),
}

/// A lease in the hands of one holder, which its token tells from those before and after it.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) lease: Arc<Lease>,
    pub(crate) token: FencingToken,
}

impl Lease {
    /// A lease that is about to be asked for.
    pub(super) fn new(name: &Name, request: Request, terms: Terms, group: Option<Group>) -> Arc<Self> {
        let now = Instant::now();
        let queued = Queued {
            heard: now,
            place: None,
            told: None,
            revoked: None,
            silence: None,
            kept: false,
            asking: false,
            ask_at: now + terms.ttl / 3,
        };
        let state = State {
            phase: Phase::Queued(queued),
            limit: None,
            endings: Vec::new(),
            waiter: None,
            filed_at: now,
        };
        let (name, lost) = (name.clone(), OnceLock::new());
        Arc::new(Self { name, request, terms, group, lost, state: Mutex::new(state) })
    }

    pub(crate) const fn id(&self) -> LeaseId {
        self.request.lease.id
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    pub(super) const fn lease_ref(&self) -> &LeaseRef {
        &self.request.lease
    }

    pub(super) const fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }

    pub(super) const fn terms(&self) -> Terms {
        self.terms
    }

    pub(super) const fn request(&self) -> &Request {
        &self.request
    }

    /// The owner for which a reentrant lock is held.
    pub(super) const fn owner(&self) -> Option<&Arc<str>> {
        self.request.claim.owner()
    }

    /// What is claimed, under the limit that was told last.
    pub(super) fn claim(&self) -> Claim {
        match (&self.request.claim, self.limit()) {
            (Claim::Permits(permits, _), Some(limit)) => Claim::Permits(*permits, limit),
            (claim, _) => claim.clone(),
        }
    }

    /// Whether each hold has a time of its own.
    pub(super) const fn is_capped(&self) -> bool {
        self.terms.max_hold.is_some()
    }

    /// Whether it is asked for, and would wait in the store's queue.
    pub(super) fn waits(&self) -> bool {
        self.request.waits && matches!(self.state.lock().phase, Phase::Queued(_))
    }

    pub(super) fn is_released(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Released { .. })
    }

    /// The limit of a semaphore, as the store has last told it to this lease.
    pub(super) fn limit(&self) -> Option<Limit> {
        self.state.lock().limit
    }
}

// Asked for

impl Lease {
    /// Takes in the answer to a request that left at `sent`.
    pub(super) fn answered(
        &self,
        answer: Result<Answer, BackendError>,
        sent: Instant,
        now: Instant,
    ) -> Outcome {
        let mut state = self.state.lock();
        if let Some(limit) = answer.as_ref().ok().and_then(Answer::limit) {
            state.limit = Some(limit);
        }
        let queued = match &mut state.phase {
            Phase::Queued(queued) => queued,
            Phase::Held(_) | Phase::Released { .. } | Phase::Lost { .. } => return Outcome::Over,
        };
        queued.asking = false;
        match answer {
            Ok(Answer::Granted(grant)) => match self.counted_from(grant, sent, now) {
                Some(counted_from) => self.hold(&mut state, grant, counted_from, now),
                None => {
                    // It is as good as over: the next request begins anew.
                    (queued.heard, queued.silence) = (now, None);
                    queued.ask_at = now + grant.remaining.unwrap_or_default().max(RETRY);
                    Outcome::Queued
                }
            },
            Ok(Answer::Queued(place)) => {
                queued.answered(place.ticket, sent, now);
                let alive = moment_within(now, self.terms.ttl);
                queued.ask_at = now + place.ask_again_in.map_or(alive, |pause| pause.min(alive));
                match queued.told.take() {
                    Some((ticket, grant)) if ticket == place.ticket && self.is_fresh(sent, now) => {
                        return self.hold(&mut state, grant, sent, now);
                    }
                    // Told of a later place than this answer: there is a newer answer to be had.
                    Some((ticket, _)) if ticket >= place.ticket => queued.ask_at = now,
                    _ => {}
                }
                Outcome::Queued
            }
            Ok(Answer::Busy { .. }) => {
                state.phase = Phase::Released { granted_since: false };
                Outcome::Busy
            }
            Err(error) if error.is_transient() && !self.bears_no_more(queued.heard, now) => {
                queued.silence = Some(error);
                queued.ask_at = now + RETRY;
                Outcome::Queued
            }
            Err(error) => {
                state.phase = Phase::Released { granted_since: false };
                Outcome::Failed(error)
            }
        }
    }

    /// Takes in that the place `ticket` was served. That is believed only of the place by which the store has last answered:
    /// what is told comes on another way than answers, and may be old. The lease is then counted from when the last request left
    /// that was answered so, since the grant ends when the place would have ended.
    pub(super) fn told(&self, ticket: Ticket, grant: Grant, now: Instant) -> Heard {
        let mut state = self.state.lock();
        match &mut state.phase {
            Phase::Queued(queued) => match queued.place {
                Some((place, sent)) if place == ticket && self.is_fresh(sent, now) => {
                    self.hold(&mut state, grant, sent, now);
                    Heard::Granted
                }
                _ => {
                    queued.told = Some((ticket, grant));
                    queued.ask_at = now;
                    Heard::Doubtful
                }
            },
            Phase::Released { granted_since } => {
                *granted_since = true;
                Heard::Known
            }
            Phase::Held(_) | Phase::Lost { .. } => Heard::Known,
        }
    }

    /// Whether a lease counted from `sent` has so much time left that it is worth to be held. If not, this process was paused,
    /// and only the store knows what became of it.
    fn is_fresh(&self, sent: Instant, now: Instant) -> bool {
        now.saturating_duration_since(sent) < self.terms.ttl / 2
    }

    /// From when a grant that answers a request sent at `sent` is counted. `None` if its time is over by now.
    fn counted_from(&self, grant: Grant, sent: Instant, now: Instant) -> Option<Instant> {
        // One that was made before ends so long after the store has looked, which was later than `sent`.
        let before = grant.remaining.map_or(Duration::ZERO, |left| self.terms.ttl.saturating_sub(left));
        let from = sent.checked_sub(before)?;
        (grant.remaining.is_none() || !Deadline::new(self.terms, from, now).has_passed(now)).then_some(from)
    }

    fn bears_no_more(&self, heard: Instant, now: Instant) -> bool {
        !self.request.waits || now.saturating_duration_since(heard) >= OUTAGE.max(self.terms.ttl * 4)
    }

    fn hold(&self, state: &mut State, grant: Grant, sent: Instant, now: Instant) -> Outcome {
        let Phase::Queued(queued) = &state.phase else { return Outcome::Over };
        let revoked = queued.revoked.is_some_and(|revoked| revoked == grant.token || revoked.get() == 0);
        state.limit = grant.limit.or(state.limit);
        state.phase = Phase::Held(Held {
            deadline: Deadline::new(self.terms, sent, now),
            grant,
            token: grant.token,
            turn: Turn::new(self.request.tokens, now),
            handed: false,
            taken: false,
            guards: 1,
            permits: self.request.claim.permits(),
            filed_to_renew: false,
            renewing: false,
            unanswered: None,
        });
        if revoked {
            self.lose_in(state, LossReason::Revoked);
        }
        Outcome::Granted
    }

    /// It is of use to ask again now.
    pub(super) fn ask_soon(&self, now: Instant) {
        if let Phase::Queued(queued) = &mut self.state.lock().phase {
            queued.ask_at = now;
        }
    }

    /// As it is asked for again. `None` if it is not asked for any more.
    pub(super) fn request_again(&self) -> Option<Request> {
        if !self.waits() {
            return None;
        }
        Some(Request { claim: self.claim(), ..self.request.clone() })
    }

    /// A request that was under way on a runtime that has died is due again, and so is a renewal. `false` if the keeper has nothing
    /// to do with this lease.
    pub(super) fn take_over(&self, now: Instant) -> bool {
        match &mut self.state.lock().phase {
            Phase::Queued(queued) => {
                (queued.asking, queued.ask_at) = (false, now);
                queued.kept
            }
            Phase::Held(held) => {
                held.renewing = false;
                true
            }
            Phase::Released { .. } => false,
            Phase::Lost { seen_to, .. } => !*seen_to,
        }
    }

    /// Why the store was not heard when it was asked last, if it was not.
    pub(super) fn silence(&self) -> Option<BackendError> {
        match &self.state.lock().phase {
            Phase::Queued(queued) => queued.silence.as_ref().map(BackendError::again),
            Phase::Held(held) => held.unanswered.as_ref().map(|(_, error)| error.again()),
            Phase::Released { .. } | Phase::Lost { .. } => None,
        }
    }

    /// Somebody waits for this lease alone. Answers the hold if it is there already.
    pub(super) fn wait(self: &Arc<Self>, waiter: oneshot::Sender<Told>) -> Option<Hold> {
        let mut state = self.state.lock();
        let hold = self.hand_in(&mut state);
        if hold.is_none() {
            state.waiter = Some(waiter);
        }
        hold
    }

    /// Who waits for this lease alone, and is to be told now.
    pub(super) fn waiter(&self) -> Option<oneshot::Sender<Told>> {
        self.state.lock().waiter.take()
    }

    /// Nobody wants it any more. `false` if it is held, or over.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        let waits = matches!(state.phase, Phase::Queued(_));
        if waits {
            state.phase = Phase::Released { granted_since: false };
        }
        let waiter = state.waiter.take();
        drop(state);
        drop(waiter);
        waits
    }
}

impl Queued {
    fn answered(&mut self, ticket: Ticket, sent: Instant, now: Instant) {
        (self.heard, self.silence) = (now, None);
        // Answers to requests that were under way together may come in any order.
        match self.place {
            Some((place, last)) if place > ticket || (place == ticket && last > sent) => {}
            _ => self.place = Some((ticket, sent)),
        }
    }
}

// Held

impl Lease {
    /// The hold, for one that is to be told of it or takes it in place; it may have been lost since it was granted. `None` if
    /// somebody else was told, or there is none.
    pub(super) fn hand(self: &Arc<Self>) -> Option<Hold> {
        self.hand_in(&mut self.state.lock())
    }

    fn hand_in(self: &Arc<Self>, state: &mut State) -> Option<Hold> {
        let token = match &mut state.phase {
            Phase::Held(held) if !held.handed => {
                held.handed = true;
                held.token
            }
            Phase::Lost { token, .. } => *token,
            _ => return None,
        };
        Some(Hold { lease: Arc::clone(self), token })
    }

    /// Whoever was told of the hold has gone: somebody else may have it.
    pub(super) fn take_back(&self, token: FencingToken) {
        if let Phase::Held(held) = &mut self.state.lock().phase
            && held.token == token
        {
            held.handed = false;
        }
    }

    /// The hold has arrived: from here on it is renewed, and the maximum hold time counts. Tells whether it is to be filed for that.
    pub(super) fn take(&self, token: FencingToken, now: Instant) -> bool {
        match &mut self.state.lock().phase {
            Phase::Held(held) if held.token == token => {
                (held.handed, held.taken) = (true, true);
                held.deadline = held.deadline.for_next(now);
                !held.filed_to_renew || self.is_capped()
            }
            _ => true,
        }
    }

    /// Begins the next hold, under the next token, for somebody else of this client. `None` if the lease is to go back to the
    /// store: its turn or most of its time is over, or it is lost.
    pub(super) fn pass_on(self: &Arc<Self>, now: Instant) -> Option<Hold> {
        let mut state = self.state.lock();
        let Phase::Held(held) = &mut state.phase else { return None };
        let goes_on = held.turn.goes_on(now)
            && !held.deadline.has_passed(now)
            && held.deadline.uncapped(now) >= self.terms.ttl / 2;
        if !goes_on {
            return None;
        }
        held.turn.pass();
        held.token = FencingToken::new(held.token.get() + 1);
        (held.handed, held.taken, held.guards, held.permits) = (true, false, 1, 1);
        held.deadline = held.deadline.for_next(now);
        Some(Hold { lease: Arc::clone(self), token: held.token })
    }

    /// Ends the lease as released. `false` if it is over already.
    pub(super) fn end(&self) -> bool {
        let mut state = self.state.lock();
        let held = matches!(state.phase, Phase::Held(_));
        if held {
            state.phase = Phase::Released { granted_since: false };
        }
        held
    }

    /// A guard goes, with its permits. If it was the last one, the caller ends the lease or passes it on.
    pub(super) fn leave(&self, token: FencingToken, permits: u32, now: Instant) -> Leaving {
        let mut state = self.state.lock();
        if let Some(reason) = self.loss_in(&mut state, token, now) {
            return Leaving::Ended(reason);
        }
        let Phase::Held(held) = &mut state.phase else { return Leaving::Ended(LossReason::Expired) };
        held.guards -= 1;
        if held.guards == 0 {
            return Leaving::Last;
        }
        if !self.name.kind().is_semaphore() {
            return Leaving::Sharing;
        }
        held.permits -= permits;
        Leaving::Keeping(held.permits)
    }

    /// One guard more shares the hold, if the lease is still held: an owner comes in again.
    pub(super) fn enter(self: &Arc<Self>, now: Instant) -> Option<Hold> {
        let mut state = self.state.lock();
        let Phase::Held(held) = &mut state.phase else { return None };
        if !held.taken || held.guards == 0 || held.deadline.has_passed(now) {
            return None;
        }
        held.guards += 1;
        Some(Hold { lease: Arc::clone(self), token: held.token })
    }

    /// What the store released was lost before, it says.
    pub(super) fn found_lost(&self, token: FencingToken, reason: LossReason) {
        let mut state = self.state.lock();
        state.phase = Phase::Lost { token, reason, detail: None, seen_to: true };
        drop(state);
        tracing::warn!(name = %self.name, token = token.get(), %reason, "lease lost before its release");
        self.tell_lost();
    }

    /// The grant of this token was released by force. `false` if that is not the one that is held.
    pub(super) fn revoke(&self, token: FencingToken) -> bool {
        let mut state = self.state.lock();
        match &mut state.phase {
            Phase::Held(held) if held.grant.token == token || token.get() == 0 => {
                self.lose_in(&mut state, LossReason::Revoked);
                true
            }
            Phase::Queued(queued) => {
                queued.revoked = Some(token);
                false
            }
            _ => false,
        }
    }

    /// Ends the lease as lost, if it is held.
    pub(super) fn lose(&self, reason: LossReason) {
        self.lose_in(&mut self.state.lock(), reason);
    }

    /// Why the hold of this token is lost, if it is. This is where a passed deadline is noticed: by the keeper, by a poll of
    /// `lost`, by any question to the guard, whichever comes first.
    fn loss(&self, token: FencingToken, now: Instant) -> Option<LossReason> {
        self.loss_in(&mut self.state.lock(), token, now)
    }

    fn loss_in(&self, state: &mut State, token: FencingToken, now: Instant) -> Option<LossReason> {
        match &state.phase {
            Phase::Lost { token: lost, reason, .. } if *lost == token => Some(*reason),
            Phase::Held(held) if held.token == token && held.deadline.has_passed(now) => {
                let reason = held.passed();
                self.lose_in(state, reason);
                Some(reason)
            }
            _ => None,
        }
    }

    /// Tells everybody. The store is told by the keeper.
    fn lose_in(&self, state: &mut State, reason: LossReason) {
        let Phase::Held(held) = &state.phase else { return };
        let token = held.token;
        let refusal = held.unanswered.as_ref().filter(|_| reason == LossReason::StoreRefused);
        let detail = refusal.map(|(_, error)| error.to_string());
        tracing::warn!(name = %self.name, token = token.get(), %reason, ?detail, "lease lost");
        state.phase = Phase::Lost { token, reason, detail, seen_to: false };
        self.tell_lost();
    }

    fn tell_lost(&self) {
        if let Some(lost) = self.lost.get() {
            lost.cancel();
        }
    }
}

impl Held {
    /// Why it is lost if its deadline has passed.
    fn passed(&self) -> LossReason {
        if self.deadline.ends_by_cap() {
            LossReason::HeldTooLong
        } else if self.unanswered.as_ref().is_some_and(|(_, error)| !error.is_transient()) {
            LossReason::StoreRefused
        } else if self.renewing || self.unanswered.is_some() {
            LossReason::StoreUnreachable
        } else {
            LossReason::Expired
        }
    }

    fn extend(&mut self, counted_from: Instant, now: Instant) {
        // Too late if the deadline passed in between, even if nobody has looked yet.
        if !self.deadline.has_passed(now) {
            self.deadline.extend(counted_from);
        }
        self.unanswered = None;
    }

    /// When the next renewal is due, if one is and none is under way.
    fn next_renewal(&self) -> Option<Instant> {
        if self.renewing || !self.taken {
            return None;
        }
        let due = self.deadline.renew_at()?;
        Some(self.unanswered.as_ref().map_or(due, |(retry, _)| due.max(*retry)))
    }

    fn may_renew(&self, now: Instant) -> bool {
        self.next_renewal().is_some_and(|at| at <= now + self.deadline.leeway())
    }
}

// In the keeper's schedule

impl Lease {
    /// When something is due for this lease next: there it is filed. `None` if nothing is.
    pub(super) fn file(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        let at = match &mut state.phase {
            Phase::Queued(queued) if queued.asking => return None,
            Phase::Queued(queued) => {
                queued.kept = true;
                queued.ask_at
            }
            Phase::Held(held) => {
                let renewal = held.next_renewal();
                held.filed_to_renew = renewal.is_some();
                renewal.unwrap_or_else(|| held.deadline.ends())
            }
            Phase::Lost { seen_to: false, .. } => Instant::now(),
            Phase::Released { .. } | Phase::Lost { .. } => return None,
        };
        state.filed_at = at;
        Some(at)
    }

    pub(super) fn filed_at(&self) -> Instant {
        self.state.lock().filed_at
    }

    /// Whether the lease may be renewed at `now`, to go together with others, though it is not due yet.
    pub(super) fn may_renew(&self, now: Instant) -> bool {
        matches!(&self.state.lock().phase, Phase::Held(held) if held.may_renew(now))
    }

    /// What the keeper has to do at `now`. Answers [`Step::Renew`] once per renewal, and so for the others.
    pub(super) fn step(&self, now: Instant) -> Step {
        let mut state = self.state.lock();
        if let Phase::Held(held) = &state.phase {
            let token = held.token;
            self.loss_in(&mut state, token, now);
        }
        match &mut state.phase {
            Phase::Queued(queued) if queued.asking => Step::Forget,
            Phase::Queued(queued) if queued.ask_at <= now => {
                queued.asking = true;
                Step::Ask
            }
            Phase::Held(held) if held.may_renew(now) => {
                held.renewing = true;
                Step::Renew
            }
            Phase::Queued(_) | Phase::Held(_) => Step::Wait,
            Phase::Lost { seen_to: seen_to @ false, .. } => {
                *seen_to = true;
                Step::Release
            }
            Phase::Released { .. } | Phase::Lost { .. } => Step::Forget,
        }
    }

    /// How the store is asked for another term. `None` if the lease is over.
    pub(super) fn renewal(&self) -> Option<Renew> {
        let held = matches!(self.state.lock().phase, Phase::Held(_));
        held.then(|| Renew::new(self.request.lease.clone(), self.terms.ttl))
    }

    /// Takes in the answer to a renewal that left at `sent`. Unknown neither extends nor ends the lease.
    pub(super) fn renewed(&self, answer: Result<Renewal, BackendError>, sent: Instant, now: Instant) {
        let mut state = self.state.lock();
        let Phase::Held(held) = &mut state.phase else { return };
        held.renewing = false;
        match answer {
            Ok(Renewal::Renewed) => {
                held.extend(sent, now);
                tracing::debug!(name = %self.name, token = held.token.get(), "lease renewed");
            }
            // A revocation that was not told looks like this as well, and cannot be told apart.
            Ok(Renewal::Lost(reason)) => self.lose_in(&mut state, reason),
            Err(error) => {
                tracing::debug!(name = %self.name, token = held.token.get(), %error, "renewal not answered");
                held.unanswered = Some((held.deadline.retry_at(now), error));
            }
        }
    }

    /// The end of the lease if it is held, or else now.
    pub(super) fn ends(&self) -> Instant {
        match &self.state.lock().phase {
            Phase::Held(held) => held.deadline.ends(),
            _ => Instant::now(),
        }
    }

    /// The store may have granted it after it was given up.
    pub(super) fn note_grant(&self) {
        if let Phase::Released { granted_since } = &mut self.state.lock().phase {
            *granted_since = true;
        }
    }

    /// Whether a grant was told after the lease was given up.
    pub(super) fn granted_since(&self) -> bool {
        match &mut self.state.lock().phase {
            Phase::Released { granted_since } => std::mem::take(granted_since),
            _ => false,
        }
    }
}

// What a holder asks

impl Hold {
    pub(crate) fn name(&self) -> &Name {
        &self.lease.name
    }

    /// Why it is lost, if it is.
    pub(crate) fn loss(&self, now: Instant) -> Option<LossReason> {
        self.lease.loss(self.token, now)
    }

    /// The loss as an error.
    pub(crate) fn loss_error(&self, reason: LossReason) -> Error {
        let detail = match &self.lease.state.lock().phase {
            Phase::Lost { token, detail, .. } if *token == self.token => detail.clone(),
            _ => None,
        };
        Error::Lost { name: self.name().as_str().to_owned(), token: self.token, reason, detail }
    }

    /// When it ends unless it is renewed. `None` if it is over.
    pub(crate) fn ends(&self) -> Option<Instant> {
        match &self.lease.state.lock().phase {
            Phase::Held(held) if held.token == self.token => Some(held.deadline.ends()),
            _ => None,
        }
    }

    /// For how long it may still be trusted, zero if it is over.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        if self.loss(now).is_some() {
            return Duration::ZERO;
        }
        self.ends().map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now))
    }

    /// Fires when the lease is lost by anything but time; for time, ask [`ends`](Self::ends).
    pub(crate) fn lost(&self) -> &CancellationToken {
        self.lease.lost.get_or_init(CancellationToken::new)
    }

    /// Fires when the hold has been given back, and it is known whether it was lost before.
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

    /// Its last guard has gone, and the release is over, whatever came of that.
    pub(super) fn give_back(&self) {
        let mut state = self.lease.state.lock();
        let place = state.endings.iter().position(|(token, _)| *token == self.token);
        let ending = place.map(|place| state.endings.swap_remove(place));
        drop(state);
        if let Some((_, released)) = ending {
            released.cancel();
        }
    }

    /// One guard more shares the permits that this one has.
    pub(crate) fn split(&self) {
        if let Phase::Held(held) = &mut self.lease.state.lock().phase
            && held.token == self.token
        {
            held.guards += 1;
        }
    }

    /// Why it is lost, if it is over and was not released.
    pub(super) fn reason(&self) -> LossReason {
        self.loss(Instant::now()).unwrap_or(LossReason::Expired)
    }

    /// It has arrived at its holder. Tells whether the lease is to be filed for that.
    pub(super) fn begin(&self, now: Instant) -> bool {
        self.lease.take(self.token, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Kind, LeaseIds, Queued as Place};

    const TTL: Duration = Duration::from_secs(10);

    fn lease() -> Arc<Lease> {
        let name = Name::new("lock:", "a", Kind::Mutex).unwrap();
        let asked = LeaseRef::new(LeaseIds::new().next(), name.resource().clone());
        let terms = Terms { ttl: TTL, renewal_period: TTL / 3, max_hold: None };
        Lease::new(&name, Request::new(asked, Claim::Sole, TTL).waiting(), terms, None)
    }

    fn queued(ticket: u64) -> Result<Answer, BackendError> {
        Ok(Answer::Queued(Place::new(Ticket::new(ticket), None, None)))
    }

    fn grant(token: u64) -> Grant {
        Grant::new(FencingToken::new(token), None)
    }

    fn told(lease: &Lease, ticket: u64, token: u64, now: Instant) -> Heard {
        lease.told(Ticket::new(ticket), grant(token), now)
    }

    fn ends(lease: &Arc<Lease>) -> Option<Instant> {
        lease.hand().and_then(|hold| hold.ends())
    }

    #[test]
    fn a_grant_is_believed_for_the_place_that_was_answered_last_and_counted_from_that_request() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(queued(7), start, start);
        lease.answered(queued(7), start + TTL / 4, start + TTL / 4);
        assert_eq!(told(&lease, 7, 42, start + TTL / 3), Heard::Granted);
        let ends = ends(&lease).unwrap();
        assert!(ends < start + TTL / 4 + TTL && ends > start + TTL, "from the last request");
    }

    #[test]
    fn a_grant_of_an_earlier_place_is_not_believed_and_the_store_is_asked() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(queued(7), start, start);
        lease.answered(queued(9), start + TTL, start + TTL);
        assert_eq!(told(&lease, 7, 42, start + TTL), Heard::Doubtful);
        assert_eq!(lease.file(), Some(start + TTL), "at once");
        assert_eq!(lease.step(start + TTL), Step::Ask);
        assert!(matches!(lease.answered(queued(9), start + TTL, start + TTL), Outcome::Queued));
        assert!(ends(&lease).is_none());
    }

    #[test]
    fn a_grant_that_overtakes_the_answer_is_believed_when_the_answer_names_its_place() {
        for (answered, believed) in [(7, true), (8, false), (6, false)] {
            let (lease, start) = (lease(), Instant::now());
            assert_eq!(told(&lease, 7, 42, start), Heard::Doubtful);
            let outcome = lease.answered(queued(answered), start, start);
            assert_eq!(matches!(outcome, Outcome::Granted), believed, "{answered}");
            assert_eq!(ends(&lease).is_some(), believed);
        }
    }

    #[test]
    fn a_grant_that_comes_when_half_its_time_is_over_is_not_believed() {
        let (lease, start) = (lease(), Instant::now());
        lease.answered(queued(7), start, start);
        assert_eq!(told(&lease, 7, 42, start + TTL / 2), Heard::Doubtful);
    }

    #[test]
    fn a_grant_found_by_asking_ends_when_the_store_says() {
        let (lease, start) = (lease(), Instant::now());
        let found = Ok(Answer::Granted(grant(42).lasting(TTL / 2)));
        assert!(matches!(lease.answered(found, start, start), Outcome::Granted));
        assert!(ends(&lease).unwrap() < start + TTL / 2);
        // As good as over.
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
            lease.revoke(FencingToken::new(revoked));
            assert_eq!(lease.step(now) == Step::Release, lost, "{revoked}");
        }
        // Told before the answer that grants.
        for (revoked, lost) in [(42, true), (41, false), (0, true)] {
            let lease = lease();
            lease.revoke(FencingToken::new(revoked));
            lease.answered(Ok(Answer::Granted(grant(42))), now, now);
            assert_eq!(lease.step(now) == Step::Release, lost, "{revoked}");
        }
    }

    #[test]
    fn a_grant_that_nobody_takes_up_is_not_renewed() {
        let (lease, now) = (lease(), Instant::now());
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let hold = lease.hand().unwrap();
        assert!(lease.file().unwrap() > now + TTL * 9 / 10, "not before it ends");
        hold.begin(now);
        assert!(lease.file().unwrap() < now + TTL / 2);
    }

    #[test]
    fn a_hold_hears_of_its_own_loss_only() {
        let (lease, now) = (lease(), Instant::now());
        let many = Request { tokens: 16, ..lease.request.clone() };
        let lease = Lease::new(lease.name(), many, lease.terms(), None);
        lease.answered(Ok(Answer::Granted(grant(42))), now, now);
        let first = lease.hand().unwrap();
        first.begin(now);
        let second = lease.pass_on(now).unwrap();
        second.begin(now);
        assert_eq!(second.token.get(), 43);
        lease.lose(LossReason::Taken);
        assert_eq!((first.loss(now), second.loss(now)), (None, Some(LossReason::Taken)));
    }

    #[test]
    fn a_store_that_does_not_answer_is_borne_for_thirty_seconds_or_four_ttls() {
        let (lease, start) = (lease(), Instant::now());
        let unanswered = || Err(BackendError::Unanswered { source: "silence".into() });
        lease.answered(queued(7), start, start);
        let mut now = start + TTL * 4 - Duration::from_millis(1);
        assert!(matches!(lease.answered(unanswered(), now, now), Outcome::Queued));
        assert!(lease.silence().is_some());
        now += Duration::from_millis(1);
        assert!(matches!(lease.answered(unanswered(), now, now), Outcome::Failed(_)));
    }
}
