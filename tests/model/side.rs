//! One of the two sides: a store, its clients and their leases. Carries out steps and reports what came of
//! them, in labels instead of lease ids.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use leasehold::backend::{
    Answer, Claim, Detail, Event, Kind, LeaseId, LeaseRef, Limit, Released, Renew, Renewal, Request,
    Resource, Ticket,
};
use leasehold::{BackendError, Inspection, LossReason};
use tokio::time::timeout;

use crate::plan::{self, CLIENTS, LIMITS, Label, Nature, Step, TICK, TWO_DAYS, Wanted};
use crate::stores::{Client, Store};

/// What a step failed with, other than by an answer: the sequence has failed.
pub(crate) type Failed = String;
/// A handle of a semaphore: client, site and number.
pub(crate) type Handle = (usize, usize, usize);

/// What an operation answered, in a form that can be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// With this token.
    Granted(u64),
    Queued,
    Busy,
    Renewed,
    Lost(LossReason),
    Released(Released),
    Forced(bool),
    Limit,
    LimitDiffers(u32, u32),
    AboveLimit(u32, u32),
    Unsupported,
    /// Any other error.
    Error(String),
}

impl From<BackendError> for Reply {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::LimitDiffers { stated, in_force } => Self::LimitDiffers(stated, in_force),
            BackendError::AboveLimit { permits, limit } => Self::AboveLimit(permits, limit),
            BackendError::Unsupported { .. } => Self::Unsupported,
            other => Self::Error(other.to_string()),
        }
    }
}

/// An event that a store sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sent {
    /// Of the place by which its last request was answered.
    Granted(Label),
    AskAgain(Label),
    Revoked(Label),
}

/// A lease that was named.
pub(crate) struct Lease {
    pub(crate) request: Request,
    pub(crate) client: usize,
    pub(crate) site: usize,
    /// When its client died, if it did.
    pub(crate) died: Option<Duration>,
    handle: Option<Handle>,
    /// The place by which its last request was answered, while it waits.
    place: Option<Ticket>,
    token: Option<u64>,
}

/// A client and its events.
struct Slot {
    client: Client,
    events: BoxStream<'static, Event>,
}

/// One side.
pub(crate) struct Side<S> {
    pub(crate) store: S,
    slots: Vec<Slot>,
    /// Those whose processes have died: they stay connected, and do nothing.
    dead: Vec<Slot>,
    sites: Vec<(Arc<str>, Nature)>,
    limits: HashMap<Handle, Limit>,
    pub(crate) leases: BTreeMap<Label, Lease>,
    labels: HashMap<LeaseId, Label>,
    /// How much time has passed since the sequence began.
    pub(crate) elapsed: Duration,
}

impl<S: Store> Side<S> {
    pub(crate) fn new(mut store: S) -> Self {
        let slots = (0..CLIENTS).map(|_| Slot::of(store.connect())).collect();
        Self {
            store,
            slots,
            dead: Vec::new(),
            sites: Vec::new(),
            limits: HashMap::new(),
            leases: BTreeMap::new(),
            labels: HashMap::new(),
            elapsed: Duration::ZERO,
        }
    }

    /// Begins a sequence with names that were never used.
    pub(crate) fn begin(&mut self, sequence: &str, sites: &[Nature]) {
        let key = |(number, nature): (usize, &Nature)| (format!("model:{sequence}:{number}").into(), *nature);
        self.sites = sites.iter().enumerate().map(key).collect();
        for slot in std::mem::take(&mut self.dead) {
            self.store.run(slot.client.close());
        }
        self.limits.clear();
        self.leases.clear();
        self.labels.clear();
        self.elapsed = Duration::ZERO;
    }

