//! Every key of a lock and of a semaphore, and the channel of a client.
//!
//! | key | type | content | expires |
//! |---|---|---|---|
//! | `lock:N` | string | `<lease id> <token>` of the holder, and more (`value.lua`) | with the lease |
//! | `{lock:N}:queue` | sorted set | the waiting lease ids, in the order of their places; a gap (`gap.lua`) | within two TTLs after the last request |
//! | `{lock:N}:waiters` | hash | a record of each of them | likewise |
//! | `{lock:N}:holds` | sorted set | the leases of an owner that has several, scored by the time at which they end | with the lock |
//! | `{lock:N}:revoked` | sorted set | leases that were released by force, scored by the time at which each would have ended | with the last of these |
//! | `{lock:N}:<hash>:note` | string | the note of a lease, by the hash of its id (`descriptions.rs`) | a second after the lease |
//! | `{lock:}:fence` | string | the last fencing token of all locks of this prefix | a day after the last grant |
//! | `{leasehold}:<hash>:client` | string | the label of a client, by the hash of its id (`descriptions.rs`) | an hour after the last lease that it was written for |
//!
//! | key | type | content | expires |
//! |---|---|---|---|
//! | `semaphore:N` | sorted set | the holders' lease ids, scored by the time at which their leases end | with the last holder (1) |
//! | `{semaphore:N}:holds` | hash | permits and token of each holder | with the last holder (1) |
//! | `{semaphore:N}:queue`, `:waiters`, `:<hash>:note` | | as for a lock | |
//! | `{semaphore:N}:state` | string | the limit, the permits in use, and more | two to four TTLs after the last use |
//! | `{semaphore:}:fence` | string | not less than the last token of any semaphore of this prefix | a day (up to 100 s less) after the last grant |
//!
//! (1) Within two TTLs after the last grant or renewal in any case.
//!
//! `lock:` and `semaphore:` stand for the prefix. The keys of one resource are in the cluster slot of the first; the
//! fence is in that of the prefix. A key, or a prefix, with a hash tag of its own keeps it: `lock:{t}N` has
//! `{t}:lock:{t}N:queue`. One with a `}` that closes no tag cannot be a tag itself; its other keys have as their tag
//! the smallest number that hashes to its slot.
//!
//! Because the whole first key is part of the others, different names never share a key; and because the whole prefix
//! is part of the fence, different prefixes share none. Names whose key starts with `{` and ends as those do are
//! rejected (`name.rs`), so no lock can be a fence, with any prefix; the fence of the empty prefix is `{}:fence`.

use std::borrow::Cow;
use std::mem;
use std::str;
use std::sync::LazyLock;

use bytes::Bytes;
use sha1_smol::Sha1;
use smallvec::SmallVec;
use uuid::Uuid;

use super::protocol::{CHANGES_PREFIX, CHANNEL_PREFIX};
use crate::backend::{LeaseId, Resource};
use crate::options::DEFAULT_LOCK_PREFIX;

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The keys with which a script is called: the lock or semaphore, the fence of its prefix, and its queue, from whose
/// name the scripts derive the others; in the `slot` of a cluster, where a node must know them all, they come after
/// these.
pub(super) fn of(resource: &Resource, slot: Option<u16>) -> Vec<Bytes> {
    let others: &[_] = if slot.is_some() { &OTHERS } else { &OTHERS[..1] };
    named(resource, Some(slot), others)
}

/// Those of these keys that a script cannot derive from the first one, on a single server: each one costs the server a
/// third of a command (`lib/keys.lua`).
pub(super) fn underivable(resource: &Resource) -> Vec<Bytes> {
    if resource.has_brace {
        return of(resource, None);
    }
    let fence = (resource.prefix() != DEFAULT_LOCK_PREFIX).then_some(None);
    named(resource, fence, &[])
}

/// The suffixes of the keys that have a resource's first key as their hash tag. The first one is that of the queue.
const OTHERS: [&str; 4] = [":queue", ":waiters", ":holds", ":state"];

