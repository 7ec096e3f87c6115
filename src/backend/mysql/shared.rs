//! What the connections of one client share.

use std::sync::Arc;

use super::settings::{MysqlPush, Settings};
use super::watch::Watch;

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
