//! Hash maps for what the client looks up with every operation.
//!
//! The names of locks may come from outside, so the hash is seeded at random. The standard library's hash, which is
//! made for stronger attackers, took 6% of the client's instructions for a lock and its release.

// The same order each time that a test replays what it has found.
#[cfg(leasehold_shuttle)]
use foldhash::quality::FixedState as RandomState;
#[cfg(not(leasehold_shuttle))]
use foldhash::quality::RandomState;

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;
#[cfg(feature = "_redis")]
pub(crate) type HashSet<T> = std::collections::HashSet<T, RandomState>;
