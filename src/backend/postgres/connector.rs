//! Opening sessions that can be used: within the time limit, and after a test for a pooler.

use tokio::time::{Instant, timeout_at};

use super::pooler::PoolerCheck;
use super::reach::reach;
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
        let end = Instant::now() + settings.connect_timeout;
        pooler_check.test(settings, end).await?;
        let session = match pooler_check.unused() {
            Some(session) => session,
            None => reach(settings, end, async |way| Session::connect(settings, &way).await).await?,
        };
        in_time(settings, end, session.set_up(settings)).await?;
        Ok(session)
    }

    /// The same, to receive notifications on it.
    pub(super) async fn open_listening(&self) -> Result<Listening, Failure> {
        let Self { settings, pooler_check } = self;
        let end = Instant::now() + settings.connect_timeout;
        pooler_check.test(settings, end).await?;
        let listening = match pooler_check.unused_listening() {
            Some(listening) => listening,
            None => {
                let connect = async |way| Session::connect_listening(settings, &way).await;
                reach(settings, end, connect).await?
            }
        };
        in_time(settings, end, listening.session.set_up(settings)).await?;
        Ok(listening)
    }
}

/// What a part of connecting returns, within the time limit for all of it.
pub(super) async fn in_time<T>(
    settings: &Settings,
    end: Instant,
    connecting: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let limit = settings.connect_timeout;
    let connected = timeout_at(end, connecting).await;
    connected.unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {limit:?}"))))
}
