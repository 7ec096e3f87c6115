//! What may happen to an etcd server and the connection to it, and what its users are told: refused logins, missing rights, restarts,
//! stalls, cut connections, messages that get lost or arrive late, compaction, leases that end early, a full store, a lost member.
#![cfg(feature = "etcd")]

#[path = "support/etcd.rs"]
mod server;
mod support;
#[path = "support/etcd_wire.rs"]
mod wire;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use leasehold::backend::{
    Answer, Backend, BackendError, Claim, Detail, Event, Kind, LeaseRef, Limit, Released, Renew, Renewal,
    Request, Resource, Severity,
};
use leasehold::{Client, DistMutex, Error, EtcdBackend, LossReason, MutexOptions, SemaphoreOptions};
use server::{EtcdCluster, EtcdServer, PASSWORD, USER, url_of};
use support::faults::{
    NAME, SECOND, SOON, granted, lock_in_turns, ms, mutex, refused, until_waiting, waiter,
};
use support::{Load, eventually, one_place_each, within};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};
use wire::{Fault, Wire};

/// The shortest lease.
const BRIEF: Duration = Duration::from_secs(2);

fn brief_mutex(client: &Client) -> DistMutex {
    client.mutex_with(NAME, one_place_each().ttl(BRIEF)).expect("valid")
}

#[track_caller]
fn assert_refused(error: &Error, why: &str) {
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    assert_says(error, why);
}

#[track_caller]
fn assert_unavailable(error: &Error, why: &str) {
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert_says(error, why);
}

#[track_caller]
fn assert_says(error: &Error, why: &str) {
    let text = error.to_string();
    assert!(text.contains("etcd") && text.contains("://127.0.0.1:") && text.contains(why), "{text}");
    assert!(!format!("{error:?} {error}").contains(PASSWORD), "{error:?}");
}

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
    let builder = EtcdBackend::builder_from_url(&own).expect("a URL");
    assert!(!format!("{builder:?}").contains(PASSWORD), "{builder:?}");
}

