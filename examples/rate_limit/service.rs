//! The slow service: knows nothing of permits, and counts its calls.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tokio::time::sleep;

use crate::loopback::Answer;

/// The answer to every call.
pub(crate) const DONE: &str = "done";
/// Calls take from here to twice as long.
const CALL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct SlowService {
    /// How many calls at a time it handles.
    bears: u32,
    count: Mutex<Count>,
    bar: ProgressBar,
}

/// What the service has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) calls: u64,
    /// Under way now.
    now: u32,
    pub(crate) most: u32,
    /// Calls that arrived when the service was already handling its maximum.
    pub(crate) beyond: u64,
    /// The time that all calls took together.
    pub(crate) busy: Duration,
    /// When the first call came, and when the last one ended.
    span: Option<(Instant, Instant)>,
}

impl SlowService {
    pub(crate) fn new(bears: u32, bar: ProgressBar) -> Self {
        Self { bears, count: Mutex::default(), bar }
    }

    pub(crate) fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer for SlowService {
    async fn answer(&self, _: &str) -> String {
        let arrived = Instant::now();
        let number = self.count().arrive(self.bears);
        sleep(CALL + CALL * (number % 10) / 10).await;
        // Before the answer: the caller may let the next one in as soon as it has that.
        self.count().leave(arrived);
        self.bar.inc(1);
        DONE.to_owned()
    }
}

impl Count {
    /// One call more; returns how many are under way.
    fn arrive(&mut self, bears: u32) -> u32 {
        self.now += 1;
        self.most = self.most.max(self.now);
        self.beyond += u64::from(self.now > bears);
        self.now
    }

    fn leave(&mut self, arrived: Instant) {
        self.now -= 1;
        self.calls += 1;
        let now = Instant::now();
        self.busy += now - arrived;
        let first = self.span.map_or(arrived, |(first, _)| first.min(arrived));
        self.span = Some((first, now));
    }

    /// From the first call to the end of the last one.
    pub(crate) fn elapsed(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_at_once_and_what_came_on_top_are_counted() {
        let (mut count, now) = (Count::default(), Instant::now());
        let under_way = [(); 3].map(|()| count.arrive(2));
        assert_eq!(under_way, [1, 2, 3]);
        count.leave(now);
        count.leave(now);
        count.arrive(2);
        assert_eq!((count.most, count.beyond, count.calls, count.now), (3, 1, 2, 2));
    }
}
