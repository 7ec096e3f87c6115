//! The tables, their version, and whether they exist.

use rusqlite::{Connection, OptionalExtension};

/// The tables of this crate, as statements that create them if they do not exist. A client does the same unless
/// [`SqliteBuilder::create`](super::SqliteBuilder::create) is off. They may be in a file with other tables.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_meta (
    name TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leasehold_leases (
    key TEXT NOT NULL PRIMARY KEY,
    record TEXT NOT NULL,
    used INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leasehold_clients (
    client TEXT NOT NULL PRIMARY KEY,
    port INTEGER NOT NULL,
    seen INTEGER NOT NULL
) WITHOUT ROWID;
INSERT OR IGNORE INTO leasehold_meta VALUES ('version', 1), ('floor', 0), ('swept', 0);
";

/// The version of [`SCHEMA`].
const VERSION: i64 = 1;

/// What is wrong with the tables.
pub(super) enum Wrong {
    /// They do not exist.
    Missing,
    /// They are of this version, which this crate does not know.
    Version(i64),
    Failed(rusqlite::Error),
}

impl From<rusqlite::Error> for Wrong {
    fn from(error: rusqlite::Error) -> Self {
        Self::Failed(error)
    }
}

/// Whether the tables exist and have this version.
pub(super) fn check(connection: &Connection) -> Result<(), Wrong> {
    let exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'leasehold_meta'";
    if connection.query_row(exists, [], |_| Ok(())).optional()?.is_none() {
        return Err(Wrong::Missing);
    }
    // There has been one version only. The statements that lead from an older one to this one would be run here.
    let version = "SELECT value FROM leasehold_meta WHERE name = 'version'";
    match connection.query_row(version, [], |row| row.get(0)).optional()? {
        Some(VERSION) => Ok(()),
        version => Err(Wrong::Version(version.unwrap_or_default())),
    }
}
