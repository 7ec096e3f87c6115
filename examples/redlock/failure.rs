//! What ends the example early.

use std::io;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("neither redis-server nor valkey-server is installed, and LEASEHOLD_REDIS_SERVER names none")]
    NoServer,
    #[error(transparent)]
    Lock(#[from] leasehold::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something did not happen as promised.
    #[error("{0}")]
    Broken(String),
}

/// Fails with `why` unless `holds`.
pub(crate) fn check(holds: bool, why: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::Broken(why())) }
}
