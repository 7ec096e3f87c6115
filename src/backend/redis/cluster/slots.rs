//! Which node serves which slot.

use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::backend::redis::connection::ConnectionSettings;
use crate::backend::redis::keys::SLOTS;
use crate::backend::redis::link::Value;
use crate::backend::redis::link::{CallError, Link, command};
use crate::backend::redis::route::Route;
use crate::backend::redis::target::Server;
use crate::backend::{BackendError, dial};

/// Which node serves which slot.
#[derive(Debug)]
pub(in super::super) struct Slots {
    nodes: watch::Sender<Arc<Map>>,
    /// The nodes of the URL, which are asked if no other node can be reached.
    pub(super) seeds: Vec<Server>,
    /// Notified when what is known is out of date.
    stale: Notify,
    /// Notified when another node is connected to.
    grown: Notify,
    pub(super) connections: ConnectionSettings,
    /// Counts the attempts to connect to any node.
    attempts: Mutex<usize>,
}

/// The primaries, and by slot, the index of the one that serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Map {
    pub(super) primaries: Vec<Server>,
    by_slot: Vec<Option<u16>>,
}

impl Map {
    /// Reads an answer to CLUSTER SLOTS, which was given by `node`. `None` if it is none.
    pub(in super::super) fn read(answer: &Value, node: &Server) -> Option<Self> {
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

    /// The node that serves a slot; if none does, another one, which will say so.
    pub(in super::super) fn node(&self, slot: u16) -> Option<&Server> {
        let index = self.by_slot.get(usize::from(slot)).copied().flatten();
        self.primaries.get(usize::from(index.unwrap_or_default()))
    }
}

/// An address in an answer of `node`, which may leave out its own host.
pub(super) fn address(host: &str, port: u64, node: &Server) -> Option<Server> {
    let host = match (host, node) {
        ("" | "?", Server::Tcp { host, .. }) => host.clone(),
        ("" | "?", Server::Unix(_)) => return None,
        (host, _) => host.to_owned(),
    };
    Some(Server::Tcp { host, port: u16::try_from(port).ok()? })
}

impl Slots {
    pub(in super::super) fn new(seeds: Vec<Server>, connections: ConnectionSettings) -> Arc<Self> {
        Arc::new(Self {
            nodes: watch::Sender::default(),
            seeds,
            stale: Notify::new(),
            grown: Notify::new(),
            connections,
            attempts: Mutex::default(),
        })
    }

    /// Whether it is known which node serves which slot.
    pub(in super::super) fn are_known(&self) -> bool {
        !self.nodes.borrow().primaries.is_empty()
    }

    /// The nodes to connect to if any will do: the primaries, each attempt beginning with the next one, then the other
    /// nodes of the URL.
    fn any_nodes(&self) -> Vec<Server> {
        let map = self.map();
        let mut nodes = map.primaries.clone();
        nodes.extend(self.seeds.iter().filter(|seed| !map.primaries.contains(seed)).cloned());
        let mut attempts = self.attempts.lock();
        *attempts += 1;
        let rotated = if map.primaries.is_empty() { nodes.len() } else { map.primaries.len() };
        nodes[..rotated].rotate_left(*attempts % rotated.max(1));
        nodes
    }

    /// A node that answers, whichever it is.
    async fn any_node(&self) -> Result<Server, CallError> {
        let attempt = |node: Server| async move {
            let link = self.connections.open(&node).await?;
            link.abort();
            Ok(node)
        };
        self.race(self.any_nodes(), attempt).await
    }

    /// The first success of several nodes, of which some may hang. Otherwise, why each has failed.
    async fn race<T, F>(
        &self,
        nodes: Vec<Server>,
        attempt: impl Fn(Server) -> F + Send + Sync,
    ) -> Result<T, CallError>
    where
        T: Send,
        F: Future<Output = Result<T, CallError>> + Send,
    {
        let names: Vec<_> = nodes.iter().map(Server::to_string).collect();
        let raced = dial::race(nodes, self.connections.timeouts.connect, attempt).await;
        raced.map_err(|failures| all_failed(&names, &failures))
    }

