//! The server, as one client sees it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::session::Session;
use super::settings::{MysqlPush, Settings, Target};
use super::watch::Watch;
use super::watcher::Watcher;
use super::{check, connect};
use crate::backend::Finding;
use crate::backend::records::Failure;
use crate::backend::sql::Server;

pub(super) struct Mysql {
    pub(super) settings: Settings,
    /// What this client waits for. Notified of what is read and written.
    pub(super) watch: Arc<Watch>,
}

impl Mysql {
    pub(super) fn new(settings: Settings) -> Self {
        let watch = Arc::new(Watch::new(max_waiters(&settings)));
        Self { settings, watch }
    }

    /// How many connections wait for named locks at most.
    pub(super) fn max_waiters(&self) -> usize {
        max_waiters(&self.settings)
    }
}

const fn max_waiters(settings: &Settings) -> usize {
    match settings.target.push {
        MysqlPush::GetLock => (settings.max_connections - 1) / 2,
        MysqlPush::Off => 0,
    }
}

impl Server for Mysql {
    type Target = Target;
    type Session = Session;
    type Notifications = Watcher;

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
