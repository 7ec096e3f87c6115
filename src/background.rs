//! The crate's own thread, one per process, for work that must go on while the threads of the application are busy.
//!
//! A runtime whose thread is blocked runs neither timers nor sockets, and a task that was woken by a blocked worker may have to
//! wait for that worker. So leases are renewed and their deadlines watched here, through connections that live here.

use std::io;
use std::sync::OnceLock;
use std::thread;

use tokio::runtime::{Builder, Handle};

/// The runtime of that thread, which is started by the first client and ends with the process.
///
/// # Errors
///
/// If the thread or its runtime cannot be started.
pub(crate) fn handle() -> io::Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    // Two callers that race start a thread each; the later one stays idle.
    thread::Builder::new()
        .name("leasehold".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(HANDLE.get_or_init(|| handle))
}
