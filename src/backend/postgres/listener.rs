//! Notifications for this client: the grants that others make to it, each sent by the transaction that makes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_postgres::Notification;
use uuid::Uuid;

use super::check;
use super::exchange::channel;
use super::session::{Listening, Session};
use super::shared::Postgres;
use super::text::unescape;
use crate::backend::records::Failure;
use crate::backend::sql::{self, Notifications};
use crate::backend::{Event, EventSender};

/// How often an idle connection is checked.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// What is heard, and who is told.
pub(super) struct Listener {
    server: Arc<Postgres>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    client: Option<Uuid>,
    events: EventSender,
    /// Has the connection listen on the client's channel.
    wish: Option<UnboundedSender<()>>,
}

pub(super) struct Connection {
    session: Session,
    heard: UnboundedReceiver<Notification>,
    wishes: UnboundedReceiver<()>,
}

impl Notifications for Listener {
    type Connection = Connection;

    fn events(&self, client: Uuid) -> BoxStream<'static, Event> {
        let mut inbox = self.inbox.lock();
        let events = inbox.events.open();
        if inbox.client.replace(client) != Some(client)
            && let Some(wish) = &inbox.wish
        {
            // An error means that the connection is lost; the next one knows.
            drop(wish.unbounded_send(()));
        }
        events.chain(futures::stream::pending()).boxed()
    }

    async fn open(&self, is_first: &AtomicBool) -> Result<Connection, Failure> {
        let Listening { session, heard } = self.server.open_listening().await?;
        let settings = &self.server.settings;
        if is_first.swap(false, Ordering::SeqCst) {
            let findings = session.within(check::findings(&session, settings)).await?;
            sql::trace_risks(&settings.address, &findings);
        }
        let (wish, wishes) = unbounded();
        self.inbox.lock().wish = Some(wish);
        self.subscribe(&session).await?;
        Ok(Connection { session, heard, wishes })
    }

    async fn drive(&self, mut connection: Connection) -> Failure {
        let mut heartbeat = interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let session = &connection.session;
            let outcome = tokio::select! {
                biased;
                notification = connection.heard.next() => match notification {
                    Some(notification) => {
                        self.hear(&notification);
                        Ok(())
                    }
                    None => Err(Failure::unavailable("the connection for notifications was closed")),
                },
                Some(()) = connection.wishes.next() => self.subscribe(session).await,
                _ = heartbeat.tick() => session.within(session.execute("SELECT 1")).await,
            };
            if let Err(failure) = outcome {
                return failure;
            }
        }
    }
}

impl Listener {
    pub(super) fn new(server: Arc<Postgres>) -> Self {
        Self { server, inbox: Mutex::default() }
    }

    /// Listens for the client, if its name is known. Earlier notifications are lost.
    async fn subscribe(&self, session: &Session) -> Result<(), Failure> {
        let client = self.inbox.lock().client;
        if let Some(client) = client {
            session.within(session.execute(&format!("LISTEN {}", channel(client)))).await?;
            self.send(Event::Resync);
        }
        Ok(())
    }

    fn hear(&self, notification: &Notification) {
        match unescape(notification.payload()).parse() {
            // These events name no lease, so any user could forge them. No client of this crate sends them.
            Ok(event @ (Event::Changed(_) | Event::Resync)) => {
                tracing::debug!(store = %self.server.settings.address, ?event, "a notification that is not for this client");
            }
            Ok(event) => self.send(event),
            Err(error) => {
                tracing::debug!(store = %self.server.settings.address, %error, "a notification that is not for this client");
            }
        }
    }

    fn send(&self, event: Event) {
        let inbox = self.inbox.lock();
        // Any user of the database can send notifications, so those that do not name a lease of this client are
        // ignored.
        if event.lease().is_none_or(|lease| Some(lease.client()) == inbox.client) {
            inbox.events.send(event);
        }
    }
}
