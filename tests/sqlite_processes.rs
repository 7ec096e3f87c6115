//! What a lock in an SQLite file promises real processes.
#![cfg(feature = "sqlite")]

#[path = "support/sqlite.rs"]
mod file;
#[macro_use]
#[path = "support/process_promises.rs"]
mod process_promises;

use std::path::Path;

use file::SqliteFile;
use process_promises::Shared;

impl Shared for SqliteFile {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn directory(&self) -> &Path {
        Self::directory(self)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "other stores need a server")]
fn new(_left_out: &str) -> Option<SqliteFile> {
    Some(SqliteFile::new())
}

process_promises!(new);
