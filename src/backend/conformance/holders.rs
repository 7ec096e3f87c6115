//! Who holds and waits, for people, and what there is.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Harness;
use super::site::Site;
use crate::backend::{Detail, Holder, Kind, Listed, Request, Resource, Waiter};

/// For how long something is held before that is looked at.
const A_WHILE: Duration = Duration::from_millis(50);
/// By how much the clocks of the store and of this process, or of two clients, may differ.
const CLOCKS_DIFFER: Duration = Duration::from_millis(20);
/// The TTL of what is listed: longer than it takes to make all of it.
const LONG: Duration = Duration::from_secs(30);
/// How many keys of each kind are made.
const KEYS: usize = 12;

/// 15. Labels and notes are reported as they were given with the request, and for how long something has been held.
pub async fn point_15_holders_and_waiters_have_names(store: &dyn Harness, kind: Kind) {
    let (one, other) = Site::pair(store, kind, "names").await;
    if !one.backend.capabilities().labels {
        return;
    }
    let named = |request: Request, label: &str, note: &str| {
        let text = |text: &str| (!text.is_empty()).then(|| text.into());
        Request { label: text(label), note: text(note), ..request }
    };
    let texts = ["api-7 (pid 4711)", "a \"b\" \\ c ~/%é=\u{1f600} note=\"x\""];
    let first = named(one.request(), texts[0], texts[1]);
    one.grant(&first).await;
    let granted = Instant::now();
    let next = named(other.request_waiting(), texts[1], texts[0]);
    let waiting = other.wait(next.clone());
    one.until_waiting(1).await;
    sleep(A_WHILE.min(one.ttl / 4)).await;

    // Not after the answer, which may take a while.
    let elapsed = granted.elapsed();
    let now = one.inspect().await;
    assert_named(now.holder().expect("it is held"), &first);
    let held_for = now.holder().and_then(|holder| holder.held_for).expect("since when it is held");
    assert!(held_for + CLOCKS_DIFFER >= elapsed.min(one.ttl / 4), "{held_for:?} of {elapsed:?}");
    assert!(held_for <= granted.elapsed() + one.slack, "{held_for:?} of {elapsed:?}");
    let Waiter { label, note, .. } = &now.waiters[0];
    assert_eq!((label.as_deref(), note.as_deref()), (next.label.as_deref(), next.note.as_deref()));
    let brief = one.backend.inspect(&one.resource, Detail::Summary).await.expect("the store answers");
    assert_named(brief.holder().expect("it is held"), &first);
    assert_eq!((brief.waiting, brief.waiters.len(), brief.in_use), (1, 0, now.in_use));
    assert_eq!(
        (now.waiting, brief.holder().map(|holder| holder.token)),
        (1, now.holder().map(|one| one.token))
    );

    one.release(first.lease.id).await;
    one.within(one.slack, "the waiter", waiting).await;
    other.renew(next.lease.id).await;
    let now = other.inspect().await;
    assert_named(now.holder().expect("it is held"), &next);
    let since = now.holder().and_then(|holder| holder.held_for).expect("since when it is held");
    assert!(since <= granted.elapsed() + other.slack, "{since:?}");
    other.release(next.lease.id).await;

    // A store may keep the label of a client and not that of each request: this is a client without one.
    let (nobody, _) = Site::pair(store, kind, "no names").await;
    let nameless = nobody.request();
    nobody.grant(&nameless).await;
    assert_named(nobody.inspect().await.holder().expect("it is held"), &nameless);
    nobody.release(nameless.lease.id).await;
}

fn assert_named(holder: &Holder, request: &Request) {
    assert_eq!(holder.id, request.lease.id.to_string());
    assert_eq!(
        (holder.label.as_deref(), holder.note.as_deref()),
        (request.label.as_deref(), request.note.as_deref())
    );
}

/// 16. All that is held or awaited under keys that begin with a prefix is listed once, with its kind and its holders,
///     and nothing else.
pub async fn point_16_what_is_held_or_awaited_is_listed(store: &dyn Harness) {
    let any = Site { ttl: LONG, ..Site::new(store, Kind::Mutex, "list").await };
    if !any.backend.capabilities().lists {
        return;
    }
    // None of these characters means what it does in the patterns of some stores.
    let prefix = format!("lock:list_%*?[a-z]\\/{}/", Uuid::new_v4());
    let beside = any.at(Resource::named(&prefix.replace('_', "x"), "beside", Kind::Mutex));
    let ended = Site { ttl: store.ttl(), ..any.at(Resource::named(&prefix, "ended", Kind::Mutex)) };
    let (elsewhere, brief) = (beside.request(), ended.request());
    beside.grant(&elsewhere).await;
    ended.grant(&brief).await;
    let (mut expected, mut requests) = (BTreeMap::new(), vec![elsewhere]);
    for kind in any.backend.capabilities().kinds.clone() {
        for n in 0..KEYS {
            let site = any.at(Resource::named(&prefix, &format!("{} {n}/%é", kind.as_str()), kind));
            let holder = Request { label: Some("label".into()), ..site.request() };
            site.grant(&holder).await;
            let waiter = site.request_waiting();
            let waiters = n % 2;
            if waiters > 0 {
                site.queue(&waiter).await;
                requests.push(waiter.clone());
            }
            if n % 3 > 0 {
                let found = (as_listed(kind), holder.lease.id.to_string(), waiters);
                expected.insert(site.resource.key.to_string(), found);
                requests.push(holder);
            } else {
                site.release(waiter.lease.id).await;
                site.release(holder.lease.id).await;
            }
        }
    }
    // It ends by itself.
    let until = Instant::now() + ended.ttl + ended.slack * 4;
    while Instant::now() < until && ended.inspect().await.holder().is_some() {
        sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(list(&any, &prefix).await, expected);
    let some = format!("{prefix}mutex 1");
    let begin_so = expected.into_iter().filter(|(key, _)| key.starts_with(&some)).collect();
    assert_eq!(list(&any, &some).await, begin_so);
    assert_eq!(list(&any, &format!("{prefix}none")).await, BTreeMap::new());
    for request in requests {
        any.backend.release(&request.lease).await.expect("the store answers");
    }
}

/// A store need not tell the two kinds of locks apart.
fn as_listed(kind: Kind) -> Kind {
    if kind == Kind::Reentrant { Kind::Mutex } else { kind }
}

/// By key: its kind, who holds it, and how many wait.
async fn list(site: &Site, prefix: &str) -> BTreeMap<String, (Kind, String, usize)> {
    let listed: Vec<_> = site.backend.list(prefix).collect().await;
    let mut found = BTreeMap::new();
    for one in listed {
        let Listed { resource, holders, waiters } = one.expect("the store answers");
        let [holder] = &holders[..] else { panic!("one holds {}: {holders:?}", resource.key) };
        if site.backend.capabilities().labels {
            assert_eq!(holder.label.as_deref(), Some("label"), "{}", resource.key);
        }
        let what = (as_listed(resource.kind), holder.id.clone(), waiters);
        let known = found.insert(resource.key.to_string(), what);
        assert!(known.is_none(), "{} is listed twice", resource.key);
    }
    found
}
