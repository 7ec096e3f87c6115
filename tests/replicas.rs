//! `wait_replicas`: a grant counts only when replicas have it.
#![cfg(feature = "_redis")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use leasehold::redis::RedisBackend;
use leasehold::{Client, Error};
use leasehold_support::{Cluster, RedisServer, Reply, Setup, eventually, more_rules, within};
use tokio::runtime::Builder;
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);
/// For a replica that acknowledges, however busy the machine is.
const AMPLE: Duration = Duration::from_millis(1500);
/// For one that does not.
const TIME_LIMIT: Duration = Duration::from_millis(300);

/// A primary with a replica that is in step.
async fn servers() -> Option<(RedisServer, RedisServer)> {
    let primary = RedisServer::start_or_skip("grants that replicas acknowledge")?;
    primary.allow(&more_rules("+wait"));
    let options = ["--replicaof", "127.0.0.1", &primary.port().to_string()].map(str::to_owned).to_vec();
    let replica = RedisServer::start_with_or_skip("a replica", Setup { options, ..Setup::default() })?;
    eventually(SECOND * 20, || async {
        let info = replica.raw().send(&["INFO", "replication"]).text().unwrap_or_default();
        info.contains("master_link_status:up")
    })
    .await;
    Some((primary, replica))
}

async fn connect(server: &RedisServer, replicas: u32, limit: Duration) -> Client {
    let builder = RedisBackend::builder(&server.url()).expect("a URL").wait_replicas(replicas, limit);
    Client::with_backend(Arc::new(builder.connect().await.expect("the server answers")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_at_the_replica_when_it_is_answered() -> Result<(), Error> {
    let Some((primary, replica)) = servers().await else { return Ok(()) };
    let client = connect(&primary, 1, AMPLE).await;
    for n in 0..50 {
        let guard = client.mutex(&format!("{n}"))?.lock().await?;
        let value = replica.raw().get(&format!("lock:{n}")).expect("the replica has it");
        assert!(value.contains(&guard.token().to_string()), "{value}");
        guard.release().await?;
    }
    let guard = client.fair_semaphore("s", 2)?.acquire().await?;
    assert_eq!(replica.raw().send(&["ZCARD", "fair-semaphore:s"]).int(), 1);
    guard.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_a_release_pushes_is_at_the_replica_as_well() -> Result<(), Error> {
    let Some((primary, replica)) = servers().await else { return Ok(()) };
    let (client, other) = (connect(&primary, 1, AMPLE).await, connect(&primary, 1, AMPLE).await);
    let (mutex, waiting) = (client.mutex("a")?, other.mutex("a")?);
    for _ in 0..20 {
        let guard = mutex.lock().await?;
        let last = guard.token();
        let waiter = {
            let waiting = waiting.clone();
            tokio::spawn(async move { waiting.lock().await })
        };
        eventually(SECOND * 5, || async { mutex.inspect().await.expect("an answer").waiters.len() == 1 })
            .await;
        guard.release().await?;
        let guard = within(SECOND * 5, waiter).await.expect("no panic")?;
        assert!(guard.token() > last);
        let value = replica.raw().get("lock:a").expect("the replica has it");
        assert!(value.contains(&guard.token().to_string()), "{value}");
        guard.release().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_acknowledgements_release_the_lock_and_are_reported() -> Result<(), Error> {
    let Some((primary, replica)) = servers().await else { return Ok(()) };
    let client = connect(&primary, 1, TIME_LIMIT).await;
    replica.pause();
    let begun = Instant::now();
    let error = client.mutex("a")?.lock().await.expect_err("no replica answers");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("0 of 1 replicas acknowledged the grant within 300ms"), "{error}");
    assert!(begun.elapsed() >= TIME_LIMIT && begun.elapsed() < SECOND * 10, "{:?}", begun.elapsed());
    eventually(SECOND, || async { primary.raw().get("lock:a").is_none() }).await;
    replica.resume();
    // It catches up first.
    let mutex = client.mutex("a")?;
    eventually(SECOND * 20, || async { mutex.lock().await.is_ok() }).await;

    let two = connect(&primary, 2, TIME_LIMIT).await;
    let error = two.mutex("b")?.try_lock().await.expect_err("there is one replica");
    assert!(error.to_string().contains("of 2 replicas"), "{error}");
    eventually(SECOND, || async { primary.raw().get("lock:b").is_none() }).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_it_is_the_replica_of_the_slot_that_counts() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("grants that replicas of a cluster acknowledge") else {
        return Ok(());
    };
    for node in &cluster.nodes {
        node.allow(&more_rules("+wait"));
    }
    let connect = async |limit| {
        let builder = RedisBackend::builder(&cluster.url())?.wait_replicas(1, limit);
        Ok::<_, Error>(Client::with_backend(Arc::new(builder.connect().await?)))
    };
    let (client, impatient) = (connect(AMPLE).await?, connect(TIME_LIMIT).await?);
    // Names of all three primaries.
    for n in 0..9 {
        let key = format!("lock:{n}");
        let primary = cluster.serving(0, cluster.slot(&key));
        let replica = &cluster.nodes[primary + 3];
        let mut raw = replica.raw();
        assert_eq!(raw.send(&["READONLY"]), Reply::ok());
        let guard = client.mutex(&n.to_string())?.lock().await?;
        let value = raw.get(&key).expect("the replica has it");
        assert!(value.contains(&guard.token().to_string()), "{value}");
        guard.release().await?;
        // Only the names of this slot's primary are refused without it.
        replica.pause();
        let error = impatient.mutex(&n.to_string())?.lock().await.expect_err("the replica does not answer");
        assert!(error.to_string().contains("0 of 1 replicas acknowledged the grant"), "{error}");
        let other = (0..).map(|n| format!("other:{n}"));
        let mut other =
            other.filter(|name| cluster.serving(0, cluster.slot(&format!("lock:{name}"))) != primary);
        client.mutex(&other.next().expect("there is one"))?.lock().await?.release().await?;
        replica.resume();
        client.mutex(&n.to_string())?.lock().await?.release().await?;
    }
    impatient.shutdown().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_at_the_same_time_share_their_round_trips() -> Result<(), Error> {
    let Some((primary, _replica)) = servers().await else { return Ok(()) };
    let client = connect(&primary, 1, AMPLE).await;
    let tasks: Vec<_> = (0..500)
        .map(|n| {
            let mutex = client.mutex(&n.to_string()).expect("a name");
            tokio::spawn(async move { mutex.lock().await?.release().await })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic")?;
    }
    let waits = primary.raw().info_commandstats().get("wait").copied().unwrap_or_default();
    assert!((1..100).contains(&waits), "{waits} times WAIT for 500 grants");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_waited_for_is_refused() {
    for (replicas, time_limit) in [(0, TIME_LIMIT), (1, Duration::ZERO), (1, SECOND * 3)] {
        let builder = RedisBackend::builder("redis://localhost").expect("a URL");
        let error = builder.wait_replicas(replicas, time_limit).connect().await.expect_err("out of bounds");
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
}

#[test]
fn calls_on_a_runtime_that_is_no_longer_driven_hold_up_no_others() {
    let first = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let second = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let Some((primary, replica)) = second.block_on(servers()) else { return };
    let client = second.block_on(connect(&primary, 1, AMPLE));
    replica.pause();
    // One waits for the replica, and the others for the next time that somebody does.
    let mut calls: Vec<_> = (0..3)
        .map(|n| {
            let mutex = client.mutex(&format!("{n}")).expect("valid");
            Box::pin(async move { mutex.lock().await })
        })
        .collect();
    let all = async { timeout(Duration::from_millis(100), join_all(&mut calls)).await };
    first.block_on(all).expect_err("the replica does not acknowledge");
    replica.resume();
    second.block_on(async {
        let mutex = client.mutex("other").expect("valid");
        within(SECOND * 6, mutex.lock()).await.expect("free").release().await.expect("held");
    });
    drop(calls);
    second.block_on(async { client.shutdown().await.expect("drained") });
}
