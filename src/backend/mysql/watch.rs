//! What this client waits for, and which of its leases other clients may wait for: updated by everything that it reads
//! and writes.
//!
//! The server notifies no client of its grants. So a client checks the records of the keys it waits for, all with one
//! query, and, unless that is turned off, waits for named locks: each lease has one, which its client holds while the
//! lease holds or waits. The next client in the queue waits in the server for the named lock of the lease before its
//! own, and reads the record once it has acquired that named lock.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep_until;
use uuid::Uuid;

use super::named_locks::NamedLocks;
use super::view::View;
use crate::backend::records::Failure;
use crate::backend::{Event, EventSender, LeaseId, LeaseRef, Ticket};

/// How often a client checks a record if it is next, and how much less often for every four places ahead of it.
const POLL: Duration = Duration::from_millis(10);
const SLOWEST_POLL: Duration = Duration::from_millis(100);
/// The same for a client that waits for a named lock, for each place ahead of it.
const BACKUP_POLL: Duration = Duration::from_millis(100);
const SLOWEST_BACKUP_POLL: Duration = Duration::from_secs(5);
/// The first pause before waiting for a named lock that its client may not have taken yet.
const PAUSE: Duration = Duration::from_millis(2);
/// The maximum number of these pauses, one for each place ahead.
const MAX_PAUSES: u32 = 5;
/// How long the client polls after a connection could not wait for a named lock.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long named locks are not used after the server refused one.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);
/// Records that are due within this time are checked together.
const TOGETHER: Duration = Duration::from_millis(2);
/// How many are looked at with one query.
const KEYS: usize = 128;

/// What a client waits for.
#[derive(Debug)]
pub(super) struct Watch {
    state: Mutex<State>,
    /// Notified when there may be something to do for the connection that watches records.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    client: Option<Uuid>,
    events: EventSender,
    keys: HashMap<Arc<str>, Watched>,
    /// The client's own changes.
    changes: u64,
    /// When the records of keys are to be looked at.
    due: BTreeSet<(Instant, Arc<str>)>,
    locks: NamedLocks,
    /// Keys with a lease whose named lock a connection is to wait for.
    to_wait_for: VecDeque<Wait>,
    /// How many connections may wait for named locks, and how many do or are about to.
    waiters: usize,
    waiting: usize,
    /// Set when one could not.
    no_waiting_until: Option<Instant>,
    /// Whether the connection that watches records may have been lost.
    is_doubtful: bool,
    /// Set when the server refused a named lock.
    no_locks_until: Option<Instant>,
}

/// A key with leases of this client.
#[derive(Debug, Default)]
struct Watched {
    version: i64,
    /// Counts the client's own changes of any record, up to the latest of this one.
    changes: u64,
    leases: Vec<LeaseId>,
    waiting: HashMap<LeaseId, Waiting>,
    before: usize,
    behind: Option<LeaseId>,
    due: Option<Instant>,
    /// The lease whose named lock a connection waits for.
    waits_for: Option<LeaseId>,
    unlocked: Option<Unlocked>,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    /// Unknown if this client was not notified of the place.
    lease: Option<LeaseRef>,
}

/// A lease whose named lock was free. If the record still contains the lease, its client does not hold the named lock
/// (yet). The next wait for it then starts after a pause, because the lock would be free again at once.
#[derive(Clone, Copy, Debug)]
struct Unlocked {
    lease: LeaseId,
    pause: Duration,
}

/// A named lock that is to be waited for, after a pause.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    pub(super) key: Arc<str>,
    pub(super) lease: LeaseId,
    pub(super) pause: Duration,
}

/// A record that is to be looked at.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) key: Arc<str>,
    /// The version that is known.
    pub(super) version: i64,
    /// How often the client had changed the record before.
    changes: u64,
}

/// What the connection that looks does next.
#[derive(Debug, Default)]
pub(super) struct Todo {
    /// Named locks to be released.
    pub(super) release: Vec<LeaseId>,
    /// Named locks to be taken.
    pub(super) take: Vec<LeaseId>,
    /// Records to be looked at.
    pub(super) look: Vec<Check>,
}

