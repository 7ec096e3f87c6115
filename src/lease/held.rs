//! A lease that is held: who has it, how long it may be trusted, and when it is renewed. No I/O, no clock.

use std::mem;
use std::sync::Arc;

use tokio::time::Instant;

use super::deadline::Deadline;
use crate::backend::BackendError;
use crate::error::LossReason;
use crate::fence::FencingToken;
use crate::observer::{Audience, Observers, Source};

/// A lease that is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) kept: Kept,
    /// The token of the store's grant.
    pub(super) granted: FencingToken,
    /// When the client learned of the grant.
    pub(super) granted_at: Instant,
    hand: Hand,
}

/// Who has the current hold.
#[derive(Debug)]
enum Hand {
    /// Nobody: it may be handed to a waiter.
    Free,
    /// It has been handed to a waiter, which has not taken it up yet. Until then it is not renewed.
    Handed,
    /// The same, right after the hold before it: the lease is still scheduled for its renewal.
    PassedOn,
    /// That waiter has taken it up. As many guards share it, with as many permits together: re-entering and splitting
    /// add one.
    Taken { guards: u32, permits: u32 },
    /// The last guard is gone: the lease is about to be passed on or released.
    Left,
}

/// The part of a lease that is renewed: also for a while after it was released.
#[derive(Debug)]
pub(super) struct Kept {
    /// The token of the current hold.
    pub(super) token: FencingToken,
    pub(super) deadline: Deadline,
    pub(super) renewal: LastRenewal,
    /// Who was told that the current hold began, if anybody was.
    pub(super) observed: Option<Observation>,
}

/// Whose observers were told that a hold began, and when it did.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) observers: Arc<Observers>,
    pub(super) audience: Audience,
    pub(super) since: Instant,
}

impl Observation {
    pub(super) fn audience(&self) -> (Arc<Observers>, Audience) {
        (Arc::clone(&self.observers), self.audience)
    }
}

/// The last renewal.
#[derive(Debug, Default)]
pub(super) enum LastRenewal {
    /// It was confirmed, or there was none. The next one is due when the deadline says.
    #[default]
    Confirmed,
    /// It is due or in flight.
    Sent,
    /// It was not answered.
    Failed(Failure),
    /// It is due or in flight, and the one before was not answered.
    SentAgain(Failure),
}

/// When the renewal that follows one that was not answered is sent, and why that was not.
type Failure = Box<(Instant, BackendError)>;

impl Held {
    /// A lease that was granted now.
    pub(super) const fn granted(kept: Kept, now: Instant) -> Self {
        Self { granted: kept.token, kept, granted_at: now, hand: Hand::Free }
    }

    /// When something is due next, for which the lease is scheduled from now on.
    pub(super) fn schedule(&mut self) -> Instant {
        if matches!(self.hand, Hand::PassedOn) {
            self.hand = Hand::Handed;
        }
        self.due()
    }

    /// When something is due next: a renewal, or the end.
    fn due(&self) -> Instant {
        if self.is_renewed() { self.kept.due() } else { self.kept.deadline.ends() }
    }

    /// Whether the current hold has been taken up.
    pub(super) const fn is_renewed(&self) -> bool {
        matches!(self.hand, Hand::Taken { .. } | Hand::Left)
    }

    /// How often it has been passed on within the client.
    pub(super) const fn passes(&self) -> u64 {
        self.kept.token.get() - self.granted.get()
    }

    /// Who has granted the current hold.
    pub(super) const fn source(&self) -> Source {
        if self.passes() == 0 { Source::Store } else { Source::Client }
    }

    /// The hold is handed to a waiter. `None` if it has been.
    pub(super) fn hand(&mut self) -> Option<FencingToken> {
        if !matches!(self.hand, Hand::Free) {
            return None;
        }
        self.hand = Hand::Handed;
        Some(self.kept.token)
    }

    /// The waiter to which the hold was handed is gone.
    pub(super) const fn take_back(&mut self) {
        self.hand = Hand::Free;
    }

    /// The waiter has taken up the hold. Returns when something is due, if the lease must be scheduled for that.
    pub(super) fn take_up(&mut self, permits: u32, now: Instant, is_capped: bool) -> Option<Instant> {
        let is_scheduled = matches!(self.hand, Hand::PassedOn) && !is_capped;
        self.hand = Hand::Taken { guards: 1, permits };
        self.kept.deadline.start_hold(now);
        (!is_scheduled).then(|| self.due())
    }

