//! What one connection carries out next, and what becomes of it.

use std::sync::Arc;

use super::failure::{Failure, Remedy};
use super::job::Task;
use crate::backend::BackendError;

/// How often a change is tried if other clients keep changing the record first.
const TRIES: u32 = 4;

/// The pending changes of one key, to be stored together.
pub(in crate::backend) struct KeyBatch<R> {
    pub(in crate::backend) key: Arc<str>,
    pub(in crate::backend) tasks: Vec<Task>,
    /// Whether to write the record even if it stays the same: an earlier write may still be in flight, and must then
    /// fail.
    pub(in crate::backend) must_write: bool,
    /// How often it was tried before.
    pub(in crate::backend) tries: u32,
    /// The cached record, if there is one.
    pub(in crate::backend) written: Option<R>,
}

/// What one connection does next.
pub(in crate::backend) enum Round<R> {
    /// Read these records, and write those that no other client has changed in the meantime.
    Uncontended(Vec<KeyBatch<R>>),
    /// To change this record under its lock.
    Contended(KeyBatch<R>),
}

impl<R> Round<R> {
    pub(in crate::backend) fn into_batches(self) -> Vec<KeyBatch<R>> {
        match self {
            Self::Uncontended(batches) => batches,
            Self::Contended(batch) => vec![batch],
        }
    }
}

/// The result of a batch for one key.
pub(in crate::backend) enum Done {
    Finished,
    /// Not carried out, for this reason. If `unsure`, it may have been stored after all.
    Failed {
        error: BackendError,
        unsure: bool,
    },
    /// To be repeated, because another client changed the record first.
    Conflict,
    /// To be done again, on another session.
    Retry,
}

/// What became of each batch, and what was wrong with the connection, if anything was.
pub(in crate::backend) type Outcome<R> = (Vec<(KeyBatch<R>, Done)>, Option<Failure>);

/// Where something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Phase {
    Reading,
    Writing,
}

/// The outcome of batches that were to be carried out together, which failed.
pub(in crate::backend) fn failed<R>(batches: Vec<KeyBatch<R>>, failure: Failure, phase: Phase) -> Outcome<R> {
    let are_several = batches.len() > 1;
    let done = |batch: &KeyBatch<R>| {
        let is_certain = phase == Phase::Reading || failure.is_certain;
        if is_certain && batch.tries < TRIES {
            match failure.remedy {
                Remedy::Repeat => return Done::Conflict,
                Remedy::Reconnect => return Done::Retry,
                // Perhaps only one of them is refused: each is tried on its own.
                Remedy::Fix | Remedy::NotNow if are_several && !failure.is_broken => return Done::Conflict,
                Remedy::Wait | Remedy::NotNow | Remedy::Fix => {}
            }
        }
        let error = if is_certain { failure.before_storing() } else { failure.while_storing() };
        Done::Failed { error, unsure: !is_certain }
    };
    (
        batches.into_iter().map(|batch| (done(&batch), batch)).map(|(done, batch)| (batch, done)).collect(),
        Some(failure),
    )
}
