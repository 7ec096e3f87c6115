//! Redis and Valkey: one server, the primary named by sentinels, or a cluster.
//!
//! | file | content |
//! |---|---|
//! | `keys` | every key, its type and its expiry |
//! | `lua/` | the protocol: one script per operation, which the server runs atomically |
//! | `protocol` | what Rust and Lua must agree on |
//! | `script` | the scripts' text and digests |
//! | `link` | what a client library must provide: one established connection; errors classified by what is known about the execution |
//! | `fred`, `redis_rs` | links of fred, and of redis-rs |
//! | `value` | arguments and answers |
//! | `connection` | a connection: one link after another, until it is closed |
//! | `servers` | the parts of a store: its connections and transports |
//! | `route` | which server a connection leads to |
//! | `sentinel` | which server is currently the primary |
//! | `cluster` | which node serves which slot; redirections |
//! | `status`, `check`, `acceptance` | the state of the store, from that of its connections; checks of one server; of all servers |
//! | `runtime` | whether a runtime can be used for connections |
//! | `connections` | the connections where the client lives |
//! | `operation` | a script with its resource and arguments, before it becomes a call or a part of a batch |
//! | `transport` | operations called, once or until they are answered |
//! | `queue`, `batch` | operations that wait for a call; many operations in one call |
//! | `msgpack` | the encoding of a batch and its answers |
//! | `notifications` | the subscription: messages from the server become events |
//! | `opening` | opening links, with credentials that are requested each time, and why that failed |
//! | `credentials` | public: who logs in |
//! | `tls` | when a link is opened over TLS, and what it means if it is not |
//! | `url`, `target` | parsing URLs; where a store is, and who logs in |
//! | `lock`, `semaphore` | their scripts as typed calls |
//! | `reply` | the scripts' answers, converted to types |
//! | `node` | a server as one of the nodes of a Redlock |
//! | `refusal` | which answers of a server that declines are temporary |
//! | `renewals` | many renewals in one call of their own |
//! | `replicas` | waiting until replicas have a grant |
//! | `verbs` | the operations of the contract, on top of these |

mod acceptance;
mod batch;
mod check;
mod cluster;
mod connection;
mod connections;
mod credentials;
#[cfg(feature = "fred")]
mod fred;
mod keys;
mod link;
mod linker;
mod lock;
mod msgpack;
mod node;
mod notifications;
mod opening;
mod operation;
mod protocol;
mod queue;
#[cfg(feature = "redis-rs")]
mod redis_rs;
mod refusal;
mod renewals;
mod replicas;
mod reply;
mod route;
mod runtime;
mod script;
mod semaphore;
mod sentinel;
mod servers;
mod status;
mod target;
mod tls;
mod transport;
mod url;
mod value;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "fred")]
use ::fred::types::config::Config;
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::dial;
use super::tls::TlsOptions;
use super::{BackendError, Capabilities, MAX_TTL, Status, StoreState};
use crate::background;
use crate::closing::Closing;
use crate::error::Error;
use crate::home::Home;
use crate::runtime::spawn_on;
use check::Expected;
use connection::{ConnectionSettings, Timeouts};
use connections::Connections;
use link::Library as LinkLibrary;
use notifications::Notifications;
use opening::Opening;
use replicas::{Quota, Replicas};
use servers::{Commands, Servers};
use status::Statuses;
use target::{Login, Server, Target, Topology};

pub use credentials::{Credentials, CredentialsProvider};

/// Leases on a Redis server, version 6.2 or later, a Valkey server, the primary named by sentinels, or a cluster.
///
/// It keeps three connections: one for commands and one that is subscribed to the channel `leasehold:<client id>`, on
/// the runtime on which it was connected, and one for renewals on the crate's own thread. If that runtime ends, or is not driven while
/// another one waits, the first two are opened again on the crate's own thread. There are more in a cluster (for commands and renewals, one to each primary),
/// with sentinels (one subscription to each), and with [`wait_replicas`](RedisBuilder::wait_replicas) (one to each primary).
pub struct RedisBackend {
    client: Uuid,
    capabilities: Capabilities,
    home: Arc<Home>,
    connections: Arc<Connections>,
    /// Those for commands, where the client lives.
    commands: Commands,
    /// Those for renewals, on the crate's own thread.
    renewing: Commands,
    /// The tasks on the crate's own thread.
    drivers: Mutex<Vec<JoinHandle<()>>>,
    notifications: Arc<Notifications>,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
    replicas: Option<Arc<Replicas>>,
    connect_timeout: Duration,
    /// How long a call is repeated while the server does not answer.
    repeat_for: Duration,
    fail_fast: bool,
    statuses: Arc<Statuses>,
    closing: Closing,
}

