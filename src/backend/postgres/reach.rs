//! Reaching a server that can be used: all hosts of the URL, and all addresses of each, are tried in a race.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};
use uuid::Uuid;

use super::settings::{Settings, port_of};
use crate::backend::dial;
use crate::backend::records::{Failure, Remedy};

/// One address of one server.
#[derive(Clone)]
pub(super) struct Way {
    /// For this address alone.
    pub(super) config: Config,
    /// As it is in errors.
    name: String,
}

/// One server of the list.
#[derive(Clone)]
struct Server {
    host: Option<Host>,
    address: Option<IpAddr>,
    port: u16,
}

/// What the first attempt returns that succeeds, until the `end`.
#[expect(clippy::future_not_send, reason = "it is if the attempts are")]
pub(super) async fn reach<T, F>(
    settings: &Settings,
    end: Instant,
    attempt: impl Fn(Way) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let servers = servers(&settings.config);
    let limit = end.saturating_duration_since(Instant::now());
    let each = dial::race(servers.iter(), limit, |server| server.reach(settings, limit, &attempt)).await;
    each.map_err(|failures| {
        let names = servers.iter().map(Server::name);
        // Another server of the list may be well again soon.
        all_failed(names.zip(failures).collect(), settings.connect_timeout, |failures| {
            failures.iter().all(|failure| failure.remedy == Remedy::Fix)
        })
    })
}

impl Server {
    #[expect(clippy::future_not_send, reason = "it is if the attempts are")]
    async fn reach<T, F>(
        &self,
        settings: &Settings,
        limit: Duration,
        attempt: &impl Fn(Way) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        // A bit earlier than the others, to say what was tried.
        let end = Instant::now() + limit - limit / 16;
        let ways = timeout_at(end, self.ways(&settings.config)).await;
        let ways = ways.unwrap_or_else(|_| {
            Err(Failure::unavailable(format!("`{}` was not resolved within {limit:?}", self.name())))
        })?;
        let left = end.saturating_duration_since(Instant::now());
        let reached = dial::race(ways.iter().cloned(), left, attempt).await;
        reached.map_err(|failures| {
            let names = ways.iter().map(|way| way.name.clone());
            // Those are the same server, whose word counts.
            all_failed(names.zip(failures).collect(), settings.connect_timeout, |failures| {
                failures.iter().any(|failure| failure.remedy == Remedy::Fix)
            })
        })
    }

    /// By its addresses, in the order in which they are to be tried.
    async fn ways(&self, config: &Config) -> Result<Vec<Way>, Failure> {
        let addresses = match (&self.host, self.address) {
            (_, Some(address)) => vec![address],
            (Some(Host::Tcp(host)), None) => {
                let resolved = dial::resolve(host, self.port).await;
                let resolved = resolved.map_err(|error| Failure::unavailable(error.to_string()))?;
                resolved.iter().map(std::net::SocketAddr::ip).collect()
            }
            _ => return Ok(vec![Way { config: self.config(config, None), name: self.name() }]),
        };
        let way = |address: IpAddr| Way {
            config: self.config(config, Some(address)),
            name: std::net::SocketAddr::new(address, self.port).to_string(),
        };
        Ok(addresses.into_iter().map(way).collect())
    }

    /// The same configuration for this server alone. The certificate must be for the name of the host.
    fn config(&self, all: &Config, address: Option<IpAddr>) -> Config {
        let mut config = Config::new();
        match &self.host {
            Some(Host::Tcp(host)) => drop(config.host(host)),
            #[cfg(unix)]
            Some(Host::Unix(path)) => drop(config.host_path(path)),
            None => {}
        }
        if let Some(address) = address {
            config.hostaddr(address);
        }
        config.port(self.port);
        copy_login(all, &mut config);
        copy_connection(all, &mut config);
        config
    }

    fn name(&self) -> String {
        match (&self.host, self.address) {
            (Some(Host::Tcp(host)), _) if host.contains(':') => format!("[{host}]:{}", self.port),
            (Some(Host::Tcp(host)), _) => format!("{host}:{}", self.port),
            #[cfg(unix)]
            (Some(Host::Unix(path)), _) => format!("{}:{}", path.display(), self.port),
            (None, Some(address)) => std::net::SocketAddr::new(address, self.port).to_string(),
            (None, None) => String::new(),
        }
    }
}

fn servers(config: &Config) -> Vec<Server> {
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let server = |n| Server {
        host: hosts.get(n).cloned(),
        address: addresses.get(n).copied(),
        port: port_of(config, n),
    };
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

/// Why none of several could be used. Whether that `is_final` depends on all.
fn all_failed(
    attempts: Vec<(String, Option<Failure>)>,
    limit: Duration,
    is_final: impl Fn(&[Failure]) -> bool,
) -> Failure {
    let late = || Failure::unavailable(format!("no answer within {limit:?}"));
    let (names, mut failures): (Vec<_>, Vec<_>) =
        attempts.into_iter().map(|(name, failure)| (name, failure.unwrap_or_else(late))).unzip();
    if failures.len() == 1 {
        return failures.remove(0);
    }
    let each = names.iter().zip(&failures).map(|(name, failure)| format!("{name}: {failure}"));
    let why = each.collect::<Vec<_>>().join("; ");
    if is_final(&failures) {
        Failure::refused(why)
    } else if failures.iter().any(|failure| failure.remedy == Remedy::NotNow) {
        Failure::not_now(why)
    } else {
        Failure::unavailable(why)
    }
}
