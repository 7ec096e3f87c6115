//! One Redis or Valkey server. The only place that knows fred.
//!
//! | file | what |
//! |---|---|
//! | `keys` | every key, its type and its expiry |
//! | `lua/` | the protocol: one script per operation, run atomically by the server |
//! | `protocol` | what Rust and Lua have to agree on |
//! | `script` | the scripts' text and digests |
//! | `connection` | a connection: set up, kept driven, quit |
//! | `wire` | the one for commands; errors sorted into not sent, unknown, and answered |
//! | `args` | the arguments of a script |
//! | `operation` | a script and what it is asked, on its way into a call or a batch |
//! | `batch` | many operations in one call |
//! | `transport` | a call, alone or in a batch, once or until it is answered |
//! | `wake` | the one that listens; grants and revocations pushed to those concerned |
//! | `url` | what a URL names, and how a server is called in errors |
//! | `lock`, `semaphore` | their scripts as typed calls |
//! | `reply` | what the scripts answer, read into types |
//! | `calls` | which script a request is for |
//! | `renewals` | many renewals in one call of their own |
//! | `waiting` | a request that stands in line |
//! | `verbs` | the contract's verbs in terms of these |

mod args;
mod batch;
mod calls;
mod connection;
mod keys;
mod lock;
mod operation;
mod protocol;
mod renewals;
mod reply;
mod script;
mod semaphore;
mod succession;
mod transport;
mod url;
mod verbs;
mod waiting;
mod wake;
mod wire;

/// The Redis client this crate is built on, in the version whose `Config` [`RedisBackend::builder`] takes.
pub use fred;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::types::config::Config;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::{BackendError, Capabilities, LeaseIds};
use crate::closing::Closing;
use crate::error::Error;
use crate::sync::Mutex;
use connection::Timeouts;
use succession::Succession;
use transport::Transport;
use wake::{Subscription, Wake};

/// Leases on one Redis server, version 6.2 or later, or one Valkey server.
///
/// It keeps two connections: one for commands, one that listens on the channel `leasehold:<client id>`.
pub struct RedisBackend {
    ids: LeaseIds,
    capabilities: Capabilities,
    timeouts: Timeouts,
    transport: Arc<Transport>,
    subscriber: Client,
    wake: Arc<Wake>,
    closing: Closing,
    background: Mutex<Option<Background>>,
}

/// What runs for an open backend. The drivers end by themselves once it is closed, the rest when dropped.
struct Background {
    drivers: [JoinHandle<()>; 2],
    _subscription: Subscription,
    _strays: AbortOnDropHandle<()>,
}

const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Makes a [`RedisBackend`] from a fred configuration.
///
/// | setting | default | why |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | 2 s | an address nobody answers on should be reported soon |
/// | [`reply_timeout`](Self::reply_timeout) | 2 s | a script takes microseconds; later means that something is wrong |
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisBuilder {
    config: Config,
    timeouts: Timeouts,
}

impl RedisBuilder {
    /// How long connecting may take, in all.
    ///
    /// Default: 2 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long one command may take before its outcome counts as unknown. A third of a lease is the limit in
    /// any case.
    ///
    /// Default: 2 s.
    pub const fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.reply = timeout;
        self
    }

    /// Connects, subscribes, and sees that both work.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a timeout is below 1 ms or above 1 h.
    /// * [`Error::Unsupported`] for clusters and sentinels.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached in time.
    /// * [`Error::StoreRefused`] if it refuses the credentials, or does not let this user subscribe.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<RedisBackend, Error> {
        let Self { config, timeouts } = self;
        for timeout in [timeouts.connect, timeouts.reply] {
            if timeout < MIN_TIMEOUT || timeout > MAX_TIMEOUT {
                let why = format!("{timeout:?} is outside {MIN_TIMEOUT:?} to {MAX_TIMEOUT:?}");
                return Err(Error::invalid("timeout", why));
            }
        }
        let store = url::address(&config)?;
        let opened =
            tokio::time::timeout(timeouts.connect, RedisBackend::open(&config, timeouts, store.clone()))
                .await;
        opened
            .unwrap_or_else(|late| Err(BackendError::Unanswered { source: late.into() }))
            .map_err(|error| Error::from_backend(error, "connect", None, &store))
    }
}

impl fmt::Debug for RedisBuilder {
    /// Leaves the configuration out but for the address: it holds the password.
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
        Self::builder(url::parse(url)?).connect().await
    }

    /// Starts from an existing fred configuration: server, credentials, database and TLS are taken from it.
    /// Protocol version, retries and timeouts are set here, since the promises depend on them.
    pub const fn builder(config: Config) -> RedisBuilder {
        const DEFAULT: Duration = Duration::from_secs(2);
        RedisBuilder { config, timeouts: Timeouts { connect: DEFAULT, reply: DEFAULT } }
    }

    async fn open(config: &Config, timeouts: Timeouts, store: String) -> Result<Self, BackendError> {
        let (strays, stray) = mpsc::unbounded_channel();
        let ids = LeaseIds::new();
        let wake = Arc::new(Wake::new(ids.client(), strays));
        let client = connection::client(config, timeouts);
        let backend = Self {
            capabilities: Capabilities::new(store, true),
            timeouts,
            transport: Arc::new(Transport::new(client, timeouts, Arc::clone(&wake))),
            subscriber: connection::client(config, timeouts),
            wake,
            ids,
            closing: Closing::default(),
            background: Mutex::default(),
        };
        let (commands, subscriber) = (backend.transport.client(), &backend.subscriber);
        let closed = || backend.closing.token();
        let drivers = [
            connection::connect(commands, backend.transport.succession(), timeouts, closed()).await?,
            connection::connect(subscriber, &Arc::new(Succession::default()), timeouts, closed()).await?,
        ];
        let (channel, wake) = (keys::channel(backend.ids.client()), Arc::clone(&backend.wake));
        let subscription = Subscription::open(subscriber, commands, channel, wake, timeouts).await?;
        let strays = tokio::spawn(verbs::release_strays(Arc::clone(&backend.transport), stray));
        *backend.background.lock() = Some(Background {
            drivers,
            _subscription: subscription,
            _strays: AbortOnDropHandle::new(strays),
        });
        Ok(backend)
    }

    /// Quits both connections and waits until they are closed.
    async fn close_connections(&self) {
        self.closing.close();
        let background = self.background.lock().take();
        if let Some(Background { drivers: [commands, subscriber], .. }) = background {
            for ended in [commands.await, subscriber.await] {
                if let Err(error) = ended {
                    tracing::warn!(%error, "a connection was not closed in good order");
                }
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
        let config = Config::from_url("redis://user:hunter2@db:7000").unwrap();
        let text = format!("{:?}", RedisBackend::builder(config));
        assert!(text.contains("redis://db:7000") && !text.contains("hunter2"), "{text}");
    }
}
