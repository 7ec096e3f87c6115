//! A record as it is read (or cached), changed and written.

use std::time::{Duration, Instant};

use crate::backend::records::Cached;
use crate::backend::{BackendError, Ledger, Stamp};

/// How long a written record is cached: in that time, clocks drift apart by less than a millisecond.
const MAX_AGE: Duration = Duration::from_secs(10);
/// How long writing a cached record may take. Leases granted by that write are measured from the end of this time, so
/// that none ends too early. If the write arrives later, for instance because this machine was suspended, it is
/// rejected, and the record is read.
const TO_WRITE_MICROS: i64 = 20_000;
/// By how much clocks may differ that measure the same few seconds.
const CLOCKS_DIFFER_MICROS: i64 = 1_000;

/// A record that is in the table.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Stored {
    pub(in crate::backend) version: i64,
    pub(in crate::backend) doc: Vec<u8>,
}

impl Stored {
    pub(in crate::backend) fn ledger(&self) -> Result<Ledger, BackendError> {
        let text = std::str::from_utf8(&self.doc);
        text.map_err(|error| BackendError::WrongType { source: error.into() })?.parse()
    }
}

/// A record at a time.
pub(in crate::backend) struct Read {
    /// In microseconds, by the server's clock. Not later than the current time.
    now: i64,
    /// Not earlier than the current time.
    late: i64,
    /// The record must not be written after this time.
    until: i64,
    /// `None` if there is none.
    stored: Option<Stored>,
    /// Greater than all numbers issued by records that have been removed.
    floor: i64,
    /// When this client asked for it.
    asked: Instant,
}

/// A record that was changed, to be written.
pub(in crate::backend) struct Changed<E> {
    /// Of the record that was read; `None` if there was none.
    pub(in crate::backend) version: Option<i64>,
    pub(in crate::backend) now: i64,
    pub(in crate::backend) until: i64,
    pub(in crate::backend) doc: String,
    pub(in crate::backend) effects: E,
}

/// What is to be done with a record.
pub(super) enum Next<E> {
    /// Nothing: it stays as it is. The version is that of the record, if there is one.
    Keep(Option<i64>, E),
    Write(Changed<E>),
}

impl Read {
    /// What was read when the server's clock said `now`.
    pub(in crate::backend) fn at(
        now: i64,
        floor: Option<i64>,
        stored: Option<Stored>,
        asked: Instant,
    ) -> Self {
        Self { now, late: now, until: i64::MAX, stored, floor: floor.unwrap_or(0), asked }
    }

    /// The same, used for a request that was made after it was read.
    pub(super) fn for_later_request(self) -> Self {
        let late = later(self.now, self.asked).saturating_add(CLOCKS_DIFFER_MICROS);
        Self { late, ..self }
    }

    /// Changes it by `run`, which returns what the change means for clients. It is written if it is another record
    /// then, or if it `must_be_written` for what it means.
    pub(super) fn change<E>(
        self,
        run: impl FnOnce(&mut Ledger, Stamp) -> E,
        must_be_written: impl FnOnce(&E) -> bool,
    ) -> Result<Next<E>, BackendError> {
        let Self { now, late, until, stored, floor, .. } = self;
        let mut ledger = match &stored {
            Some(stored) => stored.ledger()?,
            None => Ledger::default(),
        };
        // Clients measure their leases from when they sent the request, which was before the server's clock was read,
        // or, if later, before `late`.
        let micros = |time: i64| u64::try_from(time).unwrap_or(0);
        let floor = micros(floor).saturating_add(1);
        let stamp = Stamp::new(micros(now), micros(late), micros(now).max(floor));
        let effects = run(&mut ledger, stamp);
        let doc = ledger.to_string();
        let is_same = match &stored {
            Some(stored) => stored.doc == doc.as_bytes(),
            // A record that has issued no number contains no information.
            None => ledger.last_number() == 0,
        };
        let version = stored.map(|stored| stored.version);
        if is_same && !must_be_written(&effects) {
            return Ok(Next::Keep(version, effects));
        }
        Ok(Next::Write(Changed { version, now, until, doc, effects }))
    }
}

/// A record that this client has written. As long as nobody else changes it, it need not be read again.
pub(in crate::backend) struct Written {
    pub(super) version: i64,
    doc: String,
    /// The server's clock after the write, and when this client sent the write and received the answer.
    now: i64,
    asked: Instant,
    heard: Instant,
}

impl Written {
    /// As this version, when the server's clock said `now`. The record itself is added to it.
    pub(in crate::backend) fn new(version: i64, now: i64, asked: Instant) -> Self {
        Self { version, doc: String::new(), now, asked, heard: Instant::now() }
    }

    pub(super) fn of(self, doc: String) -> Self {
        Self { doc, ..self }
    }

    /// What would be read now if nobody else has changed it.
    pub(super) fn read(self) -> Read {
        let (now, until) =
            (later(self.now, self.heard), later(self.now, self.asked).saturating_add(TO_WRITE_MICROS));
        let stored = Stored { version: self.version, doc: self.doc.into_bytes() };
        Read { now, late: until, until, stored: Some(stored), floor: 0, asked: self.asked }
    }
}

/// A time of the server's clock, as much later as has elapsed since.
fn later(time: i64, since: Instant) -> i64 {
    time.saturating_add(i64::try_from(since.elapsed().as_micros()).unwrap_or(i64::MAX))
}

impl Cached for Written {
    fn is_recent(&self) -> bool {
        self.asked.elapsed() < MAX_AGE
    }
}
