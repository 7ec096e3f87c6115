//! Reading and writing records: many with one statement, a contended one in a transaction that locks it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::future::{join, join3};
use tokio_postgres::Row;
use uuid::Uuid;

use super::session::{Parameter, Session, value};
use super::shared::Postgres;
use super::statement::Sql;
use super::text::{escape, unescape};
use crate::backend::observed::is_observable;
use crate::backend::records::Failure;
use crate::backend::sql::{self, KeyBatch, Read, Stored, Written, Wrote};
use crate::backend::{Effects, Event, Ledger, Stamp};

type Changed = sql::Changed<Messages>;

/// The events to send with a change, each with the channel of its client.
#[derive(Default)]
pub(super) struct Messages {
    channels: Vec<String>,
    texts: Vec<String>,
}

impl sql::Session for Session {
    type Server = Postgres;
    type Effects = Messages;

    const CONTENDED: Duration = Duration::from_secs(1);
    const JOIN_LATE: bool = false;

    /// That it has ended is noticed at once.
    fn is_closed(&self) -> bool {
        self.has_ended()
    }

    fn run(&self, batch: &KeyBatch, ledger: &mut Ledger, stamp: Stamp) -> Messages {
        let before = is_observable(&batch.key).then(|| ledger.holders());
        let effects: Effects = batch.tasks.iter().map(|task| task.run(ledger, stamp)).collect();
        let (channels, texts) = effects.events.into_iter().filter_map(|event| addressed(&event)).unzip();
        let mut messages = Messages { channels, texts };
        if before.is_some_and(|before| before != ledger.holders()) {
            messages.channels.push(channel_of_changes(&batch.key));
            messages.texts.push(String::new());
        }
        messages
    }

    fn must_be_told(messages: &Messages) -> bool {
        !messages.texts.is_empty()
    }

    async fn read(&mut self, batches: &[KeyBatch]) -> Result<Vec<Read>, Failure> {
        let asked = Instant::now();
        let rows = self.within(read(self, batches)).await?;
        let read = |row: &Row| {
            let (version, doc) = (value::<Option<_>>(row, 1)?, value::<Option<&str>>(row, 2)?);
            let stored = version.zip(doc).map(|(version, doc)| stored(version, doc));
            Ok(Read::at(value(row, 0)?, value(row, 3)?, stored, asked))
        };
        rows.iter().map(read).collect()
    }

    async fn write(&mut self, changed: &[(KeyBatch, Changed)]) -> Result<Vec<Wrote>, Failure> {
        if let [(batch, record)] = changed {
            return Ok(vec![self.within(write_one(self, &batch.key, record)).await?]);
        }
        self.within(write_several(self, changed)).await
    }

