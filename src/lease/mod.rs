//! The engine: takes leases, keeps them, ends them. It knows no primitive and no store.
//!
//! ```text
//!             request sent                 grant
//!  (nothing) --------------> asked for --------------> held --------> released
//!                               |                       |   guard dropped or released
//!                               | future dropped,       |
//!                               | timed out, failed     | deadline passed, store says so,
//!                               v                       v revoked, held too long, client shut down
//!                           given back                 lost
//! ```
//!
//! Invariants, each held by the file named:
//!
//! 1. From before a request is sent until its release is confirmed, exactly one [`Obligation`] exists for it:
//!    with the waiting future, then with the lease, then with the reaper. Dropping it anywhere queues the
//!    release (`reaper`). That is how nothing is left behind.
//! 2. A lease is held only while its [`Deadline`](deadline::Deadline) lies ahead. Every question about it asks
//!    the clock; no task has to run for a lease to end (`held`, `deadline`).
//! 3. A lease ends once. Whoever sees the end first sets the reason, tells everybody, and gives the lease back
//!    to the store; a renewal confirmed later does not bring it back (`held`).
//! 4. One task per client renews every lease that is due, many in one request, and never waits for one request
//!    before it looks at another lease (`watchdog`).
//! 5. Several guards may share one lease: those of an owner that came in again, and those that were split off. It ends
//!    with the last of them (`held`, `owners`).
//! 6. A lease of a mutex, or of a single permit, may be passed on within the client, as a new lease object under the same id:
//!    the obligation goes with it, and so does the right to say who is next (`cohort`). So may a place in the store's line,
//!    with the request that stands there (`place`).
//! 7. Nothing here blocks, and dropping a guard needs no runtime: what must reach the store waits in a queue
//!    until a task of this client runs again (`reaper`, `engine`).

mod acquire;
mod cohort;
mod deadline;
mod engine;
mod held;
mod owners;
mod place;
mod pulse;
mod reaper;
mod watchdog;

pub(crate) use acquire::acquire;
pub(crate) use engine::Engine;
pub(crate) use held::Lease;
