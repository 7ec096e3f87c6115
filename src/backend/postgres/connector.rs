//! Opening sessions that can be used: within the time limit, and after a test for a pooler.

use tokio::time::timeout;

use super::pooler::PoolerCheck;
use super::session::{Listening, Session};
use super::settings::Settings;
use crate::backend::records::Failure;

/// Opens the sessions of a client.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pooler_check: PoolerCheck,
}

impl Connector {
    pub(super) fn new(settings: Settings) -> Self {
        Self { settings, pooler_check: PoolerCheck::default() }
    }

    /// Opens a session and makes sure that it can be used.
    pub(super) async fn open(&self) -> Result<Session, Failure> {
        let Self { settings, pooler_check } = self;
        in_time(settings, async {
            pooler_check.test(settings).await?;
            let session = match pooler_check.unused() {
                Some(session) => session,
                None => Session::connect(settings).await?,
            };
            session.set_up(settings).await?;
            Ok(session)
        })
        .await
    }

    /// The same, to receive notifications on it.
    pub(super) async fn open_listening(&self) -> Result<Listening, Failure> {
        let Self { settings, pooler_check } = self;
        in_time(settings, async {
            pooler_check.test(settings).await?;
            let listening = match pooler_check.unused_listening() {
                Some(listening) => listening,
                None => Session::connect_listening(settings).await?,
            };
            listening.session.set_up(settings).await?;
            Ok(listening)
        })
        .await
    }
}

/// What connecting returns, within the time limit for it.
async fn in_time<T>(
    settings: &Settings,
    connecting: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let limit = settings.connect_timeout;
    let connected = timeout(limit, connecting).await;
    connected.unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {limit:?}"))))
}
