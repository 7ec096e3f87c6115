//! A lease that is requested: what the store has said, and when the request is sent again. No I/O, no clock.

use std::mem;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{BackendError, Grant, Queued as Place, Ticket};
use crate::fence::FencingToken;

/// A lease that is requested.
#[derive(Debug)]
pub(super) struct Queued {
    /// Its place in the store's queue, and when the request was sent that was answered with it.
    pub(super) place: Option<(Place, Instant)>,
    pub(super) told: Told,
    pub(super) flight: Flight,
    pub(super) last: LastAnswer,
}

/// What events have said of a lease that was not granted by an answer yet.
#[derive(Debug)]
pub(super) enum Told {
    Nothing,
    /// It was granted to the place with this ticket. That is not accepted until an answer names the place.
    Granted(Box<(Ticket, Grant)>),
    /// The grant of this token was released by force; if it is 0, any grant.
    Revoked(FencingToken),
}

/// Where the request is, and when the keeper sends it next.
#[derive(Debug)]
pub(super) enum Flight {
    /// Its waiter has sent it, for the first time. Once it is in the keeper's schedule, the keeper repeats it at this
    /// instant.
    First(Instant),
    /// The same, and it is in the schedule: others wait for the lease as well.
    Watched(Instant),
    /// It has been answered, or dropped. The keeper repeats it at this instant.
    Due(Instant),
    /// The keeper has sent it.
    Sent,
    /// The same, and since then there has been a reason to repeat it.
    SentBefore,
}

/// When the store answered last, or the lease was created.
#[derive(Debug)]
pub(super) enum LastAnswer {
    At(Instant),
    /// The request that was sent last was not answered.
    Unanswered(Instant, Box<BackendError>),
}

impl Queued {
    /// A lease that is about to be requested.
    pub(super) const fn new(now: Instant, repeat_at: Instant) -> Self {
        let (flight, last) = (Flight::First(repeat_at), LastAnswer::At(now));
        Self { place: None, told: Told::Nothing, flight, last }
    }

    /// The store has answered a request that was sent at `sent` with a place: it is sent again after `pause`. Returns
    /// the grant to this place, if it was pushed before the answer; it is not accepted if it is too old.
    pub(super) fn placed(
        &mut self,
        place: Place,
        sent: Instant,
        now: Instant,
        pause: Duration,
        is_fresh: bool,
    ) -> Option<Grant> {
        let ticket = place.ticket;
        self.last = LastAnswer::At(now);
        // Answers to requests that were in flight together may arrive in any order.
        match self.place {
            Some((known, last)) if known.ticket > ticket || (known.ticket == ticket && last > sent) => {}
            _ => self.place = Some((place, sent)),
        }
        self.flight.answered(now, pause);
        let Told::Granted(pushed) = &self.told else { return None };
        let (granted, grant) = **pushed;
        self.told = Told::Nothing;
        if granted == ticket && is_fresh {
            return Some(grant);
        }
        // The grant for this place came too late, or it is for a later place and this answer is out of date.
        if granted >= ticket {
            self.flight.soon(now);
        }
        None
    }

    /// A grant was pushed that cannot be accepted yet. Returns whether the request must be repeated for that: an answer
    /// that is on its way names the place.
    pub(super) fn pushed(&mut self, ticket: Ticket, grant: Grant, now: Instant) -> bool {
        // Beside a revocation, only an answer says what it is worth.
        let is_kept = !matches!(self.told, Told::Revoked(_));
        if is_kept {
            self.told = Told::Granted(Box::new((ticket, grant)));
        }
        let must_ask = !is_kept || !self.flight.is_in_flight();
        if must_ask {
            self.flight.soon(now);
        }
        must_ask
    }

    /// The grant of this token was released by force. Returns whether the request must be repeated for that: a grant
    /// that was pushed before is not kept.
    pub(super) fn revoke(&mut self, token: FencingToken, now: Instant) -> bool {
        let must_ask = matches!(mem::replace(&mut self.told, Told::Revoked(token)), Told::Granted(_));
        if must_ask {
            self.flight.soon(now);
        }
        must_ask
    }

    pub(super) fn is_revoked(&self, token: FencingToken) -> bool {
        matches!(self.told, Told::Revoked(revoked) if revoked == token || revoked.get() == 0)
    }
}

impl Flight {
    pub(super) const fn is_in_flight(&self) -> bool {
        !matches!(self, Self::Due(_))
    }

    /// When the keeper sends the request, if that is due by itself.
    pub(super) const fn at(&self) -> Option<Instant> {
        match self {
            Self::First(at) | Self::Watched(at) | Self::Due(at) => Some(*at),
            Self::Sent | Self::SentBefore => None,
        }
    }

    /// The keeper has it in its schedule from now on. Returns when something is due.
    pub(super) const fn watch(&mut self) -> Option<Instant> {
        if let Self::First(at) = *self {
            *self = Self::Watched(at);
        }
        self.at()
    }

    /// There is a reason to repeat the request now, or when it has been answered if the keeper has sent it.
    pub(super) const fn soon(&mut self, now: Instant) {
        match self {
            Self::First(at) | Self::Watched(at) | Self::Due(at) => *at = now,
            Self::Sent | Self::SentBefore => *self = Self::SentBefore,
        }
    }

    /// It was answered: it is due after `pause`, unless it has been due since it was sent.
    fn answered(&mut self, now: Instant, pause: Duration) {
        let at = match *self {
            Self::First(at) | Self::Watched(at) | Self::Due(at) if at <= now => at,
            Self::SentBefore => now,
            _ => now + pause,
        };
        *self = Self::Due(at);
    }

    /// The waiter that has sent it no longer waits for the answer.
    pub(super) const fn leave_to_keeper(&mut self, now: Instant) {
        if self.at().is_some() {
            *self = Self::Due(now);
        }
    }

    /// It was in flight when the keeper's tasks were started again, if at all, and events may have been lost. `false`
    /// if the keeper has nothing to do for it before it is answered.
    pub(super) const fn take_over(&mut self, now: Instant) -> bool {
        match self {
            Self::First(at) => {
                *at = now;
                return false;
            }
            Self::Watched(at) => *at = now,
            Self::Due(_) | Self::Sent | Self::SentBefore => *self = Self::Due(now),
        }
        true
    }
}

impl LastAnswer {
    pub(super) const fn at(&self) -> Instant {
        match self {
            Self::At(at) | Self::Unanswered(at, _) => *at,
        }
    }
}
