//! What the harness itself asks of a store, past all lines.

use std::time::Duration;

use futures::TryStreamExt;
use leasehold::Client;
use tokio::time::{Instant, sleep};

use crate::servers::Server;

/// How long a server may take to be used again after a fault.
const BACK: Duration = Duration::from_secs(30);

/// What is left in the store besides fences, when it stays the same for longer than this.
pub(crate) async fn remains(
    server: &dyn Server,
    patience: Duration,
) -> Result<Vec<String>, leasehold::Error> {
    let client = client(server).await?;
    let end = Instant::now() + patience;
    let left = loop {
        let left = match server.records() {
            Some(records) => records,
            None => {
                let listed: Vec<_> = client.list("").try_collect().await?;
                listed.into_iter().map(|found| format!("{found:?}")).collect()
            }
        };
        if left.is_empty() || Instant::now() > end {
            break left;
        }
        sleep(Duration::from_millis(20)).await;
    };
    client.shutdown().await?;
    Ok(left)
}

/// A client without a line, as soon as the server takes one.
pub(crate) async fn client(server: &dyn Server) -> Result<Client, leasehold::Error> {
    let end = Instant::now() + BACK;
    loop {
        match Client::connect(&server.url()).await {
            Err(_) if Instant::now() < end => sleep(Duration::from_millis(20)).await,
            answer => return answer,
        }
    }
}

/// Until it answers to whoever is new.
pub(crate) async fn is_back(server: &dyn Server) -> Result<(), leasehold::Error> {
    client(server).await?.shutdown().await
}
