//! Passing a lease on within the client.
//!
//! When several tasks of one client wait for the same lock, they stand in a queue of this client, first in, first out, in front of
//! the lease. A holder that leaves passes its lease on to the next of them without a word to the store, until it is another
//! client's turn; then the next lease is asked for and the old one released, in this order and in one batch. This is lock
//! cohorting (Dice, Marathe and Shavit, PPoPP 2012) with the store as the global lock and this queue as the local one. Single
//! permits of a counting semaphore are passed on in the same way; there, one lease more is asked for than there are permits.
//!
//! * `queue`: who waits, how many leases are asked for and held for them. It knows no store and no time.
//! * `policy`: what may be passed on, how often and for how long.
//!
//! No waiter has a lease of its own: whichever is granted first goes to whoever waits longest. So a waiter that gives up is taken
//! out of the queue and nothing else happens, unless nobody is left for whom a lease was asked.

mod policy;
mod queue;

pub(crate) use policy::{Turn, group, tokens};
pub(crate) use queue::{Group, Number, Queue, Queues};
