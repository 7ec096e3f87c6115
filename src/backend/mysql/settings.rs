//! The settings of a client: their defaults and bounds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::Opts;

use super::tls;
use super::watch::Watch;
use crate::backend::records::{TIMEOUT, check_timeouts};
use crate::backend::tls::{TlsOptions, invalid};
use crate::error::Error;

const CONNECTIONS: usize = 5;
/// One to look, one for changes.
const MIN_CONNECTIONS: usize = 2;
const MAX_CONNECTIONS: usize = 64;

/// How a waiting client is notified that it is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MysqlPush {
    /// By named locks (`GET_LOCK`): a waiting client uses one connection for each key that it waits for, as far as
    /// [`max_connections`](super::MysqlBuilder::max_connections) allows. For other keys, and for semaphores, it polls.
    #[default]
    GetLock,
    /// It polls, with one query for all keys that it waits for: every 10 ms if it is next, down to once every 100 ms if it is not.
    Off,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Place {
    pub(super) fn of(opts: &Opts) -> Self {
        Self { host: opts.ip_or_hostname().to_owned(), port: opts.tcp_port() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The settings of a client.
#[derive(Clone)]
pub(super) struct Settings {
    /// With the first of the servers.
    pub(super) opts: Opts,
    /// The servers, of which the one that accepts changes is used; of no meaning with a socket.
    pub(super) places: Vec<Place>,
    /// Without credentials.
    pub(super) address: String,
    pub(super) connect_timeout: Duration,
    pub(super) reply_timeout: Duration,
    pub(super) max_connections: usize,
    pub(super) create: bool,
    pub(super) push: MysqlPush,
    pub(super) tls_options: Option<TlsOptions>,
    /// Whether TLS was asked for in a URL, which says no more about it.
    pub(super) is_tls_of_url: bool,
    /// What this client waits for.
    pub(super) watch: Arc<Watch>,
}

impl Settings {
    /// The defaults, for a server.
    pub(super) fn new(opts: Opts) -> Self {
        let places = vec![Place::of(&opts)];
        Self {
            address: address(&opts, &places),
            places,
            opts,
            connect_timeout: TIMEOUT,
            reply_timeout: TIMEOUT,
            max_connections: CONNECTIONS,
            create: true,
            push: MysqlPush::default(),
            tls_options: None,
            is_tls_of_url: false,
            watch: Arc::new(Watch::new(0)),
        }
    }

    /// The same for several servers.
    pub(super) fn with_places(self, places: Vec<Place>) -> Self {
        Self { address: address(&self.opts, &places), places, ..self }
    }

    /// Makes sure that they are within their bounds.
    pub(super) fn check(&self) -> Result<(), Error> {
        check_timeouts(self.connect_timeout, self.reply_timeout)?;
        let least = MIN_CONNECTIONS + usize::from(self.push == MysqlPush::GetLock);
        if !(least..=MAX_CONNECTIONS).contains(&self.max_connections) {
            let reason = format!("{} is not between {least} and {MAX_CONNECTIONS}", self.max_connections);
            return Err(Error::invalid("max_connections", reason));
        }
        if self.opts.db_name().is_none_or(str::is_empty) {
            return Err(Error::invalid("database", "no database is given"));
        }
        Ok(())
    }

    /// The same, with the certificates for TLS, if it is used.
    pub(super) fn with_tls(mut self) -> Result<Self, Error> {
        if self.opts.ssl_opts().is_none() {
            return match self.tls_options {
                None => Ok(self),
                Some(_) => Err(invalid("the URL does not enable TLS: add `require_ssl=true`")),
            };
        }
        if self.is_tls_of_url || self.tls_options.is_some() {
            let options = self.tls_options.take().unwrap_or_default();
            self.opts = tls::with_tls(self.opts, &options, &self.address)?;
        }
        Ok(self)
    }

    /// How many connections wait for named locks at most.
    pub(super) const fn max_waiters(&self) -> usize {
        match self.push {
            MysqlPush::GetLock => (self.max_connections - 1) / 2,
            MysqlPush::Off => 0,
        }
    }
}

/// `mysql://host:port/database`
fn address(opts: &Opts, places: &[Place]) -> String {
    let database = opts.db_name().map(|name| format!("/{name}")).unwrap_or_default();
    match opts.socket() {
        Some(socket) => format!("mysql://{socket}{database}"),
        None => {
            let places: Vec<_> = places.iter().map(ToString::to_string).collect();
            format!("mysql://{}{database}", places.join(","))
        }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opts: _,
            places: _,
            address,
            connect_timeout,
            reply_timeout,
            max_connections,
            create,
            push,
            tls_options: _,
            is_tls_of_url: _,
            watch: _,
        } = self;
        f.debug_struct("Settings")
            .field("address", address)
            .field("connect_timeout", connect_timeout)
            .field("reply_timeout", reply_timeout)
            .field("max_connections", max_connections)
            .field("create", create)
            .field("push", push)
            .finish_non_exhaustive()
    }
}
