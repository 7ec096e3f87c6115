//! Stand-ins for the types of [`sync`](crate::sync), with the part of their interface that the client uses. Whatever a
//! thread does with one of them that others can notice is a point at which the schedule may change to another thread.

pub(crate) use std::sync::mpsc::RecvTimeoutError;

use shuttle::sync::MutexGuard;
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicUsize};
pub(crate) use shuttle::sync::mpsc;
pub(crate) use shuttle::thread::{self, ThreadId};

pub(crate) use super::runtime::{AbortHandle, AbortOnDropHandle, Handle, Id, JoinHandle};

/// As `parking_lot::Mutex`: it is not poisoned.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// As `std::sync::OnceLock`.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    /// Read before each access, so that another thread may come first.
    point: AtomicBool,
}

impl<T> OnceLock<T> {
    pub(crate) const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), point: AtomicBool::new(false) }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.pass();
        self.value.get()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.pass();
        self.value.set(value)
    }

    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        self.pass();
        self.value.get_or_init(init)
    }

    fn pass(&self) {
        self.point.load(std::sync::atomic::Ordering::SeqCst);
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// As `tokio::select!`, which looks at its branches in an order that it draws from a generator of its own: here it is always
/// that in which they are written, so that a schedule can be replayed.
macro_rules! select {
    ($($branches:tt)*) => { tokio::select! { biased; $($branches)* } };
}
pub(crate) use select;
