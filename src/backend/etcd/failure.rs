//! Errors of etcd and of the way to it in words, and what follows from them.

use tonic::{Code, Status};

use crate::backend::records::{Failure, Remedy, with_causes};

/// A lease that a transaction attaches a key to has ended. Nothing was stored.
pub(super) const NO_LEASE: &str = "requested lease not found";

/// What a call failed with.
pub(super) fn of(status: &Status) -> Failure {
    let why = said(status);
    // The outcome of a proposal is unknown unless etcd says why it was not made.
    let failure = |remedy, is_broken, is_certain| Failure { why: why.clone(), remedy, is_broken, is_certain };
    let is = |words: &str| status.message().contains(words);
    match status.code() {
        // A new connection logs in again.
        Code::Unauthenticated => failure(Remedy::Reconnect, true, true),
        _ if is("invalid auth token") || is("revision of auth store is old") => {
            failure(Remedy::Reconnect, true, true)
        }
        // Another member may have one, or the one that there will be.
        _ if is("no leader") => failure(Remedy::Wait, true, true),
        _ if is("too many requests") => failure(Remedy::Wait, false, true),
        Code::NotFound if is(NO_LEASE) => failure(Remedy::Repeat, false, true),
        Code::PermissionDenied
        | Code::InvalidArgument
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::NotFound
        | Code::OutOfRange
        | Code::Unimplemented => failure(Remedy::Fix, false, true),
        Code::DeadlineExceeded => failure(Remedy::Wait, true, false),
        _ if is("timed out") => failure(Remedy::Wait, true, false),
        _ => failure(Remedy::Reconnect, true, false),
    }
}

/// What a call failed with that only reads.
pub(super) fn of_reading(status: &Status) -> Failure {
    Failure { is_certain: true, ..of(status) }
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
            (Code::Unavailable, "etcdserver: no leader", Remedy::Wait, true, true),
            (Code::Unavailable, "etcdserver: request timed out", Remedy::Wait, true, false),
            (Code::Unavailable, "etcdserver: leader changed", Remedy::Reconnect, true, false),
            (Code::Unknown, "transport error", Remedy::Reconnect, true, false),
            (Code::NotFound, "etcdserver: requested lease not found", Remedy::Repeat, false, true),
            (Code::ResourceExhausted, "etcdserver: too many requests", Remedy::Wait, false, true),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Remedy::Fix, false, true),
            (Code::PermissionDenied, "etcdserver: permission denied", Remedy::Fix, false, true),
            (Code::Unauthenticated, "etcdserver: invalid auth token", Remedy::Reconnect, true, true),
            (
                Code::InvalidArgument,
                "etcdserver: revision of auth store is old",
                Remedy::Reconnect,
                true,
                true,
            ),
        ] {
            let failure = of(&Status::new(code, message));
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
}
