//! The scripts, each with the digest by which the server remembers it.

use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::util::sha1_hash;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Str,
    hash: Str,
    /// By which letter it is called in a batch, if it can be part of one.
    letter: Option<char>,
}

impl Script {
    fn new(source: &'static str, letter: Option<char>) -> Self {
        Self { source: Str::from_static(source), hash: sha1_hash(source).into(), letter }
    }

    pub(super) const fn letter(&self) -> Option<char> {
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

/// Scripts by name and by the letter that calls them in a batch; and the batch, which contains all of them, each as a
/// function that has its part of the keys and arguments in the place of the whole. In brackets: the short way with which a
/// script begins, and which the batch has in a form of its own.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $letter:literal: $([$($short:literal),+])? $($part:literal),+;)+) => {
        $($(#[$doc])*
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(parts!($($($short,)+)? $($part),+), Some($letter)));)+

        /// Many operations in one call.
        pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| {
            Script::new(
                concat!(
                    "local function long_ways()\nlocal way = {}\n",
                    $("way[string.byte('", $letter, "')] = function(KEYS, ARGV)\n", parts!($($part),+), "\nend\n",)+
                    "return way\nend\n",
                    parts!("lock/alone.lua", "batch.lua")
                ),
                None,
            )
        });
    };
}

scripts! {
    ACQUIRE = 'a': ["lock/alone.lua", "lock/acquire_alone.lua"] "line.lua", "lock/lock.lua", "lock/acquire.lua";
    RENEW = 'n': ["lock/alone.lua", "lock/renew_alone.lua"] "lock/renew.lua";
    RELEASE = 'r': ["lock/alone.lua", "lock/release_alone.lua"] "line.lua", "lock/lock.lua", "lock/release.lua";
    /// By an owner.
    ACQUIRE_OWNED = 'A': "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/enter.lua", "lock/acquire.lua";
    RENEW_OWNED = 'N': "line.lua", "lock/holds.lua", "lock/renew_hold.lua";
    RELEASE_OWNED = 'R': "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/leave.lua", "lock/release.lua";
    ACQUIRE_PERMITS = 'p': "line.lua", "semaphore/semaphore.lua", "semaphore/acquire.lua";
    RENEW_PERMITS = 'q': "line.lua", "semaphore/semaphore.lua", "semaphore/renew.lua";
    RELEASE_PERMITS = 's': "line.lua", "semaphore/semaphore.lua", "semaphore/release.lua";
}

/// Scripts that are called now and then, each by itself.
macro_rules! rare_scripts {
    ($($name:ident: $($part:literal),+;)+) => {
        $(pub(super) static $name: LazyLock<Script> = LazyLock::new(|| Script::new(parts!($($part),+), None));)+
    };
}

rare_scripts! {
    FORCE: "line.lua", "lock/lock.lua", "lock/holds.lua", "lock/force.lua";
    RESIZE: "line.lua", "semaphore/semaphore.lua", "semaphore/resize.lua";
    INSPECT: "living.lua", "lock/inspect.lua";
    INSPECT_PERMITS: "living.lua", "semaphore/inspect.lua";
}
