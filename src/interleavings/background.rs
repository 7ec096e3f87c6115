//! Stands in for the crate's own threads: runtimes of the execution that is under way.

use std::cell::RefCell;
use std::io;

use crate::interleavings::runtime::{Handle, Runtime};

thread_local! {
    /// Of the thread that runs the executions, one after another.
    static THREADS: RefCell<Option<[Handle; 2]>> = const { RefCell::new(None) };
}

/// The threads of one execution.
pub(crate) struct Threads([Runtime; 2]);

impl Threads {
    pub(crate) fn start() -> Self {
        let threads = ["leasehold", "leasehold-clients"].map(Runtime::new);
        THREADS.set(Some([threads[0].handle().clone(), threads[1].handle().clone()]));
        Self(threads)
    }

    /// Unlike real ones: no task outlives its execution.
    pub(crate) fn end(self) {
        self.0.into_iter().for_each(Runtime::end);
        THREADS.set(None);
    }
}

pub(crate) fn is_current() -> bool {
    Handle::try_current().is_ok_and(|here| handle().is_ok_and(|own| own.id() == here.id()))
}

pub(crate) fn handle() -> io::Result<Handle> {
    thread(0)
}

pub(crate) fn for_clients() -> io::Result<Handle> {
    thread(1)
}

fn thread(n: usize) -> io::Result<Handle> {
    THREADS.with_borrow(|threads| Ok(threads.as_ref().ok_or(io::ErrorKind::NotFound)?[n].clone()))
}
