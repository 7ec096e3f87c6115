//! Hand-over inside a client.
//!
//! When several tasks of one client wait for the same mutex, one of them *leads*: it stands in the store's line, and the
//! others sit behind it. A holder that leaves passes its lease on to the next of them, without a word to the store, at
//! most [`MAX_PASSES`] times and for at most [`MAX_TURN`]. Then the lease goes back to the store, where other clients may be
//! waiting, and the next task asks for a new one. This is lock cohorting (Dice, Marathe and Shavit, PPoPP 2012), with the
//! store as the global lock and a queue per client as the local one. Single permits of a counting semaphore are passed on in
//! the same way; there, so many tasks may lead or hold as there are permits, and one more.
//!
//! * Every hold has a token of its own: a grant reserves one for each time it can be passed on ([`TOKENS_PER_GRANT`]).
//! * A [`Turn`] is with a task that asks the store, then with the lease. Dropping it anywhere lets the next task lead. So a
//!   leader that is dropped, fails or loses its lease leaves nobody behind.
//! * Tasks sit only if all turns are taken. As there is one more of them than permits, somebody leads then: no permit is free
//!   at the store that nobody asks for, and a limit that grows is noticed. A cohort is over when its limit changes.
//! * Those who lead came before those who sit, so a lease that is passed on goes to the first leader. Its request stays where it
//!   is, and is heard by the next one who leads. So leaders may change order among themselves, nobody else.
//! * A leader that gives up leaves its place in the store's line to the next one in the same way, who asks again under the
//!   same lease id if the terms of that request are not his own.
//! * A leader whose future nobody polls cannot speak for others. When it has been silent for a lease, its cohort is over:
//!   those who sit in it ask for themselves, and whoever comes next leads another one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::poll_fn;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::place::{Asking, Place};
use super::pulse::Pulse;
use crate::backend::{Acquired, BackendError, Claim, TOKENS_PER_GRANT, Wait};
use crate::options::Settings;
use crate::sync::Mutex;

/// How often a lease is passed on within a client.
const MAX_PASSES: u32 = TOKENS_PER_GRANT as u32 - 1;
/// For how long after its grant it is. Longer turns make the others wait, and save little: going through the store costs a
/// fraction of a millisecond.
const MAX_TURN: Duration = Duration::from_millis(30);

/// The cohorts of a client, by lock key; leases of type `L` are passed on in them. A lock that is held or asked for has a
/// cohort, also while nobody else of the client wants it.
pub(crate) struct Cohorts<L> {
    state: Mutex<State<L>>,
}

struct State<L> {
    by_key: HashMap<Arc<str>, Cohort<L>>,
    /// How many seats were ever taken.
    arrived: u64,
}

struct Cohort<L> {
    /// Only who wants the lock on the same terms can take over its lease. Their hash will do, and is small: there is a cohort
    /// for every lock that is held.
    terms: u64,
    /// How many turns there are.
    turns: u32,
    pulse: Arc<Pulse>,
    /// Those who can be passed a lease, if there ever was one: by order of arrival.
    waiting: Option<Box<Waiting<L>>>,
}

/// Every leader came before everybody who sits: nobody sits while a turn is to be had.
struct Waiting<L> {
    leaders: BTreeMap<u64, Waiter<L>>,
    seats: BTreeMap<u64, Waiter<L>>,
}

/// Listed until it holds something, or gives up.
struct Waiter<L> {
    /// Where it hears what comes to it, until that is on its way.
    heir: Option<Heir<L>>,
    /// That of a leader for permits, whom no other may hide. A lock has one leader, whose pulse is the cohort's.
    pulse: Option<Arc<Pulse>>,
}

/// The task that is next.
pub(super) type Heir<L> = oneshot::Sender<Handed<L>>;

/// What comes to a task that sits in a cohort.
pub(super) enum Handed<L> {
    /// The lock.
    Lease(L),
    /// The lead, and where a lease will come to that is passed on meanwhile.
    Lead(Turn<L>, oneshot::Receiver<Self>),
}

