//! What a lock in a PostgreSQL table promises real processes.
#![cfg(feature = "postgres")]

#[path = "support/postgres.rs"]
mod postgres;
#[macro_use]
#[path = "support/process_promises.rs"]
mod process_promises;

use std::path::Path;

use postgres::PostgresServer;
use process_promises::Shared;

impl Shared for PostgresServer {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn directory(&self) -> &Path {
        Self::directory(self)
    }
}

process_promises!(PostgresServer::start_or_skip);
