//! What is planned for random operations, stored in a simulated etcd, and read back, is what the ledger says.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use super::keys::{Keys, KeysOf};
use super::leases::{EtcdLease, Leases, Taken};
use super::mail::Mail;
use super::plan::Plan;
use super::proto::{
    Compare, CompareResult, CompareTarget, CompareWith, Header, KeyValue, RangeRequest, RangeResponse,
    Request, RequestOp, Response, ResponseOp, TxnRequest, TxnResponse,
};
use super::value::What;
use super::view::View;
use super::write::{Transaction, events_with, steps};
use crate::backend::ledger::Ledger;
use crate::backend::ledger::random::{Operation, Outcome, Random, Site, shape};
use crate::backend::{Event, Kind, LeaseId};

/// The time that a view assumes.
const NOW: u64 = 1 << 40;

/// The keys of etcd, and how a transaction changes them.
#[derive(Default)]
struct Server {
    kvs: BTreeMap<Vec<u8>, KeyValue>,
    revision: i64,
}

impl Server {
    fn range(&self, range: &RangeRequest) -> Vec<KeyValue> {
        let is_within = |key: &Vec<u8>| *key >= range.key && *key < range.range_end;
        self.kvs.iter().filter(|(key, _)| is_within(key)).map(|(_, kv)| kv.clone()).collect()
    }

    fn transact(&mut self, request: &TxnRequest) -> TxnResponse {
        let next = self.revision + 1;
        let (mut response, has_written) = self.transact_at(request, next);
        self.revision += i64::from(has_written);
        response.header = Some(Header { cluster_id: 1, revision: self.revision });
        response
    }

