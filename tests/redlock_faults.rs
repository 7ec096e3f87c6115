//! Nodes of a Redlock that hang, swallow packets, refuse, drop, answer late, or decline for seconds; and what is left
//! of clients that are gone. In a program of its own, because each client here is connected to several servers.
#![cfg(feature = "_redis")]

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use leasehold::{Client, DistMutex, Error, Guard, MutexOptions, NodeState, Severity, Status};
use leasehold_support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use leasehold_support::nodes::{url, url_of_hosts};
use leasehold_support::{
    Direction, Nodes, Proxy, Raw, RedisServer, Setup, eventually, one_place_each, within,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once, on a busy machine. Shorter than a third of the default lease, so that
/// nothing can meet it just because a request is repeated.
const SOON: Duration = Duration::from_secs(5);
/// What takes as long as a time limit for connecting.
const CONNECTING: Duration = Duration::from_secs(15);

/// One test at a time, which has many clients.
static TURN: Semaphore = Semaphore::const_new(1);
/// How many of its cases run at a time: each has clients that are connected to several servers.
const AT_A_TIME: usize = 6;

fn loopback(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], port))
}

/// The faults that an address may have for those who connect to it.
fn faults(port: u16) -> [Fault; 5] {
    let late = Fault::Late(Duration::from_millis(400), loopback(1, port));
    [Fault::Swallows, Fault::Hangs, Fault::Refuses, Fault::Drops, late]
}

fn mutex(client: &Client, name: impl Debug) -> DistMutex {
    client.mutex_with(&format!("{name:?}"), one_place_each()).expect("valid")
}

