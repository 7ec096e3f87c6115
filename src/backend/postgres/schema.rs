//! The tables, their version, and whether they can be used.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::backend::records::Failure;

/// The tables of this crate, as statements that create them if they do not exist. A client does the same unless
/// [`PostgresBuilder::create`](super::PostgresBuilder::create) is off, in the first schema of its `search_path`. Users of the tables need
/// `SELECT, INSERT, UPDATE, DELETE` on both.
pub const SCHEMA: &str = "\
CREATE TABLE IF NOT EXISTS leasehold (
    key text COLLATE \"C\" PRIMARY KEY,
    version bigint NOT NULL,
    doc text NOT NULL
) WITH (fillfactor = 50, toast_tuple_target = 8160);
CREATE TABLE IF NOT EXISTS leasehold_meta (
    name text COLLATE \"C\" PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO leasehold_meta VALUES ('schema', 1), ('floor', 0), ('swept', 0) ON CONFLICT DO NOTHING;
";

/// Whether both tables exist.
pub(super) const EXIST: &str =
    "to_regclass('leasehold') IS NOT NULL AND to_regclass('leasehold_meta') IS NOT NULL";

/// The version that this crate reads and writes.
const VERSION: &str = "1";
/// Creating the same table from two clients at once fails, so they take turns. An arbitrary number that no other program is likely to use.
const LOCK: &str = "SELECT pg_advisory_xact_lock(6841273905571203)";

const PERMISSIONS: &str = "SELECT \
     has_table_privilege('leasehold', 'SELECT') AND has_table_privilege('leasehold', 'INSERT') AND \
     has_table_privilege('leasehold', 'UPDATE') AND has_table_privilege('leasehold', 'DELETE') AND \
     has_table_privilege('leasehold_meta', 'SELECT') AND has_table_privilege('leasehold_meta', 'INSERT') AND \
     has_table_privilege('leasehold_meta', 'UPDATE') AND has_table_privilege('leasehold_meta', 'DELETE')";

const LACKS_PERMISSIONS: &str =
    "no permission on the tables: GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO ...";

/// Makes sure that the tables are there, of the right version, and that this user may use them.
pub(super) async fn prepare(client: &Client, exist: bool, create: bool) -> Result<(), Failure> {
    if !exist {
        if !create {
            return Err(missing("`create` is off"));
        }
        create_tables(client).await?;
    }
    if row(client, PERMISSIONS).await?.swap_remove(0).as_deref() != Some("t") {
        return Err(Failure::refused(LACKS_PERMISSIONS));
    }
    let version = "SELECT (SELECT value FROM leasehold_meta WHERE name = 'schema')";
    match row(client, version).await?.swap_remove(0) {
        Some(version) if version == VERSION => Ok(()),
        Some(version) => Err(Failure::refused(format!(
            "its tables have version {version}, but this version of the crate uses version {VERSION}"
        ))),
        None => Err(Failure::refused("the table leasehold_meta does not contain the version of the tables")),
    }
}

async fn create_tables(client: &Client) -> Result<(), Failure> {
    // Creating the tables takes as long as the disk needs, and other clients wait for it: only the limits for a statement and for
    // connecting apply.
    let wait = "SET LOCAL lock_timeout = 0";
    let created = client.batch_execute(&format!("BEGIN; {wait}; {LOCK}; {SCHEMA} COMMIT")).await;
    let Err(error) = created else { return Ok(()) };
    let refusal = match error.code() {
        Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Some("this user may not create them"),
        Some(&SqlState::INVALID_SCHEMA_NAME) => Some("no schema of its `search_path` exists"),
        _ => None,
    };
    let failure = Failure::from(error);
    if !failure.is_broken || refusal.is_some() {
        client.batch_execute("ROLLBACK").await?;
    }
    Err(refusal.map_or(failure, missing))
}

fn missing(why: &str) -> Failure {
    Failure::refused(format!(
        "the tables leasehold and leasehold_meta do not exist, and {why}: run the statements in `leasehold::postgres::SCHEMA`"
    ))
}

/// The last row that some statements return.
pub(super) async fn row(client: &Client, statements: &str) -> Result<Vec<Option<String>>, Failure> {
    let messages = client.simple_query(statements).await?;
    let last = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = last else { return Err(Failure::unavailable("an answer is missing")) };
    Ok((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect())
}