    /// Asks the nodes for the first time.
    pub(super) async fn find(&self) -> Result<(), BackendError> {
        match self.ask_seeds().await {
            Ok(map) => {
                self.adopt(map);
                Ok(())
            }
            Err(failure @ CallError::Answer(_)) => Err(BackendError::Refused { source: failure.into() }),
            Err(failure) => Err(BackendError::NotSent { source: failure.into() }),
        }
    }

    /// What the first node of the URL says that answers.
    pub(super) async fn ask_seeds(&self) -> Result<Map, CallError> {
        self.race(self.seeds.clone(), |seed| self.ask_node(seed)).await
    }

    async fn ask_node(&self, node: Server) -> Result<Map, CallError> {
        let link = self.connections.open(&node).await?;
        let map = self.ask(&*link, &node).await;
        link.abort();
        map
    }

    async fn ask(&self, link: &dyn Link, node: &Server) -> Result<Map, CallError> {
        let answer = timeout(self.connections.timeouts.reply, command(link, &["CLUSTER", "SLOTS"])).await;
        let answer = answer.unwrap_or_else(|late| Err(CallError::Timeout(late.to_string())))?;
        Map::read(&answer, node).ok_or_else(|| CallError::Answer(format!("{node} knows no slots")))
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.nodes.borrow())
    }

    /// Sees every later map.
    pub(super) fn changes(&self) -> watch::Receiver<Arc<Map>> {
        self.nodes.subscribe()
    }

    pub(super) fn adopt(&self, map: Map) {
        self.nodes.send_if_modified(|known| {
            let is_new = **known != map;
            *known = Arc::new(map);
            is_new
        });
    }

    /// A node has said that another one serves this slot.
    pub(super) fn moved(&self, slot: u16, to: Server) {
        self.nodes.send_if_modified(|known| {
            let mut map = Map::clone(known);
            let index = map.index_of(to);
            let Some(at) = map.by_slot.get_mut(usize::from(slot)) else { return false };
            *at = Some(index);
            let is_new = map != **known;
            *known = Arc::new(map);
            is_new
        });
        self.ask_soon();
    }

    /// What is known is out of date.
    pub(super) fn ask_soon(&self) {
        self.stale.notify_one();
    }

    pub(super) async fn until_stale(&self) {
        self.stale.notified().await;
    }

    /// Another node is connected to, which may be lost from now on.
    pub(super) fn watch_another(&self) {
        self.grown.notify_one();
    }

    pub(super) async fn another_to_watch(&self) {
        self.grown.notified().await;
    }
}

/// Why none of several nodes could be used: an answer says more than silence.
fn all_failed(names: &[String], failures: &[Option<CallError>]) -> CallError {
    let each = names.iter().zip(failures).map(|(name, failure)| match failure {
        Some(failure) => format!("{name}: {failure}"),
        None => format!("{name}: no answer"),
    });
    let text = each.collect::<Vec<_>>().join("; ");
    if text.is_empty() {
        return CallError::NotSent("no node is known".to_owned());
    }
    match failures.iter().flatten().find(|failure| matches!(failure, CallError::Answer(_))) {
        // Its first word says what kind of error it is.
        Some(CallError::Answer(answer)) if failures.len() > 1 => {
            CallError::Answer(format!("{answer} ({text})"))
        }
        Some(answer) => answer.clone(),
        None => CallError::NotSent(text),
    }
}

/// To any node.
#[derive(Debug)]
pub(in super::super) struct ToAnyNode(pub(in super::super) Arc<Slots>);

impl Route for ToAnyNode {
    fn server(&self) -> BoxFuture<'_, Result<Server, CallError>> {
        self.0.any_node().boxed()
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