/// How a task goes on that wants a lock.
pub(super) enum Next<L> {
    /// It holds the lock.
    Hold(L),
    /// It asks the store.
    Ask(Lead<L>),
    /// Its time to wait is over.
    Late,
}

/// What a task wants that may be passed on: a lock, or a permit of so many, on these terms.
#[derive(Clone, Copy)]
pub(super) struct Wish<'a> {
    settings: &'a Settings,
    limit: Option<u32>,
}

/// The right to say who of a cohort is next.
pub(super) struct Turn<L> {
    cohorts: Arc<Cohorts<L>>,
    key: Arc<str>,
    /// Also tells the cohort from later ones of the same key.
    pulse: Arc<Pulse>,
    /// Nobody was next, and this turn does not count any more.
    is_over: bool,
    /// The place in the store's line, while it is on its way from one leader to the next.
    place: Option<Box<Place>>,
    passes_left: u32,
    ends: Instant,
}

/// Asking the store: for a cohort or for oneself, anew or in a place that stands already. Dropping it leaves both to the
/// next task, if there is one.
pub(super) struct Lead<L> {
    // First: whoever is next must not be passed a lease by way of this one.
    seat: Option<Box<Seat<L>>>,
    turn: Option<Turn<L>>,
    place: Option<Box<Place>>,
}

/// What comes to a leader.
pub(super) enum Heard<L> {
    Answer(Result<Acquired, BackendError>),
    /// A lease that was passed on.
    Lease(L),
}

/// A task that waits behind a leader, or for what a leader may be passed meanwhile.
struct Seat<L> {
    cohorts: Arc<Cohorts<L>>,
    key: Arc<str>,
    number: u64,
    handed: oneshot::Receiver<Handed<L>>,
    /// The cohort's.
    pulse: Arc<Pulse>,
    /// This task's, as one of several leaders.
    own_pulse: Option<Arc<Pulse>>,
}

impl<L> Default for Cohorts<L> {
    fn default() -> Self {
        Self { state: Mutex::new(State { by_key: HashMap::new(), arrived: 0 }) }
    }
}

impl<'a> Wish<'a> {
    /// `None` if what is claimed cannot be passed on.
    pub(super) fn of(claim: &'a Claim, settings: &'a Settings) -> Option<Self> {
        let limit = match claim {
            Claim::Sole => None,
            Claim::Permits(1, limit) => Some(limit.stated().permits),
            Claim::Owner(_) | Claim::Permits(..) => return None,
        };
        settings.local_handover.then_some(Self { settings, limit })
    }

    /// Tells these terms from others.
    fn fingerprint(self) -> u64 {
        let limit = self.limit.map_or(0, |permits| u64::from(permits) + 1);
        // Times an odd number: no two limits come to the same.
        self.settings.fingerprint ^ limit.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// How many turns a cohort has.
    fn turns(self) -> u32 {
        self.limit.map_or(1, |permits| permits.saturating_add(1))
    }
}

impl<L> Cohorts<L> {
    /// Waits until this task holds the lock or is one to ask the store, which is at once if nobody is before it.
    /// `look` is called now and then meanwhile.
    pub(super) async fn next(
        self: &Arc<Self>,
        key: &Arc<str>,
        wish: Wish<'_>,
        wait: Wait,
        look: impl Fn(),
    ) -> Next<L> {
        match self.join(key, wish) {
            Ok(seat) => seat.wait(wish.settings.terms.lease, wait.deadline(), look).await,
            Err(lead) => Next::Ask(lead),
        }
    }

