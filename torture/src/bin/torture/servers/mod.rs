//! What runs for each store, with the faults that it can have: one module for each.

mod cluster;
mod etcd;
mod etcd_cluster;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod sentinel;
mod sqlite;
mod standby;
mod zookeeper;
mod zookeeper_ensemble;

use std::fmt::Debug;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, ready};
use tokio::time::{Instant, sleep};

use crate::fault::{Fault, ServerFault};
use crate::line::Line;
use crate::mysql::MysqlServer;
use crate::postgres::PostgresServer;
use crate::store::Store;
use standby::Pair;

/// What its servers can suffer.
pub(crate) const fn faults(store: Store) -> &'static [ServerFault] {
    match store {
        Store::Redis => redis::FAULTS,
        Store::Redlock => redlock::FAULTS,
        Store::Sentinel => sentinel::FAULTS,
        Store::Cluster => cluster::FAULTS,
        Store::Postgres => postgres::FAULTS,
        Store::PostgresStandby | Store::MysqlReplica => standby::FAULTS,
        Store::Mysql => mysql::FAULTS,
        Store::Etcd => etcd::FAULTS,
        Store::EtcdCluster => etcd_cluster::FAULTS,
        Store::Zookeeper => zookeeper::FAULTS,
        Store::ZookeeperEnsemble => zookeeper_ensemble::FAULTS,
        Store::Sqlite => sqlite::FAULTS,
    }
}

/// `None` if this machine does not have it.
pub(crate) async fn start_or_skip(store: Store, start: Start<'_>) -> Result<Option<Box<dyn Server>>, String> {
    fn boxed<S: Server + 'static>(server: Option<S>) -> Option<Box<dyn Server>> {
        server.map(|server| Box::new(server) as Box<dyn Server>)
    }
    Ok(match store {
        Store::Redis => boxed(redis::Redis::start_or_skip(start)),
        Store::Redlock => boxed(redlock::Redlock::start_or_skip(start)),
        Store::Sentinel => boxed(sentinel::Sentinel::start_or_skip()),
        Store::Cluster => boxed(cluster::Cluster::start_or_skip()),
        Store::Postgres => boxed(postgres::Postgres::start_or_skip()),
        Store::PostgresStandby => boxed(Pair::<PostgresServer>::start_or_skip(start).await?),
        Store::Mysql => boxed(mysql::Mysql::start_or_skip()),
        Store::MysqlReplica => boxed(Pair::<MysqlServer>::start_or_skip(start).await?),
        Store::Etcd => boxed(etcd::Etcd::start_or_skip()),
        Store::EtcdCluster => boxed(etcd_cluster::EtcdCluster::start_or_skip()),
        Store::Zookeeper => boxed(zookeeper::Zookeeper::start_or_skip()),
        Store::ZookeeperEnsemble => boxed(zookeeper_ensemble::ZookeeperEnsemble::start_or_skip()),
        Store::Sqlite => boxed(Some(sqlite::Sqlite::start(start))),
    })
}

/// How a server is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    /// Whether it keeps everything on disk.
    pub(crate) is_on_disk: bool,
    /// What it will suffer.
    pub(crate) faults: &'a [Fault],
}

impl Start<'_> {
    fn will_suffer(&self, fault: ServerFault) -> bool {
        self.faults.contains(&Fault::Server(fault))
    }
}

/// How long servers may take to agree with each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// Named when a machine does not have a server.
const LEFT_OUT: &str = "torture";

/// One time that a fault hits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strike {
    pub(crate) fault: ServerFault,
    /// For how long.
    pub(crate) lasts: Duration,
    /// A random number: which of several servers, and the like.
    pub(crate) which: usize,
}

pub(crate) type Outcome<'a> = BoxFuture<'a, Result<(), String>>;

/// The server of a store, or several that belong together.
pub(crate) trait Server: Debug + Send + Sync {
    /// Where its clients connect.
    fn url(&self) -> String;

    /// The line of a worker, and the URL through it.
    fn line(&self) -> BoxFuture<'_, (Line, String)>;

    /// Whether this machine has what the fault needs.
    fn can_have(&self, _: ServerFault) -> bool {
        true
    }

    /// Begins a fault.
    fn begin(&mut self, strike: Strike) -> Outcome<'_>;

    /// Ends it, if it has not ended the moment it began.
    fn end(&mut self, strike: Strike) -> Outcome<'_>;

    /// Connections of clients at the server, where that can be told.
    fn connections(&self) -> Option<u64> {
        None
    }

    /// What is in the store besides fences. `None` where the crate's own list has to do.
    fn records(&self) -> Option<Vec<String>> {
        None
    }
}

/// What is done at once is done.
fn done<'a>() -> Outcome<'a> {
    ready(Ok(())).boxed()
}

/// A fault is not one of those that the store has said it can have.
fn unknown<'a>(fault: ServerFault) -> Outcome<'a> {
    ready(Err(format!("this store cannot have {fault:?}"))).boxed()
}

/// A line to one server, through which `url` leads.
async fn one_line(port: u16, url: impl FnOnce(u16) -> String + Send) -> (Line, String) {
    let line = Line::to(&[port]).await;
    let through = line.ports()[0];
    (line, url(through))
}

/// Two of five.
fn minority<T>(nodes: &mut [T], which: usize) -> impl Iterator<Item = &mut T> {
    let count = nodes.len();
    let (size, first) = (count.saturating_sub(1) / 2, which % count);
    nodes
        .iter_mut()
        .enumerate()
        .filter(move |(n, _)| (n + count - first) % count < size)
        .map(|(_, node)| node)
}

/// Waits until it is so; the tasks of this program go on meanwhile.
async fn until(what: &str, mut is_so: impl FnMut() -> bool + Send) -> Result<(), String> {
    until_it_answers(what, || ready(is_so())).await
}

/// The same for what has to be asked first.
async fn until_it_answers<F>(what: &str, mut is_so: impl FnMut() -> F + Send) -> Result<(), String>
where
    F: Future<Output = bool> + Send,
{
    let end = Instant::now() + PATIENCE;
    while !is_so().await {
        if Instant::now() > end {
            return Err(format!("{what}: not within {PATIENCE:?}"));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
