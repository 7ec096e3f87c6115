//! The scripts, each with the digest under which the server caches it.

use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::types::{Key, Value};
use fred::util::sha1_hash;

use super::keys::{ALL, LOCK_AND_FENCE, Used, WITHOUT_HOLDS};

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Str,
    hash: Str,
    keys: Used,
    /// The letter that stands for it in a batch, if it can be part of one.
    letter: Option<u8>,
}

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: Vec<Key>,
    pub(super) args: Vec<Value>,
}

impl Script {
    fn new(source: &'static str, keys: Used, letter: Option<u8>) -> Self {
        Self { source: Str::from_static(source), hash: sha1_hash(source).into(), keys, letter }
    }

    pub(super) const fn keys(&self) -> Used {
        self.keys
    }

    pub(super) const fn letter(&self) -> Option<u8> {
        self.letter
    }

    pub(super) const fn source(&self) -> &Str {
        &self.source
    }

    pub(super) const fn hash(&self) -> &Str {
        &self.hash
    }
}

/// The text of a script, from parts in this order.
macro_rules! parts {
    ($($part:literal),+) => { concat!($(include_str!(concat!("lua/", $part))),+) };
}

/// The fast path at the start of a script: its parameters get their values, and it returns if it applies.
macro_rules! short_way {
    ($file:literal, $params:literal = $values:literal) => {
        concat!("do local ", $params, " = ", $values, "\n", parts!($file), "\nend\n")
    };
    ($($file:literal),+) => { concat!("do\n", parts!($($file),+), "\nend\n") };
}

/// Scripts by name and by the letter that stands for them in a batch, each with its fast path, if it has one; and the batch. The
/// batch contains the fast paths as functions of their parameters, and the rest of each script as a function of its keys and
/// arguments.
macro_rules! scripts {
    (batch: $($batch_part:literal),+;
    $($(#[$doc:meta])*
    $name:ident($keys:expr) = $letter:literal:
        $([$short:ident in $file:literal: $params:literal = $values:literal])?
        $([$($start:literal),+])?
        $($part:literal),+;)+) => {
        $($(#[$doc])*
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(
                $(short_way!($file, $params = $values),)? $(short_way!($($start),+),)? parts!($($part),+)
            );
            Script::new(source, $keys, Some($letter.as_bytes()[0]))
        });)+

        /// Many operations in one call.
        pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| {
            Script::new(
                concat!(
                    $($("local function ", stringify!($short), "(", $params, ")\n", parts!($file), "\nend\n",)?)+
                    "local function long_ways()\nlocal way = {}\n",
                    $("way['", $letter, "'] = function(KEYS, ARGV)\n", parts!($($part),+), "\nend\n",)+
                    "return way\nend\n",
                    parts!($($batch_part),+)
                ),
                &[],
                None,
            )
        });
    };
}

scripts! {
    batch: "semaphore/fence.lua", "semaphore/short.lua", "clock.lua", "lock/acquire_again.lua", "batch.lua";
    ACQUIRE(WITHOUT_HOLDS) = "a":
        [acquire_alone in "lock/acquire_alone.lua":
            "lock, queue, fence, id, lease_ms, now, now_us" = "KEYS[1], KEYS[2], KEYS[4], ARGV[1], ARGV[2]"]
        "line.lua", "lock/lock.lua", "lock/acquire.lua";
    RENEW(LOCK_AND_FENCE) = "n":
        [renew_alone in "lock/renew_alone.lua": "lock, fence, id, lease_ms" = "KEYS[1], KEYS[2], ARGV[1], ARGV[2]"]
        "lock/renew.lua";
    RELEASE(WITHOUT_HOLDS) = "r":
        [release_alone in "lock/release_alone.lua": "lock, queue, id" = "KEYS[1], KEYS[2], ARGV[1]"]
        "line.lua", "lock/lock.lua", "lock/release.lua";
    /// For the owner of a reentrant lock.
    ACQUIRE_OWNED(ALL) = "A": "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/enter.lua", "lock/acquire.lua";
    RENEW_OWNED(ALL) = "N": "line.lua", "lock/holds.lua", "lock/renew_hold.lua";
    RELEASE_OWNED(ALL) = "R": "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/leave.lua", "lock/release.lua";
    ACQUIRE_PERMITS(ALL) = "p":
        ["semaphore/fence.lua", "semaphore/short.lua", "clock.lua", "semaphore/acquire_alone.lua"]
        "line.lua", "semaphore/fence.lua", "semaphore/semaphore.lua", "semaphore/acquire.lua";
    RENEW_PERMITS(ALL) = "q": "line.lua", "semaphore/fence.lua", "semaphore/semaphore.lua", "semaphore/renew.lua";
    RELEASE_PERMITS(ALL) = "s":
        ["semaphore/fence.lua", "semaphore/short.lua", "clock.lua", "semaphore/release_alone.lua"]
        "line.lua", "semaphore/fence.lua", "semaphore/semaphore.lua", "semaphore/release.lua";
}

/// Scripts that are never part of a batch: they are rarely called, or handle many leases anyway.
macro_rules! single_scripts {
    ($($name:ident($keys:expr): $($part:literal),+;)+) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(parts!($($part),+), $keys, None));)+
    };
}

single_scripts! {
    RENEW_ALL(&[]): "lock/renew_all.lua";
    FORCE(ALL): "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/force.lua";
    RESIZE(ALL): "line.lua", "semaphore/fence.lua", "semaphore/semaphore.lua", "semaphore/resize.lua";
    INSPECT(ALL): "living.lua", "lock/inspect.lua";
    INSPECT_PERMITS(ALL): "living.lua", "semaphore/fence.lua", "semaphore/inspect.lua";
}
