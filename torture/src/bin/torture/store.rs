//! The stores, and what all of their servers have in common.

use std::time::Duration;

use clap::ValueEnum;
use futures::TryStreamExt;
use leasehold::Client;
use tokio::time::{Instant, sleep};

use crate::fault::ServerFault;
use crate::servers::{self, Server, Start};

/// How long a server may take to be used again after a fault.
const BACK: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Redis,
    /// Five servers of Redis.
    Redlock,
    /// A primary of Redis with two replicas, and three sentinels.
    Sentinel,
    /// Three primaries of Redis with a replica each.
    Cluster,
    Postgres,
    #[value(alias = "mariadb")]
    Mysql,
    Etcd,
    /// Three members.
    EtcdCluster,
    Zookeeper,
    /// Three servers, of which one leads.
    ZookeeperEnsemble,
    Sqlite,
}

impl Store {
    pub(crate) const fn has_semaphores(self) -> bool {
        !matches!(self, Self::Redlock)
    }

    /// Whether there is a network between workers and it that can be harmed.
    pub(crate) const fn has_lines(self) -> bool {
        !matches!(self, Self::Sentinel | Self::Cluster | Self::Sqlite)
    }

    /// The shortest lease that makes sense on it.
    pub(crate) const fn lease(self) -> Duration {
        match self {
            // It does not have shorter ones, and ends them late.
            Self::Etcd | Self::EtcdCluster => Duration::from_secs(2),
            _ => Duration::from_secs(1),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Etcd => "etcd",
            Self::EtcdCluster => "etcd-cluster",
            Self::Zookeeper => "zookeeper",
            Self::ZookeeperEnsemble => "zookeeper-ensemble",
            Self::Sqlite => "sqlite",
        }
    }

    /// What its servers can suffer.
    pub(crate) const fn faults(self) -> &'static [ServerFault] {
        match self {
            Self::Redis => servers::redis::FAULTS,
            Self::Redlock => servers::redlock::FAULTS,
            Self::Sentinel => servers::sentinel::FAULTS,
            Self::Cluster => servers::cluster::FAULTS,
            Self::Postgres => servers::postgres::FAULTS,
            Self::Mysql => servers::mysql::FAULTS,
            Self::Etcd => servers::etcd::FAULTS,
            Self::EtcdCluster => servers::etcd_cluster::FAULTS,
            Self::Zookeeper => servers::zookeeper::FAULTS,
            Self::ZookeeperEnsemble => servers::zookeeper_ensemble::FAULTS,
            Self::Sqlite => servers::sqlite::FAULTS,
        }
    }

    /// `None` if this machine does not have it.
    pub(crate) fn start_or_skip(self, start: Start<'_>) -> Option<Box<dyn Server>> {
        Some(match self {
            Self::Redis => Box::new(servers::redis::Redis::start_or_skip(start)?),
            Self::Redlock => Box::new(servers::redlock::Redlock::start_or_skip(start)?),
            Self::Sentinel => Box::new(servers::sentinel::Sentinel::start_or_skip()?),
            Self::Cluster => Box::new(servers::cluster::Cluster::start_or_skip()?),
            Self::Postgres => Box::new(servers::postgres::Postgres::start_or_skip()?),
            Self::Mysql => Box::new(servers::mysql::Mysql::start_or_skip()?),
            Self::Etcd => Box::new(servers::etcd::Etcd::start_or_skip()?),
            Self::EtcdCluster => Box::new(servers::etcd_cluster::EtcdCluster::start_or_skip()?),
            Self::Zookeeper => Box::new(servers::zookeeper::Zookeeper::start_or_skip()?),
            Self::ZookeeperEnsemble => {
                Box::new(servers::zookeeper_ensemble::ZookeeperEnsemble::start_or_skip()?)
            }
            Self::Sqlite => Box::new(servers::sqlite::Sqlite::start(start)),
        })
    }
}

/// What is left in the store besides fences, when it stays the same for longer than this.
pub(crate) async fn remains(
    server: &dyn Server,
    patience: Duration,
) -> Result<Vec<String>, leasehold::Error> {
    let client = client(server).await?;
    let end = Instant::now() + patience;
    let left = loop {
        let left = match server.records() {
            Some(records) => records,
            None => {
                let listed: Vec<_> = client.list("").try_collect().await?;
                listed.into_iter().map(|found| format!("{found:?}")).collect()
            }
        };
        if left.is_empty() || Instant::now() > end {
            break left;
        }
        sleep(Duration::from_millis(20)).await;
    };
    client.shutdown().await?;
    Ok(left)
}

/// A client without a line, as soon as the server takes one.
pub(crate) async fn client(server: &dyn Server) -> Result<Client, leasehold::Error> {
    let end = Instant::now() + BACK;
    loop {
        match Client::connect(&server.url()).await {
            Err(_) if Instant::now() < end => sleep(Duration::from_millis(20)).await,
            answer => return answer,
        }
    }
}

/// Until it answers to whoever is new.
pub(crate) async fn is_back(server: &dyn Server) -> Result<(), leasehold::Error> {
    client(server).await?.shutdown().await
}
