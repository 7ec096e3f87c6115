//! The results of the changes that a connection executed.

use super::failure::{Cure, Failure};
use super::schedule::{Done, Work};

/// How often a change is tried if other clients keep changing the record first.
const TRIES: u32 = 4;

/// What became of each work, and what was wrong with the connection, if anything was.
pub(in crate::backend) type Outcome<R> = (Vec<(Work<R>, Done)>, Option<Failure>);

/// Where something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Phase {
    Reading,
    Writing,
}

/// The outcome of works that were to be carried out together, which failed.
pub(in crate::backend) fn failed<R>(works: Vec<Work<R>>, failure: Failure, phase: Phase) -> Outcome<R> {
    let are_several = works.len() > 1;
    let done = |work: &Work<R>| {
        let is_certain = phase == Phase::Reading || failure.is_certain;
        if is_certain && work.tries < TRIES {
            match failure.cure {
                Cure::Repeat => return Done::Conflict,
                Cure::Reconnect => return Done::Again,
                // Perhaps only one of them is refused: each is tried on its own.
                Cure::Fix if are_several && !failure.is_broken => return Done::Conflict,
                Cure::Wait | Cure::Fix => {}
            }
        }
        let error = if is_certain { failure.before_storing() } else { failure.while_storing() };
        Done::Failed { error, unsure: !is_certain }
    };
    (
        works.into_iter().map(|work| (done(&work), work)).map(|(done, work)| (work, done)).collect(),
        Some(failure),
    )
}
