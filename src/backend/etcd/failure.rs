//! Errors of etcd and of the way to it in words, and what follows from them.

use std::error::Error;

use tonic::{Code, Status};

use crate::backend::records::{Failure, Remedy, with_causes};

/// A lease that a transaction attaches a key to has ended. Nothing was stored.
pub(super) const NO_LEASE: &str = "requested lease not found";

/// The connection was lost before something was sent on it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection was lost")]
pub(super) struct Unsent;

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    remedy: Remedy,
    is_broken: bool,
    /// Whether nothing was stored. The outcome of a proposal is unknown unless etcd says why it was not made.
    is_certain: bool,
}

/// Nothing was executed, and the same member can do it within seconds.
const NOT_NOW: Class = Class { remedy: Remedy::NotNow, is_broken: false, is_certain: true };
/// Nothing was executed, and perhaps another member can do it now.
const NOT_HERE: Class = Class { remedy: Remedy::NotNow, is_broken: true, is_certain: true };
/// Nothing was executed, and a new connection, which logs in again, helps.
const LOGGED_OUT: Class = Class { remedy: Remedy::Reconnect, is_broken: true, is_certain: true };
/// It may have been executed, and another member may answer.
const NO_ANSWER: Class = Class { remedy: Remedy::Wait, is_broken: true, is_certain: false };
const NEVER: Class = Class { remedy: Remedy::Fix, is_broken: false, is_certain: true };

/// What etcd says, in the order in which it is looked for. The same table is in `docs/stores/etcd.md`.
const TABLE: [(&str, Class); 19] = [
    (NO_LEASE, Class { remedy: Remedy::Repeat, is_broken: false, is_certain: true }),
    ("database space exceeded", NOT_NOW),
    ("too many requests", NOT_NOW),
    ("not capable", NOT_NOW),
    ("unhealthy cluster", NOT_NOW),
    // It is said by reads; for something that was to be written it would not be certain.
    ("leader changed", Class { remedy: Remedy::NotNow, is_broken: false, is_certain: false }),
    ("no leader", NOT_HERE),
    ("not leader", NOT_HERE),
    ("raft proposal dropped", NOT_HERE),
    ("for learner", NOT_HERE),
    ("invalid auth token", LOGGED_OUT),
    ("revision of auth store is old", LOGGED_OUT),
    ("timed out", NO_ANSWER),
    ("server stopped", Class { remedy: Remedy::Reconnect, ..NO_ANSWER }),
    ("corrupt cluster", NEVER),
    ("permission denied", NEVER),
    ("authentication failed", NEVER),
    ("request is too large", NEVER),
    ("message larger than max", NEVER),
];

/// What a call failed with.
pub(super) fn of(status: &Status) -> Failure {
    let Class { remedy, is_broken, is_certain } = class(status);
    Failure { why: said(status), remedy, is_broken, is_certain }
}

/// What a call failed with that only reads.
pub(super) fn of_reading(status: &Status) -> Failure {
    Failure { is_certain: true, ..of(status) }
}

/// Whether a new login helps.
pub(super) fn is_logged_out(status: &Status) -> bool {
    class(status) == LOGGED_OUT
}

fn class(status: &Status) -> Class {
    if is_unsent(status) {
        return LOGGED_OUT;
    }
    let known = TABLE.iter().find(|(words, _)| status.message().contains(words));
    if let Some((_, class)) = known {
        return *class;
    }
    match status.code() {
        Code::Unauthenticated => LOGGED_OUT,
        Code::PermissionDenied
        | Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::NotFound
        | Code::OutOfRange
        | Code::DataLoss
        | Code::Unimplemented => NEVER,
        // A proxy may say so as well.
        Code::ResourceExhausted => Class { is_certain: false, ..NOT_NOW },
        Code::DeadlineExceeded => NO_ANSWER,
        _ => Class { remedy: Remedy::Reconnect, ..NO_ANSWER },
    }
}

/// Whether the connection had been lost before.
fn is_unsent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if error.is::<Unsent>() || inner.is_some_and(|inner| inner.is::<Unsent>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Why a connection could not be opened.
pub(super) fn connecting(error: &tonic::transport::Error) -> String {
    let text = with_causes(String::new(), error);
    if text.is_empty() { error.to_string() } else { text }
}

fn said(status: &Status) -> String {
    let mut text = status.message().trim_start_matches("etcdserver: ").to_owned();
    if status.code() == Code::ResourceExhausted && text.contains("space exceeded") {
        text.push_str(
            ": the alarm NOSPACE is on; compact and defragment the store or raise its quota, then `etcdctl alarm disarm`",
        );
    }
    let text = with_causes(text, status);
    if text.is_empty() { format!("{:?}", status.code()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_says_decides_whether_something_may_have_been_stored() {
        for (code, message, remedy, is_broken, is_certain) in [
            (Code::Unavailable, "no leader", Remedy::NotNow, true, true),
            (Code::FailedPrecondition, "not leader", Remedy::NotNow, true, true),
            (Code::Unavailable, "request timed out", Remedy::Wait, true, false),
            (
                Code::Unavailable,
                "request timed out, possibly due to connection lost",
                Remedy::Wait,
                true,
                false,
            ),
            (Code::Unavailable, "leader changed", Remedy::NotNow, false, false),
            (Code::Unavailable, "server stopped", Remedy::Reconnect, true, false),
            (Code::Unavailable, "not capable", Remedy::NotNow, false, true),
            (Code::Unavailable, "rpc not supported for learner", Remedy::NotNow, true, true),
            (Code::Unknown, "raft proposal dropped", Remedy::NotNow, true, true),
            (Code::Unknown, "transport error", Remedy::Reconnect, true, false),
            (Code::NotFound, "requested lease not found", Remedy::Repeat, false, true),
            (Code::ResourceExhausted, "too many requests", Remedy::NotNow, false, true),
            (Code::ResourceExhausted, "mvcc: database space exceeded", Remedy::NotNow, false, true),
            (Code::ResourceExhausted, "a proxy's limit", Remedy::NotNow, false, false),
            (Code::ResourceExhausted, "grpc: received message larger than max", Remedy::Fix, false, true),
            (Code::InvalidArgument, "request is too large", Remedy::Fix, false, true),
            (Code::PermissionDenied, "permission denied", Remedy::Fix, false, true),
            (Code::InvalidArgument, "authentication failed, invalid user ID", Remedy::Fix, false, true),
            (Code::FailedPrecondition, "authentication is not enabled", Remedy::Fix, false, true),
            (Code::DataLoss, "corrupt cluster", Remedy::Fix, false, true),
            (Code::Unauthenticated, "invalid auth token", Remedy::Reconnect, true, true),
            (Code::InvalidArgument, "revision of auth store is old", Remedy::Reconnect, true, true),
        ] {
            let failure = of(&Status::new(code, format!("etcdserver: {message}")));
            assert_eq!(
                (failure.remedy, failure.is_broken, failure.is_certain),
                (remedy, is_broken, is_certain),
                "{message}"
            );
            assert!(!failure.why.contains("etcdserver: "), "{failure}");
        }
        let full = of(&Status::new(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"));
        assert!(full.why.contains("alarm disarm"), "{full}");
    }

    #[test]
    fn what_was_not_sent_is_repeated_on_another_connection() {
        let error = std::io::Error::new(std::io::ErrorKind::NotConnected, Unsent);
        let failure = of(&Status::from_error(Box::new(error)));
        assert_eq!((failure.remedy, failure.is_certain), (Remedy::Reconnect, true), "{failure:?}");
    }
}
