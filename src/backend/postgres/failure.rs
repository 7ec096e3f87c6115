//! Errors of PostgreSQL in words, and what follows from them.

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::backend::records::{Failure, Remedy, with_causes};

/// What a pooler in transaction mode does to a client.
pub(super) const POOLER: &str = "a pooler (such as PgBouncer in transaction mode) spreads its statements over several sessions, \
     so notifications would be lost: connect to the server directly, or use a pool in session mode";

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.as_db_error() {
            Some(said) => said_by_server(said),
            None => {
                // None of the causes contains a password.
                let why = with_causes(error.to_string(), &error);
                Self { remedy: Remedy::Reconnect, is_certain: false, ..Self::unavailable(why) }
            }
        }
    }
}

fn said_by_server(said: &DbError) -> Failure {
    let code = said.code();
    let why = format!("{} (SQLSTATE {})", said.message(), code.code());
    let is_fatal =
        said.parsed_severity().is_none_or(|severity| matches!(severity, Severity::Panic | Severity::Fatal));
    // Unless the session ends with it, an error has ended the transaction.
    let failure = |remedy, is_broken| Failure { why: why.clone(), remedy, is_broken, is_certain: !is_fatal };
    if said.message().contains("statement pooling mode") {
        return Failure { why: POOLER.to_owned(), ..failure(Remedy::Fix, true) };
    }
    // The same table is in docs/stores/postgres.md.
    if is_fatal {
        let remedy = match code.code() {
            "3D000" => Remedy::Fix,
            class if class.starts_with("28") => Remedy::Fix,
            "57P03" => Remedy::NotNow,
            class if class.starts_with("53") => Remedy::NotNow,
            _ => Remedy::Reconnect,
        };
        return failure(remedy, true);
    }
    match *code {
        SqlState::T_R_SERIALIZATION_FAILURE
        | SqlState::T_R_DEADLOCK_DETECTED
        | SqlState::LOCK_NOT_AVAILABLE => failure(Remedy::Repeat, false),
        SqlState::QUERY_CANCELED | SqlState::IO_ERROR => failure(Remedy::NotNow, false),
        _ if code.code().starts_with("53") => failure(Remedy::NotNow, false),
        // It has become a standby.
        SqlState::READ_ONLY_SQL_TRANSACTION => failure(Remedy::Reconnect, true),
        // The tables or the permissions have changed: a new session gets a clearer error.
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_COLUMN
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::INSUFFICIENT_PRIVILEGE => failure(Remedy::Reconnect, true),
        SqlState::INVALID_SQL_STATEMENT_NAME | SqlState::DUPLICATE_PSTATEMENT => {
            Failure { why: POOLER.to_owned(), ..failure(Remedy::Fix, true) }
        }
        _ if code.code().starts_with("08") => failure(Remedy::Reconnect, true),
        _ => failure(Remedy::Fix, false),
    }
}
