//! The connections to the nodes.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all, ready, select_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::slots::{Map, Slots, address};
use crate::backend::BackendError;
use crate::backend::redis::connection::Connection;
use crate::backend::redis::link::{CallError, Link};
use crate::backend::redis::route::Route;
use crate::backend::redis::target::Server;
use crate::backend::redis::transport::{Again, RETRY};
use crate::home::Home;

/// The pause before the list of nodes is requested again.
const PAUSE: Duration = Duration::from_millis(100);

/// How long the first connections to other primaries may take once one is connected.
const PATIENCE: Duration = Duration::from_millis(250);

/// Connections to the nodes.
#[derive(Debug)]
pub(in super::super) struct Nodes {
    slots: Arc<Slots>,
    /// Where their tasks run.
    home: Arc<Home>,
    closed: CancellationToken,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Each is closed when it is taken out.
    connections: HashMap<Server, (Arc<Connection>, DropGuard)>,
    drivers: Vec<JoinHandle<()>>,
}

impl Nodes {
    /// Connects to nodes when they are needed, from where the client lives.
    pub(in super::super) fn new(slots: Arc<Slots>, home: Arc<Home>, closed: CancellationToken) -> Arc<Self> {
        Arc::new(Self { slots, home, closed, open: Mutex::default() })
    }

    pub(super) const fn home(&self) -> &Arc<Home> {
        &self.home
    }

    pub(in super::super) fn reply_timeout(&self) -> Duration {
        self.slots.connections.timeouts.reply
    }

    /// Connects to all primaries, and waits until one of them answers. The others have a moment to follow; those that
    /// take longer are connected later, by their own tasks.
    pub(in super::super) async fn connect(&self) -> Result<(), BackendError> {
        if !self.slots.are_known() {
            self.slots.find().await?;
        }
        let primaries = self.to_primaries();
        let mut links: FuturesUnordered<_> = primaries.iter().map(|connection| connection.link()).collect();
        let mut failure = None;
        loop {
            match links.next().await {
                Some(Ok(_)) => break,
                Some(Err(error)) => failure = Some(error),
                None => return failure.map_or(Ok(()), |error| Err(error.into())),
            }
        }
        let others = async { while links.next().await.is_some() {} };
        if timeout(PATIENCE, others).await.is_err() {
            tracing::debug!("some of the primaries do not answer yet; they follow in the background");
        }
        Ok(())
    }

    /// Connects to all primaries as soon as a node says which they are. Until then the nodes of the URL are
    /// disconnected.
    pub(in super::super) async fn connect_when_possible(self: Arc<Self>, closed: CancellationToken) {
        let status = self.slots.connections.statuses.connection();
        let connecting = async {
            while let Err(error) = self.connect().await {
                if self.slots.are_known() {
                    // From here on, each connection runs by itself.
                    return;
                }
                let seed = self.slots.seeds.first().map(Server::to_string).unwrap_or_default();
                status.disconnected(&seed, error.to_string());
                sleep(PAUSE).await;
            }
        };
        closed.run_until_cancelled(connecting).await;
    }

    /// The connections to all primaries.
    pub(in super::super) fn to_primaries(&self) -> Vec<Arc<Connection>> {
        let map = self.slots.map();
        map.primaries.iter().map(|node| self.connection(node)).collect()
    }

    /// Connects to the primaries of a new map, and gives up nodes that are lost and no longer serve slots: an idle
    /// client would otherwise be disconnected forever.
    fn adopt_map(&self) {
        let map = self.slots.map();
        if self.home.runtime().is_none() {
            return;
        }
        let mut open = self.open.lock();
        open.connections
            .retain(|node, (connection, _)| map.primaries.contains(node) || connection.is_connected());
        drop(open);
        drop(self.to_primaries());
    }

    /// Sends PING to all primaries. The error names those that have not answered.
    pub(in super::super) async fn ping(&self) -> Result<(), BackendError> {
        let primaries = self.to_primaries();
        let answers = join_all(primaries.iter().map(|connection| connection.command(&["PING"]))).await;
        let failed = primaries.iter().zip(answers).filter_map(|(connection, answer)| {
            answer.err().map(|error| format!("{}: {error}", connection.address()))
        });
        let failed: Vec<_> = failed.collect();
        if failed.is_empty() {
            Ok(())
        } else {
            Err(BackendError::Unanswered { source: failed.join("; ").into() })
        }
    }

    /// The connection to a node, which is opened if there is none.
    fn connection(&self, node: &Server) -> Arc<Connection> {
        let mut open = self.open.lock();
        if let Some((connection, _)) = open.connections.get(node) {
            return Arc::clone(connection);
        }
        let connection = Connection::new(&self.slots.connections, Arc::new(ToNode(node.clone())));
        // Until they are connected again, calls fail.
        let Some(runtime) = self.home.runtime() else { return connection };
        // Those of nodes that no longer serve slots are closed.
        let map = self.slots.map();
        open.connections.retain(|node, _| map.primaries.contains(node));
        open.drivers.retain(|driver| !driver.is_finished());
        let closed = self.closed.child_token();
        let driver = connection.start(&runtime, closed.clone());
        open.connections.insert(node.clone(), (Arc::clone(&connection), closed.drop_guard()));
        open.drivers.push(driver);
        drop(open);
        self.slots.watch_another();
        connection
    }

    fn connections(&self) -> Vec<(Server, Arc<Connection>)> {
        let open = self.open.lock();
        open.connections
            .iter()
            .map(|(node, (connection, _))| (node.clone(), Arc::clone(connection)))
            .collect()
    }

