//! The settings of a client, and connecting.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::clock;
use super::op::Access;
use super::{ZookeeperBackend, ZookeeperStore};
use crate::backend::LedgerBackend;
use crate::backend::records::{TIMEOUT, check_timeout, check_timeouts};
use crate::backend::tls::{Tls, TlsOptions};
use crate::error::Error;

const PORT: u16 = 2181;
const ROOT: &str = "/leasehold";
const SESSION: Duration = Duration::from_secs(40);
const SESSIONS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(24 * 60 * 60);

/// Makes a [`ZookeeperBackend`]: see [`ZookeeperBackend::builder`].
///
/// | setting | in a URL | default |
/// |---|---|---|
/// | [`chroot`](Self::chroot) | `/path` after the hosts | `/leasehold` |
/// | [`credentials`](Self::credentials) | `user:password@` before the hosts | none |
/// | [`session_timeout`](Self::session_timeout) | `session_timeout=10s` | 40 s |
/// | [`connect_timeout`](Self::connect_timeout) | `connect_timeout=500ms` | 2 s |
/// | [`reply_timeout`](Self::reply_timeout) | `reply_timeout=500ms` | 2 s |
/// | [`create`](Self::create) | `create=false` | true |
/// | [`tls`](Self::tls) | `tls=true` | no TLS |
///
/// ```
/// use std::time::Duration;
/// use leasehold::zookeeper::ZookeeperBackend;
///
/// let backend = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?
///     .chroot("/team-a/locks")
///     .session_timeout(Duration::from_secs(10))
///     .connect_lazy()?;
/// # drop(backend);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect`"]
pub struct ZookeeperBuilder {
    servers: Vec<String>,
    chroot: String,
    credentials: Option<(String, String)>,
    session_timeout: Duration,
    connect_timeout: Duration,
    reply_timeout: Duration,
    create: bool,
    tls: Option<TlsOptions>,
    clock_lifetime: Duration,
}

/// The options of a client.
pub(super) struct Settings {
    pub(super) servers: Vec<Server>,
    /// The node under which everything is.
    pub(super) root: String,
    /// Without credentials.
    pub(super) address: String,
    /// `user:password`
    pub(super) credentials: Option<String>,
    pub(super) session_timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
    pub(super) create: bool,
    pub(super) tls: Option<Tls>,
    pub(super) clock_lifetime: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
}

impl ZookeeperBuilder {
    pub(super) const fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            chroot: String::new(),
            credentials: None,
            session_timeout: SESSION,
            connect_timeout: TIMEOUT,
            reply_timeout: TIMEOUT,
            create: true,
            tls: None,
            clock_lifetime: clock::LIFETIME,
        }
    }

    /// How long a reading of the server's clock is used. For tests in which the clock jumps.
    #[cfg(feature = "conformance")]
    #[doc(hidden)]
    pub const fn clock_lifetime(mut self, lifetime: Duration) -> Self {
        self.clock_lifetime = lifetime;
        self
    }

    /// The node that contains all nodes of this crate, as an absolute path. Do not store anything else under it.
    ///
    /// Default: `/leasehold`.
    ///
    /// ```
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// let builder = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?.chroot("/team-a/locks");
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn chroot(mut self, path: impl Into<String>) -> Self {
        self.chroot = path.into();
        self
    }

    /// A user and a password for the scheme `digest`. Nodes are then created so that only this user may use them.
    /// Without credentials, any client may.
    ///
    /// Default: none.
    ///
    /// ```
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// let builder = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .credentials("locks", "secret");
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }

    /// The session timeout to request from the servers, 100 ms to 24 h. The servers limit it, by default to between 4
    /// and 40 s. The nodes of leases with a TTL of at most this are ephemeral: they end with the session, for instance
    /// when a process ends.
    ///
    /// Default: 40 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// let builder = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .session_timeout(Duration::from_secs(10));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long connecting may take, 1 ms to 1 h. All servers are tried within that time.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// let builder = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .connect_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long the servers may take to answer, 1 ms to 1 h. After that, the client abandons the connection.
    ///
    /// Default: 2 s.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// let builder = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?
    ///     .reply_timeout(Duration::from_millis(500));
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn reply_timeout(mut self, timeout: Duration) -> Self {
        self.reply_timeout = timeout;
        self
    }

    /// Whether the [`chroot`](Self::chroot) is created if it does not exist.
    ///
    /// Default: true.
    ///
    /// ```
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// let builder = ZookeeperBackend::builder("zookeeper://10.0.0.7,10.0.0.8,10.0.0.9")?.create(false);
    /// # drop(builder);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Connects over TLS, with these certificates. The server's certificate and its host name are always verified.
    ///
    /// Default: no TLS.
    ///
    /// ```
    /// # use leasehold::TlsOptions;
    /// # use leasehold::zookeeper::ZookeeperBackend;
    /// # fn example(authority: Vec<u8>) -> Result<(), leasehold::Error> {
    /// let options = TlsOptions::new().ca_certificate_pem(authority);
    /// let builder = ZookeeperBackend::builder("zookeeper://zk.example")?.tls(options);
    /// # drop(builder);
    /// # Ok(()) }
    /// # let _ = example;
    /// ```
    pub fn tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// * [`Error::InvalidArgument`] if a setting is out of bounds, or a server or the chroot is not valid.
    /// * [`Error::Unsupported`] if TLS is required, and this build lacks it.
    /// * [`Error::StoreUnavailable`] if no server can be reached within [`connect_timeout`](Self::connect_timeout), or
    ///   the server that was reached has no quorum.
    /// * [`Error::StoreRefused`] if the credentials are refused, or the chroot does not exist and may not be created.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes whatever was opened.
    pub async fn connect(self) -> Result<ZookeeperBackend, Error> {
        let backend = self.connect_lazy()?;
        backend.0.store().connected().await.map_err(|error| backend.0.connect_error(error))?;
        Ok(backend)
    }

    /// Creates a backend that connects on first use and keeps retrying. Needs no runtime.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] if a setting is out of bounds, or a server or the chroot is not valid;
    /// [`Error::Unsupported`] if TLS is required, and this build lacks it; [`Error::StoreUnavailable`] if this crate's
    /// own thread cannot be started.
    pub fn connect_lazy(self) -> Result<ZookeeperBackend, Error> {
        let settings = Settings::of(self)?;
        let address = settings.address.clone();
        LedgerBackend::started(ZookeeperStore::new(Arc::new(settings)), &address).map(ZookeeperBackend)
    }
}

