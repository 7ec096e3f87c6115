//! The program as a process of its own, as scripts use it.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use leasehold_support::within;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// For what should happen at once, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A running program. It is killed when dropped, and its command with it.
pub(crate) struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Program {
    /// `leasehold` with these arguments, on this store.
    pub(crate) fn start<S: AsRef<OsStr>>(url: &str, args: &[S]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(args).env("LEASEHOLD_URL", url);
        Self::spawn(command)
    }

    /// Any program.
    pub(crate) fn spawn(mut command: Command) -> Self {
        // Not what the machine is configured with.
        command.env_remove("LEASEHOLD_CONFIG").env_remove("LEASEHOLD_LABEL").current_dir("/");
        let mut command = with_default_signals(&command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the program starts");
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("piped")).lines();
        let stderr = BufReader::new(child.stderr.take().expect("piped")).lines();
        Self { child, stdin, stdout, stderr }
    }

    /// The next line of standard output.
    #[track_caller]
    pub(crate) fn line(&mut self) -> impl Future<Output = String> {
        let line = within(SOON, self.stdout.next_line());
        async { line.await.expect("it can be read").unwrap_or_default() }
    }

    /// The next line of standard error.
    #[track_caller]
    pub(crate) fn message(&mut self) -> impl Future<Output = String> {
        let line = within(SOON, self.stderr.next_line());
        async { line.await.expect("it can be read").unwrap_or_default() }
    }

    /// Until it says that it waits.
    #[track_caller]
    pub(crate) fn until_it_waits(&mut self) -> impl Future<Output = ()> {
        let message = self.message();
        async { assert!(message.await.contains("waiting for"), "it waits") }
    }

    pub(crate) async fn type_in(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("open");
        stdin.write_all(text.as_bytes()).await.expect("it reads");
        stdin.flush().await.expect("it reads");
    }

    /// The end of its standard input.
    pub(crate) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("it was not waited for").cast_signed())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("it runs");
    }

    /// Its exit status, as a shell counts, and what it has printed that was not read.
    #[track_caller]
    pub(crate) fn end(self) -> impl Future<Output = (i32, String, String)> {
        let Self { mut child, stdin, stdout, stderr } = self;
        within(SOON, async move {
            drop(stdin);
            let (mut out, mut err) = (String::new(), String::new());
            let (mut stdout, mut stderr) = (stdout.into_inner(), stderr.into_inner());
            let ended =
                tokio::join!(child.wait(), stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
            let ended_by = ended.0.expect("it is ours");
            let status = ended_by.code().or(ended_by.signal().map(|signal| 128 + signal)).unwrap_or(-1);
            (status, out, err)
        })
    }
}

/// The same with the default effects of signals: whoever started these tests may ignore some, as `nohup` does, and a
/// script for what it runs in the background.
fn with_default_signals(command: &Command) -> Command {
    let command = command.as_std();
    let mut with = Command::new("env");
    with.arg("--default-signal=HUP,INT,QUIT,TERM,USR1,USR2").arg(command.get_program());
    with.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => with.env(name, value),
            None => with.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        with.current_dir(directory);
    }
    with
}

/// Whether a process runs, or could.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in brackets. A zombie is only remembered.
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !matches!(rest.trim_start().chars().next(), None | Some('Z' | 'X')))
}
