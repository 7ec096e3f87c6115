//! Every key of a lock, and the channel of a client.
//!
//! | key | type | what | expires |
//! |---|---|---|---|
//! | `lock:N` | string | the holder's lease id, and nothing else: the canonical recipe | with the lease |
//! | `{lock:N}:queue` | sorted set | waiting lease ids by place in line | two leases after the last request |
//! | `{lock:N}:waiters` | hash | what is known of each of them | likewise |
//! | `{lock:N}:fence` | string | the last fencing token | a day after the last grant or renewal |
//!
//! `lock:` stands for the prefix. The other three live in the cluster slot of the first. A key that brings a
//! hash tag of its own keeps it: `lock:{t}N` has `{t}:lock:{t}N:queue`. A key with a `}` that closes no tag
//! cannot be a tag itself; it gets the smallest number that hashes to its slot.
//!
//! Because the whole first key is part of the others, different locks never share one.

use std::sync::Arc;

use fred::types::Key;
use uuid::Uuid;

/// What wake-up channels start with; a user with restricted rights needs `&leasehold:*`.
pub(super) const CHANNEL_PREFIX: &str = "leasehold:";

/// The keys of one lock, in the order in which the scripts expect them.
#[derive(Clone, Debug)]
pub(super) struct LockKeys {
    pub(super) lock: Key,
    pub(super) queue: Key,
    pub(super) waiters: Key,
    pub(super) fence: Key,
}

impl LockKeys {
    pub(super) fn of(key: &Arc<str>) -> Self {
        let stem = stem(key);
        Self {
            lock: Key::from(&**key),
            queue: Key::from(format!("{stem}:queue")),
            waiters: Key::from(format!("{stem}:waiters")),
            fence: Key::from(format!("{stem}:fence")),
        }
    }

    pub(super) fn all(self) -> Vec<Key> {
        vec![self.lock, self.queue, self.waiters, self.fence]
    }
}

/// The channel on which the client `client` hears of its grants.
pub(super) fn channel(client: Uuid) -> String {
    format!("{CHANNEL_PREFIX}{}", client.hyphenated())
}

/// What the keys beside `key` start with.
fn stem(key: &str) -> String {
    match hash_tag(key) {
        Some(tag) => format!("{{{tag}}}:{key}"),
        None if key.contains('}') => format!("{{{}}}:{key}", number_in_slot_of(key)),
        None => format!("{{{key}}}"),
    }
}

/// The part of a key that decides its slot: what stands between the first `{` and the next `}`, if anything.
fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

/// The smallest number whose digits hash to the slot of `key`. Every slot has one below 200 000.
fn number_in_slot_of(key: &str) -> u32 {
    let slot = fred::util::redis_keyslot(key.as_bytes());
    (0..).find(|n: &u32| fred::util::redis_keyslot(n.to_string().as_bytes()) == slot).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn keys(key: &str) -> Vec<Vec<u8>> {
        LockKeys::of(&Arc::from(key)).all().into_iter().map(|key| key.as_bytes().to_vec()).collect()
    }

    #[test]
    fn the_layout_is_as_documented() {
        let text =
            |key: &str| keys(key).into_iter().map(|k| String::from_utf8(k).unwrap()).collect::<Vec<_>>();
        assert_eq!(text("lock:a"), ["lock:a", "{lock:a}:queue", "{lock:a}:waiters", "{lock:a}:fence"]);
        assert_eq!(text("lock:{t}a")[1], "{t}:lock:{t}a:queue");
        assert_eq!(text("lock:{t")[1], "{lock:{t}:queue");
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
