//! What is known of one resource: as read, or as left by this client's last change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::keys::{KeysOf, Part};
use super::leases::{EtcdLease, Leases};
use super::proto::{Header, KeyValue, RangeResponse};
use super::value::{Value, What};
use crate::backend::ledger::{Entry, EntryKind, Ledger, Stamp};
use crate::backend::records::Cached;
use crate::backend::{BackendError, Kind, LeaseId, Ticket};

/// How long a view is cached. Every use compares it with what is stored, so it may be out of date.
const MAX_CONTENDED: Duration = Duration::from_secs(30);
/// There is no clock: etcd says which holds and places there are, and times are measured from here.
const NOW: u64 = 1 << 40;
/// Tokens are more than this many times the revision, and tickets this many times the revision that made the place, plus
/// its number among those that were made by one transaction. So a request whose place is not made yet comes after all
/// whose places are. A transaction issues more numbers than that only rarely, and then the next ones are those after the
/// last one.
const NUMBERS_PER_REVISION: u64 = 128;
/// When a waiter reads again for the first time, if it does not know how long the current hold lasts. Waiters further
/// back do so later.
const FIRST_LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct View {
    /// Whether it has just been read. If not, others may have changed it.
    pub(super) is_fresh: bool,
    seen: Instant,
    /// All places that were made until then are known.
    pub(super) revision: i64,
    pub(super) record: Option<Record>,
    /// What keeps the limit in force.
    pub(super) limit: Option<EtcdLease>,
    pub(super) entries: BTreeMap<LeaseId, Stored>,
}

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) mod_revision: i64,
    pub(super) text: String,
}

/// A hold or a place.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) etcd_lease: i64,
    pub(super) created: i64,
    pub(super) value: Value,
    /// How long it still lasts, if it belongs to another client and etcd was asked for that.
    pub(super) left: Option<Duration>,
}

impl Cached for View {
    fn is_recent(&self) -> bool {
        self.seen.elapsed() < MAX_CONTENDED
    }
}

impl View {
    /// From all that is stored, as of this revision.
    pub(super) fn read(keys: &KeysOf, kvs: Vec<KeyValue>, revision: i64) -> Result<Self, BackendError> {
        let mut view = Self::empty(revision);
        for kv in kvs {
            let text = || String::from_utf8(kv.value.clone()).map_err(|_| unreadable("record"));
            match keys.part(&kv) {
                Part::Record => {
                    view.record = Some(Record { mod_revision: kv.mod_revision, text: text()? });
                }
                Part::Limit => {
                    let ttl = text()?.parse().map_err(|_| unreadable("limit"))?;
                    view.limit = Some(EtcdLease { id: kv.lease, ttl });
                }
                Part::Lease(etcd_lease) => {
                    let value = Value::read(&kv.value).filter(|_| kv.lease == etcd_lease);
                    let value = value.ok_or_else(|| unreadable("lease"))?;
                    let created = kv.create_revision;
                    let stored = Stored { etcd_lease, created, value, left: None };
                    let known = view.entries.get(&stored.value.lease);
                    // A client may request a lease again of which it did not know that it had been granted.
                    if known.is_none_or(Stored::is_revoked) {
                        view.entries.insert(stored.value.lease, stored);
                    }
                }
                Part::Foreign => return Err(unreadable("key")),
            }
        }
        // Fails here if the record cannot be parsed.
        view.head()?;
        Ok(view)
    }

    /// As it would be read, with the revision until which places are known.
    pub(super) fn to_kvs(&self, keys: &KeysOf) -> RangeResponse {
        let kv = |key, value, lease, revision| KeyValue {
            key,
            create_revision: revision,
            mod_revision: revision,
            value,
            lease,
        };
        let record = self
            .record
            .iter()
            .map(|record| kv(keys.record(), record.text.clone().into_bytes(), 0, record.mod_revision));
        let limit = self
            .limit
            .iter()
            .map(|limit| kv(keys.limit(), limit.ttl.to_string().into_bytes(), limit.id, self.revision));
        let entries = self.entries.values().map(|stored| {
            kv(keys.lease(stored.etcd_lease), stored.value.to_text(), stored.etcd_lease, stored.created)
        });
        let kvs = record.chain(limit).chain(entries).collect();
        let header = Some(Header { cluster_id: 0, revision: self.revision });
        RangeResponse { header, kvs, more: false }
    }

    /// The same if nobody held or waited any more.
    pub(super) fn if_free(&self) -> Self {
        Self { entries: BTreeMap::new(), ..self.remembered() }
    }

    /// The same, from now on to be compared with what is stored.
    pub(super) fn remembered(&self) -> Self {
        Self { is_fresh: false, seen: Instant::now(), ..self.clone() }
    }

    fn empty(revision: i64) -> Self {
        let (record, limit, entries) = Default::default();
        Self { is_fresh: true, seen: Instant::now(), revision, record, limit, entries }
    }

    /// The record without holds and places.
    pub(super) fn head(&self) -> Result<Ledger, BackendError> {
        if let Some(record) = &self.record {
            return record.text.parse();
        }
        // Only the record has been deleted: the holds and places contain enough to continue.
        let kind = self.entries.values().next().map_or(Kind::Mutex, |stored| stored.value.kind);
        let tokens = self.entries.values().filter_map(|stored| match stored.value.what {
            What::Hold { token, .. } => Some(token.get()),
            What::Place { .. } | What::Revoked => None,
        });
        let last = tokens.max().unwrap_or(0).saturating_add(NUMBERS_PER_REVISION);
        format!("leasehold/1 {} {last} 0 0 0", kind.as_str()).parse()
    }

