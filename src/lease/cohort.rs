//! Hand-over inside a client.
//!
//! When several tasks of one client wait for the same mutex, one of them *leads*: it stands in the store's line, and the
//! others sit behind it. A holder that leaves passes its lease on to the next of them, without a word to the store, at
//! most [`MAX_PASSES`] times and for at most [`MAX_TURN`]. Then the lease goes back to the store, where other clients may be
//! waiting, and the next task asks for a new one. This is lock cohorting (Dice, Marathe and Shavit, PPoPP 2012), with the
//! store as the global lock and a queue per client as the local one.
//!
//! * Every hold has a token of its own: a grant reserves one for each time it can be passed on ([`TOKENS_PER_GRANT`]).
//! * There is one [`Turn`] per cohort: with the task that asks the store, then with the lease. Dropping it anywhere lets the
//!   next task lead. So a leader that is dropped, fails or loses its lease leaves nobody behind.
//! * A leader that gives up leaves its place in the store's line to the next one, who asks again under the same lease id.
//! * A leader whose future nobody polls cannot speak for others. When it has been silent for a lease, its cohort is over:
//!   those who sit in it ask for themselves, and whoever comes next leads another one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures::future::poll_fn;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::reaper::Obligation;
use crate::backend::{LeaseId, TOKENS_PER_GRANT, Wait};
use crate::options::Settings;
use crate::sync::Mutex;

/// How often a lease is passed on within a client.
const MAX_PASSES: u64 = TOKENS_PER_GRANT - 1;
/// For how long after its grant it is.
const MAX_TURN: Duration = Duration::from_millis(50);

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
    settings: u64,
    pulse: Arc<Pulse>,
    /// Those who sit behind the leader, in order of arrival.
    seats: BTreeMap<u64, Heir<L>>,
}

/// The task that is next.
pub(super) type Heir<L> = oneshot::Sender<Handed<L>>;

/// What comes to a task that sits in a cohort.
pub(super) enum Handed<L> {
    /// The lock.
    Lease(L),
    /// The lead.
    Lead(Turn<L>),
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

/// The right to say who of a cohort is next.
pub(super) struct Turn<L> {
    cohorts: Arc<Cohorts<L>>,
    key: Arc<str>,
    /// Also tells the cohort from later ones of the same key.
    pulse: Arc<Pulse>,
    /// The place in the store's line, while it is on its way from one leader to the next.
    place: Option<Box<Place>>,
    passes_left: u64,
    ends: Instant,
}

/// Asking the store: for a cohort or for oneself, anew or in a place that stands already. Dropping it leaves both to the
/// next task, if there is one.
pub(super) struct Lead<L> {
    turn: Option<Turn<L>>,
    place: Option<Box<Place>>,
}

/// An acquisition that the store is asked for.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) id: LeaseId,
    pub(super) lost: CancellationToken,
    pub(super) obligation: Obligation,
    /// When it was asked for first.
    pub(super) since: Instant,
}

/// A task that sits behind a leader.
struct Seat<L> {
    cohorts: Arc<Cohorts<L>>,
    key: Arc<str>,
    number: u64,
    handed: oneshot::Receiver<Handed<L>>,
    pulse: Arc<Pulse>,
}

impl<L> Default for Cohorts<L> {
    fn default() -> Self {
        Self { state: Mutex::new(State { by_key: HashMap::new(), arrived: 0 }) }
    }
}

impl<L> Cohorts<L> {
    /// Waits until this task holds the lock or is the one to ask the store, which is at once if nobody is before it.
    /// `look` is called now and then meanwhile.
    pub(super) async fn next(
        self: &Arc<Self>,
        key: &Arc<str>,
        settings: Settings,
        wait: Wait,
        look: impl Fn(),
    ) -> Next<L> {
        match self.join(key, settings) {
            Ok(seat) => seat.wait(settings.terms.lease, wait.deadline(), look).await,
            Err(lead) => Next::Ask(lead),
        }
    }

    /// Sits down behind the leader, if there is one on the same terms.
    fn join(self: &Arc<Self>, key: &Arc<str>, settings: Settings) -> Result<Seat<L>, Lead<L>> {
        let (term, settings) = (settings.terms.lease, settings.fingerprint());
        let mut state = self.state.lock();
        let State { by_key, arrived } = &mut *state;
        // Closes its seats.
        let _over =
            by_key.get(key).is_some_and(|cohort| cohort.pulse.has_stopped(term)).then(|| by_key.remove(key));
        let Some(cohort) = by_key.get_mut(key) else {
            let pulse = Arc::new(Pulse::new());
            let cohort = Cohort { settings, pulse: Arc::clone(&pulse), seats: BTreeMap::new() };
            by_key.insert(Arc::clone(key), cohort);
            let (cohorts, key) = (Arc::clone(self), Arc::clone(key));
            let turn = Turn { cohorts, key, pulse, place: None, passes_left: 0, ends: Instant::now() };
            return Err(Lead { turn: Some(turn), place: None });
        };
        if cohort.settings != settings {
            return Err(Lead::alone());
        }
        let (heir, handed) = oneshot::channel();
        let number = *arrived;
        *arrived += 1;
        cohort.seats.insert(number, heir);
        let pulse = Arc::clone(&cohort.pulse);
        Ok(Seat { cohorts: Arc::clone(self), key: Arc::clone(key), number, handed, pulse })
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
                Ok(Ok(Handed::Lead(turn))) => return Next::Ask(Lead::of(turn)),
                // The cohort is over. Everybody asks, and gets an answer of his own.
                Ok(Err(_)) => return Next::Ask(Lead::alone()),
                Err(_) if deadline == Some(until) => return Next::Late,
                Err(_) if self.pulse.has_stopped(term) => {
                    self.cohorts.end(&self.key, &self.pulse);
                    return Next::Ask(Lead::alone());
                }
                Err(_) => look(),
            }
        }
    }
}

