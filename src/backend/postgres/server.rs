//! The server, as one client sees it: opening sessions that can be used, within the time limit, and after a test for a
//! pooler.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::check;
use super::listener::Listener;
use super::pooler::PoolerCheck;
use super::reach::reach;
use super::session::{Listening, Session};
use super::settings::{Settings, Target};
use crate::backend::Finding;
use crate::backend::records::Failure;
use crate::backend::sql::Server;

/// Opens the sessions of a client.
pub(super) struct Postgres {
    pub(super) settings: Settings,
    pooler_check: PoolerCheck,
}

impl Postgres {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, pooler_check: PoolerCheck::default() }
    }

    /// A session to receive notifications on.
    pub(super) async fn open_listening(&self) -> Result<Listening, Failure> {
        let Self { settings, pooler_check } = self;
        let end = settings.connected_by();
        pooler_check.test(settings, end).await?;
        let listening = match pooler_check.unused_listening() {
            Some(listening) => listening,
            None => {
                let connect = async |config| Session::connect_listening(settings, &config).await;
                reach(settings, end, connect).await?
            }
        };
        settings.in_time(end, listening.session.set_up(settings)).await?;
        Ok(listening)
    }
}

impl Server for Postgres {
    type Target = Target;
    type Session = Session;
    type Notifications = Listener;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn open(&self) -> Result<Session, Failure> {
        let Self { settings, pooler_check } = self;
        let end = settings.connected_by();
        pooler_check.test(settings, end).await?;
        let session = match pooler_check.unused() {
            Some(session) => session,
            None => {
                let connect = async |config| Session::connect(settings, &config).await;
                reach(settings, end, connect).await?
            }
        };
        settings.in_time(end, session.set_up(settings)).await?;
        Ok(session)
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
