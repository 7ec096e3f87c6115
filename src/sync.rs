//! What the client's own state is built on: locks, atomics, and the runtimes of tasks.
//!
//! Usually these are parking_lot's, the standard library's and tokio's own types. Under `--cfg leasehold_shuttle`, which is no
//! feature and which only `scripts/interleavings.sh` sets, there are stand-ins for them, so that a test chooses the order in
//! which threads and tasks reach them: see `interleavings`.

#[cfg(not(leasehold_shuttle))]
mod real {
    pub(crate) use std::sync::OnceLock;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize};
    pub(crate) use std::sync::mpsc::{self, RecvTimeoutError};
    pub(crate) use std::thread::{self, ThreadId};

    pub(crate) use parking_lot::Mutex;
    pub(crate) use tokio::runtime::{Handle, Id};
    pub(crate) use tokio::select;
    pub(crate) use tokio::task::{AbortHandle, JoinHandle};
    pub(crate) use tokio_util::task::AbortOnDropHandle;
}

#[cfg(not(leasehold_shuttle))]
pub(crate) use real::*;

#[cfg(leasehold_shuttle)]
pub(crate) use crate::interleavings::stand_ins::*;
