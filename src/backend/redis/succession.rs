//! The end of connections that were replaced.
//!
//! A connection that was given up may still carry requests, in a buffer of the network or of a server that has stood still.
//! Carried out after their own release, they would hold a lock for nobody. So whenever a client has connected again, the server is
//! told to close the connection before: what that one still carries is not carried out then. A release that finds nothing says
//! so only after that.

use std::time::Duration;

use fred::clients::Client;
use fred::error::Error as FredError;
use fred::interfaces::ClientInterface;
use fred::types::client::ClientKillFilter;
use fred::types::config::Server;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The pause before another attempt.
const RETRY: Duration = Duration::from_millis(25);

/// Tells whether every connection before the present one has been closed by the server.
#[derive(Debug, Default)]
pub(super) struct Succession {
    /// The connection of which that is known.
    settled: watch::Sender<Option<i64>>,
}

/// A connection as the server lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listed {
    id: String,
    address: String,
    age: Duration,
}

/// A connection of this client, and since when it has certainly been open.
#[derive(Debug)]
struct Own {
    listed: Listed,
    since: Instant,
}

impl Succession {
    /// Waits until every connection before the present one is closed.
    pub(super) async fn settled(&self, client: &Client) {
        let mut settled = self.settled.subscribe();
        // The sender is in `self`, so this cannot fail.
        let _ = settled.wait_for(|id| *id == present(client)).await;
    }

    pub(super) fn is_settled(&self, client: &Client) -> bool {
        *self.settled.borrow() == present(client)
    }

    /// Has the server close each connection of `client` that was replaced, until `closed`.
    pub(super) async fn run(
        &self,
        client: Client,
        mut reconnects: broadcast::Receiver<Server>,
        closed: CancellationToken,
    ) {
        let work = async {
            let mut own = None;
            loop {
                own = self.succeed(&client, own).await;
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

    /// Closes what was replaced. Returns the present connection, if the server says what it is.
    async fn succeed(&self, client: &Client, before: Option<Own>) -> Option<Own> {
        loop {
            let now = present(client);
            match close(client, before.as_ref()).await {
                // Replaced meanwhile.
                _ if now.is_none() || now != present(client) => sleep(RETRY).await,
                Ok(own) => {
                    self.settled.send_replace(now);
                    return Some(own);
                }
                Err(error) if is_refusal(&error) => {
                    // This user may not close connections. What is released is so all the same, a little less surely.
                    tracing::debug!(%error, "a connection that was replaced is not closed by the server");
                    self.settled.send_replace(now);
                    return None;
                }
                Err(_) => sleep(RETRY).await,
            }
        }
    }
}

/// The present connection, if there is one and the server has told its id.
fn present(client: &Client) -> Option<i64> {
    client.connection_ids().into_values().next()
}

async fn close(client: &Client, before: Option<&Own>) -> Result<Own, FredError> {
    let since = Instant::now();
    let listed = Listed::read(&client.client_info::<String>().await?).ok_or_else(unreadable)?;
    if let Some(before) = before.filter(|before| before.listed.id != listed.id) {
        let found: String =
            client.client_list::<_, String>(None, Some(vec![before.listed.id.clone()])).await?;
        if Listed::read(&found).is_some_and(|found| before.is(&found)) {
            client.client_kill::<i64>(vec![ClientKillFilter::ID(before.listed.id.clone())]).await?;
            tracing::debug!("the connection before was still open at the server, and is closed");
        }
    }
    Ok(Own { listed, since })
}

impl Own {
    /// Whether this is what the server has found under the same id. A server that was restarted gives the same ids again, to
    /// connections that are younger.
    fn is(&self, found: &Listed) -> bool {
        // The age is in whole seconds.
        let age = self.since.elapsed().saturating_sub(Duration::from_secs(2));
        found.id == self.listed.id && found.address == self.listed.address && found.age >= age
    }
}

impl Listed {
    /// From a line of `CLIENT LIST`.
    fn read(line: &str) -> Option<Self> {
        let field = |name: &str| line.split_whitespace().find_map(|part| part.strip_prefix(name));
        let age = Duration::from_secs(field("age=")?.parse().ok()?);
        Some(Self { id: field("id=")?.to_owned(), address: field("addr=")?.to_owned(), age })
    }
}

fn is_refusal(error: &FredError) -> bool {
    use fred::error::ErrorKind::{Canceled, IO, Timeout};
    !matches!(error.kind(), Canceled | IO | Timeout)
}

fn unreadable() -> FredError {
    FredError::new(fred::error::ErrorKind::Parse, "the server tells neither id nor address of a connection")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "id=7 addr=127.0.0.1:50412 laddr=127.0.0.1:6379 fd=8 name= age=12 idle=0 flags=N";

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_known_again_by_id_address_and_age() {
        let listed = Listed::read(LINE).unwrap();
        let own = Own { listed: listed.clone(), since: Instant::now() };
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(own.is(&listed));
        assert!(!own.is(&Listed { id: "8".into(), ..listed.clone() }));
        assert!(!own.is(&Listed { address: "127.0.0.1:50413".into(), ..listed.clone() }));
        assert!(!own.is(&Listed { age: Duration::from_secs(3), ..listed }), "of a server that was restarted");
        assert_eq!(Listed::read("id=x"), None);
    }
}
