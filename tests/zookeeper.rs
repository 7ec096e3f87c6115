//! What may happen to ZooKeeper servers, sessions and the connections to them, and what their users are told: missing
//! nodes and rights, restarts, stalls, cut connections, sessions that end, nodes that somebody else deletes or writes.
#![cfg(feature = "zookeeper")]

#[path = "support/zookeeper_proxy.rs"]
mod proxy;
#[path = "support/zookeeper.rs"]
mod server;
#[macro_use]
#[path = "support/server_promises.rs"]
mod server_promises;

use futures::future::join_all;
use leasehold::backend::{Answer, Backend, Claim, Kind, LeaseRef, Released, Request, Resource};
use leasehold::zookeeper::ZookeeperBackend;
use leasehold::{BackendError, Client, DistMutex, LossReason, MutexOptions, Severity};
use leasehold_support::child::free_port;
use leasehold_support::faults::{
    NAME, SECOND, SOON, brief_mutex, granted, ms, mutex, refused, until_waiting, waiter,
};
use leasehold_support::zookeeper_wire::Wire;
use leasehold_support::{eventually, within};
use proxy::Proxy;
use server::ZookeeperServer;
use server_promises::{
    Server, a_hand_over_takes_fewer_requests_than, assert_refused, hold_many, is_process_of_its_own,
    renew_all,
};
use tokio::time::{Instant, sleep};

server!(ZookeeperServer, proxy::Zookeeper, shared_or_skip, SECOND);
server_promises!(ZookeeperServer, grants_and_forced_releases_are_pushed_to_other_clients);

/// Of that name, in ZooKeeper.
const NODE: &str = "lock:machine:42";
const PASSWORD: &str = "hunter2";

/// The nodes of leases of the usual name.
fn leases(server: &ZookeeperServer) -> Vec<String> {
    let children = server.wire().children(&format!("{}/{NODE}", server.chroot()));
    children.into_iter().filter(|name| !name.starts_with('~')).collect()
}

/// The paths of these nodes, and the sessions with which they end.
fn sessions(server: &ZookeeperServer) -> Vec<(String, i64)> {
    let mut wire = server.wire();
    let path = |name| format!("{}/{NODE}/{name}", server.chroot());
    let found = leases(server).into_iter().map(path).filter_map(|path| {
        let (_, stat) = wire.get(&path)?;
        Some((path, stat.owner))
    });
    found.collect()
}

// Connecting

#[tokio::test]
async fn of_several_servers_one_that_answers_is_used() {
    let Some(server) = ZookeeperServer::shared_or_skip("several servers") else { return };
    let url = format!("zookeeper://127.0.0.1:{},127.0.0.1:{}{}", free_port(), server.port(), server.chroot());
    // It begins with any of them.
    for _ in 0..4 {
        let client = Client::connect(&url).await.expect("one of them answers");
        mutex(&client).lock().await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("released");
    }
}

#[tokio::test]
async fn the_chroot_is_created_only_if_allowed() {
    let Some(server) = ZookeeperServer::shared_or_skip("the chroot") else { return };
    let deep = format!("{}/a/b", server.url());
    let error = refused(&format!("{deep}?create=false")).await;
    assert_refused(&error, "does not exist, and `create` is off");
    let lazy = Client::connect_lazy(&format!("{deep}?create=false")).expect("it opens nothing yet");
    let error = mutex(&lazy).try_lock().await.map(drop).expect_err("there is no chroot");
    assert_refused(&error, "does not exist, and `create` is off");

    let client = Client::connect(&deep).await.expect("it is created");
    let held = mutex(&client).lock().await.expect("free");
    assert!(mutex(&lazy).try_lock().await.expect("it answers").is_none(), "held");
    held.release().await.expect("held");
}

