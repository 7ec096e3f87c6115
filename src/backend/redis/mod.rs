//! Redis and Valkey: one server, the primary that sentinels name, or a cluster.
//!
//! | file | what is in it |
//! |---|---|
//! | `keys` | every key, its type and its expiry |
//! | `lua/` | the protocol: one script per operation, which the server runs atomically |
//! | `protocol` | what Rust and Lua have to agree on |
//! | `script` | the scripts' text and digests |
//! | `link` | what is needed of a client library: one established connection; errors by what is known about the execution |
//! | `fred` | links of fred |
//! | `value` | arguments and answers |
//! | `connection` | a connection: one link after another, until it is closed |
//! | `servers` | what a store consists of: its connections and transports |
//! | `route` | which server a connection leads to: always the same, the one that sentinels name, any node |
//! | `cluster` | which node serves which slot; redirections |
//! | `callers` | the connections on the caller's runtime, made again when that has ended |
//! | `operation` | a script with its resource and arguments, before it becomes a call or a part of a batch |
//! | `transport` | operations called, once or until they are answered |
//! | `batch` | many operations in one call |
//! | `msgpack` | the encoding of a batch and its answers |
//! | `notifications` | the subscription: messages from the server become events |
//! | `opening` | links opened with credentials that are asked for each time, and why that failed |
//! | `credentials`, `tls` | public: who logs in, and certificates |
//! | `url` | parsing URLs, and the server's address in errors |
//! | `lock`, `semaphore` | their scripts as typed calls |
//! | `reply` | the scripts' answers, converted to types |
//! | `renewals` | many renewals in one call of their own |
//! | `replicas` | waiting until replicas have a grant |
//! | `verbs` | the operations of the contract, on top of these |

mod batch;
mod callers;
mod cluster;
mod connection;
mod credentials;
mod fred;
mod keys;
mod link;
mod lock;
mod msgpack;
mod notifications;
mod opening;
mod operation;
mod protocol;
mod renewals;
mod replicas;
mod reply;
mod route;
mod script;
mod semaphore;
mod servers;
mod tls;
mod transport;
mod url;
mod value;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::fred::types::config::Config;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::fred::FredConnector;
use super::{BackendError, Capabilities, LeaseIds, MAX_TTL};
use crate::background;
use crate::closing::Closing;
use crate::error::Error;
use crate::sync::Mutex;
use callers::CallersConnections;
use connection::Timeouts;
use notifications::{Channel, Notifications};
use opening::Opening;
use replicas::{Quota, Replicas};
use servers::Servers;
use transport::Transports;
use url::Target;

pub use credentials::{Credentials, CredentialsProvider};
pub use tls::TlsOptions;

/// Leases on a Redis server, version 6.2 or later, a Valkey server, the primary that sentinels name, or a cluster.
///
/// It keeps three connections: one for commands and one that is subscribed to the channel `leasehold:<client id>`, on the runtime of
/// the caller, and one for renewals on the crate's own thread. If the runtime of the first two ends, the next call connects again
/// from its own runtime.
pub struct RedisBackend {
    ids: LeaseIds,
    capabilities: Capabilities,
    callers: Arc<CallersConnections>,
    transports: Transports,
    renewals: Transports,
    /// The tasks on the crate's own thread.
    drivers: Mutex<Vec<JoinHandle<()>>>,
    notifications: Arc<Notifications>,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
    replicas: Option<Arc<Replicas>>,
    closing: Closing,
}

const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Makes a [`RedisBackend`]: see [`RedisBackend::builder`].
///
/// | setting | default | why |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | 2 s | an unreachable address should be reported soon |
/// | [`reply_timeout`](Self::reply_timeout) | 2 s | a script takes microseconds; a later answer means that something is wrong |
/// | [`poll_interval`](Self::poll_interval) | none | holders that use this crate hand the lock over themselves |
/// | [`repair_keys_without_expiry`](Self::repair_keys_without_expiry) | off | such a key may be intentional |
/// | [`wait_replicas`](Self::wait_replicas) | none | it takes time, and there may be no replicas |
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisBuilder {
    target: Target,
    /// What fred is to be configured with beyond that.
    config: Config,
    timeouts: Timeouts,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
    quota: Option<Quota>,
    tls: Option<TlsOptions>,
}

