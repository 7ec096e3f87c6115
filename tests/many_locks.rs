//! What read/write locks, several locks at once, and tickets promise on every store.
#![cfg(all(
    feature = "fred",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "etcd",
    feature = "zookeeper"
))]

#[path = "support/etcd.rs"]
mod etcd;
#[path = "support/sqlite.rs"]
mod file;
#[path = "support/mysql.rs"]
mod mysql;
#[path = "support/postgres.rs"]
mod postgres;
#[path = "support/zookeeper.rs"]
mod zookeeper;

use std::collections::hash_map::RandomState;
use std::future::pending;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd::EtcdServer;
use file::SqliteFile;
use futures::future::join_all;
use futures::{FutureExt, StreamExt, stream};
use leasehold::{
    Client, Error, Fence, FencingToken, Guard, LeaseEnd, LeaseTicket, LossReason, MutexOptions, RwLock,
    SemaphoreOptions, WriteGuard,
};
use leasehold_support::{
    Direction, Proxy, RedisServer, Setup, Worker, begun, eventually, say, within, worker_args,
};
use mysql::MysqlServer;
use parking_lot::Mutex;
use postgres::PostgresServer;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use zookeeper::ZookeeperServer;

const SECOND: Duration = Duration::from_secs(1);
/// For what should happen soon, on a machine that may have much else to do.
const SOON: Duration = Duration::from_secs(20);

/// For what is not available: longer than a store usually needs to say so.
const BUSY: Duration = Duration::from_millis(200);
/// How many promises are checked at the same time on one store.
const AT_A_TIME: usize = 3;

/// A store that several clients use.
#[derive(Clone)]
struct Store {
    url: String,
    /// The TTL of a holder that is to be outlived.
    brief: Duration,
}

impl Store {
    fn new(url: String) -> Self {
        Self { url, brief: SECOND }
    }

    fn client(&self) -> Client {
        // `connect` allows 2 s, which a busy server may exceed.
        Client::connect_lazy(&self.url).expect("a URL")
    }

    fn brief(&self) -> MutexOptions {
        MutexOptions::new().ttl(self.brief)
    }

    /// Whether other processes can use it.
    fn is_shared(&self) -> bool {
        !self.url.starts_with("memory:")
    }

    /// Whether a hold can be handed over to another process.
    fn has_tickets(&self) -> bool {
        !self.url.starts_with("zookeeper:")
    }

    /// A process that does what `task` says.
    fn worker(&self, task: &str) -> Worker {
        Worker::start("worker", &format!("{task} {} {}", self.brief.as_millis(), self.url))
    }
}

/// Holds what it is told to, until it is killed, or says that it has lost that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker() {
    let Some(args) = worker_args() else { return };
    let [task, ttl, url] = args.splitn(3, ' ').collect::<Vec<_>>().try_into().expect("three arguments");
    let store =
        Store { url: url.to_owned(), brief: Duration::from_millis(ttl.parse().expect("milliseconds")) };
    let client = store.client();
    match task {
        "write" => {
            let lock = client.rw_lock_with("killed", store.brief()).expect("valid");
            let guard = lock.write().await.expect("free");
            say(&format!("held {}", guard.token()));
            say(&format!("lost: {}", guard.lost().await));
        }
        "all" => {
            let guards = client.lock_all_with(KILLED, store.brief()).expect("valid").lock().await;
            let guards = guards.expect("free");
            say(&format!("held {}", guards.token(KILLED[0]).expect("one of them")));
            say(&format!("lost: {}", guards.lost().await.1));
        }
        ticket => {
            let guard = client.resume(&ticket.parse().expect("a ticket")).await.expect("in time");
            say(&format!("held {}", guard.token()));
            pending::<()>().await;
        }
    }
}

// On each store

/// Runs each of these on every store: on memory as a test of its own, and on a server or in a file together with the
/// others.
macro_rules! promises {
    ($($promise:ident,)*) => {
        mod on_memory {
            use super::Store;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    let url = concat!("memory:", stringify!($promise)).to_owned();
                    super::$promise(Store::new(url)).await;
                }
            )*
        }

        /// Some at a time, because they wait most of the time, and each under names of its own.
        async fn all_promises(store: Store) {
            let promises = [$((stringify!($promise), $promise(store.clone()).boxed())),*];
            let checked = stream::iter(promises).map(async |(promise, kept)| {
                let kept = tokio::spawn(kept).await;
                kept.unwrap_or_else(|error| panic!("{promise}: {error}"));
            });
            checked.buffer_unordered(AT_A_TIME).collect::<()>().await;
        }
    };
}

