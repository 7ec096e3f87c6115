//! The parts of a store: its connections and transports.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cluster::{Nodes, SlotTransports, Slots, ToAnyNode, stay_up_to_date};
use super::connection::{Connection, ConnectionSettings};
use super::keys;
use super::notifications::Notifications;
use super::route::ToServer;
use super::sentinel::{Sentinels, ToPrimary};
use super::target::{Login, Server, Topology};
use super::transport::Transport;
use crate::backend::{BackendError, Resource};
use crate::home::Home;
use crate::runtime::spawn_on;

/// Creates the connections of a store.
#[derive(Debug)]
pub(super) struct Servers {
    topology: ServedBy,
    connections: ConnectionSettings,
    notifications: Arc<Notifications>,
    closed: CancellationToken,
}

/// Who serves a key.
#[derive(Debug)]
enum ServedBy {
    /// One server serves all keys.
    Server(Server),
    /// The primary named by sentinels serves all keys.
    Primary(Arc<Sentinels>),
    Cluster(Arc<Slots>),
}

impl Servers {
    pub(super) fn new(
        topology: Topology,
        connections: ConnectionSettings,
        sentinel_login: Login,
        notifications: Arc<Notifications>,
        closed: CancellationToken,
    ) -> Self {
        let topology = match topology {
            Topology::Single(server) => ServedBy::Server(server),
            Topology::Sentinel { sentinels, service } => {
                let connections = ConnectionSettings { login: sentinel_login, ..connections.clone() };
                ServedBy::Primary(Arc::new(Sentinels::new(sentinels, service, connections)))
            }
            Topology::Cluster(seeds) => ServedBy::Cluster(Slots::new(seeds, connections.clone())),
        };
        Self { topology, connections, notifications, closed }
    }

    /// What has to run until `closed`, so that the right servers are known. `commands` are all connections for
    /// commands.
    pub(super) fn stay_up_to_date(&self, commands: &[&Commands]) -> BoxFuture<'static, ()> {
        let closed = self.closed.clone();
        match &self.topology {
            ServedBy::Primary(sentinels) => Arc::clone(sentinels).listen(closed).boxed(),
            ServedBy::Server(_) => ready(()).boxed(),
            ServedBy::Cluster(slots) => {
                let nodes = commands.iter().filter_map(|commands| match commands {
                    Commands::Cluster(nodes, _) => Some(Arc::clone(nodes)),
                    Commands::Server(..) => None,
                });
                stay_up_to_date(Arc::clone(slots), nodes.collect(), closed).boxed()
            }
        }
    }

    /// A connection to the server that serves all keys; in a cluster to any node, which passes messages on.
    pub(super) fn connection(&self) -> Arc<Connection> {
        Connection::new(
            &self.connections,
            match &self.topology {
                ServedBy::Server(server) => Arc::new(ToServer(server.clone())),
                ServedBy::Primary(sentinels) => Arc::new(ToPrimary(Arc::clone(sentinels))),
                ServedBy::Cluster(slots) => Arc::new(ToAnyNode(Arc::clone(slots))),
            },
        )
    }

    /// Connections for commands that live here.
    pub(super) fn commands(&self, home: &Arc<Home>) -> Commands {
        let notifications = Arc::clone(&self.notifications);
        match &self.topology {
            ServedBy::Server(_) | ServedBy::Primary(_) => {
                let connection = self.connection();
                let transport = Transport::new(Arc::clone(&connection), notifications, home);
                Commands::Server(connection, transport)
            }
            ServedBy::Cluster(slots) => {
                let nodes = Nodes::new(Arc::clone(slots), Arc::clone(home), self.closed.clone());
                let transports = SlotTransports::new(Arc::clone(&nodes), notifications);
                Commands::Cluster(nodes, Arc::new(transports))
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use uuid::Uuid;

    use super::super::connection::tests::unused_settings;
    use super::*;
    use crate::backend::Kind;

    #[test]
    fn what_is_made_for_a_cluster_is_freed_with_the_last_reference() {
        let seed = Server::Tcp { host: "localhost".to_owned(), port: 7000 };
        let notifications = Arc::new(Notifications::new(Uuid::new_v4(), false));
        let topology = Topology::Cluster(vec![seed]);
        let (login, closed) = (Login::default(), CancellationToken::new());
        let servers = Servers::new(topology, unused_settings(), login, notifications, closed);
        let commands = servers.commands(&Arc::default());
        let transport = commands.of(&Resource::new("lock:a", Kind::Mutex));
        let Commands::Cluster(nodes, _) = &commands else { unreachable!() };
        let left: (Weak<Nodes>, Weak<Transport>) = (Arc::downgrade(nodes), Arc::downgrade(&transport));
        drop((servers, commands, transport));
        assert!(left.0.upgrade().is_none() && left.1.upgrade().is_none());
    }
}
