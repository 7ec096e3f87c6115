//! Records that may be anything: what no ledger has written is refused, and with what is accepted, nobody gets what
//! another one holds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::random::Random;
use super::{Effects, Ledger, Stamp};
use crate::backend::types::*;
use crate::backend::{BackendError, LeaseId};

const TTL: Duration = Duration::from_secs(10);

/// Reads a record, and uses it.
pub(in crate::backend) fn record(bytes: &[u8]) {
    let Some(ledger) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<Ledger>().ok()) else {
        return;
    };
    reads_back(&ledger);
    Site::new(ledger, true, bytes).run();
}

/// Uses one that was put together from what a store keeps apart. Its queue has the store's numbers.
pub(in crate::backend) fn used(ledger: Ledger, bytes: &[u8]) {
    Site::new(ledger, false, bytes).run();
}

/// At the end of something that is there, right before or after it, or at any other time.
fn some_time(ledger: &Ledger, random: &mut Random) -> u64 {
    let ends: Vec<_> = ledger.entries().map(|entry| entry.ends).collect();
    let near = if ends.is_empty() { 0 } else { ends[random.below(ends.len() as u64) as usize] };
    match random.below(5) {
        0 => 0,
        1 => near,
        2 => near.saturating_sub(1),
        3 => near.saturating_add(1),
        _ => 1_764_090_000_000_000,
    }
}

/// What is stored is read as it was.
fn reads_back(ledger: &Ledger) {
    let text = ledger.to_string();
    let again: Ledger = text.parse().expect("a record that was written is read");
    assert_eq!(again.to_string(), text);
    assert_eq!(again.permits_held, ledger.permits_held);
}

/// A few operations, of clients that the record knows and of others.
struct Site {
    ledger: Ledger,
    /// Whether its text has the queue.
    is_whole: bool,
    now: u64,
    random: Random,
}

/// Who holds.
#[derive(PartialEq, Eq)]
struct Held {
    leases: BTreeSet<LeaseId>,
    owners: BTreeSet<Option<Arc<str>>>,
    permits: u64,
}

