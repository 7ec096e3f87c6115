//! Every key of a lock and of a semaphore, and the channel of a client.
//!
//! | key | type | content | expires |
//! |---|---|---|---|
//! | `lock:N` | string | the holder's lease id, followed by `/owner` for a reentrant lock | with the lease |
//! | `{lock:N}:queue` | sorted set | the waiting lease ids, in the order of their places | within two TTLs after the last request |
//! | `{lock:N}:waiters` | hash | a record of each of them | likewise |
//! | `{lock:N}:fence` | string | the last fencing token | a day, or up to an hour and 100 s less, after the last grant or renewal |
//! | `{lock:N}:holds` | sorted set | the leases of an owner that has several, by the time they end | with the lock |
//!
//! | key | type | content | expires |
//! |---|---|---|---|
//! | `semaphore:N` | sorted set | the holders' lease ids by the time their leases end | with the last holder (1) |
//! | `{semaphore:N}:queue`, `:waiters` | | as for a lock | |
//! | `{semaphore:N}:fence` | string | the last fencing token, the limit, the permits in use, and more | a day (2) |
//! | `{semaphore:N}:holds` | hash | permits and token of each holder | with the last holder (1) |
//!
//! (1) Within two TTLs after the last grant or renewal in any case. (2) Or up to 100 s less, after the last grant or renewal.
//!
//! `lock:` and `semaphore:` stand for the prefix. The key of a mutex follows the canonical recipe. The other keys are in the
//! cluster slot of the first. A key with a hash tag of its own keeps it: `lock:{t}N` has `{t}:lock:{t}N:queue`. A key with a `}`
//! that closes no tag cannot be a tag itself; its other keys have as their tag the smallest number that hashes to its slot.
//!
//! Because the whole first key is part of the others, different names never share a key.

use std::mem;
use std::sync::LazyLock;

use fred::bytes::Bytes;
use fred::types::{Key, Value};
use uuid::Uuid;

use super::args::Args;
use crate::backend::LeaseId;

/// The prefix of the clients' channels; a user with restricted rights needs `&leasehold:*`.
pub(super) const CHANNEL_PREFIX: &str = "leasehold:";

/// What follows the stem, in the order in which the scripts expect the keys.
const SUFFIXES: [&str; 4] = [":queue", ":waiters", ":fence", ":holds"];

/// Which keys of a resource a script uses, in the order in which it expects them.
pub(super) type Used = &'static [usize];

pub(super) const ALL: Used = &[0, 1, 2, 3, 4];
/// A mutex has no holds.
pub(super) const WITHOUT_HOLDS: Used = &[0, 1, 2, 3];
pub(super) const LOCK_AND_FENCE: Used = &[0, 3];

/// All keys of a resource in one string, and where each of them ends. One allocation, because this is done for every command.
struct Layout {
    text: String,
    ends: [usize; 5],
}

impl Layout {
    fn of(key: &str) -> Self {
        let stem = Stem::of(key);
        let suffixes = SUFFIXES.iter().map(|suffix| suffix.len() + "{}".len()).sum::<usize>();
        let mut text = String::with_capacity(5 * key.len() + suffixes + LeaseId::USUAL_LENGTH);
        let mut ends = [0; 5];
        text.push_str(key);
        ends[0] = text.len();
        for (suffix, end) in SUFFIXES.iter().zip(&mut ends[1..]) {
            stem.write(&mut text, key);
            text.push_str(suffix);
            *end = text.len();
        }
        Self { text, ends }
    }

    /// The keys that a script uses, as slices of `text`.
    fn keys(ends: [usize; 5], text: &Bytes, used: Used) -> Vec<Key> {
        let start = |n: usize| if n == 0 { 0 } else { ends[n - 1] };
        used.iter().map(|n| Key::from(text.slice(start(*n)..ends[*n]))).collect()
    }
}

/// The slices of a text that end at `ends`.
fn pieces<T: From<Bytes>>(text: &Bytes, ends: &[usize]) -> Vec<T> {
    let mut start = 0;
    ends.iter().map(|end| T::from(text.slice(mem::replace(&mut start, *end)..*end))).collect()
}

/// Keys of a resource.
pub(super) fn keys(key: &str, used: Used) -> Vec<Key> {
    with_args(key, used, &Args::new()).0
}

