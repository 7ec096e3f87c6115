//! `run` in a terminal, from a script and from an interactive shell.

use tokio::process::Command;

use crate::program::{PROGRAM, Program};
use crate::sqlite::SqliteFile;

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
    let script = "\"$PROGRAM\" run a -- sh -c 'echo in; sleep 1000'; echo not reached";
    let mut program = in_a_terminal(&file, script);
    until(&mut program, "in").await;
    program.type_in(CTRL_C).await;
    let (status, printed, _) = program.end().await;
    assert!(status == 130 && !printed.contains("not reached"), "{status}: {printed}");
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
