//! What is planned for random operations, stored in simulated nodes, and read back, is what the ledger says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::failure::Code;
use super::names;
use super::op::{ANY, Mode, Op, Reply, Stat};
use super::plan::{Changed, Context, Step, Writing, create};
use super::view::{Mark, Seen, View, reads};
use crate::backend::ledger::Ledger;
use crate::backend::ledger::random::{Operation, Outcome, Random, Site, shape};
use crate::backend::{Claim, Event, Kind, LeaseId, Request, Stamp};

/// In microseconds; it does not pass.
const NOW: u64 = 1_000_000_000;
const SESSION: Duration = Duration::from_secs(3);

#[derive(Clone, Default)]
struct Nodes {
    nodes: BTreeMap<String, (Vec<u8>, Stat)>,
    created: i32,
}

impl Nodes {
    fn do_one(&mut self, op: &Op) -> Result<Reply, Code> {
        let time = i64::try_from(NOW / 1000).unwrap();
        match op {
            Op::Create { path, data, mode } => {
                let path = match mode {
                    Mode::Persistent => path.clone(),
                    Mode::PersistentSequential | Mode::EphemeralSequential => {
                        self.created += 1;
                        format!("{path}{:010}", self.created)
                    }
                };
                if self.nodes.contains_key(&path) {
                    return Err(Code::NODE_EXISTS);
                }
                let stat = Stat { ctime: time, mtime: time, ..Stat::default() };
                self.nodes.insert(path.clone(), (data.clone(), stat));
                Ok(Reply::Created(path, Some(stat)))
            }
            Op::Set { path, data, version } => {
                let (content, stat) = self.at(path, *version)?;
                content.clone_from(data);
                stat.version += 1;
                Ok(Reply::Set(*stat))
            }
            Op::Delete { path, version } => {
                self.at(path, *version)?;
                self.nodes.remove(path);
                Ok(Reply::Done)
            }
            Op::Check { path, version } => self.at(path, *version).map(|_| Reply::Done),
            Op::Get { path, .. } => self.at(path, ANY).map(|(data, stat)| Reply::Data(data.clone(), *stat)),
            Op::Children { path, .. } => {
                let stat = self.at(path, ANY)?.1;
                let name = |child: &String| Some(child.strip_prefix(path)?.strip_prefix('/')?.to_owned());
                Ok(Reply::Children(self.nodes.keys().filter_map(name).collect(), stat))
            }
            Op::Multi(_) | Op::Sync { .. } | Op::Exists { .. } | Op::RemoveWatches { .. } => panic!("{op:?}"),
        }
    }

    fn at(&mut self, path: &str, version: i32) -> Result<&mut (Vec<u8>, Stat), Code> {
        let found = self.nodes.get_mut(path).ok_or(Code::NO_NODE)?;
        if version == ANY || found.1.version == version { Ok(found) } else { Err(Code::BAD_VERSION) }
    }

    /// All or nothing.
    fn do_all(&mut self, ops: &[Op]) -> Result<(), Code> {
        let mut after = self.clone();
        ops.iter().try_for_each(|op| after.do_one(op).map(drop))?;
        *self = after;
        Ok(())
    }
}

struct World {
    site: Site,
    path: String,
    nodes: Nodes,
}

impl World {
    fn new(kind: Kind) -> Self {
        let site = Site::new(kind, NOW);
        let path = names::record("/root", &site.resource.key);
        Self { site, path, nodes: Nodes::default() }
    }

    fn look(&mut self) -> View {
        let replies = reads(&self.path).map(|op| self.nodes.do_one(&op));
        View::read(&self.site.resource.key, &self.path, &mut replies.into_iter()).unwrap()
    }

    /// Reads again, and keeps what was found in nodes of leases.
    fn look_again(&mut self, before: &View) -> View {
        let mut view = self.look();
        for (child, seen) in before.children.iter().filter_map(|child| Some((child, child.seen?))) {
            view.see(&child.node, seen);
        }
        view
    }

