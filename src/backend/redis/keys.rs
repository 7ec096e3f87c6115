//! Every key of a lock and of a semaphore, and the channel of a client.
//!
//! | key | type | what | expires |
//! |---|---|---|---|
//! | `lock:N` | string | the holder's lease id, and nothing else: the canonical recipe; `/owner` follows for a reentrant lock | with the lease |
//! | `{lock:N}:queue` | sorted set | waiting lease ids by place in line | two leases after the last request |
//! | `{lock:N}:waiters` | hash | what is known of each of them | likewise |
//! | `{lock:N}:fence` | string | the last fencing token | a day, or up to an hour less, after the last grant or renewal |
//! | `{lock:N}:holds` | sorted set | the leases of an owner that holds under several, by the time they end | with the lock |
//!
//! | key | type | what | expires |
//! |---|---|---|---|
//! | `semaphore:N` | sorted set | the holders' lease ids by the time their leases end | with the last holder, or two leases after the last grant or renewal |
//! | `{semaphore:N}:queue`, `:waiters` | | as for a lock | |
//! | `{semaphore:N}:fence` | hash | what every operation has to know: the last fencing token, the limit, the permits in use | a day, or up to 100 s less, after the last grant or renewal |
//! | `{semaphore:N}:holds` | hash | permits and token of each holder | as the first |
//!
//! `lock:` and `semaphore:` stand for the prefix. The others live in the cluster slot of the first. A key that brings a
//! hash tag of its own keeps it: `lock:{t}N` has `{t}:lock:{t}N:queue`. A key with a `}` that closes no tag
//! cannot be a tag itself; it gets the smallest number that hashes to its slot.
//!
//! Because the whole first key is part of the others, different names never share one.

use std::sync::LazyLock;

use fred::bytes::Bytes;
use fred::types::{Key, Value};
use uuid::Uuid;

use crate::backend::LeaseId;

/// What wake-up channels start with; a user with restricted rights needs `&leasehold:*`.
pub(super) const CHANNEL_PREFIX: &str = "leasehold:";

/// What is put behind the stem, in the order in which the scripts expect it.
const SUFFIXES: [&str; 4] = [":queue", ":waiters", ":fence", ":holds"];

/// The keys of one resource, in the order in which the scripts expect them.
#[derive(Clone, Debug)]
pub(super) struct Keys([Key; 5]);

impl Keys {
    pub(super) fn of(key: &str) -> Self {
        Self::cut(key, |_| ()).0
    }

    /// The keys, and the text of a lease id, in one allocation: this is done for every command.
    pub(super) fn with_id(key: &str, id: LeaseId) -> (Self, Value) {
        let (keys, id) = Self::cut(key, |text| id.write(text));
        (keys, Value::from(id))
    }

    /// The keys, and what is written behind them.
    fn cut(key: &str, write_rest: impl FnOnce(&mut String)) -> (Self, Bytes) {
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
        write_rest(&mut text);
        let text = Bytes::from(text);
        let mut start = 0;
        let keys = ends.map(|end| Key::from(text.slice(std::mem::replace(&mut start, end)..end)));
        (Self(keys), text.slice(ends[4]..))
    }

    pub(super) fn all(self) -> Vec<Key> {
        self.0.into()
    }

    /// All but the holds, which a mutex does not have.
    pub(super) fn without_holds(self) -> Vec<Key> {
        let [lock, queue, waiters, fence, _] = self.0;
        vec![lock, queue, waiters, fence]
    }

    /// The lock itself and its fence.
    pub(super) fn lock_and_fence(self) -> [Key; 2] {
        let [lock, _, _, fence, _] = self.0;
        [lock, fence]
    }
}

/// The first keys of many locks, in one allocation.
pub(super) fn locks<'a>(keys: impl Iterator<Item = &'a str> + Clone) -> Vec<Key> {
    let text = Bytes::from(keys.clone().collect::<String>());
    let mut start = 0;
    let lock = |key: &str| {
        let end = start + key.len();
        Key::from(text.slice(std::mem::replace(&mut start, end)..end))
    };
    keys.map(lock).collect()
}

/// The channel on which the client `client` hears of its grants.
pub(super) fn channel(client: Uuid) -> String {
    format!("{CHANNEL_PREFIX}{}", client.hyphenated())
}

/// What the keys beside a lock's own start with.
enum Stem<'a> {
    /// The key itself as the tag.
    Whole,
    /// The tag that the key brings.
    Tag(&'a str),
    /// A number that hashes to the key's slot.
    Number(u32),
}

impl<'a> Stem<'a> {
    fn of(key: &'a str) -> Self {
        match hash_tag(key) {
            Some(tag) => Self::Tag(tag),
            None if key.contains('}') => Self::Number(number_in_slot_of(key)),
            None => Self::Whole,
        }
    }

    fn write(&self, text: &mut String, key: &str) {
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

/// The part of a key that decides its slot: what stands between the first `{` and the next `}`, if anything.
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

    use proptest::prelude::*;

    use super::*;

    fn keys(key: &str) -> Vec<Vec<u8>> {
        Keys::of(key).all().iter().map(|key| key.as_bytes().to_vec()).collect()
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
        let first = |key: &str| Keys::of(key).all()[0].clone();
        assert_eq!(locks(names.into_iter()), names.map(first));
    }

    #[test]
    fn every_slot_has_a_small_number() {
        let slots: HashSet<u16> =
            (0..200_000u32).map(|n| fred::util::redis_keyslot(n.to_string().as_bytes())).collect();
        assert_eq!(slots.len(), 16384);
    }

    proptest! {
        #[test]
        fn all_keys_of_a_lock_share_a_slot(key in "[a-c{}:]{1,12}") {
            let slots: HashSet<u16> = keys(&key).iter().map(|key| fred::util::redis_keyslot(key)).collect();
            prop_assert_eq!(slots.len(), 1, "{:?}", keys(&key));
        }

        #[test]
        fn different_locks_share_no_key(a in "[ab{}:]{0,8}", b in "[ab{}:]{0,8}") {
            prop_assume!(a != b);
            let (a, b) = (keys(&format!("lock:{a}")), keys(&format!("lock:{b}")));
            prop_assert!(a.iter().all(|key| !b.contains(key)), "{:?} {:?}", a, b);
        }
    }
}
