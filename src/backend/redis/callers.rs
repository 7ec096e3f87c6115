//! The connections on the caller's runtime: one for commands, one that is subscribed. If that runtime ends, the next call makes
//! them again on its own.

use std::sync::Arc;

use fred::clients::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::connection::{self, Timeouts};
use super::notifications::{Channel, Subscription};
use super::succession::Succession;
use super::transport::Transport;
use crate::backend::BackendError;
use crate::sync::Mutex;

/// The connections on the caller's runtime.
#[derive(Debug)]
pub(super) struct CallersConnections {
    transport: Arc<Transport>,
    subscriber: Client,
    /// Tells whether a task drives the subscriber.
    listener: Arc<Succession>,
    channel: Channel,
    timeouts: Timeouts,
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
        transport: Arc<Transport>,
        subscriber: Client,
        channel: Channel,
        timeouts: Timeouts,
        closed: CancellationToken,
    ) -> Self {
        Self {
            transport,
            subscriber,
            listener: Arc::default(),
            channel,
            timeouts,
            closed,
            tasks: Mutex::default(),
            reviving: tokio::sync::Mutex::default(),
        }
    }

    pub(super) const fn subscriber(&self) -> &Client {
        &self.subscriber
    }

    /// Connects for the first time, and proves that messages are delivered.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        self.connect_commands().await?;
        self.connect_listener().await?;
        let publisher = self.transport.client();
        let subscription = Subscription::open(&self.subscriber, publisher, self.channel.clone()).await?;
        self.tasks.lock().subscription = Some(subscription);
        Ok(())
    }

    async fn connect_commands(&self) -> Result<(), BackendError> {
        let (client, succession) = (self.transport.client(), self.transport.succession());
        let driver = connection::connect(client, succession, self.timeouts, self.closed.clone()).await?;
        self.tasks.lock().drivers.push(driver);
        Ok(())
    }

    async fn connect_listener(&self) -> Result<(), BackendError> {
        let (client, succession) = (&self.subscriber, &self.listener);
        let driver = connection::connect(client, succession, self.timeouts, self.closed.clone()).await?;
        self.tasks.lock().drivers.push(driver);
        Ok(())
    }

    /// Whether the runtime on which they lived has ended.
    pub(super) fn have_ended(&self) -> bool {
        self.transport.succession().has_ended() || self.listener.has_ended()
    }

    /// Connects again from the current runtime, in a task of its own: a caller that gives up, or is not polled, hinders nobody.
    pub(super) async fn revive(self: &Arc<Self>) -> Result<(), BackendError> {
        let revived = tokio::spawn(Arc::clone(self).connect_again());
        revived.await.unwrap_or_else(|gone| Err(BackendError::NotSent { source: gone.into() }))
    }

    async fn connect_again(self: Arc<Self>) -> Result<(), BackendError> {
        let _one_at_a_time = self.reviving.lock().await;
        self.tasks.lock().drivers.retain(|driver| !driver.is_finished());
        if self.transport.succession().has_ended() {
            tracing::debug!("the runtime of the connections has ended, connecting again from this one");
            self.connect_commands().await?;
        }
        if self.listener.has_ended() {
            self.connect_listener().await?;
            let subscription = Subscription::reopen(&self.subscriber, self.channel.clone());
            self.tasks.lock().subscription = Some(subscription);
        }
        Ok(())
    }

    /// The tasks that keep them connected until `closed`. Ends the subscription.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        let mut tasks = self.tasks.lock();
        tasks.subscription = None;
        std::mem::take(&mut tasks.drivers)
    }
}