    fn transact_at(&mut self, request: &TxnRequest, revision: i64) -> (TxnResponse, bool) {
        let succeeded = request.compare.iter().all(|compare| self.compares(compare));
        let ops = if succeeded { &request.success } else { &request.failure };
        let (mut responses, mut has_written) = (Vec::new(), false);
        for RequestOp { request } in ops {
            let response = match request {
                Some(Request::Range(range)) => {
                    let kvs = self.range(range);
                    Response::Range(RangeResponse { kvs, ..RangeResponse::default() })
                }
                Some(Request::Put(put)) => {
                    let old = self.kvs.get(&put.key).map(|kv| kv.create_revision);
                    let kv = KeyValue {
                        key: put.key.clone(),
                        value: put.value.clone(),
                        lease: put.lease,
                        create_revision: old.unwrap_or(revision),
                        mod_revision: revision,
                    };
                    self.kvs.insert(put.key.clone(), kv);
                    has_written = true;
                    continue;
                }
                Some(Request::Delete(delete)) => {
                    has_written |= self.kvs.remove(&delete.key).is_some();
                    continue;
                }
                Some(Request::Txn(inner)) => {
                    let (response, written) = self.transact_at(inner, revision);
                    has_written |= written;
                    Response::Txn(response)
                }
                None => continue,
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        (TxnResponse { succeeded, responses, header: None }, has_written)
    }

    fn compares(&self, compare: &Compare) -> bool {
        let missing = KeyValue { key: compare.key.clone(), ..KeyValue::default() };
        let compared: Vec<_> = if compare.range_end.is_empty() {
            vec![self.kvs.get(&compare.key).cloned().unwrap_or(missing)]
        } else {
            let (key, range_end) = (compare.key.clone(), compare.range_end.clone());
            self.range(&RangeRequest { key, range_end, ..RangeRequest::default() })
        };
        compared.iter().all(|kv| {
            let ordering = match (compare.target(), compare.with.as_ref().unwrap()) {
                (CompareTarget::Create, CompareWith::CreateRevision(n)) => kv.create_revision.cmp(n),
                (CompareTarget::Mod, CompareWith::ModRevision(n)) => kv.mod_revision.cmp(n),
                (CompareTarget::Value, CompareWith::Value(text)) => kv.value.cmp(text),
                other => panic!("{other:?}"),
            };
            match compare.result() {
                CompareResult::Equal => ordering.is_eq(),
                CompareResult::Greater => ordering.is_gt(),
                CompareResult::Less => ordering.is_lt(),
                CompareResult::NotEqual => ordering.is_ne(),
            }
        })
    }
}

/// What happens to the key between the plan for an operation and its transaction.
#[derive(Clone, Debug)]
enum Between {
    Nothing,
    /// Another client has joined the queue.
    Join(usize),
    /// Another client has changed the record.
    Operation(Operation),
    /// A lease has ended by itself.
    Expiry(usize),
}

fn between(random: &mut Random) -> Between {
    match random.below(12) {
        0..2 => Between::Join(random.lease()),
        2 => Between::Operation(random.operation()),
        3 => Between::Expiry(random.lease()),
        _ => Between::Nothing,
    }
}

struct World {
    site: Site,
    server: Server,
    all: Keys,
    keys: KeysOf,
    leases: Leases,
    next_lease: i64,
    cached: Option<View>,
    /// A lease that has ended since, unless the view says so.
    stale: Option<usize>,
}

impl World {
    fn new(kind: Kind) -> Self {
        let (all, site) = (Keys::new("test/".into()), Site::new(kind, NOW));
        let keys = all.of(&site.resource.key);
        let (server, leases) = (Server::default(), Leases::default());
        Self { site, server, all, keys, leases, next_lease: 0, cached: None, stale: None }
    }

    fn look(&self) -> View {
        let kvs = self.server.range(&self.keys.read());
        View::read(&self.keys, kvs, self.server.revision).unwrap()
    }

    fn grant(&mut self, ttl: u32) -> EtcdLease {
        self.next_lease += 1;
        EtcdLease { id: self.next_lease, ttl }
    }

    /// Creates places as an exchange does.
    fn join(&mut self, plan: &Plan) -> BTreeSet<LeaseId> {
        for (id, value) in &plan.joins {
            // The same one as when it was tried before.
            let now = self.look();
            let known = now.entries.get(id).filter(|stored| !stored.is_revoked());
            let known = known.map(|stored| stored.etcd_lease);
            let lease = known.map_or_else(|| self.grant(value.ttl), |id| EtcdLease { id, ttl: value.ttl });
            let join = self.keys.join(value.to_text(), lease.id, now.revoked(*id));
            self.server.transact(&TxnRequest { success: vec![join], ..TxnRequest::default() });
        }
        plan.joins.iter().map(|(lease, _)| *lease).collect()
    }

    /// Carries out an operation as an exchange does, and the same on the ledger. What happens in between comes first if
    /// it is noticed, and otherwise last.
    fn carry_out(&mut self, operation: &Operation, mut between: Between) {
        let (outcome, mut joined, mut has_lost) = (RefCell::default(), BTreeSet::new(), false);
        // Others find out about it when it ends.
        let asks = matches!(operation, Operation::Request { .. });
        let is_known = self.stale.take().is_none_or(|stale| asks || stale == operation.lease());
        let mut view = self.cached.take().filter(|_| is_known);
        for _ in 0..8 {
            let now = view.take().unwrap_or_else(|| self.look());
            let plan = Plan::of(&now, &joined, &self.leases, self.site.change(operation, &outcome)).unwrap();
            let plan = if has_lost && joined.is_empty() { plan.joining_first(&now) } else { plan };
            if !plan.joins.is_empty() {
                joined.extend(self.join(&plan));
                continue;
            }
            if !now.is_fresh && (!plan.is_to_be_written() || plan.needs_fresh) {
                continue;
            }
            // What only reads is answered as of then.
            let is_stored = plan.is_to_be_written() && joined.is_empty();
            let meanwhile = std::mem::replace(&mut between, Between::Nothing);
            let (mut has_joined, mut has_ended) = (None, None);
            match &meanwhile {
                _ if !is_stored => {}
                Between::Join(lease) => has_joined = self.join_meanwhile(operation, *lease),
                Between::Operation(other) if self.client(other) != self.client(operation) => {
                    let cached = self.cached.take();
                    self.carry_out(other, Between::Nothing);
                    self.cached = cached;
                }
                Between::Expiry(lease) => {
                    has_ended = self.expire(*lease).then_some(*lease);
                }
                _ => {}
            }
            match self.write(&now, &plan) {
                Some(after) => {
                    self.check(operation, &outcome.take(), has_joined, has_ended, &plan);
                    self.stale = has_ended;
                    self.cached = Some(after).filter(|after| after.record.is_some());
                    return;
                }
                None => {
                    has_lost = true;
                    if let Some(join) = has_joined {
                        self.site.apply(&join);
                    }
                    has_ended.into_iter().for_each(|lease| self.site.expire(lease));
                }
            }
        }
        panic!("{operation:?} was never stored");
    }

    fn client(&self, operation: &Operation) -> uuid::Uuid {
        self.site.client(operation)
    }

    /// Another client creates its place, which it serves later.
    fn join_meanwhile(&mut self, operation: &Operation, lease: usize) -> Option<Operation> {
        let join = Operation::Request { lease, waits: true, permits: 1, tokens: 1, seconds: 3 };
        let outcome = RefCell::default();
        if self.client(&join) == self.client(operation) {
            return None;
        }
        let change = self.site.change(&join, &outcome);
        let plan = Plan::of(&self.look(), &BTreeSet::new(), &self.leases, change).unwrap();
        let is_new = !plan.joins.is_empty();
        self.join(&plan);
        is_new.then_some(join)
    }

    /// Whether there was anything to end.
    fn expire(&mut self, lease: usize) -> bool {
        let id = self.site.leases[lease].id;
        let view = self.look();
        let key = view.entries.get(&id).map(|stored| self.keys.lease(stored.etcd_lease));
        key.and_then(|key| self.server.kvs.remove(&key)).is_some()
    }

    /// `None` if others came first.
    fn write(&mut self, now: &View, plan: &Plan) -> Option<View> {
        let limit = plan.limit_for.map(|seconds| self.grant(seconds));
        if !plan.is_to_be_written() && limit.is_none() {
            return Some(now.remembered());
        }
        let taken: Vec<_> = plan.begun.iter().map(|(_, value)| value.ttl).collect();
        let taken: Vec<_> =
            taken.into_iter().map(|ttl| Taken { lease: self.grant(ttl), is_old: false }).collect();
        let steps = Vec::from(steps(plan, &taken));
        let mut events = plan.events.clone();
        let events_now = events_with(&steps, &mut events, true);
        assert!(events.is_empty(), "{events:?}");
        let transaction = Transaction {
            all: &self.all,
            keys: &self.keys,
            view: now,
            plan,
            steps: &steps,
            events: &events_now,
            limit,
        };
        let answer = self.server.transact(&transaction.request());
        if !answer.succeeded {
            return None;
        }
        let after = transaction.view_after(self.server.revision);
        let read = self.look();
        for (lease, stored) in &after.entries {
            // It may have ended by itself.
            let Some(read) = read.entries.get(lease) else { continue };
            assert_eq!((read.etcd_lease, read.created), (stored.etcd_lease, stored.created));
            assert_eq!(read.value, stored.value);
        }
        assert_eq!(read.limit, after.limit);
        let text =
            |view: &View| view.record.as_ref().map(|record| (record.mod_revision, record.text.clone()));
        assert_eq!(text(&read), text(&after));
        self.check_mail(&events_now, &read, after.entries.len());
        Some(after)
    }

    /// Every client is sent its events, and with a grant what is there.
    fn check_mail(&self, events: &[Event], read: &View, known: usize) {
        for event in events {
            let lease = event.lease().unwrap();
            let Some(mail) = self.server.kvs.get(&self.all.mailbox(lease.client())) else {
                panic!("no mail for {event:?}");
            };
            assert_eq!(mail.mod_revision, self.server.revision);
            let content = Mail::decode(mail.value.as_slice()).unwrap();
            assert!(content.events.contains(&event.to_string()), "{event:?}");
            if matches!(event, Event::Granted { .. }) {
                assert_eq!(content.seen.is_some(), known <= 8);
                if let Some(seen) = content.view(&self.keys, mail.mod_revision) {
                    let text = |view: &View| view.record.as_ref().map(|record| record.text.clone());
                    assert_eq!(text(&seen), text(read));
                    assert!(seen.entries.iter().all(|(lease, stored)| {
                        read.entries.get(lease).is_none_or(|read| read.value == stored.value)
                    }));
                }
            }
        }
    }

    /// The operation is carried out on the ledger as well, and what was answered, sent and stored is the same.
    fn check(
        &mut self,
        operation: &Operation,
        outcome: &Outcome,
        join: Option<Operation>,
        ended: Option<usize>,
        plan: &Plan,
    ) {
        assert_eq!(*outcome, self.site.apply(operation), "{operation:?} {plan:?}");
        let view = self.look();
        let ledger = view.ledger(&self.leases, &BTreeSet::new()).unwrap();
        if let Some(join) = join {
            self.site.apply(&join);
        }
        ended.into_iter().for_each(|lease| self.site.expire(lease));
        assert_eq!(shape(&ledger), shape(&self.site.ledger), "{operation:?} {plan:?}");
        assert!(ledger.last_number() > 0 || ledger.entries().next().is_none());
        self.check_ttl(operation, outcome, &view);
        self.site.replace_released(operation);
    }

    fn check_ttl(&self, operation: &Operation, outcome: &Outcome, view: &View) {
        let (Operation::Renew { lease, seconds } | Operation::Request { lease, seconds, .. }) = operation
        else {
            return;
        };
        let Some(stored) = view.entries.get(&self.site.leases[*lease].id) else { return };
        if outcome.answer == "Renewed" {
            assert_eq!(u64::from(stored.value.ttl), *seconds);
        }
        let is_held = matches!(stored.value.what, What::Hold { .. });
        assert!(outcome.answer != "granted" || is_held, "{outcome:?}");
    }
}

#[test]
fn what_is_stored_and_read_back_is_what_the_ledger_says() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut world = World::new(Kind::ALL[seed as usize % 4]);
        for _ in 0..random.below(40) {
            if random.below(2) == 0 {
                world.cached = None;
            }
            let (operation, between) = (random.operation(), between(&mut random));
            world.carry_out(&operation, between);
        }
    }
}

