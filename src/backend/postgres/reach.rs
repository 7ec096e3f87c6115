//! The servers that a configuration names, each with a configuration for itself alone.

use std::net::{IpAddr, SocketAddr};

use tokio::time::Instant;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use uuid::Uuid;

use super::settings::{Settings, port_of};
use crate::backend::records::Failure;
use crate::backend::sql::{self, Place};

/// One server of the list.
struct Server<'a> {
    host: Option<&'a Host>,
    address: Option<IpAddr>,
    port: u16,
}

/// What the first attempt returns that succeeds, until the `end`. Each is for one address of one server.
#[expect(clippy::future_not_send, reason = "it is if the attempts are")]
pub(super) async fn reach<T, F>(
    settings: &Settings,
    end: Instant,
    attempt: impl Fn(Config) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let all = &settings.target.config;
    let servers = servers(all);
    let places: Vec<_> = servers.iter().map(Server::place).collect();
    sql::reach(settings, &places, end, |n, address| attempt(servers[n].config(all, address))).await
}

impl Server<'_> {
    fn place(&self) -> Place {
        let host = match (self.host, self.address) {
            (_, Some(address)) => sql::Host::Address(address),
            (Some(Host::Tcp(host)), None) => sql::Host::Name(host.clone()),
            _ => sql::Host::Socket,
        };
        Place { name: self.name(), host, port: self.port }
    }

    /// The same configuration for this server alone. The certificate must be for the name of the host.
    fn config(&self, all: &Config, address: Option<SocketAddr>) -> Config {
        let mut config = Config::new();
        match self.host {
            Some(Host::Tcp(host)) => drop(config.host(host)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(config.host_path(path)),
            None => {}
        }
        if let Some(address) = address {
            config.hostaddr(address.ip());
        }
        config.port(self.port);
        copy_login(all, &mut config);
        copy_connection(all, &mut config);
        config
    }

    fn name(&self) -> String {
        match (self.host, self.address) {
            (Some(Host::Tcp(host)), _) if host.contains(':') => format!("[{host}]:{}", self.port),
            (Some(Host::Tcp(host)), _) => format!("{host}:{}", self.port),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => format!("{}:{}", path.display(), self.port),
            (None, Some(address)) => SocketAddr::new(address, self.port).to_string(),
            (None, None) => String::new(),
        }
    }
}

fn servers(config: &Config) -> Vec<Server<'_>> {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let server =
        |n| Server { host: hosts.get(n), address: addresses.get(n).copied(), port: port_of(config, n) };
    let mut servers: Vec<_> = (0..hosts.len().max(addresses.len())).map(server).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random && !servers.is_empty() {
        // Each client begins elsewhere.
        let begin = Uuid::new_v4().as_u128() % servers.len() as u128;
        servers.rotate_left(usize::try_from(begin).unwrap_or(0));
    }
    servers
}

fn copy_login(from: &Config, to: &mut Config) {
    if let Some(user) = from.get_user() {
        to.user(user);
    }
    if let Some(password) = from.get_password() {
        to.password(password);
    }
    if let Some(name) = from.get_dbname() {
        to.dbname(name);
    }
    if let Some(options) = from.get_options() {
        to.options(options);
    }
    if let Some(name) = from.get_application_name() {
        to.application_name(name);
    }
}

/// Except the time limit, which is for a whole attempt here.
fn copy_connection(from: &Config, to: &mut Config) {
    to.ssl_mode(from.get_ssl_mode());
    to.ssl_negotiation(from.get_ssl_negotiation());
    to.channel_binding(from.get_channel_binding());
    to.target_session_attrs(from.get_target_session_attrs());
    to.keepalives(from.get_keepalives());
    to.keepalives_idle(from.get_keepalives_idle());
    if let Some(timeout) = from.get_tcp_user_timeout() {
        to.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = from.get_keepalives_interval() {
        to.keepalives_interval(interval);
    }
    if let Some(retries) = from.get_keepalives_retries() {
        to.keepalives_retries(retries);
    }
}
