//! The ways in which a lease is lost, and what is promised for each of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::{Client, DistMutex, Error, LossReason, MutexOptions};
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use crate::Args;
use crate::failure::Failure;
use crate::holder::{Ended, Entrance, Holder};
use crate::silence::Silent;
use crate::store::Store;
use crate::wire::{Wire, is_tcp};

/// For how long everything goes well, and for how long the work is watched after its end.
const A_WHILE: Duration = Duration::from_millis(150);

/// How much later than promised something may be on a machine that has other things to do.
const SLACK: Duration = Duration::from_secs(2);

/// A way in which a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Force,
    MaxHold,
    DataLoss,
    NoAnswer,
    Pause,
}

/// What became of the work.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) case: Case,
    pub(crate) reason: LossReason,
    /// How many steps were made in all.
    pub(crate) steps: usize,
    /// How many of them after the work was ended.
    pub(crate) after: usize,
    /// How many of them while the next holder had the lock.
    pub(crate) beside: usize,
    /// How long after the lease was taken away the work was ended.
    pub(crate) ended_after: Duration,
}

impl Case {
    pub(crate) const ALL: [Self; 5] =
        [Self::Force, Self::MaxHold, Self::DataLoss, Self::NoAnswer, Self::Pause];

    /// Whether it can be demonstrated with a store at `url`.
    pub(crate) fn fits(self, url: &str) -> bool {
        match self {
            Self::NoAnswer => url == "memory:" || is_tcp(url),
            // A server's leases are renewed from the crate's own thread, regardless of the application's threads.
            Self::Pause => url == "memory:",
            // Where this example has a client with which to delete a key.
            Self::DataLoss => !["etcd:", "etcds:", "zookeeper:"].iter().any(|scheme| url.starts_with(scheme)),
            Self::Force | Self::MaxHold => true,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Force => "force",
            Self::MaxHold => "max_hold",
            Self::DataLoss => "data_loss",
            Self::NoAnswer => "no_answer",
            Self::Pause => "pause",
        }
    }

    /// How soon the work ends.
    pub(crate) fn promise(self, args: &Args) -> (Duration, &'static str) {
        let ttl = args.ttl();
        match self {
            Self::DataLoss => (ttl / 3, "at the next renewal"),
            Self::Force if is_told_nothing(&args.url) => (ttl / 3, "at the next renewal"),
            Self::Force | Self::MaxHold => (Duration::ZERO, "at once"),
            Self::NoAnswer => (ttl, "when the lease expires"),
            Self::Pause => (Duration::ZERO, "when it resumes"),
        }
    }

    /// Whether the work ends before the next holder is admitted.
    pub(crate) const fn excludes(self) -> bool {
        !matches!(self, Self::Force | Self::DataLoss)
    }

