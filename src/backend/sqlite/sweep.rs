//! Removes rows that have not been used for a day.

use std::time::Duration;

use super::builder::Settings;
use super::database::Database;
use super::failure::Failure;
use crate::backend::{Ledger, Stamp};

/// The number that is above all those issued by records that were removed.
pub(super) const FLOOR: &str = "floor";
/// When the rows were last looked through.
const SWEPT: &str = "swept";

/// How often a client considers it. Of several clients, one does it.
pub(super) const INTERVAL: Duration = Duration::from_secs(60 * 60);
const INTERVAL_MICROS: u64 = INTERVAL.as_micros() as u64;
/// How long an unused row is kept.
const IDLE_MICROS: u64 = 24 * INTERVAL_MICROS;
/// How many rows are checked at a time: other work of the client waits meanwhile.
const AT_ONCE: u32 = 500;
/// The pause before the next ones are checked.
pub(super) const PAUSE: Duration = Duration::from_millis(20);

/// Whether this client should remove unused rows: not if another client has started to within the last hour.
pub(super) fn begin(database: &Database, settings: &Settings) -> Result<bool, Failure> {
    database.within_transaction(|| claim(database, settings.now()))
}

/// Checks some rows after the key `after`, and removes unused ones. Returns the last one checked, unless there are no
/// more.
pub(super) fn go_on(
    database: &Database,
    settings: &Settings,
    after: &str,
) -> Result<Option<String>, Failure> {
    let now = settings.now();
    let mut rows = database.rows(after, AT_ONCE)?;
    let last = if rows.len() < AT_ONCE as usize { None } else { rows.last().map(|(key, _)| key.clone()) };
    rows.retain(|(_, used)| *used < now.saturating_sub(IDLE_MICROS));
    if !rows.is_empty() {
        database.within_transaction(|| remove_unused(database, &rows, now))?;
    }
    Ok(last)
}

/// Whether to do it now. Removes clients that have died.
fn claim(database: &Database, now: u64) -> Result<bool, Failure> {
    // A time in the future comes from a clock that was wrong then, or is wrong now.
    if now.abs_diff(database.number(SWEPT)?) < INTERVAL_MICROS {
        return Ok(false);
    }
    database.set_number(SWEPT, now)?;
    database.delete_ports(now.saturating_sub(IDLE_MICROS))?;
    Ok(true)
}

fn remove_unused(database: &Database, rows: &[(String, u64)], now: u64) -> Result<(), Failure> {
    let mut floor = database.number(FLOOR)?;
    for (key, _) in rows {
        // It may have been used meanwhile. A record that cannot be parsed may belong to another program, and is kept.
        let ledger = database.record(key)?.and_then(|record| record.parse::<Ledger>().ok());
        if let Some(ledger) = ledger.filter(|ledger| !ledger.is_in_use(Stamp::new(now, now, 0))) {
            floor = floor.max(ledger.last_number());
            database.delete_record(key)?;
        }
    }
    database.set_number(FLOOR, floor)
}
