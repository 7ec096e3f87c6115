//! The model and the stores that are compared with it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::MemoryBackend;
use leasehold::backend::Backend;
use tokio::runtime::{Builder, Runtime};
use tokio::time::advance;

pub(crate) type Client = Arc<dyn Backend>;

/// What differs from store to store besides [`Backend`].
pub(crate) trait Store {
    /// A new client.
    fn connect(&mut self) -> Client;

    fn lose_data(&mut self);

    fn pass(&mut self, time: Duration);

    /// That of the store's clients.
    fn runtime(&self) -> &Runtime;

    /// Runs a future on the runtime of the store's clients.
    fn run<T>(&mut self, future: impl Future<Output = T>) -> T {
        self.runtime().block_on(future)
    }

    /// How long to wait for events.
    fn event_timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// Whether it tells a holder at once that its lease was released by force.
    fn pushes_revocations(&self) -> bool {
        true
    }

    /// Whether holders of other clients are told that they should ask again, and learn from the answer that their lease was
    /// released by force.
    fn asks_holders(&self) -> bool {
        false
    }

    /// Whether a release may be answered before the queue has been served: whoever lives and waits is then sent an
    /// event, but nothing tells when a waiter was served whose client has died.
    fn serves_later(&self) -> bool {
        false
    }

    /// The keys whose names contain `of`, other than fences. Most stores have only records, which stay for a day and
    /// say what inspection shows as well.
    fn leftovers(&mut self, _of: &str) -> Vec<String> {
        Vec::new()
    }
}

/// How long a server may take. What is slow here is the machine, and nothing is to be given up or sent twice for that.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "fred",
    feature = "zookeeper"
))]
const SLOW: Duration = Duration::from_secs(30);

/// A thread that serves connections also while nothing is run.
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "zookeeper"))]
fn server_runtime() -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("the system has room for a runtime")
}

/// The model: the ledger in memory. Time passes when it is told to.
pub(crate) struct Memory {
    store: MemoryBackend,
    runtime: Runtime,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime needs nothing that may be missing");
        let store = runtime.block_on(async { MemoryBackend::new() });
        Self { store, runtime }
    }
}

impl Store for Memory {
    fn connect(&mut self) -> Client {
        Arc::new(self.store.peer())
    }

    fn lose_data(&mut self) {
        self.store.flush();
    }

    fn pass(&mut self, time: Duration) {
        self.runtime.block_on(advance(time));
    }

    fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    fn event_timeout(&self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(feature = "etcd")]
pub(crate) use etcd::Etcd;
#[cfg(feature = "fred")]
pub(crate) use redis::Redis;
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::Sqlite;

#[cfg(feature = "mysql")]
pub(crate) use mysql::Mysql;
#[cfg(feature = "postgres")]
pub(crate) use postgres::Postgres;

#[cfg(feature = "etcd")]
mod etcd {
    use leasehold::etcd::EtcdBackend;

    use super::*;
    use crate::etcd_server::EtcdServer;
    use crate::plan::TWO_DAYS;

    /// A real server, and the runtime of its clients.
    pub(crate) struct Etcd {
        runtime: Runtime,
        server: EtcdServer,
    }

    impl Etcd {
        /// A server, or `None` where there can be none.
        #[track_caller]
        pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
            let server = EtcdServer::start_or_skip(left_out)?;
            Some(Self { runtime: server_runtime(), server })
        }
    }

    impl Store for Etcd {
        fn connect(&mut self) -> Client {
            let builder = EtcdBackend::builder(&self.server.url()).expect("a server's URL can be read");
            let builder = builder.connect_timeout(SLOW).reply_timeout(SLOW);
            Arc::new(self.runtime.block_on(builder.connect()).expect("the server accepts clients"))
        }

        fn lose_data(&mut self) {
            self.server.delete_all();
        }

        /// Days are over when every lease is.
        fn pass(&mut self, time: Duration) {
            assert!(time >= TWO_DAYS, "its clock cannot be set");
            self.server.end_all_leases();
        }

        fn runtime(&self) -> &Runtime {
            &self.runtime
        }
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use leasehold::mysql::MysqlBackend;

