//! Whether there is a pooler in between that has each transaction of a client run in another session. Tested before any setting is made,
//! which would then be made for others.

use futures::StreamExt;
use futures::future::{join, ready};
use uuid::Uuid;

use super::failure::POOLER;
use super::session::{Listening, Session};
use super::settings::Settings;
use crate::backend::records::Failure;

const SESSION: &str = "SELECT pg_backend_pid()";

/// Two sessions of which each has a connection of its own.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) listening: Listening,
    pub(super) other: Session,
}

/// One connection listens, another one notifies it.
///
/// # Errors
///
/// Refused, if two connections were seen to share a session, or one to have several, or if the notification does not arrive.
pub(super) async fn test(settings: &Settings) -> Result<Pair, Failure> {
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
    Ok(Pair { listening, other })
}
