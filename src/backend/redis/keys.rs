//! Every key of a lock and of a semaphore, and the channel of a client.
//!
//! | key | type | what | expires |
//! |---|---|---|---|
//! | `lock:N` | string | the holder's `<lease id> <token>`, for a reentrant lock followed by `/<owner>` | with the lease |
//! | `{lock:N}:queue` | sorted set | waiting lease ids by place in the queue | two leases after the last request |
//! | `{lock:N}:waiters` | hash | what is known of each of them | likewise |
//! | `{lock:N}:holds` | sorted set | the leases of an owner that holds under several, by the time they end | with the lock |
//! | `{lock:}:fence` | string | the last fencing token of all locks of this prefix | a day after the last grant |
//!
//! | key | type | what | expires |
//! |---|---|---|---|
//! | `semaphore:N` | sorted set | the holders' lease ids by the time their leases end | with the last holder, or two leases after the last grant or renewal |
//! | `{semaphore:N}:holds` | hash | permits and token of each holder | likewise |
//! | `{semaphore:N}:queue`, `:waiters` | | as for a lock | |
//! | `{semaphore:N}:state` | string | what every operation has to know: the limit, the permits in use | one to two leases after nobody holds or waits |
//! | `{semaphore:}:fence` | string | as for locks | |
//!
//! `lock:` and `semaphore:` stand for the prefix. The keys of one resource live in the cluster slot of the first; the fence lives
//! in that of the prefix. A key, or a prefix, that brings a hash tag of its own keeps it: `lock:{t}N` has `{t}:lock:{t}N:queue`.
//! One with a `}` that closes no tag cannot be a tag itself; it gets the smallest number that hashes to its slot.
//!
//! Because the whole first key is part of the others, different names never share one, and because the whole prefix is part of the
//! fence, neither do prefixes. Keys that start with `{` and end as those do are refused as names (`name.rs`), so no lock can be
//! a fence, whatever its prefix; that of the empty prefix is `{}:fence`.

use std::mem;
use std::sync::LazyLock;

use fred::bytes::Bytes;
use fred::types::{Key, Value};
use uuid::Uuid;

use super::args::Args;
use super::protocol::CHANNEL_PREFIX;
use crate::backend::Resource;

/// What comes after the stem; the last is that of the fence.
const SUFFIXES: [&str; 6] = ["", ":queue", ":waiters", ":state", ":holds", ":fence"];

/// Which keys of a resource a script uses, in the order in which it expects them, as indices of [`SUFFIXES`].
pub(super) type Used = &'static [usize];

/// A lock or a semaphore itself.
const ITSELF: usize = 0;
const FENCE: usize = 5;

pub(super) const KEY_ONLY: Used = &[ITSELF];
/// A mutex has no holds.
pub(super) const BESIDE_LOCK: Used = &[ITSELF, 1, 2, FENCE];
pub(super) const BESIDE_OWNED: Used = &[ITSELF, 1, 2, FENCE, 4];
pub(super) const BESIDE_SEMAPHORE: Used = &[ITSELF, 1, 2, 3, 4, FENCE];

/// Keys of a resource as one text, and where each ends: this is done for every command.
fn layout(resource: &Resource, used: Used, room: usize) -> (String, [usize; SUFFIXES.len()]) {
    let key = &*resource.key;
    let stem = Stem::of(key);
    let mut text = String::with_capacity(used.len() * (key.len() + 10) + room);
    let mut ends = [0; SUFFIXES.len()];
    for (n, end) in used.iter().zip(&mut ends) {
        match *n {
            ITSELF => text.push_str(key),
            FENCE => write_fence(&mut text, resource.prefix()),
            n => {
                stem.write(&mut text, key);
                text.push_str(SUFFIXES[n]);
            }
        }
        *end = text.len();
    }
    (text, ends)
}

/// The fence of all locks, or all semaphores, of a prefix.
pub(super) fn write_fence(text: &mut String, prefix: &str) {
    Stem::of(prefix).write(text, prefix);
    text.push_str(SUFFIXES[FENCE]);
}

