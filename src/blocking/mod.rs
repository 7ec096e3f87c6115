//! The same client, locks, semaphores and guards for programs without tokio: every call blocks its thread until it is
//! done.
//!
//! A program that must not run twice at a time:
//!
//! ```
//! use leasehold::blocking::Client;
//!
//! fn main() -> Result<(), leasehold::Error> {
//!     let client = Client::connect("memory:")?; // or "redis://127.0.0.1:6379"
//!     let Some(guard) = client.mutex("nightly-report")?.try_lock()? else { return Ok(()) }; // it runs elsewhere
//!     println!("the report under token {}", guard.token()); // with `guard.check()?` before each step
//!     guard.release()
//! }
//! ```
//!
//! # Threads
//!
//! What a client does is done on a thread of the crate, `leasehold-clients`, which is started by the first call and
//! shared by all blocking clients; leases are renewed on another one, `leasehold`. Both end with the process. A client
//! can be used from any number of threads at a time.
//!
//! # Inside a tokio runtime
//!
//! The calls work there, too, but block their thread like [`std::sync::Mutex`]: the other tasks of a runtime with one
//! thread do not run meanwhile, and if one of them holds the lock that is waited for, both wait for ever (or until the
//! time limit). Tasks should use the [async client](Client::as_async), or call from `spawn_blocking`. Only on the
//! crate's own threads, where a store of yours or a provider of credentials runs, calls are refused, with
//! [`Error::Unsupported`](crate::Error::Unsupported).
//!
//! # The end of the process
//!
//! A guard that is dropped waits up to 100 ms for the store: see [`Guard`]. What is never dropped, because the process
//! is killed or calls [`std::process::exit`], expires with its TTL. To release everything before such an end, call
//! [`Client::shutdown`].
//!
//! # What differs from the async interface
//!
//! | async | here |
//! |---|---|
//! | `guard.protect(work)`, `guard.try_protect(work)` | a thread cannot be stopped: the work calls [`guard.check()?`](Guard::check) |
//! | `guard.lost().await` | [`guard.on_lost(callback)`](Guard::on_lost), or a thread that waits for [`guard.ended()`](Guard::ended) |
//! | `client.state_changes()` | [`client.as_async().state_changes()`](Client::as_async), or [`client.state()`](Client::state) from time to time |
//! | `election`, `once`, `lock_all`, `list` | on a runtime of the program's own, with [`client.as_async()`](Client::as_async) |
//!
//! [Options](crate::MutexOptions), [errors](crate::Error), [tokens](crate::FencingToken) and the [fence](crate::Fence)
//! are the same types.

mod client;
mod drive;
mod guard;
mod locks;
mod semaphores;

pub use client::Client;
pub use guard::{Ended, Guard};
pub use locks::{DistMutex, ReentrantLock, RwLock, WriteGuard};
pub use semaphores::{CountingSemaphore, FairSemaphore};

use crate::backend::{Finding, Inspection};

/// Methods that have the crate's thread make the call of the same name, and wait for it.
macro_rules! calls {
    ($of:ident { $($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $output:ty;)* }) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        ///
        #[doc = concat!("As for [`", stringify!($name), "`](crate::", stringify!($of), "::", stringify!($name), ")")]
        /// of the async interface; [`Error::Unsupported`] on the crate's own threads.
        pub fn $name(&self, $($argument: $type),*) -> Result<$output, Error> {
            let this = self.0.clone();
            let call = async move { this.$name($($argument),*).await };
            drive(stringify!($name), call).map($crate::blocking::Face::face)
        }
    )*};
}
use calls;

/// What a call of the async interface returns, as this interface returns it.
trait Face {
    type Blocking;

    fn face(self) -> Self::Blocking;
}

impl Face for crate::Guard {
    type Blocking = Guard;

    fn face(self) -> Guard {
        Guard(self)
    }
}

impl Face for Option<crate::Guard> {
    type Blocking = Option<Guard>;

    fn face(self) -> Option<Guard> {
        self.map(Guard)
    }
}

