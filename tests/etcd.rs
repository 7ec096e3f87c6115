//! What may happen to an etcd server and the connection to it, and what its users are told: refused logins, missing
//! rights, restarts, stalls, cut connections, messages that get lost or arrive late, compaction, leases that end early,
//! a full store, a lost member.
#![cfg(feature = "etcd")]

#[path = "support/etcd.rs"]
mod server;
#[macro_use]
#[path = "support/server_promises.rs"]
mod server_promises;
#[path = "support/etcd_wire.rs"]
mod wire;

use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use leasehold::backend::{
    Answer, Backend, Claim, Detail, Event, Kind, LeaseRef, Limit, Released, Request, Resource,
};
use leasehold::etcd::EtcdBackend;
use leasehold::{BackendError, Client, DistMutex, Error, MutexOptions, SemaphoreOptions, Severity};
use leasehold_support::faults::{NAME, SECOND, SOON, granted, ms, mutex, refused, until_waiting, waiter};
use leasehold_support::wire::Fault;
use leasehold_support::{Load, eventually, one_place_each, within};
use server::{EtcdCluster, EtcdServer, PASSWORD, USER, url_of};
use server_promises::{
    Server, a_hand_over_takes_fewer_requests_than, assert_refused, hold_many, is_process_of_its_own,
    renew_all,
};
use tokio::time::{Instant, sleep, timeout};
use wire::Wire;

fn brief_mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each().ttl(BRIEF)).expect("valid")
}

server!(EtcdServer, wire::Etcd, start_or_skip, BRIEF);
server_promises!(EtcdServer, grants_and_forced_releases_are_pushed_to_other_clients);

/// The shortest lease.
const BRIEF: Duration = Duration::from_secs(2);

/// Has the server ask for a user who may use what begins with `leasehold/`.
fn enable_authentication(server: &EtcdServer) {
    let user = format!("{USER}:{PASSWORD}");
    for command in [
        &["user", "add", "root:admin"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", &user],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "readwrite", "--prefix=true", "leasehold/"],
        &["user", "grant-role", USER, "locks"],
        &["auth", "enable"],
    ] {
        server.ctl(command);
    }
}

fn url_with_login(server: &EtcdServer, login: &str) -> String {
    server.url().replace("etcd://", &format!("etcd://{login}@"))
}

// Connecting

#[tokio::test]
async fn a_user_logs_in_and_may_use_its_prefix_only() {
    let Some(server) = EtcdServer::start_or_skip("authentication") else { return };
    enable_authentication(&server);
    let own = url_with_login(&server, &format!("{USER}:{PASSWORD}"));
    for wrong in [format!("{USER}:wrong{PASSWORD}"), format!("nobody:{PASSWORD}")] {
        let error = refused(&url_with_login(&server, &wrong)).await;
        assert_refused(&error, "authentication failed, invalid user ID or password");
    }
    assert_refused(&refused(&server.url()).await, "user name is empty");
    assert_refused(&refused(&format!("{own}?prefix=other/")).await, "permission denied");

    let client = Client::connect(&own).await.expect("the user may");
    let mutex = mutex(&client);
    let held = mutex.lock().await.expect("free");
    let waiter = waiter(&mutex);
    until_waiting(&mutex, 1).await;
    held.release().await.expect("held");
    granted(waiter).await.release().await.expect("held");
    assert!(!format!("{client:?} {:?}", client.state()).contains(PASSWORD), "{client:?}");
    let builder = EtcdBackend::builder(&own).expect("a URL");
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
}

#[tokio::test]
async fn a_client_that_is_logged_out_logs_in_again() {
    let Some(server) = EtcdServer::start_or_skip("tokens that expire") else { return };
    enable_authentication(&server);
    let own = url_with_login(&server, &format!("{USER}:{PASSWORD}"));
    let client = Client::connect(&own).await.expect("the user may");
    let held = brief_mutex(&client).lock().await.expect("free");
    // All tokens are forgotten, and no connection is closed.
    for _ in 0..2 {
        server.ctl(&["--user=root:admin", "auth", "disable"]);
        server.ctl(&["auth", "enable"]);
        let other = client.mutex("other").expect("valid");
        other.lock().await.expect("free").release().await.expect("held");
    }
    sleep(BRIEF).await;
    assert!(held.is_held());
    held.release().await.expect("held");
}

#[tokio::test]
async fn a_server_that_is_not_etcd_is_reported() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            use tokio::io::AsyncWriteExt;
            let (mut stream, _) = listener.accept().await.expect("a connection");
            // It may have been closed.
            let _ = stream.write_all(b"-ERR unknown command\r\n").await;
        }
    });
    let error = refused(&url_of(port)).await;
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[tokio::test]
async fn tls_that_this_build_lacks_is_refused() {
    let error = Client::connect("etcds://127.0.0.1:1").await.map(drop).expect_err("there is no TLS");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    server_promises::assert_says(&error, "TLS needs the feature `rustls` or `native-tls`");
}

