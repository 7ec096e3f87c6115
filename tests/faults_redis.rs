//! Parts of a Redis store that hang, swallow packets, or decline for a few seconds.
#![cfg(feature = "_redis")]

#[path = "support/lines.rs"]
mod lines;
mod support;

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::join_all;
use leasehold::backend::{Severity, Status};
use leasehold::{Client, Error, MutexOptions};
use lines::Lines;
use support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use support::{Proxy, Raw, RedisServer, Setup, within};
use tracing::Level;

const SECOND: Duration = Duration::from_secs(1);

/// What operators read, of all tests here: each server has an address of its own.
static LINES: LazyLock<Lines> = LazyLock::new(|| {
    Lines::collect(|metadata| *metadata.level() <= Level::INFO && metadata.target().starts_with("leasehold"))
});

fn with_options(options: &[&str]) -> Setup {
    Setup { options: options.iter().map(|option| (*option).to_owned()).collect(), ..Setup::default() }
}

fn late(port: u16) -> Fault {
    Fault::Late(SECOND * 3, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// The faults of one address, when another one works.
fn faults(port: u16) -> [Fault; 5] {
    [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, late(port)]
}

/// At connect, and when the client has to connect again.
#[test]
fn each_address_of_a_name_in_turn_has_a_fault() {
    let name = "each_address_of_a_name_in_turn_has_a_fault";
    // The n-th fault has an address of its own.
    let hosts =
        (0..5).map(|n| format!("first{n}.test=127.0.0.9{n},127.0.0.1 last{n}.test=127.0.0.1,127.0.0.9{n}"));
    if !is_run_with_hosts(name, &hosts.collect::<Vec<_>>().join(" ")) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let Some(server) = RedisServer::start_or_skip(name) else { return };
        for (n, fault) in (0..).zip(faults(server.port())) {
            let address = SocketAddr::from(([127, 0, 0, 90 + n], server.port()));
            let _faulty = FaultyAddress::new(address, fault).await;
            for host in [format!("first{n}.test"), format!("last{n}.test")] {
                let url = server.url().replace("127.0.0.1", &host);
                let begun = Instant::now();
                let client =
                    Client::connect(&url).await.unwrap_or_else(|error| panic!("{fault:?}, {host}: {error}"));
                let guard = client.mutex("a").expect("it works").lock().await.expect("it works");
                assert!(begun.elapsed() < Duration::from_millis(1800), "{fault:?}, {host}");
                // In use: all connections are closed.
                server.raw().send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                let begun = Instant::now();
                guard.release().await.expect("it works");
                client
                    .mutex("b")
                    .expect("it works")
                    .try_lock()
                    .await
                    .expect("it works")
                    .expect("it is free")
                    .release()
                    .await
                    .expect("it works");
                assert!(begun.elapsed() < SECOND * 3, "{fault:?}, {host}: {:?}", begun.elapsed());
                client.shutdown().await.expect("it works");
            }
        }
    });
}

/// As a NAT or a load balancer does that has forgotten them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_connections_that_swallow_everything_are_replaced_by_new_ones() {
    let Some(server) = RedisServer::start_or_skip("connections that swallow everything") else { return };
    let proxy = Proxy::start(server.port()).await;
    let client = Client::connect(&proxy.url()).await.expect("the server answers");
    let options = MutexOptions::new().ttl(SECOND * 30);
    let guard = client.mutex_with("a", options.clone()).expect("it works").lock().await.expect("it works");
    let waiter = client.mutex_with("a", options.clone()).expect("it works");
    let waiter = tokio::spawn(async move { waiter.lock().await });
    proxy.hold_connections();
    let begun = Instant::now();
    let other = client.mutex_with("b", options).expect("it works");
    let (taken, released) = tokio::join!(other.try_lock(), guard.release());
    let took = begun.elapsed();
    assert!(took < Duration::from_millis(3500), "{took:?}");
    released.expect("it is released on a new connection");
    let other = taken.expect("the server answers on a new connection").expect("it is free");
    within(SECOND * 10, waiter)
        .await
        .expect("it works")
        .expect("it is passed on")
        .release()
        .await
        .expect("it works");
    other.release().await.expect("it works");
    client.shutdown().await.expect("it works");
}

