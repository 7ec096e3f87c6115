//! All stores keep every point of the contract.
#![cfg(feature = "conformance")]

use std::sync::Arc;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres"))]
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use leasehold::MemoryBackend;
use leasehold::backend::conformance::{self, Harness, KINDS};
use leasehold::backend::{Backend, Kind};

#[macro_use]
#[path = "support/points.rs"]
mod points;
#[cfg(feature = "etcd")]
#[path = "support/etcd.rs"]
mod etcd;
#[cfg(feature = "sqlite")]
#[path = "support/sqlite.rs"]
mod file;
#[cfg(feature = "mysql")]
#[path = "support/mysql.rs"]
mod mysql;
#[cfg(feature = "postgres")]
#[path = "support/postgres.rs"]
mod postgres;
#[cfg(feature = "zookeeper")]
#[path = "support/zookeeper.rs"]
mod zookeeper;

/// How many kinds are checked at the same time: all if leases are so long that it would take too much time otherwise.
fn kinds_at_once(store: &impl Harness) -> usize {
    if store.ttl().as_secs() > 0 { KINDS.len() } else { 1 }
}

macro_rules! contract {
    ($store:path) => {
        points_of_every_store! { $store, KINDS, super::kinds_at_once }
        each_point! { $store, KINDS, super::kinds_at_once =>
            point_9_hand_over_work_is_independent_of_the_number_of_waiters,
        }
        each_point! { $store, [Kind::Mutex, Kind::Reentrant], super::kinds_at_once =>
            point_14_a_lease_released_by_force_is_remembered,
        }
        each_point! { $store, [Kind::Counting, Kind::Fair], super::kinds_at_once =>
            point_12_a_release_serves_exactly_those_that_fit,
            point_13_one_limit_is_in_force,
        }
    };
}

/// So that points 15 and 16 are checked.
macro_rules! claims {
    ($store:path) => {
        #[tokio::test]
        async fn it_records_labels_and_lists_what_it_has() {
            let Some(store) = $store("the claims").await else { return };
            let capabilities = Harness::client(&store).await.capabilities().clone();
            assert!(capabilities.labels && capabilities.lists, "{capabilities:?}");
        }
    };
}

struct Memory(MemoryBackend);

async fn memory(_point: &str) -> Option<Memory> {
    Some(Memory(MemoryBackend::new()))
}

impl Harness for Memory {
    fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
        async { Arc::new(self.0.peer()) as Arc<dyn Backend> }.boxed()
    }

    fn lose_data(&self) -> BoxFuture<'_, ()> {
        async { self.0.flush() }.boxed()
    }

    fn work(&self) -> BoxFuture<'_, u64> {
        async { self.0.waiters_served() }.boxed()
    }
}

/// Of a store that does not claim that its work is constant: that, and how it is connected to.
#[cfg(any(
    feature = "etcd",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite",
    feature = "zookeeper"
))]
macro_rules! without_constant_work {
    () => {
        fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
            async { Arc::new(self.backend().await) as Arc<dyn Backend> }.boxed()
        }

        fn work(&self) -> BoxFuture<'_, u64> {
            unreachable!("it does not claim that its work is constant")
        }
    };
}

/// A request is several exchanges and a write to the disk. On a machine with ten times as much to do as it has
/// processors, a lease of 600 ms may end before the third request.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! of_transactions {
    () => {
        fn ttl(&self) -> Duration {
            Duration::from_secs(3)
        }

        fn slack(&self) -> Duration {
            Duration::from_millis(1500)
        }
    };
}

mod on_memory {
    use super::*;
    contract!(memory);
    claims!(memory);
}

#[cfg(feature = "sqlite")]
mod on_sqlite {
    use super::file::SqliteFile;
    use super::*;

    async fn sqlite(_point: &str) -> Option<SqliteFile> {
        Some(SqliteFile::new())
    }

    impl Harness for SqliteFile {
        without_constant_work!();

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            async { self.delete() }.boxed()
        }
    }

    contract!(sqlite);
    claims!(sqlite);
}

#[cfg(feature = "mysql")]
mod on_mysql {
    use super::mysql::MysqlServer;
    use super::*;

    async fn mysql(point: &str) -> Option<MysqlServer> {
        MysqlServer::start_or_skip(&format!("the MySQL backend keeps {point}"))
    }

    impl Harness for MysqlServer {
        without_constant_work!();

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            async { drop(self.execute("DROP TABLE IF EXISTS leasehold, leasehold_meta").await) }.boxed()
        }

