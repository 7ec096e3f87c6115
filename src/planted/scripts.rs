//! Mistakes in scripts.
//!
//! They are made by replacing text. It must be there exactly once in the definition that is meant, each time that this
//! is linked into a script: a script that has changed must not disarm a mistake without a word.

use super::Mistake::{
    self, CountsTokens, IgnoresLiveness, KeepsNoFence, ReleasesWithoutComparing, RenewsWithoutComparing,
};

/// A text that is replaced in the definition that `marker` is a part of.
struct Change {
    mistake: Mistake,
    marker: &'static str,
    old: &'static str,
    new: &'static str,
}

const fn change(mistake: Mistake, marker: &'static str, old: &'static str, new: &'static str) -> Change {
    Change { mistake, marker, old, new }
}

/// The first request for a lock, in a call of its own.
const ACQUIRE_ALONE: &str = "call('PSETEX', lock, ARGV[2] or";
const NEXT_TOKEN: &str = "local function next_token(";
const HAND_OVER: &str = "local function hand_over(";

const CHANGES: [Change; 16] = [
    change(
        RenewsWithoutComparing,
        "local function renew(",
        "if value and names_lease(value, id) then\ncall('PEXPIRE', lock, ttl_ms)",
        "if true then\ncall('SET', lock, id .. (match(value or '', ' .*') or ' 0000000000000001'), 'PX', ttl_ms)",
    ),
    change(
        RenewsWithoutComparing,
        "local ttl_ms, answers = ARGV[1], {}\n",
        "elseif names_lease(value, id) then\ncall('PEXPIRE', lock, ttl_ms)",
        "else\ncall('SET', lock, id .. (match(value, ' .*') or ''), 'PX', ttl_ms)",
    ),
    change(
        ReleasesWithoutComparing,
        "local function release(",
        "if value and names_lease(value, id) then\ncall('DEL', r.key)",
        "if value then\ncall('DEL', r.key)",
    ),
    change(CountsTokens, ACQUIRE_ALONE, "if proposed or not last or", "if true or"),
    change(
        CountsTokens,
        ACQUIRE_ALONE,
        "local token = math.max(last + 16, now, least)\nif token ~= now then text = string.format('%.0f', token) end",
        "local token = last + 16\ntext = string.format('%016.0f', token)",
    ),
    change(
        CountsTokens,
        NEXT_TOKEN,
        "token = math.max(last + 16, now, fence.least)\nif token ~= now then text = micros(token) end",
        "token = math.max(last + 16, fence.least)\ntext = string.format('%016.0f', token)",
    ),
    change(IgnoresLiveness, HAND_OVER, " or request.alive_until <= r.clock.ms", ""),
    change(
        IgnoresLiveness,
        HAND_OVER,
        "reached = tell(id, grant_message(id, request.token, request.ticket, terms))",
        "reached = tell(id, grant_message(id, request.token, request.ticket, terms)) or true",
    ),
    change(
        IgnoresLiveness,
        HAND_OVER,
        "request.kept_ms, request.ttl_ms = math.min(request.ttl_ms, left_ms), left_ms\n",
        "",
    ),
    // Only the slow path is left.
    change(
        IgnoresLiveness,
        "local function grant_fast(",
        "if not ttl_ms or sub(record",
        "if true or sub(record",
    ),
    change(
        KeepsNoFence,
        ACQUIRE_ALONE,
        "local last = proposed and call('GET', fence) or call('SET', fence, text, 'KEEPTTL', 'GET')",
        "local last = nil",
    ),
    change(KeepsNoFence, ACQUIRE_ALONE, "call('SET', fence, text, 'PX', ", "tostring('PX', "),
    change(KeepsNoFence, "local function exchange(", "call('SET', key, text, 'KEEPTTL', 'GET') or 0", "0"),
    change(KeepsNoFence, NEXT_TOKEN, "call('SET', key, text, 'KEEPTTL')\n", ""),
    change(KeepsNoFence, NEXT_TOKEN, "fence.unwritten = text\n", ""),
    change(KeepsNoFence, NEXT_TOKEN, "if token ~= now or now - last", "if false and now - last"),
];

impl Change {
    /// The script with this change, if it has the definition that is meant.
    fn apply(&self, source: &str) -> Option<String> {
        let Self { mistake, marker, old, new } = self;
        let (found, expected) = (source.matches(old).count(), source.matches(marker).count());
        if expected == 0 {
            return None;
        }
        assert!(found == expected, "{mistake:?}: {old:?} is there {found} times instead of {expected}");
        Some(source.replace(old, new))
    }
}

/// A script as it is loaded.
#[cfg(leasehold_planted)]
pub(crate) fn script(source: String) -> String {
    let planted = CHANGES.iter().filter(|change| super::is(change.mistake));
    planted.fold(source, |source, change| change.apply(&source).unwrap_or(source))
}

/// Sees that each change can be made in some of all the scripts.
#[cfg(test)]
pub(crate) fn assert_that_all_can_be_planted<'a>(scripts: impl Iterator<Item = &'a str> + Clone) {
    for Change { mistake, marker, .. } in &CHANGES {
        assert!(scripts.clone().any(|script| script.contains(marker)), "{mistake:?}: {marker:?} is nowhere");
    }
    for (script, change) in scripts.flat_map(|script| CHANGES.iter().map(move |change| (script, change))) {
        change.apply(script);
    }
}
