//! Changing records on a server: code shared by the stores that keep a record for each key on one.
//!
//! | file | content |
//! |---|---|
//! | `job` | what a client is asked to change |
//! | `schedule` | in which order, and what together |
//! | `workers` | connections, each with a task that carries it out |
//! | `outcome`, `failure` | what became of it; why it failed, and what follows from that |
//! | `health` | how the server can be reached |
//! | `timeouts` | how long connecting and replies may take |

#![cfg_attr(
    not(feature = "all-stores"),
    allow(dead_code, unused_imports, reason = "each store uses a part of it")
)]

mod failure;
mod health;
mod job;
mod outcome;
mod schedule;
mod timeouts;
mod workers;

pub(super) use failure::{Failure, Remedy, with_causes};
pub(super) use health::{Health, Purpose};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) use job::running;
pub(super) use outcome::{Outcome, Phase, failed};
pub(super) use schedule::{Cached, Done, KeyBatch, Round, Schedule};
pub(super) use timeouts::{TIMEOUT, check_timeout, check_timeouts};
pub(super) use workers::{Connection, Workers};
