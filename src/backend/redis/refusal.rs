//! Answers of a server that declines, by how long that lasts: the table in `docs/stores/redis.md`.

/// How errors begin, or what they contain, that a server sends for a reason that can be over within seconds. Nothing
/// has been executed: a script is told before its first write, and after it is no longer told.
const NOT_NOW: [&str; 13] = [
    // It is starting, or a replica that has lost its primary.
    "LOADING",
    "MASTERDOWN",
    // It has become a replica.
    "READONLY",
    // Too few replicas are connected (`min-replicas-to-write`), it cannot write to its disk, or it has no memory left.
    "NOREPLICAS",
    "MISCONF",
    "OOM ",
    // Another script runs for too long; this one did, and was ended before it had written anything.
    "BUSY ",
    "killed by user",
    // It no longer knows who is connected, which it did when the link was opened.
    "NOAUTH",
    "max number of clients",
    // WAIT, on a server that becomes a replica.
    "UNBLOCKED",
    // Of clusters.
    "CLUSTERDOWN",
    "TRYAGAIN",
];

/// Whether a command that is answered like this can succeed within seconds.
pub(super) fn is_for_now(text: &str) -> bool {
    // Errors within a script are quoted in the answer.
    NOT_NOW.iter().any(|words| text.contains(words))
}

/// Whether a server that answers a new connection like this may accept one within seconds. One that demands a login
/// does not.
pub(super) fn of_connection_is_for_now(text: &str) -> bool {
    is_for_now(text) && !text.contains("NOAUTH")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_for_now_or_not() {
        for (text, for_now) in [
            ("NOREPLICAS Not enough good replicas to write.", true),
            ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist", true),
            ("OOM command not allowed when used memory > 'maxmemory'. script: 1, on @user_script:6.", true),
            ("ERR max number of clients reached", true),
            ("ERR max number of clients + cluster connections reached", true),
            ("LOADING Redis is loading the dataset in memory", true),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", true),
            (
                "ERR Error running script (call to f_1): @user_script:1: Script killed by user with SCRIPT KILL",
                true,
            ),
            ("READONLY You can't write against a read only replica.", true),
            ("CLUSTERDOWN Hash slot not served", true),
            ("NOAUTH Authentication required.", true),
            ("NOPERM this user has no permissions to run the 'evalsha' command", false),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", false),
            ("ERR unknown command 'EVALSHA', with args beginning with: ", false),
            ("CROSSSLOT Keys in request don't hash to the same slot", false),
            ("DENIED Redis is running in protected mode", false),
        ] {
            assert_eq!(is_for_now(text), for_now, "{text}");
        }
        assert!(!of_connection_is_for_now("NOAUTH Authentication required."));
        assert!(of_connection_is_for_now("ERR max number of clients reached"));
    }

    #[test]
    fn the_documentation_names_each_of_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/stores/redis.md");
        let documented = std::fs::read_to_string(path).unwrap();
        for words in NOT_NOW {
            assert!(documented.contains(words.trim_end()), "{words}");
        }
    }
}
