//! The records that a client has written, which it need not read again before it changes them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum number of cached records.
const MAX_RECORDS: usize = 4096;
/// How often records that are no longer recent are dropped from a full cache.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);

/// A record as this client last wrote it. Unless another client changes it, it need not be read again.
pub(in crate::backend) trait Cached: Send + 'static {
    /// Whether it may still be used.
    fn is_recent(&self) -> bool;
}

/// By their keys.
pub(super) struct Cache<R> {
    records: HashMap<Arc<str>, R>,
    /// When old records were last dropped.
    purged: Option<Instant>,
}

impl<R> Default for Cache<R> {
    fn default() -> Self {
        Self { records: HashMap::new(), purged: None }
    }
}

impl<R: Cached> Cache<R> {
    pub(super) fn insert(&mut self, key: &Arc<str>, record: R) {
        // With thousands of guards, all records are recent, and scanning them for each one would cost more than the
        // renewals.
        if self.records.len() >= MAX_RECORDS && self.purged.is_none_or(|at| at.elapsed() >= PURGE_INTERVAL) {
            self.records.retain(|_, record| record.is_recent());
            self.purged = Some(Instant::now());
        }
        if self.records.len() < MAX_RECORDS {
            self.records.insert(Arc::clone(key), record);
        }
    }

    /// Takes a record out, if it is there and may still be used.
    pub(super) fn take(&mut self, key: &str) -> Option<R> {
        self.records.remove(key).filter(R::is_recent)
    }
}
