//! One of the two sides: a store, its clients, and the requests that wait. Carries out steps and reports what came of
//! them, in labels instead of lease ids.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::{
    AcquireRequest, Backend, Claim, Detail, Inspection, Kind, LeaseId, Limit, RenewRequest, Resource, Stated,
    Wait, Whose,
};

use crate::line::{Line, Waiting};
use crate::plan::{CLIENTS, LIMITS, Label, Nature, Request, Step, TICK, TWO_DAYS, Wanted};
use crate::reply::{Answers, Reply, Report};

pub(crate) type Client = Arc<dyn Backend>;
/// What a step failed with, other than by an answer: the sequence has failed.
pub(crate) type Failed = String;
/// A handle of a semaphore: client, site and number.
pub(crate) type Handle = (usize, usize, usize);

/// What differs from store to store besides [`Backend`].
pub(crate) trait Store {
    /// A new client.
    fn connect(&mut self) -> Client;

    /// Ends a client without a word, as when its process is killed.
    fn crash(&mut self, client: Client);

    fn lose_memory(&mut self);

    fn pass(&mut self, time: Duration);

    /// Carries out one verb.
    fn run<T>(&mut self, verb: impl Future<Output = T>) -> T;

    /// Lets those in line that are meant ask again, in order of arrival, as they do every third of a lease. Returns when
    /// all have been answered.
    fn ask_again(&mut self, line: &mut Line, meant: fn(&Waiting) -> bool) -> Result<Answers, Failed>;

    /// Waits until every request is either answered or stands in line, those that were `expected` to be answered too.
    /// Whatever is still to be noticed at what the last step has `touched` is noticed now.
    fn settle(
        &mut self,
        line: &mut Line,
        touched: Option<&Resource>,
        expected: &Answers,
    ) -> Result<Answers, Failed>;

    /// The keys whose names contain `of`, other than fences.
    fn leftovers(&mut self, of: &str) -> Vec<String>;
}

/// A lease that was named.
pub(crate) struct Lease {
    pub(crate) request: Arc<AcquireRequest>,
    pub(crate) client: usize,
    pub(crate) site: usize,
    /// When its client crashed, if it did.
    pub(crate) crashed: Option<Duration>,
}

/// One side.
pub(crate) struct Side<S> {
    store: S,
    seats: Vec<Client>,
    sites: Vec<(Arc<str>, Nature)>,
    limits: HashMap<Handle, Limit>,
    pub(crate) leases: BTreeMap<Label, Lease>,
    labels: HashMap<LeaseId, Label>,
    line: Line,
    /// How much time has passed since the sequence began.
    pub(crate) elapsed: Duration,
}

impl<S: Store> Side<S> {
    pub(crate) fn new(mut store: S) -> Self {
        let seats = (0..CLIENTS).map(|_| store.connect()).collect();
        Self {
            store,
            seats,
            sites: Vec::new(),
            limits: HashMap::new(),
            leases: BTreeMap::new(),
            labels: HashMap::new(),
            line: Line::default(),
            elapsed: Duration::ZERO,
        }
    }

    /// Begins a sequence: nobody has been here.
    pub(crate) fn begin(&mut self, sequence: &str, sites: &[Nature]) {
        let key = |(number, nature): (usize, &Nature)| (format!("model:{sequence}:{number}").into(), *nature);
        self.sites = sites.iter().enumerate().map(key).collect();
        self.line = Line::default();
        self.limits.clear();
        self.leases.clear();
        self.labels.clear();
        self.elapsed = Duration::ZERO;
    }

    /// Makes up for a sequence that was broken off.
    pub(crate) fn clean(&mut self) {
        self.line = Line::default();
        for seat in 0..CLIENTS {
            self.replace(seat);
        }
        self.store.lose_memory();
    }

    /// Carries out a step. What it is `expected` to bring about is waited for; whether it does is for others to see.
    pub(crate) fn take(&mut self, step: &Step, expected: &Answers) -> Result<Report, Failed> {
        self.request(step);
        let reply = self.verb(step);
        let mut answers = self.fault(step)?;
        let seen = match step {
            Step::Look { client, site, numbers: true } => Some(self.look(*client, *site, Detail::Numbers)?),
            Step::Look { client, site, .. } => Some(self.look(*client, *site, Detail::Everybody)?),
            _ => None,
        };
        let touched = self.site_of(step).map(|site| self.resource(site));
        answers.extend(self.store.settle(&mut self.line, touched.as_ref(), expected)?);
        Ok(Report { reply, answers, seen })
    }

    /// Sends a request, if the step is one.
    fn request(&mut self, step: &Step) {
        if let Step::Ask(label, request) | Step::Name(label, request) = step {
            self.name(*label, request);
        }
        if let Step::Ask(label, _) | Step::AskAgain(label) = step {
            let (client, request) = self.lease(*label);
            self.line.send(*label, client, request);
        }
    }

    /// Carries out a verb that is answered at once, if the step is one.
    fn verb(&mut self, step: &Step) -> Option<Reply> {
        Some(match step {
            Step::Renew(label, term) => {
                let (client, lease) = self.lease(*label);
                let request = RenewRequest::new(lease.lease, lease.resource.clone(), term.duration());
                self.store.run(client.renew(&request)).into()
            }
            Step::Release(label) => {
                self.line.drop_where(|waiting| waiting.label == *label);
                self.release(*label, Whose::Lease)
            }
            Step::Keep(label, permits) => self.release(*label, |lease| Whose::AllBut(lease, *permits)),
            Step::Force { client, site } => {
                let (client, resource) = (self.seat(*client), self.resource(*site));
                self.store.run(client.release(&resource, Whose::Anyone)).into()
            }
            Step::Resize { client, site, handle, permits, term } => {
                let limit = self.limit(*client, *site, *handle);
                let (client, resource) = (self.seat(*client), self.resource(*site));
                self.store.run(client.resize(&resource, *permits, term.duration(), &limit)).into()
            }
            _ => return None,
        })
    }

