//! The semaphores.

use std::fmt;
use std::time::Duration;

use super::calls;
use super::drive::drive;
use super::guard::Guard;
use crate::backend::Inspection;
use crate::error::Error;

/// What both have.
macro_rules! semaphore {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(pub(super) crate::$name);

        impl $name {
            /// The name, without prefix.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }

            /// The same, whose acquisitions carry this note: see [`crate::DistMutex::with_note`].
            #[must_use]
            pub fn with_note(&self, note: impl Into<String>) -> Self {
                Self(self.0.with_note(note))
            }

            /// The limit that this handle uses: the one it was created with, or a later one that it has followed. No
            /// I/O.
            #[must_use]
            pub fn limit(&self) -> u32 {
                self.0.limit()
            }

            calls! { $name {
                /// Acquires one permit, waiting as long as necessary.
                fn acquire() -> Guard;

                /// Acquires `permits` permits together, under one guard, waiting as long as necessary.
                fn acquire_many(permits: u32) -> Guard;

                /// Acquires one permit if that is possible without waiting.
                fn try_acquire() -> Option<Guard>;

                /// Acquires `permits` permits together if that is possible without waiting.
                fn try_acquire_many(permits: u32) -> Option<Guard>;

                /// Acquires one permit, waiting for at most `timeout`.
                fn acquire_timeout(timeout: Duration) -> Guard;

                /// Acquires `permits` permits together, waiting for at most `timeout`.
                fn acquire_many_timeout(permits: u32, timeout: Duration) -> Guard;

                /// How many permits are free. This is a snapshot and may already be out of date.
                fn available() -> u32;

                /// Returns who holds permits, who waits for them, and the limit in force. This is a snapshot and may
                /// already be out of date.
                fn inspect() -> Inspection;

                /// Changes the limit in force to `limit`, for all clients.
                fn resize(limit: u32) -> ();
            }}
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

semaphore! {
    /// Limits how many permits are held at a time among all processes, with as many as possible in use:
    /// [`crate::CountingSemaphore`] without async.
    ///
    /// ```
    /// use leasehold::blocking::Client;
    ///
    /// let calls = Client::memory().counting_semaphore("slow-service", 5)?;
    /// let three = calls.acquire_many(3)?;
    /// assert_eq!(calls.available()?, 2);
    /// # drop(three);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    CountingSemaphore
}

semaphore! {
    /// Limits how many permits are held at a time among all processes, strictly in order of arrival:
    /// [`crate::FairSemaphore`] without async.
    ///
    /// ```
    /// use leasehold::blocking::Client;
    ///
    /// let gate = Client::memory().fair_semaphore("gate", 2)?;
    /// let both = gate.acquire_many(2)?;
    /// assert!(gate.try_acquire()?.is_none());
    /// # drop(both);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    FairSemaphore
}
