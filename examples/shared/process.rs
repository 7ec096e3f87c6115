//! This program once more, as a process of its own that ends with its parent.

use std::process::{self, ExitStatus, Stdio};
use std::{env, io, thread};

use tokio::process::{Child, ChildStdin, Command};

/// The URL travels in the environment: command lines are public, and there may be a password in it.
const URL: &str = "LEASEHOLD_EXAMPLE_URL";

/// This program, to work at `url`. The caller adds the arguments.
pub(crate) fn command(url: &str) -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.env(URL, url).stdin(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// A running process. Killed when dropped, and ends with this one.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Closed with this process. Not left in `child`, since waiting for that would close it as well.
    _pipe: Option<ChildStdin>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        Ok(Self { _pipe: child.stdin.take(), child })
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }
}

/// Where the work is, if this process was started by another one of this program.
pub(crate) fn url_from_parent() -> Option<String> {
    env::var(URL).ok()
}

/// Standard input ends when the parent is gone, however it went.
pub(crate) fn end_with_parent() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(3);
    });
}
