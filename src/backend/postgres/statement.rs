//! The statements. Each is prepared once per session, when it is first needed.

use tokio::sync::OnceCell;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

/// The server's time of day, in microseconds.
macro_rules! now {
    () => {
        "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    };
}

/// A statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sql {
    /// The time, and some records, in the order of their keys ($1). For a missing record, a number greater than all
    /// those issued by removed records.
    Read,
    /// The same of one record.
    ReadOne,
    /// A record ($1), which nobody else can change until the transaction ends.
    Lock,
    /// The time, and that number: read after a record was locked.
    Clock,
    /// Writes a record ($1) that has not been changed since it was of this version ($2), unless it is later than a time
    /// ($4). Returns its new version, and the time.
    Update,
    /// The same, and sends messages ($6) on channels ($5) with it.
    UpdateAndTell,
    /// Writes a record ($1) that did not exist at a time ($3) that is not long ago: since, there may have been one that
    /// was removed again. Returns the same.
    Insert,
    /// The same, and sends messages ($5) on channels ($4) with it.
    InsertAndTell,
    /// Writes records ($1), of these versions ($2) or new, unless another client has changed them or is about to, or it
    /// is later than a time ($8), and sends messages ($7) on channels ($6) with those of them ($5) that it has written.
    /// Returns the keys of those, and the same.
    Write,
    /// Records that nobody has used since a time ($2), in the order of their keys, after a key ($1).
    Idle,
    /// So many keys ($2) that are not less than one ($1), in order.
    Keys,
    /// Removes records ($1) that are still of these versions ($2), which have issued no number above this one ($3).
    Remove,
    /// Starts to sweep, unless another client has done so within a time ($1).
    Sweep,
}

impl Sql {
    const COUNT: usize = Self::Sweep as usize + 1;