#[tokio::test]
async fn clients_with_different_prefixes_have_different_locks() {
    let Some(server) = EtcdServer::start_or_skip("prefixes") else { return };
    let other = format!("{}?prefix=team%2Fb%2F", server.url());
    let (one, other) = (server.client().await, Client::connect(&other).await.expect("it answers"));
    let held = mutex(&one).lock().await.expect("free");
    let theirs = mutex(&other).try_lock().await.expect("it answers").expect("another lock");
    let keys = server.keys("");
    assert!(keys.iter().all(|key| key.starts_with("leasehold/") || key.starts_with("team/b/")), "{keys:?}");
    theirs.release().await.expect("held");
    held.release().await.expect("held");
}

#[tokio::test]
async fn leases_that_are_too_short_are_refused_and_fractions_of_a_second_rounded_up() {
    let Some(server) = EtcdServer::start_or_skip("short leases") else { return };
    let client = server.client().await;
    let brief = client.mutex_with(NAME, MutexOptions::new().ttl(ms(1999)));
    let error = brief.map(drop).expect_err("too short");
    assert!(error.to_string().contains("1.999s is below the minimum of 2s on etcd://127.0.0.1"), "{error}");
    let fraction = client.mutex_with(NAME, MutexOptions::new().ttl(ms(2001))).expect("valid");
    let held = fraction.lock().await.expect("free");
    let seen = fraction.inspect().await.expect("it answers");
    assert!(seen.holders[0].remaining.expect("a lease") > ms(2001), "{seen:?}");
    held.release().await.expect("held");
}

#[tokio::test]
async fn what_an_operator_should_know_is_found() {
    let options = ["--quota-backend-bytes=200000"];
    let Some(server) = EtcdServer::start_with_or_skip("findings", &options) else { return };
    let client = server.client().await;
    let found = |findings: Vec<leasehold::Finding>, text: &str| {
        let of = findings.into_iter().find(|finding| finding.text.contains(text));
        of.map(|finding| finding.severity)
    };
    assert_eq!(found(client.check().await.expect("it answers"), "NOSPACE"), None);
    let held = mutex(&client).lock().await.expect("free");
    fill(&server);
    assert_eq!(found(client.check().await.expect("it answers"), "NOSPACE"), Some(Severity::Warning));
    // A lease that is held is kept, as renewals write nothing.
    let error = client.mutex("other").expect("valid").try_lock().await.map(drop).expect_err("no space");
    // It is tried for some seconds.
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    server_promises::assert_says(&error, "database space exceeded: the alarm NOSPACE is on");
    assert!(held.is_held());

    let revision = server.revision();
    server.ctl(&["compact", &revision.to_string()]);
    server.ctl(&["defrag"]);
    server.ctl(&["alarm", "disarm"]);
    client.mutex("other").expect("valid").lock().await.expect("free").release().await.expect("held");
    held.release().await.expect("held");
}