impl Settings {
    fn of(builder: ZookeeperBuilder) -> Result<Self, Error> {
        let ZookeeperBuilder {
            session_timeout, connect_timeout, reply_timeout, create, clock_lifetime, ..
        } = builder;
        check_timeout("session_timeout", session_timeout, &SESSIONS)?;
        check_timeouts(connect_timeout, reply_timeout)?;
        let servers: Vec<_> =
            builder.servers.iter().map(|text| Server::parse(text)).collect::<Result<_, _>>()?;
        if servers.is_empty() {
            return Err(Error::invalid("host", "no host is named"));
        }
        let root = root(&builder.chroot)?;
        let address = address(&servers, &root);
        let tls = builder.tls.map(|options| Tls::new(&options, &address)).transpose()?;
        if builder.credentials.as_ref().is_some_and(|(user, _)| user.is_empty() || user.contains(':')) {
            return Err(Error::invalid("user", "it is empty or contains a colon"));
        }
        let credentials = builder.credentials.map(|(user, password)| format!("{user}:{password}"));
        Ok(Self {
            servers,
            root,
            address,
            credentials,
            session_timeout,
            connect_timeout,
            reply_timeout,
            create,
            tls,
            clock_lifetime,
        })
    }

    /// What each server may take of the time for connecting, so that one that hangs leaves time for the others. It is
    /// doubled after each round in which none has answered, up to the whole time: perhaps all of them are slow.
    pub(super) fn time_per_server(&self, failed_rounds: u32) -> Duration {
        let share = self.connect_timeout / u32::try_from(self.servers.len()).unwrap_or(u32::MAX);
        share.saturating_mul(2_u32.saturating_pow(failed_rounds)).min(self.connect_timeout)
    }

    /// Who may use the nodes that are created.
    pub(super) const fn access(&self) -> Access {
        if self.credentials.is_some() { Access::Creator } else { Access::Anyone }
    }
}

/// The path, without a slash at the end.
fn root(chroot: &str) -> Result<String, Error> {
    let path = chroot.strip_suffix('/').unwrap_or(chroot);
    if path.is_empty() {
        return Ok(ROOT.to_owned());
    }
    let is_allowed = |c: char| !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{f000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    let parts = path.strip_prefix('/').map(|path| path.split('/'));
    let is_valid = parts.is_some_and(|mut parts| parts.all(|part| !matches!(part, "" | "." | "..")));
    if !is_valid || !path.chars().all(is_allowed) {
        return Err(Error::invalid("chroot", "it is not an absolute path of a node, such as `/locks`"));
    }
    if path == "/zookeeper" || path.starts_with("/zookeeper/") {
        return Err(Error::invalid("chroot", "`/zookeeper` belongs to the servers"));
    }
    Ok(path.to_owned())
}

impl Server {
    /// Errors do not repeat the text: it may be a part of a password that was not encoded.
    fn parse(text: &str) -> Result<Self, Error> {
        let invalid = |reason: &str| Error::invalid("host", reason);
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (
                host,
                Some(port.strip_prefix(':').ok_or_else(|| invalid("a `]` is not followed by a port"))?),
            ),
            None => match text.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(invalid("an IPv6 address has to be in brackets, as in `[::1]:2181`"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() {
            return Err(invalid("no host is named"));
        }
        let port =
            port.map_or(Ok(PORT), |port| port.parse().map_err(|_| invalid("a port is not a number")))?;
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// `zookeeper://host:port,host:port/chroot`
fn address(servers: &[Server], root: &str) -> String {
    let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
    format!("zookeeper://{}{root}", servers.join(","))
}

impl fmt::Debug for ZookeeperBuilder {
    /// Prints no password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            servers,
            chroot,
            credentials,
            session_timeout,
            connect_timeout,
            reply_timeout,
            create,
            tls,
            clock_lifetime: _,
        } = self;
        f.debug_struct("ZookeeperBuilder")
            .field("servers", servers)
            .field("chroot", chroot)
            .field("user", &credentials.as_ref().map(|(user, _)| user))
            .field("session_timeout", session_timeout)
            .field("connect_timeout", connect_timeout)
            .field("reply_timeout", reply_timeout)
            .field("create", create)
            .field("tls", tls)
            .finish_non_exhaustive()
    }
}
