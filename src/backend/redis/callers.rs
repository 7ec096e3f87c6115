//! The connections on the caller's runtime: those for commands, and one that is subscribed. If that runtime ends, or is not
//! driven, the next call reopens them on its own runtime.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::acceptance::{accept, findings};
use super::check::Expected;
use super::connection::Connection;
use super::notifications::{Channel, Subscription};
use super::runtime;
use super::servers::Commands;
use crate::backend::{BackendError, Finding};
use crate::runtime::{Cancel, LOOK, is_stuck, spawn_cancelable, until_stuck};

/// The connections on the caller's runtime.
#[derive(Debug)]
pub(super) struct CallersConnections {
    commands: Vec<Commands>,
    subscriber: Arc<Connection>,
    channel: Channel,
    expected: Expected,
    closed: CancellationToken,
    tasks: Mutex<Tasks>,
    /// Whether the servers have been checked and accepted. No request is sent before that.
    accepted: AtomicBool,
    /// Whether message delivery has been verified once.
    proved: AtomicBool,
    /// The runtime on which they live.
    runtime: Mutex<Option<Handle>>,
    /// The last attempt to connect.
    attempt: Mutex<Option<Attempt>>,
}

#[derive(Debug, Default)]
struct Tasks {
    drivers: Vec<JoinHandle<()>>,
    subscription: Option<Subscription>,
}

/// An attempt to connect, for which any number of callers wait.
#[derive(Debug)]
struct Attempt {
    runtime: Handle,
    task: Cancel,
    result: Shared<BoxFuture<'static, Result<(), Arc<BackendError>>>>,
}

impl CallersConnections {
    pub(super) fn new(
        commands: Vec<Commands>,
        subscriber: Arc<Connection>,
        channel: Channel,
        expected: Expected,
        closed: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            commands,
            subscriber,
            channel,
            expected,
            closed,
            tasks: Mutex::default(),
            accepted: AtomicBool::default(),
            proved: AtomicBool::default(),
            runtime: Mutex::default(),
            attempt: Mutex::default(),
        })
    }

    /// Connects for the first time, verifies that messages are delivered, and checks the servers.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        *self.runtime.lock() = Some(Handle::current());
        for commands in &self.commands {
            self.keep(commands.connect(self.closed.clone()).await?);
        }
        self.keep(Some(self.subscriber.connect(self.closed.clone()).await?));
        self.subscribe().await?;
        self.accept().await
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
    fn connections(&self) -> Vec<Arc<Connection>> {
        self.commands[0].connections()
    }

    /// Sends PING to all servers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        self.commands[0].ping().await
    }

    /// Checks all servers.
    pub(super) async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        findings(&self.connections(), &self.expected).await
    }

    async fn accept(&self) -> Result<(), BackendError> {
        if !self.are_accepted() {
            accept(&self.connections(), &self.expected).await?;
            self.accepted.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the servers have been checked and accepted.
    pub(super) fn are_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    /// Whether they have not been opened yet, or the runtime on which they lived has ended.
    pub(super) fn are_missing(&self) -> bool {
        !self.proved.load(Ordering::Acquire)
            || self.subscriber.has_ended()
            || self.commands.iter().any(Commands::have_ended)
    }

    /// Whether they can be used as far as is known: they are there, accepted, and each call was answered in time.
    pub(super) fn are_ready(&self) -> bool {
        self.are_accepted() && !self.are_missing() && !self.commands.iter().any(Commands::are_suspect)
    }

    /// Makes them ready from the current runtime, in a separate task: a caller that gives up, or is not polled, blocks no
    /// other caller, and neither does a runtime that is not driven.
    pub(super) async fn revive(self: &Arc<Self>) -> Result<(), BackendError> {
        loop {
            let (runtime, result) = self.attempt();
            tokio::select! {
                biased;
                revived = result => return revived.map_err(|error| error.duplicate()),
                () = until_stuck(&runtime) => self.give_up_attempt(&runtime),
            }
        }
    }

    /// The attempt to connect that is in progress, or a new one.
    fn attempt(self: &Arc<Self>) -> (Handle, impl Future<Output = Result<(), Arc<BackendError>>> + use<>) {
        let mut attempt = self.attempt.lock();
        if attempt.as_ref().is_some_and(|attempt| attempt.task.is_over()) {
            *attempt = None;
        }
        let Attempt { runtime, result, .. } = attempt.get_or_insert_with(|| {
            let (connected, task) = spawn_cancelable(Arc::clone(self).connect_missing());
            let result = connected.map(|connected| {
                let connected =
                    connected.unwrap_or_else(|gone| Err(BackendError::NotSent { source: gone.into() }));
                connected.map_err(Arc::new)
            });
            Attempt { runtime: Handle::current(), task, result: result.boxed().shared() }
        });
        (runtime.clone(), result.clone())
    }

    /// Another caller makes an attempt on its own runtime instead.
    fn give_up_attempt(&self, stuck: &Handle) {
        let is_stuck = |attempt: &mut Attempt| attempt.runtime.id() == stuck.id() && !attempt.task.is_over();
        let given_up = self.attempt.lock().take_if(is_stuck);
        if given_up.is_some() {
            drop(given_up);
            self.abandon();
        }
    }

    async fn connect_missing(self: Arc<Self>) -> Result<(), BackendError> {
        // All of them are asked.
        let is_suspect = self.commands.iter().filter(|commands| commands.take_suspicion()).count() > 0;
        if is_suspect && self.are_stuck().await {
            self.abandon();
        }
        if self.are_missing() {
            self.open_missing().await?;
        }
        self.accept().await
    }

    async fn open_missing(&self) -> Result<(), BackendError> {
        runtime::check()?;
        *self.runtime.lock() = Some(Handle::current());
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

    /// Whether the runtime on which they live makes no progress.
    async fn are_stuck(&self) -> bool {
        let runtime = self.runtime.lock().clone();
        match runtime {
            Some(runtime) => is_stuck(&runtime).await,
            None => false,
        }
    }

    /// Gives up their tasks, which end when their runtime is driven again, or is dropped.
    fn abandon(&self) {
        tracing::warn!("the runtime of the connections is not driven; connecting from another one");
        let tasks = mem::take(&mut *self.tasks.lock());
        tasks.drivers.iter().for_each(JoinHandle::abort);
        self.subscriber.abandon();
        self.commands.iter().for_each(Commands::abandon);
    }

    /// Makes all waiting requests repeat when the subscription is gone with its runtime, or that is not driven, until they are
    /// closed: the first of these requests opens it again, from a runtime that exists. Without it they would not be told of
    /// their grants.
    pub(super) async fn replace_subscription(self: Arc<Self>) {
        let mut links = self.subscriber.links();
        let each_end = async {
            // The sender is in `subscriber`, so waiting cannot fail.
            while links.wait_for(Option::is_some).await.is_ok() {
                tokio::select! {
                    _ = links.wait_for(|link| link.is_none() && self.subscriber.has_ended()) => {}
                    () = self.until_unattended() => self.abandon(),
                }
                self.channel.notifications().resync();
            }
        };
        self.closed.run_until_cancelled(each_end).await;
    }

    /// Completes when messages are awaited on another runtime than that of the subscription, and this one makes no progress.
    async fn until_unattended(&self) {
        loop {
            sleep(LOOK).await;
            let runtime = self.runtime.lock().as_ref().map(Handle::id);
            let are_awaited = self.channel.notifications().are_awaited_elsewhere(runtime);
            if are_awaited && self.are_stuck().await {
                return;
            }
        }
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
