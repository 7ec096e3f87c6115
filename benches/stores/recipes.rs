//! Ways to take turns: this crate, and each store's own primitives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Client, CountingSemaphore, Guard};
use mysql_async::prelude::Queryable;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout_at};
use tokio_postgres::Statement;
use uuid::Uuid;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix};

use super::site::Site;
use crate::common::turns::Contender;
use crate::common::{LEASE, Ours, Polling, Result};

/// How often a poller retries.
const INTERVAL: Duration = Duration::from_millis(10);

/// A way to take turns, each contender with connections of its own.
pub(crate) trait Recipe: Contender {
    const NAME: &str;

    fn connect(site: &Site, name: &str) -> impl Future<Output = Result<Self>> + Send;
}

impl Recipe for Ours {
    const NAME: &str = "leasehold";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        Self::connect(&site.url(), name, true).await
    }
}

/// `SET NX PX`, and a script that compares and deletes.
impl Recipe for Polling {
    const NAME: &str = "SET NX, polled every 10 ms";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        Self::connect(&site.url(), name, INTERVAL).await
    }
}

/// Permits of a semaphore of this crate.
#[derive(Clone)]
pub(crate) struct Permits(CountingSemaphore);

impl Permits {
    pub(crate) fn new(client: &Client, name: &str, limit: u32) -> Result<Self> {
        Ok(Self(client.counting_semaphore(name, limit)?))
    }
}

impl Contender for Permits {
    type Held = Guard;

    async fn acquire(&self, until: Instant) -> Result<Option<Guard>> {
        match timeout_at(until.into(), self.0.acquire()).await {
            Ok(guard) => Ok(Some(guard?)),
            Err(_) => Ok(None),
        }
    }

    async fn release(&self, guard: Guard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// This crate on MySQL, with polling instead of named locks.
#[derive(Clone)]
pub(crate) struct OursPolling(Ours);

impl Recipe for OursPolling {
    const NAME: &str = "leasehold, push=off";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        Ok(Self(Ours::connect(&format!("{}?push=off", site.url()), name, true).await?))
    }
}

impl Contender for OursPolling {
    type Held = Guard;

    async fn acquire(&self, until: Instant) -> Result<Option<Guard>> {
        self.0.acquire(until).await
    }

    async fn release(&self, guard: Guard) -> Result<()> {
        self.0.release(guard).await
    }
}

/// MySQL's named locks: a session waits in the server, and has the lock until it ends or releases it. No lease, no
/// token.
#[derive(Clone)]
pub(crate) struct NamedLock {
    session: Arc<Mutex<mysql_async::Conn>>,
    name: String,
}

impl NamedLock {
    async fn call(&self, function: &str) -> Result<bool> {
        let mut session = self.session.lock().await;
        let done: Option<Option<i64>> = session.query_first(format!("SELECT {function}")).await?;
        Ok(done.flatten() == Some(1))
    }
}

impl Recipe for NamedLock {
    const NAME: &str = "GET_LOCK";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        Ok(Self { session: Arc::new(site.mysql().await?.into()), name: name.to_owned() })
    }
}

impl Contender for NamedLock {
    type Held = ();

    /// Everybody releases, so it is granted in the end.
    async fn acquire(&self, _: Instant) -> Result<Option<()>> {
        Ok(self.call(&format!("GET_LOCK('{}', 60)", self.name)).await?.then_some(()))
    }

    async fn release(&self, (): ()) -> Result<()> {
        let released = self.call(&format!("RELEASE_LOCK('{}')", self.name)).await?;
        if released { Ok(()) } else { Err("a lock was gone before its release".into()) }
    }
}

/// PostgreSQL's advisory locks: a session waits in the server, and has the lock until it ends or unlocks it. No lease,
/// no token.
#[derive(Clone)]
pub(crate) struct AdvisoryLock {
    session: Arc<tokio_postgres::Client>,
    lock: Statement,
    unlock: Statement,
    key: i64,
}

impl Recipe for AdvisoryLock {
    const NAME: &str = "pg_advisory_lock";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        let session = Arc::new(site.postgres().await?);
        let lock = session.prepare("SELECT pg_advisory_lock($1)").await?;
        let unlock = session.prepare("SELECT pg_advisory_unlock($1)").await?;
        let key = session.query_one("SELECT hashtextextended($1, 0)", &[&name]).await?.get(0);
        Ok(Self { session, lock, unlock, key })
    }
}