    /// Carries out an operation as an attempt does, and the same on the ledger. If `other` is set, another client
    /// changes the key before the first write, which then fails.
    fn carry_out(&mut self, operation: &Operation, must_write: bool, mut other: Option<Operation>) {
        self.site.replace_revoked(operation);
        let (outcome, client) = (RefCell::default(), self.site.client(operation));
        let (mut view, mut fresh) = (self.look(), Vec::new());
        for _ in 0..20 {
            let stamp = Stamp::new(NOW, NOW, 0);
            let changed = Changed::by(&view, stamp, self.site.change(operation, &outcome));
            let path = self.path.clone();
            let (session, client) = (SESSION, Some(client));
            let context =
                Context { path: &path, client, session, fresh: &fresh, is_crowded: false, must_write };
            let step = match view.uncertain(NOW) {
                Some(first) => Step::LookAt(vec![first]),
                None => changed.step(&view, &context),
            };
            match step {
                Step::LookAt(children) => children.into_iter().for_each(|n| self.look_at(&mut view, n)),
                Step::Join(requests, prolonged) => {
                    let creates = requests.iter().map(|request| create(&path, request, SESSION));
                    let sets = prolonged.iter().map(|n| self.prolong(&view, *n));
                    let ops: Vec<_> = creates.chain(sets).collect();
                    let replies: Vec<_> = ops.iter().map(|op| self.nodes.do_one(op).unwrap()).collect();
                    view = self.look_again(&view);
                    fresh.extend(ops.iter().zip(replies).filter_map(|(op, reply)| see(&mut view, op, reply)));
                }
                Step::Write(writing) => {
                    // Others would see a place that was made already.
                    let is_possible =
                        |other: &Operation| fresh.is_empty() && Some(self.site.client(other)) != client;
                    let meanwhile = other.take().filter(is_possible);
                    if let Some(meanwhile) = &meanwhile {
                        let before = self.nodes.nodes.get(&path).cloned();
                        self.carry_out(meanwhile, true, None);
                        let is_same = self.nodes.nodes.get(&path) == before.as_ref();
                        // What only withdraws a place need not notice it.
                        if self.nodes.do_all(&writing.ops).is_ok() {
                            assert!(is_same || writing.generation.is_none(), "{meanwhile:?} {writing:?}");
                            return self.check(operation, &outcome.take(), None);
                        }
                        (view, fresh) = (self.look(), Vec::new());
                        continue;
                    }
                    self.nodes.do_all(&writing.ops).unwrap_or_else(|code| panic!("{code:?} {writing:?}"));
                    assert_eq!(writing.generation.is_some(), self.is_record_among(&writing.ops));
                    return self.check(operation, &outcome.take(), Some(&changed));
                }
                Step::Nothing => {
                    assert!(!must_write || view.record.is_none());
                    return self.check(operation, &outcome.take(), Some(&changed));
                }
            }
        }
        panic!("{operation:?} was never stored");
    }

    fn look_at(&mut self, view: &mut View, n: usize) {
        let path = format!("{}/{}", self.path, view.children[n].node);
        let Reply::Data(data, stat) = self.nodes.do_one(&Op::Get { path, watch: false }).unwrap() else {
            panic!()
        };
        view.children[n].seen = Some(Seen::of(&data, stat));
    }

    fn prolong(&self, view: &View, n: usize) -> Op {
        let child = &view.children[n];
        let version = child.seen.unwrap().version;
        Op::Set { path: format!("{}/{}", self.path, child.node), data: Mark::Nothing.data(), version }
    }

    fn is_record_among(&self, ops: &[Op]) -> bool {
        let is_record = |op: &Op| {
            let (Op::Set { path, .. } | Op::Create { path, .. }) = op else { return false };
            *path == self.path
        };
        ops.iter().any(is_record)
    }

