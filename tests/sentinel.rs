//! A primary with replicas, and sentinels that promote one of them.
#![cfg(feature = "_redis")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::redis::{Credentials, RedisBackend};
use leasehold::{Client, Error, MutexOptions};
use leasehold_support::{Load, Raw, RedisServer, Sentinels, Setup, acl, eventually, more_rules, within};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_continue_at_the_new_primary_with_increasing_tokens() -> Result<(), Error> {
    let Some(mut servers) = Sentinels::start_or_skip("failover by sentinels") else { return Ok(()) };
    let client = Client::connect(&servers.url()).await?;
    let options = MutexOptions::new().ttl(SECOND * 2);
    let mutex = client.mutex_with("a", options.clone())?;
    let guard = mutex.lock().await?;
    let last = guard.token();
    guard.release().await?;
    assert_eq!(servers.primary(0), 0);
    servers.servers[0].kill();
    eventually(SECOND * 20, || async { servers.primary(0) != 0 }).await;
    let guard = within(SECOND * 10, async {
        loop {
            match mutex.lock().await {
                Ok(guard) => return guard,
                Err(Error::StoreUnavailable { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let guard = guard.await;
    assert!(guard.token() > last);
    let new = servers.primary(0);
    assert!(servers.servers[new].raw().get("lock:a").is_some());
    guard.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_no_sentinel_knows_is_an_error_that_says_so() {
    let Some(servers) = Sentinels::start_or_skip("an unknown service") else { return };
    let url = servers.url().replace("/main", "/other");
    let error = Client::connect(&url).await.expect_err("nobody knows it");
    assert!(error.to_string().contains("no sentinel knows the primary of `other`"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sentinel_is_tolerated() -> Result<(), Error> {
    let Some(mut servers) = Sentinels::start_or_skip("a dead sentinel") else { return Ok(()) };
    servers.sentinels[0].kill();
    servers.sentinels[1].pause();
    let client = Client::connect(&servers.url()).await?;
    client.mutex("a")?.lock().await?.release().await?;
    servers.sentinels[1].resume();
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_tasks_lock_while_primaries_die() {
    let Some(mut servers) = Sentinels::start_or_skip("failover by sentinels under load") else { return };
    let load = Load::start(&servers.url(), 64).await;
    load.go_on_for(2_000).await;
    let mut failovers = 0;
    for hangs in [false, true] {
        let old = servers.primary(0);
        // The second one hangs, and wakes up when it has been replaced.
        if hangs {
            servers.servers[old].pause()
        } else {
            servers.servers[old].kill()
        }
        eventually(SECOND * 60, || async { servers.primary(0) != old }).await;
        failovers += 1;
        load.go_on_for(2_000).await;
        if hangs {
            servers.servers[old].resume()
        } else {
            servers.servers[old].restart()
        }
        // A server closes its connections when it becomes a replica.
        let ready = |server: usize| {
            let mut raw = Raw::connect(servers.servers[server].port()).ok()?;
            raw.try_send(&["INFO", "replication"]).ok()?.text()
        };
        // On a machine that stands still for half a second, the sentinels may have made it the primary again.
        eventually(SECOND * 60, || async {
            ready(old).is_some_and(|info| info.contains("master_link_status:up")) || servers.primary(0) == old
        })
        .await;
    }
    let report = load.stop().await;
    eprintln!("sentinel: {failovers} failovers: {report}");
    assert_eq!((report.tokens_that_went_back, report.overlaps), (0, 0), "{report}");
    assert!(report.longest_gap < SECOND * 10, "{report}");
}

/// It wakes up when another server is the primary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_and_waited_for_outlives_a_primary_that_hangs() -> Result<(), Error> {
    let Some(servers) = Sentinels::start_or_skip("a primary that hangs") else { return Ok(()) };
    let client = Client::connect(&servers.url()).await?;
    let mutex = |name| client.mutex_with(name, MutexOptions::new().ttl(SECOND * 20));
    let (held, released) = (mutex("held")?.lock().await?, mutex("released")?.lock().await?);
    let waiting = (0..5).map(|_| {
        let mutex = mutex("released").expect("valid");
        tokio::spawn(async move { mutex.lock().await?.release().await })
    });
    let waiting: Vec<_> = waiting.collect();
    assert_eq!(servers.servers[0].raw().send(&["WAIT", "2", "5000"]).int(), 2);
    servers.servers[0].pause();
    let paused = Instant::now();
    let releasing = tokio::spawn(released.release());
    eventually(SECOND * 20, || async { servers.primary(0) != 0 }).await;
    let (replaced, failover) = (Instant::now(), paused.elapsed());
    let outcome = within(SECOND * 10, releasing).await.expect("no panic");
    for task in waiting {
        within(SECOND * 10, task).await.expect("no panic")?;
    }
    eprintln!("failover {failover:?}, release {outcome:?}, all after {:?}", replaced.elapsed());
    assert!(held.is_held());
    servers.servers[0].resume();
    let again = mutex("released")?.lock().await?;
    let now = servers.primary(0);
    assert!(servers.servers[now].raw().get("lock:released").is_some());
    again.release().await?;
    held.release().await?;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_with_a_password_of_their_own() -> Result<(), Error> {
    let Some(primary) = RedisServer::start_or_skip("sentinels with a password") else { return Ok(()) };
    primary.allow(&more_rules("+role"));
    let rules = format!("sentinel monitor main 127.0.0.1 {} 1", primary.port());
    let setup = Setup { sentinel: Some(rules), ..Setup::default() };
    let sentinel = RedisServer::start_with_or_skip("sentinels with a password", setup).expect("a sentinel");
    let password = ["ACL", "SETUSER", "default", "resetpass", ">s3cret"];
    assert_eq!(sentinel.raw().send(&password).text().as_deref(), Some("OK"));
    let url = format!("redis-sentinel://{}127.0.0.1:{}/main", acl::login(), sentinel.port());
    let connect = async |password: Option<&str>| {
        let builder = RedisBackend::builder(&url)?;
        let builder = match password {
            Some(password) => builder.sentinel_credentials(Credentials::for_default_user(password)),
            None => builder,
        };
        Result::<_, Error>::Ok(Client::with_backend(Arc::new(builder.connect().await?)))
    };
    for (password, words) in [
        (None, "the server requires a password, and none was given"),
        (Some("wrong"), "the server does not accept this user name and password"),
    ] {
        let text = connect(password).await.expect_err("it is refused").to_string();
        assert!(text.contains(words), "{text}");
    }
    let client = connect(Some("s3cret")).await?;
    client.mutex("a")?.lock().await?.release().await?;
    client.shutdown().await?;

    let without =
        RedisBackend::builder(&primary.url())?.sentinel_credentials(Credentials::for_default_user("x"));
    let error = without.connect().await.expect_err("there are none");
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    Ok(())
}
