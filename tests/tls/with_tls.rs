use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::redis::RedisBackend;
use leasehold::redlock::RedlockBackend;
use leasehold::{Client, Error, MutexOptions, TlsOptions};

use crate::certificates::Authority;
use leasehold_support::{
    Cluster, RedisServer, Reply, ServerCertificate, Setup, Worker, eventually, say, within, worker_args,
};

const SECOND: Duration = Duration::from_secs(1);
/// A failure must not come as a timeout, of which the shortest is 2 s.
const FAST: Duration = SECOND;

fn start(left_out: &str, certificate: ServerCertificate) -> Option<RedisServer> {
    RedisServer::start_with_or_skip(left_out, Setup::with_tls(certificate))
}

fn url(server: &RedisServer) -> String {
    format!("rediss://localhost:{}", server.tls_port())
}

async fn connect(url: &str, options: TlsOptions) -> Result<Client, Error> {
    let backend = RedisBackend::builder(url)?.tls(options).connect().await?;
    Ok(Client::with_backend(Arc::new(backend)))
}

#[track_caller]
fn refused(connected: Result<Client, Error>, began: Instant, reason: &str) {
    let took = began.elapsed();
    let error = connected.expect_err("the connection must be refused");
    let text = error.to_string();
    println!("{text}");
    assert!(text.contains(reason), "{text}");
    assert!(took < FAST, "{took:?}: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_over_tls_with_an_authority_of_our_own() -> Result<(), Error> {
    let authority = Authority::new("ours");
    let Some(server) = start("TLS", authority.server()) else { return Ok(()) };
    let one = connect(&url(&server), authority.trusted()).await?;
    let two = connect(&url(&server).replace("rediss", "valkeys"), authority.trusted()).await?;
    let guard = one.mutex("a")?.lock().await?;
    assert!(two.mutex("a")?.try_lock().await?.is_none());
    let waiter = tokio::spawn({
        let mutex = two.mutex("a")?;
        async move { mutex.lock().await }
    });
    let inspector = one.mutex("a")?;
    eventually(SECOND * 5, || async { inspector.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) })
        .await;
    guard.release().await?;
    within(SECOND * 5, waiter).await.expect("no panic")?.release().await?;
    // All of its connections, not only that for commands.
    let clients = server.raw().send(&["CLIENT", "LIST"]).text().expect("text");
    let over_tls = clients.matches(&format!("laddr=127.0.0.1:{}", server.tls_port())).count();
    assert_eq!(over_tls, 6, "{clients}");
    one.shutdown().await?;
    two.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_by_address_and_with_credentials() -> Result<(), Error> {
    let authority = Authority::new("ours");
    let certificate = authority.server_with(authority.sign(&["localhost", "127.0.0.1"]), false);
    let Some(server) = start("TLS with credentials", certificate) else { return Ok(()) };
    let rules = ["ACL", "SETUSER", "us:er", "on", ">p@ss/", "~*", "&*", "+@all"];
    assert_eq!(server.raw().send(&rules), Reply::ok());
    let url = format!("rediss://us%3Aer:p%40ss%2F@127.0.0.1:{}/2", server.tls_port());
    let client = connect(&url, authority.trusted()).await?;
    let guard = client.mutex("a")?.lock().await?;
    let clients = server.raw().send(&["CLIENT", "LIST"]).text().expect("text");
    assert_eq!(clients.matches("user=us:er").count(), 3, "{clients}");
    guard.release().await?;
    let began = Instant::now();
    let error =
        connect(&url.replace("p%40ss", "wrong"), authority.trusted()).await.expect_err("a wrong password");
    assert!(
        matches!(error, Error::StoreRefused { .. }) && error.to_string().contains("WRONGPASS"),
        "{error}"
    );
    assert!(began.elapsed() < FAST);
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_kept_when_its_connections_are_closed() -> Result<(), Error> {
    let authority = Authority::new("ours");
    let Some(server) = start("connecting again over TLS", authority.server()) else { return Ok(()) };
    let client = connect(&url(&server), authority.trusted()).await?;
    let options = MutexOptions::new().ttl(SECOND);
    let guard = client.mutex_with("a", options)?.lock().await?;
    assert_eq!(server.raw().send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).int(), 2);
    tokio::time::sleep(SECOND * 2).await;
    assert!(guard.is_held(), "renewed over a new connection");
    guard.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_authority_is_refused() {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let Some(server) = start("unknown authorities", theirs.server()) else { return };
    let reason = "not signed by a known authority";
    let began = Instant::now();
    refused(connect(&url(&server), ours.trusted()).await, began, reason);
    let began = Instant::now();
    refused(Client::connect(&url(&server)).await, began, reason);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_host_is_refused() {
    let authority = Authority::new("ours");
    let certificate = authority.server_with(authority.sign(&["db.example"]), false);
    let Some(server) = start("host names", certificate) else { return };
    let by_address = url(&server).replace("localhost", "127.0.0.1");
    for url in [url(&server), by_address] {
        let began = Instant::now();
        refused(connect(&url, authority.trusted()).await, began, "for another host name");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_has_expired_is_refused() {
    let authority = Authority::new("ours");
    let certificate = authority.server_with(authority.sign_expired(&["localhost"]), false);
    let Some(server) = start("expired certificates", certificate) else { return };
    let began = Instant::now();
    refused(connect(&url(&server), authority.trusted()).await, began, "has expired");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_requires_a_client_certificate_is_given_one() -> Result<(), Error> {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let certificate = ours.server_with(ours.sign(&["localhost"]), true);
    let Some(server) = start("client certificates", certificate) else { return Ok(()) };
    let mine = ours.sign(&[]);
    let client =
        connect(&url(&server), ours.trusted().client_certificate_pem(mine.certificate, mine.key)).await?;
    client.mutex("a")?.lock().await?.release().await?;
    client.shutdown().await?;
    let began = Instant::now();
    refused(connect(&url(&server), ours.trusted()).await, began, "requires a client certificate");
    let other = theirs.sign(&[]);
    let options = ours.trusted().client_certificate_pem(other.certificate, other.key);
    let began = Instant::now();
    refused(connect(&url(&server), options).await, began, "TLS: the server");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_recognized() {
    let authority = Authority::new("ours");
    let Some(server) = start("plain text in place of TLS", authority.server()) else { return };
    let url = format!("rediss://localhost:{}", server.port());
    let began = Instant::now();
    refused(connect(&url, authority.trusted()).await, began, "the server answers in plain text");
    // It says even less to those who have not logged in.
    assert_eq!(server.raw().send(&["CONFIG", "SET", "requirepass", "hunter2"]), Reply::ok());
    let began = Instant::now();
    refused(connect(&url, authority.trusted()).await, began, "the server answers in plain text");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_tls_is_recognized_in_plain_text() {
    let authority = Authority::new("ours");
    let Some(server) = start("TLS in place of plain text", authority.server()) else { return };
    for login in ["", "me:hunter2@"] {
        let url = format!("redis://{login}localhost:{}", server.tls_port());
        let began = Instant::now();
        refused(Client::connect(&url).await, began, "`rediss://`");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_that_cannot_be_used_are_refused_before_anything_is_sent() {
    let authority = Authority::new("ours");
    let [one, two] = [(); 2].map(|()| authority.sign(&[]));
    let url = "rediss://localhost:1";
    for (url, options, reason) in [
        ("redis://localhost:1", TlsOptions::new(), "`rediss://`"),
        (url, TlsOptions::new().ca_certificate_pem(""), "no certificate"),
        (url, TlsOptions::new().ca_certificate_pem("no PEM at all"), "no certificate"),
        (url, TlsOptions::new().ca_certificate_pem(one.key.as_str()), "no certificate"),
        (
            url,
            authority.trusted().client_certificate_pem(one.certificate.as_str(), "no key"),
            "client certificate",
        ),
        (url, authority.trusted().client_certificate_pem("", one.key.as_str()), "client certificate"),
        (url, authority.trusted().client_certificate_pem(one.certificate, two.key), "client certificate"),
    ] {
        let error = connect(url, options).await.expect_err("refused");
        println!("{error}");
        assert!(matches!(error, Error::InvalidArgument { argument: "tls", .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls() -> Result<(), Error> {
    let authority = Authority::new("ours");
    let certificate = authority.server_with(authority.sign(&["127.0.0.1"]), false);
    let Some(cluster) = Cluster::start_with_or_skip("a cluster over TLS", Some(certificate)) else {
        return Ok(());
    };
    let url = format!("rediss-cluster://127.0.0.1:{}", cluster.nodes[0].tls_port());
    let client = connect(&url, authority.trusted()).await?;
    for n in 0..20 {
        let mutex = client.mutex(&n.to_string())?;
        let guard = mutex.lock().await?;
        let waiter = tokio::spawn({
            let mutex = client.reentrant_lock(&n.to_string(), "me")?;
            async move { mutex.lock().await }
        });
        eventually(SECOND * 5, || async { mutex.inspect().await.is_ok_and(|seen| seen.waiters.len() == 1) })
            .await;
        guard.release().await?;
        within(SECOND * 5, waiter).await.expect("no panic")?.release().await?;
    }
    for node in &cluster.nodes[..3] {
        let clients = node.raw().send(&["CLIENT", "LIST"]).text().expect("text");
        let ours = clients.lines().filter(|line| line.contains("name=leasehold-"));
        let over_tls = format!("laddr=127.0.0.1:{}", node.tls_port());
        let ours: Vec<_> = ours.collect();
        assert!(ours.len() >= 2 && ours.iter().all(|line| line.contains(&over_tls)), "{clients}");
    }
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_over_tls() -> Result<(), Error> {
    let authority = Authority::new("ours");
    let certificate = authority.server_with(authority.sign(&["127.0.0.1"]), false);
    let Some(primary) = start("sentinels over TLS", certificate.clone()) else { return Ok(()) };
    // With this option a sentinel speaks TLS to the servers.
    let rules = format!("sentinel monitor main 127.0.0.1 {} 1\ntls-replication yes", primary.tls_port());
    let setup = Setup { sentinel: Some(rules), ..Setup::with_tls(certificate) };
    let Some(sentinel) = RedisServer::start_with_or_skip("sentinels over TLS", setup) else { return Ok(()) };
    let url = format!("rediss-sentinel://127.0.0.1:{}/main", sentinel.tls_port());
    let client = connect(&url, authority.trusted()).await?;
    let guard = client.mutex("a")?.lock().await?;
    assert!(primary.raw().get("lock:a").is_some());
    guard.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redlock_over_tls() -> Result<(), Error> {
    let authority = Authority::new("ours");
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let Some(server) = start("a redlock over TLS", authority.server()) else { return Ok(()) };
        nodes.push(server);
    }
    let builders: Result<Vec<_>, _> = nodes
        .iter()
        .map(|node| Ok::<_, Error>(RedisBackend::builder(&url(node))?.tls(authority.trusted())))
        .collect();
    let client =
        Client::with_backend(Arc::new(RedlockBackend::builder_from_nodes(builders?).connect().await?));
    let guard = client.mutex("a")?.lock().await?;
    assert!(nodes.iter().filter(|node| node.raw().get("lock:a").is_some()).count() >= 2);
    guard.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authorities_of_the_system_are_known() {
    let authority = Authority::new("ours");
    let Some(server) = start("authorities of the system", authority.server()) else { return };
    // This names the system's authorities for a process.
    let file = server.dir().join("authority.pem");
    let environment = [("SSL_CERT_FILE".into(), file.into_os_string())];
    let mut worker = Worker::start_in(environment, "with_tls::worker_that_connects", &url(&server));
    assert_eq!(worker.line().await.as_deref(), Some("locked"));
}

#[tokio::test]
async fn worker_that_connects() {
    let Some(url) = worker_args() else { return };
    let client = Client::connect(&url).await.expect("the authority is known to the system");
    client.mutex("a").expect("a name").lock().await.expect("it is free").release().await.expect("held");
    say("locked");
}
