//! A file of its own for the SQLite store, and what can happen to it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use leasehold::{Client, SqliteBackend};
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

    /// Deletes the file and those beside it, whoever uses them.
    pub(crate) fn delete(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let path = self.directory().join(format!("locks.db{suffix}"));
            if let Err(error) = fs::remove_file(&path) {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", path.display());
            }
        }
    }
}
