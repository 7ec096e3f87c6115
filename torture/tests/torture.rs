//! The program itself: it finds nothing where there is nothing, and names the rule that a planted mistake breaks.

use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use leasehold_torture::outcome::Outcome;

#[cfg(leasehold_planted)]
#[path = "torture/broken.rs"]
mod broken;

const PROGRAM: &str = env!("CARGO_BIN_EXE_torture");
/// The exit status of a run without violations.
const FINE: i32 = 0;
const VIOLATED: i32 = 1;
/// The same if this machine has no such server. (With `LEASEHOLD_REQUIRE_SERVERS=1`, that is a panic.)
const LEFT_OUT: i32 = 3;

/// The last words of a run that ends with this status, or `None` if it was left out.
#[track_caller]
fn run(expected: i32, options: &[&str]) -> Option<String> {
    // Few enough for a machine that is busy with other tests.
    let few = ["--workers", "2", "--lease", "400"];
    let seed = if options.contains(&"--seed") { &[][..] } else { &["--seed", "7"] };
    let program = Command::new(PROGRAM).args(few).args(seed).args(options).output();
    let Output { status, stdout, stderr } = program.expect("the program starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if status.code() == Some(LEFT_OUT) {
        eprintln!("LEFT OUT: {options:?}: {stderr}");
        return None;
    }
    assert_eq!(status.code(), Some(expected), "{options:?}:\n{stdout}\n{stderr}");
    Some(stdout.into_owned())
}

/// How often a rule was broken, as the report says.
#[track_caller]
fn count(report: &str, rule: &str) -> usize {
    let line =
        report.lines().find(|line| line.starts_with(&format!("{rule} ")) && line.contains("violations:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no line of {rule} in\n{report}"))
}

/// The mistake is found, by the rule that it breaks.
#[track_caller]
fn is_found(mistake: &str, rule: &str, options: &[&str]) {
    let options = [&["--planted", mistake], options].concat();
    let Some(report) = run(VIOLATED, &options) else { return };
    assert!(count(&report, rule) > 0, "{rule} was not found:\n{report}");
}

#[test]
fn nothing_is_violated_and_the_last_line_says_so() {
    let kept = tempfile::tempdir().expect("a directory");
    let folder = kept.path().to_str().expect("it is text");
    let options =
        ["--scenario", "mixed", "--seconds", "6", "--each", "1", "--slack", "1000", "--report", folder];
    let Some(report) = run(FINE, &options) else { return };
    let last = report.lines().last().expect("there is one");
    let numbers: Vec<usize> = last.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [operations, faults, violations] = numbers[..] else { panic!("{last}") };
    assert_eq!(last, format!("torture: {operations} operations, {faults} faults, {violations} violations"));
    assert!(operations >= 100 && faults >= 1 && violations == 0, "{report}");
    let read = |name| fs::read_to_string(kept.path().join(name)).expect("it was kept");
    let outcome: Outcome = read("outcome.txt").parse().expect("it is an outcome");
    assert_eq!((outcome.operations as usize, outcome.faults as usize), (operations, faults));
    assert_eq!((&*outcome.store, &*outcome.scenario, outcome.broken()), ("redis", "mixed", 0));
    let page = read("report.html");
    assert!(page.contains(last) && page.matches("aria-label=\"Who waited for").count() >= 1, "{page}");
}

#[test]
fn whoever_holds_what_operators_release_or_resize_keeps_the_promises() {
    for scenario in ["released-by-force", "resized"] {
        let options = ["--scenario", scenario, "--seconds", "6", "--each", "1", "--slack", "1000"];
        let Some(report) = run(FINE, &options) else { return };
        let last = report.lines().last().expect("there is one");
        let faults = last.split(' ').nth(3).and_then(|faults| faults.parse::<u64>().ok());
        assert!(faults.is_some_and(|faults| faults >= 3), "{report}");
    }
}

