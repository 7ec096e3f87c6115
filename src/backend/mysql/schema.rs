//! The tables, their version, and whether they can be used.

use super::session::{Session, value};
use crate::backend::records::Failure;

/// The tables of this crate, as statements that create them if they do not exist. A client does the same unless
/// [`MysqlBuilder::create`](super::MysqlBuilder::create) is off, in the database that its URL names. Users of the tables need
/// `SELECT, INSERT, UPDATE, DELETE` on both.
// Nothing of this is undone if it is interrupted: where the last table exists, so does everything else.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold_meta (
    name VARBINARY(32) NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
INSERT IGNORE INTO leasehold_meta VALUES ('schema', 1), ('floor', 0), ('swept', 0);
CREATE TABLE IF NOT EXISTS leasehold (
    k VARBINARY(1024) NOT NULL PRIMARY KEY,
    version BIGINT NOT NULL,
    doc MEDIUMBLOB NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
";

/// Which tables exist, and in which engine.
pub(super) const EXIST: &str = "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES \
     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('leasehold', 'leasehold_meta')";

/// The version that this crate reads and writes.
const VERSION: i64 = 1;

/// Statements that change nothing, and fail if the rights for them are missing.
const PERMISSIONS: [&str; 6] = [
    "INSERT INTO leasehold SELECT k, version, doc FROM leasehold WHERE 1 = 0",
    "UPDATE leasehold SET version = version WHERE 1 = 0",
    "DELETE FROM leasehold WHERE 1 = 0",
    "INSERT INTO leasehold_meta SELECT name, value FROM leasehold_meta WHERE 1 = 0",
    "UPDATE leasehold_meta SET value = value WHERE 1 = 0",
    "SELECT (SELECT value FROM leasehold_meta WHERE name = 'schema')",
];

const LACKS_PERMISSIONS: &str = "no permission on the tables: GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold TO ..., and the same ON leasehold_meta";

/// Errors for missing rights: on a table, on a column, on a database.
const DENIED: [&str; 3] = ["(error 1142)", "(error 1143)", "(error 1044)"];

/// Makes sure that the tables are there, in InnoDB, of the right version, and that this user may use them. Of those that exist, the engines.
pub(super) async fn prepare(
    session: &mut Session,
    tables: &[(String, Option<String>)],
    create: bool,
) -> Result<(), Failure> {
    let others = tables.iter().filter_map(|(table, engine)| Some((table, engine.as_ref()?)));
    if let Some((table, engine)) = others.clone().find(|(_, engine)| !engine.eq_ignore_ascii_case("InnoDB")) {
        return Err(Failure::refused(format!(
            "the table {table} uses {engine}, but InnoDB is needed: ALTER TABLE {table} ENGINE = InnoDB"
        )));
    }
    if tables.len() < 2 {
        if !create {
            return Err(missing("`create` is off"));
        }
        create_tables(session).await?;
    }
    let answers = session.run(&PERMISSIONS.map(str::to_owned)).await.map_err(denied)?;
    let version = answers.last().and_then(|answer| answer.rows.first());
    match version.map(|row| value::<Option<i64>>(row, 0)).transpose()?.flatten() {
        Some(VERSION) => Ok(()),
        Some(version) => Err(Failure::refused(format!(
            "its tables have version {version}, but this version of the crate uses version {VERSION}"
        ))),
        None => Err(Failure::refused("the table leasehold_meta does not contain the version of the tables")),
    }
}

/// Several clients may do so at once.
async fn create_tables(session: &mut Session) -> Result<(), Failure> {
    let statements: Vec<_> =
        SCHEMA.split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect();
    let created = session.run(&statements).await;
    created.map(drop).map_err(|failure| {
        if is_denied(&failure) { missing("this user may not create them") } else { failure }
    })
}

fn denied(failure: Failure) -> Failure {
    if is_denied(&failure) { Failure::refused(LACKS_PERMISSIONS) } else { failure }
}

fn is_denied(failure: &Failure) -> bool {
    DENIED.iter().any(|code| failure.why.ends_with(code))
}

fn missing(why: &str) -> Failure {
    Failure::refused(format!(
        "the tables leasehold and leasehold_meta do not exist, or this user has no permissions on them, and {why}: run the statements in \
         `leasehold::mysql::SCHEMA`"
    ))
}
