//! Removes records that have not been used for a day.

use std::time::Duration;

use super::session::Session;
use super::statement::Sql;
use super::text::unescape;
use crate::backend::records::Failure;
use crate::backend::{Ledger, Stamp};

/// How often a client considers it. Of several clients, one does it.
pub(super) const INTERVAL: Duration = Duration::from_secs(60 * 60);
const INTERVAL_MICROS: i64 = INTERVAL.as_micros() as i64;
/// How long an unused record is kept.
const IDLE_MICROS: i64 = 24 * INTERVAL_MICROS;

/// Removes unused records, unless another client has done so within the last hour.
pub(super) async fn sweep(session: &Session) -> Result<(), Failure> {
    let begun = session.within(session.rows(Sql::Sweep, &[&INTERVAL_MICROS])).await?;
    let Some(begun) = begun.first() else { return Ok(()) };
    let now: i64 = begun.try_get(0)?;
    // The version of a record is the time when it was written.
    let before = now - IDLE_MICROS;
    let mut after = String::new();
    loop {
        let rows = session.within(session.rows(Sql::Idle, &[&after, &before])).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.try_get(0)?;
        let (mut keys, mut versions, mut floor) = (Vec::<&str>::new(), Vec::<i64>::new(), 0);
        for row in &rows {
            // A record that cannot be parsed may belong to another program, and is kept.
            let Ok(ledger) = unescape(row.try_get(2)?).parse::<Ledger>() else { continue };
            let micros = u64::try_from(now).unwrap_or(0);
            if !ledger.is_in_use(Stamp::new(micros, micros, 0)) {
                keys.push(row.try_get(0)?);
                versions.push(row.try_get(1)?);
                floor = floor.max(i64::try_from(ledger.last_number()).unwrap_or(i64::MAX));
            }
        }
        if !keys.is_empty() {
            session.within(session.change(Sql::Remove, &[&keys, &versions, &floor])).await?;
        }
    }
}
