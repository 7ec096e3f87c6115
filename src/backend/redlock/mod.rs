//! Redlock: one lock on a majority of several independent servers.
//!
//! | file | content |
//! |---|---|
//! | `url` | parsing URLs |
//! | `node` | what a node must do beyond the contract; nodes that are connected in the background |
//! | `quorum` | the nodes of one client, and what its operations have in common |
//! | `round` | one operation on all nodes at once |
//! | `votes` | what follows from the nodes' answers (no I/O, no clock) |
//! | `leases` | what this client knows about each of its leases on each node (no I/O) |
//! | `overtaken` | requests that a release may have overtaken (no I/O) |
//! | `state` | the state of the store, from that of its nodes |
//! | `request` | requests, tokens, and what a minority has granted |
//! | `renew`, `release`, `events`, `inspect`, `list` | the other operations |

mod events;
mod inspect;
mod leases;
mod list;
mod node;
mod overtaken;
mod quorum;
mod release;
mod renew;
mod request;
mod round;
mod state;
#[cfg(test)]
mod tests;
mod url;
mod votes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use tokio::time::timeout;
use uuid::Uuid;

use super::{
    Answer, Answered, Backend, BackendError, Capabilities, Detail, Event, Finding, Inspection, Kind, LeaseId,
    LeaseRef, Limit, Listed, RedisBuilder, Released, Renew, Request, Resource, StoreState, Wakes,
};
use crate::error::Error;
use crate::home::Home;
pub(in crate::backend) use node::Node;
use node::NodeHandle;
use quorum::Quorum;

/// How many tokens a grant reserves: one for each hold that its lease may have within a client.
const TOKENS_PER_GRANT: u32 = 16;
/// How long to keep releasing a lease whose TTL is no longer known.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);
/// As many as fit into a set of bits, and far more than are useful.
const MAX_NODES: usize = 31;
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// Why there are no semaphores.
const NO_SEMAPHORES: &str = "majorities exclude a second holder, but they do not count permits: with a limit of 2 on three servers \
    A, B and C, three holders may have the majorities {A,B}, {B,C} and {A,C}, and each server has admitted only two";

/// Locks on a majority of N independent servers, by the Redlock algorithm: they stay available while a minority is
/// down.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::redlock::RedlockBackend;
///
/// let backend = RedlockBackend::builder("redlock://10.0.0.7,10.0.0.8,10.0.0.9")?
///     .connect_lazy()?; // or `connect().await?`
/// let client = Client::with_backend(Arc::new(backend));
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// **What it promises.** A request is sent to all nodes at once. It is granted if a majority grants it while there is
/// time left, and its lease is measured from before the request was sent; the nodes keep it 1% and 2 ms longer than the
/// client trusts it, because their clocks differ. If no majority can grant it any more, a request that waits is queued,
/// and any other is refused: then its lease is released on all nodes, including those that refused it or did not
/// answer. A lease is renewed, and released, by a majority; losing it on a minority does not end it. In a renewal,
/// nodes that have lost their data or could not be reached before get the lease again. A node that is slow, or hangs,
/// delays nothing: every decision is made as soon as a majority has answered.
///
/// **Fencing tokens.** Before a guard is handed out, a majority knows its token and issues only greater ones. Every two
/// majorities have a node in common, so tokens increase even when two clients believe that they hold the lock, which no
/// store can rule out.
///
/// **What it does not promise.**
///
/// * Exclusion depends on the nodes' clocks running at about the same speed. If the clock of a node jumps ahead, it
///   ends its leases early, and if that leaves an earlier holder without a majority, two clients hold the lock until
///   the first one's next renewal. Fencing rejects the late writes of the first one.
/// * A node that crashes and returns without its data has forgotten its leases, with the same result. Nodes should
///   write every change to disk (`appendfsync always`), or be kept from returning before the longest TTL has passed.
/// * Serving requests in order of arrival is only an aim, because each node has its own queue. If requests arrive at
///   the nodes in different orders, none may have a majority; then clients with a minority give it up after a short
///   random time and queue again.
/// * A request that does not wait may be refused if another one is made at the same moment, even though neither gets
///   the lock.
/// * Holds of one owner of a reentrant lock have the same token as long as the nodes have the same holds. If the owner
///   enters from another client, or twice at once, while a hold is known to only some of the nodes, the new hold's
///   token may be greater.
/// * Replicas do not help: a node is one server without failover.
///
/// Semaphores are not supported: majorities cannot count permits.
///
/// Any number of nodes from 1 to 31 works; an even number tolerates no more failures than one node fewer.
#[doc(alias = "quorum")]
#[doc(alias = "majority")]
pub struct RedlockBackend {
    quorum: Arc<Quorum>,
}

