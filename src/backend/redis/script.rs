//! The scripts, each with the digest by which the server remembers it.

use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::types::{Key, Value};
use fred::util::sha1_hash;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Str,
    hash: Str,
    /// By which letter it is called in a batch, if it can be part of one.
    letter: Option<u8>,
}

/// A script with what it is called with.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: Vec<Key>,
    pub(super) args: Vec<Value>,
}

impl Script {
    fn new(source: &'static str, letter: Option<u8>) -> Self {
        Self { source: Str::from_static(source), hash: sha1_hash(source).into(), letter }
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

/// The text of a script made of parts, in this order.
macro_rules! parts {
    ($($part:literal),+) => { concat!($(include_str!(concat!("lua/", $part))),+) };
}

/// The short way with which a script begins: its parameters are given their values, and it returns if the case is its own.
macro_rules! short_way {
    ($file:literal, $params:literal = $values:literal) => {
        concat!("do local ", $params, " = ", $values, "\n", parts!($file), "\nend\n")
    };
    ($($file:literal),+) => { concat!("do\n", parts!($($file),+), "\nend\n") };
}

/// Scripts by name and by the letter that calls them in a batch, each with its short way, if it has one; and the batch. That has
/// the short ways as functions of their parameters, and the rest of each script as a function of its part of the keys and
/// arguments.
macro_rules! scripts {
    (batch: $($batch_part:literal),+;
    $($(#[$doc:meta])*
    $name:ident = $letter:literal:
        $([$short:ident in $file:literal: $params:literal = $values:literal])?
        $([$($start:literal),+])?
        $($part:literal),+;)+) => {
        $($(#[$doc])*
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(
                $(short_way!($file, $params = $values),)? $(short_way!($($start),+),)? parts!($($part),+)
            );
            Script::new(source, Some($letter.as_bytes()[0]))
        });)+

        /// Many operations in one call.
        pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| {
            Script::new(
                concat!(
                    $($("local function ", stringify!($short), "(", $params, ")\n", parts!($file), "\nend\n",)?)+
                    "local function long_ways()\nlocal way = {}\n",
                    $("way[string.byte('", $letter, "')] = function(KEYS, ARGV)\n", parts!($($part),+), "\nend\n",)+
                    "return way\nend\n",
                    parts!($($batch_part),+)
                ),
                None,
            )
        });
    };
}

scripts! {
    batch: "semaphore/short.lua", "clock.lua", "lock/acquire_again.lua", "batch.lua";
    ACQUIRE = "a":
        [acquire_alone in "lock/acquire_alone.lua":
            "lock, queue, fence, id, lease_ms, now" = "KEYS[1], KEYS[2], KEYS[4], ARGV[1], ARGV[2]"]
        "line.lua", "lock/lock.lua", "lock/acquire.lua";
    RENEW = "n":
        [renew_alone in "lock/renew_alone.lua": "lock, fence, id, lease_ms" = "KEYS[1], KEYS[2], ARGV[1], ARGV[2]"]
        "lock/renew.lua";
    RELEASE = "r":
        [release_alone in "lock/release_alone.lua": "lock, queue, id" = "KEYS[1], KEYS[2], ARGV[1]"]
        "line.lua", "lock/lock.lua", "lock/release.lua";
    /// By an owner.
    ACQUIRE_OWNED = "A": "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/enter.lua", "lock/acquire.lua";
    RENEW_OWNED = "N": "line.lua", "lock/holds.lua", "lock/renew_hold.lua";
    RELEASE_OWNED = "R": "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/leave.lua", "lock/release.lua";
    ACQUIRE_PERMITS = "p":
        ["semaphore/short.lua", "clock.lua", "semaphore/acquire_alone.lua"]
        "line.lua", "semaphore/semaphore.lua", "semaphore/acquire.lua";
    RENEW_PERMITS = "q": "line.lua", "semaphore/semaphore.lua", "semaphore/renew.lua";
    RELEASE_PERMITS = "s":
        ["semaphore/short.lua", "clock.lua", "semaphore/release_alone.lua"]
        "line.lua", "semaphore/semaphore.lua", "semaphore/release.lua";
}

/// Scripts that are never part of a batch: called now and then, or for many leases anyway.
macro_rules! single_scripts {
    ($($name:ident: $($part:literal),+;)+) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(parts!($($part),+), None));)+
    };
}

single_scripts! {
    RENEW_ALL: "lock/renew_all.lua";
    FORCE: "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/force.lua";
    RESIZE: "line.lua", "semaphore/semaphore.lua", "semaphore/resize.lua";
    INSPECT: "living.lua", "lock/inspect.lua";
    INSPECT_PERMITS: "living.lua", "semaphore/inspect.lua";
}
