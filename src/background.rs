//! The thread of the crate's own, one per process: what must go on while the threads of the application are busy.
//!
//! A runtime whose thread is blocked runs neither timers nor sockets, and a task that was woken by a blocked worker may wait for that
//! worker. So leases are renewed here, through connections that live here, and here is noticed that they end.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::thread;

use tokio::runtime::{Builder, Handle};

thread_local! {
    static IS_CURRENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is called on the thread.
pub(crate) fn is_current() -> bool {
    IS_CURRENT.get()
}

/// The runtime of the thread, which is started by the first client and ends with the process.
///
/// # Errors
///
/// If the system refuses a thread, or what its runtime needs.
pub(crate) fn handle() -> io::Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    // Two that come here at once start a thread each; the one that is too late has nothing to do.
    thread::Builder::new().name("leasehold".to_owned()).spawn(move || {
        IS_CURRENT.set(true);
        runtime.block_on(std::future::pending::<()>())
    })?;
    Ok(HANDLE.get_or_init(|| handle))
}
