//! A second process of this program, which kills the command's process group if this program is killed.
//!
//! It leads that group, so the group exists before the command and for as long as anybody in it, and there is no moment
//! at which a process of the command is not in it. It reads a pipe to which nothing is ever written: the pipe ends when
//! this program does, however that ends. The parent-death signal of Linux would reach the command alone and not
//! what that has started, needs a program between this one and the command, and exists on Linux only.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgrp};

use crate::exit::{Failure, LOST};

/// The only argument of the second process. No command of this name is documented, and none can be in the way of it.
const ARGUMENT: &str = "--kill-this-group-at-the-end-of-standard-input";

/// What the second process is called in lists of processes. Not as this program: `pkill -9 leasehold` shall not end it
/// before it has done its work.
const NAME: &str = "lease-watcher";

/// The second process, seen from the first.
#[derive(Debug)]
pub(crate) struct Watcher {
    child: Child,
    group: Pid,
    /// Open for as long as this program lives.
    _pipe: ChildStdin,
}

impl Watcher {
    /// Starts it, in a process group of its own. It gets ready while this program goes on.
    pub(crate) fn start() -> Result<Self, Failure> {
        let program = this_program().map_err(|error| not_started(&error))?;
        let child = Command::new(program)
            .arg0(NAME)
            .arg(ARGUMENT)
            // The environment may contain a password.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let mut child = child.map_err(|error| not_started(&error))?;
        let group = pid_of(&child);
        let pipe = child.stdin.take().ok_or_else(|| not_started(&io::ErrorKind::BrokenPipe.into()))?;
        Ok(Self { child, group, _pipe: pipe })
    }

    /// Waits until no signal to the group can end it any more but KILL, which is usually at once.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let Some(mut ready) = self.child.stdout.take() else { return Ok(()) };
        ready.read_exact(&mut [0]).map_err(|error| not_started(&error))
    }

    /// The process group for the command.
    pub(crate) const fn group(&self) -> Pid {
        self.group
    }
}

impl Drop for Watcher {
    /// Before the pipe is closed: what the command has left running in the background stays alone.
    fn drop(&mut self) {
        // An error means that it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether this is the second process.
pub(crate) fn is_this_process() -> bool {
    env::args_os().nth(1).is_some_and(|argument| argument == OsStr::new(ARGUMENT))
}

/// All that the second process does.
pub(crate) fn watch() -> ExitCode {
    // Signals to the command's group are not for it. STOP and KILL cannot be blocked, and stop and end the command too.
    let is_deaf = SigSet::all().thread_block().is_ok();
    #[cfg(target_os = "linux")]
    let is_deaf = is_deaf && nix::sys::prctl::set_name(c"lease-watcher").is_ok();
    let mut ready = io::stdout();
    if !is_deaf || ready.write_all(b"\n").and_then(|()| ready.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    // Whatever ends this, there is nothing to read any more.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    let _ = killpg(getpgrp(), Signal::SIGKILL);
    ExitCode::FAILURE
}

/// The file of this program, even if it has been replaced or deleted since.
fn this_program() -> io::Result<OsString> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    env::current_exe().map(Into::into)
}

/// Of a child that was not waited for, whose id is therefore not used again.
pub(crate) fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

fn not_started(error: &io::Error) -> Failure {
    Failure::new(LOST, format!("the process that watches over the command cannot be started: {error}"))
}