    /// What the holder may be told.
    const fn reasons(self) -> &'static [LossReason] {
        match self {
            Self::Force => &[LossReason::Revoked],
            Self::MaxHold => &[LossReason::HeldTooLong],
            Self::DataLoss => &[LossReason::Missing, LossReason::Taken],
            Self::NoAnswer => &[LossReason::StoreUnreachable],
            // The second if a renewal was under way.
            Self::Pause => &[LossReason::Expired, LossReason::StoreUnreachable],
        }
    }

    /// Lets a holder work, takes its lease away in this way, and watches what becomes of the work.
    pub(crate) async fn play(self, args: &Args) -> Result<Outcome, Failure> {
        let (store, ttl) = (Store::at(&args.url), args.ttl());
        let name = format!("lost_lease:{}", Uuid::new_v4());
        let (silence, silent) = watch::channel(false);
        let (entrance, _wire) = self.entrance(&store, silent).await?;
        let mut holder = Holder::start(entrance, name.clone(), self.options(args)).await?;

        let client = store.client().await?;
        let mutex = client.mutex_with(&name, MutexOptions::new().ttl(ttl))?;
        let next = tokio::spawn(wait_in_line(mutex.clone()));
        while mutex.inspect().await?.waiters.is_empty() && !next.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(A_WHILE).await;

        let mut taken = Instant::now();
        match self {
            Self::Force => drop(mutex.force_release().await?),
            Self::MaxHold => taken = holder.since + args.max_hold(),
            Self::DataLoss => forget(&store, &name).await?,
            Self::NoAnswer => drop(silence.send_replace(true)),
            Self::Pause => {
                taken += ttl * 3 / 2;
                holder.block(ttl * 3 / 2);
            }
        }
        let next = next.await??;
        let Ended { at, reason } = holder.ended().await?;
        sleep(A_WHILE).await;
        client.shutdown().await?;

        let steps = holder.steps.so_far();
        let later_than = |instant| steps.iter().filter(|step| **step > instant).count();
        Ok(Outcome {
            case: self,
            reason,
            steps: steps.len(),
            after: later_than(at),
            beside: later_than(next),
            ended_after: at.saturating_duration_since(taken),
        })
    }

    /// What the holder chooses.
    fn options(self, args: &Args) -> MutexOptions {
        let options = MutexOptions::new().ttl(args.ttl());
        if self == Self::MaxHold { options.max_hold(args.max_hold()) } else { options }
    }

    /// How the holder comes to its lock.
    async fn entrance(
        self,
        store: &Store,
        silence: watch::Receiver<bool>,
    ) -> Result<(Entrance, Option<Wire>), Failure> {
        match (self, store) {
            (Self::NoAnswer, Store::Memory(memory)) => {
                let client = Client::with_backend(Arc::new(Silent::new(memory, silence)));
                Ok((Entrance::Client(client), None))
            }
            (Self::NoAnswer, Store::Server(url)) => {
                let wire = Wire::to(url, silence).await?;
                Ok((Entrance::Store(Store::Server(wire.url.clone())), Some(wire)))
            }
            _ => Ok((Entrance::Store(store.clone()), None)),
        }
    }
}

impl Outcome {
    /// What is not as promised.
    pub(crate) fn flaw(&self, args: &Args) -> Option<String> {
        let (case, name) = (self.case, self.case.name());
        let (promise, _) = case.promise(args);
        match () {
            () if !case.reasons().contains(&self.reason) => {
                Some(format!("{name}: reported that {}", self.reason))
            }
            () if self.steps == 0 => Some(format!("{name}: the work never started")),
            () if self.after > 0 => Some(format!("{name}: {} steps after the end", self.after)),
            () if case.excludes() && self.beside > 0 => {
                Some(format!("{name}: {} steps overlapped with the next holder", self.beside))
            }
            () if self.ended_after > promise + SLACK => {
                Some(format!("{name}: ended after {:?} instead of {promise:?}", self.ended_after))
            }
            () => None,
        }
    }
}

/// Whether the store sends no events to holders.
fn is_told_nothing(url: &str) -> bool {
    ["mysql:", "mariadb:"].iter().any(|scheme| url.starts_with(scheme))
}

/// Waits until it is the next holder, and tells when that was.
async fn wait_in_line(mutex: DistMutex) -> Result<Instant, Error> {
    let guard = mutex.lock().await?;
    let held = Instant::now();
    guard.release().await.map(|()| held)
}

/// Lets the store forget the lock.
async fn forget(store: &Store, name: &str) -> Result<(), Failure> {
    match store {
        Store::Memory(memory) => memory.flush(),
        Store::Server(url) => match url.split_once(':') {
            Some(("sqlite", path)) => delete_row(path, &format!("lock:{name}"))?,
            Some(("mysql" | "mariadb", _)) => delete_from_mysql(url, &format!("lock:{name}")).await?,
            Some(("postgres" | "postgresql", _)) => delete_from_table(url, &format!("lock:{name}")).await?,
            _ => delete(url, &format!("lock:{name}")).await?,
        },
    }
    Ok(())
}