#[test]
fn a_standby_that_has_each_change_takes_over_without_a_violation() {
    for store in ["postgres-standby", "mysql-replica"] {
        let options =
            ["--store", store, "--scenario", "failover", "--seconds", "8", "--each", "1", "--slack", "1000"];
        let Some(report) = run(FINE, &options) else { continue };
        assert!(report.contains("another server takes over"), "{report}");
    }
}

#[test]
#[ignore = "takes a minute, for a run of some seconds for each attempt"]
fn what_is_not_needed_for_a_violation_is_left_out() {
    // Its first faults are a worker that is killed, and the store that is emptied.
    let options =
        ["--seed", "1", "--scenario", "killed-holder", "--planted", "secret-flush", "--seconds", "9"];
    let options = [&options[..], &["--shrink"]].concat();
    let Some(report) = run(VIOLATED, &options) else { return };
    let (_, needed) = report.split_once("needed: ").unwrap_or_else(|| panic!("{report}"));
    let lines: Vec<_> = needed.lines().collect();
    assert!(lines[1].ends_with("the store is emptied") && lines[2].starts_with("to repeat it: "), "{report}");
    assert!(lines[2].ends_with(&format!("--faults {}", lines[0])), "{report}");
}

#[test]
fn the_page_of_guarantees_says_what_the_runs_have_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let program = Command::new(PROGRAM).args(["guarantees", "--check"]).current_dir(root).output();
    let Output { status, stderr, .. } = program.expect("the program starts");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}

#[test]
fn every_scenario_is_listed_for_each_store_that_can_have_its_faults() {
    let Output { stdout, .. } = Command::new(PROGRAM).arg("list").output().expect("the program starts");
    let list = String::from_utf8_lossy(&stdout);
    let has = |line: &str| list.lines().any(|listed| listed == line);
    assert!(has("redis mixed") && has("redlock paused-holder") && has("redis flush"), "{list}");
    assert!(has("redlock released-by-force") && has("mysql resized"), "{list}");
    assert!(!has("sqlite flush") && !has("redlock resized"), "{list}");
}

#[test]
fn workers_that_hold_what_they_were_refused_break_i1() {
    is_found("impatient", "I1", &["--scenario", "calm", "--seconds", "2", "--each", "1"]);
}

#[test]
fn a_store_that_forgets_without_a_word_breaks_i1() {
    // Most sections are long, so that somebody holds something whenever that happens.
    let options = ["--scenario", "flush", "--seconds", "8", "--each", "4", "--long", "2"];
    is_found("secret-flush", "I1", &options);
}

#[test]
fn workers_that_are_not_told_of_a_loss_break_i4() {
    is_found("deaf", "I4", &["--scenario", "partition", "--seconds", "8", "--each", "1"]);
}

#[test]
#[ignore = "takes half a minute, until everybody has given up"]
fn guards_that_are_leaked_break_i5() {
    is_found("leaking", "I5", &["--scenario", "calm", "--seconds", "4", "--each", "1"]);
}

#[test]
#[ignore = "takes half a minute, until a worker was stopped between a read and a write"]
fn data_that_does_not_check_tokens_breaks_i3() {
    is_found("no-fence", "I3", &["--scenario", "paused-holder", "--seconds", "30", "--each", "4"]);
}

#[test]
fn what_does_not_exist_is_named() {
    let program = Command::new(PROGRAM).args(["--scenario", "no-such"]).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&program.stderr);
    assert!(stderr.contains("paused-holder"), "{stderr}");
    let program = Command::new(PROGRAM).args(["--faults", "3,x"]).output().expect("it starts");
    let stderr = String::from_utf8_lossy(&program.stderr);
    assert!(stderr.contains("\"x\" is not the number of a fault"), "{stderr}");
    let program = Command::new(PROGRAM).args(["--scenario", "flush", "--store", "sqlite"]).output();
    let stderr = program.expect("it starts").stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("sqlite has none of the faults of flush"), "{stderr}");
}
