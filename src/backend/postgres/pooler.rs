//! Whether there is a pooler in between that has each transaction of a client run in another session. Tested before any setting is made,
//! which would then be made for others.

use futures::StreamExt;
use futures::future::{join, ready};
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::failure::POOLER;
use super::session::{Listening, Session};
use super::settings::Settings;
use crate::backend::records::Failure;

const SESSION: &str = "SELECT pg_backend_pid()";

/// Whether the connection has been checked for a pooler, and the sessions opened for that check that have not been used yet.
#[derive(Default)]
pub(super) struct PoolerCheck {
    has_no_pooler: OnceCell<()>,
    listening: Mutex<Option<Listening>>,
    other: Mutex<Option<Session>>,
}

impl PoolerCheck {
    /// Makes sure that there is no pooler in between that loses notifications.
    pub(super) async fn test(&self, settings: &Settings) -> Result<(), Failure> {
        let test = async {
            let (listening, other) = test(settings).await?;
            *self.listening.lock() = Some(listening);
            *self.other.lock() = Some(other);
            Ok(())
        };
        self.has_no_pooler.get_or_try_init(|| test).await.map(|_| ())
    }

    /// The session that has listened, unless it has been used or closed.
    pub(super) fn unused_listening(&self) -> Option<Listening> {
        self.listening.lock().take().filter(|unused| !unused.session.is_closed())
    }

    /// The other session, unless it has been used or closed.
    pub(super) fn unused(&self) -> Option<Session> {
        self.other.lock().take().filter(|unused| !unused.is_closed())
    }
}

/// One connection listens, another one notifies it. Both are returned; each has a session of its own.
///
/// # Errors
///
/// Refused, if two connections were seen to share a session, or one to have several, or if the notification does not arrive.
async fn test(settings: &Settings) -> Result<(Listening, Session), Failure> {
    let (listening, other) = join(Session::connect_listening(settings), Session::connect(settings)).await;
    let (mut listening, other) = (listening?, other?);
    let listener = &listening.session;
    let channel = format!("lh_{}", Uuid::new_v4().simple());
    let listens_in = listener.value(&format!("LISTEN {channel}; {SESSION}")).await?;
    other.execute("BEGIN").await?;
    if other.value(SESSION).await? == listens_in {
        return Err(Failure::refused(POOLER));
    }
    // While the other one keeps a session for itself.
    if listener.within(listener.value(SESSION)).await? != listens_in {
        return Err(Failure::refused(POOLER));
    }
    other.execute(&format!("NOTIFY {channel}; COMMIT")).await?;
    let arrived = listening.heard.by_ref().any(|notification| ready(notification.channel() == channel));
    match listener.within(async { Ok(arrived.await) }).await {
        Ok(true) => {}
        Ok(false) => return Err(Failure::unavailable("the connection was closed")),
        Err(_) => {
            // If it still answers, it is not just slow.
            listener.within(listener.value(SESSION)).await?;
            return Err(Failure::refused(POOLER));
        }
    }
    Ok((listening, other))
}
