//! The settings of a client: their defaults and bounds.

use mysql_async::Opts;

use super::tls;
use crate::backend::sql::{self, Host, Place};
use crate::backend::tls::invalid;
use crate::error::Error;

/// One to look, one for changes.
const MIN_CONNECTIONS: usize = 2;

/// How a waiting client is notified that it is next.
///
/// ```
/// # use leasehold::mysql::{MysqlBackend, MysqlPush};
/// let builder = MysqlBackend::builder("mysql://app@db.example/app")?.push(MysqlPush::Off);
/// # drop(builder);
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MysqlPush {
    /// By named locks (`GET_LOCK`): a waiting client uses one connection for each key that it waits for, as far as
    /// [`max_connections`](super::MysqlBuilder::max_connections) allows. For other keys, and for semaphores, it polls.
    #[default]
    GetLock,
    /// It polls, with one query for all keys that it waits for: every 10 ms if it is next, down to once every 100 ms if
    /// it is not.
    Off,
}

pub(super) type Settings = sql::Settings<Target>;

/// What is connected to, and how.
#[derive(Clone)]
pub(super) struct Target {
    /// With the first of the servers.
    pub(super) opts: Opts,
    /// The servers, of which the one that accepts changes is used.
    pub(super) places: Vec<Place>,
    pub(super) push: MysqlPush,
    /// Whether TLS was asked for in a URL, which says no more about it.
    pub(super) is_tls_of_url: bool,
}

impl Settings {
    /// The defaults, for a server.
    pub(super) fn of(opts: Opts) -> Self {
        let places = vec![place(&opts)];
        let address = address(&opts, &places);
        let push = MysqlPush::default();
        Self::for_target(Target { opts, places, push, is_tls_of_url: false }, address)
    }

    /// The same for several servers.
    pub(super) fn with_places(mut self, places: Vec<Place>) -> Self {
        self.address = address(&self.target.opts, &places);
        self.target.places = places;
        self
    }

    /// Makes sure that they are within their bounds.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_bounds(MIN_CONNECTIONS + usize::from(self.target.push == MysqlPush::GetLock))?;
        if self.target.opts.db_name().is_none_or(str::is_empty) {
            return Err(Error::invalid("database", "no database is given"));
        }
        Ok(())
    }

    /// The same, with the certificates for TLS, if it is used.
    pub(super) fn with_tls(mut self) -> Result<Self, Error> {
        if self.target.opts.ssl_opts().is_none() {
            return match self.tls_options {
                None => Ok(self),
                Some(_) => Err(invalid("the URL does not enable TLS: add `require_ssl=true`")),
            };
        }
        if self.target.is_tls_of_url || self.tls_options.is_some() {
            let options = self.tls_options.take().unwrap_or_default();
            self.target.opts = tls::with_tls(self.target.opts, &options, &self.address)?;
        }
        Ok(self)
    }
}

/// Where a server is.
pub(super) fn place(opts: &Opts) -> Place {
    let (host, port) = (opts.ip_or_hostname(), opts.tcp_port());
    match opts.socket() {
        Some(socket) => Place { name: socket.to_owned(), host: Host::Socket, port },
        None => Place { name: format!("{host}:{port}"), host: Host::Name(host.to_owned()), port },
    }
}

/// `mysql://host:port/database`
fn address(opts: &Opts, places: &[Place]) -> String {
    let places: Vec<_> = places.iter().map(ToString::to_string).collect();
    let database = opts.db_name().map(|name| format!("/{name}")).unwrap_or_default();
    format!("mysql://{}{database}", places.join(","))
}
