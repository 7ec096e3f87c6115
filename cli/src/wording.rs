//! How times, numbers and the text of others are written for people.

use std::borrow::Cow;
use std::time::Duration;

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
