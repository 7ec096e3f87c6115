//! Finding and removing unused records.

use super::exchange::stored;
use super::session::{Session, value};
use super::statement::Sql;
use crate::backend::records::Failure;
use crate::backend::sql::{Stored, Sweep};

impl Sweep for Session {
    type Key = String;

    async fn begin_sweep(&mut self, interval: i64) -> Result<Option<i64>, Failure> {
        let begun = self.within(self.rows(Sql::Sweep, &[&interval])).await?;
        begun.first().map(|row| value(row, 0)).transpose()
    }

    async fn idle(&mut self, after: &String, before: i64) -> Result<Vec<(String, Stored)>, Failure> {
        let rows = self.within(self.rows(Sql::Idle, &[after, &before])).await?;
        rows.iter().map(|row| Ok((value(row, 0)?, stored(value(row, 1)?, value(row, 2)?)))).collect()
    }

    async fn remove(&mut self, records: &[(String, i64)], floor: i64) -> Result<(), Failure> {
        let (keys, versions): (Vec<&String>, Vec<&i64>) =
            records.iter().map(|(key, version)| (key, version)).unzip();
        self.within(self.change(Sql::Remove, &[&keys, &versions, &floor])).await
    }
}
