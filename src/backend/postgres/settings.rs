//! The settings of a client.

use std::fmt;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::backend::records::{TIMEOUT, check_timeouts};
use crate::backend::tls::{Tls, TlsOptions, invalid};
use crate::error::Error;

const CONNECTIONS: usize = 5;
const MIN_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 64;

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
    /// The only one in which the tables are looked for; `None`: those of the session's `search_path`.
    pub(super) schema: Option<String>,
    pub(super) tls_options: Option<TlsOptions>,
    /// Set if it is required.
    pub(super) tls: Option<Tls>,
}

impl Settings {
    /// The settings that a configuration contains, and the defaults of the others.
    pub(super) fn new(mut config: Config) -> Self {
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        let servers = config.get_hosts().len().max(config.get_hostaddrs().len());
        if servers > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // The primary.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Self {
            address: address(&config),
            connect_timeout: config.get_connect_timeout().copied().unwrap_or(TIMEOUT),
            config,
            reply_timeout: TIMEOUT,
            max_connections: CONNECTIONS,
            create: true,
            schema: None,
            tls_options: None,
            tls: None,
        }
    }

    /// Errors and traces name the schema as well.
    pub(super) fn with_schema(mut self, schema: String) -> Self {
        self.address = format!("{}?schema={schema}", address(&self.config));
        self.schema = Some(schema);
        self
    }

    /// Refuses what is out of bounds.
    pub(super) fn check(&self) -> Result<(), Error> {
        check_timeouts(self.connect_timeout, self.reply_timeout)?;
        if !(MIN_CONNECTIONS..=MAX_CONNECTIONS).contains(&self.max_connections) {
            let reason =
                format!("{} is not between {MIN_CONNECTIONS} and {MAX_CONNECTIONS}", self.max_connections);
            return Err(Error::invalid("max_connections", reason));
        }
        if self.config.get_hosts().is_empty() && self.config.get_hostaddrs().is_empty() {
            return Err(Error::invalid("host", "no host is given"));
        }
        if self.schema.as_ref().is_some_and(|schema| !is_identifier(schema)) {
            let reason = "not a name of 1 to 63 letters (`a-z`, `A-Z`), digits and `_` that does not begin with a digit";
            return Err(Error::invalid("schema", reason));
        }
        let (hosts, addresses) = (self.config.get_hosts().len(), self.config.get_hostaddrs().len());
        if hosts > 0 && addresses > 0 && hosts != addresses {
            return Err(Error::invalid("hostaddr", "there must be one for each host"));
        }
        if self.config.get_ports().len() > 1 && self.config.get_ports().len() != hosts.max(addresses) {
            return Err(Error::invalid("port", "there must be one for each host, or one for all"));
        }
        Ok(())
    }

    /// Prepares TLS, if it is required.
    pub(super) fn with_tls(mut self) -> Result<Self, Error> {
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

/// Whether it can be quoted, and be shown, without a further thought.
fn is_identifier(name: &str) -> bool {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (1..=63).contains(&name.len()) && is_word && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// The port of a server in the list.
pub(super) fn port_of(config: &Config, n: usize) -> u16 {
    let ports = config.get_ports();
    ports.get(n).or(ports.first()).copied().unwrap_or(5432)
}

/// `postgres://host:port,host:port/database`
fn address(config: &Config) -> String {
    let port = |n: usize| port_of(config, n);
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
            schema: _,
            tls_options: _,
            tls: _,
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
