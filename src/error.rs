//! What can go wrong, sorted by what the caller can do about it.

use std::fmt;
use std::time::Duration;

use crate::fence::FencingToken;

/// Everything that this crate's calls can fail with.
///
/// Contention is not among them: `try_lock` answers `None`, and only a call with a time limit can time out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument cannot be used; nothing has been changed anywhere. Mend the call.
    #[error("invalid {what}: {why}")]
    #[non_exhaustive]
    InvalidArgument {
        /// Which argument: `name`, `lease`, `url`, ...
        what: &'static str,
        /// What is wrong with it. Passwords in URLs are left out.
        why: String,
    },

    /// Somebody else held the resource for as long as the caller was ready to wait. Try again later.
    #[error("timed out after {waited:?} waiting for `{name}`")]
    #[non_exhaustive]
    TimedOut {
        /// The resource.
        name: String,
        /// How long was waited.
        waited: Duration,
    },

    /// The lease ended before its guard was released: somebody else may hold the resource now. Stop, and
    /// treat what was written since the last renewal as contested unless the resource checks tokens.
    #[error("the lease on `{name}` (token {token}) was lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The resource.
        name: String,
        /// The token of the lease that was lost.
        token: FencingToken,
        /// How it was lost.
        reason: LossReason,
    },

    /// The limit that a semaphore's handle states is not the one in force; nothing was granted. Let all handles state the
    /// same limit, or change the limit in force with `resize`.
    #[error("`{name}`: this handle states a limit of {stated}, the limit in force is {in_force}")]
    #[non_exhaustive]
    LimitDiffers {
        /// The semaphore.
        name: String,
        /// What this handle states.
        stated: u32,
        /// What the others go by.
        in_force: u32,
    },

    /// The store did not answer in time or cannot be reached. Whatever it may have done is undone in the
    /// background, or by itself within a lease. Try again later.
    #[error("{step}{} at {store}: store unavailable: {source}", about(.name))]
    #[non_exhaustive]
    StoreUnavailable {
        /// The resource, where the step concerns one.
        name: Option<String>,
        /// What was being done: `connect`, `acquire`, `release`, ...
        step: &'static str,
        /// The store's address, without password.
        store: String,
        /// What the store's client reported.
        source: BackendError,
    },

    /// The store answered, and the answer was no: wrong type under the key, missing permission, out of memory.
    /// Trying again will not help until somebody mends the store.
    #[error("{step}{} at {store}: refused by the store: {source}", about(.name))]
    #[non_exhaustive]
    StoreRefused {
        /// The resource, where the step concerns one.
        name: Option<String>,
        /// What was being done: `connect`, `acquire`, `release`, ...
        step: &'static str,
        /// The store's address, without password.
        store: String,
        /// What the store said.
        source: BackendError,
    },

    /// This store, or this build of the crate, cannot do what was asked for.
    #[error("not supported by {store}: {what}")]
    #[non_exhaustive]
    Unsupported {
        /// The store's address or scheme, without password.
        store: String,
        /// What was asked for, and what would be needed.
        what: String,
    },

    /// The client was shut down.
    #[error("{step}{}: the client is shut down", about(.name))]
    #[non_exhaustive]
    Closed {
        /// The resource, where the step concerns one.
        name: Option<String>,
        /// What was being done.
        step: &'static str,
    },
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ran out: the holder was paused, or the store says that it forgot the lease.
    Expired,
    /// The store names another holder, or something else stands where the lease was.
    Taken,
    /// No renewal was confirmed before the lease ran out, because the store did not answer.
    StoreUnreachable,
    /// Somebody called `force_release`.
    Revoked,
    /// The maximum hold time was reached.
    HeldTooLong,
    /// The client was shut down.
    ClientClosed,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "it expired",
            Self::Taken => "the store names another holder",
            Self::StoreUnreachable => "the store did not confirm it in time",
            Self::Revoked => "it was released by force",
            Self::HeldTooLong => "the maximum hold time was reached",
            Self::ClientClosed => "the client was shut down",
        })
    }
}

