//! Making a client: its settings, and connecting.

use std::sync::Arc;
use std::time::Duration;

use super::settings::{Login, Settings};
use super::{EtcdBackend, EtcdStore, url};
use crate::backend::LedgerBackend;
use crate::backend::tls::TlsOptions;
use crate::error::Error;

/// Makes an [`EtcdBackend`]: see [`EtcdBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`prefix`](Self::prefix) | `prefix=team-a/leasehold/` | `leasehold/` |
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
///
/// ```
/// use std::time::Duration;
/// use leasehold::etcd::EtcdBackend;
///
/// let backend = EtcdBackend::builder("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?
///     .prefix("team-a/leasehold/")
///     .reply_timeout(Duration::from_millis(500))
///     .connect_lazy()?;
/// # drop(backend);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct EtcdBuilder {
    settings: Settings,
}

impl EtcdBuilder {
    /// With the members, the user and the options of a URL.
    pub(super) fn from_url(url: &str) -> Result<Self, Error> {
        Ok(Self { settings: url::parse(url)? })
    }

    pub(super) fn new(endpoints: Vec<String>) -> Self {
        Self { settings: Settings::new(endpoints) }
    }

    /// The user to log in as, for a cluster with authentication.
    ///
    /// Default: none.
    ///
    /// ```
    /// # use leasehold::etcd::EtcdBackend;
    /// let builder = EtcdBackend::builder("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?.credentials("locks", "secret");
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.settings.login = Some(Login { user: user.into(), password: password.into() });
        self
    }

    /// The prefix of all keys. Clients with different prefixes do not see each other's locks. The etcd user needs
    /// permission to read and write this prefix, and no other permission.
    ///
    /// Default: `leasehold/`.
    ///
    /// ```
    /// # use leasehold::etcd::EtcdBackend;
    /// let builder = EtcdBackend::builder("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?.prefix("team-a/leasehold/");
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// How long connecting may take, including the resolution of names and the login; 1 ms to 1 h. All members and all
    /// their addresses are tried within that time: the next one when the one before has failed or has not answered for
    /// 250 ms, or sooner if there are many.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::etcd::EtcdBackend;
    /// let builder = EtcdBackend::builder("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .connect_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long a member may take to answer, 1 ms to 1 h. After that, the client abandons the connection and tries the
    /// next member.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::etcd::EtcdBackend;
    /// let builder = EtcdBackend::builder("etcd://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .reply_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.settings.reply_timeout = timeout;
        self
    }

    /// Connects over TLS, as `etcds://` does, with these certificates. By default, `etcds://` uses the authorities that
    /// the system trusts. A member's certificate and its host name are always verified.
    ///
    /// ```
    /// # use leasehold::TlsOptions;
    /// # use leasehold::etcd::EtcdBackend;
    /// # fn example(authority: Vec<u8>) -> Result<(), leasehold::Error> {
    /// let options = TlsOptions::new().ca_certificate_pem(authority);
    /// let builder = EtcdBackend::builder("etcds://etcd.example")?.tls(options);
    /// # drop(builder);
    /// # Ok(()) }
    /// # let _ = example;
    /// ```
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
    /// * [`Error::StoreUnavailable`] if no member can be reached within [`connect_timeout`](Self::connect_timeout), or
    ///   the cluster has no leader.
    /// * [`Error::StoreRefused`] if the cluster refuses the credentials, or the user may not read or write the prefix.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<EtcdBackend, Error> {
        let backend = self.connect_lazy()?;
        backend.0.store().connected().await.map_err(|error| backend.0.connect_error(error))?;
        Ok(backend)
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or no member is given; [`Error::Unsupported`] if TLS
    /// is required, and this build lacks it; [`Error::StoreUnavailable`] if this crate's own thread cannot be started.
    pub fn connect_lazy(self) -> Result<EtcdBackend, Error> {
        let settings = self.settings.complete()?;
        let address = settings.address.clone();
        LedgerBackend::started(EtcdStore::start(Arc::new(settings)), &address).map(EtcdBackend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_bounds_are_refused() {
        for url in ["etcd://h?connect_timeout=0ms", "etcd://h?reply_timeout=3601s", "etcd://h?prefix="] {
            let error = EtcdBuilder::from_url(url).unwrap().connect_lazy().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{url}: {error:?}");
        }
        for endpoints in
            [vec![], vec!["h".to_owned()], vec!["http://h:1".to_owned()], vec!["u:hunter2@h:1".to_owned()]]
        {
            let error = EtcdBuilder::new(endpoints).connect_lazy().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "endpoints", .. }), "{error:?}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn it_is_shown_without_credentials() {
        let builder = EtcdBuilder::from_url("etcd://u:hunter2@h").unwrap().credentials("u", "hunter2");
        assert!(!format!("{builder:?}").contains("hunt"), "{builder:?}");
    }
}
