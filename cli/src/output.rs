//! Printing for people, and as JSON with stable field names.

use std::io::{self, IsTerminal, Write};

use anstyle::Style;
use serde::Serialize;

use crate::exit::{Failure, LOST};

/// Prints one object on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    line(&to_json(value)?)
}

pub(crate) fn to_json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value).map_err(|error| Failure::new(LOST, error.to_string()))
}

/// Prints a line.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    try_line(text).map_err(unwritable)
}

/// Prints a line, if anybody still reads: `false` if not, as behind `| head`.
pub(crate) fn line_if_read(text: &str) -> Result<bool, Failure> {
    match try_line(text) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(unwritable(error)),
    }
}

fn try_line(text: &str) -> io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

fn unwritable(error: io::Error) -> Failure {
    Failure::new(LOST, format!("standard output cannot be written: {error}"))
}

/// Says something beside the output, on standard error.
pub(crate) fn note(text: &str) {
    let dim = Style::new().dimmed();
    beside(&format!("{dim}{text}{dim:#}"));
}

/// The same, as it is.
pub(crate) fn beside(text: &str) {
    // If nobody can read it, there is nobody to tell, and the output is still of use.
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}
