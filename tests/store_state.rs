//! What a user sees of the store: its state, pings, and what is found when connecting.
#![cfg(feature = "_redis")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::{join, join_all};
use leasehold::backend::{Backend, FailFast};
use leasehold::redis::RedisBackend;
use leasehold::{Client, Error, Severity, Status, StoreState};
use leasehold_support::{
    AT_ONCE, Cluster, FakeServer, RedisServer, Setup, at_once, eventually, more_rules, within,
};
use tokio::sync::Barrier;

const SECOND: Duration = Duration::from_secs(1);

fn with_options(options: &[&str]) -> Setup {
    Setup { options: options.iter().map(|option| (*option).to_owned()).collect(), ..Setup::default() }
}

/// Whether this happens, for where no runtime waits.
fn is_within(limit: Duration, mut happens: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !happens() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The error of connecting to `url`, which is not accepted to take long.
async fn refused(url: &str) -> String {
    at_once(async || Client::connect(url).await).await.expect_err("it is refused").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_follows_the_server() {
    let Some(mut server) = RedisServer::start_or_skip("the state of the store") else { return };
    let client = Client::connect(&server.url()).await.expect("the server answers");
    let state = client.state();
    assert_eq!(state.status, Status::Connected);
    let address = format!("127.0.0.1:{}", server.port());
    assert_eq!(state.nodes.iter().map(|node| &*node.address).collect::<Vec<_>>(), [&*address]);
    assert!(client.ping(SECOND).await.expect("the server answers") < SECOND);

    let mut changes = client.state_changes();
    server.kill();
    let disconnected = within(SECOND * 5, changes.next()).await.expect("a change");
    assert!(matches!(disconnected.status, Status::Disconnected { .. }), "{disconnected:?}");
    let error = client.ping(Duration::from_millis(200)).await.expect_err("the server is gone");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");

    server.restart();
    within(SECOND * 5, async { while !changes.next().await.expect("a change").status.is_connected() {} })
        .await;
    client.ping(SECOND).await.expect("the server is back");
    client.shutdown().await.expect("nothing is left");
    assert_eq!(client.state().status, Status::Closed);
    let last = within(SECOND, changes.fold(None, |_, state| async move { Some(state.status) })).await;
    assert_eq!(last, Some(Status::Closed));
    assert!(matches!(client.ping(SECOND).await, Err(Error::Closed { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_silent_until_it_answers() {
    let Some(server) = RedisServer::start_or_skip("a silent server") else { return };
    let reply = Duration::from_millis(300);
    let builder = RedisBackend::builder(&server.url()).expect("a URL").reply_timeout(reply);
    let client = Client::with_backend(Arc::new(builder.connect().await.expect("the server answers")));
    let begun = Instant::now();
    server.pause();
    assert!(client.ping(SECOND * 2).await.is_err());
    let Status::Silent { since } = client.state().status else { panic!("{:?}", client.state()) };
    assert!(since >= begun && since.elapsed() >= reply);
    server.resume();
    eventually(SECOND * 5, || async {
        client.ping(SECOND).await.is_ok() && client.state().status.is_connected()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_start_before_its_server() -> Result<(), Error> {
    let Some(mut server) = RedisServer::start_or_skip("a lazy client") else { return Ok(()) };
    server.kill();
    let client = Client::connect_lazy(&server.url())?;
    assert!(matches!(client.mutex("a")?.try_lock().await, Err(Error::StoreUnavailable { .. })));
    eventually(SECOND, || async { !client.state().status.is_connected() }).await;
    server.restart();
    eventually(SECOND * 5, || async { client.state().status.is_connected() }).await;
    client.mutex("a")?.lock().await?.release().await?;
    // What is wrong with the URL is said at once.
    assert!(matches!(Client::connect_lazy("redis://"), Err(Error::InvalidArgument { .. })));
    client.shutdown().await
}

#[test]
fn a_lazy_client_needs_no_runtime_until_it_is_used() {
    let Some(server) = RedisServer::start_or_skip("a lazy client without a runtime") else { return };
    let client = Client::connect_lazy(&server.url()).expect("a URL");
    assert!(is_within(SECOND * 5, || client.state().status.is_connected()), "{:?}", client.state());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let guard = client.mutex("a").expect("a name").lock().await.expect("the server answers");
        guard.release().await.expect("it is held");
    });
}

/// Waits until the only server is disconnected for a reason that contains `words`.
async fn disconnected_because(client: &Client, words: &str) {
    eventually(SECOND * 5, || async {
        let state = client.state();
        let reason = state.nodes.first().and_then(|node| node.reason.clone()).unwrap_or_default();
        matches!(state.status, Status::Disconnected { .. }) && reason.contains(words)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_is_disconnected_from_the_beginning_and_says_why() -> Result<(), Error> {
    let Some(mut server) = RedisServer::start_or_skip("the first state of a lazy client") else {
        return Ok(());
    };
    server.kill();
    let begun = Instant::now();
    let client = Client::connect_lazy(&server.url())?;
    let Status::Disconnected { since } = client.state().status else { panic!("{:?}", client.state()) };
    assert!(since >= begun);
    disconnected_because(&client, "Connection refused").await;
    let node = client.state().nodes[0].to_string();
    let expected = format!("127.0.0.1:{} is disconnected (for ", server.port());
    assert!(node.starts_with(&expected) && node.contains(": Connection refused"), "{node}");

    // A request that waits is granted when the server is there.
    let mutex = client.mutex("a")?;
    let waiting = tokio::spawn(async move { mutex.lock().await?.release().await });
    server.restart();
    within(SECOND * 5, waiting).await.expect("no panic")?;
    eventually(SECOND * 5, || async { client.state().status.is_connected() }).await;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_that_has_never_reached_its_store_has_nothing_to_release() -> Result<(), Error> {
    let Some(mut server) = RedisServer::start_or_skip("the end of a lazy client") else { return Ok(()) };
    server.kill();
    let client = Client::connect_lazy(&server.url())?;
    let mutex = client.mutex("a")?;
    assert!(matches!(mutex.lock_timeout(AT_ONCE).await, Err(Error::StoreUnavailable { .. })));
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    disconnected_because(&client, "Connection refused").await;
    let begun = Instant::now();
    client.shutdown().await?;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
    assert!(matches!(within(SECOND, waiting).await.expect("no panic"), Err(Error::Closed { .. })));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_is_refused_what_connecting_refuses() -> Result<(), Error> {
    let node = Setup { cluster: true, ..Setup::default() };
    let Some(node) = RedisServer::start_with_or_skip("what a lazy client is refused", node) else {
        return Ok(());
    };
    for (url, words) in [
        (node.url(), "this server is a node of a cluster: use `redis-cluster://`"),
        (FakeServer::of_version_5().url(), "Redis 6.2 or later, or Valkey, is needed"),
        (FakeServer::of_version_6_0().url(), "Redis 6.2 or later, or Valkey, is needed"),
    ] {
        let client = Client::connect_lazy(&url)?;
        disconnected_because(&client, words).await;
        let mutex = client.mutex("a")?;
        let error = at_once(async || mutex.lock().await).await.expect_err("it is refused");
        assert!(
            matches!(error, Error::StoreRefused { .. }) && error.to_string().contains(words),
            "{error:?}"
        );
        let findings = client.check().await?;
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert!(finding.severity == Severity::Refused && finding.text.contains(words), "{finding:?}");
        client.shutdown().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_without_permissions_works_once_they_are_granted() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("rights of a lazy client") else { return Ok(()) };
    let mut raw = server.raw();
    let mut allow = |rules: &[&str]| {
        let words = [&["ACL", "SETUSER", "app"], rules].concat();
        assert_eq!(raw.send(&words).text().as_deref(), Some("OK"));
    };
    allow(&["on", ">p", "~*", "&*", "+@all", "-zadd"]);
    let url = format!("redis://app:p@127.0.0.1:{}", server.port());
    let client = Client::connect_lazy(&url)?;
    let mutex = client.mutex("a")?;
    let refused = async || mutex.lock().await.expect_err("it is refused").to_string();
    let text = refused().await;
    assert!(text.contains("this user lacks permission for required commands: ZADD"), "{text}");
    let findings = client.check().await?;
    assert_eq!(
        findings.iter().filter(|found| found.severity == Severity::Refused).count(),
        1,
        "{findings:?}"
    );
    allow(&["+zadd"]);
    mutex.lock().await?.release().await?;
    client.shutdown().await?;

    // The same for the channel, without which it could not wait.
    allow(&["resetchannels", "&other:*"]);
    let client = Client::connect_lazy(&url)?;
    let mutex = client.mutex("a")?;
    let text = mutex.lock().await.expect_err("it is refused").to_string();
    assert!(
        text.contains("needs permission to publish and subscribe to the channels `leasehold:*`"),
        "{text}"
    );
    let findings = client.check().await?;
    assert!(matches!(&findings[..], [found] if found.text.contains("`leasehold:*`")), "{findings:?}");
    allow(&["&leasehold:*"]);
    mutex.lock().await?.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_becomes_a_replica_is_disconnected_until_it_is_a_primary_again() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("a primary that becomes a replica") else { return Ok(()) };
    let builder = RedisBackend::builder(&server.url())?.reply_timeout(Duration::from_millis(300));
    let client = Client::with_backend(Arc::new(builder.connect().await?));
    let mutex = client.mutex("a")?;
    let guard = mutex.lock().await?;
    server.allow(&more_rules("+role"));
    assert_eq!(server.raw().send(&["REPLICAOF", "127.0.0.1", "1"]).text().as_deref(), Some("OK"));
    // The server keeps the connections; the first request finds it.
    let waiting = tokio::spawn({
        let mutex = client.mutex("b")?;
        async move { mutex.lock().await?.release().await }
    });
    disconnected_because(&client, "this server is a replica of 127.0.0.1:1").await;
    let findings = client.check().await?;
    assert!(
        matches!(&findings[..], [found] if found.severity == Severity::Refused && found.text.contains("is a replica of")),
        "{findings:?}"
    );
    assert_eq!(server.raw().send(&["REPLICAOF", "NO", "ONE"]).text().as_deref(), Some("OK"));
    within(SECOND * 5, waiting).await.expect("no panic")?;
    eventually(SECOND * 5, || async { client.state().status.is_connected() }).await;
    guard.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_of_a_cluster_has_a_state_of_its_own() -> Result<(), Error> {
    let Some(mut cluster) = Cluster::start_or_skip("the state of a cluster's nodes") else { return Ok(()) };
    // No call is needed for that.
    let client = Client::connect_lazy(&cluster.url())?;
    assert!(!client.state().status.is_connected());
    let connected = |state: StoreState| state.nodes.len() == 3 && state.status.is_connected();
    eventually(SECOND * 5, || async { connected(client.state()) }).await;
    let mut changes = client.state_changes();
    let killed = format!("127.0.0.1:{}", cluster.nodes[0].port());
    cluster.nodes[0].kill();
    let is_away = |status: Status| matches!(status, Status::Disconnected { .. });
    let away = within(SECOND * 5, async {
        loop {
            let state = changes.next().await.expect("a change");
            if is_away(state.status) {
                return state;
            }
        }
    })
    .await;
    assert_eq!(away.nodes.len(), 3, "{away:?}");
    for node in &away.nodes {
        assert_eq!(is_away(node.status), node.address == killed, "{away:?}");
        assert_eq!(node.status.is_connected(), node.address != killed, "{away:?}");
    }
    // Its replica takes over.
    eventually(SECOND * 20, || async { client.state().status.is_connected() }).await;
    assert!(client.state().nodes.iter().all(|node| node.address != killed), "{:?}", client.state());
    client.shutdown().await
}

#[tokio::test]
async fn the_changes_end_with_the_client_on_every_store() -> Result<(), Error> {
    let client = Client::memory();
    assert!(client.state().status.is_connected());
    assert_eq!(client.check().await?, []);
    client.ping(SECOND).await?;
    let changes = client.state_changes();
    client.shutdown().await?;
    let states: Vec<_> = within(SECOND, changes.collect::<Vec<_>>()).await;
    assert_eq!(states, [client.state()]);
    assert_eq!((states[0].status, &*states[0].nodes[0].address), (Status::Closed, "memory:"));
    assert!(matches!(client.check().await, Err(Error::Closed { .. })));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_client_of_a_cluster_finds_its_nodes() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("a lazy client of a cluster") else { return Ok(()) };
    let client = Client::connect_lazy(&cluster.url())?;
    for n in 0..10 {
        client.mutex(&n.to_string())?.lock().await?.release().await?;
    }
    eventually(SECOND * 5, || async { client.state().nodes.len() >= 3 }).await;
    client.shutdown().await
}

/// All ways to ask for it, over each client library that this build has.
async fn impatient(url: &str) -> Vec<Client> {
    let builder = || RedisBackend::builder(url).expect("a URL");
    let patient = builder();
    #[cfg(feature = "redis-rs")]
    let patient = patient.through_redis_rs();
    let patient = Arc::new(patient.connect().await.expect("the server answers"));
    let backends: [Arc<dyn Backend>; 2] = [
        Arc::new(builder().fail_fast(true).connect().await.expect("the server answers")),
        Arc::new(FailFast::new(patient)),
    ];
    let clients = backends.into_iter().map(Client::with_backend);
    let by_url = Client::builder(url).fail_fast(true).connect().await.expect("the server answers");
    clients.chain([by_url]).collect()
}

/// Waits for a lock that somebody else has, so that the request would be repeated every 10 s.
async fn fails_fast(client: Client, n: usize, killed: Arc<Barrier>, all_failed: Arc<Barrier>) {
    let waiting = tokio::spawn({
        let held = client.mutex(&format!("held {n}")).expect("a name");
        async move { held.lock().await.map(drop) }
    });
    killed.wait().await;
    let error = within(SECOND * 5, waiting).await.expect("no panic").expect_err("the server is gone");
    assert!(error.to_string().contains("connected"), "{n}: {error}");
    eventually(SECOND * 5, || async { !client.state().status.is_connected() }).await;
    let mutex = client.mutex("a").expect("a name");
    let failing = at_once(async || mutex.lock_timeout(SECOND * 30).await).await;
    let error = failing.expect_err("the server is gone");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{n}: {error:?}");
    assert!(error.to_string().contains("connected"), "{n}: {error}");
    all_failed.wait().await;
    eventually(SECOND * 5, || async { mutex.try_lock().await.is_ok_and(|guard| guard.is_some()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_at_once_while_the_store_is_known_to_be_unreachable() {
    let Some(mut server) = RedisServer::start_or_skip("fail fast") else { return };
    let clients = impatient(&server.url()).await;
    let many = clients.len();
    let mut other = server.raw();
    for n in 0..many {
        let set = ["SET", &format!("lock:held {n}"), "x", "PX", "600000"];
        assert_eq!(other.send(&set).text().as_deref(), Some("OK"));
    }
    let [killed, all_failed] = [(); 2].map(|()| Arc::new(Barrier::new(many + 1)));
    let fails = |(n, client)| fails_fast(client, n, Arc::clone(&killed), Arc::clone(&all_failed));
    let all = join_all(clients.into_iter().enumerate().map(fails));
    let change = async {
        let is_waiting =
            |n: usize| server.raw().keys("*").iter().any(|key| key.contains(&format!("{{lock:held {n}}}")));
        eventually(SECOND * 5, || async { (0..many).all(is_waiting) }).await;
        server.kill();
        killed.wait().await;
        all_failed.wait().await;
        server.restart();
    };
    join(all, change).await;
}

/// While a server of a cluster is away, only what is kept there fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_the_other_servers_of_a_cluster_do_not_fail_fast() {
    let Some(mut cluster) = Cluster::start_or_skip("fail fast in a cluster") else { return };
    let client = Client::builder(cluster.url()).fail_fast(true).connect().await.expect("it answers");
    let is_on_first = |name: &usize| cluster.serving(1, cluster.slot_at(1, &format!("{{lock:{name}}}"))) == 0;
    let (lost, kept): (Vec<_>, Vec<_>) = (0..20).partition(is_on_first);
    cluster.nodes[0].kill();
    eventually(SECOND * 5, || async { !client.state().status.is_connected() }).await;
    let lock = |name: usize| client.mutex(&name.to_string()).expect("a name");
    for name in kept {
        drop(within(SECOND * 2, lock(name).try_lock()).await.expect("its server answers").expect("free"));
    }
    let failing = at_once(async || lock(lost[0]).try_lock().await).await;
    // Unless its replica has taken over by now.
    if let Err(error) = failing {
        assert!(error.to_string().contains("not connected: "), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_cannot_carry_locks_are_refused() {
    let Some(primary) = RedisServer::start_or_skip("what is refused when connecting") else { return };
    let port = primary.port().to_string();
    let replica =
        RedisServer::start_with_or_skip("a replica", with_options(&["--replicaof", "127.0.0.1", &port]));
    let replica = replica.expect("a server");
    // Also by a user who may not ask where the primary is.
    let rights = ["ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-role", "-info"];
    assert_eq!(replica.raw().send(&rights).text().as_deref(), Some("OK"));
    let text = refused(&format!("redis://app:p@127.0.0.1:{}", replica.port())).await;
    assert!(text.contains("this server is a replica, which cannot grant locks"), "{text}");
    replica.allow(&more_rules("+role"));
    let text = refused(&replica.url()).await;
    assert!(text.contains(&format!("this server is a replica of 127.0.0.1:{port}, which cannot")), "{text}");
    assert!(text.contains("redis-sentinel://"), "{text}");

    let sentinel = Setup { sentinel: Some(String::new()), ..Setup::default() };
    let sentinel = RedisServer::start_with_or_skip("a sentinel", sentinel).expect("a server");
    let text = refused(&format!("redis://127.0.0.1:{}", sentinel.port())).await;
    assert!(text.contains("this server is a sentinel: use `redis-sentinel://HOST:PORT/SERVICE`"), "{text}");

    let node = Setup { cluster: true, ..Setup::default() };
    let node = RedisServer::start_with_or_skip("a node of a cluster", node).expect("a server");
    let text = refused(&node.url()).await;
    assert!(text.contains("this server is a node of a cluster: use `redis-cluster://`"), "{text}");

    let needed = "Redis 6.2 or later, or Valkey, is needed: this server is older";
    let text = refused(&FakeServer::of_version_5().url()).await;
    assert!(text.contains(&format!("{needed} (it does not know HELLO)")), "{text}");
    let text = refused(&FakeServer::of_version_6_0().url()).await;
    assert!(text.contains(&format!("{needed} (it has version 6.0.16)")), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_with_which_leases_may_be_lost_are_found() -> Result<(), Error> {
    let setup = with_options(&["--maxmemory-policy", "allkeys-lru"]);
    let Some(server) = RedisServer::start_with_or_skip("what is found", setup) else { return Ok(()) };
    server.allow(&more_rules("+info"));
    let client = at_once(async || Client::connect(&server.url()).await).await?;
    let findings = client.check().await?;
    let found =
        |severity| findings.iter().find(|finding| finding.severity == severity).map(|found| &*found.text);
    let warning = found(Severity::Warning).expect("a warning");
    assert!(warning.contains("`maxmemory-policy` is `allkeys-lru`"), "{warning}");
    let info = found(Severity::Info).expect("something to know");
    assert!(info.contains("has no persistence"), "{info}");
    assert_eq!(found(Severity::Refused), None);
    // Looking leaves nothing behind.
    assert_eq!(server.raw().keys("*"), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permissions_are_named() {
    let Some(server) = RedisServer::start_or_skip("missing rights") else { return };
    let mut raw = server.raw();
    let rights = ["ACL", "SETUSER", "app", "on", ">p", "~*", "&*", "+@all", "-zadd", "-hset"];
    assert_eq!(raw.send(&rights).text().as_deref(), Some("OK"));
    let text = refused(&format!("redis://app:p@127.0.0.1:{}", server.port())).await;
    assert!(text.contains("this user lacks permission for required commands: HSET, ZADD"), "{text}");
    assert_eq!(raw.send(&["ACL", "SETUSER", "app", "+@all", "-eval"]).text().as_deref(), Some("OK"));
    let text = refused(&format!("redis://app:p@127.0.0.1:{}", server.port())).await;
    assert!(text.contains("required commands: EVAL"), "{text}");
    assert_eq!(raw.send(&["ACL", "SETUSER", "app", "+@all", "-evalsha"]).text().as_deref(), Some("OK"));
    let text = refused(&format!("redis://app:p@127.0.0.1:{}", server.port())).await;
    assert!(text.contains("required commands: EVALSHA"), "{text}");
    assert_eq!(raw.send(&["ACL", "SETUSER", "app", "+@all", "-wait"]).text().as_deref(), Some("OK"));
    let builder =
        RedisBackend::builder(&format!("redis://app:p@127.0.0.1:{}", server.port())).expect("a URL");
    let error = builder.wait_replicas(1, SECOND).connect().await.expect_err("it may not wait");
    assert!(error.to_string().contains("required commands: WAIT"), "{error}");
    // A user who may see nothing but its own keys is not refused because of that.
    let rights =
        ["ACL", "SETUSER", "app", "+@all", "resetkeys", "~shop:*", "~{shop:*", "-info", "-config", "-role"];
    assert_eq!(raw.send(&rights).text().as_deref(), Some("OK"));
    Client::connect(&format!("redis://app:p@127.0.0.1:{}", server.port()))
        .await
        .expect("it may lock `shop:*`");
}