/// What a store reports when it cannot answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The request certainly did not reach the store.
    #[error("the request was not sent: {source}")]
    NotSent {
        /// The cause.
        source: BoxError,
    },
    /// The request may or may not have been carried out: it can be sent again.
    #[error("no answer, the outcome is unknown: {source}")]
    Unanswered {
        /// The cause.
        source: BoxError,
    },
    /// Something else stands under the key: no lock where one was asked for, or no semaphore.
    #[error("something else stands under the key: {source}")]
    WrongType {
        /// What the store said.
        source: BoxError,
    },
    /// The store answered with an error.
    #[error("{source}")]
    Refused {
        /// What the store said.
        source: BoxError,
    },
    /// The request states a limit that is not the one in force.
    #[error("a limit of {stated} was stated, the limit in force is {in_force}")]
    LimitDiffers {
        /// What the request states.
        stated: u32,
        /// What is in force.
        in_force: u32,
    },
    /// More permits are asked for than the limit in force allows to anybody.
    #[error("{permits} permits were asked for, the limit is {limit}")]
    AboveLimit {
        /// How many were asked for.
        permits: u32,
        /// The limit in force.
        limit: u32,
    },
    /// The store cannot do this.
    #[error("{what}")]
    Unsupported {
        /// What was asked for, and what would be needed.
        what: String,
    },
    /// The backend was closed.
    #[error("the backend is closed")]
    Closed,
}

/// Any error of a store's client.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl BackendError {
    /// The same error once more, for another request that had the same answer.
    pub(crate) fn again(&self) -> Self {
        let same = |source: &BoxError| source.to_string().into();
        match self {
            Self::NotSent { source } => Self::NotSent { source: same(source) },
            Self::Unanswered { source } => Self::Unanswered { source: same(source) },
            Self::WrongType { source } => Self::WrongType { source: same(source) },
            Self::Refused { source } => Self::Refused { source: same(source) },
            Self::LimitDiffers { stated, in_force } => {
                Self::LimitDiffers { stated: *stated, in_force: *in_force }
            }
            Self::AboveLimit { permits, limit } => Self::AboveLimit { permits: *permits, limit: *limit },
            Self::Unsupported { what } => Self::Unsupported { what: what.clone() },
            Self::Closed => Self::Closed,
        }
    }

    /// A semaphore is not released by force.
    pub(crate) fn many_holders() -> Self {
        Self::Unsupported { what: "releasing a semaphore by force: it has many holders".to_owned() }
    }

    /// Whether sending the same request again may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::NotSent { .. } | Self::Unanswered { .. })
    }
}

impl Error {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::InvalidArgument { what, why: why.into() }
    }

    pub(crate) fn permits_above(permits: u32, limit: u32) -> Self {
        Self::invalid("permits", format!("{permits} can never be had, the limit is {limit}"))
    }

    /// Puts a store's own error into words: which name, which step, which store.
    pub(crate) fn from_backend(
        source: BackendError,
        step: &'static str,
        name: Option<&str>,
        store: &str,
    ) -> Self {
        let (name, store) = (name.map(str::to_owned), store.to_owned());
        match source {
            BackendError::NotSent { .. } | BackendError::Unanswered { .. } => {
                Self::StoreUnavailable { name, step, store, source }
            }
            BackendError::WrongType { .. } | BackendError::Refused { .. } => {
                Self::StoreRefused { name, step, store, source }
            }
            BackendError::LimitDiffers { stated, in_force } => {
                Self::LimitDiffers { name: name.unwrap_or_default(), stated, in_force }
            }
            BackendError::AboveLimit { permits, limit } => Self::permits_above(permits, limit),
            BackendError::Unsupported { what } => Self::Unsupported { store, what },
            BackendError::Closed => Self::Closed { name, step },
        }
    }
}

/// ` of "name"`, or nothing.
fn about(name: &Option<String>) -> String {
    name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default()
}
