//! Exit statuses, and failures with what to do about them. The numbers above 63 are those of `sysexits.h`.

use std::fmt::{self, Display};
use std::io::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use leasehold::{Error, ErrorKind};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::getpgrp;
use signal_hook::low_level::emulate_default_handler;

use crate::wording;

/// The answer is no.
pub(crate) const NO: u8 = 1;
/// Invalid arguments or configuration.
pub(crate) const USAGE: u8 = 64;
/// The store could not be reached.
pub(crate) const UNAVAILABLE: u8 = 69;
/// The lease was lost while the command was running, or this program failed.
pub(crate) const LOST: u8 = 70;
/// The lock was not obtained in time.
pub(crate) const NOT_OBTAINED: u8 = 75;
/// The store refused.
pub(crate) const REFUSED: u8 = 77;
/// The command cannot be executed.
pub(crate) const CANNOT_EXECUTE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// How this program ends, as its command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Status(u8),
    /// This program or its command was ended by a signal.
    Signal(Signal),
    /// The same, by a key in the terminal, which had reached the command alone.
    Key(Signal),
}

impl End {
    /// As a shell counts.
    pub(crate) fn status(self) -> u8 {
        match self {
            Self::Status(status) => status,
            // No signal has a number that does not fit.
            Self::Signal(signal) | Self::Key(signal) => 128 + u8::try_from(signal as i32).unwrap_or(0),
        }
    }

    /// Ends this program so, when nothing is left to be done: it may not return.
    pub(crate) fn finish(self) -> ExitCode {
        if let Self::Key(signal) = self {
            // As if the key had been for all: a script ends with the command. An error leaves nobody to tell.
            let _ = killpg(getpgrp(), signal);
        }
        if let Self::Signal(Signal::SIGINT) | Self::Key(Signal::SIGINT) = self {
            // A script of bash goes on after Ctrl-C unless its command dies of it. Nobody needs that of QUIT, with
            // which a core file would be written that contains the URL. If it fails, the status says as much.
            let _ = emulate_default_handler(Signal::SIGINT as i32);
        }
        ExitCode::from(self.status())
    }
}

/// Tells people something, on standard error, without what a terminal would take for a command in the text of others.
pub(crate) fn tell(color: AnsiColor, text: &impl Display) {
    let style = Style::new().fg_color(Some(color.into()));
    let text = text.to_string();
    let text = text.lines().map(wording::clean).collect::<Vec<_>>().join("\n");
    // A terminal that is gone or a disk that is full leaves nobody to tell, and is no reason to end a command or to
    // keep a lock, as the panic of `eprintln!` would.
    let _ = writeln!(anstream::stderr().lock(), "{style}leasehold:{style:#} {text}");
}

/// Why a command of this program failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: None }
    }

    /// What to do next.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Whether this is its exit status.
    pub(crate) const fn is(&self, code: u8) -> bool {
        self.code == code
    }

    /// Prints it to standard error.
    pub(crate) fn report(&self) -> ExitCode {
        tell(AnsiColor::Red, self);
        ExitCode::from(self.code)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  {hint}"),
            None => Ok(()),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::Unsupported | ErrorKind::LimitDiffers => USAGE,
            ErrorKind::TimedOut => NOT_OBTAINED,
            ErrorKind::StoreUnavailable => UNAVAILABLE,
            ErrorKind::StoreRefused => REFUSED,
            _ => LOST,
        };
        Self::new(code, error.to_string())
    }
}

/// What clap says about arguments, or the help that was asked for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Nothing is left to report to if standard error is closed.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}