#[tokio::test]
async fn nodes_are_created_for_the_user_and_other_users_are_refused() {
    let Some(server) = ZookeeperServer::shared_or_skip("access") else { return };
    let url = |user: &str| format!("zookeeper://{user}@127.0.0.1:{}{}", server.port(), server.chroot());
    let client = Client::connect(&url(&format!("a:{PASSWORD}"))).await.expect("it is created");
    let held = mutex(&client).lock().await.expect("free");
    for other in [refused(&server.url()).await, refused(&url(&format!("b:{PASSWORD}"))).await] {
        assert_refused(&other, "its ACL does not permit this operation");
    }
    held.release().await.expect("held");
    let same = Client::connect(&url(&format!("a:{PASSWORD}"))).await.expect("the same user");
    mutex(&same).lock().await.expect("free").release().await.expect("held");
    let findings = same.check().await.expect("it answers");
    assert!(findings.iter().all(|finding| !finding.text.contains("anybody")), "{findings:?}");

    // A single name that somebody else has created.
    let mut wire = server.wire();
    let open = format!("{}/open", server.chroot());
    let backend = ZookeeperBackend::connect(&format!("{}/sub", url(&format!("a:{PASSWORD}")))).await;
    drop(backend.expect("a node below it"));
    assert!(wire.children("/").iter().any(|name| open.starts_with(&format!("/{name}"))));
}

#[tokio::test]
async fn what_an_operator_should_know_is_found() {
    let Some(server) = ZookeeperServer::shared_or_skip("findings") else { return };
    let client = server.client().await;
    let findings = client.check().await.expect("it answers");
    let texts: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Info), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("maxSessionTimeout")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains("no credentials")), "{texts:?}");
}

// Servers

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_everything_is_used_again_and_tokens_grow() {
    let Some(server) = ZookeeperServer::start_or_skip("a server without its data") else { return };
    let client =
        Client::connect(&format!("{}?session_timeout=400ms", server.url())).await.expect("it answers");
    let held = brief_mutex(&client).lock().await.expect("free");
    let before = held.token();
    server.kill();
    server.forget_everything();
    server.restart();
    // It knows less than the session has seen, and refuses it until that has ended.
    within(SOON, held.lost()).await;
    let next = within(SOON, brief_mutex(&client).lock()).await.expect("free");
    assert!(next.token() > before, "{} after {before}", next.token());
    next.release().await.expect("held");
}

// Sessions

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_session_loses_its_holds_and_its_waiters_rejoin() {
    let Some(server) = ZookeeperServer::shared_or_skip("sessions that end") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let held = brief_mutex(&one).lock().await.expect("free");
    let waiting = waiter(&brief_mutex(&other));
    until_waiting(&brief_mutex(&one), 1).await;
    let of = sessions(&server);
    assert_eq!(of.len(), 2, "{of:?}");
    // The waiter's session first: it is in the queue again, and served when the holder's has ended, too.
    let before = held.token();
    let (waits, holds) = (of[1].1, of[0].1);
    let (waits, holds) = if of[0].0.contains(&waiting_lease(&brief_mutex(&one)).await) {
        (holds, waits)
    } else {
        (waits, holds)
    };
    Wire::end_session(server.port(), waits);
    eventually(SOON, || async {
        sessions(&server).iter().filter(|(_, session)| *session != waits).count() == 2
    })
    .await;
    let begun = Instant::now();
    Wire::end_session(server.port(), holds);
    assert_eq!(within(SOON, held.lost()).await, LossReason::Missing);
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    let next = granted(waiting).await;
    assert!(next.token() > before);
    next.release().await.expect("held");
}

/// The id of the only lease that waits.
async fn waiting_lease(mutex: &DistMutex) -> String {
    mutex.inspect().await.expect("it answers").waiters[0].id.to_string()
}

