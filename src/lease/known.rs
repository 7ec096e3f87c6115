//! What the store may know of a lease, and therefore what a release has to end.
//!
//! A lease collects this from the answers to its requests, from grants that are pushed to it, and from requests of
//! which the answer was never seen. A release takes it along, so that from the end of a lease on, only what has come to
//! light since then is collected: a request that the store executes after the release makes the lease known again, and
//! another release follows.

use crate::backend::{Answer, BackendError};

/// What the store may know of a lease that no release covers yet, from the least to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Known {
    /// Nothing: no request has left this process, or the store has said that it is busy.
    #[default]
    Nothing,
    /// Nothing, by what it says: it has declined each request that it received.
    Declined,
    /// A place or a hold, by an answer or an event.
    Possible,
    /// The same, and a request was dropped or not answered: the store may execute it at any time.
    Unsettled,
}

impl Known {
    pub(super) fn by(answer: &Result<Answer, BackendError>) -> Self {
        match answer {
            Ok(Answer::Busy { .. }) => Self::Nothing,
            Err(error) if error.was_never_sent() => Self::Nothing,
            Err(error) if error.is_refusal() => Self::Declined,
            Err(BackendError::Unanswered { .. }) => Self::Unsettled,
            Ok(_) | Err(_) => Self::Possible,
        }
    }

    /// Whether a release may find something.
    pub(super) fn is_possible(self) -> bool {
        self >= Self::Possible
    }
}
