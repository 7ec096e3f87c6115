//! What a lock in a MySQL table promises real processes.
#![cfg(feature = "mysql")]

#[path = "support/mysql.rs"]
mod mysql;
#[macro_use]
#[path = "support/process_promises.rs"]
mod process_promises;

use std::path::Path;

use mysql::MysqlServer;
use process_promises::Shared;

impl Shared for MysqlServer {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn directory(&self) -> &Path {
        Self::directory(self)
    }
}

process_promises!(MysqlServer::start_or_skip);