        of_transactions!();
    }

    contract!(mysql);
    claims!(mysql);
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::postgres::PostgresServer;
    use super::*;

    async fn postgres(point: &str) -> Option<PostgresServer> {
        PostgresServer::start_or_skip(&format!("the PostgreSQL backend keeps {point}"))
    }

    impl Harness for PostgresServer {
        without_constant_work!();

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            async { drop(self.execute("DROP TABLE IF EXISTS leasehold, leasehold_meta").await) }.boxed()
        }

        of_transactions!();
    }

    contract!(postgres);
    claims!(postgres);
}

#[cfg(feature = "etcd")]
mod on_etcd {
    use super::etcd::EtcdServer;
    use super::*;

    async fn etcd(point: &str) -> Option<EtcdServer> {
        EtcdServer::start_or_skip(&format!("the etcd backend keeps {point}"))
    }

    impl Harness for EtcdServer {
        without_constant_work!();

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            unreachable!("it does not claim that tokens survive this")
        }

        fn ttl(&self) -> Duration {
            Duration::from_secs(2)
        }

        /// A lease ends up to half a second late, and then somebody has to notice.
        fn slack(&self) -> Duration {
            Duration::from_secs(2)
        }
    }

    contract!(etcd);
    claims!(etcd);
}

#[cfg(feature = "zookeeper")]
mod on_zookeeper {
    use super::zookeeper::ZookeeperServer;
    use super::*;

    async fn zookeeper(point: &str) -> Option<ZookeeperServer> {
        ZookeeperServer::shared_or_skip(&format!("the ZooKeeper backend keeps {point}"))
    }

    impl Harness for ZookeeperServer {
        without_constant_work!();

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            async { self.wire().delete_all(self.chroot()) }.boxed()
        }
    }

    contract!(zookeeper);
    claims!(zookeeper);
}

#[cfg(feature = "_redis")]
mod on_redis {
    use super::*;
    use leasehold::redis::RedisBackend;
    use leasehold_support::{Proxy, RedisServer, more_rules};

    struct Redis {
        server: RedisServer,
        /// On the way through this, tickets get lost.
        forgets_tickets: Option<Proxy>,
    }

    async fn redis(point: &str) -> Option<Redis> {
        let server = RedisServer::start_or_skip(&format!("the Redis backend keeps {point}"))?;
        server.allow(&more_rules("+scan"));
        Some(Redis::new(server))
    }

    impl Redis {
        const fn new(server: RedisServer) -> Self {
            Self { server, forgets_tickets: None }
        }

        async fn connect(url: &str) -> Arc<dyn Backend> {
            Arc::new(RedisBackend::connect(url).await.expect("the server accepts clients"))
        }
    }

    impl Harness for Redis {
        fn client(&self) -> BoxFuture<'_, Arc<dyn Backend>> {
            async {
                let proxied = self.forgets_tickets.as_ref().map(Proxy::url);
                Self::connect(&proxied.unwrap_or_else(|| self.server.url())).await
            }
            .boxed()
        }

        fn lose_data(&self) -> BoxFuture<'_, ()> {
            async {
                self.server.raw().send(&["FLUSHALL"]);
                self.server.raw().send(&["SCRIPT", "FLUSH"]);
            }
            .boxed()
        }

        /// Every command the server ran, those inside scripts included, but not those of this count itself.
        fn work(&self) -> BoxFuture<'_, u64> {
            async {
                let calls = self.server.raw().info_commandstats();
                calls.iter().filter(|(command, _)| *command != "info").map(|(_, calls)| calls).sum()
            }
            .boxed()
        }
    }

    contract!(redis);
    claims!(redis);

    /// Why `check` fails on a store that gives every place the same ticket.
    async fn found_out<C: Future<Output = ()> + Send + 'static>(
        kind: Kind,
        check: impl FnOnce(Redis, Kind) -> C,
    ) -> Option<String> {
        let server = RedisServer::start_or_skip("a store without tickets")?;
        let proxy = Proxy::start(server.port()).await;
        proxy.forget_tickets();
        let store = Redis { forgets_tickets: Some(proxy), ..Redis::new(server) };
        let panic = tokio::spawn(check(store, kind)).await.expect_err("found out").into_panic();
        let why = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        Some(why.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a message"))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_that_forgets_its_tickets_fails() {
        for kind in KINDS {
            let ticket = found_out(kind, |store, kind| async move {
                conformance::point_4_every_place_has_its_own_ticket(&store, kind).await;
            });
            let late = found_out(kind, |store, kind| async move {
                conformance::point_4_a_grant_reported_late_is_not_accepted(&store, kind).await;
            });
            for why in [ticket.await, late.await] {
                let Some(why) = why else { return };
                assert!(why.contains("ticket"), "{kind:?}: {why}");
            }
        }
    }
}