#[test]
fn no_owner_is_admitted_again_and_nothing_is_renewed_from_a_cached_view() {
    let mut world = World::new(Kind::Reentrant);
    let request = |lease| Operation::Request { lease, waits: true, permits: 1, tokens: 1, seconds: 3 };
    world.carry_out(&request(0), Between::Nothing);
    let (cached, outcome) = (world.cached.take().unwrap(), RefCell::default());
    for operation in [request(1), Operation::Renew { lease: 0, seconds: 3 }] {
        let change = world.site.change(&operation, &outcome);
        let plan = Plan::of(&cached, &BTreeSet::new(), &world.leases, change).unwrap();
        assert!(plan.needs_fresh, "{operation:?}");
    }
}

/// A client's changes of one key are planned together: a request whose place is not made yet comes after those of others.
#[test]
fn a_request_and_a_release_that_are_planned_together_overtake_nobody() {
    for kind in [Kind::Mutex, Kind::Fair] {
        let mut world = World::new(kind);
        let client = |world: &World, lease: usize| world.site.leases[lease].id.client();
        let (mine, theirs): (Vec<_>, Vec<_>) =
            (0..world.site.leases.len()).partition(|lease| client(&world, *lease) == client(&world, 0));
        let [held, late] = mine[..2] else { panic!("{mine:?}") };
        world.carry_out(&request(held), Between::Nothing);
        world.carry_out(&request(theirs[0]), Between::Nothing);
        let together = [request(late), Operation::Release { lease: held, keep: 0 }];
        let plan = plan(&world, &world.look(), &together);
        let id = |lease: usize| world.site.leases[lease].id;
        let joins: Vec<_> = plan.joins.iter().map(|(lease, _)| *lease).collect();
        let granted: Vec<_> = plan.updated.iter().map(|(lease, _)| *lease).collect();
        assert_eq!((joins, granted), (vec![id(late)], vec![id(theirs[0])]), "{kind:?}");
    }
}

