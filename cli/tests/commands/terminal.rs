//! `run` in a terminal, from a script and from an interactive shell.

use std::time::Duration;

use tokio::process::Command;

use crate::program::{PROGRAM, Program, SOON};
use crate::sqlite::SqliteFile;
use leasehold_support::eventually;

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

/// A shell with a terminal of its own.
fn in_a_terminal(file: &SqliteFile, command: &str) -> Program {
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", command, "/dev/null"]);
    script
        .env("LEASEHOLD_URL", file.url())
        .env("PROGRAM", PROGRAM)
        .env("TERM", "dumb")
        .env("SHELL", "/bin/sh");
    Program::spawn(script)
}

/// Until such a line is printed.
async fn until(program: &mut Program, part: &str) {
    while !program.line().await.contains(part) {}
}

#[tokio::test]
async fn the_command_has_the_keyboard() {
    let file = SqliteFile::new();
    let mut program =
        in_a_terminal(&file, "\"$PROGRAM\" run a -- sh -c 'echo in; read -r line; echo \"<$line>\"'");
    until(&mut program, "in").await;
    program.type_in("typed\n").await;
    until(&mut program, "<typed>").await;
    assert_eq!(program.end().await.0, 0);
}

/// In a pipeline it gets it when it wants it.
#[tokio::test]
async fn the_command_has_the_keyboard_in_a_pipeline_too() {
    let file = SqliteFile::new();
    let mut program =
        in_a_terminal(&file, "\"$PROGRAM\" run a -- sh -c 'echo in; read -r line; echo \"<$line>\"' | cat");
    until(&mut program, "in").await;
    program.type_in("typed\n").await;
    until(&mut program, "<typed>").await;
    assert_eq!(program.end().await.0, 0);
}

#[tokio::test]
async fn ctrl_c_ends_the_command_and_the_script() {
    let file = SqliteFile::new();
    let script = "\"$PROGRAM\" run a -- sh -c 'echo in; exec sleep 1000'; echo not reached";
    let mut program = in_a_terminal(&file, script);
    until(&mut program, "in").await;
    program.type_in(CTRL_C).await;
    let (status, printed, _) = program.end().await;
    assert!(status == 130 && !printed.contains("not reached"), "{status}: {printed}");
}

/// Which goes on unless its command dies of the signal.
#[tokio::test]
async fn ctrl_c_ends_a_script_of_bash_too() {
    let file = SqliteFile::new();
    let mutex = file.client().await.mutex("held").expect("a name");
    let held = mutex.lock().await.expect("free");
    for (script, begun) in [
        ("\"$PROGRAM\" run a -- sh -c 'echo in; exec sleep 1000'; echo not reached", "in"),
        ("\"$PROGRAM\" once a --tick 1h --now -- sh -c 'echo in; exec sleep 1000'; echo not reached", "in"),
        ("\"$PROGRAM\" elect a -- sh -c 'echo in; exec sleep 1000'; echo not reached", "in"),
        ("\"$PROGRAM\" run held -- true; echo not reached", ""),
    ] {
        let path = file.directory().join("script");
        std::fs::write(&path, format!("echo begun\n{script}\n")).expect("room for a file");
        let mut program = in_a_terminal(&file, &format!("bash {}", path.display()));
        until(&mut program, "begun").await;
        if !begun.is_empty() {
            until(&mut program, begun).await;
        } else {
            let waiters = || async { mutex.inspect().await.expect("the file answers").waiters.len() };
            eventually(SOON, || async { waiters().await == 1 }).await;
        }
        program.type_in(CTRL_C).await;
        let (status, printed, _) = program.end().await;
        assert!(status == 130 && !printed.contains("not reached"), "{script}: {status}: {printed}");
    }
    held.release().await.expect("it is held");
}

/// TERM is there before it is continued, so it does nothing any more.
#[tokio::test]
async fn a_command_that_was_stopped_for_longer_than_its_lease_does_not_go_on() {
    let file = SqliteFile::new();
    let mut program = in_a_terminal(&file, "bash --norc --noprofile -i");
    let (path, log) = (file.directory().join("script"), file.directory().join("log"));
    let size = || std::fs::metadata(&log).map_or(0, |log| log.len());
    std::fs::write(&path, "while :; do echo in; done >\"$1\"").expect("room for a file");
    let options = "once a --tick 1h --now --ttl 1s";
    let command = format!("\"$PROGRAM\" {options} -- sh {} {}\n", path.display(), log.display());
    program.type_in(&command).await;
    eventually(SOON, || async { size() > 0 }).await;
    program.type_in(CTRL_Z).await;
    until(&mut program, "Stopped").await;
    let before = size();
    // The lease has to end, and nobody who is stopped can say that it has.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    program.type_in("fg\n").await;
    until(&mut program, "was lost").await;
    program.type_in("exit\n").await;
    program.end().await;
    assert_eq!(size(), before);
}

#[tokio::test]
async fn ctrl_z_gives_the_terminal_back_to_the_shell_and_the_command_goes_on_later() {
    let file = SqliteFile::new();
    let mut program = in_a_terminal(&file, "bash --norc --noprofile -i");
    let script = "trap 'echo continued' CONT; echo ready; until read -r line; do :; done; echo \"<$line>\"";
    let path = file.directory().join("script");
    std::fs::write(&path, script).expect("room for a file");
    program.type_in(&format!("\"$PROGRAM\" run a -- sh {}\n", path.display())).await;
    until(&mut program, "ready").await;
    program.type_in(CTRL_Z).await;
    until(&mut program, "Stopped").await;
    // What is typed is printed too.
    program.type_in("echo she''ll\n").await;
    until(&mut program, "shell").await;
    program.type_in("fg\n").await;
    until(&mut program, "continued").await;
    program.type_in("typed\n").await;
    until(&mut program, "<typed>").await;
    program.type_in("exit\n").await;
    assert_eq!(program.end().await.0, 0);
}