/// A resource's key; the fence, if it is to be named, that of this slot; and the keys with these suffixes. One
/// allocation for all.
fn named(resource: &Resource, fence: Option<Option<u16>>, suffixes: &[&str]) -> Vec<Bytes> {
    let key = &*resource.key;
    let mut text = String::with_capacity(3 * (key.len() + 10));
    let mut ends = SmallVec::<[usize; 6]>::new();
    text.push_str(key);
    ends.push(text.len());
    if let Some(slot) = fence {
        write_fence(&mut text, resource.prefix(), slot);
        ends.push(text.len());
    }
    for suffix in suffixes {
        write_tagged(&mut text, key);
        text.push_str(suffix);
        ends.push(text.len());
    }
    let text = Bytes::from(text);
    let mut start = 0;
    ends.into_iter().map(|end| text.slice(mem::replace(&mut start, end)..end)).collect()
}

/// The fence of all locks, or all semaphores, of a prefix; in a cluster, of those in `slot`.
pub(super) fn write_fence(text: &mut String, prefix: &str, slot: Option<u16>) {
    match slot {
        None => write_tagged(text, prefix),
        Some(slot) => {
            let number = NUMBERS[usize::from(slot)];
            text.extend(["{", itoa::Buffer::new().format(number), "}:", prefix]);
        }
    }
    text.push_str(":fence");
}

/// The key of the leases of a lock that were released by force.
pub(super) fn revoked(key: &str) -> Bytes {
    let mut text = String::with_capacity(key.len() + 10);
    write_tagged(&mut text, key);
    text.push_str(":revoked");
    text.into()
}

/// The key of the note of this lease on the resource with this key.
pub(super) fn note(key: &str, lease: LeaseId) -> String {
    let mut text = String::with_capacity(key.len() + 50);
    write_tagged(&mut text, key);
    let digest = Sha1::from(lease.text(&mut [0; LeaseId::MAX_LENGTH])).hexdigest();
    text.extend([":", &*digest, ":note"]);
    text
}

/// The key of the label of this client.
pub(super) fn label(client: Uuid) -> String {
    let digest = Sha1::from(client.hyphenated().to_string()).hexdigest();
    format!("{{leasehold}}:{digest}:client")
}

/// The key of the resource of which this is the queue.
pub(super) fn with_queue(queue: &str) -> Option<&str> {
    let tagged = queue.strip_suffix(OTHERS[0])?.strip_prefix('{')?;
    match tagged.strip_suffix('}') {
        Some(key) if !key.contains('}') => Some(key),
        _ => {
            let (tag, key) = tagged.split_once("}:")?;
            (tag_beside(key)? == tag).then_some(key)
        }
    }
}

/// The first key of a resource, and that of its queue.
pub(super) fn with_its_queue(key: &str) -> [Bytes; 2] {
    let mut queue = String::with_capacity(key.len() + 10);
    write_tagged(&mut queue, key);
    queue.push_str(OTHERS[0]);
    [Bytes::copy_from_slice(key.as_bytes()), queue.into()]
}

/// A key with a hash tag for its slot: the start of a resource's other keys.
fn write_tagged(text: &mut String, key: &str) {
    match tag_beside(key) {
        None => text.extend(["{", key, "}"]),
        Some(tag) => text.extend(["{", &*tag, "}:", key]),
    }
}

/// The first keys of many locks, in one allocation.
pub(super) fn locks<'a>(keys: impl Iterator<Item = &'a str> + Clone) -> Vec<Bytes> {
    let text = Bytes::from(keys.clone().collect::<String>());
    let mut start = 0;
    let slices = keys.map(|key| {
        let end = start + key.len();
        text.slice(mem::replace(&mut start, end)..end)
    });
    slices.collect()
}

/// The channel on which the client `client` gets its messages.
pub(super) fn channel(client: Uuid) -> String {
    format!("{CHANNEL_PREFIX}{}", client.hyphenated())
}

/// The channel on which the observers of an election with this key are told that its leader has changed.
pub(super) fn changes_channel(key: &str) -> String {
    format!("{CHANGES_PREFIX}{key}")
}

