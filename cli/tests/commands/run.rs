//! `run` on one store: what the command gets, what it is told, and how it ends.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use leasehold::{Client, MutexOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpSocket;
use tokio::process::Command;

use crate::program::{PROGRAM, Program, SOON, is_alive};
use crate::sqlite::SqliteFile;
use leasehold_support::eventually;

/// A port on which nobody listens, for as long as it is kept.
fn nobody() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port is free");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}

#[tokio::test]
async fn exit_statuses() {
    let (file, (_nobody, nobody)) = (SqliteFile::new(), nobody());
    let client = file.client().await;
    let held = client.mutex("held").expect("a name").lock().await.expect("free");
    let semaphore = client.counting_semaphore("two", 2).expect("a name");
    let one_of_two = semaphore.acquire().await.expect("free");
    let script = file.directory().join("not_executable");
    std::fs::write(&script, "#!/bin/sh\n").expect("room for a file");
    let no_interpreter = file.directory().join("no_interpreter");
    std::fs::write(&no_interpreter, "#!/no/such/shell\n").expect("room for a file");
    std::fs::set_permissions(&no_interpreter, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let no_interpreter = no_interpreter.display().to_string();
    let garbage = file.directory().join("garbage.db");
    std::fs::write(&garbage, vec![b'x'; 8192]).expect("room for a file");
    let (script, garbage) = (script.display().to_string(), format!("sqlite:{}", garbage.display()));
    let redis = format!("redis://:hunter2@{nobody}");
    let url = file.url();
    let shell = |command| vec!["run", "a", "--", "sh", "-c", command];
    let cases: Vec<(&str, Vec<&str>, i32, &str)> = vec![
        (&url, shell("exit 0"), 0, ""),
        (&url, shell("exit 3"), 3, ""),
        (&url, shell("exit 255"), 255, ""),
        (&url, shell("kill -KILL $$"), 137, ""),
        (&url, shell("kill -TERM $$"), 143, ""),
        (&url, vec!["run", "a", "--", &script], 126, "cannot be executed"),
        (&url, vec!["run", "a", "--", "no-such-command"], 127, "was not found"),
        (&url, vec!["run", "a", "--", &no_interpreter], 127, "the interpreter that it names, was not found"),
        (&url, vec!["run", "held", "--no-wait", "--", "true"], 75, "held by"),
        (&url, vec!["run", "held", "--wait", "1s", "--", "true"], 75, "timed out"),
        (&url, vec!["run", "two", "--semaphore", "2", "--no-wait", "--", "true"], 0, ""),
        (&url, vec!["run", "two", "--semaphore", "3", "--no-wait", "--", "true"], 64, "limit"),
        (&url, vec!["run", "rw", "--read", "--", "true"], 0, ""),
        (&url, vec!["run", "written", "--write", "--no-wait", "--", "true"], 0, ""),
        (&url, vec!["run", "a", "--ttl", "1ms", "--", "true"], 64, "ttl"),
        (&url, vec!["run", "", "--", "true"], 64, "name"),
        (&url, vec!["run", "a"], 64, "COMMAND"),
        (&url, vec!["run", "a", "--read", "--write", "--", "true"], 64, "cannot be used with"),
        (&url, vec!["run", "a", "--wait", "1s", "--no-wait", "--", "true"], 64, "cannot be used with"),
        (&url, vec!["once", "a", "--tick", "0s", "--now", "--", "true"], 64, "period"),
        (&url, vec!["elect", "", "--", "true"], 64, "name"),
        ("", vec!["run", "a", "--", "true"], 64, "url"),
        ("nonsense", vec!["run", "a", "--", "true"], 64, "url"),
        ("redis://:hunter2@h:port", vec!["run", "a", "--", "true"], 64, "url"),
        ("gopher://:hunter2@h", vec!["run", "a", "--", "true"], 64, ""),
        (&redis, vec!["run", "a", "--", "true"], 69, "refused"),
        (&redis, vec!["once", "a", "--tick", "1m", "--", "true"], 69, "refused"),
        (&redis, vec!["elect", "a", "--", "true"], 69, "refused"),
        (&garbage, vec!["run", "a", "--", "true"], 77, "not an SQLite database"),
    ];
    let started: Vec<_> = cases.iter().map(|(url, args, ..)| Program::start(url, args)).collect();
    for (program, (url, args, expected, part)) in started.into_iter().zip(&cases) {
        let (status, stdout, message) = program.end().await;
        assert_eq!(status, *expected, "{url} {args:?}: {message}");
        assert!(message.contains(part), "{url} {args:?}: {message}");
        assert!(!message.contains("hunter2") && stdout.is_empty(), "{url} {args:?}: {message}{stdout}");
    }
    assert!(held.is_held() && one_of_two.is_held());
}

/// Which shows its password as little.
#[tokio::test]
async fn the_store_and_its_options_can_be_in_a_file() {
    let file = SqliteFile::new();
    let path = file.directory().join("leasehold.toml");
    let start = |text: &str, script: &str| {
        std::fs::write(&path, text).expect("room for a file");
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(&path).args(["run", "a", "--", "sh", "-c", script]);
        command.env_remove("LEASEHOLD_URL");
        Program::spawn(command)
    };
    let mut program =
        start(&format!("url = '{}'\nmutex.prefix = 'shop:'\n", file.url()), "echo in; read -r _");
    assert_eq!(program.line().await, "in");
    let mutex = file.client().await.mutex_with("a", MutexOptions::new().prefix("shop:")).expect("a name");
    assert_eq!(mutex.inspect().await.expect("the file answers").in_use, 1);
    program.close_stdin();
    assert_eq!(program.end().await.0, 1, "nothing was read");
    for (text, part) in [
        ("url = 'redis://:hunter2@127.0.0.1:1", "line 1: "),
        ("label = 'x'\nurl = redis://:hunter2@127.0.0.1:1", "line 2: "),
        ("url = 'redis://:hunter2@127.0.0.1:1'\nttl = 5", "`ttl`: unknown field"),
        ("url = 'sqlite:x'\nmutex = 'redis://:hunter2@h'", "`mutex`: invalid type: string \"…\", expected "),
        ("url = 'sqlite:x'\nmutex.ttl = 'redis://:hunter2@h'", "`…` is not a time such as"),
        ("url = 'sqlite:x'\nlabel = 5", "`label`: "),
    ] {
        let (status, _, message) = start(text, "true").end().await;
        assert!(status == 64 && !message.contains("hunter2"), "{status}: {message}");
        assert!(message.contains(part), "{text}: {message}");
    }
}

/// Or a URL alone would mean other locks in another directory.
#[tokio::test]
async fn a_file_in_the_working_directory_counts_only_if_nothing_else_names_a_store() {
    let file = SqliteFile::new();
    let path = file.directory().join("leasehold.toml");
    let start = |url: Option<String>| {
        let mut command = Command::new("sh");
        command.env_remove("LEASEHOLD_URL").envs(url.map(|url| ("LEASEHOLD_URL", url)));
        command.env("PROGRAM", PROGRAM).env("DIRECTORY", file.directory());
        command.args(["-c", "cd \"$DIRECTORY\" && exec \"$PROGRAM\" run a -- echo in"]);
        Program::spawn(command)
    };
    assert_eq!(start(None).end().await.0, 64, "there is none");
    fs::write(&path, format!("url = '{}'\n", file.url())).expect("room for a file");
    assert_eq!(start(None).end().await.0, 0);
    fs::write(&path, "nonsense").expect("room for a file");
    assert_eq!(start(None).end().await.0, 64);
    assert_eq!(start(Some(file.url())).end().await.0, 0);
    fs::remove_file(&path).expect("it is ours");
    fs::create_dir(&path).expect("room for a directory");
    let (status, _, message) = start(None).end().await;
    assert!(status == 64 && message.contains("directory"), "{status}: {message}");
}

#[tokio::test]
async fn the_command_knows_its_token_and_so_does_who_has_started_it() {
    let file = SqliteFile::new();
    let script = "echo $LEASEHOLD_NAME $LEASEHOLD_TOKEN; echo $ANOTHER";
    for kind in [&[][..], &["--semaphore", "3"], &["--read"], &["--write"]] {
        let mut command = Command::new(PROGRAM);
        command.env("LEASEHOLD_URL", file.url()).env("ANOTHER", "too");
        command.args(["run", "a", "--stdout-token"]).args(kind).args(["--", "sh", "-c", script]);
        let mut program = Program::spawn(command);
        let token: u64 = program.line().await.parse().expect("a number");
        assert_eq!(program.line().await, format!("a {token}"));
        assert_eq!(program.line().await, "too");
        assert_eq!(program.end().await.0, 0);
    }
    let program = Program::start(&file.url(), &["--json", "run", "a", "--stdout-token", "--", "true"]);
    let (_, printed, _) = program.end().await;
    assert!(printed.starts_with(r#"{"name":"a","kind":"mutex","token":"#), "{printed}");
}

#[tokio::test]
async fn as_many_as_a_semaphore_admits_run_at_the_same_time() {
    let file = SqliteFile::new();
    let url = file.url();
    let run =
        || Program::start(&url, &["run", "a", "--semaphore", "2", "--", "sh", "-c", "echo in; read -r _"]);
    let (mut one, mut two) = (run(), run());
    assert_eq!((one.line().await, two.line().await), ("in".to_owned(), "in".to_owned()));
    let mut three = run();
    three.until_it_waits().await;
    one.type_in("\n").await;
    assert_eq!(three.line().await, "in");
}

/// It is told, has the time it was promised, and is killed after that.
#[tokio::test]
async fn the_whole_group_of_a_command_is_ended_when_its_lease_is_lost() {
    let file = SqliteFile::new();
    let mutex = file.client().await.mutex("a").expect("a name");
    let args = ["run", "a", "--kill-after", "500ms", "--", "sh", "-c"];
    let deaf = "trap '' TERM; sh -c 'echo $$; sleep 1000; :' & echo $$; wait; sleep 1000";
    let told =
        "trap 'echo told; exit 0' TERM; sh -c 'trap \"\" TERM; echo $$; sleep 1000; :' & echo $$; wait";
    for (script, says) in [(deaf, "command is still"), (told, "processes of the command are still")] {
        let mut program = Program::start(&file.url(), &[&args[..], &[script]].concat());
        let pids = [program.line().await, program.line().await];
        assert!(mutex.force_release().await.expect("the file answers"));
        let (status, printed, message) = program.end().await;
        assert_eq!(status, 70, "{message}");
        assert!(message.contains("released by force") && message.contains(says), "{message}");
        assert_eq!(printed.contains("told"), script == told, "{printed}");
        let gone = || async { !pids.iter().any(|pid| is_alive(pid)) };
        eventually(SOON, gone).await;
    }
}

/// Also what the command has started, after its own end.
#[tokio::test]
async fn the_whole_group_has_time_to_end_when_the_lease_is_lost() {
    let file = SqliteFile::new();
    let mutex = file.client().await.mutex("a").expect("a name");
    let worker = "trap 'sleep 0.5; echo cleaned; exit' TERM; echo in; while :; do sleep 0.1; done";
    let mut command = Command::new(PROGRAM);
    command.env("LEASEHOLD_URL", file.url()).env("WORKER", worker);
    command.args(["run", "a", "--kill-after", "60s", "--", "sh", "-c", "sh -c \"$WORKER\" & wait"]);
    let mut program = Program::spawn(command);
    assert_eq!(program.line().await, "in");
    assert!(mutex.force_release().await.expect("the file answers"));
    assert_eq!(program.line().await, "cleaned");
    let (status, _, message) = program.end().await;
    assert!(status == 70 && !message.contains("KILL\n"), "{status}: {message}");
}

/// A log on a disk that is full, or a terminal that is gone.
#[tokio::test]
async fn the_command_is_ended_even_if_nobody_can_be_told() {
    let file = SqliteFile::new();
    let mutex = file.client().await.mutex("a").expect("a name");
    let mut command = Command::new("sh");
    command.env("LEASEHOLD_URL", file.url()).env("PROGRAM", PROGRAM);
    command.env("DEAF", "trap '' TERM; echo $$; while :; do sleep 1000; done");
    let script = "exec \"$PROGRAM\" run a --kill-after 500ms -- sh -c \"$DEAF\" 2>/dev/full";
    let mut program = Program::spawn({
        command.args(["-c", script]);
        command
    });
    let pid = program.line().await;
    assert!(mutex.force_release().await.expect("the file answers"));
    assert_eq!(program.end().await.0, 70);
    assert!(!is_alive(&pid));
}

/// Before the command is started, and while it runs.
#[tokio::test]
async fn who_watches_over_the_command_is_replaced() {
    let file = SqliteFile::new();
    let held = file.client().await.mutex("a").expect("a name").lock().await.expect("free");
    let mut program = Program::start(&file.url(), &["run", "a", "--", "sh", "-c", "echo $$; sleep 1000"]);
    program.until_it_waits().await;
    let first = watcher_of(program.pid(), None).await;
    kill(first, Signal::SIGKILL).expect("it runs");
    held.release().await.expect("it is held");
    let command = program.line().await;
    let second = watcher_of(program.pid(), Some(first)).await;
    // Otherwise it is taken for one that cannot live.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    kill(second, Signal::SIGKILL).expect("it runs");
    watcher_of(program.pid(), Some(second)).await;
    program.signal(Signal::SIGKILL);
    eventually(SOON, || async { !is_alive(&command) }).await;
}

/// The process, when it is ready and another one than before.
async fn watcher_of(program: Pid, before: Option<Pid>) -> Pid {
    let find = || {
        let children = fs::read_to_string(format!("/proc/{program}/task/{program}/children")).ok()?;
        let mut children = children
            .split_whitespace()
            .filter(|&child| Some(child) != before.map(|pid| pid.to_string()).as_deref());
        children
            .find(|child| {
                let name = fs::read_to_string(format!("/proc/{child}/comm"));
                name.is_ok_and(|name| name.trim() == "lease-watcher") && is_alive(child)
            })?
            .parse()
            .ok()
            .map(Pid::from_raw)
    };
    eventually(SOON, || async { find().is_some() }).await;
    find().expect("it lives")
}

/// The file is kept locked, so the release is tried for long.
#[tokio::test]
async fn a_second_signal_ends_the_wait_for_the_release() {
    let file = SqliteFile::new();
    let stranger = file.open();
    let mut program =
        Program::start(&file.url(), &["run", "a", "--", "sh", "-c", "echo $$; read -r _; exit 3"]);
    let command = program.line().await;
    stranger.execute_batch("BEGIN EXCLUSIVE").expect("the file can be locked");
    program.type_in("\n").await;
    eventually(SOON, || async { !is_alive(&command) }).await;
    let pid = program.pid();
    let ended = || async {
        kill(pid, Signal::SIGTERM).expect("it was not waited for");
        !is_alive(&pid.to_string())
    };
    eventually(SOON, ended).await;
    let (status, _, message) = program.end().await;
    assert!(status == 3 && message.contains("interrupted: the lock was not released"), "{status}: {message}");
    stranger.execute_batch("ROLLBACK").expect("it was locked");
}

/// Which a terminal would take for commands.
#[tokio::test]
async fn control_characters_are_not_shown() {
    let file = SqliteFile::new();
    let url = file.url();
    let name = "\u{1b}[31mred";
    let held = file.client().await.mutex(name).expect("a name").lock().await.expect("free");
    let (status, _, message) = Program::start(&url, &["run", name, "--no-wait", "--", "true"]).end().await;
    assert!(status == 75 && !message.contains('\u{1b}') && message.contains("[31mred"), "{message:?}");
    let message = Program::start(&url, &["run", name, "--", "true"]).message().await;
    assert!(!message.contains('\u{1b}') && message.contains("[31mred"), "{message:?}");
    held.release().await.expect("it is held");
}

#[tokio::test]
async fn signals_are_passed_on_to_the_group_of_the_command() {
    let file = SqliteFile::new();
    let script = "for s in INT TERM HUP QUIT USR1 USR2; do trap \"echo $s; exit 9\" $s; done; \
         echo ready; while :; do sleep 0.1; done";
    for (signal, name) in [
        (Signal::SIGINT, "INT"),
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let mut program = Program::start(&file.url(), &["run", name, "--", "sh", "-c", script]);
        assert_eq!(program.line().await, "ready");
        program.signal(signal);
        assert_eq!(program.line().await, name);
        assert_eq!(program.end().await.0, 9, "{name}");
    }
    let mut program = Program::start(&file.url(), &["run", "a", "--", "sh", "-c", "echo ready; sleep 1000"]);
    assert_eq!(program.line().await, "ready");
    program.signal(Signal::SIGTERM);
    assert_eq!(program.end().await.0, 143);
}

/// As under `nohup`, when the terminal goes.
#[tokio::test]
async fn a_signal_that_is_ignored_stays_ignored() {
    let file = SqliteFile::new();
    let mut command = Command::new("sh");
    command.env("LEASEHOLD_URL", file.url()).env("PROGRAM", PROGRAM);
    command.args(["-c", "trap '' HUP; exec \"$PROGRAM\" run a -- sh -c 'echo in; read -r line; echo $line'"]);
    let mut program = Program::spawn(command);
    assert_eq!(program.line().await, "in");
    program.signal(Signal::SIGHUP);
    program.type_in("still here\n").await;
    assert_eq!(program.line().await, "still here");
    assert_eq!(program.end().await.0, 0);
}

#[tokio::test]
async fn a_signal_ends_the_wait_and_nothing_is_left_behind() {
    let file = SqliteFile::new();
    let mutex = file.client().await.mutex("a").expect("a name");
    let held = mutex.lock().await.expect("free");
    for (signal, expected) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut program = Program::start(&file.url(), &["run", "a", "--", "echo", "in"]);
        program.until_it_waits().await;
        program.signal(signal);
        let (status, printed, _) = program.end().await;
        assert_eq!((status, &*printed), (expected, ""));
        assert_eq!(mutex.inspect().await.expect("the file answers").waiters.len(), 0);
    }
    held.release().await.expect("it is held");
}

/// What it has left running is neither protected nor ended.
#[tokio::test]
async fn the_lock_is_free_when_the_command_has_ended() {
    let file = SqliteFile::new();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!";
    let mut program = Program::start(&file.url(), &["run", "a", "--", "sh", "-c", script]);
    let daemon = program.line().await;
    assert_eq!(program.end().await.0, 0);
    let client = Client::connect(&file.url()).await.expect("the file can be used");
    let free = client.mutex("a").expect("a name").try_lock().await.expect("the file answers");
    assert!(free.is_some() && is_alive(&daemon));
    let pid = nix::unistd::Pid::from_raw(daemon.parse().expect("a number"));
    nix::sys::signal::kill(pid, Signal::SIGKILL).expect("it runs");
}
