//! Where the keeper's tasks run: on one runtime of the application after another.
//!
//! A run begins with a request, and is over when the client is abandoned, when its runtime ends, or when that makes no progress while
//! somebody waits on another one, or while a release waits.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::runtime::{Cancel, PROBE_INTERVAL};

/// The runs of a keeper's tasks. There is one at a time.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The number of the current run; 0 while there is none.
    current: AtomicU64,
    last: Mutex<Run>,
    /// Notified when a run is over.
    over: Notify,
}

/// A run, until it is over.
#[derive(Debug, Default)]
struct Run {
    number: u64,
    runtime: Option<Handle>,
    task: Option<Cancel>,
    /// When somebody last began to probe whether the runtime makes progress.
    probed: Option<Instant>,
}

impl Runs {
    /// Whether the tasks run.
    pub(super) fn is_running(&self) -> bool {
        self.current.load(Ordering::SeqCst) != 0
    }

    /// Begins a run on the current runtime, after `prepare`, and returns its number. `None` if there is one already.
    ///
    /// # Panics
    ///
    /// Outside a runtime, before anything is changed.
    pub(super) fn begin<T>(&self, prepare: impl FnOnce() -> T) -> Option<(u64, T)> {
        let (runtime, mut last) = (Handle::current(), self.last.lock());
        if self.is_running() {
            return None;
        }
        let prepared = prepare();
        let number = last.number + 1;
        let before = mem::replace(&mut *last, Run { number, runtime: Some(runtime), ..Run::default() });
        self.current.store(number, Ordering::SeqCst);
        // What follows from dropping a task must find the mutex free.
        drop(last);
        drop(before);
        Some((number, prepared))
    }

    /// The task of a run has been started; its future is dropped when the run is over.
    pub(super) fn started(&self, number: u64, task: Cancel) {
        let mut last = self.last.lock();
        if last.number == number && self.is_running() {
            last.task = Some(task);
        } else {
            drop(last);
            drop(task);
        }
    }

    /// Ends a run, and notifies those that wait for it. `false` if it is over already.
    pub(super) fn end(&self, number: u64) -> bool {
        if self.current.compare_exchange(number, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        let mut last = self.last.lock();
        let ended =
            (last.number == number).then(|| mem::replace(&mut *last, Run { number, ..Run::default() }));
        drop(last);
        // This makes what it was sending pending again, even if its runtime is not driven.
        drop(ended);
        self.over.notify_waiters();
        true
    }

    /// Completes when a run is over that is not over now.
    pub(super) fn over(&self) -> Notified<'_> {
        self.over.notified()
    }

    /// Whether the current run is on the current runtime.
    pub(super) fn is_here(&self) -> bool {
        self.last.lock().runtime.as_ref().is_some_and(|runtime| runtime.id() == Handle::current().id())
    }

    /// The current run, if that is on another runtime.
    pub(super) fn elsewhere(&self) -> Option<(u64, Handle)> {
        self.last.lock().elsewhere()
    }

    /// The same, if its runtime has not been probed for a while. The caller then probes it on behalf of all callers.
    pub(super) fn to_probe(&self) -> Option<(u64, Handle)> {
        let mut last = self.last.lock();
        let elsewhere = last.elsewhere()?;
        if last.probed.is_some_and(|probed| probed.elapsed() < PROBE_INTERVAL) {
            return None;
        }
        last.probed = Some(Instant::now());
        Some(elsewhere)
    }
}

impl Run {
    fn elsewhere(&self) -> Option<(u64, Handle)> {
        let runtime = self.runtime.clone().filter(|runtime| runtime.id() != Handle::current().id())?;
        Some((self.number, runtime))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;

    use futures::poll;

    use super::*;
    use crate::runtime::spawn_cancelable;

    #[tokio::test]
    async fn there_is_one_run_at_a_time_and_it_ends_once() {
        let runs = Runs::default();
        let (first, ()) = runs.begin(|| ()).unwrap();
        assert!(runs.is_running() && runs.begin(|| panic!("not prepared")).is_none());
        let mut over = pin!(runs.over());
        assert!(poll!(&mut over).is_pending());
        assert!(runs.end(first) && !runs.end(first) && !runs.is_running());
        assert!(poll!(&mut over).is_ready());
        let (second, ()) = runs.begin(|| ()).unwrap();
        assert!(second > first && !runs.end(first) && runs.is_running());
    }

    #[tokio::test]
    async fn the_task_of_a_run_is_aborted_when_the_run_is_over() {
        let runs = Runs::default();
        for started_in_time in [true, false] {
            let (run, ()) = runs.begin(|| ()).unwrap();
            let (task, cancel) = spawn_cancelable(pending::<()>());
            if started_in_time {
                runs.started(run, cancel);
                assert!(runs.end(run));
            } else {
                assert!(runs.end(run));
                runs.started(run, cancel);
            }
            assert!(task.await.unwrap_err().is_cancelled());
        }
    }
}
