//! The open file: its settings, its rows, and waiting for other writers.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};
use uuid::Uuid;

use super::builder::{Settings, Synchronous};
use super::failure::{END_ALL, Failure, is_busy};
use super::file::{Fate, Identity, obstacle};
use super::schema::{self, SCHEMA, Wrong};

/// Another writer is usually done within a few microseconds: this many times, wait without sleeping.
const YIELDS: u32 = 20;
const SHORTEST_SLEEP: Duration = Duration::from_micros(50);
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// The number of pages in `-wal` after which the next commit copies it into the file: that takes two `fsync`s, and a
/// file of a few megabytes does no harm.
const CHECKPOINT: u32 = 4000;

/// The file, opened for writing, with the tables in it.
#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    identity: Identity,
    busy_timeout: Duration,
}

impl Database {
    pub(super) fn open(settings: &Settings) -> Result<Self, Failure> {
        let path = &settings.path;
        if let Some(obstacle) = obstacle(path) {
            return Err(Failure::refused(path, obstacle));
        }
        if !settings.create && !path.exists() {
            return Err(Failure::refused(path, "it does not exist, and `create` is off"));
        }
        let create = if settings.create { OpenFlags::SQLITE_OPEN_CREATE } else { OpenFlags::empty() };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
        let failed = |error| Failure::of(path, &error);
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        let (identity, busy_timeout) = (Identity::of(path), settings.busy_timeout);
        let mut database = Self { connection, path: path.clone(), identity, busy_timeout };
        // We wait ourselves.
        database.connection.busy_timeout(Duration::ZERO).map_err(failed)?;
        database.prepare(settings)?;
        database.identity = Identity::of(path);
        database
            .is_intact()?
            .then_some(())
            .ok_or_else(|| Failure::not_sent(path, "it was deleted meanwhile"))?;
        Ok(database)
    }

