//! Users and passwords that are provided when a connection is made, and change while locks are held.
#![cfg(feature = "_redis")]

use std::collections::BTreeSet;
use std::future::ready;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all, pending};
use leasehold::redis::{Credentials, CredentialsProvider, RedisBackend};
use leasehold::{BoxError, Client, Error, Guard, MutexOptions};
use leasehold_support::{Proxy, Raw, RedisServer, Reply, eventually, within};

const SECOND: Duration = Duration::from_secs(1);
/// With everything that separates words or parts of a URL.
const PASSWORD: &str = " p@ss:\"'\\x41 /%?#\r\n\t\u{e9} ";
const TTL: Duration = Duration::from_secs(3);

/// What is to be provided, which the test changes.
#[derive(Clone, Debug)]
struct Vault(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    credentials: Mutex<Credentials>,
    asked: AtomicUsize,
}

impl Vault {
    fn with(user: &str, password: &str) -> Self {
        let credentials = Mutex::new(Credentials::new(user, password));
        Self(Arc::new(Inner { credentials, asked: AtomicUsize::new(0) }))
    }

    fn put(&self, user: &str, password: &str) {
        *self.0.credentials.lock().expect("nobody panics") = Credentials::new(user, password);
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }
}

impl CredentialsProvider for Vault {
    fn credentials(&self) -> BoxFuture<'_, Result<Credentials, BoxError>> {
        async {
            // Somebody else is asked.
            tokio::task::yield_now().await;
            self.0.asked.fetch_add(1, Ordering::SeqCst);
            Ok(self.0.credentials.lock().expect("nobody panics").clone())
        }
        .boxed()
    }
}

async fn connect(url: &str, provider: impl CredentialsProvider + 'static) -> Result<Client, Error> {
    let backend = RedisBackend::builder(url)?.credentials(provider).connect().await?;
    Ok(Client::with_backend(Arc::new(backend)))
}

fn set_user(raw: &mut Raw, user: &str, password: &str) {
    let password = format!(">{password}");
    let rules = ["ACL", "SETUSER", user, "on", "resetpass", &password, "~*", "&*", "+@all"];
    assert_eq!(raw.send(&rules), Reply::ok());
}

fn connections(raw: &mut Raw, user: &str) -> usize {
    ids(raw, user).len()
}