#[tokio::test]
async fn whoever_is_logged_out_logs_in_again() {
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
async fn a_server_that_is_away_is_told_with_its_address() {
    let Some(mut server) = EtcdServer::start_or_skip("a server that is away") else { return };
    let url = server.url();
    server.kill();
    assert_unavailable(&refused(&url).await, "Connection refused");
    server.restart();
    server.pause();
    let error = refused(&format!("{url}?connect_timeout=300ms&reply_timeout=300ms")).await;
    assert_unavailable(&error, "within 300ms");
    server.resume();
    Client::connect(&url).await.expect("it goes on").shutdown().await.expect("closed");
}

#[tokio::test]
async fn something_else_that_listens_there_is_told() {
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

#[tokio::test]
async fn a_lazy_client_waits_for_its_server_and_says_so() {
    let Some(mut server) = EtcdServer::start_or_skip("lazy clients") else { return };
    let url = server.url();
    server.kill();
    let client = Client::connect_lazy(&url).expect("it opens nothing yet");
    assert!(!client.state().status.is_connected());
    assert_unavailable(&client.ping(SECOND).await.expect_err("there is no server"), "Connection refused");
    let reason = client.state().nodes[0].reason.clone().expect("a reason");
    assert!(reason.contains("Connection refused"), "{reason}");

    server.restart();
    client.ping(SOON).await.expect("it is there");
    eventually(SOON, || async { client.state().status.is_connected() }).await;
    mutex(&client).lock().await.expect("free").release().await.expect("held");
    client.shutdown().await.expect("released");
}

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[tokio::test]
async fn tls_that_this_build_lacks_is_refused() {
    let error = Client::connect("etcds://127.0.0.1:1").await.map(drop).expect_err("there is no TLS");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert_says(&error, "TLS needs the feature `rustls` or `native-tls`");
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
    assert!(error.to_string().contains("1.999s is below the 2s of etcd://127.0.0.1"), "{error}");
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
    let found = |findings: Vec<leasehold::backend::Finding>, text: &str| {
        let of = findings.into_iter().find(|finding| finding.text.contains(text));
        of.map(|finding| finding.severity)
    };
    assert_eq!(found(client.check().await.expect("it answers"), "NOSPACE"), None);
    let held = mutex(&client).lock().await.expect("free");
    fill(&server);
    assert_eq!(found(client.check().await.expect("it answers"), "NOSPACE"), Some(Severity::Warning));
    // A lease that is held is kept, as renewals write nothing.
    let error = client.mutex("other").expect("valid").try_lock().await.map(drop).expect_err("no space");
    assert_refused(&error, "database space exceeded: the alarm NOSPACE is on");
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
async fn a_server_that_is_killed_and_restarted_has_forgotten_nothing() {
    let Some(mut server) = EtcdServer::start_or_skip("a killed server") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let held = mutex(&one).lock().await.expect("free");
    let waiter = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    server.kill();
    let error = one.mutex("other").expect("valid").try_lock().await.map(drop).expect_err("it is away");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(!one.state().status.is_connected());
    server.restart();
    one.ping(SOON).await.expect("it is there");
    eventually(SOON, || async { one.state().status.is_connected() && other.state().status.is_connected() })
        .await;
    assert!(held.is_held());
    until_waiting(&mutex(&one), 1).await;
    // The waiter hears of it: its client watches again.
    held.release().await.expect("held");
    granted(waiter).await.release().await.expect("held");
}

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
async fn under_load_a_killed_server_costs_no_lock() {
    let Some(mut server) = EtcdServer::start_or_skip("a killed server under load") else { return };
    let load = Load::start_with_ttl(&server.url(), 16, BRIEF).await;
    for _ in 0..2 {
        load.go_on_for(100).await;
        server.restart();
    }
    load.go_on_for(100).await;
    let report = load.stop().await;
    assert_eq!((report.overlaps, report.tokens_that_went_back), (0, 0), "{report}");
    assert!(report.errors.keys().all(|error| error.starts_with("unavailable")), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_hangs_nobody_and_a_lease_is_lost_at_its_deadline() {
    let Some(server) = EtcdServer::start_or_skip("a stalled server") else { return };
    let url = format!("{}?reply_timeout=500ms&connect_timeout=1s", server.url());
    let client = Client::connect(&url).await.expect("it answers");
    let held = brief_mutex(&client).lock().await.expect("free");
    let waiter = waiter(&brief_mutex(&client));
    until_waiting(&brief_mutex(&client), 1).await;
    server.pause();
    let begun = Instant::now();
    let error = client.ping(SOON).await.expect_err("it stands still");
    assert_unavailable(&error, "no answer within 500ms");
    assert_eq!(within(SOON, held.lost()).await, LossReason::StoreUnreachable);
    assert!(begun.elapsed() < BRIEF + ms(300), "{:?}", begun.elapsed());
    let other = client.mutex("other").expect("valid");
    let error = within(SOON, other.try_lock()).await.map(drop).expect_err("it stands still");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(!client.state().status.is_connected());
    server.resume();
    let next = granted(waiter).await;
    assert!(next.token() > held.token());
    next.release().await.expect("held");
    eventually(SOON, || async { client.state().status.is_connected() }).await;
    client.shutdown().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_killed_costs_no_lock_and_the_next_one_is_used() {
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

/// A client behind a wire takes, renews, releases and waits, while one of its messages fails.
async fn take_turns(port: u16, direct: Client, nth: usize, fault: Fault) -> bool {
    let wire = Wire::start(port).await;
    let name = format!("{fault:?} {nth}");
    let options = || one_place_each().ttl(BRIEF);
    let builder = EtcdBackend::builder_from_url(&wire.url()).expect("a URL").reply_timeout(ms(400));
    let backend = builder.connect_timeout(SECOND).connect().await.expect("the wire is whole");
    let client = Client::with_backend(Arc::new(backend));
    let (mine, theirs) = (
        client.mutex_with(&name, options()).expect("valid"),
        direct.mutex_with(&name, options()).expect("valid"),
    );
    let mut sprung = wire.trap(nth, fault);
    lock_in_turns(&mine, &theirs).await;
    let was_hit = sprung.try_recv().is_ok();
    wire.disarm();
    client.shutdown().await.expect("released");
    // What was given up must not take effect later.
    wire.deliver().await;
    let left = theirs.inspect().await.expect("its wire is whole");
    assert!(left.holders.is_empty() && left.waiters.is_empty(), "{name}: {left:?}");
    was_hit
}

async fn with_every_message_failing(fault: Fault) {
    let Some(server) = EtcdServer::start_or_skip("messages that get lost") else { return };
    let direct = server.client().await;
    let mut hit = 0;
    for first in (0..).step_by(6) {
        let turns =
            (first..first + 6).map(|nth| tokio::spawn(take_turns(server.port(), direct.clone(), nth, fault)));
        let hits = join_all(turns).await.into_iter().filter(|was_hit| *was_hit.as_ref().expect("no panic"));
        let hits = hits.count();
        hit += hits;
        if hits < 6 {
            break;
        }
    }
    assert!(hit >= 8, "only {hit} messages were sent");
    direct.shutdown().await.expect("released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_message_may_be_lost_with_its_connection() {
    with_every_message_failing(Fault::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_answer_may_be_lost_with_its_connection() {
    with_every_message_failing(Fault::Unanswered).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_message_may_arrive_after_it_was_given_up() {
    with_every_message_failing(Fault::Late).await;
}

async fn behind(wire: &Wire, reply_timeout: Duration) -> EtcdBackend {
    let builder = EtcdBackend::builder_from_url(&wire.url()).expect("a URL").reply_timeout(reply_timeout);
    builder.connect().await.expect("the wire is whole")
}

fn lease(backend: &EtcdBackend, name: &str) -> LeaseRef {
    LeaseRef::new(backend.lease_id(), Resource::named("lock:", name, Kind::Mutex))
}

/// A place that was given up must not be made when the message arrives late: nobody would renew it, and it would be in the way.
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
        let seen = direct.inspect(&held.resource, Detail::Everybody).await.expect("it answers");
        assert_eq!((seen.holders.len(), seen.waiters.len()), (1, 0), "{nth}: {seen:?}");
        // Fresh etcd leases are granted by then; one is to be at hand again.
        assert!(matches!(backend.request(&waits).await, Ok(Answer::Queued(_))));
        backend.release(&own).await.expect("the wire is whole");
    }
}

/// A release that finds nothing keeps the request from being granted that was given up before it, and is still on its way.
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
    let seen = direct.inspect(&late.resource, Detail::Everybody).await.expect("it answers");
    assert!(seen.holders.is_empty(), "{seen:?}");
    backend.close().await;
}

/// A request whose answer was lost is answered with the grant or the place that it had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_whose_answer_was_lost_is_answered_when_it_is_repeated() {
    let Some(server) = EtcdServer::start_or_skip("lost answers") else { return };
    let (direct, wire) = (server.backend().await, Wire::start(server.port()).await);
    let backend = behind(&wire, SECOND * 2).await;
    let used = lease(&backend, NAME);
    backend.request(&Request::new(used.clone(), Claim::Sole, BRIEF)).await.expect("the wire is whole");
    backend.release(&used).await.expect("the wire is whole");

    let own = lease(&backend, NAME);
    let request = Request::new(own.clone(), Claim::Sole, BRIEF).waiting();
    let sprung = wire.trap(0, Fault::Unanswered);
    let lost = backend.request(&request).await;
    sprung.await.expect("it was hit");
    assert!(matches!(lost, Err(BackendError::Unanswered { .. })), "{lost:?}");
    let before = direct.inspect(&own.resource, Detail::Everybody).await.expect("it answers");
    let Ok(Answer::Granted(grant)) = backend.request(&request).await else { panic!("it was granted") };
    assert_eq!(Some(grant.token), before.holders[0].token);
    assert!(grant.remaining.is_some_and(|left| left < BRIEF), "{grant:?}");
    assert_eq!(backend.release(&own).await.expect("the wire is whole"), Released::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_under_load_cost_no_lock() {
    let Some(server) = EtcdServer::start_or_skip("cut connections") else { return };
    let wire = Wire::start(server.port()).await;
    let load = Load::start_with_ttl(&wire.url(), 16, BRIEF).await;
    for _ in 0..10 {
        load.go_on_for(30).await;
        wire.cut();
    }
    load.go_on_for(100).await;
    let report = load.stop().await;
    assert_eq!((report.overlaps, report.tokens_that_went_back), (0, 0), "{report}");
    assert!(report.errors.keys().all(|error| error.starts_with("unavailable")), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_hangs_nobody() {
    let Some(server) = EtcdServer::start_or_skip("a black hole") else { return };
    let wire = Wire::start(server.port()).await;
    let url = format!("{}?reply_timeout=300ms&connect_timeout=1s", wire.url());
    let (client, doomed) =
        (Client::connect(&url).await.expect("whole"), Client::connect(&url).await.expect("whole"));
    let direct = server.client().await;
    let held = mutex(&direct).lock().await.expect("free");
    let waiter = waiter(&mutex(&client));
    until_waiting(&mutex(&direct), 1).await;
    wire.hold();
    let error = client.ping(SOON).await.expect_err("nothing arrives");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    // Nobody uses the connection, and it is found to be dead all the same.
    eventually(SOON * 2, || async { !doomed.state().status.is_connected() }).await;
    within(SOON, doomed.shutdown()).await.expect("it holds nothing");
    held.release().await.expect("held");
    wire.let_go();
    granted(waiter).await.release().await.expect("held");
    eventually(SOON, || async { client.state().status.is_connected() }).await;
}

// Messages to other clients

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_and_forced_releases_are_pushed_to_other_clients() {
    let Some(server) = EtcdServer::start_or_skip("messages") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let held = mutex(&one).lock().await.expect("free");
    let waiter = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    let begun = Instant::now();
    assert!(mutex(&other).force_release().await.expect("it answers"));
    assert_eq!(within(SECOND, held.lost()).await, LossReason::Revoked);
    let guard = granted(waiter).await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    guard.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_strangers_grant_nothing() {
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

/// What was put into the mailbox while nobody watched is seen afterwards, also if the store has forgotten those revisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_missed_while_the_connection_is_lost_even_if_the_store_is_compacted() {
    let Some(server) = EtcdServer::start_or_skip("compaction") else { return };
    let (one, wire) = (server.client().await, Wire::start(server.port()).await);
    let url = format!("{}?reply_timeout=500ms&connect_timeout=500ms", wire.url());
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
        wire.let_go();
        granted(waiter).await.release().await.expect("held");
        assert!(begun.elapsed() < SECOND * 2, "{is_compacted}: {:?}", begun.elapsed());
    }
}

// Leases

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_lease_that_is_revoked_ends_the_lease_and_whoever_waits_is_served() {
    let Some(server) = EtcdServer::start_or_skip("revoked leases") else { return };
    let (one, other) = (server.client().await, server.client().await);
    let held = brief_mutex(&one).lock().await.expect("free");
    let leases = server.ctl(&["lease", "list"]);
    let ids: Vec<_> = leases.lines().skip(1).collect();
    let waiter = waiter(&mutex(&other));
    until_waiting(&mutex(&one), 1).await;
    for id in ids {
        server.ctl(&["lease", "revoke", id]);
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
async fn something_else_under_a_key_is_told_and_costs_no_other_lock() {
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
    // One that was never released, of a client that is gone: it ends although its client's other leases were used again and again.
    let backend = server.backend().await;
    let (forgotten, other) = (lease(&backend, NAME), lease(&backend, "other"));
    backend.request(&Request::new(forgotten.clone(), Claim::Sole, BRIEF)).await.expect("it answers");
    let begun = Instant::now();
    while begun.elapsed() < BRIEF + SECOND {
        backend.request(&Request::new(other.clone(), Claim::Sole, BRIEF)).await.expect("it answers");
        backend.release(&other).await.expect("it answers");
    }
    let seen = backend.inspect(&forgotten.resource, Detail::Everybody).await.expect("it answers");
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
    permit.release().await.expect("held");
    let released = Instant::now();
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
    assert!(released.elapsed() < BRIEF * 2 + SECOND, "{:?}", released.elapsed());
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
    let seen = one.inspect(&resource, Detail::Everybody).await.expect("it answers");
    assert_eq!((seen.in_use, seen.waiters.len()), (WAITERS, 0));
}

// Records

#[tokio::test]
async fn names_and_owners_may_contain_any_character() {
    let Some(server) = EtcdServer::start_or_skip("names") else { return };
    let (one, other) = (server.client().await, server.client().await);
    for name in ["a\0b", "/", "%2F", "a/lease/b", "é\n\" ", &"x\0".repeat(256)] {
        let lock = one.reentrant_lock(name).expect("valid").with_owner(name).expect("valid");
        let guard = lock.lock().await.expect("free");
        let theirs = other.mutex_with(name, one_place_each()).expect("valid");
        let waiter = waiter(&theirs);
        until_waiting(&theirs, 1).await;
        let holders = theirs.inspect().await.expect("it answers").holders;
        assert_eq!(holders[0].owner.as_deref(), Some(name));
        guard.release().await.expect("held");
        granted(waiter).await.release().await.expect("held");
    }
}

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
    let mut renewals = Vec::new();
    for n in 0..GUARDS {
        let lease = lease(&backend, &format!("{n}"));
        let request = Request::new(lease.clone(), Claim::Sole, SECOND * 30);
        assert!(matches!(backend.request(&request).await.expect("it answers"), Answer::Granted(_)));
        renewals.push(Renew::new(lease, SECOND * 30));
    }
    let (before, revision) = (wire.messages(), server.revision());
    let answers: Vec<_> = backend.renew(&renewals).collect().await;
    assert_eq!(answers.len(), GUARDS);
    assert!(answers.iter().all(|(_, answer)| matches!(answer, Ok(Renewal::Renewed))));
    // Two that read, and one on the stream for each lease at most; nothing is written.
    let made = wire.messages() - before;
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
        let (own, before, revision) = (lease(&backend, NAME), wire.messages(), server.revision());
        let answer = backend.request(&Request::new(own.clone(), Claim::Sole, SECOND * 30)).await;
        let Ok(Answer::Granted(grant)) = answer else { panic!("it is free: {answer:?}") };
        assert_eq!(backend.release(&own).await.expect("the wire is whole"), Released::Held);
        (grant.token, wire.messages() - before, server.revision() - revision)
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

/// How many messages the clients send for each of some hand-overs.
async fn messages_per_hand_over(server: &EtcdServer, clients: usize) -> f64 {
    const HAND_OVERS: usize = 400;

    let wire = Wire::start(server.port()).await;
    let mut all = Vec::new();
    for _ in 0..clients {
        all.push(Client::connect(&wire.url()).await.expect("the wire is whole"));
    }
    let turns = HAND_OVERS / clients;
    let take_turns = async |client: &Client, turns: usize| {
        for _ in 0..turns {
            let guard = mutex(client).lock().await.expect("granted");
            guard.release().await.expect("held");
        }
    };
    // All are under way, and have the etcd leases that they need.
    join_all(all.iter().map(|client| take_turns(client, 2))).await;
    let before = wire.messages();
    join_all(all.iter().map(|client| take_turns(client, turns))).await;
    let messages = wire.messages() - before;
    for client in all {
        client.shutdown().await.expect("released");
    }
    messages as f64 / (turns * clients) as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_takes_as_many_messages_among_many_clients_as_among_few() {
    let Some(server) = EtcdServer::start_or_skip("messages per hand-over") else { return };
    let few = messages_per_hand_over(&server, 4).await;
    let many = messages_per_hand_over(&server, 40).await;
    println!("{few:.1} messages among 4 clients, {many:.1} among 40");
    assert!(few < 8.0 && many < few * 1.2, "{few:.1} messages among 4 clients, {many:.1} among 40");
}

// Runtimes

#[test]
fn a_lease_is_kept_while_the_runtime_is_blocked() {
    let Some(server) = EtcdServer::start_or_skip("a blocked runtime") else { return };
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = server.client().await;
        let guard = brief_mutex(&client).lock().await.expect("free");
        thread::sleep(BRIEF * 3 / 2);
        assert!(guard.is_held());
        guard.release().await.expect("held");
        client.shutdown().await.expect("released");
    });
}

#[test]
fn a_client_whose_runtime_has_ended_goes_on_on_the_next_one() {
    let Some(server) = EtcdServer::start_or_skip("another runtime") else { return };
    let runtime = || Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let first = runtime();
    let client = first.block_on(async {
        let client = server.client().await;
        mutex(&client).lock().await.expect("free").release().await.expect("held");
        client
    });
    drop(first);
    runtime().block_on(async {
        let other = server.client().await;
        let guard = mutex(&other).lock().await.expect("free");
        let waiter = waiter(&mutex(&client));
        until_waiting(&mutex(&other), 1).await;
        let begun = Instant::now();
        guard.release().await.expect("held");
        granted(waiter).await.release().await.expect("held");
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    });
}
