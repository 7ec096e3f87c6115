//! The connections on the caller's runtime: those for commands, and one that is subscribed. If that runtime ends, the
//! next call reopens them on its own runtime.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::notifications::{Channel, Subscription};
use super::runtime;
use super::servers::Commands;
use crate::backend::BackendError;
use crate::runtime::is_stuck;

/// The connections on the caller's runtime.
#[derive(Debug)]
pub(super) struct CallersConnections {
    commands: Vec<Commands>,
    subscriber: Arc<Connection>,
    channel: Channel,
    closed: CancellationToken,
    tasks: Mutex<Tasks>,
    /// Whether message delivery has been verified once.
    proved: AtomicBool,
    /// The runtime on which they live. Held while they are reopened.
    runtime: tokio::sync::Mutex<Option<Handle>>,
}

#[derive(Debug, Default)]
struct Tasks {
    drivers: Vec<JoinHandle<()>>,
    subscription: Option<Subscription>,
}

impl CallersConnections {
    pub(super) fn new(
        commands: Vec<Commands>,
        subscriber: Arc<Connection>,
        channel: Channel,
        closed: CancellationToken,
    ) -> Arc<Self> {
        let (tasks, runtime) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Self {
            commands,
            subscriber,
            channel,
            closed,
            tasks,
            proved: AtomicBool::default(),
            runtime,
        })
    }

    /// Connects for the first time, and verifies that messages are delivered.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        *self.runtime.lock().await = Some(Handle::current());
        for commands in &self.commands {
            self.keep(commands.connect(self.closed.clone()).await?);
        }
        self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
        self.subscribe().await
    }

    async fn subscribe(&self) -> Result<(), BackendError> {
        let publisher = match &self.commands[..] {
            [Commands::Server(connection), ..] => Some(&**connection),
            _ => None,
        };
        let subscription = Subscription::open(&self.subscriber, publisher, self.channel.clone()).await?;
        self.tasks.lock().subscription = Some(subscription);
        self.proved.store(true, Ordering::Release);
        Ok(())
    }

    fn keep(&self, driver: Option<JoinHandle<()>>) {
        self.tasks.lock().drivers.extend(driver);
    }

    /// The connections for commands to all servers.
    pub(super) fn connections(&self) -> Vec<Arc<Connection>> {
        self.commands[0].connections()
    }

    /// Sends PING to all servers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        self.commands[0].ping().await
    }

    /// Whether the runtime on which they lived has ended, or they have not been made yet.
    pub(super) fn are_missing(&self) -> bool {
        !self.proved.load(Ordering::Acquire)
            || self.subscriber.has_ended()
            || self.commands.iter().any(Commands::have_ended)
    }

    /// Whether they are missing, or a call was not answered in time.
    pub(super) fn may_be_missing(&self) -> bool {
        self.are_missing() || self.commands.iter().any(Commands::are_suspect)
    }

    /// Whether the runtime on which they live makes no progress although a call waits for it.
    async fn are_stuck(&self, runtime: Option<&Handle>) -> bool {
        // All of them are asked.
        let suspect = self.commands.iter().filter(|commands| commands.take_suspicion()).count() > 0;
        match runtime.filter(|_| suspect) {
            Some(runtime) => is_stuck(runtime).await,
            None => false,
        }
    }

    /// Gives up their tasks, which end when their runtime is driven again, or is dropped.
    fn abandon(&self) {
        let tasks = mem::take(&mut *self.tasks.lock());
        tasks.drivers.iter().for_each(JoinHandle::abort);
        self.subscriber.abandon();
        self.commands.iter().for_each(Commands::abandon);
    }

    /// Connects, for the first time or again, from the current runtime, in a separate task: a caller that gives up, or
    /// is not polled, blocks no other caller.
    pub(super) async fn revive(self: &Arc<Self>) -> Result<(), BackendError> {
        let revived = tokio::spawn(Arc::clone(self).connect_missing());
        revived.await.unwrap_or_else(|gone| Err(BackendError::NotSent { source: gone.into() }))
    }

    async fn connect_missing(self: Arc<Self>) -> Result<(), BackendError> {
        let mut runtime = self.runtime.lock().await;
        if self.are_stuck(runtime.as_ref()).await {
            tracing::warn!("the runtime of the connections is not driven; connecting from another one");
            self.abandon();
        }
        if !self.are_missing() {
            return Ok(());
        }
        runtime::check()?;
        *runtime = Some(Handle::current());
        self.tasks.lock().drivers.retain(|driver| !driver.is_finished());
        for commands in self.commands.iter().filter(|commands| commands.have_ended()) {
            tracing::debug!("connecting from this runtime");
            self.keep(commands.revive(self.closed.clone()).await?);
        }
        let proved = self.proved.load(Ordering::Acquire);
        if self.subscriber.has_ended() {
            self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
            if proved {
                let subscription = Subscription::reopen(&self.subscriber, self.channel.clone());
                self.tasks.lock().subscription = Some(subscription);
            }
        }
        if proved { Ok(()) } else { self.subscribe().await }
    }

    /// The tasks that keep them connected until `closed`. Ends the subscription.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        let mut tasks = self.tasks.lock();
        tasks.subscription = None;
        let mut drivers = mem::take(&mut tasks.drivers);
        drivers.extend(self.commands.iter().flat_map(Commands::take_drivers));
        drivers
    }
}
