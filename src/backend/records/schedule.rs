//! In which order a client's changes are carried out: changes of one key in the order in which they were requested,
//! changes of different keys together.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::cache::{Cache, Cached};
use super::job::{Change, Job, Task};
use super::round::{Done, KeyBatch, Round};
use crate::backend::{BackendError, Effects, Ledger, Stamp};

/// How many keys are changed by one statement at most.
const TOGETHER: usize = 128;
/// Above this many contended keys, those that are no longer contended are dropped.
const MAX_CONTENDED: usize = 256;

pub(in crate::backend) struct Schedule<R> {
    state: Mutex<State<R>>,
    /// How long a record counts as contended after another client has changed it first.
    contended: Duration,
    /// Notified when there may be something to do, and when there will be nothing more.
    changed: Notify,
}

struct State<R> {
    keys: HashMap<Arc<str>, Queue>,
    /// Keys with pending changes that no connection is working on.
    uncontended: VecDeque<Arc<str>>,
    contended: VecDeque<Arc<str>>,
    is_turn_of_contended: bool,
    contended_until: HashMap<Arc<str>, Instant>,
    written: Cache<R>,
    is_closed: bool,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Whether a connection is working on it.
    is_taken: bool,
    must_write: bool,
    tries: u32,
}

impl<R> Default for Schedule<R> {
    fn default() -> Self {
        Self::with_contended(Duration::from_secs(1))
    }
}

impl<R> Default for State<R> {
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
            uncontended: VecDeque::new(),
            contended: VecDeque::new(),
            is_turn_of_contended: false,
            contended_until: HashMap::new(),
            written: Cache::default(),
            is_closed: false,
        }
    }
}

impl<R> Schedule<R> {
    /// A record counts as contended for this long after another client has changed it first.
    pub(in crate::backend) fn with_contended(contended: Duration) -> Self {
        Self { state: Mutex::default(), contended, changed: Notify::new() }
    }
}

impl<R: Cached> Schedule<R> {
    /// Has the records of these keys changed: see [`LedgerStore::transact`](crate::backend::LedgerStore::transact).
    /// Calls `start` when there is something to do.
    pub(in crate::backend) fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
        start: impl FnOnce(),
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        let (job, answered) = Change::new(keys.len(), change);
        let job: Arc<dyn Job> = Arc::new(job);
        let tasks = keys.iter().enumerate();
        let tasks = tasks.map(|(index, key)| (Arc::clone(key), Task { job: Arc::clone(&job), index }));
        let is_added = self.add(tasks);
        if is_added {
            start();
        }
        async move {
            if !is_added {
                return Err(BackendError::Closed);
            }
            answered.await.unwrap_or_else(|gone| Err(BackendError::Unanswered { source: gone.into() }))
        }
    }

    /// Adds a task for each of the keys, in one step. `false` if it is closed.
    fn add(&self, tasks: impl Iterator<Item = (Arc<str>, Task)>) -> bool {
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

    /// What is to be done next: all uncontended keys together, or one contended one.
    pub(in crate::backend) fn take(&self) -> Option<Round<R>> {
        let mut state = self.state.lock();
        let round = state.take()?;
        let is_more = state.is_ready();
        drop(state);
        if is_more {
            self.changed.notify_one();
        }
        Some(round)
    }

    /// Adds to a batch the changes of its key that were requested since it was taken, before it is executed. Returns
    /// whether there were any: a record that was read earlier may then be older than such a request.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(in crate::backend) fn add_later(&self, batch: &mut KeyBatch<R>) -> bool {
        let mut state = self.state.lock();
        let Some(queue) = state.keys.get_mut(&batch.key) else { return false };
        let is_any = !queue.tasks.is_empty();
        batch.tasks.extend(queue.tasks.drain(..));
        is_any
    }

    /// Whether there are changes that no connection is working on.
    pub(in crate::backend) fn is_ready(&self) -> bool {
        self.state.lock().is_ready()
    }

    /// Returns when there may be something to do.
    pub(in crate::backend) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// A connection has finished a batch; changes of the same key that were requested since may begin.
    pub(in crate::backend) fn finish(&self, batch: KeyBatch<R>, done: Done) {
        let (outcome, tasks) = match &done {
            Done::Finished => (Ok(()), batch.tasks.as_slice()),
            Done::Failed { error, .. } => (Err(error), batch.tasks.as_slice()),
            Done::Conflict | Done::Retry => (Ok(()), [].as_slice()),
        };
        // First, so that callers can submit their next change before the key becomes free: that change is then already
        // queued.
        tasks.iter().for_each(|task| task.finish(outcome.map_err(BackendError::clone)));
        self.state.lock().put_back(batch, &done, self.contended);
        self.changed.notify_one();
    }

    /// Caches a record as another client has changed it.
    #[cfg(feature = "etcd")]
    pub(in crate::backend) fn cache(&self, key: &Arc<str>, written: R) {
        self.state.lock().written.insert(key, written);
    }

    /// Drops the cached record: another client has changed it.
    pub(in crate::backend) fn forget(&self, key: &str) {
        self.state.lock().written.take(key);
    }

    /// Caches a record as it was just read, unless a connection is working on it.
    #[cfg(feature = "zookeeper")]
    pub(in crate::backend) fn cache_read(&self, key: &Arc<str>, record: R) {
        let mut state = self.state.lock();
        if state.keys.get(key).is_none_or(|queue| !queue.is_taken) {
            state.written.insert(key, record);
        }
    }

    /// Accepts no more changes. Those already added are still executed.
    pub(in crate::backend) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    /// Whether it is closed and no change is left to be started. If so, wakes the next waiting connection.
    pub(in crate::backend) fn is_drained(&self) -> bool {
        let is_drained = {
            let state = self.state.lock();
            state.is_closed && !state.is_ready()
        };
        if is_drained {
            self.changed.notify_one();
        }
        is_drained
    }

    /// Answers all remaining callers that the store is closed.
    pub(in crate::backend) fn abandon(&self) {
        let keys = mem::take(&mut self.state.lock().keys);
        let tasks = keys.into_values().flat_map(|queue| queue.tasks);
        tasks.for_each(|task| task.finish(Err(BackendError::Closed)));
    }
}

