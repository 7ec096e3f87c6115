//! What an operator reads when the store goes and comes back. The only test of its program: what is traced on the
//! crate's own thread can only be collected for the whole process.
#![cfg(feature = "_redis")]

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_support::lines::Lines;
use leasehold_support::{RedisServer, eventually};
use tracing::Level;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_when_the_store_becomes_unreachable_and_one_when_it_is_back() {
    let Some(mut server) = RedisServer::start_or_skip("what is traced about the store") else { return };
    // What this crate tells operators.
    let lines = Lines::collect(|metadata| {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("leasehold")
    });
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let password = ["CONFIG", "SET", "requirepass", "hunter2"];
    assert_eq!(server.raw().send(&password).text().as_deref(), Some("OK"));
    let client = Client::connect(&url).await.expect("the server answers");
    assert_eq!(lines.with("has no persistence").len(), 1);

    for round in 1..=2 {
        server.kill();
        eventually(Duration::from_secs(5), || async { !client.state().status.is_connected() }).await;
        server.restart();
        eventually(Duration::from_secs(10), || async { client.ping(Duration::from_secs(1)).await.is_ok() })
            .await;
        eventually(Duration::from_secs(10), || async { client.state().status.is_connected() }).await;
        let (gone, back) =
            (lines.with("the store is disconnected"), lines.with("the store is connected again"));
        assert_eq!((gone.len(), back.len()), (round, round), "{gone:?} {back:?}");
        let address = format!("redis://127.0.0.1:{}", server.port());
        assert!(gone[0].starts_with("WARN") && gone[0].contains(&address), "{gone:?}");
        assert!(back[0].starts_with("INFO") && back[0].contains(&address), "{back:?}");
    }
    client.shutdown().await.expect("nothing is left");

    // What is found when connecting, once; of a lazy client, with its first call.
    let (policy, warning) =
        (["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"], "`maxmemory-policy` is `allkeys-lru`");
    let mut raw = server.raw();
    let _ = raw.send(&["AUTH", "hunter2"]);
    assert_eq!(raw.send(&policy).text().as_deref(), Some("OK"));
    for clients in 1..=2 {
        let begun = Instant::now();
        let client = match clients {
            1 => Client::connect(&url).await.expect("it is only warned about"),
            _ => Client::connect_lazy(&url).expect("a URL"),
        };
        for name in ["a", "b"] {
            let guard = client.mutex(name).expect("a name").lock().await.expect("it is free");
            guard.release().await.expect("it is held");
        }
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        let warnings = lines.with(warning);
        assert_eq!(warnings.len(), clients, "{warnings:?}");
        assert!(
            warnings[0].starts_with("WARN")
                && warnings[0].contains(&format!("redis://127.0.0.1:{}", server.port())),
            "{warnings:?}"
        );
        client.shutdown().await.expect("nothing is left");
    }
    assert_eq!(lines.with("hunter2"), Vec::<String>::new());
    assert_eq!(lines.with("the store is").len(), 4, "{:?}", lines.with("the store is"));
}