impl Contender for AdvisoryLock {
    type Held = ();

    /// Everybody releases, so it is granted in the end.
    async fn acquire(&self, _: Instant) -> Result<Option<()>> {
        self.session.query_one(&self.lock, &[&self.key]).await?;
        Ok(Some(()))
    }

    async fn release(&self, (): ()) -> Result<()> {
        let unlocked = self.session.query_one(&self.unlock, &[&self.key]).await?.get::<_, bool>(0);
        if unlocked { Ok(()) } else { Err("a lock was gone before its release".into()) }
    }
}

/// Curator's lock: an ephemeral node for everybody who waits, who watches the one before it. No lease, no token; it is
/// lost with the session.
#[derive(Clone)]
pub(crate) struct CuratorLock {
    client: zookeeper_client::Client,
    directory: String,
}

impl Recipe for CuratorLock {
    const NAME: &str = "Curator's lock";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        Ok(Self { client: site.zookeeper().await?, directory: format!("/curator-{name}") })
    }
}

impl Contender for CuratorLock {
    type Held = zookeeper_client::OwnedLockClient;

    /// Everybody releases, so it is granted in the end.
    async fn acquire(&self, _: Instant) -> Result<Option<Self::Held>> {
        let prefix = LockPrefix::new_curator(&self.directory, "lock-")?;
        let open = LockOptions::new(Acls::anyone_all());
        let options = open.with_ancestor_options(CreateMode::Persistent.with_acls(Acls::anyone_all()))?;
        Ok(Some(self.client.lock(prefix, b"", options).await?.into_owned()))
    }

    async fn release(&self, held: Self::Held) -> Result<()> {
        let path = held.lock_path().to_owned();
        // Dropping it deletes the node, too, but does not tell when.
        self.client.delete(&path, None).await?;
        std::mem::forget(held);
        Ok(())
    }
}

/// A row with its owner and the time at which it expires, asked for again until it is free, as many a job queue does.
pub(crate) struct PolledRow<S> {
    session: Arc<S>,
    name: String,
}

impl<S> Clone for PolledRow<S> {
    fn clone(&self) -> Self {
        Self { session: Arc::clone(&self.session), name: self.name.clone() }
    }
}

/// Statements that take and give up a row of a polled table, by the database's clock.
pub(crate) trait Rows: Send + Sync + Sized + 'static {
    fn connect(site: &Site) -> impl Future<Output = Result<Self>> + Send;
    /// Whether the row was free.
    fn take(self: &Arc<Self>, name: &str, owner: &str) -> impl Future<Output = Result<bool>> + Send;
    /// Whether the row was this owner's.
    fn give_up(self: &Arc<Self>, name: &str, owner: &str) -> impl Future<Output = Result<bool>> + Send;
}

impl<S: Rows> Recipe for PolledRow<S> {
    const NAME: &str = "a row, polled every 10 ms";

    async fn connect(site: &Site, name: &str) -> Result<Self> {
        Ok(Self { session: Arc::new(S::connect(site).await?), name: name.to_owned() })
    }
}

impl<S: Rows> Contender for PolledRow<S> {
    type Held = String;

    async fn acquire(&self, until: Instant) -> Result<Option<String>> {
        let owner = Uuid::new_v4().to_string();
        while Instant::now() < until {
            if self.session.take(&self.name, &owner).await? {
                return Ok(Some(owner));
            }
            sleep(INTERVAL).await;
        }
        Ok(None)
    }

    async fn release(&self, owner: String) -> Result<()> {
        if self.session.give_up(&self.name, &owner).await? {
            Ok(())
        } else {
            Err("a lock was gone before its release".into())
        }
    }
}

pub(crate) struct PostgresRows {
    session: tokio_postgres::Client,
    take: Statement,
    give_up: Statement,
}

