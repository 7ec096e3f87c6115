//! What may be passed on within a client, how often, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Claim;
use crate::options::Settings;

/// The maximum number of holds in a row under one grant.
const MAX_HOLDS: u32 = 16;
/// For how long after its grant a lease may be passed on. Longer turns make other clients wait, and save little: a
/// hand-over through the store costs a fraction of a millisecond.
const MAX_TURN: Duration = Duration::from_millis(30);

/// Whether a lease may be passed on now that was granted at `granted` with this many tokens, one for each hold, and has
/// been passed on `passes` times since.
pub(crate) fn may_pass_on(tokens: u32, passes: u64, granted: Instant, now: Instant) -> bool {
    passes + 1 < u64::from(tokens.min(MAX_HOLDS)) && now < granted + MAX_TURN
}

/// A fingerprint of the terms under which a lease may be passed on: waiters for one key with the same fingerprint form
/// a group, since only they want a lease on the same terms. `None` if what is claimed cannot be passed on.
pub(crate) fn group(claim: &Claim, settings: &Settings) -> Option<u64> {
    match claim {
        Claim::Sole | Claim::Permits(1, ..) => settings.local_handover.then_some(settings.fingerprint),
        Claim::Owner(_) | Claim::Permits(..) => None,
    }
}

/// How many tokens a grant reserves: one for each hold that the lease may have in this client.
pub(crate) const fn tokens(may_be_passed_on: bool) -> u32 {
    if may_be_passed_on { MAX_HOLDS } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_sixteen_holds_and_thirty_milliseconds() {
        let start = Instant::now();
        let may_pass_on =
            |tokens, passes, ms| may_pass_on(tokens, passes, start, start + Duration::from_millis(ms));
        assert!(may_pass_on(tokens(true), 14, 29) && !may_pass_on(tokens(true), 15, 29));
        assert!(!may_pass_on(tokens(true), 0, 30));
        assert!(!may_pass_on(tokens(false), 0, 0), "one token, one hold");
    }
}
