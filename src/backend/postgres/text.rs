//! Text that PostgreSQL can store: it has no zero character.

use std::borrow::Cow;

/// The same text without zero characters. A text that has neither of those nor a backslash stays as it is.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if text.contains(['\0', '\\']) {
        Cow::Owned(text.replace('\\', "\\\\").replace('\0', "\\0"))
    } else {
        Cow::Borrowed(text)
    }
}

/// What was escaped.
pub(super) fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '\\' => match characters.next() {
                Some('0') => '\0',
                // After a backslash there is another one; whatever else there is was not written by `escape`.
                other => other.unwrap_or('\\'),
            },
            other => other,
        });
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_read_as_it_was_written_and_most_are_not_touched() {
        for text in ["", "lock:a", "a b%\n", "é\u{1}"] {
            assert!(matches!(escape(text), Cow::Borrowed(same) if same == text));
            assert_eq!(unescape(text), text);
        }
        for text in ["\0", "\\", "\\0", "a\0\0b", "\\\\0\0\\"] {
            let escaped = escape(text);
            assert!(!escaped.contains('\0'));
            assert_eq!(unescape(&escaped), text);
        }
    }
}
