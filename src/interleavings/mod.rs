//! Interleavings of the client's own state, on its real types, in an order that [shuttle](https://docs.rs/shuttle) chooses.
//!
//! Each test runs a scene some thousand times, each time in another order: half of them at random, half by PCT (Burckhardt et
//! al., ASPLOS 2010), which changes between threads rarely and so finds what takes one long pause. A scene that fails prints its
//! schedule, which `LEASEHOLD_SCHEDULE` replays. `scripts/interleavings.sh` builds and runs all that; nothing else does.
//!
//! What is real: everything in `lease/`, `handover/`, `home.rs`, `runtime.rs` and `closing.rs`, the client and its primitives and
//! guards above that, and the memory store below. What stands in, through [`sync`](crate::sync):
//!
//! * Mutexes, atomics, `OnceLock`s, and the channel on which the end of a runtime waits: shuttle's. Each access is a point at
//!   which another thread may go on.
//! * Runtimes of tokio and the crate's own threads: [`runtime`]. Each task is a thread of its own to the schedule.
//! * The clock is tokio's, paused, and advanced by the scene or by a thread of it ([`Clock`]). Timers are tokio's.
//! * The memory store, behind one that lets others go on before and after it does what it is asked, and that may lose the answer
//!   ([`store`]).
//!
//! What cannot be explored like this:
//!
//! * What happens inside of one call of tokio's `Notify`, `oneshot`, `watch` and `Semaphore`, of a `CancellationToken`, and of
//!   the channels and the `FuturesUnordered` of `futures`: each counts as one step. They have tests with loom of their own.
//! * Weak memory: every atomic counts as sequentially consistent, whatever order it names. The count of an `Arc` changes
//!   without a point at which others go on.
//! * tokio's own schedulers: a task that is woken while all workers are blocked, and the budget of a task. `Home::move_if_stuck`
//!   meets a runtime that is not driven at all.
//! * The order in which `select!` looks at its branches (see [`stand_ins`]).
//! * The connections and tasks of the stores with a server. `torture/` runs those, in real time.
//! * What is shared between processes, and forks.

pub(crate) mod explore;
mod handover;
mod home;
mod life;
mod moves;
pub(crate) mod runtime;
mod shutdown;
pub(crate) mod stand_ins;
mod store;
mod tasks;
mod world;
