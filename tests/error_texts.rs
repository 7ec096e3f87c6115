//! What a user reads when something is wrong: errors say in words what it is and what to do.
#![cfg(feature = "_redis")]

use std::net::TcpListener;
use std::time::Duration;

use leasehold::{Client, Error};
use leasehold_support::{RedisServer, Setup, acl, at_once};

/// The text of the error of connecting to `url`, which is not accepted to take long.
async fn refused(url: &str) -> String {
    at_once(async || Client::connect(url).await).await.expect_err("it is refused").to_string()
}

#[tokio::test]
async fn urls() {
    let schemes = "invalid url: its scheme is not one of `memory:`, `sqlite:`, `postgres://`, `postgresql://`, `mysql://`, `mariadb://`, `etcd://`, `etcds://`, `zookeeper://`, `redlock://`, `redlocks://`, \
                   `redis://`, `rediss://`, `redis+unix://`, `redis-sentinel://`, `rediss-sentinel://`, `redis-cluster://`, `rediss-cluster://`, and the same with \
                   `valkey` instead of `redis`";
    let encode = |character, code| {
        format!(
            "invalid url: it has a misplaced `{character}`: percent-encode it as `{code}` if it belongs to the user name or the \
             password"
        )
    };
    for (url, text) in [
        ("memory", "invalid url: the URL of the store in memory is `memory:`, with the colon"),
        ("localhost", "invalid url: it has no scheme, such as `redis://`"),
        ("localhost:6379", schemes),
        ("http://localhost", schemes),
        ("redis:localhost", "invalid url: `redis:` is not followed by `//`"),
        ("redis://", "invalid url: it names no host"),
        ("redis://localhost:port", "invalid url: the port of a host is not a number from 1 to 65535"),
        ("redis://localhost/locks", "invalid url: the database is not a number from 0 to 255"),
        ("redis://user:p/w@localhost", &encode('/', "%2F")),
        ("redis://user:p?w@localhost", &encode('?', "%3F")),
        ("redis://user:p#w@localhost", &encode('#', "%23")),
        ("redis://user:p@w@localhost", &encode('@', "%40")),
        ("redis://user:p:w@localhost", &encode(':', "%3A")),
        (
            "redis://localhost?timeout=3",
            "invalid url: unknown option `timeout`; a URL of this scheme has no options",
        ),
        (
            "redlock://a,b,c?timeout=3",
            "invalid url: unknown option `timeout`; the known ones are `node_timeout`, `connect_timeout`, `reply_timeout`, \
             `poll_interval`",
        ),
    ] {
        assert_eq!(refused(url).await, text, "{url}");
        // Also where nothing is connected to.
        assert_eq!(Client::connect_lazy(url).expect_err("no URL").to_string(), text, "{url}");
    }
}