/// Writes until the store is full.
fn fill(server: &EtcdServer) {
    let value = "x".repeat(20_000);
    for _ in 0..100 {
        if !server.ctl(&["alarm", "list"]).is_empty() {
            return;
        }
        server.try_ctl(&["put", "filling", &value]);
    }
    panic!("it is never full");
}

// The server

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_its_data_is_used_from_the_beginning() {
    let Some(mut server) = EtcdServer::start_or_skip("lost data") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let lock = |client: &Client| client.mutex_with(NAME, one_place_each().ttl(BRIEF)).expect("valid");
    for _ in 0..20 {
        lock(&one).lock().await.expect("free").release().await.expect("held");
    }
    let held = lock(&one).lock().await.expect("free");
    let waiter = waiter(&lock(&other));
    until_waiting(&lock(&one), 1).await;
    server.restart_empty();
    // Nothing is held there any more.
    within(SOON, held.lost()).await;
    let guard = granted(waiter).await;
    let waiter = self::waiter(&lock(&one));
    until_waiting(&lock(&other), 1).await;
    let begun = Instant::now();
    guard.release().await.expect("held");
    granted(waiter).await.release().await.expect("held");
    assert!(begun.elapsed() < SECOND, "not told: {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_member_loses_no_lock_and_the_next_one_is_used() {
    let Some(mut cluster) = EtcdCluster::start_or_skip("a cluster") else { return };
    let load = Load::start_with_ttl(&cluster.url(), 8, Duration::from_secs(10)).await;
    let client = Client::connect(&cluster.url()).await.expect("it answers");
    let lasting = client.mutex("lasting").expect("valid");
    let held = lasting.lock().await.expect("free");
    load.go_on_for(50).await;
    for n in 0..2 {
        cluster.members[n].kill();
        load.go_on_for(50).await;
        cluster.members[n].restart();
        load.go_on_for(50).await;
    }
    let report = load.stop().await;
    assert_eq!((report.overlaps, report.tokens_that_went_back), (0, 0), "{report}");
    assert!(report.errors.keys().all(|error| error.starts_with("unavailable")), "{report}");
    assert!(held.is_held());
    held.release().await.expect("held");
}

// Messages that get lost

async fn behind(wire: &Wire, reply_timeout: Duration) -> EtcdBackend {
    let builder =
        EtcdBackend::builder(&server::url_of(wire.port())).expect("a URL").reply_timeout(reply_timeout);
    builder.connect().await.expect("the wire is whole")
}

fn lease(backend: &EtcdBackend, name: &str) -> LeaseRef {
    LeaseRef::new(backend.lease_id(), Resource::named("lock:", name, Kind::Mutex))
}

/// A place that was given up must not be made when the message arrives late: nobody would renew it, and it would be in
/// the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_was_given_up_is_not_made_when_its_message_arrives_late() {
    let Some(server) = EtcdServer::start_or_skip("late places") else { return };
    let (direct, wire) = (server.backend().await, Wire::start(server.port()).await);
    let backend = behind(&wire, ms(300)).await;
    let held = lease(&direct, NAME);
    direct.request(&Request::new(held.clone(), Claim::Sole, SECOND * 30)).await.expect("it answers");
    // It knows that somebody holds, and has an etcd lease at hand.
    let own = lease(&backend, NAME);
    let waits = Request::new(own.clone(), Claim::Sole, SECOND * 30).waiting();
    assert!(matches!(backend.request(&waits).await, Ok(Answer::Queued(_))));
    assert_eq!(backend.release(&own).await.expect("the wire is whole"), Released::Queued);

    // The message that makes the place, or the one beside it that renews its etcd lease.
    for nth in [0, 1] {
        let late = lease(&backend, NAME);
        let sprung = wire.trap(nth, Fault::Late);
        let error = backend.request(&Request::new(late.clone(), Claim::Sole, SECOND * 30).waiting()).await;
        assert!(matches!(error, Err(BackendError::Unanswered { .. })), "{nth}: {error:?}");
        sprung.await.expect("it was hit");
        let released = backend.release(&late).await.expect("another connection");
        assert!(matches!(released, Released::Taken | Released::Queued), "{nth}: {released:?}");
        wire.deliver().await;
        let seen = direct.inspect(&held.resource, Detail::Full).await.expect("it answers");
        assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{nth}: {seen:?}");
        // Fresh etcd leases are granted by then; one is to be at hand again.
        assert!(matches!(backend.request(&waits).await, Ok(Answer::Queued(_))));
        backend.release(&own).await.expect("the wire is whole");
    }
}

