//! What an operator reads about a MySQL server. The only test of its program: what is traced on the crate's own thread
//! can only be collected for the whole process.
#![cfg(feature = "mysql")]

#[macro_use]
#[path = "support/outages.rs"]
mod outages;
#[path = "support/mysql.rs"]
mod server;

use std::time::Duration;

use leasehold::Client;
use leasehold_support::lines::Lines;
use server::{MysqlServer, PASSWORD, USER};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_when_the_store_becomes_unreachable_and_one_when_it_is_back_without_its_password() {
    let left_out = "what is traced about MySQL";
    let options = ["--wait-timeout=1", "--interactive-timeout=1"];
    let Some(mut server) = MysqlServer::start_with_or_skip(left_out, &options, None) else { return };
    let lines = Lines::collect(|_| true);
    let client = server.client().await;
    // A session that ends while nobody uses it is replaced in silence, and a limit on idle ones ends none.
    let traced = || ["WARN", "INFO"].map(|level| lines.with(level));
    let (traced_before, sessions) = (
        traced(),
        "SELECT GROUP_CONCAT(ID ORDER BY ID) FROM information_schema.PROCESSLIST WHERE USER = 'leasehold'",
    );
    client.mutex("x").expect("valid").lock().await.expect("free").release().await.expect("held");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let before = server.execute(sessions).await.expect("two");
    for id in before.split(',') {
        server.execute(&format!("KILL CONNECTION {id}")).await;
    }
    leasehold_support::eventually(SOON, || async {
        client.ping(SOON).await.expect("it answers on another one");
        let now = server.execute(sessions).await.unwrap_or_default();
        now != before && now.contains(',')
    })
    .await;
    assert_eq!(traced(), traced_before);
    outages_are_traced_once!(lines, client, server, SOON);
    client.shutdown().await.expect("released");
    let url = format!("mysql://{USER}:wrong{PASSWORD}@127.0.0.1:{}/{USER}", server.port());
    Client::connect(&url).await.map(drop).expect_err("another password");
    assert_eq!(lines.with(PASSWORD), [""; 0]);
}
