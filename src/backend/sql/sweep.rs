//! Removes records that have not been used for a day.

use std::time::Duration;

use super::record::Stored;
use crate::backend::Stamp;
use crate::backend::records::Failure;

/// How often a client considers it. Of several clients, one does it.
pub(super) const INTERVAL: Duration = Duration::from_secs(60 * 60);
const INTERVAL_MICROS: i64 = INTERVAL.as_micros() as i64;
/// How long an unused record is kept.
const IDLE_MICROS: i64 = 24 * INTERVAL_MICROS;

/// How unused records are found and removed. All times are in microseconds, by the server's clock.
pub(in crate::backend) trait Sweep: Sized + Send + Sync + 'static {
    /// As it is in the table.
    type Key: Clone + Default + Send + Sync;

    /// Begins, unless another client has done so within this time. Returns the time.
    fn begin_sweep(&mut self, interval: i64) -> impl Future<Output = Result<Option<i64>, Failure>> + Send;

    /// Some of the records that nobody has written since a time, in the order of their keys, after a key.
    fn idle(
        &mut self,
        after: &Self::Key,
        before: i64,
    ) -> impl Future<Output = Result<Vec<(Self::Key, Stored)>, Failure>> + Send;

    /// Removes those of these records that are still of these versions, which have issued no number above this one.
    fn remove(
        &mut self,
        records: &[(Self::Key, i64)],
        floor: i64,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Removes unused records, unless another client has done so within the last hour.
pub(super) async fn sweep<S: Sweep>(session: &mut S) -> Result<(), Failure> {
    let Some(now) = session.begin_sweep(INTERVAL_MICROS).await? else { return Ok(()) };
    let micros = u64::try_from(now).unwrap_or(0);
    let mut after = S::Key::default();
    loop {
        // The version of a record is the time when it was written.
        let found = session.idle(&after, now - IDLE_MICROS).await?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        after = last.clone();
        let (mut unused, mut floor) = (Vec::new(), 0);
        for (key, stored) in found {
            // A record that cannot be parsed may belong to another program, and is kept.
            let Ok(ledger) = stored.ledger() else { continue };
            if !ledger.is_in_use(Stamp::new(micros, micros, 0)) {
                floor = floor.max(i64::try_from(ledger.last_number()).unwrap_or(i64::MAX));
                unused.push((key, stored.version));
            }
        }
        if !unused.is_empty() {
            session.remove(&unused, floor).await?;
        }
    }
}
