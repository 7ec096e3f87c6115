//! Changing records on a server: what the stores have in common that keep a record for each key on one.
//!
//! | file | what is in it |
//! |---|---|
//! | `job` | what a client is asked to change |
//! | `schedule` | in which order, and what together |
//! | `workers` | connections, each with a task that carries it out |
//! | `outcome`, `failure` | what became of it; why it failed, and what follows from that |
//! | `health` | how the server can be reached |

mod failure;
mod health;
mod job;
mod outcome;
mod schedule;
#[cfg(feature = "postgres")]
mod workers;

pub(super) use failure::{Cure, Failure};
pub(super) use health::{Health, Purpose};
#[cfg(feature = "postgres")]
pub(super) use outcome::Outcome;
pub(super) use outcome::{Phase, failed};
#[cfg(feature = "postgres")]
pub(super) use schedule::Round;
pub(super) use schedule::{Done, Remembered, Schedule, Work};
#[cfg(feature = "postgres")]
pub(super) use workers::{Connection, ConnectionLimits, Workers};