/// Every scheme that is listed is known.
#[tokio::test]
async fn the_list_of_schemes_is_complete() {
    let text = refused("http://localhost").await;
    let listed: Vec<_> = text.split('`').filter(|word| word.contains("://")).collect();
    for scheme in
        listed.iter().chain(["valkey://", "valkeys://", "valkey+unix://", "valkey-sentinel://"].iter())
    {
        let url = format!("{scheme}{}", if scheme.contains("unix") { "/a" } else { "localhost/a" });
        let text = Client::connect_lazy(&url).map(drop).map_err(|error| error.to_string());
        assert!(!text.clone().is_err_and(|text| text.contains("its scheme")), "{scheme}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords() {
    let Some(server) = RedisServer::start_or_skip("errors of logging in") else { return };
    let mut raw = server.raw();
    assert_eq!(raw.send(&["CONFIG", "SET", "requirepass", "right"]).text().as_deref(), Some("OK"));
    let address = format!("127.0.0.1:{}", server.port());
    let store = format!("connect at redis://{address}: refused by the store");
    let none = refused(&format!("redis://{address}")).await;
    let expected = format!("{store}: the server requires a password, and none was given: NOAUTH");
    assert!(none.starts_with(&expected), "{none}");
    let wrong = refused(&format!("redis://:wrong@{address}")).await;
    let expected = format!("{store}: the server does not accept this user name and password: WRONGPASS");
    assert!(wrong.starts_with(&expected) && !wrong.contains("wrong"), "{wrong}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_not_there() {
    // The port was free a moment ago, and nobody else is given it that soon.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let text = refused(&format!("redis://{address}")).await;
    let expected = format!(
        "connect at redis://{address}: store unavailable: the request was not sent: Connection refused"
    );
    // redis-rs adds the number.
    assert_eq!(text.strip_suffix(" (os error 111)").unwrap_or(&text), expected);
    // How long that takes is up to the resolver.
    let error =
        Client::connect("redis://no-such-host.invalid").await.expect_err("nobody is there").to_string();
    let expected = "connect at redis://no-such-host.invalid:6379: store unavailable: the request was not sent: \
         `no-such-host.invalid` could not be resolved: failed to lookup address";
    assert!(error.starts_with(expected) && !error.contains("Custom {"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_accepts_and_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let store = format!("redis://{}", listener.local_addr().expect("an address"));
    let error = Client::connect(&store).await.expect_err("nobody answers");
    assert_eq!(
        error.to_string(),
        format!(
            "connect at {store}: store unavailable: no answer; the outcome is unknown: connected, but the server did not \
             answer within 2s"
        )
    );
}

#[test]
fn runtimes_that_cannot_connect() {
    let Some(server) = RedisServer::start_or_skip("a runtime without I/O") else { return };
    let (store, port) = (server.url(), server.port());
    let text = |what: &str| {
        format!(
            "not supported by redis://127.0.0.1:{port}: {what}: connections need a tokio runtime with I/O and timers enabled (`enable_all`)"
        )
    };
    let without_io = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let error = without_io.block_on(Client::connect(&store)).expect_err("there is no I/O");
    assert_eq!(error.to_string(), text("a runtime without I/O"));
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");

    // A lazy client finds it when it is used, does not try for long, and works elsewhere.
    let client = Client::connect_lazy(&store).expect("a URL");
    let mutex = client.mutex("a").expect("a name");
    let error = without_io.block_on(mutex.lock()).expect_err("there is no I/O");
    assert_eq!(error.to_string(), text("a runtime without I/O"));
    drop(without_io);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async { mutex.lock().await?.release().await }).expect("the server answers");

    let without_timers =
        tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let error = without_timers.block_on(Client::connect(&store)).expect_err("there are no timers");
    assert_eq!(error.to_string(), text("a runtime without timers"));
    let error = futures::executor::block_on(Client::connect(&store)).expect_err("there is no runtime");
    assert_eq!(error.to_string(), text("a call outside a runtime"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_says_is_repeated_without_additions() -> Result<(), Error> {
    let options = ["--maxmemory", "1gb"].map(str::to_owned).to_vec();
    let setup = Setup { options, ..Setup::default() };
    let Some(server) = RedisServer::start_with_or_skip("errors of the server", setup) else { return Ok(()) };
    let client = Client::connect(&server.url()).await?;
    let mutex = client.mutex("a")?;
    mutex.lock().await?.release().await?;
    let mut raw = server.raw();
    let for_now = "store unavailable: declined for now: ";
    for (set, reset, word, what) in [
        (
            ["CONFIG", "SET", "maxmemory", "1"],
            ["CONFIG", "SET", "maxmemory", "0"],
            "OOM command not allowed",
            for_now,
        ),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "3"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS Not enough good replicas",
            for_now,
        ),
        (
            ["ACL", "SETUSER", acl::user(), "-evalsha"],
            ["ACL", "SETUSER", acl::user(), "+evalsha"],
            "NOPERM",
            "refused by the store: ",
        ),
    ] {
        assert_eq!(raw.send(&set).text().as_deref(), Some("OK"));
        let error = mutex.try_lock().await.expect_err(word);
        assert_eq!(raw.send(&reset).text().as_deref(), Some("OK"));
        let text = error.to_string();
        // Without anything in front of it; for a script, later servers say so themselves.
        let before = format!("acquire `a` at redis://127.0.0.1:{}: {what}", server.port());
        let said = text.strip_prefix(&before).unwrap_or_else(|| panic!("{text}"));
        assert!(said.starts_with(word), "{text}");
        assert!(!text.contains("Unknown Error"), "{text}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_behind_a_key_without_expiry() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("a key without expiry") else { return Ok(()) };
    assert_eq!(server.raw().send(&["SET", "lock:a", "somebody"]).text().as_deref(), Some("OK"));
    let client = Client::connect(&server.url()).await?;
    let error = client.mutex("a")?.lock_timeout(Duration::from_millis(200)).await.expect_err("it is held");
    assert!(matches!(error, Error::TimedOut { holder_never_expires: true, .. }), "{error:?}");
    let text = error.to_string();
    let words = "waiting for `a`: its key has no expiry, so the lock stays taken until that key is deleted";
    assert!(text.starts_with("timed out after ") && text.contains(words), "{text}");
    Ok(())
}
