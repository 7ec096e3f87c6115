//! What clients allocate, on every store that is reached over a network or a file: little, and all of it is given back.
//! `LEASEHOLD_CLIENTS=10000 cargo test --all-features --test clients_memory -- --nocapture` connects and drops so many.
#![cfg(all(
    feature = "fred",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper"
))]

#[path = "support/etcd.rs"]
mod etcd;
#[path = "support/mysql.rs"]
mod mysql;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/sqlite.rs"]
mod sqlite;
#[path = "support/zookeeper.rs"]
mod zookeeper;

use std::alloc::System;
use std::env;
use std::future::ready;
use std::time::Duration;

use cap::Cap;
use futures::future::join_all;
use leasehold::Client;
use leasehold_support::{RedisServer, eventually, within};

/// Counts what this program has allocated.
#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// How long what clients leave behind may take to go, on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// How many there are at once.
const TOGETHER: usize = 16;
/// How many there are one after another, unless `LEASEHOLD_CLIENTS` says how many.
const CLIENTS: usize = 160;
/// What a client that has been used may take.
const EACH: usize = 3 * 512 * 1024;
/// What all of them may leave behind together: tables that have grown, which many clients leave as large as few.
const LEFT: usize = 1024 * 1024;

async fn used(url: &str, number: usize) -> Client {
    let client = Client::connect_lazy(url).expect("a URL");
    let mutex = client.mutex(&format!("{number}")).expect("valid");
    let guard = within(SOON, mutex.lock()).await.expect("free");
    guard.release().await.expect("held");
    client
}

async fn some(url: &str) -> Vec<Client> {
    join_all((0..TOGETHER).map(|number| used(url, number))).await
}

async fn ended(clients: Vec<Client>) {
    for (n, client) in clients.into_iter().enumerate() {
        // The others are only dropped.
        if n.is_multiple_of(2) {
            client.shutdown().await.expect("nothing is held");
        }
    }
}

async fn take_little_and_give_it_back(store: &str, url: &str) {
    let clients = env::var("LEASEHOLD_CLIENTS").map_or(CLIENTS, |text| text.parse().expect("a number"));
    // What the first ones start, the process keeps.
    ended(some(url).await).await;
    let before = settled().await;
    let kept = some(url).await;
    let each = HEAP.allocated().saturating_sub(before) / TOGETHER;
    println!("{store}: {} KB for each client", each / 1024);
    assert!(each < EACH, "{store}: {each} bytes for each client");
    ended(kept).await;
    for _ in 0..clients / TOGETHER {
        ended(some(url).await).await;
    }
    eventually_at_most(before + LEFT).await;
    println!("{store}: {} KB more after {clients} clients", HEAP.allocated().saturating_sub(before) / 1024);
}

async fn eventually_at_most(bytes: usize) {
    eventually(SOON, || ready(HEAP.allocated() <= bytes)).await;
}

/// How much is allocated when it does not become less any more.
async fn settled() -> usize {
    let mut least = HEAP.allocated();
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = HEAP.allocated();
        if now >= least {
            return least;
        }
        least = now;
    }
}

/// One store after another: all allocations of the process count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_take_little_memory_and_give_it_back() {
    if let Some(server) = RedisServer::start_or_skip("memory of clients of Redis") {
        take_little_and_give_it_back("Redis", &server.url()).await;
    }
    if let Some(server) = postgres::PostgresServer::start_or_skip("memory of clients of PostgreSQL") {
        take_little_and_give_it_back("PostgreSQL", &server.url()).await;
    }
    if let Some(server) = mysql::MysqlServer::start_or_skip("memory of clients of MySQL") {
        take_little_and_give_it_back("MySQL", &server.url()).await;
    }
    if let Some(server) = etcd::EtcdServer::start_or_skip("memory of clients of etcd") {
        take_little_and_give_it_back("etcd", &server.url()).await;
    }
    if let Some(server) = zookeeper::ZookeeperServer::shared_or_skip("memory of clients of ZooKeeper") {
        take_little_and_give_it_back("ZooKeeper", &server.url()).await;
    }
    take_little_and_give_it_back("SQLite", &sqlite::SqliteFile::new().url()).await;
}
