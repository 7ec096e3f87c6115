//! Servers and addresses that hang, refuse, drop or answer late; a server that accepts no further connections;
//! connections that are closed while they are idle; and what is left at the server by clients that are gone.
#![cfg(feature = "zookeeper")]

#[path = "support/zookeeper_proxy.rs"]
mod proxy;
#[path = "support/zookeeper.rs"]
mod server;
#[path = "support/stale_zookeeper.rs"]
mod stale_zookeeper;

use std::collections::BTreeSet;
use std::future::ready;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, Error};
use leasehold_support::faults::{NAME, SECOND, mutex, waiter};
use leasehold_support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use leasehold_support::lines::Lines;
use leasehold_support::zookeeper_wire::Wire;
use leasehold_support::{eventually, within};
use proxy::Proxy;
use server::ZookeeperServer;
use stale_zookeeper::StaleWay;
use tokio::time::Instant;

/// A deadline for what takes a moment, on a busy machine.
const SOON: Duration = Duration::from_secs(15);
/// What connecting may take, by default, and some slack.
const CONNECTING: Duration = Duration::from_secs(3);

async fn lock_and_release(client: &Client, name: &str) -> Result<(), Error> {
    let guard = client.mutex(name).expect("valid").try_lock().await?;
    guard.expect("free").release().await
}

const fn faults(server: SocketAddr) -> [Fault; 5] {
    let late = Fault::Late(SECOND, server);
    [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, late]
}

fn loopback(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], port))
}

/// From where clients are connected to a server.
fn connections(port: u16) -> BTreeSet<String> {
    let text = Wire::ask(port, "cons").expect("it answers");
    // The connection with which this is asked has no session.
    let lines = text.lines().filter(|line| line.contains("sid="));
    lines.filter_map(|line| line.split('[').next().map(|peer| peer.trim().to_owned())).collect()
}

