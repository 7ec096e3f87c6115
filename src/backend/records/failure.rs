//! Why a server could not carry something out, and what follows from it.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::backend::BackendError;

/// What helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Remedy {
    /// Repeat at once: another client was changing the same rows.
    Repeat,
    /// To do the same on another session.
    Reconnect,
    /// To try again later: the server cannot be reached.
    Wait,
    /// To try again later: the server has declined for a reason that can be over within seconds.
    NotNow,
    /// Only a change of settings, permissions, or the server helps.
    Fix,
}

/// Why something failed.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Failure {
    pub(in crate::backend) why: String,
    pub(in crate::backend) remedy: Remedy,
    /// Whether the session has to be replaced.
    pub(in crate::backend) is_broken: bool,
    /// Whether it is certain that nothing was stored.
    pub(in crate::backend) is_certain: bool,
}

impl Failure {
    /// The server cannot currently be reached or used. Nothing was sent.
    pub(in crate::backend) fn unavailable(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: Remedy::Wait, is_broken: true, is_certain: true }
    }

    /// The client was closed before there was a connection.
    pub(in crate::backend) fn closed() -> Self {
        Self::unavailable("the client is closed")
    }

    /// The server has declined for a reason that can be over within seconds. Nothing was stored, and the session is of
    /// no use.
    pub(in crate::backend) fn not_now(why: impl Into<String>) -> Self {
        Self { remedy: Remedy::NotNow, ..Self::unavailable(why) }
    }

    /// Trying again does not help. Nothing was sent.
    pub(in crate::backend) fn refused(why: impl Into<String>) -> Self {
        Self { remedy: Remedy::Fix, ..Self::unavailable(why) }
    }

    /// No answer within the time limit.
    pub(in crate::backend) fn timed_out(limit: Duration) -> Self {
        Self { is_certain: false, ..Self::unavailable(format!("no answer within {limit:?}")) }
    }

    /// The error for a request of which nothing was stored.
    pub(in crate::backend) fn before_storing(&self) -> BackendError {
        let source = self.why.clone().into();
        match self.remedy {
            Remedy::Fix => BackendError::Refused { source },
            // What was repeated for nothing a few times may be possible in a while.
            Remedy::NotNow | Remedy::Repeat => BackendError::RefusedForNow { source },
            // The server has declined on each of several sessions.
            Remedy::Reconnect if self.is_certain => BackendError::RefusedForNow { source },
            Remedy::Reconnect | Remedy::Wait => BackendError::NotSent { source },
        }
    }

    /// The error for a request that was about to be stored.
    pub(in crate::backend) fn while_storing(&self) -> BackendError {
        if self.is_certain {
            return self.before_storing();
        }
        BackendError::Unanswered { source: self.why.clone().into() }
    }
}

/// Adds the causes of an error to a text, except those that it contains already.
pub(in crate::backend) fn with_causes(mut text: String, error: &dyn Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            let colon = if text.is_empty() { "" } else { ": " };
            text.push_str(&format!("{colon}{said}"));
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}