/// Keys of a resource, and arguments, all in one allocation.
pub(super) fn with_args(key: &str, used: Used, args: &Args) -> (Vec<Key>, Vec<Value>) {
    let Layout { mut text, ends } = Layout::of(key);
    let start = text.len();
    text.push_str(args.text());
    let text = Bytes::from(text);
    (Layout::keys(ends, &text, used), pieces(&text.slice(start..), args.ends()))
}

/// The first keys of many locks, in one allocation.
pub(super) fn locks<'a>(keys: impl Iterator<Item = &'a str> + Clone) -> Vec<Key> {
    let text = Bytes::from(keys.clone().collect::<String>());
    let ends = keys.scan(0, |end, key| {
        *end += key.len();
        Some(*end)
    });
    pieces(&text, &ends.collect::<Vec<_>>())
}

/// The channel on which the client `client` gets its messages.
pub(super) fn channel(client: Uuid) -> String {
    format!("{CHANNEL_PREFIX}{}", client.hyphenated())
}

/// The start of a resource's other keys.
pub(super) enum Stem<'a> {
    /// The key itself, as a hash tag.
    Whole,
    /// The hash tag that the key contains.
    Tag(&'a str),
    /// A number that hashes to the key's slot, as a hash tag.
    Number(u32),
}

impl<'a> Stem<'a> {
    pub(super) fn of(key: &'a str) -> Self {
        match hash_tag(key) {
            Some(tag) => Self::Tag(tag),
            None if key.contains('}') => Self::Number(number_in_slot_of(key)),
            None => Self::Whole,
        }
    }

    pub(super) fn write(&self, text: &mut String, key: &str) {
        text.push('{');
        match self {
            Self::Whole => text.push_str(key),
            Self::Tag(tag) => text.push_str(tag),
            Self::Number(number) => text.push_str(&number.to_string()),
        }
        text.push('}');
        if !matches!(self, Self::Whole) {
            text.push(':');
            text.push_str(key);
        }
    }
}

/// The part of a key that determines its slot: the text between the first `{` and the next `}`, unless that is empty.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The smallest number whose digits hash to the slot of `key`.
fn number_in_slot_of(key: &str) -> u32 {
    NUMBERS[usize::from(fred::util::redis_keyslot(key.as_bytes()))]
}

/// The smallest number in each slot. All slots have one below 200 000.
static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut numbers = vec![0; 16384];
    for number in (0..200_000u32).rev() {
        numbers[usize::from(fred::util::redis_keyslot(number.to_string().as_bytes()))] = number;
    }
    numbers
});

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keys(key: &str) -> Vec<Vec<u8>> {
        super::keys(key, ALL).iter().map(|key| key.as_bytes().to_vec()).collect()
    }

    #[test]
    fn the_layout_is_as_documented() {
        let text =
            |key: &str| keys(key).into_iter().map(|k| String::from_utf8(k).unwrap()).collect::<Vec<_>>();
        let all = ["lock:a", "{lock:a}:queue", "{lock:a}:waiters", "{lock:a}:fence", "{lock:a}:holds"];
        assert_eq!(text("lock:a"), all);
        assert_eq!(text("lock:{t}a")[1], "{t}:lock:{t}a:queue");
        assert_eq!(text("lock:{t")[1], "{lock:{t}:queue");
    }

    #[test]
    fn many_locks_have_the_keys_they_have_alone() {
        let names = ["lock:a", "", "lock:{t}b", "lock:é"];
        let first = |key: &str| Key::from(keys(key)[0].as_slice());
        assert_eq!(locks(names.into_iter()), names.map(first));
    }

    #[test]
    fn every_slot_has_a_small_number() {
        let slots: HashSet<u16> =
            (0..200_000u32).map(|n| fred::util::redis_keyslot(n.to_string().as_bytes())).collect();
        assert_eq!(slots.len(), 16384);
    }

    #[test]
    fn all_keys_of_a_lock_share_a_slot() {
        // No key is empty.
        for key in &texts("ac{}:", 5)[1..] {
            let slots: HashSet<u16> = keys(key).iter().map(|key| fred::util::redis_keyslot(key)).collect();
            assert_eq!(slots.len(), 1, "{:?}", keys(key));
        }
    }

    #[test]
    fn different_locks_share_no_key() {
        let mut seen = HashSet::new();
        for name in texts("ab{}:", 5) {
            for key in keys(&format!("lock:{name}")) {
                assert!(seen.insert(key.clone()), "shared: {}", String::from_utf8_lossy(&key));
            }
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