    const fn text(self) -> &'static str {
        match self {
            Self::Read => concat!(
                "SELECT ",
                now!(),
                ", l.version, l.doc, \
                 CASE WHEN l.key IS NULL THEN (SELECT value FROM leasehold_meta WHERE name = 'floor') END \
                 FROM unnest($1) WITH ORDINALITY AS k (key, n) LEFT JOIN leasehold AS l ON l.key = k.key ORDER BY k.n"
            ),
            Self::ReadOne => concat!(
                "SELECT ",
                now!(),
                ", l.version, l.doc, \
                 CASE WHEN l.key IS NULL THEN (SELECT value FROM leasehold_meta WHERE name = 'floor') END \
                 FROM (VALUES (1)) AS always LEFT JOIN leasehold AS l ON l.key = $1"
            ),
            Self::Lock => "SELECT version, doc FROM leasehold WHERE key = $1 FOR UPDATE",
            Self::Clock => {
                concat!("SELECT ", now!(), ", (SELECT value FROM leasehold_meta WHERE name = 'floor')")
            }
            Self::Update => concat!(
                "UPDATE leasehold SET doc = $3, version = greatest(version + 1, ",
                now!(),
                ") WHERE key = $1 AND version = $2 AND ",
                now!(),
                " <= $4 RETURNING version, ",
                now!()
            ),
            Self::UpdateAndTell => concat!(
                "WITH written AS (UPDATE leasehold SET doc = $3, version = greatest(version + 1, ",
                now!(),
                ") WHERE key = $1 AND version = $2 AND ",
                now!(),
                " <= $4 RETURNING version) \
                 SELECT version, ",
                now!(),
                ", (SELECT count(pg_notify(e.channel, e.message)::text) FROM unnest($5, $6) AS e (channel, message)) FROM written"
            ),
            Self::Insert => concat!(
                "INSERT INTO leasehold (key, version, doc) SELECT $1, ",
                now!(),
                ", $2 WHERE ",
                now!(),
                " < $3 + 60000000 ON CONFLICT (key) DO NOTHING RETURNING version, ",
                now!()
            ),
            Self::InsertAndTell => concat!(
                "WITH written AS (INSERT INTO leasehold (key, version, doc) SELECT $1, ",
                now!(),
                ", $2 WHERE ",
                now!(),
                " < $3 + 60000000 ON CONFLICT (key) DO NOTHING RETURNING version) SELECT version, ",
                now!(),
                ", (SELECT count(pg_notify(e.channel, e.message)::text) FROM unnest($4, $5) AS e (channel, message)) FROM written"
            ),
            Self::Write => concat!(
                "WITH wanted AS (SELECT * FROM unnest($1, $2, $3) AS w (key, version, doc)), \
                 free AS (SELECT l.key FROM wanted AS w JOIN leasehold AS l ON l.key = w.key AND l.version = w.version \
                 WHERE ",
                now!(),
                " <= $8 FOR UPDATE OF l SKIP LOCKED), \
                 updated AS (UPDATE leasehold AS l SET doc = w.doc, version = greatest(l.version + 1, ",
                now!(),
                ") FROM free AS f JOIN wanted AS w ON w.key = f.key WHERE l.key = f.key RETURNING l.key, l.version), \
                 inserted AS (INSERT INTO leasehold (key, version, doc) SELECT key, ",
                now!(),
                ", doc FROM wanted WHERE version IS NULL AND ",
                now!(),
                " < $4 + 60000000 ORDER BY key ON CONFLICT (key) DO NOTHING RETURNING key, version), \
                 written AS (SELECT * FROM updated UNION ALL SELECT * FROM inserted), \
                 notified AS (SELECT pg_notify(e.channel, e.message) FROM written AS w \
                 JOIN unnest($5, $6, $7) AS e (key, channel, message) ON e.key = w.key) \
                 SELECT key, version, ",
                now!(),
                ", (SELECT count(*) FROM notified) FROM written"
            ),
            Self::Idle => {
                "SELECT key, version, doc FROM leasehold WHERE key > $1 AND version < $2 ORDER BY key LIMIT 100"
            }
            Self::Keys => "SELECT key FROM leasehold WHERE key >= $1 ORDER BY key LIMIT $2",
            Self::Remove => {
                "WITH removed AS (DELETE FROM leasehold AS l USING unnest($1, $2) AS r (key, version) \
                 WHERE l.key = r.key AND l.version = r.version RETURNING 1) \
                 UPDATE leasehold_meta SET value = greatest(value, $3) WHERE name = 'floor'"
            }
            Self::Sweep => concat!(
                "UPDATE leasehold_meta SET value = ",
                now!(),
                " WHERE name = 'swept' AND abs(value - ",
                now!(),
                ") >= $1 RETURNING value"
            ),
        }
    }

    const fn types(self) -> &'static [Type] {
        match self {
            Self::Read => &[Type::TEXT_ARRAY],
            Self::ReadOne | Self::Lock => &[Type::TEXT],
            Self::Clock => &[],
            Self::Update => &[Type::TEXT, Type::INT8, Type::TEXT, Type::INT8],
            Self::UpdateAndTell => {
                &[Type::TEXT, Type::INT8, Type::TEXT, Type::INT8, Type::TEXT_ARRAY, Type::TEXT_ARRAY]
            }
            Self::Insert => &[Type::TEXT, Type::TEXT, Type::INT8],
            Self::InsertAndTell => &[Type::TEXT, Type::TEXT, Type::INT8, Type::TEXT_ARRAY, Type::TEXT_ARRAY],
            Self::Write => &[
                Type::TEXT_ARRAY,
                Type::INT8_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::TEXT_ARRAY,
                Type::INT8,
            ],
            Self::Idle | Self::Keys => &[Type::TEXT, Type::INT8],
            Self::Remove => &[Type::TEXT_ARRAY, Type::INT8_ARRAY, Type::INT8],
            Self::Sweep => &[Type::INT8],
        }
    }
}

/// The statements that a session has prepared.
#[derive(Debug, Default)]
pub(super) struct Prepared([OnceCell<tokio_postgres::Statement>; Sql::COUNT]);

impl Prepared {
    pub(super) async fn get(&self, client: &Client, sql: Sql) -> Result<&tokio_postgres::Statement, Error> {
        self.0[sql as usize].get_or_try_init(|| client.prepare_typed(sql.text(), sql.types())).await
    }
}
