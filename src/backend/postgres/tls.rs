//! Connecting, with TLS or without.

use futures::channel::mpsc::UnboundedSender;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls, Notification};
use tokio_util::sync::DropGuard;

use super::builder::Settings;
use super::failure::Failure;
use super::session::carry;

/// Opens a connection, which a task of the current runtime carries until the guard is dropped.
pub(super) async fn connect(
    settings: &Settings,
    heard: Option<UnboundedSender<Notification>>,
) -> Result<(Client, DropGuard), Failure> {
    debug_assert_ne!(settings.config.get_ssl_mode(), SslMode::Require, "the builder refuses it");
    let (client, connection) = settings.config.connect(NoTls).await?;
    Ok((client, carry(connection, heard)))
}
