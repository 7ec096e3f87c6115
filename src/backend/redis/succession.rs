//! Closing connections that were replaced.
//!
//! A connection that was given up may still carry requests, in a buffer of the network or of a server that did not run for a
//! while. If one were executed after the release of its lease, it would hold a lock for nobody. So whenever a client has connected
//! again, it has the server close the previous connection; requests that are still on it are then not executed. A lease that
//! was released before that is certain is released once more afterwards (`verbs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::ClientInterface;
use fred::types::client::ClientKillFilter;
use fred::types::config::Server;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The pause before another attempt.
const RETRY: Duration = Duration::from_millis(25);

/// Whether every connection before the current one has been closed by the server.
#[derive(Debug)]
pub(super) struct Succession {
    /// The name of these connections at the server, unlike that of any other: a restarted server assigns the same ids again.
    name: String,
    /// The connections that may still be open at the server, also those of a runtime that has ended.
    before: tokio::sync::Mutex<Vec<i64>>,
    /// The id of the connection for which all earlier ones are closed.
    alone: watch::Sender<Option<i64>>,
    /// Whether no task drives the connection any more.
    ended: AtomicBool,
}

/// A task drives the connection until this is dropped, perhaps together with its runtime.
#[derive(Debug)]
pub(super) struct Driven(Arc<Succession>);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl Succession {
    /// Records that a task drives the connection from now on.
    pub(super) fn driven(self: &Arc<Self>) -> Driven {
        self.ended.store(false, Ordering::Release);
        Driven(Arc::clone(self))
    }

    /// Whether no task drives the connection any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until every connection before the current one is closed.
    pub(super) async fn earlier_closed(&self, client: &Client) {
        let mut alone = self.alone.subscribe();
        // The sender is in `self`, so this cannot fail.
        let _ = alone.wait_for(|id| *id == present(client)).await;
    }

    pub(super) fn earlier_are_closed(&self, client: &Client) -> bool {
        *self.alone.borrow() == present(client)
    }

    /// Has the server close each connection of `client` that was replaced, until `closed` is cancelled.
    pub(super) async fn run(
        &self,
        client: Client,
        mut reconnects: broadcast::Receiver<Server>,
        closed: CancellationToken,
    ) {
        let work = async {
            let mut before = self.before.lock().await;
            loop {
                self.succeed(&client, &mut before).await;
                if let Err(RecvError::Closed) = reconnects.recv().await {
                    return;
                }
            }
        };
        tokio::select! {
            () = closed.cancelled() => {}
            () = work => {}
        }
    }

    /// Closes the connections `before`, and replaces them in the list by the current one.
    async fn succeed(&self, client: &Client, before: &mut Vec<i64>) {
        loop {
            let now = present(client);
            let closed = self.close(client, before, now).await;
            let replaced = now != present(client);
            match closed {
                Ok(()) if !replaced => before.clear(),
                // This user may not close connections. Releases go on without this safeguard.
                Err(error) if !replaced && is_refusal(&error) => {
                    tracing::debug!(%error, "a connection that was replaced is not closed by the server");
                }
                _ => {
                    before.extend(now.filter(|now| replaced && !before.contains(now)));
                    sleep(RETRY).await;
                    continue;
                }
            }
            before.extend(now);
            // If the server has not reported the id of this connection, it cannot be closed later.
            self.alone.send_replace(now);
            return;
        }
    }

    async fn close(&self, client: &Client, before: &[i64], now: Option<i64>) -> Result<(), FredError> {
        client.client_setname(self.name.as_str()).await?;
        for id in before.iter().filter(|id| Some(**id) != now) {
            let found = client.client_list::<String, String>(None, Some(vec![id.to_string()])).await?;
            if let Some(address) = address_of(&found, &self.name) {
                // The address as well: if the server is restarted at this moment, the id may belong to another client.
                let filters = vec![ClientKillFilter::ID(id.to_string()), ClientKillFilter::Addr(address)];
                client.client_kill::<i64>(filters).await?;
                tracing::debug!("the connection before was still open at the server, and is closed");
            }
        }
        Ok(())
    }
}

impl Default for Succession {
    fn default() -> Self {
        let name = format!("leasehold-{}", Uuid::new_v4().simple());
        Self {
            name,
            before: tokio::sync::Mutex::default(),
            alone: watch::Sender::default(),
            ended: AtomicBool::default(),
        }
    }
}

/// The id of the current connection, if there is one and the server has reported its id.
fn present(client: &Client) -> Option<i64> {
    client.connection_ids().into_values().next()
}

/// The address in a line of `CLIENT LIST`, if the connection has this name.
fn address_of(line: &str, name: &str) -> Option<String> {
    let field = |field: &str| line.split_whitespace().find_map(|part| part.strip_prefix(field));
    field("name=").filter(|found| *found == name)?;
    field("addr=").map(str::to_owned)
}

/// Whether this user may not do that, or the server does not support it. Other errors are temporary.
fn is_refusal(error: &FredError) -> bool {
    error.details().starts_with("NOPERM") || error.details().to_ascii_lowercase().contains("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_again_by_its_name() {
        let line =
            "id=7 addr=127.0.0.1:50412 laddr=127.0.0.1:6379 fd=8 name=leasehold-1 age=12 idle=0 flags=N";
        assert_eq!(address_of(line, "leasehold-1").as_deref(), Some("127.0.0.1:50412"));
        assert_eq!(address_of(line, "leasehold-").or(address_of("", "leasehold-1")), None);
    }
}
