//! A primary, and a standby that follows it: PostgreSQL and MariaDB.
//!
//! The primary confirms what the standby has, so a failover forgets nothing; but not in runs in which one takes over that
//! lags, where the primary waits for nobody. Clients are told both addresses, and find out by themselves which server
//! accepts changes. A primary that is replaced is dead, or hangs and is killed before it wakes up, as whoever manages such
//! servers has to make sure; then it forgets everything and follows the other one.

use std::fmt::Debug;
use std::mem;

use futures::future::{BoxFuture, FutureExt};
use tokio::time::sleep;

use super::{LEFT_OUT, Outcome, Server, Start, Strike, done, mysql, postgres, unknown, until_it_answers};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::mysql::MysqlServer;
use crate::postgres::PostgresServer;

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::FailOver,
    ServerFault::FailOverBehind,
    ServerFault::StopFollower,
    ServerFault::EndConnections,
];

/// One of the two servers.
pub(crate) trait Replicated: Debug + Send + Sync + Sized {
    /// Both, as if they were alone.
    fn start_or_skip() -> Option<[Self; 2]>;

    fn port(&self) -> u16;

    /// For clients that may use any of several servers.
    fn url(hosts: &str) -> String;

    fn kill(&mut self);

    /// SIGSTOP, and SIGCONT.
    fn pause(&self);
    fn resume(&self);

    /// Ends what clients have open.
    fn end_connections(&self) -> Outcome<'_>;

    /// Becomes a copy of the primary, and follows it.
    fn follow<'a>(&'a mut self, primary: &'a Self) -> Outcome<'a>;

    /// Whether it is followed.
    fn is_followed(&self) -> BoxFuture<'_, bool>;

    /// From here on, it confirms only what its standby has.
    fn wait_for_standby(&self) -> Outcome<'_>;

    /// Follows no longer.
    fn fall_behind(&self) -> Outcome<'_>;

    /// Becomes the primary, with all that it was told.
    fn promote(&self) -> Outcome<'_>;
}

#[derive(Debug)]
pub(crate) struct Pair<S> {
    primary: S,
    standby: S,
    /// Whether the primary waits for the standby.
    is_synchronous: bool,
}

impl<S: Replicated> Pair<S> {
    pub(crate) async fn start_or_skip(start: Start<'_>) -> Result<Option<Self>, String> {
        let Some([primary, standby]) = S::start_or_skip() else { return Ok(None) };
        let is_synchronous = !start.will_suffer(ServerFault::FailOverBehind);
        let mut pair = Self { primary, standby, is_synchronous };
        pair.follow().await?;
        Ok(Some(pair))
    }

    async fn follow(&mut self) -> Result<(), String> {
        self.standby.follow(&self.primary).await?;
        until_it_answers("the standby follows", || self.primary.is_followed()).await?;
        if self.is_synchronous {
            self.primary.wait_for_standby().await?;
        }
        Ok(())
    }

    /// The primary is killed, or hangs until it is, and the standby takes its place.
    async fn fail_over(&mut self, strike: Strike) -> Result<(), String> {
        if strike.fault == ServerFault::FailOverBehind {
            self.standby.fall_behind().await?;
            sleep(strike.lasts).await;
        }
        if strike.which % 2 == 1 {
            self.primary.pause();
        } else {
            self.primary.kill();
        }
        self.standby.promote().await?;
        mem::swap(&mut self.primary, &mut self.standby);
        Ok(())
    }
}

impl<S: Replicated> Server for Pair<S> {
    fn url(&self) -> String {
        url_of::<S>(&[self.primary.port(), self.standby.port()])
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        async move {
            let line = Line::to(&[self.primary.port(), self.standby.port()]).await;
            let url = url_of::<S>(&line.ports());
            (line, url)
        }
        .boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::FailOver | ServerFault::FailOverBehind => self.fail_over(strike).boxed(),
            ServerFault::StopFollower => {
                self.standby.pause();
                done()
            }
            ServerFault::EndConnections => self.primary.end_connections(),
            fault => unknown(fault),
        }
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::FailOver | ServerFault::FailOverBehind => self.follow().boxed(),
            ServerFault::StopFollower => {
                self.standby.resume();
                done()
            }
            _ => done(),
        }
    }
}

