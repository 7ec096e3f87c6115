//! The scripts, each with the digest under which the server caches it.

use std::sync::LazyLock;

use fred::bytes_utils::Str;
use fred::types::{Key, Value};
use fred::util::sha1_hash;

use super::keys::Used;
use super::protocol;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Str,
    hash: Str,
    keys: Used,
    /// Its code in a batch, if it can be part of one.
    code: Option<&'static str>,
}

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: Vec<Key>,
    pub(super) args: Vec<Value>,
}

impl Script {
    fn new(parts: &[&str], keys: Used, code: Option<&'static str>) -> Self {
        let source = put_together(&[&[BASE], parts].concat());
        let hash = sha1_hash(&source);
        Self { source: source.into(), hash: hash.into(), keys, code }
    }

    pub(super) const fn keys(&self) -> Used {
        self.keys
    }

    pub(super) const fn code(&self) -> Option<&'static str> {
        self.code
    }

    pub(super) const fn source(&self) -> &Str {
        &self.source
    }

    pub(super) const fn hash(&self) -> &Str {
        &self.hash
    }
}

/// A script's text: its parts one after another, without comments, with the values of constants in place of their names.
fn put_together(parts: &[&str]) -> String {
    let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim_start);
    let mut source = String::new();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("--")) {
        let mut rest = line;
        while let Some(start) = rest.find(is_of_name) {
            let (before, from) = rest.split_at(start);
            let (name, after) = from.split_at(from.find(|c| !is_of_name(c)).unwrap_or(from.len()));
            source.push_str(before);
            source.push_str(protocol::TABLE.iter().find(|(known, _)| *known == name).map_or(name, |it| it.1));
            rest = after;
        }
        source.push_str(rest);
        source.push('\n');
    }
    source
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A file of Lua.
macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("lua/", $file, ".lua"))
    };
}

const BASE: &str = lua!("lib/base");

/// Scripts by name: the keys they use, the code that stands for them in a batch, if they can be part of one, and their parts.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident($keys:expr, $code:expr): $($part:expr),+;)+) => {
        $($(#[$doc])* pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(&[$($part),+], $keys, $code));)+
    };
}

const BATCHED_FAST: &[&str] = &[
    lua!("lib/time"),
    lua!("lib/token"),
    lua!("lib/grant"),
    lua!("lock/names"),
    lua!("lock/acquire_fast"),
    lua!("lock/acquire_again_fast"),
    lua!("lock/release_fast"),
    lua!("lock/renew"),
    lua!("semaphore/state"),
    lua!("semaphore/acquire_fast"),
    lua!("semaphore/release_fast"),
];

const BATCHED_SLOW: &[&str] = &[
    lua!("lib/notify"),
    lua!("lib/queue"),
    lua!("lock/value"),
    lua!("lock/lock"),
    lua!("lock/holds"),
    lua!("lock/acquire"),
    lua!("lock/acquire_owned"),
    lua!("lock/release"),
    lua!("lock/release_owned"),
    lua!("lock/renew_owned"),
    lua!("semaphore/semaphore"),
    lua!("semaphore/acquire"),
    lua!("semaphore/release"),
    lua!("semaphore/renew"),
    lua!("operations"),
];

/// Many operations in one call.
pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| {
    let parts = [BATCHED_FAST, &["local function slow_paths()"], BATCHED_SLOW, &["end"], &[lua!("batch")]];
    Script::new(&parts.concat(), Used::Other, None)
});

/// Reads the clock and prepares the fence.
const PREPARE: &str = "local clock, fence = read_clock(), open_fence(KEYS[3])";

/// The slow path of a lock: carries out an operation.
macro_rules! of_lock {
    ($operation:literal) => {
        concat!("return ", $operation, "(lock_at(KEYS[1], KEYS[2], fence, clock), unpack(ARGV))")
    };
}

/// Likewise of a semaphore.
macro_rules! of_semaphore {
    ($operation:literal) => {
        concat!(
            "return ",
            $operation,
            "(semaphore_at(KEYS[1], KEYS[2], ARGV[1], fence, clock), unpack(ARGV, 2))"
        )
    };
}

/// Tries the fast path of a semaphore, which may have changed its state even if it answers nothing.
macro_rules! fast_of_semaphore {
    ($operation:literal) => {
        concat!(
            "do local s = semaphore_at(KEYS[1], KEYS[2], ARGV[1], fence, clock)\n",
            "local done, answer = pcall(",
            $operation,
            ", s, unpack(ARGV, 2))\n",
            "close_state(s)\n",
            "if done and answer then return answer end end"
        )
    };
}