promises! {
    // They take the longest.
    a_ticket_is_resumed_by_another_process,
    a_ticket_is_resumed_by_another_client,
    readers_hold_together_and_a_writer_alone,
    requests_are_served_in_order_of_arrival,
    neither_side_starves,
    a_downgrade_lets_readers_in_and_no_writer,
    tokens_of_writers_increase_over_all_grants,
    a_reader_and_a_writer_never_meet,
    a_holder_that_is_killed_blocks_others_for_a_ttl,
    all_are_locked_or_none,
    callers_that_name_them_in_any_order_neither_meet_nor_deadlock,
    what_is_dropped_at_any_point_leaves_nothing,
    the_loss_of_one_is_reported_with_its_name,
    one_that_is_lost_while_others_are_awaited_is_locked_again,
    one_that_wants_many_is_not_starved_by_those_that_want_one,
    a_holder_of_several_that_is_killed_blocks_others_for_a_ttl,
    a_ticket_is_passed_on_to_nobody,
    permits_that_were_handed_over_go_back_to_those_who_wait_where_they_came_from,
    permits_owners_and_readers_are_handed_over_as_they_are,
    a_ticket_that_is_not_resumed_in_time_is_worth_nothing,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let Some(server) = RedisServer::start_or_skip("many locks") else { return };
    all_promises(Store::new(server.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let file = SqliteFile::new();
    all_promises(Store::new(file.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let Some(server) = PostgresServer::start_or_skip("many locks") else { return };
    all_promises(Store { brief: SECOND * 2, ..Store::new(server.url()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    let Some(server) = MysqlServer::start_or_skip("many locks") else { return };
    all_promises(Store { brief: SECOND * 2, ..Store::new(server.url()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let Some(server) = EtcdServer::start_or_skip("many locks") else { return };
    all_promises(Store { brief: SECOND * 2, ..Store::new(server.url()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let Some(server) = ZookeeperServer::shared_or_skip("many locks") else { return };
    all_promises(Store { brief: SECOND * 2, ..Store::new(server.url()) }).await;
}

// Read/write locks

/// What a task that waits is granted, in the order in which the grants arrive.
type Granted = Arc<Mutex<Vec<(&'static str, FencingToken)>>>;

enum Either {
    Reading(Guard),
    Writing(WriteGuard),
}

impl Either {
    fn token(&self) -> FencingToken {
        match self {
            Self::Reading(guard) => guard.token(),
            Self::Writing(guard) => guard.token(),
        }
    }

    async fn release(self) {
        let released = match self {
            Self::Reading(guard) => guard.release().await,
            Self::Writing(guard) => guard.release().await,
        };
        released.expect("held to the end");
    }
}

/// Asks until the store, which may be busy or away, answers.
async fn answer<T: Send, F: Future<Output = Result<T, Error>> + Send>(
    ask: impl Fn() -> F + Send + Sync,
) -> Result<T, Error> {
    let asking = async {
        loop {
            match ask().await {
                Err(Error::StoreUnavailable { .. }) => {}
                answer => break answer,
            }
        }
    };
    within(SOON * 2, asking).await
}

/// Asks for what is not available. Returns the error.
async fn times_out<T: Send, F: Future<Output = Result<T, Error>> + Send>(
    ask: impl Fn() -> F + Send + Sync,
) -> Error {
    let error = answer(ask).await.err().expect("it is not available");
    assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
    error
}

async fn until_waiting(lock: &RwLock, waiters: usize) {
    eventually(SOON, || async { lock.inspect().await.is_ok_and(|now| now.waiters.len() == waiters) }).await;
}

/// Waits until nothing is left of the lock.
async fn until_free(lock: &RwLock) {
    let is_free = |now: leasehold::Inspection| now.holders.is_empty() && now.waiters.is_empty();
    eventually(SOON, || async { lock.inspect().await.is_ok_and(is_free) }).await;
}

/// Sends these requests one after another, for writing if the word begins with `w`, from the clients in turn. Each is
/// in the queue before the next one is sent.
async fn queue_up(locks: &[RwLock], requests: &[&'static str], granted: &Granted) -> Vec<JoinHandle<Either>> {
    let mut waiting = Vec::new();
    for (n, request) in requests.iter().copied().enumerate() {
        let (lock, granted) = (locks[n % locks.len()].clone(), Arc::clone(granted));
        waiting.push(tokio::spawn(async move {
            let guard = match request.starts_with('w') {
                true => Either::Writing(lock.write().await.expect("granted")),
                false => Either::Reading(lock.read().await.expect("granted")),
            };
            granted.lock().push((request, guard.token()));
            guard
        }));
        until_waiting(&locks[0], n + 1).await;
    }
    waiting
}

/// The same lock in two clients.
fn two_handles(store: &Store, name: &str) -> [RwLock; 2] {
    [(); 2].map(|()| store.client().rw_lock(name).expect("valid"))
}

async fn readers_hold_together_and_a_writer_alone(store: Store) {
    let [one, other] = two_handles(&store, "together");
    let readers = [
        one.read().await.expect("free"),
        other.read().await.expect("free"),
        one.try_read().await.expect("answered").expect("free for readers"),
        other.read_timeout(SOON).await.expect("free"),
    ];
    assert!(other.try_write().await.expect("answered").is_none());
    times_out(|| one.write_timeout(BUSY)).await;
    for reader in readers {
        assert_eq!(reader.permits(), 1);
        reader.release().await.expect("held");
    }
    let writer = other.write_timeout(SOON).await.expect("free");
    for lock in [&one, &other] {
        assert!(lock.try_read().await.expect("answered").is_none());
        assert!(lock.try_write().await.expect("answered").is_none());
        times_out(|| lock.read_timeout(BUSY)).await;
    }
    writer.release().await.expect("held");
    // The places of those that did not wait longer are given up in the background.
    until_free(&one).await;
    drop(one.try_write().await.expect("answered").expect("free"));
    until_free(&other).await;
}

async fn requests_are_served_in_order_of_arrival(store: Store) {
    let locks = two_handles(&store, "order");
    let granted = Granted::default();
    let first = locks[0].write().await.expect("free");
    let requests = ["r1", "r2", "w3", "r4", "w5", "w6", "r7", "r8"];
    let mut waiting = queue_up(&locks, &requests, &granted).await.into_iter();
    assert!(locks[1].try_read().await.expect("answered").is_none(), "others wait");
    first.release().await.expect("held");
    // Readers next to each other are admitted together.
    for together in [&["r1", "r2"][..], &["w3"], &["r4"], &["w5"], &["w6"], &["r7", "r8"]] {
        let mut guards = Vec::new();
        for _ in together {
            guards.push(within(SOON, waiting.next().expect("as many")).await.expect("no panic"));
        }
        let mut now = std::mem::take(&mut *granted.lock());
        now.sort_unstable_by_key(|(_, token)| *token);
        let names: Vec<_> = now.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, together, "by their tokens");
        for guard in guards {
            guard.release().await;
        }
    }
    until_free(&locks[0]).await;
}

/// Each kind arrives all the time, so that one that could overtake would keep the other out for ever.
async fn neither_side_starves(store: Store) {
    let [one, other] = two_handles(&store, "starving");
    for (many, few) in [('r', 'w'), ('w', 'r')] {
        let mut crowd = JoinSet::new();
        let is_over = Arc::new(AtomicI64::new(0));
        for n in 0..4 {
            let (lock, is_over) =
                (if n % 2 == 0 { one.clone() } else { other.clone() }, Arc::clone(&is_over));
            crowd.spawn(async move {
                while is_over.load(Ordering::Relaxed) == 0 {
                    acquire(&lock, many).await.release().await;
                    tokio::task::yield_now().await;
                }
            });
        }
        for _ in 0..3 {
            within(SOON, acquire(&other, few)).await.release().await;
        }
        is_over.store(1, Ordering::Relaxed);
        within(SOON, crowd.join_all()).await;
    }
    until_free(&one).await;
}

async fn acquire(lock: &RwLock, kind: char) -> Either {
    match kind {
        'w' => Either::Writing(lock.write().await.expect("granted")),
        _ => Either::Reading(lock.read().await.expect("granted")),
    }
}

async fn a_downgrade_lets_readers_in_and_no_writer(store: Store) {
    let locks = two_handles(&store, "downgrade");
    let granted = Granted::default();
    let writer = locks[0].write().await.expect("free");
    let token = writer.token();
    let mut waiting = queue_up(&locks, &["r1", "r2", "w3", "r4"], &granted).await.into_iter();
    let reader = writer.downgrade().await.expect("held");
    assert_eq!((reader.token(), reader.permits(), reader.is_held()), (token, 1, true));
    let mut next = async || within(SOON, waiting.next().expect("as many")).await.expect("no panic");
    let readers = [next().await, next().await];
    // The store has served all that it will: the writer is next, and waits for these three.
    until_waiting(&locks[1], 2).await;
    assert_eq!(locks[1].inspect().await.expect("answered").in_use, 3);
    for reader in readers {
        reader.release().await;
    }
    assert_eq!(locks[1].inspect().await.expect("answered").waiters.len(), 2, "one still reads");
    reader.release().await.expect("held");
    next().await.release().await;
    next().await.release().await;
    until_free(&locks[0]).await;

    // One that is dropped before it is done releases the lock.
    for polls in 0..2 {
        let writer = locks[0].write().await.expect("free");
        let mut downgrade = Box::pin(writer.downgrade());
        for _ in 0..polls {
            let _ = futures::poll!(&mut downgrade);
        }
        drop(downgrade);
        until_free(&locks[1]).await;
    }
}

async fn tokens_of_writers_increase_over_all_grants(store: Store) {
    let [one, other] = two_handles(&store, "tokens");
    let mut last = FencingToken::new(0);
    for n in 0..10 {
        let lock = if n % 2 == 0 { &one } else { &other };
        let guard = match n % 3 {
            0 => acquire(lock, 'r').await,
            1 => acquire(lock, 'w').await,
            _ => Either::Reading(lock.write().await.expect("free").downgrade().await.expect("held")),
        };
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await;
    }
}

/// A negative number of readers is a writer.
async fn a_reader_and_a_writer_never_meet(store: Store) {
    let locks = two_handles(&store, "never");
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for n in 0..8 {
        let (lock, inside) = (locks[n % 2].clone(), Arc::clone(&inside));
        tasks.spawn(async move {
            for turn in 0..4 {
                if (n + turn) % 3 > 0 {
                    let reading = lock.read().await.expect("granted");
                    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    reading.release().await.expect("held");
                    continue;
                }
                let writing = lock.write().await.expect("granted");
                assert_eq!(inside.swap(-1, Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                // From here on it is one of the readers.
                assert_eq!(inside.swap(1, Ordering::SeqCst), -1);
                let reading = writing.downgrade().await.expect("held");
                assert!(inside.fetch_sub(1, Ordering::SeqCst) > 0);
                drop(reading);
            }
        });
    }
    within(SOON, tasks.join_all()).await;
    until_free(&locks[0]).await;
}

async fn a_holder_that_is_killed_blocks_others_for_a_ttl(store: Store) {
    if !store.is_shared() {
        return;
    }
    let lock = store.client().rw_lock_with("killed", store.brief()).expect("valid");
    let mut writer = store.worker("write");
    let token = writer.held().await;
    let readers = [lock.clone(), lock.clone()];
    let waiting = readers.map(|lock| tokio::spawn(async move { lock.read().await.expect("granted") }));
    until_waiting(&lock, 2).await;
    writer.kill();
    for reader in waiting {
        let reader = within(store.brief + SOON, reader).await.expect("no panic");
        assert!(reader.token() > token);
    }
    until_free(&lock).await;
}

// Several locks at once

const KILLED: [&str; 3] = ["killed:2", "killed:1", "killed:3"];

/// Numbers that look random, the same for the same seed.
struct Random(u64);

impl Random {
    /// One of a run of its own, whose seed is shown if the test fails.
    fn new() -> Self {
        let seed = RandomState::new().hash_one(0);
        println!("seed {seed}");
        Self(seed)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % n
    }

    /// Some of these, at least one, in any order, perhaps more than once.
    fn some_of(&mut self, names: &[String]) -> Vec<String> {
        (0..=self.below(5)).map(|_| names[self.below(names.len())].clone()).collect()
    }
}

fn names(of: &str, n: usize) -> Vec<String> {
    (0..n).map(|n| format!("{of}:{n}")).collect()
}

/// Waits until nothing is left of any of them.
async fn until_all_free(client: &Client, names: &[String]) {
    for name in names {
        let mutex = client.mutex(name).expect("valid");
        let is_free = |now: leasehold::Inspection| now.holders.is_empty() && now.waiters.is_empty();
        eventually(SOON, || async { mutex.inspect().await.is_ok_and(is_free) }).await;
    }
}

async fn is_locked(client: &Client, name: &str) -> bool {
    client.mutex(name).expect("valid").inspect().await.expect("answered").holder().is_some()
}

async fn all_are_locked_or_none(store: Store) {
    let (client, other) = (store.client(), store.client());
    let all = client.lock_all(["all:c", "all:a", "all:c", "all:b"]).expect("valid");
    assert_eq!(all.names().collect::<Vec<_>>(), ["all:c", "all:a", "all:b"]);
    let guards = all.lock().await.expect("free");
    let tokens: Vec<_> = guards.tokens().collect();
    assert_eq!(tokens.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["all:c", "all:a", "all:b"]);
    assert_eq!(guards.token("all:a"), Some(tokens[1].1));
    assert_eq!(guards.token("all:d"), None);
    assert!(guards.is_held() && !guards.remaining().is_zero());
    for name in ["all:a", "all:b", "all:c"] {
        let mutex = other.mutex(name).expect("valid");
        assert!(mutex.try_lock().await.expect("answered").is_none(), "{name}");
    }
    assert!(other.lock_all(["all:d", "all:b"]).expect("valid").try_lock().await.expect("answered").is_none());
    guards.release().await.expect("held");

    let busy = other.mutex("all:b").expect("valid").lock().await.expect("free");
    assert!(all.try_lock().await.expect("answered").is_none());
    let late = times_out(|| all.lock_timeout(BUSY)).await;
    assert!(matches!(&late, Error::TimedOut { name, .. } if name == "all:b"), "{late:?}");
    let free = ["all:a", "all:c", "all:d"].map(str::to_owned);
    until_all_free(&other, &free).await;
    busy.release().await.expect("held");
    let guards = all.try_lock().await.expect("answered").expect("free").into_guards();
    assert_eq!(guards.iter().map(Guard::name).collect::<Vec<_>>(), ["all:c", "all:a", "all:b"]);
    drop(guards);
}

/// Each caller works under the locks for as long as a few others need to come in, if they could.
async fn callers_that_name_them_in_any_order_neither_meet_nor_deadlock(store: Store) {
    let names = names("any", 6);
    let clients = [store.client(), store.client(), store.client()];
    let inside: Arc<Vec<AtomicI64>> = Arc::new(names.iter().map(|_| AtomicI64::new(0)).collect());
    let fences: Arc<Vec<Fence>> = Arc::new(names.iter().map(|_| Fence::new()).collect());
    let (mut random, mut callers) = (Random::new(), JoinSet::new());
    for n in 0..(if store.is_shared() { 100 } else { 600 }) {
        let wanted = random.some_of(&names);
        let all = clients[n % 3].lock_all(&wanted).expect("valid");
        let (names, inside, fences) = (names.clone(), Arc::clone(&inside), Arc::clone(&fences));
        callers.spawn(async move {
            let guards = all.lock().await.expect("granted");
            let index = |name: &str| names.iter().position(|other| other == name).expect("one of them");
            for (name, token) in guards.tokens() {
                assert_eq!(inside[index(name)].fetch_add(1, Ordering::SeqCst), 0, "{name}");
                fences[index(name)].admit(token).expect("greater than all before");
            }
            assert!(wanted.iter().all(|name| guards.token(name).is_some()));
            tokio::task::yield_now().await;
            for (name, _) in guards.tokens() {
                inside[index(name)].fetch_sub(1, Ordering::SeqCst);
            }
            if n % 2 == 0 {
                guards.release().await.expect("held");
            }
        });
    }
    within(SOON * 3, callers.join_all()).await;
    until_all_free(&clients[0], &names).await;
}

async fn what_is_dropped_at_any_point_leaves_nothing(store: Store) {
    let names = names("dropped", 4);
    let clients = [store.client(), store.client()];
    let (mut random, mut callers) = (Random::new(), JoinSet::new());
    for n in 0..60 {
        let all = clients[n % 2].lock_all(random.some_of(&names)).expect("valid");
        let patience = Duration::from_micros(100 * random.below(100) as u64);
        callers.spawn(async move {
            match n % 3 {
                0 => drop(timeout(patience, all.lock()).await),
                1 => drop(timeout(patience, all.lock_timeout(SOON)).await),
                _ => drop(timeout(patience, all.try_lock()).await),
            }
        });
    }
    within(SOON, callers.join_all()).await;
    let all = clients[0].lock_all(&names).expect("valid");
    for polls in 0..5 {
        let mut locking = Box::pin(all.lock());
        for _ in 0..polls {
            if futures::poll!(&mut locking).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(locking);
    }
    until_all_free(&clients[1], &names).await;
}

async fn the_loss_of_one_is_reported_with_its_name(store: Store) {
    let client = store.client();
    let all = client.lock_all(["lost:a", "lost:b"]).expect("valid");
    let guards = all.lock().await.expect("free");
    let lost = guards.lost();
    assert!(client.mutex("lost:b").expect("valid").force_release().await.expect("answered"));
    let (name, reason) = within(SOON, lost).await;
    assert_eq!((&*name, reason), ("lost:b", LossReason::Revoked));
    assert!(!guards.is_held() && guards.remaining().is_zero());
    let protected = guards.protect(pending::<()>()).await;
    assert!(matches!(&protected, Err(Error::Lost { name, .. }) if name == "lost:b"), "{protected:?}");
    let failed = guards.release().await.expect_err("one was lost");
    assert!(matches!(failed.errors(), [Error::Lost { name, .. }] if name == "lost:b"), "{failed}");
    assert!(matches!(Error::from(failed), Error::Lost { .. }));
    until_all_free(&client, &["lost:a".to_owned(), "lost:b".to_owned()]).await;
}

async fn one_that_is_lost_while_others_are_awaited_is_locked_again(store: Store) {
    let (client, other) = (store.client(), store.client());
    let busy = other.mutex("again:b").expect("valid").lock().await.expect("free");
    let all = client.lock_all(["again:c", "again:b", "again:a"]).expect("valid");
    let locking = tokio::spawn(async move { all.lock().await });
    let awaited = other.mutex("again:b").expect("valid");
    eventually(SOON, || async { awaited.inspect().await.is_ok_and(|now| !now.waiters.is_empty()) }).await;
    assert!(is_locked(&other, "again:a").await && !is_locked(&other, "again:c").await);
    let first = other.mutex("again:a").expect("valid");
    let token = first.inspect().await.expect("answered").holder().expect("it is held").token;
    assert!(first.force_release().await.expect("answered"));
    let again = |now: leasehold::Inspection| now.holder().is_some_and(|holder| holder.token > token);
    eventually(SOON, || async { first.inspect().await.is_ok_and(again) }).await;
    busy.release().await.expect("held");
    let guards = within(SOON, locking).await.expect("no panic").expect("granted");
    assert!(guards.is_held() && guards.token("again:a") > token);
    guards.release().await.expect("held");
}

async fn one_that_wants_many_is_not_starved_by_those_that_want_one(store: Store) {
    let names = names("many", 4);
    let (client, other) = (store.client(), store.client());
    let (is_over, mut crowd) = (Arc::new(AtomicI64::new(0)), JoinSet::new());
    for name in names.iter().chain(&names) {
        let (mutex, is_over) = (other.mutex(name).expect("valid"), Arc::clone(&is_over));
        crowd.spawn(async move {
            while is_over.load(Ordering::Relaxed) == 0 {
                mutex.lock().await.expect("granted").release().await.expect("held");
                // On memory, nothing else would ever wait.
                tokio::task::yield_now().await;
            }
        });
    }
    let all = client.lock_all(&names).expect("valid");
    for _ in 0..3 {
        within(SOON, all.lock()).await.expect("granted").release().await.expect("held");
    }
    is_over.store(1, Ordering::Relaxed);
    within(SOON, crowd.join_all()).await;
    until_all_free(&client, &names).await;
}

async fn a_holder_of_several_that_is_killed_blocks_others_for_a_ttl(store: Store) {
    if !store.is_shared() {
        return;
    }
    let mut holder = store.worker("all");
    let token = holder.held().await;
    let client = store.client();
    let all = client.lock_all_with(KILLED, store.brief()).expect("valid");
    assert!(all.try_lock().await.expect("answered").is_none());
    holder.kill();
    let guards = within(store.brief + SOON, all.lock()).await.expect("granted");
    assert!(guards.token(KILLED[0]) > Some(token));
    guards.release().await.expect("held");
    until_all_free(&client, &KILLED.map(str::to_owned)).await;
}

// Tickets

fn brief_mutex(client: &Client, store: &Store, name: &str) -> leasehold::DistMutex {
    client.mutex_with(name, store.brief()).expect("valid")
}

async fn a_ticket_is_resumed_by_another_client(store: Store) {
    const TICKET_TTL: Duration = Duration::from_secs(5);
    let with_ttl =
        |client: &Client| client.mutex_with("ticket", MutexOptions::new().ttl(TICKET_TTL)).expect("valid");
    let (first, second) = (store.client(), store.client());
    let guard = with_ttl(&first).lock().await.expect("free");
    let (token, ended) = (guard.token(), guard.ended());
    let ticket = guard.into_ticket();
    if !store.has_tickets() {
        let refused = ticket.expect_err("the lease ends with its client");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
        return until_all_free(&second, &["ticket".to_owned()]).await;
    }
    let secret = ticket.expect("held").expose();
    assert_eq!(within(SOON, ended).await, LeaseEnd::Released);
    // What is left of the first client releases nothing.
    first.shutdown().await.expect("nothing is held");
    drop(first);
    let ticket: LeaseTicket = secret.parse().expect("its own text");
    assert_eq!((ticket.name(), ticket.token(), ticket.ttl()), ("ticket", token, TICKET_TTL));
    let guard = second.resume(&ticket).await.expect("in time");
    assert_eq!((guard.name(), guard.token(), guard.permits()), ("ticket", token, 1));
    let again = second.resume(&ticket).await.map(drop);
    assert!(matches!(again, Err(Error::InvalidArgument { .. })), "{again:?}");
    // For longer than a TTL nobody else gets it.
    let mutex = with_ttl(&second);
    let late = mutex.lock_timeout(TICKET_TTL * 3 / 2).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })) && guard.is_held(), "{late:?}");
    // It can be handed over again, even back to where it came from.
    let guard = second.resume(&guard.into_ticket().expect("held")).await.expect("in time");
    guard.release().await.expect("held");
    let next = within(SOON, mutex.lock()).await.expect("free");
    assert!(next.token() > token);
}

async fn a_ticket_is_passed_on_to_nobody(store: Store) {
    if !store.has_tickets() {
        return;
    }
    let (first, second) = (store.client(), store.client());
    let mutex = first.mutex("nobody").expect("valid");
    let guard = mutex.lock().await.expect("free");
    // Both have joined the queue within the client, in which it would be passed on without asking the store.
    let mut waiting = [(); 2].map(|()| Box::pin(mutex.lock()));
    for next in &mut waiting {
        assert!(futures::poll!(next).is_pending());
    }
    let guard = second.resume(&guard.into_ticket().expect("held")).await.expect("in time");
    let waits = |now: leasehold::Inspection| !now.waiters.is_empty();
    eventually(SOON, || async { mutex.inspect().await.is_ok_and(waits) }).await;
    assert!(guard.is_held());
    for next in &mut waiting {
        assert!(futures::poll!(next).is_pending());
    }
    let token = guard.token();
    guard.release().await.expect("held");
    for next in waiting {
        assert!(within(SOON, next).await.expect("granted").token() > token);
    }
    until_all_free(&second, &["nobody".to_owned()]).await;
}

/// They are released by another client than that which has requested them, many at once, so that some of it may be sent
/// together.
async fn permits_that_were_handed_over_go_back_to_those_who_wait_where_they_came_from(store: Store) {
    const ALL: usize = 16;
    if !store.has_tickets() {
        return;
    }
    let (first, second) = (store.client(), store.client());
    let names = (0..ALL).map(|n| format!("there and back {n}"));
    // A request is repeated only after a third of it.
    let long = SemaphoreOptions::new().ttl(SOON * 6);
    let semaphores: Vec<_> =
        names.map(|name| first.counting_semaphore_with(&name, 1, long.clone()).expect("valid")).collect();
    let resumed = join_all(semaphores.iter().map(async |semaphore| {
        let guard = semaphore.acquire().await.expect("free");
        second.resume(&guard.into_ticket().expect("held")).await.expect("in time")
    }));
    let guards = resumed.await;
    let mut waiting: Vec<_> =
        semaphores.iter().cloned().map(|one| tokio::spawn(async move { one.acquire().await })).collect();
    for semaphore in &semaphores {
        eventually(SOON, || async { semaphore.inspect().await.is_ok_and(|now| !now.waiters.is_empty()) })
            .await;
    }
    let released = join_all(guards.into_iter().map(Guard::release)).await;
    assert!(released.iter().all(Result::is_ok), "{released:?}");
    let served = within(SOON, join_all(&mut waiting)).await;
    for guard in served {
        guard.expect("no panic").expect("granted").release().await.expect("held");
    }
}

async fn permits_owners_and_readers_are_handed_over_as_they_are(store: Store) {
    if !store.has_tickets() {
        return;
    }
    let (first, second) = (store.client(), store.client());
    let semaphore = async |client: &Client| client.counting_semaphore("permits", 5).expect("valid");
    let mut three = semaphore(&first).await.acquire_many(3).await.expect("free");
    let one = three.split(1).expect("three are more");
    let shared = three.into_ticket();
    assert!(matches!(shared, Err(Error::InvalidArgument { .. })), "{shared:?}");
    eventually(SOON, || async { semaphore(&second).await.available().await.is_ok_and(|n| n == 4) }).await;
    drop(one);
    let two = semaphore(&first).await.acquire_many(2).await.expect("free");
    let mut two = second.resume(&two.into_ticket().expect("held")).await.expect("in time");
    assert_eq!(two.permits(), 2);
    two.split(1).expect("two are more").release().await.expect("held");
    eventually(SOON, || async { semaphore(&first).await.available().await.is_ok_and(|n| n == 4) }).await;
    two.release().await.expect("held");

    let outer = first.reentrant_lock("owned", "order").expect("valid").lock().await.expect("free");
    let outer = second.resume(&outer.into_ticket().expect("held")).await.expect("in time");
    let inner = second.reentrant_lock("owned", "order").expect("valid").lock().await.expect("its owner");
    assert_eq!(inner.token(), outer.token());
    let shared = inner.into_ticket();
    assert!(matches!(shared, Err(Error::InvalidArgument { .. })), "{shared:?}");
    outer.release().await.expect("held");

    let lock = first.rw_lock("handed").expect("valid");
    let reading = lock.read().await.expect("free");
    let reading = second.resume(&reading.into_ticket().expect("held")).await.expect("in time");
    assert!(lock.try_write().await.expect("answered").is_none());
    drop(lock.try_read().await.expect("answered").expect("one reads"));
    reading.release().await.expect("held");
    until_free(&lock).await;
}

async fn a_ticket_that_is_not_resumed_in_time_is_worth_nothing(store: Store) {
    if !store.has_tickets() {
        return;
    }
    let (first, second) = (store.client(), store.client());
    let mutex = brief_mutex(&first, &store, "late");
    let ticket = mutex.lock().await.expect("free").into_ticket().expect("held");
    // The next one is let in when the lease has ended.
    let next = within(store.brief + SOON, mutex.lock()).await.expect("granted");
    assert!(next.token() > ticket.token());
    let late = second.resume(&ticket).await.map(drop);
    assert!(matches!(&late, Err(Error::Lost { token, .. }) if *token == ticket.token()), "{late:?}");
    assert!(next.is_held());
    next.release().await.expect("held");
    let lost = mutex.lock().await.expect("free");
    assert!(mutex.force_release().await.expect("answered"));
    within(SOON, lost.lost()).await;
    assert!(matches!(lost.into_ticket(), Err(Error::Lost { .. })));
}

async fn a_ticket_is_resumed_by_another_process(store: Store) {
    if !store.is_shared() || !store.has_tickets() {
        return;
    }
    let client = store.client();
    let mutex = client.mutex_with("process", MutexOptions::new().ttl(SECOND * 5)).expect("valid");
    let guard = mutex.lock().await.expect("free");
    let token = guard.token();
    let mut other = store.worker(&guard.into_ticket().expect("held").expose());
    assert_eq!(other.held().await, token);
    let late = mutex.lock_timeout(SECOND * 6).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    other.kill();
    assert!(within(SECOND * 5 + SOON, mutex.lock()).await.expect("granted").token() > token);
}

// Faults of the store

/// A server that a test can stop and start.
trait Server: Send + Sync {
    fn restart(&mut self);
    fn pause(&self);
    fn resume(&self);
}

macro_rules! servers {
    ($($server:ty),*) => { $(
        impl Server for $server {
            fn restart(&mut self) {
                Self::restart(self);
            }

            fn pause(&self) {
                Self::pause(self);
            }

            fn resume(&self) {
                Self::resume(self);
            }
        }
    )* };
}
servers!(RedisServer, PostgresServer);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_on_redis() {
    let Some(server) = RedisServer::start_with_or_skip("faults of many locks", Setup::on_disk()) else {
        return;
    };
    a_stalled_connection_loses_its_locks_before_others_get_them(&server).await;
    let store = Store::new(server.url());
    faults_of(server, store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_on_postgres() {
    let Some(server) = PostgresServer::start_or_skip("faults of many locks") else { return };
    let store = Store { brief: SECOND * 2, ..Store::new(server.url()) };
    faults_of(server, store).await;
}

async fn faults_of(mut server: impl Server, store: Store) {
    holders_that_are_paused_are_told_that_others_have_their_locks(&store).await;
    what_is_held_outlives_a_restart(&mut server, &store).await;
    a_downgrade_during_an_outage_loses_nothing_and_lets_no_writer_in(&server, &store).await;
}

async fn holders_that_are_paused_are_told_that_others_have_their_locks(store: &Store) {
    let mut paused = [store.worker("write"), store.worker("all")];
    let tokens = [paused[0].held().await, paused[1].held().await];
    let client = store.client();
    let lock = client.rw_lock_with("killed", store.brief()).expect("valid");
    let all = client.lock_all_with(KILLED, store.brief()).expect("valid");
    paused.iter().for_each(Worker::pause);
    let (writing, guards) =
        futures::join!(within(store.brief + SOON, lock.write()), within(store.brief + SOON, all.lock()),);
    let (writing, guards) = (writing.expect("granted"), guards.expect("granted"));
    assert!(writing.token() > tokens[0] && guards.token(KILLED[0]) > Some(tokens[1]));
    for worker in &mut paused {
        worker.resume();
        let said = worker.line().await.expect("it has not ended");
        assert!(said.starts_with("lost: "), "{said}");
    }
    assert!(writing.is_held() && guards.is_held(), "what a paused process does late takes nothing away");
    writing.release().await.expect("held");
    guards.release().await.expect("held");
}

/// The store remembers everything.
async fn what_is_held_outlives_a_restart(server: &mut impl Server, store: &Store) {
    let names = names("restart", 3);
    let (one, other) = (store.client(), store.client());
    let locks = [&one, &other].map(|client| client.rw_lock("restart").expect("valid"));
    let [all, others] = [&one, &other].map(|client| client.lock_all(&names).expect("valid"));
    let (writer, guards) = (locks[0].write().await.expect("free"), all.lock().await.expect("free"));
    let granted = Granted::default();
    let mut waiting = queue_up(&locks, &["r1", "w2"], &granted).await.into_iter();
    server.restart();
    assert!(answer(|| locks[1].try_read()).await.expect("it answers").is_none(), "others wait");
    assert!(answer(|| others.try_lock()).await.expect("it answers").is_none());
    assert!(writer.is_held() && guards.is_held());
    let token = writer.token();
    let reader = writer.downgrade().await.expect("held");
    assert_eq!(reader.token(), token);
    let first = within(SOON, waiting.next().expect("two")).await.expect("no panic");
    assert!(first.token() > token && granted.lock().len() == 1, "no writer beside readers");
    first.release().await;
    reader.release().await.expect("held");
    let last = within(SOON, waiting.next().expect("two")).await.expect("no panic");
    assert!(last.token() > token);
    last.release().await;
    let tokens: Vec<_> = guards.tokens().map(|(_, token)| token).collect();
    guards.release().await.expect("held");
    let again = within(SOON, others.lock()).await.expect("free");
    assert!(again.tokens().zip(tokens).all(|((_, now), before)| now > before));
    again.release().await.expect("held");
}

async fn a_downgrade_during_an_outage_loses_nothing_and_lets_no_writer_in(
    server: &impl Server,
    store: &Store,
) {
    let locks = two_handles(store, "outage");
    let granted = Granted::default();
    let writer = locks[0].write().await.expect("free");
    let token = writer.token();
    let mut waiting = queue_up(&locks, &["r1", "w2"], &granted).await.into_iter();
    server.pause();
    // It is not confirmed, and repeated in the background.
    let reader = within(SOON, writer.downgrade()).await.expect("held");
    assert_eq!((reader.token(), reader.permits(), reader.is_held()), (token, 1, true));
    assert!(granted.lock().is_empty());
    server.resume();
    let first = within(SOON * 2, waiting.next().expect("two")).await.expect("no panic");
    assert_eq!(granted.lock().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["r1"]);
    assert!(reader.is_held() && first.token() > token);
    assert!(
        answer(|| locks[1].inspect()).await.expect("it answers").in_use == 2,
        "the writer waits for two readers"
    );
    reader.release().await.expect("held to the end");
    first.release().await;
    within(SOON * 2, waiting.next().expect("two")).await.expect("no panic").release().await;
    until_free(&locks[0]).await;
}

/// The server is well, and one client does not reach it.
async fn a_stalled_connection_loses_its_locks_before_others_get_them(server: &RedisServer) {
    let store = Store { brief: SECOND * 2, ..Store::new(server.url()) };
    let proxy = Proxy::start(server.port()).await;
    let (stalled, other) = (Client::connect_lazy(&proxy.url()).expect("a URL"), store.client());
    let locks =
        [&stalled, &other].map(|client| client.rw_lock_with("stalled", store.brief()).expect("valid"));
    let alls =
        [&stalled, &other].map(|client| client.lock_all_with(["s:b", "s:a"], store.brief()).expect("valid"));
    let writer = locks[0].write().await.expect("free");
    let guards = alls[0].lock().await.expect("free");
    let (lost, lost_of_all) = (writer.lost(), guards.lost());
    let next = begun({
        let (lock, all) = (locks[1].clone(), alls[1].clone());
        async move { (lock.write().await.expect("granted"), all.lock().await.expect("granted")) }
    })
    .await;
    proxy.hold(Direction::ToServer);
    let token = writer.token();
    let (next_writer, next_guards) = within(store.brief + SOON, next).await.expect("no panic");
    assert!(!writer.is_held() && !guards.is_held(), "they had ended before");
    assert_eq!(within(SOON, lost).await, LossReason::StoreUnreachable);
    within(SOON, lost_of_all).await;
    assert!(next_writer.token() > token && next_guards.token("s:a") > guards.token("s:a"));
    proxy.resume();
    drop((writer, guards));
    // The late renewals and releases change nothing for those that hold now.
    drop(answer(|| locks[0].inspect()).await.expect("it answers"));
    assert!(next_writer.is_held() && next_guards.is_held());
    next_writer.release().await.expect("held");
    next_guards.release().await.expect("held");
}

/// Tokens of writers go on as if nothing had been forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_are_told_when_redis_has_forgotten_them() {
    let Some(mut server) = RedisServer::start_or_skip("many locks that are forgotten") else { return };
    let store = Store { brief: SECOND * 3, ..Store::new(server.url()) };
    let (one, other) = (store.client(), store.client());
    let locks = [&one, &other].map(|client| client.rw_lock_with("forgotten", store.brief()).expect("valid"));
    let [all, others] =
        [&one, &other].map(|client| client.lock_all_with(["f:b", "f:a"], store.brief()).expect("valid"));
    let (writer, guards) = (locks[0].write().await.expect("free"), all.lock().await.expect("free"));
    let (lost, lost_of_all) = (writer.lost(), guards.lost());
    let mut waiting = queue_up(&locks, &["w1"], &Granted::default()).await.into_iter();
    server.restart();
    assert_eq!(within(SOON, lost).await, LossReason::Missing);
    assert_eq!(within(SOON, lost_of_all).await.1, LossReason::Missing);
    let next = within(SOON, waiting.next().expect("one")).await.expect("no panic");
    assert!(next.token() > writer.token());
    assert!(matches!(writer.downgrade().await, Err(Error::Lost { .. })));
    let again = within(SOON, others.lock()).await.expect("granted");
    assert!(again.token("f:a") > guards.token("f:a") && again.token("f:b") > guards.token("f:b"));
    drop(guards);
    next.release().await;
    again.release().await.expect("held");
    until_free(&locks[1]).await;
}

// Of no store in particular

#[tokio::test]
async fn the_text_of_a_ticket_is_a_secret_and_nothing_else_is_a_ticket() {
    let client = Client::memory();
    let options = MutexOptions::new().prefix("p\u{e9}.:").max_hold(SECOND);
    let mutex = client.mutex_with("a b\n.\u{fc}", options).expect("valid");
    let ticket = mutex.lock().await.expect("free").into_ticket().expect("held");
    let secret = ticket.expose();
    assert!(secret.bytes().all(|byte| byte.is_ascii_graphic()), "{secret}");
    let read: LeaseTicket = format!(" {secret}\n").parse().expect("its text");
    assert_eq!((read.name(), &read), ("a b\n.\u{fc}", &ticket));
    let id = mutex.inspect().await.expect("answered").holder().expect("it is held").id.clone();
    let client_part = id.split('.').next().expect("a client").to_owned();
    assert!(secret.contains(&id));
    let fields: Vec<_> = secret.split('.').collect();
    let mut wrong: Vec<_> = (0..fields.len()).map(|n| fields[..n].join(".")).collect();
    for n in 0..fields.len() {
        let mut changed = fields.clone();
        changed[n] = "-";
        wrong.push(changed.join("."));
    }
    wrong.push(format!("{secret}.1"));
    for text in wrong {
        let error = text.parse::<LeaseTicket>().expect_err("it is none").to_string();
        assert!(!error.contains(&client_part), "{error}");
    }
    for shown in [format!("{ticket:?}"), format!("{ticket}")] {
        assert!(!shown.contains(&client_part[9..]), "{shown}");
    }
}

#[test]
fn several_locks_must_have_names() {
    let client = Client::memory();
    for names in [&[][..], &["a", ""]] {
        let refused = client.lock_all(names).map(drop);
        assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
    }
    let all = client.lock_all(["b", "a", "b"]).expect("valid");
    assert_eq!(format!("{all:?}"), "LockAll { names: [\"b\", \"a\"], .. }");
}

/// Otherwise it would go on for ever.
#[tokio::test(start_paused = true)]
async fn a_call_whose_leases_end_while_it_waits_fails_after_a_few_times() {
    let client = Client::memory();
    let _busy = client.mutex("b").expect("valid").lock().await.expect("free");
    let short = MutexOptions::new().max_hold(SECOND);
    let failed = client.lock_all_with(["a", "b"], short).expect("valid").lock().await;
    let is_right =
        matches!(&failed, Err(Error::Lost { name, reason: LossReason::HeldTooLong, .. }) if name == "a");
    assert!(is_right, "{failed:?}");
    until_all_free(&client, &["a".to_owned()]).await;
}

#[tokio::test]
async fn a_read_write_lock_meets_no_other_lock_of_its_name() {
    let shop = MutexOptions::new().prefix("shop:");
    let semaphores = leasehold::SemaphoreOptions::new().prefix("shop:");
    let client = Client::memory().with_mutex_options(shop).with_semaphore_options(semaphores);
    let _writer = client.rw_lock("a").expect("valid").write().await.expect("free");
    drop(client.mutex("a").expect("valid").try_lock().await.expect("answered").expect("another one"));
    let semaphore = client.fair_semaphore("b", 1).expect("valid");
    let _permit = semaphore.acquire().await.expect("free");
    assert!(client.rw_lock("b").expect("valid").try_write().await.expect("answered").is_some());
}

#[test]
fn a_store_without_semaphores_has_no_read_write_locks_and_says_why() {
    let client = Client::connect_lazy("redlock://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1").expect("a URL");
    let error = client.rw_lock("a").expect_err("it has none");
    assert!(matches!(&error, Error::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("read/write lock") && text.contains("permits"), "{text}");
}
