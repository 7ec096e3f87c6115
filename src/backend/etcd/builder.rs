//! The settings of a client, and connecting.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::{EtcdBackend, EtcdStore, url};
use crate::backend::tls::{Tls, TlsOptions};
use crate::backend::{Backend, BackendError, LedgerBackend};
use crate::error::Error;

const TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);
/// What all keys begin with.
const PREFIX: &str = "leasehold/";

/// Makes an [`EtcdBackend`]: see [`EtcdBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`prefix`](Self::prefix) | `prefix=team-a/leasehold/` | `leasehold/` |
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct EtcdBuilder {
    pub(super) settings: Settings,
}

/// The options of a client.
#[derive(Clone)]
pub(super) struct Settings {
    /// Members of one cluster, each `host:port`.
    pub(super) endpoints: Vec<String>,
    pub(super) login: Option<Login>,
    pub(super) prefix: String,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
    pub(super) is_encrypted: bool,
    pub(super) tls_options: Option<TlsOptions>,
    /// Set if it is encrypted.
    pub(super) tls: Option<Tls>,
    /// Without credentials.
    pub(super) address: String,
}

#[derive(Clone)]
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

impl EtcdBuilder {
    /// With the members, the user and the options of a URL.
    pub(super) fn from_url(url: &str) -> Result<Self, Error> {
        url::parse(url)
    }

    pub(super) fn new(endpoints: Vec<String>) -> Self {
        let settings = Settings {
            endpoints,
            login: None,
            prefix: PREFIX.to_owned(),
            connect_timeout: TIMEOUT,
            reply_timeout: TIMEOUT,
            is_encrypted: false,
            tls_options: None,
            tls: None,
            address: String::new(),
        };
        Self { settings }
    }

    /// The user to log in as, for a cluster with authentication.
    ///
    /// Default: none.
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.login = Some(Login { user: user.into(), password: password.into() });
        self
    }

    /// The prefix of all keys. Clients with different prefixes do not see each other's locks. The etcd user needs permission to read and
    /// write this prefix, and no other permission.
    ///
    /// Default: `leasehold/`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// How long connecting may take, including the login; 1 ms to 1 h. All members are tried within that time.
    ///
    /// Default: 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long a member may take to answer, 1 ms to 1 h. After that, the client abandons the connection and tries the next member.
    ///
    /// Default: 2 s.
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.settings.reply_timeout = timeout;
        self
    }

    /// Connects over TLS, as `etcds://` does, with these certificates. By default, `etcds://` uses the authorities that the system
    /// trusts. A member's certificate and its host name are always verified.
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.settings.is_encrypted = true;
        self.settings.tls_options = Some(options);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or no member is given.
    /// * [`Error::Unsupported`] if TLS is required, and this build lacks it.
    /// * [`Error::StoreUnavailable`] if no member can be reached within [`connect_timeout`](Self::connect_timeout), or the cluster has no
    ///   leader.
    /// * [`Error::StoreRefused`] if the cluster refuses the credentials, or the user may not read or write the prefix.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<EtcdBackend, Error> {
        let backend = self.connect_lazy()?;
        let failed = |error| Error::from_backend(error, "connect", None, &backend.capabilities().store);
        backend.store().connected().await.map_err(failed)?;
        Ok(backend)
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or no member is given; [`Error::Unsupported`] if TLS is required, and this
    /// build lacks it; [`Error::StoreUnavailable`] if this crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<EtcdBackend, Error> {
        let settings = self.settings.complete()?;
        let address = settings.address.clone();
        let store = EtcdStore::start(Arc::new(settings)).map_err(|source| {
            let source = BackendError::NotSent { source: source.into() };
            Error::from_backend(source, "connect", None, &address)
        })?;
        Ok(LedgerBackend::on(store))
    }
}

impl Settings {
    /// Checks them, and reads the certificates.
    fn complete(mut self) -> Result<Self, Error> {
        for (argument, timeout) in
            [("connect_timeout", self.connect_timeout), ("reply_timeout", self.reply_timeout)]
        {
            if !TIMEOUTS.contains(&timeout) {
                let reason =
                    format!("{timeout:?} is not between {:?} and {:?}", TIMEOUTS.start(), TIMEOUTS.end());
                return Err(Error::invalid(argument, reason));
            }
        }
        if self.endpoints.is_empty() {
            return Err(Error::invalid("endpoints", "no member is given"));
        }
        if let Some(endpoint) = self.endpoints.iter().find(|endpoint| !url::is_endpoint(endpoint)) {
            return Err(Error::invalid("endpoints", format!("`{endpoint}` is not of the form `host:port`")));
        }
        if self.prefix.is_empty() {
            return Err(Error::invalid("prefix", "it is empty"));
        }
        let scheme = if self.is_encrypted { "etcds" } else { "etcd" };
        self.address = format!("{scheme}://{}", self.endpoints.join(","));
        if self.is_encrypted {
            let options = self.tls_options.take().unwrap_or_default();
            self.tls = Some(Tls::for_http2(&options, &self.address)?);
        }
        Ok(self)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("reply_timeout", &self.reply_timeout)
            .field("is_encrypted", &self.is_encrypted)
            .finish_non_exhaustive()
    }
}
