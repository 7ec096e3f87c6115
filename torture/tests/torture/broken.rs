//! Whether the harness would notice if the crate did something wrong: builds of the crate with one deliberate mistake each
//! (`src/planted`) break the rule that is named here. Run by `scripts/planted.sh`.

use std::collections::BTreeMap;
use std::env;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{FINE, LEFT_OUT, PROGRAM, VIOLATED, count};

/// The variable that names a mistake. If it is set for this test, only that one is tried.
const VARIABLE: &str = "LEASEHOLD_PLANTED";
const RULES: [&str; 7] = ["I1", "I2", "I3", "I4", "I5", "I6", "I7"];
/// A run with a mistake takes no longer.
const MOST_SECONDS: u64 = 60;

/// A mistake, and how it is found.
struct Broken {
    mistake: &'static str,
    rule: &'static str,
    store: &'static str,
    scenario: &'static str,
    seconds: u64,
    options: &'static str,
}

impl Broken {
    const fn on_redis(mistake: &'static str, rule: &'static str, scenario: &'static str) -> Self {
        Self { mistake, rule, store: "redis", scenario, seconds: 10, options: "--each 1" }
    }
}

// Whether a mistake does harm is decided by chance where a fault has to hit it: then there are more leases that it may
// hit, or the run is longer.
const ALL: [Broken; 12] = [
    Broken {
        seconds: 20,
        // Sections are long: what holds a lease that is not there any more must do so for a while.
        options: "--each 4 --tasks 1 --long 2",
        ..Broken::on_redis("renews-without-comparing", "I1", "late-requests")
    },
    Broken::on_redis("releases-without-comparing", "I1", "calm"),
    Broken {
        seconds: 20,
        options: "--each 4 --tasks 1 --long 2",
        ..Broken::on_redis("measures-from-the-answer", "I1", "late-answers")
    },
    Broken::on_redis("counts-tokens", "I2", "flush"),
    Broken {
        seconds: 20,
        options: "--each 4",
        ..Broken::on_redis("ignores-liveness", "I5", "killed-holder")
    },
    Broken::on_redis("neither-pushes-nor-repeats", "I5", "calm"),
    Broken { store: "sqlite", ..Broken::on_redis("checks-the-limit-before", "I1", "calm") },
    Broken {
        store: "redlock",
        seconds: 30,
        options: "--each 4 --tasks 1",
        ..Broken::on_redis("counts-stale-nodes", "I1", "stopped-server")
    },
    Broken {
        seconds: 40,
        options: "--each 8 --tasks 1 --lease 6000",
        ..Broken::on_redis("gives-up-releases", "I5", "refused-releases")
    },
    Broken {
        options: "--each 1 --tasks 8 --lease 400",
        ..Broken::on_redis("passes-on-past-the-lease", "I1", "calm")
    },
    Broken { seconds: 20, ..Broken::on_redis("believes-late-grants", "I1", "partition") },
    Broken::on_redis("keeps-no-fence", "I2", "clock-set-back"),
];

impl Broken {
    /// The report of a run, and when it began. `None` if this machine has no such store.
    fn run(&self, mistake: Option<&str>) -> Option<(Option<i32>, String, Duration)> {
        let Self { store, scenario, seconds, options, .. } = self;
        let words = format!(
            "--store {store} --scenario {scenario} --seconds {seconds} --seed 7 --workers 3 --slack 1000 {options}"
        );
        let mut program = Command::new(PROGRAM);
        program.env_remove(VARIABLE).args(words.split_whitespace());
        if let Some(mistake) = mistake {
            program.env(VARIABLE, mistake);
        }
        let began = now();
        let Output { status, stdout, stderr } = program.output().expect("the program starts");
        if status.code() == Some(LEFT_OUT) {
            return None;
        }
        let report = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
        // Whatever else is found then says nothing.
        assert!(!report.contains("panicked"), "{report}");
        Some((status.code(), report, began))
    }

    /// The row of the table, or why the mistake was not found.
    fn row(&self) -> Result<String, String> {
        let Self { mistake, rule, store, scenario, seconds, .. } = self;
        let Some((status, report, began)) = self.run(Some(mistake)) else {
            return Ok(format!("| `{mistake}` | {store} | `{scenario}` | {rule} | left out |"));
        };
        if status != Some(VIOLATED) || count(&report, rule) == 0 {
            return Err(format!("{mistake}: {rule} was not found:\n{report}"));
        }
        let found = first(&report, rule).map_or(*seconds, |at| at.saturating_sub(began).as_secs());
        Ok(format!("| `{mistake}` | {store} | `{scenario}` | {rule} | {found} s |"))
    }
}

/// On the clock of the harness.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).expect("below a second"))
}

/// When a rule was broken for the first time, if the report says so.
fn first(report: &str, rule: &str) -> Option<Duration> {
    let at = report.lines().find_map(|line| line.strip_prefix(rule)?.strip_prefix(" at "))?;
    at.split(':').next()?.parse().ok().map(Duration::from_micros)
}

fn chosen() -> impl Iterator<Item = &'static Broken> {
    let only = env::var(VARIABLE).ok();
    ALL.iter().filter(move |broken| only.as_ref().is_none_or(|only| only == broken.mistake))
}

#[test]
fn every_mistake_is_found_by_the_rule_that_it_breaks() {
    println!("| mistake | store | scenario | rule | after |\n|---|---|---|---|---|");
    let mut missed = Vec::new();
    for broken in chosen() {
        assert!(broken.seconds <= MOST_SECONDS, "{}", broken.mistake);
        match broken.row() {
            Ok(row) => println!("{row}"),
            Err(report) => {
                println!("| `{}` | {} | `{}` | not found | |", broken.mistake, broken.store, broken.scenario);
                missed.push(report);
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The same runs of the same build.
#[test]
fn without_a_mistake_nothing_is_found() {
    let runs: BTreeMap<_, _> = chosen()
        .map(|broken| ((broken.store, broken.scenario, broken.options, broken.seconds), broken))
        .collect();
    for broken in runs.values() {
        let Some((status, report, _)) = broken.run(None) else { continue };
        assert_eq!(status, Some(FINE), "without {}:\n{report}", broken.mistake);
        let found: usize = RULES.iter().map(|rule| count(&report, rule)).sum();
        assert_eq!(found, 0, "without {}:\n{report}", broken.mistake);
        println!("{} {}: nothing is found", broken.store, broken.scenario);
    }
}
