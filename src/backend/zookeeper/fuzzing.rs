//! What may be in the nodes of ZooKeeper, and what a server may send.

use std::sync::Arc;

use super::jute::Reader;
use super::link::read_handshake;
use super::names::{self, ChildName};
use super::op::{ANY, Mode, Op, Reply, Stat};
use super::session::read_event;
use super::view::{Mark, Record, Seen, View, reads};
use crate::backend::{Resource, ledger};

const PATH: &str = "/leasehold/lock:a";

/// A name of a node, what is in one, and messages of a server.
pub(in crate::backend) fn bytes(bytes: &[u8]) {
    if let Ok(name) = std::str::from_utf8(bytes) {
        child(name);
        if let Some(key) = names::key(name) {
            let path = names::record("/r", &key);
            assert_eq!(names::key(&path["/r/".len()..]), Some(key), "{path}");
        }
    }
    data(bytes);
    messages(bytes);
    view(bytes);
}

fn child(name: &str) {
    let key: Arc<str> = "lock:a".into();
    let Some(child) = ChildName::parse(name, &key) else { return };
    let written = format!("{}{:010}", names::child(&child.request), child.number.cast_signed());
    let again = ChildName::parse(&written, &key).expect("a name that was written is read");
    assert_eq!((again.number, &again.request.lease), (child.number, &child.request.lease), "{name}");
    assert_eq!(
        (&again.request.claim, again.request.ttl),
        (&child.request.claim, child.request.ttl),
        "{name}"
    );
    assert_eq!((again.request.tokens, &again.request.label), (child.request.tokens, &child.request.label));
}

fn data(bytes: &[u8]) {
    if let Some(record) = Record::read(bytes, Stat::default()) {
        let written = Record::data(&record.generation, &record.ledger.without_queue());
        let again = Record::read(&written, Stat::default()).expect("a record that was written is read");
        assert_eq!(again.generation, record.generation);
        assert_eq!(again.ledger.text_of_holds(), record.ledger.text_of_holds());
    }
    if let Some(mark) = Mark::read(bytes) {
        assert_eq!(Mark::read(&mark.data()), Some(mark));
    }
    let _: Seen = Seen::of(bytes, Stat::default());
}

fn messages(bytes: &[u8]) {
    let path = || PATH.to_owned();
    let set = Op::Set { path: path(), data: Vec::new(), version: ANY };
    let create = Op::Create { path: path(), data: Vec::new(), mode: Mode::EphemeralSequential };
    let multi = Op::Multi(vec![set.clone(), Op::Delete { path: path(), version: ANY }]);
    for op in [set, create, multi, Op::Sync { path: path() }].iter().chain(&reads(PATH)) {
        let reply = op.read(&mut Reader(bytes));
        if let (Op::Multi(ops), Ok(Ok(Reply::All(replies)))) = (op, reply) {
            assert_eq!(replies.len(), ops.len(), "what has no reply was not done");
        }
    }
    drop(read_event(&mut Reader(bytes)));
    if let Ok(Some(identity)) = read_handshake(bytes) {
        assert!(!identity.timeout.is_zero(), "it has not expired");
    }
}

/// The replies to what reads a key, one after the other.
fn view(bytes: &[u8]) {
    let mut reader = Reader(bytes);
    let mut replies = reads(PATH).into_iter().map_while(|op| op.read(&mut reader).ok());
    let key: Arc<str> = "lock:a".into();
    let Ok(mut view) = View::read(&key, PATH, &mut replies) else { return };
    for now in [0, 1_764_090_000_000_000, u64::MAX] {
        let _ = (view.uncertain(now), view.is_held(now), view.may_have_waiters());
        ledger::fuzzing::used(view.ledger(now), bytes);
    }
    for child in view.children.clone() {
        let path = format!("{PATH}/{}", child.node);
        assert!(view.see(&path, Seen::of(bytes, Stat::default())).is_some(), "{path}");
    }
    ledger::fuzzing::used(view.ledger(1), bytes);
}

/// The node of a resource leads back to it.
pub(in crate::backend) fn node_of(resource: &Resource) {
    let path = names::record("/r", &resource.key);
    let name = &path["/r/".len()..];
    assert!(!name.contains('/') && names::is_record(name), "{path}");
    assert_eq!(names::key(name).as_deref(), Some(&*resource.key));
}