    use super::*;
    use crate::mysql_server::MysqlServer;
    use leasehold_support::Clock;

    /// A real server that lives by a shifted clock, and the runtime of its clients.
    pub(crate) struct Mysql {
        runtime: Runtime,
        clock: Clock,
        server: MysqlServer,
    }

    impl Mysql {
        /// A server under a clock of its own, or `None` where there can be none of either.
        #[track_caller]
        pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
            let clock = Clock::new_or_skip(left_out)?;
            let options = ["--innodb-flush-log-at-trx-commit=0"];
            let server = MysqlServer::start_with_or_skip(left_out, &options, Some(&clock))?;
            Some(Self { runtime: server_runtime(), clock, server })
        }
    }

    impl Store for Mysql {
        fn connect(&mut self) -> Client {
            let builder = MysqlBackend::builder(&self.server.url()).expect("a server's URL can be read");
            let builder = builder.connect_timeout(SLOW).reply_timeout(SLOW);
            Arc::new(self.runtime.block_on(builder.connect()).expect("the server accepts clients"))
        }

        fn lose_data(&mut self) {
            self.runtime.block_on(self.server.execute("DELETE FROM leasehold"));
        }

        fn pass(&mut self, time: Duration) {
            self.clock.shift(time);
        }

        fn runtime(&self) -> &Runtime {
            &self.runtime
        }

        /// Whoever holds does not look.
        fn pushes_revocations(&self) -> bool {
            false
        }
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use leasehold::postgres::PostgresBackend;

    use super::*;
    use crate::server::PostgresServer;
    use leasehold_support::Clock;

    /// A real server that lives by a shifted clock, and the runtime of its clients.
    pub(crate) struct Postgres {
        runtime: Runtime,
        clock: Clock,
        server: PostgresServer,
    }

    impl Postgres {
        /// A server under a clock of its own, or `None` where there can be none of either.
        #[track_caller]
        pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
            let clock = Clock::new_or_skip(left_out)?;
            let server = PostgresServer::start_with_or_skip(left_out, &["fsync=off"], Some(&clock))?;
            Some(Self { runtime: server_runtime(), clock, server })
        }
    }

    impl Store for Postgres {
        fn connect(&mut self) -> Client {
            let builder = PostgresBackend::builder(&self.server.url()).expect("a server's URL can be read");
            let builder = builder.connect_timeout(SLOW).reply_timeout(SLOW);
            Arc::new(self.runtime.block_on(builder.connect()).expect("the server accepts clients"))
        }

        fn lose_data(&mut self) {
            self.runtime.block_on(self.server.execute("DELETE FROM leasehold"));
        }

        fn pass(&mut self, time: Duration) {
            self.clock.shift(time);
        }

        fn runtime(&self) -> &Runtime {
            &self.runtime
        }
    }
}

#[cfg(feature = "zookeeper")]
pub(crate) use zookeeper::Zookeeper;

#[cfg(feature = "zookeeper")]
mod zookeeper {
    use leasehold::zookeeper::ZookeeperBackend;

    use super::*;
    use crate::zookeeper_server::ZookeeperServer;
    use leasehold_support::Clock;

    /// A real server that lives by a shifted clock, and the runtime of its clients.
    pub(crate) struct Zookeeper {
        runtime: Runtime,
        clock: Clock,
        server: ZookeeperServer,
    }