    async fn keys(&mut self, from: &str, limit: usize) -> Result<Vec<String>, Failure> {
        let (from, limit) = (escape(from), i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.within(self.rows(Sql::Keys, &[&from, &limit])).await?;
        rows.iter().map(|row| Ok(unescape(value(row, 0)?).into_owned())).collect()
    }

    /// Locks the record.
    async fn begin_turn(&mut self, key: &str) -> Result<Option<Read>, Failure> {
        self.within(lock_and_read(self, key)).await.map(Some)
    }

    async fn write_in_turn(
        &mut self,
        key: &str,
        record: &Changed,
    ) -> Result<(Wrote, Option<Failure>), Failure> {
        let written = async {
            let (wrote, committed) = join(write_one(self, key, record), self.execute("COMMIT")).await;
            let wrote = wrote?;
            committed.map(|()| wrote)
        };
        Ok(match self.within(written).await? {
            Wrote::Nothing => (Wrote::Nothing, None),
            // Another client is likely to change it before this one does again.
            Wrote::Stored(_) => (Wrote::Stored(None), None),
        })
    }

    async fn end_turn(&mut self, _: &str) -> Result<(), Failure> {
        self.within(self.execute("ROLLBACK")).await
    }
}

/// A row for each of the batches, in their order.
async fn read(session: &Session, batches: &[KeyBatch]) -> Result<Vec<Row>, Failure> {
    if let [batch] = batches {
        return session.rows(Sql::ReadOne, &[&escape(&batch.key)]).await;
    }
    let keys: Vec<_> = batches.iter().map(|batch| escape(&batch.key)).collect();
    session.rows(Sql::Read, &[&keys]).await
}

async fn write_several(session: &Session, changed: &[(KeyBatch, Changed)]) -> Result<Vec<Wrote>, Failure> {
    let keys: Vec<_> = changed.iter().map(|(batch, _)| escape(&batch.key)).collect();
    let records = || changed.iter().map(|(_, record)| record);
    let versions: Vec<_> = records().map(|record| record.version).collect();
    let docs: Vec<_> = records().map(|record| escape(&record.doc)).collect();
    let read_at = records().map(|record| record.now).min();
    let until = records().map(|record| record.until).min();
    let messages = || {
        keys.iter().zip(records()).flat_map(|(key, Changed { effects, .. })| {
            let messages = effects.channels.iter().zip(&effects.texts);
            messages.map(move |(channel, text)| (key, channel, text))
        })
    };
    let of_keys: Vec<_> = messages().map(|(key, ..)| key.as_ref()).collect();
    let channels: Vec<_> = messages().map(|(_, channel, _)| channel).collect();
    let texts: Vec<_> = messages().map(|(.., text)| text).collect();
    let with: [Parameter<'_>; 8] = [&keys, &versions, &docs, &read_at, &of_keys, &channels, &texts, &until];
    let asked = Instant::now();
    let rows = session.rows(Sql::Write, &with).await?;
    let mut written = HashMap::new();
    for row in &rows {
        written.insert(value::<&str>(row, 0)?, row);
    }
    let each = keys.iter().map(|key| wrote(written.get(key.as_ref()).copied(), 1, asked));
    each.collect()
}

async fn write_one(session: &Session, key: &str, record: &Changed) -> Result<Wrote, Failure> {
    let Changed { version, now, until, doc, effects: Messages { channels, texts } } = record;
    let (key, doc, asked) = (escape(key), escape(doc), Instant::now());
    let rows = match version {
        None if texts.is_empty() => session.rows(Sql::Insert, &[&key, &doc, now]).await?,
        // It has no waiters, but there may be clients that observe it.
        None => session.rows(Sql::InsertAndTell, &[&key, &doc, now, channels, texts]).await?,
        Some(version) if texts.is_empty() => session.rows(Sql::Update, &[&key, version, &doc, until]).await?,
        Some(version) => {
            session.rows(Sql::UpdateAndTell, &[&key, version, &doc, until, channels, texts]).await?
        }
    };
    wrote(rows.first(), 0, asked)
}

/// What a statement that writes has returned for a record: the version and the time, from this column on.
fn wrote(row: Option<&Row>, column: usize, asked: Instant) -> Result<Wrote, Failure> {
    let Some(row) = row else { return Ok(Wrote::Nothing) };
    let written = Written::new(value(row, column)?, value(row, column + 1)?, asked);
    Ok(Wrote::Stored(Some(written)))
}

/// The record, and the time after it was locked.
async fn lock_and_read(session: &Session, key: &str) -> Result<Read, Failure> {
    session.prepare([Sql::Lock, Sql::Clock, Sql::Update, Sql::UpdateAndTell, Sql::Insert]).await?;
    if is_observable(key) {
        session.prepare([Sql::InsertAndTell]).await?;
    }
    let (key, asked) = (escape(key), Instant::now());
    let (begun, record, clock) =
        join3(session.execute("BEGIN"), session.rows(Sql::Lock, &[&key]), session.rows(Sql::Clock, &[]))
            .await;
    begun?;
    let (record, clock) = (record?, clock?);
    let Some(clock) = clock.first() else { return Err(sql::missing()) };
    let stored = match record.first() {
        Some(row) => Some(stored(value(row, 0)?, value(row, 1)?)),
        None => None,
    };
    Ok(Read::at(value(clock, 0)?, value(clock, 1)?, stored, asked))
}

/// A record as it is in the table.
pub(super) fn stored(version: i64, doc: &str) -> Stored {
    Stored { version, doc: unescape(doc).into_owned().into_bytes() }
}

/// The channel of the client that an event is for, and the event.
fn addressed(event: &Event) -> Option<(String, String)> {
    Some((channel(event.lease()?.client()), escape(&event.to_string()).into_owned()))
}

/// Where a client listens.
pub(super) fn channel(client: Uuid) -> String {
    format!("lh_{}", client.simple())
}

/// Where clients listen that observe who holds this key: an identifier is shorter than a key may be.
pub(super) fn channel_of_changes(key: &str) -> String {
    const OF_KEYS: Uuid = Uuid::from_u128(0x8b4e_6d0f_52a7_4c1e_9f3d_27c0_b15e_a864);
    format!("lh_changes_{}", Uuid::new_v5(&OF_KEYS, key.as_bytes()).simple())
}
