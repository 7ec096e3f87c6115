//! A cluster: which node serves which slot, a connection per node, and a transport per slot.
//!
//! A call concerns one slot, and names all of its keys. So a node executes all of it or nothing: it answers MOVED if another node
//! serves the slot, and while the slot is moved, ASK if that has all the keys, and TRYAGAIN if each has some. The first two are followed;
//! after the third the call is repeated until the slot has been moved or the time is up. (Client libraries follow them as well,
//! but not for scripts of every kind, and not all of them recover from an ASK.)
//!
//! What the nodes are is asked again when a node answers MOVED, and while one of them cannot be reached.

use std::collections::HashMap;
use std::fmt;
use std::future::pending;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, ready, select_all, try_join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::{Connection, ConnectionSettings, Timeouts, command};
use super::keys::SLOTS;
use super::link::{CallError, Link};
use super::notifications::Notifications;
use super::route::Route;
use super::target::Server;
use super::transport::{Again, Place, RETRY, Transport};
use super::value::Value;
use crate::backend::BackendError;
use crate::sync::Mutex;

/// The pause before what the nodes are is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// Which node serves which slot.
#[derive(Debug)]
pub(super) struct Slots {
    nodes: watch::Sender<Arc<Map>>,
    /// The nodes of the URL, which are asked if no other node can be reached.
    seeds: Vec<Server>,
    /// Notified when what is known is out of date.
    stale: Notify,
    /// Notified when another node is connected to.
    grown: Notify,
    connections: ConnectionSettings,
    /// Counts the attempts to connect to any node.
    attempts: Mutex<usize>,
}

/// The primaries, and by slot, the index of the one that serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    primaries: Vec<Server>,
    by_slot: Vec<Option<u16>>,
}

impl Map {
    /// Reads an answer to CLUSTER SLOTS, which was given by `node`. `None` if it is none.
    fn read(answer: &Value, node: &Server) -> Option<Self> {
        let mut map = Self { primaries: Vec::new(), by_slot: vec![None; usize::from(SLOTS)] };
        for range in answer.as_list() {
            let [first, last, primary, ..] = range.as_list() else { return None };
            let [host, port, ..] = primary.as_list() else { return None };
            let primary = address(host.as_str().unwrap_or_default(), port.as_u64()?, node)?;
            let index = map.index_of(primary);
            let (first, last) =
                (usize::try_from(first.as_u64()?).ok()?, usize::try_from(last.as_u64()?).ok()?);
            map.by_slot.get_mut(first..=last)?.fill(Some(index));
        }
        (!map.primaries.is_empty()).then_some(map)
    }

    fn index_of(&mut self, primary: Server) -> u16 {
        let known = self.primaries.iter().position(|known| *known == primary);
        let index = known.unwrap_or_else(|| {
            self.primaries.push(primary);
            self.primaries.len() - 1
        });
        // There are not more primaries than slots.
        u16::try_from(index).unwrap_or_default()
    }

    /// The node that serves a slot; if none does, another one, which says so.
    fn node(&self, slot: u16) -> Option<&Server> {
        let index = self.by_slot.get(usize::from(slot)).copied().flatten();
        self.primaries.get(usize::from(index.unwrap_or_default()))
    }
}

/// An address in an answer of `node`, which may leave out its own host.
fn address(host: &str, port: u64, node: &Server) -> Option<Server> {
    let host = match (host, node) {
        ("" | "?", Server::Tcp { host, .. }) => host.clone(),
        ("" | "?", Server::Unix(_)) => return None,
        (host, _) => host.to_owned(),
    };
    Some(Server::Tcp { host, port: u16::try_from(port).ok()? })
}

impl Slots {
    pub(super) fn new(seeds: Vec<Server>, connections: ConnectionSettings) -> Arc<Self> {
        Arc::new(Self {
            nodes: watch::Sender::default(),
            seeds,
            stale: Notify::new(),
            grown: Notify::new(),
            connections,
            attempts: Mutex::default(),
        })
    }

    const fn timeouts(&self) -> Timeouts {
        self.connections.timeouts
    }

    /// Whether it is known which node serves which slot.
    pub(super) fn are_known(&self) -> bool {
        !self.nodes.borrow().primaries.is_empty()
    }

