//! The clock of the leader, as far as known from its replies.

use std::time::{Duration, Instant};

use super::op::Stat;
use crate::backend::Stamp;

/// For how long a reading is used. Clocks differ by less than a millisecond after that.
pub(super) const LIFETIME: Duration = Duration::from_secs(10);

/// When a server has written something, by its clock and by this machine's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// In microseconds. Servers report whole milliseconds.
    reported: u64,
    /// It was written after that,
    sent: Instant,
    /// and before that.
    received: Instant,
}

impl Reading {
    pub(super) fn of(stat: Stat, sent: Instant, received: Instant) -> Self {
        Self { reported: millis(stat.mtime), sent, received }
    }

    pub(super) fn age(&self) -> Duration {
        self.sent.elapsed()
    }

    /// The better one: the newer one, unless it is less precise and the other one is recent.
    pub(super) fn or(self, older: Option<Self>) -> Self {
        let width = |reading: &Self| reading.received - reading.sent;
        older.filter(|older| older.age() < LIFETIME && width(older) * 2 < width(&self)).unwrap_or(self)
    }

    /// Not later than the server's clock at present.
    pub(super) fn now(&self) -> u64 {
        self.reported.saturating_add(micros(self.received.elapsed()))
    }

    /// Not earlier than the server's clock at present.
    pub(super) fn late(&self) -> u64 {
        self.reported.saturating_add(MILLISECOND).saturating_add(micros(self.sent.elapsed()))
    }

    /// The present, for a record that exists or one that does not. The numbers of a record that was deleted were below
    /// the time at which they were issued; what is issued next is above it.
    pub(super) fn stamp(&self, exists: bool) -> Stamp {
        let (now, late) = (self.now(), self.late());
        Stamp::new(now, late, if exists { now } else { late })
    }
}

pub(super) const MILLISECOND: u64 = 1_000;

/// Milliseconds as microseconds.
pub(super) fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0).saturating_mul(MILLISECOND)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(mtime: i64, sent: Instant, took: u64) -> Reading {
        let stat = Stat { mtime, ..Stat::default() };
        Reading::of(stat, sent, sent + Duration::from_millis(took))
    }

    #[test]
    fn the_present_is_between_what_the_reply_says_with_and_without_the_time_it_took() {
        let sent = Instant::now().checked_sub(Duration::from_millis(100)).unwrap();
        let stamp = reading(5_000, sent, 30).stamp(true);
        assert!(stamp.now >= 5_070_000 && stamp.late >= 5_101_000, "{stamp:?}");
        assert!(stamp.late - stamp.now >= 31_000 && stamp.floor == stamp.now, "{stamp:?}");
        let stamp = reading(5_000, sent, 30).stamp(false);
        assert_eq!(stamp.floor, stamp.late);
    }

    #[test]
    fn a_reply_that_took_long_does_not_replace_a_better_one_that_is_recent() {
        let sent = Instant::now();
        let good = reading(5_000, sent, 1);
        assert_eq!(reading(5_004, sent, 500).or(Some(good)).reported, 5_000_000);
        assert_eq!(reading(5_004, sent, 1).or(Some(good)).reported, 5_004_000);
        let old = Reading { sent: sent.checked_sub(LIFETIME).unwrap(), ..good };
        assert_eq!(reading(5_004, sent, 500).or(Some(old)).reported, 5_004_000);
    }
}