impl<R: Cached> State<R> {
    fn is_ready(&self) -> bool {
        !self.uncontended.is_empty() || !self.contended.is_empty()
    }

    fn make_ready(&mut self, key: Arc<str>) {
        let is_crowded = self.contended_until.get(&key).is_some_and(|until| *until > Instant::now());
        if is_crowded { self.contended.push_back(key) } else { self.uncontended.push_back(key) }
    }

    fn take(&mut self) -> Option<Round<R>> {
        // In turns: neither kind keeps the other waiting.
        self.is_turn_of_contended = !self.is_turn_of_contended || self.uncontended.is_empty();
        if self.is_turn_of_contended
            && let Some(key) = self.contended.pop_front()
        {
            return self.begin(key).map(Round::Contended);
        }
        let keys: Vec<_> = self.uncontended.drain(..self.uncontended.len().min(TOGETHER)).collect();
        let batches: Vec<_> = keys.into_iter().filter_map(|key| self.begin(key)).collect();
        (!batches.is_empty()).then_some(Round::Uncontended(batches))
    }

    fn begin(&mut self, key: Arc<str>) -> Option<KeyBatch<R>> {
        let queue = self.keys.get_mut(&key)?;
        queue.is_taken = true;
        let tasks = mem::take(&mut queue.tasks).into();
        let written = self.written.take(&key);
        Some(KeyBatch { key, tasks, must_write: queue.must_write, tries: queue.tries, written })
    }

    fn put_back(&mut self, batch: KeyBatch<R>, done: &Done, contended: Duration) {
        let KeyBatch { key, tasks, tries, written, .. } = batch;
        if let (Done::Finished, Some(written)) = (done, written) {
            self.written.insert(&key, written);
        }
        let Some(queue) = self.keys.get_mut(&key) else { return };
        queue.is_taken = false;
        match done {
            Done::Finished => (queue.must_write, queue.tries) = (false, 0),
            Done::Failed { unsure, .. } => (queue.must_write, queue.tries) = (queue.must_write || *unsure, 0),
            Done::Conflict | Done::Retry => {
                queue.tries = tries + 1;
                let later = mem::replace(&mut queue.tasks, tasks.into());
                queue.tasks.extend(later);
            }
        }
        let (is_idle, is_known) = (queue.tasks.is_empty(), queue.must_write);
        if matches!(done, Done::Conflict) {
            self.mark_contended(&key, contended);
        }
        if !is_idle {
            self.make_ready(key);
        } else if !is_known {
            self.keys.remove(&key);
        }
    }

