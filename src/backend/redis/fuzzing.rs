//! Answers and messages that may be anything.

use bytes::Bytes;
use uuid::Uuid;

use super::cluster::Map;
use super::link::Value;
use super::listing::read_listed;
use super::msgpack::{pack_text, unpack_list};
use super::notifications::Notifications;
use super::target::Server;
use super::{calls, keys};
use crate::backend::{Answer, Detail, Event, Kind, Limit, Resource};
use crate::fence::FencingToken;

/// How a list of one item begins.
const LIST_OF_ONE: u8 = 0x91;

/// What a server may answer, as a list in MessagePack, to every call. The last item stands for the time.
pub(in crate::backend) fn answers(bytes: &[u8]) {
    let mut packed = vec![LIST_OF_ONE];
    pack_text(bytes, &mut packed);
    assert_eq!(unpack_list(&packed.into()), Some(vec![Value::Text(Bytes::copy_from_slice(bytes))]));

    let Some(items) = unpack_list(&Bytes::copy_from_slice(bytes)) else { return };
    assert!(
        items.iter().map(count).sum::<usize>() < bytes.len(),
        "each value has a byte, and so has the list"
    );
    let all = Value::List(items);
    for answer in all.as_list().iter().chain([&all]) {
        granted_or_not(answer);
        let _ = (calls::read_renewal(answer), calls::read_released(answer));
        for detail in [Detail::Full, Detail::Summary, Detail::Counts] {
            drop(calls::read_inspection_of_lock(answer.as_list(), detail));
        }
        drop(calls::read_inspection_of_permits(answer.as_list()));
        for now in [answer, &Value::Nil] {
            if let Some(listed) = read_listed("lock:a", answer, now) {
                assert!(!listed.holders.is_empty() || listed.waiters > 0, "nobody holds or waits");
            }
        }
        let node = Server::Tcp { host: "h".to_owned(), port: 6379 };
        if let Some(map) = Map::read(answer, &node) {
            assert!((0..keys::SLOTS).all(|slot| map.node(slot).is_some()), "there are primaries");
        }
    }
}

fn count(value: &Value) -> usize {
    1 + value.as_list().iter().map(count).sum::<usize>()
}

/// A grant has a token that is in the answer.
fn granted_or_not(answer: &Value) {
    let of_lock = calls::read_lock_answer(answer);
    if let Some(Answer::Granted(grant)) = &of_lock {
        let said = if let Value::List(parts) = answer { parts.first() } else { Some(answer) };
        assert_eq!(said.and_then(Value::as_u64).map(FencingToken::new), Some(grant.token));
        assert!(grant.token.get() > 0 && grant.limit.is_none());
    }
    let of_semaphore = calls::read_permits_answer(answer.as_list(), 1, Limit::stated(3));
    if let Some(Ok(Answer::Granted(grant))) = of_semaphore {
        let [said, _, version, token, ..] = answer.as_list() else { panic!("{answer:?}") };
        assert_eq!((said.as_str(), token.as_u64()), (Some("granted"), Some(grant.token.get())));
        assert_eq!(version.as_u64(), grant.limit.map(|limit| limit.version));
    }
}

/// What anybody may publish on the channel of a client.
pub(in crate::backend) fn message(text: &str) {
    let client = Uuid::nil();
    let event = Notifications::new(client, false).read(text);
    let Some(event) = event else { return };
    let lease = event.lease().expect("each message is about a lease");
    assert_eq!(lease.client(), client, "{event:?}");
    let again = match &event {
        Event::Granted { lease, ticket, grant } => {
            let (id, resource) = (lease.id, &lease.resource);
            let (kind, prefix, key) = (resource.kind.as_str(), resource.prefix().len(), &resource.key);
            let limit = grant.limit.map(|limit| format!("/{}/{}", limit.permits, limit.version));
            let limit = limit.unwrap_or_default();
            format!("grant {id} {} {} {kind}{limit} {prefix} {key}", grant.token, ticket.get())
        }
        Event::Revoked { lease, token } => format!("revoke {lease} {token} key"),
        Event::AskAgain(lease) => format!("ask {lease} key"),
        Event::Changed(_) | Event::Resync => panic!("{event:?}"),
    };
    assert_eq!(Notifications::new(client, false).read(&again), Some(event));
    // A client for which it matters whether replicas have the grant asks for it.
    let confirmed = Notifications::new(client, true).read(text);
    assert!(!matches!(confirmed, Some(Event::Granted { .. })), "{confirmed:?}");
    assert_eq!(Notifications::new(Uuid::max(), false).read(text), None, "it is for another client");
}

/// The keys of a resource lead back to it, and are in one slot of a cluster.
pub(in crate::backend) fn keys_of(resource: &Resource) {
    let [first, queue] = keys::with_its_queue(&resource.key);
    let queue = std::str::from_utf8(&queue).expect("text");
    assert_eq!(keys::with_queue(queue), Some(&*resource.key));
    let slot = keys::slot(&first);
    for key in keys::of(resource, Some(slot)) {
        assert_eq!(keys::slot(&key), slot, "{key:?}");
    }
    assert!(resource.kind == Kind::Mutex || keys::of(resource, None)[0] == first);
}