    /// One node after another.
    pub(super) fn any_node(&self) -> Result<Server, CallError> {
        let map = Arc::clone(&self.nodes.borrow());
        let nodes = if map.primaries.is_empty() { &self.seeds } else { &map.primaries };
        let mut attempts = self.attempts.lock();
        *attempts += 1;
        let node = nodes.get(*attempts % nodes.len().max(1));
        node.cloned().ok_or_else(|| CallError::NotSent("no node is known".to_owned()))
    }

    /// Asks the nodes for the first time.
    pub(super) async fn find(&self) -> Result<(), BackendError> {
        let mut failure = CallError::NotSent("the URL names no node".to_owned());
        for seed in &self.seeds {
            match self.ask_node(seed).await {
                Ok(map) => {
                    self.nodes.send_replace(Arc::new(map));
                    return Ok(());
                }
                Err(error) => failure = error,
            }
        }
        match failure {
            CallError::Answer(_) => Err(BackendError::Refused { source: failure.into() }),
            _ => Err(BackendError::NotSent { source: failure.into() }),
        }
    }

    async fn ask_node(&self, node: &Server) -> Result<Map, CallError> {
        let link = self.connections.open(node).await?;
        let map = self.ask(&*link, node).await;
        link.abort();
        map
    }

    async fn ask(&self, link: &dyn Link, node: &Server) -> Result<Map, CallError> {
        let answer = timeout(self.timeouts().reply, command(link, &["CLUSTER", "SLOTS"])).await;
        let answer = answer.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string())))?;
        Map::read(&answer, node).ok_or_else(|| CallError::Answer(format!("{node} knows of no slots")))
    }

    /// A node has said that another one serves this slot.
    fn moved(&self, slot: u16, to: Server) {
        self.nodes.send_if_modified(|map| {
            let mut moved = Map::clone(map);
            let index = moved.index_of(to);
            let Some(at) = moved.by_slot.get_mut(usize::from(slot)) else { return false };
            *at = Some(index);
            let is_new = moved != **map;
            *map = Arc::new(moved);
            is_new
        });
        self.stale.notify_one();
    }

    /// Asks again whenever what is known is out of date, or a node cannot be reached, until `closed`.
    pub(super) async fn stay_up_to_date(self: Arc<Self>, sides: Vec<Arc<Nodes>>, closed: CancellationToken) {
        loop {
            let lost = select_all(sides.iter().map(|nodes| Box::pin(nodes.until_one_is_lost())));
            tokio::select! {
                () = closed.cancelled() => return,
                () = self.grown.notified() => continue,
                () = self.stale.notified() => {}
                _ = lost => {}
            }
            if let Some(map) = self.ask_any(&sides).await {
                self.nodes.send_if_modified(|known| {
                    let is_new = **known != map;
                    *known = Arc::new(map);
                    is_new
                });
                for nodes in &sides {
                    nodes.adopt_map();
                }
            }
            tokio::select! {
                () = closed.cancelled() => return,
                () = sleep(PAUSE) => {}
            }
        }
    }

    /// Asks all nodes that are connected, of which some may hang, and takes the first answer; if there is none, asks those of the
    /// URL.
    async fn ask_any(&self, sides: &[Arc<Nodes>]) -> Option<Map> {
        let connected = sides.iter().flat_map(|nodes| nodes.connections());
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
                Ok(None) => tracing::debug!("a node knows of no slots"),
                Err(error) => tracing::debug!(%error, "a node does not say which slots there are"),
            }
        }
        for seed in &self.seeds {
            match self.ask_node(seed).await {
                Ok(map) => return Some(map),
                Err(error) => tracing::debug!(server = %seed, %error, "the node cannot be asked"),
            }
        }
        None
    }
}

/// Connections to the nodes, and the transports of the slots.
#[derive(Debug)]
pub(super) struct Nodes {
    slots: Arc<Slots>,
    notifications: Arc<Notifications>,
    closed: CancellationToken,
    open: Mutex<Open>,
    transports: Mutex<HashMap<u16, Arc<Transport>>>,
    this: Weak<Self>,
}

