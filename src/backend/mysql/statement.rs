//! The statements, as text, because only in this form does MySQL accept several of them in one exchange. Keys and
//! records are written in hexadecimal, which means the same under all session settings.

use super::view::View;
use crate::backend::sql::Changed;

/// The server's time of day, in microseconds, when it is evaluated. Sessions are in UTC.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// How long a stalled client may keep the named lock of a contended record before the server ends its session, and how
/// long other clients wait for it, in seconds: the minimum.
const LOCK_SECONDS: u32 = 1;
/// How long a session may be idle otherwise, in seconds.
pub(super) const IDLE: u32 = 24 * 60 * 60;
/// How old what was read may be when a record is inserted, in microseconds: since, there may have been one that was
/// removed again.
const INSERT_WITHIN: i64 = 60_000_000;

/// These records, and then the time with the number that all those issued by records that were removed are below: read
/// after the records, so that it covers what was removed before.
pub(super) fn read<'a>(keys: impl Iterator<Item = &'a str>) -> [String; 2] {
    let keys: Vec<_> = keys.map(hex).collect();
    [format!("SELECT k, version, doc FROM leasehold WHERE k IN ({})", keys.join(", ")), clock()]
}

/// Waits for the named lock of a contended record, for at most a second, and reads the record. A client that has the
/// lock can write without conflicts; a client that does not get it may still try. Waiting for the row itself would be
/// slow: while it grows, InnoDB copies the locks of all sessions that wait for it.
pub(super) fn read_in_turn(key: &str) -> Vec<String> {
    let mut statements = vec![
        format!("SET SESSION wait_timeout = {LOCK_SECONDS}"),
        format!("SELECT GET_LOCK({}, {LOCK_SECONDS})", lock_name(key)),
    ];
    statements.extend(read(std::iter::once(key)));
    statements
}

/// Gives up that lock, if this session has it.
pub(super) fn end_turn(key: &str) -> [String; 2] {
    [format!("DO RELEASE_LOCK({})", lock_name(key)), idle_again()]
}

/// After a turn, a session may be idle for long.
pub(super) fn idle_again() -> String {
    format!("SET SESSION wait_timeout = {IDLE}")
}

/// The name of the lock, which is the server's, not the database's.
fn lock_name(key: &str) -> String {
    format!("CONCAT('lh:', SHA2(CONCAT(DATABASE(), '/', {}), 224))", hex(key))
}

/// Locks those of these records that there are, until the transaction ends. It fails if another client has locked one,
/// which must not keep the others waiting.
pub(super) fn lock_without_waiting<'a>(keys: impl Iterator<Item = &'a str>) -> String {
    let keys: Vec<_> = keys.map(hex).collect();
    format!("SELECT version FROM leasehold WHERE k IN ({}) FOR UPDATE NOWAIT", keys.join(", "))
}

fn clock() -> String {
    format!("SELECT {NOW}, (SELECT value FROM leasehold_meta WHERE name = 'floor')")
}

/// Writes a record, unless another client has changed it or it is too late. The statement then changes no row;
/// otherwise it changes one, and its `LAST_INSERT_ID` is the new version: the time, unless the version was ahead of it.
pub(super) fn write(key: &str, record: &Changed<View>) -> String {
    let Changed { version, now, until, doc, .. } = record;
    let (key, doc) = (hex(key), hex(doc));
    match version {
        Some(version) => format!(
            "UPDATE leasehold SET doc = {doc}, version = LAST_INSERT_ID(GREATEST(version + 1, {NOW})) \
             WHERE k = {key} AND version = {version} AND {NOW} BETWEEN {now} AND {until}"
        ),
        None => format!(
            "INSERT INTO leasehold (k, version, doc) SELECT {key}, LAST_INSERT_ID({NOW}), {doc} FROM DUAL \
             WHERE {NOW} < {} ON DUPLICATE KEY UPDATE version = leasehold.version",
            now.saturating_add(INSERT_WITHIN)
        ),
    }
}

/// Those of these records that are not of these versions any more.
pub(super) fn changed_since<'a>(keys: impl Iterator<Item = (&'a str, i64)>) -> String {
    let keys: Vec<_> =
        keys.map(|(key, version)| format!("(k = {} AND version <> {version})", hex(key))).collect();
    format!("SELECT k, version, doc FROM leasehold WHERE {}", keys.join(" OR "))
}

/// Begins to sweep, unless a client has done so within this time, in microseconds. Its id is the time.
pub(super) fn begin_sweep(interval: i64) -> String {
    format!(
        "UPDATE leasehold_meta SET value = LAST_INSERT_ID({NOW}) \
         WHERE name = 'swept' AND ABS(value - {NOW}) >= {interval}"
    )
}

/// Some records that nobody has written since a time, in the order of their keys, after a key.
pub(super) fn idle(after: &[u8], before: i64) -> String {
    format!(
        "SELECT k, version, doc FROM leasehold WHERE k > {} AND version < {before} ORDER BY k LIMIT 100",
        hex(after)
    )
}

/// So many keys that are not less than this one, in order.
pub(super) fn keys(from: &str, limit: usize) -> String {
    format!("SELECT k FROM leasehold WHERE k >= {} ORDER BY k LIMIT {limit}", hex(from))
}

/// Removes records that are still of these versions, and have issued no number above this one.
pub(super) fn remove(records: &[(Vec<u8>, i64)], floor: i64) -> [String; 4] {
    let records: Vec<_> =
        records.iter().map(|(key, version)| format!("(k = {} AND version = {version})", hex(key))).collect();
    [
        "BEGIN".to_owned(),
        format!("UPDATE leasehold_meta SET value = GREATEST(value, {floor}) WHERE name = 'floor'"),
        format!("DELETE FROM leasehold WHERE {}", records.join(" OR ")),
        "COMMIT".to_owned(),
    ]
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];

    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_hexadecimal() {
        assert_eq!(hex(""), "x''");
        assert_eq!(hex("a'\\"), "x'61275c'");
        assert_eq!(hex([0, 9, 0xa0, 0xff]), "x'0009a0ff'");
    }
}
