//! Servers that speak TLS, with certificates that are accepted and others that are not. With the feature `native-tls`
//! alone that is what is tested, otherwise `rustls`.

#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod certificates;
#[cfg(all(feature = "etcd", any(feature = "rustls", feature = "native-tls")))]
mod etcd;
#[cfg(all(feature = "etcd", any(feature = "rustls", feature = "native-tls")))]
#[path = "../support/etcd.rs"]
mod etcd_server;
#[cfg(any(feature = "fred", feature = "redis-rs"))]
mod existing_clients;
#[cfg(all(feature = "mysql", feature = "rustls"))]
mod mysql;
#[cfg(all(feature = "mysql", feature = "rustls"))]
#[path = "../support/mysql.rs"]
mod mysql_server;
#[cfg(all(feature = "postgres", any(feature = "rustls", feature = "native-tls")))]
mod postgres;
#[cfg(all(feature = "postgres", any(feature = "rustls", feature = "native-tls")))]
#[path = "../support/postgres.rs"]
mod server;
#[cfg(any(feature = "rustls", feature = "native-tls"))]
mod with_tls;
#[cfg(all(feature = "zookeeper", any(feature = "rustls", feature = "native-tls")))]
mod zookeeper;
#[cfg(all(feature = "zookeeper", any(feature = "rustls", feature = "native-tls")))]
#[path = "../support/zookeeper.rs"]
mod zookeeper_server;

#[cfg(not(any(feature = "rustls", feature = "native-tls")))]
#[tokio::test]
async fn without_the_features_tls_is_refused_and_they_are_named() {
    for scheme in ["rediss", "valkeys", "rediss-cluster", "valkeys-sentinel"] {
        let url = format!("{scheme}://me:hunter2@127.0.0.1:1/main");
        let url = if scheme.ends_with("cluster") { url.trim_end_matches("/main") } else { &url };
        let url = if scheme.ends_with('s') { url.trim_end_matches("/main") } else { url };
        let error = leasehold::Client::connect(url).await.expect_err("this build has no TLS");
        let text = error.to_string();
        assert!(matches!(error, leasehold::Error::Unsupported { .. }), "{scheme}: {error:?}");
        assert!(text.contains("`rustls`") && text.contains("`native-tls`"), "{scheme}: {text}");
        assert!(!text.contains("hunter2"), "{scheme}: {text}");
    }
}
