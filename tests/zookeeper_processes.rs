//! What a lock in a ZooKeeper node promises real processes.
#![cfg(feature = "zookeeper")]

#[path = "support/zookeeper.rs"]
mod zookeeper;
#[macro_use]
#[path = "support/process_promises.rs"]
mod process_promises;

use std::path::Path;

use process_promises::Shared;
use zookeeper::ZookeeperServer;

impl Shared for ZookeeperServer {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn directory(&self) -> &Path {
        Self::directory(self)
    }
}

process_promises!(ZookeeperServer::shared_or_skip);