impl<L> Drop for Seat<L> {
    fn drop(&mut self) {
        let mut state = self.cohorts.state.lock();
        let mine = state.by_key.get_mut(&self.key).and_then(|cohort| cohort.seats.remove(&self.number));
        drop(state);
        drop(mine);
    }
}

impl<L> Lead<L> {
    /// For oneself.
    pub(super) const fn alone() -> Self {
        Self { turn: None, place: None }
    }

    fn of(mut turn: Turn<L>) -> Self {
        let place = turn.place.take();
        Self { turn: Some(turn), place }
    }

    /// What to ask for: the place that stands, or a new one.
    pub(super) fn place(&mut self, new: impl FnOnce() -> Place) -> &Place {
        self.place.get_or_insert_with(|| Box::new(new()))
    }

    /// Shows the others that this task is being polled.
    pub(super) async fn beating<F: Future>(&self, asking: F) -> F::Output {
        let mut asking = pin!(asking);
        poll_fn(|context| {
            if let Some(turn) = &self.turn {
                turn.pulse.beat();
            }
            asking.as_mut().poll(context)
        })
        .await
    }

    /// The store has granted what was asked for.
    pub(super) fn granted(mut self) -> (Option<Box<Place>>, Option<Turn<L>>) {
        let (place, mut turn) = (self.place.take(), self.turn.take());
        if let Some(turn) = &mut turn {
            (turn.passes_left, turn.ends) = (MAX_PASSES, Instant::now() + MAX_TURN);
        }
        (place, turn)
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
        let heir = self.first_or_end()?;
        self.passes_left -= 1;
        self.pulse.beat();
        Some(heir)
    }

    /// Somebody holds the lease, and the watchdog looks after it.
    pub(super) fn hold(&self) {
        self.pulse.hold();
    }

    /// The first of those who sit; if there is none, the cohort is over.
    fn first_or_end(&self) -> Option<Heir<L>> {
        let mut state = self.cohorts.state.lock();
        let cohort = self.cohort(&mut state)?;
        let first = cohort.seats.pop_first();
        if first.is_none() {
            state.by_key.remove(&self.key);
        }
        first.map(|(_, heir)| heir)
    }

    fn cohort<'a>(&self, state: &'a mut State<L>) -> Option<&'a mut Cohort<L>> {
        state.by_key.get_mut(&self.key).filter(|cohort| Arc::ptr_eq(&cohort.pulse, &self.pulse))
    }
}

impl<L> Drop for Turn<L> {
    /// The next one leads. What it has not taken over of the place in line is given up.
    fn drop(&mut self) {
        let Some(heir) = self.first_or_end() else { return };
        self.pulse.beat();
        let turn = Self {
            cohorts: Arc::clone(&self.cohorts),
            key: Arc::clone(&self.key),
            pulse: Arc::clone(&self.pulse),
            place: self.place.take(),
            passes_left: 0,
            ends: self.ends,
        };
        // If it is given up at this moment, what comes back is dropped, and goes to the one after it.
        drop(heir.send(Handed::Lead(turn)));
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

/// When a leader was last polled: milliseconds after [`START`], or [`HOLDS`].
#[derive(Debug)]
struct Pulse(AtomicU64);

/// Somebody holds the lease, and need not be polled: the watchdog sees to it.
const HOLDS: u64 = u64::MAX;

/// Before every instant of interest, also on a clock that a test has stopped a while ago.
static START: LazyLock<Instant> = LazyLock::new(|| {
    let now = std::time::Instant::now();
    Instant::from_std(now.checked_sub(Duration::from_secs(3600)).unwrap_or(now))
});

impl Pulse {
    fn new() -> Self {
        Self(AtomicU64::new(Self::now()))
    }

    fn beat(&self) {
        self.0.store(Self::now(), Ordering::Relaxed);
    }

    fn hold(&self) {
        self.0.store(HOLDS, Ordering::Relaxed);
    }

    /// Whether nobody has been polled for `term` who should have been.
    fn has_stopped(&self, term: Duration) -> bool {
        let beat = self.0.load(Ordering::Relaxed);
        beat != HOLDS && u128::from(Self::now().saturating_sub(beat)) >= term.as_millis()
    }

    fn now() -> u64 {
        u64::try_from(START.elapsed().as_millis()).unwrap_or(HOLDS - 1)
    }
}
