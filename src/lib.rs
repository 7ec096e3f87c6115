//! Distributed locks and semaphores for tokio, backed by Redis, PostgreSQL, MySQL, etcd, ZooKeeper or a file.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold::Error> {
//! use leasehold::Client;
//!
//! let client = Client::connect("memory:").await?; // or "redis://127.0.0.1:6379"
//! let mutex = client.mutex("machine:42")?;
//! let guard = mutex.lock().await?; // waits its turn; renewed in the background from here on
//! let merged = guard.protect(async { "read, merge, write" }).await?; // stops early if the lease is lost
//! println!("{merged} under token {}", guard.token());
//! guard.release().await?; // or just drop it
//! # client.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! Everything you acquire is a **lease**: the store ends it on its own if the holder dies, it is renewed in the
//! background while its [`Guard`] is alive, and it carries a [`FencingToken`]. The page of [`Client`] shows everything
//! in examples, and the guide states the guarantees and their limits.
//!
//! # Which primitive
//!
//! | to let in | use | waiters are served |
//! |---|---|---|
//! | one task of all processes | [`DistMutex`] | in order of arrival; tasks of one process may pass the lock on among themselves first, for up to 30 ms |
//! | one task of all processes, to several things at once | [`LockAll`] | in order of arrival, for each of them |
//! | one owner that locks again what it holds, such as the steps of one order | [`ReentrantLock`] | in order of arrival; the owner itself does not wait |
//! | a limited number, with as many as possible at work | [`CountingSemaphore`] | in order of arrival among the requests that fit |
//! | many readers or one writer | [`RwLock`] | in order of arrival, readers next to each other together |
//! | a limited number, strictly in turn | [`FairSemaphore`] | in order of arrival, even if permits are idle until a large request fits |
//! | one of all processes that want to lead, under a value that others see | [`Election`] | in order of arrival |
//! | one of all schedulers to each run of a job | [`Once`] | those that come too late leave it out |
//!
//! # Which store
//!
//! A server that you already run is usually the best choice. A program that uses another store needs another URL and
//! the store's feature, and nothing else.
//!
//! | store | for |
//! |---|---|
//! | `memory:` | tests, and the tasks of one process |
//! | SQLite | the processes of one machine, with nothing to install |
//! | PostgreSQL, MySQL | services that have such a database: nothing is forgotten when it restarts; each change is a commit |
//! | etcd, ZooKeeper | locks that are not forgotten in a failover: a majority of the servers stores each change |
//! | Redis, Valkey | many locks per second. After a failover, or a restart without persistence, the latest grants may be forgotten, and two holders are possible until the first is notified |
//! | Redlock | locks on Redis that stay available while a minority of several independent servers is down; no semaphores, and so no read/write locks |
//!
//! Whatever the store, a process that was paused for longer than its lease may write once more before it notices. If
//! that would do harm, let the protected resource compare [tokens](Fence).
//!
//! To use another store, implement [`backend::LedgerStore`] or [`backend::Backend`].
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `fred` | yes | [`redis::RedisBackend`], and [`redlock::RedlockBackend`] on several of them, through [fred](https://docs.rs/fred), version 10 |
//! | `redis-rs` | no | the same through [redis-rs](https://docs.rs/redis), version 1: on its own instead of fred, or alongside it for `RedisBackend::builder_from_redis_rs` and `RedisBuilder::through_redis_rs` |
//! | `rustls` | no | TLS with [rustls](https://docs.rs/rustls), for the URLs that require it (such as `rediss://`, `etcds://`, or with `sslmode=require`), and `TlsOptions` |
//! | `native-tls` | no | the same with the system's TLS library, except for MySQL; if both are on, rustls is used |
//! | `sqlite` | no | [`sqlite::SqliteBackend`]: locks between the processes of one machine, in an SQLite file |
//! | `etcd` | no | [`etcd::EtcdBackend`]: locks in an etcd cluster |
//! | `mysql` | no | [`mysql::MysqlBackend`]: locks in a table of a MySQL or MariaDB database |
//! | `postgres` | no | [`postgres::PostgresBackend`]: locks in a table of a PostgreSQL database |
//! | `zookeeper` | no | [`zookeeper::ZookeeperBackend`]: locks in the nodes of a ZooKeeper server or ensemble |
//! | `all-stores` | no | all of these stores |
//! | `blocking` | no | [`blocking`]: the same interface for programs without tokio |
//! | `tower` | no | [`tower`]: layers that hold a permit or a lock for each request |
//! | `serde` | no | a [`ClientBuilder`], and the options of locks and semaphores, can be read from configuration files; a [`FencingToken`] can be serialized and deserialized, as a number |
//! | `metrics` | no | `ClientBuilder::metrics`: what happens is counted and measured through the [metrics](https://docs.rs/metrics) facade, version 0.24 |
//! | `conformance` | no | the contract that every backend must meet, as functions to call from its tests |
//!
//! Without any of these stores, only the memory store is available.

#![cfg_attr(docsrs, feature(doc_cfg))]
// The labels on docs.rs name the features that users choose.
#![cfg_attr(docsrs, doc(auto_cfg(hide(feature = "_apart", feature = "_records", feature = "_redis"))))]
#![cfg_attr(test, allow(clippy::unwrap_used))]
// The feature table links to backends and modules that such a build does not have.
#![cfg_attr(
    not(all(feature = "_redis", feature = "blocking", feature = "sqlite", feature = "tower")),
    allow(rustdoc::broken_intra_doc_links)
)]

