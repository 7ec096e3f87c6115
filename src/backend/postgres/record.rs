//! A record as it is read (or cached), changed and written.

use std::time::{Duration, Instant};

use tokio_postgres::Row;

use super::text::{escape, unescape};
use crate::backend::records::{Cached, Failure, KeyBatch};
use crate::backend::{BackendError, Effects, Event, Ledger, Stamp};

/// How long a written record is cached: in that time, clocks drift apart by less than a millisecond.
const MAX_CONTENDED: Duration = Duration::from_secs(10);
/// How long writing a cached record may take. Leases granted by that write are measured from the end of this time, so that none ends too
/// early. If the write arrives later, for instance because this machine was suspended, it is rejected, and the record is read.
const TO_WRITE_MICROS: i64 = 20_000;

/// A record at a time.
pub(super) struct Read {
    /// In microseconds, by the server's clock. Not later than the current time.
    pub(super) now: i64,
    /// Not earlier than the current time.
    pub(super) late: i64,
    /// The record must not be written after this time.
    pub(super) until: i64,
    /// `None` if there is none.
    pub(super) stored: Option<(i64, String)>,
    /// Greater than all numbers issued by records that have been removed.
    pub(super) floor: i64,
}

/// A record that was changed, to be written.
pub(super) struct Changed {
    /// Of the record that was read.
    pub(super) version: Option<i64>,
    pub(super) now: i64,
    pub(super) until: i64,
    pub(super) doc: String,
    /// The events to send, each with the channel of its client.
    pub(super) channels: Vec<String>,
    pub(super) messages: Vec<String>,
}

impl Read {
    /// A row of the statement that reads records.
    pub(super) fn of(row: &Row) -> Result<Self, Failure> {
        let version: Option<i64> = row.try_get(1)?;
        let doc: Option<String> = row.try_get(2)?;
        let floor: Option<i64> = row.try_get(3)?;
        Ok(Self::at(row.try_get(0)?, version.zip(doc), floor))
    }

    /// What was read at a time.
    pub(super) fn at(now: i64, stored: Option<(i64, String)>, floor: Option<i64>) -> Self {
        Self { now, late: now, until: i64::MAX, stored, floor: floor.unwrap_or(0) }
    }

    /// Runs the changes. `None` if nothing has to be written.
    pub(super) fn change(self, batch: &KeyBatch<Written>) -> Result<Option<Changed>, BackendError> {
        let Self { now, late, until, stored, floor } = self;
        let mut ledger = match &stored {
            Some((_, doc)) => unescape(doc).parse()?,
            None => Ledger::default(),
        };
        // Clients measure their leases from when they sent the request, which was before the server's clock was read.
        let micros = |time: i64| u64::try_from(time).unwrap_or(0);
        let floor = micros(floor).saturating_add(1);
        let stamp = Stamp::new(micros(now), micros(late), micros(now).max(floor));
        let effects: Effects = batch.tasks.iter().map(|task| task.run(&mut ledger, stamp)).collect();
        let events = effects.events;
        let doc = escape(&ledger.to_string()).into_owned();
        let is_same = match &stored {
            Some((_, stored)) => *stored == doc,
            // A record that has issued no number contains no information.
            None => ledger.last_number() == 0,
        };
        if is_same && events.is_empty() && !batch.must_write {
            return Ok(None);
        }
        let (channels, messages) = events.iter().filter_map(addressed).unzip();
        Ok(Some(Changed { version: stored.map(|(version, _)| version), now, until, doc, channels, messages }))
    }
}

/// A record that this client has written. As long as nobody else changes it, it need not be read again.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) version: i64,
    doc: String,
    /// The server's clock after the write, and when this client sent the write and received the answer.
    now: i64,
    asked: Instant,
    heard: Instant,
}

impl Written {
    /// From what is returned by a statement that writes: the version and the time, from this column on.
    pub(super) fn of(row: &Row, column: usize, doc: &str, asked: Instant) -> Result<Self, Failure> {
        let (version, now) = (row.try_get(column)?, row.try_get(column + 1)?);
        Ok(Self { version, doc: doc.to_owned(), now, asked, heard: Instant::now() })
    }

    /// What would be read now if nobody else has changed it.
    pub(super) fn read(&self) -> Read {
        let later = |since: Instant| {
            let elapsed = i64::try_from(since.elapsed().as_micros()).unwrap_or(i64::MAX);
            self.now.saturating_add(elapsed)
        };
        let (now, until) = (later(self.heard), later(self.asked).saturating_add(TO_WRITE_MICROS));
        let stored = Some((self.version, self.doc.clone()));
        Read { now, late: until, until, stored, floor: 0 }
    }
}

impl Cached for Written {
    fn is_recent(&self) -> bool {
        self.asked.elapsed() < MAX_CONTENDED
    }
}

/// The channel of the client that an event is for, and the event.
fn addressed(event: &Event) -> Option<(String, String)> {
    Some((channel(event.lease()?.client()), escape(&event.to_string()).into_owned()))
}

/// Where a client listens.
pub(super) fn channel(client: uuid::Uuid) -> String {
    format!("lh_{}", client.simple())
}
