//! Clients of fred and of redis-rs that a service has already.

use std::sync::Arc;

use leasehold::redis::RedisBackend;
use leasehold::{Client, Error};

use leasehold_support::{RedisServer, Reply};

/// A server with a user, and this user's locks in database 2.
fn with_login(left_out: &str) -> Option<(RedisServer, String)> {
    let server = RedisServer::start_or_skip(left_out)?;
    let rules = ["ACL", "SETUSER", "us:er", "on", ">p@ss/", "~*", "&*", "+@all"];
    assert_eq!(server.raw().send(&rules), Reply::ok());
    let url = format!("redis://us%3Aer:p%40ss%2F@127.0.0.1:{}/2", server.port());
    Some((server, url))
}

async fn locks_as_that_user_in_its_database(
    backend: RedisBackend,
    server: &RedisServer,
) -> Result<(), Error> {
    let client = Client::with_backend(Arc::new(backend));
    let guard = client.mutex("a")?.lock().await?;
    let clients = server.raw().send(&["CLIENT", "LIST"]).text().expect("text");
    let own = clients.lines().filter(|line| line.contains("user=us:er") && line.contains("db=2")).count();
    assert_eq!(own, 3, "{clients}");
    guard.release().await?;
    client.shutdown().await
}

#[cfg(feature = "fred")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_and_the_login_of_a_client_of_fred() -> Result<(), Error> {
    use fred::interfaces::ClientLike;

    let Some((server, url)) = with_login("a client of fred") else { return Ok(()) };
    let config = fred::types::config::Config::from_url(&url).expect("a URL");
    // It is not connected, and need not be.
    let existing = fred::clients::Client::new(config, None, None, None);
    let backend = RedisBackend::builder_from_fred(existing.client_config()).connect().await?;
    locks_as_that_user_in_its_database(backend, &server).await
}

#[cfg(feature = "redis-rs")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_and_the_login_of_a_client_of_redis_rs() -> Result<(), Error> {
    let Some((server, url)) = with_login("a client of redis-rs") else { return Ok(()) };
    let existing = redis::Client::open(url).expect("a URL");
    locks_as_that_user_in_its_database(
        RedisBackend::builder_from_redis_rs(&existing)?.connect().await?,
        &server,
    )
    .await
}

#[cfg(all(feature = "redis-rs", any(feature = "rustls", feature = "native-tls")))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_redis_rs_that_uses_tls() -> Result<(), Error> {
    use leasehold::TlsOptions;
    use redis::{ConnectionAddr, IntoConnectionInfo};

    use crate::certificates::Authority;
    use leasehold_support::Setup;

    let authority = Authority::new("ours");
    let setup = Setup::with_tls(authority.server());
    let Some(server) = RedisServer::start_with_or_skip("a client of redis-rs with TLS", setup) else {
        return Ok(());
    };
    let existing = |insecure| {
        let (host, port) = ("localhost".to_owned(), server.tls_port());
        let address = ConnectionAddr::TcpTls { host, port, insecure, tls_params: None };
        redis::Client::open(address.into_connection_info().expect("an address")).expect("an address")
    };
    let builder = RedisBackend::builder_from_redis_rs(&existing(false))?;
    let error = builder.clone().connect().await.expect_err("the authority is unknown");
    assert!(error.to_string().contains("not signed by a known authority"), "{error}");
    let tls = TlsOptions::new().ca_certificate_pem(authority.pem());
    let client = Client::with_backend(Arc::new(builder.tls(tls).connect().await?));
    client.mutex("a")?.lock().await?.release().await?;
    client.shutdown().await?;
    let error = RedisBackend::builder_from_redis_rs(&existing(true)).expect_err("it verifies nothing");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    Ok(())
}