impl Face for crate::WriteGuard {
    type Blocking = WriteGuard;

    fn face(self) -> WriteGuard {
        WriteGuard(Guard(self.0))
    }
}

impl Face for Option<crate::WriteGuard> {
    type Blocking = Option<WriteGuard>;

    fn face(self) -> Option<WriteGuard> {
        self.map(Face::face)
    }
}

macro_rules! same {
    ($($type:ty),*) => {$(
        impl Face for $type {
            type Blocking = Self;

            fn face(self) -> Self {
                self
            }
        }
    )*};
}

same!((), bool, u32, std::time::Duration, Inspection, Vec<Finding>);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Debug;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn everything_can_be_moved_to_other_threads_and_shared_by_them() {
        fn handle<T: Clone + Debug + Send + Sync + Unpin + 'static>() {}
        fn held<T: Debug + Send + Sync + Unpin + 'static>() {}

        handle::<Client>();
        handle::<DistMutex>();
        handle::<ReentrantLock>();
        handle::<RwLock>();
        handle::<CountingSemaphore>();
        handle::<FairSemaphore>();
        held::<Guard>();
        held::<WriteGuard>();
        held::<Ended>();
    }

    /// What this interface has no method of the same name for.
    const OTHERWISE: [&str; 13] = [
        "Client::builder_with_backend", // `with_backend`
        "Client::election",             // `as_async`, like the others that last, or are streams
        "Client::election_with",
        "Client::lock_all",
        "Client::lock_all_with",
        "Client::once",
        "Client::once_with",
        "Client::state_changes",
        "Client::with_metrics", // the builder
        "Client::with_observer",
        "Guard::lost",        // `on_lost`, `ended`
        "Guard::protect",     // `check`
        "Guard::try_protect", // `check`
    ];

    /// A method that the async interface gets is also wanted here.
    #[test]
    fn the_interface_is_complete() {
        let here: BTreeSet<_> = methods_in("src/blocking").into_iter().collect();
        let missing: Vec<_> = methods_in("src")
            .into_iter()
            .filter(|method| !here.contains(method) && !OTHERWISE.contains(&method.as_str()))
            .collect();
        assert!(here.contains("FairSemaphore::acquire_many") && here.len() > 60, "{here:?}");
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn an_exception_is_one() {
        let (here, there) = (methods_in("src/blocking"), methods_in("src"));
        for method in OTHERWISE.map(str::to_owned) {
            assert!(there.contains(&method) && !here.contains(&method), "{method}");
        }
    }

    /// The methods of the client, its primitives and the guard in the files of a directory, such as `Guard::token`.
    fn methods_in(directory: &str) -> Vec<String> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        let files =
            fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).filter(|path| path.is_file());
        files.flat_map(|file| methods(&fs::read_to_string(file).unwrap())).collect()
    }

    fn methods(source: &str) -> Vec<String> {
        const OF: [&str; 7] =
            ["Client", "DistMutex", "ReentrantLock", "CountingSemaphore", "FairSemaphore", "Guard", "RwLock"];
        let (mut of, mut methods) = (Vec::new(), Vec::new());
        for line in source.lines() {
            if line == "}" {
                of.clear();
            }
            if line.ends_with('{') && (line.starts_with("impl ") || line.starts_with("        impl ")) {
                let of_both = if line.contains("impl $name") { &OF[3..5] } else { &[] };
                let name = |name: &&&str| line.trim() == format!("impl {name} {{");
                of = OF.iter().filter(name).chain(of_both).copied().collect();
            }
            if let Some(method) = method(line) {
                methods.extend(of.iter().map(|of| format!("{of}::{method}")));
            }
        }
        methods
    }

    /// The method that a line declares: `pub async fn lock(`, or `fn lock(...) -> Guard;` in a macro.
    fn method(line: &str) -> Option<&str> {
        let (before, after) = line.split_once("fn ")?;
        let is_public =
            before.trim_start().starts_with("pub ") || line.ends_with(';') && before.trim().is_empty();
        Some(after.split(['(', '<']).next()?).filter(|_| is_public)
    }
}
