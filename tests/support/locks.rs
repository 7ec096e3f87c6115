//! What the tests of locks on Redis share: clients and locks in a few words, what the store says about them, and what
//! other libraries do.

// Each of the binaries that include this uses a part.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use leasehold::{Client, DistMutex, Error, Guard};
use tokio::time::Instant;

use crate::proxy::Request;
use crate::{Raw, RedisServer, Reply, eventually, one_place_each, options};

pub const NAME: &str = "machine:42";
pub const KEY: &str = "lock:machine:42";
pub const QUEUE: &str = "{lock:machine:42}:queue";
/// Of all locks of the usual prefix.
pub const FENCE: &str = "{lock:}:fence";

pub const SECOND: Duration = Duration::from_secs(1);
/// A deadline for what should happen at once, on a busy machine.
pub const SOON: Duration = Duration::from_secs(5);
/// How much later than promised something may be on such a machine.
pub const SLACK: Duration = Duration::from_secs(1);

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// On a machine that stands still for a moment, the first answer may be late.
pub async fn connect(url: &str) -> Client {
    for _ in 0..2 {
        match Client::connect(url).await {
            Err(Error::StoreUnavailable { source, .. }) => eprintln!("connecting to {url} again: {source}"),
            answer => return answer.expect("the server accepts the client"),
        }
    }
    Client::connect(url).await.expect("the server answers")
}

pub fn mutex(client: &Client, lease: Duration) -> DistMutex {
    named(client, NAME, lease)
}

pub fn named(client: &Client, name: &str, lease: Duration) -> DistMutex {
    client.mutex_with(name, options().ttl(lease)).expect("valid")
}

/// The lock of the tests, with a place of its own in the store's queue for every waiter.
pub fn queued_mutex(client: &Client, lease: Duration) -> DistMutex {
    queued_named(client, NAME, lease)
}

pub fn queued_named(client: &Client, name: &str, lease: Duration) -> DistMutex {
    client.mutex_with(name, one_place_each().ttl(lease)).expect("valid")
}

/// Makes the server remember every script, so that none of the next calls is refused as unknown.
pub async fn warm_up(server: &RedisServer, client: &Client) {
    let mutex = named(client, "warm", ms(300));
    let mut raw = server.raw();
    raw.send(&["CONFIG", "RESETSTAT"]);
    // Of all scripts only the renewal calls this.
    let mut is_renewed = || std::future::ready(raw.info_commandstats().contains_key("pexpire"));
    loop {
        let guard = mutex.lock().await.expect("free");
        tokio::select! {
            () = eventually(SOON, &mut is_renewed) => {}
            // A machine that stands still may miss such a short lease.
            _ = guard.lost() => {}
        }
        if guard.release().await.is_ok() {
            return;
        }
    }
}

#[track_caller]
pub fn assert_unavailable<T: Debug>(outcome: &Result<T, Error>) {
    assert!(
        matches!(outcome, Err(Error::StoreUnavailable { .. })),
        "expected StoreUnavailable, got {outcome:?}"
    );
}

// What a request asks for. One for a lock that is to have the default TTL does not state it, and then looks like a
// release: tests that tell them apart use another TTL.

pub fn asks(request: &Request) -> bool {
    // What is usual may be left out at the end.
    is_of_lease(request, 2) || is_of_lease(request, 4)
}

pub fn releases(request: &Request) -> bool {
    is_of_lease(request, 1)
}

pub fn releases_by_force(request: &Request) -> bool {
    is_call(request, 4, 0)
}

pub fn renews(request: &Request) -> bool {
    is_call(request, 1, 2)
}

/// Whether a call names only the lock, and is for one lease: the arguments begin with its id. That of a renewal for
/// many begins with the TTL.
pub fn is_of_lease(request: &Request, args: usize) -> bool {
    let begins = || request.script_call().is_some_and(|call| call.1[0].contains('-'));
    is_call(request, 1, args) && begins()
}

fn is_call(request: &Request, keys: usize, args: usize) -> bool {
    request.script_call().is_some_and(|call| {
        call.0.len() == keys && call.1.len() == args && call.0.first().is_some_and(|key| key == KEY)
    })
}

// What the store says

/// The token under which the lock of the tests is held.
pub fn token_held(raw: &mut Raw) -> Option<String> {
    raw.get(KEY)?.split(' ').nth(1).map(|token| token.trim_end_matches('+').to_owned())
}

