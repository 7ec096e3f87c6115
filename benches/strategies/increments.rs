//! Optimistic increments: no lock, but a counter that is watched, read, and set if no other client has set it
//! meanwhile.
//!
//! A watch belongs to a connection, so each increment has a connection to itself until it succeeds. There is one
//! connection for each waiter of a process, up to [`MOST`]; beyond that, waiters queue for them.

use std::sync::Arc;
use std::time::Instant;

use fred::clients::Client as Fred;
use fred::interfaces::{KeysInterface, TransactionInterface};
use fred::types::Value;
use futures::future::try_join_all;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout_at;

use crate::common::turns::Contender;
use crate::common::{Bare, Result};

/// Connections per process, so that up to 1000 waiters compete: servers and file descriptors have limits.
const MOST: usize = 500;

#[derive(Clone)]
pub(crate) struct Increments {
    key: String,
    back: Sender<Fred>,
    free: Arc<Mutex<Receiver<Fred>>>,
}

impl Increments {
    pub(crate) async fn connect(url: &str, key: &str, waiters: usize) -> Result<Self> {
        let connections = waiters.min(MOST);
        let (back, free) = channel(connections);
        for client in try_join_all((0..connections).map(|_| Bare::connection(url))).await? {
            back.send(client).await?;
        }
        Ok(Self { key: key.to_owned(), back, free: Arc::new(Mutex::new(free)) })
    }

    /// A connection to itself; `None` if there is none by `until`.
    async fn connection(&self, until: Instant) -> Option<Fred> {
        let free = async { self.free.lock().await.recv().await };
        timeout_at(until.into(), free).await.ok().flatten()
    }

    /// Whether the counter has been incremented.
    async fn attempt(&self, client: &Fred) -> Result<bool> {
        client.watch(&self.key).await?;
        let count: Option<i64> = client.get(&self.key).await?;
        let transaction = client.multi();
        let () = transaction.set(&self.key, count.unwrap_or(0) + 1, None, None, false).await?;
        let answers: Value = transaction.exec(true).await?;
        Ok(!answers.is_null())
    }
}

impl Contender for Increments {
    type Held = ();

    async fn acquire(&self, until: Instant) -> Result<Option<()>> {
        let Some(client) = self.connection(until).await else { return Ok(None) };
        let mut done = false;
        while !done && Instant::now() < until {
            done = self.attempt(&client).await?;
        }
        self.back.send(client).await?;
        Ok(done.then_some(()))
    }

    /// There is nothing to release: the increment is over when it succeeds.
    async fn release(&self, (): ()) -> Result<()> {
        Ok(())
    }
}
