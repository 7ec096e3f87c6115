//! The strategies that are measured side by side: ways to make many clients take turns through one Redis server.

mod figures;
mod increments;
mod memory;
mod notify;
mod pings;
mod race;
mod redlock;

use clap::ValueEnum;

use increments::Increments;
use notify::Notify;
use redlock::Redlock;

pub(crate) use figures::Figures;
pub(crate) use memory::{MemoryJob, measure as memory_per_waiter};
pub(crate) use race::{Job, Race};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Strategy {
    /// This crate, every hand-over through the server.
    ViaStore,
    /// This crate as it comes.
    Leasehold,
    /// `SET NX PX` each millisecond, and compare-and-delete.
    Poll1,
    /// The same every 10 ms.
    Poll10,
    /// `SET NX PX` again by all waiters whenever a release is published.
    Notify,
    /// No lock: a counter incremented with WATCH, GET, MULTI, SET, EXEC until that succeeds.
    Watch,
    /// The crate `rslock` at its default retry delay (up to 200 ms), again until granted.
    Rslock,
    /// The same at a retry delay of up to 10 ms.
    Rslock10,
}

impl Strategy {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ViaStore => "leasehold, via store",
            Self::Leasehold => "leasehold",
            Self::Poll1 => "polling, 1 ms",
            Self::Poll10 => "polling, 10 ms",
            Self::Notify => "notify, all retry",
            Self::Watch => "WATCH/MULTI",
            Self::Rslock => "rslock, default",
            Self::Rslock10 => "rslock, 10 ms",
        }
    }

    /// Whether this is the crate under test.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::ViaStore | Self::Leasehold)
    }

    /// Whether at most one waiter has its turn at a time.
    pub(crate) fn excludes(self) -> bool {
        self != Self::Watch
    }

    /// The commands that its clients send. The server counts what scripts run as well, but no script of a strategy runs
    /// one of these; `PING` is what the bench sends itself, too.
    pub(crate) const fn commands(self) -> &'static [&'static str] {
        match self {
            Self::ViaStore | Self::Leasehold => &["evalsha", "eval", "ping", "subscribe"],
            Self::Poll1 | Self::Poll10 | Self::Notify | Self::Rslock | Self::Rslock10 => {
                &["set", "evalsha", "eval"]
            }
            Self::Watch => &["watch", "get", "multi", "set", "exec"],
        }
    }
}
