//! Members and addresses that hang, refuse, drop or answer late; refusals that last seconds; tokens that expire; and
//! what is left at the server by clients that are gone.
#![cfg(feature = "etcd")]

#[path = "support/etcd.rs"]
mod server;
#[path = "support/etcd_wire.rs"]
mod wire;

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use leasehold::{Client, Error};
use leasehold_support::faults::{NAME, SECOND, granted, ms, mutex, until_waiting, waiter};
use leasehold_support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use leasehold_support::lines::Lines;
use leasehold_support::refusals::nothing_fails_during;
use leasehold_support::{eventually, one_place_each, within};
use server::{EtcdCluster, EtcdServer, PASSWORD, USER};
use tokio::time::{Instant, sleep, timeout};
use wire::Wire;

/// A deadline for what takes a moment, on a busy machine.
const SOON: Duration = Duration::from_secs(15);

async fn lock_and_release(client: &Client, name: &str) {
    let mutex = client.mutex(name).expect("valid");
    mutex.try_lock().await.expect("a member answers").expect("free").release().await.expect("held");
}

fn loopback(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], port))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_member_of_the_list_may_fail_in_each_way_at_connect() {
    let Some(server) = EtcdServer::start_or_skip("members that hang") else { return };
    let good = format!("127.0.0.1:{}", server.port());
    let late = Fault::Late(SECOND, loopback(1, server.port()));
    let all = [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, late];
    let cases = (0..).zip(all).map(async |(n, fault)| {
        let bad = FaultyAddress::new(loopback(20 + n, server.port()), fault).await;
        let bad = bad.address();
        for list in [format!("{bad},{good}"), format!("{good},{bad}")] {
            let begun = Instant::now();
            let client = Client::connect(&format!("etcd://{list}")).await;
            let client = client.unwrap_or_else(|error| panic!("{fault:?}: {list}: {error}"));
            assert!(begun.elapsed() < SECOND * 2, "{fault:?}: {:?}", begun.elapsed());
            lock_and_release(&client, &format!("{n}")).await;
            client.shutdown().await.expect("closed");
        }
    });
    // Each keeps its address until all have been tried.
    join_all(cases).await;
}

