//! Errors of MySQL in words, and what follows from them.

use std::error::Error as _;

use mysql_async::{DriverError, Error, IoError, ServerError};

use crate::backend::records::{Failure, Remedy};

/// The numbers of errors, as in the manuals of MySQL and MariaDB.
mod code {
    pub(super) const DUPLICATE_KEY: u16 = 1062;
    pub(super) const LOCK_WAIT_TIMEOUT: u16 = 1205;
    pub(super) const DEADLOCK: u16 = 1213;
    /// A row is locked that was not to be waited for; MariaDB says that it waited for too long.
    pub(super) const NOWAIT: u16 = 3572;
    /// `KILL QUERY`.
    pub(super) const QUERY_INTERRUPTED: u16 = 1317;
    /// Changed since it was read; only MariaDB says so.
    pub(super) const RECORD_CHANGED: u16 = 1020;

    /// Accounts, databases and their rights.
    pub(super) const LOGIN: [u16; 5] = [1044, 1045, 1049, 1698, 3118];
    /// Limits on connections: the server's, a user's.
    pub(super) const TOO_MANY: [u16; 4] = [1040, 1203, 1226, 1129];
    /// The server is read-only.
    pub(super) const READ_ONLY: [u16; 3] = [1290, 1792, 1836];
    /// A table that does not exist, or may not be used.
    pub(super) const TABLES: [u16; 5] = [1142, 1143, 1146, 1932, 1054];
    /// The session or the server ends: `KILL`, a shutdown, too long idle.
    pub(super) const ENDING: [u16; 6] = [1053, 1080, 1152, 1159, 1927, 4031];
    /// A node of a cluster that is not ready.
    pub(super) const NOT_READY: u16 = 1047;
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(said) => said_by_server(&said),
            Error::Driver(DriverError::UnknownAuthPlugin { name }) => login_unknown(&name),
            error => {
                Self { remedy: Remedy::Reconnect, is_certain: false, ..Self::unavailable(cause(&error)) }
            }
        }
    }
}

/// MySQL requests this method of authentication for accounts that do not exist, too, so as not to reveal which accounts exist.
fn login_unknown(plugin: &str) -> Failure {
    Failure::refused(format!(
        "it does not know this user, or authenticates the user with the plugin `{plugin}`, which is not supported"
    ))
}

fn said_by_server(said: &ServerError) -> Failure {
    let why = format!("{} (error {})", said.message, said.code);
    let failure = |remedy, is_broken| Failure { why: why.clone(), remedy, is_broken, is_certain: true };
    match said.code {
        code::DUPLICATE_KEY
        | code::LOCK_WAIT_TIMEOUT
        | code::DEADLOCK
        | code::NOWAIT
        | code::QUERY_INTERRUPTED
        | code::RECORD_CHANGED => failure(Remedy::Repeat, false),
        code if code::LOGIN.contains(&code) => failure(Remedy::Fix, true),
        code if code::TOO_MANY.contains(&code) || code == code::NOT_READY => failure(Remedy::Wait, true),
        // What a new session finds says more.
        code if code::READ_ONLY.contains(&code) || code::TABLES.contains(&code) => {
            failure(Remedy::Reconnect, true)
        }
        code if code::ENDING.contains(&code) => {
            Failure { is_certain: false, ..failure(Remedy::Reconnect, true) }
        }
        _ => failure(Remedy::Fix, false),
    }
}

/// What is said at the bottom of it. None of it contains a password.
fn cause(error: &Error) -> String {
    match error {
        Error::Driver(DriverError::ConnectionClosed) => return "the connection was closed".to_owned(),
        Error::Io(IoError::Io(error)) => return error.to_string(),
        _ => {}
    }
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(error) = source {
        (text, source) = (error.to_string(), error.source());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_mysql_does_not_know_is_refused_and_not_tried_again() {
        let unknown = DriverError::UnknownAuthPlugin { name: "sha256_password".to_owned() };
        let failure = Failure::from(Error::Driver(unknown));
        assert!(matches!(failure.remedy, Remedy::Fix), "{failure:?}");
        assert!(failure.why.contains("does not know this user"), "{failure:?}");
    }
}