const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// How long a server that has not answered may take to accept another connection.
const PROBE: Duration = Duration::from_millis(100);
/// For how many reply timeouts a call is repeated while the server does not answer.
const ATTEMPTS: u32 = 2;
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Makes a [`RedisBackend`]: see [`RedisBackend::builder`].
///
/// | setting | default | why |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | 2 s | an unreachable address should be reported soon |
/// | [`reply_timeout`](Self::reply_timeout) | 2 s | a script takes microseconds; a later answer means that something is wrong |
/// | [`poll_interval`](Self::poll_interval) | none | clients of this crate need not poll, and usually only they use the locks |
/// | [`repair_keys_without_expiry`](Self::repair_keys_without_expiry) | off | such a key may be intentional |
/// | [`wait_replicas`](Self::wait_replicas) | none | it takes time, and there may be no replicas |
/// | [`fail_fast`](Self::fail_fast) | off | most outages are short |
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisBuilder {
    target: Target,
    library: Library,
    timeouts: Timeouts,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
    quota: Option<Quota>,
    fail_fast: bool,
    tls: Option<TlsOptions>,
    sentinel_login: Option<Login>,
    /// The client and its home, if it is one of several nodes.
    node_of: Option<(Uuid, Arc<Home>)>,
}

/// Which client library connects.
#[derive(Clone)]
enum Library {
    /// fred, with its configuration beyond the target.
    #[cfg(feature = "fred")]
    Fred(Box<Config>),
    #[cfg(feature = "redis-rs")]
    RedisRs,
}

impl Default for Library {
    fn default() -> Self {
        #[cfg(feature = "fred")]
        return Self::Fred(Box::default());
        #[cfg(not(feature = "fred"))]
        return Self::RedisRs;
    }
}

impl Library {
    fn connector(
        &self,
        target: &Target,
        tls: Option<&TlsOptions>,
        timeouts: Timeouts,
    ) -> Result<Arc<dyn LinkLibrary>, Error> {
        match self {
            #[cfg(feature = "fred")]
            Self::Fred(config) => {
                // A configuration that has TLS settings keeps them unless there are others.
                let tls = if tls.is_none() && config.uses_tls() { None } else { tls::of(target, tls)? };
                Ok(Arc::new(fred::FredConnector::new(config, tls.as_ref(), timeouts)))
            }
            #[cfg(feature = "redis-rs")]
            Self::RedisRs => Ok(Arc::new(redis_rs::RedisRsConnector::new(tls::of(target, tls)?, timeouts))),
        }
    }
}

