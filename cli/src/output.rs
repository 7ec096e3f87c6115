//! Printing for people, and as JSON with stable field names.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

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

/// Such as `3.2 s`, `12 s`, `4 min 10 s`.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// The same for a table, such as `3.2s`, `12s`, `4m10s`, `3h02m`, `12d`.
pub(crate) fn short_time(time: Duration) -> String {
    match time.as_secs() {
        0..10 => format!("{:.1}s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        seconds @ 7200..172_800 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// How many wait, as errors of the library say it.
pub(crate) fn waiters(count: usize) -> String {
    if count == 1 { "1 waits".to_owned() } else { format!("{count} wait") }
}

/// Text of others, such as a name, without what a terminal would take for a command.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let escaped =
        text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() });
    escaped.collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_text_of_others_has_no_control_characters() {
        for (millis, long, short) in [
            (3210, "3.2 s", "3.2s"),
            (12_999, "12 s", "12s"),
            (250_000, "4 min 10 s", "4m10s"),
            (10_920_000, "3 h 2 min", "3h02m"),
            (1_036_800_000, "288 h 0 min", "12d"),
        ] {
            let duration = Duration::from_millis(millis);
            assert_eq!((&*time(duration), &*short_time(duration)), (long, short));
        }
        assert_eq!(clean("a\u{1b}[31m\nü"), "a\\u{1b}[31m\\nü");
        assert_eq!(clean("\\n"), "\\n");
    }
}