#[cfg(feature = "sqlite")]
fn delete_row(path: &str, key: &str) -> Result<(), Failure> {
    let file = rusqlite::Connection::open(path)?;
    file.busy_timeout(SLACK)?;
    file.execute("DELETE FROM leasehold_leases WHERE key = ?1", [key])?;
    Ok(())
}

#[cfg(not(feature = "sqlite"))]
fn delete_row(_: &str, _: &str) -> Result<(), Failure> {
    Ok(()) // never called: this build opens no file
}

#[cfg(feature = "mysql")]
async fn delete_from_mysql(url: &str, key: &str) -> Result<(), Failure> {
    use mysql_async::prelude::*;

    // The client of MySQL knows one of the schemes, and none of the options of leasehold.
    let url = url.split('?').next().unwrap_or(url).replacen("mariadb:", "mysql:", 1);
    let mut session = mysql_async::Conn::from_url(url).await?;
    session.exec_drop("DELETE FROM leasehold WHERE k = ?", (key,)).await?;
    Ok(session.disconnect().await?)
}

#[cfg(not(feature = "mysql"))]
#[expect(clippy::unused_async, reason = "a build with this store waits for it")]
async fn delete_from_mysql(_: &str, _: &str) -> Result<(), Failure> {
    Ok(()) // never called: this build connects to no such server
}

#[cfg(feature = "postgres")]
async fn delete_from_table(url: &str, key: &str) -> Result<(), Failure> {
    let (session, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    let connection = tokio::spawn(connection);
    session.execute("DELETE FROM leasehold WHERE key = $1", &[&key]).await?;
    drop(session);
    Ok(connection.await??)
}

#[cfg(not(feature = "postgres"))]
#[expect(clippy::unused_async, reason = "a build with this store waits for it")]
async fn delete_from_table(_: &str, _: &str) -> Result<(), Failure> {
    Ok(()) // never called: this build connects to no such server
}

#[cfg(feature = "fred")]
async fn delete(url: &str, key: &str) -> Result<(), Failure> {
    use fred::prelude::*;

    let server = Builder::from_config(Config::from_url(url)?).build()?;
    server.init().await?;
    server.del::<(), _>(key).await?;
    Ok(server.quit().await?)
}

#[cfg(not(feature = "fred"))]
async fn delete(_: &str, _: &str) -> Result<(), Failure> {
    Ok(()) // never called: this build connects to no server
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> Args {
        Args { url: "memory:".to_owned(), ttl: 300 }
    }

    fn outcome(case: Case, reason: LossReason) -> Outcome {
        Outcome { case, reason, steps: 50, after: 0, beside: 0, ended_after: Duration::ZERO }
    }

    #[test]
    fn only_what_was_promised_is_a_proof() {
        let good = outcome(Case::MaxHold, LossReason::HeldTooLong);
        assert_eq!(good.flaw(&args()), None);
        for bad in [
            Outcome { after: 1, ..good.clone() },
            Outcome { beside: 1, ..good.clone() },
            Outcome { steps: 0, ..good.clone() },
            Outcome { reason: LossReason::Expired, ..good.clone() },
            Outcome { ended_after: SLACK + Duration::from_millis(1), ..good },
        ] {
            assert!(bad.flaw(&args()).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn beside_the_next_holder_work_may_go_on_only_where_the_store_gave_the_lock_away_first() {
        let beside = |case, reason| Outcome { beside: 1, ..outcome(case, reason) }.flaw(&args());
        assert_eq!(beside(Case::Force, LossReason::Revoked), None);
        assert_eq!(beside(Case::DataLoss, LossReason::Taken), None);
        assert!(beside(Case::NoAnswer, LossReason::StoreUnreachable).is_some());
        assert!(beside(Case::Pause, LossReason::Expired).is_some());
    }
}