fn url_of<S: Replicated>(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    S::url(&hosts.join(","))
}

impl Replicated for PostgresServer {
    fn start_or_skip() -> Option<[Self; 2]> {
        Some([Self::start_or_skip(LEFT_OUT)?, Self::start_or_skip(LEFT_OUT)?])
    }

    fn port(&self) -> u16 {
        self.port()
    }

    fn url(hosts: &str) -> String {
        crate::postgres::url_of_hosts(hosts)
    }

    fn kill(&mut self) {
        self.kill();
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }

    fn end_connections(&self) -> Outcome<'_> {
        postgres::execute(self, &[postgres::TERMINATE])
    }

    fn follow<'a>(&'a mut self, primary: &'a Self) -> Outcome<'a> {
        self.follow(primary);
        done()
    }

    fn is_followed(&self) -> BoxFuture<'_, bool> {
        const FOLLOWERS: &str = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        self.number(FOLLOWERS).map(|followers| followers == 1).boxed()
    }

    fn wait_for_standby(&self) -> Outcome<'_> {
        const SYNCHRONOUS: &str = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        async move {
            postgres::execute(self, &["ALTER SYSTEM SET synchronous_standby_names = '*'", postgres::RELOAD])
                .await?;
            until_it_answers("the standby is waited for", || self.number(SYNCHRONOUS).map(|n| n == 1)).await
        }
        .boxed()
    }

    fn fall_behind(&self) -> Outcome<'_> {
        postgres::execute(self, &["ALTER SYSTEM SET primary_conninfo = ''", postgres::RELOAD])
    }

    fn promote(&self) -> Outcome<'_> {
        postgres::execute(self, &["SELECT pg_promote()"])
    }
}

impl Replicated for MysqlServer {
    fn start_or_skip() -> Option<[Self; 2]> {
        let start = |number| {
            let options = [
                number,
                "--log-bin=changes",
                "--log-slave-updates",
                "--rpl-semi-sync-slave-enabled",
                // Before a change can be seen.
                "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
                // Longer than any fault: what is not confirmed is not answered.
                "--rpl-semi-sync-master-timeout=600000",
            ];
            Self::start_with_or_skip(LEFT_OUT, &options, None)
        };
        // MySQL has other names for these.
        if Self::are_of_mysql() {
            return None;
        }
        Some([start("--server-id=1")?, start("--server-id=2")?])
    }

    fn port(&self) -> u16 {
        self.port()
    }

    fn url(hosts: &str) -> String {
        crate::mysql::url_of_hosts(hosts)
    }

    fn kill(&mut self) {
        self.kill();
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }

    fn end_connections(&self) -> Outcome<'_> {
        mysql::execute(self, &[mysql::KILL])
    }

    fn follow<'a>(&'a mut self, primary: &'a Self) -> Outcome<'a> {
        self.follow(primary).map(Ok).boxed()
    }

    fn is_followed(&self) -> BoxFuture<'_, bool> {
        self.number("SELECT count(*) FROM information_schema.processlist WHERE command = 'Binlog Dump'")
            .map(|followers| followers == 1)
            .boxed()
    }

    fn wait_for_standby(&self) -> Outcome<'_> {
        async move {
            mysql::execute(self, &["SET GLOBAL rpl_semi_sync_master_enabled = 1"]).await?;
            let clients = || self.counted("Rpl_semi_sync_master_clients");
            until_it_answers("the replica is waited for", || clients().map(|clients| clients == 1)).await
        }
        .boxed()
    }

    fn fall_behind(&self) -> Outcome<'_> {
        mysql::execute(self, &["STOP SLAVE IO_THREAD"])
    }

    fn promote(&self) -> Outcome<'_> {
        async move {
            mysql::execute(self, &["STOP SLAVE IO_THREAD"]).await?;
            until_it_answers("all that was received is carried out", || self.has_caught_up()).await?;
            mysql::execute(self, &["STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0"]).await
        }
        .boxed()
    }
}
