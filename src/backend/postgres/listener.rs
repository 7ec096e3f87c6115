//! Notifications for this client: the grants that others make to it, each sent by the transaction that makes it.

use std::collections::BTreeSet;
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
use super::exchange::{channel, channel_of_changes};
use super::session::{Listening, Session};
use super::shared::Postgres;
use super::text::unescape;
use crate::backend::observed::{Due, Observed, is_observable};
use crate::backend::records::Failure;
use crate::backend::sql::{self, Notifications};
use crate::backend::{Event, EventSender};

/// How often an idle connection is checked.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// What is heard, and who is told.
pub(super) struct Listener {
    server: Arc<Postgres>,
    inbox: Mutex<Inbox>,
    /// The keys whose holders are observed.
    observed: Arc<Observed>,
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
    /// On whose channels it listens.
    observed: BTreeSet<Arc<str>>,
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

    fn changes(&self, key: &Arc<str>) -> Option<BoxStream<'static, ()>> {
        is_observable(key).then(|| self.observed.observe(key))
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
        let mut connection = Connection { session, heard, wishes, observed: BTreeSet::new() };
        self.observe(&mut connection).await?;
        Ok(connection)
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
                () = self.observed.altered() => self.observe(&mut connection).await,
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
        Self { server, inbox: Mutex::default(), observed: Arc::default() }
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

    /// Listens on the channels of what is observed, and on no others. Those who observe what is new are told, because
    /// earlier changes were not heard.
    async fn observe(&self, connection: &mut Connection) -> Result<(), Failure> {
        let Due { added, removed } = self.observed.due(&connection.observed);
        let begin = added.iter().map(|key| format!("LISTEN {};", channel_of_changes(key)));
        let end = removed.iter().map(|key| format!("UNLISTEN {};", channel_of_changes(key)));
        let statements: String = begin.chain(end).collect();
        if statements.is_empty() {
            return Ok(());
        }
        let session = &connection.session;
        session.within(session.execute(&statements)).await?;
        connection.observed.retain(|key| !removed.contains(key));
        added.iter().for_each(|key| self.observed.tell(key));
        connection.observed.extend(added);
        Ok(())
    }

    fn hear(&self, notification: &Notification) {
        if notification.payload().is_empty() {
            return self.observed.tell_those(|key| channel_of_changes(key) == notification.channel());
        }
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
