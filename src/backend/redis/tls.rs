//! When a link is opened over TLS, and what it means if it is not.

use super::link::CallError;
use super::target::Target;
pub(super) use crate::backend::tls::{NO_TLS, Tls};
use crate::backend::tls::{TlsOptions, invalid};
use crate::error::Error;

pub(super) const NEEDS_TLS: &str =
    "the server requires TLS: use a URL that begins with `rediss://` or similar";

/// How the links to this target are opened.
pub(super) fn of(target: &Target, options: Option<&TlsOptions>) -> Result<Option<Tls>, Error> {
    match options {
        Some(_) if !target.tls => {
            Err(invalid("the URL's scheme does not enable TLS: use `rediss://` or similar"))
        }
        _ if !target.tls => Ok(None),
        options => Tls::new(&options.cloned().unwrap_or_default(), &target.to_string()).map(Some),
    }
}

/// Explains why a link was not opened over TLS. What the server itself answered stays as it is.
pub(super) fn explain(error: CallError) -> CallError {
    use crate::backend::tls::explain;

    match error {
        CallError::NotSent(text) => CallError::NotSent(explain(text)),
        CallError::Timeout(text) => CallError::Timeout(explain(text)),
        CallError::Lost(text) => CallError::Lost(explain(text)),
        CallError::Answer(text) => CallError::Answer(text),
    }
}
