//! The settings of a client, and connecting.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, Pool};
use tokio::time::timeout;

use super::session::Session;
use super::watch::Watch;
use super::{MysqlBackend, MysqlStore, tls};
use crate::backend::records::{ConnectionLimits, Failure, Workers};
use crate::backend::tls::{TlsOptions, invalid};
use crate::backend::{Backend, BackendError, LedgerBackend};
use crate::error::Error;

const TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);
const CONNECTIONS: usize = 5;
/// One to look, one for changes.
const MIN_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 64;
/// How large a record may be, unless the configuration says so.
const MAX_PACKET: usize = 16 * 1024 * 1024;

/// Makes a [`MysqlBackend`]: see [`MysqlBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
/// | [`max_connections`](Self::max_connections) | `max_connections=5` | 5 |
/// | [`push`](Self::push) | `push=off` | `get_lock` |
/// | [`create`](Self::create) | `create=false` | true |
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct MysqlBuilder {
    pub(super) settings: Settings,
}

/// How a waiting client is notified that it is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MysqlPush {
    /// By named locks (`GET_LOCK`): a waiting client uses one connection for each key that it waits for, as far as
    /// [`max_connections`](MysqlBuilder::max_connections) allows. For other keys, and for semaphores, it polls.
    #[default]
    GetLock,
    /// It polls, with one query for all keys that it waits for: every 10 ms if it is next, down to once every 100 ms if it is not.
    Off,
}

/// The settings of a client.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) opts: Opts,
    /// Without credentials.
    pub(super) address: String,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
    pub(super) max_connections: usize,
    pub(super) create: bool,
    pub(super) push: MysqlPush,
    tls_options: Option<TlsOptions>,
    /// Whether TLS was asked for in a URL, which says no more about it.
    is_tls_of_url: bool,
    /// What this client waits for.
    pub(super) watch: Arc<Watch>,
    /// Set once there are any.
    pub(super) workers: OnceLock<Weak<Workers<Session>>>,
}

impl MysqlBuilder {
    pub(super) fn new(opts: Opts) -> Self {
        let max_packet = opts.max_allowed_packet().unwrap_or(MAX_PACKET);
        let attributes = opts
            .connect_attributes()
            .cloned()
            .unwrap_or_else(|| HashMap::from([("program_name".to_owned(), "leasehold".to_owned())]));
        // `client_found_rows` off: the count of changed rows must not include rows that were already as requested. `prefer_socket` off: a
        // local proxy must not be bypassed.
        let opts: Opts = OptsBuilder::from_opts(opts)
            .client_found_rows(false)
            .prefer_socket(false)
            .max_allowed_packet(Some(max_packet))
            .wait_timeout(Some(0))
            .connect_attributes(attributes)
            .into();
        let settings = Settings {
            address: address(&opts),
            opts,
            connect_timeout: TIMEOUT,
            reply_timeout: TIMEOUT,
            max_connections: CONNECTIONS,
            create: true,
            push: MysqlPush::default(),
            tls_options: None,
            is_tls_of_url: false,
            watch: Arc::new(Watch::new(0)),
            workers: OnceLock::new(),
        };
        Self { settings }
    }

    pub(super) async fn of_pool(pool: &Pool) -> Result<Self, Error> {
        let connection = match timeout(TIMEOUT, pool.get_conn()).await {
            Ok(connection) => connection.map_err(Failure::from),
            Err(_) => {
                Err(Failure::unavailable(format!("the pool provided no connection within {TIMEOUT:?}")))
            }
        };
        let failed =
            |failure: Failure| Error::from_backend(failure.before_storing(), "connect", None, "mysql");
        Ok(Self::new(connection.map_err(failed)?.opts().clone()))
    }

    pub(super) fn of_url(opts: Opts) -> Self {
        let mut builder = Self::new(opts);
        builder.settings.is_tls_of_url = builder.settings.opts.ssl_opts().is_some();
        builder
    }

