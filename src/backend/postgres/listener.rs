//! Notifications for this client: the grants that others make to it, each sent by the transaction that makes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::stream::BoxStream;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_postgres::Notification;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::check;
use super::connector::Connector;
use super::record::channel;
use super::session::{Listening, Session};
use super::text::unescape;
use crate::backend::records::{Failure, Health, Purpose};
use crate::backend::{Event, EventSender};
use crate::runtime::spawn_on;

/// How often an idle connection is checked.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// The connection for notifications. It is opened with the first stream of events, and again whenever it is lost.
pub(super) struct Listener {
    connector: Arc<Connector>,
    health: Arc<Health>,
    inbox: Mutex<Inbox>,
    closing: CancellationToken,
    /// The latest attempt to connect: `None` before the first, and how it went.
    attempt: watch::Sender<Option<Result<(), Failure>>>,
}

#[derive(Default)]
struct Inbox {
    is_started: bool,
    /// Whether the server has been checked for findings.
    is_looked_at: bool,
    client: Option<Uuid>,
    events: EventSender,
    /// Has the connection listen on the client's channel.
    wish: Option<UnboundedSender<()>>,
}

impl Listener {
    pub(super) fn new(connector: Arc<Connector>, health: Arc<Health>) -> Self {
        let (inbox, closing) = Default::default();
        Self { connector, health, inbox, closing, attempt: watch::Sender::new(None) }
    }

    /// The events from now on, for the client with this id, which never changes. A later stream replaces an earlier one.
    pub(super) fn open(self: &Arc<Self>, client: Uuid, runtime: &Handle) -> BoxStream<'static, Event> {
        let mut inbox = self.inbox.lock();
        let events = inbox.events.open();
        if inbox.client.replace(client) != Some(client)
            && let Some(wish) = &inbox.wish
        {
            // An error means that the connection is lost; the next one knows.
            drop(wish.unbounded_send(()));
        }
        drop(inbox);
        self.start(runtime);
        events.chain(futures::stream::pending()).boxed()
    }

    /// Connects, unless it has begun to.
    pub(super) fn start(self: &Arc<Self>, runtime: &Handle) {
        if std::mem::replace(&mut self.inbox.lock().is_started, true) {
            return;
        }
        let listener = Arc::clone(self);
        spawn_on(runtime, async move {
            let closing = listener.closing.clone();
            closing.run_until_cancelled(listener.listen()).await;
        });
    }

    /// How the first attempt to connect went.
    pub(super) async fn connected(&self) -> Result<(), Failure> {
        let mut attempt = self.attempt.subscribe();
        match attempt.wait_for(Option::is_some).await {
            Ok(known) => known.clone().unwrap_or(Ok(())),
            Err(_) => Err(Failure::closed()),
        }
    }

    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn listen(&self) {
        loop {
            match self.connect().await {
                Ok(connection) => {
                    let begun = Instant::now();
                    let failure = self.drive(connection).await;
                    // It is replaced at once. Nobody needs to know, unless that fails.
                    tracing::debug!(store = %self.health.address(), %failure, "the connection for notifications has ended");
                    sleep(PAUSE.saturating_sub(begun.elapsed())).await;
                }
                Err(failure) => {
                    self.health.failed(Purpose::Notifications, &failure.why);
                    self.attempt.send_replace(Some(Err(failure)));
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let Listening { session, heard } = self.connector.open_listening().await?;
        if !std::mem::replace(&mut self.inbox.lock().is_looked_at, true) {
            session.within(check::warn(&session, &self.connector.settings)).await?;
        }
        let (wish, wishes) = unbounded();
        self.inbox.lock().wish = Some(wish);
        self.subscribe(&session).await?;
        self.health.succeeded(Purpose::Notifications);
        self.attempt.send_replace(Some(Ok(())));
        Ok(Connection { session, heard, wishes })
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

    /// Passes on what is heard, until the connection is lost.
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

    fn hear(&self, notification: &Notification) {
        match unescape(notification.payload()).parse() {
            // These events name no lease, so any user could forge them. No client of this crate sends them.
            Ok(event @ (Event::Changed(_) | Event::Resync)) => {
                tracing::debug!(store = %self.connector.settings.address, ?event, "a notification that is not for this client");
            }
            Ok(event) => self.send(event),
            Err(error) => {
                tracing::debug!(store = %self.connector.settings.address, %error, "a notification that is not for this client");
            }
        }
    }

    fn send(&self, event: Event) {
        let inbox = self.inbox.lock();
        // Any user of the database can send notifications, so those that do not name a lease of this client are ignored.
        if event.lease().is_none_or(|lease| Some(lease.client()) == inbox.client) {
            inbox.events.send(event);
        }
    }
}

struct Connection {
    session: Session,
    heard: UnboundedReceiver<Notification>,
    wishes: UnboundedReceiver<()>,
}
