//! The connections of a client, as a store of records.

use std::fmt;
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::join;
use futures::stream::{self, BoxStream};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::notifier::Notifier;
use super::server::{Server, Session};
use crate::backend::key_pages::{PAGE, pages};
use crate::backend::records::{Health, Workers};
use crate::backend::{
    BackendError, Capabilities, Effects, Event, Finding, Ledger, LedgerStore, Stamp, StoreState,
};
use crate::background;
use crate::runtime::spawn_on;

/// A table of a database.
pub(in crate::backend) struct Store<V: Server> {
    capabilities: Capabilities,
    server: Arc<V>,
    health: Arc<Health>,
    workers: Arc<Workers<V::Session>>,
    notifier: Arc<Notifier<V::Notifications>>,
    runtime: Handle,
}

impl<V: Server> Store<V> {
    /// Prepares everything; the connections are opened when they are needed.
    pub(in crate::backend) fn start(server: V) -> io::Result<Self> {
        let (runtime, server) = (background::handle()?, Arc::new(server));
        let settings = server.settings();
        let health = Arc::new(Health::new(settings.address.clone()));
        let mut capabilities = Capabilities::new(settings.address.clone());
        // The whole queue is in the record.
        capabilities.constant_work = false;
        capabilities.lists = true;
        capabilities.pushes_losses = V::PUSHES_LOSSES;
        let time_limit = settings.connect_timeout + settings.reply_timeout;
        let (max, health_of) = (server.max_workers(), Arc::clone(&health));
        let workers = Workers::new(Arc::clone(&server), max, time_limit, health_of, runtime.clone());
        let closing = CancellationToken::new();
        let notifications = Arc::clone(&server).notifications(&closing);
        let notifier = Arc::new(Notifier::new(notifications, Arc::clone(&health), closing));
        Ok(Self { capabilities, server, health, workers: Arc::new(workers), notifier, runtime })
    }

    /// Returns when both connections have been opened.
    pub(in crate::backend) async fn connected(&self) -> Result<(), BackendError> {
        self.notifier.start(&self.runtime);
        let (notified, changing) = join(self.notifier.connected(), self.ping()).await;
        notified.map_err(|failure| failure.before_storing())?;
        changing
    }

    /// A page of keys, read over a connection of its own, which the next page uses again.
    async fn page(
        &self,
        session: Arc<Mutex<Option<V::Session>>>,
        from: String,
    ) -> Result<Vec<String>, BackendError> {
        let server = Arc::clone(&self.server);
        let read = async move {
            let mut session = session.lock().await;
            let session = match &mut *session {
                Some(session) => session,
                None => session.insert(server.open().await?),
            };
            session.keys(&from, PAGE).await
        };
        let read = spawn_on(&self.runtime, read).await;
        let page = read.map_err(|error| BackendError::Unanswered { source: error.into() })?;
        page.map_err(|failure| failure.before_storing())
    }

    /// Nothing new is begun, and the connections are closed when what they have begun is done.
    fn stop(&self) {
        self.health.close();
        self.workers.close();
        self.notifier.close();
    }
}

impl<V: Server> LedgerStore for Store<V> {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.workers.transact(keys, change)
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let workers = Arc::clone(&self.workers);
        let events = self.notifier.events(client, &self.runtime);
        // What another client has granted is known before it is acted upon.
        let observed = events.inspect(move |event| {
            if let Event::Granted { lease, .. } = event {
                workers.schedule.forget(&lease.resource.key);
            }
        });
        observed.boxed()
    }

    fn changes(&self, key: &Arc<str>) -> BoxStream<'static, ()> {
        self.notifier.changes(key, &self.runtime).unwrap_or_else(|| stream::pending().boxed())
    }

    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        let session = Arc::new(Mutex::new(None));
        pages(prefix, move |from| self.page(Arc::clone(&session), from))
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn state(&self) -> StoreState {
        self.health.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.health.changes()
    }

    fn was_reached(&self) -> bool {
        self.workers.was_reached()
    }

    /// Reads a record that does not exist.
    async fn ping(&self) -> Result<(), BackendError> {
        // Names are not empty.
        self.transact(&["".into()], |_, _, _| ((), Effects::default())).await.map(drop)
    }

    async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        let server = Arc::clone(&self.server);
        let looked = spawn_on(&self.runtime, async move { server.findings().await });
        let found = looked.await.map_err(|error| BackendError::Unanswered { source: error.into() })?;
        found.map_err(|failure| failure.before_storing())
    }

    async fn close(&self) {
        self.stop();
        self.workers.ended().await;
    }
}

impl<V: Server> Drop for Store<V> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<V: Server> fmt::Debug for Store<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("address", &self.health.address()).finish_non_exhaustive()
    }
}
