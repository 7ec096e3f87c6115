//! A command that runs under a lease: in a process group of its own, with signals passed on, ended at a loss.

use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp};
use tokio::signal::unix;
use tokio::time::{Instant, sleep_until};

use crate::args;
use crate::exit::{self, CANNOT_EXECUTE, Failure, LOST, NOT_FOUND};
use crate::signals::{self, Signals, is_end};
use crate::terminal::{self, Terminal};
use crate::watcher::{Watcher, pid_of};

/// How a command has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Its exit status, as a shell counts.
    pub(crate) status: u8,
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
        watcher.wait_until_ready()?;
        signals.receive_others()?;
        let children = signals::of_children()?;
        let mut terminal = Terminal::of_this_process();
        if let Some(terminal) = &mut terminal {
            terminal.give(watcher.group());
        }
        let started = self.start(watcher.group());
        let mut running = match started {
            Ok(pid) => Running { pid, group: watcher.group(), terminal, children, is_last: false },
            Err(failure) => {
                terminal.as_mut().map(Terminal::take_back);
                return Err(failure);
            }
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

/// The command while it runs.
struct Running {
    pid: Pid,
    group: Pid,
    terminal: Option<Terminal>,
    children: unix::Signal,
    is_last: bool,
}

impl Running {
    async fn until_ended<L: Display>(
        &mut self,
        kill_after: Duration,
        signals: &mut Signals,
        lost: impl Future<Output = L>,
    ) -> Result<Ended, Failure> {
        let mut lost = std::pin::pin!(lost);
        let mut kill_at: Option<Instant> = None;
        let mut is_lost = false;
        let ended = loop {
            let killing = async {
                match kill_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                why = &mut lost, if !is_lost => {
                    self.end(&why, kill_after);
                    (is_lost, kill_at) = (true, Instant::now().checked_add(kill_after));
                }
                () = killing => {
                    say("it still runs, and is killed");
                    self.send(Signal::SIGKILL);
                    kill_at = None;
                }
                signal = signals.next() => self.pass_on(signal),
                _ = self.children.recv() => {
                    if let Some(ended) = self.look()? {
                        break ended;
                    }
                }
            }
        };
        self.tidy_up(ended, is_lost);
        let status = match ended {
            WaitStatus::Signaled(_, signal, _) => exit::signal(signal),
            // No exit status is greater.
            WaitStatus::Exited(_, code) => u8::try_from(code).unwrap_or(u8::MAX),
            _ => LOST,
        };
        Ok(Ended { status, is_lost, is_last: self.is_last })
    }

    /// To its group, and to the command itself if that has left the group, as interactive shells do.
    fn send(&self, signal: Signal) {
        // Errors mean that somebody is gone, or may not be signalled.
        let _ = killpg(self.group, signal);
        if getpgid(Some(self.pid)).is_ok_and(|group| group != self.group) {
            let _ = kill(self.pid, signal);
        }
    }

    fn end(&self, why: &impl Display, kill_after: Duration) {
        self.send(Signal::SIGTERM);
        // One that is stopped would not notice.
        self.send(Signal::SIGCONT);
        let kill_after = humantime::format_duration(kill_after);
        say(&format!("{why}; the command gets TERM now, and KILL after {kill_after}"));
    }

    fn pass_on(&mut self, signal: Signal) {
        match signal {
            Signal::SIGCONT => self.resume(),
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

    /// What has happened to the command: `Some` if it has ended.
    fn look(&mut self) -> Result<Option<WaitStatus>, Failure> {
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(ended @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..))) => return Ok(Some(ended)),
                Ok(WaitStatus::Stopped(_, by)) => self.has_stopped(by),
                Ok(_) => return Ok(None),
                Err(error) => {
                    return Err(Failure::new(LOST, format!("the command cannot be waited for: {error}")));
                }
            }
        }
    }

    fn has_stopped(&mut self, by: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_it = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        if wants_it && terminal.give_on_demand(self.group) { self.send(Signal::SIGCONT) } else { self.stop() }
    }

    /// Stops this program as well, so that a shell has the terminal again. Meanwhile the lease is not renewed.
    fn stop(&mut self) {
        let Some(terminal) = &mut self.terminal else { return };
        terminal.take_back();
        terminal::stop();
        self.resume();
    }

    fn resume(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.give(self.group);
        }
        self.send(Signal::SIGCONT);
    }

    fn tidy_up(&mut self, ended: WaitStatus, is_lost: bool) {
        if is_lost {
            // What it has started had as much time.
            let _ = killpg(self.group, Signal::SIGKILL);
        }
        let had_the_terminal = self.terminal.as_mut().is_some_and(Terminal::take_back);
        // As if the key had been for all: a script ends with the command.
        if let WaitStatus::Signaled(_, signal @ (Signal::SIGINT | Signal::SIGQUIT), _) = ended
            && had_the_terminal
        {
            let _ = killpg(getpgrp(), signal);
        }
    }
}

/// Tells people, on standard error, what happens.
pub(crate) fn say(text: &str) {
    let yellow = Style::new().fg_color(Some(AnsiColor::Yellow.into()));
    anstream::eprintln!("{yellow}leasehold:{yellow:#} {text}");
}

fn not_started(program: &OsString, error: &io::Error) -> Failure {
    let program = program.display();
    match error.kind() {
        io::ErrorKind::NotFound => Failure::new(NOT_FOUND, format!("the command `{program}` was not found")),
        _ => Failure::new(CANNOT_EXECUTE, format!("the command `{program}` cannot be executed: {error}")),
    }
}
