//! What is to be written so that a key is as a change has left it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::names;
use super::op::{ANY, Mode, Op};
use super::view::{Child, Mark, Record, View};
use crate::backend::ledger::{Diff, Effects, Reads, UNKNOWN};
use crate::backend::{Event, Grant, LeaseId, Ledger, Request, Stamp};

/// A key after a change that has not been stored yet.
pub(super) struct Changed {
    pub(super) ledger: Ledger,
    /// What is different now.
    pub(super) diff: Diff,
    /// Grants of places, of any client.
    granted: HashMap<LeaseId, Grant>,
    /// The leases whose requests should be repeated.
    ask_again: Vec<LeaseId>,
    /// What was requested.
    pub(super) requests: Vec<Arc<Request>>,
    reads: Reads,
    is_queue_served: bool,
    /// Events for this client.
    pub(super) own: Vec<Event>,
}

/// What has to be done next.
#[derive(Debug)]
pub(super) enum Step {
    /// To look at these children, by index: it matters when their places end.
    LookAt(Vec<usize>),
    /// To let these requests join the queue, and to prolong the places of these children. It is then looked at again.
    Join(Vec<Request>, Vec<usize>),
    Write(Writing),
    Nothing,
}

/// What is written in one step, all of it or nothing.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) ops: Vec<Op>,
    /// The generation of the record, if it is written.
    pub(super) generation: Option<Arc<str>>,
    /// The children that are deleted, by index.
    pub(super) deleted: Vec<usize>,
    /// The children that are created.
    pub(super) created: Vec<Request>,
    /// Whether an unknown waiter would change this write.
    pub(super) concerns_waiters: bool,
    /// Whether a request that has joined in the meantime could be served, or admitted with its owner.
    pub(super) concerns_newcomers: bool,
}

/// What is known of the key besides what was read.
pub(super) struct Context<'a> {
    pub(super) path: &'a str,
    pub(super) client: Option<Uuid>,
    /// How long the session lasts at the server without a message.
    pub(super) session: Duration,
    /// Leases whose places this client has just asked for or prolonged.
    pub(super) fresh: &'a [LeaseId],
    /// Whether requests that could be granted are to join the queue first, because others always come first.
    pub(super) is_crowded: bool,
    /// Whether the record is to be written even if it stays the same.
    pub(super) must_write: bool,
}

impl Writing {
    /// Whether no node is created or deleted.
    pub(super) fn is_of_record_only(&self) -> bool {
        self.created.is_empty() && self.deleted.is_empty()
    }
}

impl Changed {
    /// Nothing was carried out.
    pub(super) fn nothing() -> Self {
        Self::with(&Ledger::default(), Ledger::default(), Effects::default())
    }

    /// Carries out what was asked for.
    pub(super) fn by(view: &View, stamp: Stamp, run: impl Fn(&mut Ledger, Stamp) -> Effects) -> Self {
        let before = view.ledger(stamp.now);
        let mut after = before.clone();
        let effects = run(&mut after, stamp);
        Self::with(&before, after, effects)
    }

    /// Serves the queue, and prompts waiters of an owner that is admitted by that to repeat their requests.
    pub(super) fn by_serving(key: &Arc<str>, view: &View, stamp: Stamp, client: Option<Uuid>) -> Self {
        let before = view.ledger(stamp.now);
        let mut ledger = before.clone();
        let mut effects = ledger.serve_queue(key, stamp);
        // This client's own were known before.
        let is_told = |lease: LeaseId| Some(lease.client()) == client || view.is_prompted(lease);
        effects.events.extend(ledger.admissible().filter(|lease| !is_told(*lease)).map(Event::AskAgain));
        let is_own = |event: &&Event| event.lease().is_some_and(|lease| Some(lease.client()) == client);
        let own = effects.events.iter().filter(is_own).cloned().collect();
        Self { own, ..Self::with(&before, ledger, effects) }
    }

