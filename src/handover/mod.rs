//! Passing a lease on within the client.
//!
//! Tasks of one client that wait for the same lock join a queue within the client, first in, first out. A holder that
//! releases passes its lease on to the first of them without a request to the store, until the client's turn is over.
//! Then the next lease is requested and the old one released, in this order, without waiting in between. This is lock
//! cohorting (Dice, Marathe and Shavit, PPoPP 2012) with the store as the global lock and this queue as the local lock.
//! Single permits of a counting semaphore are passed on in the same way; there, the client requests one more lease than
//! there are permits.
//!
//! * `queue`: who waits, and which leases are requested and held for them. It knows no store and no time.
//! * `policy`: what may be passed on, how often, and for how long.
//!
//! No waiter has a lease of its own: whichever lease is granted first goes to the waiter that has waited longest. So a
//! waiter that gives up is only removed from the queue, unless this leaves more leases requested than there are
//! waiters.

mod policy;
mod queue;

pub(crate) use policy::{group, may_pass_on, tokens};
pub(crate) use queue::{Group, Number, Queue, Queues, take_all_waiters, with_queue};
