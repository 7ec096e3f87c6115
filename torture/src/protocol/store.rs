//! What the store keeps of one lock, and what each operation does to it: `src/backend/ledger.rs` in small.
//!
//! The numbers are those of the ledger if its floor is [`floor`] (`against_ledger.rs` compares them).

use super::Variant;

/// A moment, or a duration, in ticks.
pub type Ticks = u8;

/// A token, or a ticket.
pub type Number = u16;

/// How long a lease lasts without a renewal, and a place without a repeated request.
pub const TTL: Ticks = 2;

/// How many tokens a grant reserves: one for each hold that it may have within a client.
pub const TOKENS: Number = 2;

/// By how much the least number that may be issued grows with each tick. More is never issued in a tick.
const NUMBERS_PER_TICK: Number = 64;

/// The least number that may be issued at this time: it makes numbers increase even if the store has lost its memory.
#[must_use]
pub const fn floor(now: Ticks) -> Number {
    now as Number * NUMBERS_PER_TICK
}

/// The name of an acquisition, which is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// Whose it is.
    pub client: u8,
    /// The how manieth of this client.
    pub number: u8,
}

/// What the store knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    pub(super) hold: Option<Hold>,
    /// In the order of their tickets.
    pub(super) queue: Vec<Place>,
    /// The last number issued.
    pub(super) last: Number,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) lease: Lease,
    pub(super) token: Number,
    pub(super) ends: Ticks,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) ticket: Number,
    pub(super) lease: Lease,
    pub(super) ends: Ticks,
}

/// What is asked of the store for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Operation {
    /// The lock, for the first time or again.
    Request,
    /// Another TTL.
    Renew,
    /// The end of the lease, whether it is held or queued.
    Release,
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Answer {
    /// It is held, for so long.
    Granted {
        /// The first of its tokens.
        token: Number,
        /// For how long from now.
        left: Ticks,
    },
    /// It waits.
    Queued {
        /// Its place.
        ticket: Number,
    },
    /// It was renewed.
    Renewed,
    /// It is not held, so it was not renewed.
    Lost,
    /// It is neither held nor queued any more.
    Released,
}

/// A grant to a waiter, told by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Push {
    /// To whom.
    pub lease: Lease,
    /// To which of its places.
    pub ticket: Number,
    /// The first of its tokens.
    pub token: Number,
}

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the one who asked is told.
    pub answer: Answer,
    /// What a waiter is told.
    pub push: Option<Push>,
    /// Which lease was granted just now, and the first of its tokens.
    pub granted: Option<(Lease, Number)>,
}

impl Outcome {
    const fn of(answer: Answer, push: Option<Push>) -> Self {
        let granted = match push {
            Some(push) => Some((push.lease, push.token)),
            None => None,
        };
        Self { answer, push, granted }
    }
}

impl Store {
    /// Carries out an operation on a lease.
    pub fn execute(&mut self, operation: Operation, lease: Lease, now: Ticks, variant: Variant) -> Outcome {
        self.prune(now, variant);
        match operation {
            Operation::Request => self.request(lease, now, variant),
            Operation::Renew => self.renew(lease, now, variant),
            Operation::Release => self.release(lease, now, variant),
        }
    }

    /// The next place is served first, so that a request overtakes nobody if the last hold has just ended.
    fn request(&mut self, lease: Lease, now: Ticks, variant: Variant) -> Outcome {
        if let Some(place) = self.queue.iter_mut().find(|place| place.lease == lease) {
            place.ends = now + TTL;
        }
        let overtakes = variant == Variant::OvertakesTheQueue && self.hold.is_none();
        let push = if overtakes { None } else { self.serve(now, variant) };
        let mut outcome = Outcome::of(Answer::Released, push);
        if outcome.push.is_some_and(|push| push.lease == lease) {
            // The answer says so.
            outcome.push = None;
        }
        outcome.answer = match &self.hold {
            Some(hold) if hold.lease == lease => Answer::Granted { token: hold.token, left: hold.ends - now },
            Some(_) => Answer::Queued { ticket: self.join(lease, now, variant) },
            None => {
                self.queue.retain(|place| place.lease != lease);
                let token = self.hold(lease, now + TTL, now, variant);
                outcome.granted = Some((lease, token));
                Answer::Granted { token, left: TTL }
            }
        };
        outcome
    }

    fn renew(&mut self, lease: Lease, now: Ticks, variant: Variant) -> Outcome {
        if variant == Variant::RenewsWithoutComparing {
            let token = self.hold.as_ref().map_or(self.last, |hold| hold.token);
            self.hold = Some(Hold { lease, token, ends: now + TTL });
        }
        let answer = match &mut self.hold {
            Some(hold) if hold.lease == lease => {
                hold.ends = now + TTL;
                Answer::Renewed
            }
            _ => Answer::Lost,
        };
        Outcome::of(answer, None)
    }

    /// Ends the lease, and grants the lock to the next place.
    fn release(&mut self, lease: Lease, now: Ticks, variant: Variant) -> Outcome {
        let places = self.queue.len();
        self.queue.retain(|place| place.lease != lease);
        let is_held = self
            .hold
            .take_if(|hold| hold.lease == lease || variant == Variant::ReleasesWithoutComparing)
            .is_some();
        // What was neither held nor queued has changed nothing.
        let push = if is_held || self.queue.len() < places { self.serve(now, variant) } else { None };
        Outcome::of(Answer::Released, push)
    }

    /// Removes what has ended.
    fn prune(&mut self, now: Ticks, variant: Variant) {
        self.hold.take_if(|hold| hold.ends <= now);
        if variant != Variant::IgnoresLiveness {
            self.queue.retain(|place| place.ends > now);
        }
    }

    /// Grants the lock to the first place if it is free. The grant ends when the place would have ended, because its
    /// client measures the lease from its last request for that place.
    fn serve(&mut self, now: Ticks, variant: Variant) -> Option<Push> {
        if self.hold.is_some() || self.queue.is_empty() {
            return None;
        }
        let Place { ticket, lease, ends } = self.queue.remove(0);
        let ends = if variant == Variant::IgnoresLiveness { now + TTL } else { ends };
        let token = self.hold(lease, ends, now, variant);
        Some(Push { lease, ticket, token })
    }

    fn hold(&mut self, lease: Lease, ends: Ticks, now: Ticks, variant: Variant) -> Number {
        let token = self.issue(TOKENS, now, variant);
        self.hold = Some(Hold { lease, token, ends });
        token
    }

    /// The ticket of this lease's place, which is made if there is none.
    fn join(&mut self, lease: Lease, now: Ticks, variant: Variant) -> Number {
        if let Some(place) = self.queue.iter().find(|place| place.lease == lease) {
            return place.ticket;
        }
        let ticket = self.issue(1, now, variant);
        self.queue.push(Place { ticket, lease, ends: now + TTL });
        ticket
    }

    /// Issues `count` numbers, and returns the first.
    fn issue(&mut self, count: Number, now: Ticks, variant: Variant) -> Number {
        let least = if variant == Variant::CountsTokens { 0 } else { floor(now) };
        let last = if variant == Variant::KeepsNoFence { 0 } else { self.last };
        let first = least.max(last + 1);
        self.last = first + count - 1;
        first
    }

    /// Whether it knows this lease.
    pub(super) fn knows(&self, lease: Lease) -> bool {
        self.hold.iter().any(|hold| hold.lease == lease)
            || self.queue.iter().any(|place| place.lease == lease)
    }
}
