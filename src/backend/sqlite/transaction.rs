//! Changes of records that are stored together.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::builder::Settings;
use super::database::Database;
use super::failure::Failure;
use super::inbox::Inbox;
use crate::backend::{BackendError, Effects, Event, Ledger, Stamp};

/// When a client last checked that it can write, after it could not.
const WRITTEN: &str = "written";

/// Why a change was not made.
pub(super) enum NotChanged {
    /// This record cannot be changed.
    Unreadable(BackendError),
    /// Nothing can.
    Failed(Failure),
}

impl From<Failure> for NotChanged {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A transaction of this client, during which it is the only writer. Each record is read and written once, no matter
/// how often it is changed.
pub(super) struct Transaction<'a> {
    database: &'a Database,
    settings: &'a Settings,
    inbox: &'a Inbox,
    /// The greatest number that this client has seen issued.
    newest: u64,
    records: BTreeMap<Arc<str>, Record>,
    events: Vec<Event>,
    /// Whether something is written even if no record changes.
    writes_anyway: bool,
}

struct Record {
    ledger: Ledger,
    stored: Option<String>,
}

/// What a transaction has done.
pub(super) struct Stored {
    pub(super) newest: u64,
    pub(super) ledgers: Vec<(Arc<str>, Ledger)>,
    pub(super) events: Vec<Event>,
    /// Whether anything was written: what only reads succeeds on a full disk as well.
    pub(super) has_written: bool,
}

impl<'a> Transaction<'a> {
    pub(super) fn begin(
        database: &'a Database,
        settings: &'a Settings,
        inbox: &'a Inbox,
        newest: u64,
    ) -> Result<Self, Failure> {
        database.begin()?;
        Ok(Self {
            database,
            settings,
            inbox,
            newest,
            records: BTreeMap::new(),
            events: Vec::new(),
            writes_anyway: false,
        })
    }

    /// Changes the record of `key`, and keeps the events.
    pub(super) fn change<T>(
        &mut self,
        key: &Arc<str>,
        change: impl FnOnce(&mut Ledger, Stamp) -> (T, Effects),
    ) -> Result<T, NotChanged> {
        let record = match self.records.entry(Arc::clone(key)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let (record, newest) = read(self.database, key)?;
                // Grants made by others have been announced, unless a message got lost. From now on, only this client's
                // own changes are seen here.
                self.inbox.compare(key, &record.ledger);
                self.newest = self.newest.max(newest);
                unknown.insert(record)
            }
        };
        // Since no other client can write, the current time is that of the change.
        let now = self.settings.now();
        let stamp = Stamp::new(now, now, now.max(self.newest.saturating_add(1)));
        let (outcome, effects) = change(&mut record.ledger, stamp);
        self.newest = self.newest.max(record.ledger.last_number());
        self.events.extend(effects.events);
        Ok(outcome)
    }

    /// Some keys from `from` on, in order.
    pub(super) fn keys(&self, from: &str, limit: u32) -> Result<Vec<String>, Failure> {
        self.database.keys(from, limit)
    }

    /// Writes something, to find out whether that is possible.
    pub(super) const fn write_anyway(&mut self) {
        self.writes_anyway = true;
    }

    pub(super) fn commit(self) -> Result<Stored, Failure> {
        #[cfg(leasehold_planted)]
        self.let_others_in()?;
        let has_written = match self.write() {
            Ok(has_written) => has_written,
            Err(failure) => {
                self.database.roll_back();
                return Err(failure);
            }
        };
        self.database.commit()?;
        let ledgers = self.records.into_iter().map(|(key, record)| (key, record.ledger)).collect();
        Ok(Stored { newest: self.newest, ledgers, events: self.events, has_written })
    }

    pub(super) fn roll_back(self) {
        self.database.roll_back();
    }

    /// The planted mistake: a semaphore's limit was checked in one transaction, and its permits are taken in the next one.
    #[cfg(leasehold_planted)]
    fn let_others_in(&self) -> Result<(), Failure> {
        let is_planted = crate::planted::is(crate::planted::Mistake::ChecksTheLimitBefore);
        if is_planted && self.records.keys().any(|key| key.contains("semaphore:")) {
            self.database.commit()?;
            std::thread::sleep(std::time::Duration::from_millis(1));
            self.database.begin()?;
        }
        Ok(())
    }

    /// Whether there was anything to write.
    fn write(&self) -> Result<bool, Failure> {
        let now = self.settings.now();
        let mut has_written = self.writes_anyway;
        if self.writes_anyway {
            self.database.set_number(WRITTEN, now)?;
        }
        for (key, Record { ledger, stored }) in &self.records {
            // A record that never issued a number says nothing.
            if stored.is_none() && ledger.last_number() == 0 {
                continue;
            }
            let text = ledger.to_string();
            if stored.as_ref() != Some(&text) {
                self.database.set_record(key, &text, now)?;
                has_written = true;
            }
        }
        Ok(has_written)
    }
}

/// The record of a key, and a number that every number it issues must be above.
fn read(database: &Database, key: &str) -> Result<(Record, u64), NotChanged> {
    let Some(stored) = database.record(key)? else {
        // There may have been one that was removed because it was unused.
        let record = Record { ledger: Ledger::default(), stored: None };
        return Ok((record, database.number(super::sweep::FLOOR)?));
    };
    let ledger = stored.parse().map_err(NotChanged::Unreadable)?;
    Ok((Record { ledger, stored: Some(stored) }, 0))
}
