//! What a lock promises real processes: killed, paused, resumed, ended with and without a clean shutdown. Each
//! worker is this test binary once more, as a process of its own.
#![cfg(feature = "_redis")]

use std::future::{Future, pending, ready};
use std::process;
use std::time::Duration;

use leasehold::{Client, DistMutex, Error, FencingToken, Guard, LossReason, MutexOptions};
use leasehold_support::{
    Raw, RedisServer, Reply, Worker, eventually, one_place_each, options, say, url_of, within, worker_args,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

const NAME: &str = "machine:42";
const FENCE: &str = "{lock:}:fence";

const SECOND: Duration = Duration::from_secs(1);
/// The lease of every worker.
const LEASE: Duration = SECOND;
/// A holder that has died is replaced within this time: its lease, and a second.
const REPLACED: Duration = Duration::from_secs(2);
/// A deadline for what should happen at once. Shorter than a third of the default lease, so that nothing can
/// meet it just because a request is repeated.
const SOON: Duration = Duration::from_secs(5);
const ROUNDS: usize = 4;

/// A resource that checks tokens: refuses any that is older than the newest it has seen, and keeps a log of
/// those it accepted.
const FENCED_WRITE: &str = "
    if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or 0) then return 0 end
    redis.call('SET', KEYS[1], ARGV[1])
    redis.call('RPUSH', KEYS[2], ARGV[1])
    return 1";

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

async fn connect(server: &RedisServer) -> Client {
    Client::connect(&server.url()).await.expect("the server accepts clients")
}

/// The lock of the tests, with the default lease of half a minute: nothing that a waiter in the test process
/// gets can come from a repeated request.
fn mutex_of(client: &Client) -> DistMutex {
    client.mutex_with(NAME, options()).expect("valid")
}

/// The same with the lease of the workers.
fn brief_mutex_of(client: &Client) -> DistMutex {
    client.mutex_with(NAME, options().ttl(LEASE)).expect("valid")
}

/// The lock of the tests, with a place of its own in the store's queue for every waiter.
fn queued_mutex(client: &Client, one_place_each: MutexOptions) -> DistMutex {
    client.mutex_with(NAME, one_place_each).expect("valid")
}

/// `lock`, in a task of its own, and when it was granted.
fn waiter(mutex: &DistMutex) -> JoinHandle<(Guard, Instant)> {
    let mutex = mutex.clone();
    tokio::spawn(async move { (mutex.lock().await.expect("granted"), Instant::now()) })
}

/// Waits until `n` requests are queued.
#[track_caller]
fn until_waiting(mutex: &DistMutex, n: usize) -> impl Future<Output = ()> {
    eventually(SOON * 2, move || async move {
        mutex.inspect().await.is_ok_and(|inspection| inspection.waiters.len() == n)
    })
}

fn fenced_write(raw: &mut Raw, token: FencingToken) -> bool {
    let token = token.get().to_string();
    raw.send(&["EVAL", FENCED_WRITE, "2", "register", "accepted", &token]).int() == 1
}

/// The numbers in a list.
fn numbers(raw: &mut Raw, key: &str) -> Vec<u64> {
    let texts = raw.send(&["LRANGE", key, "0", "-1"]).array();
    texts.iter().map(|text| text.text().and_then(|text| text.parse().ok()).expect("a number")).collect()
}

fn grows(numbers: &[u64]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

/// Only the fence is left of the lock, and of everything else nothing but `data`; soon.
#[track_caller]
fn only_the_fence_is_left<'a>(raw: &'a mut Raw, data: &'a [&str]) -> impl Future<Output = ()> + use<'a> {
    eventually(SOON, move || {
        let mut keys = raw.keys("*");
        keys.retain(|key| !data.contains(&key.as_str()));
        ready(keys == [FENCE])
    })
}

// Workers

/// What a worker has been told: the server's URL and port, and what to do.
struct Orders {
    client: Client,
    port: u16,
    what: String,
}

impl Orders {
    async fn receive() -> Option<Self> {
        let args = worker_args()?;
        let mut words = args.split(' ');
        let port = words.next().and_then(|port| port.parse().ok()).expect("a port");
        let what = words.next().unwrap_or_default().to_owned();
        let client = Client::connect(&url_of(port)).await.expect("connected");
        Some(Self { client, port, what })
    }

    fn mutex(&self) -> DistMutex {
        brief_mutex_of(&self.client)
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.port).expect("the server accepts connections")
    }
}