/// Locks and releases something, three times.
async fn works(client: &Client, name: impl Debug) {
    let (mutex, begun) = (mutex(client, &name), Instant::now());
    for _ in 0..3 {
        let guard = mutex.try_lock().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        let released = guard.unwrap_or_else(|| panic!("{name:?}: it is free")).release().await;
        released.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    assert!(begun.elapsed() < SOON, "{name:?}: {:?}", begun.elapsed());
}

/// A lease that must be renewed.
struct Kept {
    what: String,
    guard: Guard,
    /// When it would have ended.
    end: Instant,
}

impl Kept {
    const TTL: Duration = Duration::from_secs(3);

    async fn new(client: &Client, what: impl Debug) -> Self {
        let what = format!("kept {what:?}");
        let mutex = client.mutex_with(&what, MutexOptions::new().ttl(Self::TTL)).expect("valid");
        let guard = within(SOON, mutex.lock()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        Self { what, guard, end: Instant::now() + Self::TTL }
    }

    /// It has been renewed, and can be released.
    async fn outlasts_its_ttl(self) {
        let Self { what, guard, end } = self;
        let lost = timeout_at(end + SECOND / 2, guard.lost()).await;
        assert!(lost.is_err() && guard.is_held(), "{what}: {lost:?}");
        guard.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}

/// Whether the client is connected although this node of it is not, for a reason.
fn reports(client: &Client, n: usize) -> bool {
    let state = client.state();
    let well = |(k, node): (usize, &NodeState)| node.status.is_connected() || k == n;
    let failed = &state.nodes[n];
    state.status.is_connected()
        && state.nodes.iter().enumerate().all(well)
        && !failed.status.is_connected()
        && failed.reason.is_some()
}

fn all_connected(client: &Client) -> bool {
    client.state().nodes.iter().all(|node| node.status.is_connected())
}

/// Waits until `is_so`, and says what is if that takes too long.
async fn until(limit: Duration, what: impl Debug, client: &Client, is_so: impl Fn(&Client) -> bool) {
    let end = Instant::now() + limit;
    while !is_so(client) {
        assert!(Instant::now() < end, "{what:?}: {:?}", client.state());
        sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a check warns about the node at this address.
async fn is_found(client: &Client, address: &str) -> bool {
    let found = client.check().await.expect("a node answers");
    found.iter().any(|found| found.severity == Severity::Warning && found.text.contains(address))
}

/// Waits until no node has any key but those that remember tokens, and those that are `expected`.
async fn left_empty(nodes: &mut Nodes, expected: impl Fn(&String) -> bool) {
    let end = Instant::now() + SOON;
    while let keys = nodes.keys()
        && !keys.iter().flatten().all(&expected)
    {
        assert!(Instant::now() < end, "left behind: {keys:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_in_turn_has_a_fault_at_connect() {
    let _turn = TURN.acquire().await;
    let Some(mut nodes) = Nodes::start_or_skip("nodes with faults at connect", 3) else { return };
    let ports: Vec<_> = nodes.0.iter().map(RedisServer::port).collect();
    let cases = (0..3).flat_map(|n| faults(ports[n]).map(|fault| (n, fault))).zip(100..);
    let cases = cases.map(async |((n, fault), last)| {
        let faulty = FaultyAddress::new(loopback(last, ports[n]), fault).await;
        let mut addresses: Vec<_> = ports.iter().map(|port| loopback(1, *port)).collect();
        addresses[n] = faulty.address();
        let url = url_of_hosts(addresses);
        let clients = [false, true].map(async |is_lazy| {
            let (name, begun) = ((n, fault, is_lazy), Instant::now());
            let client = if is_lazy { Client::connect_lazy(&url) } else { Client::connect(&url).await };
            let client = client.unwrap_or_else(|error| panic!("{name:?}: {error}"));
            assert!(begun.elapsed() < SECOND * 3, "{name:?}: {:?}", begun.elapsed());
            let kept = Kept::new(&client, name).await;
            works(&client, name).await;
            if let Fault::Late(..) = fault {
                until(CONNECTING, name, &client, all_connected).await;
            } else {
                until(CONNECTING, name, &client, |client| reports(client, n)).await;
                assert!(is_found(&client, &faulty.address().to_string()).await, "{name:?}");
            }
            kept.outlasts_its_ttl().await;
            let begun = Instant::now();
            client.shutdown().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
            assert!(begun.elapsed() < SECOND * 2, "{name:?}: {:?}", begun.elapsed());
        });
        join_all(clients).await;
    });
    stream::iter(cases).buffer_unordered(AT_A_TIME).collect::<Vec<()>>().await;
    left_empty(&mut nodes, |_| false).await;
}

/// What happens to a node while it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InUse {
    /// Nothing arrives there any more, new connections included.
    Swallows,
    /// Nothing arrives on the connections there are; new ones work.
    ConnectionsSwallow,
    /// It accepts everything and answers nothing.
    Hangs,
    /// It closes all connections and takes no new ones.
    Drops,
    /// It closes all connections, once.
    Cut,
    /// Each answer takes longer than requests wait.
    Late,
    /// Each answer takes longer than everything waits.
    TooLate,
}

impl InUse {
    const ALL: [Self; 7] = [
        Self::Swallows,
        Self::ConnectionsSwallow,
        Self::Hangs,
        Self::Drops,
        Self::Cut,
        Self::Late,
        Self::TooLate,
    ];

    fn begin(self, node: &Proxy) {
        match self {
            Self::Swallows => node.hold(Direction::ToServer),
            Self::ConnectionsSwallow => node.hold_connections(),
            Self::Hangs => node.hold(Direction::ToClient),
            Self::Drops => {
                node.refuse(true);
                node.cut();
            }
            Self::Cut => node.cut(),
            Self::Late => node.delay_replies(Duration::from_millis(300)),
            Self::TooLate => node.delay_replies(SECOND * 10),
        }
    }

    fn end(self, node: &Proxy) {
        match self {
            Self::Drops => node.refuse(false),
            Self::Late | Self::TooLate => {
                node.delay_replies(Duration::ZERO);
                // What is already on its way takes as long as it would have.
                node.cut();
            }
            _ => node.resume(),
        }
    }

    /// Whether the node works again by itself, in the eyes of the client.
    const fn is_overcome(self) -> bool {
        matches!(self, Self::ConnectionsSwallow | Self::Cut)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_in_turn_has_a_fault_in_use() {
    let _turn = TURN.acquire().await;
    let Some(mut nodes) = Nodes::start_or_skip("nodes with faults in use", 3) else { return };
    let ports: Vec<_> = nodes.0.iter().map(RedisServer::port).collect();
    let direct = nodes.connect().await;
    let cases = (0..3).flat_map(|n| InUse::ALL.map(|fault| (n, fault)));
    let cases = cases.map(async |(n, fault)| {
        let name = (n, fault);
        let ways = join_all(ports.iter().map(|port| Proxy::start(*port))).await;
        let client = Client::connect(&url(ways.iter().map(Proxy::port))).await.expect("all nodes accept");
        let kept = Kept::new(&client, name).await;
        let theirs = within(SOON, mutex(&direct, name).lock()).await.expect("free");
        let waiting = tokio::spawn({
            let mutex = mutex(&client, name);
            async move { mutex.lock().await?.release().await }
        });
        eventually(SOON, || async {
            mutex(&direct, name).inspect().await.is_ok_and(|seen| seen.waiters.len() == 1)
        })
        .await;
        fault.begin(&ways[n]);
        theirs.release().await.expect("the others are not affected");
        let waited = within(SOON, waiting).await.expect("no panic");
        waited.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        works(&client, ("more", name)).await;
        if fault.is_overcome() {
            until(CONNECTING, name, &client, all_connected).await;
        } else {
            if fault != InUse::Late {
                until(CONNECTING, name, &client, |client| reports(client, n)).await;
            }
            assert!(is_found(&client, &format!("127.0.0.1:{}", ways[n].port())).await, "{name:?}");
        }
        kept.outlasts_its_ttl().await;
        // One client of three still has the fault when it is shut down.
        if n != 0 {
            fault.end(&ways[n]);
            until(CONNECTING, name, &client, all_connected).await;
            works(&client, ("afterwards", name)).await;
        }
        let begun = Instant::now();
        client.shutdown().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
        assert!(begun.elapsed() < SECOND * 2, "{name:?}: {:?}", begun.elapsed());
        fault.end(&ways[n]);
        ways
    });
    // What swallowed packets is there until the end, to deliver them.
    let ways: Vec<_> = stream::iter(cases).buffer_unordered(AT_A_TIME).collect().await;
    // What a client leaves on a node that it could not reach until its end expires.
    left_empty(&mut nodes, |key| key.contains("(0, ")).await;
    drop(ways);
}

/// At connect and when the client has to connect again; with the fault at all nodes at once, so that none of them can
/// do without its other address.
#[test]
fn each_address_of_the_nodes_names_in_turn_has_a_fault() {
    let test = "each_address_of_the_nodes_names_in_turn_has_a_fault";
    // The n-th fault has addresses of its own.
    let hosts = (0..5).map(|n| {
        format!(
            "first{n}a.test=127.0.1.{n}1,127.0.0.1 first{n}b.test=127.0.1.{n}2,127.0.0.1 first{n}c.test=127.0.1.{n}3,127.0.0.1 \
             last{n}a.test=127.0.0.1,127.0.1.{n}1 last{n}b.test=127.0.0.1,127.0.1.{n}2 last{n}c.test=127.0.0.1,127.0.1.{n}3"
        )
    });
    if !is_run_with_hosts(test, &hosts.collect::<Vec<_>>().join(" ")) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let Some(nodes) = Nodes::start_or_skip(test, 3) else { return };
        let ports: Vec<_> = nodes.0.iter().map(RedisServer::port).collect();
        // One after another, because each kills the connections of all.
        for n in 0..5_u8 {
            let mut faulty = Vec::new();
            for (port, last) in ports.iter().zip(1..) {
                let address = SocketAddr::from(([127, 0, 1, n * 10 + last], *port));
                faulty.push(FaultyAddress::new(address, faults(*port)[usize::from(n)]).await);
            }
            for place in ["first", "last"] {
                let name = (place, faults(0)[usize::from(n)]);
                let hosts = ports.iter().zip(["a", "b", "c"]);
                let url = url_of_hosts(hosts.map(|(port, node)| format!("{place}{n}{node}.test:{port}")));
                let begun = Instant::now();
                let client = Client::connect(&url).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
                assert!(begun.elapsed() < SECOND * 3, "{name:?}: {:?}", begun.elapsed());
                until(CONNECTING, name, &client, all_connected).await;
                let kept = within(SOON, mutex(&client, ("kept", name)).lock()).await.expect("free");
                for server in &nodes.0 {
                    server.raw().send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                }
                works(&client, name).await;
                kept.release().await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
                client.shutdown().await.expect("nothing is left");
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_a_node_that_was_never_connected_are_reported() {
    let _turn = TURN.acquire().await;
    let Some(nodes) = Nodes::start_or_skip("a node that was never connected", 3) else { return };
    let mut addresses: Vec<_> = nodes.0.iter().map(|server| loopback(1, server.port())).collect();
    let address = loopback(130, nodes.0[2].port());
    let server = std::mem::replace(&mut addresses[2], address);
    let client = Client::connect(&url_of_hosts(addresses)).await.expect("two are enough");
    let mut changes = client.state_changes();
    let mut until_it_is = async |what: &dyn Fn(&NodeState) -> bool| {
        within(CONNECTING, async { while !what(&changes.next().await.expect("a change").nodes[2]) {} }).await;
    };
    let is_refused = |node: &NodeState| {
        node.reason.as_ref().is_some_and(|reason| reason.starts_with("Connection refused"))
    };
    let drops = FaultyAddress::new(address, Fault::Drops).await;
    until_it_is(&|node| !is_refused(node) && !node.status.is_connected()).await;
    drop(drops);
    until_it_is(&is_refused).await;
    let _passes_on = FaultyAddress::new(address, Fault::Late(Duration::ZERO, server)).await;
    until_it_is(&|node| node.status.is_connected()).await;
    client.shutdown().await.expect("nothing is left");
    assert!(client.state().nodes.iter().all(|node| node.status == Status::Closed), "{:?}", client.state());
}

/// What makes a server decline everything for now, and what ends it.
struct Refusal {
    name: &'static str,
    begin: &'static [&'static [&'static str]],
    end: &'static [&'static str],
}

const REFUSALS: [Refusal; 4] = [
    Refusal {
        name: "NOREPLICAS",
        begin: &[&["CONFIG", "SET", "min-replicas-to-write", "1"]],
        end: &["CONFIG", "SET", "min-replicas-to-write", "0"],
    },
    Refusal {
        name: "OOM",
        begin: &[&["CONFIG", "SET", "maxmemory", "1"]],
        end: &["CONFIG", "SET", "maxmemory", "0"],
    },
    Refusal {
        // A snapshot has failed: see `fail_snapshots`.
        name: "MISCONF",
        begin: &[&["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]],
        end: &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"],
    },
    Refusal {
        name: "max number of clients",
        begin: &[
            &["CONFIG", "SET", "maxclients", "1"],
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
            &["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"],
        ],
        end: &["CONFIG", "SET", "maxclients", "1000"],
    },
];

/// A server that writes snapshots, and does not mind yet if they fail.
fn with_snapshots() -> Setup {
    let options = ["--save", "3600", "1000000", "--stop-writes-on-bgsave-error", "no"];
    Setup { options: options.map(str::to_owned).to_vec(), ..Setup::default() }
}

/// From now on, the last snapshot of this server has failed.
async fn fail_snapshots(server: &RedisServer, raw: &mut Raw) {
    // A file cannot replace it.
    std::fs::create_dir_all(server.dir().join("dump.rdb/occupied")).expect("the directory is writable");
    raw.send(&["BGSAVE"]);
    let mut has_failed = || {
        let info = raw.send(&["INFO", "persistence"]).text().expect("some text");
        info.contains("rdb_last_bgsave_status:err")
    };
    eventually(CONNECTING, || std::future::ready(has_failed())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_nodes_decline_for_three_seconds() {
    let _turn = TURN.acquire().await;
    let cases = REFUSALS.iter().map(async |refusal| {
        let Some(mut nodes) = Nodes::start_with_or_skip(refusal.name, vec![with_snapshots(); 3]) else {
            return;
        };
        let mut raws: Vec<_> = nodes.0.iter().map(RedisServer::raw).collect();
        for (server, raw) in nodes.0.iter().zip(&mut raws) {
            fail_snapshots(server, raw).await;
        }
        for declining in [2, 3] {
            nothing_fails_while(refusal, &nodes, &mut raws[..declining]).await;
        }
        left_empty(&mut nodes, |_| false).await;
    });
    join_all(cases).await;
}

async fn nothing_fails_while(refusal: &Refusal, nodes: &Nodes, declining: &mut [Raw]) {
    let what = (refusal.name, declining.len());
    let well = |outcome: Result<(), Error>| outcome.unwrap_or_else(|error| panic!("{what:?}: {error}"));
    let client = nodes.connect().await;
    let lazy = Client::connect_lazy(&nodes.url()).expect("valid");
    let mutex = |client: &Client, name: &str| {
        client.mutex_with(name, one_place_each().ttl(SECOND * 6)).expect("valid")
    };
    let held = within(SOON, mutex(&client, "held").lock()).await.expect("free");
    let released = within(SOON, mutex(&client, "released").lock()).await.expect("free");
    let waiter = |client: &Client, name| {
        let mutex = mutex(client, name);
        tokio::spawn(async move { mutex.lock().await?.release().await })
    };
    let mut waiters: Vec<_> =
        (0..20).map(|n| waiter(if n % 2 == 0 { &client } else { &lazy }, "released")).collect();
    sleep(Duration::from_millis(100)).await;
    for raw in &mut *declining {
        for command in refusal.begin {
            raw.send(command);
        }
    }
    let releasing = tokio::spawn(released.release());
    waiters.push(waiter(&client, "more"));
    sleep(SECOND * 3).await;
    assert!(held.lost().now_or_never().is_none(), "{what:?}");
    for raw in declining {
        assert_eq!(raw.send(refusal.end).text().as_deref(), Some("OK"), "{what:?}");
    }
    well(within(SECOND * 2, releasing).await.expect("no panic"));
    for waiter in waiters {
        well(within(CONNECTING, waiter).await.expect("no panic"));
    }
    assert!(held.lost().now_or_never().is_none(), "{what:?}");
    well(held.release().await);
    well(client.shutdown().await);
    well(lazy.shutdown().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_gone_leave_no_connection_at_any_node() {
    let _turn = TURN.acquire().await;
    let Some(nodes) = Nodes::start_or_skip("connections of clients that are gone", 3) else { return };
    let mut raws: Vec<_> = nodes.0.iter().map(RedisServer::raw).collect();
    let mut open = || {
        let lists = raws.iter_mut().map(|raw| raw.send(&["CLIENT", "LIST"]).text().expect("a list"));
        lists
            .map(|list| list.lines().filter(|line| line.contains("name=leasehold-")).count())
            .collect::<Vec<_>>()
    };
    for is_lazy in [false, true] {
        for is_shut_down in [false, true] {
            for hangs in [false, true] {
                let client = if is_lazy {
                    Client::connect_lazy(&nodes.url())
                } else {
                    Client::connect(&nodes.url()).await
                };
                let client = client.expect("valid");
                let guard = within(SOON, mutex(&client, "a").lock()).await.expect("free");
                until(CONNECTING, "all are used", &client, all_connected).await;
                let waiting = tokio::spawn({
                    let mutex = mutex(&client, "a");
                    async move { mutex.lock().await.map(drop) }
                });
                eventually(SOON, || std::future::ready(open().iter().all(|open| *open >= 2))).await;
                if hangs {
                    nodes.0[0].pause();
                }
                guard.release().await.expect("confirmed by two");
                within(SOON, waiting).await.expect("no panic").expect("granted by two");
                if is_shut_down {
                    client.shutdown().await.expect("confirmed by two");
                }
                drop(client);
                nodes.0[0].resume();
                let what = (is_lazy, is_shut_down, hangs);
                let end = Instant::now() + SOON;
                while open().iter().any(|open| *open > 0) {
                    assert!(Instant::now() < end, "lazy, shut down, hangs: {what:?}: {:?} are left", open());
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
    for server in &nodes.0 {
        assert_eq!(server.raw().send(&["PUBSUB", "CHANNELS"]), leasehold_support::Reply::Array(Vec::new()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_that_has_reached_no_node_is_shut_down_at_once() {
    let _turn = TURN.acquire().await;
    let Some(server) = RedisServer::start_or_skip("lazy clients") else { return };
    let cases =
        faults(server.port()).into_iter().take(4).zip((140..).step_by(3)).map(async |(fault, last)| {
            let mut nodes = Vec::new();
            for n in 0..3 {
                nodes.push(FaultyAddress::new(loopback(last + n, server.port()), fault).await);
            }
            let url = url_of_hosts(nodes.iter().map(FaultyAddress::address));
            for after in
                ["nothing", "a failed try_lock", "a lock_timeout that was dropped", "a lock that was dropped"]
            {
                let client = Client::connect_lazy(&url).expect("valid");
                let mutex = mutex(&client, "a");
                match after {
                    "a failed try_lock" => {
                        drop(mutex.try_lock().await.map(drop).expect_err("there is no node"))
                    }
                    "a lock_timeout that was dropped" => {
                        assert!(
                            timeout(SECOND / 2, mutex.lock_timeout(CONNECTING)).await.is_err(),
                            "it waits"
                        );
                    }
                    "a lock that was dropped" => {
                        assert!(timeout(SECOND / 10, mutex.lock()).await.is_err(), "it waits");
                    }
                    _ => {}
                }
                let begun = Instant::now();
                let outcome = client.shutdown().await;
                outcome.unwrap_or_else(|error| panic!("{fault:?}, after {after}: {error}"));
                assert!(begun.elapsed() < SECOND, "{fault:?}, after {after}: {:?}", begun.elapsed());
            }
        });
    join_all(cases).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_fail_at_once_while_a_majority_is_known_to_be_unreachable() {
    let _turn = TURN.acquire().await;
    let Some(mut nodes) = Nodes::start_or_skip("fail fast", 3) else { return };
    for is_lazy in [false, true] {
        let builder = Client::builder(nodes.url()).fail_fast(true);
        let client = if is_lazy { builder.connect_lazy() } else { builder.connect().await };
        let client = client.expect("valid");
        works(&client, is_lazy).await;
        until(CONNECTING, "all are used", &client, all_connected).await;
        // A minority is not missed.
        nodes.0[0].kill();
        until(SOON, "one is killed", &client, |client| reports(client, 0)).await;
        works(&client, is_lazy).await;
        let held = within(SOON, mutex(&client, "held").lock()).await.expect("granted by two");
        let waiting = tokio::spawn({
            let mutex = mutex(&client, "held");
            async move { mutex.lock().await.map(drop) }
        });
        eventually(SOON, || async {
            mutex(&client, "held").inspect().await.is_ok_and(|seen| seen.waiters.len() == 1)
        })
        .await;
        nodes.0[1].kill();
        let failed = within(SOON, waiting).await.expect("no panic").expect_err("one node is left");
        until(SOON, "two are killed", &client, |client| !client.state().status.is_connected()).await;
        let begun = Instant::now();
        let also = mutex(&client, "a").lock().await.map(drop).expect_err("one node is left");
        assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
        for error in [failed, also] {
            assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
            let ports = [0, 1].map(|n| nodes.0[n].port().to_string());
            assert!(ports.iter().all(|port| error.to_string().contains(port)), "{error}");
        }
        nodes.0[0].restart();
        nodes.0[1].restart();
        eventually(SOON, || async {
            mutex(&client, "a").try_lock().await.is_ok_and(|guard| guard.is_some())
        })
        .await;
        drop(held);
        client.shutdown().await.expect("nothing is left");
    }
}