/// A release that finds nothing keeps the request from being granted that was given up before it, and is still on its
/// way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_was_released_is_not_granted_when_it_arrives_late() {
    let Some(server) = EtcdServer::start_or_skip("late requests") else { return };
    let (direct, wire) = (server.backend().await, Wire::start(server.port()).await);
    let backend = behind(&wire, ms(300)).await;
    let used = lease(&backend, NAME);
    backend.request(&Request::new(used.clone(), Claim::Sole, SECOND * 30)).await.expect("the wire is whole");
    backend.release(&used).await.expect("the wire is whole");

    let late = lease(&backend, NAME);
    let sprung = wire.trap(0, Fault::Late);
    let error = backend.request(&Request::new(late.clone(), Claim::Sole, SECOND * 30)).await;
    sprung.await.expect("it was hit");
    assert!(matches!(error, Err(BackendError::Unanswered { .. })), "{error:?}");
    assert_eq!(backend.release(&late).await.expect("another connection"), Released::Absent);
    wire.deliver().await;
    let seen = direct.inspect(&late.resource, Detail::Full).await.expect("it answers");
    assert!(seen.holders.is_empty(), "{seen:?}");
    backend.close().await;
}

/// A request whose answer was lost is answered with the grant or the place that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_answer_was_lost_is_answered_when_it_is_repeated() {
    let Some(server) = EtcdServer::start_or_skip("lost answers") else { return };
    let (direct, wire) = (server.backend().await, Wire::start(server.port()).await);
    let backend = behind(&wire, SECOND * 2).await;
    // It does not end during the test, even if the disk is busy.
    let ttl = SECOND * 20;
    let used = lease(&backend, NAME);
    backend.request(&Request::new(used.clone(), Claim::Sole, ttl)).await.expect("the wire is whole");
    backend.release(&used).await.expect("the wire is whole");

    let own = lease(&backend, NAME);
    let request = Request::new(own.clone(), Claim::Sole, ttl).waiting();
    let sprung = wire.trap(0, Fault::Unanswered);
    let lost = backend.request(&request).await;
    sprung.await.expect("it was hit");
    assert!(matches!(lost, Err(BackendError::Unanswered { .. })), "{lost:?}");
    let before = direct.inspect(&own.resource, Detail::Full).await.expect("it answers");
    let Ok(Answer::Granted(grant)) = backend.request(&request).await else { panic!("it was granted") };
    assert_eq!(Some(grant.token), before.holders[0].token);
    assert!(grant.remaining.is_some_and(|left| left < ttl), "{grant:?}");
    assert_eq!(backend.release(&own).await.expect("the wire is whole"), Released::Held);
}

