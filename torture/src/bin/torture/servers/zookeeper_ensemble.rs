//! Three servers of ZooKeeper, of which one leads.

use futures::future::{BoxFuture, FutureExt};

use super::{LEFT_OUT, Outcome, Server, Strike, done, unknown, until};
use crate::fault::ServerFault;
use crate::line::Line;
use crate::zookeeper::ZookeeperEnsemble as Members;

pub(crate) const FAULTS: &[ServerFault] =
    &[ServerFault::FailOver, ServerFault::StopFollower, ServerFault::KillMinority];

#[derive(Debug)]
pub(crate) struct ZookeeperEnsemble {
    members: Members,
    /// The member that a fault hits.
    hit: usize,
}

impl ZookeeperEnsemble {
    pub(crate) fn start_or_skip() -> Option<Self> {
        Some(Self { members: Members::start_or_skip(LEFT_OUT)?, hit: 0 })
    }

    async fn agree(&self) -> Result<(), String> {
        until("all members serve clients", || self.members.is_ready()).await
    }
}

impl Server for ZookeeperEnsemble {
    fn url(&self) -> String {
        self.members.url()
    }

    fn line(&self) -> BoxFuture<'_, (Line, String)> {
        let ports = self.members.ports();
        async move {
            let line = Line::to(&ports).await;
            let hosts: Vec<_> = line.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
            (line, format!("zookeeper://{}", hosts.join(",")))
        }
        .boxed()
    }

    fn begin(&mut self, strike: Strike) -> Outcome<'_> {
        self.hit = self.members.find(strike.fault == ServerFault::FailOver);
        match strike.fault {
            ServerFault::FailOver => {
                self.members.kill(self.hit);
                self.agree().boxed()
            }
            ServerFault::KillMinority => {
                self.members.kill(self.hit);
                done()
            }
            ServerFault::StopFollower => {
                self.members.pause(self.hit);
                done()
            }
            fault => unknown(fault),
        }
    }

    fn end(&mut self, strike: Strike) -> Outcome<'_> {
        match strike.fault {
            ServerFault::StopFollower => self.members.resume(self.hit),
            _ => self.members.restart(self.hit),
        }
        self.agree().boxed()
    }
}
