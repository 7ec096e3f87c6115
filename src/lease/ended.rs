//! What is left of a lease that has ended.

use tokio::time::Instant;

use super::held::{Kept, LastRenewal};
use crate::error::LossReason;
use crate::fence::FencingToken;

/// A lease that was given up or released.
#[derive(Debug)]
pub(super) enum Released {
    /// While its caller waits for the release, it is still renewed.
    Renewed(Kept),
    /// The same, until a renewal found it gone before this end.
    Gone(Instant),
    /// Its release is pending, in flight or confirmed.
    Over,
}

/// A lease that was lost.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) token: FencingToken,
    pub(super) reason: LossReason,
    /// The last renewal, which may explain it.
    pub(super) renewal: LastRenewal,
    pub(super) release: LastRelease,
}

/// The release of a lease that was lost: the store may still count it as held.
#[derive(Debug)]
pub(super) enum LastRelease {
    AtOnce,
    At(Instant),
    /// Somebody sends or has sent it.
    Claimed,
}

impl Lost {
    /// What the store said, or why it was not heard, if that is why the lease was lost.
    pub(super) fn detail(&self) -> Option<String> {
        let is_of_store = matches!(self.reason, LossReason::StoreRefused | LossReason::StoreUnreachable);
        self.renewal.error().filter(|_| is_of_store).map(ToString::to_string)
    }

    /// Claims the release. `false` if it has been claimed.
    pub(super) fn claim_release(&mut self) -> bool {
        !matches!(std::mem::replace(&mut self.release, LastRelease::Claimed), LastRelease::Claimed)
    }
}
