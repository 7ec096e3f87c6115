//! The jobs of a client's thread.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::failure::Failure;
use super::transaction::{NotChanged, Transaction};
use crate::backend::{BackendError, Effects, Ledger, Stamp};

/// Something to be done in a transaction, perhaps together with others.
pub(super) trait Job: Send {
    /// How many records it changes.
    fn records(&self) -> usize;

    /// Does it. The outcome is kept until the transaction has been stored. `is_full` means that there was no space the
    /// last time that something was to be written.
    ///
    /// # Errors
    ///
    /// If nothing of the transaction can be stored.
    fn run(&mut self, transaction: &mut Transaction<'_>, is_full: bool) -> Result<(), Failure>;

    /// The transaction has been stored, or it has not, for this reason.
    fn finish(self: Box<Self>, stored: Result<(), BackendError>);
}

type Answer<T> = oneshot::Sender<Result<T, BackendError>>;
pub(super) type Answered<T> = oneshot::Receiver<Result<T, BackendError>>;

/// Changes of some records.
pub(super) struct Change<T, F> {
    keys: Vec<Arc<str>>,
    change: F,
    outcome: Result<Vec<T>, BackendError>,
    answer: Answer<Vec<T>>,
}

impl<T, F> Change<T, F> {
    pub(super) fn new(keys: Vec<Arc<str>>, change: F) -> (Self, Answered<Vec<T>>) {
        let (answer, answered) = oneshot::channel();
        (Self { keys, change, outcome: Ok(Vec::new()), answer }, answered)
    }
}

/// Finds out whether the file can be used. After it could not be written, something is written.
pub(super) struct Ping {
    answer: Answer<()>,
}

impl Ping {
    pub(super) fn new() -> (Self, Answered<()>) {
        let (answer, answered) = oneshot::channel();
        (Self { answer }, answered)
    }
}

/// Reads which keys there are, from one on.
pub(super) struct Keys {
    from: String,
    limit: u32,
    found: Vec<String>,
    answer: Answer<Vec<String>>,
}

impl Keys {
    pub(super) fn new(from: String, limit: u32) -> (Self, Answered<Vec<String>>) {
        let (answer, answered) = oneshot::channel();
        (Self { from, limit, found: Vec::new(), answer }, answered)
    }
}

impl Job for Keys {
    fn records(&self) -> usize {
        0
    }

    fn run(&mut self, transaction: &mut Transaction<'_>, _: bool) -> Result<(), Failure> {
        self.found = transaction.keys(&self.from, self.limit)?;
        Ok(())
    }

    fn finish(self: Box<Self>, stored: Result<(), BackendError>) {
        let Self { found, answer, .. } = *self;
        drop(answer.send(stored.map(|()| found)));
    }
}

impl Job for Ping {
    fn records(&self) -> usize {
        0
    }

    fn run(&mut self, transaction: &mut Transaction<'_>, is_full: bool) -> Result<(), Failure> {
        if is_full {
            transaction.write_anyway();
        }
        Ok(())
    }

    fn finish(self: Box<Self>, stored: Result<(), BackendError>) {
        drop(self.answer.send(stored));
    }
}

impl<T, F> Job for Change<T, F>
where
    T: Send,
    F: FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send,
{
    fn records(&self) -> usize {
        self.keys.len()
    }

    fn run(&mut self, transaction: &mut Transaction<'_>, _: bool) -> Result<(), Failure> {
        let change = &mut self.change;
        let mut outcomes = Vec::with_capacity(self.keys.len());
        for (n, key) in self.keys.iter().enumerate() {
            match transaction.change(key, |ledger, stamp| change(n, ledger, stamp)) {
                Ok(outcome) => outcomes.push(outcome),
                // The jobs of others are not affected.
                Err(NotChanged::Unreadable(error)) => {
                    self.outcome = Err(error);
                    return Ok(());
                }
                Err(NotChanged::Failed(failure)) => return Err(failure),
            }
        }
        self.outcome = Ok(outcomes);
        Ok(())
    }

    fn finish(self: Box<Self>, stored: Result<(), BackendError>) {
        // Even if the receiver is gone, the job was done.
        drop(self.answer.send(stored.and(self.outcome)));
    }
}
