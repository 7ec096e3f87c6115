//! The arguments. Completions, manual pages and `--help` are made from them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use leasehold::Purpose;

/// Distributed locks for scripts, and a look at who holds what, on Redis, PostgreSQL, MySQL, etcd, ZooKeeper or SQLite
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_long_help = EXIT_STATUS, max_term_width = 100)]
pub(crate) struct Args {
    /// The URL of the store, such as redis://127.0.0.1:6379
    ///
    /// Prefer the environment: other users of the machine can see arguments, and with them a password in a URL.
    #[arg(long, global = true, env = "LEASEHOLD_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The file that names the store, and the TTL and prefixes of locks
    ///
    /// A URL from elsewhere takes the place of the one in it. ./leasehold.toml is used if neither a file nor a URL is
    /// given.
    #[arg(long, global = true, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What others see as the holder's name; without it, the host name and the process id
    #[arg(long, global = true, env = "LEASEHOLD_LABEL", value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Print JSON: one object, or one per line where several follow
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Whether to use colors
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// For `--help` and the manual page.
const EXIT_STATUS: &str = "\
Exit status:
  0    success; `run` and `once --now` end with the status of their command
  1    the answer is no: nothing to show, nothing to break, a finding of `check`
  64   invalid arguments or configuration
  69   the store could not be reached
  70   the lease was lost while the command was running (`elect` goes on), or this program failed
  75   the lock was not obtained in time, or not free in time (`wait`)
  77   the store refused the user or the request
  126  the command cannot be executed
  127  the command was not found
  128+N  the command, or this program, was ended by the signal N";

/// What commands find in their environment.
macro_rules! environment {
    ($name:literal, $($tick:literal)?) => {
        concat!(
            "Environment of the command:\n",
            "  LEASEHOLD_NAME   ", $name, "\n",
            "  LEASEHOLD_TOKEN  the fencing token: what the command writes to should reject older ones\n",
            $($tick,)?
            "  LEASEHOLD_URL    as it was set, with its password, for another `leasehold` that the command calls;\n",
            "                   to hide it, run the command by `env -u LEASEHOLD_URL`\n",
            "\n",
        )
    };
}

const RUN: &str = concat!(
    environment!("the name of the lock",),
    "\
Exit status:
  that of the command, or
  64   invalid arguments or configuration
  69   the store could not be reached
  70   the lease was lost while the command was running, or this program failed
  75   the lock was not obtained in time
  77   the store refused the user or the request
  126  the command cannot be executed
  127  the command was not found
  128+N  the command, or this program, was ended by the signal N",
);

const ONCE: &str = concat!(
    environment!(
        "the name of the schedule",
        "  LEASEHOLD_TICK   the number of the tick\n  LEASEHOLD_TICK_DUE  when it was due, such as 2026-01-31T02:00:00Z\n"
    ),
    "\
Exit status:
  with --now, that of the command, and 0 if there was nothing to be run; or
  64   invalid arguments or configuration
  69   the store could not be reached
  70   the lease was lost while the command was running, or this program failed
  77   the store refused the user or the request
  126  the command cannot be executed
  127  the command was not found
  128+N  the command, or this program, was ended by the signal N",
);

const ELECT: &str = concat!(
    environment!("the name of the election",),
    "\
Exit status:
  0    the command has succeeded; if it fails, or leadership is lost, `elect` goes on
  64   invalid arguments or configuration
  69   the store could not be reached
  70   this program failed
  77   the store refused the user or the request
  126  the command cannot be executed
  127  the command was not found
  128+N  this program was told to end by the signal N, unless the command ended with a status of its own",
);

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    pub(crate) fn write_global(self) {
        let choice = match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    Run(Run),
    /// Run a command once per tick of a schedule, on one of the machines that run the same command
    Once(Once),
    /// Run a command while leading, and again after a loss
    Elect(Elect),
    /// List what is held or awaited
    List(List),
    /// Show who holds a lock or semaphore, and who waits
    ///
    /// Everything that has this name and is in use is shown. The exit status is 1 if that is nothing.
    Show(Show),
    /// Watch what is held or awaited, live
    ///
    /// Keys: q quits, / filters, Enter shows one in detail, n h a w sort by name, holder, age, waiters, r reverses,
    /// arrows move. If the output is not a terminal, the whole list is printed each time.
    Watch(Watch),
    /// End the hold of a lock by force
    ///
    /// Shows who holds it, and asks for confirmation. The next waiter gets the lock at once; the holder is notified,
    /// and until it has stopped, only fencing tokens reject what it writes. If the lock changes hands at that very
    /// moment, the next holder loses it. Semaphores and read/write locks cannot be broken. The exit status is 1 if
    /// nobody held the lock, or the answer was no.
    Break(Break),
    /// Wait until a lock is free
    ///
    /// Takes no place in the queue: reads the store, at least once a second, until nobody holds the lock or waits for
    /// it, or a permit of the semaphore is free. Somebody else may take it in the next moment, and a lock that is free
    /// only briefly may be missed: to hold it, use `run`.
    Wait(Wait),
    /// Check the store for problems and risky settings
    ///
    /// The exit status is 1 if any finding is a warning or worse.
    Check,
    /// Print the fencing token under which a lock is held
    ///
    /// One per line if several hold it. The exit status is 1 if nobody does.
    Token(Token),
    /// Watch three workers pass a lock to each other, in this terminal
    ///
    /// Takes 20 seconds and needs no store. One worker dies while it holds the lock, and another one is paused for
    /// longer than its lease. The exit status is 0 only if everything went as it should.
    Demo,
    /// Print the completions for a shell
    ///
    /// For bash: leasehold completions bash > ~/.local/share/bash-completion/completions/leasehold
    Completions(Completions),
}

/// How long a lease lasts without a renewal.
#[derive(clap::Args, Debug)]
pub(crate) struct Ttl {
    /// How long the lock stays taken if this machine dies; the default is that of the configuration, or 30s
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(crate) ttl: Option<Duration>,
}

/// What to do with the command.
#[derive(clap::Args, Debug)]
pub(crate) struct Job {
    /// If the lease is lost, the command's process group gets TERM, and what is left of it gets KILL after this time
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10s", value_name = "TIME")]
    pub(crate) kill_after: Duration,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("kind"), group = ArgGroup::new("waiting"), after_long_help = RUN)]
