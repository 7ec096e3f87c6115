//! What an application sets, and connecting.

use std::time::Duration;

use tokio_postgres::Config;

use super::PostgresBackend;
use super::settings::Settings;
use super::shared::Postgres;
use crate::backend::LedgerBackend;
use crate::backend::sql::Store;
use crate::backend::tls::TlsOptions;
use crate::error::Error;

/// Makes a [`PostgresBackend`]: see [`PostgresBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
/// | [`max_connections`](Self::max_connections) | `max_connections=5` | 5 |
/// | [`create`](Self::create) | `create=false` | true |
/// | [`schema`](Self::schema) | `schema=locks` | the session's `search_path` |
///
/// ```
/// use std::time::Duration;
/// use leasehold::postgres::PostgresBackend;
///
/// let backend = PostgresBackend::builder("postgres://app@db.example/app")?
///     .schema("locks")
///     .max_connections(2)
///     .reply_timeout(Duration::from_millis(500))
///     .connect_lazy()?;
/// # drop(backend);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct PostgresBuilder {
    pub(super) settings: Settings,
}

impl PostgresBuilder {
    pub(super) fn new(config: Config) -> Self {
        Self { settings: Settings::of(config) }
    }

    /// How long connecting may take, including all checks; 1 ms to 1 h.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::postgres::PostgresBackend;
    /// let builder = PostgresBackend::builder("postgres://app@db.example/app")?
    ///     .connect_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long the server may take to answer, 1 ms to 1 h. After that, the client abandons the connection. The server
    /// cancels a statement that takes longer.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::postgres::PostgresBackend;
    /// let builder = PostgresBackend::builder("postgres://app@db.example/app")?
    ///     .reply_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.settings.reply_timeout = timeout;
        self
    }

    /// The maximum number of connections of a client, 2 to 64: one for notifications, and one for changes; the others
    /// are opened while changes are held up by a locked row.
    ///
    /// Default: 5.
    ///
    /// ```
    /// # use leasehold::postgres::PostgresBackend;
    /// let builder = PostgresBackend::builder("postgres://app@db.example/app")?.max_connections(2);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.settings.max_connections = connections;
        self
    }

    /// Whether the tables are created if they do not exist. If not, create them with [`SCHEMA`](super::SCHEMA).
    ///
    /// Default: true.
    ///
    /// ```
    /// # use leasehold::postgres::PostgresBackend;
    /// let builder = PostgresBackend::builder("postgres://app@db.example/app")?.create(false);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.settings.create = create;
        self
    }

    /// The schema that contains the tables, which must exist: 1 to 63 letters (`a-z`, `A-Z`), digits and `_`, not
    /// beginning with a digit, and case-sensitive. Clients whose schemas differ use different tables, so their locks do
    /// not exclude each other.
    ///
    /// Default: the tables are looked for in the `search_path` of the session, and created in the first schema of it
    /// that exists. Roles may differ in that; connecting warns if there are tables in several schemas.
    ///
    /// ```
    /// # use leasehold::postgres::PostgresBackend;
    /// let builder = PostgresBackend::builder("postgres://app@db.example/app")?.schema("locks");
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.settings = self.settings.with_schema(schema.into());
        self
    }

    /// The certificates for TLS, if the URL has `sslmode=require`. By default, the authorities that the system trusts
    /// are used. The server's certificate and its host name are always verified.
    ///
    /// ```
    /// # use leasehold::TlsOptions;
    /// # use leasehold::postgres::PostgresBackend;
    /// # fn example(authority: Vec<u8>) -> Result<(), leasehold::Error> {
    /// let options = TlsOptions::new().ca_certificate_pem(authority);
    /// let builder = PostgresBackend::builder("postgres://app@db.example/app?sslmode=require")?.tls(options);
    /// # drop(builder);
    /// # Ok(()) }
    /// # let _ = example;
    /// ```
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.settings.tls_options = Some(options);
        self
    }

    /// Names the sessions after a client with this label, unless the configuration names them.
    pub(crate) fn named_after(mut self, label: Option<&str>) -> Self {
        self.settings.name_after(label);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or no host is given.
    /// * [`Error::Unsupported`] if TLS is required, and this build lacks it.
    /// * [`Error::StoreUnavailable`] if the server cannot be reached within [`connect_timeout`](Self::connect_timeout),
    ///   does not currently accept connections, or is a standby.
    /// * [`Error::StoreRefused`] if it refuses the credentials, is older than PostgreSQL 12, its database does not
    ///   exist or is not encoded in UTF-8, the tables do not exist and cannot be created, were not made by this crate,
    ///   have another version or may not be used, or the connection goes through a pooler in transaction mode.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<PostgresBackend, Error> {
        let backend = self.connect_lazy()?;
        backend.0.store().connected().await.map_err(|error| backend.0.connect_error(error))?;
        Ok(backend)
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or no host is given; [`Error::Unsupported`] if TLS is
    /// required, and this build lacks it; [`Error::StoreUnavailable`] if this crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<PostgresBackend, Error> {
        self.settings.check()?;
        let settings = self.settings.with_tls()?;
        let address = settings.address.clone();
        LedgerBackend::started(Store::start(Postgres::new(settings)), &address).map(PostgresBackend)
    }
}
