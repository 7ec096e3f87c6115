//! What is planned for random operations, stored in simulated nodes, and read back, is what the ledger says.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use super::failure::Code;
use super::names;
use super::op::{ANY, Mode, Op, Reply, Stat};
use super::plan::{Changed, Context, Step, create};
use super::view::{Mark, Seen, View, reads};
use crate::backend::ledger::random::{Operation, Outcome, Random, Site, shape};
use crate::backend::{Kind, LeaseId, Stamp};

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
