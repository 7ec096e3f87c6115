//! Why a request was not served.

use std::fmt;

use crate::error::{BoxError, Error};

/// A request that a layer did not let through, or did not let finish.
///
/// Its text says all that is known, including the cause: see [`Error`].
///
/// ```
/// use leasehold::BoxError;
/// use leasehold::tower::Rejected;
///
/// fn answer(error: &BoxError) -> (u16, String) {
///     match error.downcast_ref::<Rejected>() {
///         Some(rejected) => (rejected.status(), format!("{}: {rejected}", rejected.name())),
///         None => (500, error.to_string()),
///     }
/// }
/// # drop(answer(&"".into()));
/// ```
#[derive(Clone, Debug)]
pub struct Rejected {
    name: String,
    status: u16,
    error: Option<Error>,
}

impl Rejected {
    /// What is wanted is taken, and the request does not wait.
    pub(super) fn taken(name: &str, status: u16) -> Self {
        Self { name: name.to_owned(), status, error: None }
    }

    /// It could not be acquired. `taken` is the status if that is because others hold it.
    pub(super) fn not_acquired(name: &str, error: Error, taken: u16) -> Self {
        let status = match &error {
            Error::TimedOut { .. } => taken,
            // It comes from the request.
            Error::InvalidArgument { argument: "name", .. } => 400,
            Error::StoreUnavailable { .. } | Error::Lost { .. } | Error::Closed { .. } => 503,
            _ => 500,
        };
        Self { name: name.to_owned(), status, error: Some(error) }
    }

    pub(super) fn lost(name: &str, error: Error) -> Self {
        Self { name: name.to_owned(), status: 503, error: Some(error) }
    }

    /// The status of HTTP to answer with:
    ///
    /// | status | if |
    /// |---|---|
    /// | 400 | the key that was taken from the request cannot be the name of a lock: it is empty or too long |
    /// | 409 | another request holds the lock, and did not release it within the wait limit |
    /// | 429 | no permit became free within the wait limit |
    /// | 503 | the store does not answer, the lease was lost before the response was there, or the client is shut down |
    /// | 500 | anything else: the store refuses the request, another limit is in force |
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// The name of the lock or semaphore, without prefix.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The error of the lock or semaphore. `None` if the wait limit is zero and others hold it.
    #[must_use]
    pub const fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }
}

impl std::error::Error for Rejected {}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Some(error) => error.fmt(f),
            None => write!(f, "`{}` is taken, and the request does not wait for it", self.name),
        }
    }
}

/// The status to answer with, if the error comes from a layer of this crate: see [`Rejected::status`].
#[must_use]
pub fn status(error: &BoxError) -> Option<u16> {
    error.downcast_ref().map(Rejected::status)
}
