//! Closing connections that were replaced.
//!
//! A connection that was given up may still carry requests, in a buffer of the network or of a server that did not run for a
//! while. If one were executed after the release of its lease, it would hold a lock for nobody. So whenever a client has connected
//! again, it has the server close the previous connection; requests that are still on it are then not executed. A lease that
//! was released before that is certain is released once more afterwards (`verbs`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use fred::error::Error as FredError;
use fred::interfaces::ClientInterface;
use fred::types::client::ClientKillFilter;
use fred::types::config::Server;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use crate::backend::BackendError;

/// The pause before another attempt.
const RETRY: Duration = Duration::from_millis(25);

impl Connection {
    /// Looks at which connection is the present one: its id, if there is one and the server has reported it, and its generation.
    /// Called after every answer: so whoever has an answer in hand finds a generation that is not earlier than that of the connection
    /// from which the answer came.
    pub(super) fn present(&self) -> (Option<i64>, u64) {
        let mut present = self.present.lock();
        let now = self.client.connection_ids().into_values().next();
        if now != *present {
            *present = now;
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        (now, self.generation.load(Ordering::Acquire))
    }

    /// Whether nothing that was sent on an earlier connection can be executed any more.
    pub(super) fn is_sole(&self) -> bool {
        *self.sole.borrow() == self.generation.load(Ordering::Acquire)
    }

    /// Waits until nothing that was sent on an earlier connection can be executed any more.
    pub(super) async fn until_sole(&self) -> Result<(), BackendError> {
        let mut sole = self.sole.subscribe();
        // The sender is in `self`, so waiting cannot fail.
        let closed = sole.wait_for(|generation| *generation == self.generation.load(Ordering::Acquire));
        match timeout(self.timeouts.reply, closed).await {
            Ok(_) => Ok(()),
            Err(late) => Err(BackendError::Unanswered { source: late.into() }),
        }
    }

    /// Has the server close each connection that was replaced, until `closed` is cancelled.
    pub(super) async fn close_replaced(
        &self,
        mut reconnects: broadcast::Receiver<Server>,
        closed: CancellationToken,
    ) {
        let work = async {
            let mut earlier = self.earlier.lock().await;
            loop {
                self.close_all(&mut earlier).await;
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

    /// Closes the connections `earlier`, and replaces them in the list by the present one.
    async fn close_all(&self, earlier: &mut Vec<i64>) {
        loop {
            let (now, generation) = self.present();
            let closed = self.close_each(earlier, now).await;
            let is_replaced = generation != self.present().1;
            match closed {
                Ok(()) if !is_replaced => earlier.clear(),
                // This user may not close connections. Releases go on without this safeguard.
                Err(error) if !is_replaced && is_refusal(&error) => {
                    tracing::debug!(%error, "a connection that was replaced is not closed by the server");
                }
                _ => {
                    earlier.extend(now.filter(|now| is_replaced && !earlier.contains(now)));
                    sleep(RETRY).await;
                    continue;
                }
            }
            // If the server has not reported the id of this connection, it cannot be closed later.
            earlier.extend(now);
            self.sole.send_replace(generation);
            return;
        }
    }

    async fn close_each(&self, earlier: &[i64], now: Option<i64>) -> Result<(), FredError> {
        let client = &self.client;
        client.client_setname(self.name.as_str()).await?;
        for id in earlier.iter().filter(|id| Some(**id) != now) {
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
