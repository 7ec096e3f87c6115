//! A process that forks after connecting: the child's copies of clients and guards are refused with an error that says
//! why, a new client works in the child, and nothing that the child does with the copies disturbs the parent.

#[cfg(feature = "etcd")]
#[path = "../support/etcd.rs"]
mod etcd;
#[cfg(feature = "sqlite")]
#[path = "../support/sqlite.rs"]
mod file;
#[cfg(feature = "mysql")]
#[path = "../support/mysql.rs"]
mod mysql;
#[cfg(feature = "postgres")]
#[path = "../support/postgres.rs"]
mod postgres;
#[cfg(feature = "zookeeper")]
#[path = "../support/zookeeper.rs"]
mod zookeeper;

use std::future::Future;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::time::{Duration, Instant};

use leasehold::{Client, DistMutex, Error, Guard, MutexOptions, SemaphoreOptions, Status};
use leasehold_support::{Worker, eventually, say, within, worker_args};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
/// How long a new client may take to connect in the child.
const CONNECT: Duration = Duration::from_secs(5);
/// The machine may be busy: for less than that.
const TTL: Duration = Duration::from_secs(3);
/// How long a request of the parent may take: what is not answered on a connection is given up after that.
const REQUEST: Duration = Duration::from_secs(2);
/// How long the child may take for everything.
const CHILD: Duration = Duration::from_secs(20);

/// What the child's new client locks.
const OF_CHILD: &str = "of the child";

type Waiting = Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

/// What a process has when it forks. Dropped as a whole, such as what is in a `main` that ends.
struct State {
    url: String,
    client: Client,
    mutex: DistMutex,
    guard: Guard,
    /// For each way in which the child can be rid of it, one of each primitive: those that are released, and those that
    /// are dropped.
    more: [Vec<Guard>; 2],
    waiting: Waiting,
}

// The worker: a process that forks.

