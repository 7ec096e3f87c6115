//! What Rust and Lua must agree on: codes of operations, replies, messages and periods. The Lua text uses the names
//! defined here, which are replaced by their values when a script is assembled.

/// Constants, and a table of them for the Lua text.
macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:literal;)+) => {
        $($(#[$doc])* #[allow(dead_code)] pub(super) const $name: $type = $value;)+

        /// Each name with its value, as Rust and Lua write it.
        pub(super) const TABLE: &[(&str, &str)] = &[$((stringify!($name), stringify!($value))),+];
    };
}

constants! {
    // Operations in a batch.
    ACQUIRE: &str = "a";
    RENEW: &str = "n";
    RELEASE: &str = "r";
    RENEW_OWNED: &str = "N";
    ACQUIRE_PERMITS: &str = "p";
    RENEW_PERMITS: &str = "q";
    RELEASE_PERMITS: &str = "s";
    SETTLE: &str = "t";
    /// No operation: the name of the fence of those that follow.
    USE_FENCE: &str = "f";

    // Marks of the answers in a batch that are not an operation's own.
    FAILED: &str = "!";
    WITH_GRANT: &str = "+";

    // Answer to a request for a lock; otherwise a token or a list.
    BUSY: i64 = 0;

    // Answers to a request for permits.
    GRANTED: &str = "granted";
    QUEUED: &str = "queued";
    NONE_FREE: &str = "busy";
    LIMIT_DIFFERS: &str = "differs";
    ABOVE_LIMIT: &str = "above";

    // Answers to a renewal, and those to many.
    RENEWED: &str = "renewed";
    TAKEN: &str = "taken";
    EXPIRED: &str = "expired";
    EACH_RENEWED: &str = "r";
    EACH_TAKEN: &str = "t";
    EACH_EXPIRED: &str = "e";
    EACH_UNKNOWN: &str = "?";

    // Answers to a release.
    NOT_HELD: i64 = 0;
    RELEASED: i64 = 1;
    LEFT_QUEUE: i64 = 2;
    HELD_BY_OTHER: i64 = 3;

    // Answer to the settlement of a token; otherwise NOT_HELD.
    SETTLED: i64 = 1;

    // How much an inspection returns.
    FULL: &str = "full";
    SUMMARY: &str = "summary";
    COUNTS: &str = "counts";

    // What a list has found.
    A_LOCK: &str = "lock";
    A_SEMAPHORE: &str = "semaphore";
    /// How many holders of a semaphore a list returns, and after how many holders and waiters a call ends: each takes
    /// the server about 2 us.
    LISTED_HOLDERS: u64 = 250;
    /// How many bytes of a value a list reads, less one: more than those of any lock of ours.
    LISTED_BYTES: u64 = 4095;
    /// How many holders a summary returns.
    SUMMARY_HOLDERS: u64 = 16;
    /// How many places a queue may have for a list or a summary to look at each of them.
    COUNTED_PLACES: u64 = 200;

    // Messages to a client.
    GRANT: &str = "grant";
    ASK: &str = "ask";
    REVOKE: &str = "revoke";
    /// The prefix of the clients' channels; a user with restricted permissions needs `&leasehold:*`.
    CHANNEL_PREFIX: &str = "leasehold:";
    /// The prefix of the channels of elections, which their keys follow. Within the one above.
    CHANGES_PREFIX: &str = "leasehold:changes:";

    /// In the value of a lock: there may be waiters.
    WAITED_FOR: &str = "+";

    /// In the queue of a lock: not a place, but a gap (`gap.lua`).
    GAP: &str = "-";
    /// How often a gap is due: once in this many us for each ms that it lasts, so for an eighth of the time at most.
    GAP_PERIOD: u64 = 8000;
    /// What lasts longer than this, in ms, is no gap: the longest poll interval (`mod.rs`), and a quarter more, rounded
    /// up.
    LONGEST_GAP_MS: u64 = 75001;

    /// How many tokens a grant reserves, no matter what its request says: one for each hold that its lease may have
    /// within a client. So no request and no record of a waiter has to contain it. A request for more is refused
    /// (`backend.rs`).
    TOKENS_PER_GRANT: u64 = 16;
    /// A fence is below this: 2^53 less the tokens of two grants, the next one and its predecessor.
    FENCE_LIMIT: u64 = 9007199254740960;
    /// How far ahead of the last token, and of the time, a proposed token may be.
    PROPOSED_AHEAD_US: u64 = 10000000;
    /// How far ahead of the time a busy semaphore may write its fence.
    FENCE_AHEAD_US: u64 = 1000;
    /// The TTL of a request for a lock that states none: the default one (`options.rs`).
    DEFAULT_TTL_MS: &str = "30000";
    /// How long a fence outlives the last grant, in ms.
    FENCE_MS: &str = "86400000";
    /// How many leases that were released by force are remembered for a lock: those that would have ended last.
    MAX_REVOKED: u64 = 64;
    /// The fence of locks with the default prefix, which their calls need not name.
    DEFAULT_FENCE: &str = "{lock:}:fence";
    /// How many places a queue has when it gets an index.
    INDEXED_AT: u64 = 32;
    /// One in how many requests that join a queue removes places of the dead.
    PRUNE_EVERY: u64 = 50;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_as_many_holders_as_on_other_stores() {
        assert_eq!(usize::try_from(SUMMARY_HOLDERS).unwrap(), crate::backend::SUMMARY_HOLDERS);
    }

    #[test]
    fn a_request_that_states_no_ttl_has_the_default_one() {
        assert_eq!(DEFAULT_TTL_MS, crate::options::DEFAULT_TTL.as_millis().to_string());
    }

    #[test]
    fn a_grant_reserves_as_many_tokens_as_a_lease_may_have_holds() {
        assert_eq!(TOKENS_PER_GRANT, u64::from(crate::handover::tokens(true)));
    }

    #[test]
    fn no_constant_has_the_name_of_a_command_argument() {
        for (name, _) in TABLE {
            assert!(!["GET", "SET", "PX", "KEEPTTL", "LIMIT", "WITHSCORES", "NUMSUB", "TIME"].contains(name));
        }
    }
}
