//! The scripts, each with the digest under which the server caches it.

use std::sync::{LazyLock, OnceLock};

use bytes::Bytes;
use sha1_smol::Sha1;

use super::protocol;

/// A Lua script.
#[derive(Debug)]
pub(super) struct Script {
    source: Bytes,
    hash: Bytes,
    /// How many of a resource's keys it is called with, the first of those in `keys.rs`, unless it can derive them.
    keys: usize,
    /// Its code in a batch, if it can be part of one.
    code: Option<&'static str>,
    layers: Vec<Vec<&'static str>>,
    in_cluster: OnceLock<Box<Self>>,
}

impl Script {
    fn new(layers: &[&[&'static str]], keys: usize, code: Option<&'static str>) -> Self {
        let mut layers: Vec<_> = layers.iter().map(|layer| layer.to_vec()).collect();
        // Not a layer of its own: creating the function within would cost time on every call.
        layers[0].insert(0, BASE);
        Self::of_layers(layers, keys, code, false)
    }

    fn of_layers(
        layers: Vec<Vec<&'static str>>,
        keys: usize,
        code: Option<&'static str>,
        in_cluster: bool,
    ) -> Self {
        let source = assemble(&layers, in_cluster);
        let hash = Sha1::from(&source).hexdigest();
        Self { source: source.into(), hash: hash.into(), keys, code, layers, in_cluster: OnceLock::new() }
    }

    /// The script as it runs on a node of a cluster, or on a single server.
    pub(super) fn variant(&self, in_cluster: bool) -> &Self {
        if !in_cluster {
            return self;
        }
        self.in_cluster
            .get_or_init(|| Box::new(Self::of_layers(self.layers.clone(), self.keys, self.code, true)))
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
}

/// A script's text: without comments, with the values of constants in place of their names. Each layer is a function within the one
/// before. Lua finds what a new function captures from an enclosing function's captures at once, and among the locals of the
/// enclosing function itself by a search through all that are captured already.
fn assemble(layers: &[Vec<&str>], in_cluster: bool) -> String {
    let mut source = String::new();
    for (depth, layer) in layers.iter().enumerate() {
        if depth > 0 {
            source.push_str("return (function()\n");
        }
        for part in layer {
            append(&mut source, part, in_cluster);
        }
    }
    source.push_str(&"end)()\n".repeat(layers.len() - 1));
    source
}

fn append(source: &mut String, part: &str, in_cluster: bool) {
    let lines = part.lines().map(str::trim_start);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with("--")) {
        let mut rest = line;
        while let Some(start) = rest.find(is_of_name) {
            let (before, from) = rest.split_at(start);
            let (name, after) = from.split_at(from.find(|c| !is_of_name(c)).unwrap_or(from.len()));
            source.push_str(before);
            let constant = protocol::TABLE.iter().find(|(known, _)| *known == name);
            source.push_str(match (name, constant) {
                (IN_CLUSTER, _) => {
                    if in_cluster {
                        "true"
                    } else {
                        "false"
                    }
                }
                (_, Some((_, value))) => value,
                (_, None) => name,
            });
            rest = after;
        }
        source.push_str(rest);
        source.push('\n');
    }
}

/// The constant that says in Lua whether the script runs in a cluster.
const IN_CLUSTER: &str = "IN_CLUSTER";

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

/// Layers that several scripts have.
const CLOCK: &[&str] = &[
    lua!("lib/keys"),
    lua!("lib/time"),
    lua!("lib/fence"),
    lua!("lib/token"),
    lua!("lib/grant"),
    lua!("lib/keep"),
];
const QUEUE: &[&str] = &[lua!("lib/notify"), lua!("lib/queue")];
const JOIN: &[&str] = &[lua!("lib/join_queue")];
const HAND_OVER: &[&str] = &[lua!("lib/hand_over")];
const LOCK: &[&str] = &[lua!("lock/value"), lua!("lock/lock")];
const NAMES: &[&str] = &[lua!("lock/names")];
const HOLDS: &[&str] = &[lua!("lock/holds")];
const GAPS: &[&str] = &[lua!("lock/is_gap_due"), lua!("lock/gap")];
const SEMAPHORE: &[&str] = &[lua!("semaphore/has_lapsed"), lua!("semaphore/semaphore")];

/// Many operations in one call: functions that create what the operations need (`batch.lua`).
pub(super) static BATCH: LazyLock<Script> = LazyLock::new(|| {
    let paths = [
        "local function lock_paths()",
        lua!("lib/token"),
        lua!("lock/names"),
        lua!("lock/acquire_fast"),
        lua!("lock/release_fast"),
        lua!("lock/renew"),
        "local function waiting_paths()",
        lua!("lib/grant"),
        lua!("lib/keep"),
        lua!("lock/acquire_again_fast"),
        lua!("lock/join_fast"),
        lua!("lock/hand_over_fast"),
        lua!("lock/waiting_fast"),
        "end",
        "return acquire_fast, release_fast, renew, waiting_paths",
        "end",
        "local function semaphore_paths()",
        lua!("lib/grant"),
        lua!("lib/keep"),
        lua!("semaphore/token"),
        lua!("semaphore/state"),
        lua!("semaphore/acquire_fast"),
        lua!("semaphore/release_fast"),
        lua!("semaphore/fast"),
        "end",
        "local function slow_paths()",
        lua!("lib/token"),
        lua!("lib/grant"),
        lua!("lib/keep"),
        lua!("lib/notify"),
        lua!("lib/queue"),
        lua!("lib/join_queue"),
        lua!("lib/hand_over"),
        "local function lock_operations()",
        lua!("lock/names"),
        lua!("lock/value"),
        lua!("lock/lock"),
        lua!("lock/holds"),
        lua!("lock/is_gap_due"),
        lua!("lock/gap"),
        lua!("lock/acquire"),
        lua!("lock/acquire_owned"),
        lua!("lock/acquire_from"),
        lua!("lock/settle"),
        lua!("lock/release"),
        lua!("lock/release_owned"),
        lua!("lock/renew_owned"),
        lua!("lock/operations"),
        "end",
        "local function semaphore_operations()",
        lua!("semaphore/token"),
        lua!("semaphore/state"),
        lua!("semaphore/has_lapsed"),
        lua!("semaphore/semaphore"),
        lua!("semaphore/acquire"),
        lua!("semaphore/release"),
        lua!("semaphore/renew"),
        lua!("semaphore/operations"),
        "end",
        lua!("operations"),
        "end",
    ];
    Script::new(
        &[&[lua!("lib/time"), lua!("lib/fence"), "local clock = read_clock()"], &paths, &[lua!("batch")]],
        0,
        None,
    )
});

/// Reads the clock, prepares the fence, and names the queue.
const PREPARE: &str =
    "local clock, fence, queue = read_clock(), open_fence(KEYS[2] or DEFAULT_FENCE), queue_of(KEYS)";

/// The slow path of a lock: carries out an operation.
macro_rules! of_lock {
    ($operation:literal) => {
        concat!("return ", $operation, "(lock_at(KEYS[1], queue, fence, clock), unpack(ARGV))")
    };
}

/// The fast paths of a lock with waiters. The slow path finds by itself whatever goes wrong in them.
const JOIN_ALONE: &str = "if #ARGV == 2 then\n\
    local done, answer = pcall(join_fast, KEYS[1], queue, sub(queue, 1, -6) .. 'waiters', clock, unpack(ARGV))\n\
    if done and answer then return answer end end";
const HAND_OVER_ALONE: &str = "local done, answer =\n\
    pcall(hand_over_fast, KEYS[1], value, queue, sub(queue, 1, -6) .. 'waiters', fence, clock, id)\n\
    if done and answer then return answer end";

/// What follows, up to an `end`, is for a release that leaves no gap.
const UNLESS_A_GAP_IS_DUE: &str = "if not is_gap_due(call('GET', KEYS[1]), ARGV[1], ARGV[2], clock) then";

/// Likewise of a semaphore.
macro_rules! of_semaphore {
    ($operation:literal) => {
        concat!(
            "return ",
            $operation,
            "(semaphore_at(KEYS[1], queue, ARGV[1], fence, clock), unpack(ARGV, 2))"
        )
    };
}

/// Tries the fast path of a semaphore, which may have changed its state even if it answers nothing.
macro_rules! fast_of_semaphore {
    ($operation:literal) => {
        concat!(
            "do local s = semaphore_at(KEYS[1], queue, ARGV[1], fence, clock)\n",
            "local done, answer = pcall(",
            $operation,
            ", s, unpack(ARGV, 2))\n",
            "close_state(s)\n",
            "if done and answer then return answer end end"
        )
    };
}

/// Scripts by name: how many keys they have, the code that stands for them in a batch, if they can be part of one, and their layers.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident($keys:expr, $code:expr): $($layer:expr),+;)+) => {
        $($(#[$doc])* pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(&[$(&$layer[..]),+], $keys, $code));)+
    };
}

scripts! {
    ACQUIRE(3, Some(protocol::ACQUIRE)):
        [lua!("lock/acquire_alone")], CLOCK,
        [lua!("lock/names"), lua!("lock/join_fast"), PREPARE, JOIN_ALONE], QUEUE, JOIN, HAND_OVER, LOCK, GAPS,
        [lua!("lock/acquire"), of_lock!("acquire_sole")];
    RENEW(1, Some(protocol::RENEW)):
        [lua!("lock/names"), lua!("lock/renew"), "return renew(KEYS[1], ARGV[1], ARGV[2])"];
    RELEASE(3, Some(protocol::RELEASE)):
        [lua!("lock/release_alone")], CLOCK,
        [lua!("lock/names"), lua!("lock/hand_over_fast"), PREPARE, HAND_OVER_ALONE], QUEUE, HAND_OVER, LOCK, GAPS,
        [lua!("lock/release"), of_lock!("release")];
    RELEASE_WITH_GAPS(3, Some(protocol::RELEASE_WITH_GAPS)):
        CLOCK,
        [lua!("lock/names"), PREPARE, lua!("lock/is_gap_due"), UNLESS_A_GAP_IS_DUE, lua!("lock/release_alone"),
            lua!("lock/hand_over_fast"), HAND_OVER_ALONE, "end"],
        QUEUE, HAND_OVER, LOCK, GAPS, [lua!("lock/release"), of_lock!("release")];
    /// For the owner of a reentrant lock.
    ACQUIRE_OWNED(3, Some(protocol::ACQUIRE_OWNED)):
        CLOCK, QUEUE, JOIN, HAND_OVER, NAMES, LOCK, HOLDS, GAPS,
        [lua!("lock/acquire"), lua!("lock/acquire_owned"), PREPARE, of_lock!("acquire_owned")];
    RENEW_OWNED(3, Some(protocol::RENEW_OWNED)):
        CLOCK, QUEUE, NAMES, LOCK, HOLDS, [lua!("lock/renew_owned"), PREPARE, of_lock!("renew_owned")];
    RELEASE_OWNED(3, Some(protocol::RELEASE_OWNED)):
        CLOCK, QUEUE, HAND_OVER, NAMES, LOCK, HOLDS, GAPS,
        [lua!("lock/release"), lua!("lock/release_owned"), PREPARE, of_lock!("release_owned")];
    /// For one of several servers that must agree on a token.
    ACQUIRE_FROM(3, Some(protocol::ACQUIRE_FROM)):
        [lua!("lock/acquire_from_alone")], CLOCK, QUEUE, JOIN, HAND_OVER, NAMES, LOCK, HOLDS, GAPS,
        [lua!("lock/acquire"), lua!("lock/acquire_owned"), lua!("lock/acquire_from"), PREPARE,
            of_lock!("acquire_from")];
    SETTLE(3, Some(protocol::SETTLE)):
        CLOCK, QUEUE, NAMES, LOCK, HOLDS, [lua!("lock/settle"), PREPARE, of_lock!("settle")];
    ACQUIRE_PERMITS(3, Some(protocol::ACQUIRE_PERMITS)):
        CLOCK,
        [lua!("semaphore/token"), lua!("semaphore/state"), lua!("semaphore/acquire_fast"),
            PREPARE, fast_of_semaphore!("acquire_permits_fast")],
        QUEUE, JOIN, HAND_OVER, SEMAPHORE, [lua!("semaphore/acquire"), of_semaphore!("acquire_permits")];
    RENEW_PERMITS(3, Some(protocol::RENEW_PERMITS)):
        CLOCK, [lua!("semaphore/token"), lua!("semaphore/state")], QUEUE, HAND_OVER, SEMAPHORE,
        [lua!("semaphore/renew"), PREPARE, of_semaphore!("renew_permits")];
    RELEASE_PERMITS(3, Some(protocol::RELEASE_PERMITS)):
        CLOCK,
        [lua!("semaphore/token"), lua!("semaphore/state"), lua!("semaphore/release_fast"),
            PREPARE, fast_of_semaphore!("release_permits_fast")],
        QUEUE, HAND_OVER, SEMAPHORE, [lua!("semaphore/release"), of_semaphore!("release_permits")];

    // Never part of a batch: they are rarely called, or handle many leases anyway.
    RENEW_ALL(0, None):
        [lua!("lock/names"), lua!("lock/renew_all")];
    FORCE(4, None):
        CLOCK, QUEUE, HAND_OVER, NAMES, LOCK, HOLDS, [lua!("lock/remember_revoked"), lua!("lock/force"), PREPARE, of_lock!("force")];
    WAS_REVOKED(4, None):
        [lua!("lock/was_revoked")];
    RESIZE(3, None):
        CLOCK, [lua!("semaphore/token"), lua!("semaphore/state")], QUEUE, HAND_OVER, SEMAPHORE,
        [lua!("semaphore/resize"), PREPARE, of_semaphore!("resize")];
    INSPECT(3, None):
        [lua!("lib/keys"), lua!("lib/time"), lua!("lib/living"), lua!("lock/value"), lua!("lock/inspect")];
    INSPECT_PERMITS(3, None):
        [lua!("lib/keys"), lua!("lib/time"), lua!("lib/living"), lua!("semaphore/token"), lua!("semaphore/state"),
            lua!("semaphore/has_lapsed"), lua!("semaphore/inspect")];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_script_is_larger_than_45_kb() {
        let scripts = [
            &BATCH,
            &ACQUIRE,
            &RENEW,
            &RELEASE,
            &RELEASE_WITH_GAPS,
            &ACQUIRE_OWNED,
            &RENEW_OWNED,
            &RELEASE_OWNED,
            &ACQUIRE_FROM,
            &SETTLE,
            &ACQUIRE_PERMITS,
            &RENEW_PERMITS,
            &RELEASE_PERMITS,
            &RENEW_ALL,
            &FORCE,
            &WAS_REVOKED,
            &RESIZE,
            &INSPECT,
            &INSPECT_PERMITS,
        ];
        for script in scripts {
            assert!(script.source().len() <= 45_000, "{}", script.source().len());
        }
    }

    #[test]
    fn constants_are_put_in_place_of_their_names_and_comments_are_left_out() {
        let layers =
            [vec!["-- BUSY\n  local a = BUSY, 'BUSY ', MY_BUSY\n", "\nlocal b"], vec!["return IN_CLUSTER"]];
        let source = assemble(&layers, true);
        assert_eq!(source, "local a = 0, '0 ', MY_BUSY\nlocal b\nreturn (function()\nreturn true\nend)()\n");
    }
}
