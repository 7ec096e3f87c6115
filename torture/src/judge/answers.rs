//! How long the store takes to answer, as releases that were awaited show: that is what a machine makes of the store while it
//! has as much to do as here, with the disk that it has. Whoever waits needs two answers, that to the release and its own.

use crate::history::{History, Micros};

/// The longest that counts. A store that is slower is hanging, and that is judged like any other fault.
const LONGEST: Micros = 1_000_000;

/// The releases that were confirmed, by when they were.
pub(super) struct Answers(Vec<(Micros, Micros)>);

impl Answers {
    pub(super) fn of(history: &History) -> Self {
        let confirmed = history.operations.iter().filter_map(|one| Some((one.released?, one.releasing?)));
        let mut answers: Vec<_> = confirmed.collect();
        answers.sort_unstable();
        Self(answers)
    }

    /// How long the slowest answer took of those that were awaited at any of these moments.
    pub(super) fn slowest(&self, from: Micros, to: Micros) -> Micros {
        let later = &self.0[self.0.partition_point(|(answered, _)| *answered < from)..];
        let awaited = later.iter().take_while(|(answered, _)| *answered <= to + LONGEST);
        let took =
            awaited.filter(|(_, sent)| *sent <= to).map(|(answered, sent)| answered.saturating_sub(*sent));
        took.max().unwrap_or_default().min(LONGEST)
    }
}