/// There is always room, and what it wants to store is out of date each time that it arrives; but a place is made
/// whatever others do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_slow_network_is_served_while_a_fast_one_takes_permits_again_and_again() {
    let Some(server) = EtcdServer::start_or_skip("slow and fast clients") else { return };
    let (fast, wire) = (server.client().await, Wire::start(server.port()).await);
    let slow = Client::connect(&server::url_of(wire.port())).await.expect("the wire is whole");
    let taking = tokio::spawn({
        let semaphore = fast.counting_semaphore(NAME, 8).expect("valid");
        async move {
            loop {
                semaphore.acquire().await.expect("granted").release().await.expect("held");
            }
        }
    });
    let semaphore = slow.counting_semaphore(NAME, 8).expect("valid");
    let slowly = async {
        loop {
            // Only requests pass, and then only answers.
            for (to_server, to_client) in [(false, true), (true, false)] {
                wire.hold_towards(to_server, to_client);
                sleep(ms(20)).await;
            }
        }
    };
    tokio::select! {
        guard = within(SECOND * 10, semaphore.acquire()) => drop(guard.expect("granted")),
        () = slowly => {}
    }
    taking.abort();
}

// Messages to other clients

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_messages_grant_nothing() {
    let Some(server) = EtcdServer::start_or_skip("messages of strangers") else { return };
    let (one, other) = (server.client().await, server.backend().await);
    let held = mutex(&one).lock().await.expect("free");
    let own = lease(&other, NAME);
    let mut events = other.events();
    assert_eq!(within(SOON, events.next()).await, Some(Event::Resync), "it watches");
    let request = Request::new(own.clone(), Claim::Sole, SECOND * 10).waiting();
    assert!(matches!(other.request(&request).await.expect("it answers"), Answer::Queued(_)));
    let mailbox = format!("leasehold/m/{}", own.id.client());
    let somebody = mutex(&one).inspect().await.expect("it answers").holders[0].id.clone();
    let theirs = format!("r {somebody} 1");
    // The last one is a message, but for somebody else.
    let length = char::from(u8::try_from(theirs.len()).expect("it is short"));
    for message in ["x", "\n\u{1}x", &format!("\n{length}{theirs}")] {
        server.ctl(&["put", &mailbox, message]);
    }
    assert!(timeout(ms(300), events.next()).await.is_err(), "nothing of that concerns this client");
    held.release().await.expect("held");
    let event = within(SOON, events.next()).await;
    assert!(matches!(&event, Some(Event::Granted { lease: granted, .. }) if *granted == own), "{event:?}");
}

/// What was put into the mailbox while nobody watched is seen afterwards, also if the store has forgotten those
/// revisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_missed_while_the_connection_is_lost_even_if_the_store_is_compacted() {
    let Some(server) = EtcdServer::start_or_skip("compaction") else { return };
    let (one, wire) = (server.client().await, Wire::start(server.port()).await);
    let url = format!("{}?reply_timeout=500ms&connect_timeout=500ms", server::url_of(wire.port()));
    let other = Client::connect(&url).await.expect("the wire is whole");
    for is_compacted in [false, true] {
        let held = mutex(&one).lock().await.expect("free");
        let waiter = waiter(&mutex(&other));
        until_waiting(&mutex(&one), 1).await;
        wire.hold();
        wire.cut();
        held.release().await.expect("held");
        if is_compacted {
            for n in 0..5 {
                server.ctl(&["put", "another", &n.to_string()]);
            }
            server.ctl(&["compact", &server.revision().to_string()]);
        }
        let begun = Instant::now();
        wire.resume();
        granted(waiter).await.release().await.expect("held");
        assert!(begun.elapsed() < SECOND * 2, "{is_compacted}: {:?}", begun.elapsed());
    }
}