fn start(worker: &str, server: &RedisServer, what: &str) -> Worker {
    Worker::start(worker, &format!("{} {what}", server.port()))
}

/// Increments a plain counter under the lock, in 25 tasks, as soon as it is told to go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_worker() {
    let Some(orders) = Orders::receive().await else { return };
    say("ready");
    let go = orders.raw().send(&["BLPOP", "go", "10"]);
    assert_ne!(go, Reply::nil(), "no signal to start");
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (mutex, mut raw) = (orders.mutex(), orders.raw());
        tasks.spawn(async move {
            for _ in 0..TURNS {
                let guard = mutex.lock().await.expect("granted");
                let read: usize = raw.get("counter").map_or(0, |text| text.parse().expect("a number"));
                sleep(ms(1)).await;
                raw.send(&["SET", "counter", &(read + 1).to_string()]);
                raw.send(&["RPUSH", "tokens", &guard.token().to_string()]);
                guard.release().await.expect("held to the end");
            }
        });
    }
    tasks.join_all().await;
    orders.client.shutdown().await.expect("drained");
    say("done");
}

/// Waits for the lock, and holds it forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_worker() {
    let Some(orders) = Orders::receive().await else { return };
    let guard = orders.mutex().lock().await.expect("granted");
    say(&format!("held {}", guard.token()));
    let reason = guard.lost().await;
    say(&format!("lost {reason}"));
    pending::<()>().await;
}

/// Writes to the fenced register under the lock until the lease is lost, then once more in spite of the loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writing_worker() {
    let Some(orders) = Orders::receive().await else { return };
    let guard = orders.mutex().lock().await.expect("granted");
    let (token, mut raw) = (guard.token(), orders.raw());
    say(&format!("held {token}"));
    let write_on = async {
        loop {
            if !fenced_write(&mut raw, token) {
                say("refused");
            }
            sleep(ms(5)).await;
        }
    };
    match orders.what.as_str() {
        "lost" => tokio::select! {
            biased;
            reason = guard.lost() => assert_eq!(reason, LossReason::Expired),
            () = write_on => {}
        },
        "protect" => {
            let end: Result<(), Error> = guard.protect(write_on).await;
            assert!(matches!(end, Err(Error::Lost { reason: LossReason::Expired, .. })), "{end:?}");
        }
        other => panic!("no such order: {other}"),
    }
    say("lost");
    assert!(!guard.is_held());
    say(if fenced_write(&mut orders.raw(), token) { "late write accepted" } else { "late write refused" });
    assert!(matches!(guard.release().await, Err(Error::Lost { .. })));
    orders.client.shutdown().await.expect("drained");
}

/// Takes the lock and leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaving_worker() {
    let Some(orders) = Orders::receive().await else { return };
    let guard = orders.mutex().lock().await.expect("granted");
    say(&format!("held {}", guard.token()));
    match orders.what.as_str() {
        "shutdown" => {
            drop(guard);
            orders.client.shutdown().await.expect("drained");
        }
        "drop" => drop(guard),
        "exit" => process::exit(0),
        other => panic!("no such order: {other}"),
    }
}

/// Waits for the lock, holds it for a moment, and gives it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passing_worker() {
    let Some(orders) = Orders::receive().await else { return };
    let guard = orders.mutex().lock().await.expect("granted");
    let id = orders.mutex().inspect().await.expect("inspected").holder().and_then(|holder| holder.token);
    assert_eq!(id, Some(guard.token()), "the store names another holder");
    say(&format!("held {}", guard.token()));
    guard.release().await.expect("held to the end");
    orders.client.shutdown().await.expect("drained");
    say("released");
}

