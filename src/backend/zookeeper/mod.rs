//! ZooKeeper: one server, or an ensemble.
//!
//! | file | content |
//! |---|---|
//! | `builder`, `url` | public: settings; parsing URLs |
//! | `jute`, `op` | ZooKeeper's protocol: the encoding; requests and replies |
//! | `link`, `session` | connections; the session that outlives them |
//! | `failure` | errors of ZooKeeper in words, and what follows from them |
//! | `names` | the names of nodes |
//! | `clock` | the clock of the server that leads |
//! | `view` | a key as it was read |
//! | `plan` | what is to be written so that a key is as a change has left it |
//! | `exchange` | reading, changing and writing keys |
//! | `places`, `watcher` | the nodes of this client's own leases, and watching them |
//! | `list` | what is held or awaited |
//! | `elections` | watching the records of the elections that this client observes |
//! | `sweep` | records that nobody has used for a day |
//! | `check` | what the servers' user should know about them |
//!
//! In which order changes are carried out is in `backend::records`.
//!
//! Everything runs on the crate's own thread, so leases are kept regardless of what the application's runtimes do.

mod builder;
mod check;
mod clock;
mod elections;
mod exchange;
mod failure;
#[cfg(all(any(test, fuzzing), feature = "all-stores"))]
pub(super) mod fuzzing;
mod jute;
mod link;
mod list;
mod names;
mod op;
mod places;
mod plan;
mod session;
mod sweep;
#[cfg(test)]
mod tests;
mod url;
mod view;
mod watcher;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout};
use uuid::Uuid;

use super::ledger::{Effects, Ledger, Stamp};
use super::ledger_backend::{LedgerBackend, LedgerStore, backend_on_ledger};
use super::observed::Observed;
use super::records::{Failure, Health, Schedule};
use super::{BackendError, Capabilities, Event, Finding, StoreState};
use crate::background;
use crate::error::Error;
use crate::runtime::spawn_on;
use builder::Settings;
use clock::Reading;
use failure::{Code, Malformed};
use op::{ANY, Mode, Op, Reply};
use places::Places;
use session::{Ending, Replies, Session, Signal};
use view::Known;

pub use builder::ZookeeperBuilder;

/// Leases in the nodes of a ZooKeeper server or ensemble.
///
/// ```
/// use std::sync::Arc;
/// use leasehold::Client;
/// use leasehold::zookeeper::ZookeeperBackend;
///
/// let backend = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?
///     .chroot("/team-a/locks")
///     .connect_lazy()?; // or `connect().await?`
/// let client = Client::with_backend(Arc::new(backend));
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// ```
///
/// Each client has one session. See `docs/stores/zookeeper.md` for what this store guarantees and what it does not.
#[doc(alias = "curator")]
pub struct ZookeeperBackend(LedgerBackend<ZookeeperStore>);

backend_on_ledger!(ZookeeperBackend);

/// The nodes of a [`ZookeeperBackend`].
struct ZookeeperStore {
    capabilities: Capabilities,
    shared: Arc<Shared>,
    /// The signals of the session, until the first call takes the receiver.
    signals: Mutex<Option<UnboundedReceiver<Signal>>>,
}

/// What the tasks of a client have in common.
struct Shared {
    settings: Arc<Settings>,
    health: Arc<Health>,
    runtime: Handle,
    session: Session,
    schedule: Schedule<Known>,
    places: Places,
    /// The keys whose holders are observed.
    observed: Arc<Observed>,
    /// The server's clock, and on which connection it was read.
    clock: Mutex<Option<(u64, Reading)>>,
    /// Whether holds will soon be watched that are not yet.
    is_settling: AtomicBool,
    /// Whether nothing is carried out any more.
    ended: watch::Sender<bool>,
}

impl ZookeeperBackend {
    /// Connects to the servers in a URL:
    /// `zookeeper://[user:password@]host[:port][,host...][/chroot][?option=value&...]`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if the URL cannot be parsed; otherwise as for [`ZookeeperBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// A builder for servers, each as `host` or `host:port`. The default port is 2181.
    ///
    /// ```
    /// let builder = leasehold::zookeeper::ZookeeperBackend::builder_from_servers(["10.0.0.7:2181", "10.0.0.8"]);
    /// # drop(builder);
    /// ```
    pub fn builder_from_servers<S: Into<String>>(servers: impl IntoIterator<Item = S>) -> ZookeeperBuilder {
        ZookeeperBuilder::new(servers.into_iter().map(Into::into).collect())
    }

