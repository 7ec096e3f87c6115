//! A mutex without poisoning.

use std::sync::PoisonError;
#[cfg(feature = "_redis")]
use std::sync::TryLockError;

pub(crate) use std::sync::MutexGuard;

/// `std::sync::Mutex` whose state stays usable after a panic: every critical section in this crate leaves it
/// consistent, and a guard dropped while panicking must still be able to release.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if it is locked already.
    #[cfg(feature = "_redis")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