impl RedisBuilder {
    /// How long connecting may take in total.
    ///
    /// Default: 2 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long one command may take before its outcome counts as unknown. For requests and renewals, a third of the TTL is the
    /// limit in any case.
    ///
    /// Default: 2 s.
    pub const fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.reply = timeout;
        self
    }

    /// Checks at least this often whether a lock has become free, for use with holders that use another library, which delete the
    /// key without notifying anybody. From 1 ms to 24 h.
    ///
    /// Default: none. A waiter checks when the holder's lease should have ended, and every third of the TTL.
    pub const fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Sets this expiry on a lock key that has none, starting with the first request that finds it. Such keys are left behind by
    /// clients that set the key and its expiry in two steps and die in between; nobody would ever get the lock again. From 1 ms
    /// to 24 h. Only enable this if nobody locks without an expiry on purpose.
    ///
    /// Default: off.
    pub const fn repair_keys_without_expiry(mut self, expiry: Duration) -> Self {
        self.repair = Some(expiry);
        self
    }

    /// Waits after every grant until `replicas` replicas have acknowledged it, for at most `time_limit`. If too few do, the lease is
    /// given back, and the call fails with [`Error::StoreRefused`], which says how many did. `time_limit` is from 1 ms to the
    /// reply timeout.
    ///
    /// A failover then loses a lock only if a server is promoted that has not acknowledged it; renewals are not waited for. Each
    /// grant takes a round trip between the servers longer, and one that another client's release has made a round trip of this
    /// client as well; many grants at a time share them.
    ///
    /// Default: none. A failover may lose grants of the last moments.
    pub const fn wait_replicas(mut self, replicas: u32, time_limit: Duration) -> Self {
        self.quota = Some(Quota { replicas, time_limit });
        self
    }

    /// Certificates for a URL that asks for TLS (`rediss://` and the like), which needs the feature `rustls` or `native-tls`.
    ///
    /// Default: the authorities that the system trusts, no client certificate.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// Asks `provider` for the user and the password before every attempt to connect, instead of those in the URL. If the server
    /// closes a connection, or answers that it is not authenticated any more, the client connects again with what is provided then,
    /// and tries that until it succeeds; leases are kept meanwhile as during any other outage. Sentinels are not sent these credentials.
    ///
    /// Default: what the URL says.
    pub fn credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.target.login.provider = Some(Arc::new(provider));
        self
    }

    /// Connects and subscribes, and checks that messages are delivered.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a timeout is below 1 ms or above 1 h, or another duration below 1 ms or above 24 h.
    /// * [`Error::Unsupported`] for TLS, if this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached in time, or this crate's own thread cannot be started.
    /// * [`Error::StoreRefused`] if it rejects the credentials, or does not allow this user to publish and subscribe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(mut self) -> Result<RedisBackend, Error> {
        let timeouts = self.timeouts;
        for timeout in [timeouts.connect, timeouts.reply] {
            if timeout < MIN_TIMEOUT || timeout > MAX_TIMEOUT {
                let why = format!("{timeout:?} is outside {MIN_TIMEOUT:?} to {MAX_TIMEOUT:?}");
                return Err(Error::invalid("timeout", why));
            }
        }
        at_least_a_millisecond("poll interval", self.poll_interval)?;
        at_least_a_millisecond("expiry for repaired keys", self.repair)?;
        if let Some(Quota { replicas, time_limit }) = self.quota {
            if replicas == 0 {
                return Err(Error::invalid("replicas", "at least one has to acknowledge a grant"));
            }
            if time_limit < MIN_TIMEOUT || time_limit > timeouts.reply {
                let why = format!(
                    "{time_limit:?} is outside {MIN_TIMEOUT:?} to the reply timeout, {:?}",
                    timeouts.reply
                );
                return Err(Error::invalid("time limit for replicas", why));
            }
        }
        let store = self.target.to_string();
        self.config = fred::with_tls(self.config, &self.target, self.tls.as_ref())?;
        let opened = RedisBackend::open(&self, store.clone());
        let opened = tokio::time::timeout(timeouts.connect, opened).await;
        opened
            .unwrap_or_else(|late| Err(BackendError::Unanswered { source: late.into() }))
            .map_err(|error| Error::from_backend(error, "connect", None, &store))
    }
}