    /// Carries out a step.
    pub(crate) fn take(&mut self, step: &Step) -> Option<Reply> {
        match step {
            Step::Ask(label, wanted) => {
                self.name(*label, wanted);
                return Some(self.ask(*label));
            }
            Step::Name(label, wanted) => self.name(*label, wanted),
            Step::AskAgain(label) => return Some(self.ask(*label)),
            Step::Renew(label, term) => return Some(self.renew(*label, term.duration())),
            Step::Release(label) => return Some(self.release(*label, 0)),
            Step::Keep(label, permits) => return Some(self.release(*label, *permits)),
            Step::Force { client, site } => {
                let (client, resource) = (self.client(*client), self.resource(*site));
                let forced = self.store.run(client.force_release(&resource));
                return Some(forced.map_or_else(Into::into, Reply::Forced));
            }
            Step::Resize { client, site, handle, permits, term } => {
                let (slot, resource) = (self.client(*client), self.resource(*site));
                let limit = self.store.run(slot.set_limit(&resource, *permits, term.duration()));
                return Some(match limit {
                    Ok(limit) => {
                        self.follow(Some((*client, *site, *handle)), Some(limit));
                        Reply::Limit
                    }
                    Err(error) => error.into(),
                });
            }
            Step::Crash(client) => self.crash(*client),
            Step::LoseData => self.store.lose_data(),
            Step::Pass(ticks) => self.pass(TICK * *ticks),
            Step::Idle => self.pass(TWO_DAYS),
            Step::Look { .. } => {}
        }
        None
    }

