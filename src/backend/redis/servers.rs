//! The parts of a store: its connections and transports.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use tokio_util::sync::CancellationToken;

use super::cluster::{Nodes, SlotTransports, Slots, ToAnyNode, stay_up_to_date};
use super::connection::{Connection, ConnectionSettings};
use super::connections::Commands;
use super::notifications::Notifications;
use super::route::ToServer;
use super::sentinel::{Sentinels, ToPrimary};
use super::target::{Login, Server, Topology};
use super::transport::Transport;
use crate::home::Home;

/// How many messages may wait until they are read. If more arrive, waiting requests are repeated. A library takes up to
/// 600 bytes for each.
const MESSAGES: usize = 1024;
/// The same for those of a sentinel, which name the primary.
const OF_SENTINELS: usize = 64;

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
                let connections = ConnectionSettings {
                    login: sentinel_login,
                    messages: OF_SENTINELS,
                    ..connections.clone()
                };
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

    /// A connection on which messages are received: to the server that serves all keys; in a cluster to any node, which
    /// passes them on.
    pub(super) fn subscriber(&self) -> Arc<Connection> {
        self.connection(&ConnectionSettings { messages: MESSAGES, ..self.connections.clone() })
    }

    fn connection(&self, settings: &ConnectionSettings) -> Arc<Connection> {
        Connection::new(
            settings,
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
                let connection = self.connection(&self.connections);
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use uuid::Uuid;

    use super::super::connection::tests::unused_settings;
    use super::*;
    use crate::backend::{Kind, Resource};

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
