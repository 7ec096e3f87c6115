//! What may be passed on within a client, how often, and for how long.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::Claim;
use crate::options::Settings;

/// The maximum number of holds in a row under one grant.
const MAX_HOLDS: u32 = 16;
/// For how long after its grant a lease may be passed on. Longer turns make other clients wait, and save little: a hand-over
/// through the store costs a fraction of a millisecond.
const MAX_TURN: Duration = Duration::from_millis(30);

/// A client's turn: how often its lease may still be passed on, and until when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    passes_left: u32,
    ends: Instant,
}

impl Turn {
    /// The turn of a grant that reserves this many tokens: every hold takes one.
    pub(crate) fn new(tokens: u32, now: Instant) -> Self {
        Self { passes_left: tokens.min(MAX_HOLDS).saturating_sub(1), ends: now + MAX_TURN }
    }

    /// Whether the lease may be passed on now.
    pub(crate) fn may_continue(&self, now: Instant) -> bool {
        self.passes_left > 0 && now < self.ends
    }

    /// Counts one hand-over.
    pub(crate) const fn pass(&mut self) {
        self.passes_left -= 1;
    }
}

/// A fingerprint of the terms under which a lease may be passed on: waiters for one key with the same fingerprint form a group,
/// since only they want a lease on the same terms. `None` if what is claimed cannot be passed on.
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
        let mut turn = Turn::new(tokens(true), start);
        assert!(!turn.may_continue(start + Duration::from_millis(30)));
        let mut holds = 1;
        while turn.may_continue(start + Duration::from_millis(29)) {
            turn.pass();
            holds += 1;
        }
        assert_eq!(holds, 16);
        assert!(!Turn::new(tokens(false), start).may_continue(start), "one token, one hold");
    }
}
