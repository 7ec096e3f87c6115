//! What a holder sees of its lease, and writes down.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Guard, LossReason};
use leasehold_torture::history::{HoldId, Loss, Micros, What};
use tokio::time::sleep;

use super::Shared;
use crate::clock::{micros, now};

/// How often a holder looks until when it holds.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// What a holder sees of its lease.
pub(super) struct Lease {
    shared: Arc<Shared>,
    pub(super) hold: HoldId,
}

impl Lease {
    pub(super) fn granted(shared: &Arc<Shared>, hold: HoldId, guard: &Guard) -> Self {
        let token = guard.token().get();
        shared.log.event(hold, What::Granted { token });
        Self::of(shared, hold, guard)
    }

    /// Of a hold that has been written down.
    pub(super) fn of(shared: &Arc<Shared>, hold: HoldId, guard: &Guard) -> Self {
        let lease = Self { shared: Arc::clone(shared), hold };
        lease.note(until(guard));
        lease
    }

    pub(super) fn note(&self, until: Micros) {
        self.shared.log.event(self.hold, What::Held { until });
    }

    /// Until it is lost.
    pub(super) async fn watch(&self, guard: &Guard) {
        let mut lost = guard.lost();
        let mut noted = until(guard);
        let reason = loop {
            tokio::select! {
                biased;
                reason = &mut lost => break reason,
                () = sleep(LOOK) => {
                    let until = until(guard);
                    // A renewal, not what rounding makes of it; not of what ends at this moment.
                    if guard.is_held() && until > noted + micros(LOOK) {
                        self.note(until);
                        noted = until;
                    }
                }
            }
        };
        self.shared.log.event(self.hold, What::Lost(loss(reason)));
    }
}

pub(super) fn until(guard: &Guard) -> Micros {
    now() + micros(guard.remaining())
}

/// As the judge distinguishes them.
pub(super) const fn loss(reason: LossReason) -> Loss {
    match reason {
        LossReason::Revoked => Loss::Revoked,
        LossReason::Missing => Loss::Missing,
        LossReason::Taken => Loss::Taken,
        LossReason::HeldTooLong => Loss::HeldTooLong,
        LossReason::ClientClosed => Loss::Closed,
        LossReason::Expired | LossReason::StoreUnreachable | LossReason::StoreRefused => Loss::Ended,
        // One that this does not know yet is none of those that are promised.
        _ => Loss::Closed,
    }
}
