//! Where a store is, and its credentials.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::credentials::CredentialsProvider;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Where a store is, and what is needed to log in.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) topology: Topology,
    pub(super) login: Login,
    pub(super) tls: bool,
}

/// Which servers make up a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    Single(Server),
    /// Sentinels, and the name under which they know the primary.
    Sentinel {
        sentinels: Vec<Server>,
        service: String,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<Server>),
}

/// The credentials, and the database.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: Option<u8>,
    /// Provides the user and the password each time, instead of these.
    pub(super) provider: Option<Arc<dyn CredentialsProvider>>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Target {
    /// The URL without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.tls { "s" } else { "" };
        let list = |servers: &[Server]| servers.iter().map(Server::to_string).collect::<Vec<_>>().join(",");
        match &self.topology {
            Topology::Single(Server::Unix(path)) => write!(f, "redis+unix://{}", path.display())?,
            Topology::Single(server) => write!(f, "redis{s}://{server}")?,
            Topology::Sentinel { sentinels, service } => {
                write!(f, "redis{s}-sentinel://{}/{service}", list(sentinels))?;
            }
            Topology::Cluster(nodes) => write!(f, "redis{s}-cluster://{}", list(nodes))?,
        }
        match self.login.database {
            Some(database) => write!(f, "/{database}"),
            None => Ok(()),
        }
    }
}
