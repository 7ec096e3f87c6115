//! One Redis or Valkey server. The only module that uses fred.
//!
//! | file | what is in it |
//! |---|---|
//! | `keys` | every key, its type and its expiry |
//! | `lua/` | the protocol: one script per operation, which the server runs atomically |
//! | `protocol` | what Rust and Lua have to agree on |
//! | `script` | the scripts' text and digests |
//! | `connection` | a connection: configured, kept connected, closed |
//! | `replaced` | closing connections at the server that have been replaced |
//! | `commands` | scripts sent on a connection; errors sorted into not sent, unknown, and answered |
//! | `callers` | the connections on the caller's runtime, made again when that has ended |
//! | `operation` | a script with its resource and arguments, before it becomes a call or a part of a batch |
//! | `transport` | operations called, once or until they are answered |
//! | `batch` | many operations in one call |
//! | `msgpack` | the encoding of a batch and its answers |
//! | `notifications` | the subscription: messages from the server become events |
//! | `url` | parsing URLs, and the server's address in errors |
//! | `lock`, `semaphore` | their scripts as typed calls |
//! | `reply` | the scripts' answers, converted to types |
//! | `node` | a server as one of the nodes of a Redlock |
//! | `renewals` | many renewals in one call of their own |
//! | `verbs` | the operations of the contract, on top of these |

mod batch;
mod callers;
mod commands;
mod connection;
mod keys;
mod lock;
mod msgpack;
mod node;
mod notifications;
mod operation;
mod protocol;
mod renewals;
mod replaced;
mod reply;
mod script;
mod semaphore;
mod transport;
mod url;
mod verbs;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fred::types::config::Config;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{BackendError, Capabilities, LeaseIds, MAX_TTL};
use crate::background;
use crate::closing::Closing;
use crate::error::Error;
use crate::sync::Mutex;
use callers::CallersConnections;
use connection::{Connection, Timeouts};
use notifications::{Channel, Notifications};
use transport::Transport;

/// Leases on one Redis server, version 6.2 or later, or one Valkey server.
///
/// It keeps three connections: one for commands and one that is subscribed to the channel `leasehold:<client id>`, on the runtime of
/// the caller, and one for renewals on the crate's own thread. If the runtime of the first two ends, the next call connects again
/// from its own runtime.
pub struct RedisBackend {
    ids: LeaseIds,
    capabilities: Capabilities,
    callers: Arc<CallersConnections>,
    transport: Arc<Transport>,
    renewals: Arc<Transport>,
    renewals_driver: Mutex<Option<JoinHandle<()>>>,
    notifications: Arc<Notifications>,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
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
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisBuilder {
    config: Config,
    timeouts: Timeouts,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
    /// The ids of its leases; of its own if it is not one of several nodes.
    client: Option<Uuid>,
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

    /// Leases of this client: those of all nodes of a Redlock have the same ids.
    pub(in crate::backend) const fn for_client(mut self, client: Uuid) -> Self {
        self.client = Some(client);
        self
    }

    /// The address of the server, without credentials.
    pub(in crate::backend) fn address(&self) -> Result<String, Error> {
        url::address(&self.config)
    }

    /// Connects and subscribes, and checks that messages are delivered.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a timeout is below 1 ms or above 1 h, or another duration below 1 ms or above 24 h.
    /// * [`Error::Unsupported`] for clusters and sentinels.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached in time, or this crate's own thread cannot be started.
    /// * [`Error::StoreRefused`] if it rejects the credentials, or does not allow this user to publish and subscribe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<RedisBackend, Error> {
        let timeouts = self.timeouts;
        for timeout in [timeouts.connect, timeouts.reply] {
            if timeout < MIN_TIMEOUT || timeout > MAX_TIMEOUT {
                let why = format!("{timeout:?} is outside {MIN_TIMEOUT:?} to {MAX_TIMEOUT:?}");
                return Err(Error::invalid("timeout", why));
            }
        }
        at_least_a_millisecond("poll interval", self.poll_interval)?;
        at_least_a_millisecond("expiry for repaired keys", self.repair)?;
        let store = url::address(&self.config)?;
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
            .field("store", &url::address(&self.config).ok())
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
        url::parse(url).map(Self::with_config)
    }

    /// Settings for a connection by a configuration of [fred](https://docs.rs/fred), the Redis client on which this crate is built:
    /// server, credentials, database and TLS are taken from it. Protocol version, retries and timeouts are set by this crate,
    /// because its guarantees depend on them.
    ///
    /// The configuration must be that of the major version of fred on which this crate depends. A release of this crate may move to
    /// another one: this function is exempt from semantic versioning.
    #[cfg(feature = "fred")]
    pub const fn builder_from_fred(config: Config) -> RedisBuilder {
        Self::with_config(config)
    }

    const fn with_config(config: Config) -> RedisBuilder {
        const DEFAULT: Duration = Duration::from_secs(2);
        RedisBuilder {
            config,
            timeouts: Timeouts { connect: DEFAULT, reply: DEFAULT },
            poll_interval: None,
            repair: None,
            client: None,
        }
    }

    /// Boxed, so that connecting, which involves most of fred, is compiled here and not again in every crate that calls an
    /// `async fn` on top of this.
    fn open(settings: &RedisBuilder, store: String) -> BoxFuture<'_, Result<Self, BackendError>> {
        Self::open_unboxed(settings, store).boxed()
    }

    async fn open_unboxed(settings: &RedisBuilder, store: String) -> Result<Self, BackendError> {
        let own = background::handle().map_err(|error| BackendError::NotSent { source: error.into() })?;
        let ids = settings.client.map_or_else(LeaseIds::new, LeaseIds::of);
        let closing = Closing::default();
        let notifications = Arc::new(Notifications::new(ids.client()));
        let connection = || Connection::new(&settings.config, settings.timeouts);
        let (commands, renewals) = (connection(), connection());
        let channel = Channel::new(keys::channel(ids.client()), Arc::clone(&notifications));
        let backend = Self {
            capabilities: Capabilities::new(store),
            callers: CallersConnections::new(Arc::clone(&commands), connection(), channel, closing.token()),
            transport: Transport::new(commands, Arc::clone(&notifications)),
            renewals: Transport::new(Arc::clone(&renewals), Arc::clone(&notifications)),
            renewals_driver: Mutex::default(),
            notifications,
            poll_interval: settings.poll_interval,
            repair: settings.repair,
            ids,
            closing,
        };
        // If connecting is given up, `closed` is cancelled, which ends this as well.
        let closed = backend.closing.token();
        let driver = own.spawn(async move { renewals.connect(closed).await });
        backend.callers.connect().await?;
        let driver = driver.await.map_err(|gone| BackendError::NotSent { source: gone.into() })??;
        *backend.renewals_driver.lock() = Some(driver);
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
        drivers.extend(self.renewals_driver.lock().take());
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
