//! What a race shows.

use std::ops::Range;

use hdrhistogram::Histogram;

use super::Strategy;
use crate::common::turns::{Spread, Turn, hand_overs, jain, waits};
use crate::common::{Result, micros};

/// What is known besides the turns.
pub(super) struct Counted {
    /// Commands that clients sent within the window.
    pub(super) commands: u64,
    pub(super) operations: u64,
    /// When statistics were read.
    pub(super) window: Range<u64>,
    pub(super) pings: Histogram<u64>,
}

pub(crate) struct Figures {
    /// Turns granted within the window.
    pub(crate) grants: usize,
    pub(crate) per_second: f64,
    /// From the call of a release to the next grant, wherever. Nothing if turns are not exclusive.
    pub(crate) hand_over: Option<Spread>,
    /// From asking to the grant.
    pub(crate) wait: Spread,
    pub(crate) commands: f64,
    /// Only for this crate.
    pub(crate) operations: Option<f64>,
    pub(crate) jain: f64,
    /// Median time of a PING, in microseconds.
    pub(crate) ping: f64,
    /// How long PINGs alone took right after that, as many as usually take as long as a wait. Only where waits are in
    /// order.
    pub(crate) pings_alone: Option<Spread>,
}

impl Figures {
    /// Fails if two holds overlap that exclude each other.
    pub(super) fn new(
        strategy: Strategy,
        waiters: usize,
        mut turns: Vec<Turn>,
        counted: Counted,
    ) -> Result<Self> {
        turns.sort_unstable_by_key(|turn| turn.held.map(|held| held.granted));
        let window = &counted.window;
        let granted = |turn: &&Turn| turn.held.is_some_and(|held| window.contains(&held.granted));
        let hand_over = if strategy.excludes() { hand_overs(&turns, window)? } else { None };
        let grants = turns.iter().filter(granted).count();
        let mut shares = vec![0; waiters];
        for turn in turns.iter().filter(granted) {
            shares[turn.waiter] += 1;
        }
        let per_grant = |count: u64| count as f64 / grants as f64;
        Ok(Self {
            grants,
            per_second: grants as f64 * 1e9 / (window.end - window.start) as f64,
            hand_over,
            wait: waits(&turns, window)?,
            commands: per_grant(counted.commands),
            operations: strategy.is_ours().then(|| per_grant(counted.operations)),
            jain: jain(&shares),
            ping: micros(&counted.pings, 0.5),
            pings_alone: None,
        })
    }
}
