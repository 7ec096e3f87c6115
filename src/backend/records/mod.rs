//! Changing records on a server: code shared by the stores that keep a record for each key on one.
//!
//! | file | content |
//! |---|---|
//! | `job` | what a client is asked to change |
//! | `schedule` | in which order: one key at a time, different keys together |
//! | `cache` | the records that the client has written |
//! | `round` | what one connection carries out at a time, and what becomes of it |
//! | `workers`, `worker`, `crew` | the connections that carry it out; one of them; what is known of all of them |
//! | `failure` | why something failed, and what follows from that |
//! | `health` | how the server can be reached |
//! | `timeouts` | how long connecting and replies may take |

#![cfg_attr(
    not(feature = "all-stores"),
    allow(dead_code, unused_imports, reason = "each store uses a part of it")
)]

mod cache;
mod crew;
mod failure;
mod health;
mod job;
mod round;
mod schedule;
#[cfg(test)]
mod tests;
mod timeouts;
mod worker;
mod workers;

pub(super) use cache::Cached;
pub(super) use failure::{Failure, Remedy, with_causes};
pub(super) use health::{Health, Purpose};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) use job::running;
pub(super) use round::{Done, KeyBatch, Outcome, Phase, Round, failed};
pub(super) use schedule::Schedule;
pub(super) use timeouts::{TIMEOUT, check_timeout, check_timeouts};
pub(super) use workers::{Connection, Workers};