    /// The whole, but for these places.
    pub(super) fn ledger(
        &self,
        leases: &Leases,
        without: &BTreeSet<LeaseId>,
    ) -> Result<Ledger, BackendError> {
        let is_meant = |(lease, _): &(&LeaseId, &Stored)| !without.contains(lease);
        let entries = self.entries.iter().filter(is_meant);
        let first_look = look_again_in(FIRST_LOOK, self.places_ahead(leases));
        let entries = entries.map(|(lease, stored)| stored.entry(*lease, leases, first_look));
        let mut head = self.head()?;
        let is_held = self.entries.values().any(|stored| matches!(stored.value.what, What::Hold { .. }));
        if self.limit.is_none() && !is_held {
            // A place may have been created since the limit lapsed; that does not put the limit back in force.
            head.lapse();
        }
        let ledger = head.with(entries, if self.limit.is_some() { NOW + 1 } else { 0 });
        ledger.ok_or_else(|| unreadable("record"))
    }

    /// What is left of a hold of this lease that was ended by force.
    pub(super) fn revoked(&self, lease: LeaseId) -> Option<&Stored> {
        self.entries.get(&lease).filter(|stored| stored.is_revoked())
    }

    /// How many places are before the first one of this client.
    pub(super) fn places_ahead(&self, leases: &Leases) -> u32 {
        let own = |(lease, stored): (&LeaseId, &Stored)| stored.ticket().filter(|_| leases.is_own(*lease));
        let Some(first) = self.entries.iter().filter_map(own).min() else { return 0 };
        let is_before = |stored: &&Stored| stored.ticket().is_some_and(|ticket| ticket < first);
        u32::try_from(self.entries.values().filter(is_before).count()).unwrap_or(u32::MAX)
    }

    /// Whether the record can be deleted: without it, numbers continue from the revision, which is greater than the
    /// last number.
    pub(super) fn is_forgettable(&self) -> bool {
        self.head().is_ok_and(|head| head.last_number() < self.stamp().floor)
    }

    pub(super) fn stamp(&self) -> Stamp {
        let revision = u64::try_from(self.revision).unwrap_or(0);
        Stamp::new(NOW, NOW, revision.saturating_add(1).saturating_mul(NUMBERS_PER_REVISION))
    }
}

impl Stored {
    fn entry(&self, lease: LeaseId, leases: &Leases, first_look: Duration) -> Entry {
        let Value { ttl, permits, what, party, .. } = &self.value;
        let ttl = Duration::from_secs((*ttl).into());
        // A lease of this client whose remaining time is unknown may end at any moment.
        let unknown = || if leases.is_own(lease) { Duration::ZERO } else { ttl.min(first_look) };
        let left = leases.remaining(self.etcd_lease).or(self.left).unwrap_or_else(unknown);
        Entry {
            lease,
            permits: *permits,
            party: party.clone(),
            ends: ends(left),
            kind: match what {
                What::Hold { token, since } => EntryKind::Held { token: *token, since: since_of(*since) },
                What::Revoked => EntryKind::Revoked,
                What::Place { tokens, .. } => {
                    EntryKind::Waiting { ticket: self.ticket().unwrap_or(Ticket::new(0)), tokens: *tokens }
                }
            },
        }
    }

    /// Whether it is what is left of a hold that was ended by force.
    pub(super) const fn is_revoked(&self) -> bool {
        matches!(self.value.what, What::Revoked)
    }

    /// Its ticket, if it is a place.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let What::Place { index, .. } = self.value.what else { return None };
        let created = u64::try_from(self.created).unwrap_or(0);
        let first = created.saturating_mul(NUMBERS_PER_REVISION);
        Some(Ticket::new(first.saturating_add(u64::from(index) % NUMBERS_PER_REVISION)))
    }
}

/// The end of something that lasts for this long. Never a whole number of seconds from now, so that it differs from the
/// end of a lease that begins now.
fn ends(left: Duration) -> u64 {
    NOW + (u64::try_from(left.as_micros()).unwrap_or(u64::MAX).min(u64::MAX / 2) | 1)
}

/// When something began, by the times of a view, that is stored as the time of day. 0 if that is not known.
fn since_of(stored: u64) -> u64 {
    let elapsed = time_of_day().saturating_sub(stored).saturating_mul(1000);
    if stored == 0 { 0 } else { NOW.saturating_sub(elapsed).max(1) }
}

/// The time of day to be stored for something that began then, by the times of a view.
pub(super) fn stored_since(since: u64) -> u64 {
    if since == 0 { 0 } else { time_of_day().saturating_sub(NOW.saturating_sub(since) / 1000) }
}

/// In milliseconds since 1970. etcd has no clock that could be read.
fn time_of_day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The seconds from now to then, rounded up.
pub(super) fn seconds(ends: u64) -> u32 {
    u32::try_from(ends.saturating_sub(NOW).div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

fn unreadable(what: &str) -> BackendError {
    BackendError::WrongType { source: format!("it is not a {what} of this crate").into() }
}

/// When to look again whether a hold has ended that lasts for so many whole seconds, rounded down. etcd ends a lease up
/// to half a second late. The first waiter in the queue checks most often: those behind it only have to notice if it
/// has died as well.
pub(super) fn look_again_in(seconds: Duration, ahead: u32) -> Duration {
    const SOON: Duration = Duration::from_millis(100);
    seconds + SOON * ahead.saturating_add(1).min(100)
}
