//! Three members of etcd.

use futures::future::{BoxFuture, FutureExt};

use super::etcd::{alarm, compact};
use super::{LEFT_OUT, Outcome, Server, Strike, done, minority, unknown, until};
use crate::etcd::{EtcdCluster as Members, EtcdServer};
use crate::fault::ServerFault;
use crate::line::Line;

pub(crate) const FAULTS: &[ServerFault] = &[
    ServerFault::Stop,
    ServerFault::KillMinority,
    ServerFault::FailOver,
    ServerFault::MoveLeader,
    ServerFault::Compact,
    ServerFault::NoRoom,
];

#[derive(Debug)]
pub(crate) struct EtcdCluster {
    cluster: Members,
    /// The leader that a fault hits.
    hit: usize,
}

impl EtcdCluster {
    pub(crate) fn start_or_skip() -> Option<Self> {
        // A new leader is to be elected soon.
        let options = ["--heartbeat-interval=50", "--election-timeout=500"];
        Some(Self { cluster: Members::start_with_or_skip(LEFT_OUT, &options)?, hit: 0 })
    }

    /// The member that leads, apart from one that does not run.
    fn leader(&self, without: Option<usize>) -> Option<usize> {
        let mut members = self.cluster.members.iter().enumerate().filter(|(n, _)| Some(*n) != without);
        members.find(|(_, member)| member.metric("etcd_server_is_leader") == 1).map(|(n, _)| n)
    }

    async fn find_leader(&mut self) -> Result<(), String> {
        let mut found = None;
        until("a leader", || {
            found = self.leader(None);
            found.is_some()
        })
        .await?;
        self.hit = found.unwrap_or_default();
        Ok(())
    }

    async fn fail_over(&mut self) -> Result<(), String> {
        self.find_leader().await?;
        self.cluster.members[self.hit].kill();
        until("another leader", || self.leader(Some(self.hit)).is_some()).await
    }

    async fn move_leader(&mut self) -> Result<(), String> {
        self.find_leader().await?;
        let (leader, next) = (self.hit, (self.hit + 1) % self.cluster.members.len());
        // `127.0.0.1:2379, 8e9e05c52164694d, 3.4.23, ...`
        let status = self.cluster.members[next].ctl(&["endpoint", "status"]);
        let id = status.split(", ").nth(1).ok_or_else(|| format!("no id in {status:?}"))?.to_owned();
        // It is refused if it has happened by itself.
        self.cluster.members[leader].try_ctl(&["move-leader", &id]);
        Ok(())
    }

    /// Until all serve clients.
    async fn agree(&self) -> Result<(), String> {
        until("all members are healthy", || self.cluster.members.iter().all(EtcdServer::is_healthy)).await
    }
}

impl Server for EtcdCluster {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        let ports: Vec<_> = self.cluster.members.iter().map(EtcdServer::port).collect();
        async move {
            let line = Line::to(&ports).await;
            let hosts: Vec<_> = line.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
            (line, format!("etcd://{}", hosts.join(",")))
        }
        .boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        let members = &mut self.cluster.members;
        match strike.fault {
            ServerFault::Stop => minority(members, strike.which).for_each(|member| member.pause()),
            ServerFault::KillMinority => minority(members, strike.which).for_each(EtcdServer::kill),
            ServerFault::FailOver => return self.fail_over().boxed(),
            ServerFault::MoveLeader => return self.move_leader().boxed(),
            ServerFault::Compact => compact(&members[0]),
            ServerFault::NoRoom => alarm(&members[0], "ACTIVATE"),
            fault => return unknown(fault),
        }
        done()
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        let members = &mut self.cluster.members;
        match strike.fault {
            ServerFault::Stop => minority(members, strike.which).for_each(|member| member.resume()),
            ServerFault::KillMinority => minority(members, strike.which).for_each(EtcdServer::restart),
            ServerFault::FailOver => members[self.hit].restart(),
            ServerFault::NoRoom => alarm(&members[0], "DEACTIVATE"),
            _ => {}
        }
        self.agree().boxed()
    }
}