/// The sessions that a server knows, with or without a connection.
fn sessions(port: u16) -> BTreeSet<String> {
    let text = Wire::ask(port, "dump").expect("it answers");
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("0x"));
    lines.map(|line| line.trim_end_matches(':').to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_of_the_list_may_fail_in_each_way_and_nothing_is_left_behind() {
    let settings = ["4lw.commands.whitelist=cons,dump", "maxSessionTimeout=60000"];
    let Some(server) = ZookeeperServer::start_with_or_skip("servers that hang", &settings, None) else {
        return;
    };
    let port = server.port();
    let good = loopback(1, port);
    let cases = (20..).zip(faults(good)).map(async |(n, fault)| {
        let bad = FaultyAddress::new(loopback(n, port), fault).await;
        let bad = bad.address();
        // It begins with any of them.
        let attempts = (0..4).map(async |attempt| {
            let begun = Instant::now();
            let client = Client::connect(&format!("zookeeper://{bad},{good}/{n}")).await;
            let client = client.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert!(begun.elapsed() < CONNECTING, "{fault:?}: {:?}", begun.elapsed());
            lock_and_release(&client, &format!("{attempt}")).await.expect("it answers");
            client.shutdown().await.expect("closed");
        });
        join_all(attempts).await;
    });
    // Each keeps its address until all have been tried.
    join_all(cases).await;

    // Those that are dropped, or shut down, and those of which the answer came too late.
    let clients: Vec<_> = join_all((0..5).map(|_| server.client())).await;
    for client in &clients {
        lock_and_release(client, NAME).await.expect("it answers");
    }
    assert!(connections(port).len() >= 5);
    clients[0].shutdown().await.expect("closed");
    drop(clients);
    eventually(SOON, || async { connections(port).is_empty() && sessions(port).is_empty() }).await;
}

#[test]
fn each_address_of_a_server_may_fail_in_each_way_at_connect_and_in_use() {
    let names = "a.test=127.0.0.31,127.0.0.1 b.test=127.0.0.32,127.0.0.1 c.test=127.0.0.33,127.0.0.1 \
                 d.test=127.0.0.34,127.0.0.1 e.test=127.0.0.35,127.0.0.1";
    if !is_run_with_hosts("each_address_of_a_server_may_fail_in_each_way_at_connect_and_in_use", names) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let Some(server) = ZookeeperServer::start_or_skip("addresses that hang") else { return };
        let port = server.port();
        let cases = (31..).zip(["a", "b", "c", "d", "e"]).zip(faults(loopback(1, port)));
        let clients = cases.map(async |((n, host), fault)| {
            let faulty = FaultyAddress::new(loopback(n, port), fault).await;
            let client = Client::connect(&format!("zookeeper://{host}.test:{port}/{host}")).await;
            let client = client.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            let held = mutex(&client).lock().await.expect("free");
            (faulty, client, held)
        });
        let clients = join_all(clients).await;
        // All have to resume their sessions.
        server.restart();
        for (faulty, client, held) in clients {
            eventually(SOON, || async { lock_and_release(&client, "other").await.is_ok() }).await;
            assert!(held.is_held(), "{faulty:?}");
            held.release().await.expect("held");
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_use_moves_to_whichever_server_answers_within_the_limit_of_a_call() {
    let Some(server) = ZookeeperServer::shared_or_skip("servers that hang in use") else { return };
    let proxies = join_all((0..3).map(|_| Proxy::start(server.port()))).await;
    let list: Vec<_> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = format!("zookeeper://{}{}?reply_timeout=1s", list.join(","), server.chroot());
    let client = Client::connect(&url).await.expect("it answers");
    let held = mutex(&client).lock().await.expect("free");
    for answers in [0, 1, 2, 0] {
        for (n, proxy) in proxies.iter().enumerate() {
            if n == answers {
                proxy.resume();
            } else {
                proxy.hold();
            }
        }
        lock_and_release(&client, "other").await.unwrap_or_else(|error| panic!("{answers}: {error}"));
    }
    assert!(held.is_held());
    held.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_no_further_connections_is_waited_for_and_the_error_names_its_limit() {
    let left_out = "limits of connections";
    let Some(server) = ZookeeperServer::start_with_or_skip(left_out, &["maxClientCnxns=1"], None) else {
        return;
    };
    // The server may still count the connection by which it was found to be ready.
    let one = Client::connect_lazy(&server.url()).expect("valid");
    let held = within(SOON, mutex(&one).lock()).await.expect("free");
    let error = Client::connect(&server.url()).await.map(drop).expect_err("it has one");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("maxClientCnxns"), "{error}");

    let lazy = Client::connect_lazy(&server.url()).expect("valid");
    let waiters: Vec<_> = (0..20).map(|_| waiter(&mutex(&lazy))).collect();
    tokio::time::sleep(SECOND * 3).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    held.release().await.expect("the connection is whole");
    one.shutdown().await.expect("closed");
    let granted = waiters.into_iter().map(async |waiter| {
        let guard = within(SOON, waiter).await.expect("no panic").expect("it waits until it is granted");
        guard.release().await.expect("held");
    });
    join_all(granted).await;
}

/// One request at a time is let through, and those that have waited for some milliseconds are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_throttles_requests_fails_nothing() {
    let settings = [
        "request_throttle_max_requests=1",
        "request_throttle_stall_time=20",
        "throttled_op_wait_time=5",
        "4lw.commands.whitelist=mntr",
    ];
    let Some(server) = ZookeeperServer::start_with_or_skip("throttling", &settings, None) else { return };
    let clients: Vec<_> = (0..3).map(|_| Client::connect_lazy(&server.url()).expect("valid")).collect();
    let has_throttled = || {
        let metrics = Wire::ask(server.port(), "mntr").unwrap_or_default();
        let count = metrics.lines().find_map(|line| line.strip_prefix("zk_throttled_ops\t"));
        count.is_some_and(|count| count != "0")
    };
    while !has_throttled() {
        let turns = clients.iter().flat_map(|client| (0..4).map(move |_| mutex(client)));
        let turns = turns.map(async |mutex| {
            let guard = within(SOON * 4, mutex.lock()).await.expect("it waits until it is granted");
            guard.release().await.expect("it is repeated until it is done");
        });
        join_all(turns).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_closed_while_it_is_idle_is_replaced_in_silence() {
    let settings = ["4lw.commands.whitelist=cons"];
    let Some(server) = ZookeeperServer::start_with_or_skip("idle connections", &settings, None) else {
        return;
    };
    let proxy = Proxy::start(server.port()).await;
    // What other tests trace is about other servers.
    let lines = Lines::collect(|metadata| *metadata.level() <= tracing::Level::INFO);
    let client = Client::connect(&server.url_through(proxy.port())).await.expect("it answers");
    lock_and_release(&client, NAME).await.expect("free");
    for _ in 0..5 {
        let before = connections(server.port());
        proxy.cut();
        eventually(SOON, || async {
            assert!(client.state().status.is_connected());
            let now = connections(server.port());
            !now.is_empty() && now.is_disjoint(&before)
        })
        .await;
        lock_and_release(&client, NAME).await.expect("there is a connection");
    }
    assert_eq!(lines.with(&format!(":{}", proxy.port())), [""; 0]);
}

/// Such as one that has lost changes that the others have agreed on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_shows_what_was_changed_is_left_for_another_one() {
    let Some(server) = ZookeeperServer::shared_or_skip("a server that shows nothing new") else { return };
    let ways = [StaleWay::start(server.port()).await, StaleWay::start(server.port()).await];
    let [one, other] = ways.each_ref().map(StaleWay::port);
    let url = format!("zookeeper://127.0.0.1:{one},127.0.0.1:{other}{}", server.chroot());
    let client = Client::connect(&url).await.expect("both are well");
    let other = Client::connect(&server.url()).await.expect("it is well");
    // The other one is asked for a session as well, which ends at once.
    eventually(SOON, || ready(ways.iter().map(StaleWay::connections).sum::<usize>() == 1)).await;
    for client in [&client, &other] {
        lock_and_release(client, "stale").await.expect("free");
    }
    // Also what this client knows is read again.
    client.mutex("stale").expect("valid").inspect().await.expect("it answers");
    let used = ways.iter().position(|way| way.connections() > 0).expect("one is used");
    ways[used].stop_learning();
    lock_and_release(&other, "stale").await.expect("free");
    within(SOON, lock_and_release(&client, "stale")).await.expect("free, and the other way shows it");
    assert_eq!((ways[used].connections(), ways[1 - used].connections()), (0, 1));
}
