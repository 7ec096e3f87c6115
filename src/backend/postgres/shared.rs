//! What the connections of one client share, and opening them: sessions that can be used, within the time limit, and
//! after a test for a pooler.

use super::pooler::PoolerCheck;
use super::reach::reach;
use super::session::{Listening, Session};
use super::settings::Settings;
use crate::backend::records::Failure;

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

    /// A session for changes.
    pub(super) async fn open_session(&self) -> Result<Session, Failure> {
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
}
