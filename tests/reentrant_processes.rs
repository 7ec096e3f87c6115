//! What `ReentrantLock` promises real processes: one owner in several of them, and owners that are killed, paused and
//! replaced. Each worker is this test binary once more, as a process of its own.
#![cfg(feature = "_redis")]

use std::future::{Future, ready};
use std::time::Duration;

use futures::future::join_all;
use leasehold::{Client, DistMutex, FencingToken, Guard, Inspection, MutexOptions, ReentrantLock};
use leasehold_support::{
    Raw, RedisServer, Reply, Worker, eventually, options, say, url_of, within, worker_args,
};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

const OWNER: &str = "order-42";
const OTHER_OWNER: &str = "order-43";

const SECOND: Duration = Duration::from_secs(1);
/// The lease of everybody who may die.
const LEASE: Duration = SECOND;
/// A holder that has died is replaced within this time: its lease, and a second.
const REPLACED: Duration = Duration::from_secs(2);
/// A deadline for what should happen at once, and for what a process does that has to be started first.
const SOON: Duration = Duration::from_secs(10);
/// Rounds go side by side, each lane under a name of its own.
const LANES: usize = 4;
const ROUNDS: usize = 5;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

async fn connect(server: &RedisServer) -> Client {
    Client::connect(&server.url()).await.expect("the server accepts clients")
}

fn owned(client: &Client, name: &str, owner: &str) -> ReentrantLock {
    owned_with(client, name, owner, MutexOptions::new().ttl(LEASE))
}

/// With the default lease, for those who do not die and shall not be too slow.
fn patient(client: &Client, name: &str, owner: &str) -> ReentrantLock {
    owned_with(client, name, owner, MutexOptions::new())
}

fn owned_with(client: &Client, name: &str, owner: &str, options: MutexOptions) -> ReentrantLock {
    client.reentrant_lock_with(name, owner, options).expect("valid")
}

fn mutex(client: &Client, name: &str) -> DistMutex {
    client.mutex_with(name, options().ttl(LEASE)).expect("valid")
}

async fn inspect(client: &Client, name: &str) -> Inspection {
    mutex(client, name).inspect().await.expect("inspected")
}

/// Waits until `n` requests are queued.
#[track_caller]
fn waiting<'a>(client: &'a Client, name: &'a str, n: usize) -> impl Future<Output = ()> + use<'a> {
    eventually(SOON, move || async move { inspect(client, name).await.waiters.len() == n })
}

/// The lock is held under `n` leases within this time.
#[track_caller]
fn holding<'a>(
    client: &'a Client,
    name: &'a str,
    n: usize,
    deadline: Duration,
) -> impl Future<Output = ()> + use<'a> {
    eventually(deadline, move || async move { inspect(client, name).await.holders.len() == n })
}

type Waiter = JoinHandle<(Guard, Instant)>;

/// `lock`, in a task of its own, and when it was granted.
fn waiter(lock: ReentrantLock) -> Waiter {
    tokio::spawn(async move { (lock.lock().await.expect("granted"), Instant::now()) })
}

/// Somebody else: another owner, or a mutex.
fn other_waiter(client: &Client, name: &str, round: usize) -> Waiter {
    if round.is_multiple_of(2) {
        return waiter(owned(client, name, OTHER_OWNER));
    }
    let mutex = mutex(client, name);
    tokio::spawn(async move { (mutex.lock().await.expect("granted"), Instant::now()) })
}

#[track_caller]
fn granted(waiter: Waiter) -> impl Future<Output = (Guard, Instant)> {
    let granted = within(SOON, waiter);
    async move { granted.await.expect("no panic") }
}

/// Nothing but fences is left, and of everything else nothing but `data`; soon.
#[track_caller]
fn only_fences_are_left<'a>(raw: &'a mut Raw, data: &'a [&str]) -> impl Future<Output = ()> + use<'a> {
    eventually(SOON, move || {
        let mut keys = raw.keys("*");
        keys.retain(|key| !key.ends_with(":fence") && !data.contains(&key.as_str()));
        ready(keys.is_empty())
    })
}

