//! The connections where the client lives: those for commands, and one that is subscribed. When the client moves, they
//! are opened again where it lives then, as after a loss.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::Shared;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::acceptance::{accept, findings};
use super::check::Expected;
use super::cluster::{Nodes, SlotTransports};
use super::connection::Connection;
use super::keys;
use super::notifications::Notifications;
use super::runtime;
use super::transport::Transport;
use crate::backend::{BackendError, Finding, Resource};
use crate::closing::Closing;
use crate::home::{Home, Resident};
use crate::runtime::spawn_on;

/// The pause before a server that declines for now is asked again.
const RETRY: Duration = Duration::from_millis(50);

/// The connections where the client lives, and whether its servers were accepted.
#[derive(Debug)]
pub(super) struct Connections {
    home: Arc<Home>,
    /// The crate's own thread.
    own: Handle,
    commands: Commands,
    subscriber: Arc<Connection>,
    notifications: Arc<Notifications>,
    expected: Expected,
    closing: Arc<Closing>,
    /// The tasks that keep them connected.
    drivers: Mutex<Vec<JoinHandle<()>>>,
    subscription: Mutex<Option<AbortOnDropHandle<()>>>,
    /// Whether the servers have been checked and accepted. No request is sent before that.
    accepted: AtomicBool,
    /// What the servers have said last when they declined for now.
    declined: Mutex<Option<BackendError>>,
    attempt: Mutex<Option<Attempt>>,
}

/// An attempt to connect, for which any number of callers wait.
type Attempt = Shared<oneshot::Receiver<Result<(), BackendError>>>;

impl Resident for Connections {
    fn settle(&self, runtime: &Handle) {
        // Connections to servers need more than every runtime has.
        let runtime = if runtime::check_on(runtime).is_ok() { runtime } else { &self.own };
        let closed = self.closing.token();
        let mut drivers = self.commands.start(runtime, &closed);
        drivers.push(self.subscriber.start(runtime, closed));
        let before = mem::replace(&mut *self.drivers.lock(), drivers);
        before.iter().for_each(JoinHandle::abort);
    }
}

impl Connections {
    pub(super) fn new(
        (home, own): (Arc<Home>, Handle),
        commands: Commands,
        subscriber: Arc<Connection>,
        notifications: Arc<Notifications>,
        expected: Expected,
        closing: Arc<Closing>,
    ) -> Arc<Self> {
        let connections = Arc::new(Self {
            home,
            own,
            commands,
            subscriber,
            notifications,
            expected,
            closing,
            drivers: Mutex::default(),
            subscription: Mutex::default(),
            accepted: AtomicBool::default(),
            declined: Mutex::default(),
            attempt: Mutex::default(),
        });
        connections.home.take_in(&connections);
        connections
    }

    /// Connects for the first time from the current runtime, verifies that messages are delivered, and checks the
    /// servers. Does this again while the server declines for a reason that can be over within seconds. Whoever
    /// connects has a time limit.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        self.home.settle();
        self.connected().await?;
        loop {
            match self.subscribe_and_accept().await {
                Err(error @ BackendError::RefusedForNow { .. }) => {
                    *self.declined.lock() = Some(error);
                    sleep(RETRY).await;
                }
                done => return done,
            }
        }
    }

    /// What the server has said last if it declined for now while this connected for the first time.
    pub(super) fn declined(&self) -> Option<BackendError> {
        let connections = self.commands.connections().into_iter().chain([Arc::clone(&self.subscriber)]);
        let refusal = connections.filter_map(|connection| connection.refusal_for_now()).next();
        let refusal = refusal.map(|text| BackendError::RefusedForNow { source: text.into() });
        refusal.or_else(|| self.declined.lock().take())
    }

    /// Makes sure that the servers are connected and accepted. This takes time only until it was successful once; from
    /// then on, lost connections are opened again by their own tasks.
    pub(super) async fn ready(self: &Arc<Self>) -> Result<(), BackendError> {
        if self.closing.is_closed() {
            return Err(BackendError::Closed);
        }
        if self.are_accepted() {
            return Ok(());
        }
        runtime::check()?;
        self.home.settle();
        match self.closing.token().run_until_cancelled(self.join_attempt()).await {
            Some(Ok(connected)) => connected,
            Some(Err(gone)) if !self.closing.is_closed() => {
                Err(BackendError::NotSent { source: gone.into() })
            }
            _ => Err(BackendError::Closed),
        }
    }

    /// The attempt that is in progress, or a new one, on the crate's own thread: a caller that gives up, or is not
    /// polled, blocks no other.
    fn join_attempt(self: &Arc<Self>) -> Attempt {
        let mut attempt = self.attempt.lock();
        if let Some(current) = attempt.as_ref().filter(|attempt| attempt.peek().is_none()) {
            return current.clone();
        }
        let ((sender, connected), connections) = (oneshot::channel(), Arc::clone(self));
        spawn_on(&self.own, async move {
            let attempt = async {
                connections.connected().await?;
                connections.subscribe_and_accept().await
            };
            if let Some(connected) = connections.closing.token().run_until_cancelled(attempt).await {
                // Nobody may be waiting for it any more.
                let _ = sender.send(connected);
            }
        });
        attempt.insert(connected.shared()).clone()
    }

    async fn connected(&self) -> Result<(), BackendError> {
        self.commands.connected().await?;
        self.subscriber.connected().await
    }

    async fn subscribe_and_accept(&self) -> Result<(), BackendError> {
        if !self.are_subscribed() {
            let publisher = match &self.commands {
                Commands::Server(connection, _) => Some(&**connection),
                Commands::Cluster(..) => None,
            };
            let subscribed = self.notifications.subscribe(&self.own, &self.subscriber, publisher).await?;
            *self.subscription.lock() = Some(subscribed);
        }
        if !self.are_accepted() {
            accept(&self.commands.connections(), &self.expected).await?;
            self.accepted.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether the servers have been checked and accepted.
    pub(super) fn are_accepted(&self) -> bool {
        self.accepted.load(Ordering::Acquire)
    }

    /// Whether the delivery of messages has been verified.
    pub(super) fn are_subscribed(&self) -> bool {
        self.subscription.lock().is_some()
    }

    /// Sends PING to all servers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        self.commands.ping().await
    }

    /// Checks all servers.
    pub(super) async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        findings(&self.commands.connections(), &self.expected).await
    }

    /// The tasks that keep them connected until `closed`. Ends the subscription.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        *self.subscription.lock() = None;
        let mut drivers = mem::take(&mut *self.drivers.lock());
        drivers.extend(self.commands.take_drivers());
        drivers
    }
}

