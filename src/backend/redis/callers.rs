//! The connections on the caller's runtime: those for commands, and one that is subscribed. If that runtime ends, the next call makes
//! them again on its own.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::link::Link;
use super::notifications::{Channel, Subscription};
use super::servers::Commands;
use crate::backend::BackendError;
use crate::sync::Mutex;

/// The connections on the caller's runtime.
#[derive(Debug)]
pub(super) struct CallersConnections {
    commands: Vec<Commands>,
    subscriber: Arc<Connection>,
    channel: Channel,
    closed: CancellationToken,
    tasks: Mutex<Tasks>,
    /// Held while they are made again.
    reviving: tokio::sync::Mutex<()>,
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
        let (tasks, reviving) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Self { commands, subscriber, channel, closed, tasks, reviving })
    }

    /// Connects for the first time, and proves that messages are delivered.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        for commands in &self.commands {
            self.keep(commands.connect(self.closed.clone()).await?);
        }
        self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
        let publisher = match &self.commands[..] {
            [Commands::Server(connection), ..] => Some(&**connection),
            _ => None,
        };
        let subscription = Subscription::open(&self.subscriber, publisher, self.channel.clone()).await?;
        self.tasks.lock().subscription = Some(subscription);
        Ok(())
    }

    fn keep(&self, driver: Option<JoinHandle<()>>) {
        self.tasks.lock().drivers.extend(driver);
    }

    /// Links for commands to all servers.
    pub(super) async fn links(&self) -> Result<Vec<Arc<dyn Link>>, BackendError> {
        self.commands[0].links().await
    }

    /// Sends PING to all servers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        self.commands[0].ping().await
    }

    /// Whether the runtime on which they lived has ended.
    pub(super) fn have_ended(&self) -> bool {
        self.commands.iter().any(Commands::have_ended) || self.subscriber.has_ended()
    }

    /// Connects again from the current runtime, in a task of its own: a caller that gives up, or is not polled, hinders nobody.
    pub(super) async fn revive(self: &Arc<Self>) -> Result<(), BackendError> {
        let revived = tokio::spawn(Arc::clone(self).connect_again());
        revived.await.unwrap_or_else(|gone| Err(BackendError::NotSent { source: gone.into() }))
    }

    async fn connect_again(self: Arc<Self>) -> Result<(), BackendError> {
        let _one_at_a_time = self.reviving.lock().await;
        self.tasks.lock().drivers.retain(|driver| !driver.is_finished());
        for commands in self.commands.iter().filter(|commands| commands.have_ended()) {
            tracing::debug!("the runtime of the connections has ended, connecting again from this one");
            self.keep(commands.revive(self.closed.clone()).await?);
        }
        if self.subscriber.has_ended() {
            self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
            let subscription = Subscription::reopen(&self.subscriber, self.channel.clone());
            self.tasks.lock().subscription = Some(subscription);
        }
        Ok(())
    }

    /// The tasks that keep them connected until `closed`. Ends the subscription.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        let mut tasks = self.tasks.lock();
        tasks.subscription = None;
        let mut drivers = std::mem::take(&mut tasks.drivers);
        drivers.extend(self.commands.iter().flat_map(Commands::take_drivers));
        drivers
    }
}