fn ids(raw: &mut Raw, user: &str) -> BTreeSet<String> {
    let clients = raw.send(&["CLIENT", "LIST"]).text().expect("text");
    let of_user = clients.lines().filter(|line| line.contains(&format!("user={user} ")));
    of_user.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

async fn lock_many(client: &Client) -> Result<Vec<Guard>, Error> {
    let mut guards = Vec::new();
    for n in 0..20 {
        let options = MutexOptions::new().ttl(TTL);
        guards.push(client.mutex_with(&n.to_string(), options)?.lock().await?);
    }
    Ok(guards)
}

/// Longer than a TTL: only renewed leases are held then.
async fn still_held_after_a_lease(guards: Vec<Guard>) {
    tokio::time::sleep(TTL + TTL / 3).await;
    assert!(guards.iter().all(Guard::is_held));
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released.expect("held to the end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_kept_while_a_password_changes() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("a password that changes") else { return Ok(()) };
    let mut raw = server.raw();
    set_user(&mut raw, "app", "one");
    let vault = Vault::with("app", "one");
    let client = connect(&server.url(), vault.clone()).await?;
    assert_eq!((connections(&mut raw, "app"), vault.asked()), (3, 3));
    let guards = lock_many(&client).await?;
    // First the server knows of the change, then everybody else.
    set_user(&mut raw, "app", "two");
    assert_eq!(raw.send(&["CLIENT", "KILL", "USER", "app"]).int(), 3);
    eventually(SECOND, || async { vault.asked() > 10 }).await;
    assert_eq!(connections(&mut raw, "app"), 0);
    vault.put("app", "two");
    eventually(SECOND, || async { connections(&mut server.raw(), "app") == 3 }).await;
    still_held_after_a_lease(guards).await;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_kept_while_one_user_takes_the_place_of_another() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("a user that is deleted") else { return Ok(()) };
    let mut raw = server.raw();
    set_user(&mut raw, "old", "one");
    set_user(&mut raw, "new", "two");
    let vault = Vault::with("old", "one");
    let client = connect(&server.url(), vault.clone()).await?;
    let guards = lock_many(&client).await?;
    vault.put("new", "two");
    // Which closes its connections.
    assert_eq!(raw.send(&["ACL", "DELUSER", "old"]).int(), 1);
    eventually(SECOND, || async { connections(&mut server.raw(), "new") == 3 }).await;
    still_held_after_a_lease(guards).await;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_no_longer_logged_in_is_replaced() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("NOAUTH") else { return Ok(()) };
    let mut raw = server.raw();
    set_user(&mut raw, "app", "one");
    assert_eq!(raw.send(&["CONFIG", "SET", "requirepass", "other"]), Reply::ok());
    let proxy = Proxy::start(server.port()).await;
    let vault = Vault::with("app", "one");
    let client = connect(&proxy.url(), vault.clone()).await?;
    let guards = lock_many(&client).await?;
    for _ in 0..3 {
        let before = ids(&mut raw, "app");
        proxy.log_out();
        let guard = within(SECOND, client.mutex("another")?.lock()).await?;
        guard.release().await?;
        // That for commands at once, that for renewals with its next command; that for messages carries none.
        let mut replaced = || {
            let now = ids(&mut raw, "app");
            now.len() == 3 && now.intersection(&before).count() == 1
        };
        eventually(TTL, || ready(replaced())).await;
    }
    assert_eq!(vault.asked(), 3 + 3 * 2);
    still_held_after_a_lease(guards).await;
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_provided_takes_the_place_of_what_the_url_says() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("provided credentials") else { return Ok(()) };
    let mut raw = server.raw();
    set_user(&mut raw, "app", PASSWORD);
    assert_eq!(raw.send(&["CONFIG", "SET", "requirepass", "other"]), Reply::ok());
    let url = format!("redis://somebody:else@127.0.0.1:{}", server.port());
    let client = connect(&url, Credentials::new("app", PASSWORD)).await?;
    assert_eq!(connections(&mut raw, "app"), 3);
    client.mutex("a")?.lock().await?.release().await?;
    client.shutdown().await?;
    let client = connect(&url, Credentials::for_default_user("other")).await?;
    assert_eq!(connections(&mut raw, "default"), 4);
    client.shutdown().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_are_wrong_are_an_error_that_says_so() -> Result<(), Error> {
    let Some(server) = RedisServer::start_or_skip("wrong credentials") else { return Ok(()) };
    let mut raw = server.raw();
    set_user(&mut raw, "app", "one");
    let error = connect(&server.url(), Credentials::new("app", "hunter2")).await.expect_err("refused");
    assert!(matches!(error, Error::StoreRefused { .. }), "{error:?}");
    assert!(error.to_string().contains("WRONGPASS"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    // Later it is why there is no connection.
    let vault = Vault::with("app", "one");
    let client = connect(&server.url(), vault.clone()).await?;
    vault.put("app", "hunter2");
    assert_eq!(raw.send(&["CLIENT", "KILL", "USER", "app"]).int(), 3);
    let error = client.mutex("a")?.try_lock().await.expect_err("not connected");
    assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("WRONGPASS"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    drop(client);
    Ok(())
}

/// Provides nothing, for one of these reasons.
#[derive(Clone, Copy, Debug)]
enum Broken {
    Fails,
    Hangs,
    Panics,
}

impl CredentialsProvider for Broken {
    fn credentials(&self) -> BoxFuture<'_, Result<Credentials, BoxError>> {
        match self {
            Self::Fails => async { Err("the vault is sealed".into()) }.boxed(),
            Self::Hangs => pending().boxed(),
            Self::Panics => async { panic!("the vault has no door") }.boxed(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_fails_is_the_reason_of_the_error() {
    let Some(server) = RedisServer::start_or_skip("providers that fail") else { return };
    for (broken, reason, limit) in [
        (Broken::Fails, "no credentials: the vault is sealed", SECOND),
        (Broken::Hangs, "no credentials: not provided within 1.5s", SECOND * 2),
        // It is printed first, which takes longer on a busy machine.
        (Broken::Panics, "panicked", SECOND * 5),
    ] {
        let error = within(limit, connect(&server.url(), broken)).await.expect_err("not connected");
        assert!(matches!(error, Error::StoreUnavailable { .. }), "{error:?}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(connections(&mut server.raw(), "default"), 1, "only ours");
}

#[tokio::test]
async fn debug_output_of_a_builder_has_no_credentials() {
    let builder =
        RedisBackend::builder("redis://h").expect("valid").credentials(Vault::with("me", "hunter2"));
    assert!(!format!("{builder:?}").contains("hunter2"));
}
