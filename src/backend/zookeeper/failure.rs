//! Errors of ZooKeeper in words, and what follows from them.

use crate::backend::records::{Failure, Remedy};

/// What was received is not of ZooKeeper's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        Self { is_certain: false, ..Self::unavailable("it does not speak ZooKeeper's protocol") }
    }
}

/// Why the server refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

impl Code {
    pub(super) const NONE: Self = Self(0);
    /// Of a request in a multi after the one that failed.
    pub(super) const NOT_TRIED: Self = Self(-2);
    pub(super) const UNIMPLEMENTED: Self = Self(-6);
    pub(super) const BAD_ARGUMENTS: Self = Self(-8);
    pub(super) const NO_NODE: Self = Self(-101);
    pub(super) const NO_AUTH: Self = Self(-102);
    pub(super) const BAD_VERSION: Self = Self(-103);
    pub(super) const NO_CHILDREN_FOR_EPHEMERALS: Self = Self(-108);
    pub(super) const NODE_EXISTS: Self = Self(-110);
    pub(super) const NOT_EMPTY: Self = Self(-111);
    pub(super) const SESSION_EXPIRED: Self = Self(-112);
    pub(super) const INVALID_ACL: Self = Self(-114);
    pub(super) const AUTH_FAILED: Self = Self(-115);
    pub(super) const SESSION_MOVED: Self = Self(-118);
    pub(super) const NOT_READ_ONLY: Self = Self(-119);
    pub(super) const EPHEMERAL_ON_LOCAL_SESSION: Self = Self(-120);
    pub(super) const NEEDS_SASL: Self = Self(-124);
    pub(super) const QUOTA: Self = Self(-125);
    pub(super) const THROTTLED: Self = Self(-127);

    /// Whether another client came first, so that it must be read again.
    pub(super) const fn is_conflict(self) -> bool {
        matches!(self, Self::NO_NODE | Self::BAD_VERSION | Self::NODE_EXISTS | Self::NOT_EMPTY)
    }

    /// What follows if a request about this node is refused.
    pub(super) fn failure(self, path: &str) -> Failure {
        let (why, remedy) = match self {
            Self::NO_NODE => ("the node does not exist", Remedy::Repeat),
            Self::NO_AUTH => ("its ACL does not permit this operation", Remedy::Fix),
            Self::BAD_VERSION | Self::NODE_EXISTS | Self::NOT_EMPTY => {
                ("another client changed it first", Remedy::Repeat)
            }
            Self::NO_CHILDREN_FOR_EPHEMERALS => ("it is an ephemeral node of another program", Remedy::Fix),
            Self::SESSION_EXPIRED => ("the session has expired", Remedy::Reconnect),
            Self::INVALID_ACL => ("the server does not accept the credentials for an ACL", Remedy::Fix),
            Self::AUTH_FAILED => ("the server rejects the credentials", Remedy::Fix),
            Self::SESSION_MOVED => ("the session has moved to another server", Remedy::Reconnect),
            Self::NOT_READ_ONLY => ("the server is currently read-only", Remedy::NotNow),
            Self::QUOTA => ("a quota is exceeded", Remedy::NotNow),
            Self::THROTTLED => ("the server is overloaded", Remedy::NotNow),
            Self::UNIMPLEMENTED => ("the server is too old: ZooKeeper 3.5 or later is needed", Remedy::Fix),
            Self::BAD_ARGUMENTS => ("the server does not accept this request", Remedy::Fix),
            Self::EPHEMERAL_ON_LOCAL_SESSION => {
                ("the server does not let local sessions create ephemeral nodes", Remedy::Fix)
            }
            Self::NEEDS_SASL => ("the server requires SASL, which is not supported", Remedy::Fix),
            _ => ("the server has failed", Remedy::Wait),
        };
        let is_broken = matches!(self, Self::SESSION_EXPIRED | Self::SESSION_MOVED | Self::NOT_READ_ONLY);
        Failure { remedy, is_broken, ..Failure::unavailable(format!("{path}: {why} (error {})", self.0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendError;

    #[test]
    fn each_refusal_is_of_the_class_that_the_documentation_states() {
        for code in [-119, -125, -127] {
            let error = Code(code).failure("/a").before_storing();
            assert!(matches!(error, BackendError::RefusedForNow { .. }), "{code}: {error:?}");
        }
        for code in [-6, -8, -102, -108, -114, -115, -120, -124] {
            let error = Code(code).failure("/a").before_storing();
            assert!(matches!(error, BackendError::Refused { .. }), "{code}: {error:?}");
        }
        for code in [-1, -4, -5, -7, -101, -103, -110, -111, -112, -118] {
            assert!(Code(code).failure("/a").before_storing().is_transient(), "{code}");
        }
    }
}
