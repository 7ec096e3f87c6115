//! What a lock in an etcd cluster promises real processes.
#![cfg(feature = "etcd")]

#[path = "support/etcd.rs"]
mod etcd;
#[macro_use]
#[path = "support/process_promises.rs"]
mod process_promises;

use std::path::Path;
use std::time::Duration;

use etcd::EtcdServer;
use process_promises::Shared;

impl Shared for EtcdServer {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn directory(&self) -> &Path {
        Self::directory(self)
    }

    /// The shortest one.
    fn lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// etcd ends a lease up to half a second late.
    fn gone_after(&self) -> Duration {
        self.lease() + Duration::from_millis(600)
    }
}

process_promises!(EtcdServer::start_or_skip);
