//! The server, as one client sees it: all that its connections are for.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::session::Session;
use super::settings::{Settings, Target};
use super::shared::Mysql;
use super::watcher::Watcher;
use super::{check, connect};
use crate::backend::Finding;
use crate::backend::records::Failure;
use crate::backend::sql::Server;

impl Server for Mysql {
    type Target = Target;
    type Session = Session;
    type Notifications = Watcher;

    const PUSHES_LOSSES: bool = false;

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn open(&self) -> Result<Session, Failure> {
        connect::open(self).await
    }

    fn max_workers(&self) -> usize {
        // One connection looks.
        self.settings.max_connections - 1 - self.max_waiters()
    }

    fn notifications(self: Arc<Self>, closing: &CancellationToken) -> Watcher {
        Watcher::new(self, closing.clone())
    }

    async fn findings(&self) -> Result<Vec<Finding>, Failure> {
        let mut findings = check::findings(&mut self.open().await?).await?;
        findings.extend(check::servers(self).await);
        Ok(findings)
    }
}