/// Its nodes are not ephemeral then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_longer_than_a_session_survives_it() {
    let Some(server) = ZookeeperServer::shared_or_skip("leases longer than sessions") else { return };
    let proxy = Proxy::start(server.port()).await;
    let url = format!("{}?session_timeout=400ms&reply_timeout=300ms", server.url_through(proxy.port()));
    let (client, direct) = (Client::connect(&url).await.expect("whole"), server.client().await);
    let held = mutex(&client).lock().await.expect("free");
    let brief = client.mutex_with("brief", MutexOptions::new().ttl(ms(300))).expect("valid");
    let brief = brief.lock().await.expect("free");
    assert_eq!(sessions(&server)[0].1, 0, "it ends with no session");
    proxy.hold();
    within(SOON, brief.lost()).await;
    sleep(SECOND).await;
    proxy.resume();
    client.ping(SOON).await.expect("whole");
    assert!(held.is_held());
    assert!(mutex(&direct).try_lock().await.expect("it answers").is_none(), "held");
    // It is told what it is told on any other session.
    let waiting = waiter(&mutex(&direct));
    until_waiting(&mutex(&direct), 1).await;
    held.release().await.expect("held");
    granted(waiting).await.release().await.expect("held");
    eventually(SOON, || async { leases(&server).is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_leaves_no_node_of_a_lease_behind() {
    let Some(server) = ZookeeperServer::shared_or_skip("what is left behind") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let held = mutex(&one).lock().await.expect("free");
    let waiting = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    waiting.abort();
    until_waiting(&mutex(&one), 0).await;
    assert_eq!(leases(&server).len(), 1);
    held.release().await.expect("held");
    assert_eq!(leases(&server).len(), 0);
    one.shutdown().await.expect("released");
    other.shutdown().await.expect("released");
}

// Nodes

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_are_deleted_by_hand_are_lost_and_created_again() {
    let Some(server) = ZookeeperServer::shared_or_skip("deleted nodes") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let mut wire = server.wire();
    let root = format!("{}/{NODE}", server.chroot());
    // The node of a hold.
    let held = mutex(&one).lock().await.expect("free");
    let waiting = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    let first = mutex(&one).inspect().await.expect("it answers").holders[0].id.clone();
    let node = leases(&server).into_iter().find(|name| name.starts_with(&first)).expect("it holds");
    assert!(wire.delete(&format!("{root}/{node}")));
    assert_eq!(within(SECOND, held.lost()).await, LossReason::Missing);
    // Nobody has told the next one, who asks again by itself; or somebody else comes.
    let third = server.client().await;
    assert!(mutex(&third).try_lock().await.expect("it answers").is_none(), "somebody waits");
    let next = granted(waiting).await;
    assert!(next.token() > held.token());
    // The node of a place: its owner joins the queue again.
    let waiting = waiter(&mutex(&third));
    until_waiting(&mutex(&one), 1).await;
    let id = waiting_lease(&mutex(&one)).await;
    let node = leases(&server).into_iter().find(|name| name.starts_with(&id)).expect("it waits");
    assert!(wire.delete(&format!("{root}/{node}")));
    eventually(SOON, || async { leases(&server).len() == 2 && !leases(&server).contains(&node) }).await;
    next.release().await.expect("held");
    let last = granted(waiting).await;
    // Everything.
    wire.delete_all(&root);
    assert_eq!(within(SECOND, last.lost()).await, LossReason::Missing);
    let again = mutex(&one).lock().await.expect("free");
    assert!(again.token() > last.token());
    again.release().await.expect("held");
}

/// A version that is remembered is not taken for that of a record that was created since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_was_created_again_is_not_overwritten_by_what_is_remembered() {
    let Some(server) = ZookeeperServer::shared_or_skip("records that are created again") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let options = || MutexOptions::new().ttl(ms(600));
    let mine = one.mutex_with(NAME, options()).expect("valid");
    // Written once and released: it remembers a version that the next record has, too, when it was renewed once.
    for renewals in 0..3 {
        mine.lock().await.expect("free").release().await.expect("held");
        server.wire().delete_all(&format!("{}/{NODE}", server.chroot()));
        let theirs = other.mutex_with(NAME, options()).expect("valid").lock().await.expect("free");
        sleep(ms(250) * renewals).await;
        assert!(mine.try_lock().await.expect("it answers").is_none(), "held");
        assert!(theirs.is_held());
        theirs.release().await.expect("held");
        server.wire().delete_all(&format!("{}/{NODE}", server.chroot()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_another_program_is_reported_and_affects_no_other_name() {
    let Some(server) = ZookeeperServer::shared_or_skip("nodes of other programs") else { return };
    let client = server.client().await;
    let options = || MutexOptions::new().ttl(SECOND * 2);
    let held: Vec<_> = join_all((0..8).map(|n| {
        let mutex = client.mutex_with(&format!("{n}"), options()).expect("valid");
        async move { mutex.lock().await.expect("free") }
    }))
    .await;
    let mut wire = server.wire();
    let root = server.chroot();
    wire.create(&format!("{root}/{NODE}"), "");
    wire.set(&format!("{root}/lock:3"), "what else?");
    for mutex in [mutex(&client), client.mutex("3").expect("valid")] {
        let error = mutex.try_lock().await.map(drop).expect_err("it is no record");
        assert_refused(&error, "is a node of another program");
    }
    // The others are renewed.
    assert_eq!(within(SOON, held[3].lost()).await, LossReason::StoreRefused);
    for (n, guard) in held.into_iter().enumerate() {
        assert_eq!(guard.is_held(), n != 3, "{n}");
    }
    assert_eq!(wire.get(&format!("{root}/lock:3")).expect("it is there").0, "what else?");
}

#[tokio::test]
async fn a_record_that_exceeds_a_request_is_reported() {
    let Some(server) = ZookeeperServer::shared_or_skip("long records") else { return };
    let backend = server.backend().await;
    let resource = Resource::named("lock:", NAME, Kind::Reentrant);
    let request = |owner: &str| {
        let lease = LeaseRef::new(backend.lease_id(), resource.clone());
        Request::new(lease, Claim::Owner(owner.into()), SECOND * 30)
    };
    let error = backend.request(&request(&"x".repeat(600_000))).await.expect_err("too long");
    assert!(
        matches!(&error, BackendError::Refused { source } if source.to_string().contains("exceeds the limit of ZooKeeper")),
        "{error:?}"
    );
    assert!(matches!(backend.request(&request("x")).await, Ok(Answer::Granted(_))));
}

// Costs

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_of_many_guards_are_few_requests() {
    let Some(server) = ZookeeperServer::shared_or_skip("renewals together") else { return };
    let proxy = Proxy::start(server.port()).await;
    let backend = ZookeeperBackend::connect(&server.url_through(proxy.port())).await.expect("whole");
    let renewals = hold_many(&backend, 256).await;
    // Holds are watched a moment later.
    sleep(ms(200)).await;
    let before = proxy.requests();
    renew_all(&backend, &renewals).await;
    let made = proxy.requests() - before;
    assert!(made <= 4, "{made} requests for 256 renewals");
    backend.close().await;
}

/// Unless somebody else has changed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_this_client_has_written_last_is_not_read_again() {
    let Some(server) = ZookeeperServer::shared_or_skip("records that are remembered") else { return };
    let proxy = Proxy::start(server.port()).await;
    let backend = ZookeeperBackend::connect(&server.url_through(proxy.port())).await.expect("whole");
    let direct = server.backend().await;
    let resource = Resource::named("lock:", NAME, Kind::Mutex);
    let request = |backend: &ZookeeperBackend| {
        Request::new(LeaseRef::new(backend.lease_id(), resource.clone()), Claim::Sole, SECOND * 30)
    };
    let pair = async || {
        let (own, before) = (request(&backend), proxy.requests());
        let Ok(Answer::Granted(grant)) = backend.request(&own).await else { panic!("it is free") };
        assert_eq!(backend.release(&own.lease).await.expect("the wire is whole"), Released::Held);
        (grant.token, proxy.requests() - before)
    };
    pair().await;
    let (token, requests) = pair().await;
    // Each writes once, and the reply to a release tells that nobody has come. On a slow machine the hold is watched.
    assert!((2..=3).contains(&requests), "{requests} requests");
    let other = request(&direct);
    assert!(matches!(direct.request(&other).await, Ok(Answer::Granted(grant)) if grant.token > token));
    let refused = backend.request(&request(&backend)).await;
    assert!(matches!(refused, Ok(Answer::Busy { .. })), "{refused:?}");
    direct.release(&other.lease).await.expect("it answers");
    pair().await;
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_as_many_requests_among_many_clients_as_among_few() {
    if !is_process_of_its_own("a_hand_over_takes_as_many_requests_among_many_clients_as_among_few").await {
        return;
    }
    let Some(server) = ZookeeperServer::shared_or_skip("requests per hand-over") else { return };
    a_hand_over_takes_fewer_requests_than(&server, 14.0).await;
}

/// A client that looks at a key for one of its leases does not overlook that another one was granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_semaphore_is_used_by_many_tasks_of_several_clients_and_nobody_is_forgotten() {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::SeqCst;

    let Some(server) = ZookeeperServer::shared_or_skip("crowded semaphores") else { return };
    let clients = join_all((0..4).map(|_| server.client())).await;
    let (held, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    join_all(clients.iter().cycle().take(8).map(|client| async {
        let permits = client.counting_semaphore("permits", 5).expect("valid");
        for _ in 0..30 {
            let permit = within(SOON, permits.acquire()).await.expect("granted");
            most.fetch_max(held.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(ms(10)).await;
            held.fetch_sub(1, SeqCst);
            permit.release().await.expect("held");
        }
    }))
    .await;
    assert!(most.into_inner() <= 5, "more permits were held than there are");
    // None was lost.
    let permits = clients[0].counting_semaphore("permits", 5).expect("valid");
    within(SOON, permits.acquire_many(5)).await.expect("granted").release().await.expect("held");
}
