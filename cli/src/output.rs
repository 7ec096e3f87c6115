//! Printing for people, and as JSON with stable field names.

use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::exit::{Failure, LOST};

/// Prints one object on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::new(LOST, error.to_string()))?;
    line(&text)
}

/// Prints a line.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    use io::Write;
    let mut out = anstream::stdout().lock();
    let printed = writeln!(out, "{text}").and_then(|()| out.flush());
    printed.map_err(|error| Failure::new(LOST, format!("standard output cannot be written: {error}")))
}

/// Such as `3.2 s`, `12 s`, `4 min 10 s`.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
