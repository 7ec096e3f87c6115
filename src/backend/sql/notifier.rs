//! The connection through which a client learns that it is next. It is opened with the first stream of events, and
//! again whenever it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::backend::Event;
use crate::backend::records::{Failure, Health, Purpose};
use crate::runtime::spawn_on;

/// The pause between attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// What is done on that connection.
pub(in crate::backend) trait Notifications: Send + Sync + 'static {
    type Connection: Send;

    /// The events from now on, for the client with this id, which never changes. A later stream replaces an earlier
    /// one.
    fn events(&self, client: Uuid) -> BoxStream<'static, Event>;

    /// Yields whenever the holders in the record of this key may have changed; `None` if that is not pushed.
    fn changes(&self, key: &Arc<str>) -> Option<BoxStream<'static, ()>> {
        let _ = key;
        None
    }

    /// Opens the connection, ready to be used. Notifications since the last one were lost. What limits the promises of
    /// the store is traced if it `is_first`, which is then no longer so.
    fn open(&self, is_first: &AtomicBool) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;

    /// Passes on what is learnt, until the connection is lost.
    fn drive(&self, connection: Self::Connection) -> impl Future<Output = Failure> + Send;

    /// There is no connection any more.
    fn has_ended(&self) {}
}

pub(super) struct Notifier<N> {
    notifications: N,
    health: Arc<Health>,
    closing: CancellationToken,
    is_started: AtomicBool,
    is_first: AtomicBool,
    /// The latest attempt to connect: `None` before the first, and how it went.
    attempt: watch::Sender<Option<Result<(), Failure>>>,
}

impl<N: Notifications> Notifier<N> {
    pub(super) fn new(notifications: N, health: Arc<Health>, closing: CancellationToken) -> Self {
        let (is_started, is_first) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { notifications, health, closing, is_started, is_first, attempt: watch::Sender::new(None) }
    }

    /// See [`Notifications::events`].
    pub(super) fn events(self: &Arc<Self>, client: Uuid, runtime: &Handle) -> BoxStream<'static, Event> {
        let events = self.notifications.events(client);
        self.start(runtime);
        events
    }

    /// See [`Notifications::changes`].
    pub(super) fn changes(
        self: &Arc<Self>,
        key: &Arc<str>,
        runtime: &Handle,
    ) -> Option<BoxStream<'static, ()>> {
        let changes = self.notifications.changes(key)?;
        self.start(runtime);
        Some(changes)
    }

    /// Connects, unless it has begun to.
    pub(super) fn start(self: &Arc<Self>, runtime: &Handle) {
        if self.is_started.swap(true, Ordering::SeqCst) {
            return;
        }
        let notifier = Arc::clone(self);
        spawn_on(runtime, async move {
            let closing = notifier.closing.clone();
            closing.run_until_cancelled(notifier.work()).await;
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

    async fn work(&self) {
        loop {
            match self.notifications.open(&self.is_first).await {
                Ok(connection) => {
                    let begun = Instant::now();
                    self.health.succeeded(Purpose::Notifications);
                    self.attempt.send_replace(Some(Ok(())));
                    let failure = self.notifications.drive(connection).await;
                    self.notifications.has_ended();
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
}