    fn prepare(&self, settings: &Settings) -> Result<(), Failure> {
        let synchronous = match settings.synchronous {
            Synchronous::Normal => "NORMAL",
            Synchronous::Full => "FULL",
        };
        let mode: String =
            self.patiently(|| self.connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)))?;
        if mode != "wal" {
            let why = format!("its journal mode cannot be changed from {mode} to WAL on this file system");
            return Err(Failure::refused(&self.path, why));
        }
        self.patiently(|| self.connection.pragma_update(None, "synchronous", synchronous))?;
        self.patiently(|| self.connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT))?;
        self.within_transaction(|| self.check_tables(settings.create))
    }

    fn check_tables(&self, create: bool) -> Result<(), Failure> {
        match schema::check(&self.connection) {
            Err(Wrong::Missing) if create => {
                self.connection.execute_batch(SCHEMA).map_err(|error| Failure::of(&self.path, &error))
            }
            Err(Wrong::Missing) => {
                let why = "the tables of this crate are missing, and `create` is off: see `leasehold::sqlite::SCHEMA`";
                Err(Failure::refused(&self.path, why))
            }
            Err(Wrong::Version(version)) => {
                let why = format!(
                    "its tables have version {version}, which this version of the crate does not know"
                );
                Err(Failure::refused(&self.path, why))
            }
            Err(Wrong::Failed(error)) => Err(Failure::of(&self.path, &error)),
            Ok(()) => Ok(()),
        }
    }

    /// `false` if the file has been deleted, or replaced by another one.
    ///
    /// # Errors
    ///
    /// If the same has happened to a file beside it: programs that have it open do not see each other's changes until
    /// all of them have closed it.
    pub(super) fn is_intact(&self) -> Result<bool, Failure> {
        match self.identity.fate(&self.path) {
            Fate::Intact => Ok(true),
            Fate::Replaced => Ok(false),
            Fate::Torn(suffix) => {
                let why = format!(
                    "the file with the suffix `{suffix}` beside it was deleted while it was in use: {END_ALL}"
                );
                Err(Failure::not_sent(&self.path, why))
            }
        }
    }

    // Transactions

    /// Becomes the only writer.
    pub(super) fn begin(&self) -> Result<(), Failure> {
        self.patiently(|| self.execute("BEGIN IMMEDIATE", []).map(drop))
    }

    pub(super) fn commit(&self) -> Result<(), Failure> {
        self.execute("COMMIT", []).map(drop).map_err(|error| {
            let failure = Failure::of_commit(&self.path, &error);
            self.roll_back();
            failure
        })
    }

    /// Copies what is in `-wal` into the file, so that what is written next takes its place. A commit does so only when it
    /// has succeeded, which none does any more once `-wal` itself has filled the disk.
    pub(super) fn make_room(&self) {
        let copied = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = copied {
            tracing::debug!(path = %self.path.display(), %error, "`-wal` could not be copied into the file");
        }
    }

    pub(super) fn roll_back(&self) {
        // Some errors have done so already.
        if !self.connection.is_autocommit()
            && let Err(error) = self.execute("ROLLBACK", [])
        {
            tracing::debug!(path = %self.path.display(), %error, "a transaction could not be rolled back");
        }
    }

    /// Does `work` as the only writer, and stores it as a whole.
    pub(super) fn within_transaction<T>(
        &self,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.begin()?;
        match work() {
            Ok(outcome) => self.commit().map(|()| outcome),
            Err(failure) => {
                self.roll_back();
                Err(failure)
            }
        }
    }

    /// Retries while another program is writing, for as long as the settings say.
    fn patiently<T>(&self, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> Result<T, Failure> {
        let (begun, mut attempts) = (Instant::now(), 0);
        loop {
            match attempt() {
                Err(error) if is_busy(&error) => {
                    let waited = begun.elapsed();
                    if waited >= self.busy_timeout {
                        let why = format!("another program has kept it locked for {waited:.1?}");
                        return Err(Failure::not_now(&self.path, why));
                    }
                    pause(attempts);
                    attempts += 1;
                }
                outcome => return outcome.map_err(|error| Failure::of(&self.path, &error)),
            }
        }
    }

    // Rows

    pub(super) fn record(&self, key: &str) -> Result<Option<String>, Failure> {
        self.value("SELECT record FROM leasehold_leases WHERE key = ?1", [key])
    }

    pub(super) fn set_record(&self, key: &str, record: &str, now: u64) -> Result<(), Failure> {
        let write = "INSERT INTO leasehold_leases (key, record, used) VALUES (?1, ?2, ?3) \
                     ON CONFLICT (key) DO UPDATE SET record = excluded.record, used = excluded.used";
        self.write(write, params![key, record, signed(now)])
    }

    pub(super) fn delete_record(&self, key: &str) -> Result<(), Failure> {
        self.write("DELETE FROM leasehold_leases WHERE key = ?1", [key])
    }

    /// Some keys after `after`, in order, and when the record of each was last changed.
    pub(super) fn rows(&self, after: &str, limit: u32) -> Result<Vec<(String, u64)>, Failure> {
        let rows = || {
            let query = "SELECT key, used FROM leasehold_leases WHERE key > ?1 ORDER BY key LIMIT ?2";
            let mut statement = self.connection.prepare_cached(query)?;
            let row = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.unsigned_abs()));
            statement.query_map(params![after, limit], row)?.collect()
        };
        self.patiently(rows)
    }

    /// Some keys from `from` on, in order.
    pub(super) fn keys(&self, from: &str, limit: u32) -> Result<Vec<String>, Failure> {
        self.patiently(|| {
            let query = "SELECT key FROM leasehold_leases WHERE key >= ?1 ORDER BY key LIMIT ?2";
            let mut statement = self.connection.prepare_cached(query)?;
            statement.query_map(params![from, limit], |row| row.get(0))?.collect()
        })
    }

    /// One of the numbers that are kept for the whole file.
    pub(super) fn number(&self, name: &str) -> Result<u64, Failure> {
        let number: Option<i64> = self.value("SELECT value FROM leasehold_meta WHERE name = ?1", [name])?;
        Ok(number.unwrap_or_default().unsigned_abs())
    }

    pub(super) fn set_number(&self, name: &str, number: u64) -> Result<(), Failure> {
        let write = "INSERT INTO leasehold_meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        self.write(write, params![name, signed(number)])
    }

    /// The port on which a client receives datagrams.
    pub(super) fn port(&self, client: Uuid) -> Result<Option<u16>, Failure> {
        self.value("SELECT port FROM leasehold_clients WHERE client = ?1", [client.to_string()])
    }

    pub(super) fn set_port(&self, client: Uuid, port: u16, now: u64) -> Result<(), Failure> {
        let write = "INSERT OR REPLACE INTO leasehold_clients VALUES (?1, ?2, ?3)";
        self.write(write, params![client.to_string(), port, signed(now)])
    }

    pub(super) fn delete_port(&self, client: Uuid) -> Result<(), Failure> {
        self.write("DELETE FROM leasehold_clients WHERE client = ?1", [client.to_string()])
    }

    /// Removes clients that have not said since `before` that they are alive.
    pub(super) fn delete_ports(&self, before: u64) -> Result<(), Failure> {
        self.write("DELETE FROM leasehold_clients WHERE seen < ?1", [signed(before)])
    }

    /// A number that changes whenever another connection has written.
    pub(super) fn version(&self) -> Result<i64, Failure> {
        self.value("PRAGMA data_version", []).map(Option::unwrap_or_default)
    }

    fn value<T: rusqlite::types::FromSql>(
        &self,
        query: &str,
        params: impl rusqlite::Params + Clone,
    ) -> Result<Option<T>, Failure> {
        self.patiently(|| {
            let mut statement = self.connection.prepare_cached(query)?;
            statement.query_row(params.clone(), |row| row.get(0)).optional()
        })
    }

    fn write(&self, statement: &str, params: impl rusqlite::Params) -> Result<(), Failure> {
        self.execute(statement, params).map(drop).map_err(|error| Failure::of(&self.path, &error))
    }

    fn execute(&self, statement: &str, params: impl rusqlite::Params) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(statement)?.execute(params)
    }

    #[cfg(test)]
    pub(super) const fn connection(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // The last program to close a file removes the files beside it, by name. If the file is gone, those may belong
        // to another one by now.
        if self.identity.fate(&self.path) != Fate::Intact
            && let Err(error) =
                self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        {
            tracing::debug!(path = %self.path.display(), %error, "could not keep SQLite from removing the files beside a deleted file");
        }
    }
}

/// SQLite's integers are signed.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn pause(attempts: u32) {
    match attempts.checked_sub(YIELDS) {
        None => thread::yield_now(),
        Some(sleeps) => thread::sleep((SHORTEST_SLEEP * (sleeps + 1).min(10)).min(LONGEST_SLEEP)),
    }
}
