//! The results of the changes that a connection executed.

use super::failure::{Failure, Remedy};
use super::schedule::{Done, KeyBatch};

/// How often a change is tried if other clients keep changing the record first.
const TRIES: u32 = 4;

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