impl RedisBuilder {
    /// How long connecting may take in total. From 1 ms to 1 h.
    ///
    /// Default: 2 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long one command may take before its outcome counts as unknown. For requests and renewals, the limit is
    /// never more than a third of the TTL. From 1 ms to 1 h.
    ///
    /// Default: 2 s.
    pub const fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.reply = timeout;
        self
    }

    /// Shares locks with clients of other libraries, which poll: this is the longest interval at which they retry. From 1 ms to
    /// 1 min. Set the same one for all clients of this crate that use these locks.
    ///
    /// * Such clients delete the key without notifying waiters, so waiters check at least this often whether the lock
    ///   has become free.
    /// * Clients of this crate that wait for each other hand the lock over, and others would never find it free. So now
    ///   and then a release leaves a *gap*: for a quarter longer than this interval, and at least 1 ms longer, the key
    ///   stays free for others, even though clients of this crate wait. These repeat their requests when the gap ends,
    ///   and keep their places.
    ///
    /// Time is divided into periods of eight gaps, by the clock of the server. A gap follows the release of every lease
    /// that was granted in an earlier period than the one in which it is released. So a lock is left free for an eighth
    /// of the time at most, which is what the option costs if no other client wants the lock. A client whose tasks pass
    /// a mutex on to each other releases it to the store after 16 holds, or after 30 ms and the hold in progress, as
    /// always.
    ///
    /// In a gap, `lock` waits for its end. `try_lock` gets the lock if nobody waits. Clients without this option respect gaps
    /// too, but leave none, and notice only after up to a third of their TTL that another library has released the lock. The option has
    /// no effect on semaphores, for which there is no common recipe.
    ///
    /// Default: none. A waiter checks when the holder's lease should have ended, and every third of the TTL; while clients of this
    /// crate wait for a lock, those of other libraries hardly ever get it.
    pub const fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Sets this expiry on a lock key that has none, starting with the first request that finds it. Such keys are left
    /// behind by clients that set the key and its expiry in two steps and die in between; no client would ever get the
    /// lock again. From 1 ms to 24 h. Enable this only if no client deliberately locks without an expiry.
    ///
    /// Default: off.
    pub const fn repair_keys_without_expiry(mut self, expiry: Duration) -> Self {
        self.repair = Some(expiry);
        self
    }

    /// Waits after every grant until `replicas` replicas have acknowledged it, for at most `time_limit`. If too few do,
    /// the lease is released, and the call fails with [`Error::StoreRefused`], which says how many did. `replicas` is at least 1,
    /// and `time_limit` from 1 ms to the reply timeout.
    ///
    /// A failover then loses a lock only if the promoted replica is not one of those that acknowledged the grant; renewals do
    /// not wait for replicas. Each grant costs an additional round trip between the servers, and one that results from another
    /// client's release also costs this client a round trip. Simultaneous grants share these round trips.
    ///
    /// Default: none. A failover may lose the latest grants.
    pub const fn wait_replicas(mut self, replicas: u32, time_limit: Duration) -> Self {
        self.quota = Some(Quota { replicas, time_limit });
        self
    }

    /// Whether calls, including those already waiting, fail at once with [`Error::StoreUnavailable`] while the server
    /// is known to be unreachable, that is, not connected. Releases and renewals are not affected.
    ///
    /// Default: off. Then `try_lock` tries for 4 s, `lock` for 30 s or four TTLs, whichever is longer, and
    /// `lock_timeout` for as long as `lock` or until its time is up; a restart or a failover in the meantime delays
    /// them but is not an error.
    pub const fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Connects through [redis-rs](https://docs.rs/redis) instead of fred.
    #[cfg(feature = "redis-rs")]
    pub fn through_redis_rs(mut self) -> Self {
        self.library = Library::RedisRs;
        self
    }

    /// Certificates for a TLS URL (`rediss://` and the like), which needs the feature `rustls` or `native-tls`.
    ///
    /// Default: the authorities that the system trusts, no client certificate.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// Asks `provider` for the user and the password before every attempt to connect, instead of using those in the
    /// URL. If the server closes a connection, or answers that it is no longer authenticated, the client requests
    /// credentials again and reconnects with them until it succeeds; meanwhile leases are kept as during any other
    /// outage. Sentinels do not get these credentials, but those of
    /// [`sentinel_credentials`](Self::sentinel_credentials).
    ///
    /// Default: what the URL says.
    pub fn credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.target.login.provider = Some(Arc::new(provider));
        self
    }

    /// The credentials for sentinels that have a password of their own. The password in the URL is for the Redis servers and
    /// is never sent to sentinels.
    ///
    /// Default: no login.
    pub fn sentinel_credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.sentinel_login = Some(Login { provider: Some(Arc::new(provider)), ..Login::default() });
        self
    }

    /// As one of the nodes of a Redlock, which all have the same client.
    pub(in crate::backend) fn for_node_of(mut self, client: Uuid, home: Arc<Home>) -> Self {
        self.node_of = Some((client, home));
        self
    }

    /// The address of the server, without credentials.
    pub(in crate::backend) fn address(&self) -> String {
        self.target.to_string()
    }

    /// Connects and subscribes, checks that messages are delivered, and checks the server: one that cannot be used for
    /// locks is refused.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or if there are credentials for sentinels and the URL names
    ///   none.
    /// * [`Error::Unsupported`] for TLS, if this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached in time, or this crate's own thread cannot be started.
    /// * [`Error::StoreRefused`] if the server rejects the credentials, denies this user a needed permission, is a
    ///   replica or a cluster node (with the URL of a single server), or is too old.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<RedisBackend, Error> {
        let (backend, limit) = (self.build()?, self.timeouts.connect);
        runtime::check().map_err(|error| backend.connect_error(error))?;
        let opened = match tokio::time::timeout(limit, backend.open()).await {
            Ok(opened) => opened,
            Err(late) => Err(match backend.connections.declined() {
                Some(declined) => declined,
                None => BackendError::Unanswered { source: late.into() },
            }),
        };
        let opened = match opened {
            Err(BackendError::Unanswered { .. }) => {
                Err(BackendError::Unanswered { source: self.no_answer().await.into() })
            }
            opened => opened,
        };
        match opened {
            Ok(()) => Ok(backend),
            Err(error) => Err(backend.connect_error(error)),
        }
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime. See
    /// [`Client::connect_lazy`](crate::Client::connect_lazy).
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] and [`Error::Unsupported`], as for [`connect`](Self::connect); [`Error::StoreUnavailable`] if
    /// this crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<RedisBackend, Error> {
        let backend = self.build()?;
        backend.start().map_err(|error| backend.connect_error(error))?;
        Ok(backend)
    }

    /// What is known about a server that has not answered in time.
    async fn no_answer(&self) -> String {
        let limit = self.timeouts.connect;
        let Topology::Single(Server::Tcp { host, port }) = &self.target.topology else {
            return format!("no answer within {limit:?}");
        };
        match dial::connect(host, *port, PROBE).await {
            Ok(_) => format!("connected, but the server did not answer within {limit:?}"),
            _ => format!("no connection within {limit:?}"),
        }
    }

    /// A backend that is not connected.
    fn build(&self) -> Result<RedisBackend, Error> {
        let timeouts = self.timeouts;
        for (name, timeout) in [("connect_timeout", timeouts.connect), ("reply_timeout", timeouts.reply)] {
            if timeout < MIN_TIMEOUT || timeout > MAX_TIMEOUT {
                let why = format!("{timeout:?} is not between {MIN_TIMEOUT:?} and {MAX_TIMEOUT:?}");
                return Err(Error::invalid(name, why));
            }
        }
        check_duration("poll interval", self.poll_interval, MAX_POLL_INTERVAL)?;
        check_duration("expiry for repaired keys", self.repair, MAX_TTL)?;
        if let Some(Quota { replicas, time_limit }) = self.quota {
            if replicas == 0 {
                return Err(Error::invalid("replicas", "at least one has to acknowledge a grant"));
            }
            if time_limit < MIN_TIMEOUT || time_limit > timeouts.reply {
                let why = format!(
                    "{time_limit:?} is not between {MIN_TIMEOUT:?} and the reply timeout of {:?}",
                    timeouts.reply
                );
                return Err(Error::invalid("time limit for replicas", why));
            }
        }
        if self.sentinel_login.is_some() && !matches!(self.target.topology, Topology::Sentinel { .. }) {
            return Err(Error::invalid("sentinel credentials", "the URL names no sentinels"));
        }
        let store = self.target.to_string();
        let connector = self.library.connector(&self.target, self.tls.as_ref(), timeouts)?;
        RedisBackend::new(self, connector, store.clone())
            .map_err(|error| Error::from_backend(error, "connect", None, &store))
    }
}

