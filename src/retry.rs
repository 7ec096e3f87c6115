//! How loops that go on for ever go on after an error.

use std::time::Duration;

use uuid::Uuid;

use crate::error::Error;

/// The first pause.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause. What went well for as long is followed by the first pause again.
pub(crate) const LONGEST: Duration = Duration::from_secs(30);

/// Pauses that double from one to the next, each shortened at random by up to half, so that those who failed at the
/// same time do not all come back at the same time.
#[derive(Debug)]
pub(crate) struct BackOff {
    next: Duration,
}

impl Default for BackOff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl BackOff {
    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let longest = self.next;
        self.next = (longest * 2).min(LONGEST);
        let half = u64::try_from(longest.as_micros() / 2).unwrap_or(u64::MAX);
        let (_, random) = Uuid::new_v4().as_u64_pair();
        longest - Duration::from_micros(random % half.max(1))
    }

    /// Begins again with the first pause.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Whether the same call would fail for ever. What a store refuses it may allow later, when a permission was granted
/// for instance.
pub(crate) const fn is_final(error: &Error) -> bool {
    match error {
        Error::Closed { .. }
        | Error::Forked { .. }
        | Error::InvalidArgument { .. }
        | Error::LimitDiffers { .. }
        | Error::Unsupported { .. } => true,
        Error::Lost { .. }
        | Error::StoreRefused { .. }
        | Error::StoreUnavailable { .. }
        | Error::TimedOut { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_shortened_by_less_than_half() {
        let mut back_off = BackOff::default();
        let mut longest = FIRST;
        for _ in 0..20 {
            let pause = back_off.pause();
            assert!(
                pause > longest / 2 - Duration::from_micros(1) && pause <= longest,
                "{pause:?} of {longest:?}"
            );
            longest = (longest * 2).min(LONGEST);
        }
        assert_eq!(longest, LONGEST);
        back_off.reset();
        assert!(back_off.pause() <= FIRST);
    }

    #[test]
    fn pauses_differ_from_one_client_to_another() {
        let pauses: std::collections::BTreeSet<_> = (0..20).map(|_| BackOff::default().pause()).collect();
        assert!(pauses.len() > 10, "{pauses:?}");
    }
}
