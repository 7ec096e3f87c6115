//! A primary of Redis with two replicas, and three sentinels. Its clients go where the sentinels say: there are no lines.

use futures::future::{BoxFuture, FutureExt, ready};

use super::redis::{begin_by_command, end_by_command};
use super::{LEFT_OUT, Outcome, Server, Strike, done, unknown, until};
use crate::fault::ServerFault;
use crate::line::Line;
use leasehold_support::{Raw, Sentinels};

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::FailOver,
    ServerFault::ForgetScripts,
    ServerFault::EndConnections,
    ServerFault::PauseWrites,
    ServerFault::NoRoom,
];

pub(crate) struct Sentinel {
    servers: Sentinels,
    /// The primary that a fault hits.
    hit: usize,
}

impl std::fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinel").field("hit", &self.hit).finish_non_exhaustive()
    }
}

impl Sentinel {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { servers: Sentinels::start_or_skip(LEFT_OUT)?, hit: 0 })
    }

    /// The primary is killed, or hangs and wakes up when it has been replaced.
    async fn fail_over(&mut self, hangs: bool) -> Result<(), String> {
        let old = self.hit;
        if hangs {
            self.servers.servers[old].pause();
        } else {
            self.servers.servers[old].kill();
        }
        let servers = &self.servers;
        until("another primary", || (0..3).all(|sentinel| servers.primary(sentinel) != old)).await
    }

    /// The one that was replaced follows.
    async fn follow(&mut self, hangs: bool) -> Result<(), String> {
        let old = self.hit;
        if hangs {
            self.servers.servers[old].resume();
        } else {
            self.servers.servers[old].restart();
        }
        self.settle().await
    }

    /// Until the primary that a fault has hit follows another one, if there is another one now.
    async fn settle(&self) -> Result<(), String> {
        let (servers, old) = (&self.servers, self.hit);
        until("the old primary follows", || {
            let raw = Raw::connect(servers.servers[old].port());
            let info = raw.and_then(|mut raw| raw.try_send(&["INFO", "replication"]));
            let info = info.ok().and_then(|info| info.text()).unwrap_or_default();
            // On a machine that stands still, it may have become the primary again.
            info.contains("master_link_status:up") || servers.primary(0) == old
        })
        .await
    }
}

impl Server for Sentinel {
    fn url(&self) -> String {
        self.servers.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        ready((Line::None, self.url())).boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        self.hit = self.servers.primary(0);
        match strike.fault {
            ServerFault::FailOver => self.fail_over(strike.which % 2 == 1).boxed(),
            _ if begin_by_command(&self.servers.servers[self.hit], strike) => done(),
            fault => unknown(fault),
        }
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        if strike.fault == ServerFault::FailOver {
            return self.follow(strike.which % 2 == 1).boxed();
        }
        end_by_command(&self.servers.servers[self.hit], strike.fault);
        self.settle().boxed()
    }
}
