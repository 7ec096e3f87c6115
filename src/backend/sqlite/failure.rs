//! SQLite errors as text, and how to handle them.

use std::path::Path;

use rusqlite::{Error, ErrorCode, ffi};

use super::file;
use crate::backend::BackendError;

/// What helps where files beside the file were deleted.
pub(super) const END_ALL: &str = "end all programs that use it";

/// Why something failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: BackendError,
    /// Whether the file must be reopened.
    pub(super) is_broken: bool,
}

impl Failure {
    /// Retrying does not help until the cause is fixed.
    pub(super) fn refused(path: &Path, why: impl std::fmt::Display) -> Self {
        let source = format!("{}: {why}", path.display()).into();
        Self { error: BackendError::Refused { source }, is_broken: true }
    }

    /// Nothing was changed.
    pub(super) fn not_sent(path: &Path, why: impl std::fmt::Display) -> Self {
        let source = format!("{}: {why}", path.display()).into();
        Self { error: BackendError::NotSent { source }, is_broken: true }
    }

    /// Nothing was changed, for a reason that can be over within seconds. The file stays open.
    pub(super) fn not_now(path: &Path, why: impl std::fmt::Display) -> Self {
        let source = format!("{}: {why}", path.display()).into();
        Self { error: BackendError::RefusedForNow { source }, is_broken: false }
    }

    /// An error before anything was stored.
    pub(super) fn of(path: &Path, error: &Error) -> Self {
        let Some(code) = error.sqlite_error_code() else { return Self::refused(path, error) };
        match code {
            ErrorCode::DiskFull => {
                Self::not_now(path, format!("no space is left to write it ({})", text(error)))
            }
            ErrorCode::OutOfMemory => Self::not_now(path, text(error)),
            ErrorCode::TooBig => Self { is_broken: false, ..Self::refused(path, text(error)) },
            ErrorCode::ReadOnly => {
                Self::refused(path, "it, or its directory, cannot be written: it is read-only")
            }
            ErrorCode::NotADatabase => Self::refused(path, "it is not an SQLite database"),
            ErrorCode::DatabaseCorrupt => Self::refused(path, format!("it is damaged ({})", text(error))),
            ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
                Self::refused(path, "permission denied")
            }
            ErrorCode::CannotOpen => match file::obstacle(path) {
                Some(obstacle) => Self::refused(path, obstacle),
                None => Self::refused(
                    path,
                    "it cannot be opened or created, or the files `-wal` and `-shm` beside it cannot: permission denied, or the directory is \
                     read-only",
                ),
            },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed => {
                Self::not_now(path, "another program has locked it")
            }
            ErrorCode::SystemIoFailure if number(error) == ffi::SQLITE_IOERR_SHORT_READ => {
                let file = "the file with the suffix `-wal` beside it";
                Self::not_sent(
                    path,
                    format!("{file} seems to have been deleted while it was in use: {END_ALL}"),
                )
            }
            // For instance, a missing table: the schema was changed.
            ErrorCode::Unknown | ErrorCode::SchemaChanged => Self::refused(path, text(error)),
            _ => Self::not_sent(path, text(error)),
        }
    }

    /// An error while a transaction was being stored: unless it is certain that nothing was, the outcome is unknown.
    pub(super) fn of_commit(path: &Path, error: &Error) -> Self {
        let failure = Self::of(path, error);
        let code = error.sqlite_error_code();
        if matches!(code, Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory)) {
            let source = format!("{}: {}", path.display(), text(error)).into();
            return Self { error: BackendError::Unanswered { source }, is_broken: true };
        }
        failure
    }
}

/// Whether another program is writing.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
    )
}

/// SQLite's message, with the error number in its documentation.
fn text(error: &Error) -> String {
    format!("{error}, SQLite's code {}", number(error))
}

fn number(error: &Error) -> i32 {
    error.sqlite_error().map_or(ffi::SQLITE_ERROR, |error| error.extended_code)
}
