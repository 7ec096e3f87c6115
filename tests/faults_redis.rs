//! Parts of a Redis store that hang, swallow packets, or decline for a few seconds.
#![cfg(feature = "_redis")]

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{join_all, pending};
use leasehold::{Client, DistMutex, Error, Guard, MutexOptions, Severity, Status};
use leasehold_support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use leasehold_support::lines::Lines;
use leasehold_support::topology::wait_until;
use leasehold_support::{Cluster, Proxy, Raw, RedisServer, Reply, Setup, eventually, within};
use tokio::io::{AsyncReadExt, copy, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet, block_in_place};
use tokio::time::sleep;
use tracing::Level;

const SECOND: Duration = Duration::from_secs(1);

/// What operators read, of all tests here: each server has an address of its own.
static LINES: LazyLock<Lines> = LazyLock::new(|| {
    Lines::collect(|metadata| *metadata.level() <= Level::INFO && metadata.target().starts_with("leasehold"))
});

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

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

/// Passes everything on to a server. Of what the server sends on the next connections, only so many bytes.
struct Relay {
    port: u16,
    next: Arc<Mutex<Vec<u64>>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    async fn start(server_port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        let next = Arc::<Mutex<Vec<u64>>>::default();
        let limits = Arc::clone(&next);
        let accepting = tokio::spawn(async move {
            // Aborted with this task.
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let limit = limits.lock().expect("no panic").pop();
                connections.spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", server_port)).await?;
                    let Some(limit) = limit else {
                        return copy_bidirectional(&mut client, &mut server).await;
                    };
                    let (mut from_client, mut to_client) = client.split();
                    let (from_server, mut to_server) = server.split();
                    let mut part = from_server.take(limit);
                    let answers = async {
                        copy(&mut part, &mut to_client).await?;
                        pending::<std::io::Result<u64>>().await
                    };
                    tokio::try_join!(copy(&mut from_client, &mut to_server), answers)
                });
            }
        });
        Self { port, next, accepting }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Both of its connections are closed, and the new ones are half open from somewhere in an answer on: of the handshake,
