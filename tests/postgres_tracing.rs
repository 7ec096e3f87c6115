//! What an operator reads about a PostgreSQL server. The only test of its program: what is traced on the crate's own
//! thread can only be collected for the whole process.
#![cfg(feature = "postgres")]

#[macro_use]
#[path = "support/outages.rs"]
mod outages;
#[path = "support/postgres.rs"]
mod server;

use std::time::Duration;

use leasehold::Client;
use leasehold_support::lines::Lines;
use server::{PASSWORD, PostgresServer, USER};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_event_when_the_store_becomes_unreachable_and_one_when_it_is_back_without_its_password() {
    let left_out = "what is traced about PostgreSQL";
    let settings = ["fsync=off", "idle_session_timeout=1s"];
    let Some(mut server) = PostgresServer::start_with_or_skip(left_out, &settings, None) else { return };
    let lines = Lines::collect(|_| true);
    let client = server.client().await;
    assert_eq!(lines.with("`fsync` is off").len(), 1);
    // A session that ends while nobody uses it is replaced in silence, and a limit on idle ones ends none.
    let traced = || ["WARN", "INFO"].map(|level| lines.with(level));
    let (traced_before, sessions) = (
        traced(),
        "SELECT string_agg(pid::text, ',' ORDER BY pid) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'",
    );
    client.mutex("x").expect("valid").lock().await.expect("free").release().await.expect("held");
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let before = server.execute(sessions).await.expect("two");
    server
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'leasehold%'",
        )
        .await;
    leasehold_support::eventually(SOON, || async {
        client.ping(SOON).await.expect("it answers on another one");
        let now = server.execute(sessions).await.unwrap_or_default();
        now != before && now.contains(',')
    })
    .await;
    assert_eq!(traced(), traced_before);
    outages_are_traced_once!(lines, client, server, SOON);
    assert_eq!(lines.with("`fsync` is off").len(), 1);
    client.shutdown().await.expect("released");
    let url = format!("postgres://{USER}:wrong{PASSWORD}@127.0.0.1:{}/{USER}", server.port());
    Client::connect(&url).await.map(drop).expect_err("another password");
    assert_eq!(lines.with(PASSWORD), [""; 0]);
}
