//! Cancellation as a matrix, on every store: what is asked for, what becomes of the calls to the store, and after how
//! many polls the caller drops what it has. Whatever the combination, nothing is held by nobody afterwards.
//!
//! Between the client and the store stands a [`Gate`] for each lock. Each cell of the matrix has a lock of its own, so
//! that dozens are checked at the same time. (`cancellation` drops clients, runtimes and connections of Redis as well.)
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

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use etcd::EtcdServer;
use file::SqliteFile;
use futures::future::join;
use futures::{FutureExt, StreamExt, stream};
use leasehold::backend::Backend;
use leasehold::etcd::EtcdBackend;
use leasehold::mysql::MysqlBackend;
use leasehold::postgres::PostgresBackend;
use leasehold::redis::RedisBackend;
use leasehold::redlock::RedlockBackend;
use leasehold::sqlite::SqliteBackend;
use leasehold::zookeeper::ZookeeperBackend;
use leasehold::{
    Client, DistMutex, Error, FairSemaphore, FencingToken, Guard, Inspection, MemoryBackend, MutexOptions,
    SemaphoreOptions,
};
use leasehold_support::gates::{Call, GATES, Gate, Gated};
use leasehold_support::{Nodes, RedisServer};
use mysql::MysqlServer;
use parking_lot::Mutex;
use postgres::PostgresServer;
use tokio::time::{sleep, timeout};
use zookeeper::ZookeeperServer;

/// Long enough that nothing ends by itself.
const LONG: Duration = Duration::from_secs(300);
/// For what should happen at once, on a machine that may have much else to do.
const SOON: Duration = Duration::from_secs(30);
/// For how long a caller waits for what may never come, before it drops it.
const PATIENCE: Duration = Duration::from_millis(150);
/// More polls than anything takes here.
const MANY: usize = 100;
/// How many cells are checked at the same time.
const AT_A_TIME: usize = 48;

/// What is locked.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Mutex,
    /// Without hand-over between the tasks of a client.
    Queued,
    Fair,
}

/// What is dropped.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// A request for what is free.
    Request,
    /// A request that does not wait.
    Try,
    /// A request for what another client holds.
    Wait,
    /// The same, while the other client releases it. Only what comes after the place in the queue meets the gate.
    Grant,
    /// A release.
    Release,
    /// A guard, without a release.
    Drop,
}

/// One cell of the matrix.
#[derive(Clone, Copy, Debug)]
struct Cell {
    kind: Kind,
    action: Action,
    call: Call,
    gate: Gate,
}

const ACTIONS: [Action; 6] =
    [Action::Request, Action::Try, Action::Wait, Action::Grant, Action::Release, Action::Drop];

/// All cells of a kind. That no gate is closed is one cell.
fn cells(kind: Kind) -> impl Iterator<Item = Cell> {
    let calls = [Call::Request, Call::Release].into_iter();
    let closed = calls.flat_map(|call| GATES.map(|gate| (call, gate)));
    let gates: Vec<_> = closed.filter(|gate| *gate != (Call::Release, Gate::Open)).collect();
    ACTIONS
        .into_iter()
        .flat_map(move |action| gates.clone().into_iter().map(move |gate| (action, gate)))
        .map(move |(action, (call, gate))| Cell { kind, action, call, gate })
}

/// What has become of a future.
enum Outcome<T> {
    Ended(T),
    /// It was dropped after its last poll.
    Dropped,
    /// It was dropped because nothing woke it again.
    Waits,
}

/// Polls a future this many times, as often as it is woken.
async fn polled<T>(future: impl Future<Output = T>, polls: usize) -> Outcome<T> {
    let (mut future, mut left) = (pin!(future), polls);
    let polled = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(Outcome::Dropped);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Outcome::Ended(output)),
            Poll::Pending if left == 0 => Poll::Ready(Outcome::Dropped),
            Poll::Pending => Poll::Pending,
        }
    });
    timeout(PATIENCE, polled).await.unwrap_or(Outcome::Waits)
}

enum Lock {
    Mutex(DistMutex),
    Permit(FairSemaphore),
}

impl Lock {
    fn new(client: &Client, kind: Kind, name: &str, ttl: Duration) -> Self {
        let mutex = MutexOptions::new().ttl(ttl).prefix("");
        match kind {
            Kind::Mutex => Self::Mutex(client.mutex_with(name, mutex).expect("a name")),
            Kind::Queued => {
                let queued = mutex.local_handover(false);
                Self::Mutex(client.mutex_with(name, queued).expect("a name"))
            }
            Kind::Fair => {
                let options = SemaphoreOptions::new().ttl(ttl).prefix("");
                Self::Permit(client.fair_semaphore_with(name, 1, options).expect("a name"))
            }
        }
    }