/// The hash tag that other keys need beside this one to be in its slot: its own, or a number that hashes to its slot.
/// `None` if the whole key can be their hash tag, as nearly always.
pub(super) fn tag_beside(key: &str) -> Option<Cow<'_, str>> {
    if !key.as_bytes().contains(&b'}') {
        return None;
    }
    Some(hash_tag(key).map_or_else(|| number_in_slot_of(key).to_string().into(), Cow::from))
}

/// The part of a key that determines its slot: the text between the first `{` and the next `}`, unless that is empty.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The cluster slot of a key.
pub(super) fn slot(key: &[u8]) -> u16 {
    let tag = str::from_utf8(key).ok().and_then(hash_tag).map_or(key, str::as_bytes);
    crc16(tag) % SLOTS
}

/// The checksum of Redis Cluster: CRC-16 with the polynomial of XMODEM, high bit first, beginning with 0.
fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    const OF_ONE_BYTE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut checksum, mut bit) = ((byte as u16) << 8, 0);
            while bit < 8 {
                checksum = (checksum << 1) ^ if checksum & 0x8000 == 0 { 0 } else { POLYNOMIAL };
                bit += 1;
            }
            table[byte] = checksum;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |checksum, byte| {
        let [high, _] = (checksum ^ (u16::from(*byte) << 8)).to_be_bytes();
        (checksum << 8) ^ OF_ONE_BYTE[usize::from(high)]
    })
}

/// The smallest number whose digits hash to the slot of `key`.
fn number_in_slot_of(key: &str) -> u32 {
    NUMBERS[usize::from(slot(key.as_bytes()))]
}