pub(crate) struct Run {
    /// The name of the lock
    pub(crate) name: String,
    /// Give up after this time; the default is to wait
    #[arg(long, group = "waiting", value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if the lock is held
    #[arg(long, group = "waiting")]
    pub(crate) no_wait: bool,
    #[command(flatten)]
    pub(crate) ttl: Ttl,
    /// Let in this many at a time, instead of one
    #[arg(long, group = "kind", value_parser = clap::value_parser!(u32).range(1..), value_name = "LIMIT")]
    pub(crate) semaphore: Option<u32>,
    /// Hold a read/write lock together with other readers
    #[arg(long, group = "kind")]
    pub(crate) read: bool,
    /// Hold a read/write lock alone
    #[arg(long, group = "kind")]
    pub(crate) write: bool,
    /// Print the fencing token before the command is run; it is also in LEASEHOLD_TOKEN
    #[arg(long)]
    pub(crate) stdout_token: bool,
    /// What others see as the reason, such as "nightly report"
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    #[command(flatten)]
    pub(crate) job: Job,
}

#[derive(clap::Args, Debug)]
#[command(after_long_help = ONCE)]
pub(crate) struct Once {
    /// The name of the schedule
    pub(crate) name: String,
    /// The time from one tick to the next, counted from midnight UTC, 1970-01-01
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(crate) tick: Duration,
    /// How long after the start of its period a tick is due: `--tick 1day --offset 2h30m` is half past two UTC
    #[arg(long, value_parser = humantime::parse_duration, default_value = "0s", value_name = "TIME")]
    pub(crate) offset: Duration,
    /// Run the tick that is due now, if nobody has, and exit; without this, keep running, and run every tick
    #[arg(long)]
    pub(crate) now: bool,
    /// Leave a tick out if its runner dies, instead of running it again
    #[arg(long)]
    pub(crate) at_most_once: bool,
    #[command(flatten)]
    pub(crate) ttl: Ttl,
    #[command(flatten)]
    pub(crate) job: Job,
}

#[derive(clap::Args, Debug)]
#[command(after_long_help = ELECT)]
pub(crate) struct Elect {
    /// The name of the election
    pub(crate) name: String,
    /// What others see of the leader; the default is the label
    #[arg(long, value_name = "TEXT")]
    pub(crate) value: Option<String>,
    #[command(flatten)]
    pub(crate) ttl: Ttl,
    #[command(flatten)]
    pub(crate) job: Job,
}

/// Which of all things that have the same name.
#[derive(clap::Args, Debug)]
pub(crate) struct Which {
    /// The name
    pub(crate) name: String,
    /// What it is; without it, whatever has this name
    #[arg(long, value_parser = purpose(), value_name = "KIND")]
    pub(crate) kind: Option<Purpose>,
}

/// By the name that JSON and tables have as the kind.
fn purpose() -> impl TypedValueParser<Value = Purpose> {
    PossibleValuesParser::new(Purpose::ALL.map(Purpose::as_str)).try_map(|name| name.parse::<Purpose>())
}

#[derive(clap::Args, Debug)]
pub(crate) struct List {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Watch {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// How often to read the store, 100ms or more; reading never takes more than a quarter of the time
    #[arg(long, value_parser = interval, default_value = "500ms", value_name = "TIME")]
    pub(crate) every: Duration,
}

/// How often at most a store is looked at.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < SHORTEST_INTERVAL {
        return Err("it must be 100ms or more".to_owned());
    }
    Ok(interval)
}

#[derive(clap::Args, Debug)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Break {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Give up after this time; the default is to wait
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    pub(crate) timeout: Option<Duration>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Token {
    #[command(flatten)]
    pub(crate) which: Which,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn nobody_looks_at_a_store_without_a_pause() {
        for (text, is_valid) in [("0s", false), ("99ms", false), ("100ms", true), ("1h", true), ("1", false)]
        {
            assert_eq!(interval(text).is_ok(), is_valid, "{text}");
        }
    }
}
