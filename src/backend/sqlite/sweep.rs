//! Rows that nobody has used for a day are removed.

use std::time::Duration;

use super::builder::Settings;
use super::database::Database;
use super::failure::Failure;
use crate::backend::{Ledger, Stamp};

/// The number that is above all those issued by records that were removed.
pub(super) const FLOOR: &str = "floor";
/// When the rows were last looked through.
const SWEPT: &str = "swept";

/// How often a client thinks of it. Of several, one does it.
pub(super) const INTERVAL: Duration = Duration::from_secs(60 * 60);
const INTERVAL_MICROS: u64 = INTERVAL.as_micros() as u64;
/// How long a row is kept that nobody uses.
const IDLE_MICROS: u64 = 24 * INTERVAL_MICROS;
/// How many rows are removed at a time: others want to write meanwhile.
const AT_ONCE: u32 = 100;

/// Removes what nobody uses, unless somebody has done so within the last hour.
pub(super) fn sweep(database: &Database, settings: &Settings) -> Result<(), Failure> {
    let now = settings.now();
    if !database.within_transaction(|| claim(database, now))? {
        return Ok(());
    }
    let before = now.saturating_sub(IDLE_MICROS);
    let mut after = String::new();
    loop {
        let keys = database.idle_keys(&after, before, AT_ONCE)?;
        let Some(last) = keys.last() else { return Ok(()) };
        after.clone_from(last);
        database.within_transaction(|| remove_unused(database, &keys, now))?;
    }
}

/// Whether it is to be done now. Removes clients that have died.
fn claim(database: &Database, now: u64) -> Result<bool, Failure> {
    // A time in the future is of a clock that was wrong then, or is now.
    if now.abs_diff(database.number(SWEPT)?) < INTERVAL_MICROS {
        return Ok(false);
    }
    database.set_number(SWEPT, now)?;
    database.delete_ports(now.saturating_sub(IDLE_MICROS))?;
    Ok(true)
}

fn remove_unused(database: &Database, keys: &[String], now: u64) -> Result<(), Failure> {
    let mut floor = database.number(FLOOR)?;
    for key in keys {
        // Somebody may have used it meanwhile. What cannot be read is not ours to remove.
        let ledger = database.record(key)?.and_then(|record| record.parse::<Ledger>().ok());
        if let Some(ledger) = ledger.filter(|ledger| !ledger.is_in_use(Stamp::new(now, now, 0))) {
            floor = floor.max(ledger.last_number());
            database.delete_record(key)?;
        }
    }
    database.set_number(FLOOR, floor)
}
