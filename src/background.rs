//! The crate's own thread `leasehold`, one per process, for work that must continue while the threads of the
//! application are busy.
//!
//! A runtime whose thread is blocked runs neither timers nor sockets, and a task that was woken by a blocked worker may
//! have to wait for that worker. So leases are renewed and their deadlines watched here, through connections that live
//! here.
//!
//! A second thread, `leasehold-clients`, is started when the first client has to leave its runtime (see `home`), or is
//! used without one (see `blocking`): what such clients do must not delay renewals.

use std::cell::Cell;
use std::io;
use std::thread;

use tokio::runtime::{Builder, Handle};

use crate::origin::PerProcess;

thread_local! {
    static IS_CURRENT: Cell<bool> = const { Cell::new(false) };
    #[cfg(feature = "blocking")]
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is on the thread on which leases are renewed.
pub(crate) fn is_current() -> bool {
    IS_CURRENT.get()
}

/// Whether the caller is on either thread of the crate, so that nothing may block here.
#[cfg(feature = "blocking")]
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

/// The runtime of the crate's own thread, which is started by the first client and ends with the process. A forked
/// process has none of its parent's threads, so it starts its own.
///
/// # Errors
///
/// If the thread or its runtime cannot be started.
pub(crate) fn handle() -> io::Result<Handle> {
    static HANDLE: PerProcess<Option<Handle>> = PerProcess::new();
    HANDLE.with(|started| started_once(started, "leasehold", true))
}

/// The runtime of the thread for clients that had to leave their runtime, or have none, which ends with the process.
///
/// # Errors
///
/// If the thread or its runtime cannot be started.
pub(crate) fn for_clients() -> io::Result<Handle> {
    static HANDLE: PerProcess<Option<Handle>> = PerProcess::new();
    HANDLE.with(|started| started_once(started, "leasehold-clients", false))
}

fn started_once(started: &mut Option<Handle>, name: &str, renews: bool) -> io::Result<Handle> {
    match started {
        Some(handle) => Ok(handle.clone()),
        None => Ok(started.insert(start(name, renews)?).clone()),
    }
}

fn start(name: &str, renews: bool) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        IS_CURRENT.set(renews);
        #[cfg(feature = "blocking")]
        IS_OWN.set(true);
        runtime.block_on(std::future::pending::<()>())
    })?;
    Ok(handle)
}
