//! Whether those who should be polled are polled.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// When a leader was last polled: milliseconds after [`START`], or [`HOLDS`].
#[derive(Debug)]
pub(super) struct Pulse(AtomicU64);

/// Somebody holds the lease, and need not be polled: the watchdog sees to it.
const HOLDS: u64 = u64::MAX;

/// Before every instant of interest, also on a clock that a test has stopped a while ago.
static START: LazyLock<Instant> = LazyLock::new(|| {
    let now = std::time::Instant::now();
    Instant::from_std(now.checked_sub(Duration::from_secs(3600)).unwrap_or(now))
});

impl Pulse {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(Self::now()))
    }

    pub(super) fn beat(&self) {
        self.0.store(Self::now(), Ordering::Relaxed);
    }

    pub(super) fn hold(&self) {
        self.0.store(HOLDS, Ordering::Relaxed);
    }

    /// Whether nobody has been polled for `term` who should have been.
    pub(super) fn has_stopped(&self, term: Duration) -> bool {
        let beat = self.0.load(Ordering::Relaxed);
        beat != HOLDS && u128::from(Self::now().saturating_sub(beat)) >= term.as_millis()
    }

    fn now() -> u64 {
        u64::try_from(START.elapsed().as_millis()).unwrap_or(HOLDS - 1)
    }
}