/// The smallest number in each slot. All slots have one below 200 000.
static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut numbers = vec![0; usize::from(SLOTS)];
    for number in (0..200_000u32).rev() {
        numbers[usize::from(slot(number.to_string().as_bytes()))] = number;
    }
    numbers
});

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::backend::Kind;
    use crate::backend::redis::protocol::DEFAULT_FENCE;
    use crate::name;

    /// All keys of a resource, including those that the scripts derive. The last one is the fence.
    fn text(prefix: &str, name: &str) -> Vec<String> {
        let resource = Resource::named(prefix, name, Kind::Mutex);
        let keys = of(&resource, None);
        let text = |key: &Bytes| String::from_utf8(key.to_vec()).unwrap();
        let (mut keys, fence, queue) = (vec![text(&keys[0])], text(&keys[1]), text(&keys[2]));
        let stem = queue.strip_suffix("queue").unwrap();
        keys.extend(["queue", "waiters", "state", "holds"].map(|suffix| format!("{stem}{suffix}")));
        keys.push(fence);
        keys.push(String::from_utf8(revoked(&resource.key).to_vec()).unwrap());
        keys
    }

    const FENCE: usize = 5;

    #[test]
    fn the_layout_is_as_documented() {
        let all = [
            "lock:a",
            "{lock:a}:queue",
            "{lock:a}:waiters",
            "{lock:a}:state",
            "{lock:a}:holds",
            "{lock:}:fence",
            "{lock:a}:revoked",
        ];
        assert_eq!(text("lock:", "a"), all);
        assert_eq!(text("lock:", "{t}a")[1], "{t}:lock:{t}a:queue");
        assert_eq!(text("lock:", "{t")[1], "{lock:{t}:queue");
    }

    #[test]
    fn a_call_names_only_the_keys_that_its_script_cannot_derive() {
        for (prefix, name, named) in [
            ("lock:", "a", &["lock:a"][..]),
            ("other:", "a", &["other:a", "{other:}:fence"]),
            ("lock:", "{t}a", &["lock:{t}a", DEFAULT_FENCE, "{t}:lock:{t}a:queue"]),
        ] {
            assert_eq!(underivable(&Resource::named(prefix, name, Kind::Mutex)), named, "{prefix}{name}");
        }
        assert_eq!(text(DEFAULT_LOCK_PREFIX, "a")[FENCE], DEFAULT_FENCE);
    }

    #[test]
    fn a_queue_says_whose_it_is_and_other_keys_do_not() {
        for key in texts("ac{}:", 5).iter().filter(|key| !key.is_empty()) {
            let queue = text("", key).swap_remove(1);
            assert_eq!(with_queue(&queue), Some(&**key), "{queue}");
            assert_eq!(with_its_queue(key), [key.clone().into_bytes(), queue.into_bytes()]);
        }
        for other in ["", ":queue", "lock:a:queue", "{lock:a}:waiters", "{t}:lock:a:queue", "{lock:a:queue"] {
            assert_eq!(with_queue(other), None, "{other}");
        }
    }

    #[test]
    fn labels_and_notes_have_keys_of_their_own_that_give_no_lease_away() {
        let lease = LeaseId::next(Uuid::new_v4());
        for (key, start) in [("lock:a", "{lock:a}:"), ("lock:{t}a", "{t}:lock:{t}a:")] {
            let note = note(key, lease);
            assert!(note.starts_with(start) && name::is_reserved(&note), "{note}");
            assert_eq!(slot(note.as_bytes()), slot(key.as_bytes()));
            assert!(!note.contains(&lease.client().hyphenated().to_string()[..8]), "{note}");
        }
        let label = label(lease.client());
        assert!(label.starts_with("{leasehold}:") && name::is_reserved(&label), "{label}");
        assert!(!label.contains(&lease.client().hyphenated().to_string()[..8]), "{label}");
    }

    #[test]
    fn every_prefix_has_a_fence_that_no_name_can_be() {
        for (prefix, fence) in [("", "{}:fence"), ("{", "{{}:fence"), ("{t}:", "{t}:{t}::fence")] {
            assert_eq!(text(prefix, "a")[FENCE], fence);
            for prefix in ["", "{", "{t}:", "lock:"] {
                let name = fence.strip_prefix(prefix).filter(|name| !name.is_empty());
                assert!(
                    name.is_none_or(|name| name::resource(prefix, name, Kind::Mutex).is_err()),
                    "{fence}"
                );
            }
        }
    }

    #[test]
    fn many_locks_have_the_keys_they_have_alone() {
        let names = ["lock:a", "", "lock:{t}b", "lock:é"];
        let first = |key: &str| Bytes::from(text("", key).swap_remove(0));
        assert_eq!(locks(names.into_iter()), names.map(first));
    }

    #[test]
    fn the_checksum_is_that_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(crc16(b""), 0);
    }

    #[test]
    fn every_slot_has_a_small_number() {
        let slots: HashSet<u16> = (0..200_000u32).map(|n| slot(n.to_string().as_bytes())).collect();
        assert_eq!(slots.len(), 16384);
    }

    #[test]
    fn all_keys_of_a_lock_share_a_slot() {
        // No key is empty.
        for key in &texts("ac{}:", 5)[1..] {
            let keys = &text("", key)[..FENCE];
            let slots: HashSet<u16> = keys.iter().map(|key| slot(key.as_bytes())).collect();
            assert_eq!(slots.len(), 1, "{keys:?}");
        }
    }

    #[test]
    fn different_locks_share_no_key() {
        let mut seen = HashSet::new();
        for name in texts("ab{}:", 5) {
            for key in &text("lock:", &name)[..FENCE] {
                assert!(seen.insert(key.clone()), "shared: {key}");
            }
        }
    }

    #[test]
    fn a_fence_is_in_the_slot_of_its_prefix_and_is_that_of_no_other() {
        let slot = |key: &str| slot(key.as_bytes());
        let mut seen = HashSet::new();
        for prefix in texts("ab{}:", 5) {
            let fence = text(&prefix, "n").swap_remove(FENCE);
            assert!(prefix.is_empty() || slot(&prefix) == slot(&fence), "{fence}");
            assert!(seen.insert(fence), "shared by {prefix}");
        }
    }

    /// All texts of at most this many of these characters.
    fn texts(alphabet: &str, longest: usize) -> Vec<String> {
        let mut texts = vec![String::new()];
        for length in 0..longest {
            let longest_yet = texts.iter().filter(|text| text.len() == length);
            let longer = longest_yet.flat_map(|text| alphabet.chars().map(move |c| format!("{text}{c}")));
            texts.extend(longer.collect::<Vec<_>>());
        }
        texts
    }
}
