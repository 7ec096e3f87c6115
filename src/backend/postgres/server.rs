//! The server, as one client sees it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::check;
use super::listener::Listener;
use super::session::Session;
use super::settings::{Settings, Target};
use super::shared::Postgres;
use crate::backend::Finding;
use crate::backend::records::Failure;
use crate::backend::sql::Server;

impl Server for Postgres {
    type Target = Target;
    type Session = Session;
    type Notifications = Listener;

    const PUSHES_LOSSES: bool = true;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn open(&self) -> Result<Session, Failure> {
        self.open_session().await
    }

    fn max_workers(&self) -> usize {
        // One connection is for notifications.
        self.settings.max_connections - 1
    }

    fn notifications(self: Arc<Self>, _: &CancellationToken) -> Listener {
        Listener::new(self)
    }

    async fn findings(&self) -> Result<Vec<Finding>, Failure> {
        let session = self.open().await?;
        session.within(check::findings(&session, &self.settings)).await
    }
}
