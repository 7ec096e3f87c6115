//! Who holds and who waits, by name; and what is held or awaited at all: on one server and in a cluster.
#![cfg(feature = "_redis")]

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use leasehold::backend::{
    Answer, Backend, Claim, Detail, Kind, LeaseRef, Limit, Listed, Released, Renew, Renewal, Request,
    Resource,
};
use leasehold::redis::RedisBackend;
use leasehold::redlock::RedlockBackend;
use leasehold::{BackendError, Client, Error};
use leasehold_support::observing::Observing;
use leasehold_support::{Cluster, Nodes, Raw, RedisServer, Reply, eventually, within};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

fn resource(key: &str, kind: Kind) -> Resource {
    Resource::new(key, kind)
}

fn mutex(key: &str) -> Resource {
    resource(key, Kind::Mutex)
}

/// A request of a client with this label.
fn labelled(store: &dyn Backend, resource: &Resource, claim: Claim, label: &str) -> Request {
    let mut request = Request::new(LeaseRef::new(store.lease_id(), resource.clone()), claim, TTL).waiting();
    request.label = Some(label.into());
    request
}

fn noted(mut request: Request, note: &str) -> Request {
    request.note = Some(note.into());
    request
}

async fn granted(store: &dyn Backend, request: &Request) -> LeaseRef {
    let answer = store.request(request).await.expect("answered");
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    request.lease.clone()
}

async fn queued(store: &dyn Backend, request: &Request) -> LeaseRef {
    let answer = store.request(request).await.expect("answered");
    assert!(matches!(answer, Answer::Queued(_)), "{answer:?}");
    request.lease.clone()
}

async fn connect(server: &RedisServer) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.expect("the server answers")
}

/// Labels and notes of the holders and of those that wait.
async fn told(store: &dyn Backend, resource: &Resource) -> Vec<(Option<String>, Option<String>)> {
    let seen = store.inspect(resource, Detail::Full).await.expect("answered");
    let holders = seen.holders.into_iter().map(|holder| (holder.label, holder.note));
    holders.chain(seen.waiters.into_iter().map(|waiter| (waiter.label, waiter.note))).collect()
}

fn some(label: &str, note: &str) -> (Option<String>, Option<String>) {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    (text(label), text(note))
}

