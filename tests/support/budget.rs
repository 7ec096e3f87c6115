//! How many more bytes may go one way on a wire, before the connection that would carry more is cut.

use std::sync::atomic::{AtomicUsize, Ordering};

/// No limit until one is set; none again when it has cut a connection.
#[derive(Debug)]
pub struct Budget(AtomicUsize);

const UNLIMITED: usize = usize::MAX;

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicUsize::new(UNLIMITED))
    }
}

impl Budget {
    /// The next connection is cut that is to carry more than this.
    pub fn cut_after(&self, bytes: usize) {
        self.0.store(bytes, Ordering::SeqCst);
    }

    /// What may go of these bytes. If that is not all, the connection is to be cut after it.
    pub fn take<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let spend = |left: usize| match left {
            UNLIMITED => None,
            left => Some(left.checked_sub(bytes.len()).unwrap_or(UNLIMITED)),
        };
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).unwrap_or(UNLIMITED);
        &bytes[..left.min(bytes.len())]
    }
}