/// Makes a [`RedlockBackend`]: see [`RedlockBackend::builder`].
///
/// | setting | default | why |
/// |---|---|---|
/// | [`node_timeout`](Self::node_timeout) | 100 ms | a node that takes longer counts as failed, which must not use up the lease |
///
/// ```
/// use std::time::Duration;
/// use leasehold::redlock::RedlockBackend;
///
/// let backend = RedlockBackend::builder("redlock://10.0.0.7,10.0.0.8,10.0.0.9")?
///     .node_timeout(Duration::from_millis(50)) // longer than any usual round trip
///     .connect_lazy()?;
/// # drop(backend);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedlockBuilder {
    nodes: Vec<RedisBuilder>,
    node_timeout: Duration,
}

impl RedlockBuilder {
    pub(crate) const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(100);

    const fn new(nodes: Vec<RedisBuilder>) -> Self {
        Self { nodes, node_timeout: Self::DEFAULT_NODE_TIMEOUT }
    }

    /// How long a node may take to answer a request before it counts as failed. It is never more than a fifth of the
    /// TTL. It should be longer than any usual round trip, and much shorter than the TTL. From 1 ms to 60 s. For
    /// renewals and releases, which are less urgent, it is a fifth of the TTL, 2 s at most, unless this is longer.
    ///
    /// Default: 100 ms.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::redlock::RedlockBackend;
    /// let builder = RedlockBackend::builder("redlock://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .node_timeout(Duration::from_millis(50));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Names the connections to all nodes after a client with this label.
    pub(crate) fn named_after(self, label: Option<&str>) -> Self {
        self.each(|node| node.named_after(label))
    }

    fn each(mut self, change: impl Fn(RedisBuilder) -> RedisBuilder) -> Self {
        self.nodes = self.nodes.into_iter().map(change).collect();
        self
    }

    /// Connects to all nodes, until a majority is connected. The others then have the node timeout to connect; after
    /// that, the client connects to them in the background as soon as they can be reached.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if there are no nodes, more than 31, or two with the same address; or if a timeout
    ///   is out of bounds.
    /// * [`Error::Unsupported`] for clusters and sentinels.
    /// * [`Error::StoreUnavailable`] if no majority can be reached in time: the error names each node and what is wrong
    ///   with it.
    /// * [`Error::StoreRefused`] if a majority refuses this client.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<RedlockBackend, Error> {
        let backend = self.build(|node, store| Ok(NodeHandle::of(node, store)))?;
        backend.first_connect().await?;
        Ok(backend)
    }

    /// Creates a backend that connects to its nodes on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] and [`Error::Unsupported`], as for [`connect`](Self::connect).
    /// [`Error::StoreUnavailable`] if the crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<RedlockBackend, Error> {
        self.build(|node, _| Ok(NodeHandle::with(Arc::new(node.connect_lazy()?))))
    }

    fn build(
        self,
        handle: impl Fn(RedisBuilder, String) -> Result<Arc<NodeHandle>, Error>,
    ) -> Result<RedlockBackend, Error> {
        if self.node_timeout < MIN_TIMEOUT || self.node_timeout > MAX_TIMEOUT {
            let why = format!("{:?} is not between {MIN_TIMEOUT:?} and {MAX_TIMEOUT:?}", self.node_timeout);
            return Err(Error::invalid("node timeout", why));
        }
        if self.nodes.is_empty() || self.nodes.len() > MAX_NODES {
            let why = format!(
                "{} nodes were given; the minimum is 1 and the maximum is {MAX_NODES}",
                self.nodes.len()
            );
            return Err(Error::invalid("nodes", why));
        }
        let (client, home) = (Uuid::new_v4(), Arc::<Home>::default());
        let mut handles = Vec::new();
        for node in self.nodes {
            let store = node.address();
            if handles.iter().any(|handle: &Arc<NodeHandle>| handle.store == store) {
                // It would have two votes.
                return Err(Error::invalid("nodes", format!("{store} is listed twice")));
            }
            handles.push(handle(node.for_node_of(client, Arc::clone(&home)), store)?);
        }
        Ok(RedlockBackend::of(client, home, handles, self.node_timeout))
    }
}

