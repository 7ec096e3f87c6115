//! The scripts, each with the digest under which the server caches it, and what one of them is called with.

use std::ops::Range;
use std::sync::{LazyLock, OnceLock};
use std::{iter, mem};

use bytes::Bytes;
use sha1_smol::Sha1;
use smallvec::SmallVec;

use super::linker::{link, lua};
use super::{keys, protocol};
use crate::backend::{BackendError, LeaseId, Resource};

/// The usual size of all arguments: a lease id and a TTL.
const USUAL_SIZE: usize = 64;
/// As many as a request for permits has.
const USUAL_ARGS: usize = 7;

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

/// The keys and the arguments of a script's call.
#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) keys: Vec<Bytes>,
    pub(super) args: Vec<Bytes>,
}

/// One operation on a lock or a semaphore: a script, the resource from whose key the script's keys are derived, and
/// arguments. It becomes a call of its own, or a part of a batch, only when it is sent.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) script: &'static Script,
    pub(super) resource: Resource,
    /// Never part of a batch.
    is_alone: bool,
    /// The arguments, one after another, and where each ends: an allocation for each would cost more than everything
    /// else.
    args: SmallVec<[u8; USUAL_SIZE]>,
    ends: SmallVec<[u32; USUAL_ARGS]>,
}

impl Operation {
    pub(super) fn new(script: &'static Script, resource: &Resource) -> Self {
        let (args, ends) = (SmallVec::new(), SmallVec::new());
        Self { script, resource: resource.clone(), is_alone: false, args, ends }
    }

    pub(super) const fn alone(mut self) -> Self {
        self.is_alone = true;
        self
    }

    /// What stands for it in a batch, if it can be part of one.
    pub(super) const fn code(&self) -> Option<&'static str> {
        if self.is_alone { None } else { self.script.code() }
    }

    pub(super) fn lease(mut self, id: LeaseId) -> Self {
        self.arg(id.text(&mut [0; LeaseId::MAX_LENGTH]));
        self
    }

    pub(super) fn number(mut self, number: impl itoa::Integer) -> Self {
        self.arg(itoa::Buffer::new().format(number).as_bytes());
        self
    }

    pub(super) fn word(mut self, word: &str) -> Self {
        self.arg(word.as_bytes());
        self
    }

    fn arg(&mut self, arg: &[u8]) {
        self.args.extend_from_slice(arg);
        // The server accepts no longer arguments.
        self.ends.push(u32::try_from(self.args.len()).unwrap_or(u32::MAX));
    }

    /// Its arguments.
    pub(super) fn args(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.ranges().map(|range| &self.args[range])
    }

    /// Where each argument is in `args`.
    fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> {
        let mut start = 0;
        self.ends.iter().map(move |end| mem::replace(&mut start, *end) as usize..*end as usize)
    }

    /// As a call of its own, in the `slot` of a cluster.
    pub(super) fn arguments(&self, slot: Option<u16>) -> Arguments {
        let mut keys = match (self.script.keys(), slot) {
            (1, _) => keys::locks(iter::once(&*self.resource.key)),
            (3, None) => keys::underivable(&self.resource),
            _ => keys::of(&self.resource, slot),
        };
        // Only the scripts with a fourth key use that of revoked leases.
        if self.script.keys() > 3 {
            keys.push(keys::revoked(&self.resource.key));
        }
        let args = Bytes::copy_from_slice(&self.args);
        Arguments { keys, args: self.ranges().map(|range| args.slice(range)).collect() }
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