#[test]
fn each_address_of_a_member_may_fail_in_each_way() {
    let names = "a.test=127.0.0.31,127.0.0.1 b.test=127.0.0.32,127.0.0.1 c.test=127.0.0.33,127.0.0.1 \
                 d.test=127.0.0.34,127.0.0.1 e.test=127.0.0.35,127.0.0.1";
    if !is_run_with_hosts("each_address_of_a_member_may_fail_in_each_way", names) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let Some(server) = EtcdServer::start_or_skip("addresses that hang") else { return };
        let late = Fault::Late(SECOND, loopback(1, server.port()));
        let all = [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, late];
        for ((n, host), fault) in (31..).zip(["a", "b", "c", "d", "e"]).zip(all) {
            let _faulty = FaultyAddress::new(loopback(n, server.port()), fault).await;
            let client = Client::connect(&format!("etcd://{host}.test:{}", server.port())).await;
            let client = client.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            lock_and_release(&client, host).await;
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_moves_when_its_member_is_stopped_or_has_lost_the_others() {
    let Some(cluster) = EtcdCluster::start_or_skip("members that are stopped") else { return };
    let members: Vec<_> =
        cluster.members.iter().map(|member| format!("127.0.0.1:{}", member.port())).collect();
    for n in 0..3 {
        // It is connected to the member that is stopped, which may be the leader.
        let list = [&members[n], &members[(n + 1) % 3], &members[(n + 2) % 3]].map(String::as_str).join(",");
        let url = format!("etcd://{list}?reply_timeout=1s");
        let client = Client::connect(&url).await.expect("it answers");
        let other = Client::connect(&format!("etcd://{}", members[(n + 1) % 3])).await.expect("it answers");
        let (kept, lock) = (client.mutex("kept").expect("valid"), mutex(&client));
        let kept = kept.lock().await.expect("free");
        let theirs = mutex(&other).lock().await.expect("free");
        let waiting = waiter(&lock);
        until_waiting(&lock, 1).await;
        cluster.members[n].pause();
        let begun = Instant::now();
        // The others have to elect a leader first, if it was that one.
        within(SOON, async {
            while client.mutex("other").expect("valid").try_lock().await.is_err() {
                assert!(begun.elapsed() < SOON);
            }
        })
        .await;
        within(SOON, theirs.release()).await.expect("another member answers");
        let guard = within(SOON, granted(waiting)).await;
        assert!(kept.is_held());
        guard.release().await.expect("held");
        kept.release().await.expect("held");
        cluster.members[n].resume();
        eventually(SOON, || async { Client::connect(&format!("etcd://{}", members[n])).await.is_ok() }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_store_is_waited_for() {
    let Some(server) = EtcdServer::start_or_skip("a full store") else { return };
    let alarm = |action| server.post_json("/v3/maintenance/alarm", action);
    nothing_fails_during(
        "NOSPACE",
        server.client().await,
        server.client().await,
        async || alarm(r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#),
        async || alarm(r#"{"action":"DEACTIVATE","alarm":"NOSPACE"}"#),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_without_a_leader_is_waited_for() {
    // A new leader is to be elected soon.
    let options = ["--heartbeat-interval=50", "--election-timeout=500"];
    let Some(cluster) = EtcdCluster::start_with_or_skip("no leader", &options) else { return };
    let client = || async { Client::connect(&cluster.url()).await.expect("it answers") };
    let two = || cluster.members.iter().skip(1);
    nothing_fails_during(
        "no leader",
        client().await,
        client().await,
        async || two().for_each(EtcdServer::pause),
        async || {
            two().for_each(EtcdServer::resume);
            eventually(SOON, || std::future::ready(cluster.members.iter().all(EtcdServer::is_healthy))).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_expires_and_a_connection_that_is_closed_are_renewed_in_silence() {
    let Some(server) = EtcdServer::start_with_or_skip("tokens that expire", &["--auth-token-ttl=1"]) else {
        return;
    };
    for command in [
        &["user", "add", "root:admin"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", &format!("{USER}:{PASSWORD}")],
        &["role", "add", "locks"],
        &["role", "grant-permission", "locks", "readwrite", "--prefix=true", "leasehold/"],
        &["user", "grant-role", USER, "locks"],
        &["auth", "enable"],
    ] {
        server.ctl(command);
    }
    let wire = Wire::start(server.port()).await;
    // What other tests trace is about other servers.
    let lines = Lines::collect(|metadata| *metadata.level() <= tracing::Level::INFO);
    let url = server::url_of(wire.port()).replace("etcd://", &format!("etcd://{USER}:{PASSWORD}@"));
    let client = Client::connect(&url).await.expect("it may");
    lock_and_release(&client, NAME).await;
    let mut changes = client.state_changes();
    let begun = Instant::now();
    while begun.elapsed() < SECOND * 7 {
        sleep(ms(1700)).await;
        lock_and_release(&client, NAME).await;
        wire.cut();
    }
    let changed = timeout(ms(300), changes.next()).await;
    assert!(changed.is_err(), "{changed:?}");
    assert_eq!(lines.with(&format!(":{}", wire.port())), [""; 0]);
    assert!(client.state().status.is_connected());
    client.shutdown().await.expect("closed");
}

/// Watching and keeping leases alive take a stream each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_allows_few_streams_serves_many_tasks() {
    let options = ["--max-concurrent-streams=3"];
    let Some(server) = EtcdServer::start_with_or_skip("few streams", &options) else { return };
    let client = server.client().await;
    let turns = (0..20).map(async |n| {
        let guard = within(SOON, mutex(&client).lock()).await.expect("it waits until it is granted");
        guard.release().await.expect("held");
        lock_and_release(&client, &format!("{n}")).await;
    });
    join_all(turns).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_gone_leave_no_connection_and_no_watch_open() {
    let Some(server) = EtcdServer::start_or_skip("what is left open") else { return };
    let before = server.metric("process_open_fds");
    for n in 0..10 {
        let client = server.client().await;
        let guard = client.mutex_with(NAME, one_place_each()).expect("valid").lock().await.expect("free");
        guard.release().await.expect("held");
        if n % 2 == 0 {
            client.shutdown().await.expect("closed");
        }
    }
    let open = || {
        let watchers = server.metric("etcd_debugging_mvcc_watcher_total");
        (watchers, server.metric("process_open_fds").saturating_sub(before))
    };
    eventually(SOON, || async { open().0 == 0 && open().1 <= 2 }).await;
}

#[tokio::test]
async fn a_member_that_cannot_be_used_is_found_by_a_check() {
    let Some(server) = EtcdServer::start_or_skip("members that are away") else { return };
    let away = FaultyAddress::new(loopback(40, server.port()), Fault::Refuses).await;
    let url = format!("{},{}", server.url(), away.address());
    let client = Client::connect(&url).await.expect("one is enough");
    let found = client.check().await.expect("it answers");
    let says = |text: &str| found.iter().any(|finding| finding.text.contains(text));
    assert!(says(&format!("a member cannot be used: {}", away.address())), "{found:?}");
    let error =
        Client::connect(&format!("etcd://{}", away.address())).await.map(drop).expect_err("it is away");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
}