/// Makes all waiting requests repeat when the store becomes unreachable, so that they fail, until `closed`.
async fn fail_waiting(
    mut changes: BoxStream<'static, StoreState>,
    notifications: Arc<Notifications>,
    closed: CancellationToken,
) {
    while let Some(Some(state)) = closed.run_until_cancelled(changes.next()).await {
        if matches!(state.status, Status::Disconnected { .. }) {
            notifications.resync();
        }
    }
}

fn background_handle() -> Result<Handle, BackendError> {
    background::handle().map_err(|error| BackendError::NotSent { source: error.into() })
}

/// Checks that a duration, if there is one, is from 1 ms to `max`.
fn check_duration(what: &'static str, duration: Option<Duration>, max: Duration) -> Result<(), Error> {
    match duration {
        Some(duration) if duration < MIN_TIMEOUT => {
            Err(Error::invalid(what, format!("{duration:?} is below 1 ms")))
        }
        Some(duration) if duration > max => {
            Err(Error::invalid(what, format!("{duration:?} is above {max:?}")))
        }
        _ => Ok(()),
    }
}

impl fmt::Debug for RedisBuilder {
    /// Prints only the address of the configuration, which contains the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder")
            .field("store", &self.target.to_string())
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

impl RedisBackend {
    /// Connects to a server, to the primary named by sentinels, or to a cluster, with a URL as for
    /// [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// As for [`Client::connect`](crate::Client::connect).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.connect().await
    }

