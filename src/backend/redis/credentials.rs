//! Credentials for the server.

use std::fmt;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};

use crate::error::BoxError;

/// A user and a password. `Debug` shows the user only.
///
/// As a [`CredentialsProvider`], it provides itself.
///
/// ```
/// let credentials = leasehold::redis::Credentials::new("worker", "secret");
/// assert!(!format!("{credentials:?}").contains("secret"));
/// ```
#[derive(Clone)]
pub struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Credentials {
    /// A user and its password.
    #[must_use]
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: Some(user.into()), password: password.into() }
    }

    /// The password of the user `default`.
    #[must_use]
    pub fn for_default_user(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Provides credentials that change, such as passwords that are rotated or tokens that expire: see
/// [`RedisBuilder::credentials`](crate::redis::RedisBuilder::credentials).
///
/// ```
/// use std::io;
/// use std::path::PathBuf;
///
/// use futures::FutureExt;
/// use futures::future::BoxFuture;
/// use leasehold::BoxError;
/// use leasehold::redis::{Credentials, CredentialsProvider};
///
/// /// The password is in a file, which is replaced when it changes.
/// struct InFile(PathBuf);
///
/// impl CredentialsProvider for InFile {
///     fn credentials(&self) -> BoxFuture<'_, Result<Credentials, BoxError>> {
///         async {
///             let password = tokio::fs::read_to_string(&self.0).await?;
///             Ok(Credentials::new("worker", password.trim_end()))
///         }
///         .boxed()
///     }
/// }
/// ```
pub trait CredentialsProvider: Send + Sync {
    /// The credentials that are valid now.
    ///
    /// This is called before every attempt to connect: for each of the client's connections, again whenever one was
    /// lost, and while the server cannot be reached or rejects what was provided, up to five times a second for each.
    /// Calls may overlap. A provider that has to contact another service should therefore cache the answer for as long
    /// as it is valid.
    ///
    /// It is also called on the thread that renews the leases of all clients of the process, so it must not block. The
    /// tokio runtime of that thread has timers and I/O enabled.
    ///
    /// A call that takes longer than three quarters of the [connect
    /// timeout](crate::redis::RedisBuilder::connect_timeout) is given up: its future is dropped, and this attempt to
    /// connect fails.
    ///
    /// # Errors
    ///
    /// On any error, this attempt to connect fails. The error's text becomes part of this crate's error texts and logs,
    /// so it should not contain secrets. The credentials themselves are never logged.
    fn credentials(&self) -> BoxFuture<'_, Result<Credentials, BoxError>>;
}

impl CredentialsProvider for Credentials {
    fn credentials(&self) -> BoxFuture<'_, Result<Credentials, BoxError>> {
        ready(Ok(self.clone())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_password() {
        let text =
            format!("{:?} {:?}", Credentials::new("me", "hunter2"), Credentials::for_default_user("hunter2"));
        assert!(text.contains("me") && !text.contains("hunter2"), "{text}");
    }
}