    async fn wait(&self) -> Result<Guard, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock().await,
            Self::Permit(semaphore) => semaphore.acquire().await,
        }
    }

    async fn try_now(&self) -> Result<Option<Guard>, Error> {
        match self {
            Self::Mutex(mutex) => mutex.try_lock().await,
            Self::Permit(semaphore) => semaphore.try_acquire().await,
        }
    }

    /// Nothing, if a busy machine has kept the store from answering in time.
    async fn inspect(&self) -> Option<Inspection> {
        let inspection = match self {
            Self::Mutex(mutex) => mutex.inspect().await,
            Self::Permit(semaphore) => semaphore.inspect().await,
        };
        inspection.ok()
    }

    /// Locks what is free or will be at once, and releases it.
    async fn pass(&self, cell: &str) -> FencingToken {
        let guard = timeout(SOON, self.wait()).await.unwrap_or_else(|_| panic!("{cell}: somebody holds it"));
        let guard = guard.unwrap_or_else(|error| panic!("{cell}: {error}"));
        let token = guard.token();
        guard.release().await.unwrap_or_else(|error| panic!("{cell}: {error}"));
        token
    }

    async fn until(&self, cell: &str, is_so: fn(&Inspection) -> bool) {
        let come = async {
            while !self.inspect().await.as_ref().is_some_and(is_so) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, come).await.unwrap_or_else(|_| panic!("{cell}: it does not come to that"));
    }
}

/// A client whose calls pass the gates, and one whose calls do not.
struct Clients {
    gated: Arc<Gated>,
    one: Client,
    other: Client,
    /// A TTL that is to end within a test.
    brief: Duration,
}

impl Clients {
    fn new(one: Arc<dyn Backend>, other: Arc<dyn Backend>) -> Self {
        let gated = Gated::new(one);
        let one = Client::with_backend(Arc::clone(&gated) as Arc<dyn Backend>);
        Self { gated, one, other: Client::with_backend(other), brief: Duration::from_secs(1) }
    }

    async fn check(self, kinds: &[Kind]) {
        let dropped =
            kinds.iter().flat_map(|kind| cells(*kind)).map(|cell| self.at_every_await(cell).boxed());
        let renewed = kinds.iter().flat_map(|kind| {
            let gates = GATES.into_iter().flat_map(|gate| [4, 8, 13].map(|tenths| (gate, tenths)));
            gates.map(|(gate, tenths)| self.while_it_is_renewed(*kind, gate, tenths).boxed())
        });
        // Those that take the longest first.
        let all: Vec<_> = renewed.chain(dropped).collect();
        stream::iter(all).buffer_unordered(AT_A_TIME).collect::<()>().await;
        for client in [&self.one, &self.other] {
            client.shutdown().await.expect("all is released");
        }
    }

    fn locks(&self, kind: Kind, name: &str, ttl: Duration) -> (Lock, Lock) {
        (Lock::new(&self.one, kind, name, ttl), Lock::new(&self.other, kind, name, ttl))
    }

    /// Drops it after each number of polls, until it has ended by itself, or waits for what does not come.
    async fn at_every_await(&self, cell: Cell) {
        for polls in 0..MANY {
            if self.is_over_after(polls, cell).await {
                return;
            }
        }
        panic!("{cell:?}: not over after {MANY} polls");
    }

    async fn is_over_after(&self, polls: usize, cell: Cell) -> bool {
        let Cell { kind, action, call, gate } = cell;
        let name = format!("{kind:?}-{action:?}-{call:?}-{gate:?}-{polls}");
        let (one, other) = self.locks(kind, &name, LONG);
        let close = || self.gated.close_for(&name, call, gate);
        let free = "nobody has it";
        let outcome = match action {
            Action::Request => {
                close();
                held(polled(one.wait(), polls).await)
            }
            Action::Try => {
                close();
                tried(polled(one.try_now(), polls).await)
            }
            Action::Wait => {
                let guard = other.wait().await.expect(free);
                close();
                let waited = held(polled(one.wait(), polls).await);
                guard.release().await.expect("it is held");
                waited
            }
            Action::Grant => {
                let guard = other.wait().await.expect(free);
                let mut waiter = one.wait().boxed();
                let queued = other.until(&name, |seen| !seen.waiters.is_empty());
                tokio::select! {
                    () = queued => {}
                    _ = &mut waiter => panic!("{name}: it is held"),
                }
                close();
                let (granted, released) = join(polled(waiter, polls), guard.release()).await;
                released.expect("it is held");
                held(granted)
            }
            Action::Release => {
                let guard = one.wait().await.expect(free);
                close();
                match polled(guard.release(), polls).await {
                    Outcome::Dropped => Outcome::Dropped,
                    // That it failed is one way to end.
                    Outcome::Ended(_) | Outcome::Waits => Outcome::Waits,
                }
            }
            Action::Drop => {
                let guard = one.wait().await.expect(free);
                close();
                drop(guard);
                Outcome::Waits
            }
        };
        let (is_over, token) = match outcome {
            Outcome::Ended(guard) => {
                if let Some(guard) = &guard {
                    let also = other.try_now().await.expect("the store answers");
                    assert!(also.is_none() || !guard.is_held(), "{name}: both hold it");
                }
                (true, guard.map(|guard| guard.token()))
            }
            Outcome::Dropped => (false, None),
            Outcome::Waits => (true, None),
        };
        self.gated.open(&name);
        self.nothing_is_left(&name, &one, &other, token).await;
        is_over
    }

