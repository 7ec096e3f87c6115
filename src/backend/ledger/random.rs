//! Random operations, for tests of stores that keep holds and places apart from the record, and what the ledger makes
//! of them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{Effects, EntryKind, Ledger, Stamp};
use crate::backend::types::*;
use crate::backend::{BackendError, LeaseId};

/// How many leases are in use at a time. They belong to the clients in turn.
const LEASES: usize = 8;
const CLIENTS: usize = 3;
const LIMIT: u32 = 3;

/// What a client does with one of its leases.
#[derive(Clone, Debug)]
pub(in crate::backend) enum Operation {
    Request {
        lease: usize,
        waits: bool,
        permits: u32,
        tokens: u32,
        seconds: u64,
    },
    Renew {
        lease: usize,
        seconds: u64,
    },
    Release {
        lease: usize,
        keep: u32,
    },
    /// Of the client that this lease belongs to.
    ForceRelease(usize),
    SetLimit(usize, u32),
    Inspect(usize),
}

impl Operation {
    pub(in crate::backend) const fn lease(&self) -> usize {
        match self {
            Self::Request { lease, .. } | Self::Renew { lease, .. } | Self::Release { lease, .. } => *lease,
            Self::ForceRelease(lease) | Self::SetLimit(lease, _) | Self::Inspect(lease) => *lease,
        }
    }
}

/// Random numbers, always the same ones for a seed: the upper halves of a linear congruential generator (Knuth's MMIX).
pub(in crate::backend) struct Random(u64);

impl Random {
    pub(in crate::backend) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(in crate::backend) const fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) % end
    }

    pub(in crate::backend) const fn lease(&mut self) -> usize {
        self.below(LEASES as u64) as usize
    }

    const fn permits(&mut self) -> u32 {
        1 + self.below(LIMIT as u64) as u32
    }

    pub(in crate::backend) const fn operation(&mut self) -> Operation {
        let lease = self.lease();
        match self.below(18) {
            0..8 => Operation::Request {
                lease,
                waits: self.below(5) > 0,
                permits: self.permits(),
                tokens: 1 + self.below(20) as u32,
                seconds: 2 + self.below(3),
            },
            8..10 => Operation::Renew { lease, seconds: 2 + self.below(3) },
            10..15 => Operation::Release { lease, keep: self.below(5).saturating_sub(2) as u32 },
            15 => Operation::ForceRelease(lease),
            16 => Operation::SetLimit(lease, self.permits() + self.below(2) as u32),
            _ => Operation::Inspect(lease),
        }
    }
}

/// The leases that operations are about, and the ledger on which they were carried out directly.
pub(in crate::backend) struct Site {
    pub(in crate::backend) resource: Resource,
    pub(in crate::backend) leases: Vec<LeaseRef>,
    pub(in crate::backend) ledger: Ledger,
    clients: Vec<Uuid>,
    now: u64,
}

/// What was answered, and the events for other clients, without numbers and times.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::backend) struct Outcome {
    pub(in crate::backend) answer: String,
    pub(in crate::backend) events: Vec<String>,
}

impl Site {
    pub(in crate::backend) fn new(kind: Kind, now: u64) -> Self {
        let clients: Vec<_> = (0..CLIENTS).map(|_| Uuid::new_v4()).collect();
        let resource = Resource::named("lock:", "key", kind);
        let lease = |n: usize| LeaseRef::new(LeaseId::next(clients[n % CLIENTS]), resource.clone());
        let leases = (0..LEASES).map(lease).collect();
        Self { leases, resource, ledger: Ledger::default(), clients, now }
    }

    /// The client that an operation is of.
    pub(in crate::backend) fn client(&self, operation: &Operation) -> Uuid {
        self.clients[operation.lease() % CLIENTS]
    }

    /// Carries it out on the ledger itself.
    pub(in crate::backend) fn apply(&mut self, operation: &Operation) -> Outcome {
        let (outcome, mut ledger) = (RefCell::default(), self.ledger.clone());
        self.change(operation, &outcome)(&mut ledger, Stamp::new(self.now, self.now, 0));
        self.ledger = ledger;
        outcome.into_inner()
    }