/// A request for all permits.
const fn request(lease: usize) -> Operation {
    Operation::Request { lease, waits: true, permits: 3, tokens: 1, seconds: 3 }
}

fn plan(world: &World, view: &View, operations: &[Operation]) -> Plan {
    let outcome = RefCell::default();
    let run = |ledger: &mut Ledger, stamp| {
        operations.iter().map(|operation| world.site.change(operation, &outcome)(ledger, stamp)).collect()
    };
    Plan::of(view, &BTreeSet::new(), &world.leases, run).unwrap()
}

#[test]
fn a_plan_says_what_it_relies_on() {
    for kind in Kind::ALL {
        let mut world = World::new(kind);
        let plan = |world: &World, operation| plan(world, &world.look(), &[operation]);
        // The first request for permits puts a limit into force.
        let begins = plan(&world, request(0));
        assert_eq!(begins.begun.len(), 1);
        assert_eq!(
            [begins.needs_fresh, begins.limit_for.is_some(), !begins.is_one_hold()],
            [kind.is_semaphore(); 3]
        );
        assert!(begins.could_admit && !begins.do_ends_matter);
        world.carry_out(&request(0), Between::Nothing);
        // Of another owner, if there are owners.
        let waits = Operation::Request { lease: 1, waits: true, permits: 2, tokens: 1, seconds: 3 };
        let waits = plan(&world, waits);
        assert_eq!(waits.joins.len(), 1);
        assert!(waits.do_ends_matter && !waits.could_admit && !waits.is_one_hold());
        let looks = plan(&world, Operation::Inspect(1));
        assert!(looks.do_ends_matter && !looks.is_one_hold() && !looks.is_to_be_written());
        let ends = plan(&world, Operation::Release { lease: 0, keep: 0 });
        assert!(ends.could_admit && !ends.needs_fresh && ends.limit_for.is_none() && !ends.do_ends_matter);
        // Whoever joins in the meantime might fit into the other limit.
        let changes = plan(&world, Operation::SetLimit(1, 2));
        assert_eq!(changes.could_admit, kind.is_semaphore());
    }
}

