//! What a lock in a ZooKeeper node promises real processes.
#![cfg(feature = "zookeeper")]

#[path = "support/zookeeper.rs"]
mod zookeeper;
#[path = "support/zookeeper_wire.rs"]
mod zookeeper_wire;
#[macro_use]
#[path = "support/process_promises.rs"]
mod process_promises;
mod support;

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
