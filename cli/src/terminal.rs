//! The terminal, of which one process group at a time has the use: the command is in a group of its own.
//!
//! Keys such as Ctrl-C and Ctrl-Z signal the group that has the terminal, and only that group may read from it. If this
//! program has it and its input and output are the terminal, the command gets it, as from a shell. In a pipeline it
//! does not, so that `leasehold run x -- make | less` works, until it wants to read from it.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, killpg};
use nix::unistd::{Pid, getpgrp, getsid, tcgetpgrp, tcsetpgrp};

/// The terminal that controls this process. Programs that are started by `cron` have none.
#[derive(Debug)]
pub(crate) struct Terminal {
    file: File,
    /// The group that has got it from us.
    given_to: Option<Pid>,
    is_wanted: bool,
}

impl Terminal {
    pub(crate) fn of_this_process() -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        let is_wanted = io::stdin().is_terminal() && io::stdout().is_terminal();
        Some(Self { file, given_to: None, is_wanted })
    }

    /// The group gets the terminal if it wants it and it is ours to give.
    pub(crate) fn give(&mut self, group: Pid) {
        if self.is_wanted && self.is_ours() && self.set(group).is_ok() {
            self.given_to = Some(group);
        }
    }

    /// The group was stopped because it wants the terminal. Returns whether it has got it.
    pub(crate) fn give_on_demand(&mut self, group: Pid) -> bool {
        self.is_wanted = true;
        self.give(group);
        self.given_to.is_some()
    }

    /// Undoes it, unless a shell has taken the terminal meanwhile. Returns whether the group had it.
    pub(crate) fn take_back(&mut self) -> bool {
        let Some(group) = self.given_to.take() else { return false };
        let now = tcgetpgrp(&self.file);
        // A shell as the command gives it to groups of its own, which are gone when it is.
        let is_free = now.is_ok_and(|now| now == group || killpg(now, None) == Err(Errno::ESRCH));
        is_free && self.set(getpgrp()).is_ok()
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file) == Ok(getpgrp())
    }

    /// Who does not have the terminal is stopped for this, unless the signal is blocked.
    fn set(&self, group: Pid) -> nix::Result<()> {
        let stops = SigSet::from(Signal::SIGTTOU);
        let before = stops.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let set = tcsetpgrp(&self.file, group);
        before.thread_set_mask()?;
        set
    }
}

/// Stops all of our process group, as Ctrl-Z does with the command's, and returns when it is continued. Returns false
/// at once if no shell could continue it.
pub(crate) fn stop() -> bool {
    let is_under_a_shell = getsid(None).is_ok_and(|session| session != getpgrp());
    is_under_a_shell && killpg(getpgrp(), Signal::SIGSTOP).is_ok()
}