impl RedlockBackend {
    /// Connects to `redlock://`; see [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// As for [`RedlockBuilder::connect`], and [`Error::InvalidArgument`] if the URL cannot be parsed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// Settings for a connection to these servers. Each of them is independent of the others: no replicas, no cluster.
    ///
    /// ```
    /// # use leasehold::redis::RedisBackend;
    /// # use leasehold::redlock::RedlockBackend;
    /// let nodes = ["redis://10.0.0.7", "redis://10.0.0.8", "redis://10.0.0.9"].map(RedisBackend::builder);
    /// let nodes = nodes.into_iter().collect::<Result<Vec<_>, _>>()?; // each with settings of its own
    /// let builder = RedlockBackend::builder_from_nodes(nodes);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn builder_from_nodes(nodes: impl IntoIterator<Item = RedisBuilder>) -> RedlockBuilder {
        RedlockBuilder::new(nodes.into_iter().collect())
    }

    /// Settings for a connection to
    /// `redlock://[[user:]password@]host[:port],host[:port],...[/database][?option=value&...]`. Options are
    /// `node_timeout`, and for each node `connect_timeout`, `reply_timeout` and `poll_interval`, such as
    /// `node_timeout=50ms`.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the URL cannot be parsed.
    /// * [`Error::Unsupported`] if this build does not support its scheme.
    pub fn builder(url: &str) -> Result<RedlockBuilder, Error> {
        url::parse(url)
    }

    fn of(client: Uuid, home: Arc<Home>, nodes: Vec<Arc<NodeHandle>>, node_timeout: Duration) -> Self {
        let stores: Vec<_> = nodes
            .iter()
            .map(|handle| handle.store.split_once("://").map_or(&*handle.store, |it| it.1))
            .collect();
        let store = format!("redlock://{}", stores.join(","));
        let own_thread =
            nodes.iter().all(|handle| handle.node().is_none_or(|node| node.capabilities().own_thread));
        let capabilities = Capabilities {
            kinds: vec![Kind::Mutex, Kind::Reentrant],
            wakes: Wakes::Prompted,
            ordered: false,
            constant_work: false,
            unsupported: Some(NO_SEMAPHORES.to_owned()),
            own_thread,
            // The nodes that have it are known to its client only.
            resumable: false,
            labels: true,
            lists: true,
            ..Capabilities::new(store)
        };
        Self { quorum: Quorum::new(client, home, nodes, node_timeout, capabilities) }
    }

    /// Connects the nodes in the background, and waits until a majority is connected.
    async fn first_connect(&self) -> Result<(), Error> {
        let quorum = &self.quorum;
        quorum.home.settle();
        quorum.connect_in_background();
        let mut tried: FuturesUnordered<_> = quorum.nodes.iter().map(|handle| handle.tried()).collect();
        let (mut connected, mut failed) = (0, 0);
        while connected < quorum.majority() {
            match tried.next().await {
                Some(Ok(())) => connected += 1,
                _ => failed += 1,
            }
            if failed > quorum.nodes.len() - quorum.majority() {
                return Err(self.not_connected());
            }
        }
        let others = async { while tried.next().await.is_some() {} };
        if timeout(quorum.node_timeout, others).await.is_err() {
            tracing::debug!("a majority is connected; the other nodes follow in the background");
        }
        Ok(())
    }

    fn not_connected(&self) -> Error {
        let mut failures = Vec::new();
        for (n, handle) in self.quorum.nodes.iter().enumerate() {
            match handle.take_failure() {
                Some(Error::StoreUnavailable { source, .. } | Error::StoreRefused { source, .. }) => {
                    failures.push((n, source));
                }
                // Wrong for all of them.
                Some(error @ (Error::InvalidArgument { .. } | Error::Unsupported { .. })) => return error,
                Some(error) => failures.push((n, BackendError::NotSent { source: error.into() })),
                None => {}
            }
        }
        let error = self.quorum.no_quorum(failures);
        Error::from_backend(error, "connect", None, &self.quorum.capabilities.store)
    }
}

