//! PostgreSQL over TLS.

use leasehold::postgres::PostgresBackend;
use leasehold::{Client, Error};

use crate::certificates::{Authority, Signed};
use crate::server::{PASSWORD, PostgresServer, USER};

/// A server with this certificate, which takes passwords over TLS only.
fn start(left_out: &str, Signed { certificate, key }: &Signed) -> Option<PostgresServer> {
    let settings = ["ssl=on", "ssl_cert_file=../server.pem", "ssl_key_file=../server.key", "hba_file=../hba"];
    let hba = "hostssl all all 127.0.0.1/32 scram-sha-256\n";
    let files = [("server.pem", certificate.as_str()), ("server.key", key), ("hba", hba)];
    PostgresServer::start_with_files_or_skip(left_out, &settings, &files, None)
}

fn url(server: &PostgresServer) -> String {
    format!("postgres://{USER}:{PASSWORD}@localhost:{}/{USER}", server.port())
}

async fn connect(url: &str, authority: &Authority) -> Result<PostgresBackend, Error> {
    PostgresBackend::builder(url)?.tls(authority.trusted()).connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_over_tls_and_never_without_if_it_is_required() {
    let authority = Authority::new("ours");
    let Some(server) = start("PostgreSQL over TLS", &authority.sign(&["localhost"])) else { return };
    for mode in ["require", "verify-ca", "verify-full"] {
        let backend =
            connect(&format!("{}?sslmode={mode}", url(&server)), &authority).await.expect("encrypted");
        let client = Client::with_backend(std::sync::Arc::new(backend));
        client.mutex("x").expect("valid").lock().await.expect("free").release().await.expect("held");
        client.shutdown().await.expect("released");
    }
    // The server wants it.
    let error = Client::connect(&url(&server)).await.expect_err("not encrypted");
    assert!(error.to_string().contains("no encryption"), "{error}");
    let error = connect(&url(&server), &authority).await.expect_err("not asked for");
    assert!(matches!(error, Error::InvalidArgument { argument: "tls", .. }), "{error:?}");
    // The client wants it.
    let Some(plain) = PostgresServer::start_or_skip("PostgreSQL without TLS") else { return };
    let error = connect(&format!("{}?sslmode=require", url(&plain)), &authority).await.expect_err("no TLS");
    assert!(error.to_string().contains("server does not support TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_certificates_are_distinguished_in_errors() {
    let authority = Authority::new("ours");
    for (certificate, why) in authority.unacceptable() {
        let Some(server) = start("certificates of PostgreSQL", &certificate) else { return };
        let error = connect(&format!("{}?sslmode=require", url(&server)), &authority).await.expect_err(why);
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
    }
}