impl Site {
    fn new(ledger: Ledger, is_whole: bool, seed: &[u8]) -> Self {
        let seed = seed.iter().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add((*byte).into()));
        let mut random = Random::new(seed);
        let now = some_time(&ledger, &mut random);
        Self { ledger, is_whole, now, random }
    }

    fn run(mut self) {
        for _ in 0..16 {
            self.step();
        }
    }

    fn step(&mut self) {
        let before = self.held();
        let last = self.ledger.last;
        let mut effects = Effects::default();
        self.operation(&mut effects);
        self.judge(&before, last, &effects);
        if self.ledger.last <= super::MAX_NUMBER {
            let stored = if self.is_whole { self.ledger.clone() } else { self.ledger.without_queue() };
            reads_back(&stored);
        }
        self.now = self.now.saturating_add(self.random.below(20_000_000));
    }

    /// What is answered and what has become of it may differ; both count.
    fn judge(&self, before: &Held, last: u64, effects: &Effects) {
        let after = self.held();
        let granted: Vec<_> = after.leases.difference(&before.leases).collect();
        for lease in &granted {
            let hold = &self.ledger.holds[*lease];
            let re_entered = hold.party.owner.is_some() && before.owners.contains(&hold.party.owner);
            assert!(
                re_entered || hold.token.get() > last || last >= super::MAX_NUMBER,
                "a token is used twice"
            );
        }
        if granted.is_empty() {
            return;
        }
        if self.ledger.kind.is_semaphore() {
            let limit = self.ledger.limit.map_or(0, |limit| u64::from(limit.permits));
            assert!(after.permits <= limit, "{} permits of {limit} are held", after.permits);
        } else {
            let is_one = after.leases.len() == 1 || after.owners.len() == 1 && !after.owners.contains(&None);
            assert!(is_one, "{} hold a lock", after.leases.len());
        }
        for event in &effects.events {
            if let Event::Granted { lease, grant, .. } = event {
                let hold = self.ledger.holds.get(&lease.id);
                assert_eq!(hold.map(|hold| hold.token), Some(grant.token), "a grant that is not stored");
            }
        }
    }

    fn held(&self) -> Held {
        let live = || self.ledger.holds.iter().filter(|(_, hold)| hold.ends > self.now);
        Held {
            leases: live().map(|(lease, _)| *lease).collect(),
            owners: live().map(|(_, hold)| hold.party.owner.clone()).collect(),
            permits: live().map(|(_, hold)| u64::from(hold.permits)).sum(),
        }
    }

    fn operation(&mut self, effects: &mut Effects) {
        let floor = [0, self.now / 2, self.now][self.random.below(3) as usize];
        let stamp = Stamp::new(self.now, self.now, floor);
        let (lease, is_new) = self.lease();
        let resource = self.resource();
        let lease = LeaseRef::new(lease, resource.clone());
        let permits = 1 + self.random.below(4) as u32;
        match self.random.below(10) {
            0..4 => {
                let claim = self.claim(resource.kind, permits);
                let mut request = Request::new(lease, claim, TTL);
                request.waits = self.random.below(2) > 0;
                let answer = self.ledger.request(&request, stamp, effects);
                self.judge_answer(&request, is_new, answer);
            }
            4 => drop(self.ledger.renew(&Renew::new(lease, TTL), stamp)),
            5..7 => drop(self.ledger.release(&lease, self.random.below(3) as u32, stamp, effects)),
            7 => drop(self.ledger.force_release(&resource, stamp, effects)),
            8 if resource.kind.is_semaphore() => {
                drop(self.ledger.set_limit(&resource, permits, TTL, stamp, effects));
            }
            _ => {
                for detail in [Detail::Full, Detail::Summary, Detail::Counts] {
                    drop(self.ledger.inspect(&resource, detail, stamp, &mut Effects::default()));
                }
            }
        }
    }

    fn judge_answer(&self, request: &Request, is_new: bool, answer: Result<Answer, BackendError>) {
        let lease = request.lease.id;
        let token = |lease| self.ledger.holds.get(&lease).map(|hold| hold.token);
        match answer {
            Ok(Answer::Granted(grant)) => {
                assert_eq!(token(lease), Some(grant.token), "a grant that is not stored")
            }
            Ok(Answer::Queued(queued)) => {
                let place = self.ledger.queue.get(&queued.ticket).map(|place| place.lease);
                assert_eq!(place, Some(lease), "a place that is not stored");
            }
            Ok(Answer::Busy { .. }) | Err(_) => assert!(!is_new || token(lease).is_none()),
        }
    }

    /// One that is there, or a new one.
    fn lease(&mut self) -> (LeaseId, bool) {
        let known: Vec<_> = self.ledger.entries().map(|entry| entry.lease).collect();
        match self.random.below(known.len() as u64 + 2) as usize {
            n if n < known.len() => (known[n], false),
            _ => {
                let new = LeaseId::next(Uuid::nil());
                (new, !known.contains(&new))
            }
        }
    }

    /// Of the kind of the record, mostly.
    fn resource(&mut self) -> Resource {
        let kind = match self.random.below(4) {
            0 => Kind::ALL[self.random.below(4) as usize],
            _ => self.ledger.kind,
        };
        Resource::named("lock:", "key", kind)
    }

    fn claim(&mut self, kind: Kind, permits: u32) -> Claim {
        match kind {
            Kind::Mutex => Claim::Sole,
            Kind::Reentrant => {
                let known = self.ledger.owner().cloned().filter(|_| self.random.below(2) > 0);
                Claim::Owner(known.unwrap_or_else(|| "someone".into()))
            }
            Kind::Counting | Kind::Fair => {
                let in_force = self.ledger.limit.filter(|_| self.random.below(4) > 0);
                Claim::Permits(permits, in_force.unwrap_or(Limit::stated(3)))
            }
        }
    }
}
