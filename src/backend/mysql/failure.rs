//! Errors of MySQL in words, and what follows from them.

use std::error::Error as _;

use mysql_async::{DriverError, Error, IoError, ServerError};

use crate::backend::records::{Failure, Remedy};

/// The numbers of errors, as in the manuals of MySQL and MariaDB; `docs/stores/mysql.md` has them all in one table.
mod code {
    /// Another client was changing the same rows, or the statement was interrupted. The last is MariaDB's: changed
    /// since it was read.
    pub(super) const REPEAT: [u16; 6] = [1062, 1205, 1213, 3572, 1317, 1020];

    /// Accounts, databases and their rights, and what a server does not tell strangers.
    pub(super) const LOGIN: [u16; 12] =
        [1044, 1045, 1049, 1130, 1251, 1275, 1698, 1820, 1862, 3118, 3955, 4151];
    /// Limits on connections: the server's, a user's, a host's.
    pub(super) const TOO_MANY: [u16; 4] = [1040, 1203, 1226, 1129];
    /// No memory, no disk space, no room for transactions and locks; a limit on the time of a statement.
    pub(super) const NO_ROOM: [u16; 14] =
        [1021, 1030, 1037, 1038, 1041, 1114, 1135, 1180, 1206, 1637, 1969, 3019, 3024, 3168];
    /// Of those, what fails after a change has perhaps been stored.
    pub(super) const DURING_COMMIT: u16 = 1180;
    /// The server is read-only.
    pub(super) const READ_ONLY: [u16; 3] = [1290, 1792, 1836];
    /// The server is in maintenance, or a node of a cluster is not ready.
    pub(super) const NOT_READY: [u16; 2] = [1047, 3032];
    /// A table that does not exist, or may not be used.
    pub(super) const TABLES: [u16; 5] = [1142, 1143, 1146, 1932, 1054];
    /// Of those, what stays so until somebody changes the tables.
    pub(super) const OTHER_TABLES: [u16; 2] = [1932, 1054];
    /// The session or the server ends: `KILL`, a shutdown, too long idle.
    pub(super) const ENDING: [u16; 10] = [1053, 1077, 1079, 1080, 1152, 1158, 1159, 1927, 3169, 4031];
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

/// MySQL requests this method of authentication for accounts that do not exist, too, so as not to reveal which accounts
/// exist.
fn login_unknown(plugin: &str) -> Failure {
    Failure::refused(format!(
        "it does not know this user, or authenticates the user with the plugin `{plugin}`, which is not supported"
    ))
}

fn said_by_server(said: &ServerError) -> Failure {
    let why = format!("{} (error {})", said.message, said.code);
    let failure = |remedy, is_broken| Failure { why: why.clone(), remedy, is_broken, is_certain: true };
    match said.code {
        code if code::REPEAT.contains(&code) => failure(Remedy::Repeat, false),
        code if code::LOGIN.contains(&code) => failure(Remedy::Fix, true),
        code if code::TOO_MANY.contains(&code) => failure(Remedy::NotNow, true),
        code if code::NO_ROOM.contains(&code) => {
            Failure { is_certain: code != code::DURING_COMMIT, ..failure(Remedy::NotNow, false) }
        }
        // What a new session finds says more, and of several servers it finds another one.
        code if [&code::READ_ONLY[..], &code::NOT_READY, &code::TABLES]
            .iter()
            .any(|codes| codes.contains(&code)) =>
        {
            failure(Remedy::Reconnect, true)
        }
        code if code::ENDING.contains(&code) => {
            Failure { is_certain: false, ..failure(Remedy::Reconnect, true) }
        }
        _ => failure(Remedy::Fix, false),
    }
}

/// The same failure, if it was found while a session was opened: another one would find the same, now or always.
pub(super) fn while_opening(failure: Failure) -> Failure {
    if failure.remedy != Remedy::Reconnect || !failure.is_certain {
        return failure;
    }
    let is_final = code::OTHER_TABLES.iter().any(|code| failure.why.ends_with(&format!("(error {code})")));
    Failure { remedy: if is_final { Remedy::Fix } else { Remedy::NotNow }, ..failure }
}

/// Whether the server has answered that it does not do this for the client: not that it is busy, or that the session
/// has ended.
pub(super) fn is_declined(failure: &Failure) -> bool {
    failure.is_certain && matches!(failure.remedy, Remedy::Fix | Remedy::Reconnect)
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

    #[test]
    fn what_the_server_says_is_of_one_class() {
        let of =
            |code| said_by_server(&ServerError { code, message: "as a test".into(), state: "HY000".into() });
        for (remedy, codes) in [
            (Remedy::Repeat, &[1205, 1213, 1317][..]),
            (Remedy::NotNow, &[1040, 1203, 1226, 1021, 1114, 1041, 1969, 3024, 1180]),
            (Remedy::Reconnect, &[1290, 1836, 1047, 3032, 1146, 1142, 1053, 1927, 4031]),
            (Remedy::Fix, &[1045, 1049, 1064, 1235, 1305, 1227, 1105]),
        ] {
            for code in codes {
                assert_eq!(of(*code).remedy, remedy, "{code}");
            }
        }
        for (code, remedy) in [(1290, Remedy::NotNow), (1047, Remedy::NotNow), (1054, Remedy::Fix)] {
            assert_eq!(while_opening(of(code)).remedy, remedy, "{code}");
        }
        assert!([1064, 1142, 1235].iter().all(|code| is_declined(&of(*code))));
        assert!([1040, 1205, 1317, 1053].iter().all(|code| !is_declined(&of(*code))));
    }
}
