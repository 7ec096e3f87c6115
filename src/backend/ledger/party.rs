//! For whom something is held or awaited, and its text form: words that people can read, such as ` label="api-7 (pid
//! 4711)"`.

use std::fmt::{self, Write};
use std::sync::Arc;

use crate::backend::types::Request;

/// For whom something is held or awaited. Only the owner decides anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::backend) struct Party {
    /// The owner of a reentrant lock.
    pub(in crate::backend) owner: Option<Arc<str>>,
    /// What the client is called.
    pub(in crate::backend) label: Option<Arc<str>>,
    /// What the acquisition is for.
    pub(in crate::backend) note: Option<Arc<str>>,
}

impl Party {
    pub(in crate::backend) fn of(request: &Request) -> Self {
        let Request { claim, label, note, .. } = request;
        Self { owner: claim.owner().cloned(), label: label.clone(), note: note.clone() }
    }

    /// Writes what there is, each as a word with a space before it. There is no line break in it.
    pub(in crate::backend) fn write(&self, f: &mut impl Write) -> fmt::Result {
        let Self { owner, label, note } = self;
        for (name, text) in [("owner", owner), ("label", label), ("note", note)] {
            if let Some(text) = text {
                write!(f, " {name}=\"")?;
                write_quoted(f, text)?;
            }
        }
        Ok(())
    }

    /// Reads what [`write`](Self::write) wrote. `None` for anything else.
    pub(in crate::backend) fn read(mut text: &str) -> Option<Self> {
        let mut party = Self::default();
        while !text.is_empty() {
            let (name, rest) = text.strip_prefix(' ')?.split_once("=\"")?;
            let (value, rest) = read_quoted(rest)?;
            let place = match name {
                "owner" => &mut party.owner,
                "label" => &mut party.label,
                "note" => &mut party.note,
                _ => return None,
            };
            *place = Some(value.into());
            text = rest;
        }
        Some(party)
    }
}

fn write_quoted(f: &mut impl Write, text: &str) -> fmt::Result {
    for character in text.chars() {
        match character {
            '\n' => f.write_str("\\n")?,
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            other => f.write_char(other)?,
        }
    }
    f.write_char('"')
}

/// The text up to the closing quote, and what follows.
fn read_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in
            ["", " ", "a b", "\"", "\\", "\\n", "\n", "é\u{0}\u{1f600}", "a\" note=\"b", "api-7 (pid 4711)"]
        {
            let some = || Some(Arc::<str>::from(text));
            for (owner, label, note) in
                [(None, None, None), (some(), None, None), (None, some(), some()), (some(), some(), some())]
            {
                let party = Party { owner, label, note };
                let mut written = String::new();
                party.write(&mut written).unwrap();
                assert!(!written.contains('\n'), "{written}");
                assert_eq!(Party::read(&written), Some(party), "{written}");
            }
        }
        for text in
            ["x", " label", " label=\"", " label=\"a", " label=\"a\" ", " colour=\"red\"", " label=\"\\"]
        {
            assert_eq!(Party::read(text), None, "{text}");
        }
    }

    #[test]
    fn a_person_can_read_it() {
        let label = Some("api-7 (pid 4711)".into());
        let mut written = String::new();
        Party { label, ..Party::default() }.write(&mut written).unwrap();
        assert_eq!(written, " label=\"api-7 (pid 4711)\"");
    }
}
