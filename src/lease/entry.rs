//! Where a lease is filed in the schedule. The lease knows it, and the schedule finds the lease by it.

use tokio::time::Instant;

/// One of the two lists of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Queued,
    Held,
}

/// Where a lease is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) list: List,
    pub(super) at: Instant,
}