    /// The operation is carried out on the ledger as well, and what was answered, sent and stored is the same.
    fn check(&mut self, operation: &Operation, outcome: &Outcome, changed: Option<&Changed>) {
        assert_eq!(*outcome, self.site.apply(operation), "{operation:?}");
        let view = self.look();
        assert_eq!(shape(&view.ledger(NOW)), shape(&self.site.ledger), "{operation:?}");
        assert!(view.record.is_none() || view.has_generation);
        if let Some((record, changed)) = view.record.as_ref().zip(changed) {
            assert_eq!(record.ledger.text_of_holds(), changed.ledger.text_of_holds());
            // Nothing is left of what has ended.
            assert!(view.children.iter().all(|child| changed.ledger.knows(child.name.lease())));
        }
        self.check_marks(outcome, &view);
        self.site.replace_released(operation);
    }

    /// Every client finds its events in the nodes of its leases.
    fn check_marks(&mut self, outcome: &Outcome, view: &View) {
        for child in &view.children {
            let (path, lease) = (format!("{}/{}", self.path, child.node), child.name.lease());
            let Ok(Reply::Data(data, _)) = self.nodes.do_one(&Op::Get { path, watch: false }) else {
                panic!()
            };
            let mark = Mark::read(&data);
            let is_in = |event: String| outcome.events.contains(&event);
            if is_in(format!("granted {lease}")) {
                assert!(matches!(mark, Some(Mark::Granted(_))), "{mark:?}");
            } else if is_in(format!("ask again {lease}")) {
                assert!(matches!(mark, Some(Mark::AskAgain(_))), "{mark:?}");
            }
        }
    }
}

/// Notes what was written. Returns the lease.
fn see(view: &mut View, op: &Op, reply: Reply) -> Option<LeaseId> {
    match (op, reply) {
        (_, Reply::Created(path, Some(stat))) => view.see(&path, Seen::of(b"", stat)),
        (Op::Set { path, .. }, Reply::Set(stat)) => view.see(path, Seen::of(b"", stat)),
        _ => None,
    }
}

#[test]
fn what_is_stored_and_read_back_is_what_the_ledger_says() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut world = World::new(Kind::ALL[seed as usize % 4]);
        for _ in 0..random.below(40) {
            let (operation, must_write) = (random.operation(), random.below(8) == 0);
            let other = (random.below(6) == 0).then(|| random.operation());
            world.carry_out(&operation, must_write, other);
        }
    }
}

impl World {
    /// Reads everything.
    fn look_at_all(&mut self) -> View {
        let mut view = self.look();
        (0..view.children.len()).for_each(|n| self.look_at(&mut view, n));
        view
    }

    /// What is done next for these operations of one client.
    fn step(&self, view: &View, operations: &[Operation], fresh: &[LeaseId], is_crowded: bool) -> Step {
        let outcome = RefCell::default();
        let run = |ledger: &mut Ledger, stamp| {
            operations.iter().map(|operation| self.site.change(operation, &outcome)(ledger, stamp)).collect()
        };
        let changed = Changed::by(view, Stamp::new(NOW, NOW, 0), run);
        let (path, client) = (&self.path, Some(self.site.client(&operations[0])));
        changed.step(view, &Context { path, client, session: SESSION, fresh, is_crowded, must_write: false })
    }

    fn writes(&self, view: &View, operation: Operation) -> Writing {
        match self.step(view, &[operation], &[], false) {
            Step::Write(writing) => writing,
            other => panic!("{other:?}"),
        }
    }

    fn id(&self, lease: usize) -> LeaseId {
        self.site.leases[lease].id
    }

    /// Of each of these leases, the index of its node.
    fn nodes_of<const N: usize>(&self, view: &View, leases: [usize; N]) -> Vec<usize> {
        let node =
            |lease| view.children.iter().position(|child| child.name.lease() == self.id(lease)).unwrap();
        let mut nodes: Vec<_> = leases.into_iter().map(node).collect();
        nodes.sort_unstable();
        nodes
    }
}

