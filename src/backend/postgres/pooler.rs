//! Whether there is a pooler in between that has each transaction of a client run in another session. Tested before any
//! setting is made, which would then be made for others.

use futures::StreamExt;
use futures::future::{join, ready};
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

use super::failure::POOLER;
use super::reach::reach;
use super::session::{Listening, Session};
use super::settings::Settings;
use crate::backend::records::Failure;

const SESSION: &str = "SELECT pg_backend_pid()";
/// A limit that the role has for transactions is for others. This setting ends with the transaction.
const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'";

/// Whether the connection has been checked for a pooler, and the sessions opened for that check that have not been used
/// yet.
#[derive(Default)]
pub(super) struct PoolerCheck {
    /// How the latest check went. Those that come meanwhile wait for it.
    check: Mutex<Latest>,
    listening: parking_lot::Mutex<Option<Listening>>,
    other: parking_lot::Mutex<Option<Session>>,
}

#[derive(Default)]
struct Latest {
    has_no_pooler: bool,
    failure: Option<(Failure, Instant)>,
}

impl PoolerCheck {
    /// Makes sure that there is no pooler in between that loses notifications.
    pub(super) async fn test(&self, settings: &Settings, end: Instant) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut latest = self.check.lock().await;
        if latest.has_no_pooler {
            return Ok(());
        }
        if let Some((failure, at)) = &latest.failure
            && *at > begun
        {
            return Err(failure.clone());
        }
        match test(settings, end).await {
            Ok((listening, other)) => {
                latest.has_no_pooler = true;
                *self.listening.lock() = Some(listening);
                *self.other.lock() = Some(other);
                Ok(())
            }
            Err(failure) => {
                latest.failure = Some((failure.clone(), Instant::now()));
                Err(failure)
            }
        }
    }

    /// The session that has listened, unless it has been used or closed.
    pub(super) fn unused_listening(&self) -> Option<Listening> {
        self.listening.lock().take().filter(|unused| !unused.session.has_ended())
    }

    /// The other session, unless it has been used or closed.
    pub(super) fn unused(&self) -> Option<Session> {
        self.other.lock().take().filter(|unused| !unused.has_ended())
    }
}

/// One connection listens, another one notifies it. Both are returned; each has a session of its own.
///
/// # Errors
///
/// Refused, if two connections were seen to share a session, or one to have several, or if the notification does not
/// arrive.
async fn test(settings: &Settings, end: Instant) -> Result<(Listening, Session), Failure> {
    // Of the same server.
    let both = async |config| {
        let both =
            join(Session::connect_listening(settings, &config), Session::connect(settings, &config)).await;
        Ok((both.0?, both.1?))
    };
    let (listening, other) = reach(settings, end, both).await?;
    settings.in_time(end, notify(listening, other)).await
}

async fn notify(mut listening: Listening, other: Session) -> Result<(Listening, Session), Failure> {
    let listener = &listening.session;
    let channel = format!("lh_{}", Uuid::new_v4().simple());
    let listens_in = listener.value(&format!("LISTEN {channel}; {SESSION}")).await?;
    other.execute(BEGIN).await?;
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
