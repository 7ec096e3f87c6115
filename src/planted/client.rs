//! Mistakes of the client.

use std::time::Duration;

use tokio::time::Instant;

use super::Mistake::{GivesUpReleases, MeasuresFromTheAnswer, NeitherPushesNorRepeats};
use super::is;
use crate::backend::Event;

/// From when a lease is measured.
pub(crate) fn measured_from(sent: Instant, now: Instant) -> Instant {
    if is(MeasuresFromTheAnswer) { now } else { sent }
}

/// What is left of an event.
pub(crate) fn heard(event: Event) -> Option<Event> {
    let is_missed = is(NeitherPushesNorRepeats) && matches!(event, Event::Granted { .. });
    (!is_missed).then_some(event)
}

/// After what time a waiting request is repeated.
pub(crate) fn pause(pause: Duration) -> Duration {
    if is(NeitherPushesNorRepeats) { Duration::from_secs(3600) } else { pause }
}

/// Until when a release is repeated that was sent at `begin`.
pub(crate) fn give_up(begin: Instant, end: Instant) -> Instant {
    if is(GivesUpReleases) { begin } else { end }
}

/// For how long a release is repeated.
pub(crate) fn repeat_for(repeat_for: Duration) -> Duration {
    if is(GivesUpReleases) { Duration::ZERO } else { repeat_for }
}
