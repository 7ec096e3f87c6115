//! What ends the example early.

use std::io;
use std::process::ExitStatus;

use leasehold::StaleToken;
use tokio::task::JoinError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("--crash kills a process, but with `memory:` there is only this one: add the --url of a server")]
    NothingToKill,
    #[error(transparent)]
    Lock(#[from] leasehold::Error),
    #[error(transparent)]
    Stale(#[from] StaleToken),
    #[error("the record is damaged at `{0}`")]
    Damaged(String),
    #[error("unexpected message from a worker: `{0}`")]
    Protocol(String),
    #[error("worker {number} ended early: {status}")]
    Worker { number: u32, status: ExitStatus },
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

impl Failure {
    /// The lock has passed to another worker: the work done under it must be repeated.
    pub(crate) const fn lease_is_gone(&self) -> bool {
        matches!(self, Self::Stale(_) | Self::Lock(leasehold::Error::Lost { .. }))
    }
}