fn runtime_of(flavor: &str) -> Runtime {
    let mut builder = match flavor {
        "current_thread" => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

fn mutex_of(client: &Client, name: &str) -> DistMutex {
    client.mutex_with(name, MutexOptions::new().ttl(TTL)).expect("valid")
}

async fn prepare(url: &str) -> State {
    let client = Client::connect(url).await.expect("connected");
    let mutex = mutex_of(&client, "forked");
    let guard = mutex.lock().await.expect("free");
    let more = [of_each_kind(&client, "released").await, of_each_kind(&client, "dropped").await];
    let waiter = mutex.clone();
    let mut waiting: Waiting = Box::pin(async move { waiter.lock().await });
    assert!(timeout(SECOND / 5, &mut waiting).await.is_err(), "it is held");
    State { url: url.to_owned(), client, mutex, guard, more, waiting }
}

/// A guard of each primitive.
async fn of_each_kind(client: &Client, name: &str) -> Vec<Guard> {
    let (lock, permits) = (MutexOptions::new().ttl(TTL), SemaphoreOptions::new().ttl(TTL));
    let reentrant = client.reentrant_lock_with(&format!("{name} again"), "me", lock).expect("valid");
    let counting =
        client.counting_semaphore_with(&format!("{name} permit"), 2, permits.clone()).expect("valid");
    let fair = client.fair_semaphore_with(&format!("{name} in order"), 2, permits).expect("valid");
    vec![
        mutex_of(client, name).lock().await.expect("free"),
        reentrant.lock().await.expect("free"),
        counting.acquire().await.expect("free"),
        fair.acquire().await.expect("free"),
    ]
}

#[expect(unsafe_code, reason = "there is no safe way to fork")]
fn fork() -> Option<libc::pid_t> {
    // SAFETY: the child only uses memory that no other thread of the parent has locked: its own, and what these tests
    // are about.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "forked");
    (pid > 0).then_some(pid)
}

/// The status with which the child has ended.
#[expect(unsafe_code, reason = "only the child of a `Command` can be waited for otherwise")]
fn ended(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: it only writes to `status`.
    let waited = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
    assert!(waited >= 0, "it is our child");
    (waited > 0).then_some(status)
}

#[expect(unsafe_code, reason = "only the child of a `Command` can be killed otherwise")]
fn kill(child: libc::pid_t) {
    // SAFETY: it is given no memory.
    unsafe { libc::kill(child, libc::SIGKILL) };
}

#[test]
fn forking_worker() {
    let Some(args) = worker_args() else { return };
    let mut words = args.split(' ');
    let (url, flavor) = (words.next().expect("a URL"), words.next().expect("a flavor"));
    let runtime = runtime_of(flavor);
    let state = runtime.block_on(prepare(url));
    let Some(child) = fork() else {
        // The parent's runtime has no threads here, and its sockets belong to the parent.
        forget(runtime);
        let done = catch_unwind(AssertUnwindSafe(|| in_child(state)));
        // As `main` ends: what runs at exit runs.
        std::process::exit(i32::from(done.is_err()));
    };
    runtime.block_on(in_parent(state, child));
    say("done");
}

/// Everything is refused at once, and dropped without effect. Then, a new client works.
fn in_child(state: State) {
    let State { url, client, mutex, guard, more: [released, dropped], waiting } = state;
    let runtime = runtime_of("current_thread");
    // So long, a copy may not know yet that it is one.
    std::thread::sleep(Duration::from_millis(2));
    runtime.block_on(async {
        let begin = Instant::now();
        for copy in released.iter().chain(&dropped).chain([&guard]) {
            assert!(!copy.is_held() && copy.remaining().is_zero(), "{copy:?}");
        }
        let state = client.state();
        assert!(matches!(state.status, Status::Closed), "{state:?}");
        assert!(state.nodes[0].to_string().contains("the process id has changed"), "{state:?}");
        assert_forked(mutex.try_lock().await, "try_lock");
        assert_forked(mutex.lock().await, "lock");
        assert_forked(mutex.lock_timeout(SECOND * 5).await, "lock_timeout");
        assert_forked(client.mutex("new").expect("valid").try_lock().await, "another lock");
        let permits = client.counting_semaphore("permits", 2).expect("valid");
        assert_forked(permits.try_acquire().await, "a permit");
        assert_forked(permits.resize(3).await, "resize");
        let fair = client.fair_semaphore("in order", 2).expect("valid");
        assert_forked(fair.try_acquire().await, "a permit in order");
        let reentrant = client.reentrant_lock("again", "me").expect("valid");
        assert_forked(reentrant.try_lock().await, "an owner");
        assert_forked(mutex.inspect().await, "inspect");
        assert_forked(mutex.force_release().await, "force_release");
        assert_forked(client.ping(SECOND).await, "ping");
        assert_forked(client.check().await, "check");
        assert_forked(client.shutdown().await, "shutdown");
        for copy in released {
            assert_forked(copy.release().await, "release");
        }
        assert!(begin.elapsed() < SECOND, "refused after {:?}", begin.elapsed());
        drop(dropped);
    });
    // Within the runtime and outside.
    runtime.block_on(async { drop(waiting) });
    drop((mutex, guard, client));
    runtime.block_on(async {
        let client = within(CONNECT, Client::connect(&url)).await.expect("a new client connects");
        let forked = mutex_of(&client, "forked").try_lock().await.expect("answered");
        assert_eq!(forked.is_some(), url == "memory:", "the parent holds the lock");
        let mutex = mutex_of(&client, OF_CHILD);
        let own = mutex.lock().await.expect("free");
        if url != "memory:" {
            let waits = async || mutex.inspect().await.is_ok_and(|now| !now.waiters.is_empty());
            eventually(CONNECT, waits).await;
        }
        own.release().await.expect("released");
        drop(forked);
        client.shutdown().await.expect("shut down");
    });
}

#[track_caller]
fn assert_forked<T: std::fmt::Debug>(result: Result<T, Error>, operation: &str) {
    let error = result.expect_err(operation);
    assert!(matches!(error, Error::Forked { .. }), "{operation}: {error}");
    assert!(error.to_string().contains("the process id has changed"), "{operation}: {error}");
}

/// Waits for the lock that the child takes, which is passed on between the new client there and the one here.
async fn wait_for_child(mutex: DistMutex) {
    eventually(CHILD, || async { mutex.inspect().await.is_ok_and(|now| !now.holders.is_empty()) }).await;
    let guard = within(CONNECT, mutex.lock()).await.expect("passed on");
    guard.release().await.expect("released");
}

/// While the child does all that, for two leases and for one after it, nothing changes here.
async fn in_parent(state: State, child: libc::pid_t) {
    let State { url, client, mutex, guard, more, waiting } = state;
    let passed_on = (url != "memory:").then(|| tokio::spawn(wait_for_child(mutex_of(&client, OF_CHILD))));
    let (limit, mut status) = (Instant::now() + CHILD, None);
    let mut until = Instant::now() + TTL * 2;
    let mut round = 0;
    while status.is_none() || Instant::now() < until {
        if status.is_none() {
            status = ended(child);
            until = until.max(Instant::now() + TTL);
            if Instant::now() > limit {
                kill(child);
                say("stuck");
                panic!("the child does not end");
            }
        }
        for guard in more.iter().flatten().chain([&guard]) {
            assert!(guard.is_held(), "held: {}", guard.name());
        }
        round += 1;
        let other = mutex_of(&client, &format!("other {round}"));
        let other = within(REQUEST, other.try_lock()).await.expect("answered").expect("free");
        within(REQUEST, other.release()).await.expect("released");
        sleep(SECOND / 20).await;
    }
    assert_eq!(status, Some(0), "the child's status; its reason is on standard error");
    if let Some(passed_on) = passed_on {
        within(REQUEST, passed_on).await.expect("passed on");
    }
    assert!(within(REQUEST, mutex.try_lock()).await.expect("answered").is_none(), "still held in the store");
    within(REQUEST, guard.release()).await.expect("released");
    let granted = within(CONNECT, waiting).await.expect("granted");
    granted.release().await.expect("released");
    for guard in more.into_iter().flatten() {
        guard.release().await.expect("released");
    }
    client.shutdown().await.expect("shut down");
}

// The tests

/// How often a child is made until one ends.
const ATTEMPTS: u32 = 4;

async fn assert_fork_is_harmless(url: &str) {
    // parking_lot, which tokio uses here, lists the threads that wait for its locks, those of the parent too. New threads
    // of the child may get their memory, and then one that waits next in the same list is not woken: no client can help
    // that, and it is rare.
    let run = async |flavor: &str| {
        for attempt in 1.. {
            let mut worker = Worker::start("forking_worker", &format!("{url} {flavor}"));
            let line = worker.line().await;
            if attempt < ATTEMPTS && line.as_deref() == Some("stuck") {
                continue;
            }
            assert_eq!(line.as_deref(), Some("done"), "{url}, {flavor}, attempt {attempt}");
            break;
        }
    };
    run("current_thread").await;
    run("multi_thread").await;
}

#[tokio::test]
async fn in_memory() {
    assert_fork_is_harmless("memory:").await;
}

#[cfg(any(feature = "fred", feature = "redis-rs"))]
#[tokio::test]
async fn on_redis() {
    let Some(server) = leasehold_support::RedisServer::start_or_skip("a fork with Redis") else { return };
    assert_fork_is_harmless(&server.url()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn on_sqlite() {
    let file = file::SqliteFile::new();
    // What is passed on has to arrive by itself.
    assert_fork_is_harmless(&format!("{}?poll_interval=60s", file.url())).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn on_postgres() {
    let Some(server) = postgres::PostgresServer::start_or_skip("a fork with PostgreSQL") else { return };
    assert_fork_is_harmless(&server.url()).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn on_mysql() {
    let Some(server) = mysql::MysqlServer::start_or_skip("a fork with MySQL") else { return };
    assert_fork_is_harmless(&server.url()).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn on_etcd() {
    let Some(server) = etcd::EtcdServer::start_or_skip("a fork with etcd") else { return };
    assert_fork_is_harmless(&server.url()).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn on_zookeeper() {
    let Some(server) = zookeeper::ZookeeperServer::start_or_skip("a fork with ZooKeeper") else { return };
    assert_fork_is_harmless(&server.url()).await;
}
