//! The scripts, each with the digest under which the server caches it.

use std::sync::{LazyLock, OnceLock};

use bytes::Bytes;
use sha1_smol::Sha1;

use super::linker::{link, lua};
use super::protocol;
use crate::backend::BackendError;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Bytes,
    hash: Bytes,
    /// How many of a resource's keys it is called with, the first of those in `keys.rs`, unless it can derive them.
    keys: usize,
    /// Its code in a batch, if it can be part of one.
    code: Option<&'static str>,
    /// What it is linked from.
    text: &'static str,
    in_cluster: OnceLock<Box<Self>>,
}

impl Script {
    fn new(text: &'static str, keys: usize, code: Option<&'static str>, in_cluster: bool) -> Self {
        let source = link(text, in_cluster);
        #[cfg(leasehold_planted)]
        let source = crate::planted::scripts::script(source);
        let hash = Sha1::from(&source).hexdigest();
        Self { source: source.into(), hash: hash.into(), keys, code, text, in_cluster: OnceLock::new() }
    }

    /// The script as it runs on a node of a cluster, or on a single server.
    pub(super) fn variant(&self, in_cluster: bool) -> &Self {
        if !in_cluster {
            return self;
        }
        self.in_cluster.get_or_init(|| Box::new(Self::new(self.text, self.keys, self.code, true)))
    }

    pub(super) const fn keys(&self) -> usize {
        self.keys
    }

    pub(super) const fn code(&self) -> Option<&'static str> {
        self.code
    }

    pub(super) const fn source(&self) -> &Bytes {
        &self.source
    }

    pub(super) const fn hash(&self) -> &Bytes {
        &self.hash
    }

    /// What it has answered is of no known form.
    pub(super) fn unreadable(&self) -> BackendError {
        BackendError::Refused {
            source: format!("script {:?} returned an answer of an unknown form", self.hash).into(),
        }
    }
}

/// An operation on a lock in a call of its own.
macro_rules! of_lock {
    ($operation:literal) => {
        concat!(
            "local clock, fence, queue = prepare()\n",
            "return ",
            $operation,
            "(lock_at(KEYS[1], queue, fence, clock), unpack(ARGV))"
        )
    };
}

/// An operation on the lock of an election, which tells those who observe it.
macro_rules! of_election {
    ($operation:literal) => {
        concat!(
            "local clock, fence, queue = prepare()\n",
            "return announced(",
            $operation,
            ", lock_at(KEYS[1], queue, fence, clock), unpack(ARGV))"
        )
    };
}

/// An operation on a semaphore in a call of its own.
macro_rules! of_semaphore {
    ($operation:literal) => {
        concat!(
            "local clock, fence, queue = prepare()\n",
            "return ",
            $operation,
            "(semaphore_at(KEYS[1], queue, ARGV[1], fence, clock), unpack(ARGV, 2))"
        )
    };
    // After its fast path, which may have changed the state even if it answers nothing.
    ($fast:literal, $operation:literal) => {
        concat!(
            "local clock, fence, queue = prepare()\n",
            "do local s = semaphore_at(KEYS[1], queue, ARGV[1], fence, clock)\n",
            "local done, answer = pcall(",
            $fast,
            ", s, unpack(ARGV, 2))\n",
            "close_state(s)\n",
            "if done and answer then return answer end end\n",
            "OTHERWISE\n",
            "return ",
            $operation,
            "(semaphore_at(KEYS[1], queue, ARGV[1], fence, clock), unpack(ARGV, 2))"
        )
    };
}

/// Scripts by name: how many keys they have, the code that stands for them in a batch, if they can be part of one, and
/// their texts.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident($keys:expr, $code:expr): $text:expr;)+) => {
        $($(#[$doc])* pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($text, $keys, $code, false));)+

        #[cfg(test)]
        const ALL: &[(&str, &LazyLock<Script>)] = &[$((stringify!($name), &$name)),+];
    };
}

scripts! {
    ACQUIRE(3, Some(protocol::ACQUIRE)): lua!("lock/acquire_alone");
    RENEW(1, Some(protocol::RENEW)): "return renew(KEYS[1], ARGV[1], ARGV[2])";
    RELEASE(3, Some(protocol::RELEASE)): lua!("lock/release_alone");
    /// For the owner of a reentrant lock.
    RENEW_OWNED(3, Some(protocol::RENEW_OWNED)): of_lock!("renew_owned");
    /// For one of several servers that must agree on a token.
    SETTLE(3, Some(protocol::SETTLE)): of_lock!("settle");

    // For elections, in a call of its own each: other locks do not pay for those who observe.
    ACQUIRE_AND_TELL(3, None): of_election!("acquire");
    RELEASE_AND_TELL(3, None): of_election!("release");
    SETTLE_AND_TELL(3, None): of_election!("settle");
    FORCE_AND_TELL(4, None): of_election!("force");

    ACQUIRE_PERMITS(3, Some(protocol::ACQUIRE_PERMITS)): of_semaphore!("acquire_permits_fast", "acquire_permits");
    RENEW_PERMITS(3, Some(protocol::RENEW_PERMITS)): of_semaphore!("renew_permits");
    RELEASE_PERMITS(3, Some(protocol::RELEASE_PERMITS)): of_semaphore!("release_permits_fast", "release_permits");

    /// Many operations in one call.
    BATCH(0, None): lua!("batch");

    // Never part of a batch: they are rarely called, or handle many leases anyway.
    RENEW_ALL(0, None): lua!("lock/renew_all");
    FORCE(4, None): of_lock!("force");
    WAS_REVOKED(4, None): lua!("lock/was_revoked");
    RESIZE(3, None): of_semaphore!("resize");
    INSPECT(3, None): lua!("lock/inspect");
    INSPECT_PERMITS(3, None): lua!("semaphore/inspect");
    LIST(0, None): lua!("list");
    DESCRIPTIONS(0, None): lua!("descriptions");
    DESCRIBE(0, None): lua!("describe");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_is_larger_than_45_kb() {
        for (name, script) in ALL {
            assert!(script.source().len() <= 45_000, "{name}: {}", script.source().len());
        }
    }

    #[test]
    fn mistakes_that_the_torture_harness_plants_can_be_planted() {
        let sources: Vec<_> = ALL
            .iter()
            .flat_map(|(_, script)| [false, true].map(|in_cluster| script.variant(in_cluster)))
            .map(|script| str::from_utf8(script.source()).expect("scripts are text"))
            .collect();
        crate::planted::scripts::assert_that_all_can_be_planted(sources.iter().copied());
    }
}
