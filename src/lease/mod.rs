//! The engine: takes leases, keeps them, ends them. It knows no primitive and no store.
//!
//! ```text
//!    request ──> Queued ──> Held ──> Released
//!                   │          │
//!                   └──────────┴──> Lost(reason)
//! ```
//!
//! Invariants, each held by the file named:
//!
//! 1. From before it is asked for until its release is confirmed a lease belongs to the client, never to a user's future: it stands
//!    in the keeper's table. Whatever ends it queues its release. That is how nothing is left behind (`keeper`, `release_queue`).
//! 2. A user's future asks once, in place, and then waits for a message. Dropping it takes it out of a queue of this client, and
//!    gives back what it was told of at that moment (`acquire`).
//! 3. A lease is held only while its [`Deadline`](deadline::Deadline) lies ahead. Every question about it asks
//!    the clock; no task has to run for a lease to end (`lease`, `deadline`).
//! 4. A lease ends once. Whoever sees the end first sets the reason and tells everybody; the keeper releases it. A renewal
//!    confirmed later does not bring it back (`lease`).
//! 5. A grant that was told, and not answered, is believed only for the place in the store's queue by which the store has last
//!    answered, and counted from that request; any other makes the client ask again (`lease`).
//! 6. A grant that nobody takes up is not renewed (`lease`).
//! 7. Several guards may share one hold: those of an owner that came in again, and those that were split off. It ends with the
//!    last of them (`lease`, `reentry`). One lease may have several holds, one after another, when it is passed on within the
//!    client (`keeper`, and [`handover`](crate::handover)).
//! 8. Nothing here blocks, and dropping a guard needs no runtime: what must reach the store waits in a queue until the keeper's
//!    task runs again (`release_queue`, `engine`).

mod acquire;
mod deadline;
mod engine;
mod keeper;
#[expect(clippy::module_inception, reason = "it is about one of them")]
mod lease;
mod reentry;
mod release_queue;
mod schedule;

pub(crate) use acquire::{FollowsLimit, Wait, Wanted, acquire};
pub(crate) use engine::Engine;
pub(crate) use lease::Hold;