    /// The connection to the node that serves a slot.
    pub(in super::super) fn serving(&self, slot: u16) -> Arc<Connection> {
        let map = self.slots.map();
        // There is at least one primary in every map that is in use.
        let node = map.node(slot).or(self.slots.seeds.first()).cloned();
        self.connection(&node.unwrap_or(Server::Unix("".into())))
    }

    /// A link to the node that serves a slot. Waits for one for as long as an answer may take, and looks elsewhere if
    /// another node serves the slot meanwhile.
    pub(in super::super) async fn link(&self, slot: u16) -> Result<Arc<dyn Link>, CallError> {
        let mut changes = self.slots.changes();
        let found = async {
            loop {
                changes.mark_unchanged();
                let connection = self.serving(slot);
                tokio::select! {
                    biased;
                    link = connection.link() => return link,
                    // The sender exists as long as this.
                    _ = changes.changed() => {}
                }
            }
        };
        match timeout(self.reply_timeout(), found).await {
            Ok(link) => link,
            Err(_) => Err(self.serving(slot).not_connected()),
        }
    }

    /// Has the list of nodes requested again: perhaps another node serves the slots of one that does not answer.
    pub(super) fn ask_soon(&self) {
        self.slots.ask_soon();
    }

    /// What follows from an error: how the call is repeated, if it is a redirection.
    pub(super) async fn redirected(&self, slot: u16, error: &str) -> Option<Result<Again, CallError>> {
        let mut words = error.split(' ');
        let (word, to) = (words.next()?, words.nth(1));
        match (word, to.and_then(|to| self.parse(to, slot))) {
            ("MOVED", Some(node)) => self.slots.moved(slot, node),
            ("ASK", Some(node)) => return Some(self.connection(&node).link().await.map(Again::Asking)),
            ("TRYAGAIN" | "CLUSTERDOWN", _) => {
                self.slots.ask_soon();
                sleep(RETRY).await;
            }
            _ => return None,
        }
        Some(Ok(Again::There))
    }

    /// The address in a redirection.
    fn parse(&self, to: &str, slot: u16) -> Option<Server> {
        let (host, port) = to.rsplit_once(':')?;
        let map = self.slots.map();
        address(host, port.parse().ok()?, map.node(slot).or(self.slots.seeds.first())?)
    }

    /// Completes when a node that serves slots is not connected, of those that have been needed. Those whose runtime
    /// has ended are connected again by the move.
    async fn until_one_is_lost(&self) {
        let map = self.slots.map();
        let mut connections = self.connections();
        connections.retain(|(node, connection)| map.primaries.contains(node) && !connection.has_ended());
        if connections.is_empty() {
            pending().await
        } else {
            select_all(connections.iter().map(|(_, connection)| connection.until_lost().boxed())).await;
        }
    }

    /// Opens all connections again from `runtime`.
    pub(in super::super) fn restart(&self, runtime: &Handle) {
        let mut open = self.open.lock();
        let before = mem::take(&mut open.drivers);
        let Open { connections, drivers } = &mut *open;
        for (connection, until) in connections.values_mut() {
            let closed = self.closed.child_token();
            drivers.push(connection.start(runtime, closed.clone()));
            *until = closed.drop_guard();
        }
        drop(open);
        before.iter().for_each(JoinHandle::abort);
    }

    /// The tasks that keep the connections until `closed`.
    pub(in super::super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        mem::take(&mut self.open.lock().drivers)
    }
}

/// Asks again whenever what is known is out of date, or a node cannot be reached, until `closed`. `node_sets` are all
/// connections.
pub(in super::super) async fn stay_up_to_date(
    slots: Arc<Slots>,
    node_sets: Vec<Arc<Nodes>>,
    closed: CancellationToken,
) {
    loop {
        let lost = select_all(node_sets.iter().map(|nodes| nodes.until_one_is_lost().boxed()));
        tokio::select! {
            () = closed.cancelled() => return,
            () = slots.another_to_watch() => continue,
            () = slots.until_stale() => {}
            _ = lost => {}
        }
        if let Some(map) = ask_any(&slots, &node_sets).await {
            slots.adopt(map);
            for nodes in &node_sets {
                nodes.adopt_map();
            }
        }
        tokio::select! {
            () = closed.cancelled() => return,
            () = sleep(PAUSE) => {}
        }
    }
}

/// Asks all nodes that are connected, of which some may hang, and takes the first answer; if there is none, asks those
/// of the URL.
async fn ask_any(slots: &Slots, node_sets: &[Arc<Nodes>]) -> Option<Map> {
    let connected = node_sets.iter().flat_map(|nodes| nodes.connections());
    let connected = connected.filter(|(_, connection)| connection.is_connected());
    let mut answers: FuturesUnordered<_> = connected
        .map(|(server, connection)| async move {
            let answer = connection.command(&["CLUSTER", "SLOTS"]).await;
            answer.map(|answer| Map::read(&answer, &server))
        })
        .collect();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Some(map)) => return Some(map),
            Ok(None) => tracing::debug!("a node knows no slots"),
            Err(error) => tracing::debug!(%error, "a node did not return its slots"),
        }
    }
    slots.ask_seeds().await.map_err(|error| tracing::debug!(%error, "no node in the URL can be reached")).ok()
}

/// Always to this node.
#[derive(Debug)]
struct ToNode(Server);

impl Route for ToNode {
    fn server(&self) -> BoxFuture<'_, Result<Server, CallError>> {
        ready(Ok(self.0.clone())).boxed()
    }

    fn check<'a>(&'a self, _: &'a dyn Link) -> BoxFuture<'a, Result<(), CallError>> {
        ready(Ok(())).boxed()
    }
}

impl fmt::Display for ToNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