// Leases

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoking_an_etcd_lease_ends_the_lease_and_serves_the_next_waiter() {
    let Some(server) = EtcdServer::start_or_skip("revoked leases") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let held = brief_mutex(&one).lock().await.expect("free");
    let leases = server.ctl(&["lease", "list"]);
    let ids: Vec<_> = leases.lines().skip(1).collect();
    let waiter = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    for id in ids {
        // Its client may revoke those itself that it does not need any more.
        let revoked = server.try_ctl(&["lease", "revoke", id]);
        let why = String::from_utf8_lossy(&revoked.stderr);
        assert!(revoked.status.success() || why.contains("lease not found"), "{why}");
    }
    let begun = Instant::now();
    within(SOON, held.lost()).await;
    assert!(begun.elapsed() < SECOND, "it is renewed every {:?}: {:?}", BRIEF / 3, begun.elapsed());
    let next = granted(waiter).await;
    assert!(begun.elapsed() < BRIEF + SECOND, "{:?}", begun.elapsed());
    assert!(next.token() > held.token());
    assert!(held.release().await.is_err());
    next.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_deleted_by_hand_end_a_lease_or_change_nothing() {
    let Some(server) = EtcdServer::start_or_skip("deleted keys") else { return };
    let client = server.client().await;
    let held = brief_mutex(&client).lock().await.expect("free");
    server.ctl(&["del", &format!("leasehold/k/lock:{NAME}/record")]);
    // The hold says enough.
    assert!(mutex(&server.client().await).try_lock().await.expect("it answers").is_none());
    sleep(BRIEF).await;
    assert!(held.is_held());
    let token = held.token();
    server.ctl(&["del", &format!("leasehold/k/lock:{NAME}/lease/"), "--prefix"]);
    within(SOON, held.lost()).await;
    let next = mutex(&client).lock().await.expect("free");
    assert!(next.token() > token);
    server.ctl(&["del", "leasehold/", "--prefix"]);
    let after = within(SOON, server.client().await.mutex(NAME).expect("valid").lock()).await.expect("free");
    assert!(after.token() > next.token());
    after.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_value_under_a_key_is_reported_and_affects_no_other_lock() {
    let Some(server) = EtcdServer::start_or_skip("other values") else { return };
    let client = server.client().await;
    let held = brief_mutex(&client).lock().await.expect("free");
    for (name, key) in [("record", "record"), ("hold", "lease/x"), ("limit", "limit"), ("else", "else")] {
        server.ctl(&["put", &format!("leasehold/k/lock:{name}/{key}"), "something"]);
        let error = client.mutex(name).expect("valid").try_lock().await.map(drop).expect_err("not ours");
        assert_refused(&error, "something else is stored under the key");
    }
    // Renewed together with one of them.
    let theirs = client.mutex_with("theirs", one_place_each().ttl(BRIEF)).expect("valid");
    let lost = theirs.lock().await.expect("free");
    server.ctl(&["put", "leasehold/k/lock:theirs/record", "something"]);
    within(SOON, lost.lost()).await;
    assert!(held.is_held());
    held.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_leases_are_used_again_and_keep_nothing_alive_that_has_ended() {
    let Some(server) = EtcdServer::start_or_skip("leases used again") else { return };
    let client = server.client().await;
    let leases = || server.ctl(&["lease", "list"]).lines().count() - 1;
    for n in 0..50 {
        let lock = client.mutex_with(&format!("{}", n % 5), one_place_each().ttl(BRIEF)).expect("valid");
        let held = lock.lock().await.expect("free");
        let waiting = waiter(&lock);
        until_waiting(&lock, 1).await;
        held.release().await.expect("held");
        granted(waiting).await.release().await.expect("held");
    }
    // Two at a time, and that of the sweep.
    assert!(leases() <= 4, "{}", server.ctl(&["lease", "list"]));
    let held = server.keys("leasehold/k/").into_iter().filter(|key| key.contains("/lease/"));
    assert_eq!(held.count(), 0);
    // One that was never released, of a client that is gone: it ends although its client's other leases were used again
    // and again.
    let backend = server.backend().await;
    let (forgotten, other) = (lease(&backend, NAME), lease(&backend, "other"));
    backend.request(&Request::new(forgotten.clone(), Claim::Sole, BRIEF)).await.expect("it answers");
    let begun = Instant::now();
    while begun.elapsed() < BRIEF + SECOND {
        backend.request(&Request::new(other.clone(), Claim::Sole, BRIEF)).await.expect("it answers");
        backend.release(&other).await.expect("it answers");
    }
    let seen = backend.inspect(&forgotten.resource, Detail::Full).await.expect("it answers");
    assert!(seen.holders.is_empty(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_stays_in_force_for_one_to_two_leases_after_its_last_user() {
    let Some(server) = EtcdServer::start_or_skip("limits") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let options = || SemaphoreOptions::new().ttl(BRIEF);
    let three = one.counting_semaphore_with(NAME, 3, options()).expect("valid");
    let four = other.counting_semaphore_with(NAME, 4, options()).expect("valid");
    let permit = three.acquire().await.expect("free");
    // Renewed several times.
    sleep(BRIEF * 2).await;
    let error = four.try_acquire().await.map(drop).expect_err("another limit");
    assert!(matches!(error, Error::LimitDiffers { .. }), "{error:?}");
    let released = Instant::now();
    permit.release().await.expect("held");
    sleep(BRIEF - ms(100)).await;
    let error = four.try_acquire().await.map(drop);
    // On a machine that stood still it may have lapsed by then.
    assert!(error.is_err() || released.elapsed() > BRIEF, "{error:?}");
    let lapsed = async {
        loop {
            match four.try_acquire().await {
                Ok(permit) => return permit.expect("free"),
                Err(error) => assert!(matches!(error, Error::LimitDiffers { .. }), "{error:?}"),
            }
            sleep(ms(50)).await;
        }
    };
    let permit = within(SOON, lapsed).await;
    assert!(released.elapsed() < BRIEF * 3, "{:?}", released.elapsed());
    permit.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_serves_more_waiters_than_a_transaction_can_hold_serves_all() {
    const WAITERS: u32 = 150;
    let Some(server) = EtcdServer::start_or_skip("many waiters") else { return };
    let (one, other) = (server.backend().await, server.backend().await);
    let resource = Resource::named("semaphore:", NAME, Kind::Counting);
    let request = |backend: &EtcdBackend, permits| {
        let lease = LeaseRef::new(backend.lease_id(), resource.clone());
        Request::new(lease, Claim::Permits(permits, Limit::stated(WAITERS)), SECOND * 30).waiting()
    };
    let all = request(&one, WAITERS);
    assert!(matches!(one.request(&all).await, Ok(Answer::Granted(_))));
    let mut events = other.events();
    assert_eq!(within(SOON, events.next()).await, Some(Event::Resync), "it watches");
    // Their places, too, take more than one transaction.
    let waiting: Vec<_> = (0..WAITERS).map(|_| request(&other, 1)).collect();
    let places = join_all(waiting.iter().map(|request| other.request(request))).await;
    let mut tickets = Vec::new();
    for place in places {
        let Ok(Answer::Queued(place)) = place else { panic!("{place:?}") };
        tickets.push(place.ticket);
    }
    tickets.sort_unstable();
    tickets.dedup();
    assert_eq!(tickets.len(), WAITERS as usize, "each has a ticket of its own");
    assert_eq!(one.release(&all.lease).await.expect("it answers"), Released::Held);
    let mut granted = std::collections::BTreeSet::new();
    while granted.len() < WAITERS as usize {
        match within(SOON, events.next()).await {
            Some(Event::Granted { lease, .. }) => drop(granted.insert(lease.id)),
            event => panic!("{event:?}"),
        }
    }
    let seen = one.inspect(&resource, Detail::Full).await.expect("it answers");
    assert_eq!((seen.in_use, seen.waiters.len()), (WAITERS, 0));
}

// Records

#[tokio::test]
async fn idle_records_are_removed_and_tokens_stay_above_theirs() {
    let Some(server) = EtcdServer::start_or_skip("idle records") else { return };
    let client = server.client().await;
    eventually(SOON, || async { !server.keys("leasehold/turn").is_empty() }).await;
    let guard = mutex(&client).lock().await.expect("free");
    let token = guard.token();
    guard.release().await.expect("held");
    let _kept = client.mutex("kept").expect("valid").lock().await.expect("free");
    let ahead = client.mutex("ahead").expect("valid");
    ahead.lock().await.expect("free").release().await.expect("held");
    // As if it had issued very many tokens at once.
    let record = "leasehold/k/lock:ahead/record";
    let many = u64::MAX >> 11;
    server.ctl(&["put", record, &format!("leasehold/1 mutex {many} 0 0 0")]);
    for n in 0..5 {
        server.ctl(&["put", "another", &n.to_string()]);
    }
    // As if a day had passed twice.
    server.ctl(&["put", "leasehold/swept", &server.revision().to_string()]);
    server.ctl(&["del", "leasehold/turn"]);
    // Another client sweeps when it begins.
    let other = server.client().await;
    let records = || {
        let keys = server.keys("leasehold/k/").into_iter();
        keys.filter(|key| key.ends_with("/record")).collect::<Vec<_>>()
    };
    eventually(SOON, || async { records().len() == 2 }).await;
    assert_eq!(records(), [record, "leasehold/k/lock:kept/record"]);
    let next = mutex(&other).lock().await.expect("free");
    assert!(next.token() > token, "{} follows {token}", next.token());
    // What this client remembers of the record is not believed.
    assert!(mutex(&client).try_lock().await.expect("it answers").is_none());
    next.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_of_many_guards_are_read_together() {
    const GUARDS: usize = 256;
    let Some(server) = EtcdServer::start_or_skip("renewals together") else { return };
    let wire = Wire::start(server.port()).await;
    let backend = behind(&wire, SECOND * 2).await;
    let renewals = hold_many(&backend, GUARDS).await;
    let (before, revision) = (wire.requests(), server.revision());
    renew_all(&backend, &renewals).await;
    // Two that read, and one on the stream for each lease at most; nothing is written.
    let made = wire.requests() - before;
    assert!(made <= GUARDS + 4, "{made} messages for {GUARDS} renewals");
    assert_eq!(server.revision(), revision);
}

/// Unless somebody else has changed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_this_client_has_written_last_is_not_read_again() {
    let Some(server) = EtcdServer::start_or_skip("records that are remembered") else { return };
    let wire = Wire::start(server.port()).await;
    let (backend, direct) = (behind(&wire, SECOND * 2).await, server.backend().await);
    let pair = async || {
        let (own, before, revision) = (lease(&backend, NAME), wire.requests(), server.revision());
        let answer = backend.request(&Request::new(own.clone(), Claim::Sole, SECOND * 30)).await;
        let Ok(Answer::Granted(grant)) = answer else { panic!("it is free: {answer:?}") };
        assert_eq!(backend.release(&own).await.expect("the wire is whole"), Released::Held);
        (grant.token, wire.requests() - before, server.revision() - revision)
    };
    // An etcd lease is granted.
    pair().await;
    let (token, messages, revisions) = pair().await;
    // Two transactions, and the renewal of the etcd lease.
    assert_eq!((messages, revisions), (3, 2));
    let other = lease(&direct, NAME);
    let theirs = direct.request(&Request::new(other.clone(), Claim::Sole, SECOND * 30)).await;
    assert!(matches!(theirs, Ok(Answer::Granted(grant)) if grant.token > token));
    let refused = backend.request(&Request::new(lease(&backend, NAME), Claim::Sole, SECOND * 30)).await;
    assert!(matches!(refused, Ok(Answer::Busy { .. })), "{refused:?}");
    // What changes nothing is not answered from memory.
    direct.release(&other).await.expect("it answers");
    assert!(pair().await.0 > token);
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_as_many_messages_among_many_clients_as_among_few() {
    if !is_process_of_its_own("a_hand_over_takes_as_many_messages_among_many_clients_as_among_few").await {
        return;
    }
    let Some(server) = EtcdServer::start_or_skip("messages per hand-over") else { return };
    a_hand_over_takes_fewer_requests_than(&server, 8.0).await;
}
