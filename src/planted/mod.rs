//! Mistakes that the torture harness must find (`docs/internals/torture.md`). They are made only under
//! `--cfg leasehold_planted`, which is no feature, so that nothing that depends on this crate can turn them on; and then
//! only the one that the environment names, so that one build serves all.
//!
//! Unit tests have those in scripts as well, to see that the text that they replace is still there.

#[cfg(leasehold_planted)]
mod client;
pub(crate) mod scripts;

#[cfg(leasehold_planted)]
use std::env;
#[cfg(leasehold_planted)]
use std::sync::LazyLock;

#[cfg(leasehold_planted)]
pub(crate) use self::client::{give_up, heard, measured_from, pause, repeat_for};

/// The variable that names the mistake.
#[cfg(leasehold_planted)]
const VARIABLE: &str = "LEASEHOLD_PLANTED";

/// A mistake. Those that the models have as well (`torture/src/protocol/variant.rs`) have the same name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(leasehold_planted), expect(dead_code, reason = "unit tests plant only those in scripts"))]
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

#[cfg(leasehold_planted)]
use Mistake::{
    BelievesLateGrants, ChecksTheLimitBefore, CountsStaleNodes, CountsTokens, GivesUpReleases,
    IgnoresLiveness, KeepsNoFence, MeasuresFromTheAnswer, NeitherPushesNorRepeats, PassesOnPastTheLease,
    ReleasesWithoutComparing, RenewsWithoutComparing,
};

#[cfg(leasehold_planted)]
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

#[cfg(leasehold_planted)]
static PLANTED: LazyLock<Option<Mistake>> = LazyLock::new(|| {
    let name = env::var(VARIABLE).ok()?;
    let known = NAMES.iter().find(|(known, _)| *known == name);
    Some(known.unwrap_or_else(|| panic!("{VARIABLE}={name}: there is no such mistake")).1)
});

/// Whether this is the mistake of this process.
#[cfg(leasehold_planted)]
pub(crate) fn is(mistake: Mistake) -> bool {
    *PLANTED == Some(mistake)
}