const fn request(lease: usize, permits: u32, seconds: u64) -> Operation {
    Operation::Request { lease, waits: true, permits, tokens: 1, seconds }
}

/// A key that has been used before.
fn used(kind: Kind) -> World {
    let mut world = World::new(kind);
    world.carry_out(&request(0, 3, 3), false, None);
    world.carry_out(&Operation::Release { lease: 0, keep: 0 }, false, None);
    world
}

#[test]
fn a_write_says_what_it_relies_on() {
    for kind in Kind::ALL {
        let mut world = used(kind);
        let view = world.look_at_all();
        let begins = world.writes(&view, request(0, 3, 3));
        assert!(!begins.is_of_record_only() && begins.concerns_waiters);
        // Others of its owner would be admitted with it.
        assert_eq!(begins.concerns_newcomers, kind == Kind::Reentrant);
        // Nothing else shows that versions can be compared.
        let checks =
            |writing: &Writing| writing.ops.iter().filter(|op| matches!(op, Op::Check { .. })).count();
        assert_eq!(checks(&begins), 1);
        world.carry_out(&request(0, 3, 3), false, None);
        let view = world.look_at_all();
        let renews = world.writes(&view, Operation::Renew { lease: 0, seconds: 4 });
        assert!(renews.is_of_record_only() && !renews.concerns_waiters && !renews.concerns_newcomers);
        assert_eq!(checks(&renews), 1);
        let ends = world.writes(&view, Operation::Release { lease: 0, keep: 0 });
        assert!(!ends.is_of_record_only() && !ends.concerns_waiters && ends.concerns_newcomers);
        // A hold whose node is gone has ended: it is not renewed.
        let node = format!("{}/{}", world.path, view.children[0].node);
        world.nodes.do_one(&Op::Delete { path: node, version: ANY }).unwrap();
        assert_eq!(world.nodes.do_all(&renews.ops), Err(Code::NO_NODE));
    }
}

#[test]
fn a_request_joins_the_queue_first_if_others_always_come_first() {
    for kind in Kind::ALL {
        let mut world = used(kind);
        let (view, request) = (world.look_at_all(), request(0, 3, 3));
        let step = world.step(&view, std::slice::from_ref(&request), &[], true);
        assert!(matches!(&step, Step::Join(joins, prolonged) if joins.len() == 1 && prolonged.is_empty()));
        // The same one twice needs one place.
        let step = world.step(&view, &[request.clone(), request.clone()], &[], true);
        assert!(matches!(&step, Step::Join(joins, _) if joins.len() == 1));
        let unused = World::new(kind).look_at_all();
        assert!(matches!(world.step(&unused, &[request], &[], true), Step::Write(_)));
    }
}

#[test]
fn a_repeated_request_prolongs_its_own_place() {
    for kind in Kind::ALL {
        let mut world = used(kind);
        // Of one owner, and of another, if there are owners.
        for (lease, permits) in [(0, 3), (1, 2), (2, 2)] {
            world.carry_out(&request(lease, permits, 3), false, None);
        }
        let (view, again) = (world.look_at_all(), [request(1, 2, 4)]);
        let own = world.nodes_of(&view, [1]);
        let step = world.step(&view, &again, &[], false);
        assert!(matches!(&step, Step::Join(joins, prolonged) if joins.is_empty() && *prolonged == own));
        // Once.
        let step = world.step(&view, &again, &[world.id(1)], false);
        assert!(!matches!(step, Step::Join(..)), "{step:?}");
        // What is not known of another one does not matter.
        let mut view = world.look();
        own.iter().for_each(|n| world.look_at(&mut view, *n));
        let step = world.step(&view, &again, &[], false);
        assert!(matches!(&step, Step::Join(_, prolonged) if *prolonged == own));
    }
}

