//! Parts of a Redis store that hang, swallow packets, or decline for a few seconds.
#![cfg(feature = "_redis")]

#[path = "support/lines.rs"]
mod lines;
mod support;

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures::FutureExt;
use leasehold::backend::{Severity, Status};
use leasehold::{Client, DistMutex, Error, Guard, MutexOptions};
use lines::Lines;
use support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use support::{Proxy, Raw, RedisServer, Reply, Setup, eventually, within};
use tokio::task::{JoinSet, block_in_place};
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

/// Ends what a store declines, and gives the store back.
type End<T> = Box<dyn FnOnce() -> T + Send>;

/// A store whose clients are declined for three seconds, from when `begin` has returned (which ends any wait of its own before that): nothing
/// fails, also of a client that has not used the store before.
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
    let deadline = Instant::now() + SECOND * 10;
    while !raw.send(&["INFO", "persistence"]).text().is_some_and(|info| info.contains("bgsave_status:err")) {
        assert!(Instant::now() < deadline, "it was saved");
        std::thread::sleep(Duration::from_millis(10));
    }
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
    let ping = || {
        let mut raw = Raw::connect(port).ok()?;
        matches!(raw.try_send(&["PING"]), Ok(Reply::Error(_))).then_some(raw)
    };
    let mut raw = loop {
        assert!(!restarted.is_finished(), "it has started at once");
        match ping() {
            Some(raw) => break raw,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
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

const REFUSALS: [Refusal; 9] = [
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
            let url = server.url();
            nothing_fails(what, &url, server, begin).await;
        });
    }
    while let Some(row) = rows.join_next().await {
        row.expect("no panic");
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
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        sleep(SECOND * 5).await;
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
            sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(server.raw().send(&["PUBSUB", "CHANNELS"]), Reply::Array(Vec::new()));
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
