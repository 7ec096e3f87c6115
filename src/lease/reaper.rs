//! Background releases: what a dropped guard or a dropped request still owes the store.
//!
//! Debts wait in a plain queue, so that `Drop` can add one without a runtime, and so that they outlive a
//! runtime that dies: the task that works the queue off can be started again on another one.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::task::consume_budget;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::backend::{Backend, Whose};
use crate::fence::FencingToken;
use crate::name::Name;
use crate::sync::Mutex;

/// Releases under way at once. The store answers them in order anyway; this bounds memory.
const MAX_IN_FLIGHT: usize = 256;
/// The pause before a release that was not answered is sent again.
const RETRY: Duration = Duration::from_millis(50);
/// How long a release is sent again while it is not answered, or for its lease if that is longer. No request can be on its way for
/// as long as this: the store has either carried it out or lost the connection that it came by.
const PATIENCE: Duration = Duration::from_secs(60);

/// The queue of releases owed, and the count of obligations not yet met.
#[derive(Debug, Default)]
pub(crate) struct Reaper {
    queue: Mutex<Queue>,
    queued: Notify,
    settled: Notify,
    obligations: TaskTracker,
    /// How many releases were never confirmed.
    given_up: AtomicUsize,
}

#[derive(Debug, Default)]
struct Queue {
    debts: VecDeque<Debt>,
    /// The keys with debts that are queued or in flight.
    unsettled: HashMap<Arc<str>, Progress>,
}

/// How many debts of a key there have been, and how many of them are settled, since there last were none.
#[derive(Debug, Default)]
struct Progress {
    queued: usize,
    settled: usize,
}

/// A release that must reach the store.
#[derive(Clone)]
struct Debt {
    name: Name,
    whose: Whose,
    term: Duration,
    /// The token of the grant, if there was one.
    token: Option<FencingToken>,
    _open: TaskTrackerToken,
}

impl fmt::Debug for Debt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Debt").field("name", &self.name).field("whose", &self.whose).finish_non_exhaustive()
    }
}

/// Whoever holds this owes the store the release of one lease, or of a part of it. Dropping it queues the release.
#[derive(Debug)]
#[must_use = "dropping an obligation queues the release"]
pub(crate) struct Obligation {
    debt: Debt,
    reaper: Arc<Reaper>,
    owed: bool,
    /// The reaper is at it, so the debt is counted as unsettled already.
    releasing: bool,
}

impl Obligation {
    /// What is owed is the release of a grant with this token.
    pub(crate) const fn granted(mut self, token: FencingToken) -> Self {
        self.debt.token = Some(token);
        self
    }

    /// What is to be released.
    pub(crate) const fn whose(&self) -> Whose {
        self.debt.whose
    }

    /// The store has confirmed that nothing is left to release.
    pub(crate) fn settle(mut self) {
        self.owed = false;
    }
}

impl Drop for Obligation {
    fn drop(&mut self) {
        if self.owed {
            self.reaper.push(self.debt.clone(), self.releasing);
        } else if self.releasing {
            self.reaper.mark_settled(self.debt.name.key());
        }
    }
}

impl Reaper {
    /// Takes on the obligation to release a lease, before anything is sent for it, or a part of one that is held.
    pub(crate) fn oblige(self: &Arc<Self>, name: Name, whose: Whose, term: Duration) -> Obligation {
        let debt = Debt { name, whose, term, token: None, _open: self.obligations.token() };
        Obligation { debt, reaper: Arc::clone(self), owed: true, releasing: false }
    }

    /// Waits until as many releases of `key` are settled as are queued or in flight now, so that a request sent then
    /// finds what was dropped before it released. Those queued later are not waited for.
    pub(crate) async fn settled(&self, key: &str) {
        let progress = |queue: &Queue| queue.unsettled.get(key).map(|p| (p.queued, p.settled));
        let Some((goal, _)) = progress(&self.queue.lock()) else { return };
        loop {
            let settled = self.settled.notified();
            if progress(&self.queue.lock()).is_none_or(|(_, settled)| settled >= goal) {
                return;
            }
            settled.await;
        }
    }

