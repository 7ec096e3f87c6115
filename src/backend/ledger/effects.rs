//! What operations cause and depend on, besides changing the record.

use std::sync::Arc;

use crate::backend::types::{Event, Request};

/// What the operations of one change cause and depend on, besides changing the [`Ledger`](super::Ledger).
///
/// ```
/// use leasehold::backend::Effects;
///
/// let effects = Effects::default(); // passed to the operations of a `Ledger`
/// assert!(effects.events.is_empty()); // what is to be delivered to other clients
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Effects {
    /// The events for the clients whose waiters were served or should ask again, or whose holds were ended by force.
    pub events: Vec<Event>,
    /// What was requested, in order, whether it was granted, queued or refused. Noted by whoever passes a request to a
    /// ledger.
    #[cfg_attr(
        not(feature = "_apart"),
        allow(dead_code, reason = "only for stores that keep parts of a record apart")
    )]
    pub(in crate::backend) requests: Vec<Arc<Request>>,
    #[cfg_attr(
        not(feature = "_apart"),
        allow(dead_code, reason = "only for stores that keep parts of a record apart")
    )]
    pub(in crate::backend) reads: Reads,
    /// How many places were served; `None` if the queue was not even considered.
    pub(in crate::backend) served: Option<u64>,
}

/// On which ends an answer depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend) enum Reads {
    #[default]
    NoEnds,
    EndsOfHolds,
    /// Those of holds and places.
    EndsOfAll,
}

/// The effects of several changes, one after the other.
impl FromIterator<Effects> for Effects {
    fn from_iter<I: IntoIterator<Item = Self>>(effects: I) -> Self {
        let join = |mut all: Self, next: Self| {
            all.events.extend(next.events);
            all.requests.extend(next.requests);
            all.reads = all.reads.max(next.reads);
            all.served = all.served.zip(next.served).map(|(a, b)| a + b).or(all.served).or(next.served);
            all
        };
        effects.into_iter().reduce(join).unwrap_or_default()
    }
}
