//! MySQL over TLS.

use leasehold::mysql::MysqlBackend;
use leasehold::{Client, Error};

use crate::certificates::{Authority, Signed};
use crate::mysql_server::{MysqlServer, PASSWORD, USER};

/// A server with this certificate, which takes passwords over TLS only.
fn start(left_out: &str, Signed { certificate, key }: &Signed) -> Option<MysqlServer> {
    let options = ["--ssl-cert=../server.pem", "--ssl-key=../server.key", "--require-secure-transport"];
    let files = [("server.pem", certificate.as_str()), ("server.key", key)];
    MysqlServer::start_with_files_or_skip(left_out, &options, &files, None)
}

fn url(server: &MysqlServer) -> String {
    format!("mysql://{USER}:{PASSWORD}@localhost:{}/{USER}", server.port())
}

async fn connect(url: &str, authority: &Authority) -> Result<MysqlBackend, Error> {
    MysqlBackend::builder(url)?.tls(authority.trusted()).connect().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_taken_over_tls_and_never_without_if_it_is_required() {
    let authority = Authority::new("ours");
    let Some(server) = start("MySQL over TLS", &authority.sign(&["localhost"])) else { return };
    let backend =
        connect(&format!("{}?require_ssl=true", url(&server)), &authority).await.expect("encrypted");
    let client = Client::with_backend(std::sync::Arc::new(backend));
    client.mutex("x").expect("valid").lock().await.expect("free").release().await.expect("held");
    client.shutdown().await.expect("released");
    // The server wants it.
    let error = Client::connect(&url(&server)).await.expect_err("not encrypted");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    let error = connect(&url(&server), &authority).await.expect_err("not asked for");
    assert!(matches!(error, Error::InvalidArgument { argument: "tls", .. }), "{error:?}");
    // The client wants it.
    // MySQL makes a certificate by itself.
    let options: &[&str] = if server.is_mariadb() { &[] } else { &["--tls-version="] };
    let Some(plain) = MysqlServer::start_with_or_skip("MySQL without TLS", options, None) else { return };
    let error = connect(&format!("{}?require_ssl=true", url(&plain)), &authority).await.expect_err("no TLS");
    assert!(error.to_string().contains("does not have this capability"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_certificates_are_distinguished_in_errors() {
    let authority = Authority::new("ours");
    for (certificate, why) in authority.unacceptable() {
        let Some(server) = start("certificates of MySQL", &certificate) else { return };
        let error = connect(&format!("{}?require_ssl=true", url(&server)), &authority).await.expect_err(why);
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error:?}");
    }
}
