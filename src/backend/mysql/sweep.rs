//! Finding and removing unused records.

use super::exchange::stored;
use super::session::Session;
use super::statement;
use crate::backend::records::Failure;
use crate::backend::sql::{Stored, Sweep};

impl Sweep for Session {
    type Key = Vec<u8>;

    async fn begin_sweep(&mut self, interval: i64) -> Result<Option<i64>, Failure> {
        let begun = self.run_in_time(&[statement::begin_sweep(interval)]).await?;
        let begun = begun.first().filter(|begun| begun.changed > 0);
        Ok(begun.and_then(|begun| i64::try_from(begun.id?).ok()))
    }

    async fn idle(&mut self, after: &Vec<u8>, before: i64) -> Result<Vec<(Vec<u8>, Stored)>, Failure> {
        let found = self.run_in_time(&[statement::idle(after, before)]).await?;
        found.iter().flat_map(|answer| &answer.rows).map(stored).collect()
    }

    async fn remove(&mut self, records: &[(Vec<u8>, i64)], floor: i64) -> Result<(), Failure> {
        self.run_in_time(&statement::remove(records, floor)).await.map(drop)
    }
}