/// What a list finds, by key.
async fn listed(store: &dyn Backend, prefix: &str) -> BTreeMap<String, Listed> {
    let all: Vec<Listed> = store.list(prefix).try_collect().await.expect("answered");
    let number = all.len();
    let by_key: BTreeMap<_, _> =
        all.into_iter().map(|listed| (listed.resource.key.to_string(), listed)).collect();
    assert_eq!(by_key.len(), number, "nothing is listed twice");
    by_key
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_of_every_kind_have_labels_and_notes() {
    let Some(server) = RedisServer::start_or_skip("labels and notes") else { return };
    let (one, two) = (connect(&server).await, connect(&server).await);
    let limit = Limit::stated(1);
    for (key, kind, claim) in [
        ("lock:m", Kind::Mutex, Claim::Sole),
        ("lock:{t}m", Kind::Mutex, Claim::Sole),
        ("lock:r", Kind::Reentrant, Claim::Owner("me".into())),
        ("semaphore:c", Kind::Counting, Claim::Permits(1, limit)),
        ("fair-semaphore:f", Kind::Fair, Claim::Permits(1, limit)),
    ] {
        let resource = resource(key, kind);
        let other = match &claim {
            Claim::Owner(_) => Claim::Owner("other".into()),
            same => same.clone(),
        };
        let held = granted(&one, &noted(labelled(&one, &resource, claim, "api-7 (pid 1)"), "nightly")).await;
        let waiting = queued(&two, &labelled(&two, &resource, other.clone(), "ü")).await;
        let with_note = queued(&two, &noted(labelled(&two, &resource, other, "ü"), "run 2")).await;
        let expected = [some("api-7 (pid 1)", "nightly"), some("ü", ""), some("ü", "run 2")];
        assert_eq!(told(&two, &resource).await, expected, "{key}");
        let listed = listed(&two, key).await;
        let [holder] = &listed[key].holders[..] else { panic!("{listed:?}") };
        assert_eq!((holder.label.clone(), holder.note.clone()), expected[0], "{key}");
        assert_eq!((listed[key].resource.kind, listed[key].waiters), (kind, 2), "{key}");
        for (store, lease) in [(&two, &waiting), (&two, &with_note), (&one, &held)] {
            assert_ne!(store.release(lease).await.expect("answered"), Released::Absent, "{key}");
        }
    }
    let mut raw = server.raw();
    assert_eq!(raw.keys("*:note"), Vec::<String>::new(), "a note is removed with its lease");
    assert_eq!(raw.label_keys().len(), 2, "one for each client, whatever it locks");
    one.close().await;
    two.close().await;
    assert_eq!(raw.label_keys(), Vec::<String>::new());
}

/// Whoever knows the id of a client needs only guess a small number to end its leases.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_contains_a_lease_id_or_the_id_of_a_client() {
    let Some(server) = RedisServer::start_or_skip("keys of labels and notes") else { return };
    let store = connect(&server).await;
    let lease = granted(&store, &noted(labelled(&store, &mutex("lock:a"), Claim::Sole, "one"), "n")).await;
    let client = lease.id.client().to_string();
    let keys = server.raw().send(&["KEYS", "*"]).words();
    assert_eq!(keys.len(), 4, "{keys:?}");
    assert!(keys.iter().all(|key| !key.contains(&client[..8])), "{keys:?} {client}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_is_written_once_and_a_note_with_every_renewal() {
    let Some(server) = RedisServer::start_or_skip("writing labels") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    let plain = granted(&store, &labelled(&store, &mutex("lock:warm"), Claim::Sole, "one")).await;
    let [label] = &raw.label_keys()[..] else { panic!("one client") };
    let expires = raw.pttl(label);
    assert!((3_600_000..=3_630_000).contains(&expires), "an hour longer than the lease: {expires}");
    assert!(raw.keys("*:note").is_empty());
    store.release(&plain).await.expect("answered");

    let is_written = |commands: &std::collections::BTreeMap<String, u64>| commands.get("set").copied();
    raw.send(&["CONFIG", "RESETSTAT"]);
    for n in 0..20 {
        let lease =
            granted(&store, &labelled(&store, &mutex(&format!("lock:{n}")), Claim::Sole, "one")).await;
        let renewed: Vec<_> = store.renew(&[Renew::new(lease, TTL)]).collect().await;
        assert!(matches!(renewed[..], [(0, Ok(Renewal::Renewed))]), "{renewed:?}");
    }
    // A grant writes the fence, or twice if another day begins for it.
    let sets = is_written(&raw.info_commandstats()).unwrap_or(0);
    assert!((20..=22).contains(&sets), "{sets} SET for 20 grants, which write the fence");

    let lease = granted(&store, &noted(labelled(&store, &mutex("lock:n"), Claim::Sole, "one"), "why")).await;
    let [note] = &raw.keys("*:note")[..] else { panic!("one note") };
    assert_eq!(raw.get(note).as_deref(), Some("why"));
    raw.send(&["PEXPIRE", note, "5000"]);
    let renewed: Vec<_> = store.renew(&[Renew::new(lease.clone(), TTL)]).collect().await;
    assert!(matches!(renewed[..], [(0, Ok(Renewal::Renewed))]), "{renewed:?}");
    eventually(SECOND * 5, || std::future::ready(server.raw().pttl(note) > 20_000)).await;
    store.release(&lease).await.expect("answered");
    assert!(raw.keys("*:note").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_returns_after_the_store_has_lost_its_data() {
    let Some(server) = RedisServer::start_or_skip("labels that were lost") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    let lease = granted(&store, &labelled(&store, &mutex("lock:a"), Claim::Sole, "one")).await;
    raw.send(&["FLUSHALL"]);
    let renewed: Vec<_> = store.renew(&[Renew::new(lease, TTL)]).collect().await;
    assert!(matches!(renewed[..], [(0, Ok(Renewal::Lost(_)))]), "{renewed:?}");
    granted(&store, &labelled(&store, &mutex("lock:a"), Claim::Sole, "one")).await;
    assert_eq!(told(&store, &mutex("lock:a")).await, [some("one", "")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_returns_after_the_server_was_restarted() {
    let Some(mut server) = RedisServer::start_or_skip("labels after a restart") else { return };
    let store = connect(&server).await;
    let lease = granted(&store, &labelled(&store, &mutex("lock:a"), Claim::Sole, "one")).await;
    server.restart();
    store.release(&lease).await.expect("answered by the server that has restarted");
    let request = labelled(&store, &mutex("lock:a"), Claim::Sole, "one");
    eventually(SECOND * 10, || async {
        let answer = store.request(&request).await;
        matches!(answer, Ok(Answer::Granted(_))) && told(&store, &mutex("lock:a")).await == [some("one", "")]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_labels_has_none_and_everything_else() {
    let Some(server) = RedisServer::start_or_skip("users without labels") else { return };
    let mut raw = server.raw();
    let rules = [
        "ACL",
        "SETUSER",
        "few",
        "on",
        ">pw",
        "resetchannels",
        "&leasehold:*",
        "~lock:*",
        "~{lock:*",
        "+@all",
    ];
    assert_eq!(raw.send(&rules), Reply::ok());
    let url = format!("redis://few:pw@127.0.0.1:{}", server.port());
    let store = RedisBackend::connect(&url).await.expect("accepted");
    let lease = granted(&store, &noted(labelled(&store, &mutex("lock:a"), Claim::Sole, "one"), "why")).await;
    assert_eq!(told(&store, &mutex("lock:a")).await, [some("", "why")]);
    assert_eq!(listed(&store, "lock:").await.len(), 1);
    assert_eq!(store.release(&lease).await.expect("answered"), Released::Held);
    for _ in 0..10 {
        let lease = granted(&store, &labelled(&store, &mutex("lock:a"), Claim::Sole, "one")).await;
        store.release(&lease).await.expect("answered");
    }
    let log = raw.send(&["ACL", "LOG"]).array();
    let denied = log.iter().filter(|entry| entry.words().iter().any(|word| word.contains(":client")));
    assert!(denied.count() <= 2, "one attempt to write it, and one to read it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn since_when_it_is_held_is_known_for_every_kind() {
    let Some(server) = RedisServer::start_or_skip("since when") else { return };
    let store = connect(&server).await;
    let begun = std::time::Instant::now();
    let limit = Limit::stated(3);
    for (key, kind, claim) in [
        ("lock:m", Kind::Mutex, Claim::Sole),
        ("lock:r", Kind::Reentrant, Claim::Owner("me".into())),
        ("semaphore:c", Kind::Counting, Claim::Permits(2, limit)),
        ("fair-semaphore:f", Kind::Fair, Claim::Permits(1, limit)),
    ] {
        let resource = resource(key, kind);
        granted(&store, &labelled(&store, &resource, claim, "one")).await;
        let seen = async || {
            let seen = store.inspect(&resource, Detail::Full).await.expect("answered");
            seen.holders[0].held_for.expect("known")
        };
        let first = seen().await;
        eventually(SECOND * 5, || async { seen().await >= first + Duration::from_millis(50) }).await;
        assert!(seen().await <= begun.elapsed() + SECOND, "{key}");
        assert!(listed(&store, key).await[key].holders[0].held_for >= Some(first), "{key}");
    }
    server.raw().send(&["SET", "lock:foreign", "theirs", "PX", "30000"]);
    let foreign = store.inspect(&mutex("lock:foreign"), Detail::Full).await.expect("answered");
    assert_eq!(foreign.holders[0].held_for, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_has_what_is_held_or_awaited_and_nothing_else() {
    let Some(server) = RedisServer::start_or_skip("listing") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    let held = |key: &str| labelled(&store, &mutex(key), Claim::Sole, "one");
    for key in
        ["lock:a", "lock:ab", "lock:{t}x", "lock:*", "lock:[a]", "lock:a:queue", "lock:ü", "other:a", "plain"]
    {
        granted(&store, &held(key)).await;
    }
    let owned = resource("lock:owned", Kind::Reentrant);
    let other = connect(&server).await;
    for store in [&store as &dyn Backend, &other] {
        granted(store, &labelled(store, &owned, Claim::Owner("me".into()), "one")).await;
    }
    // Awaited, after its holder has died.
    let dead = granted(&store, &held("lock:{t}awaited")).await;
    queued(&store, &held("lock:{t}awaited")).await;
    raw.send(&["DEL", &dead.resource.key]);
    // Held by another library, and awaited.
    raw.send(&["SET", "lock:theirs", "theirs", "PX", "30000"]);
    queued(&store, &held("lock:theirs")).await;
    // Ended, and things of other programs.
    let mut ended = held("lock:ended");
    ended.ttl = Duration::from_millis(100);
    granted(&store, &ended).await;
    let permits = resource("semaphore:ended", Kind::Counting);
    let mut ended = labelled(&store, &permits, Claim::Permits(1, Limit::stated(1)), "one");
    ended.ttl = Duration::from_millis(100);
    granted(&store, &ended).await;
    raw.send(&["SET", "lock:text", "text"]);
    raw.send(&["HSET", "lock:hash", "a", "b"]);
    raw.send(&["ZADD", "lock:ranking", "9999999999999", "somebody"]);
    raw.send(&["ZADD", "{lock:ghost}:queue", "1", "nonsense"]);
    raw.send(&["RPUSH", "{lock:list}:queue", "nonsense"]);
    raw.send(&["SET", "lock:\u{0}binary", "text"]);
    raw.send(&["SADD", "xlock:a", "set"]);
    granted(&store, &noted(held("lock:noted"), "why")).await;
    // The ended semaphore has not ended while its lease runs.
    eventually(SECOND * 5, || async { !listed(&store, "").await.contains_key("semaphore:ended") }).await;

    let locks = [
        "lock:*",
        "lock:[a]",
        "lock:a",
        "lock:a:queue",
        "lock:ab",
        "lock:noted",
        "lock:owned",
        "lock:theirs",
        "lock:{t}awaited",
        "lock:{t}x",
        "lock:ü",
    ];
    let found = listed(&store, "lock:").await;
    assert_eq!(found.keys().map(|key| &**key).collect::<Vec<_>>(), locks);
    let all = listed(&store, "").await;
    assert_eq!(all.len(), locks.len() + 2, "{:?}", all.keys());
    for (prefix, keys) in [
        ("lock:a", &["lock:a", "lock:a:queue", "lock:ab"][..]),
        ("lock:*", &["lock:*"]),
        ("lock:[a]", &["lock:[a]"]),
        ("lock:?", &[]),
        ("lock:{t}", &["lock:{t}awaited", "lock:{t}x"]),
        ("{lock:", &[]),
        ("o", &["other:a"]),
        ("nothing", &[]),
    ] {
        assert_eq!(listed(&store, prefix).await.into_keys().collect::<Vec<_>>(), keys, "{prefix}");
    }

    assert_eq!(found["lock:{t}awaited"].holders, []);
    assert_eq!(found["lock:{t}awaited"].waiters, 1);
    assert_eq!((found["lock:a"].waiters, found["lock:a"].holders.len()), (0, 1));
    assert_eq!((&*found["lock:theirs"].holders[0].id, found["lock:theirs"].waiters), ("theirs", 1));
    let fair = Resource::named("own:prefix:", "s", Kind::Fair);
    granted(&store, &labelled(&store, &fair, Claim::Permits(1, Limit::stated(1)), "one")).await;
    assert_eq!(listed(&store, "own:").await["own:prefix:s"].resource.kind, Kind::Fair);
    assert_eq!(found["lock:owned"].resource.kind, Kind::Reentrant);
    assert_eq!(found["lock:owned"].holders.len(), 2, "{:?}", found["lock:owned"]);
    assert_eq!(found["lock:owned"].holders[0].owner.as_deref(), Some("me"));
}

/// With keys of others in between, and while what is listed changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_throughout_is_listed_once_whatever_happens_meanwhile() {
    let Some(server) = RedisServer::start_or_skip("listing meanwhile") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    const HELD: usize = 2_000;
    for n in 0..HELD {
        granted(&store, &labelled(&store, &mutex(&format!("lock:held:{n}")), Claim::Sole, "one")).await;
    }
    let mut list = store.list("lock:held:");
    let mut found = Vec::new();
    let mut n = 0;
    while let Some(listed) = within(SECOND * 30, list.next()).await {
        found.push(listed.expect("answered").resource.key.to_string());
        // The server's table grows, and shrinks again.
        if found.len() % 20 == 0 {
            n += 1;
            for m in 0..50 {
                let (made, half) = (format!("other:{n}:{m}"), HELD / 40);
                raw.send(&["SET", &made, "x"]);
                if n > half {
                    raw.send(&["DEL", &made, &format!("other:{}:{m}", n - half)]);
                }
            }
        }
    }
    assert_eq!(found.len(), HELD);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), HELD, "each is listed once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_is_listed_with_all_its_holders() {
    let Some(server) = RedisServer::start_or_skip("listing semaphores") else { return };
    let store = connect(&server).await;
    let permits = resource("semaphore:s", Kind::Counting);
    for n in 1..=150 {
        let request = labelled(&store, &permits, Claim::Permits(2, Limit::stated(300)), "one");
        granted(&store, &noted(request, &format!("n{n}"))).await;
    }
    for _ in 0..250 {
        queued(&store, &labelled(&store, &permits, Claim::Permits(1, Limit::stated(300)), "one")).await;
    }
    let found = &listed(&store, "sem").await["semaphore:s"];
    assert_eq!((found.holders.len(), found.waiters), (150, 250));
    assert!(found.holders.iter().all(|holder| holder.permits == 2 && holder.label.as_deref() == Some("one")));
    let mut notes: Vec<_> = found.holders.iter().filter_map(|holder| holder.note.clone()).collect();
    notes.sort();
    notes.dedup();
    assert_eq!(notes.len(), 150);
}

/// Semaphores with many holders, without a request for each.
fn make_holders(raw: &mut Raw, semaphores: usize, holders: usize) {
    let ends = (raw.now_us() / 1000 + 60_000).to_string();
    let leases: Vec<_> = (0..holders).map(|n| format!("0bd7ff6e-a7e3-11f0-a9dd-0242ac120002.{n}")).collect();
    for n in 0..semaphores {
        let (key, holds) = (format!("semaphore:{n}"), format!("{{semaphore:{n}}}:holds"));
        let scored: Vec<_> = leases.iter().flat_map(|lease| [&*ends, lease]).collect();
        raw.send(&[&["ZADD", &key], &scored[..]].concat());
        raw.send(&["PEXPIRE", &key, "60000"]);
        let held: Vec<_> = leases.iter().flat_map(|lease| [lease, "1 1"]).collect();
        raw.send(&[&["HSET", &holds], &held[..]].concat());
    }
}

/// Each call looks at so few holders that other clients do not wait for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_of_a_list_looks_at_more_than_a_few_hundred_holders() {
    const SEMAPHORES: usize = 40;
    let Some(server) = RedisServer::start_or_skip("large semaphores") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    make_holders(&mut raw, SEMAPHORES, 400);
    raw.send(&["CONFIG", "RESETSTAT"]);
    let found = listed(&store, "semaphore:").await;
    assert_eq!(found.len(), SEMAPHORES);
    for listed in found.values() {
        assert_eq!(listed.holders.len(), 250, "{}", listed.resource.key);
    }
    let commands = raw.info_commandstats();
    let calls = ["eval", "evalsha"].iter().filter_map(|name| commands.get(*name)).sum::<u64>();
    let looked_at = commands["hget"];
    assert!(looked_at <= 250 * SEMAPHORES as u64, "{looked_at}");
    // Besides these, labels and notes are read.
    assert!(calls >= looked_at / 500, "{calls} calls looked at {looked_at} holders");
    let begun = std::time::Instant::now();
    let seen =
        store.inspect(&resource("semaphore:1", Kind::Counting), Detail::Summary).await.expect("answered");
    assert_eq!(seen.holders.len(), 16, "{:?}", begun.elapsed());
}

/// Whatever other programs have stored on the same server is not transferred, and hardly looked at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_everything_does_not_read_what_is_stored_by_others() {
    let Some(server) = RedisServer::start_or_skip("a server with other data") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    let large = "x".repeat(1_000_000);
    for n in 0..20 {
        raw.send(&["SET", &format!("session:{n}"), &large, "PX", "60000"]);
        raw.send(&["SET", &format!("page:{n}"), &large]);
        raw.send(&["ZADD", &format!("ranking:{n}"), "9999999999999", "somebody"]);
    }
    granted(&store, &labelled(&store, &mutex("lock:a"), Claim::Sole, "one")).await;
    raw.send(&["SET", "lock:theirs", "theirs"]);
    queued(&store, &labelled(&store, &mutex("lock:theirs"), Claim::Sole, "one")).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    let found = listed(&store, "").await;
    assert_eq!(found.keys().collect::<Vec<_>>(), ["lock:a", "lock:theirs"]);
    assert_eq!(
        (&*found["lock:theirs"].holders[0].id, found["lock:theirs"].holders[0].remaining),
        ("theirs", None)
    );
    let commands = raw.info_commandstats();
    assert_eq!(commands.get("getrange"), Some(&22), "of what expires, and of what is awaited: {commands:?}");
    let reads = |name: &str| commands.get(name).copied().unwrap_or_default();
    assert!(reads("get") <= 2, "labels: {commands:?}");
    assert_eq!(reads("zrangebyscore"), 0, "{commands:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_fails_when_its_server_is_gone_and_who_may_not_scan_is_told() {
    let Some(mut server) = RedisServer::start_or_skip("lists that fail") else { return };
    let mut raw = server.raw();
    let rules =
        ["ACL", "SETUSER", "few", "on", ">pw", "resetchannels", "&leasehold:*", "~*", "+@all", "-scan"];
    assert_eq!(raw.send(&rules), Reply::ok());
    let url = format!("redis://few:pw@127.0.0.1:{}", server.port());
    let few = RedisBackend::connect(&url).await.expect("accepted");
    let refused = few.list("lock:").collect::<Vec<_>>().await;
    let [Err(error @ BackendError::Refused { .. })] = &refused[..] else { panic!("{refused:?}") };
    assert!(error.to_string().contains("scan"), "{error:?}");

    let store = connect(&server).await;
    // More than one step of the scan finds.
    for n in 0..1_500 {
        granted(&store, &labelled(&store, &mutex(&format!("lock:{n}")), Claim::Sole, "one")).await;
    }
    let mut list = store.list("lock:");
    list.next().await.expect("one is found").expect("answered");
    server.kill();
    let rest: Vec<_> = within(SECOND * 20, list.collect()).await;
    let (last, others) = rest.split_last().expect("the error");
    assert!(last.as_ref().is_err_and(BackendError::is_transient), "{last:?}");
    assert!(others.iter().all(Result::is_ok) && others.len() < 1_500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_listed_with_all_its_nodes_and_knows_labels_wherever_they_are() {
    let Some(cluster) = Cluster::start_or_skip("listing a cluster") else { return };
    let store = RedisBackend::connect(&cluster.url()).await.expect("the cluster answers");
    for n in 0..300 {
        granted(&store, &labelled(&store, &mutex(&format!("lock:{n}")), Claim::Sole, "one")).await;
    }
    let lock = mutex("lock:noted");
    granted(&store, &noted(labelled(&store, &lock, Claim::Sole, "one"), "why")).await;
    queued(&store, &noted(labelled(&store, &lock, Claim::Sole, "one"), "too")).await;
    assert_eq!(told(&store, &lock).await, [some("one", "why"), some("one", "too")]);
    let found = listed(&store, "lock:").await;
    assert_eq!(found.len(), 301);
    let labels = found.values().flat_map(|listed| &listed.holders).map(|holder| holder.label.as_deref());
    assert!(labels.into_iter().all(|label| label == Some("one")));
    assert_eq!(found["lock:noted"].holders[0].note.as_deref(), Some("why"));
    assert_eq!(found["lock:noted"].waiters, 1);
    store.close().await;
}

/// The client still asks the node that had the slot when it connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_is_stored_wherever_its_slot_is_by_now() {
    let Some(cluster) = Cluster::start_or_skip("labels in a slot that moves") else { return };
    let slot = cluster.slot("{leasehold}");
    let elsewhere = (0..).map(|n| format!("lock:{n}")).find(|key| cluster.slot(key) != slot).expect("one");
    let lock = mutex(&elsewhere);
    let from = cluster.serving(0, slot);
    let (moved, asking) = ((from + 1) % 3, (from + 2) % 3);
    let connect = async || RedisBackend::connect(&cluster.url()).await.expect("the cluster answers");
    let stale = connect().await;
    cluster.move_slot(slot, from, moved);
    let check = async |store: &RedisBackend, label: &str| {
        let lease = granted(store, &labelled(store, &lock, Claim::Sole, label)).await;
        // It follows in the background if that takes long.
        let is_there = async || told(store, &lock).await == [some(label, "")];
        eventually(SECOND * 10, is_there).await;
        store.release(&lease).await.expect("answered");
    };
    check(&stale, "moved").await;
    // What is not stored yet goes where the slot is about to be.
    let new = connect().await;
    cluster.begin_to_move(slot, moved, asking);
    check(&new, "asked").await;
    cluster.move_keys(slot, moved, asking);
    cluster.finish_to_move(slot, moved, asking);
    check(&connect().await, "after the move").await;
    for store in [stale, new] {
        check(&store, "of a client that was there before").await;
        store.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_lists_what_a_majority_holds_and_names_the_nodes_that_fail() {
    let Some(mut nodes) = Nodes::start_or_skip("listing a quorum", 3) else { return };
    let url = format!("{}?connect_timeout=10s", nodes.url());
    let store = RedlockBackend::builder(&url).expect("valid").node_timeout(SECOND);
    let store = store.connect().await.expect("the nodes accept clients");
    for n in 0..100 {
        granted(&store, &noted(labelled(&store, &mutex(&format!("lock:{n}")), Claim::Sole, "one"), "why"))
            .await;
    }
    queued(&store, &labelled(&store, &mutex("lock:7"), Claim::Sole, "one")).await;
    // A minority has it: the majority has lost it.
    for node in &nodes.0[..2] {
        node.raw().send(&["DEL", "lock:9"]);
    }
    // And this one only a minority.
    let alone = connect(&nodes.0[0]).await;
    granted(&alone, &labelled(&alone, &mutex("lock:minority"), Claim::Sole, "two")).await;
    // A node may have lost its labels and notes.
    for key in nodes.0[0].raw().label_keys() {
        nodes.0[0].raw().send(&["DEL", &key]);
    }
    let check = async |left_out: &str| {
        let found = listed(&store, "lock:").await;
        assert_eq!(found.len(), 99, "{left_out}");
        assert!(!found.contains_key("lock:9") && !found.contains_key("lock:minority"));
        assert_eq!(found["lock:7"].waiters, 1);
        assert!(found.values().all(|listed| {
            let [holder] = &listed.holders[..] else { panic!("{listed:?}") };
            holder.label.as_deref() == Some("one") && holder.note.as_deref() == Some("why")
        }));
        assert_eq!(told(&store, &mutex("lock:1")).await, [some("one", "why")]);
    };
    check("no node").await;
    nodes.0[2].kill();
    check("the third").await;
    nodes.0[1].kill();
    let failed: Vec<_> = within(SECOND * 20, store.list("lock:").collect()).await;
    assert!(matches!(failed[..], [Err(BackendError::NoQuorum { .. })]), "{failed:?}");
}

/// Names that a client holds, in one call each time: to lock a hundred thousand takes a while.
fn hold(raw: &mut Raw, names: usize) {
    let script = "for n = 1, ARGV[1] do redis.call('SET', 'lock:' .. n, ARGV[2] .. '.' .. n .. ' ' .. ARGV[3], 'PX', 600000) end";
    let (now, client) = (raw.now_us().to_string(), "6f2b1a34-57f2-4c6a-9d1e-0a1b2c3d4e5f");
    raw.send(&["EVAL", script, "0", &names.to_string(), client, &now]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_made_in_small_steps() {
    let Some(server) = RedisServer::start_or_skip("the steps of lists") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    const NAMES: usize = 5_000;
    hold(&mut raw, NAMES);
    raw.send(&["CONFIG", "RESETSTAT"]);
    assert_eq!(listed(&store, "lock:").await.len(), NAMES);
    let calls = raw.info_commandstats();
    // A step of a scan looks at 1000 keys, and a call at 128 of what was found.
    let names = NAMES as u64;
    assert!(calls["scan"] >= names / 1000 && calls["evalsha"] >= names / 128, "{calls:?}");
    // Nothing is sent that is not asked for.
    raw.send(&["CONFIG", "RESETSTAT"]);
    let mut list = store.list("lock:");
    list.next().await.expect("one is found").expect("answered");
    drop(list);
    assert!(raw.info_commandstats()["scan"] <= 2);
}

/// The latencies of PING while `busy`.
fn pings(server: &RedisServer, mut busy: impl FnMut() -> bool) -> Vec<Duration> {
    let mut raw = server.raw();
    let mut latencies = Vec::new();
    while busy() {
        let sent = std::time::Instant::now();
        raw.send(&["PING"]);
        latencies.push(sent.elapsed());
    }
    latencies.sort_unstable();
    latencies
}

/// The latency that all but one in a hundred do not exceed.
fn p99(latencies: &[Duration]) -> Duration {
    latencies[latencies.len() * 99 / 100]
}

/// On a machine that does nothing else:
/// `cargo test --release --test holders_redis -- --ignored --nocapture a_list_of_a_hundred_thousand`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn a_list_of_a_hundred_thousand_names_delays_others_by_2_ms_at_most() {
    let Some(server) = RedisServer::start_or_skip("the latency beside lists") else { return };
    let (store, mut raw) = (connect(&server).await, server.raw());
    const NAMES: usize = 100_000;
    hold(&mut raw, NAMES);
    let (mut without, mut beside, mut took) = (Vec::new(), Vec::new(), Duration::ZERO);
    for _ in 0..3 {
        let begun = std::time::Instant::now();
        without.extend(pings(&server, || begun.elapsed() < SECOND));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let pinging = scope.spawn(|| pings(&server, || !done.load(std::sync::atomic::Ordering::Relaxed)));
            let begun = std::time::Instant::now();
            let number = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current()
                    .block_on(store.list("lock:").try_fold(0, async |n, _| Ok(n + 1)))
            });
            took += begun.elapsed();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            beside.extend(pinging.join().expect("the server answers"));
            assert_eq!(number.expect("answered"), NAMES);
        });
    }
    without.sort_unstable();
    beside.sort_unstable();
    println!(
        "PING p99 without: {:?}, of {}; beside: {:?}, of {}; a list took {:?}",
        p99(&without),
        without.len(),
        p99(&beside),
        beside.len(),
        took / 3
    );
    assert!(p99(&beside) <= p99(&without) + Duration::from_millis(2));
}

/// The names of connections that begin like those of this crate, without what makes each of them unlike any other.
fn connection_names(raw: &mut Raw) -> Vec<String> {
    let clients = raw.send(&["CLIENT", "LIST"]).text().expect("text");
    let names = clients
        .lines()
        .filter_map(|line| line.split(' ').find_map(|part| part.strip_prefix("name=leasehold")));
    names.filter_map(|name| name.rsplit_once('-')).map(|(label, _)| label.to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connections_of_a_client_are_named_after_it() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("names of connections") else { return Ok(()) };
    let mut raw = server.raw();
    let quorum = format!("redlock://127.0.0.1:{}", server.port());
    for (url, fail_fast) in [(server.url(), false), (server.url(), true), (quorum, false)] {
        let client = Client::builder(url).label("api-7 (pid 4711) é").fail_fast(fail_fast).connect().await?;
        client.mutex("machine:42")?.lock().await?.release().await?;
        let names = connection_names(&mut raw);
        assert_eq!(names, ["-api-7_(pid_4711)__"; 3], "commands, messages, and renewals");
        client.shutdown().await?;
        eventually(SECOND * 5, || std::future::ready(connection_names(&mut server.raw()).is_empty())).await;
    }
    let client = Client::builder(server.url()).label("").connect().await?;
    assert_eq!(connection_names(&mut raw), [""; 3]);
    client.shutdown().await
}

// Observers of an election

const CHANNEL: &str = "leasehold:changes:election:reports";

/// How many connections are subscribed to the channel of the election.
fn subscribed(raw: &mut Raw) -> i64 {
    raw.send(&["PUBSUB", "NUMSUB", CHANNEL]).array()[1].int()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_are_told_of_every_change_at_once_and_leave_nothing_behind() {
    let Some(server) = RedisServer::start_or_skip("observers") else { return };
    let (mut raw, mut observing) = (server.raw(), Observing::begin(&server.url(), &server.url()).await);
    observing.sees_every_change("Redis").await;
    assert_eq!(subscribed(&mut raw), 1);
    observing
        .sees_a_change_after(async || drop(server.raw().send(&["CLIENT", "KILL", "TYPE", "pubsub"])))
        .await;
    let client = observing.stop();
    eventually(SECOND * 20, || std::future::ready(subscribed(&mut server.raw()) == 0)).await;
    assert!(client.ping(SECOND * 20).await.is_ok());
    // What is not an election publishes nothing.
    let published = |raw: &mut Raw| *raw.info_commandstats().get("publish").unwrap_or(&0);
    let before = published(&mut raw);
    let guard = client.mutex("a").expect("a name").lock().await.expect("it is free");
    guard.release().await.expect("it was held");
    assert_eq!(published(&mut raw), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_observers_are_told_of_every_change_at_once() {
    let Some(cluster) = Cluster::start_or_skip("observers in a cluster") else { return };
    let mut observing = Observing::begin(&cluster.url(), &cluster.url()).await;
    observing.sees_every_change("Redis Cluster").await;
    drop(observing.stop());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_several_servers_observers_are_told_of_every_change_at_once() {
    let Some(nodes) = Nodes::start_or_skip("observers of a Redlock", 3) else { return };
    let url = format!("{}?node_timeout=1s", nodes.url());
    let mut observing = Observing::begin(&url, &url).await;
    observing.sees_every_change("Redlock").await;
    drop(observing.stop());
}
