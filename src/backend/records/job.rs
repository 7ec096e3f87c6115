//! The changes that a client requests.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::backend::{BackendError, Effects, Ledger, Stamp};

/// Changes of some records, each of which is carried out and stored by itself.
pub(in crate::backend) trait Job: Send + Sync {
    /// Changes the record with this index. Its outcome is kept until the record has been stored. It is called again,
    /// with the record of that time, if it has not.
    fn run(&self, index: usize, ledger: &mut Ledger, stamp: Stamp) -> Effects;

    /// The record has been stored, or it has not, for this reason. Called once for each record.
    fn finish(&self, index: usize, stored: Result<(), BackendError>);
}

/// One record of a job.
#[derive(Clone)]
pub(in crate::backend) struct Task {
    pub(in crate::backend) job: Arc<dyn Job>,
    pub(in crate::backend) index: usize,
}

impl Task {
    pub(in crate::backend) fn run(&self, ledger: &mut Ledger, stamp: Stamp) -> Effects {
        self.job.run(self.index, ledger, stamp)
    }

    pub(in crate::backend) fn finish(&self, stored: Result<(), BackendError>) {
        self.job.finish(self.index, stored);
    }
}

/// Runs tasks, one after the other.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(in crate::backend) fn running(tasks: &[Task]) -> impl Fn(&mut Ledger, Stamp) -> Effects {
    move |ledger, stamp| tasks.iter().map(|task| task.run(ledger, stamp)).collect()
}

pub(in crate::backend) type Answered<T> = oneshot::Receiver<Result<Vec<T>, BackendError>>;

/// A job that answers when all of its records are done.
pub(in crate::backend) struct Change<T, F>(Mutex<Progress<T, F>>);

struct Progress<T, F> {
    change: F,
    outcomes: Vec<Option<T>>,
    /// How many records are not done.
    left: usize,
    /// The first error.
    error: Option<BackendError>,
    answer: Option<oneshot::Sender<Result<Vec<T>, BackendError>>>,
}

impl<T, F> Change<T, F> {
    pub(in crate::backend) fn new(records: usize, change: F) -> (Self, Answered<T>) {
        let (answer, answered) = oneshot::channel();
        let outcomes = (0..records).map(|_| None).collect();
        let progress = Progress { change, outcomes, left: records, error: None, answer: Some(answer) };
        (Self(Mutex::new(progress)), answered)
    }
}

impl<T, F> Job for Change<T, F>
where
    T: Send,
    F: FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send,
{
    fn run(&self, index: usize, ledger: &mut Ledger, stamp: Stamp) -> Effects {
        let mut progress = self.0.lock();
        let (outcome, effects) = (progress.change)(index, ledger, stamp);
        progress.outcomes[index] = Some(outcome);
        effects
    }

    fn finish(&self, _: usize, stored: Result<(), BackendError>) {
        let mut progress = self.0.lock();
        progress.left -= 1;
        if let Err(error) = stored {
            progress.error.get_or_insert(error);
        }
        if progress.left > 0 {
            return;
        }
        let outcomes = std::mem::take(&mut progress.outcomes);
        let answer = match progress.error.take() {
            Some(error) => Err(error),
            None => Ok(outcomes.into_iter().flatten().collect()),
        };
        if let Some(send) = progress.answer.take() {
            // The caller may be gone; the changes have been made anyway.
            drop(send.send(answer));
        }
    }
}