    /// A builder with the servers and the options of a URL.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if it cannot be parsed.
    pub fn builder(url: &str) -> Result<ZookeeperBuilder, Error> {
        url::parse(url)
    }
}

impl ZookeeperStore {
    /// Prepares everything; it is connected when it is needed.
    fn new(settings: Arc<Settings>) -> io::Result<Self> {
        let runtime = background::handle()?;
        let health = Arc::new(Health::new(settings.address.clone()));
        let (session, signals) = Session::new(Arc::clone(&settings), Arc::clone(&health));
        let mut capabilities = Capabilities::new(settings.address.clone());
        // The names of all places are read.
        capabilities.constant_work = false;
        capabilities.lists = true;
        // A hold that is an ephemeral node ends with the session of the client that has made it.
        capabilities.resumable = false;
        let shared = Shared {
            settings,
            health,
            runtime,
            session,
            schedule: Schedule::default(),
            places: Places::default(),
            observed: Arc::default(),
            clock: Mutex::default(),
            is_settling: AtomicBool::new(false),
            ended: watch::Sender::new(false),
        };
        Ok(Self { capabilities, shared: Arc::new(shared), signals: Mutex::new(Some(signals)) })
    }

    /// Connects, unless it has begun to.
    fn start(&self) {
        let Some(signals) = self.signals.lock().take() else { return };
        let shared = &self.shared;
        shared.session.start(&shared.runtime);
        let (hear, heard) = unbounded_channel();
        spawn_on(&shared.runtime, Arc::clone(shared).handle_signals(signals, hear));
        spawn_on(&shared.runtime, Arc::clone(shared).watch_elections(heard));
        spawn_on(&shared.runtime, Arc::clone(shared).carry_out());
    }

    /// Returns when there is a session, and the root exists.
    async fn connected(&self) -> Result<(), BackendError> {
        self.start();
        let shared = Arc::clone(&self.shared);
        let looked = spawn_on(&self.shared.runtime, async move { shared.clock().await });
        let found = looked.await.map_err(|error| BackendError::Unanswered { source: error.into() })?;
        found.map(drop).map_err(|failure| failure.before_storing())
    }

    /// Nothing new is begun, and the session ends when what has begun is done.
    fn stop(&self) {
        self.shared.health.close();
        self.shared.schedule.close();
        self.shared.session.stop_connecting();
        if self.signals.lock().take().is_some() {
            self.shared.session.close(Ending::Session);
            self.shared.ended.send_replace(true);
        }
    }
}

impl LedgerStore for ZookeeperStore {
    fn transact<T: Send + 'static>(
        &self,
        keys: &[Arc<str>],
        change: impl FnMut(usize, &mut Ledger, Stamp) -> (T, Effects) + Send + 'static,
    ) -> impl Future<Output = Result<Vec<T>, BackendError>> + Send {
        self.shared.schedule.transact(keys, change, || self.start())
    }

    fn wakes(&self, client: Uuid) -> BoxStream<'static, Event> {
        let events = self.shared.places.open(client);
        self.start();
        events
    }

    fn changes(&self, key: &Arc<str>) -> BoxStream<'static, ()> {
        self.start();
        self.shared.observed.observe(key)
    }

    fn keys<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<Vec<Arc<str>>, BackendError>> {
        self.start();
        let keys = async move { self.shared.keys(prefix).await.map_err(|failure| failure.before_storing()) };
        stream::once(keys).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn state(&self) -> StoreState {
        self.shared.health.state()
    }

    fn state_changes(&self) -> BoxStream<'static, StoreState> {
        self.shared.health.changes()
    }

    fn was_reached(&self) -> bool {
        self.shared.session.connections() > 0
    }

    /// Asks the server that leads, too.
    async fn ping(&self) -> Result<(), BackendError> {
        self.start();
        let sync = Op::Sync { path: self.shared.settings.root.clone() };
        let answered = self.shared.send_all(vec![sync]).await;
        answered.map(drop).map_err(|failure| failure.before_storing())
    }

    async fn check(&self) -> Result<Vec<Finding>, BackendError> {
        self.start();
        self.shared.findings().await.map_err(|failure| failure.before_storing())
    }

    async fn close(&self) {
        self.stop();
        let limit = (self.shared.settings.connect_timeout + self.shared.settings.reply_timeout) * 2;
        let ended = async {
            // An error is impossible: the sender is here.
            let _ = self.shared.ended.subscribe().wait_for(|ended| *ended).await;
            self.shared.session.ended().await;
        };
        // What hangs ends by its own time limit.
        let _ = timeout(limit, ended).await;
        self.shared.schedule.abandon();
    }
}

