//! Turns taken by many waiters: what takes them, what is recorded for each, and what that shows.

use std::ops::Range;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use hdrhistogram::Histogram;

use super::{Result, micros};

/// Something to wait for, and to release. Its clones are what the waiters of a process use: they share a connection, or
/// a pool of them.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    /// What a waiter has between the grant and the release.
    type Held: Send;

    /// Waits for its turn; `None` if that has not come by `until`. Ends soon after `until`, and leaves nothing behind
    /// then.
    fn acquire(&self, until: Instant) -> impl Future<Output = Result<Option<Self::Held>>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;
}

/// One turn of one waiter. Times are nanoseconds of the machine's clock, which all processes share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) waiter: usize,
    pub(crate) asked: u64,
    /// `None` if the waiter gave up because the time was over.
    pub(crate) held: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// When the waiter saw that it has its turn.
    pub(crate) granted: u64,
    /// When it began to release.
    pub(crate) released: u64,
}

impl Turn {
    const BYTES: usize = 32;

    pub(crate) fn encode(turns: &[Self]) -> Vec<u8> {
        let words = |turn: &Self| {
            let (granted, released) = turn.held.map_or((0, 0), |held| (held.granted, held.released));
            [turn.waiter as u64, turn.asked, granted, released]
        };
        turns.iter().flat_map(words).flat_map(u64::to_le_bytes).collect()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Self>> {
        if !bytes.len().is_multiple_of(Self::BYTES) {
            return Err("a report ends in the middle of a turn".into());
        }
        bytes.chunks_exact(Self::BYTES).map(Self::read).collect()
    }

    fn read(bytes: &[u8]) -> Result<Self> {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into()?);
        }
        let [waiter, asked, granted, released] = words;
        let held = (released > 0).then_some(Held { granted, released });
        Ok(Self { waiter: usize::try_from(waiter)?, asked, held })
    }
}

/// Nanoseconds of the machine's clock.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Microseconds.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Spread {
    /// Of a histogram of nanoseconds.
    pub(crate) fn of(times: &Histogram<u64>) -> Self {
        Self { p50: micros(times, 0.5), p99: micros(times, 0.99) }
    }
}

/// The waits of those granted within the window. Who still waits when it is over counts with what the wait has come to
/// by then, if that is more than the median: leaving out the starved would flatter, and a shorter wait tells nothing
/// yet.
pub(crate) fn waits(turns: &[Turn], window: &Range<u64>) -> Result<Spread> {
    let mut waits = Histogram::new(3)?;
    let granted = turns.iter().filter_map(|turn| turn.held.map(|held| (turn.asked, held.granted)));
    for (asked, granted) in granted.filter(|(_, granted)| window.contains(granted)) {
        waits.record(granted.saturating_sub(asked))?;
    }
    let median = waits.value_at_quantile(0.5);
    let end = window.end;
    let waiting = |turn: &&Turn| turn.asked < end && turn.held.is_none_or(|held| held.granted >= end);
    for turn in turns.iter().filter(waiting) {
        let wait = end - turn.asked;
        if wait > median {
            waits.record(wait)?;
        }
    }
    Ok(Spread::of(&waits))
}

/// From the release of each hold to the next grant within the window. `turns` are in the order of their grants. Fails
/// if two holds overlap.
pub(crate) fn hand_overs(turns: &[Turn], window: &Range<u64>) -> Result<Option<Spread>> {
    let held: Vec<_> = turns.iter().filter_map(|turn| Some((turn, turn.held?))).collect();
    let mut times = Histogram::new(3)?;
    for pair in held.windows(2) {
        let [(turn_before, before), (turn_after, after)] = [pair[0], pair[1]];
        let Some(took) = after.granted.checked_sub(before.released) else {
            let overlap = before.released - after.granted;
            let text = format!("two holds overlap by {overlap} ns: {turn_before:?}, {turn_after:?}");
            return Err(text.into());
        };
        if window.contains(&after.granted) {
            times.record(took)?;
        }
    }
    Ok(if times.is_empty() { None } else { Some(Spread::of(&times)) })
}

/// Jain's index: 1 if all shares are equal, 1/n if one has everything.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: u64 = shares.iter().sum();
    let squares: u64 = shares.iter().map(|share| share * share).sum();
    (sum * sum) as f64 / (shares.len() as u64 * squares) as f64
}
