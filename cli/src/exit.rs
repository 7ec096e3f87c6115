//! Exit statuses, and failures with what to do about them. The numbers above 63 are those of `sysexits.h`.

use std::fmt;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use leasehold::{Error, ErrorKind};
use nix::sys::signal::Signal;

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

/// That of what was ended by a signal.
pub(crate) fn signal(signal: Signal) -> u8 {
    // No signal has a number that does not fit.
    128 + u8::try_from(signal as i32).unwrap_or(0)
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
        let red = Style::new().fg_color(Some(AnsiColor::Red.into()));
        anstream::eprintln!("{red}leasehold:{red:#} {self}");
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
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
