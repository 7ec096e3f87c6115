//! Changing records on a server: what the stores have in common that keep a record for each key on one.
//!
//! | file | what is in it |
//! |---|---|
//! | `job` | what a client is asked to change |
//! | `schedule` | in which order, and what together |
//! | `workers` | connections, each with a task that carries it out |
//! | `outcome`, `failure` | what became of it; why it failed, and what follows from that |
//! | `health` | how the server can be reached |

#![cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "no other store needs all of it"))]

mod failure;
mod health;
mod job;
#[cfg(feature = "postgres")]
mod outcome;
mod schedule;
#[cfg(feature = "postgres")]
mod workers;

pub(super) use failure::{Cure, Failure};
pub(super) use health::{Health, Purpose};
#[cfg(feature = "zookeeper")]
pub(super) use job::Task;
#[cfg(feature = "postgres")]
pub(super) use outcome::{Outcome, Phase, failed};
#[cfg(feature = "zookeeper")]
pub(super) use schedule::Schedule;
pub(super) use schedule::{Done, Remembered, Round, Work};
#[cfg(feature = "postgres")]
pub(super) use workers::{Connection, ConnectionLimits, Workers};
