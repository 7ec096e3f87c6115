//! The tables, their version, and whether they can be used.

use mysql_async::Row;

use super::session::{Session, value};
use crate::backend::records::Failure;
use crate::backend::sql::check_version;

/// The tables of this crate, as statements that create them if they do not exist. A client does the same unless
/// [`MysqlBuilder::create`](super::MysqlBuilder::create) is off, in the database that its URL names. Users of the
/// tables need `SELECT, INSERT, UPDATE, DELETE` on both.
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

/// Which tables exist, in which engine, and with which columns.
pub(super) const EXIST: &str = "SELECT TABLE_NAME, ENGINE, (SELECT GROUP_CONCAT(LOWER(COLUMN_NAME)) FROM information_schema.COLUMNS \
     WHERE COLUMNS.TABLE_SCHEMA = DATABASE() AND COLUMNS.TABLE_NAME = TABLES.TABLE_NAME) FROM information_schema.TABLES \
     WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('leasehold', 'leasehold_meta')";

/// The columns that they must have.
const COLUMNS: [(&str, &[&str]); 2] =
    [("leasehold", &["k", "version", "doc"]), ("leasehold_meta", &["name", "value"])];

/// A table that exists.
pub(super) struct Table {
    name: String,
    engine: Option<String>,
    /// `None` if this user may not know.
    columns: Option<String>,
}

impl Table {
    pub(super) fn of(row: &Row) -> Result<Self, Failure> {
        Ok(Self { name: value(row, 0)?, engine: value(row, 1)?, columns: value(row, 2)? })
    }

    /// Refuses a table of another program that happens to have the same name.
    fn check_columns(&self) -> Result<(), Failure> {
        let Some(columns) = &self.columns else { return Ok(()) };
        let known = |name: &str| columns.split(',').any(|column| column == name);
        let wanted = COLUMNS.iter().find(|(table, _)| *table == self.name).map(|(_, columns)| *columns);
        let lacking: Vec<_> =
            wanted.unwrap_or_default().iter().copied().filter(|name| !known(name)).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let (name, lacking) = (&self.name, lacking.join(", "));
        Err(Failure::refused(format!(
            "the table {name} was not made by this crate, or this user has no permissions on all of its columns: there is no {lacking}. \
             Use another database, or rename that table"
        )))
    }

    fn check_engine(&self) -> Result<(), Failure> {
        let name = &self.name;
        match &self.engine {
            Some(engine) if !engine.eq_ignore_ascii_case("InnoDB") => Err(Failure::refused(format!(
                "the table {name} uses {engine}, but InnoDB is needed: ALTER TABLE {name} ENGINE = InnoDB"
            ))),
            _ => Ok(()),
        }
    }
}

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

/// Makes sure that the tables are there, in InnoDB, of the right version, and that this user may use them. Nothing is
/// created if one of those that exist is of no use.
pub(super) async fn prepare(session: &mut Session, tables: &[Table], create: bool) -> Result<(), Failure> {
    tables.iter().try_for_each(Table::check_columns)?;
    tables.iter().try_for_each(Table::check_engine)?;
    if tables.len() < 2 {
        if !create {
            return Err(missing("`create` is off"));
        }
        create_tables(session).await?;
    }
    let answers = session.run(&PERMISSIONS.map(str::to_owned)).await.map_err(denied)?;
    let version = answers.last().and_then(|answer| answer.rows.first());
    check_version(version.map(|row| value::<Option<i64>>(row, 0)).transpose()?.flatten())
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
