//! What a client knows of its lease, and what it makes of answers and pushed grants: `src/lease/` in small.

use super::Variant;
use super::store::{Answer, Lease, Number, Operation, Push, TOKENS, TTL, Ticks};

/// An operation on its way to the store, or its answer on the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Call {
    /// What is asked.
    pub(super) operation: Operation,
    /// For which lease.
    pub(super) lease: Lease,
    /// When it was sent.
    pub(super) at: Ticks,
}

/// A client, and what is under way between it and the store. It has one lease at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) lease: Lease,
    pub(super) phase: Phase,
    /// One connection carries calls and their answers, in order, ...
    pub(super) calls: Vec<Call>,
    pub(super) answers: Vec<(Call, Answer)>,
    /// ... and another one pushed grants.
    pub(super) pushes: Vec<Push>,
    pub(super) draft: Option<Draft>,
}

/// Where its lease stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// It has not been requested.
    Idle,
    /// It is requested.
    Waiting {
        /// The place of the last answer, and when the request was sent that was answered with it.
        place: Option<(Number, Ticks)>,
        /// The ticket and the token of a pushed grant that no answer has confirmed yet.
        told: Option<(Number, Number)>,
    },
    Held(Held),
    /// It was given up or released, which the store has not confirmed.
    Releasing,
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    /// The token of the hold that the lease has been passed on to.
    pub(super) token: Number,
    /// The lease is trusted before then.
    pub(super) until: Ticks,
    /// How often it has been passed on.
    pub(super) passes: Number,
    /// Whether this hold has begun to change the data.
    pub(super) has_read: bool,
}

/// A change of the data that was begun under a token. It may be written at any time, however late.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Draft {
    pub(super) token: Number,
    pub(super) value: u8,
}

impl Client {
    pub(super) fn new(client: u8) -> Self {
        let lease = Lease { client, number: 0 };
        let (calls, answers, pushes) = (Vec::new(), Vec::new(), Vec::new());
        Self { lease, phase: Phase::Idle, calls, answers, pushes, draft: None }
    }

    /// How it holds the lock, as it believes.
    pub(super) fn held(&self, now: Ticks) -> Option<&Held> {
        match &self.phase {
            Phase::Held(held) if now < held.until => Some(held),
            _ => None,
        }
    }

    pub(super) fn in_flight(&self, operation: Operation) -> usize {
        let asked = self.answers.iter().map(|(call, _)| call).chain(&self.calls);
        asked.filter(|call| call.operation == operation && call.lease == self.lease).count()
    }

    pub(super) fn send(&mut self, operation: Operation, now: Ticks) {
        self.calls.push(Call { operation, lease: self.lease, at: now });
    }

    pub(super) fn ask(&mut self, now: Ticks) {
        self.phase = Phase::Waiting { place: None, told: None };
        self.send(Operation::Request, now);
    }

    /// Ends the lease, whether it is held or waited for.
    pub(super) fn release(&mut self, now: Ticks) {
        self.enter(Phase::Releasing);
        self.send(Operation::Release, now);
    }

    /// The next task of this client has the lock, under the next token, until the lease ends.
    pub(super) fn pass_on(&mut self, now: Ticks, variant: Variant) {
        let Phase::Held(held) = &mut self.phase else { return };
        (held.token, held.passes, held.has_read) = (held.token + 1, held.passes + 1, false);
        if variant == Variant::PassesOnPastTheLease {
            held.until = now + TTL;
        }
    }

    /// Whether the lease may be passed on.
    pub(super) fn may_pass_on(&self, now: Ticks, variant: Variant) -> bool {
        let Phase::Held(held) = &self.phase else { return false };
        let is_trusted = now < held.until || variant == Variant::PassesOnPastTheLease;
        is_trusted && held.passes + 1 < TOKENS
    }

    /// The store has answered. What can mean nothing to the client when it arrives is left out at once: so there are
    /// fewer states, in which the same can happen.
    pub(super) fn answer(&mut self, call: Call, answer: Answer) {
        let matters = match self.phase {
            Phase::Idle => false,
            Phase::Waiting { .. } => matches!(answer, Answer::Granted { .. } | Answer::Queued { .. }),
            Phase::Held(_) => matches!(answer, Answer::Renewed | Answer::Lost),
            Phase::Releasing => answer == Answer::Released,
        };
        if matters && call.lease == self.lease {
            self.answers.push((call, answer));
        }
    }

    /// A grant is pushed; likewise.
    pub(super) fn push(&mut self, push: Push) {
        if push.lease == self.lease && matches!(self.phase, Phase::Waiting { .. }) {
            self.pushes.push(push);
        }
    }

    /// An answer has arrived.
    pub(super) fn receive(&mut self, call: Call, answer: Answer, now: Ticks, variant: Variant) {
        match (&mut self.phase, answer) {
            (Phase::Waiting { .. }, Answer::Granted { token, left }) => {
                let from = if variant == Variant::MeasuresFromTheAnswer { now } else { call.at };
                self.hold(token, from + left, now);
            }
            (Phase::Waiting { place, told }, Answer::Queued { ticket }) => {
                // Answers of an earlier connection may be late.
                if place.is_none_or(|(known, at)| known < ticket || (known == ticket && at < call.at)) {
                    *place = Some((ticket, call.at));
                }
                let told = told.take_if(|(granted, _)| *granted <= ticket);
                if let Some((_, token)) = told.filter(|(granted, _)| *granted == ticket) {
                    self.hold(token, call.at + TTL, now);
                }
            }
            (Phase::Held(held), Answer::Renewed) if now < held.until => {
                held.until = held.until.max(call.at + TTL);
            }
            (Phase::Held(_), Answer::Lost) => self.release(now),
            (Phase::Releasing, Answer::Released) => self.forget(),
            _ => {}
        }
    }

    /// A grant was pushed. It is believed if it is for the place by which the request was answered last: then the lease
    /// is measured from that request.
    pub(super) fn notify(&mut self, push: Push, now: Ticks, variant: Variant) {
        let Phase::Waiting { place, told } = &mut self.phase else { return };
        match *place {
            Some((ticket, at)) if ticket == push.ticket || variant == Variant::BelievesLateGrants => {
                self.hold(push.token, at + TTL, now);
            }
            Some((ticket, _)) if ticket > push.ticket => {}
            _ => *told = Some((push.ticket, push.token)),
        }
    }

    /// A lease that is over when its grant arrives is not held: the request is repeated.
    fn hold(&mut self, token: Number, until: Ticks, now: Ticks) {
        if now < until {
            self.enter(Phase::Held(Held { token, until, passes: 0, has_read: false }));
        }
    }

    /// What is on its way means nothing in the next phase.
    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.answers.clear();
        self.pushes.clear();
    }

    /// Nothing is left of the lease, or nobody knows of it any more: the next one will be another.
    pub(super) fn forget(&mut self) {
        self.enter(Phase::Idle);
        self.lease.number += 1;
    }
}
