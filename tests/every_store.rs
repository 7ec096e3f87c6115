//! What holds on every store that is a server, without one.
#![cfg(all(
    feature = "fred",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper"
))]

use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use leasehold::{Client, Error};
use leasehold_support::hosts::is_run_with_hosts;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// Thousands of clients keep the crate's thread busy, on which those of another test are closed.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// All schemes, for a server at this address, with these credentials, which are empty or end with `@`.
fn urls(credentials: &str, address: SocketAddr) -> Vec<String> {
    let all = [
        "redis://*",
        "redis-cluster://*",
        "redis-sentinel://*/main",
        "redlock://*,127.0.0.2:#,127.0.0.3:#",
        "postgres://*/db",
        "mysql://*/db",
        "mariadb://*/db",
        "etcd://*",
        "zookeeper://*",
    ];
    let place = format!("{credentials}{address}");
    all.map(|url| url.replace('#', &address.port().to_string()).replace('*', &place)).into()
}

/// A port that refuses connections, and one that accepts them and says nothing as long as the listener lives.
fn ports() -> (SocketAddr, SocketAddr, TcpListener) {
    let [refuses, swallows] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let [refusing, swallowing] = [&refuses, &swallows].map(|port| port.local_addr().expect("an address"));
    (refusing, swallowing, swallows)
}

/// What has become of the only request of a client when that is shut down.
#[derive(Clone, Copy, Debug)]
enum Asked {
    InVain,
    Dropped,
    InFlight,
}

/// Longer than a shutdown may take in any case.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

async fn shut_down_after_a_request((url, asked): (String, Asked)) -> Option<String> {
    // URLs of Redis have no such option.
    let patient = Client::connect_lazy(&format!("{url}?connect_timeout={}s", CONNECT_TIMEOUT.as_secs()));
    let client = patient.or_else(|_| Client::connect_lazy(&url)).expect("a URL");
    let mutex = client.mutex("a").expect("a name");
    let mut waiting = Box::pin(mutex.lock_timeout(Duration::from_secs(60)));
    match asked {
        Asked::InVain => {
            let error = mutex.try_lock().await.map(drop).expect_err("nobody answers");
            assert!(matches!(error, Error::StoreUnavailable { .. }), "{url}: {error:?}");
        }
        Asked::Dropped | Asked::InFlight => {
            let early = timeout(Duration::from_millis(500), &mut waiting).await;
            assert!(early.is_err(), "{url}: {early:?}");
        }
    }
    let (waiting, begun) = (matches!(asked, Asked::InFlight).then_some(waiting), Instant::now());
    let shut_down = async { (client.shutdown().await, begun.elapsed()) };
    let waits = async {
        match waiting {
            Some(waiting) => matches!(waiting.await, Err(Error::Closed { .. })),
            None => true,
        }
    };
    let ((closed, took), is_closed) = join(shut_down, waits).await;
    // Waiting for the store, or for what connects to it, would take longer.
    let is_right = closed.is_ok() && took < CONNECT_TIMEOUT / 5 && is_closed;
    (!is_right).then(|| format!("{url}, {asked:?}: {closed:?} after {took:?}, {is_closed}"))
}

/// Nothing has ever left it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_store_was_never_reached_has_nothing_to_release() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (refusing, swallowing, _listener) = ports();
    let urls = [refusing, swallowing].into_iter().flat_map(|address| urls("", address));
    let all = urls
        .flat_map(|url| [Asked::InVain, Asked::Dropped, Asked::InFlight].map(|asked| (url.clone(), asked)));
    let wrong: Vec<_> = join_all(all.map(shut_down_after_a_request)).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The system answers after 8 s. A runtime waits for the calls on its own threads for blocking work when it ends.
#[test]
fn a_name_server_that_does_not_answer_delays_no_end_of_a_runtime() {
    let this = "a_name_server_that_does_not_answer_delays_no_end_of_a_runtime";
    if !is_run_with_hosts(this, "silent.test=") {
        return;
    }
    let (refusing, ..) = ports();
    let all = urls("", refusing).into_iter().map(|url| url.replace("127.0.0.1", "silent.test"));
    let begun = Instant::now();
    let runtime = Runtime::new().expect("threads");
    runtime.block_on(join_all(all.map(async |url| {
        let outcome = timeout(Duration::from_millis(500), Client::connect(&url)).await;
        // A Redlock has other nodes, which refuse.
        assert!(!matches!(outcome, Ok(Ok(_))), "{url}");
    })));
    drop(runtime);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// A word that is in each part of each password, and must not be in any text.
const SECRET: &str = "hunter";

#[track_caller]
fn assert_hidden(said: &(impl Debug + ?Sized), url: &str) {
    assert!(!format!("{said:?}").contains(SECRET), "{url}: {said:?}");
}

/// The text of an error, and of its causes.
fn texts(error: &Error) -> Vec<String> {
    let mut texts = vec![format!("{error:?}"), error.to_string()];
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        texts.push(format!("{source:?} {source}"));
        cause = source.source();
    }
    texts
}

/// What means something in a URL, and what is encoded, or looks like it.
const SPECIAL: [&str; 18] =
    ["@", "/", "#", "?", "%", ":", " ", ",", "&", "=", "[", "]", "\\", "%40", "%2F", "%zz", "%ff", "0"];

fn password(one: &str, other: &str) -> String {
    format!("{SECRET}{one}{SECRET}1{other}{SECRET}")
}

/// With each pair of them, as the password of a user, or of nobody. What is accepted is connected to only with one of
/// each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_part_of_a_password_is_said() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let (refusing, ..) = ports();
    let mut accepted = Vec::new();
    let pairs =
        SPECIAL.iter().enumerate().flat_map(|(n, one)| SPECIAL[n..].iter().map(move |other| (one, other)));
    for (one, other) in pairs {
        for user in if one == other { &["app", ""][..] } else { &["app"] } {
            for url in urls(&format!("{user}:{}@", password(one, other)), refusing) {
                match Client::connect_lazy(&url) {
                    Ok(client) => assert_hidden(&(&client, client.state()), &url),
                    Err(error) => assert_hidden(&texts(&error), &url),
                }
                if one == other && !user.is_empty() {
                    accepted.push(url);
                }
            }
        }
    }
    let connected = join_all(accepted.iter().map(|url| Client::connect(url))).await;
    for (url, connected) in accepted.iter().zip(connected) {
        assert_hidden(&texts(&connected.expect_err("nobody is there")), url);
    }
}
