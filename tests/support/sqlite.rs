//! A file of its own for the SQLite store, and what can happen to it.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold::Client;
use leasehold::sqlite::SqliteBackend;
use rusqlite::Connection;
use tempfile::TempDir;

/// A file in a directory of its own, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SqliteFile {
    directory: TempDir,
}

impl SqliteFile {
    /// A file that does not exist yet.
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::Builder::new().prefix("leasehold-").tempdir().expect("room for a directory"),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory().join("locks.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    pub(crate) async fn backend(&self) -> SqliteBackend {
        SqliteBackend::connect(&self.url()).await.expect("the file can be used")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.url()).await.expect("the file can be used")
    }

    /// The file as another program opens it.
    pub(crate) fn open(&self) -> Connection {
        let file = Connection::open(self.path()).expect("the file can be opened");
        file.busy_timeout(Duration::from_secs(5)).expect("a setting");
        file
    }

    /// A number that a query of another program finds.
    pub(crate) fn number(&self, query: &str) -> i64 {
        self.open().query_row(query, [], |row| row.get(0)).expect("a number")
    }

    /// Deletes the one of its files with this suffix, if there is one.
    pub(crate) fn delete_one(&self, suffix: &str) {
        let path = self.directory().join(format!("locks.db{suffix}"));
        if let Err(error) = fs::remove_file(&path) {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", path.display());
        }
    }

    /// Deletes the file and those beside it, whoever uses them.
    pub(crate) fn delete(&self) {
        for suffix in ["", "-wal", "-shm"] {
            self.delete_one(suffix);
        }
    }
}

/// A file system of its own in memory, of this many kilobytes. Unmounted when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    directory: TempDir,
}

impl SmallDisk {
    /// `None` where nothing may be mounted.
    pub(crate) fn new_or_skip(left_out: &str, kilobytes: u32) -> Option<Self> {
        let directory = tempfile::tempdir().expect("room for a directory");
        let disk = Self { directory };
        let size = format!("size={kilobytes}k");
        if disk.mount(&["-t", "tmpfs", "-o", &size, "tmpfs"]) {
            return Some(disk);
        }
        eprintln!("left out, as nothing may be mounted here: {left_out}");
        None
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes until nothing more fits.
    pub(crate) fn fill(&self) {
        let mut size = 512 * 1024;
        while size > 0 {
            let filler = fs::OpenOptions::new().create(true).append(true).open(self.filler());
            if filler.expect("a name fits").write_all(&vec![0; size]).is_err() {
                size /= 2;
            }
        }
    }

    /// Undoes it.
    pub(crate) fn empty(&self) {
        fs::remove_file(self.filler()).expect("ours");
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// From now on nothing can be written to it.
    pub(crate) fn make_read_only(&self) {
        assert!(self.mount(&["-o", "remount,ro"]), "it is mounted");
    }

    fn mount(&self, args: &[&str]) -> bool {
        let mount = Command::new("mount").args(args).arg(self.path()).output();
        mount.is_ok_and(|output| output.status.success())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a client may still be closing its file. An error means that it was not mounted.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}
