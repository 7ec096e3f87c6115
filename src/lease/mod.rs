//! The engine: acquires leases, keeps them and ends them. It knows no primitive and no store.
//!
//! ```text
//!    request ──> Queued ──> Held ──> Lost(reason)
//!                   │         │           ^
//!                   │         v           │ the release finds that the lease had ended before
//!                   └────> Released ──────┘
//! ```
//!
//! Invariants, with the files that maintain them:
//!
//! 1. From before it is requested until its release is confirmed, a lease belongs to the client, never to a user's
//!    future: it is in the keeper's table. Whichever code ends it also queues or sends its release, so nothing is left
//!    behind (`keeper`, `release`, `release_queue`). What the store may know of it besides is collected until then
//!    (`known`).
//! 2. A user's future sends at most the first request itself (one that does not wait repeats it if the answer is lost),
//!    and then waits for a message. Dropping it removes it from the client's queue and returns a hold that it had just
//!    been handed (`acquire`).
//! 3. A lease is held only while its [`Deadline`](deadline::Deadline) is in the future. Every question about it reads
//!    the clock; no task has to run for a lease to end (`lease`, `deadline`).
//! 4. A lease ends once. The code that notices the end first sets the reason and notifies all that wait for it; the
//!    keeper releases it. A renewal that is confirmed later does not bring it back (`lease`).
//! 5. A pushed grant is accepted only if it names the ticket of the last answer from the store, and is measured from
//!    the request that was answered. After any other pushed grant, the client repeats its request (`lease`, `queued`).
//! 6. A grant that no waiter has taken up is not renewed (`held`).
//! 7. Several guards may share one hold: guards of an owner that re-entered, and guards that were split off. It ends
//!    with the last of them (`lease`, `reentry`). One lease may have several holds, one after another, when it is
//!    passed on within the client (`keeper`, and [`handover`](crate::handover)).
//! 8. The keeper's tasks run where the client lives ([`home`](crate::home)). When it moves, everything that was in
//!    progress is done again (`tasks`).
//! 9. A lease that was handed over to another process is neither released nor renewed here, nor passed on. If an answer
//!    or event that was still on its way shows that it has ended there, and that a late request has taken the resource
//!    again, only that is released. A lease that comes from another process is renewed before it is held (`ticket`).
//! 10. Nothing here blocks, except that the end of that runtime waits up to 100 ms for pending releases, and so does
//!     what is dropped outside any tokio runtime, for its own (up to 1 s for all together, and then a tenth of the
//!     time). Dropping a guard needs no runtime: a release waits in a queue until the keeper's tasks run again, or is
//!     sent from the crate's own thread (`release`, `release_queue`).
//! 11. Observers are told of what happens when no mutex is held. Of everything acquired that they were told of, they
//!     are told the end once (`observed`, and [`observer`](crate::observer)).

mod acquire;
mod deadline;
mod ended;
mod engine;
mod held;
#[cfg(leasehold_shuttle)]
#[path = "../interleavings/lease.rs"]
mod interleavings;
mod keeper;
mod known;
#[expect(clippy::module_inception, reason = "it is about one of them")]
mod lease;
mod observed;
mod queued;
mod reentry;
mod release;
mod release_queue;
mod renewals;
mod running;
mod schedule;
mod tasks;
mod ticket;

pub(crate) use acquire::{StatedLimit, Wait, Waiter};
pub(crate) use engine::Engine;
pub(crate) use lease::Hold;
pub(crate) use observed::Observed;
pub(crate) use ticket::HandedOver;