impl Watch {
    /// For a client that waits for named locks on so many connections at most.
    pub(super) fn new(waiters: usize) -> Self {
        let state = State {
            client: None,
            events: EventSender::default(),
            keys: HashMap::new(),
            changes: 0,
            due: BTreeSet::new(),
            locks: NamedLocks::new(false),
            to_wait_for: VecDeque::new(),
            waiters,
            waiting: 0,
            no_waiting_until: None,
            is_doubtful: false,
            no_locks_until: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// The events from now on, for the client with this id, which never changes. A later stream replaces an earlier
    /// one.
    pub(super) fn open(&self, client: Uuid) -> BoxStream<'static, Event> {
        let mut state = self.state.lock();
        state.client = Some(client);
        state.events.open().chain(stream::pending()).boxed()
    }

    pub(super) fn client(&self) -> Option<Uuid> {
        self.state.lock().client
    }

    pub(super) fn send(&self, event: Event) {
        self.state.lock().events.send(event);
    }

    /// A record is of this version and looks like this, after a change of this client.
    pub(super) fn note(&self, key: &Arc<str>, version: Option<i64>, view: View) {
        let mut state = self.state.lock();
        state.changes += 1;
        if state.see(key, version.unwrap_or(0), view) {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The same, after checking the record: `None` if its version has not changed.
    pub(super) fn looked(&self, look: &Check, found: Option<(i64, View)>) {
        let mut state = self.state.lock();
        let is_known = |watched: &Watched| watched.changes == look.changes;
        match found.filter(|_| state.keys.get(&look.key).is_some_and(is_known)) {
            Some((version, view)) => drop(state.see(&look.key, version, view)),
            // The answer may be older than this client's latest write.
            None => state.wait_on(&look.key),
        }
    }

    /// What is to be done next, within a time. Nothing, if nothing is to be done until then.
    pub(super) async fn next(&self, within: Duration) -> Todo {
        let end = Instant::now() + within;
        loop {
            let changed = self.changed.notified();
            let until = {
                let mut state = self.state.lock();
                let todo = state.todo(Instant::now());
                if let Some(todo) = todo {
                    return todo;
                }
                state.next_due().map_or(end, |due| due.min(end))
            };
            tokio::select! {
                () = changed => {}
                () = sleep_until(until.into()) => if until == end { return Todo::default() },
            }
        }
    }

    /// The named lock of a lease was taken, or another client has it.
    pub(super) fn took(&self, lease: LeaseId, is_taken: bool) {
        if self.state.lock().locks.took(lease, is_taken) {
            self.changed.notify_one();
        }
    }

    /// Another connection was lost: checks the one that watches records, too.
    pub(super) fn check_now(&self) {
        self.state.lock().is_doubtful = true;
        self.changed.notify_one();
    }

    /// Whether named locks are held, or are to be.
    pub(super) fn has_locks(&self) -> bool {
        !self.state.lock().locks.is_empty()
    }

    /// There is a session that can hold named locks, which has none yet.
    pub(super) fn use_locks(&self) {
        let mut state = self.state.lock();
        let is_on = state.waiters > 0 && state.may_use_locks();
        state.locks.restart(is_on);
    }

    /// Tries named locks again, some time after the server refused one. Called while there is a session that can hold
    /// them.
    pub(super) fn use_locks_again(&self) {
        let mut state = self.state.lock();
        if state.waiters > 0 && !state.locks.is_on() && state.may_use_locks() {
            state.locks.restart(true);
        }
    }

    /// Whether the server has not refused a named lock lately.
    pub(super) fn may_use_locks(&self) -> bool {
        self.state.lock().may_use_locks()
    }

    /// The server has refused a named lock. The client does without them for some time: it polls, and changes records
    /// without turns.
    pub(super) fn give_up_locks(&self, why: &Failure) {
        let is_known = self.state.lock().no_locks_until.replace(Instant::now() + AFTER_REFUSAL).is_some();
        if !is_known {
            tracing::warn!(target: "leasehold::store", %why, "named locks cannot be used; waiting clients poll");
        }
        self.do_without_locks();
        self.changed.notify_one();
    }

    /// No session can hold named locks. Checks that were missed in the meantime are rescheduled.
    pub(super) fn do_without_locks(&self) {
        let mut state = self.state.lock();
        state.locks.restart(false);
        let keys: Vec<_> = state.keys.keys().cloned().collect();
        keys.iter().for_each(|key| state.wait_on(key));
    }

    /// A named lock that is to be waited for, if there is one.
    pub(super) fn next_to_wait_for(&self) -> Option<Wait> {
        self.state.lock().to_wait_for.pop_front()
    }

    /// Whether connections are needed to wait for named locks.
    pub(super) fn has_to_wait_for(&self) -> bool {
        !self.state.lock().to_wait_for.is_empty()
    }

    /// A connection no longer waits for the named lock of a lease: it was free, the time limit has passed, or the wait
    /// failed.
    pub(super) fn waited(&self, Wait { key, lease, .. }: &Wait, outcome: Waited) {
        let mut state = self.state.lock();
        state.waiting -= 1;
        let Some(watched) = state.keys.get_mut(key) else { return };
        if watched.waits_for == Some(*lease) {
            watched.waits_for = None;
        }
        match outcome {
            Waited::Acquired => {
                let again = watched.unlocked.filter(|unlocked| unlocked.lease == *lease);
                let pause = again.map_or(PAUSE, |unlocked| unlocked.pause.saturating_mul(2));
                watched.unlocked = Some(Unlocked { lease: *lease, pause });
                state.set_due(key, Instant::now());
            }
            Waited::TimedOut => state.wait_on(key),
            Waited::Failed => {
                state.no_waiting_until = Some(Instant::now() + AFTER_FAILURE);
                state.wait_on(key);
            }
        }
        drop(state);
        self.changed.notify_one();
    }
}

/// The result of waiting for a named lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Acquired,
    TimedOut,
    Failed,
}

impl State {
    fn may_use_locks(&self) -> bool {
        self.no_locks_until.is_none_or(|until| until <= Instant::now())
    }

    /// Updates what is known of a key. Returns whether there may be something to do.
    fn see(&mut self, key: &Arc<str>, version: i64, view: View) -> bool {
        let (known, now) = (self.keys.contains_key(key), Instant::now());
        if view.is_empty() && !known {
            return false;
        }
        let mut watched = self.keys.remove(key).unwrap_or_default();
        let mut is_something = self.keep_locks(&watched, &view, now);
        self.tell_what_changed(&watched, &view);
        let is_unchanged = watched.version == version;
        watched.version = version;
        if view.own.is_some() {
            watched.changes = self.changes;
        }
        watched.leases = view.leases().collect();
        let before = std::mem::take(&mut watched.waiting);
        watched.waiting = waiting(before, &view);
        (watched.before, watched.behind) = (view.before, view.behind);
        if view.is_semaphore {
            // Any holder may be the next to release.
            watched.behind = None;
        }
        if view.is_empty() {
            if let Some(due) = watched.due {
                self.due.remove(&(due, Arc::clone(key)));
            }
            return is_something;
        }
        is_something |= !is_unchanged || watched.due.is_none();
        self.keys.insert(Arc::clone(key), watched);
        self.wait_on(key);
        is_something
    }

    /// The named locks of leases that hold or wait are held; those of others are not.
    fn keep_locks(&mut self, watched: &Watched, view: &View, now: Instant) -> bool {
        let mut is_something = false;
        for lease in &watched.leases {
            if view.grant(*lease).is_none() && view.place(*lease).is_none() {
                is_something |= self.locks.give_up(*lease);
            }
        }
        if !view.is_semaphore {
            // A semaphore may have many holders, so its waiters poll.
            for lease in view.leases() {
                let is_urgent = view.others_wait || view.place(lease).is_some();
                is_something |= self.locks.want(lease, is_urgent, now);
            }
        }
        is_something
    }

    /// What others have done to the leases that waited.
    fn tell_what_changed(&self, watched: &Watched, view: &View) {
        for (id, waiting) in &watched.waiting {
            match (view.grant(*id), view.place(*id), &waiting.lease) {
                (Some(_), _, _) if !view.is_found(*id) => {}
                (Some(grant), _, Some(lease)) => {
                    self.events.send(Event::Granted { lease: lease.clone(), ticket: waiting.ticket, grant });
                }
                (None, Some(place), _) if place.ticket == waiting.ticket && !place.is_admitted => {}
                (None, Some(_), _) if view.asked(*id).is_some() => {}
                _ => self.events.send(Event::AskAgain(*id)),
            }
        }
    }

    /// Schedules the next check of a record, and has a connection wait for the named lock of the lease ahead.
    fn wait_on(&mut self, key: &Arc<str>) {
        let Some(watched) = self.keys.get_mut(key) else { return };
        if watched.waiting.is_empty() {
            if let Some(due) = watched.due.take() {
                self.due.remove(&(due, Arc::clone(key)));
            }
            return;
        }
        let now = Instant::now();
        let may_wait = self.locks.is_on() && self.no_waiting_until.is_none_or(|until| until <= now);
        let can_wait = may_wait && self.waiting < self.waiters;
        if watched.waits_for != watched.behind && can_wait {
            watched.waits_for = watched.behind;
            if let Some(lease) = watched.behind {
                self.waiting += 1;
                self.to_wait_for.push_back(Wait { key: Arc::clone(key), lease, pause: watched.pause() });
            }
        }
        let is_waited_for = watched.behind.is_some() && watched.waits_for == watched.behind;
        let due = now + pause(watched.before, is_waited_for);
        // An earlier check stays scheduled.
        let due = watched.due.map_or(due, |before| before.min(due));
        self.set_due(key, due);
    }

    fn set_due(&mut self, key: &Arc<str>, due: Instant) {
        let Some(watched) = self.keys.get_mut(key).filter(|watched| !watched.waiting.is_empty()) else {
            return;
        };
        if let Some(before) = watched.due.replace(due) {
            self.due.remove(&(before, Arc::clone(key)));
        }
        self.due.insert((due, Arc::clone(key)));
    }

    fn next_due(&self) -> Option<Instant> {
        let look = self.due.first().map(|(due, _)| *due);
        look.into_iter().chain(self.locks.next_due()).min()
    }

    fn todo(&mut self, now: Instant) -> Option<Todo> {
        let mut todo = Todo { release: self.locks.releases(), take: self.locks.takes(now), look: Vec::new() };
        if self.due.first().is_some_and(|(due, _)| *due <= now) {
            while let Some((due, _)) = self.due.first()
                && *due <= now + TOGETHER
                && todo.look.len() < KEYS
                && let Some((_, key)) = self.due.pop_first()
            {
                if let Some(watched) = self.keys.get_mut(&key) {
                    watched.due = None;
                    let (version, changes) = (watched.version, watched.changes);
                    todo.look.push(Check { key: Arc::clone(&key), version, changes });
                }
            }
        }
        let is_something = std::mem::take(&mut self.is_doubtful)
            || !(todo.release.is_empty() && todo.take.is_empty() && todo.look.is_empty());
        is_something.then_some(todo)
    }
}

impl Watched {
    /// How long until the named lock of the lease before is waited for.
    fn pause(&self) -> Duration {
        match self.unlocked.filter(|unlocked| Some(unlocked.lease) == self.behind) {
            Some(unlocked) => unlocked.pause.min(pause(self.before, false)),
            // The client ahead may have joined only just now and still be taking its named lock. The more places ahead,
            // the less urgent this is.
            None => PAUSE * u32::try_from(self.before).unwrap_or(u32::MAX).min(MAX_PAUSES),
        }
    }
}

/// The leases that wait, by what is known of them.
fn waiting(mut before: HashMap<LeaseId, Waiting>, view: &View) -> HashMap<LeaseId, Waiting> {
    let each = view.places.iter().map(|place| {
        let known = before.remove(&place.lease).and_then(|waiting| waiting.lease);
        let lease = view.asked(place.lease).cloned().or(known);
        (place.lease, Waiting { ticket: place.ticket, lease })
    });
    each.collect()
}

/// How long until the next look.
fn pause(before: usize, is_waited_for: bool) -> Duration {
    let before = u32::try_from(before).unwrap_or(u32::MAX);
    if is_waited_for {
        BACKUP_POLL.saturating_mul(before.saturating_add(1)).min(SLOWEST_BACKUP_POLL)
    } else {
        (POLL.saturating_mul(before.saturating_add(4)) / 4).min(SLOWEST_POLL)
    }
}