// Exclusion

const PROCESSES: usize = 4;
const TASKS: usize = 25;
const TURNS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_processes_exclude_each_other_under_growing_tokens() {
    let Some(server) = RedisServer::start_or_skip("exclusion among processes") else { return };
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| start("counting_worker", &server, "")).collect();
    for worker in &mut workers {
        assert_eq!(worker.line().await.as_deref(), Some("ready"));
    }
    let mut raw = server.raw();
    raw.send(&["RPUSH", "go", "1", "2", "3", "4"]);
    for worker in &mut workers {
        assert_eq!(worker.line().await.as_deref(), Some("done"));
        assert!(worker.wait().success());
    }
    let all = PROCESSES * TASKS * TURNS;
    assert_eq!(raw.get("counter"), Some(all.to_string()));
    let tokens = numbers(&mut raw, "tokens");
    assert_eq!(tokens.len(), all);
    assert!(grows(&tokens), "{tokens:?}");
    only_the_fence_is_left(&mut raw, &["counter", "tokens"]).await;
}

// Death

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_is_replaced_within_its_lease_and_a_second() {
    let Some(server) = RedisServer::start_or_skip("killed holders") else { return };
    let client = connect(&server).await;
    for round in 0..ROUNDS {
        let mut worker = start("holding_worker", &server, "");
        let token = worker.held().await;
        let waiter = waiter(&mutex_of(&client));
        until_waiting(&mutex_of(&client), 1).await;
        let killed = Instant::now();
        worker.kill();
        let (next, granted) = within(SOON, waiter).await.expect("no panic");
        let after = granted - killed;
        assert!(after <= REPLACED, "round {round}: after {after:?}");
        assert!(next.token() > token, "round {round}");
        next.release().await.expect("held to the end");
    }
    client.shutdown().await.expect("drained");
    only_the_fence_is_left(&mut server.raw(), &[]).await;
}

/// A holder in this process, perhaps a waiter in this process, then a worker, then a waiter in this process.
struct Queue {
    holder: Guard,
    before: Option<JoinHandle<(Guard, Instant)>>,
    doomed: Worker,
    after: JoinHandle<(Guard, Instant)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    Middle,
}

impl Queue {
    async fn form(server: &RedisServer, mutex: &DistMutex, place: Place) -> Self {
        let holder = mutex.lock().await.expect("free");
        let before = (place == Place::Middle).then(|| waiter(mutex));
        let ahead = usize::from(before.is_some());
        until_waiting(mutex, ahead).await;
        let doomed = start("holding_worker", server, "");
        until_waiting(mutex, ahead + 1).await;
        let after = waiter(mutex);
        until_waiting(mutex, ahead + 2).await;
        Self { holder, before, doomed, after }
    }

