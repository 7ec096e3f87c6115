//! The settings of a client.

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use crate::backend::sql;
use crate::backend::tls::{Tls, invalid};
use crate::error::Error;

/// One for changes, one for notifications.
const MIN_CONNECTIONS: usize = 2;
/// What the sessions are called at the server.
const APPLICATION: &str = "leasehold";

pub(super) type Settings = sql::Settings<Target>;

/// What is connected to, and how.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) config: Config,
    /// The only one in which the tables are looked for; `None`: those of the session's `search_path`.
    pub(super) schema: Option<String>,
    /// Set if it is required.
    pub(super) tls: Option<Tls>,
}

impl Settings {
    /// The settings that a configuration contains, and the defaults of the others.
    pub(super) fn of(mut config: Config) -> Self {
        if config.get_application_name().is_none() {
            config.application_name(APPLICATION);
        }
        let servers = config.get_hosts().len().max(config.get_hostaddrs().len());
        if servers > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // The primary.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let (address, connect_timeout) = (address(&config), config.get_connect_timeout().copied());
        let mut settings = Self::for_target(Target { config, schema: None, tls: None }, address);
        settings.connect_timeout = connect_timeout.unwrap_or(settings.connect_timeout);
        settings
    }

    /// Names the sessions after a client with this label, unless they have another name.
    pub(super) fn name_after(&mut self, label: Option<&str>) {
        let config = &mut self.target.config;
        if let Some(label) = label.filter(|_| config.get_application_name() == Some(APPLICATION)) {
            // The server cuts it to 63 bytes.
            config.application_name(format!("{APPLICATION} {label}"));
        }
    }

    /// Errors and traces name the schema as well.
    pub(super) fn with_schema(mut self, schema: String) -> Self {
        self.address = format!("{}?schema={schema}", address(&self.target.config));
        self.target.schema = Some(schema);
        self
    }

    /// Refuses what is out of bounds.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_bounds(MIN_CONNECTIONS)?;
        let Target { config, schema, .. } = &self.target;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(Error::invalid("host", "no host is given"));
        }
        if schema.as_ref().is_some_and(|schema| !is_identifier(schema)) {
            let reason = "not a name of 1 to 63 letters (`a-z`, `A-Z`), digits and `_` that does not begin with a digit";
            return Err(Error::invalid("schema", reason));
        }
        let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
        if hosts > 0 && addresses > 0 && hosts != addresses {
            return Err(Error::invalid("hostaddr", "there must be one for each host"));
        }
        if config.get_ports().len() > 1 && config.get_ports().len() != hosts.max(addresses) {
            return Err(Error::invalid("port", "there must be one for each host, or one for all"));
        }
        Ok(())
    }

    /// Prepares TLS, if it is required.
    pub(super) fn with_tls(mut self) -> Result<Self, Error> {
        let is_required = self.target.config.get_ssl_mode() == SslMode::Require;
        if self.tls_options.is_some() && !is_required {
            return Err(invalid("the URL does not enable TLS: add `sslmode=require`"));
        }
        if is_required {
            self.target.tls = Some(Tls::new(&self.tls_options.take().unwrap_or_default(), &self.address)?);
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
