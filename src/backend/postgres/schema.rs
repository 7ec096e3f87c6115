//! The tables, their version, and whether they can be used.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::backend::records::Failure;

/// The tables of this crate, as statements that create them if they do not exist. A client does the same unless it is told not to
/// ([`PostgresBuilder::create`](super::PostgresBuilder::create)), in the first schema of its `search_path`. Who uses them needs the rights
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
/// Two clients that create the same table at once would disturb each other. Any number that others are unlikely to have chosen.
const LOCK: &str = "SELECT pg_advisory_xact_lock(6841273905571203)";

const RIGHTS: &str = "SELECT \
     has_table_privilege('leasehold', 'SELECT') AND has_table_privilege('leasehold', 'INSERT') AND \
     has_table_privilege('leasehold', 'UPDATE') AND has_table_privilege('leasehold', 'DELETE') AND \
     has_table_privilege('leasehold_meta', 'SELECT') AND has_table_privilege('leasehold_meta', 'INSERT') AND \
     has_table_privilege('leasehold_meta', 'UPDATE') AND has_table_privilege('leasehold_meta', 'DELETE')";

const LACKS_RIGHTS: &str = "this user may not use the tables: GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO ...";

/// Makes sure that the tables are there, of the right version, and that this user may use them.
pub(super) async fn prepare(client: &Client, exist: bool, create: bool) -> Result<(), Failure> {
    if !exist {
        if !create {
            return Err(missing("they are not to be created"));
        }
        create_tables(client).await?;
    }
    if row(client, RIGHTS).await?.swap_remove(0).as_deref() != Some("t") {
        return Err(Failure::refused(LACKS_RIGHTS));
    }
    let version = "SELECT (SELECT value FROM leasehold_meta WHERE name = 'schema')";
    match row(client, version).await?.swap_remove(0) {
        Some(version) if version == VERSION => Ok(()),
        Some(version) => Err(Failure::refused(format!(
            "its tables are of version {version}, and this version of the crate uses version {VERSION}"
        ))),
        None => {
            Err(Failure::refused("the table leasehold_meta does not say which version the tables are of"))
        }
    }
}

async fn create_tables(client: &Client) -> Result<(), Failure> {
    // Whoever creates them takes as long as the disk does, and the others wait for that: only the limits for a statement, and for
    // connecting, apply.
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
        "the tables leasehold and leasehold_meta do not exist, and {why}: have the statements of `leasehold::postgres::SCHEMA` executed"
    ))
}

/// The last row that some statements return.
pub(super) async fn row(client: &Client, statements: &str) -> Result<Vec<Option<String>>, Failure> {
    let messages = client.simple_query(statements).await?;
    let last = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = last else { return Err(Failure::away("an answer is missing")) };
    Ok((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect())
}