    fn with(before: &Ledger, ledger: Ledger, effects: Effects) -> Self {
        let (mut granted, mut ask_again) = (HashMap::new(), Vec::new());
        for event in effects.events {
            match event {
                Event::Granted { lease, grant, .. } => drop(granted.insert(lease.id, grant)),
                Event::AskAgain(lease) => ask_again.push(lease),
                // The node of a lease that was revoked is deleted, which its owner sees.
                Event::Revoked { .. } | Event::Changed(_) | Event::Resync => {}
            }
        }
        let (requests, is_queue_served) = (effects.requests, effects.served.is_some());
        let diff = Diff::between(before, &ledger);
        Self {
            ledger,
            diff,
            granted,
            ask_again,
            requests,
            reads: effects.reads,
            is_queue_served,
            own: Vec::new(),
        }
    }

    /// What has to be done next.
    pub(super) fn step(&self, view: &View, context: &Context<'_>) -> Step {
        let unknown = self.unknown(view);
        if !unknown.is_empty() {
            return Step::LookAt(unknown);
        }
        let entries = self.entries(view);
        let (held, mut queued): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|request| self.ledger.hold_of(request.lease.id).is_some());
        let prolonged = self.prolonged(view, context);
        if view.record.is_some() && context.is_crowded {
            queued.extend(held.iter().cloned());
        }
        if !queued.is_empty() || !prolonged.is_empty() {
            return Step::Join(queued, prolonged);
        }
        self.write(view, context, held)
    }

    /// Children whose last request time must be known: those that are served or prompted, those that their client
    /// extends or withdraws (which may have been granted in the meantime), and the one that blocks the queue.
    fn unknown(&self, view: &View) -> Vec<usize> {
        let blocking = self.ledger.first_that_does_not_fit();
        let matters = |child: &Child| {
            if child.seen.is_some() || view.holds(child) {
                return false;
            }
            let lease = child.name.lease();
            match self.ledger.place_of(lease) {
                Some(ends) => {
                    ends != UNKNOWN
                        || self.reads == Reads::EndsOfAll
                        || self.ask_again.contains(&lease)
                        || blocking == Some(lease)
                }
                // Served or withdrawn.
                None => true,
            }
        };
        let matter = view.children.iter().enumerate().filter(|(_, child)| matters(child));
        matter.map(|(n, _)| n).collect()
    }

    /// Requests that hold or wait now, and have no node yet.
    fn entries(&self, view: &View) -> Vec<Request> {
        let mut entries = Vec::<Request>::new();
        for request in &self.requests {
            let lease = request.lease.id;
            let has_node = view.children.iter().any(|child| child.name.lease() == lease)
                || entries.iter().any(|entry| entry.lease.id == lease);
            if self.is_in(lease) && !has_node {
                entries.push(Request::clone(request));
            }
        }
        entries
    }

    /// Whether a lease holds or waits now.
    fn is_in(&self, lease: LeaseId) -> bool {
        self.ledger.hold_of(lease).is_some() || self.ledger.place_of(lease).is_some()
    }

    /// Children whose requests were repeated.
    fn prolonged(&self, view: &View, context: &Context<'_>) -> Vec<usize> {
        let is_prolonged = |child: &Child| {
            let lease = child.name.lease();
            let ends = self.ledger.place_of(lease);
            ends.is_some_and(|ends| ends != child.ends() && ends != UNKNOWN)
                && !context.fresh.contains(&lease)
        };
        view.children.iter().enumerate().filter(|(_, child)| is_prolonged(child)).map(|(n, _)| n).collect()
    }

    fn write(&self, view: &View, context: &Context<'_>, held: Vec<Request>) -> Step {
        let is_gone = |child: &Child| !self.is_in(child.name.lease());
        let (mut proven, mut ops, mut deleted) = (false, Vec::new(), Vec::new());
        let node = |child: &Child| format!("{}/{}", context.path, child.node);
        for (n, child) in view.children.iter().enumerate() {
            let path = node(child);
            if is_gone(child) {
                // A place may have been served meanwhile: then it has another version.
                let version = child.seen.filter(|_| !view.holds(child)).map_or(ANY, |seen| seen.version);
                ops.push(Op::Delete { path, version });
                deleted.push(n);
            } else if let Some((mark, seen)) = self.mark(context, child).zip(child.seen) {
                ops.push(Op::Set { path, data: mark.data(), version: seen.version });
            } else if view.holds(child) && self.is_renewed(child) {
                ops.push(Op::Check { path, version: ANY });
            } else {
                continue;
            }
            proven = true;
        }
        let record = self.record(view, context, held.is_empty());
        if record.is_none() && ops.is_empty() && held.is_empty() {
            return Step::Nothing;
        }
        let generation = record.as_ref().map(|(generation, _)| Arc::clone(generation));
        let mut all: Vec<_> = record.into_iter().map(|(_, op)| op).collect();
        all.extend(self.proof(view, context, generation.as_deref(), proven));
        all.extend(ops);
        all.extend(held.iter().map(|request| create(context.path, request, context.session)));
        let is_resized =
            view.record.as_ref().is_some_and(|record| record.ledger.limit() != self.ledger.limit());
        let concerns_waiters = is_resized || !held.is_empty();
        let owner_before = view.record.as_ref().and_then(|record| record.ledger.owner());
        let admits_owner = self.ledger.owner().is_some() && self.ledger.owner() != owner_before;
        let concerns_newcomers = admits_owner || (self.is_queue_served && self.ledger.has_room());
        Step::Write(Writing {
            ops: all,
            generation,
            deleted,
            created: held,
            concerns_waiters,
            concerns_newcomers,
        })
    }

    /// What is to be events to the owner of a child.
    fn mark(&self, context: &Context<'_>, child: &Child) -> Option<Mark> {
        let lease = child.name.lease();
        if Some(lease.client()) == context.client {
            return None;
        }
        if self.diff.granted.iter().any(|granted| granted.lease == lease) {
            return self.granted.get(&lease).map(|grant| Mark::Granted(*grant));
        }
        let asked = child.seen.map_or(0, |seen| seen.asked);
        self.ask_again.contains(&lease).then_some(Mark::AskAgain(asked))
    }

    /// Whether it is a hold that ends later now: if its node is gone, it has ended.
    fn is_renewed(&self, child: &Child) -> bool {
        self.diff.renewed.iter().any(|renewed| renewed.lease == child.name.lease())
    }

    /// The record is written if it has changed: its generation, and the request.
    fn record(&self, view: &View, context: &Context<'_>, is_idle: bool) -> Option<(Arc<str>, Op)> {
        let path = context.path.to_owned();
        let Some(record) = &view.record else {
            // A record that never issued a number says nothing.
            if self.ledger.last_number() == 0 && is_idle {
                return None;
            }
            let generation: Arc<str> = Uuid::new_v4().simple().to_string().into();
            let data = Record::data(&generation, &self.ledger);
            return Some((generation, Op::Create { path, data, mode: Mode::Persistent }));
        };
        let is_same = record.ledger.text_of_holds() == self.ledger.text_of_holds();
        if is_same && !context.must_write && view.has_generation {
            return None;
        }
        let generation = match view.has_generation {
            true => Arc::clone(&record.generation),
            false => Uuid::new_v4().simple().to_string().into(),
        };
        let data = Record::data(&generation, &self.ledger);
        Some((generation, Op::Set { path, data, version: record.version }))
    }

    /// Versions can be compared as long as a node of this generation exists.
    fn proof(&self, view: &View, context: &Context<'_>, written: Option<&str>, proven: bool) -> Option<Op> {
        let path = |generation: &str| format!("{}/{}", context.path, names::generation(generation));
        if !view.has_generation {
            return written.map(|generation| Op::Create {
                path: path(generation),
                data: Vec::new(),
                mode: Mode::Persistent,
            });
        }
        let record = view.record.as_ref().filter(|_| !proven)?;
        Some(Op::Check { path: path(&record.generation), version: ANY })
    }
}

/// The request that creates the node of a lease. It ends with the session, unless that might end before the lease.
pub(super) fn create(path: &str, request: &Request, session: Duration) -> Op {
    let path = format!("{path}/{}", names::child(request));
    let mode = match request.ttl <= session {
        true => Mode::EphemeralSequential,
        false => Mode::PersistentSequential,
    };
    Op::Create { path, data: Vec::new(), mode }
}
