//! A look at a store: a client for the time of one command.

use std::process::ExitCode;

use leasehold::Client;

use crate::args::Args;
use crate::exit::Failure;
use crate::{output, store};

/// Connects, and leaves again when `look` is done.
pub(crate) async fn connected(
    args: &Args,
    look: impl AsyncFnOnce(&Client) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    with(&store::connect(args).await?, look).await
}

/// Leaves the store when `look` is done. Whatever becomes of that, the outcome is that of `look`.
pub(crate) async fn with(
    client: &Client,
    look: impl AsyncFnOnce(&Client) -> Result<ExitCode, Failure>,
) -> Result<ExitCode, Failure> {
    let outcome = look(client).await;
    if let Err(error) = client.shutdown().await {
        output::note(&format!("the connection could not be closed properly: {error}"));
    }
    outcome
}
