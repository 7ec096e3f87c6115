//! Removes records that have not been used for a day.

use std::time::Duration;

use super::record::Stored;
use super::session::Session;
use super::statement;
use crate::backend::Stamp;
use crate::backend::records::Failure;

/// How often a client considers it. Of several clients, one does it.
pub(super) const INTERVAL: Duration = Duration::from_secs(60 * 60);
const INTERVAL_MICROS: i64 = INTERVAL.as_micros() as i64;
/// How long an unused record is kept.
const IDLE_MICROS: i64 = 24 * INTERVAL_MICROS;

/// Removes unused records, unless another client has done so within the last hour.
pub(super) async fn sweep(session: &mut Session) -> Result<(), Failure> {
    let begun = session.run_in_time(&[statement::begin_sweep(INTERVAL_MICROS)]).await?;
    let Some(begun) = begun.first().filter(|begun| begun.changed > 0) else { return Ok(()) };
    let Some(now) = begun.id.and_then(|id| i64::try_from(id).ok()) else { return Ok(()) };
    // The version of a record is the time when it was written.
    let before = now - IDLE_MICROS;
    let mut after = Vec::new();
    loop {
        let mut found = session.run_in_time(&[statement::idle(&after, before)]).await?;
        let rows = found.pop().map(|answer| answer.rows).unwrap_or_default();
        let (mut removed, mut floor) = (Vec::new(), 0);
        let Some(last) = rows.last() else { return Ok(()) };
        after = Stored::of(last)?.key;
        for row in &rows {
            let stored = Stored::of(row)?;
            // A record that cannot be parsed may belong to another program, and is kept.
            let Ok(ledger) = stored.ledger() else { continue };
            let micros = u64::try_from(now).unwrap_or(0);
            if !ledger.is_in_use(Stamp::new(micros, micros, 0)) {
                floor = floor.max(i64::try_from(ledger.last_number()).unwrap_or(i64::MAX));
                removed.push((stored.key, stored.version));
            }
        }
        if !removed.is_empty() {
            session.run_in_time(&statement::remove(&removed, floor)).await?;
        }
    }
}