impl Shared {
    /// Carries out what is asked for, until nothing will be.
    async fn carry_out(self: Arc<Self>) {
        let (mut rounds, mut next_sweep) = (JoinSet::new(), Instant::now() + sweep::FIRST);
        loop {
            while let Some(round) = self.schedule.take() {
                let shared = Arc::clone(&self);
                rounds.spawn(async move { exchange::carry_out(&shared, round).await });
            }
            if rounds.is_empty() && self.schedule.is_drained() {
                break;
            }
            tokio::select! {
                () = self.schedule.changed() => {}
                Some(_) = rounds.join_next() => {}
                () = sleep_until(next_sweep.into()) => {
                    next_sweep = Instant::now() + sweep::INTERVAL;
                    let shared = Arc::clone(&self);
                    rounds.spawn(async move { shared.sweep().await });
                }
            }
        }
        // Closing a client releases nothing: what it holds or waits for lasts as long as if it had died.
        let ending = if self.places.are_empty() { Ending::Session } else { Ending::Connection };
        self.session.close(ending);
        self.ended.send_replace(true);
    }

    /// Sends requests, and records the server's clock from the replies.
    async fn send_all(&self, ops: Vec<Op>) -> Result<Replies, Failure> {
        let replies = self.session.pipeline(ops).await?;
        let written = replies.replies.iter().rev().find_map(|reply| match reply {
            Ok(Reply::All(all)) => all.iter().rev().find_map(Reply::written),
            Ok(reply) => reply.written(),
            Err(_) => None,
        });
        if let Some(stat) = written {
            let reading = Reading::of(stat, replies.sent, replies.received);
            let mut known = self.clock.lock();
            let older = known.filter(|(connection, _)| *connection == replies.connection);
            *known = Some((replies.connection, reading.or(older.map(|(_, reading)| reading))));
        }
        Ok(replies)
    }

    /// The server's clock. It is read by writing something, unless that was done a moment ago.
    async fn clock(&self) -> Result<Reading, Failure> {
        let (known, connection) = (*self.clock.lock(), self.session.connections());
        let is_good = |reading: &Reading| reading.age() < self.settings.clock_lifetime;
        if let Some((_, reading)) = known.filter(|(of, reading)| *of == connection && is_good(reading)) {
            return Ok(reading);
        }
        let path = names::clock(&self.settings.root);
        let write = || vec![Op::Set { path: path.clone(), data: Vec::new(), version: ANY }];
        let mut replies = self.send_all(write()).await?;
        if matches!(replies.replies.first(), Some(Err(Code::NO_NODE))) {
            self.make_root().await?;
            replies = self.send_all(write()).await?;
        }
        match replies.replies.first() {
            Some(Ok(Reply::Set(stat))) => Ok(Reading::of(*stat, replies.sent, replies.received)),
            Some(Err(code)) => Err(code.failure(&path)),
            _ => Err(Malformed.into()),
        }
    }

    /// Creates the root and what is needed beside the records.
    async fn make_root(&self) -> Result<(), Failure> {
        let root = &self.settings.root;
        let mut paths = vec![names::clock(root)];
        if self.settings.create {
            let ends = root.match_indices('/').map(|(n, _)| n).skip(1).chain([root.len()]);
            paths.splice(0..0, ends.map(|end| root[..end].to_owned()));
        }
        let create = |path| Op::Create { path, data: Vec::new(), mode: Mode::Persistent };
        let replies = self.send_all(paths.iter().cloned().map(create).collect()).await?.replies;
        let mut refused = None;
        for (path, reply) in paths.iter().zip(replies) {
            match reply {
                // A part of the way to the root may exist and belong to others.
                Ok(_) | Err(Code::NODE_EXISTS) => refused = None,
                Err(Code::NO_NODE) if !self.settings.create => {
                    let why = format!("the node {root} does not exist, and `create` is off");
                    return Err(Failure { is_broken: false, ..Failure::refused(why) });
                }
                Err(code) => drop(refused.get_or_insert_with(|| code.failure(path))),
            }
        }
        refused.map_or(Ok(()), |failure| Err(Failure { is_broken: false, ..failure }))
    }
}

impl Drop for ZookeeperStore {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for ZookeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperStore")
            .field("address", &self.shared.settings.address)
            .finish_non_exhaustive()
    }
}
