//! Locks on three ZooKeeper servers of which one leads, while members are killed or stand still.
#![cfg(feature = "zookeeper")]

#[path = "support/zookeeper.rs"]
mod server;

use std::future::ready;
use std::time::Duration;

use leasehold::{Client, Error, LossReason, MutexOptions};
use leasehold_support::faults::{NAME, SECOND, granted, ms, mutex, until_waiting, waiter};
use leasehold_support::refusals::nothing_fails_during;
use leasehold_support::{eventually, within};
use server::ZookeeperEnsemble;

/// An election takes a second or two.
const FAILOVER: Duration = Duration::from_secs(30);

async fn client(ensemble: &ZookeeperEnsemble) -> Client {
    Client::connect(&ensemble.url()).await.expect("the ensemble serves clients")
}

async fn until_served(client: &Client) {
    eventually(FAILOVER, || async { client.ping(SECOND).await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_and_the_queue_outlast_any_member() {
    let Some(mut ensemble) = ZookeeperEnsemble::start_or_skip("members that are killed") else { return };
    // They are on different members.
    let (one, two, three) = (client(&ensemble).await, client(&ensemble).await, client(&ensemble).await);
    let mut last = None;
    for leads in [false, true, true] {
        let guard = mutex(&one).lock().await.expect("free");
        assert!(last < Some(guard.token()), "{last:?} {:?}", guard.token());
        let second = waiter(&mutex(&two));
        until_waiting(&mutex(&one), 1).await;
        let third = waiter(&mutex(&three));
        until_waiting(&mutex(&one), 2).await;

        let killed = ensemble.find(leads);
        ensemble.kill(killed);
        // All of them are connected to another member, and nobody has lost anything.
        for client in [&one, &two, &three] {
            until_served(client).await;
        }
        assert!(guard.is_held());
        let token = guard.token();
        guard.release().await.expect("held");
        let guard = granted(second).await;
        assert!(guard.token() > token);
        guard.release().await.expect("held");
        let guard = granted(third).await;
        last = Some(guard.token());
        guard.release().await.expect("held");
        ensemble.restart(killed);
    }
    for client in [one, two, three] {
        client.shutdown().await.expect("released");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_member_may_stand_still_and_a_lost_quorum_is_waited_for() {
    let Some(ensemble) = ZookeeperEnsemble::start_or_skip("members that stand still") else { return };
    let (one, two, three) = (client(&ensemble).await, client(&ensemble).await, client(&ensemble).await);
    for leads in [false, true] {
        let guard = mutex(&one).lock().await.expect("free");
        let second = waiter(&mutex(&two));
        until_waiting(&mutex(&one), 1).await;
        let stopped = ensemble.find(leads);
        ensemble.pause(stopped);
        for client in [&one, &two, &three] {
            until_served(client).await;
        }
        assert!(guard.is_held());
        within(FAILOVER, guard.release()).await.expect("another member answers");
        within(FAILOVER, granted(second)).await.release().await.expect("held");
        ensemble.resume(stopped);
        eventually(FAILOVER, || ready(ensemble.is_ready())).await;
    }
    let two_members = [ensemble.find(true), ensemble.find(false)];
    nothing_fails_during(
        "no quorum",
        client(&ensemble).await,
        client(&ensemble).await,
        async || two_members.iter().for_each(|n| ensemble.pause(*n)),
        async || {
            two_members.iter().for_each(|n| ensemble.resume(*n));
            eventually(FAILOVER, || ready(ensemble.is_ready())).await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_granted_and_holders_are_notified() {
    let Some(mut ensemble) = ZookeeperEnsemble::start_or_skip("no quorum") else { return };
    let (one, two) = (client(&ensemble).await, client(&ensemble).await);
    let options = MutexOptions::default().ttl(2 * SECOND);
    let guard = one.mutex_with(NAME, options).expect("valid").lock().await.expect("free");
    let token = guard.token();
    let follows = ensemble.find(false);
    ensemble.kill(follows);
    let leads = ensemble.find(true);
    ensemble.kill(leads);

    let reason = within(3 * SECOND, guard.lost()).await;
    assert_eq!(reason, LossReason::StoreUnreachable);
    let error = mutex(&two).lock_timeout(ms(500)).await.map(drop).expect_err("nothing can be stored");
    assert!(matches!(error, Error::TimedOut { .. } | Error::StoreUnavailable { .. }), "{error:?}");

    ensemble.restart(leads);
    ensemble.restart(follows);
    until_served(&two).await;
    let guard = mutex(&two).lock().await.expect("the lease has ended");
    assert!(guard.token() > token);
    guard.release().await.expect("held");
    for client in [one, two] {
        client.shutdown().await.expect("released");
    }
}