    /// Waits until every obligation has been met or given up, and tells whether all were met. None may be taken on any more.
    pub(crate) async fn drained(&self) -> bool {
        let given_up = || self.given_up.load(Ordering::Relaxed);
        let before = given_up();
        self.obligations.close();
        self.obligations.wait().await;
        given_up() == before
    }

    /// Works the queue off until `abandoned` and nothing is left to do.
    pub(crate) async fn run(self: Arc<Self>, backend: Arc<dyn Backend>, abandoned: CancellationToken) {
        let mut releases = FuturesUnordered::new();
        loop {
            // As in the watchdog: a store that answers at once must not keep other tasks from running.
            consume_budget().await;
            while releases.len() < MAX_IN_FLIGHT {
                let Some(obligation) = self.pop() else { break };
                releases.push(release(&self, backend.as_ref(), obligation));
            }
            tokio::select! {
                biased;
                Some(()) = releases.next() => {}
                () = self.queued.notified(), if releases.len() < MAX_IN_FLIGHT => {}
                // The last debt may have been queued since the line above was looked at: then there is something to do.
                () = abandoned.cancelled(), if releases.is_empty() => {
                    if self.queue.lock().debts.is_empty() {
                        return;
                    }
                }
            }
        }
    }

    fn push(&self, debt: Debt, counted: bool) {
        let mut queue = self.queue.lock();
        if !counted {
            queue.unsettled.entry(Arc::clone(debt.name.key())).or_default().queued += 1;
        }
        queue.debts.push_back(debt);
        drop(queue);
        self.queued.notify_one();
    }

    /// The oldest debt, as an obligation: if the runtime dies in the middle of it, it goes back to the queue.
    fn pop(self: &Arc<Self>) -> Option<Obligation> {
        let debt = self.queue.lock().debts.pop_front()?;
        Some(Obligation { debt, reaper: Arc::clone(self), owed: true, releasing: true })
    }

    fn mark_settled(&self, key: &Arc<str>) {
        let mut queue = self.queue.lock();
        if let Some(progress) = queue.unsettled.get_mut(key) {
            progress.settled += 1;
            if progress.settled == progress.queued {
                queue.unsettled.remove(key);
            }
        }
        drop(queue);
        self.settled.notify_waiters();
    }
}

/// Sends one release until the store confirms it. That a lease has passed is no reason to stop: the request itself may still be
/// on its way, and be granted then.
async fn release(reaper: &Reaper, backend: &dyn Backend, obligation: Obligation) {
    let Debt { name, whose, term, token, .. } = &obligation.debt;
    let token = token.map(FencingToken::get);
    let give_up = Instant::now() + PATIENCE.max(*term);
    loop {
        match backend.release(name.resource(), *whose).await {
            Ok(released) => {
                tracing::debug!(name = %name, token, ?released, "released in the background");
                break;
            }
            Err(error) if error.is_transient() && Instant::now() < give_up => {
                tracing::debug!(name = %name, token, %error, "release not answered, sending it again");
                sleep(RETRY).await;
            }
            Err(error) => {
                tracing::warn!(name = %name, token, %error, "release given up: it happens when the lease ends");
                reaper.given_up.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
    }
    obligation.settle();
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;
    use crate::backend::{Kind, LeaseIds, MemoryBackend};

    #[tokio::test]
    async fn a_debt_queued_just_before_the_end_is_paid() {
        let (reaper, abandoned) = (Arc::new(Reaper::default()), CancellationToken::new());
        let backend: Arc<dyn Backend> = Arc::new(MemoryBackend::new());
        let mut run = pin!(Arc::clone(&reaper).run(backend, abandoned.clone()));
        assert!(poll!(&mut run).is_pending());

        let name = Name::new("lock:", "a", Kind::Mutex).unwrap();
        let whose = Whose::Lease(LeaseIds::new().next());
        let obligation = reaper.oblige(name, whose, Duration::from_secs(1));
        // Without a word of it, as for a task that is interrupted between its looks at the queue and at the end.
        reaper.queue.lock().debts.push_back(obligation.debt.clone());
        obligation.settle();
        abandoned.cancel();
        run.await;
        assert!(reaper.queue.lock().debts.is_empty());
        reaper.drained().await;
    }
}