    /// Those that wait, by their places in the queue.
    pub(crate) fn waiting(&self) -> Vec<Label> {
        let places = self.leases.iter().filter(|(_, lease)| lease.died.is_none());
        let mut places: Vec<_> = places.filter_map(|(label, lease)| Some((lease.place?, *label))).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, label)| label).collect()
    }

    pub(crate) fn ask(&mut self, label: Label) -> Reply {
        let lease = &self.leases[&label];
        let (client, mut request, handle) = (self.client(lease.client), lease.request.clone(), lease.handle);
        if let (Claim::Permits(_, stated), Some(handle)) = (&mut request.claim, handle) {
            *stated = self.stated(handle);
        }
        let answer = self.store.run(client.request(&request));
        let (place, token, reply) = match &answer {
            Ok(Answer::Granted(grant)) => {
                let token = grant.token.get();
                (None, Some(token), Reply::Granted(token))
            }
            Ok(Answer::Queued(queued)) => (Some(queued.ticket), None, Reply::Queued),
            Ok(Answer::Busy { .. }) => (None, None, Reply::Busy),
            Err(_) => (None, None, Reply::Busy),
        };
        self.follow(handle, answer.as_ref().ok().and_then(Answer::limit));
        if let Some(lease) = self.leases.get_mut(&label) {
            (lease.place, lease.token) = (place, token);
        }
        answer.map_or_else(Into::into, |_| reply)
    }

    /// The events that the living clients received, once `expected` is among them.
    pub(crate) fn events(&mut self, expected: &BTreeSet<Sent>) -> Result<BTreeSet<Sent>, Failed> {
        let mut sent = BTreeSet::new();
        let mut left = self.store.event_timeout();
        loop {
            let received: Vec<_> = self.receive();
            for event in received {
                sent.extend(self.read(&event)?);
            }
            let is_sent = |one: &Sent| match one {
                Sent::Revoked(label) if self.store.asks_holders() => {
                    sent.contains(one) || sent.contains(&Sent::AskAgain(*label))
                }
                _ => sent.contains(one),
            };
            if expected.iter().all(is_sent) {
                return Ok(sent);
            }
            if left.is_zero() {
                return Err(format!("sent {sent:?} instead of {expected:?}"));
            }
            let pause = Duration::from_millis(1);
            left = left.saturating_sub(pause);
            self.store.run(async move { tokio::time::sleep(pause).await });
        }
    }

    fn receive(&mut self) -> Vec<Event> {
        let mut received = Vec::new();
        for slot in &mut self.slots {
            let events = &mut slot.events;
            let next = async {
                let mut received = Vec::new();
                while let Ok(Some(event)) = timeout(Duration::ZERO, events.next()).await {
                    received.push(event);
                }
                received
            };
            received.extend(self.store.run(next));
        }
        received
    }

    fn read(&mut self, event: &Event) -> Result<Option<Sent>, Failed> {
        let (id, sent): (LeaseId, fn(Label) -> Sent) = match event {
            Event::Granted { lease, .. } => (lease.id, Sent::Granted),
            Event::Revoked { lease, .. } => (*lease, Sent::Revoked),
            Event::AskAgain(lease) => (*lease, Sent::AskAgain),
            _ => return Ok(None),
        };
        // Of an earlier sequence.
        let Some(label) = self.labels.get(&id).copied() else { return Ok(None) };
        let Some(lease) = self.leases.get_mut(&label).filter(|lease| lease.died.is_none()) else {
            return Ok(None);
        };
        if let Event::Granted { ticket, grant, .. } = event {
            if lease.place.is_none() && lease.token == Some(grant.token.get()) {
                // Events may be repeated: this one by a connection that looked at what another one had just written.
                return Ok(None);
            }
            if lease.place.take() != Some(*ticket) {
                return Err(format!("{event:?} for lease {label} names another place"));
            }
            lease.token = Some(grant.token.get());
            let (handle, limit) = (lease.handle, grant.limit);
            self.follow(handle, limit);
        }
        Ok(Some(sent(label)))
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
        let (client, resource) = (self.client(client), self.resource(site));
        self.store.run(client.inspect(&resource, detail)).map_err(|error| format!("no inspection: {error}"))
    }

    /// What the handles know of the limits.
    pub(crate) fn limits(&self) -> BTreeMap<Handle, Limit> {
        self.limits.iter().map(|(handle, limit)| (*handle, *limit)).collect()
    }

    pub(crate) fn token(&self, label: Label) -> Option<u64> {
        self.leases[&label].token
    }

    pub(crate) fn label_of(&self, id: &str) -> Option<Label> {
        LeaseId::parse(id).and_then(|id| self.labels.get(&id)).copied()
    }

    fn name(&mut self, label: Label, wanted: &plan::Request) {
        let handle = match wanted.claim {
            Wanted::Permits { handle, .. } => Some((wanted.client, wanted.site, handle)),
            Wanted::Sole | Wanted::Owner(_) => None,
        };
        let claim = match wanted.claim {
            Wanted::Sole => Claim::Sole,
            Wanted::Owner(owner) => Claim::Owner(owner.into()),
            Wanted::Permits { permits, handle } => {
                Claim::Permits(permits, self.stated((wanted.client, wanted.site, handle)))
            }
        };
        let mut resource = self.resource(wanted.site);
        if claim.owner().is_some() {
            resource.kind = Kind::Reentrant;
        }
        let id = self.slots[wanted.client].client.lease_id();
        let mut request = Request::new(LeaseRef::new(id, resource), claim, wanted.term.duration());
        request.waits = wanted.waits;
        let (client, site) = (wanted.client, wanted.site);
        let lease = Lease { request, client, site, died: None, handle, place: None, token: None };
        self.leases.insert(label, lease);
        self.labels.insert(id, label);
    }

    fn renew(&mut self, label: Label, ttl: Duration) -> Reply {
        let lease = &self.leases[&label];
        let client = self.client(lease.client);
        let renewals = [Renew::new(lease.request.lease.clone(), ttl)];
        let answer = self.store.run(async { client.renew(&renewals).next().await });
        match answer.expect("one answer").1 {
            Ok(Renewal::Renewed) => Reply::Renewed,
            Ok(Renewal::Lost(reason)) => Reply::Lost(reason),
            Err(error) => error.into(),
        }
    }

    fn release(&mut self, label: Label, keep: u32) -> Reply {
        let Some(lease) = self.leases.get_mut(&label) else { return Reply::Busy };
        if keep == 0 {
            lease.place = None;
        }
        let (client, asked) = (lease.client, lease.request.lease.clone());
        let client = self.client(client);
        let released = match keep {
            0 => self.store.run(client.release(&asked)),
            keep => self.store.run(client.release_permits(&asked, keep)),
        };
        released.map_or_else(Into::into, Reply::Released)
    }

    fn crash(&mut self, client: usize) {
        let elapsed = self.elapsed;
        for lease in self.leases.values_mut().filter(|lease| lease.client == client) {
            lease.died.get_or_insert(elapsed);
        }
        self.limits.retain(|(of, _, _), _| *of != client);
        let new = Slot::of(self.store.connect());
        self.dead.push(std::mem::replace(&mut self.slots[client], new));
    }

    fn pass(&mut self, time: Duration) {
        self.store.pass(time);
        self.elapsed += time;
    }

    fn client(&self, client: usize) -> Client {
        Arc::clone(&self.slots[client].client)
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

    fn stated(&mut self, handle: Handle) -> Limit {
        *self.limits.entry(handle).or_insert_with(|| Limit::stated(LIMITS[handle.2]))
    }

    fn follow(&mut self, handle: Option<Handle>, limit: Option<Limit>) {
        if let (Some(handle), Some(limit)) = (handle, limit) {
            self.limits.insert(handle, limit);
        }
    }
}

impl Slot {
    fn of(client: Client) -> Self {
        Self { events: client.events(), client }
    }
}