    /// Both clients can have it, one after the other, and then nobody has it or waits for it.
    async fn nothing_is_left(&self, cell: &str, one: &Lock, other: &Lock, before: Option<FencingToken>) {
        let second = other.pass(cell).await;
        let third = one.pass(cell).await;
        assert!(before < Some(second) && second < third, "{cell}: {before:?}, {second}, {third}");
        one.until(cell, |seen| seen.holders.is_empty() && seen.waiters.is_empty()).await;
    }

    /// Holds for some tenths of a TTL, while its renewals meet the gate and the other client waits.
    async fn while_it_is_renewed(&self, kind: Kind, gate: Gate, tenths: u32) {
        let name = format!("{kind:?}-renewed-{gate:?}-{tenths}");
        let one = Lock::new(&self.one, kind, &name, self.brief);
        // On a busy machine, a brief lease of its own might end before it is used.
        let other = Lock::new(&self.other, kind, &name, LONG);
        let guard = one.wait().await.expect("nobody has it");
        let token = guard.token();
        self.gated.close_for(&name, Call::Renew, gate);
        let guard = Mutex::new(Some(guard));
        let holds = || guard.lock().as_ref().is_some_and(Guard::is_held);
        let drops = async {
            sleep(self.brief * tenths / 10).await;
            if tenths > 10 && !matches!(gate, Gate::Open | Gate::Slow) {
                assert!(!holds(), "{name}: no renewal was confirmed");
            }
            let held = guard.lock().take();
            drop(held);
        };
        let waits = async {
            let granted = timeout(SOON, other.wait()).await;
            assert!(!holds(), "{name}: both hold it");
            let granted = granted.unwrap_or_else(|_| panic!("{name}: somebody holds it"));
            let granted = granted.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(granted.token() > token, "{name}");
        };
        join(drops, waits).await;
        self.gated.open(&name);
        let one = Lock::new(&self.one, kind, &name, LONG);
        self.nothing_is_left(&name, &one, &other, Some(token)).await;
    }
}

/// A request may fail: the store did not answer.
fn held(outcome: Outcome<Result<Guard, Error>>) -> Outcome<Option<Guard>> {
    match outcome {
        Outcome::Ended(answer) => Outcome::Ended(answer.ok()),
        Outcome::Dropped => Outcome::Dropped,
        Outcome::Waits => Outcome::Waits,
    }
}

fn tried(outcome: Outcome<Result<Option<Guard>, Error>>) -> Outcome<Option<Guard>> {
    match outcome {
        Outcome::Ended(answer) => Outcome::Ended(answer.ok().flatten()),
        Outcome::Dropped => Outcome::Dropped,
        Outcome::Waits => Outcome::Waits,
    }
}

// On each store

const ALL: &[Kind] = &[Kind::Mutex, Kind::Queued, Kind::Fair];
/// The client is the same on all of them: what differs is what is sent.
const TWO: &[Kind] = &[Kind::Mutex, Kind::Fair];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_memory() {
    let store = MemoryBackend::new();
    Clients::new(Arc::new(store.peer()), Arc::new(store)).check(ALL).await;
}

/// Two clients of the store at this URL.
macro_rules! clients {
    ($backend:ty, $url:expr) => {{
        let url = $url;
        let one = <$backend>::connect(&url).await.expect("the server answers");
        let other = <$backend>::connect(&url).await.expect("the server answers");
        Clients::new(Arc::new(one), Arc::new(other))
    }};
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    let Some(server) = RedisServer::start_or_skip("the matrix") else { return };
    clients!(RedisBackend, server.url()).check(ALL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redlock() {
    let Some(nodes) = Nodes::start_or_skip("the matrix", 3) else { return };
    // Nodes that share a busy machine are late, which is not what is tested.
    let clients = clients!(RedlockBackend, format!("{}?node_timeout=1s", nodes.url()));
    Clients { brief: Duration::from_secs(4), ..clients }.check(&[Kind::Mutex]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite() {
    let file = SqliteFile::new();
    clients!(SqliteBackend, file.url()).check(TWO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    let Some(server) = PostgresServer::start_or_skip("the matrix") else { return };
    clients!(PostgresBackend, server.url()).check(TWO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mysql() {
    let Some(server) = MysqlServer::start_or_skip("the matrix") else { return };
    clients!(MysqlBackend, server.url()).check(TWO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_etcd() {
    let Some(server) = EtcdServer::start_or_skip("the matrix") else { return };
    // It has no shorter ones.
    let clients = clients!(EtcdBackend, server.url());
    Clients { brief: Duration::from_secs(2), ..clients }.check(TWO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_zookeeper() {
    let Some(server) = ZookeeperServer::shared_or_skip("the matrix") else { return };
    clients!(ZookeeperBackend, server.url()).check(TWO).await;
}
