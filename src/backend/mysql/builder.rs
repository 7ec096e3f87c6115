//! Making a client: its settings, and connecting.

use std::collections::HashMap;
use std::time::Duration;

use mysql_async::{Opts, OptsBuilder, Pool};
use tokio::time::timeout;

use super::MysqlBackend;
use super::settings::{MysqlPush, Settings};
use super::shared::Mysql;
use crate::backend::LedgerBackend;
use crate::backend::records::{Failure, TIMEOUT};
use crate::backend::sql::Store;
use crate::backend::tls::TlsOptions;
use crate::error::Error;

/// How large a record may be, unless the configuration says so.
const MAX_PACKET: usize = 16 * 1024 * 1024;

/// The attribute by which a server tells connections apart, and its value.
const PROGRAM_NAME: &str = "program_name";
const PROGRAM: &str = "leasehold";

/// Makes a [`MysqlBackend`]: see [`MysqlBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
/// | [`max_connections`](Self::max_connections) | `max_connections=5` | 5 |
/// | [`push`](Self::push) | `push=off` | `get_lock` |
/// | [`create`](Self::create) | `create=false` | true |
///
/// ```
/// use std::time::Duration;
/// use leasehold::mysql::MysqlBackend;
///
/// let backend = MysqlBackend::builder("mysql://app@db.example/app")?
///     .max_connections(3)
///     .reply_timeout(Duration::from_millis(500))
///     .connect_lazy()?;
/// # drop(backend);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct MysqlBuilder {
    pub(super) settings: Settings,
}

impl MysqlBuilder {
    pub(super) fn new(opts: Opts) -> Self {
        let max_packet = opts.max_allowed_packet().unwrap_or(MAX_PACKET);
        let attributes = opts
            .connect_attributes()
            .cloned()
            .unwrap_or_else(|| HashMap::from([(PROGRAM_NAME.to_owned(), PROGRAM.to_owned())]));
        // `client_found_rows` off: the count of changed rows must not include rows that were already as requested.
        // `prefer_socket` off: a local proxy must not be bypassed.
        let opts: Opts = OptsBuilder::from_opts(opts)
            .client_found_rows(false)
            .prefer_socket(false)
            .max_allowed_packet(Some(max_packet))
            .wait_timeout(Some(0))
            .connect_attributes(attributes)
            .into();
        Self { settings: Settings::of(opts) }
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
        builder.settings.target.is_tls_of_url = builder.settings.target.opts.ssl_opts().is_some();
        builder
    }

    /// How long connecting may take, including all checks; 1 ms to 1 h.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::mysql::MysqlBackend;
    /// let builder = MysqlBackend::builder("mysql://app@db.example/app")?.connect_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer, 1 ms to 1 h. After that, the client abandons the connection.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::mysql::MysqlBackend;
    /// let builder = MysqlBackend::builder("mysql://app@db.example/app")?.reply_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.settings.reply_timeout = timeout;
        self
    }

    /// The maximum number of connections of a client, 2 to 64, or 3 to 64 if it waits for named locks: one watches the
    /// rows that the client waits for, and one is for changes. Of the others, up to half are opened to wait for named
    /// locks, and the rest while changes are held up by a locked row.
    ///
    /// Default: 5.
    ///
    /// ```
    /// # use leasehold::mysql::MysqlBackend;
    /// let builder = MysqlBackend::builder("mysql://app@db.example/app")?.max_connections(3);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.max_connections = connections;
        self
    }

    /// How a waiting client is notified that it is next.
    ///
    /// Default: [`MysqlPush::GetLock`].
    ///
    /// ```
    /// # use leasehold::mysql::MysqlBackend;
    /// let builder = MysqlBackend::builder("mysql://app@db.example/app")?.push(leasehold::mysql::MysqlPush::Off);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn push(mut self, push: MysqlPush) -> Self {
        self.settings.target.push = push;
        self
    }

    /// Whether the tables are created if they do not exist. If not, create them with [`SCHEMA`](super::SCHEMA).
    ///
    /// Default: true.
    ///
    /// ```
    /// # use leasehold::mysql::MysqlBackend;
    /// let builder = MysqlBackend::builder("mysql://app@db.example/app")?.create(false);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// The certificates for TLS, if the URL has `require_ssl=true`; they replace those of the configuration. By
    /// default, the authorities that the system trusts are used. The server's certificate and its host name are always
    /// verified.
    ///
    /// ```
    /// # use leasehold::TlsOptions;
    /// # use leasehold::mysql::MysqlBackend;
    /// # fn example(authority: Vec<u8>) -> Result<(), leasehold::Error> {
    /// let options = TlsOptions::new().ca_certificate_pem(authority);
    /// let builder = MysqlBackend::builder("mysql://app@db.example/app?require_ssl=true")?.tls(options);
    /// # drop(builder);
    /// # Ok(()) }
    /// # let _ = example;
    /// ```
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.settings.tls_options = Some(options);
        self
    }

    /// Names the connections after a client with this label, unless the configuration has attributes.
    pub(crate) fn named_after(mut self, label: Option<&str>) -> Self {
        let opts = &mut self.settings.target.opts;
        let name = opts.connect_attributes().and_then(|attributes| attributes.get(PROGRAM_NAME));
        let is_ours = name.is_some_and(|name| name == PROGRAM);
        if let Some(label) = label.filter(|_| is_ours) {
            let named = OptsBuilder::from_opts(opts.clone());
            *opts = named.connect_attribute(PROGRAM_NAME, format!("{PROGRAM} {label}")).into();
        }
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or no database is given.
    /// * [`Error::Unsupported`] if TLS is required, and this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached within [`connect_timeout`](Self::connect_timeout),
    ///   does not currently accept connections, or is read-only.
    /// * [`Error::StoreRefused`] if it refuses the credentials, is older than MySQL 8.0 or MariaDB 10.5, its database
    ///   does not exist, or the tables do not exist and cannot be created, do not use InnoDB, have another version or
    ///   may not be used.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<MysqlBackend, Error> {
        let backend = self.connect_lazy()?;
        backend.0.store().connected().await.map_err(|error| backend.0.connect_error(error))?;
        Ok(backend)
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or no database is given; [`Error::Unsupported`] if TLS
    /// is required, and this build lacks it; [`Error::StoreUnavailable`] if the crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<MysqlBackend, Error> {
        self.settings.check()?;
        let settings = self.settings.with_tls()?;
        let address = settings.address.clone();
        LedgerBackend::started(Store::start(Mysql::new(settings)), &address).map(MysqlBackend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_named_after_the_client_unless_they_have_attributes() {
        let name = |opts: OptsBuilder, label| {
            let builder = MysqlBuilder::new(opts.into()).named_after(label);
            builder.settings.target.opts.connect_attributes().and_then(|all| all.get(PROGRAM_NAME)).cloned()
        };
        let plain = OptsBuilder::default;
        assert_eq!(name(plain(), Some("api-7")).as_deref(), Some("leasehold api-7"));
        assert_eq!(name(plain(), None).as_deref(), Some("leasehold"));
        let own = || plain().connect_attribute("program_name", "mine");
        assert_eq!(name(own(), Some("api-7")).as_deref(), Some("mine"));
        let none = || plain().connect_attribute("team", "locks");
        assert_eq!(name(none(), Some("api-7")), None);
    }
}
