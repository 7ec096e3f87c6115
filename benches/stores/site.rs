//! The stores: a separate server for each, and the least that it could do, one commit.

use std::sync::Arc;

use clap::ValueEnum;
use fred::clients::Client as Fred;
use fred::interfaces::KeysInterface;
use mysql_async::prelude::Queryable;
use tempfile::TempDir;
use tokio_postgres::{NoTls, Statement};
use zookeeper_client::{Acls, CreateMode};

use super::etcd::Etcd;
use super::etcd_server::EtcdServer;
use super::mysql::MysqlServer;
use super::postgres::PostgresServer;
use super::zookeeper::ZookeeperServer;
use crate::common::{Bare, Result};
use leasehold_support::redis::{RedisServer, Setup};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    Redis,
    Sqlite,
    Mysql,
    Postgres,
    Etcd,
    Zookeeper,
}

impl Store {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Redis => "Redis",
            Self::Sqlite => "SQLite",
            Self::Mysql => "MySQL",
            Self::Postgres => "PostgreSQL",
            Self::Etcd => "etcd",
            Self::Zookeeper => "ZooKeeper",
        }
    }

    /// `None` if this machine has no such server.
    pub(crate) fn start(self) -> Option<Site> {
        let server = match self {
            Self::Redis => Server::Redis(RedisServer::start_with_or_skip("Redis", Setup::as_a_service())?),
            Self::Sqlite => Server::Sqlite(tempfile::tempdir().expect("room for a directory")),
            Self::Mysql => {
                let options = ["--max-connections=1200"];
                Server::Mysql(MysqlServer::start_with_or_skip("MySQL", &options, None)?)
            }
            Self::Postgres => {
                // Each client has several connections.
                let settings = ["max_connections=1200"];
                Server::Postgres(PostgresServer::start_with_or_skip("PostgreSQL", &settings, None)?)
            }
            Self::Etcd => Server::Etcd(EtcdServer::start_or_skip("etcd")?),
            Self::Zookeeper => Server::Zookeeper(ZookeeperServer::start_as_a_service_or_skip("ZooKeeper")?),
        };
        Some(Site { server })
    }
}

/// A running server, stopped when dropped.
pub(crate) struct Site {
    server: Server,
}

enum Server {
    Redis(RedisServer),
    Sqlite(TempDir),
    Mysql(MysqlServer),
    Postgres(PostgresServer),
    Etcd(EtcdServer),
    Zookeeper(ZookeeperServer),
}

impl Site {
    pub(crate) fn url(&self) -> String {
        match &self.server {
            Server::Redis(server) => server.url(),
            Server::Sqlite(directory) => format!("sqlite:{}", directory.path().join("locks.db").display()),
            Server::Mysql(server) => server.url(),
            Server::Postgres(server) => server.url(),
            Server::Etcd(server) => server.url(),
            Server::Zookeeper(server) => server.url(),
        }
    }

    /// A file for recipes on SQLite, which this crate does not use.
    pub(crate) fn other_file(&self) -> Result<rusqlite::Connection> {
        let Server::Sqlite(directory) = &self.server else { return Err("SQLite only".into()) };
        let file = rusqlite::Connection::open(directory.path().join("other.db"))?;
        // As this crate's own.
        file.pragma_update(None, "journal_mode", "WAL")?;
        file.pragma_update(None, "synchronous", "NORMAL")?;
        file.busy_timeout(std::time::Duration::from_secs(5))?;
        Ok(file)
    }

    pub(crate) async fn postgres(&self) -> Result<tokio_postgres::Client> {
        let (session, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        tokio::spawn(connection);
        Ok(session)
    }

    pub(crate) async fn mysql(&self) -> Result<mysql_async::Conn> {
        let opts = mysql_async::Opts::from_url(&self.url())?;
        Ok(mysql_async::Conn::new(mysql_async::OptsBuilder::from_opts(opts).prefer_socket(false)).await?)
    }

    pub(crate) async fn zookeeper(&self) -> Result<zookeeper_client::Client> {
        let Server::Zookeeper(server) = &self.server else { return Err("ZooKeeper only".into()) };
        Ok(zookeeper_client::Client::connect(&format!("127.0.0.1:{}", server.port())).await?)
    }

    pub(crate) async fn commits(&self) -> Result<Commits> {
        Ok(match &self.server {
            Server::Redis(server) => Commits::Redis(Bare::connection(&server.url()).await?),
            Server::Sqlite(_) => {
                let file = self.other_file()?;
                file.execute_batch(COUNTER)?;
                Commits::Sqlite(file)
            }
            Server::Mysql(_) => {
                let mut session = self.mysql().await?;
                for statement in
                    COUNTER.replace("ON CONFLICT DO NOTHING", "ON DUPLICATE KEY UPDATE id = id").split(';')
                {
                    session.query_drop(statement).await?;
                }
                let update = session.prep(COUNT).await?;
                Commits::Mysql(session, update)
            }
            Server::Postgres(_) => {
                let session = self.postgres().await?;
                session.batch_execute(COUNTER).await?;
                let update = session.prepare(COUNT).await?;
                Commits::Postgres(Arc::new(session), update)
            }
            Server::Etcd(server) => Commits::Etcd(Etcd::connect(&server.url()).await?),
            Server::Zookeeper(_) => {
                let client = self.zookeeper().await?;
                let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
                match client.create(COUNTER_NODE, b"0", &open).await {
                    Ok(_) | Err(zookeeper_client::Error::NodeExists) => Commits::Zookeeper(client),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }
}

const COUNTER: &str = "CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, value INTEGER); \
                       INSERT INTO counter VALUES (1, 0) ON CONFLICT DO NOTHING";
const COUNT: &str = "UPDATE counter SET value = value + 1 WHERE id = 1";

const COUNTER_NODE: &str = "/counter";

/// One small write that the store makes durable as it is configured: SET, UPDATE of one row, or setData.
pub(crate) enum Commits {
    Redis(Fred),
    Sqlite(rusqlite::Connection),
    Mysql(mysql_async::Conn, mysql_async::Statement),
    Postgres(Arc<tokio_postgres::Client>, Statement),
    Etcd(Etcd),
    Zookeeper(zookeeper_client::Client),
}

impl Commits {
    pub(crate) async fn one(&mut self) -> Result<()> {
        let changed = match self {
            Self::Redis(client) => {
                client.set::<(), _, _>("counter", 1, None, None, false).await?;
                1
            }
            Self::Sqlite(file) => file.prepare_cached(COUNT)?.execute([])? as u64,
            Self::Mysql(session, update) => {
                session.exec_drop(&*update, ()).await?;
                session.affected_rows()
            }
            Self::Postgres(session, update) => session.execute(update, &[]).await?,
            Self::Etcd(etcd) => {
                etcd.put(b"counter", b"1").await?;
                1
            }
            Self::Zookeeper(client) => {
                client.set_data(COUNTER_NODE, b"1", None).await?;
                1
            }
        };
        if changed == 1 { Ok(()) } else { Err("the counter is missing".into()) }
    }
}