fn at_least_a_millisecond(what: &'static str, duration: Option<Duration>) -> Result<(), Error> {
    match duration {
        Some(duration) if duration < MIN_TIMEOUT => {
            Err(Error::invalid(what, format!("{duration:?} is below 1 ms")))
        }
        Some(duration) if duration > MAX_TTL => {
            Err(Error::invalid(what, format!("{duration:?} is above {MAX_TTL:?}")))
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
    /// Connects to `redis://` or `redis+unix://`; see [`Client::connect`](crate::Client::connect).
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

    /// Settings for a connection to `redis://` or `redis+unix://`; see [`Client::connect`](crate::Client::connect).
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if the URL cannot be parsed.
    /// * [`Error::Unsupported`] if this build does not support its scheme.
    pub fn builder(url: &str) -> Result<RedisBuilder, Error> {
        Ok(Self::with_target(url::parse(url)?, Config::default()))
    }

    /// Settings for a connection by a configuration of [fred](https://docs.rs/fred), the Redis client on which this crate is built:
    /// server, credentials, database and TLS are taken from it. Protocol version, retries and timeouts are set by this crate,
    /// because its guarantees depend on them.
    ///
    /// The configuration must be that of the major version of fred on which this crate depends. A release of this crate may move to
    /// another one: this function is exempt from semantic versioning.
    #[cfg(feature = "fred")]
    pub fn builder_from_fred(config: Config) -> RedisBuilder {
        Self::with_target(fred::target(&config), config)
    }

    const fn with_target(target: Target, config: Config) -> RedisBuilder {
        const DEFAULT: Duration = Duration::from_secs(2);
        RedisBuilder {
            target,
            config,
            timeouts: Timeouts { connect: DEFAULT, reply: DEFAULT },
            poll_interval: None,
            repair: None,
            quota: None,
            tls: None,
        }
    }

    /// Boxed, so that connecting, which involves most of fred, is compiled here and not again in every crate that calls an
    /// `async fn` on top of this.
    fn open(settings: &RedisBuilder, store: String) -> BoxFuture<'_, Result<Self, BackendError>> {
        Self::open_unboxed(settings, store).boxed()
    }

    async fn open_unboxed(settings: &RedisBuilder, store: String) -> Result<Self, BackendError> {
        let own = background::handle().map_err(|error| BackendError::NotSent { source: error.into() })?;
        let (ids, closing) = (LeaseIds::new(), Closing::default());
        let notifications = Arc::new(Notifications::new(ids.client(), settings.quota.is_some()));
        let channel = Channel::new(keys::channel(ids.client()), Arc::clone(&notifications));
        let library = Arc::new(FredConnector::new(&settings.config, settings.timeouts));
        let connector = Arc::new(Opening::new(library, settings.target.tls, settings.timeouts));
        let (target, heard) = (&settings.target, Arc::clone(&notifications));
        let servers = Servers::new(target, connector, settings.timeouts, heard, closing.token());
        let (commands, transports) = servers.commands(&Handle::current());
        let (renewals, transports_of_renewals) = servers.commands(&own);
        let up_to_date = servers.stay_up_to_date(&[&commands, &renewals]);
        let mut commands = vec![commands];
        let replicas = settings.quota.map(|quota| {
            let (waiting, transports) = servers.commands(&Handle::current());
            commands.push(waiting);
            Replicas::new(quota, transports)
        });
        let backend = Self {
            capabilities: Capabilities::new(store),
            callers: CallersConnections::new(commands, servers.subscriber(), channel, closing.token()),
            transports,
            renewals: transports_of_renewals,
            drivers: Mutex::default(),
            notifications,
            poll_interval: settings.poll_interval,
            repair: settings.repair,
            replicas,
            ids,
            closing,
        };
        // If connecting is given up, `closed` is cancelled, which ends this as well.
        let closed = backend.closing.token();
        servers.find().await?;
        let (connected, until) = (renewals.clone(), closed.clone());
        let driver = own.spawn(async move { connected.connect(until).await });
        backend.callers.connect().await?;
        let driver = driver.await.map_err(|gone| BackendError::NotSent { source: gone.into() })??;
        let mut drivers = backend.drivers.lock();
        drivers.extend(driver);
        drivers.push(own.spawn(up_to_date));
        drop(drivers);
        Ok(backend)
    }

    /// Sees to it that the connections of the caller work on the current runtime.
    async fn revive(&self) -> Result<(), BackendError> {
        if self.closing.is_closed() {
            return Err(BackendError::Closed);
        }
        if self.callers.have_ended() { self.callers.revive().await } else { Ok(()) }
    }

    /// Closes all connections and waits until they are closed.
    async fn close_connections(&self) {
        self.closing.close();
        let mut drivers = self.callers.take_drivers();
        drivers.extend(std::mem::take(&mut *self.drivers.lock()));
        if let Transports::Cluster(nodes) = &self.renewals {
            drivers.extend(nodes.take_drivers());
        }
        for ended in join_all(drivers).await {
            match ended {
                // It ended with its runtime.
                Err(error) if error.is_cancelled() => {}
                Err(error) => tracing::warn!(%error, "a connection was not closed in good order"),
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
