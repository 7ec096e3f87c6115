//! A record as it is read, or remembered, changed and written.

use std::time::{Duration, Instant};

use mysql_async::Row;

use super::session::{Answer, value};
use super::view::{OwnChange, View};
use crate::backend::ledger::{Entry, EntryKind};
use crate::backend::records::{Cached, Failure, KeyBatch};
use crate::backend::{BackendError, Effects, Ledger, Stamp};

/// For how long what was written is remembered: clocks differ by less than a millisecond after that.
const MAX_CONTENDED: Duration = Duration::from_secs(10);
/// How long writing a record may take that was remembered and not read. Leases that begin with it are measured from the end of that time, so
/// that none ends too early, also if this machine stood still: then it is too late, and the record is read.
const TO_WRITE_MICROS: i64 = 20_000;

/// By how much clocks may differ that measure the same few seconds.
const CLOCKS_DIFFER_MICROS: i64 = 1_000;

/// A record at a time.
pub(super) struct Read {
    /// In microseconds, by the server's clock: not later than the current time,
    now: i64,
    /// and not earlier.
    late: i64,
    /// It must not be written after that.
    until: i64,
    /// `None` if there is none.
    stored: Option<Stored>,
    /// What all numbers issued by records that were removed are below.
    floor: i64,
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) key: Vec<u8>,
    pub(super) version: i64,
    pub(super) doc: Vec<u8>,
}

impl Stored {
    pub(super) fn of(row: &Row) -> Result<Self, Failure> {
        Ok(Self { key: value(row, 0)?, version: value(row, 1)?, doc: value(row, 2)? })
    }

    pub(super) fn ledger(&self) -> Result<Ledger, BackendError> {
        let text = std::str::from_utf8(&self.doc);
        text.map_err(|error| BackendError::WrongType { source: error.into() })?.parse()
    }
}

/// What a server's clock says, and the number that all those issued by records that were removed are below.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    now: i64,
    floor: i64,
    /// When this client asked for it.
    asked: Instant,
}

impl Clock {
    pub(super) fn of(answer: &Answer, asked: Instant) -> Result<Self, Failure> {
        let Some(row) = answer.rows.first() else {
            return Err(Failure::unavailable("the server did not return its time"));
        };
        Ok(Self { now: value(row, 0)?, floor: value::<Option<i64>>(row, 1)?.unwrap_or(0), asked })
    }

    /// The latest time that it may be now.
    fn latest(self) -> i64 {
        let elapsed = i64::try_from(self.asked.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.now.saturating_add(elapsed).saturating_add(CLOCKS_DIFFER_MICROS)
    }
}

/// What is to be done with a record, and how it is then, for this client.
pub(super) enum Next {
    /// Nothing: it stays as it is. The version is that of the record, if there is one.
    Keep(Option<i64>, View),
    Write(Changed),
}

/// A record that was changed, to be written.
pub(super) struct Changed {
    /// Of the record that was read.
    pub(super) version: Option<i64>,
    pub(super) now: i64,
    pub(super) until: i64,
    pub(super) doc: String,
    pub(super) view: View,
}

impl Read {
    /// A record as it was read at a time. `is_for_later` says whether it is used for a request that was made after that.
    pub(super) fn at(clock: Clock, stored: Option<Stored>, is_for_later: bool) -> Self {
        let Clock { now, floor, .. } = clock;
        // Clients measure their leases from when they sent the request, which was before the server's clock was read, or, if later,
        // before now.
        let late = if is_for_later { clock.latest() } else { now };
        Self { now, late, until: i64::MAX, stored, floor }
    }

    /// Carries out what was asked for, and looks at what that is for a client.
    pub(super) fn change(
        self,
        batch: &KeyBatch<Written>,
        client: Option<uuid::Uuid>,
    ) -> Result<Next, BackendError> {
        let Self { now, late, until, stored, floor } = self;
        let mut ledger = match &stored {
            Some(stored) => stored.ledger()?,
            None => Ledger::default(),
        };
        let micros = |time: i64| u64::try_from(time).unwrap_or(0);
        let floor = micros(floor).saturating_add(1);
        let stamp = Stamp::new(micros(now), micros(late), micros(now).max(floor));
        let is_held = |entry: &Entry| matches!(entry.kind, EntryKind::Held(_));
        let held_before = ledger.entries().filter(is_held).map(|entry| entry.lease).collect();
        // The clients concerned find the events by reading the record.
        let effects: Effects = batch.tasks.iter().map(|task| task.run(&mut ledger, stamp)).collect();
        let asked = effects.requests.into_iter().map(|request| request.lease).collect();
        let view = View { own: Some(OwnChange { held_before, asked }), ..View::of(&ledger, client) };
        let doc = ledger.to_string();
        let is_same = match &stored {
            Some(stored) => stored.doc == doc.as_bytes(),
            // A record that never issued a number says nothing.
            None => ledger.last_number() == 0,
        };
        let version = stored.map(|stored| stored.version);
        if is_same && !batch.must_write {
            return Ok(Next::Keep(version, view));
        }
        Ok(Next::Write(Changed { version, now, until, doc, view }))
    }
}

/// A record that this client has written. As long as nobody else changes it, it need not be read again.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) version: i64,
    doc: String,
    /// When this client asked for that, and received of it.
    asked: Instant,
    received: Instant,
}

impl Written {
    /// From the answer to the statement that wrote it. `None` if the answer lacks the version, for instance because a trigger on the
    /// table has changed `LAST_INSERT_ID`.
    pub(super) fn of(answer: &Answer, doc: String, asked: Instant) -> Option<Self> {
        let version = answer.id.and_then(|id| i64::try_from(id).ok())?;
        Some(Self { version, doc, asked, received: Instant::now() })
    }

    /// What would be read now if nobody else has changed it.
    pub(super) fn read(self) -> Read {
        let later = |since: Instant| {
            let elapsed = i64::try_from(since.elapsed().as_micros()).unwrap_or(i64::MAX);
            self.version.saturating_add(elapsed)
        };
        // Its version is the time when it was written. If it is ahead of that, it is not written before the time has come, so it is read.
        let (now, until) = (later(self.received), later(self.asked).saturating_add(TO_WRITE_MICROS));
        let stored = Stored { key: Vec::new(), version: self.version, doc: self.doc.into_bytes() };
        Read { now, late: until, until, stored: Some(stored), floor: 0 }
    }
}

impl Cached for Written {
    // Long enough to last until a client's next turn, even among hundreds of clients.
    const CONTENDED: Duration = Duration::from_secs(10);

    fn is_recent(&self) -> bool {
        self.asked.elapsed() < MAX_CONTENDED
    }
}