scripts! {
    ACQUIRE(Used::WithFence, Some(protocol::ACQUIRE)):
        lua!("lock/acquire_alone"), lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"),
        lua!("lib/notify"), lua!("lib/queue"), lua!("lock/names"), lua!("lock/value"), lua!("lock/lock"),
        lua!("lock/acquire"), PREPARE, of_lock!("acquire_sole");
    RENEW(Used::Itself, Some(protocol::RENEW)):
        lua!("lock/names"), lua!("lock/renew"), "return renew(KEYS[1], ARGV[1], ARGV[2])";
    RELEASE(Used::WithFence, Some(protocol::RELEASE)):
        lua!("lock/release_alone"), lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"),
        lua!("lib/notify"), lua!("lib/queue"), lua!("lock/names"), lua!("lock/value"), lua!("lock/lock"),
        lua!("lock/release"), PREPARE, of_lock!("release");
    /// For the owner of a reentrant lock.
    ACQUIRE_OWNED(Used::WithFence, Some(protocol::ACQUIRE_OWNED)):
        lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"), lua!("lib/notify"), lua!("lib/queue"),
        lua!("lock/names"), lua!("lock/value"), lua!("lock/lock"), lua!("lock/holds"), lua!("lock/acquire"),
        lua!("lock/acquire_owned"), PREPARE, of_lock!("acquire_owned");
    RENEW_OWNED(Used::WithFence, Some(protocol::RENEW_OWNED)):
        lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"), lua!("lib/notify"), lua!("lib/queue"),
        lua!("lock/names"), lua!("lock/value"), lua!("lock/lock"), lua!("lock/holds"),
        lua!("lock/renew_owned"), PREPARE, of_lock!("renew_owned");
    RELEASE_OWNED(Used::WithFence, Some(protocol::RELEASE_OWNED)):
        lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"), lua!("lib/notify"), lua!("lib/queue"),
        lua!("lock/names"), lua!("lock/value"), lua!("lock/lock"), lua!("lock/holds"), lua!("lock/release"),
        lua!("lock/release_owned"), PREPARE, of_lock!("release_owned");
    ACQUIRE_PERMITS(Used::WithFence, Some(protocol::ACQUIRE_PERMITS)):
        lua!("lib/time"), lua!("lib/token"), lua!("semaphore/state"), lua!("semaphore/acquire_fast"),
        PREPARE, fast_of_semaphore!("acquire_permits_fast"), lua!("lib/grant"), lua!("lib/notify"),
        lua!("lib/queue"), lua!("semaphore/semaphore"), lua!("semaphore/acquire"),
        of_semaphore!("acquire_permits");
    RENEW_PERMITS(Used::WithFence, Some(protocol::RENEW_PERMITS)):
        lua!("lib/time"), lua!("lib/token"), lua!("semaphore/state"), lua!("lib/grant"), lua!("lib/notify"),
        lua!("lib/queue"), lua!("semaphore/semaphore"), lua!("semaphore/renew"), PREPARE,
        of_semaphore!("renew_permits");
    RELEASE_PERMITS(Used::WithFence, Some(protocol::RELEASE_PERMITS)):
        lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"), lua!("semaphore/state"),
        lua!("semaphore/release_fast"), PREPARE, fast_of_semaphore!("release_permits_fast"),
        lua!("lib/notify"), lua!("lib/queue"), lua!("semaphore/semaphore"), lua!("semaphore/release"),
        of_semaphore!("release_permits");

    // Never part of a batch: they are rarely called, or handle many leases anyway.
    RENEW_ALL(Used::Other, None):
        lua!("lock/names"), lua!("lock/renew_all");
    FORCE(Used::WithFence, None):
        lua!("lib/time"), lua!("lib/token"), lua!("lib/grant"), lua!("lib/notify"), lua!("lib/queue"),
        lua!("lock/names"), lua!("lock/value"), lua!("lock/lock"), lua!("lock/holds"), lua!("lock/force"),
        PREPARE, of_lock!("force");
    RESIZE(Used::WithFence, None):
        lua!("lib/time"), lua!("lib/token"), lua!("semaphore/state"), lua!("lib/grant"), lua!("lib/notify"),
        lua!("lib/queue"), lua!("semaphore/semaphore"), lua!("semaphore/resize"), PREPARE,
        of_semaphore!("resize");
    INSPECT(Used::WithFence, None):
        lua!("lib/time"), lua!("lib/living"), lua!("lock/value"), lua!("lock/inspect");
    INSPECT_PERMITS(Used::WithFence, None):
        lua!("lib/time"), lua!("lib/living"), lua!("semaphore/state"), lua!("semaphore/inspect");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_is_larger_than_35_kb() {
        let scripts = [
            &BATCH,
            &ACQUIRE,
            &RENEW,
            &RELEASE,
            &ACQUIRE_OWNED,
            &RENEW_OWNED,
            &RELEASE_OWNED,
            &ACQUIRE_PERMITS,
            &RENEW_PERMITS,
            &RELEASE_PERMITS,
            &RENEW_ALL,
            &FORCE,
            &RESIZE,
            &INSPECT,
            &INSPECT_PERMITS,
        ];
        for script in scripts {
            assert!(script.source().len() <= 35_000, "{}", script.source().len());
        }
    }

    #[test]
    fn constants_are_put_in_place_of_their_names_and_comments_are_left_out() {
        let source = put_together(&["-- BUSY\n  return BUSY, 'BUSY ', MY_BUSY\n", "\nend"]);
        assert_eq!(source, "return 0, '0 ', MY_BUSY\nend\n");
    }
}