/// Runs `round` as often as it takes, in lanes side by side: each gets the name of its lane and the number of the
/// round, and answers the newest token it has seen, which must be greater than that of the round before.
async fn rounds<F>(server: &RedisServer, round: impl Fn(String, usize) -> F + Send + Sync)
where
    F: Future<Output = FencingToken> + Send,
{
    let round = &round;
    let lanes = (0..LANES).map(|lane| async move {
        let mut newest = None;
        for n in 0..ROUNDS {
            let token = round(format!("machine:{lane}"), lane + n).await;
            assert!(Some(token) > newest, "lane {lane}, round {n}: {token} after {newest:?}");
            newest = Some(token);
        }
    });
    join_all(lanes).await;
    only_fences_are_left(&mut server.raw(), &[]).await;
}

// Workers

/// What a worker has been told: the server's port, which lock, and for whom.
struct Orders {
    client: Client,
    port: u16,
    name: String,
    owner: String,
}

impl Orders {
    async fn receive() -> Option<Self> {
        let args = worker_args()?;
        let mut words = args.split(' ').map(str::to_owned);
        let port = words.next().and_then(|port| port.parse().ok()).expect("a port");
        let (name, owner) = (words.next().expect("a name"), words.next().expect("an owner"));
        let client = Client::connect(&url_of(port)).await.expect("connected");
        Some(Self { client, port, name, owner })
    }

    fn lock(&self) -> ReentrantLock {
        owned(&self.client, &self.name, &self.owner)
    }

    fn raw(&self) -> Raw {
        Raw::connect(self.port).expect("the server accepts connections")
    }
}

fn start(worker: &str, server: &RedisServer, name: &str, owner: &str) -> Worker {
    Worker::start(worker, &format!("{} {name} {owner}", server.port()))
}

/// Waits for the lock, and holds it forever, under two guards. When it is told of a loss, it comes in again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_worker() {
    let Some(orders) = Orders::receive().await else { return };
    let lock = orders.lock();
    loop {
        let outer = lock.lock().await.expect("granted");
        let inner = lock.lock().await.expect("let in");
        assert_eq!(inner.token(), outer.token());
        say(&format!("held {}", outer.token()));
        let reason = inner.lost().await;
        assert!(!outer.is_held() && !inner.is_held());
        say(&format!("lost {reason}"));
    }
}

/// Takes the lock, releases it, and shuts down cleanly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passing_worker() {
    let Some(orders) = Orders::receive().await else { return };
    let guard = patient(&orders.client, &orders.name, &orders.owner).lock().await.expect("granted");
    say(&format!("held {}", guard.token()));
    if orders.name.ends_with("shutdown") {
        orders.client.shutdown().await.expect("drained");
        return;
    }
    guard.release().await.expect("held to the end");
    orders.client.shutdown().await.expect("drained");
}

/// Increments a plain counter under the lock, in tasks that are owners of their own, as soon as it is told to go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counting_worker() {
    let Some(orders) = Orders::receive().await else { return };
    say("ready");
    let go = orders.raw().send(&["BLPOP", "go", "10"]);
    assert_ne!(go, Reply::nil(), "no signal to start");
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let owner = format!("{} {task}", orders.owner);
        let lock = patient(&orders.client, &orders.name, &owner);
        let mut raw = orders.raw();
        tasks.spawn(async move {
            for turn in 0..TURNS {
                let outer = lock.lock().await.expect("granted");
                let inner = if turn % 3 == 0 { Some(lock.lock().await.expect("let in")) } else { None };
                let read: usize = raw.get("counter").map_or(0, |text| text.parse().expect("a number"));
                sleep(ms(1)).await;
                raw.send(&["SET", "counter", &(read + 1).to_string()]);
                raw.send(&["RPUSH", "tokens", &outer.token().to_string()]);
                drop(inner);
                outer.release().await.expect("held to the end");
            }
        });
    }
    tasks.join_all().await;
    orders.client.shutdown().await.expect("drained");
    say("done");
}

// Exclusion

const PROCESSES: usize = 4;
const TASKS: usize = 2;
const TURNS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_in_four_processes_exclude_each_other_under_growing_tokens() {
    let Some(server) = RedisServer::start_or_skip("exclusion among processes") else { return };
    let owners = (0..PROCESSES).map(|process| format!("process-{process}"));
    let mut workers: Vec<_> =
        owners.map(|owner| start("counting_worker", &server, "machine:42", &owner)).collect();
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
    let texts = raw.send(&["LRANGE", "tokens", "0", "-1"]).array();
    let tokens: Vec<u64> =
        texts.iter().map(|text| text.text().and_then(|text| text.parse().ok()).expect("a number")).collect();
    assert_eq!(tokens.len(), all);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    only_fences_are_left(&mut raw, &["counter", "tokens"]).await;
}

