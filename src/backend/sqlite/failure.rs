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
    pub(super) then: Then,
}

/// What a failure means for what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The file must be reopened.
    Reopen,
    /// It stays open.
    Stay,
    /// It stays open, and what is in it can be read, but nothing can be added to it.
    ReadOnly,
}

impl Failure {
    /// Retrying does not help until the cause is fixed.
    pub(super) fn refused(path: &Path, why: impl std::fmt::Display) -> Self {
        let source = format!("{}: {why}", path.display()).into();
        Self { error: BackendError::Refused { source }, then: Then::Reopen }
    }

    /// Nothing was changed.
    pub(super) fn not_sent(path: &Path, why: impl std::fmt::Display) -> Self {
        let source = format!("{}: {why}", path.display()).into();
        Self { error: BackendError::NotSent { source }, then: Then::Reopen }
    }

    /// Nothing was changed, for a reason that can be over within seconds. The file stays open.
    pub(super) fn not_now(path: &Path, why: impl std::fmt::Display) -> Self {
        let source = format!("{}: {why}", path.display()).into();
        Self { error: BackendError::RefusedForNow { source }, then: Then::Stay }
    }

    /// Whether others of the jobs that failed together could succeed alone.
    pub(super) const fn is_of_one_job(&self) -> bool {
        match self.then {
            Then::Reopen => false,
            Then::ReadOnly => true,
            // Too big; whoever else writes keeps all of them from writing.
            Then::Stay => matches!(self.error, BackendError::Refused { .. }),
        }
    }

    /// An error before anything was stored.
    pub(super) fn of(path: &Path, error: &Error) -> Self {
        let Some(code) = error.sqlite_error_code() else { return Self::refused(path, error) };
        match code {
            ErrorCode::DiskFull => {
                let why = format!("no space is left to write it ({})", text(error));
                Self { then: Then::ReadOnly, ..Self::not_now(path, why) }
            }
            ErrorCode::OutOfMemory => Self::not_now(path, text(error)),
            ErrorCode::TooBig => Self { then: Then::Stay, ..Self::refused(path, text(error)) },
            ErrorCode::ReadOnly => {
                Self::refused(path, "it, or its directory, cannot be written: it is read-only")
            }
            ErrorCode::NotADatabase => Self::refused(path, "it is not an SQLite database"),
            ErrorCode::DatabaseCorrupt => Self::refused(path, format!("it is damaged ({})", text(error))),
            ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => {
                Self::refused(path, "permission denied")
            }
            ErrorCode::CannotOpen => Self::of_opening(path),
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

    /// SQLite does not say why it cannot open a file.
    fn of_opening(path: &Path) -> Self {
        if let Some(lack) = file::lack(path) {
            // What has been opened is closed, since other parts of the program need descriptors as well.
            return Self { then: Then::Reopen, ..Self::not_now(path, lack) };
        }
        let denied = || {
            "it cannot be opened or created, or the files `-wal` and `-shm` beside it cannot: permission denied, or the directory is read-only"
                .to_owned()
        };
        Self::refused(path, file::obstacle(path).unwrap_or_else(denied))
    }

    /// An error while a transaction was being stored: unless it is certain that nothing was, the outcome is unknown.
    pub(super) fn of_commit(path: &Path, error: &Error) -> Self {
        let failure = Self::of(path, error);
        let code = error.sqlite_error_code();
        if matches!(code, Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory)) {
            let source = format!("{}: {}", path.display(), text(error)).into();
            return Self { error: BackendError::Unanswered { source }, then: Then::Reopen };
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