    /// The change that is to be stored for an operation.
    pub(in crate::backend) fn change<'a>(
        &'a self,
        operation: &'a Operation,
        outcome: &'a RefCell<Outcome>,
    ) -> impl Fn(&mut Ledger, Stamp) -> Effects + 'a {
        let client = self.client(operation);
        move |ledger, stamp| {
            let mut effects = Effects::default();
            let answer = self.carry_out(operation, ledger, stamp, &mut effects);
            // As `LedgerBackend` does.
            let is_own = |event: &mut Event| event.lease().is_some_and(|lease| lease.client() == client);
            effects.events.extract_if(.., is_own).for_each(drop);
            let mut events: Vec<_> = effects.events.iter().map(name_of).collect();
            events.sort();
            *outcome.borrow_mut() = Outcome { answer, events };
            effects
        }
    }

    fn carry_out(
        &self,
        operation: &Operation,
        ledger: &mut Ledger,
        stamp: Stamp,
        effects: &mut Effects,
    ) -> String {
        let lease = &self.leases[operation.lease()];
        let refused = |error: BackendError| error.to_string();
        match *operation {
            Operation::Request { waits, permits, tokens, seconds, .. } => {
                let request = self.request(lease, permits, tokens, seconds);
                let request = Arc::new(Request { waits, ..request });
                effects.requests.push(Arc::clone(&request));
                match ledger.request(&request, stamp, effects) {
                    Ok(Answer::Granted(_)) => "granted".into(),
                    Ok(Answer::Queued(_)) => "queued".into(),
                    Ok(Answer::Busy { .. }) => "busy".into(),
                    Err(error) => refused(error),
                }
            }
            Operation::Renew { seconds, .. } => {
                let renew = Renew::new(lease.clone(), Duration::from_secs(seconds));
                format!("{:?}", ledger.renew(&renew, stamp))
            }
            Operation::Release { keep, .. } => {
                let released = ledger.release(lease, keep, stamp, effects);
                released.map_or_else(refused, |released| format!("{released:?}"))
            }
            Operation::ForceRelease(_) => {
                let forced = ledger.force_release(&self.resource, stamp, effects);
                forced.map_or_else(refused, |forced| forced.to_string())
            }
            Operation::SetLimit(_, permits) if self.resource.kind.is_semaphore() => {
                let ttl = Duration::from_secs(10);
                let limit = ledger.set_limit(&self.resource, permits, ttl, stamp, effects);
                limit.map_or_else(refused, |limit| limit.permits.to_string())
            }
            Operation::SetLimit(..) | Operation::Inspect(_) => {
                let seen = ledger.inspect(&self.resource, Detail::Full, stamp, effects);
                let count = |seen: Inspection| format!("{} {}", seen.holders.len(), seen.waiters.len());
                seen.map_or_else(refused, count)
            }
        }
    }

    fn request(&self, lease: &LeaseRef, permits: u32, tokens: u32, seconds: u64) -> Request {
        let claim = match self.resource.kind {
            Kind::Mutex => Claim::Sole,
            Kind::Reentrant => Claim::Owner(format!("owner {}", permits % 2).into()),
            Kind::Counting | Kind::Fair => Claim::Permits(permits, self.stated()),
        };
        let request = Request::new(lease.clone(), claim, Duration::from_secs(seconds));
        let text = |n: u32| (!n.is_multiple_of(3)).then(|| format!("\"{n}\" ~ ü / % \\").into());
        Request { tokens, label: text(tokens), note: text(tokens / 3), ..request }
    }

    /// Clients follow a limit that was changed.
    fn stated(&self) -> Limit {
        let used = self.ledger.limit.filter(|_| self.ledger.is_used(Stamp::new(self.now, self.now, 0)));
        Limit::stated(used.map_or(LIMIT, |limit| limit.permits))
    }

    /// A lease that was released, also by force, is never requested again.
    pub(in crate::backend) fn replace_released(&mut self, operation: &Operation) {
        if let Operation::Release { lease, keep: 0 } = operation {
            self.replace(*lease);
        }
    }

    /// The same before a request.
    pub(in crate::backend) fn replace_revoked(&mut self, operation: &Operation) {
        if let Operation::Request { lease, .. } = operation
            && self.ledger.revoked.contains_key(&self.leases[*lease].id)
        {
            self.replace(*lease);
        }
    }

    fn replace(&mut self, lease: usize) {
        let new = LeaseId::next(self.clients[lease % CLIENTS]);
        self.leases[lease] = LeaseRef::new(new, self.resource.clone());
    }

    /// A lease ends by itself.
    #[cfg(feature = "etcd")]
    pub(in crate::backend) fn expire(&mut self, lease: usize) {
        let id = self.leases[lease].id;
        let _ = self.ledger.end(id) || self.ledger.withdraw(id);
        self.ledger.revoked.remove(&id);
        self.ledger.derive();
    }
}

/// A ledger without numbers and times: who holds, who waits in this order, and what was ended by force.
pub(in crate::backend) fn shape(ledger: &Ledger) -> (Vec<String>, Option<u32>) {
    let entries = ledger.entries().map(|entry| {
        let kind = match entry.kind {
            EntryKind::Held { .. } => "holds",
            EntryKind::Waiting { tokens, .. } => {
                return format!("{} waits {:?} {tokens}", entry.lease, entry.party);
            }
            EntryKind::Revoked => return format!("{} revoked", entry.lease),
        };
        format!("{} {kind} {} {:?}", entry.lease, entry.permits, entry.party)
    });
    (entries.collect(), ledger.limit.map(|limit| limit.permits))
}

fn name_of(event: &Event) -> String {
    match event {
        Event::Granted { lease, .. } => format!("granted {}", lease.id),
        Event::AskAgain(lease) => format!("ask again {lease}"),
        Event::Revoked { lease, .. } => format!("revoked {lease}"),
        Event::Changed(_) | Event::Resync => "other".into(),
    }
}
