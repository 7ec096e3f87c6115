//! What ends the example early.

use std::io;

use tokio::task::JoinError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Lock(#[from] leasehold::Error),
    #[error("a holder ended without reporting")]
    Silent,
    #[cfg(feature = "fred")]
    #[error("the key cannot be deleted: {0}")]
    Store(#[from] fred::error::Error),
    #[cfg(feature = "mysql")]
    #[error("the row cannot be deleted: {0}")]
    Mysql(#[from] mysql_async::Error),
    #[cfg(feature = "postgres")]
    #[error("the row cannot be deleted: {0}")]
    Table(#[from] tokio_postgres::Error),
    #[cfg(feature = "sqlite")]
    #[error("the row cannot be deleted: {0}")]
    Row(#[from] rusqlite::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}
