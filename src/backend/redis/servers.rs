//! What a store consists of, and its connections and transports.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cluster::{Nodes, Slots};
use super::connection::{Connection, ConnectionSettings};
use super::link::Link;
use super::notifications::Notifications;
use super::route::{Route, Sentinels};
use super::transport::{Transport, Transports};
use super::url::{Login, Topology};
use crate::backend::BackendError;

/// Makes the connections of a store.
#[derive(Debug)]
pub(super) struct Servers {
    topology: Servings,
    connections: ConnectionSettings,
    notifications: Arc<Notifications>,
    closed: CancellationToken,
}

/// Who serves a key.
#[derive(Debug)]
enum Servings {
    /// One server serves all of them.
    Server(Route),
    Cluster(Arc<Slots>),
}

impl Servers {
    pub(super) fn new(
        topology: Topology,
        connections: ConnectionSettings,
        notifications: Arc<Notifications>,
        closed: CancellationToken,
    ) -> Self {
        let topology = match topology {
            Topology::Single(server) => Servings::Server(Route::Server(server)),
            Topology::Sentinel { sentinels, service } => {
                let connections = ConnectionSettings { login: Login::default(), ..connections.clone() };
                Servings::Server(Route::Sentinel(Arc::new(Sentinels::new(sentinels, service, connections))))
            }
            Topology::Cluster(seeds) => Servings::Cluster(Slots::new(seeds, connections.clone())),
        };
        Self { topology, connections, notifications, closed }
    }

    /// What has to run until `closed`, so that the right servers are known. `sides` are all connections for commands.
    pub(super) fn stay_up_to_date(&self, sides: &[&Commands]) -> BoxFuture<'static, ()> {
        let closed = self.closed.clone();
        match &self.topology {
            Servings::Server(Route::Sentinel(sentinels)) => Arc::clone(sentinels).listen(closed).boxed(),
            Servings::Server(_) => ready(()).boxed(),
            Servings::Cluster(slots) => {
                let nodes = sides.iter().filter_map(|side| match side {
                    Commands::Cluster(nodes) => Some(Arc::clone(nodes)),
                    Commands::Server(_) => None,
                });
                Arc::clone(slots).stay_up_to_date(nodes.collect(), closed).boxed()
            }
        }
    }

    /// A connection for messages, which every server passes on.
    pub(super) fn subscriber(&self) -> Arc<Connection> {
        self.connection(match &self.topology {
            Servings::Server(route) => route.clone(),
            Servings::Cluster(slots) => Route::AnyNode(Arc::clone(slots)),
        })
    }

    /// Connections for commands, and their transports.
    pub(super) fn commands(&self) -> (Commands, Transports) {
        let notifications = Arc::clone(&self.notifications);
        match &self.topology {
            Servings::Server(route) => {
                let connection = self.connection(route.clone());
                let transport = Transport::new(Arc::clone(&connection), notifications);
                (Commands::Server(connection), Transports::Server(transport))
            }
            Servings::Cluster(slots) => {
                let (slots, closed) = (Arc::clone(slots), self.closed.clone());
                let nodes = Nodes::new(slots, notifications, closed);
                (Commands::Cluster(Arc::clone(&nodes)), Transports::Cluster(nodes))
            }
        }
    }

    fn connection(&self, route: Route) -> Arc<Connection> {
        Connection::new(&self.connections, route)
    }
}

/// The connections for commands: one, or in a cluster, one per node.
#[derive(Clone, Debug)]
pub(super) enum Commands {
    Server(Arc<Connection>),
    Cluster(Arc<Nodes>),
}

impl Commands {
    /// Connects from the current runtime. The returned task keeps it connected until `closed`; those of a cluster are started as they
    /// are needed.
    pub(super) async fn connect(
        &self,
        closed: CancellationToken,
    ) -> Result<Option<JoinHandle<()>>, BackendError> {
        match self {
            Self::Server(connection) => connection.connect(closed).await.map(Some),
            Self::Cluster(nodes) => nodes.connect().await.map(|()| None),
        }
    }

    /// Starts to connect from `runtime`, and does not wait for that.
    pub(super) fn start(&self, runtime: &Handle, closed: CancellationToken) -> Option<JoinHandle<()>> {
        match self {
            Self::Server(connection) => Some(connection.start(runtime, closed)),
            Self::Cluster(_) => None,
        }
    }

    /// Sends PING to every server.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        match self {
            Self::Server(connection) => connection.command(&["PING"]).await.map(drop)?,
            Self::Cluster(nodes) => nodes.ping().await?,
        }
        Ok(())
    }

    /// Links to all servers.
    pub(super) async fn links(&self) -> Result<Vec<Arc<dyn Link>>, BackendError> {
        match self {
            Self::Server(connection) => Ok(vec![connection.link().await?]),
            Self::Cluster(nodes) => nodes.links().await,
        }
    }

    /// Whether the runtime on which they lived has ended, or they have never been connected.
    pub(super) fn have_ended(&self) -> bool {
        match self {
            Self::Server(connection) => connection.has_ended(),
            Self::Cluster(nodes) => nodes.have_ended(),
        }
    }

    /// Connects again from the current runtime.
    pub(super) async fn revive(
        &self,
        closed: CancellationToken,
    ) -> Result<Option<JoinHandle<()>>, BackendError> {
        match self {
            Self::Server(connection) => connection.connect(closed).await.map(Some),
            Self::Cluster(nodes) => {
                nodes.revive().await?;
                Ok(None)
            }
        }
    }

    /// The tasks of a cluster's connections.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        match self {
            Self::Server(_) => Vec::new(),
            Self::Cluster(nodes) => nodes.take_drivers(),
        }
    }
}
