//! A command that runs under a lease: in a process group of its own, with signals passed on, ended at a loss.

use std::ffi::OsString;
use std::fmt::Display;
use std::future::pending;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anstyle::AnsiColor;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid};
use tokio::signal::unix;
use tokio::time::{Instant, sleep, sleep_until};

use crate::args;
use crate::exit::{self, CANNOT_EXECUTE, End, Failure, LOST, NOT_FOUND};
use crate::signals::{self, Signals, is_end};
use crate::terminal::{self, Terminal};
use crate::watcher::{Watcher, pid_of};

/// How often it is looked whether processes that an ended command has started have ended too: nobody tells.
const LOOK: Duration = Duration::from_millis(10);
/// The pause between the continuation of this program and that of its command: a lease that has expired meanwhile is
/// known to be lost by then.
const BEFORE_RESUMING: Duration = Duration::from_millis(20);

/// How a command has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    /// The lease was lost meanwhile.
    pub(crate) is_lost: bool,
    /// This program was asked to end, and the command with it.
    pub(crate) is_last: bool,
}

/// What is to be run, and how.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) job: &'a args::Job,
    /// Beside the environment of this program.
    pub(crate) environment: Vec<(&'static str, String)>,
}

impl Job<'_> {
    /// Runs the command until it ends, and all of its process group if `lost` completes before.
    pub(crate) async fn run<L: Display>(
        &self,
        watcher: &mut Watcher,
        signals: &mut Signals,
        lost: impl Future<Output = L>,
    ) -> Result<Ended, Failure> {
        let children = signals::of_children()?;
        watcher.wait_until_ready()?;
        signals.receive_others()?;
        let mut terminal = Terminal::of_this_process();
        if let Some(terminal) = &mut terminal {
            terminal.give(watcher.group());
        }
        let command = match self.start(watcher.group()) {
            Ok(pid) => pid,
            Err(failure) => {
                terminal.as_mut().map(Terminal::take_back);
                return Err(failure);
            }
        };
        let running = Running {
            command: Some(command),
            ended: None,
            watcher,
            is_watched: true,
            terminal,
            children,
            resume_at: None,
            loss: Loss::None,
            is_last: false,
            is_over: false,
        };
        running.until_ended(self.job.kill_after, signals, lost).await
    }

    fn start(&self, group: Pid) -> Result<Pid, Failure> {
        let Some((program, arguments)) = self.job.command.split_first() else {
            return Err(Failure::new(exit::USAGE, "no command is given"));
        };
        let environment = self.environment.iter().map(|(name, value)| (name, value));
        let mut command = Command::new(program);
        command.args(arguments).envs(environment).process_group(group.as_raw());
        command.spawn().map(|child| pid_of(&child)).map_err(|error| not_started(program, &error))
    }
}

/// Whether the lease is lost, and what was done about it.
#[derive(Clone, Copy)]
enum Loss {
    None,
    /// The group was told, and is killed then.
    Told {
        kill_at: Option<Instant>,
    },
    Killed,
}

/// The command while it runs, and after a loss what it has started. All of that is killed if this is dropped before.
struct Running<'a> {
    /// Until it was waited for: another process may have its id then.
    command: Option<Pid>,
    ended: Option<WaitStatus>,
    watcher: &'a mut Watcher,
    is_watched: bool,
    terminal: Option<Terminal>,
    children: unix::Signal,
    resume_at: Option<Instant>,
    loss: Loss,
    is_last: bool,
    is_over: bool,
}

