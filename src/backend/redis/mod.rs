//! One Redis or Valkey server.
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
//! | `url` | parsing URLs, and the server's address in errors |
//! | `lock`, `semaphore` | their scripts as typed calls |
//! | `reply` | the scripts' answers, converted to types |
//! | `renewals` | many renewals in one call of their own |
//! | `verbs` | the operations of the contract, on top of these |

mod batch;
mod callers;
mod cluster;
mod connection;
mod fred;
mod keys;
mod link;
mod lock;
mod msgpack;
mod notifications;
mod operation;
mod protocol;
mod renewals;
mod reply;
mod route;
mod script;
mod semaphore;
mod servers;
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
use servers::{Commands, Servers};
use transport::Transports;
use url::Target;

/// Leases on one Redis server, version 6.2 or later, or one Valkey server.
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
    closing: Closing,
}

const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Makes a [`RedisBackend`]: see [`RedisBackend::builder`].
///
/// | setting | default | why |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | 2 s | an unreachable address should be reported soon |
/// | [`reply_timeout`](Self::reply_timeout) | 2 s | a script takes microseconds; a later answer means that something is wrong |
/// | [`poll_interval`](Self::poll_interval) | none | clients of this crate need not poll, and nobody else uses the locks |
/// | [`repair_keys_without_expiry`](Self::repair_keys_without_expiry) | off | such a key may be intentional |
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisBuilder {
    target: Target,
    /// What fred is to be configured with beyond that.
    config: Config,
    timeouts: Timeouts,
    poll_interval: Option<Duration>,
    repair: Option<Duration>,
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

    /// Shares locks with clients of other libraries, which poll: this is the longest interval at which they retry. From 1 ms to
    /// 1 min. Set the same one for all clients of this crate that use these locks.
    ///
    /// * Such clients delete the key without notifying anybody, so waiters check at least this often whether the lock has become
    ///   free.
    /// * Clients of this crate that wait for each other hand the lock over, and others would never find it free. So now and then
    ///   a release leaves a *gap*: for a quarter longer than this interval, and 1 ms longer at least, the key stays free for others, even
    ///   though clients of this crate wait. They ask again when the gap ends, and keep their places.
    ///
    /// Time is divided into periods of eight gaps, by the clock of the server. A gap follows the release of every lease that was
    /// granted in an earlier period than the one in which it is released. So a lock is left free for an eighth of the time at
    /// most, and that is what the option costs if no other client wants it. A client whose tasks pass a mutex on to each other releases
    /// it to the store after 16 holds, or after 30 ms and the hold in progress, as always.
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

    /// Sets this expiry on a lock key that has none, starting with the first request that finds it. Such keys are left behind by
    /// clients that set the key and its expiry in two steps and die in between; nobody would ever get the lock again. From 1 ms
    /// to 24 h. Only enable this if nobody locks without an expiry on purpose.
    ///
    /// Default: off.
    pub const fn repair_keys_without_expiry(mut self, expiry: Duration) -> Self {
        self.repair = Some(expiry);
        self
    }

    /// Connects and subscribes, and checks that messages are delivered.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a timeout is below 1 ms or above 1 h, a poll interval below 1 ms or above 1 min, or an expiry
    ///   for repaired keys below 1 ms or above 24 h.
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
        check("poll interval", self.poll_interval, MAX_POLL_INTERVAL)?;
        check("expiry for repaired keys", self.repair, MAX_TTL)?;
        let store = self.target.to_string();
        if self.target.tls && !self.config.uses_tls() {
            let reason = "TLS: this build would connect in plain text".to_owned();
            return Err(Error::Unsupported { store, reason });
        }
        let opened = RedisBackend::open(&self, store.clone());
        let opened = tokio::time::timeout(timeouts.connect, opened).await;
        opened
            .unwrap_or_else(|late| Err(BackendError::Unanswered { source: late.into() }))
            .map_err(|error| Error::from_backend(error, "connect", None, &store))
    }
}

/// Checks that a duration, if there is one, is from 1 ms to `max`.
fn check(what: &'static str, duration: Option<Duration>, max: Duration) -> Result<(), Error> {
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
        let notifications = Arc::new(Notifications::new(ids.client()));
        let channel = Channel::new(keys::channel(ids.client()), Arc::clone(&notifications));
        let connector = Arc::new(FredConnector::new(&settings.config, settings.timeouts));
        let (target, heard) = (&settings.target, Arc::clone(&notifications));
        let servers = Servers::new(target, connector, settings.timeouts, heard, closing.token());
        let (commands, transports) = servers.commands(&Handle::current());
        let (renewals, transports_of_renewals) = servers.commands(&own);
        let backend = Self {
            capabilities: Capabilities::new(store),
            callers: CallersConnections::new(commands, servers.subscriber(), channel, closing.token()),
            transports,
            renewals: transports_of_renewals,
            drivers: Mutex::default(),
            notifications,
            poll_interval: settings.poll_interval,
            repair: settings.repair,
            ids,
            closing,
        };
        // If connecting is given up, `closed` is cancelled, which ends this as well.
        let closed = backend.closing.token();
        if let Some(slots) = servers.slots() {
            slots.find().await?;
        }
        let (connected, until) = (renewals.clone(), closed.clone());
        let driver = own.spawn(async move { connected.connect(until).await });
        backend.callers.connect().await?;
        let driver = driver.await.map_err(|gone| BackendError::NotSent { source: gone.into() })??;
        let mut drivers = backend.drivers.lock();
        drivers.extend(driver);
        if let (Some(slots), Commands::Cluster(nodes)) = (servers.slots(), &renewals) {
            drivers.push(own.spawn(Arc::clone(slots).stay_up_to_date(Arc::clone(nodes), closed)));
        }
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
