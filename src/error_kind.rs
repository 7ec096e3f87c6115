//! The kinds of errors and reasons for losses, as stable names for programs.

use std::fmt;

use crate::error::{Error, LossReason};

/// The kind of an [`Error`], without its details: a label for metrics, and what to decide an answer by.
///
/// | kind | name | answer of an HTTP service |
/// |---|---|---|
/// | [`InvalidArgument`](Self::InvalidArgument) | `invalid_argument` | 400 if the argument comes from the request, otherwise 500 |
/// | [`TimedOut`](Self::TimedOut) | `timed_out` | 429 for a semaphore, which limits the rate; 409 for a lock, because another request is changing the same thing |
/// | [`Lost`](Self::Lost) | `lost` | 503: the work was stopped, and can be repeated from the start |
/// | [`LimitDiffers`](Self::LimitDiffers) | `limit_differs` | 500: two versions of the service are configured differently |
/// | [`StoreUnavailable`](Self::StoreUnavailable) | `store_unavailable` | 503 |
/// | [`StoreRefused`](Self::StoreRefused) | `store_refused` | 500: someone must correct the store or its permissions |
/// | [`Unsupported`](Self::Unsupported) | `unsupported` | 500 |
/// | [`Forked`](Self::Forked) | `forked` | 500 |
/// | [`Closed`](Self::Closed) | `closed` | 503: this instance is shutting down, and another one can answer |
///
/// Whether a repetition can help says [`Error::is_retryable`]. The names never change; kinds may be added.
///
/// ```
/// use leasehold::{Error, ErrorKind};
///
/// fn status(error: &Error, is_semaphore: bool) -> u16 {
///     match error.kind() {
///         ErrorKind::TimedOut if is_semaphore => 429,
///         ErrorKind::TimedOut => 409,
///         _ if error.is_retryable() => 503,
///         ErrorKind::Closed => 503,
///         _ => 500,
///     }
/// }
/// # let error = leasehold::Client::memory().mutex("").expect_err("a name must not be empty");
/// # assert_eq!((error.kind().as_str(), status(&error, false)), ("invalid_argument", 500));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid.
    InvalidArgument,
    /// The resource did not become available in time.
    TimedOut,
    /// The lease was lost.
    Lost,
    /// The limit of a semaphore's handle is not the one in force.
    LimitDiffers,
    /// The store cannot be reached, or declines for now.
    StoreUnavailable,
    /// The store refused the request.
    StoreRefused,
    /// The store or this build does not support the request.
    Unsupported,
    /// The process has forked since the client was made.
    Forked,
    /// The client was shut down.
    Closed,
}

impl ErrorKind {
    /// A stable name, for metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::TimedOut => "timed_out",
            Self::Lost => "lost",
            Self::LimitDiffers => "limit_differs",
            Self::StoreUnavailable => "store_unavailable",
            Self::StoreRefused => "store_refused",
            Self::Unsupported => "unsupported",
            Self::Forked => "forked",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// The kind of this error, without its details.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidArgument { .. } => ErrorKind::InvalidArgument,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Lost { .. } => ErrorKind::Lost,
            Self::LimitDiffers { .. } => ErrorKind::LimitDiffers,
            Self::StoreUnavailable { .. } => ErrorKind::StoreUnavailable,
            Self::StoreRefused { .. } => ErrorKind::StoreRefused,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Forked { .. } => ErrorKind::Forked,
            Self::Closed { .. } => ErrorKind::Closed,
        }
    }
}

impl LossReason {
    /// A stable name, for metrics. For a text, use `to_string`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Missing => "missing",
            Self::Taken => "taken",
            Self::StoreUnreachable => "store_unreachable",
            Self::StoreRefused => "store_refused",
            Self::Revoked => "revoked",
            Self::HeldTooLong => "held_too_long",
            Self::ClientClosed => "client_closed",
        }
    }
}
