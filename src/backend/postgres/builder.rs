//! The settings of a client, and connecting.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::session::PoolerCheck;
use super::{PostgresBackend, PostgresStore};
use crate::backend::records::ConnectionLimits;
use crate::backend::tls::{Tls, TlsOptions, invalid};
use crate::backend::{Backend, BackendError, LedgerBackend};
use crate::error::Error;

const TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);
const CONNECTIONS: usize = 5;
const MIN_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 64;

/// Makes a [`PostgresBackend`]: see [`PostgresBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
/// | [`max_connections`](Self::max_connections) | `max_connections=5` | 5 |
/// | [`create`](Self::create) | `create=false` | true |
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct PostgresBuilder {
    pub(super) settings: Settings,
}

/// The settings of a client.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// Without credentials.
    pub(super) address: String,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
    pub(super) max_connections: usize,
    pub(super) create: bool,
    pub(super) tls_options: Option<TlsOptions>,
    /// Set if it is required.
    pub(super) tls: Option<Tls>,
    pub(super) pooler_check: Arc<PoolerCheck>,
}

impl PostgresBuilder {
    pub(super) fn new(mut config: Config) -> Self {
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        let servers = config.get_hosts().len().max(config.get_hostaddrs().len());
        if servers > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // The primary.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let settings = Settings {
            address: address(&config),
            connect_timeout: config.get_connect_timeout().copied().unwrap_or(TIMEOUT),
            config,
            reply_timeout: TIMEOUT,
            max_connections: CONNECTIONS,
            create: true,
            tls_options: None,
            tls: None,
            pooler_check: Arc::default(),
        };
        Self { settings }
    }

    /// How long connecting may take, including all checks; 1 ms to 1 h.
    ///
    /// Default: 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer, 1 ms to 1 h. After that, the client abandons the connection. The server cancels a statement
    /// that takes longer.
    ///
    /// Default: 2 s.
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.settings.reply_timeout = timeout;
        self
    }

    /// The maximum number of connections of a client, 2 to 64: one for notifications, and one for changes; the others are opened
    /// while changes are held up by a locked row.
    ///
    /// Default: 5.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.max_connections = connections;
        self
    }

    /// Whether the tables are created if they do not exist. If not, create them with [`SCHEMA`](super::SCHEMA).
    ///
    /// Default: true.
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// The certificates for TLS, if the URL has `sslmode=require`. By default, the authorities that the system trusts are used. The
    /// server's certificate and its host name are always verified.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.settings.tls_options = Some(options);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or no host is given.
    /// * [`Error::Unsupported`] if TLS is required, and this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached within [`connect_timeout`](Self::connect_timeout), does not currently
    ///   accept connections, or is a standby.
    /// * [`Error::StoreRefused`] if it refuses the credentials, is older than PostgreSQL 12, its database does not exist or is not
    ///   encoded in UTF-8, the tables do not exist and cannot be created, have another version or may not be used, or the connection
    ///   goes through a pooler in transaction mode.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<PostgresBackend, Error> {
        let backend = self.connect_lazy()?;
        let store = backend.store();
        let address = &backend.capabilities().store;
        let failed = |error| Error::from_backend(error, "connect", None, address);
        store.connected().await.map_err(failed)?;
        Ok(backend)
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or no host is given; [`Error::Unsupported`] if TLS is required, and this
    /// build lacks it; [`Error::StoreUnavailable`] if this crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<PostgresBackend, Error> {
        // The result of the pooler check belongs to one client.
        let settings = Settings { pooler_check: Arc::default(), ..self.settings };
        settings.check()?;
        let settings = settings.with_tls()?;
        let address = settings.address.clone();
        let store = PostgresStore::start(Arc::new(settings)).map_err(|source| {
            let source = BackendError::NotSent { source: source.into() };
            Error::from_backend(source, "connect", None, &address)
        })?;
        Ok(LedgerBackend::on(store))
    }
}

impl Settings {
    fn check(&self) -> Result<(), Error> {
        for (argument, timeout) in
            [("connect_timeout", self.connect_timeout), ("reply_timeout", self.reply_timeout)]
        {
            if !TIMEOUTS.contains(&timeout) {
                let reason =
                    format!("{timeout:?} is not between {:?} and {:?}", TIMEOUTS.start(), TIMEOUTS.end());
                return Err(Error::invalid(argument, reason));
            }
        }
        if !(MIN_CONNECTIONS..=MAX_CONNECTIONS).contains(&self.max_connections) {
            let reason =
                format!("{} is not between {MIN_CONNECTIONS} and {MAX_CONNECTIONS}", self.max_connections);
            return Err(Error::invalid("max_connections", reason));
        }
        if self.config.get_hosts().is_empty() && self.config.get_hostaddrs().is_empty() {
            return Err(Error::invalid("host", "no host is given"));
        }
        Ok(())
    }
}

impl Settings {
    fn with_tls(mut self) -> Result<Self, Error> {
        let is_required = self.config.get_ssl_mode() == SslMode::Require;
        if self.tls_options.is_some() && !is_required {
            return Err(invalid("the URL does not enable TLS: add `sslmode=require`"));
        }
        if is_required {
            self.tls = Some(Tls::new(&self.tls_options.take().unwrap_or_default(), &self.address)?);
        }
        Ok(self)
    }
}

impl ConnectionLimits for Settings {
    fn address(&self) -> &str {
        &self.address
    }

    fn timeouts(&self) -> (Duration, Duration) {
        (self.connect_timeout, self.reply_timeout)
    }

    fn max_workers(&self) -> usize {
        // One is for notifications.
        self.max_connections - 1
    }
}

/// `postgres://host:port,host:port/database`
fn address(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |n: usize| ports.get(n).or(ports.first()).copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().enumerate().map(|(n, host)| match host {
        Host::Tcp(host) if host.contains(':') => format!("[{host}]:{}", port(n)),
        Host::Tcp(host) => format!("{host}:{}", port(n)),
        #[cfg(unix)]
        Host::Unix(directory) => format!("{}:{}", directory.display(), port(n)),
    });
    let mut hosts: Vec<_> = hosts.collect();
    if hosts.is_empty() {
        let addresses = config.get_hostaddrs().iter().enumerate();
        hosts = addresses.map(|(n, address)| format!("{address}:{}", port(n))).collect();
    }
    let database = config.get_dbname().map(|name| format!("/{name}")).unwrap_or_default();
    format!("postgres://{}{database}", hosts.join(","))
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            config: _,
            address,
            connect_timeout,
            reply_timeout,
            max_connections,
            create,
            tls_options: _,
            tls: _,
            pooler_check: _,
        } = self;
        f.debug_struct("Settings")
            .field("address", address)
            .field("connect_timeout", connect_timeout)
            .field("reply_timeout", reply_timeout)
            .field("max_connections", max_connections)
            .field("create", create)
            .finish_non_exhaustive()
    }
}
