//! The arguments of a script.

use std::mem;

use crate::backend::LeaseId;

/// The maximum number of arguments of a script.
const MAX_ARGS: usize = 7;

/// Arguments in one string: an allocation for each would cost more than everything else.
#[derive(Clone, Debug)]
pub(super) struct Args {
    text: String,
    ends: [usize; MAX_ARGS],
    len: u8,
}

impl Args {
    pub(super) fn new() -> Self {
        // A lease id, and a few small numbers.
        Self { text: String::with_capacity(LeaseId::USUAL_LENGTH + 16), ends: [0; MAX_ARGS], len: 0 }
    }

    pub(super) fn lease(mut self, id: LeaseId) -> Self {
        id.write(&mut self.text);
        self.end()
    }

    pub(super) fn number(self, number: impl itoa::Integer) -> Self {
        self.word(itoa::Buffer::new().format(number))
    }

    pub(super) fn word(mut self, word: &str) -> Self {
        self.text.push_str(word);
        self.end()
    }

    fn end(mut self) -> Self {
        self.ends[usize::from(self.len)] = self.text.len();
        self.len += 1;
        self
    }

    pub(super) const fn len(&self) -> u8 {
        self.len
    }

    /// All arguments, concatenated.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Where each of them ends.
    pub(super) fn ends(&self) -> &[usize] {
        &self.ends[..usize::from(self.len)]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        let mut start = 0;
        self.ends().iter().map(move |end| &self.text[mem::replace(&mut start, *end)..*end])
    }
}
