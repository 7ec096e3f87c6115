//! Mistakes that the torture harness must find (`docs/internals/torture.md`). They exist only under `--cfg leasehold_planted`,
//! which is no feature, so that nothing that depends on this crate can turn them on; and then only the one that the
//! environment names, so that one build serves all.
//!
//! Those in scripts are made by replacing text. It must be there exactly once in the definition that is meant, each time that
//! this is linked into a script: a script that has changed must not disarm a mistake without a word.

use std::env;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Event;

/// The variable that names the mistake.
const VARIABLE: &str = "LEASEHOLD_PLANTED";

/// A mistake. Those that the models have as well (`torture/src/protocol/variant.rs`) have the same name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// A renewal writes its lease down without looking whose lease is there.
    RenewsWithoutComparing,
    /// A release ends the lease that is held, whosesoever it is.
    ReleasesWithoutComparing,
    /// The client measures its lease from the arrival of the answer, not from its request.
    MeasuresFromTheAnswer,
    /// Tokens are counted, and do not follow the clock.
    CountsTokens,
    /// Places in the queue do not end, and a grant is made whether or not its client listens.
    IgnoresLiveness,
    /// A grant to a waiter does not reach it, and waiting requests are not repeated.
    NeitherPushesNorRepeats,
    /// A semaphore's limit is checked in one transaction, and its permits are taken in the next one.
    ChecksTheLimitBefore,
    /// A node of Redlock that has not answered in time, or has refused, counts as one that has granted.
    CountsStaleNodes,
    /// A release that was not confirmed is not repeated.
    GivesUpReleases,
    /// A lease is passed on within the client as if it began anew.
    PassesOnPastTheLease,
    /// A pushed grant is believed whatever ticket it names, and however late it comes.
    BelievesLateGrants,
    /// The last token is not written down.
    KeepsNoFence,
}

use Mistake::{
    BelievesLateGrants, ChecksTheLimitBefore, CountsStaleNodes, CountsTokens, GivesUpReleases,
    IgnoresLiveness, KeepsNoFence, MeasuresFromTheAnswer, NeitherPushesNorRepeats, PassesOnPastTheLease,
    ReleasesWithoutComparing, RenewsWithoutComparing,
};

const NAMES: [(&str, Mistake); 12] = [
    ("renews-without-comparing", RenewsWithoutComparing),
    ("releases-without-comparing", ReleasesWithoutComparing),
    ("measures-from-the-answer", MeasuresFromTheAnswer),
    ("counts-tokens", CountsTokens),
    ("ignores-liveness", IgnoresLiveness),
    ("neither-pushes-nor-repeats", NeitherPushesNorRepeats),
    ("checks-the-limit-before", ChecksTheLimitBefore),
    ("counts-stale-nodes", CountsStaleNodes),
    ("gives-up-releases", GivesUpReleases),
    ("passes-on-past-the-lease", PassesOnPastTheLease),
    ("believes-late-grants", BelievesLateGrants),
    ("keeps-no-fence", KeepsNoFence),
];

static PLANTED: LazyLock<Option<Mistake>> = LazyLock::new(|| {
    let name = env::var(VARIABLE).ok()?;
    let known = NAMES.iter().find(|(known, _)| *known == name);
    Some(known.unwrap_or_else(|| panic!("{VARIABLE}={name}: there is no such mistake")).1)
});

/// Whether this is the mistake of this process.
pub(crate) fn is(mistake: Mistake) -> bool {
    *PLANTED == Some(mistake)
}

// In the client

/// From when a lease is measured.
pub(crate) fn measured_from(sent: Instant, now: Instant) -> Instant {
    if is(MeasuresFromTheAnswer) { now } else { sent }
}

/// What is left of an event.
pub(crate) fn heard(event: Event) -> Option<Event> {
    let is_missed = is(NeitherPushesNorRepeats) && matches!(event, Event::Granted { .. });
    (!is_missed).then_some(event)
}

/// After what time a waiting request is repeated.
pub(crate) fn pause(pause: Duration) -> Duration {
    if is(NeitherPushesNorRepeats) { Duration::from_secs(3600) } else { pause }
}

/// Until when a release is repeated that was sent at `begin`.
pub(crate) fn give_up(begin: Instant, end: Instant) -> Instant {
    if is(GivesUpReleases) { begin } else { end }
}

/// For how long a release is repeated.
pub(crate) fn repeat_for(repeat_for: Duration) -> Duration {
    if is(GivesUpReleases) { Duration::ZERO } else { repeat_for }
}

// In scripts

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

/// A script as it is loaded.
pub(crate) fn script(source: String) -> String {
    PLANTED.map_or(source.clone(), |mistake| with(mistake, source))
}

fn with(mistake: Mistake, source: String) -> String {
    let of_this = |change: &&Change| change.mistake == mistake && source.contains(change.marker);
    let changes: Vec<_> = CHANGES.iter().filter(of_this).collect();
    changes.into_iter().fold(source, |source, Change { marker, old, new, .. }| {
        let (found, expected) = (source.matches(old).count(), source.matches(marker).count());
        assert!(found == expected, "{mistake:?}: {old:?} is there {found} times instead of {expected}");
        source.replace(old, new)
    })
}