impl Rows for PostgresRows {
    async fn connect(site: &Site) -> Result<Self> {
        let session = site.postgres().await?;
        let table =
            "CREATE TABLE IF NOT EXISTS polled (name text PRIMARY KEY, owner text, expires timestamptz)";
        // Two sessions that create it at once disturb each other.
        let locked = format!("BEGIN; SELECT pg_advisory_xact_lock(1); {table}; COMMIT");
        session.batch_execute(&locked).await?;
        let seconds = LEASE.as_secs();
        let take = format!(
            "INSERT INTO polled VALUES ($1, $2, clock_timestamp() + interval '{seconds} s') ON CONFLICT (name) DO UPDATE \
             SET owner = excluded.owner, expires = excluded.expires WHERE polled.expires < clock_timestamp()"
        );
        let take = session.prepare(&take).await?;
        let give_up = session.prepare("DELETE FROM polled WHERE name = $1 AND owner = $2").await?;
        Ok(Self { session, take, give_up })
    }

    async fn take(self: &Arc<Self>, name: &str, owner: &str) -> Result<bool> {
        Ok(self.session.execute(&self.take, &[&name, &owner]).await? == 1)
    }

    async fn give_up(self: &Arc<Self>, name: &str, owner: &str) -> Result<bool> {
        Ok(self.session.execute(&self.give_up, &[&name, &owner]).await? == 1)
    }
}

pub(crate) struct MysqlRows(Mutex<mysql_async::Conn>);

impl MysqlRows {
    async fn change(&self, sql: &str, with: Vec<&str>) -> Result<bool> {
        const DEADLOCK: u16 = 1213;

        let mut session = self.0.lock().await;
        loop {
            match session.exec_drop(sql, with.clone()).await {
                Ok(()) => return Ok(session.affected_rows() > 0),
                Err(mysql_async::Error::Server(said)) if said.code == DEADLOCK => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Rows for MysqlRows {
    async fn connect(site: &Site) -> Result<Self> {
        let mut session = site.mysql().await?;
        session
            .query_drop(
                "CREATE TABLE IF NOT EXISTS polled (name VARCHAR(64) PRIMARY KEY, owner VARCHAR(36), expires DATETIME(6)) \
                 ENGINE = InnoDB",
            )
            .await?;
        Ok(Self(session.into()))
    }

    async fn take(self: &Arc<Self>, name: &str, owner: &str) -> Result<bool> {
        // Without a change no row is counted.
        let take = format!(
            "INSERT INTO polled VALUES (?, ?, SYSDATE(6) + INTERVAL {} SECOND) ON DUPLICATE KEY UPDATE \
             owner = IF(expires < SYSDATE(6), VALUES(owner), owner), \
             expires = IF(expires < SYSDATE(6), VALUES(expires), expires)",
            LEASE.as_secs()
        );
        self.change(&take, vec![name, owner]).await
    }

    async fn give_up(self: &Arc<Self>, name: &str, owner: &str) -> Result<bool> {
        self.change("DELETE FROM polled WHERE name = ? AND owner = ?", vec![name, owner]).await
    }
}

pub(crate) struct SqliteRows(std::sync::Mutex<rusqlite::Connection>);

impl SqliteRows {
    async fn execute(self: &Arc<Self>, sql: &'static str, name: &str, owner: &str) -> Result<bool> {
        let (rows, name, owner) = (Arc::clone(self), name.to_owned(), owner.to_owned());
        let changed = spawn_blocking(move || -> Result<usize> {
            let file = rows.0.lock().map_err(|_| "another request panicked")?;
            Ok(file.prepare_cached(sql)?.execute([name, owner])?)
        });
        Ok(changed.await?? == 1)
    }
}

impl Rows for SqliteRows {
    async fn connect(site: &Site) -> Result<Self> {
        let file = site.other_file()?;
        file.execute_batch(
            "CREATE TABLE IF NOT EXISTS polled (name TEXT PRIMARY KEY, owner TEXT, expires REAL)",
        )?;
        Ok(Self(file.into()))
    }

    async fn take(self: &Arc<Self>, name: &str, owner: &str) -> Result<bool> {
        let take = "INSERT INTO polled VALUES (?1, ?2, unixepoch('subsec') + 30) ON CONFLICT (name) DO UPDATE \
                    SET owner = excluded.owner, expires = excluded.expires WHERE polled.expires < unixepoch('subsec')";
        self.execute(take, name, owner).await
    }

    async fn give_up(self: &Arc<Self>, name: &str, owner: &str) -> Result<bool> {
        self.execute("DELETE FROM polled WHERE name = ?1 AND owner = ?2", name, owner).await
    }
}
