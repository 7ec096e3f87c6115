//! The program itself: it finds nothing where there is nothing, and names the rule that a planted mistake breaks.

use std::env;
use std::process::{Command, Output};

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
    let few = ["--workers", "2", "--seed", "7", "--lease", "400"];
    let program = Command::new(PROGRAM).args(few).args(options).output();
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
    let Some(report) =
        run(FINE, &["--scenario", "mixed", "--seconds", "6", "--each", "1", "--slack", "1000"])
    else {
        return;
    };
    let last = report.lines().last().expect("there is one");
    let numbers: Vec<usize> = last.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [operations, faults, violations] = numbers[..] else { panic!("{last}") };
    assert_eq!(last, format!("torture: {operations} operations, {faults} faults, {violations} violations"));
    assert!(operations >= 100 && faults >= 1 && violations == 0, "{report}");
}

#[test]
fn workers_that_hold_what_they_were_refused_break_i1() {
    is_found("impatient", "I1", &["--scenario", "calm", "--seconds", "2", "--each", "1"]);
}

#[test]
fn a_store_that_forgets_without_a_word_breaks_i1() {
    is_found("secret-flush", "I1", &["--scenario", "flush", "--seconds", "6", "--each", "4"]);
}

#[test]
fn workers_that_are_not_told_of_a_loss_break_i4() {
    is_found("deaf", "I4", &["--scenario", "partition", "--seconds", "6", "--each", "3"]);
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
    let program = Command::new(PROGRAM).args(["--scenario", "flush", "--store", "sqlite"]).output();
    let stderr = program.expect("it starts").stderr;
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(stderr.contains("sqlite has none of the faults of flush"), "{stderr}");
}