/// A refusal, and the server's options, the command that begins it, and the one that ends it.
type Refusal = (&'static str, &'static [&'static str], &'static [&'static str], &'static [&'static str]);

/// How a server is made to decline everything for now, and how that ends.
const REFUSALS: [Refusal; 3] = [
    (
        "NOREPLICAS",
        &[],
        &["CONFIG", "SET", "min-replicas-to-write", "1"],
        &["CONFIG", "SET", "min-replicas-to-write", "0"],
    ),
    ("OOM", &[], &["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
    ("READONLY", &[], &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_the_server_declines_for_three_seconds() {
    join_all(REFUSALS.map(|(what, options, begin, end)| async move {
        let Some(server) = RedisServer::start_with_or_skip(what, with_options(options)) else { return };
        let client = Client::connect(&server.url()).await.expect("the server answers");
        let options = MutexOptions::new().ttl(SECOND * 6);
        let held =
            client.mutex_with("held", options.clone()).expect("it works").lock().await.expect("it works");
        let released =
            client.mutex_with("released", options.clone()).expect("it works").lock().await.expect("it works");
        let lazy = Client::connect_lazy(&server.url()).expect("it works");
        let waiters: Vec<_> = (0..20)
            .map(|number| {
                // A server that is a replica accepts no new client.
                let from = if number % 2 == 0 || what == "READONLY" { &client } else { &lazy };
                let mutex = from.mutex_with("released", options.clone()).expect("it works");
                tokio::spawn(async move { mutex.lock().await?.release().await })
            })
            .collect();
        let declined = server.raw().send(begin);
        assert_eq!(declined.text().as_deref(), Some("OK"), "{what}");
        let releasing = tokio::spawn(released.release());
        let more = client.mutex_with("more", options.clone()).expect("it works");
        let more = tokio::spawn(async move { more.lock().await?.release().await });
        tokio::time::sleep(SECOND * 3).await;
        assert!(held.lost().now_or_never().is_none(), "{what}");
        server.raw().send(end);
        within(SECOND * 2, releasing)
            .await
            .expect("it works")
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        within(SECOND * 10, more).await.expect("it works").unwrap_or_else(|error| panic!("{what}: {error}"));
        for waiter in waiters {
            within(SECOND * 10, waiter)
                .await
                .expect("it works")
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert!(held.lost().now_or_never().is_none(), "{what}");
        held.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        client.shutdown().await.expect("it works");
        lazy.shutdown().await.expect("it works");
    }))
    .await;
}

/// Also a client that uses it for the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_many_clients_is_waited_for() {
    let Some(server) = RedisServer::start_or_skip("max number of clients") else { return };
    let (mut raw, url) = (server.raw(), server.url());
    raw.send(&["CONFIG", "SET", "maxclients", "1"]);
    let error = Client::connect(&url).await.expect_err("it accepts nobody");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("max number of clients reached"), "{error}");
    let lazy = Client::connect_lazy(&url).expect("it works");
    let (connecting, locking) = (
        tokio::spawn(async move { Client::connect(&url).await }),
        tokio::spawn({
            let mutex = lazy.mutex("a").expect("it works");
            async move { mutex.lock().await?.release().await }
        }),
    );
    tokio::time::sleep(SECOND).await;
    raw.send(&["CONFIG", "SET", "maxclients", "1000"]);
    within(SECOND * 5, connecting)
        .await
        .expect("it works")
        .expect("it works")
        .shutdown()
        .await
        .expect("it works");
    within(SECOND * 5, locking).await.expect("it works").expect("it works");
    lazy.shutdown().await.expect("it works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_commands_are_named_when_connecting() {
    let renamed = ["EVALSHA", "EVAL", "TIME", "PEXPIRE", "ZADD"];
    let servers = renamed.map(|command| {
        RedisServer::start_with_or_skip(command, with_options(&["--rename-command", command, "OTHER"]))
    });
    for (server, command) in servers.into_iter().zip(renamed) {
        let Some(server) = server else { return };
        let error = Client::connect(&server.url()).await.expect_err("a command is missing");
        assert!(matches!(error, Error::StoreRefused { .. }), "{command}: {error:?}");
        assert!(error.to_string().contains(&format!(": {command}")), "{command}: {error}");
        let lazy = Client::connect_lazy(&server.url()).expect("it works");
        let findings = lazy.check().await.expect("it works");
        let is_named = findings
            .iter()
            .any(|finding| finding.severity == Severity::Refused && finding.text.contains(command));
        assert!(is_named, "{command}: {findings:?}");
    }
}

/// For 12 s, or as long as `LEASEHOLD_IDLE_SECONDS` says, which is for a machine that does nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_closes_idle_connections_is_connected_all_the_time() {
    let seconds = std::env::var("LEASEHOLD_IDLE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let limit = Duration::from_millis(if seconds.is_some() { 50 } else { 250 });
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(12));
    let Some(server) = RedisServer::start_with_or_skip("--timeout 2", with_options(&["--timeout", "2"]))
    else {
        return;
    };
    LazyLock::force(&LINES);
    let client = Client::connect(&server.url()).await.expect("it works");
    let traced = || LINES.with(&server.address());
    let traced_before = traced();
    let mut changes = client.state_changes();
    let watching = tokio::spawn(async move {
        use futures::StreamExt;
        let mut left = Vec::new();
        while let Some(state) = changes.next().await {
            match state.status {
                Status::Closed => break,
                Status::Connected => {}
                _ => left.push(state),
            }
        }
        left
    });
    let mutex = client.mutex("a").expect("it works");
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        tokio::time::sleep(SECOND * 5).await;
        let begun = Instant::now();
        let guard = mutex.try_lock().await.expect("it is connected").expect("it is free");
        longest = longest.max(begun.elapsed());
        guard.release().await.expect("it works");
    }
    eprintln!("the longest `try_lock` of an idle client took {longest:?}");
    assert!(longest < limit, "{longest:?}");
    client.shutdown().await.expect("it works");
    assert_eq!(within(SECOND * 5, watching).await.expect("it works"), []);
    assert_eq!(traced(), traced_before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_gone_leave_no_connection() {
    let Some(server) = RedisServer::start_or_skip("connections of clients that are gone") else { return };
    let mut raw = server.raw();
    let mut connections = || {
        let list = raw.send(&["CLIENT", "LIST"]).text().expect("a list");
        // The user of `docs/acl.md` may not give its connections a name.
        let of_client = |line: &&str| line.contains("name=leasehold-") || line.contains("user=leasehold ");
        list.lines().filter(of_client).count()
    };
    for round in 0..6 {
        let client = match round % 2 {
            0 => Client::connect(&server.url()).await.expect("it works"),
            _ => Client::connect_lazy(&server.url()).expect("it works"),
        };
        client
            .mutex("a")
            .expect("it works")
            .lock()
            .await
            .expect("it works")
            .release()
            .await
            .expect("it works");
        assert!(connections() > 0);
        if round < 3 {
            client.shutdown().await.expect("it works");
        }
        drop(client);
        let deadline = Instant::now() + SECOND * 5;
        while connections() > 0 {
            assert!(Instant::now() < deadline, "round {round}: {} connections are left", connections());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(server.raw().send(&["PUBSUB", "CHANNELS"]), support::Reply::Array(Vec::new()));
}

/// A server that answers as one sentinel does, with what the test says.
fn sentinel_of(primary: &RedisServer) -> Option<RedisServer> {
    let rules = format!("sentinel monitor main 127.0.0.1 {} 1", primary.port());
    RedisServer::start_with_or_skip("sentinels", Setup { sentinel: Some(rules), ..Setup::default() })
}

fn sentinel_url(address: SocketAddr) -> String {
    format!("redis-sentinel://{}{address}/main", support::acl::login())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sentinel_in_turn_has_a_fault() {
    let Some(primary) = RedisServer::start_or_skip("sentinels with faults") else { return };
    let Some(sentinel) = sentinel_of(&primary) else { return };
    for (n, fault) in (0..).zip(faults(sentinel.port())) {
        let faulty = FaultyAddress::new(([127, 0, 0, 80 + n], sentinel.port()).into(), fault).await;
        let well = SocketAddr::from(([127, 0, 0, 1], sentinel.port()));
        for list in [format!("{},{well}", faulty.address()), format!("{well},{}", faulty.address())] {
            let url = sentinel_url(well).replace(&well.to_string(), &list);
            let begun = Instant::now();
            let client = Client::connect(&url).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            let guard = client.mutex("a").expect("it works").lock().await.expect("it works");
            primary.raw().send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            guard.release().await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            assert!(begun.elapsed() < SECOND * 3, "{fault:?}: {:?}", begun.elapsed());
            client.shutdown().await.expect("it works");
        }
    }
}

/// The epoch stays the same (the primary is removed and monitored again).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_set_up_again_are_followed() {
    let Some(mut primary) = RedisServer::start_or_skip("sentinels that are set up again") else { return };
    let Some(next) = RedisServer::start_or_skip("sentinels that are set up again") else { return };
    let Some(sentinel) = sentinel_of(&primary) else { return };
    let client =
        Client::connect(&sentinel_url(([127, 0, 0, 1], sentinel.port()).into())).await.expect("it works");
    client.mutex("a").expect("it works").lock().await.expect("it works").release().await.expect("it works");
    let mut raw = Raw::connect(sentinel.port()).expect("it works");
    raw.send(&["SENTINEL", "REMOVE", "main"]);
    let port = next.port().to_string();
    raw.send(&["SENTINEL", "MONITOR", "main", "127.0.0.1", &port, "1"]);
    // It is reachable: whoever uses it must all use the same one.
    client.mutex("a").expect("it works").lock().await.expect("it works").release().await.expect("it works");
    primary.kill();
    let guard =
        within(SECOND * 4, async { client.mutex("b").expect("it works").lock().await.expect("it works") })
            .await;
    assert!(next.raw().get("lock:b").is_some());
    guard.release().await.expect("it works");
    client.shutdown().await.expect("it works");
}
