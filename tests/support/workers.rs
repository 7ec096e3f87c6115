//! Real processes: this test binary once more, running one test function as its main.
//!
//! ```ignore
//! #[test]
//! fn holder_worker() {
//!     let Some(url) = worker_args() else { return }; // not a worker: nothing to test here
//!     // ... lock ...
//!     say("held");
//! }
//! ```

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use leasehold::FencingToken;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::child::ChildProcess;
use super::clock::Clock;
use super::time::within;

/// Carries the arguments, and makes a process a worker.
const ARGS: &str = "LEASEHOLD_WORKER";
/// Starts the lines that a worker says; everything else on its output is the test runner's.
const MARK: &str = "@@ ";
/// How long a worker may take to say something.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(30);

/// The arguments of this process, if it is a worker.
pub fn worker_args() -> Option<String> {
    env::var(ARGS).ok()
}

/// Tells the test one line. The line is on its way when this returns, whatever happens to the process next.
pub fn say(line: &str) {
    // One write, past the capture of the test runner; the runner's own output may be on the current line.
    let mut stdout = io::stdout().lock();
    let said = stdout.write_all(format!("\n{MARK}{line}\n").as_bytes()).and_then(|()| stdout.flush());
    said.expect("the test process reads");
}

/// A worker process. Killed when dropped, and with the test process.
#[derive(Debug)]
pub struct Worker {
    process: ChildProcess,
    lines: UnboundedReceiver<String>,
}

impl Worker {
    /// Runs the test function `name` (with its module path, as the test runner lists it) in a process of its
    /// own, where [`worker_args`] returns `args`.
    pub fn start(name: &str, args: &str) -> Self {
        Self::start_in([], name, args)
    }

    /// The same in a process that lives by `clock`.
    pub fn start_under(clock: &Clock, name: &str, args: &str) -> Self {
        Self::start_in(clock.environment(), name, args)
    }

    /// The same with more in its environment.
    pub fn start_in<const N: usize>(environment: [(OsString, OsString); N], name: &str, args: &str) -> Self {
        let program = env::current_exe().expect("a process knows its program");
        let options = ["--exact", name, "--nocapture", "--test-threads=1"];
        let mut process = ChildProcess::start(program.as_os_str(), options, |command| {
            command.env(ARGS, args).envs(environment).stdout(Stdio::piped());
        });
        let stdout = process.take_stdout();
        let (said, lines) = unbounded_channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK) {
                    let _ = said.send(line.to_owned());
                }
            }
        });
        Self { process, lines }
    }

    /// The next line the worker says; `None` if it has ended. Panics after half a minute of silence.
    pub async fn line(&mut self) -> Option<String> {
        within(OUTPUT_TIMEOUT, self.lines.recv()).await
    }

    /// The token that the worker says it holds, next.
    pub async fn held(&mut self) -> FencingToken {
        let line = self.line().await.expect("the worker has not ended");
        let token = line.strip_prefix("held ").and_then(|token| token.parse().ok());
        FencingToken::new(token.unwrap_or_else(|| panic!("expected a token that is held, got {line:?}")))
    }

    /// What the worker has said by now and the test has not read yet.
    pub fn unread(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn is_alive(&mut self) -> bool {
        self.process.is_alive()
    }

    /// SIGSTOP, and waits until the worker has stopped.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.resume();
    }

    /// SIGKILL, and waits until the worker is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until the worker ends by itself: the success of its test function. Blocks.
    pub fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }
}
