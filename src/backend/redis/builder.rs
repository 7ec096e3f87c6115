//! The settings of a client, and connecting with them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "fred")]
use ::fred::types::config::Config;
use uuid::Uuid;

use super::connection::Timeouts;
use super::credentials::CredentialsProvider;
#[cfg(feature = "fred")]
use super::fred;
use super::link::Library as LinkLibrary;
#[cfg(feature = "redis-rs")]
use super::redis_rs;
use super::replicas::Quota;
use super::target::{Login, Server, Target, Topology};
use super::{RedisBackend, runtime, tls, url};
use crate::backend::dial;
use crate::backend::tls::TlsOptions;
use crate::backend::{BackendError, MAX_TTL};
use crate::error::Error;
use crate::home::Home;

const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// How long a server that has not answered may take to accept another connection.
const PROBE: Duration = Duration::from_millis(100);
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
///
/// ```
/// use std::time::Duration;
/// use leasehold::redis::RedisBackend;
///
/// let backend = RedisBackend::builder("redis://127.0.0.1:6379")?
///     .reply_timeout(Duration::from_millis(500))
///     .poll_interval(Duration::from_millis(50)) // other libraries use these locks, too
///     .connect_lazy()?;
/// # drop(backend);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct RedisBuilder {
    pub(super) target: Target,
    library: Library,
    pub(super) timeouts: Timeouts,
    pub(super) poll_interval: Option<Duration>,
    pub(super) repair: Option<Duration>,
    pub(super) quota: Option<Quota>,
    pub(super) fail_fast: bool,
    tls: Option<TlsOptions>,
    pub(super) sentinel_login: Option<Login>,
    /// After which the connections are named.
    pub(super) label: Option<Arc<str>>,
    /// The client and its home, if it is one of several nodes.
    pub(super) node_of: Option<(Uuid, Arc<Home>)>,
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
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.connect_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long one command may take before its outcome counts as unknown. For requests and renewals, the limit is
    /// never more than a third of the TTL. From 1 ms to 1 h.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.reply_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.reply = timeout;
        self
    }

    /// Shares locks with clients of other libraries, which poll: this is the longest interval at which they retry. From
    /// 1 ms to 1 min. Set the same one for all clients of this crate that use these locks.
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
    /// In a gap, `lock` waits for its end. `try_lock` gets the lock if nobody waits. Clients without this option
    /// respect gaps too, but leave none, and notice only after up to a third of their TTL that another library has
    /// released the lock. The option has no effect on semaphores, for which there is no common recipe.
    ///
    /// Default: none. A waiter checks when the holder's lease should have ended, and every third of the TTL; while
    /// clients of this crate wait for a lock, those of other libraries hardly ever get it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.poll_interval(Duration::from_millis(50));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval);
        self
    }

    /// Sets this expiry on a lock key that has none, starting with the first request that finds it. Such keys are left
    /// behind by clients that set the key and its expiry in two steps and die in between; no client would ever get the
    /// lock again. From 1 ms to 24 h. Enable this only if no client deliberately locks without an expiry.
    ///
    /// Default: off.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?
    ///     .repair_keys_without_expiry(Duration::from_secs(60));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn repair_keys_without_expiry(mut self, expiry: Duration) -> Self {
        self.repair = Some(expiry);
        self
    }

    /// Waits after every grant until `replicas` replicas have acknowledged it, for at most `time_limit`. If too few do,
    /// the lease is released, and the call fails with [`Error::StoreRefused`], which says how many did. `replicas` is
    /// at least 1, and `time_limit` from 1 ms to the reply timeout.
    ///
    /// A failover then loses a lock only if the promoted replica is not one of those that acknowledged the grant;
    /// renewals do not wait for replicas. Each grant costs an additional round trip between the servers, and one that
    /// results from another client's release also costs this client a round trip. Simultaneous grants share these round
    /// trips.
    ///
    /// Default: none. A failover may lose the latest grants.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.wait_replicas(1, Duration::from_millis(100));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
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
    ///
    /// ```
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.fail_fast(true);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn fail_fast(mut self, fail_fast: bool) -> Self {
        self.fail_fast = fail_fast;
        self
    }

    /// Connects through [redis-rs](https://docs.rs/redis) instead of fred.
    ///
    /// ```
    /// # use leasehold::redis::RedisBackend;
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.through_redis_rs();
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[cfg(feature = "redis-rs")]
    pub fn through_redis_rs(mut self) -> Self {
        self.library = Library::RedisRs;
        self
    }

    /// Certificates for a TLS URL (`rediss://` and the like), which needs the feature `rustls` or `native-tls`.
    ///
    /// Default: the authorities that the system trusts, no client certificate.
    ///
    /// ```
    /// # use leasehold::TlsOptions;
    /// # use leasehold::redis::RedisBackend;
    /// # fn example(authority: Vec<u8>) -> Result<(), leasehold::Error> {
    /// let options = TlsOptions::new().ca_certificate_pem(authority);
    /// let builder = RedisBackend::builder("rediss://redis.example")?.tls(options);
    /// # drop(builder);
    /// # Ok(()) }
    /// # let _ = example;
    /// ```
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
    ///
    /// ```
    /// # use leasehold::redis::{Credentials, RedisBackend};
    /// let rotated = Credentials::new("worker", "secret"); // or your own provider, which is asked before every attempt
    /// let builder = RedisBackend::builder("redis://127.0.0.1:6379")?.credentials(rotated);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.target.login.provider = Some(Arc::new(provider));
        self
    }

    /// The credentials for sentinels that have a password of their own. The password in the URL is for the Redis
    /// servers and is never sent to sentinels.
    ///
    /// Default: no login.
    ///
    /// ```
    /// # use leasehold::redis::{Credentials, RedisBackend};
    /// let builder = RedisBackend::builder("redis-sentinel://10.0.0.7,10.0.0.8/main")?
    ///     .sentinel_credentials(Credentials::for_default_user("secret"));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn sentinel_credentials(mut self, provider: impl CredentialsProvider + 'static) -> Self {
        self.sentinel_login = Some(Login { provider: Some(Arc::new(provider)), ..Login::default() });
        self
    }

    /// Names the connections after a client with this label (`CLIENT LIST`).
    pub(crate) fn named_after(mut self, label: Option<&str>) -> Self {
        self.label = label.map(Arc::from);
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
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or if there are credentials for sentinels and the
    ///   URL names none.
    /// * [`Error::Unsupported`] for TLS, if this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached in time, or this crate's own thread cannot be
    ///   started.
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
    /// [`Error::InvalidArgument`] and [`Error::Unsupported`], as for [`connect`](Self::connect);
    /// [`Error::StoreUnavailable`] if this crate's own thread cannot be started.
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

    /// Settings for a connection from a configuration of [fred](https://docs.rs/fred), through which this store talks
    /// to the server: server, credentials, database and TLS are taken from it. This crate sets protocol version,
    /// retries and timeouts itself, because its guarantees depend on them. To use the configuration of an existing
    /// client, pass `client.client_config()`; its connections are not shared.
    ///
    /// The configuration must come from the major version of fred on which this crate depends. A release of this crate
    /// may move to another version: this function is exempt from semantic versioning.
    ///
    /// ```
    /// let config = fred::types::config::Config::from_url("redis://127.0.0.1:6379")?;
    /// let builder = leasehold::redis::RedisBackend::builder_from_fred(config);
    /// # drop(builder);
    /// # Ok::<(), fred::error::Error>(())
    /// ```
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
    /// ```
    /// let existing = redis::Client::open("redis://127.0.0.1:6379")?;
    /// let builder = leasehold::redis::RedisBackend::builder_from_redis_rs(&existing)?;
    /// # drop(builder);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            label: None,
            node_of: None,
        }
    }
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