    /// Settings for a connection to a server, to the primary named by sentinels, or to a cluster, with a URL as for
    /// [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the URL cannot be parsed.
    /// * [`Error::Unsupported`] if this build does not support its scheme.
    pub fn builder(url: &str) -> Result<RedisBuilder, Error> {
        Ok(Self::with_target(url::parse(url)?, Library::default()))
    }

    /// Settings for a connection from a configuration of [fred](https://docs.rs/fred), through which this store talks to the
    /// server: server, credentials, database and TLS are taken from it. This crate sets protocol version, retries and timeouts
    /// itself, because its guarantees depend on them. To use the configuration of an existing client, pass
    /// `client.client_config()`; its connections are not shared.
    ///
    /// The configuration must come from the major version of fred on which this crate depends. A release of this crate
    /// may move to another version: this function is exempt from semantic versioning.
    #[cfg(feature = "fred")]
    pub fn builder_from_fred(config: Config) -> RedisBuilder {
        Self::with_target(fred::target(&config), Library::Fred(Box::new(config)))
    }

    /// Settings for connections through [redis-rs](https://docs.rs/redis), to the server of a client of that crate,
    /// with its user, password and database. If that client uses TLS, so do these connections, with this crate's
    /// feature `rustls` or `native-tls`.
    ///
    /// The client must come from the major version of redis-rs on which this crate depends. A release of this crate may
    /// move to another version: this function is exempt from semantic versioning.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the client has its own certificates, which cannot be taken from it, or does not verify
    /// those of the server: use a client without certificates, and [`RedisBuilder::tls`].
    #[cfg(feature = "redis-rs")]
    pub fn builder_from_redis_rs(client: &::redis::Client) -> Result<RedisBuilder, Error> {
        Ok(Self::with_target(redis_rs::target(client)?, Library::RedisRs))
    }

    const fn with_target(target: Target, library: Library) -> RedisBuilder {
        const DEFAULT: Duration = Duration::from_secs(2);
        RedisBuilder {
            target,
            library,
            timeouts: Timeouts { connect: DEFAULT, reply: DEFAULT },
            poll_interval: None,
            repair: None,
            quota: None,
            fail_fast: false,
            tls: None,
            sentinel_login: None,
            node_of: None,
        }
    }