pub mod backend;
#[cfg_attr(leasehold_shuttle, path = "interleavings/background.rs")]
mod background;
#[cfg(feature = "blocking")]
pub mod blocking;
mod client;
mod closing;
#[cfg(feature = "serde")]
mod config;
mod contention;
mod election;
mod error;
mod error_kind;
mod fair_semaphore;
mod fence;
mod guard;
mod handover;
mod hash;
mod home;
#[cfg(leasehold_shuttle)]
mod interleavings;
mod label;
mod lease;
mod listing;
mod lock_all;
#[cfg(feature = "metrics")]
mod metrics_observer;
mod mutex;
mod name;
mod observe;
pub mod observer;
mod once;
mod options;
mod origin;
mod permits;
#[cfg(any(leasehold_planted, all(test, feature = "_redis")))]
mod planted;
mod primitive;
mod purpose;
mod reentrant;
mod retry;
mod runtime;
mod rw_lock;
mod semaphore;
mod sync;
mod ticket;
#[cfg(feature = "tower")]
pub mod tower;

#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
#[doc(hidden)]
pub use backend::fuzzing;
pub use backend::memory::MemoryBackend;
pub use backend::state::{Finding, NodeState, Severity, Status, StoreState};
#[cfg(any(feature = "_records", feature = "_redis"))]
#[cfg_attr(
    docsrs,
    doc(cfg(any(
        feature = "etcd",
        feature = "fred",
        feature = "mysql",
        feature = "postgres",
        feature = "redis-rs",
        feature = "zookeeper"
    )))
)]
pub use backend::tls::TlsOptions;
pub use backend::types::{Holder, Inspection, MAX_TTL, MIN_TTL, NodeInspection, Waiter};
pub use client::{Client, ClientBuilder};
pub use contention::Contention;
pub use election::{Election, Leader, Leadership};
pub use error::{BackendError, BoxError, Cause, Error, LossReason, NodeFailure};
pub use error_kind::ErrorKind;
pub use fair_semaphore::FairSemaphore;
pub use fence::{Fence, FencingToken, StaleToken};
pub use guard::{Ended, Guard, LeaseEnd, Lost, Protected};
pub use label::{MAX_LABEL_BYTES, MAX_NOTE_BYTES};
pub use listing::ListEntry;
pub use lock_all::{AnyLost, LockAll, Locks, NotReleased};
#[cfg(feature = "metrics")]
pub use metrics_observer::MetricsObserver;
pub use mutex::DistMutex;
pub use name::MAX_NAME_BYTES;
pub use observer::Observer;
pub use once::{OnDeadRunner, Once, OnceOptions, Tick, Ticks};
pub use options::{MutexOptions, OnOtherLimit, SemaphoreOptions};
pub use purpose::Purpose;
pub use reentrant::ReentrantLock;
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::CountingSemaphore;
pub use ticket::LeaseTicket;

