//! What an operator reads about an etcd server. The only test of its program: what is traced on the crate's own thread
//! can only be collected for the whole process.
#![cfg(feature = "etcd")]

#[macro_use]
#[path = "support/outages.rs"]
mod outages;
#[path = "support/etcd.rs"]
mod server;

use std::time::Duration;

use leasehold::Client;
use leasehold_support::lines::Lines;
use server::{EtcdServer, PASSWORD, USER};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_when_the_store_becomes_unreachable_and_one_when_it_is_back_without_its_password() {
    let Some(mut server) = EtcdServer::start_or_skip("what is traced about etcd") else { return };
    let lines = Lines::collect(|_| true);
    let client = server.client().await;
    outages_are_traced_once!(lines, client, server, SOON);
    client.shutdown().await.expect("released");
    let url = format!("etcd://{USER}:wrong{PASSWORD}@127.0.0.1:{}", server.port());
    Client::connect(&url).await.map(drop).expect_err("there are no users");
    assert_eq!(lines.with(PASSWORD), [""; 0]);
}