    /// Lets time pass or something go wrong, if the step is that, and those who wait ask again.
    fn fault(&mut self, step: &Step) -> Result<Answers, Failed> {
        match step {
            Step::Crash(client) => {
                self.crash(*client);
                // Where nobody is passed, the dead may stand in the way of somebody who fits. When one of those behind
                // them asks, it comes to light, at the latest after a third of a lease; here it does at once.
                let behind = |waiting: &Waiting| waiting.request.resource.kind == Kind::Fair;
                self.store.ask_again(&mut self.line, behind)
            }
            Step::LoseMemory => {
                self.store.lose_memory();
                self.store.ask_again(&mut self.line, |_| true)
            }
            Step::Pass(ticks) => {
                self.pass(TICK * *ticks);
                self.store.ask_again(&mut self.line, |_| true)
            }
            Step::Idle => {
                self.pass(TWO_DAYS);
                Ok(Answers::new())
            }
            _ => Ok(Answers::new()),
        }
    }

    /// The site at which a step does something, if it does so at one.
    pub(crate) fn site_of(&self, step: &Step) -> Option<usize> {
        match step {
            Step::Ask(label, _)
            | Step::AskAgain(label)
            | Step::Renew(label, _)
            | Step::Release(label)
            | Step::Keep(label, _) => Some(self.leases[label].site),
            Step::Force { site, .. } | Step::Resize { site, .. } | Step::Look { site, .. } => Some(*site),
            _ => None,
        }
    }

    /// What a sequence has left in the store, other than fences.
    pub(crate) fn leftovers(&mut self, sequence: &str) -> Vec<String> {
        self.store.leftovers(&format!("model:{sequence}:"))
    }

    pub(crate) fn look(&mut self, client: usize, site: usize, detail: Detail) -> Result<Inspection, Failed> {
        let (client, resource) = (self.seat(client), self.resource(site));
        self.store.run(client.inspect(&resource, detail)).map_err(|error| format!("no inspection: {error}"))
    }

    /// What the handles know of the limits.
    pub(crate) fn stated(&self) -> BTreeMap<Handle, Stated> {
        self.limits.iter().map(|(handle, limit)| (*handle, limit.stated())).collect()
    }

    /// Those on their way, in order of arrival.
    pub(crate) fn waiting(&self) -> Vec<Label> {
        self.line.labels()
    }

    pub(crate) fn is_revoked(&self, label: Label) -> bool {
        self.leases[&label].request.revocation.is_revoked()
    }

    /// Gives what was pushed a chance to arrive.
    pub(crate) fn breathe(&mut self) -> Result<(), Failed> {
        self.look(0, 0, Detail::Numbers).map(drop)
    }

    pub(crate) fn label_of(&self, id: &str) -> Option<Label> {
        LeaseId::parse(id).and_then(|id| self.labels.get(&id)).copied()
    }

    fn name(&mut self, label: Label, wanted: &Request) {
        let claim = match wanted.claim {
            Wanted::Sole => Claim::Sole,
            Wanted::Owner(owner) => Claim::Owner(owner.into()),
            Wanted::Permits { permits, handle } => {
                Claim::Permits(permits, self.limit(wanted.client, wanted.site, handle))
            }
        };
        let mut resource = self.resource(wanted.site);
        if claim.owner().is_some() {
            resource.kind = Kind::Reentrant;
        }
        let id = self.seats[wanted.client].lease_id();
        let mut request = AcquireRequest::new(id, resource, claim, wanted.term.duration());
        request.wait = if wanted.waits { Wait::Forever } else { Wait::No };
        let lease =
            Lease { request: Arc::new(request), client: wanted.client, site: wanted.site, crashed: None };
        self.leases.insert(label, lease);
        self.labels.insert(id, label);
    }

    fn release(&mut self, label: Label, whose: impl FnOnce(LeaseId) -> Whose) -> Reply {
        let (client, request) = self.lease(label);
        self.store.run(client.release(&request.resource, whose(request.lease))).into()
    }

    fn crash(&mut self, client: usize) {
        let leases = &mut self.leases;
        for lease in leases.values_mut().filter(|lease| lease.client == client) {
            lease.crashed.get_or_insert(self.elapsed);
        }
        self.line.drop_where(|waiting| leases[&waiting.label].crashed.is_some());
        self.limits.retain(|(of, _, _), _| *of != client);
        self.replace(client);
    }

    fn replace(&mut self, seat: usize) {
        let new = self.store.connect();
        let old = std::mem::replace(&mut self.seats[seat], new);
        self.store.crash(old);
    }

    fn pass(&mut self, time: Duration) {
        self.store.pass(time);
        self.elapsed += time;
    }

    fn seat(&self, client: usize) -> Client {
        Arc::clone(&self.seats[client])
    }

    fn resource(&self, site: usize) -> Resource {
        let (key, nature) = &self.sites[site];
        let kind = match nature {
            Nature::Lock => Kind::Mutex,
            Nature::Counting => Kind::Counting,
            Nature::Fair => Kind::Fair,
        };
        Resource::new(Arc::clone(key), kind)
    }

    fn lease(&self, label: Label) -> (Client, Arc<AcquireRequest>) {
        let lease = &self.leases[&label];
        (self.seat(lease.client), Arc::clone(&lease.request))
    }

    fn limit(&mut self, client: usize, site: usize, handle: usize) -> Limit {
        self.limits.entry((client, site, handle)).or_insert_with(|| Limit::new(LIMITS[handle])).clone()
    }
}