    /// Sits down behind the leaders, if there are enough on the same terms.
    fn join(self: &Arc<Self>, key: &Arc<str>, wish: Wish<'_>) -> Result<Seat<L>, Lead<L>> {
        let (term, terms) = (wish.settings.terms.lease, wish.fingerprint());
        // Closes its seats, when the lock is open again.
        let _over;
        let mut state = self.state.lock();
        let State { by_key, arrived } = &mut *state;
        _over =
            by_key.get(key).is_some_and(|cohort| cohort.pulse.has_stopped(term)).then(|| by_key.remove(key));
        let Some(cohort) = by_key.get_mut(key) else {
            let cohort = Cohort { terms, turns: 0, pulse: Arc::new(Pulse::new()), waiting: None };
            let cohort = by_key.entry(Arc::clone(key)).or_insert(cohort);
            return Err(self.lead(key, cohort, wish, arrived));
        };
        if cohort.terms != terms {
            return Err(Lead::alone());
        }
        if cohort.turns < wish.turns() {
            return Err(self.lead(key, cohort, wish, arrived));
        }
        Ok(self.seat(key, cohort, wish, arrived, |waiting| &mut waiting.seats))
    }

    /// A turn more. The leader for a lock cannot be passed it: there is no other turn.
    fn lead(
        self: &Arc<Self>,
        key: &Arc<str>,
        cohort: &mut Cohort<L>,
        wish: Wish<'_>,
        arrived: &mut u64,
    ) -> Lead<L> {
        cohort.turns += 1;
        cohort.pulse.beat();
        let seat = wish
            .limit
            .map(|_| Box::new(self.seat(key, cohort, wish, arrived, |waiting| &mut waiting.leaders)));
        let turn = Turn {
            cohorts: Arc::clone(self),
            key: Arc::clone(key),
            pulse: Arc::clone(&cohort.pulse),
            is_over: false,
            place: None,
            passes_left: 0,
            ends: Instant::now(),
        };
        Lead { seat, turn: Some(turn), place: None }
    }

    fn seat(
        self: &Arc<Self>,
        key: &Arc<str>,
        cohort: &mut Cohort<L>,
        wish: Wish<'_>,
        arrived: &mut u64,
        row: impl FnOnce(&mut Waiting<L>) -> &mut BTreeMap<u64, Waiter<L>>,
    ) -> Seat<L> {
        let (heir, handed) = oneshot::channel();
        let number = *arrived;
        *arrived += 1;
        let own_pulse = wish.limit.map(|_| Arc::new(Pulse::new()));
        let waiter = Waiter { heir: Some(heir), pulse: own_pulse.clone() };
        row(cohort.waiting.get_or_insert_default()).insert(number, waiter);
        let pulse = Arc::clone(&cohort.pulse);
        Seat { cohorts: Arc::clone(self), key: Arc::clone(key), number, handed, pulse, own_pulse }
    }

    /// There is no cohort any more of which this was the pulse. Closes its seats.
    fn end(&self, key: &str, pulse: &Arc<Pulse>) {
        let mut state = self.state.lock();
        let is_current = state.by_key.get(key).is_some_and(|cohort| Arc::ptr_eq(&cohort.pulse, pulse));
        let over = if is_current { state.by_key.remove(key) } else { None };
        drop(state);
        drop(over);
    }
}

impl<L> Seat<L> {
    async fn wait(mut self, term: Duration, deadline: Option<Instant>, look: impl Fn()) -> Next<L> {
        loop {
            let next_look = Instant::now() + term;
            let until = deadline.map_or(next_look, |deadline| deadline.min(next_look));
            match timeout_at(until, &mut self.handed).await {
                Ok(Ok(Handed::Lease(lease))) => return Next::Hold(lease),
                Ok(Ok(Handed::Lead(turn, handed))) => {
                    self.handed = handed;
                    return Next::Ask(Lead::of(turn, self));
                }
                // The cohort is over. Everybody asks, and gets an answer of his own.
                Ok(Err(_)) => return Next::Ask(Lead::alone()),
                Err(_) if deadline == Some(until) => return Next::Late,
                Err(_) if self.somebody_has_stopped(term) => {
                    self.cohorts.end(&self.key, &self.pulse);
                    return Next::Ask(Lead::alone());
                }
                Err(_) => look(),
            }
        }
    }

