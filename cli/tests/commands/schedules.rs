//! `once` and `elect`.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::Client;
use nix::sys::signal::Signal;
use tokio::process::Command;

use crate::program::{PROGRAM, Program, SOON, is_alive};
use crate::sqlite::SqliteFile;
use leasehold_support::eventually;

/// To run a tick that has just become due, and the next one of which is a day away.
fn now(more: &[&str]) -> Vec<String> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs() % 86400;
    let offset = format!("{time}s");
    let args = ["once", "nightly", "--tick", "1day", "--offset", &offset, "--now"];
    args.iter().chain(more).map(|&arg| arg.to_owned()).collect()
}

#[tokio::test]
async fn a_tick_is_run_by_one_of_all_that_try() {
    let file = SqliteFile::new();
    let url = file.url();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_TICK $LEASEHOLD_TICK_DUE $LEASEHOLD_TOKEN; exit 5";
    let args = now(&["--", "sh", "-c", script]);
    let started: Vec<_> = (0..4).map(|_| Program::start(&url, &args)).collect();
    let mut ran = Vec::new();
    for program in started {
        let (status, printed, message) = program.end().await;
        assert_eq!(message, "");
        match &*printed {
            "" => assert_eq!(status, 0),
            line => ran.push((status, line.to_owned())),
        }
    }
    let [(5, line)] = &ran[..] else { panic!("{ran:?}") };
    let [name, tick, due, token] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
    assert_eq!(name, "nightly");
    assert!(tick.parse::<u64>().is_ok() && token.parse::<u64>().is_ok(), "{line}");
    assert!(humantime::parse_rfc3339(due).is_ok(), "{line}");
    let (status, printed, _) = Program::start(&url, &args).end().await;
    assert_eq!((status, &*printed), (0, ""), "it was run");
}

/// A tick can be run for 12 h.
#[tokio::test]
async fn a_tick_that_is_over_is_mentioned() {
    let file = SqliteFile::new();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    let offset = format!("{}s", (time - 13 * 60 * 60) % 86400);
    let args = ["once", "nightly", "--tick", "1day", "--offset", &offset, "--now", "--", "echo", "in"];
    let (status, printed, message) = Program::start(&file.url(), &args).end().await;
    assert_eq!((status, &*printed), (0, ""));
    assert!(
        message.contains("nothing was run: the tick of `nightly`") && message.contains("is over"),
        "{message}"
    );
}

#[tokio::test]
async fn each_tick_of_two_schedulers_is_run_once_even_if_it_fails() {
    let file = SqliteFile::new();
    let log = file.directory().join("log");
    let script = format!("echo $LEASEHOLD_TICK >>{}; exit 1", log.display());
    let start =
        || Program::start(&file.url(), &["once", "often", "--tick", "300ms", "--", "sh", "-c", &script]);
    let schedulers = [start(), start()];
    let ticks = || {
        let ticks = fs::read_to_string(&log).unwrap_or_default();
        ticks.lines().map(|tick| tick.parse::<u64>().expect("a number")).collect::<Vec<_>>()
    };
    eventually(SOON, || async { ticks().len() >= 6 }).await;
    for scheduler in &schedulers {
        scheduler.signal(Signal::SIGTERM);
    }
    for scheduler in schedulers {
        let (status, _, message) = scheduler.end().await;
        // It may be told in the middle of a tick, whose command ends with its own status, or before it has begun.
        assert!([1, 143].contains(&status), "{status}: {message}");
        assert!(message.is_empty() || message.contains("has ended with status 1"), "{message}");
    }
    let ran = ticks();
    assert!(ran.is_sorted_by(|one, next| one < next), "{ran:?}");
}

/// Nothing says that its work was done.
#[tokio::test]
async fn a_tick_is_run_again_if_its_runner_is_killed_or_stopped() {
    let file = SqliteFile::new();
    let url = file.url();
    let args = now(&["--ttl", "1s", "--", "sh", "-c"]);
    let start = |script: &str| Program::start(&url, &[&args[..], &[script.to_owned()]].concat());
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let mut first = start("echo $$; sleep 1000");
        let command = first.line().await;
        let mut second = start("echo $$; sleep 1000");
        first.signal(signal);
        let again = second.line().await;
        assert!(!is_alive(&command) && is_alive(&again), "{signal}: {command} {again}");
        // It is not done by this one either, so the next signal has a tick to end.
        second.signal(Signal::SIGTERM);
        assert_eq!(second.end().await.0, 143);
    }
}

/// Another program keeps the file locked until the lease has ended.
#[tokio::test]
async fn the_command_of_a_tick_or_a_leader_is_ended_when_the_lease_is_lost() {
    let file = SqliteFile::new();
    let stranger = file.open();
    let shell = ["--ttl", "1s", "--", "sh", "-c", "echo $$; sleep 1000"];
    let mut tick = Program::start(&file.url(), &now(&shell));
    let mut leader = Program::start(&file.url(), &[&["elect", "leader"][..], &shell].concat());
    let commands = [tick.line().await, leader.line().await];
    stranger.execute_batch("BEGIN EXCLUSIVE").expect("the file can be locked");
    assert!(tick.message().await.contains("was lost"));
    assert!(leader.message().await.contains("was lost"));
    eventually(SOON, || async { !commands.iter().any(|pid| is_alive(pid)) }).await;
    stranger.execute_batch("ROLLBACK").expect("it was locked");
    let (status, _, message) = tick.end().await;
    assert_eq!(status, 70, "{message}");
    assert!(is_alive(&leader.line().await), "it leads again");
}

#[tokio::test]
async fn another_candidate_leads_when_the_leader_is_killed() {
    let file = SqliteFile::new();
    let url = file.url();
    let args = ["elect", "leader", "--ttl", "1s", "--value", "v", "--", "sh", "-c", "echo $$; sleep 1000"];
    let mut first = Program::start(&url, &args);
    let command = first.line().await;
    let mut second = Program::start(&url, &args);
    second.until_it_waits().await;
    first.signal(Signal::SIGKILL);
    let next = second.line().await;
    assert!(!is_alive(&command) && is_alive(&next));
    second.signal(Signal::SIGTERM);
    assert_eq!(second.end().await.0, 143);
    let client = Client::connect(&url).await.expect("the file can be used");
    let leader = client.election("leader").expect("a name").leader().await.expect("the file answers");
    assert_eq!(leader, None, "it has resigned");
}

#[tokio::test]
async fn a_command_that_fails_is_run_again_until_it_succeeds() {
    let file = SqliteFile::new();
    let mark = file.directory().join("mark");
    let script = format!("echo in; test -e {0} && exit 0; touch {0}; exit 4", mark.display());
    let mut command = Command::new(PROGRAM);
    command.env("LEASEHOLD_URL", file.url()).args(["elect", "a", "--", "sh", "-c", &script]);
    let (status, printed, message) = Program::spawn(command).end().await;
    assert_eq!((status, &*printed), (0, "in\nin\n"), "{message}");
    assert!(message.contains("has ended with status 4"), "{message}");
}