impl Backend for RedlockBackend {
    fn lease_id(&self) -> LeaseId {
        LeaseId::next(self.quorum.client)
    }

    fn request<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Answer, BackendError>> {
        self.quorum.request(request).boxed()
    }

    fn renew<'a>(&'a self, renewals: &'a [Renew]) -> BoxStream<'a, Answered> {
        self.quorum.renew(renewals)
    }

    fn release<'a>(&'a self, lease: &'a LeaseRef) -> BoxFuture<'a, Result<Released, BackendError>> {
        self.quorum.release(lease).boxed()
    }

    fn release_permits<'a>(
        &'a self,
        lease: &'a LeaseRef,
        keep: u32,
    ) -> BoxFuture<'a, Result<Released, BackendError>> {
        async move {
            // A lock is not divisible: keeping one permit keeps all of it.
            if keep > 0 { Ok(Released::Held) } else { self.quorum.release(lease).await }
        }
        .boxed()
    }

    fn force_release<'a>(&'a self, resource: &'a Resource) -> BoxFuture<'a, Result<bool, BackendError>> {
        self.quorum.force_release(resource).boxed()
    }

    fn set_limit<'a>(
        &'a self,
        _resource: &'a Resource,
        _permits: u32,
        _ttl: Duration,
    ) -> BoxFuture<'a, Result<Limit, BackendError>> {
        async { Err(BackendError::Unsupported { reason: NO_SEMAPHORES.to_owned() }) }.boxed()
    }

    fn inspect<'a>(
        &'a self,
        resource: &'a Resource,
        detail: Detail,
    ) -> BoxFuture<'a, Result<Inspection, BackendError>> {
        self.quorum.inspect(resource, detail).boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Listed, BackendError>> {
        self.quorum.list(prefix)
    }

    fn events(&self) -> BoxStream<'static, Event> {
        self.quorum.events()
    }

    /// Those of each node: the last of a majority to change is the one that counts.
    fn changes(&self, resource: &Resource) -> BoxStream<'static, ()> {
        stream::select_all(self.quorum.nodes.iter().map(|handle| handle.changes_of(resource))).boxed()
    }

    fn home(&self) -> Option<Arc<Home>> {
        Some(Arc::clone(&self.quorum.home))
    }

    fn capabilities(&self) -> &Capabilities {
        &self.quorum.capabilities
    }

    fn state(&self) -> StoreState {
        self.quorum.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.quorum.state_changes()
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        self.quorum.ping().boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<Vec<Finding>, BackendError>> {
        self.quorum.check_all().boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.quorum.close().boxed()
    }
}

impl fmt::Debug for RedlockBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBackend")
            .field("store", &self.quorum.capabilities.store)
            .finish_non_exhaustive()
    }
}

impl Drop for RedlockBackend {
    fn drop(&mut self) {
        // Releases in progress continue; connecting does not.
        self.quorum.closing.close();
    }
}
