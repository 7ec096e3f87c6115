//! A cluster of real servers: every operation, slots that move, nodes that die.
#![cfg(feature = "_redis")]

use std::time::{Duration, Instant};

use leasehold::{Client, Error, FencingToken, MutexOptions};
use leasehold_support::hosts::{Fault, FaultyAddress, is_run_with_hosts};
use leasehold_support::{Cluster, Load, Reply, eventually, within};

const SECOND: Duration = Duration::from_secs(1);

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(&cluster.url()).await.expect("the cluster answers")
}

async fn waiters(client: &Client, name: &str) -> usize {
    let mutex = client.mutex(name).expect("a name");
    mutex.inspect().await.expect("the cluster answers").waiters.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_primitive_works_wherever_its_slot_is() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("primitives in a cluster") else { return Ok(()) };
    let (client, other) = (connect(&cluster).await, connect(&cluster).await);
    for n in 0..40 {
        let name = format!("name {n}");
        let guard = client.mutex(&name)?.lock().await?;
        assert!(other.mutex(&name)?.try_lock().await?.is_none(), "{name}");
        let (mutex, token) = (other.mutex(&name)?, guard.token());
        let waiter = tokio::spawn(async move { mutex.lock().await });
        eventually(SECOND * 5, || async { waiters(&client, &name).await == 1 }).await;
        guard.release().await?;
        let next = within(SECOND * 5, waiter).await.expect("no panic")?;
        assert!(next.token() > token);
        next.release().await?;

        let lock = client.reentrant_lock(&name, "me")?;
        let (outer, inner) = (lock.lock().await?, lock.lock().await?);
        assert_eq!(outer.token(), inner.token());
        outer.release().await?;
        assert!(other.mutex(&name)?.try_lock().await?.is_none());
        inner.release().await?;

        let semaphore = client.fair_semaphore(&name, 2)?;
        let (first, second) = (semaphore.acquire().await?, semaphore.acquire().await?);
        assert!(other.fair_semaphore(&name, 2)?.try_acquire().await?.is_none());
        first.release().await?;
        second.release().await?;
        let counting = client.counting_semaphore(&name, 3)?;
        let many = counting.acquire_many(3).await?;
        assert!(other.counting_semaphore(&name, 3)?.try_acquire().await?.is_none());
        many.release().await?;
    }
    client.shutdown().await?;
    other.shutdown().await?;
    let keys: Vec<_> = cluster.keys().into_iter().filter(|key| key.contains("lock:")).collect();
    assert_eq!(keys, Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_one_slot_share_calls_and_each_prefix_has_a_fence_per_slot() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("batches in a cluster") else { return Ok(()) };
    let client = connect(&cluster).await;
    let tasks = (0..200).map(|n| {
        let mutex = client.mutex(&format!("{{tag}}{n}")).expect("a name");
        tokio::spawn(async move { mutex.lock().await?.release().await })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic")?;
    }
    let node = cluster.serving(0, cluster.slot("{tag}"));
    let scripts: u64 = ["evalsha", "eval"]
        .iter()
        .map(|name| *cluster.nodes[node].raw().info_commandstats().get(*name).unwrap_or(&0))
        .sum();
    assert!(scripts < 300, "{scripts} calls for 400 operations");
    let fences: Vec<_> = cluster.nodes[..3].iter().flat_map(|node| node.raw().keys("*:fence")).collect();
    assert_eq!(fences.len(), 1, "{fences:?}");
    assert!(fences[0].ends_with("}:lock::fence"), "{fences:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_kept_while_its_slot_moves_and_the_next_token_is_greater() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("a slot that moves") else { return Ok(()) };
    let client = connect(&cluster).await;
    let options = MutexOptions::new().ttl(Duration::from_millis(600));
    let mutex = client.mutex_with("moving", options)?;
    let guard = mutex.lock().await?;
    let mut last: FencingToken = guard.token();
    let waiting = {
        let mutex = connect(&cluster).await.mutex("moving")?;
        tokio::spawn(async move { mutex.lock().await })
    };
    eventually(SECOND * 5, || async { waiters(&client, "moving").await == 1 }).await;

    let slot = cluster.slot("lock:moving");
    let from = cluster.serving(0, slot);
    let to = (from + 1) % 3;
    cluster.begin_to_move(slot, from, to);
    // Renewals go on while the slot is at two nodes.
    tokio::time::sleep(SECOND).await;
    assert!(guard.is_held(), "the lease was not renewed while the slot was moving");
    cluster.move_keys(slot, from, to);
    tokio::time::sleep(SECOND).await;
    assert!(guard.is_held(), "the lease was not renewed at the node to which its key has been moved");
    cluster.finish_to_move(slot, from, to);
    tokio::time::sleep(SECOND).await;
    assert!(guard.is_held(), "the lease was not renewed after the slot had moved");
    guard.release().await?;
    let next = within(SECOND * 5, waiting).await.expect("no panic")?;
    assert!(next.token() > last);
    last = next.token();
    next.release().await?;
    let again = mutex.lock().await?;
    assert!(again.token() > last);
    again.release().await?;
    // A free lock, back again.
    cluster.move_slot(slot, to, from);
    let again = mutex.lock().await?;
    assert!(again.token() > last);
    again.release().await
}

/// Two nodes that each say that a slot is at the other: what is left of a move that went wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_nobody_serves_holds_up_no_other() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("a slot that nobody serves") else { return Ok(()) };
    let client = connect(&cluster).await;
    let slot = cluster.slot("lock:astray");
    let owner = cluster.serving(0, slot);
    cluster.assign(slot, (owner + 1) % 3, owner);

    let astray = client.mutex("astray")?;
    let error = astray.lock_timeout(SECOND).await.expect_err("nobody serves the slot");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("MOVED"), "{error}");
    let waiting = (0..8).map(|_| {
        let astray = client.mutex("astray").expect("a name");
        tokio::spawn(async move { astray.lock().await?.release().await })
    });
    let waiting: Vec<_> = waiting.collect();
    for n in 0..300 {
        let begun = Instant::now();
        client.mutex(&format!("other {n}"))?.lock().await?.release().await?;
        assert!(begun.elapsed() < SECOND, "other {n}: {:?}", begun.elapsed());
    }
    cluster.assign(slot, owner, owner);
    for task in waiting {
        within(SECOND * 10, task).await.expect("no panic").expect("the slot is served again");
    }
    astray.lock().await?.release().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_lock_while_slots_move_and_primaries_die() {
    let Some(mut cluster) = Cluster::start_or_skip("migration and failover in a cluster under load") else {
        return;
    };
    let load = Load::start(&cluster.url(), 64).await;
    load.go_on_for_or(2_000, || cluster.views()).await;
    for n in 0..16 {
        let slot = cluster.slot(&format!("lock:load {n}"));
        let from = cluster.serving(0, slot);
        cluster.move_slot(slot, from, (from + 1) % 3);
        load.go_on_for_or(50, || cluster.views()).await;
    }
    load.go_on_for_or(2_000, || cluster.views()).await;
    let mut failovers = 0;
    for victim in 0..2 {
        // The second one hangs, and wakes up when it has been replaced.
        if victim == 0 {
            cluster.nodes[victim].kill()
        } else {
            cluster.nodes[victim].pause()
        }
        let slots_of_victim = |asked: usize| cluster.nodes[asked].raw().send(&["CLUSTER", "SLOTS"]).array();
        let port = i64::from(cluster.nodes[victim].port());
        eventually(SECOND * 30, || async {
            slots_of_victim(2).into_iter().all(|range| range.array()[2].clone().array()[1].int() != port)
        })
        .await;
        failovers += 1;
        load.go_on_for_or(2_000, || cluster.views()).await;
        // A client that still uses a primary that was replaced may be granted what others hold.
        load.go_on_everywhere().await;
        if victim == 0 {
            cluster.nodes[victim].restart()
        } else {
            cluster.nodes[victim].resume()
        }
        load.go_on_for_or(500, || cluster.views()).await;
    }
    let report = load.stop().await;
    eprintln!("cluster: 16 slots moved, {failovers} failovers: {report}");
    assert_eq!((report.tokens_that_went_back, report.overlaps), (0, 0), "{report}");
    assert!(report.longest_gap < SECOND * 10, "{report}");
}

#[test]
fn an_idle_client_whose_runtime_has_ended_asks_no_node_for_slots() {
    let Some(cluster) = Cluster::start_or_skip("an idle client of a cluster") else { return };
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
    };
    let (first, second) = (runtime(), runtime());
    let lock = async |client: &Client| {
        for n in 0..20 {
            let mutex = client.mutex(&format!("name {n}")).expect("a name");
            within(SECOND * 5, mutex.lock()).await.expect("free").release().await.expect("held");
        }
    };
    let client = first.block_on(async {
        let client = connect(&cluster).await;
        lock(&client).await;
        client
    });
    drop(first);
    let asked = || -> u64 {
        let of =
            |node: usize| *cluster.nodes[node].raw().info_commandstats().get("cluster|slots").unwrap_or(&0);
        (0..cluster.nodes.len()).map(of).sum()
    };
    let before = asked();
    std::thread::sleep(SECOND * 3);
    let calls = asked() - before;
    assert!(calls <= 6, "{calls} calls of an idle client in three seconds");
    second.block_on(async {
        lock(&client).await;
        client.shutdown().await.expect("drained");
    });
}

/// The URL of nodes with these ports, in this order.
fn url_of(ports: &[u16]) -> String {
    let nodes: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redis-cluster://{}{}", leasehold_support::acl::login(), nodes.join(","))
}

/// A name of a lock for each primary.
fn served_names(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|node| {
        let is_there =
            |name: &String| cluster.serving(node, cluster.slot_at(node, &format!("lock:{name}"))) == node;
        (0..).map(|n| format!("name {n}")).find(is_there).expect("there are enough names")
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_list_that_does_not_work_costs_a_part_of_the_limit() -> Result<(), Error> {
    let Some(cluster) = Cluster::start_or_skip("nodes in the list of a cluster") else { return Ok(()) };
    let works = cluster.nodes[1].port();
    let late = Fault::Late(SECOND * 3, ([127, 0, 0, 1], works).into());
    for fault in [Fault::Hangs, Fault::Refuses, Fault::Drops, Fault::Swallows, late] {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = free.local_addr().expect("it has an address");
        drop(free);
        let faulty = FaultyAddress::new(address, fault).await;
        for ports in [[faulty.address().port(), works], [works, faulty.address().port()]] {
            let client =
                Client::connect(&url_of(&ports)).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            client.mutex("x")?.lock().await?.release().await?;
            client.shutdown().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_or_is_dead_keeps_nobody_from_the_other_slots() -> Result<(), Error> {
    let Some(mut cluster) = Cluster::start_or_skip("a cluster of which a part works") else { return Ok(()) };
    for node in &cluster.nodes {
        node.raw().send(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        // No replica takes over while this runs.
        node.raw().send(&["CONFIG", "SET", "cluster-replica-no-failover", "yes"]);
    }
    let ports: Vec<_> = cluster.nodes.iter().map(leasehold_support::RedisServer::port).collect();
    let names = served_names(&cluster);
    let used_before = connect(&cluster).await;
    // A primary that is listed first, one that is not listed, and a replica that is listed first.
    for (victim, listed, other) in [(0, [0, 1], 1), (2, [0, 1], 0), (3, [3, 1], 1)] {
        let url = url_of(&listed.map(|node| ports[node]));
        cluster.nodes[victim].pause();
        let client = Client::connect(&url).await.unwrap_or_else(|error| panic!("without {victim}: {error}"));
        for (client, other_client) in [(&client, &used_before), (&used_before, &client)] {
            let guard = within(SECOND * 10, client.mutex(&names[other])?.lock()).await?;
            let mutex = other_client.mutex(&names[other])?;
            let waiter = tokio::spawn(async move { mutex.lock().await });
            eventually(SECOND * 10, || async { waiters(client, &names[other]).await == 1 }).await;
            guard.release().await?;
            within(SECOND * 10, waiter).await.expect("no panic")?.release().await?;
        }
        // The subscriptions may have been at that node, and have moved by now.
        for client in [&client, &used_before] {
            let begun = Instant::now();
            client.mutex(&names[other])?.lock().await?.release().await?;
            assert!(begun.elapsed() < SECOND, "without {victim}: {:?}", begun.elapsed());
        }
        if victim < 3 {
            let error = client.ping(SECOND * 4).await.expect_err("one of them hangs");
            assert!(error.to_string().contains(&ports[victim].to_string()), "{error}");
            let named = || async { client.state().nodes.iter().any(|node| !node.status.is_connected()) };
            eventually(SECOND * 10, named).await;
        }
        cluster.nodes[victim].resume();
        eventually(SECOND * 15, || async { client.ping(SECOND * 4).await.is_ok() }).await;
        client.shutdown().await?;
    }
    cluster.nodes[0].kill();
    let client = Client::connect(&url_of(&[ports[0], ports[1]])).await.expect("the others work");
    client.mutex(&names[1])?.lock().await?.release().await?;
    let findings = client.check().await?;
    assert!(findings.iter().any(|finding| finding.text.contains(&ports[0].to_string())), "{findings:?}");
    client.shutdown().await
}

/// From when a primary is dead, or hangs, until a replica has taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_connect_while_a_replica_takes_over() -> Result<(), Error> {
    let Some(mut cluster) = Cluster::start_or_skip("connecting during a failover") else { return Ok(()) };
    let names = served_names(&cluster);
    let ports: Vec<_> = cluster.nodes.iter().map(leasehold_support::RedisServer::port).collect();
    for (victim, full_coverage) in [(0, true), (1, false)] {
        for node in &cluster.nodes[victim..] {
            let needed = if full_coverage { "yes" } else { "no" };
            node.raw().send(&["CONFIG", "SET", "cluster-require-full-coverage", needed]);
        }
        if full_coverage {
            cluster.nodes[victim].kill()
        } else {
            cluster.nodes[victim].pause()
        }
        let (mut locked, mut is_over) = (Vec::new(), false);
        while !is_over {
            let slot = cluster.slot_at(2, &format!("lock:{}", names[victim]));
            is_over = cluster.serving(2, slot) != victim;
            let begun = Instant::now();
            let client = Client::connect(&url_of(&[ports[victim], ports[2]])).await?;
            assert!(begun.elapsed() < SECOND * 2, "victim {victim}: {:?}", begun.elapsed());
            if !full_coverage {
                client.mutex(&names[2])?.lock().await?.release().await?;
            }
            assert!(begun.elapsed() < SECOND * 3, "victim {victim}: {:?}", begun.elapsed());
            let mutex = client.mutex(&names[victim])?;
            locked.push(tokio::spawn(async move {
                mutex.lock().await?.release().await?;
                client.shutdown().await
            }));
        }
        eprintln!("{} clients have connected during a failover", locked.len());
        for task in locked {
            within(SECOND * 20, task).await.expect("no panic")?;
        }
    }
    Ok(())
}

/// Also of names that the nodes themselves tell.
#[test]
fn an_address_of_a_node_that_swallows_packets_costs_a_part_of_the_limit() {
    let name = "an_address_of_a_node_that_swallows_packets_costs_a_part_of_the_limit";
    if !is_run_with_hosts(name, "node.test=127.0.0.96,127.0.0.1") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let test = async {
        let Some(cluster) = Cluster::start_or_skip(name) else { return Ok(()) };
        let names = served_names(&cluster);
        let mut swallowing = Vec::new();
        for node in &cluster.nodes {
            swallowing.push(FaultyAddress::new(([127, 0, 0, 96], node.port()).into(), Fault::Swallows).await);
        }
        let url = cluster.url().replace("127.0.0.1", "node.test");
        for told in [false, true] {
            if told {
                for node in &cluster.nodes {
                    let answers = [
                        ["CONFIG", "SET", "cluster-announce-hostname", "node.test"],
                        ["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"],
                    ]
                    .map(|command| node.raw().send(&command));
                    if answers != [Reply::ok(), Reply::ok()] {
                        eprintln!("this version does not tell names: {answers:?}");
                        return Ok(());
                    }
                }
                let text = || format!("{:?}", cluster.nodes[0].raw().send(&["CLUSTER", "SLOTS"]));
                eventually(SECOND * 20, || async { text().matches("node.test").count() >= 6 }).await;
            }
            let begun = Instant::now();
            let client = Client::connect(&url).await?;
            for name in &names {
                client.mutex(name)?.lock().await?.release().await?;
            }
            assert!(begun.elapsed() < SECOND * 3, "{:?}", begun.elapsed());
            // In use.
            for node in &cluster.nodes {
                node.raw().send(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            }
            let begun = Instant::now();
            for name in &names {
                client.mutex(name)?.lock().await?.release().await?;
            }
            assert!(begun.elapsed() < SECOND * 3, "{:?}", begun.elapsed());
            client.shutdown().await?;
        }
        Ok::<_, Error>(())
    };
    runtime.expect("a runtime").block_on(test).expect("it works");
}
