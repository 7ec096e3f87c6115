//! etcd over TLS.

use leasehold::etcd::EtcdBackend;
use leasehold::{Client, Error};

use crate::certificates::{Authority, Signed};
use crate::etcd_server::EtcdServer;

fn start(left_out: &str, Signed { certificate, key }: &Signed) -> Option<EtcdServer> {
    EtcdServer::start_with_tls_or_skip(left_out, certificate, key)
}

fn url(server: &EtcdServer) -> String {
    format!("etcds://localhost:{}", server.port())
}

async fn connect(url: &str, authority: &Authority) -> Result<EtcdBackend, Error> {
    EtcdBackend::builder(url)?.tls(authority.trusted()).connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_over_tls_and_never_without_if_it_is_required() {
    let authority = Authority::new("ours");
    let Some(server) = start("etcd over TLS", &authority.sign(&["localhost"])) else { return };
    // Whoever passes certificates wants TLS.
    for url in [url(&server), url(&server).replace("etcds", "etcd")] {
        let backend = connect(&url, &authority).await.expect("encrypted");
        let client = Client::with_backend(std::sync::Arc::new(backend));
        client.mutex("x").expect("valid").lock().await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("released");
    }
    // The server wants it.
    let error = Client::connect(&url(&server).replace("etcds", "etcd")).await.expect_err("not encrypted");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    // The client wants it.
    let Some(plain) = EtcdServer::start_or_skip("etcd without TLS") else { return };
    let error = connect(&url(&plain), &authority).await.expect_err("no TLS");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("perhaps it does not speak TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_certificates_are_distinguished_in_errors() {
    let authority = Authority::new("ours");
    for (certificate, why) in authority.unacceptable() {
        let Some(server) = start("certificates of etcd", &certificate) else { return };
        let error = connect(&url(&server), &authority).await.expect_err(why);
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
    }
}
