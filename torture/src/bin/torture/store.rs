//! The servers of each store, with the faults that they have in common.

use std::time::Duration;

use clap::ValueEnum;
use futures::TryStreamExt;
use leasehold::Client;
use tokio::time::{Instant, sleep};

use crate::line::Line;
use crate::scenario::{Fault, Scenario};
use crate::support::{Clock, Nodes, RedisServer, Setup};
use crate::{etcd, mysql, nodes_url, postgres, sqlite, zookeeper};

/// How long a server may take to be used again after a fault.
const BACK: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Redis,
    /// Five servers of Redis.
    Redlock,
    Postgres,
    Mysql,
    Etcd,
    Zookeeper,
    Sqlite,
}

impl Store {
    pub(crate) const fn has_semaphores(self) -> bool {
        !matches!(self, Self::Redlock)
    }

    /// The shortest lease that makes sense on it.
    pub(crate) const fn lease(self) -> Duration {
        match self {
            // It does not have shorter ones, and ends them late.
            Self::Etcd => Duration::from_secs(2),
            _ => Duration::from_secs(1),
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Redlock => "redlock",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Etcd => "etcd",
            Self::Zookeeper => "zookeeper",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What runs.
#[derive(Debug)]
pub(crate) enum Server {
    Redis(RedisServer),
    Redlock(Nodes),
    Postgres(postgres::PostgresServer),
    Mysql(mysql::MysqlServer),
    Etcd(etcd::EtcdServer),
    Zookeeper(zookeeper::ZookeeperServer),
    Sqlite(sqlite::SqliteFile),
}

impl Server {
    /// `None` if this machine does not have it.
    pub(crate) fn start_or_skip(store: Store, scenario: &Scenario) -> Option<Self> {
        let left_out = "torture";
        Some(match store {
            Store::Redis => {
                let setup = if scenario.is_on_disk { Setup::on_disk() } else { Setup::default() };
                let sets_clock = scenario.faults.contains(&Fault::SetClockBack);
                let clock = if sets_clock { Some(Clock::new_or_skip(left_out)?) } else { None };
                let setup = Setup { clock, ..setup };
                Self::Redis(RedisServer::start_with_or_skip(left_out, setup)?)
            }
            Store::Redlock => Self::Redlock(Nodes::start_or_skip(left_out, 5)?),
            Store::Postgres => Self::Postgres(postgres::PostgresServer::start_or_skip(left_out)?),
            Store::Mysql => Self::Mysql(mysql::MysqlServer::start_or_skip(left_out)?),
            Store::Etcd => Self::Etcd(etcd::EtcdServer::start_or_skip(left_out)?),
            Store::Zookeeper => Self::Zookeeper(zookeeper::ZookeeperServer::start_or_skip(left_out)?),
            Store::Sqlite => Self::Sqlite(sqlite::SqliteFile::new()),
        })
    }

    /// The line of a worker, and the URL through it.
    pub(crate) async fn line(&self) -> (Line, String) {
        let line = match self {
            Self::Redis(server) => Line::to_redis([server.port()].into_iter()).await,
            Self::Redlock(nodes) => Line::to_redis(nodes.0.iter().map(RedisServer::port)).await,
            Self::Postgres(server) => Line::to(server.port()).await,
            Self::Mysql(server) => Line::to(server.port()).await,
            Self::Etcd(server) => Line::to(server.port()).await,
            Self::Zookeeper(server) => Line::to(server.port()).await,
            Self::Sqlite(_) => Line::None,
        };
        let url = self.url(&line);
        (line, url)
    }

    fn url(&self, line: &Line) -> String {
        let ports = line.ports();
        let port = ports.first().copied().unwrap_or_default();
        match self {
            Self::Redis(_) => crate::support::url_of(port),
            Self::Redlock(_) => nodes_url(ports.into_iter()),
            Self::Postgres(server) => server.url_through(port),
            Self::Mysql(server) => server.url_through(port),
            Self::Etcd(server) => server.url_through(port),
            Self::Zookeeper(server) => server.url_through(port),
            Self::Sqlite(file) => file.url(),
        }
    }

    /// The URL without a line.
    fn direct_url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Redlock(nodes) => nodes.url(),
            Self::Postgres(server) => server.url(),
            Self::Mysql(server) => server.url(),
            Self::Etcd(server) => server.url(),
            Self::Zookeeper(server) => server.url(),
            Self::Sqlite(file) => file.url(),
        }
    }

    /// SIGSTOP; of Redlock's nodes, to a minority.
    pub(crate) fn pause(&self, which: usize) {
        match self {
            Self::Redis(server) => server.pause(),
            Self::Redlock(nodes) => minority(nodes, which).for_each(RedisServer::pause),
            Self::Postgres(server) => server.pause(),
            Self::Mysql(server) => server.pause(),
            Self::Etcd(server) => server.pause(),
            Self::Zookeeper(server) => server.pause(),
            Self::Sqlite(_) => {}
        }
    }

    /// SIGCONT.
    pub(crate) fn resume(&self, which: usize) {
        match self {
            Self::Redis(server) => server.resume(),
            Self::Redlock(nodes) => minority(nodes, which).for_each(RedisServer::resume),
            Self::Postgres(server) => server.resume(),
            Self::Mysql(server) => server.resume(),
            Self::Etcd(server) => server.resume(),
            Self::Zookeeper(server) => server.resume(),
            Self::Sqlite(_) => {}
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Redis(server) => server.kill(),
            Self::Postgres(server) => server.kill(),
            Self::Mysql(server) => server.kill(),
            Self::Etcd(server) => server.kill(),
            Self::Zookeeper(server) => server.kill(),
            Self::Redlock(_) | Self::Sqlite(_) => {}
        }
    }

    /// It runs again, with what it has on disk.
    pub(crate) fn restart(&mut self) {
        match self {
            Self::Redis(server) => server.restart(),
            Self::Postgres(server) => server.restart(),
            Self::Mysql(server) => server.restart(),
            Self::Etcd(server) => server.restart(),
            Self::Zookeeper(server) => server.restart(),
            Self::Redlock(_) | Self::Sqlite(_) => {}
        }
    }

    /// A command of Redis, by hand.
    pub(crate) fn command(&self, words: &[&str]) {
        if let Self::Redis(server) = self {
            server.raw().send(words);
        }
    }

    /// The clock of the server is set back, for good.
    pub(crate) fn set_clock_back(&self, by: Duration) {
        if let Self::Redis(server) = self
            && let Some(clock) = server.clock()
        {
            clock.set_back(by);
        }
    }

    /// Connections of clients at the server, where that can be told.
    pub(crate) fn connections(&self) -> Option<u64> {
        let Self::Redis(server) = self else { return None };
        let list = server.raw().send(&["CLIENT", "LIST"]).text()?;
        // One is that of the question.
        Some(list.lines().count() as u64 - 1)
    }

    /// What is left in the store besides fences, when it stays the same for longer than this.
    pub(crate) async fn remains(&self, patience: Duration) -> Result<Vec<String>, leasehold::Error> {
        let client = self.client().await?;
        let end = Instant::now() + patience;
        let left = loop {
            let left = match self {
                Self::Redis(server) => {
                    let mut keys = server.raw().keys("*");
                    keys.retain(|key| !key.ends_with(":fence") && !key.ends_with(":revoked"));
                    keys
                }
                _ => {
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
    async fn client(&self) -> Result<Client, leasehold::Error> {
        let end = Instant::now() + BACK;
        loop {
            match Client::connect(&self.direct_url()).await {
                Err(_) if Instant::now() < end => sleep(Duration::from_millis(20)).await,
                answer => return answer,
            }
        }
    }

    /// Until it answers to whoever is new.
    pub(crate) async fn is_back(&self) -> Result<(), leasehold::Error> {
        self.client().await?.shutdown().await
    }
}

/// Two of five.
fn minority(nodes: &Nodes, which: usize) -> impl Iterator<Item = &RedisServer> {
    let count = nodes.0.len();
    [which, which + 1].into_iter().map(move |n| &nodes.0[n % count])
}