/// of what prepares a connection, of the subscription, or of the first calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connections_that_stop_in_the_middle_of_an_answer_are_replaced() {
    let mut rows = JoinSet::new();
    for bytes in [0, 1, 100, 200, 300, 400, 600] {
        rows.spawn(async move {
            let Some(server) = RedisServer::start_or_skip("answers that stop in the middle") else { return };
            let relay = Relay::start(server.port()).await;
            let client = Client::connect(&leasehold_support::url_of(relay.port)).await.expect("it answers");
            let direct = Client::connect(&server.url()).await.expect("it answers");
            let options = MutexOptions::new().ttl(SECOND * 30);
            let mutex = |client: &Client, name| client.mutex_with(name, options.clone()).expect("valid");
            let failed = |error: Error| -> Guard { panic!("{bytes}: {error}") };
            let guard = mutex(&client, "a").lock().await.unwrap_or_else(failed);
            let passed_on = mutex(&direct, "b").lock().await.unwrap_or_else(failed);
            let waiter = mutex(&client, "b");
            let waiter = tokio::spawn(async move { waiter.lock().await });
            let inspected = mutex(&direct, "b");
            let waits = async || inspected.inspect().await.is_ok_and(|state| !state.waiters.is_empty());
            eventually(SECOND * 10, waits).await;
            *relay.next.lock().expect("no panic") = vec![bytes; 2];
            for kind in ["normal", "pubsub"] {
                server.raw().send(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
            let begun = Instant::now();
            let other = mutex(&client, "c");
            let (released, taken, _) = tokio::join!(guard.release(), other.try_lock(), passed_on.release());
            released.unwrap_or_else(|error| panic!("{bytes}: {error}"));
            let taken = taken.unwrap_or_else(|error| panic!("{bytes}: {error}")).expect("it is free");
            let took = begun.elapsed();
            let granted = within(SECOND * 10, waiter).await.expect("no panic").unwrap_or_else(failed);
            eprintln!("{bytes} bytes: called after {took:?}, passed on after {:?}", begun.elapsed());
            assert!(took < SECOND * 4, "{bytes}: {took:?}");
            eventually(SECOND * 10, || async { client.state().status.is_connected() }).await;
            for guard in [taken, granted] {
                guard.release().await.unwrap_or_else(|error| panic!("{bytes}: {error}"));
            }
            client.shutdown().await.expect("it works");
        });
    }
    while let Some(row) = rows.join_next().await {
        row.expect("no panic");
    }
}

/// Ends what a store declines, and gives the store back.
type End<T> = Box<dyn FnOnce() -> T + Send>;

/// A store declines its clients for three seconds, from when `begin` has returned until what that has returned is
/// called: nothing fails, and a release is done within a second of the end.
async fn nothing_fails<T: Send + 'static>(
    what: &str,
    url: &str,
    store: T,
    begin: impl FnOnce(T) -> End<T> + Send,
) -> T {
    let failed = |error: Error| -> Guard { panic!("{what}: {error}") };
    let client = Client::connect(url).await.expect("the server answers");
    let options = MutexOptions::new().ttl(SECOND * 6);
    // In a cluster, they are in one slot.
    let mutex = |client: &Client, name: &str| {
        client.mutex_with(&format!("{{tag}}{name}"), options.clone()).expect("valid")
    };
    let held = mutex(&client, "held").lock().await.unwrap_or_else(failed);
    let released = mutex(&client, "released").lock().await.unwrap_or_else(failed);
    let lazy = Client::connect_lazy(url).expect("it works");
    let lock = |mutex: DistMutex| tokio::spawn(async move { mutex.lock().await?.release().await });
    let waiter = |n| lock(mutex(if n % 2 == 0 { &client } else { &lazy }, "released"));
    let mut tasks: Vec<_> = (0..10).map(waiter).collect();
    eventually(SECOND * 10, || async {
        let state = mutex(&client, "released").inspect().await;
        state.is_ok_and(|state| !state.waiters.is_empty())
    })
    .await;
    let end = block_in_place(|| begin(store));
    let begun = Instant::now();
    let releasing = tokio::spawn(async move { (released.release().await, Instant::now()) });
    tasks.extend((10..20).map(waiter));
    let more = lock(mutex(&client, "more"));
    sleep(SECOND * 3 - begun.elapsed()).await;
    assert!(!more.is_finished(), "{what}: it was not declined");
    assert!(held.lost().now_or_never().is_none(), "{what}");
    let store = block_in_place(end);
    let recovered = Instant::now();
    let (outcome, done) = within(SECOND * 10, releasing).await.expect("no panic");
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
    let late = done.saturating_duration_since(recovered);
    eprintln!("{what}: released {late:?} after the server has recovered");
    assert!(late < SECOND, "{what}: {late:?}");
    for task in tasks.into_iter().chain([more]) {
        let locked = within(SECOND * 10, task).await.expect("no panic");
        locked.unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert!(held.lost().now_or_never().is_none(), "{what}");
    held.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    client.shutdown().await.expect("it works");
    lazy.shutdown().await.expect("it works");
    store
}

/// Declines from the first commands until the last one, on a connection that is opened before.
fn between(server: RedisServer, begin: &[&str], end: &'static str) -> End<RedisServer> {
    let mut raw = server.raw();
    for command in begin {
        let answer = raw.send(&words(command));
        assert!(!matches!(answer, Reply::Error(_)), "{command}: {answer:?}");
    }
    Box::new(move || {
        assert_eq!(raw.send(&words(end)), Reply::ok());
        server
    })
}

/// A snapshot cannot take the place of a directory.
fn cannot_save(server: RedisServer) -> End<RedisServer> {
    std::fs::create_dir(server.dir().join("taken")).expect("the directory is writable");
    let mut raw = server.raw();
    raw.send(&["BGSAVE"]);
    wait_until("it could not be saved", || {
        let info = raw.send(&["INFO", "persistence"]).text();
        info.is_some_and(|info| info.contains("bgsave_status:err"))
    });
    between(
        server,
        &["CONFIG SET stop-writes-on-bgsave-error yes"],
        "CONFIG SET stop-writes-on-bgsave-error no",
    )
}

/// It is started again, and reads its data slowly.
fn starts_slowly(mut server: RedisServer) -> End<RedisServer> {
    let fill = "for n = 1, 8000 do redis.call('SET', 'filler:' .. n, string.rep('x', 100)) end";
    server.raw().send(&["EVAL", fill, "0"]);
    server.shutdown();
    let port = server.port();
    let restarted = std::thread::spawn(move || {
        server.restart();
        server
    });
    let mut loading = None;
    wait_until("it reads its data", || {
        assert!(!restarted.is_finished(), "it has started at once");
        loading = Raw::connect(port).ok();
        let pong = loading.as_mut().map(|raw| raw.try_send(&["PING"]));
        matches!(pong, Some(Ok(Reply::Error(_))))
    });
    let mut raw = loading.expect("it is connected");
    Box::new(move || {
        assert_eq!(raw.send(&["CONFIG", "SET", "key-load-delay", "0"]), Reply::ok());
        restarted.join().expect("it starts")
    })
}

/// A script of somebody else runs.
fn runs_a_script(server: RedisServer) -> End<RedisServer> {
    let mut raw = server.raw();
    raw.write(&["EVAL", "while true do end", "0"]).expect("it is sent");
    between(server, &[], "SCRIPT KILL")
}

/// How the answers are, options of the server, and how it comes to that.
type Refusal = (&'static str, &'static str, fn(RedisServer) -> End<RedisServer>);

const REFUSALS: [Refusal; 10] = [
    ("NOREPLICAS", "", |server| {
        between(server, &["CONFIG SET min-replicas-to-write 1"], "CONFIG SET min-replicas-to-write 0")
    }),
    ("OOM", "", |server| between(server, &["CONFIG SET maxmemory 1"], "CONFIG SET maxmemory 0")),
    ("READONLY", "", |server| between(server, &["REPLICAOF 127.0.0.1 1"], "REPLICAOF NO ONE")),
    ("MASTERDOWN", "--replica-serve-stale-data no", |server| {
        between(server, &["REPLICAOF 127.0.0.1 1"], "REPLICAOF NO ONE")
    }),
    ("max number of clients", "", |server| {
        let begin = ["CONFIG SET maxclients 1", "CLIENT KILL TYPE normal SKIPME yes"];
        between(server, &begin, "CONFIG SET maxclients 1000")
    }),
    ("MISCONF", "--save 3600 1000000 --dbfilename taken --stop-writes-on-bgsave-error no", cannot_save),
    (
        "LOADING",
        "--save 3600 1000000 --rdbcompression no --key-load-delay 1000 --loading-process-events-interval-bytes 1024",
        starts_slowly,
    ),
    ("BUSY", "--lua-time-limit 20", runs_a_script),
    // While the users are loaded again.
    ("WRONGPASS", "--user app on >secret ~* &* +@all", |server| {
        let begin = ["ACL SETUSER app resetpass >other", "CLIENT KILL TYPE normal SKIPME yes"];
        between(server, &begin, "ACL SETUSER app >secret")
    }),
    // Nothing is answered.
    ("CLIENT PAUSE", "", |server| between(server, &["CLIENT PAUSE 3000"], "CLIENT UNPAUSE")),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_the_server_declines_for_three_seconds() {
    let mut rows = JoinSet::new();
    for (what, options, begin) in REFUSALS {
        rows.spawn(async move {
            let Some(server) = RedisServer::start_with_or_skip(what, with_options(&words(options))) else {
                return;
            };
            let url = match what {
                "WRONGPASS" => server.address().replace("//", "//app:secret@"),
                _ => server.url(),
            };
            nothing_fails(what, &url, server, begin).await;
        });
    }
    while let Some(row) = rows.join_next().await {
        row.expect("no panic");
    }
}

/// The same of a cluster, one after another.
type ClusterRefusal = (&'static str, fn(Cluster) -> End<Cluster>);

const CLUSTER_REFUSALS: [ClusterRefusal; 4] = [
    ("NOREPLICAS", |cluster| {
        between_everywhere(
            cluster,
            &["CONFIG SET min-replicas-to-write 9"],
            "CONFIG SET min-replicas-to-write 0",
        )
    }),
    ("max number of clients", |cluster| {
        let begin = ["CONFIG SET maxclients 1", "CLIENT KILL TYPE normal SKIPME yes"];
        between_everywhere(cluster, &begin, "CONFIG SET maxclients 1000")
    }),
    // A part of the keys of a script has been moved.
    ("TRYAGAIN", |cluster| {
        let slot = cluster.slot("{tag}");
        let from = cluster.serving(0, slot);
        let to = (from + 1) % 3;
        cluster.begin_to_move(slot, from, to);
        Box::new(move || {
            cluster.move_keys(slot, from, to);
            cluster.finish_to_move(slot, from, to);
            cluster
        })
    }),
    // Another primary than that of the locks does not answer, and the cluster shall serve all slots or none.
    ("CLUSTERDOWN", |cluster| {
        let serves = cluster.serving(0, cluster.slot("{tag}"));
        let hangs = (serves + 1) % 3;
        for node in &cluster.nodes {
            node.raw().send(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
        }
        cluster.nodes[hangs].pause();
        let is = move |cluster: &Cluster, state: &str| {
            let info = cluster.nodes[serves].raw().send(&["CLUSTER", "INFO"]).text();
            info.is_some_and(|info| info.contains(state))
        };
        wait_until("the node is missed", || is(&cluster, "cluster_state:fail"));
        Box::new(move || {
            cluster.nodes[hangs].resume();
            wait_until("the node is back", || is(&cluster, "cluster_state:ok"));
            cluster
        })
    }),
];

/// Each primary declines.
fn between_everywhere(cluster: Cluster, begin: &[&str], end: &'static str) -> End<Cluster> {
    let begun = |node: RedisServer| between(node, begin, end);
    let mut nodes = cluster.nodes.into_iter();
    let primaries: Vec<_> = nodes.by_ref().take(3).map(begun).collect();
    let replicas: Vec<_> = nodes.collect();
    Box::new(move || Cluster { nodes: primaries.into_iter().map(|end| end()).chain(replicas).collect() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_a_cluster_declines_for_three_seconds() {
    let Some(mut cluster) = Cluster::start_or_skip("a cluster that declines") else { return };
    let url = cluster.url();
    for (what, begin) in CLUSTER_REFUSALS {
        cluster = nothing_fails(&format!("cluster, {what}"), &url, cluster, begin).await;
    }
}

/// The same of sentinels with one primary.
type SentinelRefusal = (&'static str, fn([RedisServer; 2]) -> End<[RedisServer; 2]>);

const SENTINEL_REFUSALS: [SentinelRefusal; 2] = [
    ("NOREPLICAS", |[primary, sentinel]| {
        let option = "CONFIG SET min-replicas-to-write 1";
        let end = between(primary, &[option], "CONFIG SET min-replicas-to-write 0");
        Box::new(move || [end(), sentinel])
    }),
    ("no primary is known", |[primary, sentinel]| {
        let mut raw = sentinel.raw();
        assert_eq!(raw.send(&["SENTINEL", "REMOVE", "main"]), Reply::ok());
        primary.raw().send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        Box::new(move || {
            let monitor = format!("SENTINEL MONITOR main 127.0.0.1 {} 1", primary.port());
            assert_eq!(raw.send(&words(&monitor)), Reply::ok());
            [primary, sentinel]
        })
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_fails_while_sentinels_or_their_primary_decline_for_three_seconds() {
    let Some(primary) = RedisServer::start_or_skip("sentinels that decline") else { return };
    let Some(sentinel) = sentinel_of(&primary) else { return };
    let url = sentinel_url(([127, 0, 0, 1], sentinel.port()).into());
    let mut servers = [primary, sentinel];
    for (what, begin) in SENTINEL_REFUSALS {
        servers = nothing_fails(&format!("sentinels, {what}"), &url, servers, begin).await;
    }
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
    sleep(SECOND).await;
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
    let mut times = Vec::new();
    while Instant::now() < end {
        sleep(SECOND * 5).await;
        let begun = Instant::now();
        let guard = mutex.try_lock().await.expect("it is connected").expect("it is free");
        times.push(begun.elapsed());
        guard.release().await.expect("it works");
    }
    times.sort_unstable_by_key(|time| Reverse(*time));
    eprintln!(
        "the longest of {} `try_lock` of an idle client: {:?}",
        times.len(),
        &times[..3.min(times.len())]
    );
    assert!(times[0] < limit, "{:?}", times[0]);
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
        // The user of `docs/stores/acl.md` may not give its connections a name.
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
            sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(server.raw().send(&["PUBSUB", "CHANNELS"]), Reply::Array(Vec::new()));
}

/// A server that answers as one sentinel does, with what the test says.
fn sentinel_of(primary: &RedisServer) -> Option<RedisServer> {
    sentinel_in_epoch(primary, 0)
}

fn sentinel_in_epoch(primary: &RedisServer, epoch: u32) -> Option<RedisServer> {
    let rules =
        format!("sentinel monitor main 127.0.0.1 {} 1\nsentinel config-epoch main {epoch}", primary.port());
    RedisServer::start_with_or_skip("sentinels", Setup { sentinel: Some(rules), ..Setup::default() })
}

fn sentinel_url(address: SocketAddr) -> String {
    format!("redis-sentinel://{}{address}/main", leasehold_support::acl::login())
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

/// The primary is removed and monitored again, which begins with the epoch 0: that of before, or a smaller one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_that_are_set_up_again_are_followed() {
    let rows = [0, 7].into_iter().flat_map(|epoch| ["is killed", "hangs"].map(|how| (how, epoch)));
    join_all(rows.map(|(how, epoch)| async move {
        let what = format!("the old primary {how}, epoch {epoch}");
        let Some(mut primary) = RedisServer::start_or_skip("sentinels that are set up again") else { return };
        let Some(next) = RedisServer::start_or_skip("sentinels that are set up again") else { return };
        let Some(sentinel) = sentinel_in_epoch(&primary, epoch) else { return };
        let url = sentinel_url(([127, 0, 0, 1], sentinel.port()).into());
        let client = Client::connect(&url).await.expect("it works");
        let lock = async |name| client.mutex(name)?.lock().await;
        lock("a").await.expect("it works").release().await.expect("it works");
        let mut raw = Raw::connect(sentinel.port()).expect("it works");
        raw.send(&["SENTINEL", "REMOVE", "main"]);
        raw.send(&words(&format!("SENTINEL MONITOR main 127.0.0.1 {} 1", next.port())));
        // It is reachable: whoever uses it must all use the same one.
        lock("a").await.expect("it works").release().await.expect("it works");
        match how {
            "hangs" => primary.pause(),
            _ => primary.kill(),
        }
        let begun = Instant::now();
        let guard = lock("b").await.unwrap_or_else(|error| panic!("{what}: {error}"));
        eprintln!("{what}: followed after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_millis(3500), "{what}: {:?}", begun.elapsed());
        assert!(next.raw().get("lock:b").is_some(), "{what}");
        // The old one is back.
        if primary.is_alive() {
            primary.resume();
        }
        guard.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        client.shutdown().await.unwrap_or_else(|error| panic!("{what}: {error}"));
    }))
    .await;
}