#[derive(Debug)]
struct Open {
    /// Where their tasks run, once that is known.
    runtime: Option<Handle>,
    /// Each is closed when it is taken out.
    connections: HashMap<Server, (Arc<Connection>, DropGuard)>,
    drivers: Vec<JoinHandle<()>>,
}

impl Nodes {
    /// Connects to nodes when they are needed, from the runtime of `connect` or `revive`.
    pub(super) fn new(
        slots: Arc<Slots>,
        notifications: Arc<Notifications>,
        closed: CancellationToken,
    ) -> Arc<Self> {
        let open = Open { runtime: None, connections: HashMap::new(), drivers: Vec::new() };
        Arc::new_cyclic(|this| Self {
            slots,
            notifications,
            closed,
            open: Mutex::new(open),
            transports: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    /// Connects to all primaries, and waits until that is done.
    pub(super) async fn connect(&self) -> Result<(), BackendError> {
        self.open.lock().runtime = Some(Handle::current());
        if !self.slots.are_known() {
            self.slots.find().await?;
        }
        try_join_all(self.to_primaries().iter().map(|connection| connection.link())).await?;
        Ok(())
    }

    /// Connects to all primaries as soon as a node says which they are. Until then the nodes of the URL are disconnected.
    pub(super) async fn connect_when_possible(self: Arc<Self>, closed: CancellationToken) {
        let status = self.slots.connections.statuses.connection();
        let connecting = async {
            while let Err(error) = self.connect().await {
                if self.slots.are_known() {
                    // From here on each connection goes on by itself.
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
    pub(super) fn to_primaries(&self) -> Vec<Arc<Connection>> {
        let map = Arc::clone(&self.slots.nodes.borrow());
        map.primaries.iter().map(|node| self.connection(node)).collect()
    }

    /// Connects to the primaries of a new map, and gives up nodes that are lost and serve nothing any more: a client that has nothing to
    /// do would be disconnected for ever.
    fn adopt_map(&self) {
        let map = Arc::clone(&self.slots.nodes.borrow());
        let mut open = self.open.lock();
        if open.runtime.is_none() {
            return;
        }
        open.connections
            .retain(|node, (connection, _)| map.primaries.contains(node) || connection.is_connected());
        drop(open);
        drop(self.to_primaries());
    }

    /// Sends PING to all primaries.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        try_join_all(self.to_primaries().iter().map(|connection| connection.command(&["PING"]))).await?;
        Ok(())
    }

    /// The connection to a node, which is opened if there is none.
    fn connection(&self, node: &Server) -> Arc<Connection> {
        let mut open = self.open.lock();
        if let Some((connection, _)) = open.connections.get(node) {
            return Arc::clone(connection);
        }
        let connection = Connection::new(&self.slots.connections, Arc::new(ToNode(node.clone())));
        // Those of nodes that serve nothing any more are closed.
        let map = Arc::clone(&self.slots.nodes.borrow());
        open.connections.retain(|node, _| map.primaries.contains(node));
        open.drivers.retain(|driver| !driver.is_finished());
        let closed = self.closed.child_token();
        let runtime = open.runtime.get_or_insert_with(Handle::current);
        let driver = connection.start(runtime, closed.clone());
        open.connections.insert(node.clone(), (Arc::clone(&connection), closed.drop_guard()));
        open.drivers.push(driver);
        drop(open);
        self.slots.grown.notify_one();
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
    pub(super) fn serving(&self, slot: u16) -> Arc<Connection> {
        let map = Arc::clone(&self.slots.nodes.borrow());
        // There is at least one primary in every map that is in use.
        let node = map.node(slot).or(self.slots.seeds.first()).cloned();
        self.connection(&node.unwrap_or(Server::Unix("".into())))
    }

    pub(super) fn transport(&self, slot: u16) -> Arc<Transport> {
        let mut transports = self.transports.lock();
        let new = || {
            let nodes = self.this.upgrade().expect("it is being used");
            let timeouts = nodes.slots.timeouts();
            Transport::at(Arc::new(AtSlot { slot, nodes }), timeouts, Arc::clone(&self.notifications))
        };
        Arc::clone(transports.entry(slot).or_insert_with(new))
    }

    /// A link to the node that serves a slot. Waits for one for as long as an answer may take, and looks elsewhere if another node
    /// serves the slot meanwhile.
    pub(super) async fn link(&self, slot: u16) -> Result<Arc<dyn Link>, CallError> {
        let mut changes = self.slots.nodes.subscribe();
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
        match timeout(self.slots.timeouts().reply, found).await {
            Ok(link) => link,
            Err(_) => Err(self.serving(slot).not_connected()),
        }
    }

    /// What follows from an error: how the call is repeated, if it is a redirection.
    async fn redirected(&self, slot: u16, error: &str) -> Option<Result<Again, CallError>> {
        let mut words = error.split(' ');
        let (word, to) = (words.next()?, words.nth(1));
        match (word, to.and_then(|to| self.parse(to, slot))) {
            ("MOVED", Some(node)) => self.slots.moved(slot, node),
            ("ASK", Some(node)) => return Some(self.connection(&node).link().await.map(Again::Asking)),
            ("TRYAGAIN" | "CLUSTERDOWN", _) => {
                self.slots.stale.notify_one();
                sleep(RETRY).await;
            }
            _ => return None,
        }
        Some(Ok(Again::There))
    }

    /// The address in a redirection.
    fn parse(&self, to: &str, slot: u16) -> Option<Server> {
        let (host, port) = to.rsplit_once(':')?;
        let map = Arc::clone(&self.slots.nodes.borrow());
        address(host, port.parse().ok()?, map.node(slot).or(self.slots.seeds.first())?)
    }

    /// Completes when a node that serves slots is not connected, of those that have been needed.
    async fn until_one_is_lost(&self) {
        let map = Arc::clone(&self.slots.nodes.borrow());
        let mut connections = self.connections();
        connections.retain(|(node, _)| map.primaries.contains(node));
        if connections.is_empty() {
            pending().await
        } else {
            select_all(connections.iter().map(|(_, connection)| Box::pin(connection.until_lost()))).await;
        }
    }

    /// Whether the runtime has ended on which one of them lived.
    pub(super) fn have_ended(&self) -> bool {
        let open = self.open.lock();
        open.runtime.is_none() || open.connections.values().any(|(connection, _)| connection.has_ended())
    }

    /// Connects again from the current runtime.
    pub(super) async fn revive(&self) -> Result<(), BackendError> {
        if !self.slots.are_known() {
            self.slots.find().await?;
        }
        let mut open = self.open.lock();
        open.runtime = Some(Handle::current());
        open.drivers.retain(|driver| !driver.is_finished());
        // They are made again when they are needed.
        open.connections.retain(|_, (connection, _)| !connection.has_ended());
        Ok(())
    }

    /// The tasks that keep the connections until `closed`.
    pub(super) fn take_drivers(&self) -> Vec<JoinHandle<()>> {
        mem::take(&mut self.open.lock().drivers)
    }
}

/// The calls that concern a slot.
#[derive(Debug)]
struct AtSlot {
    slot: u16,
    nodes: Arc<Nodes>,
}

impl Place for AtSlot {
    fn slot(&self) -> Option<u16> {
        Some(self.slot)
    }

    fn connection(&self) -> Arc<Connection> {
        self.nodes.serving(self.slot)
    }

    fn link(&self) -> BoxFuture<'_, Result<Arc<dyn Link>, CallError>> {
        self.nodes.link(self.slot).boxed()
    }

    fn redirected<'a>(&'a self, error: &'a str) -> BoxFuture<'a, Option<Result<Again, CallError>>> {
        self.nodes.redirected(self.slot, error).boxed()
    }
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

/// To any node.
#[derive(Debug)]
pub(super) struct ToAnyNode(pub(super) Arc<Slots>);

impl Route for ToAnyNode {
    fn server(&self) -> BoxFuture<'_, Result<Server, CallError>> {
        ready(self.0.any_node()).boxed()
    }

    fn check<'a>(&'a self, _: &'a dyn Link) -> BoxFuture<'a, Result<(), CallError>> {
        ready(Ok(())).boxed()
    }
}

impl fmt::Display for ToAnyNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any node")
    }
}