/// The keys there are, but for fences, and what is known of semaphores and of leases that were released by force, which
/// expires.
pub fn left(raw: &mut Raw) -> Vec<String> {
    let mut keys = raw.keys("*");
    keys.retain(|key| {
        let expires = |raw: &mut Raw| raw.pttl(key) != -1;
        !(key.ends_with(":fence") || (key.ends_with(":state") || key.ends_with(":revoked")) && expires(raw))
    });
    keys
}

/// Nothing but fences is left within `deadline`.
#[track_caller]
pub fn nothing_left(server: &RedisServer, deadline: Duration) -> impl Future<Output = ()> {
    let mut raw = server.raw();
    eventually(deadline, move || std::future::ready(left(&mut raw).is_empty()))
}

/// Waits until `n` requests are queued.
#[track_caller]
pub fn queued(server: &RedisServer, n: i64) -> impl Future<Output = ()> {
    let mut raw = server.raw();
    eventually(SOON, move || std::future::ready(raw.send(&["ZCARD", QUEUE]).int() == n))
}

/// The client commands that carried scripts, among all those counted.
pub fn scripts_called(calls: &BTreeMap<String, u64>) -> u64 {
    ["evalsha", "eval"].iter().filter_map(|command| calls.get(*command)).sum()
}

/// Everything the server did, apart from this count.
pub fn all_commands(calls: &BTreeMap<String, u64>) -> u64 {
    let counting = ["info", "config", "config|resetstat"];
    calls.iter().filter(|(command, _)| !counting.contains(&command.as_str())).map(|(_, n)| n).sum()
}

/// How many connections the server has, that of `raw` aside.
pub fn connections(raw: &mut Raw) -> usize {
    let list = raw.send(&["CLIENT", "LIST"]).text().expect("a list");
    list.lines().filter(|line| line.contains("id=")).count() - 1
}

/// All connections but this one are closed, soon; panics with what is known of those that are not.
pub async fn disconnected(raw: &mut Raw) {
    let closed = eventually(2 * SOON, || std::future::ready(connections(raw) == 0));
    if tokio::time::timeout(SOON, closed).await.is_err() {
        panic!("connections are left: {}", raw.send(&["CLIENT", "LIST"]).text().unwrap_or_default());
    }
}

/// How many clients listen on their channels.
pub fn listeners(raw: &mut Raw) -> usize {
    raw.send(&["PUBSUB", "CHANNELS", "leasehold:*"]).array().len()
}

// What others do

/// What redis-py puts under the key: `uuid1().hex`.
pub const BARE_HOLDER: &str = "0bd7ff6ea7e311f0a9dd0242ac120002";
/// How redis-py's `Lock` releases.
const BARE_RELEASE: &str = "
    local token = redis.call('get', KEYS[1])
    if not token or token ~= ARGV[1] then return 0 end
    redis.call('del', KEYS[1])
    return 1";

/// The bare recipe: `SET key value NX PX ms`.
pub fn bare_lock(raw: &mut Raw, value: &str, expiry: Duration) -> bool {
    raw.send(&["SET", KEY, value, "NX", "PX", &expiry.as_millis().to_string()]) == Reply::ok()
}

pub fn bare_release(raw: &mut Raw, value: &str) -> bool {
    raw.send(&["EVAL", BARE_RELEASE, "1", KEY, value]).int() == 1
}

/// A number in the store that nothing protects but the lock.
#[derive(Debug)]
pub struct Counter(Mutex<Raw>);

impl Counter {
    pub fn new(server: &RedisServer) -> Arc<Self> {
        Arc::new(Self(Mutex::new(server.raw())))
    }

    pub fn read(&self) -> u64 {
        self.raw().get("counter").map_or(0, |text| text.parse().expect("a number"))
    }

    pub fn write(&self, value: u64) {
        assert_eq!(self.raw().send(&["SET", "counter", &value.to_string()]), Reply::ok());
    }

    pub fn raw(&self) -> MutexGuard<'_, Raw> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// Time and futures

/// When `guard` stops being held unless it is renewed.
pub fn deadline(guard: &Guard) -> Instant {
    Instant::now() + guard.remaining()
}

/// Polls `future` whenever it is woken, `polls` times at most, and drops it.
pub async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Drives `future` until `event`; panics if it completes before.
pub async fn drive_until<F: Future + ?Sized>(future: Pin<&mut F>, event: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = event => {}
        _ = future => panic!("the future completed too early"),
    }
}

/// Every order of `n` things.
pub fn orders(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else { return vec![Vec::new()] };
    let insert = |order: Vec<usize>| {
        (0..n).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, last);
            longer
        })
    };
    orders(last).into_iter().flat_map(insert).collect()
}
