//! A file of SQLite.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::future::{BoxFuture, FutureExt, ready};
use rusqlite::Connection;

use super::{LEFT_OUT, Outcome, PATIENCE, Server, Start, Strike, done, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::sqlite::{SmallDisk, SqliteFile};

pub(crate) const FAULTS: &[ServerFault] = &[ServerFault::Busy, ServerFault::NoRoom];

/// More than the file and what is not yet copied into it take, unless somebody who reads is stopped.
const KILOBYTES: u32 = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Sqlite {
    file: SqliteFile,
    /// Where the file is, if it is to become full.
    disk: Option<SmallDisk>,
    /// What has locked the file.
    stranger: Mutex<Option<Connection>>,
}

impl Sqlite {
    pub(crate) fn start(start: Start<'_>) -> Self {
        let has_disk = start.will_suffer(ServerFault::NoRoom);
        let disk = if has_disk { SmallDisk::new_or_skip(LEFT_OUT, KILOBYTES) } else { None };
        Self { file: SqliteFile::new(), disk, stranger: Mutex::default() }
    }

    fn stranger(&self) -> MutexGuard<'_, Option<Connection>> {
        self.stranger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> Result<(), rusqlite::Error> {
        let stranger = match &self.disk {
            Some(disk) => Connection::open(disk.path().join("locks.db"))?,
            None => self.file.open(),
        };
        // Those who use it leave it free for no more than a moment.
        stranger.busy_timeout(PATIENCE)?;
        stranger.execute_batch("BEGIN EXCLUSIVE")?;
        *self.stranger() = Some(stranger);
        Ok(())
    }
}

impl Server for Sqlite {
    fn url(&self) -> String {
        match &self.disk {
            Some(disk) => format!("sqlite:{}", disk.path().join("locks.db").display()),
            None => self.file.url(),
        }
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        ready((Line::None, self.url())).boxed()
    }

    fn can_have(&self, fault: ServerFault) -> bool {
        fault != ServerFault::NoRoom || self.disk.is_some()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        match (strike.fault, &self.disk) {
            (ServerFault::Busy, _) => {
                return ready(self.lock().map_err(|error| error.to_string())).boxed();
            }
            (ServerFault::NoRoom, Some(disk)) => disk.fill(),
            (fault, _) => return unknown(fault),
        }
        done()
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        match (strike.fault, &self.disk) {
            // Its transaction ends with it.
            (ServerFault::Busy, _) => *self.stranger() = None,
            (_, Some(disk)) => disk.empty(),
            _ => {}
        }
        done()
    }
}