    fn mark_contended(&mut self, key: &Arc<str>, contended: Duration) {
        let now = Instant::now();
        if self.contended_until.len() >= MAX_CONTENDED {
            self.contended_until.retain(|_, until| *until > now);
        }
        self.contended_until.insert(Arc::clone(key), now + contended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Cached for () {
        fn is_recent(&self) -> bool {
            true
        }
    }

    /// Notes what is finished.
    #[derive(Default)]
    struct Noting(Mutex<Vec<(usize, bool)>>);

    impl Job for Noting {
        fn run(&self, _: usize, _: &mut Ledger, _: Stamp) -> Effects {
            Effects::default()
        }

        fn finish(&self, index: usize, stored: Result<(), BackendError>) {
            self.0.lock().push((index, stored.is_ok()));
        }
    }

    struct Site {
        schedule: Schedule<()>,
        observing: Arc<Noting>,
        added: usize,
    }

    impl Site {
        fn new() -> Self {
            Self { schedule: Schedule::default(), observing: Arc::default(), added: 0 }
        }

        fn add(&mut self, keys: &[&str]) {
            let tasks = keys.iter().map(|key| {
                self.added += 1;
                ((*key).into(), Task { job: Arc::clone(&self.observing) as Arc<dyn Job>, index: self.added })
            });
            let tasks: Vec<_> = tasks.collect();
            assert!(self.schedule.add(tasks.into_iter()));
        }

        /// The batches of the next round: the keys, and the numbers of their tasks.
        fn take(&self) -> Vec<KeyBatch<()>> {
            self.schedule.take().map_or_else(Vec::new, Round::into_batches)
        }
    }

    fn shown(batches: &[KeyBatch<()>]) -> Vec<(&str, Vec<usize>)> {
        batches
            .iter()
            .map(|batch| (&*batch.key, batch.tasks.iter().map(|task| task.index).collect()))
            .collect()
    }

    #[test]
    fn changes_of_a_key_are_executed_together_and_in_order() {
        let mut site = Site::new();
        site.add(&["a", "b"]);
        site.add(&["a"]);
        let mut batches = site.take();
        assert_eq!(shown(&batches), [("a", vec![1, 3]), ("b", vec![2])]);
        site.add(&["a"]);
        assert!(site.take().is_empty(), "somebody is at it");
        site.schedule.finish(batches.remove(0), Done::Finished);
        assert_eq!(*site.observing.0.lock(), [(1, true), (3, true)]);
        assert_eq!(shown(&site.take()), [("a", vec![4])]);
    }

    #[test]
    fn retried_changes_precede_later_ones_and_a_contended_key_is_changed_alone() {
        let mut site = Site::new();
        site.add(&["a", "b"]);
        let mut batches = site.take();
        site.add(&["a"]);
        site.schedule.finish(batches.remove(0), Done::Conflict);
        site.schedule.finish(batches.remove(0), Done::Retry);
        let rounds = [site.schedule.take(), site.schedule.take()];
        let contended = rounds.iter().flatten().find_map(|round| match round {
            Round::Contended(batch) => Some(batch),
            Round::Uncontended(_) => None,
        });
        let contended = contended.expect("somebody else was first");
        assert_eq!((shown(std::slice::from_ref(contended)), contended.tries), (vec![("a", vec![1, 3])], 1));
        let uncontended = rounds.iter().flatten().find_map(|round| match round {
            Round::Uncontended(batches) => Some(shown(batches)),
            Round::Contended(_) => None,
        });
        assert_eq!(uncontended, Some(vec![("b", vec![2])]));
        assert!(site.observing.0.lock().is_empty());
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[test]
    fn changes_requested_before_a_batch_is_executed_may_join_it() {
        let mut site = Site::new();
        site.add(&["a"]);
        let mut batches = site.take();
        site.add(&["a", "b"]);
        assert!(site.schedule.add_later(&mut batches[0]));
        assert!(!site.schedule.add_later(&mut batches[0]));
        assert_eq!(shown(&batches), [("a", vec![1, 2])]);
        site.schedule.finish(batches.remove(0), Done::Finished);
        assert_eq!(shown(&site.take()), [("b", vec![3])]);
        assert_eq!(*site.observing.0.lock(), [(1, true), (2, true)]);
    }

    #[test]
    fn after_an_uncertain_write_a_key_is_written_until_a_write_succeeds() {
        let mut site = Site::new();
        let fail = |site: &Site, unsure| {
            let error = BackendError::Closed;
            site.schedule.finish(site.take().remove(0), Done::Failed { error, unsure });
        };
        site.add(&["a"]);
        fail(&site, true);
        site.add(&["a"]);
        fail(&site, false);
        site.add(&["a"]);
        let batch = site.take().remove(0);
        assert!(batch.must_write);
        site.schedule.finish(batch, Done::Finished);
        site.add(&["a"]);
        assert!(!site.take().remove(0).must_write);
        assert_eq!(*site.observing.0.lock(), [(1, false), (2, false), (3, true)]);
    }

    #[test]
    fn a_closed_schedule_accepts_nothing_and_finishes_what_it_has() {
        let mut site = Site::new();
        site.add(&["a"]);
        site.schedule.close();
        assert!(!site.schedule.is_drained());
        site.schedule.finish(site.take().remove(0), Done::Finished);
        assert!(site.schedule.is_drained());
        let task = Task { job: Arc::clone(&site.observing) as Arc<dyn Job>, index: 9 };
        assert!(!site.schedule.add(std::iter::once(("a".into(), task))));
    }
}
