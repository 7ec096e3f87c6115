//! What stores answer, in a form that can be compared.

use std::collections::BTreeMap;

use leasehold::LossReason;
use leasehold::backend::{Acquired, BackendError, Inspection, Released, Renewal};

use crate::plan::Label;

/// What became of requests that were on their way.
pub(crate) type Answers = BTreeMap<Label, Reply>;

/// What came of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// What the verb answered, if the step is one that is answered at once.
    pub(crate) reply: Option<Reply>,
    /// Which requests have been answered.
    pub(crate) answers: Answers,
    /// What was seen, if the step is a look.
    pub(crate) seen: Option<Inspection>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// With this token.
    Granted(u64),
    Busy,
    Renewed,
    Lost(LossReason),
    Released(Released),
    Done,
    LimitDiffers {
        stated: u32,
        in_force: u32,
    },
    AboveLimit {
        permits: u32,
        limit: u32,
    },
    Unsupported,
    /// Any other error.
    Error(String),
}

impl From<BackendError> for Reply {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::LimitDiffers { stated, in_force } => Self::LimitDiffers { stated, in_force },
            BackendError::AboveLimit { permits, limit } => Self::AboveLimit { permits, limit },
            BackendError::Unsupported { .. } => Self::Unsupported,
            other => Self::Error(other.to_string()),
        }
    }
}

impl From<Acquired> for Reply {
    fn from(acquired: Acquired) -> Self {
        match acquired {
            Acquired::Granted(grant) => Self::Granted(grant.token.get()),
            _ => Self::Busy,
        }
    }
}

impl From<Renewal> for Reply {
    fn from(renewal: Renewal) -> Self {
        match renewal {
            Renewal::Lost(reason) => Self::Lost(reason),
            _ => Self::Renewed,
        }
    }
}

impl From<Released> for Reply {
    fn from(released: Released) -> Self {
        Self::Released(released)
    }
}

impl From<()> for Reply {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl<T: Into<Self>> From<Result<T, BackendError>> for Reply {
    fn from(answer: Result<T, BackendError>) -> Self {
        answer.map_or_else(Into::into, Into::into)
    }
}