    impl Zookeeper {
        /// A server under a clock of its own, or `None` where there can be none of either.
        #[track_caller]
        pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
            let clock = Clock::new_or_skip(left_out)?;
            // No session ends during a sequence, whatever the clock says.
            let settings = ["forceSync=no", "maxSessionTimeout=600000"];
            let server = ZookeeperServer::start_with_or_skip(left_out, &settings, Some(&clock))?;
            Some(Self { runtime: server_runtime(), clock, server })
        }
    }

    impl Store for Zookeeper {
        fn connect(&mut self) -> Client {
            let builder = ZookeeperBackend::builder(&self.server.url()).expect("a server's URL can be read");
            let builder = builder.connect_timeout(SLOW).reply_timeout(SLOW).session_timeout(SLOW * 20);
            // Its clock is not to be extrapolated.
            let builder = builder.clock_lifetime(Duration::ZERO);
            Arc::new(self.runtime.block_on(builder.connect()).expect("the server accepts clients"))
        }

        fn lose_data(&mut self) {
            self.server.wire().delete_all(self.server.chroot());
        }

        fn pass(&mut self, time: Duration) {
            self.clock.shift(time);
        }

        fn runtime(&self) -> &Runtime {
            &self.runtime
        }

        /// They see that their node is gone.
        fn asks_holders(&self) -> bool {
            true
        }

        /// A client that remembers a record looks for waiters once it has written it.
        fn serves_later(&self) -> bool {
            true
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::SystemTime;

    use leasehold::sqlite::SqliteBackend;

    use super::*;
    use crate::file::SqliteFile;

    /// A real file whose clients live by a shifted clock, and their runtime.
    pub(crate) struct Sqlite {
        runtime: Runtime,
        /// By how many milliseconds the clock is ahead.
        ahead: Arc<AtomicU64>,
        file: SqliteFile,
    }

    impl Sqlite {
        /// A file of its own, for which nothing can be missing.
        pub(crate) fn start_or_skip(_: &str) -> Option<Self> {
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("the system has room for a runtime");
            Some(Self { runtime, ahead: Arc::default(), file: SqliteFile::new() })
        }
    }

    impl Store for Sqlite {
        fn connect(&mut self) -> Client {
            let ahead = Arc::clone(&self.ahead);
            let clock = move || SystemTime::now() + Duration::from_millis(ahead.load(Ordering::SeqCst));
            let builder = SqliteBackend::builder_from_path(self.file.path()).clock(Arc::new(clock));
            Arc::new(self.runtime.block_on(builder.connect()).expect("the file can be used"))
        }

        fn lose_data(&mut self) {
            self.file.delete();
        }

        fn pass(&mut self, time: Duration) {
            let millis = u64::try_from(time.as_millis()).expect("some days");
            self.ahead.fetch_add(millis, Ordering::SeqCst);
        }

        fn runtime(&self) -> &Runtime {
            &self.runtime
        }
    }
}

#[cfg(feature = "fred")]
mod redis {
    use leasehold::redis::RedisBackend;

    use super::*;
    use leasehold_support::{Clock, Raw, RedisServer, Setup};

    /// A real server that lives by a shifted clock, and the runtime of its clients.
    pub(crate) struct Redis {
        raw: Raw,
        runtime: Runtime,
        clock: Clock,
        server: RedisServer,
    }

    impl Redis {
        /// A server under a clock of its own, or `None` where there can be none of either.
        #[track_caller]
        pub(crate) fn start_or_skip(left_out: &str) -> Option<Self> {
            let clock = Clock::new_or_skip(left_out)?;
            let server = RedisServer::start_with_or_skip(left_out, Setup::under(&clock))?;
            // Its keys have no prefix.
            server.allow(&["~*".to_owned()]);
            let runtime = Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("the system has room for a runtime");
            Some(Self { raw: server.raw(), runtime, clock, server })
        }
    }

    impl Store for Redis {
        fn connect(&mut self) -> Client {
            let builder = RedisBackend::builder(&self.server.url()).expect("a server's URL can be read");
            let builder = builder.connect_timeout(SLOW).reply_timeout(SLOW);
            Arc::new(self.runtime.block_on(builder.connect()).expect("the server accepts clients"))
        }

        fn lose_data(&mut self) {
            self.raw.send(&["FLUSHALL"]);
            self.raw.send(&["SCRIPT", "FLUSH"]);
        }

        fn pass(&mut self, time: Duration) {
            self.clock.shift(time);
            self.clock.is_followed_by(&mut self.raw);
        }

        fn runtime(&self) -> &Runtime {
            &self.runtime
        }

        fn leftovers(&mut self, of: &str) -> Vec<String> {
            let mut keys = self.raw.keys(&format!("*{of}*"));
            keys.retain(|key| ![":fence", ":state", ":revoked"].iter().any(|end| key.ends_with(end)));
            keys
        }
    }
}