    /// Lets everybody have a turn, and answers how long the last one waited after the holder's release.
    async fn serve(self, kill: Kill) -> Duration {
        let Self { holder, before, mut doomed, after } = self;
        match kill {
            Kill::BeforeItsTurn => doomed.kill(),
            Kill::InItsTurn => doomed.pause(),
        }
        let released = Instant::now();
        let mut newest = holder.token();
        holder.release().await.expect("held to the end");
        if let Some(before) = before {
            let (guard, _) = within(SOON, before).await.expect("no panic");
            assert!(guard.token() > newest);
            newest = guard.token();
            guard.release().await.expect("held to the end");
        }
        // If it was paused, the lock has been granted to it by now.
        doomed.kill();
        let (guard, granted) = within(SOON, after).await.expect("no panic");
        assert!(guard.token() > newest);
        assert_eq!(doomed.unread(), None, "it never held");
        guard.release().await.expect("held to the end");
        granted - released
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    BeforeItsTurn,
    /// The worker is paused while it waits, is granted the lock, and is killed without running again.
    InItsTurn,
}

async fn kill_waiters(server: &RedisServer, place: Place, kill: Kill) {
    let client = connect(server).await;
    for round in 0..ROUNDS {
        let queue = Queue::form(server, &queued_mutex(&client, one_place_each().ttl(LEASE)), place).await;
        let blocked = queue.serve(kill).await;
        assert!(blocked <= REPLACED, "round {round}: a dead waiter blocked the others for {blocked:?}");
    }
    client.shutdown().await.expect("drained");
    only_the_fence_is_left(&mut server.raw(), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_at_the_head_blocks_nobody_for_longer_than_a_lease() {
    let Some(server) = RedisServer::start_or_skip("killed waiters") else { return };
    kill_waiters(&server, Place::Head, Kill::BeforeItsTurn).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_in_the_middle_blocks_nobody_for_longer_than_a_lease() {
    let Some(server) = RedisServer::start_or_skip("killed waiters") else { return };
    kill_waiters(&server, Place::Middle, Kill::BeforeItsTurn).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_killed_on_the_way_to_its_grant_blocks_nobody_for_longer_than_a_lease() {
    let Some(server) = RedisServer::start_or_skip("killed waiters") else { return };
    kill_waiters(&server, Place::Head, Kill::InItsTurn).await;
    kill_waiters(&server, Place::Middle, Kill::InItsTurn).await;
}

/// The others have long leases here: none of them finds out by asking again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_is_passed_over_in_the_release_itself() {
    let Some(server) = RedisServer::start_or_skip("killed waiters") else { return };
    let client = connect(&server).await;
    let mutex = queued_mutex(&client, one_place_each());
    for place in [Place::Head, Place::Middle] {
        let queue = Queue::form(&server, &mutex, place).await;
        let blocked = queue.serve(Kill::BeforeItsTurn).await;
        assert!(blocked <= SECOND, "blocked for {blocked:?}");
        until_waiting(&mutex, 0).await;
    }
    assert!(mutex.try_lock().await.expect("answered").is_some());
}

// Pauses

/// A writer is paused for two leases while another takes over, and is told before it can do harm.
async fn pause_a_writer(server: &RedisServer, told_by: &str) {
    let (client, mut raw) = (connect(server).await, server.raw());
    let mut worker = start("writing_worker", server, told_by);
    let old = worker.held().await;
    eventually(SOON, || ready(raw.send(&["LLEN", "accepted"]).int() > 3)).await;
    worker.pause();
    let paused = Instant::now();
    let guard = within(SOON, mutex_of(&client).lock()).await.expect("granted");
    assert!(paused.elapsed() <= REPLACED, "after {:?}", paused.elapsed());
    assert!(guard.token() > old);
    assert!(fenced_write(&mut raw, guard.token()));
    sleep_until(paused + LEASE * 2).await;
    worker.resume();

    // One write may have been under way when it was paused.
    let mut said = Vec::new();
    while let Some(line) = worker.line().await {
        said.push(line);
    }
    assert!(worker.wait().success(), "{said:?}");
    let under_way = said.iter().take_while(|line| *line == "refused").count();
    assert!(under_way <= 1, "it went on writing: {said:?}");
    assert_eq!(said[under_way..], ["lost", "late write refused"]);

    assert!(fenced_write(&mut raw, guard.token()), "the holder of now is not disturbed");
    guard.release().await.expect("held to the end");
    let accepted = numbers(&mut raw, "accepted");
    assert!(accepted.is_sorted(), "{accepted:?}");
    only_the_fence_is_left(&mut raw, &["register", "accepted"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_paused_for_two_ttls_is_notified_by_lost_before_it_writes_again() {
    let Some(server) = RedisServer::start_or_skip("paused holders") else { return };
    pause_a_writer(&server, "lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_paused_for_two_ttls_is_notified_by_protect_before_it_writes_again() {
    let Some(server) = RedisServer::start_or_skip("paused holders") else { return };
    pause_a_writer(&server, "protect").await;
}

/// The worker says nothing for as long as this.
async fn assert_silent(worker: &mut Worker, duration: Duration) {
    let said = timeout(duration, worker.line()).await;
    assert!(said.is_err(), "expected silence, got {said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_accept_a_grant_that_expired_while_it_was_paused() {
    let Some(server) = RedisServer::start_or_skip("paused waiters") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    let first = mutex.lock().await.expect("free");
    let mut worker = start("passing_worker", &server, "");
    until_waiting(&mutex, 1).await;
    worker.pause();
    let paused = Instant::now();
    let first_token = first.token();
    first.release().await.expect("held to the end");
    let granted = mutex.inspect().await.expect("inspected").holder().and_then(|holder| holder.token);
    assert!(granted > Some(first_token), "the paused waiter has been granted the lock");
    let second = within(SOON, mutex.lock()).await.expect("granted");
    assert!(Some(second.token()) > granted);
    sleep_until(paused + LEASE * 2).await;
    worker.resume();

    // It asks again instead, is queued, and leaves the holder alone.
    until_waiting(&mutex, 1).await;
    assert_silent(&mut worker, LEASE).await;
    let holder = mutex.inspect().await.expect("inspected").holder().and_then(|holder| holder.token);
    assert_eq!(holder, Some(second.token()));
    let second_token = second.token();
    second.release().await.expect("held to the end");
    assert!(worker.held().await > second_token);
    assert_eq!(worker.line().await.as_deref(), Some("released"));
    assert!(worker.wait().success());
    only_the_fence_is_left(&mut raw, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_was_forgotten_while_it_was_paused_is_queued_again() {
    let Some(server) = RedisServer::start_or_skip("paused waiters") else { return };
    let (client, mut raw) = (connect(&server).await, server.raw());
    let mutex = mutex_of(&client);
    let first = mutex.lock().await.expect("free");
    let mut worker = start("passing_worker", &server, "");
    until_waiting(&mutex, 1).await;
    worker.pause();
    let paused = Instant::now();
    until_waiting(&mutex, 0).await;
    assert!(paused.elapsed() <= REPLACED, "it counted as alive for {:?}", paused.elapsed());
    sleep_until(paused + LEASE * 2).await;
    worker.resume();
    until_waiting(&mutex, 1).await;
    assert_eq!(worker.unread(), None);
    let first_token = first.token();
    first.release().await.expect("held to the end");
    assert!(worker.held().await > first_token);
    assert_eq!(worker.line().await.as_deref(), Some("released"));
    assert!(worker.wait().success());
    only_the_fence_is_left(&mut raw, &[]).await;
}

// Ends

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_shuts_its_client_down_leaves_nothing() {
    let Some(server) = RedisServer::start_or_skip("processes that end") else { return };
    let mut raw = server.raw();
    for _ in 0..ROUNDS {
        let mut worker = start("leaving_worker", &server, "shutdown");
        worker.held().await;
        assert!(worker.wait().success());
        // Not eventually: it has waited for that itself.
        assert_eq!(raw.keys("*"), [FENCE]);
    }
}

/// Processes that end without a word to the server, as `how` says, are replaced.
async fn replace_leavers(server: &RedisServer, how: &str) {
    let client = connect(server).await;
    for round in 0..ROUNDS {
        let mut worker = start("leaving_worker", server, how);
        let token = worker.held().await;
        let left = Instant::now();
        let guard = within(SOON, mutex_of(&client).lock()).await.expect("granted");
        assert!(left.elapsed() <= REPLACED, "round {round}: after {:?}", left.elapsed());
        assert!(guard.token() > token, "round {round}");
        assert!(worker.wait().success());
        guard.release().await.expect("held to the end");
    }
    client.shutdown().await.expect("drained");
    only_the_fence_is_left(&mut server.raw(), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exits_while_it_holds_is_replaced_within_a_lease() {
    let Some(server) = RedisServer::start_or_skip("processes that end") else { return };
    replace_leavers(&server, "exit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_ends_right_after_it_dropped_its_guard_is_replaced_within_a_lease() {
    let Some(server) = RedisServer::start_or_skip("processes that end") else { return };
    replace_leavers(&server, "drop").await;
}