    /// The next hold begins, for another waiter.
    pub(super) fn pass_on(&mut self, now: Instant) -> FencingToken {
        self.kept.token = FencingToken::new(self.kept.token.get() + 1);
        self.kept.deadline.start_hold(now);
        self.hand = Hand::PassedOn;
        self.kept.observed = None;
        self.kept.token
    }

    /// Whether a single guard has it.
    pub(super) const fn is_alone(&self) -> bool {
        matches!(self.hand, Hand::Taken { guards: 1, .. })
    }

    /// Adds a guard, with a part of the permits. `false` if there is none.
    pub(super) const fn enter(&mut self) -> bool {
        if let Hand::Taken { guards, .. } = &mut self.hand {
            *guards += 1;
            true
        } else {
            false
        }
    }

    /// Removes a guard with its permits. Returns how many permits the others have; 0 if it was the last guard.
    pub(super) const fn leave(&mut self, returned: u32) -> u32 {
        match &mut self.hand {
            Hand::Taken { guards: guards @ 2.., permits } => {
                *guards -= 1;
                *permits -= returned;
                *permits
            }
            _ => {
                self.hand = Hand::Left;
                0
            }
        }
    }
}

impl Kept {
    pub(super) const fn new(token: FencingToken, deadline: Deadline) -> Self {
        Self { token, deadline, renewal: LastRenewal::Confirmed, observed: None }
    }

    /// When something is due next: a renewal, or the end.
    pub(super) fn due(&self) -> Instant {
        self.next_renewal().unwrap_or_else(|| self.deadline.ends())
    }

    pub(super) fn may_renew(&self, now: Instant) -> bool {
        self.next_renewal().is_some_and(|at| at <= now + self.deadline.leeway())
    }

    /// When the next renewal is due, if there is one and none is in flight.
    fn next_renewal(&self) -> Option<Instant> {
        let due = self.deadline.renew_at()?;
        match &self.renewal {
            LastRenewal::Confirmed => Some(due),
            LastRenewal::Failed(failure) => Some(due.max(failure.0)),
            LastRenewal::Sent | LastRenewal::SentAgain(_) => None,
        }
    }

    /// Begins a renewal, if it may be sent now, or a little early so that it can be sent with others.
    pub(super) fn start_renewal(&mut self, now: Instant) -> bool {
        let may_renew = self.may_renew(now);
        if may_renew {
            self.renewal = match mem::take(&mut self.renewal) {
                LastRenewal::Confirmed | LastRenewal::Sent => LastRenewal::Sent,
                LastRenewal::Failed(failure) | LastRenewal::SentAgain(failure) => {
                    LastRenewal::SentAgain(failure)
                }
            };
        }
        may_renew
    }

    /// Nothing is in flight any more.
    pub(super) fn end_renewal(&mut self) {
        self.renewal = match mem::take(&mut self.renewal) {
            LastRenewal::Confirmed | LastRenewal::Sent => LastRenewal::Confirmed,
            LastRenewal::Failed(failure) | LastRenewal::SentAgain(failure) => LastRenewal::Failed(failure),
        };
    }

    /// A renewal that was sent at `sent` has been confirmed.
    pub(super) fn renewed(&mut self, sent: Instant, now: Instant) {
        // Too late if the deadline has passed, even if this has not been noticed yet.
        if !self.deadline.has_passed(now) {
            self.deadline.extend(sent);
        }
        self.renewal = LastRenewal::Confirmed;
    }

    /// A renewal was not answered.
    pub(super) fn failed(&mut self, error: BackendError, now: Instant) {
        self.end_renewal();
        // A renewal that is given up when the lease ends explains less than the one before it.
        if matches!(self.renewal, LastRenewal::Confirmed) || !self.deadline.has_passed(now) {
            self.renewal = LastRenewal::Failed(Box::new((self.deadline.retry_at(now), error)));
        }
    }

    /// The reason for the loss once the deadline has passed.
    pub(super) fn passed(&self) -> LossReason {
        if self.deadline.ends_by_cap() {
            return LossReason::HeldTooLong;
        }
        match (&self.renewal, self.renewal.error()) {
            (_, Some(error)) if error.is_refusal() => LossReason::StoreRefused,
            (LastRenewal::Confirmed, _) => LossReason::Expired,
            _ => LossReason::StoreUnreachable,
        }
    }
}

impl LastRenewal {
    /// Why the last one that is not in flight was not answered.
    pub(super) const fn error(&self) -> Option<&BackendError> {
        match self {
            Self::Confirmed | Self::Sent => None,
            Self::Failed(failure) | Self::SentAgain(failure) => Some(&failure.1),
        }
    }
}