#[test]
fn only_places_that_matter_are_looked_at() {
    let mut world = used(Kind::Fair);
    // The second one does not fit, and those behind it wait for it.
    for (lease, permits) in [(0, 2), (1, 3), (2, 1)] {
        world.carry_out(&request(lease, permits, 3), false, None);
    }
    let view = world.look();
    let looks_at = |operation| match world.step(&view, &[operation], &[], false) {
        Step::LookAt(children) => children,
        other => panic!("{other:?}"),
    };
    assert_eq!(looks_at(Operation::Release { lease: 0, keep: 1 }), world.nodes_of(&view, [1]));
    assert_eq!(looks_at(Operation::Inspect(0)), world.nodes_of(&view, [1, 2]));
}

impl World {
    /// What is written when the queue is served by this client, and for whom of its own there are events.
    fn serve(&mut self, lease: usize) -> (Vec<Op>, Vec<LeaseId>) {
        let (view, key, path) = (self.look_at_all(), &self.site.resource.key, &self.path);
        let client = Some(self.id(lease).client());
        let changed = Changed::by_serving(key, &view, Stamp::new(NOW, NOW, 0), client);
        let (session, is_crowded, must_write) = (SESSION, false, false);
        let context = Context { path, client, session, fresh: &[], is_crowded, must_write };
        let ops = match changed.step(&view, &context) {
            Step::Write(writing) => writing.ops,
            Step::Nothing => Vec::new(),
            other => panic!("{other:?}"),
        };
        (ops, changed.own.iter().filter_map(Event::lease).collect())
    }
}

fn marks(ops: &[Op]) -> Vec<Mark> {
    let data = ops.iter().filter_map(|op| match op {
        Op::Set { data, .. } => Some(data),
        _ => None,
    });
    data.filter_map(|data| Mark::read(data)).collect()
}

#[test]
fn others_of_an_owner_that_is_admitted_repeat_their_requests() {
    let mut world = used(Kind::Reentrant);
    // The first one has another owner than the others.
    for (lease, permits) in [(0, 3), (1, 2), (2, 2)] {
        world.carry_out(&request(lease, permits, 3), false, None);
    }
    let view = world.look();
    let held = world.nodes_of(&view, [0])[0];
    let node = format!("{}/{}", world.path, view.children[held].node);
    world.nodes.do_one(&Op::Delete { path: node, version: ANY }).unwrap();
    let (ops, own) = world.serve(1);
    assert!(matches!(marks(&ops)[..], [Mark::AskAgain(_)]), "{ops:?}");
    assert_eq!(own, [world.id(1)]);
    let (ops, own) = world.serve(2);
    assert!(matches!(marks(&ops)[..], [Mark::Granted(_)]), "{ops:?}");
    assert_eq!(own, [world.id(2)]);
}

#[test]
fn whoever_has_joined_while_its_owner_was_admitted_is_asked_once_to_repeat_its_request() {
    let mut world = used(Kind::Reentrant);
    world.carry_out(&request(1, 2, 3), false, None);
    let late = Request::new(world.site.leases[2].clone(), Claim::Owner("owner 0".into()), SESSION);
    world.nodes.do_one(&create(&world.path, &late, SESSION)).unwrap();
    // Its client has asked itself.
    assert_eq!(world.serve(2), (Vec::new(), Vec::new()));
    let (ops, own) = world.serve(0);
    assert!(matches!(marks(&ops)[..], [Mark::AskAgain(_)]), "{ops:?}");
    assert_eq!(own, []);
    world.nodes.do_all(&ops).unwrap();
    assert_eq!(world.serve(0), (Vec::new(), Vec::new()));
}

#[test]
fn a_node_ends_with_the_session_unless_that_might_end_before_the_lease() {
    let world = World::new(Kind::Mutex);
    for (ttl, mode) in [(SESSION, Mode::EphemeralSequential), (SESSION * 2, Mode::PersistentSequential)] {
        let request = Request::new(world.site.leases[0].clone(), Claim::Sole, ttl);
        assert!(matches!(create("/a", &request, SESSION), Op::Create { mode: of, .. } if of == mode));
    }
}
