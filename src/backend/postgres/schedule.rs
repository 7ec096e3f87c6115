//! What is to be changed, and by which connection: the changes of one key in the order in which they were asked for, those of
//! different keys together.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::job::Task;
use crate::backend::BackendError;
use crate::sync::Mutex;

/// How many keys are changed by one statement at most.
const TOGETHER: usize = 128;
/// For how long a key is changed under a row lock after somebody else came first.
const CROWDED: Duration = Duration::from_secs(1);
/// How many crowded keys are remembered before those are forgotten that are no longer crowded.
const REMEMBERED: usize = 256;

/// All changes asked for of one key until then, to be stored together.
pub(super) struct Work {
    pub(super) key: Arc<str>,
    pub(super) tasks: Vec<Task>,
    /// Whether the record is to be written even if it stays the same: an earlier attempt may still be on its way, and must then fail.
    pub(super) must_write: bool,
    /// How often it was tried before.
    pub(super) tries: u32,
}

/// What one connection does next.
pub(super) enum Round {
    /// To read these records, and write those that nobody else has changed in the meantime.
    Quiet(Vec<Work>),
    /// To change this record under its lock.
    Crowded(Work),
}

/// What became of a work.
pub(super) enum Done {
    Finished,
    /// Not carried out, for this reason; it is not certain that nothing was stored, if `unsure`.
    Failed {
        error: BackendError,
        unsure: bool,
    },
    /// To be done again, because somebody else came first.
    Conflict,
    /// To be done again, on another session.
    Again,
}

#[derive(Default)]
pub(super) struct Schedule {
    state: Mutex<State>,
    /// Told when there may be something to do, or nothing any more.
    changed: Notify,
}

#[derive(Default)]
struct State {
    keys: HashMap<Arc<str>, Queue>,
    /// Keys with something to do, that nobody is at.
    quiet: VecDeque<Arc<str>>,
    crowded: VecDeque<Arc<str>>,
    is_turn_of_crowded: bool,
    crowded_until: HashMap<Arc<str>, Instant>,
    is_closed: bool,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Whether a connection is at it.
    is_taken: bool,
    must_write: bool,
    tries: u32,
}

impl Schedule {
    /// Adds a task for each of the keys, in one step. `false` if it is closed.
    pub(super) fn add(&self, tasks: impl Iterator<Item = (Arc<str>, Task)>) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            return false;
        }
        for (key, task) in tasks {
            let queue = state.keys.entry(Arc::clone(&key)).or_default();
            queue.tasks.push_back(task);
            if !queue.is_taken && queue.tasks.len() == 1 {
                state.make_ready(key);
            }
        }
        drop(state);
        self.changed.notify_one();
        true
    }

    /// What is to be done next: all quiet keys together, or one crowded one.
    pub(super) fn take(&self) -> Option<Round> {
        let mut state = self.state.lock();
        let round = state.take()?;
        let is_more = state.is_ready();
        drop(state);
        if is_more {
            self.changed.notify_one();
        }
        Some(round)
    }

    /// Whether there is something that nobody is at.
    pub(super) fn is_ready(&self) -> bool {
        self.state.lock().is_ready()
    }

    /// Returns when there may be something to do.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A connection is done with a work; what was asked for since may begin.
    pub(super) fn finish(&self, work: Work, done: Done) {
        let (outcome, tasks) = match &done {
            Done::Finished => (Ok(()), work.tasks.as_slice()),
            Done::Failed { error, .. } => (Err(error), work.tasks.as_slice()),
            Done::Conflict | Done::Again => (Ok(()), [].as_slice()),
        };
        // Whoever waits for it can ask for the next thing before the key is free: it is in the queue then.
        tasks.iter().for_each(|task| task.finish(outcome.map_err(BackendError::again)));
        self.state.lock().put_back(work, &done);
        self.changed.notify_one();
    }

    /// Nothing is added any more. What is there is still done.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    /// Whether it is closed, and nothing is left to be begun. If so, the next one who waits is told.
    pub(super) fn is_over(&self) -> bool {
        let is_over = {
            let state = self.state.lock();
            state.is_closed && !state.is_ready()
        };
        if is_over {
            self.changed.notify_one();
        }
        is_over
    }

    /// Whoever still waits hears that the store is closed.
    pub(super) fn abandon(&self) {
        let keys = mem::take(&mut self.state.lock().keys);
        let tasks = keys.into_values().flat_map(|queue| queue.tasks);
        tasks.for_each(|task| task.finish(Err(BackendError::Closed)));
    }
}

impl State {
    fn is_ready(&self) -> bool {
        !self.quiet.is_empty() || !self.crowded.is_empty()
    }

    fn make_ready(&mut self, key: Arc<str>) {
        let is_crowded = self.crowded_until.get(&key).is_some_and(|until| *until > Instant::now());
        if is_crowded { self.crowded.push_back(key) } else { self.quiet.push_back(key) }
    }

    fn take(&mut self) -> Option<Round> {
        // In turns: neither kind keeps the other waiting.
        self.is_turn_of_crowded = !self.is_turn_of_crowded || self.quiet.is_empty();
        if self.is_turn_of_crowded
            && let Some(key) = self.crowded.pop_front()
        {
            return self.begin(key).map(Round::Crowded);
        }
        let keys: Vec<_> = self.quiet.drain(..self.quiet.len().min(TOGETHER)).collect();
        let works: Vec<_> = keys.into_iter().filter_map(|key| self.begin(key)).collect();
        (!works.is_empty()).then_some(Round::Quiet(works))
    }

    fn begin(&mut self, key: Arc<str>) -> Option<Work> {
        let queue = self.keys.get_mut(&key)?;
        queue.is_taken = true;
        let tasks = mem::take(&mut queue.tasks).into();
        Some(Work { key, tasks, must_write: queue.must_write, tries: queue.tries })
    }

    fn put_back(&mut self, work: Work, done: &Done) {
        let Work { key, tasks, tries, .. } = work;
        let Some(queue) = self.keys.get_mut(&key) else { return };
        queue.is_taken = false;
        match done {
            Done::Finished => (queue.must_write, queue.tries) = (false, 0),
            Done::Failed { unsure, .. } => (queue.must_write, queue.tries) = (queue.must_write || *unsure, 0),
            Done::Conflict | Done::Again => {
                queue.tries = tries + 1;
                let later = mem::replace(&mut queue.tasks, tasks.into());
                queue.tasks.extend(later);
            }
        }
        let (is_idle, is_known) = (queue.tasks.is_empty(), queue.must_write);
        if matches!(done, Done::Conflict) {
            self.note_crowd(&key);
        }
        if !is_idle {
            self.make_ready(key);
        } else if !is_known {
            self.keys.remove(&key);
        }
    }

    fn note_crowd(&mut self, key: &Arc<str>) {
        let now = Instant::now();
        if self.crowded_until.len() >= REMEMBERED {
            self.crowded_until.retain(|_, until| *until > now);
        }
        self.crowded_until.insert(Arc::clone(key), now + CROWDED);
    }
}