#[test]
fn a_hold_that_begins_overtakes_no_place_that_was_made_meanwhile() {
    for kind in Kind::ALL {
        let mut world = World::new(kind);
        world.carry_out(&request(0), Between::Nothing);
        world.carry_out(&Operation::Release { lease: 0, keep: 0 }, Between::Nothing);
        let before = world.look();
        let (mine, theirs) = ([request(0)], [request(1)]);
        let (mine, theirs) =
            (plan(&world, &before, &mine), plan(&world, &before, &theirs).joining_first(&before));
        assert_eq!((mine.begun.len(), theirs.joins.len()), (1, 1));
        world.join(&theirs);
        assert!(world.write(&before, &mine).is_none(), "{kind:?}");
    }
}

#[test]
fn of_several_requests_those_that_wait_join_first() {
    let world = World::new(Kind::Fair);
    let request = |lease, waits| Operation::Request { lease, waits, permits: 1, tokens: 1, seconds: 3 };
    let view = world.look();
    let plan = plan(&world, &view, &[request(0, false), request(3, true)]).joining_first(&view);
    let [joins, begun] =
        [&plan.joins, &plan.begun].map(|of| of.iter().map(|(lease, _)| *lease).collect::<Vec<_>>());
    let id = |lease: usize| world.site.leases[lease].id;
    assert_eq!((joins, begun), (vec![id(3)], vec![id(0)]));
}

#[test]
fn after_a_lost_race_whoever_waits_gets_a_place_even_if_there_is_room() {
    for kind in [Kind::Mutex, Kind::Reentrant, Kind::Counting, Kind::Fair] {
        let world = World::new(kind);
        let (view, outcome) = (world.look(), RefCell::default());
        for waits in [true, false] {
            let request = Operation::Request { lease: 0, waits, permits: 1, tokens: 1, seconds: 3 };
            let change = world.site.change(&request, &outcome);
            let plan = Plan::of(&view, &BTreeSet::new(), &world.leases, change).unwrap().joining_first(&view);
            assert_eq!(
                (plan.joins.len(), plan.begun.len()),
                (usize::from(waits), usize::from(!waits)),
                "{kind:?}"
            );
        }
    }
}
