//! What an operator reads about a ZooKeeper server. The only test of its program: what is traced on the crate's own
//! thread can only be collected for the whole process.
#![cfg(feature = "zookeeper")]

#[macro_use]
#[path = "support/outages.rs"]
mod outages;
#[path = "support/zookeeper.rs"]
mod server;

use std::time::Duration;

use leasehold::Client;
use leasehold_support::lines::Lines;
use server::ZookeeperServer;

const SOON: Duration = Duration::from_secs(20);
const PASSWORD: &str = "hunter2";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_when_the_store_becomes_unreachable_and_one_when_it_is_back_without_its_password() {
    let Some(server) = ZookeeperServer::start_or_skip("what is traced about ZooKeeper") else { return };
    let lines = Lines::collect(|_| true);
    let url = server.url().replacen("//", &format!("//user:{PASSWORD}@"), 1);
    let client = Client::connect(&url).await.expect("the server accepts clients");
    outages_are_traced_once!(lines, client, server, SOON);
    client.shutdown().await.expect("released");
    let url = url.replace(PASSWORD, &format!("wrong{PASSWORD}"));
    Client::connect(&url).await.map(drop).expect_err("another password");
    assert_eq!(lines.with(PASSWORD), [""; 0]);
}
