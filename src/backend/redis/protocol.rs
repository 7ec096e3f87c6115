//! What Rust and Lua have to agree on: codes of operations, replies, messages and periods. The Lua text names them as they are
//! named here, and is given their values when a script is put together.

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
    ACQUIRE_OWNED: &str = "A";
    RENEW_OWNED: &str = "N";
    RELEASE_OWNED: &str = "R";
    ACQUIRE_PERMITS: &str = "p";
    RENEW_PERMITS: &str = "q";
    RELEASE_PERMITS: &str = "s";
    /// A request for a lock that has more than two arguments.
    ACQUIRE_WITH: &str = "b";
    /// No operation: names the fence of those that follow.
    USE_FENCE: &str = "f";

    // What one of a batch answers beside its own answer.
    FAILED: &str = "!";
    WITH_GRANT: &str = "+";

    // Answers to a request for a lock; else a token, or a list.
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

    // How much an inspection tells.
    EVERYBODY: &str = "everybody";
    NUMBERS: &str = "numbers";

    // Messages to a client.
    GRANT: &str = "grant";
    ASK: &str = "ask";
    REVOKE: &str = "revoke";
    /// What wake channels start with; a user with restricted rights needs `&leasehold:*`.
    CHANNEL_PREFIX: &str = "leasehold:";

    /// How many tokens a grant takes up if it may be passed on within a client.
    TOKENS_PER_GRANT: u64 = 16;
    /// How long a fence outlives the last grant, in ms.
    FENCE_MS: &str = "86400000";
    /// A queue that grows to so many places is given an index.
    INDEXED_AT: u64 = 32;
    /// One arrival in so many removes places of the dead.
    PRUNE_EVERY: u64 = 50;
    /// No token is less, so that all have 16 digits.
    LEAST_TOKEN: u64 = 1000000000000000;
    /// The numbers below a hundred as text.
    HUNDRED: &str = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_takes_up_what_the_contract_says() {
        assert_eq!(TOKENS_PER_GRANT, crate::backend::TOKENS_PER_GRANT);
    }

    #[test]
    fn no_constant_has_the_name_of_a_command_argument() {
        for (name, _) in TABLE {
            assert!(!["GET", "SET", "PX", "KEEPTTL", "LIMIT", "WITHSCORES", "NUMSUB", "TIME"].contains(name));
        }
    }
}