/// The store on one Redis or Valkey server, a primary that Sentinel names, or a cluster.
///
/// ```
/// // More than a URL can say: `RedisBackend::builder`.
/// let client = leasehold::Client::connect_lazy("redis://127.0.0.1:6379")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "_redis")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "fred", feature = "redis-rs"))))]
pub mod redis {
    pub use crate::backend::redis::{Credentials, CredentialsProvider, RedisBackend, RedisBuilder};
}

/// The store on a majority of several independent Redis servers.
///
/// ```
/// // More than a URL can say: `RedlockBackend::builder`.
/// let client = leasehold::Client::connect_lazy("redlock://10.0.0.7,10.0.0.8,10.0.0.9")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "_redis")]
#[cfg_attr(docsrs, doc(cfg(any(feature = "fred", feature = "redis-rs"))))]
pub mod redlock {
    pub use crate::backend::redlock::{RedlockBackend, RedlockBuilder};
}

/// The store in an SQLite file.
///
/// ```
/// // More than a URL can say: `SqliteBackend::builder`.
/// let client = leasehold::Client::connect_lazy("sqlite:locks.db")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "sqlite")]
pub mod sqlite {
    pub use crate::backend::sqlite::{SCHEMA, SqliteBackend, SqliteBuilder, Synchronous};
}

/// The store in a table of a PostgreSQL database.
///
/// ```
/// // More than a URL can say: `PostgresBackend::builder`.
/// let client = leasehold::Client::connect_lazy("postgres://app@db.example/app")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "postgres")]
pub mod postgres {
    pub use crate::backend::postgres::{PostgresBackend, PostgresBuilder, SCHEMA};
}

/// The store in a table of a MySQL or MariaDB database.
///
/// ```
/// // More than a URL can say: `MysqlBackend::builder`.
/// let client = leasehold::Client::connect_lazy("mysql://app@db.example/app")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "mysql")]
pub mod mysql {
    pub use crate::backend::mysql::{MysqlBackend, MysqlBuilder, MysqlPush, SCHEMA};
}

/// The store in an etcd cluster.
///
/// ```
/// // More than a URL can say: `EtcdBackend::builder`.
/// let client = leasehold::Client::connect_lazy("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "etcd")]
pub mod etcd {
    pub use crate::backend::etcd::{EtcdBackend, EtcdBuilder};
}

/// The store in the nodes of a ZooKeeper server or ensemble.
///
/// ```
/// // More than a URL can say: `ZookeeperBackend::builder`.
/// let client = leasehold::Client::connect_lazy("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[cfg(feature = "zookeeper")]
pub mod zookeeper {
    pub use crate::backend::zookeeper::{ZookeeperBackend, ZookeeperBuilder};
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::hash::Hash;

    use super::*;

    /// Removing one of them would break programs, and could happen by adding a field.
    #[test]
    fn public_types_have_the_traits_that_programs_rely_on() {
        fn handle<T: Clone + Debug + Send + Sync + Unpin + 'static>() {}
        fn held<T: Debug + Send + Sync + Unpin + 'static>() {}
        fn value<T: Clone + Debug + Eq + Hash + Send + Sync + Unpin + 'static>() {}
        fn error<T: std::error::Error + Clone + Send + Sync + Unpin + 'static>() {}

        handle::<Client>();
        handle::<ClientBuilder>();
        handle::<DistMutex>();
        handle::<ReentrantLock>();
        handle::<CountingSemaphore>();
        handle::<FairSemaphore>();
        handle::<Election>();
        handle::<Once>();
        held::<Guard>();
        held::<Leadership>();
        handle::<RwLock>();
        handle::<LockAll>();
        held::<Locks>();
        held::<AnyLost>();
        held::<WriteGuard>();
        held::<Lost>();
        held::<Ended>();
        held::<Fence>();
        handle::<LeaseTicket>();
        value::<FencingToken>();
        value::<Leader>();
        value::<LeaseEnd>();
        value::<LossReason>();
        value::<MutexOptions>();
        value::<OnDeadRunner>();
        value::<OnOtherLimit>();
        value::<OnceOptions>();
        value::<SemaphoreOptions>();
        value::<Severity>();
        value::<Status>();
        value::<Tick>();
        value::<Ticks>();
        error::<Error>();
        error::<NotReleased>();
        error::<BackendError>();
        error::<StaleToken>();
    }
}
