//! The one monotonic clock of all processes of the machine.

use std::time::Duration;

use leasehold_torture::history::Micros;
use rustix::time::{ClockId, clock_gettime};

/// Now. `Instant` is the same clock, but its value cannot be written down for another process.
pub(crate) fn now() -> Micros {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}

/// As it is recorded.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}
