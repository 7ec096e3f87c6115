//! What the workers take: every kind of lock and semaphore, several of each.

use std::time::Duration;

use leasehold_torture::history::{Limit, Order, Site};

use crate::clock::micros;
use crate::store::Store;

/// How many permits semaphores have.
pub(crate) const PERMITS: u32 = 2;
/// How many readers a read/write lock could have; a writer counts as all of them.
pub(crate) const READERS: u32 = 1_000;
/// How many mutexes are locked at once, at most.
pub(crate) const SEVERAL: usize = 3;
/// Of a reentrant lock.
pub(crate) const OWNERS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Passed on among the tasks of a client.
    Mutex,
    /// Every waiter has a place of its own at the store.
    QueuedMutex,
    Reentrant,
    Counting,
    Fair,
    ReadWrite,
    /// Mutexes that are also locked several at once, all of them or none.
    Several,
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) lease: Duration,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Mutex,
        Self::QueuedMutex,
        Self::Reentrant,
        Self::Counting,
        Self::Fair,
        Self::ReadWrite,
        Self::Several,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::QueuedMutex => "queued mutex",
            Self::Reentrant => "reentrant lock",
            Self::Counting => "counting semaphore",
            Self::Fair => "fair semaphore",
            Self::ReadWrite => "read/write lock",
            Self::Several => "one of several mutexes",
        }
    }

    /// What only needs locks at the store; the others are semaphores there.
    pub(crate) const fn is_lock(self) -> bool {
        matches!(self, Self::Mutex | Self::QueuedMutex | Self::Reentrant | Self::Several)
    }

    /// Whether its limit can be changed.
    pub(crate) const fn has_permits(self) -> bool {
        matches!(self, Self::Counting | Self::Fair)
    }

    const fn limit(self) -> u32 {
        match self {
            Self::Mutex | Self::QueuedMutex | Self::Reentrant | Self::Several => 1,
            Self::Counting | Self::Fair => PERMITS,
            Self::ReadWrite => READERS,
        }
    }

    fn order(self, store: Store) -> Order {
        match self {
            Self::Mutex | Self::Several => Order::WithinClients,
            // Several queues have no order in common.
            Self::QueuedMutex | Self::Reentrant if store == Store::Redlock => Order::Free,
            Self::QueuedMutex | Self::Reentrant | Self::Fair | Self::ReadWrite => Order::Arrival,
            Self::Counting => Order::Free,
        }
    }

    /// Whether a resource may rely on its tokens: no more than one has it at once.
    pub(crate) const fn is_exclusive(self) -> bool {
        matches!(self, Self::Mutex | Self::QueuedMutex | Self::Several)
    }

    /// How many there are, if there are so many of the others.
    fn count(self, each: usize) -> usize {
        if self == Self::Several { each.max(SEVERAL) } else { each }
    }
}

/// All of them, on a store with or without semaphores.
pub(crate) fn all(has_semaphores: bool, lease: Duration, each: usize) -> Vec<Taken> {
    let kinds = Kind::ALL.into_iter().filter(|kind| has_semaphores || kind.is_lock());
    kinds
        .flat_map(|kind| {
            (0..kind.count(each)).map(move |n| Taken { kind, name: format!("{} {n}", kind.name()), lease })
        })
        .collect()
}

/// The same, as the judge sees them.
pub(crate) fn judged(all: &[Taken], store: Store) -> Vec<Site> {
    let site = |taken: &Taken| Site {
        name: taken.name.clone(),
        limits: vec![Limit::always(taken.kind.limit())],
        lease: micros(taken.lease),
        order: taken.kind.order(store),
        ordered_tokens: true,
        lease_per_request: store == Store::Redlock,
    };
    all.iter().map(site).collect()
}
