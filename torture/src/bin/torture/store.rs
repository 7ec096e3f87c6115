//! The stores.

use std::time::Duration;

use clap::ValueEnum;

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
    /// A primary of PostgreSQL, and a standby that follows it.
    PostgresStandby,
    #[value(alias = "mariadb")]
    Mysql,
    /// A primary of MariaDB, and a replica that follows it.
    MysqlReplica,
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
            Self::PostgresStandby => "postgres-standby",
            Self::Mysql => "mysql",
            Self::MysqlReplica => "mysql-replica",
            Self::Etcd => "etcd",
            Self::EtcdCluster => "etcd-cluster",
            Self::Zookeeper => "zookeeper",
            Self::ZookeeperEnsemble => "zookeeper-ensemble",
            Self::Sqlite => "sqlite",
        }
    }
}
