//! What ends an example early.

use std::io;
use std::process::ExitStatus;

use leasehold::StaleToken;
use tokio::task::JoinError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Lock(#[from] leasehold::Error),
    #[error(transparent)]
    Stale(#[from] StaleToken),
    #[error("a process ended early: {0}")]
    Ended(ExitStatus),
    #[error("unexpected message: `{0}`")]
    Protocol(String),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}
