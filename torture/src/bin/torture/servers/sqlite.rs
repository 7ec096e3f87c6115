//! A file of SQLite.

use futures::future::{FutureExt, LocalBoxFuture, ready};

use super::{Outcome, Server, Strike, done, unknown};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::sqlite::SqliteFile;

pub(crate) const FAULTS: &[ServerFault] = &[];

#[derive(Debug)]
pub(crate) struct Sqlite {
    file: SqliteFile,
}

impl Sqlite {
    pub(crate) fn new() -> Self {
        Self { file: SqliteFile::new() }
    }
}

impl Server for Sqlite {
    fn url(&self) -> String {
        self.file.url()
    }

    fn line(&self) -> LocalBoxFuture<'_, (Line, String)> {
        ready((Line::None, self.url())).boxed_local()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        unknown(strike.fault)
    }

    fn end(&mut self, _: Strike) -> Outcome<'_> {
        done()
    }
}