    /// Whether one of those who should be polled has not been polled for `term`.
    fn somebody_has_stopped(&self, term: Duration) -> bool {
        let mut state = self.cohorts.state.lock();
        let cohort = state.by_key.get_mut(&self.key).filter(|cohort| Arc::ptr_eq(&cohort.pulse, &self.pulse));
        let Some(Cohort { pulse, waiting, .. }) = cohort else { return true };
        let mut leaders = waiting.iter().flat_map(|waiting| waiting.leaders.values());
        let has_stopped =
            |leader: &Waiter<L>| leader.pulse.as_ref().is_some_and(|pulse| pulse.has_stopped(term));
        pulse.has_stopped(term) || leaders.any(has_stopped)
    }
}

impl<L> Drop for Seat<L> {
    fn drop(&mut self) {
        let mut state = self.cohorts.state.lock();
        let waiting = state.by_key.get_mut(&self.key).and_then(|cohort| cohort.waiting.as_deref_mut());
        let mine = waiting.and_then(|Waiting { leaders, seats }| {
            leaders.remove(&self.number).or_else(|| seats.remove(&self.number))
        });
        drop(state);
        drop(mine);
    }
}

impl<L> Lead<L> {
    /// For oneself.
    pub(super) const fn alone() -> Self {
        Self { seat: None, turn: None, place: None }
    }

    fn of(mut turn: Turn<L>, seat: Seat<L>) -> Self {
        let place = turn.place.take();
        Self { seat: Some(Box::new(seat)), turn: Some(turn), place }
    }

    /// What to ask for: the place that stands, or a new one.
    pub(super) fn place(&mut self, new: impl FnOnce() -> Place) -> &mut Place {
        self.place.get_or_insert_with(|| Box::new(new()))
    }

    /// Waits for the store's answer, or for a lease that is passed on.
    pub(super) async fn hear(&mut self) -> Heard<L> {
        poll_fn(|context| self.poll_hear(context)).await
    }

    fn poll_hear(&mut self, context: &mut Context<'_>) -> Poll<Heard<L>> {
        // The others see that this task is being polled.
        if let Some(turn) = &self.turn {
            turn.pulse.beat();
        }
        if let Some(own_pulse) = self.seat.as_ref().and_then(|seat| seat.own_pulse.as_ref()) {
            own_pulse.beat();
        }
        if let Some(place) = &mut self.place {
            // Out of its place meanwhile: should the store panic, nobody else polls what is left of this.
            let mut asking = place.asking.take();
            let polled = asking.as_mut().map(|asking| asking.answer.as_mut().poll(context));
            place.asking = asking;
            if let Some(Poll::Ready(answer)) = polled {
                return Poll::Ready(Heard::Answer(answer));
            }
        }
        match self.seat.as_mut().map(|seat| Pin::new(&mut seat.handed).poll(context)) {
            Some(Poll::Ready(Ok(Handed::Lease(lease)))) => Poll::Ready(Heard::Lease(lease)),
            Some(Poll::Ready(_)) => {
                // The cohort is over.
                self.seat = None;
                Poll::Pending
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }

    /// The store has granted what was asked for.
    pub(super) fn granted(mut self, wish: Option<Wish<'_>>) -> (Option<Box<Place>>, Option<Turn<L>>) {
        self.seat = None;
        let (place, mut turn) = (self.place.take(), self.turn.take());
        if let (Some(turn), Some(wish)) = (&mut turn, wish) {
            turn.begin(wish);
        }
        (place, turn)
    }

    /// What was asked for is answered.
    pub(super) fn take_asking(&mut self) -> Option<Asking> {
        self.place.as_mut()?.asking.take()
    }

    /// The store has refused what was asked for, and knows nothing of it.
    pub(super) fn refused(mut self) {
        if let Some(place) = self.place.take() {
            place.obligation.settle();
        }
    }

    /// The store has failed: there is no cohort any more.
    pub(super) fn disband(mut self) {
        if let Some(turn) = self.turn.take() {
            turn.cohorts.end(&turn.key, &turn.pulse);
        }
    }
}

impl<L> Drop for Lead<L> {
    fn drop(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.place = self.place.take();
        }
    }
}

impl<L> Turn<L> {
    /// Whether the lease cannot be passed on any more. Then the turn can be given up, so that the next task is in the store's
    /// line before the lease goes back.
    pub(super) const fn is_spent(&self) -> bool {
        self.passes_left == 0
    }

