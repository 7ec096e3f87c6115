//! The tables, their version, and whether they can be used.

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::settings::Settings;
use crate::backend::records::Failure;
use crate::backend::sql::{check_version, missing as missing_answer};

/// The tables of this crate, as statements that create them if they do not exist. A client does the same unless
/// [`PostgresBuilder::create`](super::PostgresBuilder::create) is off, in the first schema of its `search_path`. Users
/// of the tables need `SELECT, INSERT, UPDATE, DELETE` on both.
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

/// Whether both tables exist; in which schema they are, or would be created; which of them lack columns.
// `to_regclass` sees a table earlier than the rest of the query, if another client is just creating it: so what the
// columns belong to is looked up as well.
pub(super) const FOUND: &str = "to_regclass('leasehold') IS NOT NULL AND to_regclass('leasehold_meta') IS NOT NULL, \
     coalesce((SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace \
     WHERE c.oid = to_regclass('leasehold')), current_schema()), \
     (SELECT string_agg(DISTINCT t.name, ' and ') FROM (VALUES ('leasehold', 'key'), ('leasehold', 'version'), ('leasehold', 'doc'), \
     ('leasehold_meta', 'name'), ('leasehold_meta', 'value')) AS t (name, field) \
     JOIN pg_class AS c ON c.oid = to_regclass(t.name) WHERE NOT EXISTS \
     (SELECT 1 FROM pg_attribute WHERE attrelid = c.oid AND attname = t.field AND NOT attisdropped))";

/// What [`FOUND`] returns.
#[derive(Default)]
pub(super) struct Found {
    exist: bool,
    /// `None` if there is none that this user may use.
    schema: Option<String>,
    /// Those of another program.
    foreign: Option<String>,
}

impl Found {
    pub(super) fn of(values: &[Option<String>]) -> Self {
        let value = |n: usize| values.get(n).cloned().flatten();
        Self { exist: value(0).as_deref() == Some("t"), schema: value(1), foreign: value(2) }
    }
}

/// The schemas of the `search_path` that exist, and that this user may not use.
const WITHOUT_USAGE: &str = "SELECT string_agg(quote_ident(nspname), ', ') FROM pg_namespace, \
     regexp_split_to_table(current_setting('search_path'), '\\s*,\\s*') AS path (name) \
     WHERE nspname = CASE trim(path.name, '\"') WHEN '$user' THEN current_user ELSE trim(path.name, '\"') END \
     AND NOT has_schema_privilege(nspname, 'USAGE')";

/// Creating the same table from two clients at once fails, so they take turns. An arbitrary number that no other
/// program is likely to use.
const LOCK: &str = "SELECT pg_advisory_xact_lock(6841273905571203)";

const PERMISSIONS: &str = "SELECT \
     has_table_privilege('leasehold', 'SELECT') AND has_table_privilege('leasehold', 'INSERT') AND \
     has_table_privilege('leasehold', 'UPDATE') AND has_table_privilege('leasehold', 'DELETE') AND \
     has_table_privilege('leasehold_meta', 'SELECT') AND has_table_privilege('leasehold_meta', 'INSERT') AND \
     has_table_privilege('leasehold_meta', 'UPDATE') AND has_table_privilege('leasehold_meta', 'DELETE')";

/// Makes sure that the tables are there, of the right version, and that this user may use them. Nothing is created if
/// one of those that exist belongs to another program.
pub(super) async fn prepare(client: &Client, found: &Found, settings: &Settings) -> Result<(), Failure> {
    let Some(schema) = &found.schema else { return Err(no_schema(client, settings).await?) };
    if let Some(foreign) = &found.foreign {
        return Err(Failure::refused(format!(
            "{foreign} in the schema {schema} was not made by this crate: name another schema with `schema=`, or rename that table"
        )));
    }
    if !found.exist {
        if !settings.create {
            return Err(missing("`create` is off", schema));
        }
        create_tables(client, schema).await?;
    }
    if row(client, PERMISSIONS).await?.swap_remove(0).as_deref() != Some("t") {
        return Err(Failure::refused(format!(
            "no permission on the tables in the schema {schema}: \
             GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold, leasehold_meta TO ..."
        )));
    }
    let version = "SELECT (SELECT value FROM leasehold_meta WHERE name = 'schema')";
    let version = row(client, version).await?.swap_remove(0);
    check_version(version.and_then(|version| version.parse().ok()))
}

/// Why there is no schema for the tables.
async fn no_schema(client: &Client, settings: &Settings) -> Result<Failure, Failure> {
    let unusable = row(client, WITHOUT_USAGE).await?.swap_remove(0);
    Ok(Failure::refused(match (unusable, &settings.target.schema) {
        (Some(schemas), _) => format!(
            "this user may not use the schema {schemas} of its `search_path`: GRANT USAGE ON SCHEMA {schemas} TO ..."
        ),
        (None, Some(schema)) => format!("the schema {schema} does not exist: CREATE SCHEMA \"{schema}\""),
        (None, None) => "no schema of its `search_path` exists: name one with `schema=`".to_owned(),
    }))
}

async fn create_tables(client: &Client, schema: &str) -> Result<(), Failure> {
    // Creating the tables takes as long as the disk needs, and other clients wait for it: only the limits for a
    // statement and for connecting apply.
    let wait = "SET LOCAL lock_timeout = 0";
    let created = client.batch_execute(&format!("BEGIN; {wait}; {LOCK}; {SCHEMA} COMMIT")).await;
    let Err(error) = created else { return Ok(()) };
    let may_not = error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE);
    let failure = Failure::from(error);
    if !failure.is_broken || may_not {
        client.batch_execute("ROLLBACK").await?;
    }
    Err(if may_not { missing("this user may not create them", schema) } else { failure })
}

fn missing(why: &str, schema: &str) -> Failure {
    Failure::refused(format!(
        "the tables leasehold and leasehold_meta do not exist, and {why} in the schema {schema}: run the statements in \
         `leasehold::postgres::SCHEMA`"
    ))
}

/// The last row that some statements return.
pub(super) async fn row(client: &Client, statements: &str) -> Result<Vec<Option<String>>, Failure> {
    let messages = client.simple_query(statements).await?;
    let last = messages.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = last else { return Err(missing_answer()) };
    Ok((0..row.len()).map(|n| row.get(n).map(str::to_owned)).collect())
}