/// The connections for commands, where the client lives or on the crate's own thread, and their transports: one, or in
/// a cluster, a connection for each node and a transport for each slot.
#[derive(Clone, Debug)]
pub(super) enum Commands {
    Server(Arc<Connection>, Arc<Transport>),
    Cluster(Arc<Nodes>, Arc<SlotTransports>),
}

impl Commands {
    /// The transport for the operations on a resource.
    pub(super) fn of(&self, resource: &Resource) -> Arc<Transport> {
        self.at(resource.key.as_bytes())
    }

    /// The transport for operations on a key.
    pub(super) fn at(&self, key: &[u8]) -> Arc<Transport> {
        match self {
            Self::Server(_, transport) => Arc::clone(transport),
            Self::Cluster(_, transports) => transports.of(keys::slot(key)),
        }
    }

    /// The slot of a resource, in a cluster.
    pub(super) fn slot(&self, resource: &Resource) -> Option<u16> {
        self.are_in_cluster().then(|| keys::slot(resource.key.as_bytes()))
    }

    pub(super) const fn are_in_cluster(&self) -> bool {
        matches!(self, Self::Cluster(..))
    }

    /// Starts connecting from `runtime`, or does so again after a move. The returned tasks keep them connected until
    /// `closed`; those of a cluster are started as they are needed.
    pub(super) fn start(&self, runtime: &Handle, closed: &CancellationToken) -> Vec<JoinHandle<()>> {
        match self {
            Self::Server(connection, transport) => {
                let driver = connection.start(runtime, closed.clone());
                transport.restart();
                vec![driver]
            }
            Self::Cluster(nodes, transports) => {
                nodes.restart(runtime);
                transports.restart();
                Vec::new()
            }
        }
    }

    /// Connects to the nodes of a cluster as soon as one of them says which they are.
    pub(super) fn find_when_possible(
        &self,
        runtime: &Handle,
        closed: &CancellationToken,
    ) -> Option<JoinHandle<()>> {
        match self {
            Self::Server(..) => None,
            Self::Cluster(nodes, _) => {
                Some(spawn_on(runtime, Arc::clone(nodes).connect_when_possible(closed.clone())))
            }
        }
    }

    /// Waits until they are connected, or the first attempt has failed.
    pub(super) async fn connected(&self) -> Result<(), BackendError> {
        match self {
            Self::Server(connection, _) => connection.connected().await,
            Self::Cluster(nodes, _) => nodes.connect().await,
        }
    }

    /// Sends PING to every server.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        match self {
            Self::Server(connection, _) => connection.command(&["PING"]).await.map(drop)?,
            Self::Cluster(nodes, _) => nodes.ping().await?,
        }
        Ok(())
    }

    /// The connections to all servers.
    pub(super) fn connections(&self) -> Vec<Arc<Connection>> {
        match self {
            Self::Server(connection, _) => vec![Arc::clone(connection)],
            Self::Cluster(nodes, _) => nodes.to_primaries(),
        }
    }

    /// The tasks of a cluster's connections.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        match self {
            Self::Server(..) => Vec::new(),
            Self::Cluster(nodes, _) => nodes.take_drivers(),
        }
    }
}