    /// The task to which the lease is passed on, if it is.
    pub(super) fn heir(&mut self, now: Instant) -> Option<Heir<L>> {
        if self.passes_left == 0 || now >= self.ends {
            return None;
        }
        let heir = self.find_or_end(|Waiting { leaders, seats }| {
            let leader = leaders.values_mut().find_map(|leader| leader.heir.take());
            leader.or_else(|| seats.pop_first()?.1.heir)
        })?;
        self.passes_left -= 1;
        self.pulse.beat();
        Some(heir)
    }

    /// Somebody holds the lease, and the watchdog looks after it.
    pub(super) fn hold(&self) {
        self.pulse.hold();
    }

    /// There is a lease to be passed on. If the limit has turned out to be another, the terms are not those any more on which
    /// others sit: they ask for themselves.
    fn begin(&mut self, wish: Wish<'_>) {
        (self.passes_left, self.ends) = (MAX_PASSES, Instant::now() + MAX_TURN);
        if wish.limit.is_none() {
            return;
        }
        let terms = wish.fingerprint();
        let mut state = self.cohorts.state.lock();
        if self.cohort(&mut state).is_some_and(|cohort| cohort.terms != terms) {
            let over = state.by_key.remove(&self.key);
            drop(state);
            drop(over);
        }
    }

    /// Who is next; if nobody is, this turn is over, and the cohort with the last of them.
    fn find_or_end<T>(&mut self, find: impl FnOnce(&mut Waiting<L>) -> Option<T>) -> Option<T> {
        if self.is_over {
            return None;
        }
        let mut state = self.cohorts.state.lock();
        let cohort = self.cohort(&mut state)?;
        let found = cohort.waiting.as_mut().and_then(|waiting| find(waiting));
        if found.is_none() {
            cohort.turns -= 1;
            if cohort.turns == 0 {
                state.by_key.remove(&self.key);
            }
            self.is_over = true;
        }
        found
    }

    fn cohort<'a>(&self, state: &'a mut State<L>) -> Option<&'a mut Cohort<L>> {
        state.by_key.get_mut(&self.key).filter(|cohort| Arc::ptr_eq(&cohort.pulse, &self.pulse))
    }
}

impl<L> Waiting<L> {
    /// The first of those who sit leads: where it hears of that, and where it will hear of a lease.
    fn rise(&mut self) -> Option<(Heir<L>, oneshot::Receiver<Handed<L>>)> {
        let (number, mut waiter) = self.seats.pop_first()?;
        let (heir, handed) = oneshot::channel();
        let told = waiter.heir.replace(heir)?;
        if let Some(pulse) = &waiter.pulse {
            pulse.beat();
        }
        self.leaders.insert(number, waiter);
        Some((told, handed))
    }
}

impl<L> Default for Waiting<L> {
    fn default() -> Self {
        Self { leaders: BTreeMap::new(), seats: BTreeMap::new() }
    }
}

impl<L> Drop for Turn<L> {
    /// The next one leads. What it has not taken over of the place in line is given up.
    fn drop(&mut self) {
        let Some((heir, handed)) = self.find_or_end(Waiting::rise) else { return };
        self.pulse.beat();
        let turn = Self {
            cohorts: Arc::clone(&self.cohorts),
            key: Arc::clone(&self.key),
            pulse: Arc::clone(&self.pulse),
            is_over: false,
            place: self.place.take(),
            passes_left: 0,
            ends: self.ends,
        };
        // If it is given up at this moment, what comes back is dropped, and goes to the one after it.
        drop(heir.send(Handed::Lead(turn, handed)));
    }
}

impl<L> fmt::Debug for Cohorts<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cohorts").finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for Turn<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn").field("passes_left", &self.passes_left).finish_non_exhaustive()
    }
}
