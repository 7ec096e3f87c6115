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
//! Everything you acquire is a **lease**: the store releases it on its own if the holder dies, it is renewed in the
//! background while its [`Guard`] is alive, and it carries a [`FencingToken`]. See the README for the exact guarantees
//! and their limits, and [`backend`] for what a store must provide.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `fred` | yes | [`RedisBackend`], and [`RedlockBackend`] on several of them, through [fred](https://docs.rs/fred), version 10 |
//! | `redis-rs` | no | the same through [redis-rs](https://docs.rs/redis), version 1: on its own instead of fred, or alongside it for `RedisBackend::builder_from_redis_rs` and `RedisBuilder::through_redis_rs` |
//! | `rustls` | no | TLS with [rustls](https://docs.rs/rustls), for the URLs that require it (such as `rediss://`, `etcds://`, or with `sslmode=require`), and `TlsOptions` |
//! | `native-tls` | no | the same with the system's TLS library, except for MySQL; if both are on, rustls is used |
//! | `sqlite` | no | [`SqliteBackend`]: locks between the processes of one machine, in an SQLite file |
//! | `etcd` | no | [`EtcdBackend`]: locks in an etcd cluster |
//! | `mysql` | no | [`MysqlBackend`]: locks in a table of a MySQL or MariaDB database |
//! | `postgres` | no | [`PostgresBackend`]: locks in a table of a PostgreSQL database |
//! | `zookeeper` | no | [`ZookeeperBackend`]: locks in the nodes of a ZooKeeper server or ensemble |
//! | `all-stores` | no | all of these stores |
//! | `serde` | no | a [`FencingToken`] can be serialized and deserialized, as a number |
//! | `conformance` | no | the contract that every backend must meet, as functions to call from its tests |
//!
//! Without any of these stores, only the memory store is available.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(test, allow(clippy::unwrap_used))]
// The feature table links to backends that such a build does not have.
#![cfg_attr(not(all(feature = "_redis", feature = "sqlite")), allow(rustdoc::broken_intra_doc_links))]

pub mod backend;
mod background;
mod client;
mod closing;
mod error;
mod fair_semaphore;
mod fence;
mod guard;
mod handover;
mod hash;
mod lease;
mod mutex;
mod name;
mod options;
mod origin;
mod permits;
mod primitive;
mod reentrant;
mod runtime;
mod semaphore;

#[cfg(any(feature = "_records", feature = "_redis"))]
pub use backend::TlsOptions;
pub use backend::{Backend, Holder, Inspection, MAX_TTL, MIN_TTL, MemoryBackend, NodeInspection, Waiter};
#[cfg(feature = "_redis")]
pub use backend::{Credentials, CredentialsProvider, RedisBackend, RedisBuilder};
#[cfg(feature = "etcd")]
pub use backend::{EtcdBackend, EtcdBuilder, etcd};
#[cfg(feature = "mysql")]
pub use backend::{MysqlBackend, MysqlBuilder, MysqlPush, mysql};
#[cfg(feature = "postgres")]
pub use backend::{PostgresBackend, PostgresBuilder, postgres};
#[cfg(feature = "_redis")]
pub use backend::{RedlockBackend, RedlockBuilder};
#[cfg(feature = "sqlite")]
pub use backend::{SqliteBackend, SqliteBuilder, sqlite};
#[cfg(feature = "zookeeper")]
pub use backend::{ZookeeperBackend, ZookeeperBuilder, zookeeper};
pub use client::{Client, ClientBuilder};
pub use error::{Error, LossReason};
pub use fair_semaphore::FairSemaphore;
pub use fence::{Fence, FencingToken, StaleToken};
pub use guard::{Ended, Guard, LeaseEnd, Lost, Protected};
pub use mutex::DistMutex;
pub use name::MAX_NAME_BYTES;
pub use options::{MutexOptions, OnOtherLimit, SemaphoreOptions};
pub use reentrant::ReentrantLock;
pub use semaphore::CountingSemaphore;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
