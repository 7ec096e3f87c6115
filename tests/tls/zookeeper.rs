//! ZooKeeper over TLS.

use std::sync::Arc;

use leasehold::zookeeper::ZookeeperBackend;
use leasehold::{Client, Error};

use crate::certificates::{Authority, Signed};
use crate::zookeeper_server::ZookeeperServer;

fn start(left_out: &str, Signed { certificate, key }: &Signed) -> Option<ZookeeperServer> {
    ZookeeperServer::start_with_tls_or_skip(left_out, certificate, key)
}

fn url(port: u16) -> String {
    format!("zookeeper://localhost:{port}/tls?tls=true")
}

async fn connect(url: &str, authority: &Authority) -> Result<ZookeeperBackend, Error> {
    ZookeeperBackend::builder(url)?.tls(authority.trusted()).connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_over_tls_and_never_without_if_it_is_required() {
    let authority = Authority::new("ours");
    let Some(server) = start("ZooKeeper over TLS", &authority.sign(&["localhost"])) else { return };
    // Whoever passes certificates wants TLS.
    let url = url(server.secure_port());
    for url in [url.clone(), url.replace("?tls=true", "")] {
        let backend = connect(&url, &authority).await.expect("encrypted");
        let client = Client::with_backend(Arc::new(backend));
        client.mutex("x").expect("valid").lock().await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("released");
    }
    // The server wants it.
    let error = Client::connect(&url.replace("?tls=true", "")).await.expect_err("not encrypted");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    // The client wants it.
    let plain = url.replace(&server.secure_port().to_string(), &server.port().to_string());
    let error = connect(&plain, &authority).await.expect_err("no TLS");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_certificates_are_distinguished_in_errors() {
    let authority = Authority::new("ours");
    for (certificate, why) in authority.unacceptable() {
        let Some(server) = start("certificates of ZooKeeper", &certificate) else { return };
        let error = connect(&url(server.secure_port()), &authority).await.expect_err(why);
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
}
