//! A record as it is read, changed and written.

use tokio_postgres::Row;

use super::failure::Failure;
use super::schedule::Work;
use super::text::{escape, unescape};
use crate::backend::{BackendError, Event, Ledger, Stamp};

/// A record at a time.
pub(super) struct Read {
    /// In microseconds, by the server's clock.
    pub(super) now: i64,
    /// `None` if there is none.
    pub(super) stored: Option<(i64, String)>,
    /// What all numbers issued by records that were removed are below.
    pub(super) floor: i64,
}

/// A record that was changed, to be written.
pub(super) struct Changed {
    /// Of the record that was read.
    pub(super) version: Option<i64>,
    pub(super) now: i64,
    pub(super) doc: String,
    /// To whom, and what.
    pub(super) channels: Vec<String>,
    pub(super) messages: Vec<String>,
}

impl Read {
    /// A row of the statement that reads records.
    pub(super) fn of(row: &Row) -> Result<Self, Failure> {
        let version: Option<i64> = row.try_get(1)?;
        let doc: Option<String> = row.try_get(2)?;
        let floor: Option<i64> = row.try_get(3)?;
        Ok(Self { now: row.try_get(0)?, stored: version.zip(doc), floor: floor.unwrap_or(0) })
    }

    /// Carries out what was asked for. `None` if there is nothing to be written.
    pub(super) fn change(self, work: &Work) -> Result<Option<Changed>, BackendError> {
        let Self { now, stored, floor } = self;
        let mut ledger = match &stored {
            Some((_, doc)) => unescape(doc).parse()?,
            None => Ledger::default(),
        };
        // Whoever was told of a lease counts it from when it asked, which was before the server's clock was read.
        let micros = u64::try_from(now).unwrap_or(0);
        let floor = u64::try_from(floor).unwrap_or(0).saturating_add(1);
        let stamp = Stamp::new(micros, micros, micros.max(floor));
        let told: Vec<_> = work.tasks.iter().flat_map(|task| task.run(&mut ledger, stamp)).collect();
        let doc = escape(&ledger.to_string()).into_owned();
        let is_same = match &stored {
            Some((_, stored)) => *stored == doc,
            // A record that never issued a number says nothing.
            None => ledger.last_number() == 0,
        };
        if is_same && told.is_empty() && !work.must_write {
            return Ok(None);
        }
        let (channels, messages) = told.iter().filter_map(addressed).unzip();
        Ok(Some(Changed { version: stored.map(|(version, _)| version), now, doc, channels, messages }))
    }
}

/// The channel of the client that an event is for, and the event.
fn addressed(event: &Event) -> Option<(String, String)> {
    let client = match event {
        Event::Granted { lease, .. } => lease.id.client(),
        Event::Revoked { lease, .. } | Event::AskAgain(lease) => lease.client(),
        Event::Changed(_) | Event::Resync => return None,
    };
    Some((channel(client), escape(&event.to_string()).into_owned()))
}

/// Where a client listens.
pub(super) fn channel(client: uuid::Uuid) -> String {
    format!("lh_{}", client.simple())
}
