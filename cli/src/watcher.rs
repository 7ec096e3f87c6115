//! A second process of this program, which kills the command's process group if this program is killed.
//!
//! It leads that group, so the group exists before the command and for as long as anybody in it, and there is no moment
//! at which a process of the command is not in it. It reads a pipe, which ends when this program does, however that
//! ends. The parent-death signal of Linux would reach the command alone and not what that has started, needs a
//! program between this one and the command, and exists on Linux only.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, setpgid};

use crate::exit::{Failure, LOST};

/// The only argument of the second process. No command of this name is documented, and none can be in the way of it.
const ARGUMENT: &str = "--kill-this-group-at-the-end-of-standard-input";

/// What the second process is called in lists of processes. Not as this program: `pkill -9 leasehold` shall not end it
/// before it has done its work.
const NAME: &str = "lease-watcher";

/// Who has lived for less than this is not replaced: another one would live as briefly.
const BRIEF: Duration = Duration::from_secs(1);

/// The second process, seen from the first.
#[derive(Debug)]
pub(crate) struct Watcher {
    child: Child,
    group: Pid,
    /// Open for as long as this program lives.
    pipe: ChildStdin,
    started: Instant,
}

impl Watcher {
    /// Starts it, in a process group of its own. It gets ready while this program goes on.
    pub(crate) fn start() -> Result<Self, Failure> {
        Self::start_in(None).map_err(|error| not_started(&error))
    }

    fn start_in(group: Option<Pid>) -> io::Result<Self> {
        let mut child = Command::new(this_program()?)
            .arg0(NAME)
            .arg(ARGUMENT)
            // The environment may contain a password.
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(group.map_or(0, Pid::as_raw))
            .spawn()?;
        let group = group.unwrap_or_else(|| pid_of(&child));
        let pipe = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, group, pipe, started: Instant::now() })
    }

    /// Waits until no signal to the group can end it any more but KILL, which is usually at once. One that was killed
    /// since it was started is replaced, and has another group.
    pub(crate) fn wait_until_ready(&mut self) -> Result<(), Failure> {
        if self.is_gone() {
            *self = Self::start()?;
        }
        let Some(mut ready) = self.child.stdout.take() else { return Ok(()) };
        ready.read_exact(&mut [0]).map_err(|error| not_started(&error))
    }

    pub(crate) fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Starts another one in the same group, in which somebody must be.
    pub(crate) fn replace(&mut self) -> io::Result<()> {
        if self.started.elapsed() < BRIEF {
            return Err(io::Error::other("it has ended as soon as it was started"));
        }
        *self = Self::start_in(Some(self.group))?;
        Ok(())
    }

    /// The process group for the command.
    pub(crate) const fn group(&self) -> Pid {
        self.group
    }

    /// Lets it watch over the group from outside from now on, so that it can be seen whether anybody else is in it.
    pub(crate) fn leave_the_group(&mut self) {
        // An error means that it is gone, and is not in the group either.
        let _ = self.pipe.write_all(b"\n");
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
    let group = getpgrp();
    // Signals to the command's group are not for it. STOP and KILL cannot be blocked, and stop and end the command too.
    let is_deaf = SigSet::all().thread_block().is_ok();
    #[cfg(target_os = "linux")]
    let is_deaf = is_deaf && nix::sys::prctl::set_name(c"lease-watcher").is_ok();
    let mut ready = io::stdout();
    if !is_deaf || ready.write_all(b"\n").and_then(|()| ready.flush()).is_err() {
        return ExitCode::FAILURE;
    }
    let mut pipe = io::stdin();
    while pipe.read_exact(&mut [0]).is_ok() {
        // If this fails, the first process waits for longer than it need, and no longer than for a command.
        let _ = getpgid(Some(getppid())).and_then(|outside| setpgid(Pid::from_raw(0), outside));
    }
    // Whatever has ended this, there is nothing to read any more.
    let _ = killpg(group, Signal::SIGKILL);
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