    /// A backend that is not connected. What must run in any case is started on the crate's own thread.
    fn new(
        settings: &RedisBuilder,
        library: Arc<dyn LinkLibrary>,
        store: String,
    ) -> Result<Self, BackendError> {
        let own = background_handle()?;
        let (closing, statuses) = (Closing::default(), Statuses::new(store.clone()));
        let (client, home) = settings.node_of.clone().unwrap_or_else(|| (Uuid::new_v4(), Arc::default()));
        home.may_move(&own);
        let notifications = Arc::new(Notifications::new(client, settings.quota.is_some()));
        let connections = ConnectionSettings {
            connector: Arc::new(Opening::new(library, settings.target.tls, settings.timeouts.connect)),
            login: settings.target.login.clone(),
            timeouts: settings.timeouts,
            statuses: Arc::clone(&statuses),
        };
        let (topology, notified) = (settings.target.topology.clone(), Arc::clone(&notifications));
        let sentinel_login = settings.sentinel_login.clone().unwrap_or_default();
        let servers = Servers::new(topology, connections, sentinel_login, notified, closing.token());
        let own_home = Home::own(&own);
        let (commands, renewing) = (servers.commands(&home), servers.commands(&own_home));
        let subscriber = servers.connection();
        let mut drivers = vec![spawn_on(&own, servers.stay_up_to_date(&[&commands, &renewing]))];
        if settings.fail_fast {
            let (changes, notified) = (statuses.changes(), Arc::clone(&notifications));
            drivers.push(spawn_on(&own, fail_waiting(changes, notified, closing.token())));
        }
        drivers.extend(renewing.start(&own, &closing.token()));
        let replicas = settings.quota.map(|quota| {
            let waiting = servers.commands(&own_home);
            drivers.extend(waiting.start(&own, &closing.token()));
            Replicas::new(quota, waiting, own.clone())
        });
        let expected = Expected {
            in_cluster: commands.are_in_cluster(),
            has_replicas: replicas.is_some(),
            channel: notifications.channel.clone(),
            store: store.clone(),
        };
        let notified = Arc::clone(&notifications);
        let lives = (Arc::clone(&home), own);
        let connections =
            Connections::new(lives, commands.clone(), subscriber, notified, expected, closing.token());
        Ok(Self {
            client,
            capabilities: Capabilities::new(store),
            home,
            connections,
            commands,
            renewing,
            drivers: Mutex::new(drivers),
            notifications,
            poll_interval: settings.poll_interval,
            repair: settings.repair,
            replicas,
            connect_timeout: settings.timeouts.connect,
            repeat_for: settings.timeouts.reply * ATTEMPTS,
            fail_fast: settings.fail_fast,
            statuses,
            closing,
        })
    }

    fn connect_error(&self, error: BackendError) -> Error {
        Error::from_backend(error, "connect", None, &self.capabilities.store)
    }

    /// Connects from the current runtime and from the crate's own, and looks at the servers. If it is dropped, `closing` is
    /// cancelled with the backend, which ends what was begun.
    ///
    /// Boxed, so that connecting, which involves most of the client library, is compiled here and not again in every
    /// crate that calls an `async fn` built on this.
    fn open(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        async move {
            self.connections.connect().await?;
            self.renewing.connected().await
        }
        .boxed()
    }

    /// Starts connecting from the crate's own thread; the first call opens the connections where the client lives.
    fn start(&self) -> Result<(), BackendError> {
        let finding = self.renewing.find_when_possible(&background_handle()?, &self.closing.token());
        self.drivers.lock().extend(finding);
        Ok(())
    }

    /// Closes all connections and waits until they are closed.
    async fn close_connections(&self) {
        // First, so that the end of the connections is not mistaken for an outage.
        self.statuses.close();
        self.closing.close();
        // Tasks on a runtime that is not driven do not end.
        self.home.move_if_stuck().await;
        let mut drivers = self.connections.take_drivers();
        drivers.extend(std::mem::take(&mut *self.drivers.lock()));
        drivers.extend(self.renewing.take_drivers());
        let Ok(all) = timeout(self.connect_timeout, join_all(drivers)).await else {
            tracing::warn!("the connections were not closed in time");
            return;
        };
        for ended in all {
            match ended {
                // It ended with its runtime.
                Err(error) if error.is_cancelled() => {}
                Err(error) => tracing::warn!(%error, "a connection was not closed cleanly"),
                Ok(()) => {}
            }
        }
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("store", &self.capabilities.store).finish_non_exhaustive()
    }
}

impl Drop for RedisBackend {
    fn drop(&mut self) {
        self.statuses.close();
        self.closing.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_of_a_builder_has_no_password() {
        let builder = RedisBackend::builder("redis://user:hunter2@db:7000").unwrap();
        let text = format!("{builder:?}");
        assert!(text.contains("redis://db:7000") && !text.contains("hunter2"), "{text}");
    }
}