impl Running<'_> {
    async fn until_ended<L: Display>(
        mut self,
        kill_after: Duration,
        signals: &mut Signals,
        lost: impl Future<Output = L>,
    ) -> Result<Ended, Failure> {
        let mut lost = std::pin::pin!(lost);
        let ended = loop {
            if let Some(ended) = self.ended
                && !self.is_anybody_left()
            {
                break ended;
            }
            let kill_at = if let Loss::Told { kill_at } = self.loss { kill_at } else { None };
            tokio::select! {
                biased;
                why = &mut lost, if matches!(self.loss, Loss::None) => self.end(&why, kill_after),
                () = until(kill_at) => self.kill(),
                signal = signals.next() => self.pass_on(signal),
                _ = self.children.recv() => self.look()?,
                () = until(self.resume_at) => self.resume(),
                () = sleep(LOOK), if self.ended.is_some() => {}
            }
        };
        self.is_over = true;
        let had_the_terminal = self.terminal.as_mut().is_some_and(Terminal::take_back);
        let end = match ended {
            WaitStatus::Signaled(_, signal @ (Signal::SIGINT | Signal::SIGQUIT), _) if had_the_terminal => {
                signals.have_asked();
                self.is_last = true;
                End::Key(signal)
            }
            WaitStatus::Signaled(_, signal, _) => End::Signal(signal),
            // No exit status is greater.
            WaitStatus::Exited(_, code) => End::Status(u8::try_from(code).unwrap_or(u8::MAX)),
            _ => End::Status(LOST),
        };
        Ok(Ended { end, is_lost: !matches!(self.loss, Loss::None), is_last: self.is_last })
    }

    /// After a loss, whether anybody uses the time that is left to end. Otherwise what the command has left in the
    /// background is left alone.
    fn is_anybody_left(&self) -> bool {
        // An error means that nobody is there, or nobody who may be signalled.
        matches!(self.loss, Loss::Told { .. }) && killpg(self.watcher.group(), None).is_ok()
    }

    /// To its group, and to the command itself if that has left the group, as interactive shells do.
    fn send(&self, signal: Signal) {
        let group = self.watcher.group();
        // Errors mean that somebody is gone, or may not be signalled.
        let _ = killpg(group, signal);
        if let Some(command) = self.command
            && getpgid(Some(command)).is_ok_and(|now| now != group)
        {
            let _ = kill(command, signal);
        }
    }

    fn end(&mut self, why: &impl Display, kill_after: Duration) {
        self.loss = Loss::Told { kill_at: Instant::now().checked_add(kill_after) };
        self.resume_at = None;
        self.send(Signal::SIGTERM);
        // One that is stopped would not notice.
        self.send(Signal::SIGCONT);
        let kill_after = humantime::format_duration(kill_after);
        say(&format!("{why}; the command gets TERM now, and KILL after {kill_after}"));
    }

    fn kill(&mut self) {
        self.loss = Loss::Killed;
        self.send(Signal::SIGKILL);
        let who = if self.ended.is_none() { "the command is" } else { "processes of the command are" };
        say(&format!("{who} still running; sending KILL"));
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCONT => self.resume_soon(),
            Signal::SIGTSTP => {
                self.send(signal);
                self.stop();
            }
            signal => {
                self.is_last |= is_end(signal);
                self.send(signal);
            }
        }
    }

    /// What has happened to the command, and to who watches over it.
    fn look(&mut self) -> Result<(), Failure> {
        while let Some(command) = self.command {
            match waitpid(command, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(ended @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..))) => {
                    (self.command, self.ended) = (None, Some(ended));
                    if !matches!(self.loss, Loss::None) {
                        self.watcher.leave_the_group();
                    }
                    return Ok(());
                }
                Ok(WaitStatus::Stopped(_, by)) => self.has_stopped(by),
                Ok(_) => break,
                Err(error) => {
                    return Err(Failure::new(LOST, format!("the command cannot be waited for: {error}")));
                }
            }
        }
        if self.is_watched && self.ended.is_none() && self.watcher.is_gone() {
            self.is_watched = self.watch_again();
        }
        Ok(())
    }

    fn watch_again(&mut self) -> bool {
        let Err(error) = self.watcher.replace() else { return true };
        say(&format!(
            "the process that watches over the command has ended, and cannot be started again: {error}; if leasehold is \
             killed now, the command will go on without the lock"
        ));
        false
    }

    fn has_stopped(&mut self, by: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_it = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_it && terminal.give_on_demand(self.watcher.group()) {
            self.send(Signal::SIGCONT);
        } else {
            self.stop();
        }
    }

    /// Stops this program as well, so that a shell has the terminal again. Meanwhile the lease is not renewed.
    fn stop(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        terminal.take_back();
        terminal::stop();
        self.resume_soon();
    }

    /// Unless the lease was lost meanwhile.
    fn resume_soon(&mut self) {
        self.resume_at = Instant::now().checked_add(BEFORE_RESUMING);
    }

    fn resume(&mut self) {
        self.resume_at = None;
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.watcher.group());
        }
        self.send(Signal::SIGCONT);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.send(Signal::SIGKILL);
        if let Some(command) = self.command {
            // Nobody else gets the lock before. If it cannot be waited for, nothing is left to be done.
            let _ = waitpid(command, None);
        }
        self.terminal.as_mut().map(Terminal::take_back);
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Tells people what happens.
pub(crate) fn say(text: &str) {
    exit::tell(AnsiColor::Yellow, &text);
}

fn not_started(program: &OsString, error: &io::Error) -> Failure {
    let program = program.display();
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => {
            Failure::new(NOT_FOUND, format!("`{program}`, or the interpreter that it names, was not found"))
        }
        Some(
            Errno::EACCES
            | Errno::ENOEXEC
            | Errno::ENOTDIR
            | Errno::EISDIR
            | Errno::ELOOP
            | Errno::ENAMETOOLONG
            | Errno::ETXTBSY
            | Errno::E2BIG
            | Errno::EINVAL,
        ) => Failure::new(CANNOT_EXECUTE, format!("the command `{program}` cannot be executed: {error}")),
        // It has failed before the command was to be executed.
        _ => Failure::new(LOST, format!("the command `{program}` cannot be started: {error}")),
    }
}
