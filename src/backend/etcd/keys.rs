//! The keys of etcd.
//!
//! | key | content |
//! |---|---|
//! | `PREFIX k/KEY/record` | the kind, the limit, and the last number issued |
//! | `PREFIX k/KEY/lease/ID` | a hold or a place, attached to the etcd lease with this id |
//! | `PREFIX k/KEY/limit` | exists as long as the limit of an unused semaphore is in force |
//! | `PREFIX m/CLIENT` | the latest message to a client |
//! | `PREFIX turn`, `PREFIX swept` | when idle records were removed last, and at which revision |
//!
//! A hold or a place is named after its etcd lease, and etcd leases are reused: until the store is compacted, reading a
//! range steps over every key that was ever in it.

use uuid::Uuid;

use super::proto::{KeyValue, RangeRequest};

const RECORD: &[u8] = b"record";
const LEASE: &[u8] = b"lease/";
const LIMIT: &[u8] = b"limit";

/// All keys of a client begin with the same prefix.
#[derive(Debug)]
pub(super) struct Keys {
    prefix: String,
}

/// The keys of one resource.
#[derive(Clone, Debug)]
pub(super) struct KeysOf(Vec<u8>);

/// What a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Record,
    Limit,
    Lease(i64),
    Foreign,
}

impl Keys {
    pub(super) const fn new(prefix: String) -> Self {
        Self { prefix }
    }

    pub(super) fn of(&self, key: &str) -> KeysOf {
        let mut all = self.beginning(key);
        all.push(b'/');
        KeysOf(all)
    }

    /// What the keys of all resources begin with whose keys begin like this.
    fn beginning(&self, key: &str) -> Vec<u8> {
        let mut all = format!("{}k/", self.prefix).into_bytes();
        // So that no key is the beginning of another one.
        for byte in key.bytes() {
            match byte {
                b'/' => all.extend(b"%2F"),
                b'%' => all.extend(b"%25"),
                other => all.push(other),
            }
        }
        all
    }

    /// The range of all resources whose keys begin like this.
    pub(super) fn beginning_with(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let begin = self.beginning(prefix);
        let end = after(begin.clone());
        (begin, end)
    }

    /// The key of the resource that a key of etcd is of, and what is behind all that is of it. `None` if it is of none.
    pub(super) fn resource_of(&self, key: &[u8]) -> Option<(String, Vec<u8>)> {
        let begin = format!("{}k/", self.prefix);
        let rest = key.strip_prefix(begin.as_bytes())?;
        let end = rest.iter().position(|byte| *byte == b'/')?;
        let name = std::str::from_utf8(&rest[..end]).ok()?;
        let behind = after(key[..=begin.len() + end].to_vec());
        Some((name.replace("%2F", "/").replace("%25", "%"), behind))
    }

    /// Reads what does not exist, as names are not empty.
    pub(super) fn nothing(&self) -> RangeRequest {
        self.of("").read()
    }

    pub(super) fn mailbox(&self, client: Uuid) -> Vec<u8> {
        format!("{}m/{client}", self.prefix).into_bytes()
    }

    /// Exists for a day after idle records were removed.
    pub(super) fn turn(&self) -> Vec<u8> {
        format!("{}turn", self.prefix).into_bytes()
    }

    /// The revision at which that was.
    pub(super) fn swept(&self) -> Vec<u8> {
        format!("{}swept", self.prefix).into_bytes()
    }

    /// The range of all resources.
    pub(super) fn all(&self) -> (Vec<u8>, Vec<u8>) {
        let begin = format!("{}k/", self.prefix).into_bytes();
        let end = after(begin.clone());
        (begin, end)
    }
}

impl KeysOf {
    /// Those of the resource that a record is of.
    pub(super) fn of_record(key: &[u8]) -> Option<Self> {
        key.strip_suffix(RECORD).filter(|all| all.ends_with(b"/")).map(|all| Self(all.to_vec()))
    }

    pub(super) fn record(&self) -> Vec<u8> {
        [&self.0, RECORD].concat()
    }

    pub(super) fn limit(&self) -> Vec<u8> {
        [&self.0, LIMIT].concat()
    }

    pub(super) fn lease(&self, etcd_lease: i64) -> Vec<u8> {
        [&self.0, LEASE, format!("{etcd_lease:016x}").as_bytes()].concat()
    }

    /// The range of all holds and places.
    pub(super) fn leases(&self) -> (Vec<u8>, Vec<u8>) {
        let begin = [&self.0, LEASE].concat();
        let end = after(begin.clone());
        (begin, end)
    }

    /// Reads everything of this resource.
    pub(super) fn read(&self) -> RangeRequest {
        RangeRequest { key: self.0.clone(), range_end: after(self.0.clone()), ..RangeRequest::default() }
    }

    pub(super) fn part(&self, kv: &KeyValue) -> Part {
        match kv.key.strip_prefix(self.0.as_slice()) {
            Some(RECORD) => Part::Record,
            Some(LIMIT) => Part::Limit,
            Some(other) => {
                let lease = other.strip_prefix(LEASE).and_then(|lease| std::str::from_utf8(lease).ok());
                let lease = lease.and_then(|id| u64::from_str_radix(id, 16).ok()).map(u64::cast_signed);
                // Numbers have several spellings; this key may be written, too.
                let lease = lease.filter(|lease| self.lease(*lease) == kv.key);
                lease.map_or(Part::Foreign, Part::Lease)
            }
            None => Part::Foreign,
        }
    }
}

/// The end of the range of all keys that begin like this.
fn after(mut begin: Vec<u8>) -> Vec<u8> {
    // It ends with a slash, or with a byte of UTF-8: none is the greatest byte.
    if let Some(last) = begin.last_mut() {
        *last += 1;
    }
    begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_resource_has_keys_in_the_range_of_another_one() {
        let keys = Keys::new("leasehold/".to_owned());
        let names = ["", "a", "a/b", "a/lease", "a%2Fb", "a/record", "a/lease/x", "%", "é\n"];
        for name in names {
            let (of, read) = (keys.of(name), keys.of(name).read());
            for key in [of.record(), of.limit(), of.lease(7)] {
                assert_eq!(keys.resource_of(&key), Some((name.to_owned(), read.range_end.clone())));
            }
            let (begin, end) = keys.beginning_with(name);
            for other in names {
                let key = keys.of(other).record();
                assert_eq!(begin <= key && key < end, other.starts_with(name), "{name} {other}");
            }
            for other in names {
                let lease = 0x1234_5678_9abc_def0;
                let theirs = keys.of(other);
                for key in [theirs.record(), theirs.limit(), theirs.lease(lease)] {
                    let is_within = read.key <= key && key < read.range_end;
                    assert_eq!(is_within, name == other, "{name} {other}");
                }
                let part = of.part(&KeyValue { key: theirs.lease(lease), ..KeyValue::default() });
                assert_eq!(part == Part::Lease(lease), name == other);
            }
            assert_eq!(KeysOf::of_record(&of.record()).map(|of| of.0), Some(of.0));
        }
    }
}
