//! What an operator reads about a ZooKeeper server. The only test of its program: what is traced on the crate's own thread can only be
//! collected for the whole process.
#![cfg(feature = "zookeeper")]

#[path = "support/lines.rs"]
mod lines;
#[path = "support/zookeeper.rs"]
mod server;
mod support;
#[path = "support/zookeeper_wire.rs"]
mod zookeeper_wire;

use std::time::Duration;

use leasehold::Client;
use lines::Lines;
use server::ZookeeperServer;
use support::eventually;

const SOON: Duration = Duration::from_secs(20);
const PASSWORD: &str = "hunter2";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_when_the_store_becomes_unreachable_and_one_when_it_is_back_without_its_password() {
    let Some(server) = ZookeeperServer::start_or_skip("what is traced about ZooKeeper") else { return };
    let lines = Lines::collect(|_| true);
    let url = server.url().replacen("//", &format!("//user:{PASSWORD}@"), 1);
    let client = Client::connect(&url).await.expect("the server accepts clients");
    let mutex = client.mutex("x").expect("valid");
    for round in 1..=2 {
        server.kill();
        mutex.try_lock().await.map(drop).expect_err("it is away");
        eventually(SOON, || async { !client.state().status.is_connected() }).await;
        server.restart();
        // Nothing has to be asked for.
        eventually(SOON, || async { client.state().status.is_connected() }).await;
        mutex.lock().await.expect("free").release().await.expect("held");
        let (gone, back) =
            (lines.with("the store is disconnected"), lines.with("the store is connected again"));
        assert_eq!((gone.len(), back.len()), (round, round), "{gone:?} {back:?}");
        assert!(gone[0].starts_with("WARN") && gone[0].contains(&server.address()), "{gone:?}");
        assert!(back[0].starts_with("INFO") && back[0].contains(&server.address()), "{back:?}");
    }
    client.shutdown().await.expect("released");
    let url = url.replace(PASSWORD, &format!("wrong{PASSWORD}"));
    Client::connect(&url).await.map(drop).expect_err("another password");
    assert_eq!(lines.with(PASSWORD), [""; 0]);
}
