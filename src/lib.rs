//! Distributed locks and semaphores for tokio applications, built on Redis.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), leasehold::Error> {
//! use leasehold::Client;
//!
//! let client = Client::connect("memory:").await?; // or "redis://127.0.0.1:6379"
//! let mutex = client.mutex("machine:42")?;
//! let guard = mutex.lock().await?; // waits in line, renewed in the background from here on
//! let merged = guard.protect(async { "read, merge, write" }).await?; // ends early if the lease is lost
//! println!("{merged} under token {}", guard.token());
//! guard.release().await?; // or just drop it
//! # client.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! Everything handed out is a **lease**: a hold that the store forgets by itself when its holder dies, that a
//! watchdog keeps renewed while its [`Guard`] lives, and that carries a [`FencingToken`]. See the README for
//! what is promised and what is not, and [`backend`] for what a store must do.
//!
//! # Features
//!
//! | feature | default | |
//! |---|---|---|
//! | `redis` | yes | [`RedisBackend`], through `fred` |
//! | `conformance` | no | the contract every backend must keep, as functions to call from its tests |
//!
//! Without `redis` the crate works on memory.

#![cfg_attr(test, allow(clippy::unwrap_used))]
// The feature table links to `RedisBackend`, which such a build does not have.
#![cfg_attr(not(feature = "redis"), allow(rustdoc::broken_intra_doc_links))]

pub mod backend;
mod client;
mod closing;
mod error;
mod fair_semaphore;
mod fence;
mod guard;
mod handover;
mod lease;
mod mutex;
mod name;
mod options;
mod permits;
mod primitive;
mod reentrant;
mod semaphore;
mod sync;

pub use backend::{Backend, Holder, Inspection, MemoryBackend, Waiter};
#[cfg(feature = "redis")]
pub use backend::{RedisBackend, RedisBuilder, fred};
pub use client::Client;
pub use error::{Error, LossReason};
pub use fair_semaphore::FairSemaphore;
pub use fence::{Fence, FencingToken, StaleToken};
pub use guard::{Guard, Lost, Protected};
pub use mutex::DistMutex;
pub use name::MAX_NAME_BYTES;
pub use options::{MAX_LEASE, MIN_LEASE, MutexOptions, SemaphoreOptions};
pub use reentrant::ReentrantLock;
pub use semaphore::CountingSemaphore;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