/// The pieces of a text that end at `ends`.
fn pieces<T: From<Bytes>>(text: &Bytes, ends: &[usize]) -> Vec<T> {
    let mut start = 0;
    ends.iter().map(|end| T::from(text.slice(mem::replace(&mut start, *end)..*end))).collect()
}

/// Keys of a resource, and arguments, all in one allocation.
pub(super) fn with_args(resource: &Resource, used: Used, args: &Args) -> (Vec<Key>, Vec<Value>) {
    let (mut text, ends) = layout(resource, used, args.text().len());
    let start = text.len();
    text.push_str(args.text());
    let text = Bytes::from(text);
    (pieces(&text, &ends[..used.len()]), pieces(&text.slice(start..), args.ends()))
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

/// The channel on which the client `client` hears of its grants.
pub(super) fn channel(client: Uuid) -> String {
    format!("{CHANNEL_PREFIX}{}", client.hyphenated())
}

/// What the keys beside a lock's own start with.
pub(super) enum Stem<'a> {
    /// The key itself as the tag.
    Whole,
    /// The tag that the key brings.
    Tag(&'a str),
    /// A number that hashes to the key's slot.
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
    use crate::backend::Kind;
    use crate::name::Name;

    const ALL: Used = BESIDE_SEMAPHORE;

    fn keys(prefix: &str, name: &str) -> Vec<Vec<u8>> {
        let resource = Resource::named(prefix, name, Kind::Mutex);
        with_args(&resource, ALL, &Args::new()).0.iter().map(|key| key.as_bytes().to_vec()).collect()
    }

    fn text(prefix: &str, name: &str) -> Vec<String> {
        keys(prefix, name).into_iter().map(|key| String::from_utf8(key).unwrap()).collect()
    }

    #[test]
    fn the_layout_is_as_documented() {
        let all = [
            "lock:a",
            "{lock:a}:queue",
            "{lock:a}:waiters",
            "{lock:a}:state",
            "{lock:a}:holds",
            "{lock:}:fence",
        ];
        assert_eq!(text("lock:", "a"), all);
        assert_eq!(text("lock:", "{t}a")[1], "{t}:lock:{t}a:queue");
        assert_eq!(text("lock:", "{t")[1], "{lock:{t}:queue");
    }

    #[test]
    fn every_prefix_has_a_fence_that_no_name_can_be() {
        for (prefix, fence) in [("", "{}:fence"), ("{", "{{}:fence"), ("{t}:", "{t}:{t}::fence")] {
            assert_eq!(text(prefix, "a")[FENCE], fence);
            for prefix in ["", "{", "{t}:", "lock:"] {
                let name = fence.strip_prefix(prefix).filter(|name| !name.is_empty());
                assert!(name.is_none_or(|name| Name::new(prefix, name, Kind::Mutex).is_err()), "{fence}");
            }
        }
    }

    #[test]
    fn many_locks_have_the_keys_they_have_alone() {
        let names = ["lock:a", "", "lock:{t}b", "lock:é"];
        let first = |key: &str| Key::from(keys("", key)[0].as_slice());
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
            let keys = &keys("", &key)[..FENCE];
            let slots: HashSet<u16> = keys.iter().map(|key| fred::util::redis_keyslot(key)).collect();
            prop_assert_eq!(slots.len(), 1, "{:?}", keys);
        }

        #[test]
        fn a_fence_lives_in_the_slot_of_its_prefix_and_is_no_other_prefixs(
            a in "[ab{}:]{0,8}", b in "[ab{}:]{0,8}",
        ) {
            let [a_fence, b_fence] = [&a, &b].map(|prefix| text(prefix, "n").swap_remove(FENCE));
            prop_assert_eq!(a == b, a_fence == b_fence);
            let slot = |key: &str| fred::util::redis_keyslot(key.as_bytes());
            prop_assert!(a.is_empty() || slot(&a) == slot(&a_fence));
        }

        #[test]
        fn different_locks_share_no_key(a in "[ab{}:]{0,8}", b in "[ab{}:]{0,8}") {
            prop_assume!(a != b);
            let (a, b) = (keys("lock:", &a), keys("lock:", &b));
            prop_assert!(a[..FENCE].iter().all(|key| !b.contains(key)), "{:?} {:?}", a, b);
        }
    }
}