    /// How long connecting may take, including all checks; 1 ms to 1 h.
    ///
    /// Default: 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer, 1 ms to 1 h. After that, the client abandons the connection.
    ///
    /// Default: 2 s.
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.settings.reply_timeout = timeout;
        self
    }

    /// The maximum number of connections of a client, 2 to 64, or 3 to 64 if it waits for named locks: one watches the rows that the client
    /// waits for, and one is for changes. Of the others, up to half are opened to wait for named locks, and the rest while changes are
    /// held up by a locked row.
    ///
    /// Default: 5.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.max_connections = connections;
        self
    }

    /// How a waiting client is notified that it is next.
    ///
    /// Default: [`MysqlPush::GetLock`].
    pub fn push(mut self, push: MysqlPush) -> Self {
        self.settings.push = push;
        self
    }

    /// Whether the tables are created if they do not exist. If not, create them with [`SCHEMA`](super::SCHEMA).
    ///
    /// Default: true.
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// The certificates for TLS, if the URL has `require_ssl=true`; they replace those of the configuration. By default, the authorities
    /// that the system trusts are used. The server's certificate and its host name are always verified.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.settings.tls_options = Some(options);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or no database is given.
    /// * [`Error::Unsupported`] if TLS is required, and this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached within [`connect_timeout`](Self::connect_timeout), does not currently
    ///   accept connections, or is read-only.
    /// * [`Error::StoreRefused`] if it refuses the credentials, is older than MySQL 8.0 or MariaDB 10.5, its database does not exist, or the
    ///   tables do not exist and cannot be created, do not use InnoDB, have another version or may not be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<MysqlBackend, Error> {
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
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or no database is given;
    /// [`Error::Unsupported`] if TLS is required, and this
    /// build lacks it.
    pub fn connect_lazy(self) -> Result<MysqlBackend, Error> {
        let settings = self.settings;
        settings.check()?;
        let mut settings = settings.with_tls()?;
        // What is waited for belongs to one client, and so do its workers.
        settings.watch = Arc::new(Watch::new(settings.max_waiters()));
        settings.workers = OnceLock::new();
        let address = settings.address.clone();
        let store = MysqlStore::start(Arc::new(settings)).map_err(|source| {
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
        let least = MIN_CONNECTIONS + usize::from(self.push == MysqlPush::GetLock);
        if !(least..=MAX_CONNECTIONS).contains(&self.max_connections) {
            let reason = format!("{} is not between {least} and {MAX_CONNECTIONS}", self.max_connections);
            return Err(Error::invalid("max_connections", reason));
        }
        if self.opts.db_name().is_none_or(str::is_empty) {
            return Err(Error::invalid("database", "no database is given"));
        }
        Ok(())
    }

    fn with_tls(mut self) -> Result<Self, Error> {
        if self.opts.ssl_opts().is_none() {
            return match self.tls_options {
                None => Ok(self),
                Some(_) => Err(invalid("the URL does not enable TLS: add `require_ssl=true`")),
            };
        }
        if self.is_tls_of_url || self.tls_options.is_some() {
            let options = self.tls_options.take().unwrap_or_default();
            self.opts = tls::with_tls(self.opts, &options, &self.address)?;
        }
        Ok(self)
    }

    /// How many connections wait for named locks at most.
    pub(super) const fn max_waiters(&self) -> usize {
        match self.push {
            MysqlPush::GetLock => (self.max_connections - 1) / 2,
            MysqlPush::Off => 0,
        }
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
        // One looks.
        self.max_connections - 1 - self.max_waiters()
    }
}

/// `mysql://host:port/database`
fn address(opts: &Opts) -> String {
    let database = opts.db_name().map(|name| format!("/{name}")).unwrap_or_default();
    match opts.socket() {
        Some(socket) => format!("mysql://{socket}{database}"),
        None => format!("mysql://{}:{}{database}", opts.ip_or_hostname(), opts.tcp_port()),
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opts: _,
            address,
            connect_timeout,
            reply_timeout,
            max_connections,
            create,
            push,
            tls_options: _,
            is_tls_of_url: _,
            watch: _,
            workers: _,
        } = self;
        f.debug_struct("Settings")
            .field("address", address)
            .field("connect_timeout", connect_timeout)
            .field("reply_timeout", reply_timeout)
            .field("max_connections", max_connections)
            .field("create", create)
            .field("push", push)
            .finish_non_exhaustive()
    }
}
