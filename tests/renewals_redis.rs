//! Leases that are due together are renewed by few commands, and none of them notices the others.
#![cfg(feature = "_redis")]

use std::future::ready;

use futures::future::join_all;
use leasehold::{Client, Guard, LossReason};
use leasehold_support::locks::{SECOND, SLACK, SOON, connect, deadline, ms, named, nothing_left};
use leasehold_support::{Raw, RedisServer, eventually, options, within};
use tokio::time::{Instant, sleep, timeout};

const MANY: usize = 1000;

fn name(n: usize) -> String {
    format!("machine:{n}")
}

fn key(n: usize) -> String {
    format!("lock:{}", name(n))
}

/// Takes the first `count` locks, for leases of this length.
async fn take(client: &Client, count: usize, lease: std::time::Duration) -> Vec<Guard> {
    let mutexes: Vec<_> = (0..count).map(|n| named(client, &name(n), lease)).collect();
    let guards = join_all(mutexes.iter().map(|mutex| mutex.lock())).await;
    guards.into_iter().map(|guard| guard.expect("free")).collect()
}

async fn give_back(guards: Vec<Guard>) {
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released.expect("held to the end");
    }
}

/// How often the server has extended a key since the last CONFIG RESETSTAT.
fn extended(raw: &mut Raw) -> u64 {
    raw.info_commandstats().get("pexpire").copied().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_are_renewed_by_few_commands() {
    let Some(server) = RedisServer::start_or_skip("renewals together") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    let guards = take(&client, MANY, 3 * SECOND).await;
    raw.send(&["CONFIG", "RESETSTAT"]);
    eventually(SOON * 4, || ready(extended(&mut raw) >= 3 * MANY as u64)).await;
    let stats = raw.info_commandstats();
    let calls: u64 = ["evalsha", "eval"].iter().filter_map(|command| stats.get(*command)).sum();
    assert!(calls <= 3 * MANY as u64 / 16, "{calls} calls for three renewals of {MANY} leases");
    assert!(guards.iter().all(Guard::is_held));
    give_back(guards).await;
    nothing_left(&server, SECOND).await;
}

/// One is deleted, one replaced, one is no lock any more: those are lost, for their own reasons, and no others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_is_reported_and_affects_no_other_in_the_same_renewal() {
    let Some(server) = RedisServer::start_or_skip("losses among renewals") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    let mut guards = take(&client, 300, SECOND).await;
    raw.send(&["DEL", &key(3)]);
    raw.send(&["SET", &key(150), "somebody else", "PX", "60000"]);
    raw.send(&["DEL", &key(299)]);
    raw.send(&["HSET", &key(299), "something", "else"]);
    let told = [(3, LossReason::Missing), (150, LossReason::Taken), (299, LossReason::Taken)];
    for (n, reason) in told {
        assert_eq!(within(SOON, guards[n].lost()).await, reason, "{n}");
    }
    sleep(2 * SECOND).await;
    assert_eq!(raw.get(&key(150)).as_deref(), Some("somebody else"));
    for (n, _) in told.into_iter().rev() {
        assert!(guards.remove(n).release().await.is_err());
    }
    give_back(guards).await;
}

/// The server refuses the whole call, before it carries any of it out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_renewal_affects_no_other_in_the_same_call() {
    let Some(server) = RedisServer::start_or_skip("refusals among renewals") else { return };
    let mut raw = server.raw();
    raw.send(&["ACL", "SETUSER", "limited", "on", ">pw", "+@all", "resetchannels", "&leasehold:*", "~*"]);
    let client = connect(&format!("redis://limited:pw@127.0.0.1:{}", server.port())).await;
    let elsewhere = options().ttl(SECOND).prefix("elsewhere:");
    let elsewhere = client.mutex_with("private", elsewhere).expect("valid");
    let (guards, forbidden) = futures::future::join(take(&client, 300, SECOND), elsewhere.lock()).await;
    let forbidden = forbidden.expect("free");
    raw.send(&["ACL", "SETUSER", "limited", "resetkeys", "~lock:*", "~{lock:*"]);
    let end = deadline(&forbidden) + SECOND / 2;
    assert_eq!(within(SOON, forbidden.lost()).await, LossReason::StoreRefused);
    assert!(Instant::now() < end + SLACK);
    sleep(2 * SECOND).await;
    give_back(guards).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_renewed_by_a_server_that_has_forgotten_the_scripts() {
    let Some(server) = RedisServer::start_or_skip("forgotten scripts among renewals") else { return };
    let (client, mut raw) = (connect(&server.url()).await, server.raw());
    let guards = take(&client, 300, SECOND).await;
    let until = Instant::now() + 3 * SECOND;
    while Instant::now() < until {
        raw.send(&["SCRIPT", "FLUSH"]);
        sleep(ms(20)).await;
    }
    give_back(guards).await;
    nothing_left(&server, SECOND).await;
}

/// More leases than are asked for at once, of all lengths: each is told at its own deadline, whatever hangs before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_delays_no_deadline() {
    let Some(server) = RedisServer::start_or_skip("a server that hangs under renewals") else { return };
    let client = connect(&server.url()).await;
    let mut guards = take(&client, MANY, 3 * SECOND).await;
    for n in 0..20 {
        let mutex = named(&client, &format!("short:{n}"), ms(500 + 50 * n));
        guards.push(mutex.lock().await.expect("free"));
    }
    server.pause();
    // What was sent before may still be answered; afterwards nothing is.
    sleep(ms(20)).await;
    let told = guards.iter().map(|guard| async {
        let end = deadline(guard);
        let reason = guard.lost().await;
        (Instant::now().saturating_duration_since(end), reason)
    });
    let told = timeout(3 * SECOND + SLACK, join_all(told)).await.expect("all are told");
    server.resume();
    for (late, reason) in told {
        assert!(late < SLACK / 2, "told {late:?} after the deadline");
        assert_eq!(reason, LossReason::StoreUnreachable);
    }
    nothing_left(&server, SOON).await;
}

/// The server hangs for less than the leases last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlast_a_server_that_hangs_for_a_while() {
    let Some(server) = RedisServer::start_or_skip("a server that hangs for a while") else { return };
    let client = connect(&server.url()).await;
    let guards = take(&client, MANY, 3 * SECOND).await;
    sleep(ms(900)).await;
    server.pause();
    sleep(ms(1200)).await;
    server.resume();
    sleep(4 * SECOND).await;
    give_back(guards).await;
    nothing_left(&server, SECOND).await;
}

/// Although a renewal may take less time than a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lost_without_a_connection_says_why_there_is_none() {
    let Some(mut server) = RedisServer::start_or_skip("a lost connection under renewals") else { return };
    let client = connect(&server.url()).await;
    let guard = take(&client, 1, SECOND).await.remove(0);
    server.kill();
    assert_eq!(within(SOON, guard.lost()).await, LossReason::StoreUnreachable);
    let error = guard.release().await.expect_err("lost").to_string();
    assert!(error.contains("refused"), "{error}");
}