// One owner in several processes

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_of_one_owner_hold_together_and_the_lock_is_free_after_the_last() {
    let Some(server) = RedisServer::start_or_skip("one owner in many processes") else { return };
    let (client, name) = (connect(&server).await, "machine:42");
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| start("holding_worker", &server, name, OWNER)).collect();
    let mut tokens = Vec::new();
    for worker in &mut workers {
        tokens.push(worker.held().await);
    }
    assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    let own = owned(&client, name, OWNER).try_lock().await.expect("answered").expect("let in");
    assert_eq!(own.token(), tokens[0]);
    let holders = inspect(&client, name).await.holders;
    assert_eq!(holders.len(), PROCESSES + 1);
    assert!(holders.iter().all(|holder| holder.owner.as_deref() == Some(OWNER)));
    let next = waiter(owned(&client, name, OTHER_OWNER));
    waiting(&client, name, 1).await;
    own.release().await.expect("held to the end");
    let mut killed = Instant::now();
    while let Some(mut worker) = workers.pop() {
        assert!(!next.is_finished(), "{} are still in", workers.len() + 1);
        worker.kill();
        killed = Instant::now();
        if !workers.is_empty() {
            holding(&client, name, workers.len(), REPLACED).await;
        }
    }
    let (next, granted) = granted(next).await;
    assert!(granted - killed <= REPLACED, "after {:?}", granted - killed);
    assert!(next.token() > tokens[0]);
    next.release().await.expect("held to the end");
    only_fences_are_left(&mut server.raw(), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_processes_of_one_owner_are_admitted_together() {
    let Some(server) = RedisServer::start_or_skip("one owner in many processes") else { return };
    let (client, name) = (connect(&server).await, "machine:42");
    let holder = mutex(&client, name).lock().await.expect("free");
    let mut owners = vec![start("holding_worker", &server, name, OWNER)];
    waiting(&client, name, 1).await;
    let between = waiter(owned(&client, name, OTHER_OWNER));
    waiting(&client, name, 2).await;
    for n in 2..4 {
        owners.push(start("holding_worker", &server, name, OWNER));
        waiting(&client, name, n + 1).await;
    }
    let before = holder.token();
    holder.release().await.expect("held to the end");
    let mut tokens = Vec::new();
    for owner in &mut owners {
        tokens.push(within(LEASE, owner.held()).await);
    }
    assert!(tokens.iter().all(|token| *token == tokens[0] && *token > before), "{tokens:?}");
    holding(&client, name, 3, SOON).await;
    assert!(!between.is_finished());
    let killed = Instant::now();
    owners.iter_mut().for_each(Worker::kill);
    let (next, granted) = granted(between).await;
    assert!(granted - killed <= REPLACED, "after {:?}", granted - killed);
    assert!(next.token() > tokens[0]);
    next.release().await.expect("held to the end");
    only_fences_are_left(&mut server.raw(), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exits_cleanly_keeps_the_holds_of_others() {
    let Some(server) = RedisServer::start_or_skip("processes that leave") else { return };
    let client = connect(&server).await;
    for name in ["machine:release", "machine:shutdown"] {
        for worker_leads in [true, false] {
            let lock = patient(&client, name, OWNER);
            let (mut worker, guard) = if worker_leads {
                // It may have left again by the time this process comes in.
                let worker = start("passing_worker", &server, name, OWNER);
                (worker, lock.lock().await.expect("let in"))
            } else {
                let guard = lock.lock().await.expect("free");
                (start("passing_worker", &server, name, OWNER), guard)
            };
            let token = worker.held().await;
            assert!(worker_leads || token == guard.token());
            assert!(worker.wait().success());
            // Not eventually: it has waited for that itself.
            assert_eq!(inspect(&client, name).await.holders.len(), 1);
            assert!(guard.is_held());
            let other_owner = owned(&client, name, OTHER_OWNER).try_lock().await.expect("answered");
            assert!(other_owner.is_none());
            guard.release().await.expect("held to the end");
        }
    }
    only_fences_are_left(&mut server.raw(), &[]).await;
}

// Death

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_only_holder_is_replaced_within_its_lease_and_a_second() {
    let Some(server) = RedisServer::start_or_skip("killed holders") else { return };
    let client = &connect(&server).await;
    rounds(&server, |name, round| {
        let mut worker = start("holding_worker", &server, &name, OWNER);
        async move {
            let token = worker.held().await;
            let next = other_waiter(client, &name, round);
            waiting(client, &name, 1).await;
            let killed = Instant::now();
            worker.kill();
            let (next, granted) = granted(next).await;
            let after = granted - killed;
            assert!(after <= REPLACED, "{name}, round {round}: after {after:?}");
            assert!(next.token() > token);
            let token = next.token();
            next.release().await.expect("held to the end");
            token
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_drops_its_own_hold_and_nobody_elses() {
    let Some(server) = RedisServer::start_or_skip("killed holders") else { return };
    let client = &connect(&server).await;
    rounds(&server, |name, round| {
        let server = &server;
        async move {
            let lock = owned(client, &name, OWNER);
            // The one that the key names dies, or the other.
            let (mut worker, token, stays) = if round % 2 == 0 {
                let mut worker = start("holding_worker", server, &name, OWNER);
                let token = worker.held().await;
                (worker, token, within(SOON, lock.lock()).await.expect("let in"))
            } else {
                let stays = within(SOON, lock.lock()).await.expect("free");
                let mut worker = start("holding_worker", server, &name, OWNER);
                let token = worker.held().await;
                (worker, token, stays)
            };
            assert_eq!(token, stays.token(), "one owner, one token");
            let next = other_waiter(client, &name, round / 2);
            waiting(client, &name, 1).await;
            worker.kill();
            holding(client, &name, 1, REPLACED).await;
            assert!(stays.is_held() && !next.is_finished(), "{name}, round {round}: the other is still in");
            stays.release().await.expect("held to the end");
            let (next, _) = granted(next).await;
            assert!(next.token() > token);
            let token = next.token();
            next.release().await.expect("held to the end");
            token
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_blocks_no_other_for_longer_than_its_ttl() {
    let Some(server) = RedisServer::start_or_skip("killed holders") else { return };
    let client = &connect(&server).await;
    rounds(&server, |name, round| {
        let server = &server;
        async move {
            let mut workers = [(); 2].map(|()| start("holding_worker", server, &name, OWNER));
            let token = workers[0].held().await;
            assert_eq!(workers[1].held().await, token);
            let joined = within(SOON, owned(client, &name, OWNER).lock()).await.expect("let in");
            assert_eq!(joined.token(), token);
            let next = other_waiter(client, &name, round);
            waiting(client, &name, 1).await;
            let killed = Instant::now();
            workers.iter_mut().for_each(Worker::kill);
            joined.release().await.expect("held to the end");
            assert!(!next.is_finished(), "{name}, round {round}: the dead are in for a lease");
            let (next, granted) = granted(next).await;
            let after = granted - killed;
            assert!(after <= REPLACED, "{name}, round {round}: after {after:?}");
            assert!(next.token() > token);
            let token = next.token();
            next.release().await.expect("held to the end");
            token
        }
    })
    .await;
}

/// A holder in this process, perhaps a waiter in this process, then a worker, then a waiter in this process.
struct Queue {
    holder: Guard,
    before: Option<Waiter>,
    doomed: Worker,
    after: Waiter,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Head,
    Middle,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kill {
    BeforeItsTurn,
    /// The worker is paused while it waits, is granted the lock, and is killed without running again.
    InItsTurn,
}

impl Queue {
    async fn form(server: &RedisServer, client: &Client, name: &str, place: Place, round: usize) -> Self {
        let holder = within(SOON, owned(client, name, "order-41").lock()).await.expect("free");
        // Never of the same kind as the last one.
        let before = (place == Place::Middle).then(|| other_waiter(client, name, round + 1));
        let ahead = usize::from(before.is_some());
        waiting(client, name, ahead).await;
        let doomed = start("holding_worker", server, name, OWNER);
        waiting(client, name, ahead + 1).await;
        // Another owner, a mutex, or the same owner: that one may come in with the dead, or after it.
        let after = match round % 3 {
            0 => waiter(owned(client, name, OWNER)),
            _ => other_waiter(client, name, round),
        };
        waiting(client, name, ahead + 2).await;
        Self { holder, before, doomed, after }
    }

    /// Lets everybody have a turn, and answers how long the last one waited after the holder's release, and its token.
    async fn serve(self, kill: Kill) -> (Duration, FencingToken) {
        let Self { holder, before, mut doomed, after } = self;
        match kill {
            Kill::BeforeItsTurn => doomed.kill(),
            Kill::InItsTurn => doomed.pause(),
        }
        let released = Instant::now();
        let mut newest = holder.token();
        holder.release().await.expect("held to the end");
        if let Some(before) = before {
            let (guard, _) = granted(before).await;
            assert!(guard.token() > newest);
            newest = guard.token();
            guard.release().await.expect("held to the end");
        }
        // If it was paused, the lock has been granted to it by now.
        doomed.kill();
        let (guard, granted) = granted(after).await;
        assert!(guard.token() > newest);
        assert_eq!(doomed.unread(), None, "it never held");
        let token = guard.token();
        guard.release().await.expect("held to the end");
        (granted - released, token)
    }
}

async fn kill_waiters(place: Place, kill: Kill) {
    let Some(server) = RedisServer::start_or_skip("killed waiters") else { return };
    let client = &connect(&server).await;
    rounds(&server, |name, round| {
        let server = &server;
        async move {
            let queue = Queue::form(server, client, &name, place, round).await;
            let (blocked, token) = queue.serve(kill).await;
            assert!(blocked <= REPLACED, "{name}, round {round}: blocked for {blocked:?}");
            // What was granted to the dead together with the same owner goes with its lease.
            eventually(REPLACED, || async { inspect(client, &name).await.holders.is_empty() }).await;
            token
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_at_the_head_blocks_nobody_for_longer_than_a_lease() {
    kill_waiters(Place::Head, Kill::BeforeItsTurn).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_waiter_in_the_middle_blocks_nobody_for_longer_than_a_lease() {
    kill_waiters(Place::Middle, Kill::BeforeItsTurn).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_killed_on_the_way_to_its_grant_blocks_nobody_for_longer_than_a_lease() {
    tokio::join!(kill_waiters(Place::Head, Kill::InItsTurn), kill_waiters(Place::Middle, Kill::InItsTurn));
}

// Pauses

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_paused_for_two_ttls_is_notified_while_its_owner_holds_and_re_enters() {
    let Some(server) = RedisServer::start_or_skip("paused holders") else { return };
    let (client, name) = (connect(&server).await, "machine:42");
    let mut worker = start("holding_worker", &server, name, OWNER);
    let token = worker.held().await;
    let stays = within(SOON, owned(&client, name, OWNER).lock()).await.expect("let in");
    worker.pause();
    let paused = Instant::now();
    holding(&client, name, 1, REPLACED).await;
    sleep_until(paused + LEASE * 2).await;
    assert!(owned(&client, name, OTHER_OWNER).try_lock().await.expect("answered").is_none());
    worker.resume();
    let told = worker.line().await.expect("it goes on");
    assert!(told.starts_with("lost"), "{told}");
    assert_eq!(worker.held().await, token, "its owner has never been out");
    holding(&client, name, 2, SOON).await;
    assert_eq!(stays.token(), token);
    stays.release().await.expect("held to the end");
    worker.kill();
    only_fences_are_left(&mut server.raw(), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_paused_until_another_owner_holds_is_notified_and_queues() {
    let Some(server) = RedisServer::start_or_skip("paused holders") else { return };
    let (client, name) = (connect(&server).await, "machine:42");
    let mut worker = start("holding_worker", &server, name, OWNER);
    let token = worker.held().await;
    worker.pause();
    let paused = Instant::now();
    let other_owner = within(REPLACED, owned(&client, name, OTHER_OWNER).lock()).await.expect("granted");
    assert!(other_owner.token() > token);
    sleep_until(paused + LEASE * 2).await;
    worker.resume();
    let told = worker.line().await.expect("it goes on");
    assert!(told.starts_with("lost"), "{told}");
    waiting(&client, name, 1).await;
    assert_eq!(worker.unread(), None, "what it had opens nothing");
    let newest = other_owner.token();
    other_owner.release().await.expect("held to the end");
    assert!(worker.held().await > newest);
    worker.kill();
    only_fences_are_left(&mut server.raw(), &[]).await;
}
