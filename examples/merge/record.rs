//! The record: one document that is read whole and written back whole.
//!
//! As text, each update is a line `update <source> <round>`, and each part a line `part <name>` followed by the
//! part's own lines, each behind a tab. So nothing in a part can be mistaken for something else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use crate::failure::Failure;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Source and round of every update that is in the record.
    updates: BTreeSet<(u32, u32)>,
    /// The latest text of every part.
    parts: BTreeMap<String, Vec<String>>,
}

impl Record {
    /// Adding the same update twice makes no difference, so that an update can be made again.
    pub(crate) fn add(&mut self, source: u32, round: u32, part: &str, text: &str) {
        self.updates.insert((source, round));
        self.parts.insert(part.to_owned(), text.lines().map(str::to_owned).collect());
    }

    pub(crate) fn updates(&self) -> usize {
        self.updates.len()
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        self.parts.keys().map(String::as_str)
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (source, round) in &self.updates {
            writeln!(f, "update {source} {round}")?;
        }
        for (name, lines) in &self.parts {
            writeln!(f, "part {name}")?;
            lines.iter().try_for_each(|line| writeln!(f, "\t{line}"))?;
        }
        Ok(())
    }
}

impl FromStr for Record {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        let mut record = Self::default();
        let mut part = None;
        for line in text.lines() {
            read_line(line, &mut record, &mut part).ok_or_else(|| Failure::Damaged(line.to_owned()))?;
        }
        Ok(record)
    }
}

/// `None` if the line is none of a record.
fn read_line(line: &str, record: &mut Record, part: &mut Option<String>) -> Option<()> {
    if let Some(own) = line.strip_prefix('\t') {
        record.parts.get_mut(part.as_ref()?)?.push(own.to_owned());
    } else if let Some(name) = line.strip_prefix("part ") {
        record.parts.insert(name.to_owned(), Vec::new());
        *part = Some(name.to_owned());
    } else {
        let (source, round) = line.strip_prefix("update ")?.split_once(' ')?;
        record.updates.insert((source.parse().ok()?, round.parse().ok()?));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_being_written_and_read() {
        let mut record = Record::default();
        record.add(0, 7, "mounts", "proc /proc\n\n\tpart of\nupdate 1 1");
        record.add(3, 0, "empty", "");
        assert_eq!(record.to_string().parse::<Record>().ok(), Some(record));
    }

    #[test]
    fn lines_that_are_none_of_a_record_are_refused() {
        for text in ["\tno part", "update 1", "update x 1", "", "other"].map(|line| format!("{line}\n")) {
            assert!(text.parse::<Record>().is_err(), "{text:?}");
        }
    }
}
