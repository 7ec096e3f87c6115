//! What `run` promises on every store: one after the other, whoever is killed, and whatever the server does.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tempfile::NamedTempFile;

use crate::etcd::EtcdServer;
use crate::mysql::MysqlServer;
use crate::postgres::PostgresServer;
use crate::program::{Program, SOON, is_alive};
use crate::sqlite::SqliteFile;
use crate::zookeeper::ZookeeperServer;
use leasehold_support::{Nodes, RedisServer, eventually};

const LEFT_OUT: &str = "what `leasehold run` promises";
const SECOND: Duration = Duration::from_secs(1);
/// How much later than promised something may be on a busy machine.
const SLACK: Duration = Duration::from_secs(3);

#[tokio::test]
async fn on_redis() {
    let Some(server) = RedisServer::start_or_skip(LEFT_OUT) else { return };
    promises(&server.url(), SECOND, || server.pause(), || server.resume()).await;
}

#[tokio::test]
async fn on_redlock() {
    let Some(nodes) = Nodes::start_or_skip(LEFT_OUT, 3) else { return };
    let pause = || nodes.0.iter().for_each(RedisServer::pause);
    promises(&nodes.url(), SECOND, pause, || nodes.0.iter().for_each(RedisServer::resume)).await;
}

#[tokio::test]
async fn on_postgres() {
    let Some(server) = PostgresServer::start_or_skip(LEFT_OUT) else { return };
    promises(&server.url(), SECOND, || server.pause(), || server.resume()).await;
}

#[tokio::test]
async fn on_mysql() {
    let Some(server) = MysqlServer::start_or_skip(LEFT_OUT) else { return };
    promises(&server.url(), SECOND, || server.pause(), || server.resume()).await;
}

/// Whose leases last for 2 s at least.
#[tokio::test]
async fn on_etcd() {
    let Some(server) = EtcdServer::start_or_skip(LEFT_OUT) else { return };
    promises(&server.url(), 2 * SECOND, || server.pause(), || server.resume()).await;
}

#[tokio::test]
async fn on_zookeeper() {
    let Some(server) = ZookeeperServer::start_or_skip(LEFT_OUT) else { return };
    promises(&server.url(), SECOND, || server.pause(), || server.resume()).await;
}

/// Nobody stops a file, but another program can keep it locked.
#[tokio::test]
async fn on_sqlite() {
    let file = SqliteFile::new();
    drop(file.client().await);
    let stranger = file.open();
    let execute = |sql| stranger.execute_batch(sql).expect("the file can be locked");
    promises(&file.url(), SECOND, || execute("BEGIN EXCLUSIVE"), || execute("ROLLBACK")).await;
}

async fn promises(url: &str, ttl: Duration, stop: impl FnOnce(), resume: impl FnOnce()) {
    one_after_the_other_even_if_killed(url, ttl).await;
    a_stopped_store_ends_the_command_before_another_starts(url, ttl, stop, resume).await;
}

/// The first one is killed, which nothing can prevent or notice; the second one ends by itself.
async fn one_after_the_other_even_if_killed(url: &str, ttl: Duration) {
    let ttl_text = humantime::format_duration(ttl).to_string();
    let run = |script| Program::start(url, &["run", "job", "--ttl", &ttl_text, "--", "sh", "-c", script]);
    let mut first = run("echo $$; sh -c 'echo $$; sleep 1000; :' & wait");
    let (command, grandchild) = (first.line().await, first.line().await);
    let mut second = run("echo in; read -r _; echo out");
    second.until_it_waits().await;
    assert!(is_alive(&command) && is_alive(&grandchild));
    first.signal(Signal::SIGKILL);
    let killed = Instant::now();
    assert_eq!(second.line().await, "in");
    let took = killed.elapsed();
    assert!(!is_alive(&command) && !is_alive(&grandchild), "{command}, {grandchild}");
    let scheme = url.split(':').next().unwrap_or_default();
    println!("{scheme}: the holder was killed, and the next one began {} ms later", took.as_millis());
    assert!(took < ttl + SECOND + SLACK, "{took:?} after the kill, with a TTL of {ttl:?}");

    let mut third = run("echo in");
    third.until_it_waits().await;
    second.type_in("\n").await;
    assert_eq!(second.line().await, "out");
    assert_eq!(third.line().await, "in");
    assert_eq!(second.end().await.0, 0);
    assert_eq!(third.end().await.0, 0);
}

/// In this order.
async fn a_stopped_store_ends_the_command_before_another_starts(
    url: &str,
    ttl: Duration,
    stop: impl FnOnce(),
    resume: impl FnOnce(),
) {
    let log = &NamedTempFile::new().expect("room for a file");
    let path = log.path().display();
    let ttl_text = humantime::format_duration(ttl).to_string();
    let run =
        |script: &str| Program::start(url, &["run", "other", "--ttl", &ttl_text, "--", "sh", "-c", script]);
    let mut first =
        run(&format!("trap 'echo told >>{path}; exit' TERM; echo in; while :; do sleep 1000 & wait; done"));
    assert_eq!(first.line().await, "in");
    let mut second = run(&format!("echo second >>{path}"));
    second.until_it_waits().await;
    stop();
    // It need not hear from the store to know.
    let lines =
        |count| async move { fs::read_to_string(log.path()).is_ok_and(|said| said.lines().count() >= count) };
    eventually(SOON, || lines(1)).await;
    resume();
    let (status, _, message) = first.end().await;
    assert_eq!(status, 70, "{message}");
    assert!(message.contains("was lost: ") && message.contains("gets TERM"), "{message}");
    let (status, _, message) = second.end().await;
    assert_eq!(status, 0, "{message}");
    eventually(SOON, || lines(2)).await;
    assert_eq!(fs::read_to_string(log.path()).expect("a log"), "told\nsecond\n");
}
