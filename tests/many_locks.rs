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
mod support;
#[path = "support/zookeeper.rs"]
mod zookeeper;
#[path = "support/zookeeper_wire.rs"]
mod zookeeper_wire;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use etcd::EtcdServer;
use file::SqliteFile;
use leasehold::{Client, Error, FencingToken, Guard, MutexOptions, RwLock, WriteGuard};
use mysql::MysqlServer;
use parking_lot::Mutex;
use postgres::PostgresServer;
use support::{RedisServer, Worker, eventually, say, within, worker_args};
use tokio::task::{JoinHandle, JoinSet};
use zookeeper::ZookeeperServer;

const SECOND: Duration = Duration::from_secs(1);
/// For what should happen soon, on a machine that may have much else to do.
const SOON: Duration = Duration::from_secs(20);

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

    async fn client(&self) -> Client {
        Client::connect(&self.url).await.expect("the store can be used")
    }

    fn brief(&self) -> MutexOptions {
        MutexOptions::new().ttl(self.brief)
    }

    /// Whether other processes can use it.
    fn is_shared(&self) -> bool {
        !self.url.starts_with("memory:")
    }

    /// A process that does what `task` says.
    fn worker(&self, task: &str) -> Worker {
        Worker::start("worker", &format!("{task} {} {}", self.brief.as_millis(), self.url))
    }
}

/// Does what it is told, and then waits to be killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker() {
    let Some(args) = worker_args() else { return };
    let [task, ttl, url] = args.splitn(3, ' ').collect::<Vec<_>>().try_into().expect("three arguments");
    let store =
        Store { url: url.to_owned(), brief: Duration::from_millis(ttl.parse().expect("milliseconds")) };
    let client = store.client().await;
    match task {
        "write" => {
            let lock = client.rw_lock_with("killed", store.brief()).expect("valid");
            let guard = lock.write().await.expect("free");
            say(&format!("held {}", guard.token()));
            pending::<()>().await;
        }
        _ => panic!("what is {task}?"),
    }
}

// On each store

/// Runs each of these on every store: on memory as a test of its own, and on a server or in a file together with the others.
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

        async fn all_promises(store: Store) {
            $(
                let kept = tokio::spawn($promise(store.clone())).await;
                kept.unwrap_or_else(|error| panic!("{}: {error}", stringify!($promise)));
            )*
        }
    };
}

promises! {
    readers_hold_together_and_a_writer_alone,
    requests_are_served_in_order_of_arrival,
    neither_side_starves,
    a_downgrade_lets_readers_in_and_no_writer,
    tokens_of_writers_increase_over_all_grants,
    a_reader_and_a_writer_never_meet,
    a_holder_that_is_killed_blocks_others_for_a_ttl,
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

async fn until_waiting(lock: &RwLock, waiters: usize) {
    eventually(SOON, || async { lock.inspect().await.is_ok_and(|now| now.waiters.len() == waiters) }).await;
}

/// Waits until nothing is left of the lock.
async fn until_free(lock: &RwLock) {
    let is_free = |now: leasehold::Inspection| now.holders.is_empty() && now.waiters.is_empty();
    eventually(SOON, || async { lock.inspect().await.is_ok_and(is_free) }).await;
}

/// Sends these requests one after another, for writing if the word begins with `w`, from the clients in turn. Each is in the queue before
/// the next one is sent.
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
async fn two_handles(store: &Store, name: &str) -> [RwLock; 2] {
    let handle = async || store.client().await.rw_lock(name).expect("valid");
    [handle().await, handle().await]
}

async fn readers_hold_together_and_a_writer_alone(store: Store) {
    let [one, other] = two_handles(&store, "together").await;
    let readers = [
        one.read().await.expect("free"),
        other.read().await.expect("free"),
        one.try_read().await.expect("answered").expect("free for readers"),
        other.read_timeout(SOON).await.expect("free"),
    ];
    assert!(other.try_write().await.expect("answered").is_none());
    let late = one.write_timeout(Duration::from_millis(10)).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    for reader in readers {
        assert_eq!(reader.permits(), 1);
        reader.release().await.expect("held");
    }
    let writer = other.write_timeout(SOON).await.expect("free");
    for lock in [&one, &other] {
        assert!(lock.try_read().await.expect("answered").is_none());
        assert!(lock.try_write().await.expect("answered").is_none());
        let late = lock.read_timeout(Duration::from_millis(10)).await;
        assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    }
    writer.release().await.expect("held");
    // The places of those that did not wait longer are given up in the background.
    until_free(&one).await;
    drop(one.try_write().await.expect("answered").expect("free"));
    until_free(&other).await;
}

async fn requests_are_served_in_order_of_arrival(store: Store) {
    let locks = two_handles(&store, "order").await;
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
    let [one, other] = two_handles(&store, "starving").await;
    for (many, few) in [('r', 'w'), ('w', 'r')] {
        let mut crowd = JoinSet::new();
        let is_over = Arc::new(AtomicI64::new(0));
        for n in 0..4 {
            let (lock, is_over) =
                (if n % 2 == 0 { one.clone() } else { other.clone() }, Arc::clone(&is_over));
            crowd.spawn(async move {
                while is_over.load(Ordering::Relaxed) == 0 {
                    acquire(&lock, many).await.release().await;
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
    let locks = two_handles(&store, "downgrade").await;
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
    let [one, other] = two_handles(&store, "tokens").await;
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
    let locks = two_handles(&store, "never").await;
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
    let lock = store.client().await.rw_lock_with("killed", store.brief()).expect("valid");
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

// Of no store in particular

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
